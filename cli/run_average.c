/* The average of a run's weights: see run_average.h. */
#include "cli/run_average.h"
#include "core/base/memory.h"
#include "core/meopt.h"

#include <stdlib.h>
#include <string.h>

/* ---- one at a time ---- */

struct reading {
    const struct checkpoint *checkpoint;
    const json_t *names; /* of the tensors, in the order of the records */
    uint8_t *seen;       /* (tensors of the model) */
    int (*take)(void *context, int64_t tensor, float *values, struct error *err);
    void *context;
};

/* Takes the average from a tensor's record, whose parts come from different ranks. */
static int take_record(void *context, int64_t index, const void *const *parts, const size_t *bytes,
                       struct error *err)
{
    struct reading *r = context;
    const char *name = json_string_value(json_array_get(r->names, (size_t)index));
    int64_t at = name ? weights_find(r->checkpoint->model, name) : -1;
    if (at < 0 || r->seen[at]++)
        return error_set(err, EXIT_INTEGRITY, NULL,
                         "the manifest names an average without a tensor, or twice");
    int64_t count = weights_tensor(r->checkpoint->model, at)->count;
    size_t writers = (size_t)r->checkpoint->writers, whole = bytes[0];
    struct meopt_error library = {0};
    void *joined = NULL;
    const void *record = parts[0];
    int status = MEOPT_OK;
    if (writers > 1) {
        status = meopt_state_join(parts, bytes, writers, NULL, &whole, &library);
        record = joined = status ? NULL : xmalloc(whole);
        if (!status) status = meopt_state_join(parts, bytes, writers, joined, &whole, &library);
    }
    float *values = xmalloc((size_t)count * sizeof *values + 1);
    if (!status) status = meopt_state_average(record, whole, values, count, &library);
    free(joined);
    if (!status) return r->take(r->context, at, values, err);
    free(values);
    return error_set(err, EXIT_INTEGRITY, NULL, "average of %.100s: %s", name, library.message);
}

int run_average_each(const struct checkpoint *c,
                     int (*take)(void *context, int64_t tensor, float *values, struct error *err),
                     void *context, struct error *err)
{
    struct reading r = {c, json_object_get(c->manifest, "averaged"), NULL, take, context};
    if (!json_is_array(r.names)) {
        int code = error_set(err, EXIT_CONFIG, "train with train.ema",
                             "the checkpoint of step %lld has no average of the weights", (long long)c->step);
        error_at(err, c->directory, 0, 0);
        return code;
    }
    r.seen = xcalloc((size_t)weights_count(c->model) + 1, 1);
    int code = checkpoint_records(c, (int64_t)json_array_size(r.names), NULL, take_record, &r, err);
    free(r.seen);
    return code;
}

/* ---- as a model ---- */

struct averages {
    const struct weights *model; /* the checkpoint's */
    float **values;              /* by index in it; NULL: no average */
    struct averaged_tensor *tensors;
};
struct averaged_tensor {
    const struct averages *all;
    int64_t index;
};

static int read_tensor(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    const struct averaged_tensor *t = context;
    const float *values = t->all->values[t->index];
    if (!values) return weights_read(t->all->model, t->index, dst, DTYPE_F32, err);
    memcpy(dst, (const char *)values + offset, bytes);
    return 0;
}

static int keep_values(void *context, int64_t tensor, float *values, struct error *err)
{
    struct averages *a = context;
    (void)err;
    a->values[tensor] = values;
    return 0;
}

static void close_averages(void *context)
{
    struct averages *a = context;
    for (int64_t i = 0; i < weights_count(a->model); i++) free(a->values[i]);
    free(a->values);
    free(a->tensors);
    free(a);
}

int run_average_open(struct weights **average, const struct checkpoint *c, struct error *err)
{
    int64_t count = weights_count(c->model);
    struct averages *a = xcalloc(1, sizeof *a);
    *a = (struct averages){c->model, xcalloc((size_t)count + 1, sizeof *a->values),
                           xcalloc((size_t)count + 1, sizeof *a->tensors)};
    int code = run_average_each(c, keep_values, a, err);
    if (code) {
        close_averages(a);
        return code;
    }
    struct weights_row *rows = xcalloc((size_t)count + 1, sizeof *rows);
    for (int64_t i = 0; i < count; i++) {
        const struct weights_tensor *t = weights_tensor(c->model, i);
        a->tensors[i] = (struct averaged_tensor){a, i};
        rows[i] = (struct weights_row){.name = t->name,
                                       .dtype = DTYPE_F32,
                                       .ndim = t->ndim,
                                       .read = read_tensor,
                                       .context = &a->tensors[i]};
        memcpy(rows[i].shape, t->shape, sizeof rows[i].shape);
    }
    code = weights_open_rows(average, weights_path(c->model), rows, count, close_averages, a, err);
    free(rows);
    return code;
}
