/* The training loop: see loop.h. */
#include "core/train/loop.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/device/gpu.h"
#include "core/run/memory.h"
#include "core/run/request.h"
#include "core/train/plan.h"
#include "core/train/snapshot.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t asked_to_stop, asked_to_save;

static void on_signal(int signal_number)
{
    if (signal_number == SIGUSR2) asked_to_save = 1;
    else if (asked_to_stop && signal_number != SIGUSR1) _exit(EXIT_SIGNAL + signal_number);
    else asked_to_stop = 1;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    const int signals[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
    asked_to_stop = asked_to_save = 0;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, NULL);
}

const char *const train_phase_names[PHASE_COUNT] = {"loading weights",     "computing the teacher's outputs",
                                                    "waiting for images",  "training",
                                                    "saving a checkpoint", "ending"};

static void phase(const struct train_listener *listener, enum train_phase at)
{
    if (listener->phase) listener->phase(listener->context, at);
}

struct data_options train_data_options(const struct config *c)
{
    return (struct data_options){.root = c->data.root,
                                 .image_size = c->data.image_size,
                                 .pipeline = c->data.pipeline == DATA_PIPELINE_DINOV2 ? PIPELINE_DINOV2
                                                                                      : PIPELINE_CLIP,
                                 .augment = c->data.augment,
                                 .flip = c->data.flip == 1,
                                 .crop_scale_min = c->data.crop_scale_min,
                                 .crop_scale_max = c->data.crop_scale_max,
                                 .shuffle = c->data.shuffle,
                                 .seed = (uint64_t)c->train.seed,
                                 .batch = c->train.batch_size,
                                 .rank = 0,
                                 .ranks = 1,
                                 .workers = c->data.workers,
                                 .prefetch = c->data.prefetch,
                                 .max_bad = c->data.max_bad};
}

/* The teacher's output of every image: from the run's own file, or computed and written there. */
struct filling {
    struct run *run;
    const struct train_listener *listener;
};

static int fill(void *context, struct trainer *t, struct error *err)
{
    struct run *run = ((struct filling *)context)->run;
    phase(((struct filling *)context)->listener, PHASE_TEACHER);
    struct data_options options = train_data_options(t->config);
    struct data *data = NULL;
    struct weights *stored = NULL;
    struct data_batch batch;
    options.whole = true;
    options.shuffle = options.augment = false;
    options.batch = t->micro;
    int code = data_open(&data, &options, err);
    if (code) return code;
    int64_t images = data_images(data), row = t->teacher->out_rows * t->teacher->out_width;
    char *path = run_path(run, "teacher.safetensors");
    t->cache = malloc((size_t)(images * row) * sizeof *t->cache);
    t->cache_images = images;
    if (!t->cache)
        code = error_set(err, EXIT_HOST_MEMORY, "train.cache_teacher: false",
                         "out of memory for the teacher's output of %lld images", (long long)images);
    if (!code && access(path, F_OK) == 0 && weights_open(&stored, path, NULL) == 0 &&
        weights_count(stored) == 1 && weights_tensor(stored, 0)->count == images * row) {
        code = weights_read(stored, 0, t->cache, DTYPE_F32, err);
    } else if (!code) {
        code = data_start(data, 0, err);
        while (!code && (code = data_next(data, &batch, err)) == 0 && batch.count > 0)
            for (int64_t i = 0; i < batch.count && !code;
                 i++) /* one by one: a bad image's stand-in goes to its own place */
                code =
                    trainer_embed_teacher(t, batch.images + i * 3 * options.image_size * options.image_size,
                                          1, t->cache + batch.ids[i] * row, err);
        struct weights_row table = {
            .name = "teacher", .dtype = DTYPE_F32, .ndim = 2, .shape = {images, row}, .data = t->cache};
        if (!code) code = weights_write_safetensors(path, &table, 1, NULL, err);
    }
    weights_close(stored);
    free(path);
    data_close(data);
    return code;
}

struct feed {
    struct data *data;
    struct data_batch batch;
    bool last; /* no step behind this one */
    int64_t micro, pixels;
};

static int feed_images(void *context, int64_t index, int64_t count, const float **images, const int64_t **ids,
                       struct error *err)
{
    struct feed *f = context;
    (void)err;
    (void)count;
    *images = f->batch.images + index * f->micro * f->pixels;
    *ids = f->batch.ids + index * f->micro;
    return 0;
}

