/* Image classifiers against the classes of timm, torchvision, transformers and DINOv2's hub: logits, cross
 * entropy of two smoothed labels, every gradient, six steps of torch.optim.AdamW; in bf16 the first step; and
 * a classifier with other classes. The files are those that the libraries save (tests/make/classifiers.py).
 * On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "core/model/lora.h"
#include "core/nn/tower.h"
#include "tests/golden/golden_training.h"

#include <stdio.h>

enum { CLASSES = 7, OTHER_CLASSES = 5, STEPS = 6 };
static const float smoothing = 0.1f;
static const char model[] = "model.safetensors";

struct subject {
    struct device *device;
    struct tower *tower;
    struct adamw adamw;
    int64_t batch;
    float *images, *dout, *share; /* on the device */
    int32_t *labels, *labels2;
    double *sums;               /* loss, top-1, top-5 */
    struct reference reference; /* gradients or weights */
};

static void *uploaded(struct device *device, const struct weights *golden, const char *name, enum dtype type)
{
    struct error err = {0};
    int64_t at = weights_find(golden, name), count = weights_tensor(golden, at)->count;
    void *host = xmalloc((size_t)count * 4),
         *p = device_alloc(device, MEMORY_DATA, (size_t)count * 4, name, &err);
    assert_non_null(p);
    assert_int_equal(weights_read(golden, at, host, type, &err), 0);
    device->upload(device, p, host, (size_t)count * 4);
    free(host);
    return p;
}

/* A classifier of `classes`; CLASSES_UNKNOWN: as many as the file's. lora: its targets are all. */
static void subject_open_in(struct subject *s, const char *root, const char *dir, const char *name_of_file,
                            int64_t classes, enum dtype compute, struct lora_options lora)
{
    struct error err = {0};
    struct weights *file = golden_open(root, dir, name_of_file),
                   *golden = golden_open(root, dir, "golden.safetensors");
    const char *name = getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
    struct model_shape g = {.heads = 2, .image = 21, .classes = classes};
    *s = (struct subject){.batch = weights_tensor(golden, weights_find(golden, "share"))->count};
    if (device_open(&s->device, name, 0, &err)) fail_msg("%s", err.what);
    if (model_shape_infer(&g, file, 0, &err)) fail_msg("%s: %s", dir, err.what);
    assert_int_equal(g.classes, classes > 0 ? classes : CLASSES);
    if (strstr(dir, "dinov2") && strcmp(name_of_file, model) == 0) assert_int_equal(g.pool, POOL_CLS_AVG);
    struct tower_options options = {.batch = s->batch,
                                    .compute = compute,
                                    .weight_type = compute,
                                    .grad_type = compute,
                                    .gradients = GRADIENTS_KEEP,
                                    .weights_class = MEMORY_WEIGHTS,
                                    .activations_class = MEMORY_ACTIVATIONS,
                                    .lora = lora};
    if (lora.rank) assert_int_equal(lora_targets(&g, "all-linear", &options.lora.targets, &err), 0);
    if (tower_create(&s->tower, s->device, &g, &options, &err) ||
        tower_init_random(s->tower, 1, true, NULL, NULL, &err) ||
        tower_load(s->tower, file, NULL, NULL, &err))
        fail_msg("%s: %s", dir, err.what);
    assert_int_equal(s->tower->out_width, g.classes);
    tower_bind_scratch(s->tower,
                       device_alloc(s->device, MEMORY_WORKSPACE, s->tower->scratch_bytes, "scratch", &err));
    s->images = uploaded(s->device, golden, "images", DTYPE_F32);
    s->share = uploaded(s->device, golden, "share", DTYPE_F32);
    s->labels = uploaded(s->device, golden, "labels", DTYPE_I32);
    s->labels2 = uploaded(s->device, golden, "labels2", DTYPE_I32);
    s->sums = device_alloc(s->device, MEMORY_WORKSPACE, 3 * sizeof(double), "sums", &err);
    s->dout = device_alloc(s->device, MEMORY_WORKSPACE, (size_t)(s->batch * g.classes) * 4, "dout", &err);
    s->reference = reference_of(s->tower);
    weights_close(file);
    weights_close(golden);
}

static void subject_open(struct subject *s, const char *dir, const char *name_of_file, int64_t classes,
                         enum dtype compute)
{
    subject_open_in(s, "classify", dir, name_of_file, classes, compute, (struct lora_options){0});
}

static void subject_close(struct subject *s)
{
    reference_free(&s->reference);
    adamw_close(&s->adamw);
    tower_close(s->tower);
    device_close(s->device);
}

