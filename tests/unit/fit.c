/* Tensors of a checkpoint compared with those that a tower reads: nothing is ignored silently. The files
 * are those of tests/data/towers, with one tensor more, less, or of a different shape. */
#include "core/nn/nn.h"
#include "tests/golden/golden.h"
#include "tests/mentions.h"

#include <stdio.h>
#include <unistd.h>

enum { MAX_ROWS = 256 };

struct copy {
    char path[64];
    struct weights *from;
    struct weights_row rows[MAX_ROWS];
    int64_t count;
    float *zeros;
};

static void copy_begin(struct copy *c, const char *dir, const char *file)
{
    memset(c, 0, sizeof *c);
    strcpy(c->path, "/tmp/meopt-fit-XXXXXX");
    close(mkstemp(c->path));
    c->from = golden_open("towers", dir, file);
    c->zeros = xcalloc(1 << 20, sizeof *c->zeros);
    for (int64_t i = 0; i < weights_count(c->from); i++) {
        const struct weights_tensor *t = weights_tensor(c->from, i);
        struct weights_row *row = &c->rows[c->count++];
        assert_true(c->count < MAX_ROWS && t->count < 1 << 20);
        *row = (struct weights_row){.name = t->name, .dtype = DTYPE_F32, .ndim = t->ndim, .data = c->zeros};
        memcpy(row->shape, t->shape, sizeof row->shape);
    }
}

static void add(struct copy *c, const char *name, int64_t width)
{
    c->rows[c->count++] =
        (struct weights_row){.name = name, .dtype = DTYPE_F32, .ndim = 1, .shape = {width}, .data = c->zeros};
}

