/* meopt train: make or reopen a run directory, train in it, tell a line per step. */
#include "cli/command.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/train/checkpoint.h"
#include "core/train/loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

struct talk {
    bool json;
    int64_t every, first_step;
    double first_loss, last_loss, last_cosine, images;
    struct timespec begin;
    struct memory_use use;
    const struct trainer *trainer;
};

static void row(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void row(const char *name, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_info("%-28s %s", name, text);
}

static void begun(void *context, const struct trainer *t, const struct data *data, int64_t from, int64_t total)
{
    struct talk *talk = context;
    talk->trainer = t;
    talk->first_step = from;
    clock_gettime(CLOCK_MONOTONIC, &talk->begin);
    const struct geometry *g[] = {&t->teacher_geometry, &t->student_geometry};
    for (int i = 0; i < 2; i++)
        row(i ? "student" : "teacher", "%s, %lld blocks of width %lld, %lld heads, image %lld: %.2f M parameters", family_name(g[i]->family),
            (long long)g[i]->depth, (long long)g[i]->width, (long long)g[i]->heads, (long long)g[i]->image, (double)geometry_parameters(g[i]) * 1e-6);
    row("images", "%lld in %s", (long long)data_images(data), t->config->data.root);
    row("device", "%s", t->device->name);
    for (int i = 0; config_keys[i].name; i++) {
        char *text = config_value_text(t->config, i);
        if (text[0] && config_keys[i].numbers) row(config_keys[i].name, "%s", text);
        free(text);
    }
    row("steps", "%lld to %lld", (long long)from + 1, (long long)total);
}

static void variants(void *context, const struct loss_variant *v, int count)
{
    (void)context;
    for (int i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "loss at step 0, %s", v[i].name);
        row(name, "%.6g", v[i].value);
    }
}

static void stepped(void *context, const struct train_progress *p)
{
    struct talk *talk = context;
    if (talk->first_loss == 0) talk->first_loss = p->loss;
    talk->last_loss = p->loss;
    talk->last_cosine = p->cosine;
    talk->images += p->images_per_s * p->step_ms * 1e-3;
    talk->use = talk->trainer->device->use;
    if (p->step % talk->every && p->step != p->total && p->step != talk->first_step + 1) return;
    if (talk->json)
        printf("{\"step\":%lld,\"epoch\":%lld,\"loss\":%.9g,\"cosine\":%.9g,\"lr\":%.9g,\"grad_norm\":%.9g,\"images_per_s\":%.6g,\"step_ms\":%.6g,\"data_wait_ms\":%.6g}\n",
               (long long)p->step, (long long)p->epoch, p->loss, p->cosine, p->lr, p->grad_norm, p->images_per_s, p->step_ms, p->data_wait_ms);
    else
        printf("step %5lld/%lld  epoch %3lld  loss %.6f  cosine %.4f  lr %.3e  norm %.4f  %8.1f images/s  %8.1f ms  wait %5.1f ms\n", (long long)p->step,
               (long long)p->total, (long long)p->epoch, p->loss, p->cosine, p->lr, p->grad_norm, p->images_per_s, p->step_ms, p->data_wait_ms);
    fflush(stdout);
}

static void saved(void *context, int64_t step)
{
    (void)context;
    log_info("checkpoint at step %lld", (long long)step);
}

static void summary(const struct talk *talk, const struct run *run)
{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double seconds = (double)(end.tv_sec - talk->begin.tv_sec) + (double)(end.tv_nsec - talk->begin.tv_nsec) * 1e-9;
    log_info("loss %.6f -> %.6f, cosine %.4f, %.1f s, %.1f images/s", talk->first_loss, talk->last_loss, talk->last_cosine, seconds, talk->images / seconds);
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (talk->use.peak_bytes[c]) row(memory_class_names[c], "%.1f MiB", (double)talk->use.peak_bytes[c] / 1048576.0);
    row("peak", "%.1f MiB", (double)talk->use.peak_total_bytes / 1048576.0);
    log_info("run %s", run->directory);
}