/* Returns the loss of the batch, with its gradient in dout. */
static double forward(struct subject *s)
{
    double sums[3] = {0};
    struct device *device = s->device;
    int64_t classes = s->tower->out_width;
    device->upload(device, s->sums, sums, sizeof sums);
    device->ops->fill(device, s->dout, 0, (size_t)(s->batch * classes) * 4);
    tower_forward(s->tower, &(struct batch){.input = s->images, .count = s->batch});
    device->ops->cross_entropy(device, &(struct cross_entropy){.logits = s->tower->out,
                                                               .label = s->labels,
                                                               .label2 = s->labels2,
                                                               .share = s->share,
                                                               .smoothing = smoothing,
                                                               .weight = 1 / (float)s->batch,
                                                               .dlogits = s->dout,
                                                               .loss = s->sums,
                                                               .top1 = s->sums + 1,
                                                               .top5 = s->sums + 2,
                                                               .R = s->batch,
                                                               .C = classes});
    device->sync(device);
    device->download(device, sums, s->sums, sizeof sums);
    return sums[0];
}

static void backward(struct subject *s)
{
    struct error err = {0};
    if (tower_backward(s->tower, &(struct batch){.input = s->images, .count = s->batch}, s->dout, true, true,
                       NULL, NULL, &err))
        fail_msg("%s", err.what);
}

/* Returns the worst difference of a parameter. */
static double end_error(struct subject *s)
{
    double worst = 0;
    for (int i = 0; i < s->tower->parameter_count; i++) {
        const struct parameter *p = &s->tower->parameters[i];
        if (!p->trained) continue;
        double *mine = device_values(s->device, p->weight, DTYPE_F32, p->count);
        /* the k third of a qkv bias has a mathematically zero gradient and follows rounding noise */
        bool noise = strstr(p->name, "qkv.bias") != NULL;
        for (int64_t k = 0; k < p->count; k++)
            if (!noise || k < p->count / 3 || k >= p->count / 3 * 2)
                worst = fmax(worst, fabs(mine[k] - (double)s->reference.values[i][k]));
        free(mine);
    }
    return worst;
}

static void equals_library(const char *dir)
{
    struct subject s;
    struct weights *golden = golden_open("classify", dir, "golden.safetensors");
    double *loss = golden_tensor(golden, "loss", NULL), *logits = golden_tensor(golden, "logits", NULL),
           worst_loss = 0, gradients = 0, out = 0;
    const char *worst = "";
    subject_open(&s, dir, model, CLASSES_UNKNOWN, DTYPE_F32);
    adamw_open(&s.adamw, s.tower);
    for (int64_t i = 0; i < STEPS; i++) {
        double found = forward(&s);
        worst_loss = fmax(worst_loss, fabs(found - loss[i]) / loss[i]);
        backward(&s);
        if (i == 0) {
            double *mine = device_values(s.device, s.tower->out, DTYPE_F32, s.batch * CLASSES);
            out = rel_l2(mine, logits, s.batch * CLASSES);
            free(mine);
            reference_read(&s.reference, "classify", dir, "gradient.safetensors");
            gradients = gradient_error(&s.reference, NULL, &worst);
        }
        adamw_step(&s.adamw, i + 1);
    }
    reference_read(&s.reference, "classify", dir, "final.safetensors");
    double end = end_error(&s);
    printf("%-20s logits %.1e loss %.1e gradients %.1e (%s) final %.1e\n", dir, out, worst_loss, gradients,
           worst, end);
    if (!(out <= 1e-5 && worst_loss <= 1e-5 && gradients <= 1e-5 && end <= 1e-5))
        fail_msg("%s: outside the fp32 tolerance", dir);
    subject_close(&s);
    weights_close(golden);
    free(loss);
    free(logits);
}

/* Reads PEFT's file into the tower, or into s->reference through a second tower. */
static void load_adapters(struct subject *s, const char *dir, const char *file, bool reference)
{
    struct error err = {0};
    struct weights *w = golden_open("lora", dir, file);
    struct tower_options options = {.batch = 1, .lora = s->tower->options.lora};
    struct tower *other = NULL;
    if (reference && tower_create(&other, s->device, &s->tower->model_shape, &options, &err))
        fail_msg("%s", err.what);
    if (tower_load_adapters(reference ? other : s->tower, w, reference ? reference_set : NULL, &s->reference,
                            &err))
        fail_msg("%s: %s", dir, err.what);
    tower_close(other);
    weights_close(w);
}

