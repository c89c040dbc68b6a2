/* The training loop: see loop.h. */
#include "core/train/loop.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/progress.h"
#include "core/run/change.h"
#include "core/run/checkpoint.h"
#include "core/run/status.h"
#include "core/train/advice.h"
#include "core/train/experiment.h"
#include "core/train/resume_check.h"
#include "core/train/meta.h"
#include "core/train/metrics.h"
#include "core/train/signals.h"
#include "core/train/trainer_checkpoint.h"
#include "core/train/teacher_cache.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LAST_TRIES = 3,    /* of the last save */
    PAUSE_SECONDS = 60 /* after which a save that failed is tried again, when none is due earlier */
};

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
    bool last;            /* no step behind this one */
    int64_t micro, chunk; /* images and floats of a micro-batch */
};

static int feed_fetch(void *context, int64_t index, struct batch *batch, const int64_t **ids,
                      struct error *err)
{
    struct feed *f = context;
    (void)err;
    progress_mark();
    batch->input = f->batch.images + index * f->chunk;
    *ids = f->batch.ids + index * f->micro;
    return 0;
}

static const void *feed_peek(void *context)
{
    struct feed *f = context;
    return f->last ? NULL : data_peek(f->data);
}

/* From step `from` to `last` of `total`: what the steps of this process work with. */
struct train_loop {
    struct run *run;
    struct trainer *t;
    struct config *config; /* the trainer's */
    const struct train_listener *listener;
    struct feed feed;
    struct train_progress p;
    int64_t from, last, saved_step;
    struct train_health health;
    double saved_at, state_at; /* clock_seconds() */
    double tried_at;           /* the same, of a save that failed; 0: saving is not paused */
    unsigned borne;            /* 1 << enum told: its failure has been told */
    bool stepping;             /* in a step: the weights may be half of one, half of the next */
    bool alike;                /* what failed has failed on every rank, and each knows why */
    double data_ms;            /* that the last call of data_next took */
    int rank, ranks;
    bool leave, save, change; /* what all ranks do now, because one of them was asked to */
    struct save_reservation room;
};

/* One rank writes what the run tells. */
static bool is_rank0(const struct train_loop *w) { return w->rank == 0; }

/* What the run tells of itself is never worth the run. */
enum told { WARNED_METRICS, WARNED_EVENTS, WARNED_STATE };

static void warn_once(struct train_loop *w, enum told what, int code, const struct error *why)
{
    if (!code || w->borne & 1u << what) return;
    w->borne |= 1u << what;
    log_warn("%s%s%s; training goes on, and this is not said again", why->file, why->file[0] ? ": " : "",
             why->what);
}

static void log_event(struct train_loop *w, const char *event, json_t *fields)
{
    struct error why = {0};
    if (!is_rank0(w)) {
        json_decref(fields);
        return;
    }
    warn_once(w, WARNED_EVENTS, run_event(w->run, event, fields, &why), &why);
}

static void report_state(struct train_loop *w, const char *state, int exit_code)
{
    const struct train_progress *p = &w->p;
    struct error why = {0};
    if (!is_rank0(w)) return;
    warn_once(w, WARNED_STATE, run_state(w->run, state, p->step, p->total, p->epoch, exit_code, &why), &why);
    w->state_at = clock_seconds();
}

static void report_pause(struct train_loop *w, const struct error *why)
{
    if (w->tried_at <= 0 && is_rank0(w)) {
        snprintf(w->run->notice, sizeof w->run->notice, "saving is paused since step %lld: %.200s",
                 (long long)w->p.step, why->what);
        log_warn("%s%s%s; saving is paused, the last checkpoint stays, training goes on", why->file,
                 why->file[0] ? ": " : "", why->what);
        log_event(w, "saving_paused",
                  json_pack("{s:I, s:s}", "step", (json_int_t)w->p.step, "message", why->what));
        report_state(w, "training", -1);
    }
    w->tried_at = clock_seconds();
}

