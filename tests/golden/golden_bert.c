/* BertForMaskedLM and those of its kin (DistilBERT, RoBERTa, ELECTRA, BigBird) against transformers: loss,
 * accuracy, logits, every gradient, six steps of torch.optim.AdamW (tests/make/bert.py, big_bird.py), whole
 * samples and padded ones. BigBird's are no multiple of a block, one has 4,096 tokens, one all of them see.
 * Also the forms of the model among each other: recomputation, parts of the logits, micro-batches, packed
 * documents. On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "tests/golden/language_subject.h"

#include <unistd.h>

static const struct golden_model bert = {
    .folder = "bert", .masked = true, .parts = 4, .slabs = 1, .on_card = {"padded"}};
static const struct golden_model encoders = {
    .folder = "encoders", .masked = true, .parts = 4, .slabs = 1, .on_card = {"generator"}};

static const struct golden_model big_bird = {
    .folder = "big_bird", .masked = true, .parts = 4, .slabs = 1, .on_card = {"ragged"}};
static const struct golden_model long_sample = {.folder = "big_bird_long", .masked = true};

/* Runs a form of the test with every model. */
static void each_encoder(void (*check)(const char *dir))
{
    each_of(&bert, check);
    each_of(&encoders, check);
    if (check != packed_equals_separate) each_of(&big_bird, check);
}

GOLDEN_TEST(models_equal_transformers) { each_encoder(equals_original); }
GOLDEN_TEST(bf16_is_as_near_as_pytorch_s)
{
    each_encoder(equals_in_bf16);
    losses_in_bf16();
}
GOLDEN_TEST(other_forms_equal_the_plain_one) { each_encoder(forms_agree); }
GOLDEN_TEST(packed_documents_equal_separate_ones) { each_encoder(packed_equals_separate); }
GOLDEN_TEST(gradient_is_that_of_the_loss)
{
    model = &encoders;
    check_slope("electra", 1e-3);
    model = &big_bird;
    check_slope("padded", 1e-3);
    model = &bert;
    check_slope("bert", 1e-3);
}
GOLDEN_TEST(evaluation_is_the_training_loss)
{
    model = &encoders;
    check_evaluation("roberta");
    model = &bert;
    check_evaluation("padded");
}

/* Files that began with TensorFlow's have gamma and beta in the names of norms; BertForPreTraining has a
 * pooler, the prediction of the next sentence, and copies of the table and the bias. */
static void old_files_have_the_same_weights(void **state)
{
    static const char *const more[] = {"bert.pooler.dense.weight",       "bert.pooler.dense.bias",
                                       "cls.seq_relationship.weight",    "cls.seq_relationship.bias",
                                       "cls.predictions.decoder.weight", "cls.predictions.decoder.bias",
                                       "bert.embeddings.position_ids"};
    enum { MORE = sizeof more / sizeof *more, FEW = 64 };
    struct subject s;
    struct error err = {0};
    struct tower_options options = options_of(DTYPE_F32);
    struct weights *file = golden_open("bert", "bert", "model.safetensors"), *old = NULL;
    struct weights_row rows[FEW + MORE];
    char names[FEW][128], path[] = "/tmp/meopt-bert-XXXXXX";
    int64_t count = weights_count(file);
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0 && count <= FEW);
    for (int64_t i = 0; i < count; i++) {
        const struct weights_tensor *t = weights_tensor(file, i);
        const char *norm = strstr(t->name, "LayerNorm.");
        float *values = xmalloc((size_t)t->count * sizeof *values);
        assert_int_equal(weights_read(file, i, values, DTYPE_F32, &err), 0);
        snprintf(names[i], sizeof names[i], "%.*s%s", norm ? (int)(norm - t->name) + 10 : 127, t->name,
                 !norm             ? ""
                 : norm[10] == 'w' ? "gamma"
                                   : "beta");
        rows[i] = (struct weights_row){.name = names[i], .dtype = DTYPE_F32, .ndim = t->ndim, .data = values};
        memcpy(rows[i].shape, t->shape, sizeof rows[i].shape);
    }
    for (int i = 0; i < MORE; i++) {
        const char *of = strstr(more[i], "decoder.weight") ? "bert.embeddings.word_embeddings.weight"
                         : strstr(more[i], "decoder.bias") ? "cls.predictions.bias"
                                                           : NULL;
        if (of) rows[count + i] = rows[weights_find(file, of)];
        else
            rows[count + i] =
                (struct weights_row){.dtype = DTYPE_F32, .ndim = 1, .shape = {2}, .data = rows[0].data};
        rows[count + i].name = more[i];
    }
    if (weights_write_safetensors(path, rows, count + MORE, NULL, &err)) fail_msg("%s", err.what);
    subject_open(&s, "bert", &options);
    struct model_shape g = {.context = CONTEXT, .heads = 4};
    if (weights_open(&old, path, &err) || model_shape_infer(&g, old, 0, &err)) fail_msg("%s", err.what);
    if (model_shape_fits(&g, NULL, old, &err)) fail_msg("%s", err.what);
    reference_read(&s.reference, "bert", "bert", "model.safetensors");
    float **expected = s.reference.values;
    s.reference = reference_of(s.tower);
    assert_int_equal(tower_load(s.tower, old, reference_set, &s.reference, &err), 0);
    for (int i = 0; i < s.tower->parameter_count; i++) {
        size_t bytes = (size_t)s.tower->parameters[i].count * sizeof(float);
        assert_memory_equal(expected[i], s.reference.values[i], bytes);
        free(expected[i]);
    }
    free(expected);
    subject_close(&s);
    for (int64_t i = 0; i < count; i++) free((void *)(uintptr_t)rows[i].data);
    weights_close(old);
    weights_close(file);
    unlink(path);
}

