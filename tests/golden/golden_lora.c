/* Adapters against PEFT: logits, loss, every gradient, six steps of torch.optim.AdamW, and the gradients
 * with inputs 3,000 times as large as usual (tests/make/lora.py). Also finite differences, the forms of one
 * model among each other, and names of targets. On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "core/model/lora.h"
#include "tests/golden/language_subject.h"

static const struct {
    const char *dir, *targets;
    int64_t rank;
    float scale;
} cases[] = {{"gpt2", "c_attn,c_proj,c_fc", 3, 2},
             {"llama", "all-linear", 4, 2},
             {"qwen3", "q_proj, v_proj,mlp.down_proj", 2, 1.5f}};
enum { CASES = sizeof cases / sizeof *cases };

static void shape_of(const char *dir, struct model_shape *g)
{
    struct error err = {0};
    struct weights *file = golden_open("language", dir, "model.safetensors");
    *g = (struct model_shape){.context = 24};
    if (model_shape_infer(g, file, 0, &err)) fail_msg("%s", err.what);
    weights_close(file);
}

/* Reads adapters into the tower, or other values under their names into s->reference, through a second
 * tower. */
static void load(struct subject *s, const char *dir, const char *file, bool reference)
{
    struct error err = {0};
    struct weights *w = golden_open("lora", dir, file);
    struct tower_options options = options_of(DTYPE_F32);
    struct tower *other = NULL;
    options.gradients = GRADIENTS_NONE;
    options.lora = s->tower->options.lora;
    if ((reference && tower_create(&other, s->device, &s->tower->model_shape, &options, &err)) ||
        tower_load_adapters(reference ? other : s->tower, w, reference ? reference_set : NULL, &s->reference,
                            &err))
        fail_msg("%s: %s", dir, err.what);
    tower_close(other);
    weights_close(w);
}

static void read_adapters(struct subject *s, const char *dir, const char *file) { load(s, dir, file, true); }

static void open_adapted(struct subject *s, const char *dir, const struct tower_options *usual)
{
    struct error err = {0};
    struct model_shape g;
    struct tower_options options = *usual;
    int i = 0;
    while (strcmp(cases[i].dir, dir) != 0) i++;
    shape_of(dir, &g);
    options.lora = (struct lora_options){.rank = cases[i].rank, .scale = cases[i].scale};
    if (lora_targets(&g, cases[i].targets, &options.lora.targets, &err)) fail_msg("%s", err.what);
    subject_open_in(s, dir, CONTEXT, &options);
    load(s, dir, "adapter_model.safetensors", false);
    for (int k = 0; k < s->tower->parameter_count; k++) {
        const struct parameter *p = &s->tower->parameters[k];
        assert_int_equal(p->trained, p->adapter);
        assert_true(p->adapter || !p->grad);
    }
}

static const struct golden_model adapted = {.folder = "lora",
                                            .weights = "language",
                                            .parts = 20,
                                            .slabs = 8,
                                            .open = open_adapted,
                                            .read = read_adapters};

static void models_equal_peft(void **state)
{
    model = &adapted;
    for (int i = 0; i < CASES; i++) equals_original(cases[i].dir);
}

/* With one column of the token table 3,000 times as large. */
static void outliers_equal_peft(void **state)
{
    enum { OUTLIER = 3000, COLUMN = 5 };
    for (int i = 0; i < CASES; i++) {
        struct subject s;
        const char *dir = cases[i].dir, *name = "";
        struct weights *golden = golden_open("lora", dir, "golden.safetensors");
        double *loss = golden_tensor(golden, "outliers", NULL);
        struct tower_options options = options_of(DTYPE_F32);
        subject_open(&s, dir, &options);
        const struct parameter *table = s.tower->memory->roles[ROLE_TOKENS];
        double *values = device_values(s.device, table->weight, DTYPE_F32, table->count);
        for (int64_t k = COLUMN; k < table->count; k += table->shape[1]) {
            float value = (float)values[k] * OUTLIER;
            s.device->upload(s.device, (float *)table->weight + k, &value, sizeof value);
        }
        double error = fabs(run(&s, NULL) - loss[0]) / loss[0];
        load(&s, dir, "outliers.safetensors", true);
        double worst = gradient_error(&s.reference, NULL, &name);
        printf("%-8s outliers: loss %.1e gradients %.1e (%s)\n", dir, error, worst, name);
        if (!(error <= 1e-5 && worst <= 1e-4)) fail_msg("%s: outside the tolerance", dir);
        free(values);
        free(loss);
        subject_close(&s);
        weights_close(golden);
    }
}

static void other_forms_equal_the_plain_one(void **state)
{
    for (int i = 0; i < CASES; i++) forms_agree(cases[i].dir);
}

/* The loss after one value of A or B is changed. */
static double loss_with(struct subject *s, const struct parameter *p, int64_t k, float value)
{
    s->device->upload(s->device, (float *)p->weight + k, &value, sizeof value);
    return run(s, NULL);
}

static void gradient_is_that_of_the_loss(void **state)
{
    struct subject s;
    struct tower_options options = options_of(DTYPE_F32);
    subject_open(&s, "llama", &options);
    for (int i = 0; i < s.tower->parameter_count; i++) {
        const struct parameter *p = &s.tower->parameters[i];
        if (!p->adapter) continue;
        run(&s, NULL);
        double *grad = device_values(s.device, p->grad, DTYPE_F32, p->count),
               *was = device_values(s.device, p->weight, DTYPE_F32, p->count), step = 4e-3;
        int64_t k = 0;
        for (int64_t j = 1; j < p->count; j++)
            if (fabs(grad[j]) > fabs(grad[k])) k = j;
        double found =
            (loss_with(&s, p, k, (float)(was[k] + step)) - loss_with(&s, p, k, (float)(was[k] - step))) /
            (2 * step);
        loss_with(&s, p, k, (float)was[k]);
        if (!(fabs(found - grad[k]) <= 1e-2 * fabs(grad[k]) + 1e-4))
            fail_msg("%s: %.6g, but the loss has %.6g", p->name, grad[k], found);
        free(grad);
        free(was);
    }
    subject_close(&s);
}

static void targets_are_ends_of_names(void **state)
{
    static const struct {
        const char *dir, *text, *names; /* NULL: refused */
    } rows[] = {{"gpt2", "c_proj", "attn.c_proj,mlp.c_proj"},
                {"gpt2", "mlp.c_proj", "mlp.c_proj"},
                {"gpt2", "all-linear", "c_attn,attn.c_proj,c_fc,mlp.c_proj"},
                {"gpt2", "q_proj", NULL},
                {"gpt2", "proj", NULL},
                {"gpt2", "", NULL},
                {"qwen3", "q_proj,down_proj", "q_proj,down_proj"},
                {"qwen3", "all-linear", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"},
                {"qwen3", "qkv_proj", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_shape g;
        struct error err = {0};
        unsigned targets;
        char names[256];
        shape_of(rows[i].dir, &g);
        int code = lora_targets(&g, rows[i].text, &targets, &err);
        assert_int_equal(code, rows[i].names ? 0 : EXIT_CONFIG);
        if (code) {
            assert_non_null(strstr(err.what, "lora.targets"));
            continue;
        }
        lora_target_names(&g, targets, names, sizeof names);
        assert_string_equal(names, rows[i].names);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_equal_peft),
        cmocka_unit_test(outliers_equal_peft),
        cmocka_unit_test(other_forms_equal_the_plain_one),
        cmocka_unit_test(gradient_is_that_of_the_loss),
        cmocka_unit_test(targets_are_ends_of_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