static const float *next_images(void *context)
{
    struct feed *f = context;
    return f->last ? NULL : data_peek(f->data);
}

static int write_metric(struct run *run, const struct trainer *t, const struct train_progress *p,
                        bool with_cards, struct error *err)
{
    json_t *line = json_pack("{s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "step", (json_int_t)p->step,
                             "epoch", (json_int_t)p->epoch, "loss", p->loss, "cosine", p->cosine, "lr", p->lr,
                             "grad_norm", p->grad_norm, "images_per_s", p->images_per_s, "step_ms",
                             p->step_ms, "data_wait_ms", p->data_wait_ms);
    if (with_cards) {
        json_t *card = memory_json(&t->device->use);
        json_object_set_new(card, "rank", json_integer(0));
        json_object_set_new(card, "device", json_string(t->device->name));
        json_object_set_new(card, "busy_percent", json_null());
        json_object_set_new(card, "temp_c", json_null());
        json_object_set_new(card, "power_w", json_null());
        json_object_set_new(line, "cards", json_pack("[o]", card));
    }
    return run_metric(run, line, err);
}

/* Which program this is, to the byte: CRC-32C of its file, 0 when it cannot be read. */
static uint32_t program_crc(void)
{
    struct file_map map;
    if (file_map_open(&map, "/proc/self/exe", NULL)) return 0;
    uint32_t crc = crc32c(0, map.data, map.bytes);
    file_map_close(&map);
    return crc;
}

/* The plan of this experiment on the kind of device that was found, or of the same without MEOpt. */
static int plan_found(struct plan *plan, const struct config *config, const char *kind, bool use_meopt)
{
    static const char *const without[][2] = {{"optim.use_meopt", "false"}, {"optim.pure_bf16", "false"},
                                             {"optim.weights", "auto"},    {"optim.state_m", "auto"},
                                             {"optim.state_v", "auto"},    {"optim.gradients", "keep"},
                                             {"optim.clip_mode", "exact"}};
    struct config copy;
    config_copy(&copy, config);
    int code = config_assign(&copy, "device.type", kind, NULL);
    for (size_t i = 0; i < sizeof without / sizeof *without && !use_meopt && !code; i++)
        code = config_assign(&copy, without[i][0], without[i][1], NULL);
    if (!code) code = plan_make(plan, &copy, NULL);
    config_free(&copy);
    return code;
}

static int write_json(struct run *run, const char *name, json_t *object, struct error *err)
{
    char *text = json_dumps(object, JSON_INDENT(1) | JSON_PRESERVE_ORDER), *path = run_path(run, name);
    int code = file_write_atomic(path, text, strlen(text), err);
    free(text);
    free(path);
    json_decref(object);
    return code;
}

static json_t *hex_or_null(uint32_t crc)
{
    char text[16];
    snprintf(text, sizeof text, "%08x", (unsigned)crc);
    return crc ? json_string(text) : json_null();
}

/* meta.json, and plan.json: what this run is planned to take, and the same experiment without MEOpt, which
 * nobody runs beside it. A plan that cannot be made is no reason not to train. */
