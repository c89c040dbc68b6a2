/* Decoder language models against the classes of transformers: loss, accuracy, logits, every gradient, six
 * steps of torch.optim.AdamW. The files are those that transformers saves (tests/make/language.py). Also the
 * forms of one model among each other: recomputation, parts of the logits, micro-batches, packed documents.
 * On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "tests/golden/language_subject.h"

#include <stdio.h>

/* Returns the worst difference of a parameter. */
static double end_error(struct subject *s, const char **name)
{
    double worst = 0;
    for (int i = 0; i < s->tower->parameter_count; i++) {
        const struct parameter *p = &s->tower->parameters[i];
        double *mine = device_values(s->device, p->weight, DTYPE_F32, p->count);
        bool bias = strstr(p->name, "attn.bias") || strstr(p->name, "qkv_proj.bias");
        int64_t q = model_shape_attn_width(&s->tower->model_shape),
                k_end = (q + model_shape_qkv_width(&s->tower->model_shape)) / 2;
        for (int64_t k = 0; k < p->count;
             k++) { /* a key's bias has no gradient, and follows rounding noise */
            double error = fabs(mine[k] - (double)s->reference.values[i][k]);
            if ((bias && s->tower->family->rope == ROPE_NONE && k >= q && k < k_end) || error <= worst)
                continue;
            worst = error;
            *name = p->name;
        }
        free(mine);
    }
    return worst;
}

static void equals_transformers(const char *dir)
{
    struct subject s;
    struct tower_options options = options_of(3, DTYPE_F32);
    struct weights *golden = golden_open("language", dir, "golden.safetensors");
    double *loss = golden_tensor(golden, "loss", NULL), *correct = golden_tensor(golden, "correct", NULL);
    double worst = 0, gradients = 0, logits = 0, found_correct;
    const char *name = "", *moved = "";
    subject_open(&s, dir, 24, &options);
    adamw_open(&s.adamw, s.tower);
    logits = logits_error(&s, golden);
    for (int64_t i = 0; i < STEPS; i++) {
        double found = run(&s, s.batch, NULL, NULL, &found_correct);
        worst = fmax(worst, fabs(found - loss[i]) / loss[i]);
        if (i == 0) {
            assert_true(fabs(found_correct - correct[0]) < 0.5);
            reference_read(&s.reference, "language", dir, "gradient.safetensors");
            gradients = gradient_error(&s.reference, NULL, &name);
        }
        adamw_step(&s.adamw, i + 1);
    }
    reference_read(&s.reference, "language", dir, "final.safetensors");
    double end = end_error(&s, &moved);
    printf("%-12s logits %.1e loss %.1e gradients %.1e (%s) final %.1e (%s)\n", dir, logits, worst, gradients,
           name, end, moved);
    if (!(logits <= 1e-5 && worst <= 1e-6 && gradients <= 1e-5 && end <= 1e-5))
        fail_msg("%s: outside the fp32 tolerance", dir);
    subject_close(&s);
    weights_close(golden);
    free(loss);
    free(correct);
}

static void models_equal_transformers(void **state)
{
    (void)state;
    golden_each("language", equals_transformers);
}

/* No worse than 1.5 times what PyTorch's own bf16 shows on the same data. Its loss is one draw of an error
 * that may be small by chance. */
static void equals_in_bf16(const char *dir)
{
    struct subject s;
    struct tower_options options = options_of(3, DTYPE_BF16);
    struct weights *golden = golden_open("language", dir, "golden.safetensors");
    double *loss = golden_tensor(golden, "loss", NULL), *torch = golden_tensor(golden, "bf16", NULL), median;
    const char *name = "";
    options.grad_type = DTYPE_BF16;
    subject_open(&s, dir, 24, &options);
    double error = fabs(run(&s, s.batch, NULL, NULL, NULL) - loss[0]) / loss[0];
    reference_read(&s.reference, "language", dir, "gradient.safetensors");
    double worst = gradient_error(&s.reference, &median, &name);
    printf("%-12s bf16 / PyTorch's bf16: loss %.2f gradients %.2f (%s) median %.2f\n", dir, error / torch[0],
           worst / torch[1], name, median / torch[2]);
    if (!(error <= fmax(1.5 * torch[0], 1e-3) && worst <= 1.5 * torch[1] && median <= 1.5 * torch[2]))
        fail_msg("%s: worse than 1.5 x PyTorch's bf16", dir);
    subject_close(&s);
    weights_close(golden);
    free(loss);
    free(torch);
}

