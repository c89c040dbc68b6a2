/* Several micro-batches group by group (tower_forward_group, tower_backward_group): outputs, losses and the
 * gradients of each micro-batch have the bits of whole passes, so does a second backward pass. Stages of a
 * pipeline, which hand over the stream, have those of one tower. The account of memory. Tiny towers, random
 * weights. On a card: MEOPT_TEST_DEVICE=hip:0. */
#include "core/nn/tower_memory.h"
#include "tests/train/random_tower.h"

enum {
    SLOTS = 3,
    BATCH = 2,
    SIDE = 28,
    PIXELS = 3 * SIDE * SIDE,
    CONTEXT = 12,
    VOCABULARY = 70,
    GROUPS = 8,
    STAGES = 3
};

#define SMALL .width = 64, .hidden = 48, .depth = 3
static const struct model_shape shapes[] = {
    {.family = FAMILY_EVA, .width = 88, .hidden = 176, .out = 32, .depth = 3, .image = SIDE},
    {.family = FAMILY_OPENCLIP, .width = 160, .hidden = 320, .out = 48, .depth = 2, .image = SIDE},
    {.family = FAMILY_DINOV2, SMALL, .image = SIDE, .pos_grid = 3, .ffn = 1 + ACTIVATION_SWIGLU},
    {.family = FAMILY_EVA, /* EVA02 */
     SMALL,
     .out = 16,
     .image = SIDE,
     .ffn = 1 + ACTIVATION_SWIGLU,
     .pool = POOL_AVG,
     .parts = PARTS_KNOWN | PART_QKV_BIAS | PART_ATTN_NORM | PART_FFN_NORM},
    {.family = FAMILY_EVA, SMALL, .out = 16, .image = SIDE, .norms = POST_NORM},
    {.family = FAMILY_DINOV3, SMALL, .patch = 14, .image = SIDE, .registers = 2, .pool = POOL_AVG_FIRST},
    {.family = FAMILY_DINOV2, SMALL, .image = SIDE, .pool = POOL_CLS_AVG, .classes = 5},
    {.family = FAMILY_OPENCLIP, /* CoCa */
     SMALL,
     .out = 24,
     .image = SIDE,
     .parts = PARTS_KNOWN | PART_PRE_NORM | PART_QKV_BIAS | PART_ATTN_POOL,
     .pool_queries = 3,
     .pool_heads = 3},
    {.family = FAMILY_GPT2, SMALL, .heads = 4, .vocabulary = VOCABULARY, .context = CONTEXT, .tied = true},
    {.family = FAMILY_LLAMA, /* Qwen3 */
     SMALL,
     .heads = 4,
     .kv_heads = 2,
     .parts = PARTS_KNOWN | PART_QK_NORM,
     .vocabulary = VOCABULARY,
     .context = CONTEXT},
    {.family = FAMILY_BERT, SMALL, .heads = 4, .vocabulary = VOCABULARY, .context = CONTEXT, .tied = true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct subject {
    struct device *device;
    struct tower *tower;
    struct batch batch[SLOTS];
    float *dout[SLOTS];
    double *sums;
};

/* The tokens of a micro-batch, their labels and order. */
static void set_tokens(struct subject *s, int slot)
{
    enum { COUNT = BATCH * CONTEXT };
    int32_t tokens[COUNT], labels[COUNT], order[COUNT], n = 0;
    struct batch *b = &s->batch[slot];
    for (int i = 0; i < COUNT; i++) tokens[i] = (i * 7 + slot * 13) % 29;
    for (int i = 0; i < COUNT; i++) labels[i] = i % 5 ? (tokens[i] + 1) % VOCABULARY : -1;
    for (int token = 0; token < VOCABULARY; token++)
        for (int i = 0; i < b->count * CONTEXT; i++)
            if (tokens[i] == token) order[n++] = i;
    int32_t picked[COUNT], each = (int32_t)s->tower->out_rows; /* of an encoder */
    for (int i = 0; i < b->count * each; i++)
        picked[i] = i / each * CONTEXT + (i % each + 1) * CONTEXT / each - 1;
    b->picked = upload(s->device, picked, sizeof picked);
    b->input = upload(s->device, tokens, sizeof tokens);
    b->labels = upload(s->device, labels, sizeof labels);
    b->order = upload(s->device, order, sizeof order);
    b->sums = s->sums + 2 * slot;
    b->weight = 0.03f;
}

static struct subject subject_open(const char *spec, struct model_shape g, struct tower_options options)
{
    struct subject s = {0};
    options.batch = BATCH;
    if (!random_tower(&s.device, &s.tower, spec, g, options)) return s;
    static const double zeros[2 * SLOTS];
    s.sums = upload(s.device, zeros, sizeof zeros);
    for (int slot = 0; slot < SLOTS; slot++) {
        int64_t count = slot == SLOTS - 1 ? BATCH - 1 : BATCH;
        float keep[2 * GROUPS * BATCH];
        for (int i = 0; i < 2 * GROUPS * BATCH; i++) keep[i] = (i + slot) % 4 ? 1.25f : 0;
        s.batch[slot].count = count;
        s.batch[slot].keep = upload(s.device, keep, sizeof keep);
        if (s.tower->owns_loss) {
            set_tokens(&s, slot);
            continue;
        }
        s.batch[slot].input = noise(s.device, BATCH * PIXELS, 1 + (uint32_t)slot);
        s.dout[slot] = noise(s.device, BATCH * s.tower->out_rows * s.tower->out_width, 20 + (uint32_t)slot);
    }
    return s;
}

static void subject_close(struct subject *s)
{
    tower_close(s->tower);
    device_close(s->device);
}

/* What each micro-batch gives: its output or sums, and its gradients by parameter. */
struct results {
    struct subject *s;
    int slot, count;
    void *out[SLOTS], **gradients[SLOTS];
};

static int collect(void *context, int group, struct error *err)
{
    struct results *r = context;
    const struct tower *t = r->s->tower;
    (void)err;
    for (int i = 0; i < t->parameter_count; i++) {
        const struct parameter *p = &t->parameters[i];
        if (!p->trained || p->group != group) continue;
        free(r->gradients[r->slot][i]);
        r->gradients[r->slot][i] =
            downloaded(r->s->device, p->grad, (size_t)p->count * dtype_bytes(p->grad_type));
    }
    return 0;
}

static size_t out_bytes(const struct results *r, int slot)
{
    const struct tower *t = r->s->tower;
    return t->owns_loss ? 2 * sizeof(double)
                        : (size_t)(r->s->batch[slot].count * t->out_rows * t->out_width) * sizeof(float);
}

static void keep_out(struct results *r, int slot)
{
    const void *from = r->s->tower->owns_loss ? (void *)r->s->batch[slot].sums : r->s->tower->out;
    r->out[slot] = downloaded(r->s->device, from, out_bytes(r, slot));
}

static struct results results_of(struct subject *s)
{
    struct results r = {.s = s, .count = s->tower->parameter_count};
    for (int slot = 0; slot < SLOTS; slot++)
        r.gradients[slot] = xcalloc((size_t)r.count, sizeof **r.gradients);
    return r;
}

static void results_free(struct results *r)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        for (int i = 0; i < r->count; i++) free(r->gradients[slot][i]);
        free(r->gradients[slot]);
        free(r->out[slot]);
    }
}

