/* meopt worker (hidden): trains in a run directory that 'meopt train' made, and prints one line per step. See
 * worker.h. */
#include "cli/command.h"
#include "cli/supervisor/worker.h"
#include "cli/supervisor/worker_ranks.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/base/mapped_file.h"
#include "core/base/message.h"
#include "core/base/progress.h"
#include "core/monitor/monitor.h"
#include "core/run/checkpoint.h"
#include "core/run/scores.h"
#include "core/run/units.h"
#include "core/train/signals.h"

#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

struct progress_printer {
    bool json, brief;
    int64_t first_step;
    double first_loss, last_loss, units;
    int64_t empty_steps; /* without labels */
    const struct unit *unit;
    struct metric last[OBJECTIVE_METRICS], evaluation[EVALUATION_METRICS]; /* the newest of each */
    double begin;
    struct memory_use use; /* of the rank with the most memory */
    int peak_rank;
    const struct trainer *trainer;
    const char *longer; /* the key that sets the length of the run */
    struct worker_report *report;
    struct worker_ranks ranks;
};

static void log_row(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void log_row(const char *name, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    log_info("%*s %s", PAD(-28, translation(name)), text);
}

static void on_phase(void *context, enum train_phase at)
{
    struct progress_printer *printer = context;
    atomic_store(&printer->report->phase, at);
    if (signals_asked(REQUEST_STOP)) atomic_store(&printer->report->stop_wanted, 1);
    atomic_fetch_add(&printer->report->marks, 1);
}

static void mark(void *context)
{
    struct worker_report *report = context;
    atomic_fetch_add(&report->marks, 1);
}

/* Returns the bytes of weights and optimizer state in a checkpoint, without its few kilobytes of names. */
static int64_t saving_bytes(const struct trainer *t)
{
    int64_t bytes = 0;
    for (int i = 0; i < t->saved_count; i++)
        bytes += t->student->parameters[t->saved[i]].count * (int64_t)sizeof(float);
    for (int i = 0; i < t->tensors.count; i++) bytes += (int64_t)meopt_state_bytes(t->opt, (size_t)i);
    return bytes;
}

/* Returns the telemetry provider that the supervisor will choose for this device (supervise_live.c). */
static const char *telemetry_source(void *context, const struct device *device)
{
    static struct monitor_snapshot now;
    struct monitor *monitor;
    struct error absent;
    const char *named = getenv("MEOPT_MONITOR");
    struct monitor_options options = {.provider = named            ? named
                                                  : device->pci[0] ? "auto"
                                                                   : "proc",
                                      .root = getenv("MEOPT_MONITOR_ROOT")};
    (void)context;
    if (monitor_open(&monitor, &options, &absent)) return "";
    monitor_read(monitor, &now);
    monitor_close(monitor);
    return now.provider;
}

/* Logs a warning for each fallback. */
static void report_fallbacks(const struct device_fact start[START_ROWS])
{
    char text[1024];
    for (int i = 0; i < START_ROWS; i++)
        if (fact_warning(&start[i], text, sizeof text)[0]) log_warn("%s", text);
}

/* Logs the table of device facts, and its warnings. */
static void report_start(const struct device_fact start[START_ROWS])
{
    char is[sizeof start->is];
    for (int i = 0; i < START_ROWS; i++)
        log_row(start[i].name, "%s", message_translated(is, sizeof is, start[i].is));
    report_fallbacks(start);
}

/* Logs the warnings of a rank above 0. */
static void warn_start(const struct device_fact start[START_ROWS], int rank)
{
    char text[1024];
    for (int i = 0; i < START_ROWS; i++)
        if (fact_warning(&start[i], text, sizeof text)[0]) log_warn("rank %d: %s", rank, text);
}

static bool is_default(int key, const char *text)
{
    const char *standard = config_keys[key].standard;
    char *end, *standard_end;
    double value = strtod(text, &end), usual = strtod(standard, &standard_end);
    if (!*end && !*standard_end && end > text && standard_end > standard) return value == usual;
    return strcmp(text, standard) == 0 || (!*standard && strcmp(text, "\"\"") == 0);
}

/* Logs the settings that are not defaults; with MEOPT_LOG=debug all of them. */
static void report_settings(const struct config *config)
{
    bool hidden = false;
    for (int i = 0; config_keys[i].name; i++) {
        if (!config_keys[i].numbers) continue;
        char *text = config_value_text(config, i);
        if (text[0] && (!is_default(i, text) || log_level >= LOG_DEBUG))
            log_row(config_keys[i].name, "%s", text);
        else hidden = true;
        free(text);
    }
    if (hidden) log_row("other settings", "defaults; config.yaml of the run has all");
}

static void on_begin(void *context, const struct trainer *t, const struct device_fact start[START_ROWS],
                     const struct data *data, int64_t from, int64_t total)
{
    struct progress_printer *printer = context;
    printer->report->from = from;
    monitor_pci(printer->report->pci, t->device->pci);
    atomic_store(&printer->report->saving_bytes, saving_bytes(t));
    atomic_store(&printer->report->step, from);
    atomic_store(&printer->report->total, total);
    printer->trainer = t;
    printer->unit = unit_of(t->objective->tokens);
    printer->first_step = from;
    printer->begin = clock_seconds();
    if (printer->ranks.comm.rank > 0) {
        warn_start(start, printer->ranks.comm.rank);
        return;
    }
    if (printer->brief) {
        report_fallbacks(start);
        return;
    }
    bool teacher = t->objective->teacher;
    for (int i = 0; i <= t->teacher_count; i++) {
        const struct model_shape *g = i < t->teacher_count ? &t->teachers[i].shape : &t->student_shape;
        char text[512];
        model_shape_text(g, text, sizeof text);
        log_row(objective_tower(t->objective, i == t->teacher_count), "%s: %.2f M parameters", text,
                (double)model_shape_parameters(g) * 1e-6);
    }
    char from_run[256];
    int64_t from_step;
    if (checkpoint_named(t->config->model_s.weight, from_run, sizeof from_run, &from_step))
        log_row(teacher ? N_("student begins") : N_("model begins"), "with the weights of %s at step %lld",
                from_run, (long long)from_step);
    char clipping[320];
    if (t->micro < t->batch) {
        trainer_rounds(t->schedule.breadth, t->schedule.twice, (t->batch + t->micro - 1) / t->micro,
                       t->schedule.wave, clipping, sizeof clipping);
        log_row("rounds", "%s", clipping);
    }
    trainer_clipping(t->config, trainer_clips_exactly(t), t->schedule.twice, clipping, sizeof clipping);
    log_row("clipping", "%s", clipping);
    if (t->ranks.size > 1)
        log_row("ranks", "%d, %lld %s per step", t->ranks.size, (long long)t->images,
                _(printer->unit->samples));
    if (data_tokens(data))
        log_row("tokens", "%lld in %s: %lld samples of %lld", (long long)data_tokens(data),
                t->config->data.root, (long long)data_images(data), (long long)t->config->model_s.context);
    else log_row("images", "%lld in %s", (long long)data_images(data), t->config->data.root);
    report_start(start);
    report_settings(t->config);
    printer->longer = t->config->train.steps > 0 ? "train.steps" : "train.epochs";
    if (from < total) log_row("steps", "%lld to %lld", (long long)from + 1, (long long)total);
    else log_row("steps", "none: all %lld are complete", (long long)total);
}

static void on_variants(void *context, const struct loss_variant *v, int count)
{
    const struct progress_printer *printer = context;
    if (printer->ranks.comm.rank > 0 || printer->brief) return;
    for (int i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, _("loss at step 0, %s"), v[i].name);
        log_row(name, "%.6g", v[i].value);
    }
}

