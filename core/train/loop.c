/* The training loop: see loop.h. */
#include "core/train/loop.h"
#include "core/base/clock.h"
#include "core/run/memory.h"
#include "core/run/request.h"
#include "core/train/experiment.h"
#include "core/train/meta.h"
#include "core/train/signals.h"
#include "core/train/snapshot.h"
#include "core/train/teacher_cache.h"

#include <stdlib.h>

const char *const train_phase_names[PHASE_COUNT] = {"loading weights",     "computing the teacher's outputs",
                                                    "waiting for images",  "training",
                                                    "saving a checkpoint", "ending"};

static void phase(const struct train_listener *listener, enum train_phase at)
{
    if (listener->phase) listener->phase(listener->context, at);
}

struct feed {
    struct data *data;
    struct data_batch batch;
    bool last; /* no step behind this one */
    int64_t micro, pixels;
};

static int feed_give(void *context, int64_t index, struct batch *batch, const int64_t **ids,
                     struct error *err)
{
    struct feed *f = context;
    (void)err;
    batch->input = f->batch.images + index * f->micro * f->pixels;
    *ids = f->batch.ids + index * f->micro;
    return 0;
}

static const void *feed_coming(void *context)
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

/* From step `from` to `last` of `total`: what the steps of this process work with. */
struct course {
    struct run *run;
    struct trainer *t;
    const struct train_listener *listener;
    struct feed feed;
    struct train_progress p;
    int64_t from, last, saved_step;
    double saved_at, state_at; /* clock_seconds() */
};

static int save(struct course *w, struct error *err)
{
    int64_t step = w->p.step;
    phase(w->listener, PHASE_SAVE);
    int code = trainer_save(w->t, w->run->directory, step, (int)w->t->config->train.checkpoint_keep, err);
    if (!code) code = run_event(w->run, "checkpoint", json_pack("{s:I}", "step", (json_int_t)step), err);
    if (!code && w->listener->saved) w->listener->saved(w->listener->context, step);
    w->saved_at = clock_seconds();
    w->saved_step = step;
    return code;
}

/* The next batch, and one optimizer step with it. */
static int one_step(struct course *w, struct error *err)
{
    struct train_progress *p = &w->p;
    struct feed *feed = &w->feed;
    struct step_result result;
    double begin = clock_seconds();
    phase(w->listener, PHASE_DATA);
    int code = data_next(feed->data, &feed->batch, err);
    if (code) return code;
    if (p->step == 0 && w->listener->variants) {
        struct loss_variant variants[LOSS_VARIANTS];
        struct batch_source source = {.give = feed_give, .context = feed};
        if ((code = trainer_loss_variants(w->t, &source, variants, err)) != 0) return code;
        w->listener->variants(w->listener->context, variants, LOSS_VARIANTS);
    }
    phase(w->listener, PHASE_STEP);
    p->lr = schedule_lr(w->t->config, p->step + 1, p->total);
    feed->last = p->step + 1 >= w->last || signals_asked(WISH_STOP);
    code = trainer_step(w->t, p->step + 1, p->lr, &(struct batch_source){feed_give, feed_coming, feed},
                        &result, err);
    if (code) return code;
    p->step++;
    p->epoch = feed->batch.epoch;
    p->loss = result.loss;
    p->cosine = result.cosine;
    p->grad_norm = result.grad_norm;
    p->data_wait_ms = feed->batch.wait_ms;
    p->step_ms = (clock_seconds() - begin) * 1e3;
    p->images_per_s = (double)w->t->batch / p->step_ms * 1e3;
    return 0;
}

/* To the run's files and to who listens. */
static int tell_step(struct course *w, struct error *err)
{
    const struct train_progress *p = &w->p;
    bool with_cards = p->step == 1 || p->step == w->last || p->step % w->t->config->train.log_every == 0;
    int code = write_metric(w->run, w->t, p, with_cards, err);
    if (!code && w->listener->step) w->listener->step(w->listener->context, p);
    if (!code && clock_seconds() - w->state_at >= 1) {
        code = run_state(w->run, "training", p->step, p->total, p->epoch, -1, err);
        w->state_at = clock_seconds();
    }
    return code;
}

/* By number of steps, by time, by a signal or by a request, which is taken away. */
static bool save_due(const struct course *w)
{
    const struct config *c = w->t->config;
    return (c->train.checkpoint_steps > 0 && w->p.step % c->train.checkpoint_steps == 0) ||
           (c->train.checkpoint_minutes > 0 &&
            clock_seconds() - w->saved_at >= 60 * c->train.checkpoint_minutes) ||
           signals_asked(WISH_SAVE) || run_requested(w->run->directory, "checkpoint");
}