static void bf16_is_as_near_as_pytorch_s(void **state)
{
    (void)state;
    golden_each("language", equals_in_bf16);
}

/* Puts the tower's gradients into `reference`. */
static void take_gradients(struct subject *s, const struct subject *from)
{
    for (int i = 0; i < from->tower->parameter_count; i++) {
        const struct parameter *p = &from->tower->parameters[i];
        double *grad = device_values(from->device, p->grad, p->grad_type, p->count);
        s->reference.values[i] =
            xrealloc(s->reference.values[i], (size_t)p->count * sizeof **s->reference.values);
        for (int64_t k = 0; k < p->count; k++) s->reference.values[i][k] = (float)grad[k];
        free(grad);
    }
}

/* Compares the loss and every gradient of the model with other options, or in micro-batches, with the plain
 * model's. */
static void compare_forms(const char *dir, struct tower_options options, int64_t micro, double tolerance)
{
    struct subject plain, other;
    struct tower_options usual = options_of(3, options.compute);
    const char *name = "";
    usual.grad_type = options.grad_type;
    subject_open(&plain, dir, 24, &usual);
    subject_open(&other, dir, 24, &options);
    double loss = run(&plain, 3, NULL, NULL, NULL), found = run(&other, micro, NULL, NULL, NULL);
    take_gradients(&other, &plain);
    double worst = gradient_error(&other.reference, NULL, &name);
    if (!(fabs(found - loss) <= fmin(tolerance, 1e-6) * loss && worst <= tolerance))
        fail_msg("%s: loss %.9g, not %.9g; gradient of %s %.1e", dir, found, loss, name, worst);
    subject_close(&plain);
    subject_close(&other);
}

static void forms_agree(const char *dir)
{
    struct tower_options recomputed = options_of(3, DTYPE_F32), coded = options_of(3, DTYPE_BF16),
                         parts = options_of(3, DTYPE_F32), slabs = options_of(3, DTYPE_F32);
    recomputed.recompute = RECOMPUTE_BLOCK;
    compare_forms(dir, recomputed, 3, 0);
    coded.saved = SAVED_8BIT;
    compare_forms(dir, coded, 3, 3e-2);
    parts.loss_chunk = 20 * 128 * sizeof(float);
    compare_forms(dir, parts, 3, 1e-6);
    slabs.loss_chunk = 8 * 128 * sizeof(float);
    compare_forms(dir, slabs, 3, 1e-6);
    compare_forms(dir, options_of(3, DTYPE_F32), 1, 1e-6);
    compare_forms(dir, options_of(3, DTYPE_F32), 2, 1e-6);
}

static void other_forms_equal_the_plain_one(void **state)
{
    (void)state;
    golden_each("language", forms_agree);
}

/* cross_entropy(label_smoothing) of PyTorch, where labels are missing: in each form of the logits' parts. */
static void smoothed_labels_equal_pytorch_s(void **state)
{
    (void)state;
    static const int64_t rows[] = {72, 20, 8}; /* of logits: whole, rows, slabs */
    for (size_t i = 0; i < 12; i++) {
        const char *dir = i / 6 ? "qwen3" : "gpt2", *name = "";
        struct weights *golden = golden_open("language", dir, "golden.safetensors");
        struct tower_options options = options_of(3, DTYPE_F32);
        double *loss = golden_tensor(golden, "smoothed", NULL);
        struct subject s;
        assert_non_null(loss);
        options.loss_chunk = (size_t)rows[i % 3] * 128 * sizeof(float);
        subject_open(&s, dir, 24, &options);
        assert_int_equal(s.tower->memory->loss.form, i % 3);
        s.smoothing = 0.1f;
        reference_read(&s.reference, "language", dir, "smoothed.safetensors");
        double error = fabs(run(&s, i % 2 ? 3 : 1, NULL, NULL, NULL) - loss[0]) / loss[0],
               worst = gradient_error(&s.reference, NULL, &name);
        if (!(error <= 1e-6 && worst <= 1e-5))
            fail_msg("%s: smoothed loss %.1e, gradient of %s %.1e", dir, error, name, worst);
        subject_close(&s);
        weights_close(golden);
        free(loss);
    }
}

