/* The two points of schedule-free rules (WITH_POINTS): gradients are computed at y, the weights of training,
 * and evaluation uses their average x. A handle holds y and d = z - y, from which
 *   x = y - (1 - beta1) / beta1 d                    (y = (1 - beta1) z + beta1 x)
 * Neither y nor x can be computed from the other without rounding, so that the point of evaluation keeps the
 * arrays of y in host memory, and training resumes with their bits.
 */
#include "core/base/crc32c.h"
#include "core/optim/optim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int optim_at_training(const struct meopt *opt, struct meopt_error *err)
{
    if (!opt->evaluating) return MEOPT_OK;
    return optim_fail(
        err, MEOPT_BAD_ORDER,
        "the weights are those of evaluation: call meopt_set_point with MEOPT_POINT_TRAIN first");
}

/* The arrays of the weights in host memory, in one block: weights, copy, residual bits. */
enum { POINT_ARRAYS = 3 };
static void point_arrays(const struct layout *l, size_t bytes[POINT_ARRAYS])
{
    bytes[0] = (size_t)l->count * optim_weight_bytes(l->weights);
    bytes[1] = l->copy_bytes ? (size_t)l->count * 2 : 0;
    bytes[2] = l->residual_bytes;
}
size_t point_bytes(const struct layout *l)
{
    size_t bytes[POINT_ARRAYS];
    point_arrays(l, bytes);
    return rounded(bytes[0]) + rounded(bytes[1]) + bytes[2];
}
/* Points `host` at the weights of training in the block. */
static void point_open(const struct tensor *t, struct tensor *host)
{
    size_t bytes[POINT_ARRAYS];
    point_arrays(&t->layout, bytes);
    char *at = t->trained;
    host->weights = at;
    host->copy = bytes[1] ? at + rounded(bytes[0]) : NULL;
    host->correction = bytes[2] ? at + rounded(bytes[0]) + rounded(bytes[1]) : NULL;
}
static void point_copy(const struct tensor *to, const struct tensor *from)
{
    size_t bytes[POINT_ARRAYS];
    point_arrays(&to->layout, bytes);
    memcpy(to->weights, from->weights, bytes[0]);
    if (bytes[1]) memcpy(to->copy, from->copy, bytes[1]);
    if (bytes[2]) memcpy(to->correction, from->correction, bytes[2]);
}
/* Computes the checksums of the weights that forward and backward read, and of residual bits. */
static void point_crc(const struct tensor *host, uint32_t crc[2])
{
    size_t bytes[POINT_ARRAYS];
    point_arrays(&host->layout, bytes);
    crc[0] = crc32c(0, bytes[1] ? host->copy : host->weights, bytes[1] ? bytes[1] : bytes[0]);
    crc[1] = bytes[2] ? crc32c(0, host->correction, bytes[2]) : 0;
}

static int point_allocate(const struct meopt *opt, struct tensor *t, struct meopt_error *err)
{
    size_t bytes = rounded(point_bytes(&t->layout));
    t->trained = host_allocate(opt, MEOPT_MEMORY_COPY, bytes, t->name);
    if (t->trained) return MEOPT_OK;
    return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu bytes, the weights of training of %.100s",
                      bytes, t->name);
}
void point_forget(const struct meopt *opt, struct tensor *t)
{
    host_release(opt, MEOPT_MEMORY_COPY, t->trained, rounded(point_bytes(&t->layout)));
    t->trained = NULL;
}

int trained_hold(const struct meopt *opt, const struct tensor *t, struct tensor *host,
                 struct meopt_error *err)
{
    if (opt->evaluating && t->shares)
        return optim_fail(err, MEOPT_BAD_ORDER,
                          "tensor %.100s shares its memory, which holds no weights of training at "
                          "MEOPT_POINT_EVAL",
                          t->name);
    if (!t->trained) return tensor_hold(opt, t, PART_WEIGHTS, host, err);
    *host = *t;
    point_open(t, host);
    return MEOPT_OK;
}
int trained_release(const struct meopt *opt, const struct tensor *t, struct tensor *host,
                    struct meopt_error *err)
{
    return t->trained ? MEOPT_OK : tensor_release(opt, t, host, false, err);
}