/* Returns whether the run is about to save and stop; then logging does not wait for a slow reader. */
static bool is_stopping(void) { return signals_act(PHASE_STEP) == ACT_SAVE_STOP; }

/* Writes each metric after `before`, for people, or as a member of a JSON object. */
static void metrics_text(const struct metric *metrics, int count, const char *before, bool json, char *text,
                         size_t size)
{
    size_t n = 0;
    char value[32];
    text[0] = 0;
    for (int i = 0; i < count && metrics[i].name && n < size; i++) {
        const struct score_row *row = score_named(metrics[i].name);
        if (json && isnan(metrics[i].value))
            n += (size_t)snprintf(text + n, size - n, ",\"%s\":null", row->key);
        else if (json) n += (size_t)snprintf(text + n, size - n, ",\"%s\":%.9g", row->key, metrics[i].value);
        else if (!isnan(metrics[i].value))
            n += (size_t)snprintf(text + n, size - n, "%s%s %s", before, _(row->label),
                                  score_text(value, sizeof value, row, metrics[i].value, "%.4f"));
    }
}

static void on_step(void *context, const struct train_progress *p)
{
    struct progress_printer *printer = context;
    atomic_store(&printer->report->step, p->step);
    if (printer->first_loss == 0 && !isnan(p->loss)) printer->first_loss = p->loss;
    if (!isnan(p->loss)) printer->last_loss = p->loss;
    else if (!printer->empty_steps++ && printer->ranks.comm.rank == 0)
        log_warn("step %lld has no label, as other steps may: such steps have no loss and change nothing",
                 (long long)p->step);
    memcpy(printer->last, p->metrics, sizeof printer->last);
    if (p->evaluation[0].name) memcpy(printer->evaluation, p->evaluation, sizeof printer->evaluation);
    printer->units += (p->tokens_per_s > 0 ? p->tokens_per_s : p->images_per_s) * p->step_ms * 1e-3;
    printer->use = printer->trainer->ranks.size > 1 ? p->peak : printer->trainer->device->use;
    printer->peak_rank = p->peak_rank;
    worker_ranks_step(&printer->ranks, p, &printer->trainer->device->use);
    if (printer->ranks.comm.rank > 0) return;
    if (p->step % printer->trainer->config->train.log_every && p->step != p->total &&
        p->step != printer->first_step + 1 && !p->evaluation[0].name)
        return;
    if (!log_capacity(STDOUT_FILENO)) return;
    char metrics[160], evaluation[320], speed[80] = "", mfu[24] = "", loss[32] = "";
    if (!isnan(p->loss)) snprintf(loss, sizeof loss, printer->json ? "%.9g" : "%.6f", p->loss);
    metrics_text(p->metrics, OBJECTIVE_METRICS, "  ", printer->json, metrics, sizeof metrics);
    metrics_text(p->evaluation, EVALUATION_METRICS, "  ", printer->json, evaluation, sizeof evaluation);
    int n =
        p->tokens_per_s > 0 ? snprintf(speed, sizeof speed, "\"tokens_per_s\":%.6g,", p->tokens_per_s) : 0;
    if (p->mfu > 0) snprintf(speed + n, sizeof speed - (size_t)n, "\"mfu\":%.6g,", p->mfu);
    if (p->mfu > 0) snprintf(mfu, sizeof mfu, "  MFU %.1f%%", 100 * p->mfu);
    if (printer->json)
        printf("{\"step\":%lld,\"epoch\":%lld,\"loss\":%s%s,\"lr\":%.9g,\"grad_norm\":%.9g,"
               "\"images_per_s\":%.6g,%s\"step_ms\":%.6g,\"data_wait_ms\":%.6g%s}\n",
               (long long)p->step, (long long)p->epoch, loss[0] ? loss : "null", metrics, p->lr, p->grad_norm,
               p->images_per_s, speed, p->step_ms, p->data_wait_ms, evaluation);
    else
        printf(_("step %5lld/%lld  epoch %3lld  loss %s%s  lr %.3e  norm %.4f  %8.1f %s%s  "
                 "%8.1f ms  wait %5.1f ms%s\n"),
               (long long)p->step, (long long)p->total, (long long)p->epoch + 1, loss[0] ? loss : "-",
               metrics, p->lr, p->grad_norm, p->tokens_per_s > 0 ? p->tokens_per_s : p->images_per_s,
               _(printer->unit->rate), mfu, p->step_ms, p->data_wait_ms, evaluation);
    fflush(stdout);
}

