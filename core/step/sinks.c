/* Where the gradients of one rank go (struct sink of schedule.h): kept until the end of the step, applied
 * inside the backward pass, or added to the optimizer's bf16 accumulators. The comments have what each sink
 * adds to the order of schedule.c. */
#include "core/base/memory.h"
#include "core/step/step.h"
#include "core/step/weight_stream.h"

#include <math.h>
#include <stdlib.h>

static struct meopt_gradient gradient_of(const struct parameter *p)
{
    return (struct meopt_gradient){p->grad, p->grad_type == DTYPE_BF16 ? MEOPT_BF16 : MEOPT_F32};
}

/* Sets t->tensors.given and .gradients to those of a group (-1: of all) and returns their number;
 * `accumulated`: with the sums of the optimizer as gradients. */
static size_t group_gradients(struct trainer *t, int group, bool accumulated)
{
    size_t count = 0;
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        if (!p->trained || (group >= 0 && p->group != group)) continue;
        t->tensors.given[count] = (size_t)t->tensors.of[i];
        t->tensors.gradients[count++] =
            accumulated ? (struct meopt_gradient){NULL, MEOPT_BF16} : gradient_of(p);
    }
    return count;
}

static int diverged_or(const struct step *s, int status, const struct meopt_error *library, struct error *err)
{
    if (status == MEOPT_NOT_FINITE) return step_diverged(s->t, s->step, library->message, s->moved, err);
    return status ? trainer_library_error(library, err) : 0;
}

int step_begin_updates(struct step *s, struct error *err)
{
    struct meopt_error library = {0};
    /* two backward passes are bit-identical, and the first was finite; sums of ranks are not checked */
    int check = s->order->twice || s->t->dp ? 0 : s->t->micro == s->t->batch ? 2 : 1;
    int status = meopt_step_begin(s->t->opt, s->step, s->lr, check, &library);
    return status ? trainer_library_error(&library, err) : 0;
}

int step_end_updates(struct step *s, int code, double (*squares)(const struct trainer *t, int group),
                     int (*exchange)(struct trainer *t, struct error *err),
                     int (*gather)(struct step *s, struct error *err), struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    struct meopt_step_stats stats = {0};
    t->reduce.of_all = true;
    /* after an error other ranks are not asked to join */
    int ended =
        t->dp && code && code != EXIT_DIVERGED ? 0 : meopt_step_end(t->opt, &stats, code ? NULL : &library);
    t->reduce.of_all = false;
    bool stepped = !code && (!ended || ended == MEOPT_NOT_FINITE), counted = stepped && s->by_group;
    if (counted && exchange) code = exchange(t, err);
    if (counted && !code) code = step_add_norms(s, squares, err);
    if (stepped && gather && !code) code = gather(s, err);
    if (!code && ended == MEOPT_NOT_FINITE) code = step_diverged(t, s->step, step_not_finite, s->moved, err);
    if (!code && ended) code = trainer_library_error(&library, err);
    if (!s->normed) s->result->grad_norm = stats.grad_norm;
    return code;
}

static int end(struct step *s, int code, struct error *err)
{
    if (s->by_group) step_send_grad_stats(s->t); /* copied with the results, for which meopt_step_end waits */
    return step_end_updates(s, code, step_found_squares, NULL, NULL, err);
}

/* ---- kept: a step of the optimizer at the end ---- */

static int kept_measured(struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    step_measure(t, -1);
    int code = step_read_sums(t, step_sums_to(t, 0), err);
    if (!code) code = step_add_losses(t, s->step, s->result, err);
    if (code) return code;
    double squares = step_found_squares(t, 0);
    if (!isfinite(squares)) return step_diverged(t, s->step, step_not_finite, false, err);
    step_clip_by(s, sqrt(squares));
    return 0;
}

static int kept_apply(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    if (group != t->schedule.last) return 0; /* all groups at once */
    group_gradients(t, -1, false);
    return meopt_step(t->opt, s->step, s->lr, s->scale, t->tensors.gradients, NULL, &library)
               ? trainer_library_error(&library, err)
               : 0;
}

const struct sink sink_kept = {
    .measured = kept_measured, .apply = kept_apply, .whole = true, .reads_losses = true};

/* ---- released: each group is applied when its gradient is there ---- */

static int released_measure(struct step *s, int group, struct error *err)
{
    (void)err;
    step_measure(s->t, group);
    return 0;
}

static int released_measured(struct step *s, struct error *err)
{
    int code = step_read_sums(s->t, step_sums_to(s->t, s->t->schedule.last), err);
    return code ? code : step_add_norms(s, step_found_squares, err);
}