/* Into the run's directory, wherever it is by now: what was written under a name that it had is not saved. */
static int save_there(struct train_loop *w, struct error *err)
{
    bool alone = w->t->ranks.size == 1; /* of several, all have to come to what follows */
    const char *begun;
    int code = run_follow(w->run, err);
    if (code && alone) return code;
    do {
        begun = w->run->directory;
        save_release(&w->room);
        code = trainer_save(w->t, begun, w->p.step, (int)w->t->config->train.checkpoint_keep, err);
        if (!code && alone) code = run_follow(w->run, err);
    } while (!code && w->run->directory != begun);
    save_reserve(&w->room, w->room.bytes, NULL);
    return code;
}

static int save(struct train_loop *w, struct error *err)
{
    int64_t step = w->p.step;
    struct error why = {0};
    phase(w->listener, PHASE_SAVE);
    if (is_rank0(w)) warn_once(w, WARNED_METRICS, run_sync(w->run, &why), &why);
    int code = save_there(w, err);
    if (code) return code;
    if (w->tried_at > 0 && is_rank0(w)) {
        log_info("there is room again: saving goes on");
        log_event(w, "saving_resumed", json_pack("{s:I}", "step", (json_int_t)step));
        w->run->notice[0] = 0;
    }
    w->tried_at = 0;
    log_event(w, "checkpoint", json_pack("{s:I}", "step", (json_int_t)step));
    if (w->listener->saved) w->listener->saved(w->listener->context, step);
    w->saved_at = clock_seconds();
    w->saved_step = step;
    advice_saved(&w->health, step, w->p.loss);
    return 0;
}

/* Between two steps: what fails is tried again later. */
static void save_or_pause(struct train_loop *w)
{
    struct error why = {0};
    if (save(w, &why)) report_pause(w, &why);
}

/* Something else has failed between two steps, and all ranks know: what is trained is not lost with it. */
static void save_before_end(struct train_loop *w)
{
    struct error why = {0};
    if (save(w, &why) && is_rank0(w)) log_warn("cannot save before it ends: %s", why.what);
}

/* Behind the last step: what fails now is tried again for a moment, and is lost then. */
static int save_last(struct train_loop *w, struct error *err)
{
    struct error own = {0};
    if (!err) err = &own;
    int code = save(w, err);
    for (int i = 0; i < LAST_TRIES - 1 && code; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
        code = save(w, err);
    }
    if (code && w->saved_step > 0)
        snprintf(err->hint, sizeof err->hint,
                 "make it possible to write there; the last checkpoint is of step %lld, go on with: meopt "
                 "train --resume %.150s",
                 (long long)w->saved_step, w->run->directory);
    return code;
}

static int next_batch(struct train_loop *w, struct error *err)
{
    double begin = clock_seconds();
    phase(w->listener, PHASE_DATA);
    int code = data_next(w->feed.data, &w->feed.batch, err);
    w->data_ms = (clock_seconds() - begin) * 1e3;
    return code;
}

/* One optimizer step with the batch. */
static int one_step(struct train_loop *w, struct error *err)
{
    struct train_progress *p = &w->p;
    struct feed *feed = &w->feed;
    struct step_result result;
    double begin = clock_seconds();
    int code = 0;
    if (p->step == 0 && w->listener->variants) {
        struct loss_variant variants[LOSS_VARIANTS];
        struct batch_source source = {.fetch = feed_fetch, .context = feed};
        if ((code = trainer_loss_variants(w->t, &source, variants, err)) != 0) return code;
        w->listener->variants(w->listener->context, variants, LOSS_VARIANTS);
    }
    phase(w->listener, PHASE_STEP);
    p->lr = schedule_lr(w->t->config, p->step + 1, p->total);
    feed->last = p->step + 1 >= w->last || signals_act(PHASE_DATA) == ACT_SAVE_STOP;
    w->stepping = true;
    code = trainer_step(w->t, p->step + 1, p->lr, &(struct batch_source){feed_fetch, feed_peek, feed},
                        &result, err);
    if (code) return code;
    w->stepping = false;
    p->step++;
    p->epoch = feed->batch.epoch;
    p->loss = result.loss;
    p->cosine = result.cosine;
    p->grad_norm = result.grad_norm;
    p->wide_groups = result.wide_groups;
    p->offload_wait_ms = result.offload_wait_ms;
    p->stream_wait_ms = result.stream_wait_ms;
    p->data_wait_ms = feed->batch.wait_ms;
    p->step_ms = w->data_ms + (clock_seconds() - begin) * 1e3;
    p->images_per_s = (double)w->t->images / p->step_ms * 1e3;
    return 0;
}