static void on_saved(void *context, int64_t step)
{
    const struct progress_printer *printer = context;
    if (printer->ranks.comm.rank == 0 && !printer->brief)
        log_info("checkpoint at step %lld", (long long)step);
}

/* Logs losses, rates and memory at the end. */
static void log_summary(const struct progress_printer *printer, const struct run *run, int code)
{
    char again[400];
    if (printer->units <= 0) {
        if (code == 0)
            log_info("all steps are complete; to train longer: meopt train --resume %s %s=N",
                     run_resume_words(run, again, sizeof again), printer->longer);
        return;
    }
    double seconds = clock_seconds() - printer->begin;
    char metrics[160], evaluation[320];
    metrics_text(printer->last, OBJECTIVE_METRICS, ", ", false, metrics, sizeof metrics);
    metrics_text(printer->evaluation, EVALUATION_METRICS, ", ", false, evaluation, sizeof evaluation);
    log_info("loss %.6f -> %.6f%s%s, %.1f s, %.1f %s", printer->first_loss, printer->last_loss, metrics,
             evaluation, seconds, printer->units / seconds, _(printer->unit->rate));
    if (printer->empty_steps) log_warn("%lld steps had no label", (long long)printer->empty_steps);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (printer->use.peak_bytes[c])
            log_row(memory_class_names[c], "%.1f MiB", (double)printer->use.peak_bytes[c] / 1048576.0);
    double peak = (double)printer->use.peak_total_bytes / 1048576.0;
    if (printer->ranks.comm.size < 2) log_row(N_("peak"), "%.1f MiB", peak);
    else log_row(N_("peak"), "%.1f MiB on rank %d, the largest", peak, printer->peak_rank);
    log_info("run %s", run->directory);
}

