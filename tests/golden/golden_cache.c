/* Generation with kept keys and values: the logits of tokens that are computed a few at a time are those of
 * the whole sample, for every language model in tests/data. On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "core/nn/tower.h"
#include "tests/golden/golden.h"

#include <stdio.h>

enum { CONTEXT = 24 };

/* Returns the logits (CONTEXT, V) of the tokens. `begins`: the first token of each pass, then -1. */
static double *logits_of(const char *dir, enum dtype type, const int32_t *tokens, const int *begins,
                         int64_t *count)
{
    struct error err = {0};
    struct weights *file = golden_open("language", dir, "model.safetensors");
    struct model_shape shape = {.context = CONTEXT};
    struct tower_options options = {.batch = 1,
                                    .compute = type,
                                    .weight_type = type,
                                    .cache = begins[1] >= 0,
                                    .loss_chunk = 1,
                                    .weights_class = MEMORY_WEIGHTS,
                                    .activations_class = MEMORY_ACTIVATIONS};
    struct tower *t;
    struct device *device;
    const char *name = getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
    if (device_open(&device, name, 0, &err) || model_shape_infer(&shape, file, 0, &err) ||
        tower_create(&t, device, &shape, &options, &err) || tower_load(t, file, NULL, NULL, &err))
        fail_msg("%s: %s", dir, err.what);
    *count = CONTEXT * t->out_width;
    int32_t *input = device_alloc(device, MEMORY_DATA, CONTEXT * sizeof *input, "tokens", &err);
    float *logits = device_alloc(device, MEMORY_WORKSPACE, (size_t)*count * sizeof *logits, "logits", &err);
    tower_bind_scratch(t, device_alloc(device, MEMORY_WORKSPACE, t->scratch_bytes, "scratch", &err));
    for (; *begins >= 0; begins++) {
        int64_t rows[CONTEXT], first = *begins, end = begins[1] < 0 ? CONTEXT : begins[1];
        device->upload(device, input, tokens + first, (size_t)(end - first) * sizeof *tokens);
        struct batch batch = {.input = input, .count = 1};
        if (options.cache) batch.first = first, batch.rows = end - first;
        tower_forward(t, &batch);
        for (int64_t i = 0; i < end - first; i++) rows[i] = i;
        tower_logits(t, rows, end - first, logits + first * t->out_width);
    }
    double *values = device_values(device, logits, DTYPE_F32, *count);
    assert_int_equal(device_check(device, &err), 0);
    tower_close(t);
    device_close(device);
    weights_close(file);
    return values;
}

/* fp32: both may be as far from transformers as golden_language allows. bf16: no farther from fp32 than the
 * whole sample in bf16 is, but for a different rounding. */
static void equals_the_whole(const char *dir)
{
    static const int once[] = {0, -1}, steps[] = {0, 7, 8, 9, 10, 15, 16, 17, 23, -1},
                     single[] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, -1};
    int32_t tokens[CONTEXT];
    int64_t n;
    for (int i = 0; i < CONTEXT; i++) tokens[i] = (7 * i * i + 3 * i + 5) % 90;
    double *want = logits_of(dir, DTYPE_F32, tokens, once, &n),
           *half = logits_of(dir, DTYPE_BF16, tokens, once, &n);
    double rounding = rel_l2(half, want, n);
    for (int i = 0; i < 2; i++) {
        double *whole = logits_of(dir, DTYPE_F32, tokens, i ? single : steps, &n),
               *cached = logits_of(dir, DTYPE_BF16, tokens, i ? single : steps, &n),
               error = rel_l2(whole, want, n), rounded = rel_l2(cached, want, n);
        printf("%-12s fp32 %.1e  bf16 %.1e, at once %.1e\n", dir, error, rounded, rounding);
        if (!(error <= 2e-5 && rounded <= 1.5 * rounding))
            fail_msg("%s: logits differ from those of the whole", dir);
        free(whole);
        free(cached);
    }
    free(want);
    free(half);
}

static void steps_equal_the_whole_sample(void **state) { golden_each("language", equals_the_whole); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_equal_the_whole_sample)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