/* To the run's files and to who listens. */
static int report_step(struct train_loop *w, struct error *err)
{
    struct train_progress *p = &w->p;
    struct error why = {0};
    json_t *cards = NULL;
    advice_stepped(&w->health, p->loss);
    if (p->step == 1 || p->step == w->last || p->step % w->t->config->train.log_every == 0) {
        int code = metrics_cards(w->t, p, &cards, err);
        if (code) return code;
    }
    if (is_rank0(w)) warn_once(w, WARNED_METRICS, metrics_write(w->run, p, cards, &why), &why);
    else json_decref(cards);
    if (w->listener->step) w->listener->step(w->listener->context, p);
    if (clock_seconds() - w->state_at >= 1) report_state(w, "training", -1);
    return 0;
}

/* By number of steps, by time, by a signal or by a request. */
static bool save_due(const struct train_loop *w)
{
    const struct config *c = w->t->config;
    return (c->train.checkpoint_steps > 0 && w->p.step % c->train.checkpoint_steps == 0) ||
           (c->train.checkpoint_minutes > 0 &&
            clock_seconds() - (w->tried_at > 0 ? w->tried_at : w->saved_at) >=
                60 * c->train.checkpoint_minutes) ||
           (w->tried_at > 0 && clock_seconds() - w->tried_at >= PAUSE_SECONDS);
}

/* What was asked of one rank all do, at the same place; only the first looks at the clock. code, err: of this
 * rank so far; where one has failed all get its error. */
static int agree(struct train_loop *w, bool due, int code, struct error *err)
{
    enum signal_act act = signals_act(PHASE_STEP);
    double wishes[] = {act == ACT_SAVE_STOP, act == ACT_SAVE || (due && is_rank0(w)), act == ACT_CHANGE,
                       code != 0};
    struct error own = code && err ? *err : (struct error){0};
    int lost = comm_all_reduce(&w->t->ranks, COMM_MAX, wishes, 4, code ? NULL : err);
    w->leave = wishes[0] > 0;
    w->save = wishes[1] > 0;
    w->change = wishes[2] > 0;
    if (code && lost) return code; /* the cause */
    w->alike = !lost && wishes[3] > 0;
    return w->alike ? comm_agree(&w->t->ranks, code, &own, "cannot continue", err) : lost;
}

/* Keys that may change while it trains, as the run's file has them now: of rank 0, for all. */
static int take_change(struct train_loop *w, struct error *err)
{
    struct {
        int code;
        struct change_values values;
    } told = {0};
    struct error why = {0};
    signals_handled(REQUEST_CHANGE);
    if (is_rank0(w)) told.code = change_read(&told.values, w->run->directory, &why);
    int code = comm_broadcast(&w->t->ranks, &told, sizeof told, 0, err);
    if (code || told.code) {
        if (!code && is_rank0(w)) log_warn("the change cannot be taken: %s", why.what);
        return code;
    }
    json_t *changed = change_apply(w->config, &told.values), *values;
    const char *key;
    if (!changed) return 0;
    json_object_foreach(changed, key, values) if (is_rank0(w))
        log_info("step %lld: %s was %s and is now %s", (long long)w->p.step, key,
                 json_string_value(json_array_get(values, 0)), json_string_value(json_array_get(values, 1)));
    if (is_rank0(w) && change_record(w->run->directory, changed, &why))
        log_warn("%s: %s", why.file, why.what);
    log_event(w, "changed", json_pack("{s:I, s:O}", "step", (json_int_t)w->p.step, "changed", changed));
    json_decref(changed);
    return 0;
}