/* Computes values + factor d for groups from `group` on. */
static void add_difference(const struct meopt *opt, const struct optim_task *task, int64_t group,
                           int64_t groups, float factor, float *values)
{
    float d[OPTIM_GROUP], v[OPTIM_GROUP];
    for (int64_t g = 0; g < groups; g++, values += OPTIM_GROUP) {
        opt->kernels->state_out(task, group + g, group + g + 1, d, v);
        for (int i = 0; i < OPTIM_GROUP; i++) values[i] = fmaf(factor, d[i], values[i]);
    }
}
/* Returns x - y divided by d. */
static float point_factor(const struct meopt *opt, const struct tensor *t)
{
    struct meopt_options own;
    double beta1 = tensor_options(opt, t, &own)->beta1;
    return (float)(1 - 1 / beta1);
}

/* Replaces the weights in `to` by those in `from` + factor d. */
static void move_weights(const struct meopt *opt, const struct tensor *from, const struct tensor *to,
                         float factor)
{
    struct optim_task source = task_of(opt, from), target = task_of(opt, to);
    float values[OPTIM_GROUP];
    for (int64_t group = 0; group < to->layout.groups; group++) {
        opt->kernels->weights_out(&source, group, group + 1, values);
        add_difference(opt, &target, group, 1, factor, values);
        opt->kernels->weights_in(&target, group, group + 1, values);
    }
}

static int to_evaluation(const struct meopt *opt, struct tensor *t, struct meopt_error *err)
{
    struct tensor host, saved;
    if (t->trained || t->shares || !t->layout.count) return MEOPT_OK;
    int status = point_allocate(opt, t, err);
    if (status || opt->options.dry) return status;
    if ((status = tensor_hold(opt, t, PART_WEIGHTS | PART_STATE, &host, err))) {
        point_forget(opt, t);
        return status;
    }
    saved = host;
    point_open(t, &saved);
    point_copy(&saved, &host);
    move_weights(opt, &saved, &host, point_factor(opt, t));
    point_crc(&host, t->point_crc);
    return tensor_release(opt, t, &host, true, err);
}

static int to_training(const struct meopt *opt, struct tensor *t, struct meopt_error *err)
{
    struct tensor host, saved;
    if (!t->trained) return MEOPT_OK;
    if (opt->options.dry) {
        point_forget(opt, t);
        return MEOPT_OK;
    }
    int status = tensor_hold(opt, t, PART_WEIGHTS | PART_STATE, &host, err);
    if (status) return status;
    saved = host;
    point_open(t, &saved);
    uint32_t crc[2];
    point_crc(&host, crc);
    if (memcmp(crc, t->point_crc, sizeof crc) == 0) point_copy(&host, &saved);
    else { /* the caller wrote values, which are x: y = x + (1 / beta1 - 1) d */
        if (host.copy || crc[1] == t->point_crc[1]) weights_accept(&host);
        move_weights(opt, &host, &host, -point_factor(opt, t));
    }
    status = tensor_release(opt, t, &host, true, err);
    if (!status) point_forget(opt, t);
    return status;
}

