/* The training loop: see loop.h. */
#include "core/train/loop.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/message.h"
#include "core/base/progress.h"
#include "core/run/change.h"
#include "core/run/status.h"
#include "core/train/loop_internal.h"
#include "core/train/meta.h"
#include "core/train/metrics.h"
#include "core/train/resume_check.h"
#include "core/train/signals.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LAST_SAVE_TRIES = 3,
    RETRY_SECONDS = 60 /* between two attempts of a save that fails, unless one is due earlier */
};

const char *const train_phase_names[PHASE_COUNT] = {
    N_("loading weights"),     N_("computing the teacher's outputs"),
    N_("waiting for data"),    N_("training"),
    N_("saving a checkpoint"), N_("ending"),
    N_("evaluating")};

/* ---- batches ---- */

static int feed_fetch(void *context, int64_t index, struct batch *batch, const int64_t **ids,
                      struct error *err)
{
    struct feed *f = context;
    (void)err;
    progress_mark();
    if (f->batch.tokens) {
        int64_t first = index * f->micro * f->context;
        batch->input = f->batch.tokens + first;
        batch->labels = f->batch.labels + index * f->micro * f->labels_each;
        batch->begins = f->batch.begins ? f->batch.begins + first : NULL;
        batch->ends = f->batch.ends ? f->batch.ends + first : NULL;
        *ids = NULL;
        return 0;
    }
    batch->input = f->batch.images + index * f->chunk;
    batch->labels = f->batch.labels ? f->batch.labels + index * f->micro : NULL;
    batch->labels2 = f->batch.labels2 ? f->batch.labels2 + index * f->micro : NULL;
    batch->share = f->batch.share ? f->batch.share + index * f->micro : NULL;
    *ids = f->batch.ids + index * f->micro;
    return 0;
}

static const void *feed_peek(void *context)
{
    struct feed *f = context;
    return f->last_step ? NULL : data_peek(f->data);
}

/* ---- the state of the loop, and its reports ---- */

static void warn_once(struct train_loop *w, enum report_file file, int code, const struct error *why)
{
    if (!code || w->warned[file]) return;
    w->warned[file] = true;
    log_warn("%s%s%s; training continues (reported once)", why->file, why->file[0] ? ": " : "", why->what);
}

static void log_event(struct train_loop *w, const char *event, json_t *fields)
{
    struct error why = {0};
    if (!is_rank0(w)) {
        json_decref(fields);
        return;
    }
    warn_once(w, REPORT_EVENTS, run_event(w->run, event, fields, &why), &why);
}

static void report_state(struct train_loop *w, const char *state, int exit_code)
{
    const struct train_progress *p = &w->p;
    struct error why = {0};
    if (!is_rank0(w)) return;
    warn_once(w, REPORT_STATE, run_state(w->run, state, p->step, p->total, p->epoch, exit_code, &why), &why);
    w->state_at = clock_seconds();
}

static void flush_metrics(struct train_loop *w)
{
    struct error why = {0};
    if (is_rank0(w)) warn_once(w, REPORT_METRICS, run_sync(w->run, &why), &why);
}

/* ---- saving ---- */

static bool saving_is_paused(const struct train_loop *w) { return w->save_failed_at > 0; }

/* Pauses saving after a failed save: training continues, and the save is retried later. */
static void pause_saving(struct train_loop *w, const struct error *why)
{
    bool paused = saving_is_paused(w);
    w->save_failed_at = clock_seconds();
    if (paused || !is_rank0(w)) return;
    char english[200];
    snprintf(w->run->notice, sizeof w->run->notice, N_("saving is paused since step %lld: %s"),
             (long long)w->p.step, message_english(english, sizeof english, why->what));
    log_warn("%s%s%s; saving is paused, the last checkpoint stays, training continues", why->file,
             why->file[0] ? ": " : "", why->what);
    log_event(w, N_("saving_paused"),
              json_pack("{s:I, s:s}", "step", (json_int_t)w->p.step, "message", why->what));
    report_state(w, "training", -1);
}

static void resume_saving(struct train_loop *w)
{
    bool paused = saving_is_paused(w);
    w->save_failed_at = 0;
    if (!paused || !is_rank0(w)) return;
    log_info("saving resumes at step %lld", (long long)w->p.step);
    log_event(w, N_("saving_resumed"), json_pack("{s:I}", "step", (json_int_t)w->p.step));
    w->run->notice[0] = 0;
}

/* Writes a checkpoint to the run's directory. A directory that is moved meanwhile is followed, and the
 * checkpoint is written again there. Of several ranks none returns early: the save is a collective. */