/* How the steps ended, for readers of the run and for the caller; returns the code of the whole. */
static int report_end(struct train_loop *w, int code, struct error *err)
{
    const struct train_progress *p = &w->p;
    const char *state = code == 0               ? "done"
                        : code == EXIT_STOPPED  ? "stopped"
                        : code == EXIT_DIVERGED ? "diverged"
                                                : "failed";
    struct error why = {0};
    if (is_rank0(w)) warn_once(w, WARNED_METRICS, run_sync(w->run, &why), &why); /* lines that are held */
    report_state(w, state, code);
    log_event(w, state, json_pack("{s:I}", "step", (json_int_t)p->step));
    if (code == EXIT_STOPPED && err) {
        if (p->step > w->from)
            error_set(err, EXIT_STOPPED, NULL,
                      "stopped at step %lld of %lld and saved; go on with: meopt train --resume %s",
                      (long long)p->step, (long long)p->total, w->run->directory);
        else
            error_set(err, EXIT_STOPPED, NULL,
                      "stopped before a step was made, nothing is lost; go on with: meopt train --resume %s",
                      w->run->directory);
    }
    return code;
}

static int steps(struct train_loop *w, struct error *err)
{
    bool due = false;
    int code = 0;
    while (w->p.step < w->last && !code) {
        code = agree(w, due, next_batch(w, err), err);
        if (!code && w->change) code = take_change(w, err);
        if (!code && w->save && !w->leave) {
            signals_handled(REQUEST_SAVE);
            save_or_pause(w);
            code = agree(w, false, 0, err);
        }
        if (code || w->leave) break;
        if ((code = one_step(w, err)) == 0) code = report_step(w, err);
        due = save_due(w);
    }
    bool unsaved = !w->stepping && w->p.step > w->saved_step;
    if (!code && unsaved) w->alike = (code = save_last(w, err)) != EXIT_RANK_LOST;
    else if (code && unsaved && (w->ranks == 1 || w->alike)) save_before_end(w);
    if (!code && w->p.step < w->p.total) code = EXIT_STOPPED;
    phase(w->listener, PHASE_END);
    if (code == EXIT_DIVERGED && is_rank0(w)) advice_diverged(&w->health, w->run, w->config, w->p.step, err);
    return report_end(w, code, err);
}

/* Where the teacher's outputs are kept, and who is told that they are computed. */
struct filling {
    const struct run *run;
    const struct train_listener *listener;
    const struct train_resume *how;
    json_t **changed;
};

/* A resumed run has the teacher that it began with, and the student, once there is one. */
static int check_weights(const struct filling *f, const struct trainer *t, struct error *err)
{
    const struct config *c = t->config;
    bool tell = t->ranks.rank == 0;
    int code = 0;
    if (!f->how->resume) return 0;
    if (!t->student || !c->train.cache_teacher) /* else it was checked before its outputs were computed */
        code = identity_check_weights(f->run, "teacher", c->model_t.weight, &t->teacher_content,
                                      f->how->force, tell, f->changed, err);
    if (!code && t->student)
        code = identity_check_weights(f->run, "student", c->model_s.weight, &t->student_content,
                                      f->how->force, tell, f->changed, err);
    return code;
}

/* The pass is alive; what it has computed stays when it is asked to end. */
static int filled(void *context, int64_t done, int64_t images, struct error *err)
{
    const struct filling *f = context;
    (void)done;
    (void)images;
    (void)err;
    phase(f->listener, PHASE_TEACHER);
    return signals_act(PHASE_TEACHER) == ACT_STOP ? EXIT_STOPPED : 0;
}