int meopt_average_shared(struct meopt *opt, size_t tensor, struct meopt_error *err)
{
    struct tensor host;
    OPTIM_ENTER(opt);
    if (!opt || tensor >= opt->count || opt->options.dry || !opt->tensors[tensor].shares ||
        opt->tensors[tensor].copy || !RULE_HAS(opt->options.rule, WITH_POINTS))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "no optimizer of schedule_free, a dry one, or no tensor %zu with "
                          "MEOPT_SHARED_MEMORY, without a copy, in it",
                          tensor);
    const struct tensor *t = &opt->tensors[tensor];
    int status = optim_between_steps(opt, err);
    if (!status) status = optim_at_training(opt, err);
    if (status || !t->layout.count) return status;
    size_t bytes = t->layout.residual_bytes;
    void *residual = bytes ? malloc(bytes) : NULL; /* that of y stays */
    if (bytes && !residual)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for a copy of %.100s", t->name);
    status = tensor_hold(opt, t, PART_WEIGHTS | PART_STATE, &host, err);
    if (!status) {
        struct tensor average = host;
        average.correction = residual;
        move_weights(opt, &host, &average, point_factor(opt, t));
        status = tensor_release(opt, t, &host, true, err);
    }
    free(residual);
    return status;
}

int meopt_set_point(struct meopt *opt, enum meopt_point point, struct meopt_error *err)
{
    if (!opt || (point != MEOPT_POINT_TRAIN && point != MEOPT_POINT_EVAL))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, or point %d", (int)point);
    OPTIM_ENTER(opt);
    int status = optim_between_steps(opt, err);
    if (status || !RULE_HAS(opt->options.rule, WITH_POINTS)) return status;
    bool evaluate = point == MEOPT_POINT_EVAL;
    for (size_t i = 0; i < opt->count && !status; i++)
        status = (evaluate ? to_evaluation : to_training)(opt, &opt->tensors[i], err);
    if (!status) opt->evaluating = evaluate;
    else if (status == MEOPT_NO_MEMORY && evaluate && !opt->evaluating)
        for (size_t i = 0; i < opt->count; i++) to_training(opt, &opt->tensors[i], NULL);
    return status;
}

int meopt_export_point(const struct meopt *opt, size_t tensor, enum meopt_point point, int64_t first,
                       int64_t count, float *values, struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    int status = optim_range_check(opt, tensor, first, count, values, err);
    if (status || !count) return status;
    const struct tensor *t = &opt->tensors[tensor];
    bool average = point == MEOPT_POINT_EVAL && RULE_HAS(opt->options.rule, WITH_POINTS);
    struct tensor weights, state;
    if ((status = trained_hold(opt, t, &weights, err))) return status;
    status = average ? tensor_hold(opt, t, PART_STATE, &state, err) : MEOPT_OK;
    if (status) {
        trained_release(opt, t, &weights, NULL);
        return status;
    }
    struct optim_task source = task_of(opt, &weights), difference = task_of(opt, average ? &state : t);
    for (int64_t at = 0; at < count; at += OPTIM_GROUP) {
        float some[OPTIM_GROUP];
        int64_t group = (first + at) / OPTIM_GROUP;
        opt->kernels->weights_out(&source, group, group + 1, some);
        if (average) add_difference(opt, &difference, group, 1, point_factor(opt, t), some);
        memcpy(values + at, some,
               (size_t)(count - at < OPTIM_GROUP ? count - at : OPTIM_GROUP) * sizeof *some);
    }
    if (average) status = tensor_release(opt, t, &state, false, err);
    int released = trained_release(opt, t, &weights, status ? NULL : err);
    return status ? status : released;
}

int meopt_average_sums(struct meopt *opt, size_t tensor, const double set[2], double get[2],
                       struct meopt_error *err)
{
    bool good = !set || (isfinite(set[0]) && set[0] >= 0 && isfinite(set[1]) && set[1] >= 0);
    if (!opt || tensor >= opt->count || !good || !RULE_HAS(opt->options.rule, WITH_POINTS))
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "no optimizer of schedule_free, no tensor %zu in it, or a negative or infinite value", tensor);
    struct averaging *now = &opt->tensors[tensor].averaging;
    if (get) memcpy(get, (double[]){now->weight_sum, now->lr_max}, 2 * sizeof *get);
    int status = set ? optim_between_steps(opt, err) : MEOPT_OK;
    if (set && !status) *now = (struct averaging){set[0], set[1]};
    return status;
}