static int write_checkpoint(struct train_loop *w, struct error *err)
{
    bool alone = w->t->ranks.size == 1;
    const char *directory;
    int code = run_follow(w->run, err);
    if (code && alone) return code;
    do {
        directory = w->run->directory;
        save_release(&w->reservation);
        loop_name_best(w);
        code = trainer_save(w->t, directory, w->p.step, (int)w->t->config->train.checkpoint_keep, err);
        if (!code && alone) code = run_follow(w->run, err);
    } while (!code && w->run->directory != directory);
    save_reserve(&w->reservation, w->reservation.bytes, NULL);
    return code;
}

static int save(struct train_loop *w, struct error *err)
{
    enter_phase(w->listener, PHASE_SAVE);
    flush_metrics(w);
    int code = write_checkpoint(w, err);
    if (code) return code;
    resume_saving(w);
    if (w->candidate.step == w->p.step) w->best = w->candidate;
    log_event(w, N_("checkpoint"), json_pack("{s:I}", "step", (json_int_t)w->p.step));
    if (w->listener->saved) w->listener->saved(w->listener->context, w->p.step);
    w->saved_at = clock_seconds();
    w->saved_step = w->p.step;
    advice_saved(&w->health, w->p.step, w->p.loss);
    return 0;
}

/* Tries a save that failed again, for a moment. Returns the code of the last try. */
static int save_again(struct train_loop *w, int code, struct error *err)
{
    for (int i = 0; i < LAST_SAVE_TRIES - 1 && code; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
        code = save(w, err);
    }
    if (code) loop_forget_best(w);
    return code;
}

/* Saves. A failure at the step of the best evaluation, whose weights the next step changes, is retried for a
 * moment; any other pauses saving. Collective call. */
static void save_or_pause(struct train_loop *w)
{
    struct error why = {0};
    int code = save(w, &why), best = w->candidate.step == w->p.step;
    if (code && comm_broadcast(&w->t->ranks, &best, sizeof best, 0, NULL) == 0 && best)
        code = save_again(w, code, &why);
    if (code) pause_saving(w, &why);
}

/* Saves before the run ends with another error, which all ranks share. */
static void save_before_failing(struct train_loop *w)
{
    struct error why = {0};
    if (save(w, &why) == 0) return;
    loop_forget_best(w);
    if (is_rank0(w)) log_warn("cannot save before the run ends: %s", why.what);
}

/* Saves after the last step. A failure is retried for a moment, then it is the run's error. */
static int save_last(struct train_loop *w, struct error *err)
{
    struct error own = {0};
    char again[180];
    if (!err) err = &own;
    int code = save_again(w, save(w, err), err);
    if (code && w->saved_step > 0)
        snprintf(err->hint, sizeof err->hint,
                 _("make the directory writable; resume from step %lld with: meopt train --resume %.150s"),
                 (long long)w->saved_step, run_resume_words(w->run, again, sizeof again));
    return code;
}

/* Returns whether a checkpoint is due by steps, by minutes, or because saving is paused. Requests and signals
 * are agree()'s. */
static bool save_due(const struct train_loop *w)
{
    const struct config *c = w->t->config;
    double now = clock_seconds(), tried_at = saving_is_paused(w) ? w->save_failed_at : w->saved_at;
    if (c->train.checkpoint_steps > 0 && w->p.step % c->train.checkpoint_steps == 0) return true;
    if (c->train.checkpoint_minutes > 0 && now - tried_at >= 60 * c->train.checkpoint_minutes) return true;
    return saving_is_paused(w) && now - tried_at >= RETRY_SECONDS;
}

/* ---- one step ---- */

static int next_batch(struct train_loop *w, struct error *err)
{
    double begin = clock_seconds();
    enter_phase(w->listener, PHASE_DATA);
    int code = data_next(w->feed.data, &w->feed.batch, err);
    w->data_ms = (clock_seconds() - begin) * 1e3;
    return code;
}

static int report_variants(struct train_loop *w, struct error *err)
{
    struct loss_variant variants[LOSS_VARIANTS];
    struct batch_source source = {.fetch = feed_fetch, .context = &w->feed};
    int code = trainer_loss_variants(w->t, &source, variants, err);
    if (!code) w->listener->variants(w->listener->context, variants, LOSS_VARIANTS);
    return code;
}