static struct worker_report *reported;

/* Reports a truncated or failed mapped file to the supervisor, which prints the error. */
static void map_lost(const struct error *err)
{
    reported->code = err->code;
    reported->err = *err;
    atomic_store(&reported->ended, 1);
}

/* Checks that all ranks have the same images. */
static int on_ready(void *context, const struct data *data, const struct data *validation, struct error *err)
{
    struct progress_printer *printer = context;
    return worker_ranks_agree(&printer->ranks, data, validation, err);
}

/* Maps the page of reports that the supervisor shares, and finds the one of this worker. */
static int map_report(const struct arguments *args, struct worker_report **report, struct error *err)
{
    int64_t fd = argument_int(args, "report", -1), number = argument_int(args, "report-number", 0);
    if (fd < 0) return 0;
    size_t bytes = (size_t)(number + 1) * sizeof **report;
    struct worker_report *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
    if (all == MAP_FAILED)
        return error_errno(err, EXIT_FAILED, NULL, "cannot map the report of the supervisor");
    *report = all + number;
    close((int)fd);
    return 0;
}

/* Trains in the run directory as one rank. Only rank 0 has the lock of the run and writes there. */
static int worker_train(struct progress_printer *printer, const struct arguments *args, const char *directory,
                        struct error *err)
{
    struct config config;
    const struct comm_options *comm = &printer->ranks.comm;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    const char *card = argument_text(args, "card", NULL);
    int code = config_load_below(&config, directory, NULL, 0, err);
    if (code) return code;
    if (card && strchr(card, ':')) code = config_assign(&config, "device.cards", strchr(card, ':') + 1, err);
    if (!code && comm->rank == 0)
        code = run_open_held(&run, directory, (int)argument_int(args, "lock", -1), err);
    else if (!code) run.directory = xstrdup(directory);
    run_set_ranks(&run, comm->size, printer->ranks.launched, card && strchr(card, ':'));
    if (!code) {
        struct train_listener listener = {printer, on_phase, on_begin,         on_variants,
                                          on_step, on_saved, telemetry_source, on_ready};
        log_hurry = is_stopping;
        struct train_resume how = {argument_flag(args, "resume") ||
                                       (printer->ranks.launched && heartbeat_resumes(printer->ranks.heart)),
                                   argument_text(args, "force-resume", NULL)};
        code = train_loop(&run, &config, how, argument_int(args, "stop-after", 0),
                          comm->size > 1 ? comm : NULL, &listener, err);
        if (printer->trainer && comm->rank == 0 && !printer->brief && (code == 0 || code == EXIT_STOPPED))
            log_summary(printer, &run, code);
    }
    run_close(&run);
    config_free(&config);
    return code;
}

