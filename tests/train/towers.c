/* Towers from the inside: the parameter groups of gradients, bit-identical results with two release
 * buffers, and a different kind of input through embed and head functions over the same blocks. Tiny
 * towers of every family, random weights. On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "tests/train/random_tower.h"

#include <stdio.h>

enum { BATCH = 2, SIDE = 28, PIXELS = 3 * SIDE * SIDE };

static const struct model_shape geometries[] = {
    {.family = FAMILY_EVA, .width = 88, .hidden = 176, .out = 32, .depth = 3, .image = SIDE},
    {.family = FAMILY_OPENCLIP, .width = 160, .hidden = 320, .out = 48, .depth = 2, .image = SIDE},
    {.family = FAMILY_DINOV2,
     .width = 64,
     .hidden = 96,
     .depth = 3,
     .image = SIDE,
     .pos_grid = 3,
     .ffn = 1 + ACTIVATION_SWIGLU},
    {.family = FAMILY_EVA, /* EVA02: rotary positions, norms inside the branches */
     .width = 64,
     .hidden = 48,
     .out = 16,
     .depth = 2,
     .image = SIDE,
     .ffn = 1 + ACTIVATION_SWIGLU,
     .pool = POOL_AVG,
     .parts = PARTS_KNOWN | PART_QKV_BIAS | PART_ATTN_NORM | PART_FFN_NORM},
    {.family = FAMILY_EVA,
     .width = 64,
     .hidden = 48,
     .out = 16,
     .depth = 2,
     .image = SIDE,
     .norms = POST_NORM},
    {.family = FAMILY_DINOV3,
     .width = 64,
     .hidden = 48,
     .depth = 2,
     .patch = 14,
     .image = SIDE,
     .registers = 2,
     .pool = POOL_AVG_FIRST},
    {.family = FAMILY_DINOV2, /* no class token */
     .width = 64,
     .hidden = 48,
     .depth = 2,
     .image = SIDE,
     .pos_grid = 3,
     .registers = 2,
     .classless = true},
    {.family = FAMILY_OPENCLIP, /* CoCa */
     .width = 64,
     .hidden = 48,
     .out = 24,
     .depth = 2,
     .image = SIDE,
     .parts = PARTS_KNOWN | PART_PRE_NORM | PART_QKV_BIAS | PART_ATTN_POOL,
     .pool_queries = 3,
     .pool_heads = 3},
};
enum { GEOMETRIES = sizeof geometries / sizeof *geometries };

struct subject {
    struct device *device;
    struct tower *tower;
    float *images, *dout;
};

static struct subject subject_open(const char *spec, struct model_shape g, struct tower_options options)
{
    struct subject s = {0};
    options.batch = BATCH;
    if (!random_tower(&s.device, &s.tower, spec, g, options)) return s;
    s.images = noise(s.device, BATCH * PIXELS, 1);
    s.dout = noise(s.device, BATCH * s.tower->out_rows * s.tower->out_width, 2);
    return s;
}

static void subject_close(struct subject *s)
{
    tower_close(s->tower);
    device_close(s->device);
}

static struct tower_options options_of(enum gradient_storage gradients, int buffers, enum dtype type)
{
    return (struct tower_options){.compute = type,
                                  .weight_type = type,
                                  .grad_type = type,
                                  .gradients = gradients,
                                  .gradient_buffers = buffers};
}

/* ---- Spans ------------------------------------------------------------------------------------------- */

static bool apart(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a + a_bytes <= b || b + b_bytes <= a;
}