static void update_progress(struct train_loop *w, const struct step_result *result, double step_ms)
{
    struct train_progress *p = &w->p;
    p->step++;
    p->epoch = w->feed.batch.epoch;
    p->loss = result->loss;
    memcpy(p->metrics, result->metrics, sizeof p->metrics);
    p->grad_norm = result->grad_norm;
    p->wide_groups = result->wide_groups;
    p->offload_wait_ms = result->offload_wait_ms;
    p->stream_wait_ms = result->stream_wait_ms;
    p->data_wait_ms = w->feed.batch.wait_ms;
    p->step_ms = step_ms;
    p->stage_wait_ms = result->stage_wait_ms;
    p->waited_ms += result->stage_wait_ms;
    p->stepped_ms += step_ms;
    p->images_per_s = (double)w->t->images / p->step_ms * 1e3;
    p->tokens_per_s = p->images_per_s * (double)w->feed.context;
    p->mfu = w->peak_flops > 0 ? w->t->model_flops * p->images_per_s / w->peak_flops : 0;
}

/* Runs one optimizer step on the batch. A step that fails leaves mid_step set. */
static int run_step(struct train_loop *w, struct error *err)
{
    int64_t step = w->p.step + 1;
    struct batch_source source = {feed_fetch, feed_peek, &w->feed};
    struct step_result result;
    double begin = clock_seconds();
    int code = step == 1 && w->t->objective->teacher && w->listener->variants ? report_variants(w, err) : 0;
    if (code) return code;
    enter_phase(w->listener, PHASE_STEP);
    w->p.lr = schedule_lr(w->t->config, step, w->p.total);
    w->feed.last_step = step >= w->last || signals_act(PHASE_DATA) == ACT_SAVE_STOP;
    w->mid_step = true;
    if ((code = trainer_step(w->t, step, w->p.lr, &source, &result, err)) != 0) return code;
    w->mid_step = false;
    update_progress(w, &result, w->data_ms + (clock_seconds() - begin) * 1e3);
    return 0;
}

/* Reports the step to the run's files and to the listener. */
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
    if (is_rank0(w)) warn_once(w, REPORT_METRICS, metrics_write(w->run, p, cards, &why), &why);
    else json_decref(cards);
    if (w->listener->step) w->listener->step(w->listener->context, p);
    if (clock_seconds() - w->state_at >= 1) report_state(w, "training", -1);
    return 0;
}

/* ---- between two steps ---- */

/* Agrees among all ranks what happens now: a request to one rank is a request to all, and an error of one
 * rank ends all. Only rank 0 decides by the clock that a save is due. code, err: of this rank so far. */
static int agree(struct train_loop *w, bool due, int code, struct error *err)
{
    enum { STOP, SAVE, CHANGE, FAILED, FLAGS };
    enum signal_act act = signals_act(PHASE_STEP);
    double flags[FLAGS] = {[STOP] = act == ACT_SAVE_STOP,
                           [SAVE] = act == ACT_SAVE || (due && is_rank0(w)),
                           [CHANGE] = act == ACT_CHANGE,
                           [FAILED] = code != 0};
    struct error own = code && err ? *err : (struct error){0};
    int lost = comm_all_reduce(&w->t->ranks, COMM_MAX, flags, FLAGS, code ? NULL : err);
    w->stop = flags[STOP] > 0;
    w->save = flags[SAVE] > 0;
    w->change = flags[CHANGE] > 0;
    if (code && lost) return code; /* this rank's error is the cause */
    w->same_failure = !lost && flags[FAILED] > 0;
    return w->same_failure ? comm_agree(&w->t->ranks, code, &own, "cannot continue", err) : lost;
}

static void report_change(struct train_loop *w, json_t *changed)
{
    struct error why = {0};
    const char *key;
    json_t *values;
    if (!is_rank0(w)) return;
    json_object_foreach(changed, key, values)
        log_info("step %lld: %s was %s and is now %s", (long long)w->p.step, key,
                 json_string_value(json_array_get(values, 0)), json_string_value(json_array_get(values, 1)));
    if (change_record(w->run->directory, changed, &why)) log_warn("%s: %s", why.file, why.what);
    log_event(w, N_("changed"), json_pack("{s:I, s:O}", "step", (json_int_t)w->p.step, "changed", changed));
}

/* Applies a requested change of keys (change.h): rank 0 reads the values and broadcasts them. */
static int apply_change(struct train_loop *w, struct error *err)
{
    struct {
        int code;
        struct change_values values;
    } request = {0};
    struct error why = {0};
    signals_handled(REQUEST_CHANGE);
    if (is_rank0(w)) request.code = change_read(&request.values, w->run->directory, &why);
    int code = comm_broadcast(&w->t->ranks, &request, sizeof request, 0, err);
    if (code) return code;
    if (request.code) {
        if (is_rank0(w)) log_warn("cannot apply the requested change: %s", why.what);
        return 0;
    }
    json_t *changed = change_apply(w->config, &request.values);
    if (changed) report_change(w, changed);
    json_decref(changed);
    return 0;
}

