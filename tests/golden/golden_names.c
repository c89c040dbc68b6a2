/* Towers under the names of other libraries (tests/make/names.py): the same embedding as the library's own
 * class, or a refusal that names the file's kind. Names under the prefixes of wrappers: bit-identical. */
#include "core/model/sidecar.h"
#include "core/nn/nn.h"
#include "tests/golden/golden.h"

#include <stdio.h>
#include <unistd.h>

enum { BATCH = 2, IMAGE = 28, LARGER = 42, MAX_ROWS = 256 };

static const char *text(json_t *row, const char *key) { return json_string_value(json_object_get(row, key)); }

/* Properties read from names and shapes. */
static int inferred(const struct weights *w, int64_t image, struct model_shape *g, struct error *err)
{
    *g = (struct model_shape){.heads = 2, .image = image};
    int code = model_shape_infer(g, w, 0, err);
    return code ? code : model_shape_fits(g, NULL, w, err);
}

static struct tower *loaded(struct device *device, const struct model_shape *g, const struct weights *w)
{
    struct error err = {0};
    struct tower *tower = NULL;
    const struct tower_options options = {.batch = BATCH, .compute = DTYPE_F32, .weight_type = DTYPE_F32};
    if (tower_create(&tower, device, g, &options, &err)) fail_msg("%s", err.what);
    if (tower_load(tower, w, NULL, NULL, &err)) fail_msg("%s: %s", weights_path(w), err.what);
    return tower;
}

static double *embedding(struct tower *tower, const double *images)
{
    struct error err = {0};
    struct device *device = tower->device;
    int64_t side = tower->model_shape.image, count = BATCH * 3 * side * side;
    float *host = xmalloc((size_t)count * sizeof *host),
          *input = device_alloc(device, MEMORY_DATA, (size_t)count * sizeof *host, "images", &err);
    void *scratch = device_alloc(device, MEMORY_WORKSPACE, tower->scratch_bytes, "scratch", &err);
    assert_true(input && scratch);
    for (int64_t i = 0; i < count; i++) host[i] = (float)images[i];
    device->upload(device, input, host, (size_t)count * sizeof *host);
    tower_bind_scratch(tower, scratch);
    tower_forward(tower, &(struct batch){.input = input, .count = BATCH});
    free(host);
    return device_values(device, tower->out, DTYPE_F32, BATCH * tower->out_width);
}