static int train_run(const struct arguments *args, struct error *err)
{
    const char *resume = argument_text(args, "resume", NULL);
    struct config config;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    char *path = NULL;
    int code;
    int64_t threads = argument_int(args, "threads", 0);
#ifdef _OPENMP
    if (threads > 0) omp_set_num_threads((int)threads);
#else
    (void)threads;
#endif
    if (!resume && args->operand_count == 0)
        return error_set(err, EXIT_USAGE, "see 'meopt train --help'", "meopt train needs CONFIG, or --resume RUN");
    if (resume) {
        if (args->operand_count > 0) return error_set(err, EXIT_USAGE, "leave CONFIG out", "a resumed run has its own configuration");
        path = path_join(resume, "config.yaml");
        if ((code = config_load(&config, path, NULL, 0, err)) != 0) {
            free(path);
            return code;
        }
        code = run_open(&run, resume, err);
    } else {
        if ((code = config_load(&config, args->operands[0], args->operands + 1, args->operand_count - 1, err)) != 0) return code;
        char steps[32];
        if (argument_int(args, "steps", 0) > 0) {
            snprintf(steps, sizeof steps, "%lld", (long long)argument_int(args, "steps", 0));
            code = config_assign(&config, "train.steps", steps, err);
        }
        /* everything that can be wrong is found before a directory is made */
        struct device *dry = NULL;
        struct trainer *rehearsal = NULL;
        if (!code) code = device_open(&dry, "dry", 0, err);
        if (!code) code = trainer_create(&rehearsal, &config, dry, false, NULL, NULL, err);
        trainer_close(rehearsal);
        device_close(dry);
        struct data_options options = {0};
        struct data *data = NULL;
        if (!code) {
            options = train_data_options(&config);
            code = data_open(&data, &options, err);
        }
        data_close(data);
        time_t t = time(NULL);
        struct tm utc;
        char stamp[32];
        strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", gmtime_r(&t, &utc));
        char *name = argument_text(args, "name", NULL) ? xstrdup(argument_text(args, "name", NULL)) : config.run.name[0] ? xstrdup(config.run.name) : xasprintf("%s-%s", config.stem, stamp);
        if (!code) code = run_create(&run, argument_text(args, "run-dir", config.run.dir[0] ? config.run.dir : "runs"), name, &config, err);
        free(name);
    }
    if (!code) {
        struct talk talk = {.json = argument_flag(args, "json"), .every = config.train.log_every > 0 ? config.train.log_every : 1};
        struct train_listener listener = {&talk, begun, variants, stepped, saved};
        code = train_loop(&run, &config, resume != NULL, argument_int(args, "stop-after", 0), &listener, err);
        if (talk.trainer && (code == 0 || code == EXIT_STOPPED)) summary(&talk, &run);
    }
    run_close(&run);
    config_free(&config);
    free(path);
    return code;
}

static const struct option options[] = {
    {"run-dir", 0, OPTION_TEXT, "DIR", NULL, 0, 0, "directory of runs (default runs)"},
    {"name", 0, OPTION_TEXT, "NAME", NULL, 0, 0, "name of the run (default CONFIG-UTCTIME)"},
    {"steps", 0, OPTION_INT, "N", NULL, 1, 1e12, "train N steps in all (train.steps)"},
    {"stop-after", 0, OPTION_INT, "N", NULL, 1, 1e12, "save and stop behind step N (exit 10)"},
    {"resume", 0, OPTION_TEXT, "RUN", NULL, 0, 0, "go on with this run directory from its newest whole checkpoint"},
    {"threads", 0, OPTION_INT, "N", NULL, 1, 4096, "processor threads"},
    {"json", 0, OPTION_FLAG, NULL, NULL, 0, 0, "a JSON object per line on stdout"},
    {0},
};

const struct command cmd_train = {"train", "CONFIG [key=value ...]", "distil the teacher of an experiment into its student",
                                  "Examples:\n  meopt train configs/eva_clip.yaml\n  meopt train configs/eva_clip.yaml optim.use_meopt=false --name without\n"
                                  "  meopt train --resume runs/without",
                                  options, 0, -1, false, train_run};