/* Handles what all ranks have agreed on; afterwards w->stop says whether the loop ends. */
static int handle_requests(struct train_loop *w, struct error *err)
{
    int code = w->change ? apply_change(w, err) : 0;
    if (code || !w->save || w->stop) return code;
    signals_handled(REQUEST_SAVE);
    save_or_pause(w);
    return agree(w, false, 0, err); /* requests that came during the save */
}

static int run_steps(struct train_loop *w, struct error *err)
{
    bool due = false;
    int code = 0;
    while (w->p.step < w->last && !code) {
        code = agree(w, due, next_batch(w, err), err);
        if (!code) code = handle_requests(w, err);
        if (code || w->stop) break;
        code = run_step(w, err);
        if (!code) code = loop_gemms_stepped(w, err);
        if (!code) code = loop_evaluate(w, err);
        if (!code) code = report_step(w, err);
        due = save_due(w) || w->candidate.step == w->p.step;
    }
    return code;
}

/* Saves the steps since the last checkpoint, unless the weights are partly updated or only this rank failed.
 * Returns the code of the run. */
static int save_at_end(struct train_loop *w, int code, struct error *err)
{
    if (w->mid_step || w->p.step <= w->saved_step) return code;
    if (!code) {
        code = save_last(w, err);
        w->same_failure = code != EXIT_RANK_LOST;
    } else if (w->ranks == 1 || w->same_failure) save_before_failing(w);
    return code;
}

/* Reports the end to the run's files, and a stop to the caller. */
static void report_end(struct train_loop *w, int code, struct error *err)
{
    const struct train_progress *p = &w->p;
    char again[320];
    const char *state = code == 0               ? N_("done")
                        : code == EXIT_STOPPED  ? N_("stopped")
                        : code == EXIT_DIVERGED ? N_("diverged")
                                                : N_("failed");
    flush_metrics(w);
    report_state(w, state, code);
    log_event(w, state, json_pack("{s:I}", "step", (json_int_t)p->step));
    if (code != EXIT_STOPPED || !err) return;
    if (p->step > w->from)
        error_set(err, code, NULL,
                  "stopped at step %lld of %lld and saved; resume with: meopt train --resume %s",
                  (long long)p->step, (long long)p->total, run_resume_words(w->run, again, sizeof again));
    else
        error_set(err, code, NULL,
                  "stopped before the first step, nothing is lost; resume with: meopt train --resume %s",
                  run_resume_words(w->run, again, sizeof again));
}

static int train(struct train_loop *w, struct error *err)
{
    int code = save_at_end(w, run_steps(w, err), err);
    if (!code && w->p.step < w->p.total) code = EXIT_STOPPED;
    enter_phase(w->listener, PHASE_END);
    if (code == EXIT_DIVERGED && is_rank0(w)) advice_diverged(&w->health, w->run, w->config, w->p.step, err);
    report_end(w, code, err);
    return code;
}

/* ---- start and end ---- */

static void set_steps(struct train_loop *w, const struct config *c, int64_t stop_after)
{
    int64_t total = c->train.steps > 0 ? c->train.steps : c->train.epochs * data_epoch_batches(w->feed.data);
    w->p = (struct train_progress){.step = w->from, .total = total};
    w->last = stop_after > 0 && stop_after < total ? stop_after : total;
    w->saved_step = w->from;
    if (w->from > 0) advice_saved(&w->health, w->from, NAN);
}

/* Sets the peak of the devices of all ranks. Collective call. */
static int sum_peaks(struct train_loop *w, struct error *err)
{
    enum { FLOPS, UNKNOWN, SUMS };
    double own = w->t->device->peak_flops, sums[SUMS] = {[FLOPS] = own, [UNKNOWN] = own <= 0};
    int code = comm_all_reduce(&w->t->ranks, COMM_SUM, sums, SUMS, err);
    w->peak_flops = code || sums[UNKNOWN] > 0 ? 0 : sums[FLOPS];
    return code;
}