static void check_parameters(const struct tower *t)
{
    for (int i = 0; i < t->parameter_count; i++) {
        const struct parameter *p = &t->parameters[i];
        if (!p->trained) {
            assert_null(p->grad);
            continue;
        }
        struct gradient_span span = tower_group_gradients(t, p->group);
        size_t bytes = (size_t)p->count * dtype_bytes(p->grad_type);
        const char *grad = p->grad, *begin = (char *)span.p + (p->matrix ? span.f32_bytes : 0),
                   *end = (char *)span.p + (p->matrix ? span.bytes : span.f32_bytes);
        if (grad < begin || grad + bytes > end) fail_msg("%s: outside its group's span", p->name);
        assert_int_equal(p->grad_type, p->matrix ? t->options.grad_type : DTYPE_F32);
        for (int k = 0; k < i; k++) {
            const struct parameter *q = &t->parameters[k];
            if (q->trained && q->group == p->group &&
                !apart(grad, bytes, q->grad, (size_t)q->count * dtype_bytes(q->grad_type)))
                fail_msg("%s and %s share gradients", q->name, p->name);
        }
    }
}

static void a_groups_span_holds_each_of_its_gradients_once(void **state)
{
    for (int g = 0; g < GEOMETRIES; g++)
        for (int buffers = 0; buffers <= 2; buffers++) { /* 0: kept */
            struct subject s =
                subject_open("dry", geometries[g],
                             options_of(buffers ? GRADIENTS_RELEASE : GRADIENTS_KEEP, buffers, DTYPE_BF16));
            check_parameters(s.tower);
            size_t total = 0;
            for (int group = 0; group < s.tower->group_count; group++) {
                struct gradient_span span = tower_group_gradients(s.tower, group);
                total += span.bytes;
                assert_true(span.f32_bytes <= span.bytes && span.bytes > 0);
                for (int other = 0; other < group; other++) {
                    struct gradient_span o = tower_group_gradients(s.tower, other);
                    bool both_held = !buffers || (buffers == 2 && other == group - 1);
                    if (both_held) assert_true(apart(span.p, span.bytes, o.p, o.bytes));
                    else if (buffers == 1 || other == group - 2) assert_ptr_equal(span.p, o.p);
                }
            }
            size_t held = s.device->use.peak_bytes[MEMORY_GRADIENTS];
            if (buffers) assert_true(held < total);
            else assert_int_equal(held, total);
            subject_close(&s);
        }
}

static void a_frozen_tower_has_no_spans(void **state)
{
    struct subject s = subject_open("dry", geometries[0], options_of(GRADIENTS_NONE, 0, DTYPE_F32));
    for (int group = 0; group < s.tower->group_count; group++) {
        struct gradient_span span = tower_group_gradients(s.tower, group);
        assert_true(!span.p && !span.bytes && !span.f32_bytes);
    }
    subject_close(&s);
}

/* ---- Release buffers --------------------------------------------------------------------------------- */

struct collected {
    struct subject *subject;
    void *groups[8]; /* copies of the spans */
    bool former;     /* what the call before was given still stands */
};

static int collect(void *context, int group, struct error *err)
{
    struct collected *c = context;
    (void)err;
    struct gradient_span span = tower_group_gradients(c->subject->tower, group);
    c->groups[group] = downloaded(c->subject->device, span.p, span.bytes);
    if (c->former && group + 1 < c->subject->tower->group_count) {
        struct gradient_span before = tower_group_gradients(c->subject->tower, group + 1);
        void *now = downloaded(c->subject->device, before.p, before.bytes);
        assert_memory_equal(now, c->groups[group + 1], before.bytes);
        free(now);
    }
    return 0;
}

static void run(struct subject *s, struct collected *c)
{
    struct error err = {0};
    const struct batch batch = {.input = s->images, .count = BATCH};
    c->subject = s;
    tower_forward(s->tower, &batch);
    if (tower_backward(s->tower, &batch, s->dout, true, true, collect, c, &err) ||
        device_check(s->device, &err))
        fail_msg("%s", err.what);
}

static bool same_parameter(const struct parameter *p, const struct tower *a, const struct collected *one,
                           const struct collected *two)
{
    size_t at = (size_t)((char *)p->grad - (char *)tower_group_gradients(a, p->group).p);
    return memcmp((char *)one->groups[p->group] + at, (char *)two->groups[p->group] + at,
                  (size_t)p->count * dtype_bytes(p->grad_type)) == 0;
}

