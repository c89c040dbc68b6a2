/* meopt bench train: measures training steps of a configuration, and the best GEMM rate of the machine in
 * the same run. */
#include "cli/command.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/device/bench.h"
#include "core/device/facts.h"
#include "core/device/profile.h"
#include "core/run/memory.h"
#include "core/run/units.h"
#include "core/experiment/experiment.h"
#include "core/step/trainer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct synthetic {
    void *input; /* images, or tokens */
    int64_t *ids;
    int32_t *labels;
};

static int next_batch(void *context, int64_t index, struct batch *batch, const int64_t **ids,
                      struct error *err)
{
    struct synthetic *s = context;
    (void)index;
    (void)err;
    batch->input = s->input;
    batch->labels = s->labels;
    *ids = s->ids;
    return 0;
}

static const void *next_images(void *context) { return ((struct synthetic *)context)->input; }

/* Results: the best step, its time by kind of work, and the best GEMM rate of each type. */
struct bench_result {
    double seconds, images, gflops, model_gflops;
    double update_flops, update_share; /* Newton-Schulz of a step, and its part of all operations */
    double published_gflops;           /* of the card; 0: unknown */
    double tokens;                     /* of a sample; 0: it is an image */
    double spent[WORK_KINDS];          /* of that step, with --profile */
    int64_t calls[WORK_KINDS];
    double call; /* seconds of an empty call */
    struct gemm_peak bf16, fp32;
    const struct gemm_peak *peak; /* the reference of the two; NULL: not measured */
    double processor_s;           /* CPU seconds of the process in that step */
    bool on_cpu;                  /* no card computes */
    double stream_ms, offload_ms; /* waiting for streamed weights and offloaded states; negative: none */
    struct memory_use use;
    int64_t resident; /* largest resident bytes of the process */
};

static void keep_better(struct gemm_peak *best, const struct gemm_peak *peak)
{
    if (peak->gflops > best->gflops) *best = *peak;
}

/* Measures the best GEMM rate of both types, and keeps the higher of old and new values. Uses a device of
 * its own, so that its scratch memory is not counted. Training in bf16 may compute GEMMs in fp32, so the
 * reference is the better of the two. The type that does not train is measured with smaller GEMMs. */
static int measure_peaks(const struct config *c, struct bench_result *f, struct error *err)
{
    struct device *device;
    struct gemm_peak bf16 = {0}, fp32 = {0};
    bool wide = experiment_tower_type(&c->model_s) == DTYPE_F32;
    int code = experiment_open_device(&device, c, false, err);
    if (code) return code;
    bool cpu = device->kind == DEVICE_CPU;
    log_info("measuring the best GEMM rate, bf16 and fp32");
    if (device_gemm_peak(device, DTYPE_BF16, wide && cpu ? 2 : 0, &bf16, err) == 0)
        keep_better(&f->bf16, &bf16);
    if (device_gemm_peak(device, DTYPE_F32, !wide && cpu ? 2 : 0, &fp32, err) == 0)
        keep_better(&f->fp32, &fp32);
    device_close(device);
    f->peak = wide || f->fp32.gflops > f->bf16.gflops ? &f->fp32 : &f->bf16;
    if (f->peak->gflops <= 0) f->peak = NULL;
    return 0;
}

static struct rusage used(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use;
}

