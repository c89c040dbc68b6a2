/* Decoder language models against the classes of transformers: loss, accuracy, logits, every gradient, six
 * steps of torch.optim.AdamW. The files are those that transformers saves (tests/make/language.py). Also the
 * forms of one model among each other: recomputation, parts of the logits, micro-batches, packed documents.
 * On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "tests/golden/language_subject.h"

static const struct golden_model language = {
    .folder = "language", .parts = 20, .slabs = 8, .on_card = {"gpt2", "qwen3"}};

GOLDEN_TEST(models_equal_transformers) { each_of(&language, equals_original); }
GOLDEN_TEST(bf16_is_as_near_as_pytorch_s)
{
    each_of(&language, equals_in_bf16);
    losses_in_bf16();
}
GOLDEN_TEST(other_forms_equal_the_plain_one) { each_of(&language, forms_agree); }

/* cross_entropy(label_smoothing) of PyTorch, where labels are missing: in each form of the logits' parts. */
static void smoothed_labels_equal_pytorch_s(void **state)
{
    static const int64_t rows[] = {72, 20, 8}; /* of logits: whole, rows, slabs */
    for (size_t i = 0; i < 12; i++) {
        const char *dir = i / 6 ? "qwen3" : "gpt2", *name = "";
        struct weights *golden = golden_open("language", dir, "golden.safetensors");
        struct tower_options options = options_of(DTYPE_F32);
        double *loss = golden_tensor(golden, "smoothed", NULL);
        struct subject s;
        assert_non_null(loss);
        options.loss_chunk = (size_t)rows[i % 3] * 128 * sizeof(float);
        subject_open(&s, dir, &options);
        assert_int_equal(s.tower->memory->loss.form, i % 3);
        s.smoothing = 0.1f;
        reference_read(&s.reference, "language", dir, "smoothed.safetensors");
        double error = fabs(run_in(&s, i % 2 ? 3 : 1, NULL) - loss[0]) / loss[0],
               worst = gradient_error(&s.reference, NULL, &name);
        if (!(error <= 1e-6 && worst <= 1e-5))
            fail_msg("%s: smoothed loss %.1e, gradient of %s %.1e", dir, error, name, worst);
        subject_close(&s);
        weights_close(golden);
        free(loss);
    }
}

GOLDEN_TEST(packed_documents_equal_separate_ones) { each_of(&language, packed_equals_separate); }

/* Padding at the end of samples: a document of its own without labels. It changes nothing. */
static void padding_changes_nothing(void **state)
{
    struct subject s;
    struct tower_options options = options_of(DTYPE_F32);
    const char *name = "";
    subject_open(&s, "qwen3", &options);
    s.documents = true;
    for (int64_t i = 0; i < 72; i++) {
        bool padding = i % 24 >= 19;
        s.begins[i] = padding ? 19 : 0;
        s.ends[i] = padding ? 24 : 19;
        if (padding) s.labels[i] = -1;
    }
    double loss = run(&s, NULL);
    take_gradients(&s, &s, false);
    for (int64_t i = 0; i < 72; i++)
        if (i % 24 >= 19) s.input[i] = (int32_t)(i % 5);
    double again = run(&s, NULL);
    assert_true(fabs(loss - again) <= 0 && gradient_error(&s.reference, NULL, &name) <= 1e-6);
    subject_close(&s);
}

GOLDEN_TEST(gradient_is_that_of_the_loss) { check_slope("qwen3-tied", 2e-3); }
GOLDEN_TEST(evaluation_is_the_training_loss) { check_evaluation("llama"); }

/* With the first groups frozen, the others have the same gradients. */
static void frozen_groups_change_no_other_gradient(void **state)
{
    static const char *const models[] = {"gpt2", "qwen3"};
    for (size_t m = 0; m < 2; m++) {
        struct subject all, part;
        struct tower_options options = options_of(DTYPE_F32);
        subject_open(&all, models[m], &options);
        options.frozen = 2;
        subject_open(&part, models[m], &options);
        double loss = run(&all, NULL), found = run(&part, NULL);
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