/* Adapters of all matrices, below LayerScale, and the classifier. */
static void adapters_equal_peft(void **state)
{
    static const char dir[] = "timm-vit-scale";
    struct subject s;
    struct weights *golden = golden_open("lora", dir, "golden.safetensors");
    double *loss = golden_tensor(golden, "loss", NULL), worst_loss = 0, gradients = 0;
    const char *worst = "";
    subject_open_in(&s, "lora", dir, model, CLASSES_UNKNOWN, DTYPE_F32,
                    (struct lora_options){.rank = 3, .scale = 2});
    load_adapters(&s, dir, "adapter_model.safetensors", false);
    for (int i = 0; i < s.tower->parameter_count; i++) {
        const struct parameter *p = &s.tower->parameters[i];
        assert_int_equal(p->trained, p->adapter || p->head);
    }
    adamw_open(&s.adamw, s.tower);
    for (int64_t i = 0; i < STEPS; i++) {
        worst_loss = fmax(worst_loss, fabs(forward(&s) - loss[i]) / loss[i]);
        backward(&s);
        if (i == 0) {
            load_adapters(&s, dir, "gradient.safetensors", true);
            gradients = gradient_error(&s.reference, NULL, &worst);
        }
        adamw_step(&s.adamw, i + 1);
    }
    load_adapters(&s, dir, "final.safetensors", true);
    double end = end_error(&s);
    printf("%-20s loss %.1e gradients %.1e (%s) final %.1e\n", dir, worst_loss, gradients, worst, end);
    if (!(worst_loss <= 1e-5 && gradients <= 1e-5 && end <= 1e-5))
        fail_msg("%s: outside the fp32 tolerance", dir);
    subject_close(&s);
    weights_close(golden);
    free(loss);
}

static void classifiers_equal_the_libraries(void **state) { golden_each("classify", equals_library); }

/* No worse than 1.5 times the library's own bf16. Its loss may be right by chance: an error of the logits
 * that points anywhere moves the loss by |dloss/dlogits| |error| / sqrt(N) on average; three times that is
 * allowed. */
static void equals_library_in_bf16(const char *dir)
{
    enum { OUT, LOSS, WORST, MEDIAN };
    struct subject s;
    struct weights *golden = golden_open("classify", dir, "golden.safetensors");
    double *loss = golden_tensor(golden, "loss", NULL), *logits = golden_tensor(golden, "logits", NULL),
           *theirs = golden_tensor(golden, "bf16", NULL), ours[4], by_chance = 0, size = 0;
    const char *worst = "";
    subject_open(&s, dir, model, CLASSES_UNKNOWN, DTYPE_BF16);
    ours[LOSS] = fabs(forward(&s) / loss[0] - 1);
    int64_t count = s.batch * CLASSES;
    double *out = device_values(s.device, s.tower->out, DTYPE_F32, count),
           *dout = device_values(s.device, s.dout, DTYPE_F32, count);
    ours[OUT] = rel_l2(out, logits, count);
    for (int64_t i = 0; i < count; i++) {
        by_chance += dout[i] * dout[i];
        size += logits[i] * logits[i];
    }
    by_chance = sqrt(by_chance * size / (double)count) * theirs[OUT] / loss[0];
    backward(&s);
    reference_read(&s.reference, "classify", dir, "gradient.safetensors");
    ours[WORST] = gradient_error(&s.reference, &ours[MEDIAN], &worst);
    printf("%-20s bf16 / the library's: logits %.2f loss %.2f gradients %.2f (%s) median %.2f\n", dir,
           ours[OUT] / theirs[OUT], ours[LOSS] / theirs[LOSS], ours[WORST] / theirs[WORST], worst,
           ours[MEDIAN] / theirs[MEDIAN]);
    theirs[LOSS] = fmax(theirs[LOSS], 3 * by_chance);
    for (int i = 0; i < 4; i++)
        if (!(ours[i] <= 1.5 * theirs[i])) fail_msg("%s: worse than 1.5 x PyTorch's bf16", dir);
    subject_close(&s);
    weights_close(golden);
    free(loss);
    free(logits);
    free(theirs);
    free(out);
    free(dout);
}

static void classifiers_equal_the_libraries_in_bf16(void **state)
{
    golden_each("classify", equals_library_in_bf16);
}

/* labels below the classes */
static void loss_is_ln_classes(struct subject *s)
{
    int32_t label[] = {0, 1, 2, 4};
    s->device->upload(s->device, s->labels, label, sizeof label);
    s->device->upload(s->device, s->labels2, label, sizeof label);
    assert_true(fabs(forward(s) - log((double)s->tower->out_width)) <= 1e-6);
    subject_close(s);
}

static void starts_at_zero(const char *dir)
{
    for (enum dtype compute = DTYPE_F32; compute <= DTYPE_BF16; compute++) {
        struct subject s;
        subject_open(&s, dir, model, OTHER_CLASSES, compute);
        loss_is_ln_classes(&s);
    }
}

/* The hub's linear_head of four layers is not taken for one of the last layer. */
static void a_classifier_of_four_layers_is_replaced(void **state)
{
    struct subject s;
    subject_open(&s, "dinov2-hub", "layers4.safetensors", CLASSES_UNKNOWN, DTYPE_F32);
    loss_is_ln_classes(&s);
}

static void first_loss_of_a_new_classifier_is_ln_classes(void **state)
{
    golden_each("classify", starts_at_zero);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(classifiers_equal_the_libraries),
                                       cmocka_unit_test(adapters_equal_peft),
                                       cmocka_unit_test(classifiers_equal_the_libraries_in_bf16),
                                       cmocka_unit_test(first_loss_of_a_new_classifier_is_ln_classes),
                                       cmocka_unit_test(a_classifier_of_four_layers_is_replaced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