/* One micro-batch after the other. */
static void depth_first(struct results *r)
{
    struct subject *s = r->s;
    struct error err = {0};
    for (r->slot = 0; r->slot < SLOTS; r->slot++) {
        const struct batch *b = &s->batch[r->slot];
        tower_forward(s->tower, b);
        if (!s->tower->owns_loss) keep_out(r, r->slot);
        if (tower_backward(s->tower, b, s->dout[r->slot], true, true, collect, r, &err) ||
            device_check(s->device, &err))
            fail_msg("%s", err.what);
        if (s->tower->owns_loss) keep_out(r, r->slot);
    }
}

/* One group after the other. */
static void breadth_first(struct results *r, int passes)
{
    struct subject *s = r->s;
    struct tower *t = s->tower;
    struct error err = {0};
    for (int group = 0; group < t->group_count; group++)
        for (int slot = 0; slot < SLOTS; slot++) {
            tower_forward_group(t, &s->batch[slot], slot, group);
            if (group == t->group_count - 1 && !t->owns_loss) keep_out(r, slot);
        }
    for (int pass = 0; pass < passes; pass++)
        for (int group = t->group_count - 1; group >= t->lowest; group--)
            for (r->slot = 0; r->slot < SLOTS; r->slot++) {
                tower_backward_group(t, &s->batch[r->slot], s->dout[r->slot], r->slot, group);
                collect(r, group, &err);
                if (!pass && group == t->group_count - 1 && t->owns_loss) keep_out(r, r->slot);
            }
    if (device_check(s->device, &err)) fail_msg("%s", err.what);
}