static void two_release_buffers_change_no_bit_and_keep_the_former_group(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int g = 0; g < GEOMETRIES; g++)
        for (int type = 0; type < 2; type++) {
            struct subject one = subject_open(device_spec(), geometries[g],
                                              options_of(GRADIENTS_RELEASE, 1, types[type])),
                           two = subject_open(device_spec(), geometries[g],
                                              options_of(GRADIENTS_RELEASE, 2, types[type]));
            struct collected of_one = {0}, of_two = {.former = true};
            run(&one, &of_one);
            run(&two, &of_two);
            for (int i = 0; i < one.tower->parameter_count; i++) {
                const struct parameter *p = &one.tower->parameters[i];
                if (p->trained && !same_parameter(p, one.tower, &of_one, &of_two))
                    fail_msg("%s: other bits with two buffers", p->name);
            }
            for (int group = 0; group < one.tower->group_count; group++) {
                free(of_one.groups[group]);
                free(of_two.groups[group]);
            }
            subject_close(&one);
            subject_close(&two);
        }
}

static void a_dry_tower_counts_two_buffers_as_a_real_one_takes_them(void **state)
{
    char dry[64];
    snprintf(dry, sizeof dry, "dry:%.*s", (int)strcspn(device_spec(), ":"), device_spec());
    for (int g = 0; g < GEOMETRIES; g++) {
        size_t bytes[2][2];
        for (int buffers = 1; buffers <= 2; buffers++)
            for (int real = 0; real < 2; real++) {
                struct subject s = subject_open(real ? device_spec() : dry, geometries[g],
                                                options_of(GRADIENTS_RELEASE, buffers, DTYPE_BF16));
                bytes[buffers - 1][real] = s.device->use.peak_bytes[MEMORY_GRADIENTS];
                subject_close(&s);
            }
        assert_int_equal(bytes[0][0], bytes[0][1]);
        assert_int_equal(bytes[1][0], bytes[1][1]);
        assert_true(bytes[1][0] > bytes[0][0] && bytes[1][0] <= 2 * bytes[0][0]);
    }
}

/* ---- Another model over the same blocks -------------------------------------------------------------- */

/* Input: the embedded tokens themselves, F32 (count, N, D). */
static void tokens_embed(struct tower *t, const struct batch *in)
{
    t->device->ops->copy(t->device, tower_stream(t), in->input,
                         (size_t)(in->count * t->tokens * t->model_shape.width) * sizeof(float));
}
static void tokens_embed_backward(const struct pass *pass) { (void)pass; }

static void another_kind_of_input_is_another_embed_over_the_same_blocks(void **state)
{
    for (int g = 0; g < GEOMETRIES; g++) {
        struct subject image = subject_open(device_spec(), geometries[g],
                                            options_of(GRADIENTS_KEEP, 0, DTYPE_F32)),
                       tokens = subject_open(device_spec(), geometries[g],
                                             options_of(GRADIENTS_KEEP, 0, DTYPE_F32));
        struct tower *t = tokens.tower;
        struct model model = *t->model;
        model.embed = tokens_embed;
        model.embed_backward = tokens_embed_backward;
        t->model = &model;

        struct error err = {0};
        const struct batch pixels = {.input = image.images, .count = BATCH};
        int64_t values = BATCH * t->tokens * t->model_shape.width;
        float *embedded = noise(tokens.device, values, 3);
        image.tower->model->embed(image.tower, &pixels);
        void *x = downloaded(image.device, tower_stream(image.tower), (size_t)values * sizeof(float));
        tokens.device->upload(tokens.device, embedded, x, (size_t)values * sizeof(float));
        free(x);
        const struct batch batch = {.input = embedded, .count = BATCH};
        tower_forward(image.tower, &pixels);
        tower_forward(t, &batch);
        if (tower_backward(image.tower, &pixels, image.dout, true, true, NULL, NULL, &err) ||
            tower_backward(t, &batch, tokens.dout, true, true, NULL, NULL, &err))
            fail_msg("%s", err.what);
        size_t out_bytes = (size_t)(BATCH * t->out_rows * t->out_width) * sizeof(float);
        void *a = downloaded(image.device, image.tower->out, out_bytes),
             *b = downloaded(tokens.device, t->out, out_bytes);
        assert_memory_equal(a, b, out_bytes);
        free(a);
        free(b);
        for (int group = 1; group < t->group_count; group++) {
            struct gradient_span span = tower_group_gradients(t, group);
            a = downloaded(image.device, tower_group_gradients(image.tower, group).p, span.f32_bytes);
            b = downloaded(tokens.device, span.p, span.f32_bytes);
            assert_memory_equal(a, b, span.f32_bytes);
            free(a);
            free(b);
        }
        subject_close(&image);
        subject_close(&tokens);
    }
}

