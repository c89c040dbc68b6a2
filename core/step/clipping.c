/* Clipping: by which norm gradients are scaled, the statistics it is computed from on the device, and the
 * sum over all groups. A norm of all groups is known before the first update (exact, or that of the last
 * step), or each group is clipped by its own, to its share of the limits:
 *
 *     scale = min(1, max_norm / |g|), of a group: min(1, max_norm sqrt(n_group / n) / |g_group|) */
#include "core/step/step.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Doubles per group in t->sums. */
enum { SQUARES = sizeof(struct meopt_grad_stats) / sizeof(double) };

size_t step_sums_bytes(const struct trainer *t)
{
    return (size_t)step_loss_sums(t) * sizeof(double) +
           (size_t)t->student->group_count * sizeof(struct meopt_grad_stats);
}

int64_t step_sums_to(const struct trainer *t, int group) { return step_loss_sums(t) + (group + 1) * SQUARES; }

struct meopt_grad_stats *step_grad_stats(const struct trainer *t, int group)
{
    return (void *)(t->sums + step_loss_sums(t) + group * SQUARES);
}

void step_measure(struct trainer *t, int group)
{
    static const struct meopt_grad_stats none = {0, 1, 0};
    struct meopt_grad_stats *place = step_grad_stats(t, group < 0 ? 0 : group);
    t->device->upload(t->device, place, &none, sizeof none);
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        if (p->trained && (group < 0 || p->group == group))
            t->device->ops->sum_squares(t->device, p->grad, p->grad_type, p->count, &place->squares,
                                        &place->finite);
    }
}

double step_found_squares(const struct trainer *t, int group)
{
    struct meopt_grad_stats s;
    memcpy(&s, t->host_sums + step_loss_sums(t) + group * SQUARES, sizeof s);
    return s.finite && isfinite(s.squares) ? s.squares : NAN;
}

void step_send_grad_stats(struct trainer *t)
{
    t->device->streams->download(t->device, NULL, t->host_sums, t->sums,
                                 (size_t)step_sums_to(t, t->schedule.last) * sizeof *t->sums);
}

/* Returns the number of trained parameters of a group; group -1: of all. */
static int64_t parameters_of(const struct trainer *t, int group)
{
    int64_t count = 0;
    for (int i = 0; i < t->student->parameter_count; i++)
        if (t->student->parameters[i].trained && (group < 0 || t->student->parameters[i].group == group))
            count += t->student->parameters[i].count;
    return count;
}

static struct meopt_clip limits(const struct trainer *t, double share)
{
    const struct config *c = t->config;
    return (struct meopt_clip){.divide_norm =
                                   RULE_HAS(c->optim.name, WITH_TRUST) ? c->optim.max_grad_norm * share : 0,
                               .max_norm = c->optim.clip_grad_norm * share};
}

static double scale_of(const struct trainer *t, double norm)
{
    struct meopt_clip clip = limits(t, 1);
    return meopt_clip_by(&clip, norm);
}

struct meopt_clip step_clip_group(const struct trainer *t, int group)
{
    return limits(t, sqrt((double)parameters_of(t, group) / (double)parameters_of(t, -1)));
}

void step_clip_begin(struct step *s)
{
    const struct trainer *t = s->t;
    bool unknown = config_clips(t->config) && !t->schedule.twice && !t->schedule.at_end;
    s->scale = 1;
    s->squares = 0;
    /* also the first step of `previous`, which has no norm yet */
    s->by_group = unknown && (t->config->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK || t->previous_norm <= 0);
    if (unknown && !s->by_group) s->scale = scale_of(t, t->previous_norm);
}

void step_clip_by(struct step *s, double norm)
{
    s->result->grad_norm = norm;
    s->normed = true;
    s->scale = scale_of(s->t, norm);
}

int step_add_norms(struct step *s, double (*squares)(const struct trainer *t, int group), struct error *err)
{
    const struct schedule *order = &s->t->schedule;
    for (int group = order->last; group >= order->lowest; group--) {
        double each = squares(s->t, group);
        if (!isfinite(each))
            return step_diverged(s->t, s->step, step_not_finite, s->by_group && group < order->last, err);
        s->squares += each;
    }
    step_clip_by(s, sqrt(s->squares));
    return 0;
}

bool trainer_clips_exactly(const struct trainer *t)
{
    return t->schedule.at_end || t->schedule.twice || t->config->optim.clip_mode == OPTIM_CLIP_MODE_EXACT ||
           (!t->dp && t->micro < t->batch);
}

void trainer_clipping(const struct config *config, bool exact, bool twice, char *text, size_t size)
{
    bool release = config->optim.gradients == OPTIM_GRADIENTS_RELEASE;
    const char *mode = _("exact: by this step's norm, which costs nothing where gradients are kept");
    if (!config_clips(config)) mode = "none";
    else if (twice) mode = _("exact: by this step's norm, which a backward pass of its own measures");
    else if (release && exact)
        mode = _("exact: by this step's norm, which costs nothing where gradients are accumulated");
    else if (release && config->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK)
        mode = _(
            "block: each block by its share, as the configuration says; PyTorch's clip_grad_norm_ is exact");
    else if (release)
        mode =
            _("previous: by the norm of the step before; exact with optim.clip_mode=exact (a second backward "
              "pass), optim.gradients=keep or train.micro_batch");
    snprintf(text, size, "%s", mode);
}