static void compare(const struct results *one, const struct results *other)
{
    const struct tower *t = one->s->tower;
    for (int slot = 0; slot < SLOTS; slot++) {
        assert_memory_equal(one->out[slot], other->out[slot], out_bytes(one, slot));
        for (int i = 0; i < t->parameter_count; i++) {
            const struct parameter *p = &t->parameters[i];
            if (p->trained && memcmp(one->gradients[slot][i], other->gradients[slot][i],
                                     (size_t)p->count * dtype_bytes(p->grad_type)) != 0)
                fail_msg("%s of micro-batch %d has other bits", p->name, slot);
        }
    }
}

static struct tower_options options_of(enum dtype type, int frozen)
{
    return (struct tower_options){.compute = type,
                                  .weight_type = type,
                                  .grad_type = type,
                                  .gradients = GRADIENTS_RELEASE,
                                  .frozen = frozen};
}

/* On a card fewer forms of towers with a projection, with pooling by attention, and with a tied table. */
static bool on_card(void) { return getenv("MEOPT_TEST_DEVICE") != NULL; }
static int next_shape(int g) { return on_card() ? (g ? g + 1 : SHAPES - 3) : g + 1; }

static void groups_of_slots_have_the_bits_of_whole_passes(void **state)
{
    for (int g = 0; g < SHAPES; g = next_shape(g))
        for (int type = on_card(); type < 2; type++)
            for (int frozen = 0; frozen <= (type ? 2 : 0); frozen += 2) {
                struct tower_options options = options_of(type ? DTYPE_BF16 : DTYPE_F32, frozen);
                struct subject depth = subject_open(device_spec(), shapes[g], options);
                struct results expected = results_of(&depth);
                depth_first(&expected);
                options.slots = SLOTS;
                options.recompute = RECOMPUTE_BLOCK;
                for (int twice = on_card(); twice <= type; twice++) {
                    options.backward_twice = twice;
                    options.gradient_buffers = 1 + twice;
                    struct subject breadth = subject_open(device_spec(), shapes[g], options);
                    struct results found = results_of(&breadth);
                    breadth_first(&found, 1 + twice);
                    compare(&expected, &found);
                    results_free(&found);
                    subject_close(&breadth);
                }
                results_free(&expected);
                subject_close(&depth);
            }
}

/* Copies a slot's stream from the stage of one group to that of the next. */
static void hand_over(struct subject *stages, int count, int from, int to, int slot)
{
    struct subject *a = &stages[stage_of_group(count, stages->tower->group_count, from)],
                   *b = &stages[stage_of_group(count, stages->tower->group_count, to)];
    size_t bytes = (size_t)(a->batch[slot].count * a->tower->tokens * a->tower->model_shape.width) * 4;
    if (a == b) return;
    void *stream = downloaded(a->device, tower_slot_stream(a->tower, slot), bytes);
    b->device->upload(b->device, tower_slot_stream(b->tower, slot), stream, bytes);
    free(stream);
}

/* The stages of a pipeline in turn. */
static void stage_by_stage(struct results *r, struct subject *stages, int count, int passes)
{
    struct error err = {0};
    int last = stages->tower->group_count - 1;
    for (int group = 0; group <= last; group++)
        for (int slot = 0; slot < SLOTS; slot++) {
            struct subject *s = &stages[stage_of_group(count, last + 1, group)];
            tower_forward_group(s->tower, &s->batch[slot], slot, group);
            if (group == last && !s->tower->owns_loss) keep_out(r, slot);
            if (group < last) hand_over(stages, count, group, group + 1, slot);
        }
    for (int pass = 0; pass < passes; pass++)
        for (int group = last, lowest = stages->tower->lowest; group >= lowest; group--)
            for (r->slot = 0; r->slot < SLOTS; r->slot++) {
                struct subject *s = r->s = &stages[stage_of_group(count, last + 1, group)];
                tower_backward_group(s->tower, &s->batch[r->slot], s->dout[r->slot], r->slot, group);
                collect(r, group, &err);
                if (!pass && group == last && s->tower->owns_loss) keep_out(r, r->slot);
                if (group > lowest) hand_over(stages, count, group, group - 1, r->slot);
            }
    r->s = stages;
    for (int i = 0; i < count; i++)
        if (device_check(stages[i].device, &err)) fail_msg("%s", err.what);
}

