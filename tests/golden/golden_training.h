/* What the tests of training steps have in common: values of parameters from a golden file, errors of
 * gradients, and AdamW with the hyper-parameters of tests/make. */
#ifndef MEOPT_TESTS_GOLDEN_GOLDEN_TRAINING_H
#define MEOPT_TESTS_GOLDEN_GOLDEN_TRAINING_H

#include "core/meopt.h"
#include "tests/golden/golden.h"

/* Values by parameter of a tower, in host memory; NULL: not read yet. */
struct reference {
    const struct tower *tower;
    float **values;
};

static inline struct reference reference_of(const struct tower *tower)
{
    return (struct reference){tower, xcalloc((size_t)tower->parameter_count, sizeof(float *))};
}

static inline void reference_free(struct reference *r)
{
    for (int i = 0; i < r->tower->parameter_count; i++) free(r->values[i]);
    free(r->values);
}

static inline int reference_set(void *context, int index, const float *values, struct error *err)
{
    struct reference *r = context;
    size_t bytes = (size_t)r->tower->parameters[index].count * sizeof *values;
    (void)err;
    r->values[index] = xrealloc(r->values[index], bytes);
    memcpy(r->values[index], values, bytes);
    return 0;
}

/* Reads a file that has values under the model's keys, through a second tower. */
static inline void reference_read(struct reference *r, const char *folder, const char *dir, const char *name)
{
    struct error err = {0};
    struct weights *file = golden_open(folder, dir, name);
    struct tower_options options = {.batch = 1,
                                    .compute = DTYPE_F32,
                                    .weight_type = DTYPE_F32,
                                    .outputs = r->tower->options.outputs,
                                    .weights_class = MEMORY_TEACHER,
                                    .activations_class = MEMORY_TEACHER};
    struct tower *tower;
    if (tower_create(&tower, r->tower->device, &r->tower->model_shape, &options, &err) ||
        tower_load(tower, file, reference_set, r, &err))
        fail_msg("%s: %s", dir, err.what);
    tower_close(tower);
    weights_close(file);
}

static inline int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Returns the worst relative error of a gradient of the tower, its parameter's name, and the median (or
 * NULL). */
static inline double gradient_error(const struct reference *r, double *median, const char **worst_name)
{
    double worst = 0, *all = xcalloc((size_t)r->tower->parameter_count, sizeof *all);
    int count = 0;
    for (int i = 0; i < r->tower->parameter_count; i++) {
        const struct parameter *p = &r->tower->parameters[i];
        if (!p->trained) continue;
        double *grad = device_values(r->tower->device, p->grad, p->grad_type, p->count),
               *reference = xmalloc((size_t)p->count * sizeof *reference);
        assert_non_null(r->values[i]);
        for (int64_t k = 0; k < p->count; k++) reference[k] = (double)r->values[i][k];
        double error = all[count++] = rel_l2(grad, reference, p->count);
        if (!(error <= worst)) {
            worst = error;
            *worst_name = p->name;
        }
        free(grad);
        free(reference);
    }
    qsort(all, (size_t)count, sizeof *all, by_value);
    if (median) *median = all[count / 2];
    free(all);
    return worst;
}

struct adamw {
    struct meopt *opt;
    struct parameter **trained; /* in the optimizer's order */
    size_t count;
};

static inline void adamw_open(struct adamw *o, struct tower *tower)
{
    struct meopt_error library = {0};
    struct meopt_options options;
    meopt_options_init(&options, sizeof options, MEOPT_APADAMW);
    options.beta1 = 0.9;
    options.beta2 = 0.95;
    options.eps = 1e-8;
    options.weight_decay = 0.05;
    options.device = (struct meopt_device *)tower->device;
    struct meopt_tensor *table = xcalloc((size_t)tower->parameter_count, sizeof *table);
    *o = (struct adamw){.trained = xcalloc((size_t)tower->parameter_count, sizeof *o->trained)};
    for (int i = 0; i < tower->parameter_count; i++) {
        struct parameter *p = &tower->parameters[i];
        if (!p->trained) continue;
        table[o->count] = (struct meopt_tensor){
            .name = p->name, .ndim = p->ndim, .flags = p->decay ? 0 : MEOPT_NO_DECAY, .weights = p->weight};
        memcpy(table[o->count].shape, p->shape, sizeof p->shape);
        o->trained[o->count++] = p;
    }
    if (meopt_create(&o->opt, &options, table, o->count, &library)) fail_msg("%s", library.message);
    free(table);
}

static inline void adamw_step(struct adamw *o, int64_t number)
{
    struct meopt_error library = {0};
    int failed = meopt_step_begin(o->opt, number, 1e-3, 0, &library);
    for (size_t i = 0; i < o->count && !failed; i++)
        failed = meopt_step_tensor(o->opt, i, o->trained[i]->grad, MEOPT_F32, 1, &library);
    if (failed || meopt_step_end(o->opt, NULL, &library)) fail_msg("%s", library.message);
}

static inline void adamw_close(struct adamw *o)
{
    meopt_destroy(o->opt);
    free(o->trained);
}

#endif