/* Disables core files, because a crash with an open card would write gigabytes per rank. To enable them for
 * process N: prlimit --core=unlimited --pid N. */
static void disable_core(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
    limit.rlim_cur = 0;
    setrlimit(RLIMIT_CORE, &limit);
}

static int worker_run(const struct arguments *args, struct error *err)
{
    struct worker_report own = {0}, *report = &own;
    int64_t threads = argument_int(args, "threads", 0);
    int code = map_report(args, &report, err);
    if (code) return code;
#ifdef _OPENMP
    if (threads > 0) omp_set_num_threads((int)threads);
#else
    (void)threads;
#endif
    bool watched = report != &own;
    disable_core();
    progress_listen(mark, report);
    reported = report;
    if (watched) {
        mapped_file_catch(map_lost);
        worker_watch_limit(report);
    }
    struct progress_printer printer = {
        .json = argument_flag(args, "json"), .brief = argument_flag(args, "brief"), .report = report};
    code = worker_ranks_join(&printer.ranks, args, report, err);
    if (!code) {
        const char *directory = args->operand_count ? args->operands[0] : heartbeat_run(printer.ranks.heart);
        code = worker_train(&printer, args, directory, err);
    }
    report->code = code;
    if (code) report->err = *err;
    worker_ranks_leave(&printer.ranks, code, err);
    atomic_store(&report->ended, 1);
    if (watched || printer.ranks.reported)
        err->what[0] = 0; /* the supervisor prints the error, or it is already printed */
    return code;
}

static const struct option options[] = {
    {"resume", .help = "resume from the newest complete checkpoint"},
    {"force-resume", .type = OPTION_TEXT, .value = "KEYS",
     .help = "keys that may differ from the run's, separated by commas"},
    {"stop-after", .type = OPTION_INT, .value = "N", .min = 1, .max = 1e12,
     .help = "save and stop after step N"},
    {"threads", .type = OPTION_INT, .value = "N", .min = 1, .max = 4096, .help = "number of CPU threads"},
    {"report", .type = OPTION_INT, .value = "FD", .max = 1e6,
     .help = "descriptor of the shared page of reports"},
    {"report-number", .type = OPTION_INT, .value = "N", .max = 1e6,
     .help = "index of the report in that page"},
    {"rank", .type = OPTION_INT, .value = "R", .max = 65535, .help = "number of this rank"},
    {"ranks", .type = OPTION_INT, .value = "N", .min = 1, .max = 65536, .help = "number of ranks"},
    {"local-rank", .type = OPTION_INT, .value = "R", .max = 65535, .help = "number of this rank on its host"},
    {"shared", .type = OPTION_INT, .value = "FD", .max = 1e6,
     .help = "descriptor of the memory that the ranks of this host share"},
    {"join", .type = OPTION_TEXT, .value = "FILE",
     .help = "for a rank that a launcher started: file with the address of rank 0"},
    {"card", .type = OPTION_TEXT, .value = "KIND:N", .help = "the card of this rank"},
    {"config-hash", .type = OPTION_TEXT, .value = "HEX",
     .help = "hash of the configuration of this rank's command line"},
    {"lock", .type = OPTION_INT, .value = "FD", .max = 1e6, .help = "descriptor of the held lock of the run"},
    {"brief", .help = "print only steps, no tables at start and end"},
    {"json", .help = "print one JSON object per line"},
    {0},
};

const struct command cmd_worker = {
    .name = "worker",
    .operands = "[RUN]",
    .summary = "train in a run directory",
    .options = options,
    .max_operands = 1,
    .hidden = true,
    .run = worker_run,
};
