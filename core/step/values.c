/* Export and import of the student's exact parameter values: see trainer.h. */
#include "core/step/step.h"
#include "core/step/weight_stream.h"

#include <stdlib.h>

/* Loads the group of a parameter into its buffer if weights are streamed. */
static int load_group(const struct trainer *t, int parameter, struct error *err)
{
    return t->student_stream && !t->student->parameters[parameter].resident
               ? weight_stream_fetch(t->student_stream, t->student->parameters[parameter].group, -1, err)
               : 0;
}

int trainer_hold_trained(const struct trainer *t, int parameter, bool changed, struct error *err)
{
    const struct parameter *p = &t->student->parameters[parameter];
    if (!RULE_HAS(t->config->optim.name, WITH_POINTS)) return 0;
    int code = load_group(t, parameter, err);
    if (!code && changed && t->student_stream && !p->resident)
        weight_stream_mark_dirty(t->student_stream, p->group);
    return code;
}

/* Sets a parameter that the optimizer does not have, in its format. Only this rank's part if the weights are
 * sharded. */
static int set_frozen(struct trainer *t, int index, const float *values, struct error *err)
{
    const struct parameter *p = &t->student->parameters[index];
    int64_t first, count;
    if (t->student_stream && !p->resident) return weight_stream_write(t->student_stream, index, values, err);
    dp_part(t, index, &first, &count);
    size_t bytes = (size_t)count * dtype_bytes(p->weight_type);
    void *stored = malloc(bytes ? bytes : 1);
    if (!stored) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %zu bytes of weights", bytes);
    weights_convert(stored, p->weight_type, values + first, DTYPE_F32, count);
    t->device->upload(t->device, dp_weights(t, index), stored, bytes);
    free(stored);
    return 0;
}

/* Copies `count` values from `first` on of this rank's part of such a parameter. */
static int export_frozen(const struct trainer *t, int index, int64_t first, int64_t count, float *out,
                         struct error *err)
{
    const struct parameter *p = &t->student->parameters[index];
    bool streamed = t->student_stream && !p->resident;
    size_t item = dtype_bytes(p->weight_type), bytes = (size_t)(streamed ? p->count : count) * item;
    const char *from = dp_weights(t, index);
    int code = 0;
    char *stored = malloc(bytes ? bytes : 1);
    if (!stored) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %zu bytes of weights", bytes);
    t->device->sync(t->device);
    if (streamed) code = weight_stream_read(t->student_stream, index, stored, err);
    else t->device->download(t->device, stored, from + (size_t)first * item, bytes);
    if (!code)
        weights_convert(out, DTYPE_F32, stored + (streamed ? (size_t)first * item : 0), p->weight_type,
                        count);
    free(stored);
    return code;
}

int trainer_set_values(void *context, int index, const float *values, struct error *err)
{
    struct trainer *t = context;
    const struct parameter *p = &t->student->parameters[index];
    struct meopt_error library = {0};
    int64_t first, count;
    if (t->evaluates ? !p->trained : t->tensors.of[index] < 0) return set_frozen(t, index, values, err);
    int code = load_group(t, index, err);
    if (code) return code;
    dp_part(t, index, &first, &count);
    if (t->student_stream && !p->resident) weight_stream_mark_dirty(t->student_stream, p->group);
    if (t->evaluates) code = optimizer_round_values(t, index, values, err);
    else if (meopt_import(t->opt, (size_t)t->tensors.of[index], 0, count, values + first, &library))
        code = trainer_library_error(&library, err);
    if (!code) return 0;
    error_at(err, t->config->model_s.weight, 0, 0);
    return code;
}

int trainer_export_range(const struct trainer *t, int parameter, int64_t first, int64_t count, float *out,
                         struct error *err)
{
    struct meopt_error library = {0};
    if (t->tensors.of[parameter] < 0) return export_frozen(t, parameter, first, count, out, err);
    int code = load_group(t, parameter, err);
    if (code) return code;
    return meopt_export_point(t->opt, (size_t)t->tensors.of[parameter], MEOPT_POINT_EVAL, first, count, out,
                              &library)
               ? trainer_library_error(&library, err)
               : 0;
}

int trainer_export(const struct trainer *t, int parameter, float *out, struct error *err)
{
    struct error own = {0};
    int64_t first, count;
    dp_part(t, parameter, &first, &count);
    int code = trainer_export_range(t, parameter, 0, count, out + first, &own);
    if (dp_sharded(t))
        code = comm_agree((struct comm *)(uintptr_t)&t->ranks, code, &own, "cannot read its part of a tensor",
                          err);
    else if (code && err) *err = own;
    return code ? code : dp_gather_values(t, parameter, out, err);
}

/* Stores the averages of a group's weights next to them. */
static int average_group(struct trainer *t, int group, struct error *err)
{
    struct meopt_error library = {0};
    bool loaded = false;
    int code = 0;
    for (int i = 0; i < t->student->parameter_count && !code; i++) {
        const struct parameter *p = &t->student->parameters[i];
        if (p->group != group || p->resident || t->tensors.of[i] < 0) continue;
        if (!loaded) code = load_group(t, i, err);
        loaded = true;
        if (!code && meopt_average_shared(t->opt, (size_t)t->tensors.of[i], &library))
            code = trainer_library_error(&library, err);
    }
    return code || !loaded ? code : weight_stream_keep_average(t->student_stream, group, err);
}

/* Moves streamed weights to a point: the averages are computed group by group, and loaded from then on. */
static int move_streamed(struct trainer *t, enum meopt_point point, struct error *err)
{
    int code = weight_stream_select(t->student_stream, false, err);
    if (point == MEOPT_POINT_TRAIN) return code;
    for (int group = 0; group < t->student->group_count && !code; group++)
        code = average_group(t, group, err);
    return code ? code : weight_stream_select(t->student_stream, true, err);
}

int trainer_set_point(struct trainer *t, enum meopt_point point, struct error *err)
{
    if (!t->opt || !RULE_HAS(t->config->optim.name, WITH_POINTS)) return 0;
    struct error own = {0};
    struct meopt_error library = {0};
    int code = t->student_stream ? move_streamed(t, point, &own) : 0;
    if (!code && meopt_set_point(t->opt, point, &library)) code = trainer_library_error(&library, &own);
    code = comm_agree(&t->ranks, code, &own, "cannot move its weights", err);
    return code ? code : dp_gather_weights(t, err);
}

bool trainer_moves_points(const struct trainer *t)
{
    const struct config *c = t->config;
    bool evaluates = c->data.val[0] && (c->train.eval_every > 0 || c->train.eval_steps > 0);
    return !t->evaluates && evaluates && RULE_HAS(c->optim.name, WITH_POINTS);
}

int trainer_reserve_points(struct trainer *t, struct error *err)
{
    struct meopt_error library = {0};
    if (!t->opt || !trainer_moves_points(t)) return 0;
    int status = meopt_set_point(t->opt, MEOPT_POINT_EVAL, &library);
    if (!status) status = meopt_set_point(t->opt, MEOPT_POINT_TRAIN, &library);
    return status ? trainer_library_error(&library, err) : 0;
}

int trainer_import(struct trainer *t, int parameter, const float *values, struct error *err)
{
    return trainer_set_values(t, parameter, values, err);
}