/* Documents of 7, 11 and 6 tokens in one sample: each as if it were a sample of its own, with nothing else in
 * it. */
static void packed_equals_separate(const char *dir)
{
    static const int64_t document[] = {0, 7, 18, 24};
    struct subject packed, one;
    struct tower_options options = options_of(3, DTYPE_F32);
    int32_t begins[MOST], ends[MOST];
    struct error err = {0};
    double units = 0, alone[2] = {0}, correct;
    const char *name = "";
    subject_open(&packed, dir, 24, &options);
    for (int64_t i = 0; i < 72; i++)
        for (int d = 0; d < 3; d++)
            if (i % 24 >= document[d] && i % 24 < document[d + 1]) {
                begins[i] = (int32_t)document[d];
                ends[i] = (int32_t)document[d + 1];
            }
    double loss = run(&packed, 3, begins, ends, &correct);
    units = labelled(&packed);
    /* the same as samples of a shorter context, whose gradients are added up */
    float **sum = xcalloc((size_t)packed.tower->parameter_count, sizeof *sum);
    for (int d = 0; d < 3; d++) {
        double sums[2];
        options.batch = 3;
        subject_open(&one, dir, document[d + 1] - document[d], &options);
        for (int64_t b = 0; b < 3; b++)
            for (int64_t i = 0; i < one.tokens; i++) {
                one.input[b * one.tokens + i] = packed.input[b * 24 + document[d] + i];
                one.labels[b * one.tokens + i] = packed.labels[b * 24 + document[d] + i];
            }
        clear_sums(&one);
        struct batch batch = batch_of(&one, 0, 3, NULL, NULL, units);
        tower_forward(one.tower, &batch);
        assert_int_equal(tower_backward(one.tower, &batch, NULL, true, true, NULL, NULL, &err), 0);
        read_sums(&one, sums);
        for (int k = 0; k < 2; k++) alone[k] += sums[k];
        take_gradients(&one, &one);
        for (int i = 0; i < one.tower->parameter_count; i++) {
            int64_t count = one.tower->parameters[i].count;
            if (!sum[i]) sum[i] = xcalloc((size_t)count, sizeof **sum);
            for (int64_t k = 0; k < count; k++) sum[i][k] += one.reference.values[i][k];
        }
        subject_close(&one);
    }
    for (int i = 0; i < packed.tower->parameter_count; i++) packed.reference.values[i] = sum[i];
    free(sum);
    double worst = gradient_error(&packed.reference, NULL, &name);
    if (!(fabs(loss - alone[0]) <= 1e-6 * loss && fabs(correct - alone[1]) < 0.5 && worst <= 1e-5))
        fail_msg("%s: packed loss %.9g, separate %.9g; gradient of %s %.1e", dir, loss, alone[0], name,
                 worst);
    subject_close(&packed);
}

static void packed_documents_equal_separate_ones(void **state)
{
    (void)state;
    golden_each("language", packed_equals_separate);
}

/* Padding at the end of samples: a document of its own without labels. It changes nothing. */
static void padding_changes_nothing(void **state)
{
    (void)state;
    struct subject s;
    struct tower_options options = options_of(3, DTYPE_F32);
    int32_t begins[MOST], ends[MOST];
    const char *name = "";
    subject_open(&s, "qwen3", 24, &options);
    for (int64_t i = 0; i < 72; i++) {
        bool padding = i % 24 >= 19;
        begins[i] = padding ? 19 : 0;
        ends[i] = padding ? 24 : 19;
        if (padding) s.labels[i] = -1;
    }
    double loss = run(&s, 3, begins, ends, NULL);
    take_gradients(&s, &s);
    for (int64_t i = 0; i < 72; i++)
        if (i % 24 >= 19) s.input[i] = (int32_t)(i % 5);
    double again = run(&s, 3, begins, ends, NULL);
    assert_true(fabs(loss - again) <= 0 && gradient_error(&s.reference, NULL, &name) <= 1e-6);
    subject_close(&s);
}