static void embeds_as_the_class_does(json_t *row, const struct weights *golden, int64_t side)
{
    const char *name = text(row, "name"), *ffn = text(row, "ffn");
    struct error err = {0};
    struct model_shape g;
    struct sidecar sidecar;
    struct device *device;
    struct weights *w = golden_open("names", name, "model.safetensors");
    char *path = golden_path("names", name, "model.safetensors");
    if (inferred(w, side, &g, &err)) fail_msg("%s: %s", name, err.what);
    if (sidecar_read(&sidecar, path, &g, &err)) fail_msg("%s: %s", name, err.what);
    if (sidecar.name) { /* transformers writes it, timm's state_dict comes alone */
        assert_int_equal(sidecar.says.heads, 2);
        if (sidecar.says.ffn && g.ffn != 1 + ACTIVATION_SWIGLU) g.ffn = sidecar.says.ffn;
    } else if (activation_named(ffn)) g.ffn = activation_named(ffn);
    const char *pool = text(row, "pool"), *norm = text(row, "norm");
    assert_string_equal(model_shape_pool(&g), pool ? pool : "cls");
    if (text(row, "untold")) g.pool = POOL_AVG; /* that its class averages */
    if (norm) g.norms = POST_NORM;
    assert_string_equal(family_name(g.family), text(row, "family"));
    assert_string_equal(model_shape_activation(&g), ffn);
    assert_int_equal(g.registers, json_integer_value(json_object_get(row, "registers")));
    assert_int_equal(g.out, json_integer_value(json_object_get(row, "out")));
    if (device_open(&device, getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu", 0, &err))
        fail_msg("%s", err.what);
    struct tower *tower = loaded(device, &g, w);
    int64_t count;
    char key[96];
    snprintf(key, sizeof key, "%s%s", name, side == IMAGE ? "" : ".larger");
    double *images = golden_tensor(golden, side == IMAGE ? "images" : "larger", NULL),
           *wanted = golden_tensor(golden, key, &count);
    assert_int_equal(count, BATCH * tower->out_width);
    double *out = embedding(tower, images);
    double error = rel_l2(out, wanted, count);
    printf("%-28s %.1e\n", key, error);
    if (!(error <= 1e-5)) fail_msg("%s: the embedding differs by %g", key, error);
    free(out);
    free(wanted);
    free(images);
    tower_close(tower);
    device_close(device);
    weights_close(w);
    free(path);
}

static void is_refused(json_t *row)
{
    struct model_shape g;
    struct error err = {0};
    const char *name = text(row, "name"), *says = text(row, "says");
    struct weights *w = golden_open("names", name, "model.safetensors");
    int code = inferred(w, IMAGE, &g, &err);
    if (code != EXIT_CONFIG || !strstr(err.what, says))
        fail_msg("%s: exit %d, %s, expected '%s'", name, code, err.what, says);
    weights_close(w);
}

static void every_file_of_another_library_embeds_as_its_class_or_is_refused(void **state)
{
    json_t *index = golden_json("names", NULL, "index.json"), *row;
    struct weights *golden = golden_open("names", NULL, "golden.safetensors");
    size_t i;
    json_array_foreach(index, i, row)
    {
        if (text(row, "says")) is_refused(row);
        else embeds_as_the_class_does(row, golden, IMAGE);
    }
    weights_close(golden);
    json_decref(index);
}

static void positions_for_a_larger_image_are_resized_as_that_library_does(void **state)
{
    json_t *index = golden_json("names", NULL, "index.json"), *row;
    struct weights *golden = golden_open("names", NULL, "golden.safetensors");
    size_t i;
    int count = 0;
    json_array_foreach(index, i, row)
    {
        char key[96];
        snprintf(key, sizeof key, "%s.larger", text(row, "name"));
        if (weights_find(golden, key) < 0) continue;
        embeds_as_the_class_does(row, golden, LARGER);
        count++;
    }
    assert_int_equal(count, 26);
    weights_close(golden);
    json_decref(index);
}

/* The file with `from` at the begin of a name replaced by `to`; what has other names is left out, and what is
 * called `without`. */
static struct weights *renamed(const struct weights *w, const char *from, const char *to, const char *without,
                               char *path)
{
    static struct weights_row rows[MAX_ROWS];
    struct error err = {0};
    struct weights *result = NULL;
    int64_t count = 0;
    for (int64_t i = 0; i < weights_count(w); i++) {
        const struct weights_tensor *t = weights_tensor(w, i);
        if (strncmp(t->name, from, strlen(from)) != 0 || strcmp(t->name, without) == 0) continue;
        assert_true(count < MAX_ROWS);
        float *values = xmalloc((size_t)t->count * sizeof *values);
        if (weights_read(w, i, values, DTYPE_F32, &err)) fail_msg("%s", err.what);
        rows[count] = (struct weights_row){.name = xasprintf("%s%s", to, t->name + strlen(from)),
                                           .dtype = DTYPE_F32,
                                           .ndim = t->ndim,
                                           .data = values};
        memcpy(rows[count++].shape, t->shape, sizeof t->shape);
    }
    strcpy(path, "/tmp/meopt-names-XXXXXX");
    close(mkstemp(path));
    if (weights_write_safetensors(path, rows, count, NULL, &err)) fail_msg("%s", err.what);
    for (int64_t i = 0; i < count; i++) {
        free((void *)(uintptr_t)rows[i].name);
        free((void *)(uintptr_t)rows[i].data);
    }
    if (weights_open(&result, path, &err)) fail_msg("%s", err.what);
    return result;
}

static void has_the_same_bits(const struct tower *a, const struct tower *b)
{
    assert_int_equal(a->parameter_count, b->parameter_count);
    for (int i = 0; i < a->parameter_count; i++) {
        const struct parameter *p = &a->parameters[i], *q = &b->parameters[i];
        assert_string_equal(p->name, q->name);
        assert_int_equal(p->count, q->count);
        if (!p->trained) continue; /* a mask_token changes nothing and may be missing */
        double *x = device_values(a->device, p->weight, p->weight_type, p->count),
               *y = device_values(b->device, q->weight, q->weight_type, q->count);
        if (memcmp(x, y, (size_t)p->count * sizeof *x) != 0) fail_msg("%s differs", p->name);
        free(x);
        free(y);
    }
}

static void what_wrappers_put_before_the_names_changes_no_bit(void **state)
{
    static const struct {
        const char *dir, *file, *from, *to, *without;
    } cases[] = {
        {"eva-w64", "model.pt", "visual.", "",
         ""}, /* not DINOv2's, although the patches are named as there */
        {"eva-w64", "model.pt", "visual.", "module.", ""},
        {"eva-w64", "model.pt", "", "_orig_mod.", ""},
        {"eva-w64", "model.pt", "visual.", "visual.trunk.", ""}, /* open_clip, whose EVA01 is timm's */
        {"eva-w64", "model.pt", "visual.", "module.visual.trunk.", ""},
        {"openclip-w64", "model.bin", "visual.", "", ""},
        {"openclip-w64", "model.bin", "", "module.", ""},
        {"openclip-w64", "model.bin", "", "model.", ""},
        {"openclip-w64", "model.bin", "", "module._orig_mod.", ""},
        {"openclip-w64", "model.bin", "visual.", "model.visual.", ""},
        {"openclip-w64", "model.bin", "visual.", "encoder.", ""},
        {"dinov2-mlp", "model.pth", "", "backbone.", ""},
        {"dinov2-mlp", "model.pth", "", "teacher.backbone.", ""},
        {"dinov2-swiglu", "model.pth", "", "_orig_mod.module.", ""},
        {"dinov2-swiglu", "model.pth", "", "", "mask_token"}, /* as timm's, but by the hub's names */
    };
    struct device *device;
    struct error err = {0};
    if (device_open(&device, "cpu", 0, &err)) fail_msg("%s", err.what);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64];
        struct model_shape g, h;
        struct weights *w = golden_open("towers", cases[i].dir, cases[i].file),
                       *other = renamed(w, cases[i].from, cases[i].to, cases[i].without, path);
        g = h = (struct model_shape){.heads = 2};
        if (model_shape_infer(&g, w, 0, &err)) fail_msg("%s: %s", cases[i].dir, err.what);
        if (model_shape_infer(&h, other, 0, &err) || model_shape_fits(&h, NULL, other, &err))
            fail_msg("%s as %s: %s", cases[i].dir, cases[i].to, err.what);
        assert_int_equal(g.family, h.family);
        struct tower *a = loaded(device, &g, w), *b = loaded(device, &h, other);
        has_the_same_bits(a, b);
        tower_close(a);
        tower_close(b);
        weights_close(w);
        weights_close(other);
        unlink(path);
    }
    device_close(device);
}

static void a_part_that_is_missing_is_named_as_the_file_has_it(void **state)
{
    static const char missing[] = "encoder.layers.1.self_attn.k_proj.bias";
    struct weights *from = golden_open("names", "clip-vision", "model.safetensors"), *w = NULL;
    struct error err = {0};
    struct model_shape g;
    char path[64];
    w = renamed(from, "", "", missing, path);
    assert_int_equal(inferred(w, IMAGE, &g, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, missing));
    weights_close(w);
    weights_close(from);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_of_another_library_embeds_as_its_class_or_is_refused),
        cmocka_unit_test(positions_for_a_larger_image_are_resized_as_that_library_does),
        cmocka_unit_test(what_wrappers_put_before_the_names_changes_no_bit),
        cmocka_unit_test(a_part_that_is_missing_is_named_as_the_file_has_it),
    };
    return cmocka_run_group_tests_name("golden_names", tests, NULL, NULL);
}