/* How the steps ended, for readers of the run and for the caller; returns the code of the whole. */
static int tell_end(struct course *w, int code, struct error *err)
{
    const struct train_progress *p = &w->p;
    const char *state = code == 0               ? "done"
                        : code == EXIT_STOPPED  ? "stopped"
                        : code == EXIT_DIVERGED ? "diverged"
                                                : "failed";
    struct error ignored;
    int told = run_state(w->run, state, p->step, p->total, p->epoch, code, code ? &ignored : err);
    run_event(w->run, state, json_pack("{s:I}", "step", (json_int_t)p->step), &ignored);
    if (code == EXIT_STOPPED && err)
        error_set(err, EXIT_STOPPED, NULL,
                  "stopped at step %lld of %lld and saved; go on with: meopt train --resume %s",
                  (long long)p->step, (long long)p->total, w->run->directory);
    return code ? code : told;
}

static int steps(struct course *w, struct error *err)
{
    int code = 0;
    while (w->p.step < w->last && !code && !signals_asked(WISH_STOP)) {
        if ((code = one_step(w, err)) != 0) break;
        code = tell_step(w, err);
        bool due = save_due(w);
        if (run_requested(w->run->directory, "stop")) signals_ask(WISH_STOP);
        if (!code && due && w->p.step < w->last) {
            signals_obeyed(WISH_SAVE);
            code = save(w, err);
        }
    }
    if (!code && (w->p.step > w->saved_step || w->from == w->p.step)) code = save(w, err);
    if (!code && w->p.step < w->p.total) code = EXIT_STOPPED;
    phase(w->listener, PHASE_END);
    return tell_end(w, code, err);
}

/* Where the teacher's outputs are kept, and who is told that they are computed. */
struct filling {
    const struct run *run;
    const struct train_listener *listener;
};

/* The pass is alive. */
static int filled(void *context, int64_t done, int64_t images, struct error *err)
{
    const struct filling *f = context;
    (void)done;
    (void)images;
    (void)err;
    phase(f->listener, PHASE_TEACHER);
    return 0;
}

static int fill_cache_of_run(void *context, struct trainer *t, struct error *err)
{
    struct filling *f = context;
    phase(f->listener, PHASE_TEACHER);
    char *path = run_path(f->run, "teacher.rows");
    int code = teacher_cache_fill(t, path, filled, f, err);
    free(path);
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
    signals_catch();
    phase(listener, PHASE_LOAD);
    run_requested(run->directory, "stop"); /* of an earlier process */
    run_requested(run->directory, "checkpoint");
    int code = train_device_open(&device, c, true, err);
    struct filling filling = {run, listener};
    if (!code) code = trainer_create(&t, c, device, false, fill_cache_of_run, &filling, err);
    if (!code) {
        struct data_options options = train_data_options(c);
        code = data_open(&data, &options, err);
    }
    if (!code && t->cache && t->cache_list != data_hash(data)) {
        code = error_set(err, EXIT_FAILED, "start again when they are at rest",
                         "the images have changed while the teacher's outputs were computed");
        error_at(err, c->data.root, 0, 0);
    }
    if (!code && resume) {
        code = trainer_resume(t, run->directory, &from, err);
        if (from < 0) from = 0;
        if (!code) code = run_truncate_metrics(run, from, err);
    }
    if (!code) {
        int64_t total = c->train.steps > 0 ? c->train.steps : c->train.epochs * data_epoch_batches(data);
        struct course w = {
            .run = run,
            .t = t,
            .listener = listener,
            .feed = {.data = data, .micro = t->micro, .pixels = 3 * c->data.image_size * c->data.image_size},
            .p = {.step = from, .total = total},
            .from = from,
            .last = stop_after > 0 && stop_after < total ? stop_after : total,
            .saved_step = from};
        code = meta_write(run, t, data, total, err);
        if (!code)
            code = run_event(
                run, resume ? "resumed" : "started",
                json_pack("{s:I, s:I}", "step", (json_int_t)from, "total_steps", (json_int_t)total), err);
        if (!code && listener->begun) listener->begun(listener->context, t, data, from, total);
        if (!code) code = data_start(data, from, err);
        w.saved_at = clock_seconds();
        if (!code) code = steps(&w, err);
    }
    data_close(data);
    trainer_close(t);
    device_close(device);
    return code;
}