static void stages_have_the_bits_of_one_tower(void **state)
{
    for (int g = 0; g < SHAPES; g = next_shape(g))
        for (int count = on_card() ? STAGES : 2; count <= STAGES; count++) {
            struct tower_options options = options_of(DTYPE_BF16, count == 2 && g % 2 ? 2 : 0);
            struct subject whole = subject_open(device_spec(), shapes[g], options), stages[STAGES];
            struct results expected = results_of(&whole);
            depth_first(&expected);
            options.slots = SLOTS;
            options.recompute = RECOMPUTE_BLOCK;
            options.stages = count;
            options.backward_twice = count == 2;
            options.gradient_buffers = 1 + g % 2;
            size_t weights = 0;
            for (options.stage = 0; options.stage < count; options.stage++) {
                struct subject *s = &stages[options.stage];
                *s = subject_open(device_spec(), shapes[g], options);
                for (int i = 0; i < s->tower->parameter_count; i++) {
                    const struct parameter *p = &s->tower->parameters[i];
                    assert_true((p->weight != NULL) == tower_owns(s->tower, p->group));
                }
                weights += s->device->use.current_bytes[MEMORY_WEIGHTS];
            }
            assert_int_equal(weights, whole.device->use.current_bytes[MEMORY_WEIGHTS]);
            struct results found = results_of(stages);
            stage_by_stage(&found, stages, count, 1 + options.backward_twice);
            compare(&expected, &found);
            results_free(&found);
            results_free(&expected);
            for (int i = 0; i < count; i++) subject_close(&stages[i]);
            subject_close(&whole);
        }
}

/* A tower with slots computes whole passes in its first one. */
static void whole_passes_of_a_tower_with_slots_are_the_same(void **state)
{
    for (int g = 0; g < SHAPES; g = next_shape(g)) {
        struct tower_options options = options_of(DTYPE_BF16, 0);
        struct subject one = subject_open(device_spec(), shapes[g], options);
        options.slots = SLOTS;
        options.recompute = RECOMPUTE_BLOCK;
        options.gradient_buffers = 2;
        struct subject several = subject_open(device_spec(), shapes[g], options);
        struct results expected = results_of(&one), found = results_of(&several);
        depth_first(&expected);
        tower_select(several.tower, SLOTS - 1);
        depth_first(&found);
        compare(&expected, &found);
        results_free(&expected);
        results_free(&found);
        subject_close(&one);
        subject_close(&several);
    }
}

/* With two buffers a gradient stays until those of the next call are complete. */
static void two_buffers_take_turns(void **state)
{
    for (int g = 0; g < SHAPES; g = next_shape(g)) {
        struct tower_options options = options_of(DTYPE_BF16, 0);
        options.slots = SLOTS;
        options.recompute = RECOMPUTE_BLOCK;
        options.gradient_buffers = 2;
        struct subject s = subject_open(device_spec(), shapes[g], options);
        for (int group = 0; group < s.tower->group_count; group++)
            for (int slot = 0; slot < SLOTS; slot++)
                tower_forward_group(s.tower, &s.batch[slot], slot, group);
        struct gradient_span before = {0};
        for (int group = s.tower->group_count - 1; group >= 0; group--)
            for (int slot = 0; slot < SLOTS; slot++) {
                void *then = before.p ? downloaded(s.device, before.p, before.bytes) : NULL;
                tower_backward_group(s.tower, &s.batch[slot], s.dout[slot], slot, group);
                void *now = before.p ? downloaded(s.device, before.p, before.bytes) : NULL;
                if (then) assert_memory_equal(then, now, before.bytes);
                free(then);
                free(now);
                before = tower_group_gradients(s.tower, group);
            }
        subject_close(&s);
    }
}

static void add_bytes(void *context, enum memory_class class, const char *name, size_t bytes)
{
    (void)name;
    if (class == MEMORY_ACTIVATIONS) *(size_t *)context += bytes;
}

/* Sizes are rounded up to 64 bytes in memory, so the tensors are at most a few KB less. */
static void the_account_counts_every_slot(void **state)
{
    for (int g = 0; g < 4 * SHAPES; g++)
        for (int trained = 0; trained < 2; trained++) {
            struct tower_options options = options_of(DTYPE_BF16, 0);
            options.slots = SLOTS;
            options.recompute = RECOMPUTE_BLOCK;
            options.stages = g / SHAPES;
            options.stage = options.stages > 1 ? options.stages - 2 : 0;
            if (!trained) options.gradients = GRADIENTS_NONE;
            struct subject s = subject_open("dry", shapes[g % SHAPES], options);
            size_t held = s.device->use.peak_bytes[MEMORY_ACTIVATIONS], counted = 0;
            tower_explain(s.tower, add_bytes, &counted);
            assert_in_range(counted, 1, held);
            assert_true(held - counted < held / 20 + 8192);
            subject_close(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_slots_have_the_bits_of_whole_passes),
        cmocka_unit_test(stages_have_the_bits_of_one_tower),
        cmocka_unit_test(whole_passes_of_a_tower_with_slots_are_the_same),
        cmocka_unit_test(two_buffers_take_turns),
        cmocka_unit_test(the_account_counts_every_slot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