static int fill_cache_of_run(void *context, struct trainer *t, struct error *err)
{
    struct filling *f = context;
    int code = check_weights(f, t, err);
    if (code) return code;
    phase(f->listener, PHASE_TEACHER);
    char *path = run_path(f->run, "teacher.rows");
    code = teacher_cache_fill(t, path, filled, f, err);
    free(path);
    return code;
}

/* The trainer as the newest checkpoint has it, *from its step; as it is, 0, when the run never saved. A run
 * that has saved and whose checkpoints are not there is not begun again: that would cost its metrics, too. */
static int go_on(struct run *run, struct trainer *t, int64_t *from, struct error *err)
{
    bool lead = t->ranks.rank == 0;
    int64_t told = -1;
    int code = trainer_resume(t, run->directory, from, err);
    if (!code && *from < 0) {
        char *latest = run_path(run, "ckpt/LATEST");
        code = run_last_saved(run, &told, err);
        if (!code && told < 0 && !file_absent(latest)) told = 0;
        if (!code && told >= 0) {
            code = error_set(
                err, EXIT_INTEGRITY, "bring ckpt/ back; to begin again, train under another --name",
                "the run has saved (last step %lld), but none of its checkpoints is there", (long long)told);
            error_at(err, run->directory, 0, 0);
        }
        free(latest);
        *from = 0;
    } else if (!code && lead) {
        checkpoint_tidy(run->directory, *from, (int)t->config->train.checkpoint_keep);
    }
    return code || !lead ? code : run_truncate_metrics(run, *from, err);
}

/* Everything is there: to the run's files and to who listens, then train. */
static int train(struct train_loop *w, const char *event, json_t *identity, json_t **changed,
                 struct error *err)
{
    struct data *data = w->feed.data;
    w->feed.micro = w->t->micro;
    struct device_fact start[START_ROWS];
    const char *telemetry =
        w->listener->telemetry ? w->listener->telemetry(w->listener->context, w->t->device) : "";
    start_table(w->t, telemetry, start);
    json_t *told;
    int code = start_table_gather(w->t, start, &told, err);
    json_t *differ = start_differences(told);
    if (!code && is_rank0(w)) identity_compare_start(w->run, told, changed);
    if (!code) code = meta_write(w->run, w->t, data, w->p.total, told, identity, err);
    json_decref(told);
    if (!code && is_rank0(w)) code = identity_write_images(w->run, data_list(data), err);
    if (code) {
        json_decref(differ);
        return code;
    }
    json_t *fields = json_pack("{s:I, s:I, s:o*}", "step", (json_int_t)w->from, "total_steps",
                               (json_int_t)w->p.total, "ranks_differ", differ);
    if (*changed) json_object_set(fields, "changed", *changed);
    log_event(w, event, fields);
    if (w->listener->started)
        w->listener->started(w->listener->context, w->t, start, data, w->from, w->p.total);
    code = data_start(data, w->from, err);
    if (!code) code = save_reserve(&w->room, trainer_save_bytes(w->t), err);
    w->saved_at = clock_seconds();
    if (!code) code = steps(w, err);
    save_release(&w->room);
    return code;
}

/* Asked to leave while there is no step that could be lost. Several ranks leave together, before the first.
 */
static int leave(const struct train_loop *w, int code)
{
    return !code && w->ranks == 1 && signals_act(PHASE_LOAD) == ACT_STOP ? EXIT_STOPPED : code;
}