/* ---- What nothing says ------------------------------------------------------------------------------- */

/* Of the vision configurations of open_clip, EVA, DINOv2, timm and transformers, by width. */
static void heads_are_those_of_the_published_towers_of_that_width(void **state)
{
    static const int64_t published[][2] = {{192, 3},   {384, 6},   {512, 8},   {640, 10},
                                           {768, 12},  {896, 14},  {1024, 16}, {1280, 16},
                                           {1408, 16}, {1536, 24}, {1664, 16}, {1792, 16}};
    struct error err = {0};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        for (enum family family = FAMILY_EVA; family <= FAMILY_DINOV2; family++) {
            struct model_shape g = {.family = family,
                                    .width = published[i][0],
                                    .out = published[i][0],
                                    .depth = 1,
                                    .image = 224,
                                    .patch = 14};
            char text[256];
            assert_int_equal(model_shape_check(&g, 0, &err), 0);
            assert_int_equal(g.heads, published[i][1]);
            model_shape_text(&g, text, sizeof text);
            assert_true(fact_assumed(&g, FACT_HEADS));
            assert_non_null(strstr(text, "assumed"));
            g.heads = 0;
            assert_int_equal(model_shape_check(&g, 32, &err), 0); /* said, so not assumed */
            assert_int_equal(g.heads, published[i][0] / 32);
            assert_false(fact_assumed(&g, FACT_HEADS));
        }
    struct model_shape odd = {
        .family = FAMILY_OPENCLIP, .width = 100, .out = 64, .depth = 1, .image = 224, .patch = 14};
    assert_int_equal(model_shape_check(&odd, 0, &err), EXIT_CONFIG);
    assert_non_null(strstr(err.what, "100"));
}

/* Of every pooling: an embedding that is the output is not rounded to bf16. */
static void an_embedding_without_projection_is_fp32(void **state)
{
    for (enum pool pool = POOL_CLS; pool <= POOL_CLS_DIST; pool++) {
        struct model_shape g = {
            .family = FAMILY_DINOV2, .width = 64, .hidden = 48, .depth = 2, .image = SIDE};
        g.registers = 1;
        g.pool = pool;
        struct subject s = subject_open(device_spec(), g, options_of(GRADIENTS_NONE, 0, DTYPE_BF16));
        tower_forward(s.tower, &(struct batch){.input = s.images, .count = BATCH});
        int64_t count = BATCH * s.tower->out_width, wide = 0;
        uint32_t *out = downloaded(s.device, s.tower->out, (size_t)count * sizeof *out);
        for (int64_t i = 0; i < count; i++) wide += (out[i] & 0xFFFF) != 0;
        assert_true(wide > count / 2);
        free(out);
        subject_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_groups_span_holds_each_of_its_gradients_once),
        cmocka_unit_test(a_frozen_tower_has_no_spans),
        cmocka_unit_test(two_release_buffers_change_no_bit_and_keep_the_former_group),
        cmocka_unit_test(a_dry_tower_counts_two_buffers_as_a_real_one_takes_them),
        cmocka_unit_test(heads_are_those_of_the_published_towers_of_that_width),
        cmocka_unit_test(an_embedding_without_projection_is_fp32),
        cmocka_unit_test(another_kind_of_input_is_another_embed_over_the_same_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
