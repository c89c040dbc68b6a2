/* A decoder language model of tests/data/language with one batch of a golden file: what its tests have in
 * common. On a card: MEOPT_TEST_DEVICE=hip:0. */
#ifndef MEOPT_TESTS_GOLDEN_LANGUAGE_SUBJECT_H
#define MEOPT_TESTS_GOLDEN_LANGUAGE_SUBJECT_H

#include "core/nn/tower.h"
#include "tests/golden/golden_training.h"

enum { STEPS = 6, MOST = 256 }; /* rows */

struct subject {
    struct device *device;
    struct tower *tower;
    struct adamw adamw;
    int64_t batch, tokens;             /* B, N */
    int32_t input[MOST], labels[MOST]; /* host */
    int32_t *arrays;                   /* device: tokens, labels, begins, ends, order, MOST each */
    double *sums;                      /* loss, correct */
    float smoothing;                   /* of labels */
    struct reference reference;        /* gradients or weights */
};

static inline void read_rows(const struct weights *golden, const char *name, int32_t *to)
{
    struct error err = {0};
    int64_t at = weights_find(golden, name);
    assert_true(at >= 0 && weights_tensor(golden, at)->count <= MOST);
    assert_int_equal(weights_read(golden, at, to, DTYPE_I32, &err), 0);
}

static inline struct tower_options options_of(int64_t batch, enum dtype compute)
{
    return (struct tower_options){.batch = batch,
                                  .compute = compute,
                                  .weight_type = compute,
                                  .grad_type = DTYPE_F32,
                                  .gradients = GRADIENTS_KEEP,
                                  .weights_class = MEMORY_WEIGHTS,
                                  .activations_class = MEMORY_ACTIVATIONS};
}

/* The model is that of tests/data/language; `of`: the folder of tokens and labels. */
static inline void subject_open_in(struct subject *s, const char *of, const char *dir, int64_t context,
                                   const struct tower_options *options)
{
    struct error err = {0};
    struct weights *file = golden_open("language", dir, "model.safetensors"),
                   *golden = golden_open(of, dir, "golden.safetensors");
    const char *name = getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
    struct model_shape g = {.context = context};
    *s = (struct subject){.batch = options->batch, .tokens = context};
    if (device_open(&s->device, name, 0, &err)) fail_msg("%s", err.what);
    if (model_shape_infer(&g, file, 0, &err)) fail_msg("%s: %s", dir, err.what);
    if (tower_create(&s->tower, s->device, &g, options, &err) || tower_load(s->tower, file, NULL, NULL, &err))
        fail_msg("%s: %s", dir, err.what);
    assert_true(s->tower->owns_loss);
    tower_bind_scratch(s->tower,
                       device_alloc(s->device, MEMORY_WORKSPACE, s->tower->scratch_bytes, "scratch", &err));
    s->arrays = device_alloc(s->device, MEMORY_DATA, 5 * MOST * sizeof *s->arrays, "tokens", &err);
    s->sums = device_alloc(s->device, MEMORY_WORKSPACE, 2 * sizeof(double), "sums", &err);
    s->reference = reference_of(s->tower);
    for (int i = 0;
         i < s->tower->parameter_count && options->gradients != GRADIENTS_NONE && !options->lora.rank; i++)
        assert_int_equal(s->tower->parameters[i].trained, s->tower->parameters[i].group >= options->frozen);
    read_rows(golden, "tokens", s->input);
    read_rows(golden, "labels", s->labels);
    weights_close(file);
    weights_close(golden);
}

static inline void subject_open(struct subject *s, const char *dir, int64_t context,
                                const struct tower_options *options)
{
    subject_open_in(s, "language", dir, context, options);
}

static inline void subject_close(struct subject *s)
{
    reference_free(&s->reference);
    adamw_close(&s->adamw);
    tower_close(s->tower);
    device_close(s->device);
}

/* Sorts row numbers by token, stably. */
static inline void order_rows(const int32_t *tokens, int64_t count, int32_t *order)
{
    int64_t done = 0;
    for (int32_t token = 0; done < count; token++)
        for (int64_t i = 0; i < count; i++)
            if (tokens[i] == token) order[done++] = (int32_t)i;
}

/* Uploads samples [first, first + count), with the documents of `begins` and `ends` (hosts' rows) or NULL. */
static inline struct batch batch_of(struct subject *s, int64_t first, int64_t count, const int32_t *begins,
                                    const int32_t *ends, double units)
{
    int32_t order[MOST];
    int64_t from = first * s->tokens, rows = count * s->tokens;
    const int32_t *host[] = {s->input + from, s->labels + from, begins ? begins + from : NULL,
                             ends ? ends + from : NULL, order};
    order_rows(host[0], rows, order);
    for (int i = 0; i < 5; i++)
        if (host[i])
            s->device->upload(s->device, s->arrays + i * MOST, host[i], (size_t)rows * sizeof **host);
    return (struct batch){.input = s->arrays,
                          .count = count,
                          .labels = s->arrays + MOST,
                          .begins = begins ? s->arrays + 2 * MOST : NULL,
                          .ends = ends ? s->arrays + 3 * MOST : NULL,
                          .order = s->arrays + 4 * MOST,
                          .sums = s->sums,
                          .smoothing = s->smoothing,
                          .weight = (float)(1 / units)};
}

static inline double labelled(const struct subject *s)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->batch * s->tokens; i++) count += s->labels[i] >= 0;
    return (double)count;
}

static inline void clear_sums(struct subject *s)
{
    s->device->ops->fill(s->device, s->sums, 0, 2 * sizeof(double));
}

static inline void read_sums(struct subject *s, double sums[2])
{
    s->device->sync(s->device);
    s->device->download(s->device, sums, s->sums, 2 * sizeof(double));
}

/* Forward and backward of the whole batch in micro-batches; returns the loss. */
static inline double run(struct subject *s, int64_t micro, const int32_t *begins, const int32_t *ends,
                         double *correct)
{
    struct error err = {0};
    double units = labelled(s), sums[2];
    clear_sums(s);
    for (int64_t first = 0; first < s->batch; first += micro) {
        int64_t count = s->batch - first < micro ? s->batch - first : micro;
        struct batch batch = batch_of(s, first, count, begins, ends, units);
        tower_forward(s->tower, &batch);
        if (tower_backward(s->tower, &batch, NULL, first == 0, first + count == s->batch, NULL, NULL, &err))
            fail_msg("%s", err.what);
    }
    read_sums(s, sums);
    if (correct) *correct = sums[1];
    return sums[0];
}

static inline double logits_error(struct subject *s, const struct weights *golden)
{
    struct error err = {0};
    int64_t V = s->tower->out_width, rows[MOST], n;
    double *last = golden_tensor(golden, "last", &n);
    float *logits = device_alloc(s->device, MEMORY_WORKSPACE, (size_t)n * sizeof *logits, "logits", &err);
    for (int64_t i = 0; i < s->batch; i++) rows[i] = (i + 1) * s->tokens - 1;
    struct batch batch = batch_of(s, 0, s->batch, NULL, NULL, 1);
    tower_forward(s->tower, &batch);
    tower_logits(s->tower, rows, s->batch, logits);
    double *mine = device_values(s->device, logits, DTYPE_F32, n), error = rel_l2(mine, last, n);
    assert_int_equal(n, s->batch * V);
    free(mine);
    free(last);
    return error;
}

#endif
