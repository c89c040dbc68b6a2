/* Export and import of the student's exact parameter values: see trainer.h. */
#include "core/train/train_internal.h"
#include "core/train/weight_stream.h"

/* Loads the group of a parameter into its buffer if weights are streamed. */
static int load_group(const struct trainer *t, int parameter, struct error *err)
{
    return t->student_stream
               ? weight_stream_fetch(t->student_stream, t->student->parameters[parameter].group, -1, err)
               : 0;
}

int trainer_set_values(void *context, int index, const float *values, struct error *err)
{
    struct trainer *t = context;
    struct meopt_error library = {0};
    int64_t first, count;
    if (t->tensor_of[index] < 0) return 0;
    int code = load_group(t, index, err);
    if (code) return code;
    dp_part(t, index, &first, &count);
    if (t->student_stream) weight_stream_mark_dirty(t->student_stream, t->student->parameters[index].group);
    if (meopt_import(t->opt, (size_t)t->tensor_of[index], 0, count, values + first, &library) == 0) return 0;
    code = trainer_library_error(&library, err);
    error_at(err, t->config->model_s.weight, 0, 0);
    return code;
}

/* Copies this rank's part to its offset in out. */
static int export_part(const struct trainer *t, int parameter, float *out, struct error *err)
{
    struct meopt_error library = {0};
    int64_t first, count;
    int code = load_group(t, parameter, err);
    if (code) return code;
    dp_part(t, parameter, &first, &count);
    int status = meopt_export(t->opt, (size_t)t->tensor_of[parameter], 0, count, out + first, &library);
    return status ? trainer_library_error(&library, err) : 0;
}

int trainer_export(const struct trainer *t, int parameter, float *out, struct error *err)
{
    const struct parameter *p = &t->student->parameters[parameter];
    struct error own = {0};
    if (t->tensor_of[parameter] < 0) {
        t->device->sync(t->device);
        t->device->download(t->device, out, p->weight, (size_t)p->count * sizeof(float));
        return 0;
    }
    int code = export_part(t, parameter, out, &own);
    if (dp_sharded(t))
        code = comm_agree((struct comm *)(uintptr_t)&t->ranks, code, &own, "cannot read its part of a tensor",
                          err);
    else if (code && err) *err = own;
    return code ? code : dp_gather_values(t, parameter, out, err);
}

int trainer_import(struct trainer *t, int parameter, const float *values, struct error *err)
{
    const struct parameter *p = &t->student->parameters[parameter];
    if (t->tensor_of[parameter] >= 0) return trainer_set_values(t, parameter, values, err);
    t->device->upload(t->device, p->weight, values, (size_t)p->count * sizeof(float));
    return 0;
}