static int released_apply(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    int status;
    size_t count = group_gradients(t, group, false);
    if (s->by_group) {
        step_measure(t, group);
        struct meopt_clip clip = step_clip_group(t, group);
        clip.found = step_grad_stats(t, group);
        status = meopt_step_clipped(t->opt, t->tensors.given, t->tensors.gradients, count, &clip, &library);
    } else
        status =
            meopt_step_tensors(t->opt, t->tensors.given, t->tensors.gradients, count, s->scale, &library);
    if (status == MEOPT_NOT_FINITE) return diverged_or(s, status, &library, err);
    s->moved = true;
    if (t->student_stream) weight_stream_mark_dirty(t->student_stream, group);
    return diverged_or(s, status, &library, err);
}

const struct sink sink_released = {.measure = released_measure,
                                   .measured = released_measured,
                                   .begin = step_begin_updates,
                                   .apply = released_apply,
                                   .end = end};

/* ---- accumulated: accumulators of all groups, whose norm is exact before the first update ---- */

static int accumulate(struct step *s, int group, int64_t round, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    (void)round;
    size_t count = group_gradients(t, group, false);
    int status = meopt_accumulate_tensors(t->opt, t->tensors.given, t->tensors.gradients, count, 1, &library);
    return diverged_or(s, status, &library, err);
}

static int accumulated_measured(struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    double norm;
    int finite, code;
    t->device->streams->download(t->device, NULL, t->host_sums, t->sums,
                                 (size_t)step_loss_sums(t) * sizeof *t->sums);
    if (meopt_gradient_norm(t->opt, NULL, &norm, &finite, &library)) /* also waits for the copy */
        return trainer_library_error(&library, err);
    if ((code = step_add_losses(t, s->step, s->result, err)) != 0) return code;
    if (!finite) return step_diverged(t, s->step, step_not_finite, false, err);
    step_clip_by(s, norm);
    return 0;
}

/* Streamed weights are updated group by group, those in memory at once. */
static int accumulated_apply(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    bool streamed = t->student_stream && !tower_has_adapters(t->student);
    if (!streamed && group != t->schedule.last) return 0;
    int code = streamed ? weight_stream_fetch(t->student_stream, group,
                                              group > t->schedule.lowest ? group - 1 : -1, err)
                        : 0;
    if (code) return code;
    size_t count = group_gradients(t, streamed ? group : -1, true);
    int status =
        meopt_step_tensors(t->opt, t->tensors.given, t->tensors.gradients, count, s->scale, &library);
    if (streamed) weight_stream_mark_dirty(t->student_stream, group);
    return diverged_or(s, status, &library, err);
}

const struct sink sink_accumulated = {.take = accumulate,
                                      .measured = accumulated_measured,
                                      .begin = step_begin_updates,
                                      .apply = accumulated_apply,
                                      .end = end,
                                      .reads_losses = true};

/* ---- grouped: accumulators of one group, which is applied after its last micro-batch ---- */

/* The norm that is reported is in either pass that of the sums. */
static int grouped_norm(const struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    struct meopt_gradient *none = xcalloc((size_t)t->tensors.count + 1, sizeof *none);
    int status = meopt_norms_begin(t->opt, none, &library);
    free(none);
    return diverged_or(s, status, &library, err);
}

static int grouped_measure(struct step *s, int group, struct error *err)
{
    (void)group;
    struct meopt_error library = {0};
    int code = grouped_norm(s, err);
    return code ? code : diverged_or(s, meopt_accumulators_clear(s->t->opt, &library), &library, err);
}

static int grouped_measured(struct step *s, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    double norm;
    int finite, *sets = xcalloc((size_t)t->tensors.count + 1, sizeof *sets),
                status = meopt_norms_end(t->opt, 1, sets, &norm, &finite, &library);
    free(sets);
    if (status) return trainer_library_error(&library, err);
    if (!finite) return step_diverged(t, s->step, step_not_finite, s->moved, err);
    step_clip_by(s, norm);
    return 0;
}

static int grouped_apply(struct step *s, int group, struct error *err)
{
    struct trainer *t = s->t;
    struct meopt_error library = {0};
    int code = s->order->twice ? 0 : grouped_norm(s, err);
    if (code) return code;
    size_t count = group_gradients(t, group, true);
    int status =
        meopt_step_tensors(t->opt, t->tensors.given, t->tensors.gradients, count, s->scale, &library);
    if (t->student_stream) weight_stream_mark_dirty(t->student_stream, group);
    code = diverged_or(s, status, &library, err);
    s->moved = true;
    return code;
}

static int grouped_end(struct step *s, int code, struct error *err)
{
    if (!code && !s->order->twice) code = grouped_measured(s, err);
    return end(s, code, err);
}

const struct sink sink_grouped = {.take = accumulate,
                                  .measure = grouped_measure,
                                  .measured = grouped_measured,
                                  .begin = step_begin_updates,
                                  .apply = grouped_apply,
                                  .end = grouped_end};