static double processor_seconds(void)
{
    struct rusage use = used();
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static void report_wait(const char *what, double ms)
{
    if (ms >= 0) fprintf(stderr, _(", waited %.1f ms for %s"), ms, what);
}

/* Returns a micro-batch of made-up images or tokens, with labels. */
static struct synthetic synthetic_batch(const struct trainer *t)
{
    size_t bytes = trainer_input_bytes(t, t->micro);
    int64_t values = (int64_t)(bytes / sizeof(float)), labels = t->micro * t->labels_each,
            classes = t->student->out_width;
    struct synthetic s = {xmalloc(bytes), xcalloc((size_t)t->micro, sizeof *s.ids),
                          xcalloc((size_t)labels, sizeof *s.labels)};
    float *images = s.input;
    int32_t *tokens = s.input;
    for (int64_t i = 0; i < labels; i++) /* an encoder predicts some of its tokens */
        s.labels[i] = i % t->labels_each < t->student->out_rows ? (int32_t)(i % classes) : -1;
    for (int64_t i = 0; i < values && !t->objective->tokens; i++)
        images[i] = (float)((i * 2654435761u >> 7) % 2001) * 1e-3f - 1;
    for (int64_t i = 0; i < values && t->objective->tokens; i++)
        tokens[i] = (int32_t)((i * 2654435761u >> 7) % classes);
    return s;
}

static int bench_steps(struct trainer *t, const struct config *c, int64_t steps,
                       struct device_profile *profile, struct bench_result *f, struct error *err)
{
    struct synthetic s = synthetic_batch(t);
    struct step_result result;
    int code = 0;
    for (int64_t step = 1; step <= steps && !code; step++) {
        if (profile) profile_clear(profile);
        double begin = clock_seconds(), spent = processor_seconds();
        code = trainer_step(t, step, c->optim.lr, &(struct batch_source){next_batch, next_images, &s},
                            &result, err);
        double seconds = clock_seconds() - begin, processor = processor_seconds() - spent;
        if (code) break;
        fprintf(stderr, _("step %lld: %.1f ms, %.1f ms of CPU time, loss %.6g"), (long long)step,
                seconds * 1e3, processor * 1e3, result.loss);
        report_wait("weights", result.stream_wait_ms);
        report_wait("states", result.offload_wait_ms);
        fputc('\n', stderr);
        if (step > 1 && seconds >= f->seconds) continue;
        f->seconds = seconds;
        f->processor_s = processor;
        f->stream_ms = result.stream_wait_ms;
        f->offload_ms = result.offload_wait_ms;
        if (!profile) continue;
        memcpy(f->spent, profile->seconds, sizeof f->spent);
        memcpy(f->calls, profile->calls, sizeof f->calls);
    }
    free(s.input);
    free(s.ids);
    free(s.labels);
    if (code) return code;
    f->images = (double)t->batch / f->seconds;
    f->tokens = t->objective->tokens ? (double)t->labels_each : 0;
    double passes = (t->student_flops + trainer_teacher_flops(t)) * (double)t->batch;
    f->update_flops = t->update_flops;
    f->update_share = f->update_flops / (passes + f->update_flops);
    f->gflops = (passes + f->update_flops) / f->seconds * 1e-9;
    f->model_gflops = t->model_flops * f->images * 1e-9;
    f->published_gflops = t->device->peak_flops * 1e-9;
    f->on_cpu = t->device->kind == DEVICE_CPU;
    f->use = t->device->use;
    f->resident = (int64_t)used().ru_maxrss * 1024;
    return 0;
}

/* Returns the seconds of the step outside of calls. */
static double waiting(const struct bench_result *f)
{
    double rest = f->seconds;
    for (int k = 0; k < WORK_KINDS; k++) rest -= f->spent[k];
    return rest > 0 ? rest : 0;
}

static int64_t calls_of(const struct bench_result *f)
{
    int64_t all = 0;
    for (int k = 0; k < WORK_KINDS; k++) all += f->calls[k];
    return all;
}

/* Returns the peak of MFU: the card's published one, else the best measured GEMM rate; 0: unknown. */
static double mfu_peak_gflops(const struct bench_result *f)
{
    return f->published_gflops > 0 ? f->published_gflops : f->peak ? f->peak->gflops : 0;
}

/* Returns 0 without a peak. */
static double utilization(const struct bench_result *f)
{
    double peak = mfu_peak_gflops(f);
    return peak > 0 ? f->model_gflops / peak : 0;
}

static json_t *rate_or_null(double gflops) { return gflops > 0 ? json_real(gflops) : json_null(); }

static json_t *wait_or_null(double ms) { return ms >= 0 ? json_real(ms) : json_null(); }

static void print_json(const struct bench_result *f, bool profiled)
{
    double peak = f->peak ? f->peak->gflops : 0;
    json_t *memory = memory_json(&f->use),
           *all = json_pack(
               "{s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:f, s:I, s:O, s:O, s:O, s:I, s:f, s:o, s:o}",
               "images_per_s", f->images, "gflops", f->gflops, "gemm_peak_gflops", rate_or_null(peak),
               "gemm_peak_of", f->peak ? json_string(f->peak->of) : json_null(), "gemm_peak_bf16_gflops",
               rate_or_null(f->bf16.gflops), "gemm_peak_fp32_gflops", rate_or_null(f->fp32.gflops),
               "gemm_ratio", rate_or_null(f->peak ? f->gflops / peak : 0), "step_ms", f->seconds * 1e3,
               "peak_bytes", (json_int_t)f->use.peak_total_bytes, "classes",
               json_object_get(memory, "classes"), "host_classes", json_object_get(memory, "host_classes"),
               "file_classes", json_object_get(memory, "file_classes"), "resident_bytes",
               (json_int_t)f->resident, "processor_s", f->processor_s, "stream_wait_ms",
               wait_or_null(f->stream_ms), "offload_wait_ms", wait_or_null(f->offload_ms));
    if (f->update_flops > 0) {
        json_object_set_new(all, "update_flops", json_real(f->update_flops));
        json_object_set_new(all, "update_share", json_real(f->update_share));
    }
    json_object_set_new(all, "model_gflops", json_real(f->model_gflops));
    json_object_set_new(all, "mfu", rate_or_null(utilization(f)));
    json_object_set_new(all, "mfu_peak_gflops", rate_or_null(mfu_peak_gflops(f)));
    if (f->tokens > 0) json_object_set_new(all, "tokens_per_s", json_real(f->tokens * f->images));
    if (profiled) {
        json_t *parts = json_object();
        char key[32];
        for (int k = 0; k < WORK_KINDS; k++) {
            snprintf(key, sizeof key, "%s_ms", work_kind_names[k]);
            json_object_set_new(parts, key, json_real(f->spent[k] * 1e3));
            snprintf(key, sizeof key, "%s_calls", work_kind_names[k]);
            json_object_set_new(parts, key, json_integer((json_int_t)f->calls[k]));
        }
        json_object_set_new(parts, "waiting_ms", json_real(waiting(f) * 1e3));
        json_object_set_new(parts, "call_us", rate_or_null(f->call * 1e6));
        json_object_set_new(all, "profile", parts);
    }
    json_print(stdout, all, JSON_COMPACT | JSON_REAL_PRECISION(6) | JSON_PRESERVE_ORDER);
    json_decref(all);
    json_decref(memory);
}

static void print_rate(const char *name, const struct gemm_peak *peak)
{
    if (peak->gflops > 0)
        printf(_("%*s %.1f GFLOP/s in this run (%s)\n"), PAD(-11, _(name)), peak->gflops, peak->of);
    else printf(_("%*s not measured\n"), PAD(-11, _(name)));
}

static void print_profile(const struct bench_result *f)
{
    for (int k = 0; k < WORK_KINDS; k++)
        printf(_("%*s %.1f %% of the step, %.1f ms, %lld calls\n"), PAD(-11, _(work_kind_names[k])),
               f->spent[k] / f->seconds * 100, f->spent[k] * 1e3, (long long)f->calls[k]);
    printf(_("%*s %.1f %% of the step, %.1f ms\n"), PAD(-11, _("waiting")), waiting(f) / f->seconds * 100,
           waiting(f) * 1e3);
    if (f->call <= 0) return;
    double calls = (double)calls_of(f) * f->call;
    printf(_("%*s %.1f %% of the step, %.1f ms of the above: %lld of %.1f us each when idle\n"),
           PAD(-11, _("calls")), calls / f->seconds * 100, calls * 1e3, (long long)calls_of(f),
           f->call * 1e6);
}

static void print_offloaded(const char *name, const size_t *classes)
{
    for (int k = 0; k < MEMORY_CLASS_COUNT; k++)
        if (classes[k])
            printf(_("in %*s %.1f MiB of %s\n"), PAD(-8, _(name)), (double)classes[k] / 1048576.0,
                   _(memory_class_names[k]));
}

/* Warns if the step had less than half of one CPU, unless it waited for a disk. */
static void print_busy(const struct bench_result *f)
{
    if (!f->on_cpu || f->stream_ms > 0 || f->offload_ms > 0 || f->processor_s > f->seconds / 2) return;
    printf(_("busy        other processes had the CPU for %.0f %% of the step: the rates are too low\n"),
           100 - f->processor_s / f->seconds * 100);
}

static void print_text(const struct bench_result *f, bool profiled)
{
    printf(_("%*s %.3f\nstep        %.1f ms, %.1f ms of CPU time\nGFLOP/s     %.1f\n"),
           PAD(-11, _(unit_of(f->tokens > 0)->rate)), f->tokens > 0 ? f->tokens * f->images : f->images,
           f->seconds * 1e3, f->processor_s * 1e3, f->gflops);
    print_busy(f);
    if (f->stream_ms >= 0) printf(_("waited      %.1f ms for streamed weights\n"), f->stream_ms);
    if (f->offload_ms >= 0) printf(_("waited      %.1f ms for offloaded states\n"), f->offload_ms);
    print_rate("GEMM bf16", &f->bf16);
    print_rate("GEMM fp32", &f->fp32);
    if (f->peak)
        printf(_("ratio       %.3f of %s\n"), f->gflops / f->peak->gflops,
               f->peak == &f->bf16 ? "bf16" : "fp32");
    if (mfu_peak_gflops(f) > 0)
        printf("MFU         %.1f %% of %.1f GFLOP/s (%s)\n", 100 * utilization(f), mfu_peak_gflops(f),
               f->published_gflops > 0 ? _("the card's published peak") : _("measured"));
    if (f->update_flops > 0)
        printf(_("%*s %.4g GFLOP of Newton-Schulz per step: %.1f %% of its operations\n"),
               PAD(-11, _("update")), f->update_flops * 1e-9, 100 * f->update_share);
    if (profiled) print_profile(f);
    for (int k = 0; k < MEMORY_CLASS_COUNT; k++)
        printf("%*s %.1f MiB\n", PAD(-11, _(memory_class_names[k])),
               (double)f->use.peak_bytes[k] / 1048576.0);
    printf(_("peak        %.1f MiB\nresident    %.1f MiB, peak of the process\n"),
           (double)f->use.peak_total_bytes / 1048576.0, (double)f->resident / 1048576.0);
    print_offloaded(N_("host"), f->use.offloaded_peak_bytes[PLACE_HOST]);
    print_offloaded(N_("file"), f->use.offloaded_peak_bytes[PLACE_FILE]);
}

/* Checks the configuration before measuring, by creating the trainer on the dry device. */
static int check_config(const struct config *config, bool random, struct error *err)
{
    char spec[32];
    struct config c;
    struct device *dry = NULL;
    struct trainer *t = NULL;
    config_copy(&c, config);
    snprintf(spec, sizeof spec, "dry:%s", device_type_names[c.device.type]);
    int code = 0;
    for (int i = 0; i < config_teachers(&c) && !code && !random && objective_of(&c)->teacher; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s.weight", config_tower_section(i));
        if (c.model_t[i].init != TOWER_INIT_RANDOM) code = experiment_check_file(&c, key, err);
    }
    if (!code && !random && c.model_s.init != TOWER_INIT_RANDOM)
        code = experiment_check_file(&c, "model_s.weight", err);
    if (!code) code = device_open(&dry, spec, 0, err);
    if (!code) code = trainer_create(&t, &c, dry, random, NULL, NULL, err);
    trainer_close(t);
    if (dry) device_close(dry);
    config_free(&c);
    return code;
}

static int bench_run(const struct arguments *args, struct error *err)
{
    struct config c;
    struct device *device = NULL;
    struct trainer *t = NULL;
    struct device_profile profile;
    struct bench_result found = {0};
    bool profiled = argument_flag(args, "profile");
    int code = config_load(&c, args->operands[0], args->operands + 1, args->operand_count - 1, err);
    if (code) return code;
    if (config_memory(&c)) {
        code = error_set(err, EXIT_CONFIG,
                         "remove it (train.memory=), and set the keys that 'meopt plan --fit' lists",
                         "only 'meopt train' applies train.memory; bench train measures the given keys");
        config_free(&c);
        return code;
    }
    c.train.batch_size = argument_int(args, "batch", c.train.batch_size);
    c.train.cache_teacher = false;
    bool peak = !argument_flag(args, "no-peak");
    code = experiment_set_classes(&c, err);
    if (!code) code = check_config(&c, argument_flag(args, "random-weights"), err);
    if (!code && peak) code = measure_peaks(&c, &found, err);
    if (!code) code = experiment_open_device(&device, &c, true, err);
    if (!code) {
        device_facts_warn(device);
        log_info("creating the %s", objective_of(&c)->teacher ? _("teacher and student") : "model");
        code = trainer_create(&t, &c, device, argument_flag(args, "random-weights"), NULL, NULL, err);
    }
    if (!code && profiled) {
        found.call = device_call_seconds(device);
        profile_begin(&profile, device);
    }
    if (!code)
        code = bench_steps(t, &c, argument_int(args, "steps", 3), profiled ? &profile : NULL, &found, err);
    trainer_close(t);
    device_close(device);
    if (!code && peak)
        code = measure_peaks(&c, &found, err); /* again, because the speed of the machine varies */
    if (!code) (argument_flag(args, "json") ? print_json : print_text)(&found, profiled);
    config_free(&c);
    return code;
}

static const struct option options[] = {
    {"random-weights", .help = "use seeded random weights in the configured model shape, read no checkpoint"},
    {"batch", .type = OPTION_INT, .value = "N", .min = 1, .max = 65536,
     .help = "images or samples of tokens per step (default train.batch_size)"},
    {"steps", .type = OPTION_INT, .value = "N", .min = 1, .max = 1e6,
     .help = "number of steps, of which the best counts (default 3)"},
    {"profile", .help = "print the time of the best step by kind of operation"},
    {"no-peak", .help = "do not measure the best GEMM rate"},
    {"json", .help = "print one JSON object"},
    {0},
};

const struct command cmd_bench_train = {
    .name = "bench train",
    .operands = "CONFIG [key=value ...]",
    .summary = "measure training steps and the machine's best GEMM rate",
    .options = options,
    .min_operands = 1,
    .max_operands = -1,
    .run = bench_run,
};