static struct weights_row *row_of(struct copy *c, const char *name)
{
    for (int64_t i = 0; i < c->count; i++)
        if (strcmp(c->rows[i].name, name) == 0) return &c->rows[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* The exit code of everything that is asked of names and shapes. */
static int copy_end(struct copy *c, int64_t head_dim, int64_t target, struct error *err)
{
    struct weights *w = NULL;
    struct model_shape g = {0};
    *err = (struct error){0};
    if (weights_write_safetensors(c->path, c->rows, c->count, NULL, err)) fail_msg("%s", err->what);
    if (weights_open(&w, c->path, err)) fail_msg("%s", err->what);
    int code = model_shape_infer(&g, w, head_dim, err);
    struct outputs head = {1, {{.head = target ? HEAD_LINEAR : HEAD_NONE, .width = target}}};
    if (!code) code = model_shape_fits(&g, &head, w, err);
    weights_close(w);
    weights_close(c->from);
    free(c->zeros);
    unlink(c->path);
    return code;
}

static void with_one_more(const char *dir, const char *file, const char *name, const char *meaning)
{
    struct copy c;
    struct error err;
    copy_begin(&c, dir, file);
    add(&c, name, 64);
    int code = copy_end(&c, 0, 0, &err);
    if (!meaning) {
        if (code) fail_msg("%s: %s", name, err.what);
        return;
    }
    if (code != EXIT_CONFIG || !strstr(err.what, name) || !strstr(err.what, meaning) || !err.hint[0])
        fail_msg("%s: exit %d, %s", name, code, err.what);
}

static void a_tensor_of_the_tower_that_nothing_reads_is_refused_by_name(void **state)
{
    static const char *const eva[][2] = {{"visual.blocks.0.gamma_3", "LayerScale"},
                                         {"visual.rope.freqs_cos", "rotary"},
                                         {"visual.blocks.1.attn.relative_position_bias_table", "relative"},
                                         {"visual.rel_pos_bias.relative_position_bias_table", "relative"},
                                         {"visual.blocks.0.attn.norm.weight", "sub-LN"},
                                         {"visual.blocks.0.mlp.w4.weight", "SwiGLU"},
                                         {"visual.fc_norm.weight", "pooling"}};
    static const char *const openclip[][2] = {
        {"visual.transformer.resblocks.1.ls_1.scale", "LayerScale"},
        {"visual.attn_pool_contrastive.query", "attention"},
        {"visual.trunk.norm.weight", "timm"},
        {"visual.surprise.weight", "not known"},
        {"visual.transformer.resblocks.0.surprise", "not known"},
        {"visual.conv1.bias", "not known"},
        {"visual.ln_1.weight", "not known"}}; /* a block's name outside the blocks */
    static const char *const dinov2[][2] = {{"register_token", "not known"},
                                            {"blocks.0.attn.q_norm.weight", "queries and keys"},
                                            {"local_cls_norm.weight", "small crops"},
                                            {"blocks.0.mlp.experts", "not known"}};
    for (size_t i = 0; i < sizeof eva / sizeof *eva; i++)
        with_one_more("eva-dh88", "model.pt", eva[i][0], eva[i][1]);
    for (size_t i = 0; i < sizeof openclip / sizeof *openclip; i++)
        with_one_more("openclip-dh88", "model.bin", openclip[i][0], openclip[i][1]);
    for (size_t i = 0; i < sizeof dinov2 / sizeof *dinov2; i++)
        with_one_more("dinov2-mlp", "model.pth", dinov2[i][0], dinov2[i][1]);
}

static void tensors_without_effect_or_outside_the_tower_are_skipped(void **state)
{
    static const char *const eva[] = {"visual.mask_token", "visual.blocks.0.attn.k_bias", "text.rope.freqs",
                                      "visual_head", "lens"};
    for (size_t i = 0; i < sizeof eva / sizeof *eva; i++) with_one_more("eva-dh88", "model.pt", eva[i], NULL);
    with_one_more("openclip-dh88", "model.bin", "attn_pool.query", NULL);
    with_one_more("dinov2-mlp", "model.pth", "head.weight", NULL);
    with_one_more("dinov2-mlp", "model.pth", "dino_head.mlp.0.weight", NULL);
}

static void a_message_names_the_tensor_that_can_be_explained_and_counts_the_others(void **state)
{
    struct copy c;
    struct error err;
    copy_begin(&c, "eva-dh88", "model.pt");
    add(&c, "visual.aaa", 3);
    add(&c, "visual.blocks.0.rope_1", 3);
    add(&c, "visual.blocks.1.rope_1", 3);
    assert_int_equal(copy_end(&c, 0, 0, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "visual.blocks.0.rope_1|2"));
}

static void control_characters_of_a_name_do_not_reach_the_message(void **state)
{
    struct copy c;
    struct error err;
    copy_begin(&c, "eva-dh88", "model.pt");
    add(&c, "visual.a\nmeopt: all is well\033[2J", 3);
    assert_int_equal(copy_end(&c, 0, 0, &err), EXIT_CONFIG);
    assert_null(strchr(err.what, '\n'));
    assert_null(strchr(err.what, '\033'));
}

static void a_missing_tensor_or_one_of_another_shape_is_found_before_anything_is_read(void **state)
{
    struct copy c;
    struct error err;
    copy_begin(&c, "openclip-w64", "model.bin");
    struct weights_row *row = row_of(&c, "visual.transformer.resblocks.1.mlp.c_proj.bias");
    *row = c.rows[--c.count];
    assert_int_equal(copy_end(&c, 32, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "visual.transformer.resblocks.1.mlp.c_proj.bias"));

    copy_begin(&c, "openclip-w64", "model.bin");
    row_of(&c, "visual.transformer.resblocks.1.ln_2.bias")->shape[0] += 1;
    assert_int_equal(copy_end(&c, 32, 0, &err), EXIT_CONFIG);
    assert_true(mentions(err.what, "visual.transformer.resblocks.1.ln_2.bias|[65]|[64]"));

    copy_begin(&c, "openclip-w64", "model.bin"); /* a gap: the blocks after it belong to nothing */
    add(&c, "visual.transformer.resblocks.5.ln_1.bias", 64);
    assert_int_equal(copy_end(&c, 32, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "resblocks.2."));

    copy_begin(&c, "openclip-w64", "model.bin"); /* LayerScale in one block only */
    add(&c, "visual.transformer.resblocks.1.ls_1.gamma", 64);
    assert_int_equal(copy_end(&c, 32, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "resblocks.1.ls_1.gamma"));
    copy_begin(&c, "openclip-w64", "model.bin");
    add(&c, "visual.transformer.resblocks.0.ls_1.gamma", 64);
    assert_int_equal(copy_end(&c, 32, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "ls_2.gamma"));

    copy_begin(&c, "dinov2-mlp", "model.pth"); /* a head is optional, but has its shape */
    add(&c, "distill_head.bias", 7);
    if (copy_end(&c, 32, 7, &err)) fail_msg("%s", err.what);
    copy_begin(&c, "dinov2-mlp", "model.pth");
    add(&c, "distill_head.bias", 7);
    assert_int_equal(copy_end(&c, 32, 8, &err), EXIT_CONFIG);
}

static void a_published_post_norm_tower_is_known_by_its_width(void **state)
{
    struct copy c;
    struct error err = {0};
    struct weights *w = NULL;
    struct model_shape g = {.heads = 16};
    char text[320];
    copy_begin(&c, "eva-w64", "model.pt");
    struct weights_row *conv = row_of(&c, "visual.patch_embed.proj.weight");
    conv->shape[0] = 1792;
    conv->shape[2] = conv->shape[3] = 1;
    assert_int_equal(weights_write_safetensors(c.path, c.rows, c.count, NULL, &err), 0);
    assert_int_equal(weights_open(&w, c.path, &err), 0);
    if (model_shape_infer(&g, w, 0, &err)) fail_msg("%s", err.what);
    assert_int_equal(g.norms, POST_NORM);
    model_shape_text(&g, text, sizeof text);
    assert_non_null(strstr(text, "post-norm (assumed)"));
    g = (struct model_shape){.heads = 16, .norms = NORMS_BEFORE};
    assert_int_equal(model_shape_infer(&g, w, 0, &err), 0); /* what the configuration says stands */
    assert_int_equal(g.norms, NORMS_BEFORE);
    weights_close(w);
    weights_close(c.from);
    free(c.zeros);
    unlink(c.path);
}

static void a_norm_inside_a_branch_is_there_in_every_block_or_the_file_is_refused(void **state)
{
    static const char *const names[] = {"visual.blocks.0.attn.inner_attn_ln.weight",
                                        "visual.blocks.1.mlp.ffn_ln.bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct copy c;
        struct error err;
        copy_begin(&c, "eva-w64", "model.pt");
        add(&c, names[i], 64);
        assert_int_equal(copy_end(&c, 0, 0, &err), EXIT_CONFIG);
        if (!strstr(err.what, i ? names[1] : "visual.blocks.0.attn.inner_attn_ln.bias"))
            fail_msg("%s", err.what);
    }
}

static void an_arch_without_the_norms_of_the_checkpoint_is_refused(void **state)
{
    struct error err = {0};
    struct model_shape g = {.family = FAMILY_EVA, .heads = 2, .parts = PARTS_KNOWN | PART_QKV_BIAS};
    struct weights *w = golden_open("towers", "eva02", "model.safetensors");
    assert_int_equal(model_shape_infer(&g, w, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "attention"));
    weights_close(w);
}

static void layerscale_and_post_norm_are_refused_together(void **state)
{
    struct error err = {0};
    struct model_shape g = {.heads = 2, .norms = POST_NORM};
    struct weights *w = golden_open("towers", "eva-layerscale", "model.safetensors");
    assert_int_equal(model_shape_infer(&g, w, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "LayerScale"));
    weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tensor_of_the_tower_that_nothing_reads_is_refused_by_name),
        cmocka_unit_test(tensors_without_effect_or_outside_the_tower_are_skipped),
        cmocka_unit_test(a_message_names_the_tensor_that_can_be_explained_and_counts_the_others),
        cmocka_unit_test(a_published_post_norm_tower_is_known_by_its_width),
        cmocka_unit_test(a_norm_inside_a_branch_is_there_in_every_block_or_the_file_is_refused),
        cmocka_unit_test(an_arch_without_the_norms_of_the_checkpoint_is_refused),
        cmocka_unit_test(layerscale_and_post_norm_are_refused_together),
        cmocka_unit_test(control_characters_of_a_name_do_not_reach_the_message),
        cmocka_unit_test(a_missing_tensor_or_one_of_another_shape_is_found_before_anything_is_read),
    };
    return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