static int write_meta(struct run *run, const struct trainer *t, const struct data *data, int64_t total,
                      struct error *err)
{
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    json_t *meta = json_pack("{s:i, s:s, s:i, s:f, s:s, s:I, s:I, s:I, s:I, s:s}", "version", 1, "host", host,
                             "pid", (int)getpid(), "started", (double)time(NULL), "device", t->device->name,
                             "images", (json_int_t)data_images(data), "total_steps", (json_int_t)total,
                             "student_parameters", (json_int_t)geometry_parameters(&t->student_geometry),
                             "teacher_parameters", (json_int_t)geometry_parameters(&t->teacher_geometry),
                             "family", family_name(t->student_geometry.family));
    struct meopt_bytes held = {0};
    struct plan plan, baseline;
    bool planned = plan_found(&plan, t->config, t->device->kind, true) == 0,
         compared = plan_found(&baseline, t->config, t->device->kind, false) == 0;
    (void)meopt_held(t->opt, &held);
    json_object_set_new(meta, "code_version", json_string(MEOPT_VERSION));
    json_object_set_new(meta, "program_crc32c", hex_or_null(program_crc()));
    json_object_set_new(meta, "data_crc32c", hex_or_null(data_hash(data)));
    json_object_set_new(meta, "seed", json_integer((json_int_t)t->config->train.seed));
    json_object_set_new(meta, "batch_images", json_integer((json_int_t)t->batch));
    json_object_set_new(meta, "ranks", json_integer(1));
    json_object_set_new(meta, "epoch_steps", json_integer((json_int_t)data_epoch_batches(data)));
    json_object_set_new(meta, "optimizer_bytes_per_param",
                        held.parameters ? json_real((double)held.total / (double)held.parameters)
                                        : json_null());
    json_object_set_new(meta, "planned_peak_bytes",
                        planned ? json_integer((json_int_t)plan.use.peak_total_bytes) : json_null());
    json_object_set_new(meta, "planned_baseline_peak_bytes",
                        compared ? json_integer((json_int_t)baseline.use.peak_total_bytes) : json_null());
    json_object_set_new(meta, "checkpoint_bytes",
                        planned ? json_integer((json_int_t)plan.checkpoint_bytes) : json_null());
    int code = write_json(run, "meta.json", meta, err);
    json_t *memory = planned ? memory_json(&plan.use) : json_object();
    if (compared) json_object_set_new(memory, "baseline", memory_json(&baseline.use));
    int second = write_json(run, "plan.json", memory, code ? NULL : err);
    return code ? code : second;
}

static int save(struct run *run, struct trainer *t, int64_t step, const struct train_listener *listener,
                struct error *err)
{
    phase(listener, PHASE_SAVE);
    int code = trainer_save(t, run->directory, step, (int)t->config->train.checkpoint_keep, err);
    if (!code) code = run_event(run, "checkpoint", json_pack("{s:I}", "step", (json_int_t)step), err);
    if (!code && listener->saved) listener->saved(listener->context, step);
    return code;
}

static int steps(struct run *run, struct trainer *t, struct data *data, int64_t from, int64_t total,
                 int64_t last, const struct train_listener *listener, struct error *err)
{
    struct config *c = t->config;
    struct feed feed = {
        .data = data, .micro = t->micro, .pixels = 3 * c->data.image_size * c->data.image_size};
    struct train_progress p = {.step = from, .total = total};
    double saved_at = clock_seconds(), state_at = 0;
    int64_t saved_step = from;
    int code = 0;
    while (p.step < last && !code && !asked_to_stop) {
        double begin = clock_seconds();
        phase(listener, PHASE_DATA);
        if ((code = data_next(data, &feed.batch, err)) != 0) break;
        if (p.step == 0 && listener->variants) {
            struct loss_variant variants[LOSS_VARIANTS];
            if ((code = trainer_loss_variants(
                     t, &(struct image_source){.images = feed_images, .context = &feed}, variants, err)) != 0)
                break;
            listener->variants(listener->context, variants, LOSS_VARIANTS);
        }
        struct step_result result;
        phase(listener, PHASE_STEP);
        p.lr = schedule_lr(c, p.step + 1, total);
        feed.last = p.step + 1 >= last || asked_to_stop;
        code = trainer_step(t, p.step + 1, p.lr, &(struct image_source){feed_images, next_images, &feed},
                            &result, err);
        if (code) break;
        p.step++;
        p.epoch = feed.batch.epoch;
        p.loss = result.loss;
        p.cosine = result.cosine;
        p.grad_norm = result.grad_norm;
        p.data_wait_ms = feed.batch.wait_ms;
        p.step_ms = (clock_seconds() - begin) * 1e3;
        p.images_per_s = (double)t->batch / p.step_ms * 1e3;
        code =
            write_metric(run, t, &p, p.step == 1 || p.step == last || p.step % c->train.log_every == 0, err);
        if (!code && listener->step) listener->step(listener->context, &p);
        if (!code && clock_seconds() - state_at >= 1) {
            code = run_state(run, "training", p.step, total, p.epoch, -1, err);
            state_at = clock_seconds();
        }
        bool due = (c->train.checkpoint_steps > 0 && p.step % c->train.checkpoint_steps == 0) ||
                   (c->train.checkpoint_minutes > 0 &&
                    clock_seconds() - saved_at >= 60 * c->train.checkpoint_minutes) ||
                   asked_to_save || run_requested(run->directory, "checkpoint");
        if (run_requested(run->directory, "stop")) asked_to_stop = 1;
        if (!code && due && p.step < last) {
            asked_to_save = 0;
            code = save(run, t, p.step, listener, err);
            saved_at = clock_seconds();
            saved_step = p.step;
        }
    }
    if (!code && (p.step > saved_step || from == p.step)) code = save(run, t, p.step, listener, err);
    if (!code && p.step < total) code = EXIT_STOPPED;
    phase(listener, PHASE_END);
    const char *state = code == 0               ? "done"
                        : code == EXIT_STOPPED  ? "stopped"
                        : code == EXIT_DIVERGED ? "diverged"
                                                : "failed";
    struct error ignored;
    int told = run_state(run, state, p.step, total, p.epoch, code, code ? &ignored : err);
    run_event(run, state, json_pack("{s:I}", "step", (json_int_t)p.step), &ignored);
    if (code == EXIT_STOPPED && err)
        error_set(err, EXIT_STOPPED, NULL,
                  "stopped at step %lld of %lld and saved; go on with: meopt train --resume %s",
                  (long long)p.step, (long long)total, run->directory);
    return code ? code : told;
}