/* The gradient along a direction against the difference of two losses. */
static void gradient_is_that_of_the_loss(void **state)
{
    (void)state;
    struct subject s;
    struct tower_options options = options_of(3, DTYPE_F32);
    double slope = 0, loss[2];
    const double step_size = 2e-3;
    subject_open(&s, "qwen3-tied", 24, &options);
    run(&s, 3, NULL, NULL, NULL);
    take_gradients(&s, &s);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < s.tower->parameter_count; i++) {
            const struct parameter *p = &s.tower->parameters[i];
            double *w = device_values(s.device, p->weight, DTYPE_F32, p->count);
            float *moved = xmalloc((size_t)p->count * sizeof *moved);
            for (int64_t k = 0; k < p->count; k++) {
                double direction = cos(0.7 * (double)k + i);
                if (side == 0) slope += direction * (double)s.reference.values[i][k];
                moved[k] = (float)(w[k] + (side ? -2 : 1) * step_size * direction);
            }
            s.device->upload(s.device, p->weight, moved, (size_t)p->count * sizeof *moved);
            free(moved);
            free(w);
        }
        loss[side] = run(&s, 3, NULL, NULL, NULL);
    }
    double found = (loss[0] - loss[1]) / (2 * step_size);
    if (!(fabs(found - slope) <= 2e-3 * fabs(slope)))
        fail_msg("slope %.6g, of the losses %.6g", slope, found);
    subject_close(&s);
}

static void evaluation_is_the_training_loss(void **state)
{
    (void)state;
    struct subject s;
    struct tower_options options = options_of(3, DTYPE_F32);
    double correct, sums[2];
    subject_open(&s, "llama", 24, &options);
    double loss = run(&s, 3, NULL, NULL, &correct);
    subject_close(&s);
    options.gradients = GRADIENTS_NONE; /* only the current block's activations */
    options.loss_chunk = 8 * 128 * sizeof(float);
    subject_open(&s, "llama", 24, &options);
    clear_sums(&s);
    struct batch batch = batch_of(&s, 0, 3, NULL, NULL, labelled(&s));
    tower_forward(s.tower, &batch);
    tower_evaluate(s.tower, &batch);
    read_sums(&s, sums);
    assert_true(fabs(sums[0] - loss) <= 1e-6 * loss && fabs(sums[1] - correct) < 0.5);
    subject_close(&s);
}

/* With the first groups frozen, the others have the same gradients. */
static void frozen_groups_change_no_other_gradient(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2", "qwen3"};
    for (size_t m = 0; m < 2; m++) {
        struct subject all, part;
        struct tower_options options = options_of(3, DTYPE_F32);
        subject_open(&all, models[m], 24, &options);
        options.frozen = 2;
        subject_open(&part, models[m], 24, &options);
        double loss = run(&all, 3, NULL, NULL, NULL), found = run(&part, 3, NULL, NULL, NULL);
        assert_true(fabs(loss - found) <= 0);
        for (int i = 0; i < part.tower->parameter_count; i++) {
            const struct parameter *p = &part.tower->parameters[i], *q = &all.tower->parameters[i];
            assert_int_equal(p->trained, p->group >= 2);
            if (!p->trained) continue;
            double *mine = device_values(part.device, p->grad, DTYPE_F32, p->count),
                   *whole = device_values(all.device, q->grad, DTYPE_F32, q->count);
            assert_memory_equal(mine, whole, (size_t)p->count * sizeof *mine);
            free(mine);
            free(whole);
        }
        subject_close(&all);
        subject_close(&part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_equal_transformers),
                                       cmocka_unit_test(bf16_is_as_near_as_pytorch_s),
                                       cmocka_unit_test(other_forms_equal_the_plain_one),
                                       cmocka_unit_test(smoothed_labels_equal_pytorch_s),
                                       cmocka_unit_test(packed_documents_equal_separate_ones),
                                       cmocka_unit_test(padding_changes_nothing),
                                       cmocka_unit_test(gradient_is_that_of_the_loss),
                                       cmocka_unit_test(evaluation_is_the_training_loss),
                                       cmocka_unit_test(frozen_groups_change_no_other_gradient)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