/* Reports what the run is and what computes it: meta.json, plan.json, data.list, the first event. */
static int report_start(struct train_loop *w, bool resumed, json_t *identity, json_t **changed,
                        struct error *err)
{
    const struct train_listener *listener = w->listener;
    struct device_fact rows[START_ROWS];
    start_table(w->t, listener->telemetry ? listener->telemetry(listener->context, w->t->device) : "", rows);
    json_t *start;
    int code = start_table_gather(w->t, rows, &start, err);
    json_t *differ = start_differences(start);
    if (!code) code = sum_peaks(w, err);
    if (!code && is_rank0(w)) resume_check_start(w->run, start, changed);
    if (!code) code = meta_write(w->run, w->t, w->feed.data, w->p.total, w->peak_flops, start, identity, err);
    json_decref(start);
    if (!code && is_rank0(w)) code = resume_check_write_images(w->run, data_list(w->feed.data), err);
    if (code) {
        json_decref(differ);
        return code;
    }
    json_t *fields = json_pack("{s:I, s:I, s:o*}", "step", (json_int_t)w->from, "total_steps",
                               (json_int_t)w->p.total, "ranks_differ", differ);
    if (*changed) json_object_set(fields, "changed", *changed);
    log_event(w, resumed ? N_("resumed") : N_("started"), fields);
    if (listener->started)
        listener->started(listener->context, w->t, rows, w->feed.data, w->from, w->p.total);
    return 0;
}

static int start_and_train(struct train_loop *w, bool resumed, json_t *identity, json_t **changed,
                           struct error *err)
{
    int code = report_start(w, resumed, identity, changed, err);
    if (!code) code = data_start(w->feed.data, w->from, err);
    if (!code) code = save_reserve(&w->reservation, trainer_save_bytes(w->t), err);
    if (!code) code = loop_gemms_begin(w, err);
    w->saved_at = clock_seconds();
    if (!code) code = train(w, err);
    save_release(&w->reservation);
    return code;
}

/* Reports a stop during loading: the run keeps the progress of its last process. */
static void report_stopped_loading(struct train_loop *w, struct error *err)
{
    struct run_status before;
    if (run_status_read(&before, w->run->directory, NULL) == 0)
        w->p = (struct train_progress){.step = before.step, .total = before.total, .epoch = before.epoch};
    w->from = w->p.step;
    report_end(w, EXIT_STOPPED, err);
}

/* Returns the bytes of device memory that were available to a run that needed more; 0: it failed otherwise,
 * or the host's memory is exhausted, so that no advice can be computed. */
static size_t exhausted_bytes(const struct train_loop *w, const struct device *device, int code)
{
    if (!code || !device || device->memory_error.code != code || w->rank != 0) return 0;
    if (code != EXIT_CARD_MEMORY && !device->limit_bytes) return 0;
    return device->limit_bytes ? device->limit_bytes : device->use.peak_total_bytes;
}

int train_loop(struct run *run, struct config *c, struct train_resume how, int64_t stop_after,
               const struct comm_options *ranks, const struct train_listener *listener, struct error *err)
{
    static const struct train_listener silent;
    struct train_loop w = {.run = run,
                           .config = c,
                           .listener = listener ? listener : &silent,
                           .rank = ranks ? ranks->rank : 0,
                           .ranks = ranks ? ranks->size : 1};
    struct device *device = NULL;
    json_t *identity = resume_check_config(c), *changed = NULL;
    signals_catch(is_rank0(&w) ? run : NULL);
    enter_phase(w.listener, PHASE_LOAD);
    int code = how.resume ? resume_check_run(run, c, w.ranks, how.force, is_rank0(&w), &changed, err) : 0;
    if (!code) code = loop_load(&w, c, &how, ranks, &device, &changed, err);
    if (!code) {
        set_steps(&w, c, stop_after);
        if (is_rank0(&w)) resume_check_schedule(run, c, changed, w.from, w.p.total);
        if (is_rank0(&w) && !w.from) experiment_warn_warmup(c, data_images(w.feed.data));
        code = start_and_train(&w, how.resume, identity, &changed, err);
    } else if (code == EXIT_STOPPED) report_stopped_loading(&w, err);
    bool ended_by_error = code && code != EXIT_STOPPED && code != EXIT_DIVERGED;
    if (w.t && ended_by_error && !w.same_failure) comm_fail(&w.t->ranks, code, err); /* the other ranks */
    size_t available = exhausted_bytes(&w, device, code);
    json_decref(identity);
    json_decref(changed);
    free(w.gemms);
    experiment_close_validation(&w.feed.validation);
    data_close(w.feed.data);
    trainer_close(w.t);
    device_close(device);
    if (available) advice_memory(run, ranks, available, err);
    return code;
}