int train_device_open(struct device **device, const struct config *c, bool limited, struct error *err)
{
    char spec[64];
    int first, named = config_cards(c, &first); /* 0: all */
    bool card = c->device.type != DEVICE_TYPE_CPU;
    if (card && named) snprintf(spec, sizeof spec, "%s:%d", device_type_names[c->device.type], first);
    else snprintf(spec, sizeof spec, "%s", device_type_names[c->device.type]);
    *device = NULL;
    if (card && named > 1)
        return error_set(err, EXIT_CONFIG, "one number, as in --cards 0, or all for the first that works",
                         "device.cards %s: one process trains on one card", c->device.cards);
    int code = device_open(device, spec, limited ? (size_t)c->device.memory_limit : 0, err), cards = 0;
    if (!code && !named && gpu_is(*device) && gpu_of(*device)->driver.count(&cards) == 0 && cards > 1)
        log_info("%d cards: one process trains on one card, here the first (device.cards chooses another)",
                 cards);
    return code;
}

int train_rehearse(struct config *c, struct error *err)
{
    struct device *dry = NULL;
    struct trainer *t = NULL;
    struct data *data = NULL;
    int code = device_open(&dry, "dry", 0, err);
    if (!code) code = trainer_create(&t, c, dry, false, NULL, NULL, err);
    trainer_close(t);
    device_close(dry);
    if (!code) {
        struct data_options options = train_data_options(c);
        code = data_open(&data, &options, err);
    }
    data_close(data);
    return code;
}

int train_loop(struct run *run, struct config *c, bool resume, int64_t stop_after,
               const struct train_listener *listener, struct error *err)
{
    struct device *device = NULL;
    struct trainer *t = NULL;
    struct data *data = NULL;
    static const struct train_listener silent;
    if (!listener) listener = &silent;
    int64_t from = 0;
    catch_signals();
    phase(listener, PHASE_LOAD);
    run_requested(run->directory, "stop"); /* of an earlier process */
    run_requested(run->directory, "checkpoint");
    int code = train_device_open(&device, c, true, err);
    struct filling filling = {run, listener};
    if (!code) code = trainer_create(&t, c, device, false, fill, &filling, err);
    if (!code) {
        struct data_options options = train_data_options(c);
        code = data_open(&data, &options, err);
    }
    if (!code && resume) {
        code = trainer_resume(t, run->directory, &from, err);
        if (from < 0) from = 0;
        if (!code) code = run_truncate_metrics(run, from, err);
    }
    if (!code) {
        int64_t total = c->train.epochs * data_epoch_batches(data);
        if (c->train.steps > 0) total = c->train.steps;
        int64_t last = stop_after > 0 && stop_after < total ? stop_after : total;
        code = write_meta(run, t, data, total, err);
        if (!code)
            code = run_event(
                run, resume ? "resumed" : "started",
                json_pack("{s:I, s:I}", "step", (json_int_t)from, "total_steps", (json_int_t)total), err);
        if (!code && listener->begun) listener->begun(listener->context, t, data, from, total);
        if (!code) code = data_start(data, from, err);
        if (!code) code = steps(run, t, data, from, total, last, listener, err);
    }
    data_close(data);
    trainer_close(t);
    device_close(device);
    return code;
}
