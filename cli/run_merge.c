/* A model with its adapters merged: see run_merge.h. */
#include "cli/run_merge.h"
#include "core/base/memory.h"
#include "core/nn/tower.h"
#include "core/experiment/adapters.h"

#include <stdlib.h>
#include <string.h>

struct merging {
    struct device *dry;
    struct tower *tower; /* on the dry device: shapes alone */
    const struct weights *base;
    struct merged_tensor *tensors; /* by parameter */
    float **adapters;              /* by parameter */
    float *values;                 /* of parameter `held` */
    int held;
};
struct merged_tensor {
    struct merging *all;
    int index;
};

static int keep_adapter(void *context, int index, const float *values, struct error *err)
{
    struct merging *m = context;
    size_t bytes = (size_t)m->tower->parameters[index].count * sizeof *values;
    (void)err;
    m->adapters[index] = xmalloc(bytes);
    memcpy(m->adapters[index], values, bytes);
    return 0;
}

/* W (out, in) += s B (out, r) A (r, in), for the rows of a pair. */
static void add_pair(const struct merging *m, const struct lora_pair *pair, float *w)
{
    const struct tower *t = m->tower;
    int64_t out = pair->b->shape[0], r = pair->b->shape[1], in = pair->a->shape[1];
    const float *a = m->adapters[pair->a - t->parameters], *b = m->adapters[pair->b - t->parameters];
    double scale = (double)t->options.lora.scale;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < out; i++) {
        float *row = w + (pair->first + i) * in;
        for (int64_t k = 0; k < in; k++) {
            double sum = 0;
            for (int64_t j = 0; j < r; j++) sum += (double)b[i * r + j] * (double)a[j * in + k];
            row[k] = (float)((double)row[k] + scale * sum);
        }
    }
}

static int read_tensor(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    const struct merged_tensor *tensor = context;
    struct merging *m = tensor->all;
    const struct parameter *p = &m->tower->parameters[tensor->index];
    if (m->held != tensor->index) {
        m->values = xrealloc(m->values, (size_t)p->count * sizeof *m->values);
        m->held = -1;
        const float *head = m->adapters[tensor->index];
        int code = head ? 0 : tower_read(m->tower, m->base, tensor->index, m->values, err);
        if (code) return code;
        if (head) memcpy(m->values, head, (size_t)p->count * sizeof *head);
        for (int i = 0; i < p->pair_count; i++) add_pair(m, &p->pairs[i], m->values);
        m->held = tensor->index;
    }
    memcpy(dst, (const char *)m->values + offset, bytes);
    return 0;
}

static void close_merging(void *context)
{
    struct merging *m = context;
    for (int i = 0; m->adapters && i < m->tower->parameter_count; i++) free(m->adapters[i]);
    free(m->adapters);
    free(m->tensors);
    free(m->values);
    tower_close(m->tower);
    if (m->dry) device_close(m->dry);
    free(m);
}

static int open_rows(struct weights **merged, struct merging *m, struct error *err)
{
    const struct tower *t = m->tower;
    struct weights_row *rows = xcalloc((size_t)t->parameter_count, sizeof *rows);
    m->tensors = xcalloc((size_t)t->parameter_count, sizeof *m->tensors);
    int64_t count = 0;
    for (int i = 0; i < t->parameter_count; i++) {
        const struct parameter *p = &t->parameters[i];
        if (p->adapter) continue;
        m->tensors[i] = (struct merged_tensor){m, i};
        rows[count] = (struct weights_row){
            .name = xasprintf("%s%s", p->head ? "" : family_prefix(t->model_shape.family), p->name),
            .dtype = DTYPE_F32,
            .ndim = p->ndim,
            .read = read_tensor,
            .context = &m->tensors[i]};
        for (int d = 0; d < p->ndim; d++) rows[count].shape[d] = p->shape[d];
        count++;
    }
    int code = weights_open_rows(merged, weights_path(m->base), rows, count, close_merging, m, err);
    for (int64_t i = 0; i < count; i++) free((void *)(uintptr_t)rows[i].name);
    free(rows);
    return code;
}

static int64_t width_of(const struct weights *weights, int64_t tensor)
{
    return tensor < 0 ? 0 : weights_tensor(weights, tensor)->shape[0];
}

int run_merge_open(struct weights **merged, const struct config *config, const struct model_shape *g,
                   const struct weights *base, const struct weights *adapters, struct error *err)
{
    struct merging *m = xcalloc(1, sizeof *m);
    struct tower_options options = {.batch = 1, .compute = DTYPE_F32, .weight_type = DTYPE_F32};
    int64_t head = weights_find(adapters, HEAD_KEY "weight"),
            last = weights_find(adapters, HEAD_KEY "fc2.weight"),
            hidden = weights_find(adapters, HEAD_KEY "fc1.weight");
    m->base = base;
    m->held = -1;
    if (head >= 0)
        options.outputs.of[0] = (struct output){.head = HEAD_LINEAR, .width = width_of(adapters, head)};
    else if (last >= 0)
        options.outputs.of[0] = (struct output){
            .head = HEAD_MLP, .width = width_of(adapters, last), .hidden = width_of(adapters, hidden)};
    options.outputs.count = head >= 0 || last >= 0;
    int code = adapters_options(config, g, &options.lora, err);
    if (!code) code = device_open(&m->dry, "dry", 0, err);
    if (!code) code = tower_create(&m->tower, m->dry, g, &options, err);
    if (!code) {
        m->adapters = xcalloc((size_t)m->tower->parameter_count, sizeof *m->adapters);
        code = tower_load_adapters(m->tower, adapters, keep_adapter, m, err);
    }
    if (!code) return open_rows(merged, m, err);
    close_merging(m);
    return code;
}
