/* Adaptive precision: how far the stored state of a tensor is from what the step computed, on a sample of its
 * groups, and the promotion of tensors where it is too far.
 *
 * Before the step, up to 64 groups evenly spread are stepped twice in copies: with their state in fp32, and
 * in the stored formats with the same random bits. Both then say what the next update would be if it depended
 * on the state alone: u = m / (sqrt(v) root_scale + eps), m for rules without v.
 * The error is ||u(stored) - u(exact)|| / ||u(exact)||.
 */
#include "core/optim/optim.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SAMPLE_GROUPS 64

bool adapt_due(const struct meopt *opt, const struct tensor *t)
{
    int every = opt->options.adapt_every;
    return every > 0 && opt->step % every == 0 && (OPTIM_LOW_BIT(t->layout.m) || OPTIM_LOW_BIT(t->layout.v));
}

/* The gradient of a task of one group in fp32, padded with zeros. */
static void group_gradient(const struct meopt *opt, const struct optim_task *task,
                           float gradient[OPTIM_GROUP])
{
    size_t count = (size_t)task->count;
    memset(gradient, 0, OPTIM_GROUP * 4);
    if (task->gradient_format == GRADIENT_F32) memcpy(gradient, task->gradient, count * 4);
    else if (task->gradient_format == GRADIENT_BF16)
        for (size_t i = 0; i < count; i++) {
            uint32_t bits = (uint32_t)((const uint16_t *)task->gradient)[i] << 16;
            memcpy(&gradient[i], &bits, 4);
        }
    else {
        struct optim_task from = *task;
        from.m = (void *)(uintptr_t)task->gradient;
        from.scales = (uint8_t *)(uintptr_t)task->gradient_scales;
        from.m_format = task->accumulator_format;
        from.v_format = STATE_NONE;
        opt->kernels->state_out(&from, 0, 1, gradient, NULL);
    }
}

static double update_of(const struct optim_scalars *s, const float *m, const float *v, int i)
{
    return v ? (double)m[i] / (sqrt((double)v[i]) * (double)s->root_scale + (double)s->eps) : (double)m[i];
}

int adapt_measure(const struct meopt *opt, const struct tensor *t, const struct optim_task *whole,
                  double *error, struct meopt_error *err)
{
    bool has_v = t->layout.v != STATE_NONE;
    /* of the whole tensor, whose other parts others sample */
    int64_t groups = t->whole ? optim_groups(t->whole) : t->layout.groups,
            samples = groups < SAMPLE_GROUPS ? groups : SAMPLE_GROUPS;
    int64_t first = t->whole ? t->first / OPTIM_GROUP : 0;
    double sums[2 * SAMPLE_GROUPS] = {0}, differences = 0, sizes = 0;
    for (int64_t k = 0; k < samples; k++) {
        double *difference = &sums[2 * k], *size = &sums[2 * k + 1];
        int64_t group = k * groups / samples - first;
        if (group < 0 || group >= t->layout.groups) continue;
        struct group_room room;
        struct optim_task here;
        const struct optim_task *task = &here;
        int status = group_hold(opt, whole, group, &room, &here, err);
        if (status) return status;
        float gradient[OPTIM_GROUP], weights[OPTIM_GROUP], exact_w[OPTIM_GROUP];
        float exact_m[OPTIM_GROUP], exact_v[OPTIM_GROUP], m[OPTIM_GROUP], v[OPTIM_GROUP];
        uint8_t stored_m[OPTIM_GROUP * 4], stored_v[OPTIM_GROUP * 4], scales[8];
        struct optim_partial found;
        group_gradient(opt, task, gradient);
        opt->kernels->weights_out(task, 0, 1, weights);
        memcpy(exact_w, weights, sizeof weights);
        opt->kernels->state_out(task, 0, 1, exact_m, has_v ? exact_v : NULL);

        struct optim_task exact = *task;
        exact.count = OPTIM_GROUP;
        exact.rule = task->rule == RULE_LAMB ? RULE_ADAMW : task->rule;
        exact.gradient = gradient;
        exact.gradient_format = GRADIENT_F32;
        exact.weight_format = WEIGHTS_F32;
        struct optim_task stored = exact;
        exact.weights = exact_w;
        exact.m = exact_m;
        exact.v = exact_v;
        exact.m_format = STATE_F32;
        exact.v_format = has_v ? STATE_F32 : STATE_NONE;
        exact.s.direction_limit = FLT_MAX;
        stored.weights = weights;
        bool pair = OPTIM_PAIR(task->m_format, task->v_format);
        memcpy(stored_m, task->m, optim_state_bytes(task->m_format) * (pair ? 2 : 1));
        if (!pair) memcpy(stored_v, task->v, optim_state_bytes(task->v_format));
        memcpy(scales, task->scales, optim_scale_bytes(task->m_format, task->v_format));
        stored.m = stored_m;
        stored.v = stored_v;
        stored.scales = scales;
        opt->kernels->step(&exact, 0, 1, &found);
        opt->kernels->step(&stored, 0, 1, &found);
        opt->kernels->state_out(&stored, 0, 1, m, has_v ? v : NULL);
        for (int i = 0; i < OPTIM_GROUP; i++) {
            double u = update_of(&task->s, exact_m, has_v ? exact_v : NULL, i);
            double d = update_of(&task->s, m, has_v ? v : NULL, i) - u;
            *size += u * u;
            *difference += d * d;
        }
    }
    int status = optim_reduce(opt, sums, 2 * SAMPLE_GROUPS, err);
    for (int64_t k = 0; k < samples; k++) {
        differences += sums[2 * k];
        sizes += sums[2 * k + 1];
    }
    *error = sizes > 0 ? sqrt(differences / sizes) : 0;
    return status;
}

static int wider(int format)
{
    return format == STATE_4BIT   ? STATE_8BIT
           : format == STATE_8BIT ? STATE_BF16
           : format == STATE_BF16 ? STATE_F32
                                  : format;
}

int adapt_act(struct meopt *opt, struct tensor *t, double error, struct meopt_error *err)
{
    const struct meopt_options *o = &opt->options;
    struct meopt_report report = {t->name,     opt->step,   error,       o->adapt_threshold,
                                  t->layout.m, t->layout.v, t->layout.m, t->layout.v};
    int status = MEOPT_OK;
    if (!(error <= o->adapt_threshold)) {
        int m = OPTIM_LOW_BIT(t->layout.m) ? wider(t->layout.m) : t->layout.m,
            v = OPTIM_LOW_BIT(t->layout.v) ? wider(t->layout.v) : t->layout.v;
        status = state_convert(opt, t, m, v, err);
        report.new_first_moment = t->layout.m;
        report.new_second_moment = t->layout.v;
    }
    if (o->report) o->report(o->context, &report);
    return status == MEOPT_NO_MEMORY ? MEOPT_OK
                                     : status; /* the step is made; the next one that is due asks again */
}