/* ---- Blocks ---- */

/* Of a tower that is trained, and of one that is not. */
static void evaluates_as_original(const char *dir)
{
    struct weights *golden = golden_open(model->folder, dir, "golden.safetensors");
    for (int frozen = 0; frozen < 2 && tried_fully(dir); frozen++) {
        struct subject s;
        struct tower_options options = options_of(DTYPE_F32);
        if (frozen) options.gradients = GRADIENTS_NONE;
        subject_open(&s, dir, &options);
        s.evaluates = true;
        double error = logits_error(&s, golden);
        printf("%-12s evaluation: logits %.1e\n", dir, error);
        assert_true(error <= 1e-5);
        subject_close(&s);
    }
    weights_close(golden);
}
GOLDEN_TEST(evaluation_has_lists_of_its_own) { each_of(&big_bird, evaluates_as_original); }

static void long_equals_original(const char *dir)
{
    struct subject s;
    struct tower_options options = options_of(DTYPE_F32);
    struct weights *golden = golden_open(model->folder, dir, "golden.safetensors");
    const char *name = "";
    double *loss = golden_tensor(golden, "loss", NULL);
    options.batch = 1;
    subject_open(&s, dir, &options);
    double logits = logits_error(&s, golden), error = fabs(run(&s, NULL) - loss[0]) / loss[0];
    read_reference(&s, dir, "gradient.safetensors");
    double worst = gradient_error(&s.reference, NULL, &name);
    s.evaluates = true;
    double evaluation = logits_error(&s, golden);
    printf("%-12s logits %.1e, %.1e loss %.1e gradients %.1e (%s)\n", dir, logits, evaluation, error, worst,
           name);
    assert_int_equal(s.tokens, 4096);
    assert_true(logits <= 1e-5 && evaluation <= 1e-5 && error <= 1e-6 && worst <= 5e-6);
    subject_close(&s);
    weights_close(golden);
    free(loss);
}
GOLDEN_TEST(long_samples_equal_transformers)
{
    if (!card_is_emulated() || getenv("MEOPT_LONG")) each_of(&long_sample, long_equals_original);
}

/* ---- ...ForSequenceClassification ---- */

/* Computes loss and gradients, and returns the loss. */
static double classifier_run(struct subject *s, double *correct)
{
    struct error err = {0};
    double sums[3];
    struct batch batch = batch_of(s, 0, BATCH, 1);
    float *gradient = (float *)(void *)(s->sums + 3);
    s->device->ops->fill(s->device, s->sums, 0, sizeof sums);
    tower_forward(s->tower, &batch);
    s->device->ops->cross_entropy(s->device, &(struct cross_entropy){.logits = s->tower->out,
                                                                     .label = s->arrays + LABELS * MOST,
                                                                     .weight = 1.0f / BATCH,
                                                                     .dlogits = gradient,
                                                                     .loss = s->sums,
                                                                     .top1 = s->sums + 1,
                                                                     .top5 = s->sums + 2,
                                                                     .R = BATCH,
                                                                     .C = model->classes});
    assert_int_equal(tower_backward(s->tower, &batch, gradient, true, true, NULL, NULL, &err), 0);
    s->device->sync(s->device);
    s->device->download(s->device, sums, s->sums, sizeof sums);
    *correct = sums[1];
    return sums[0];
}

static double classifier_logits(struct subject *s, const struct weights *golden)
{
    int64_t n;
    double *expected = golden_tensor(golden, "logits", &n), correct;
    classifier_run(s, &correct);
    double *mine = device_values(s->device, s->tower->out, DTYPE_F32, n), error = rel_l2(mine, expected, n);
    free(mine);
    free(expected);
    return error;
}

static const struct golden_model classifier = {.folder = "bert_classify",
                                               .masked = true,
                                               .classes = 5,
                                               .on_card = {"bert"},
                                               .run = classifier_run,
                                               .logits = classifier_logits};

static const struct golden_model classifiers = {.folder = "encoders_classify",
                                                .masked = true,
                                                .classes = 5,
                                                .on_card = {"distilbert"},
                                                .run = classifier_run,
                                                .logits = classifier_logits};

static const struct golden_model big_bird_classifiers = {.folder = "big_bird_classify",
                                                         .masked = true,
                                                         .classes = 5,
                                                         .run = classifier_run,
                                                         .logits = classifier_logits};

GOLDEN_TEST(classifiers_equal_transformers)
{
    each_of(&big_bird_classifiers, equals_original);
    each_of(&classifier, equals_original);
    each_of(&classifiers, equals_original);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_equal_transformers),
                                       cmocka_unit_test(bf16_is_as_near_as_pytorch_s),
                                       cmocka_unit_test(other_forms_equal_the_plain_one),
                                       cmocka_unit_test(packed_documents_equal_separate_ones),
                                       cmocka_unit_test(gradient_is_that_of_the_loss),
                                       cmocka_unit_test(evaluation_is_the_training_loss),
                                       cmocka_unit_test(old_files_have_the_same_weights),
                                       cmocka_unit_test(evaluation_has_lists_of_its_own),
                                       cmocka_unit_test(long_samples_equal_transformers),
                                       cmocka_unit_test(classifiers_equal_transformers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