/* The run as it is before its first step here: trainer and data, at step w->from. */
static int load(struct train_loop *w, struct config *c, const struct train_resume *how,
                const struct comm_options *ranks, struct device **device, json_t **changed, struct error *err)
{
    struct filling filling = {w->run, w->listener, how, changed};
    char *instead = NULL, *began = c->model_s.weight;
    int code = how->resume ? train_fallback_weights(c, w->run->directory, &instead, err) : 0;
    if (!code) code = leave(w, train_device_open(device, c, true, err));
    if (instead) c->model_s.weight = instead;
    if (!code)
        code = trainer_create_distributed(&w->t, c, *device, false, ranks, fill_cache_of_run, &filling, err);
    c->model_s.weight = began;
    if (!code && instead) code = identity_restore_student_crc(w->run, &w->t->student_content, err);
    if (w->t) w->t->fallback_weights = instead;
    else free(instead);
    code = leave(w, code);
    if (!code && (code = check_weights(&filling, w->t, err)) != 0) w->alike = code == EXIT_CONFIG;
    if (!code) {
        struct data_options options = train_data_options(c);
        options.rank = w->rank;
        options.ranks = w->ranks;
        options.batch = w->t->batch;
        options.micro = w->t->micro;
        options.global = w->t->images;
        w->feed.chunk = data_chunk(&options);
        code = data_open(&w->feed.data, &options, err);
        if (!code && is_rank0(w)) data_report(w->feed.data);
    }
    if (!code && w->t->cache && w->t->cache_list != data_hash(w->feed.data)) {
        code = error_set(err, EXIT_FAILED, "start again when they are at rest",
                         "the images have changed while the teacher's outputs were computed");
        error_at(err, c->data.root, 0, 0);
    }
    code = leave(w, code);
    if (!code && w->listener->ready) code = w->listener->ready(w->listener->context, w->feed.data, err);
    if (!code &&
        (code = content_compare_images(&w->t->ranks, data_list(w->feed.data), c->data.root, err)) != 0)
        w->alike = code == EXIT_CONFIG;
    if (!code && how->resume) code = go_on(w->run, w->t, &w->from, err);
    return leave(w, code);
}

int train_loop(struct run *run, struct config *c, struct train_resume how, int64_t stop_after,
               const struct comm_options *ranks, const struct train_listener *listener, struct error *err)
{
    struct device *device = NULL;
    static const struct train_listener silent;
    if (!listener) listener = &silent;
    struct train_loop w = {.run = run,
                           .config = c,
                           .listener = listener,
                           .rank = ranks ? ranks->rank : 0,
                           .ranks = ranks ? ranks->size : 1};
    struct run_status before;
    json_t *identity = identity_config(c), *changed = NULL;
    signals_catch(is_rank0(&w) ? run : NULL);
    phase(listener, PHASE_LOAD);
    int code = how.resume ? identity_check(run, c, w.ranks, how.force, is_rank0(&w), &changed, err) : 0;
    if (!code) code = load(&w, c, &how, ranks, &device, &changed, err);
    if (!code) {
        int64_t total =
            c->train.steps > 0 ? c->train.steps : c->train.epochs * data_epoch_batches(w.feed.data);
        w.p = (struct train_progress){.step = w.from, .total = total};
        w.last = stop_after > 0 && stop_after < total ? stop_after : total;
        w.saved_step = w.from;
        if (w.from > 0) advice_saved(&w.health, w.from, NAN);
        code = train(&w, how.resume ? "resumed" : "started", identity, &changed, err);
    } else if (code == EXIT_STOPPED) { /* where it stood before */
        if (run_status_read(&before, run->directory, NULL) == 0)
            w.p = (struct train_progress){.step = before.step, .total = before.total, .epoch = before.epoch};
        w.from = w.p.step;
        code = report_end(&w, code, err);
    }
    if (w.t && code && code != EXIT_STOPPED && code != EXIT_DIVERGED && !w.alike)
        comm_fail(&w.t->ranks, code, err); /* what one rank alone has met the others cannot know */
    /* not where this machine's own memory is out: what is planned takes some, too */
    bool no_space = device && code && device->memory_error.code == code && w.rank == 0 &&
                    (code == EXIT_CARD_MEMORY || device->limit_bytes);
    size_t held = !no_space ? 0 : device->limit_bytes ? device->limit_bytes : device->use.peak_total_bytes;
    json_decref(identity);
    json_decref(changed);
    data_close(w.feed.data);
    trainer_close(w.t);
    device_close(device);
    if (no_space) advice_memory(run, ranks, held, err);
    return code;
}
