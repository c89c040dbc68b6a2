/* The memory of a tower: all of it is allocated by class when the tower is created, so that a plan counts
 * it. */
#include "core/nn/tower.h"
#include "core/model/parameters.h"
#include "core/model/positions.h"
#include "core/base/memory.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

/* EVA has a bias for q and v but none for k (baaivision/EVA, eva_vit_model.py: q_bias, v_bias). Both are
 * stored in one (3D) array with zeros between them, so that the GEMM has one bias. The array is taken at
 * ROLE_Q_B; ROLE_V_B points into it. */
static int64_t stored_count(const struct parameter *p)
{
    return p->role == ROLE_Q_B ? 3 * p->count : p->role == ROLE_V_B ? 0 : p->count;
}

/* Lays out weights of a group from *at: F32 vectors first, then the matrices, like the gradients. If groups
 * share buffers, there are two kinds: those that use the buffers, and those that stay in memory. Returns the
 * bytes of the group, by which *at advances unless it is another stage's. */
static size_t lay_weights(struct tower *t, int group, bool staying, size_t *at, size_t *masters_at)
{
    struct tower_memory *m = t->memory;
    bool own = tower_owns(t, group);
    size_t begin = *at, end = begin;
    for (int matrices = 0; matrices < 2; matrices++) {
        for (int i = 0; i < t->parameter_count; i++) {
            struct parameter *p = &t->parameters[i];
            if (p->group != group || p->matrix != (matrices == 1)) continue;
            if (t->options.weight_buffers && p->resident != staying) continue;
            p->weight_type = p->matrix ? t->options.weight_type : DTYPE_F32;
            if (!tower_owns_slice(t, p)) continue;
            size_t here = tower_place(&end, (size_t)stored_count(p) * dtype_bytes(p->weight_type));
            p->weight_at =
                p->role == ROLE_V_B ? p[-1].weight_at + 2 * (size_t)p->count * sizeof(float) : here - begin;
            if (!own) continue;
            if (m->weights)
                p->weight = p->role == ROLE_V_B ? (float *)p[-1].weight + 2 * p->count
                                                : (void *)((char *)m->weights + here);
            if (!t->options.master || p->weight_type != DTYPE_BF16 || !p->trained) continue;
            here = tower_place(masters_at, (size_t)p->count * sizeof(float));
            if (m->masters) p->master = (float *)(void *)((char *)m->masters + here);
        }
    }
    if (own) *at = end;
    return end - begin;
}

int tower_weight_buffer(const struct tower *t, int group)
{
    return group == 0 && tower_tied(t) ? 2 : tower_own_index(t, group) % t->options.weight_buffers;
}

/* Lays out the groups that share one buffer, or two, at *at, in whole pages: the O_DIRECT reads of
 * core/step/weight_stream.c then stay inside a group's buffer. */
static void lay_turns(struct tower *t, size_t *at)
{
    struct tower_memory *m = t->memory;
    size_t begin[WEIGHT_BUFFERS + 1] = {*at}, largest[WEIGHT_BUFFERS] = {0}, none = 0;
    for (int group = 0; group < t->group_count; group++) {
        size_t end = 0;
        m->weight_bytes[group] = lay_weights(t, group, false, &end, &none);
        size_t *of = &largest[tower_weight_buffer(t, group)];
        *of = larger(*of, (end + PAGE - 1) & ~(size_t)(PAGE - 1));
    }
    for (int i = 0; i < WEIGHT_BUFFERS; i++) begin[i + 1] = begin[i] + largest[i];
    for (int group = 0; group < t->group_count; group++) {
        size_t here = m->weight_offset[group] = begin[tower_weight_buffer(t, group)];
        lay_weights(t, group, false, &here, &none);
    }
    *at = begin[WEIGHT_BUFFERS];
}

static int alloc_weights(struct tower *t, struct error *err)
{
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    size_t bytes = 0, master_bytes = 0;
    m->weight_offset = xcalloc((size_t)t->group_count, sizeof *m->weight_offset);
    m->weight_bytes = xcalloc((size_t)t->group_count, sizeof *m->weight_bytes);
    for (int pass = 0; pass < 2; pass++) {
        bytes = master_bytes = 0;
        if (o->weight_buffers) lay_turns(t, &bytes);
        for (int group = 0; group < t->group_count; group++) {
            size_t begin = bytes, own = lay_weights(t, group, true, &bytes, &master_bytes);
            if (o->weight_buffers) continue;
            m->weight_offset[group] = begin;
            m->weight_bytes[group] = own;
        }
        if (pass) break;
        m->weights = device_alloc(
            t->device, o->weights_class, bytes,
            o->weight_buffers ? N_("weights of the blocks that are computed") : N_("tower weights"), err);
        if (!m->weights) return err->code;
        if (master_bytes && !(m->masters = device_alloc(t->device, o->weights_class, master_bytes,
                                                        "fp32 master weights", err)))
            return err->code;
    }
    t->device->ops->fill(t->device, m->weights, 0, bytes); /* the k part of EVA's bias stays zero */
    return 0;
}

struct weight_span tower_group_weights(const struct tower *t, int group)
{
    const struct tower_memory *m = t->memory;
    return (struct weight_span){.p = tower_owns(t, group) ? (char *)m->weights + m->weight_offset[group]
                                                          : NULL,
                                .bytes = m->weight_bytes[group]};
}

/* The buffer of a group's gradients; NULL: not allocated, or another stage's. */
static char *gradient_buffer(const struct tower *t, int group)
{
    const struct tower_memory *m = t->memory;
    if (!tower_owns(t, group)) return NULL;
    bool tied = group == 0 && m->tied_gradients;
    return tied ? (char *)m->tied_gradients + (size_t)m->slot * m->tied_bytes : m->gradients;
}

/* Lays out gradients of a group from `begin`: F32 vectors first (zeroed together), then the matrices. */
static void lay_group(struct tower *t, int group, size_t begin)
{
    struct tower_memory *m = t->memory;
    char *buffer = gradient_buffer(t, group);
    size_t at = begin;
    for (int matrices = 0; matrices < 2; matrices++) {
        for (int i = 0; i < t->parameter_count; i++) {
            struct parameter *p = &t->parameters[i];
            if (p->group != group || p->matrix != (matrices == 1) || !p->trained) continue;
            p->grad_type = p->matrix ? t->options.grad_type : DTYPE_F32;
            if (!tower_owns_slice(t, p)) continue;
            size_t here = tower_place(&at, (size_t)stored_count(p) * dtype_bytes(p->grad_type));
            p->grad_at =
                p->role == ROLE_V_B ? p[-1].grad_at + 2 * (size_t)p->count * sizeof(float) : here - begin;
            if (buffer)
                p->grad = p->role == ROLE_V_B ? (float *)p[-1].grad + 2 * p->count : (void *)(buffer + here);
        }
        if (!matrices) m->small_bytes[group] = at - begin;
    }
    m->group_offset[group] = begin;
    m->group_bytes[group] = at - begin;
}

/* Allocates gradients. Kept: group after group. Released: all in one buffer, or alternating between two; and
 * in a buffer of their own, one per slot, those of a tied table, which the head's backward begins and the
 * embedding's completes. */
static int alloc_gradients(struct tower *t, struct error *err)
{
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    m->group_offset = xcalloc((size_t)t->group_count, sizeof *m->group_offset);
    m->small_bytes = xcalloc((size_t)t->group_count, sizeof *m->small_bytes);
    m->group_bytes = xcalloc((size_t)t->group_count, sizeof *m->group_bytes);
    if (o->gradients == GRADIENTS_NONE) return 0;
    bool released = o->gradients == GRADIENTS_RELEASE, two = released && o->gradient_buffers == 2,
         tied = released && tower_tied(t) && t->lowest == 0 && tower_has_ends(t);
    size_t total = 0, buffer[2] = {0, 0};
    for (int group = 0; group < t->group_count; group++) {
        bool end = group == 0 || group == t->group_count - 1;
        lay_group(t, group, released ? 0 : total);
        if (!tower_owns(t, group)) continue;
        total += m->group_bytes[group];
        if (group > 0 || !tied)
            buffer[two && group % 2] = larger(buffer[two && group % 2], m->group_bytes[group]);
        if (!end) m->spare_begin = larger(m->spare_begin, (m->group_bytes[group] + 63) & ~(size_t)63);
    }
    m->spare_end = released && !two && o->recompute == RECOMPUTE_BLOCK ? buffer[0] : 0;
    if (two && tower_keeps_streams(t)) buffer[0] = buffer[1] = larger(buffer[0], buffer[1]);
    m->second_gradients = two ? buffer[0] : 0;
    m->tied_bytes = tied ? (m->group_bytes[0] + 63) & ~(size_t)63 : 0;
    m->gradients = device_alloc(t->device, MEMORY_GRADIENTS, released ? buffer[0] + buffer[1] : total,
                                two        ? "gradients of two blocks"
                                : released ? "gradients of one block"
                                           : "gradients",
                                err);
    if (!m->gradients) return err->code;
    if (tied &&
        !(m->tied_gradients = device_alloc(t->device, MEMORY_GRADIENTS, (size_t)o->slots * m->tied_bytes,
                                           "gradients of the tied token table", err)))
        return err->code;
    for (int group = 0; group < t->group_count; group++)
        lay_group(t, group, two && group % 2 ? buffer[0] : m->group_offset[group]);
    return 0;
}

void tower_select(struct tower *t, int64_t slot)
{
    struct tower_memory *m = t->memory;
    assert(slot >= 0 && slot < t->options.slots);
    if (slot == m->slot) return;
    m->slot = slot;
    activations_select(t);
    if (m->tied_gradients) lay_group(t, 0, 0);
}

float *tower_slot_stream(struct tower *t, int64_t slot)
{
    tower_select(t, slot);
    return t->memory->stream;
}

void tower_select_gradients(struct tower *t, int group, int64_t turn)
{
    const struct tower_memory *m = t->memory;
    if (!tower_keeps_streams(t) || !m->second_gradients || (group == 0 && m->tied_gradients)) return;
    lay_group(t, group, turn % 2 ? m->second_gradients : 0);
}

struct gradient_span tower_group_gradients(const struct tower *t, int group)
{
    const struct tower_memory *m = t->memory;
    if (!m->gradients) return (struct gradient_span){0};
    char *buffer = gradient_buffer(t, group);
    return (struct gradient_span){.p = buffer ? buffer + m->group_offset[group] : NULL,
                                  .bytes = m->group_bytes[group],
                                  .f32_bytes = m->small_bytes[group]};
}

static void upload_resize(struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    int64_t rows = model_shape_position_rows(g, g->image / g->patch),
            columns = model_shape_position_rows(g, g->pos_grid);
    float *w = xcalloc((size_t)(rows * columns), sizeof *w);
    positions_matrix(g, w);
    t->device->upload(t->device, t->memory->resize, w, (size_t)(rows * columns) * sizeof *w);
    free(w);
}

static void upload_unit(struct tower *t)
{
    int64_t D = t->model_shape.width;
    float *unit = xcalloc((size_t)D, sizeof *unit);
    for (int64_t i = 0; i < D; i++) unit[i] = 1;
    t->device->upload(t->device, t->memory->unit, unit, (size_t)D * sizeof *unit);
    free(unit);
}

static void upload_rotation(struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    size_t count = (size_t)(t->rotated * model_shape_head_dim(g));
    float *table = xcalloc(count, sizeof *table);
    positions_rotation(g, table);
    t->device->upload(t->device, t->memory->rotation, table, count * sizeof *table);
    free(table);
}

static void upload_lists(struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    int64_t numbers = blocks_list_numbers(g), lists = tower_lists(t);
    int32_t *all = xcalloc((size_t)(lists * numbers), sizeof *all), *at = all + numbers;
    blocks_lists(g, 0, false, all, NULL);
    for (int l = 0; l < g->depth && lists > 1; l++) {
        if (!tower_owns(t, l + 1)) continue;
        blocks_lists(g, l, true, at, at + numbers);
        at += 2 * numbers;
    }
    t->device->upload(t->device, t->memory->lists, all, tower_lists_bytes(t));
    free(all);
}

/* Numbers of rows, token types and ones: what an encoder reads next to its batch. */
static void upload_constants(struct tower *t)
{
    const struct tower_memory *m = t->memory;
    int64_t rows = t->options.batch * t->out_rows;
    int32_t *numbers = xcalloc(2 * (size_t)rows, sizeof *numbers);
    float *ones = xcalloc((size_t)rows, sizeof *ones);
    uint16_t *half = xcalloc((size_t)rows, sizeof *half);
    bool narrow = t->options.compute == DTYPE_BF16;
    for (int64_t i = 0; i < rows; i++) {
        numbers[i] = (int32_t)i;
        numbers[rows + i] = (int32_t)(i / t->out_rows * t->tokens);
        ones[i] = 1;
        half[i] = 0x3F80; /* 1 in bf16 */
    }
    if (m->numbers) t->device->upload(t->device, m->numbers, numbers, 2 * (size_t)rows * sizeof *numbers);
    if (m->types) t->device->ops->fill(t->device, m->types, 0, (size_t)t->tokens * sizeof *m->types);
    if (m->ones)
        t->device->upload(t->device, m->ones, narrow ? (void *)half : (void *)ones,
                          (size_t)rows * dtype_bytes(t->options.compute));
    free(half);
    free(numbers);
    free(ones);
}

/* Checks that the device supports every operation of the tower. */
static int supported(const struct tower *t, struct error *err)
{
    const struct model_shape *g = &t->model_shape;
    struct device *dev = t->device;
    int64_t B = t->options.batch;
    struct operation_shape product = {OPERATION_GEMM, t->options.compute, .rows = B * t->tokens};
    struct operation_shape attention = {OPERATION_ATTENTION, t->options.compute, .B = B, .H = g->heads,
                                        .dh = model_shape_head_dim(g)};
    int code = dev->ops->supports(dev, &product, err);
    if (!code) code = dev->ops->supports(dev, &attention, err);
    if (code || !tower_pools_by_attention(t)) return code;
    attention.H = g->pool_heads;
    attention.dh = g->out / g->pool_heads;
    return dev->ops->supports(dev, &attention, err);
}

/* Marks the frozen parameters. A tower without gradients has none: it is as a whole. */
static void freeze(struct tower *t)
{
    for (int i = 0; i < t->parameter_count && t->options.lora.rank; i++) {
        struct parameter *p = &t->parameters[i];
        p->trained = p->adapter || p->head;
        p->resident |= p->head && t->options.lora.resident;
    }
    for (int i = 0; i < t->parameter_count && t->options.gradients != GRADIENTS_NONE; i++) {
        struct parameter *p = &t->parameters[i];
        bool end = p->group == t->group_count - 1 && t->options.frozen_end && !p->head;
        if (p->group < t->lowest || end) p->trained = false;
        if (end) p->resident = true;
    }
}

/* Gives each matrix its adapters: in the list A and B follow each other, and those of one matrix too. */
static void connect_adapters(struct tower *t)
{
    struct tower_memory *m = t->memory;
    struct lora_pair *pair = m->pairs = xcalloc((size_t)t->parameter_count, sizeof *m->pairs);
    for (int i = 0; i < t->parameter_count; i++) {
        struct parameter *a = &t->parameters[i];
        if (!a->adapter) continue;
        struct parameter *w = m->blocks[a->group - 1][a->role];
        if (!w->pair_count++) w->pairs = pair;
        *pair++ = (struct lora_pair){a, ++i + t->parameters, a->first};
    }
}

/* Sets rows and widths of what the passes compute. */
static void set_sizes(struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    t->tokens = model_shape_tokens(g);
    t->patches = model_shape_patches(g);
    t->resized = model_shape_resizes(g);
    t->model = model_of(g);
    t->owns_loss = t->model->owns_loss;
    t->picks = t->owns_loss && family_encoder(t->family);
    t->rotated = t->owns_loss ? t->tokens : t->patches;
    const struct output *first = o->outputs.count ? &o->outputs.of[0] : NULL;
    t->out_rows = t->owns_loss ? model_shape_head_rows(g) : first ? output_rows(g, first) : 1;
    t->out_width = t->owns_loss     ? g->vocabulary
                   : g->classes > 0 ? g->classes
                   : first          ? output_width(g, first)
                                    : g->out;
    t->out_values = tower_output_at(t, tower_outputs(t)) / o->batch;
    t->memory->pooled_rows = t->owns_loss                        ? t->out_rows
                             : outputs_read_patches(&o->outputs) ? 1 + t->patches
                                                                 : 1;
}

int tower_create(struct tower **tower, struct device *device, const struct model_shape *model_shape,
                 const struct tower_options *options, struct error *err)
{
    assert(options->batch > 0 && !(options->master && options->weight_type != DTYPE_BF16));
    assert(!outputs_read_patches(&options->outputs) || options->gradients == GRADIENTS_NONE ||
           !(model_shape->pool > POOL_CLS || model_shape_parts(model_shape) & PART_ATTN_POOL));
    assert(!options->cache || (options->batch == 1 && options->gradients == GRADIENTS_NONE));
    assert(options->saved == SAVED_MINIMAL || options->recompute == RECOMPUTE_NONE);
    assert((options->slots <= 1 && options->stages <= 1) || options->gradients == GRADIENTS_NONE ||
           (options->gradients == GRADIENTS_RELEASE && options->recompute == RECOMPUTE_BLOCK));
    assert(options->stages <= 1 ? options->stage == 0
                                : options->stage >= 0 && options->stage < options->stages &&
                                      options->stages <= model_shape->depth + 1);
    assert(options->gradient_buffers >= 0 && options->gradient_buffers <= 2);
    assert(model_shape->slices <= 1 || (!options->lora.rank && options->saved == SAVED_MINIMAL));
    assert(options->frozen >= 0 && options->frozen <= model_shape->depth + 1);
    assert(options->weight_buffers >= 0 && options->weight_buffers <= 2 &&
           !(options->weight_buffers && options->master));
    *tower = NULL;
    struct tower *t = xcalloc(1, sizeof *t);
    t->memory = xcalloc(1, sizeof *t->memory);
    t->device = device;
    t->model_shape = *model_shape;
    t->family = family_row(model_shape->family);
    t->options = *options;
    if (!t->options.slots) t->options.slots = 1;
    set_sizes(t);
    t->group_count = (int)model_shape->depth + 2;
    t->parameter_count = parameters_list(model_shape, &options->outputs, &t->parameters);
    if (options->lora.rank)
        t->parameter_count = lora_parameters(model_shape, &options->lora, &t->parameters, t->parameter_count);
    t->lowest = options->gradients == GRADIENTS_NONE ? t->group_count
                : options->frozen_end                ? t->group_count - 1
                : options->lora.rank                 ? 1
                                                     : options->frozen;
    freeze(t);
    struct tower_memory *m = t->memory;
    m->blocks = xcalloc((size_t)model_shape->depth, sizeof *m->blocks);
    for (int i = 0; i < t->parameter_count; i++) {
        struct parameter *p = &t->parameters[i];
        if (p->adapter || p->slice > 0) continue;
        if (p->head) {
            struct output_memory *o = &m->outputs[p->output];
            const struct parameter **at[HEAD_PARAMETERS] = {&o->fc1_w,  &o->fc1_b, &o->norm_w,
                                                            &o->norm_b, &o->w,     &o->b};
            *at[p->role - ROLE_HEAD_FC1_W] = p;
            if (p->output == 0) m->roles[p->role] = p;
        } else if (p->group > 0 && p->group <= model_shape->depth) m->blocks[p->group - 1][p->role] = p;
        else m->roles[p->role] = p;
    }
    connect_adapters(t);
    int code = supported(t, err);
    if (!code) code = alloc_weights(t, err);
    if (!code) code = alloc_gradients(t, err);
    if (!code) code = activations_alloc(t, err);
    if (code) {
        tower_close(t);
        return code;
    }
    if (t->owns_loss)
        m->loss = lm_loss_layout(options->batch * t->out_rows, model_shape->vocabulary,
                                 options->loss_chunk ? options->loss_chunk : LM_LOSS_CHUNK, tower_slices(t),
                                 tower_own_slices(t));
    m->sums = (struct slice_sums){
        .device = device,
        .own = tower_own_slices(t),
        .each = options->batch * t->tokens *
                (int64_t)larger((size_t)model_shape->width, (size_t)model_shape_embedding(model_shape)),
        .width = model_shape->width};
    activations_lay_scratch(t);
    *tower = t;
    if (device->kind == DEVICE_DRY) return 0; /* it reads no values */
    if (t->resized && tower_has_ends(t)) upload_resize(t);
    if (outputs_of_blocks(t)) upload_unit(t);
    if (model_shape_rotates(model_shape)) upload_rotation(t);
    if (blocks_used(model_shape)) upload_lists(t);
    if (tower_has_ends(t)) upload_constants(t);
    return 0;
}

void tower_close(struct tower *t)
{
    if (!t) return;
    struct tower_memory *m = t->memory;
    device_free(t->device, m->activations);
    device_free(t->device, m->cache);
    device_free(t->device, m->gradients);
    device_free(t->device, m->tied_gradients);
    device_free(t->device, m->masters);
    device_free(t->device, m->weights);
    free(m->pairs);
    free(m->x);
    free(m->kept);
    free(m->group_offset);
    free(m->small_bytes);
    free(m->group_bytes);
    free(m->weight_offset);
    free(m->weight_bytes);
    free(m->blocks);
    free(m);
    free(t->parameters);
    free(t);
}

void tower_bind_ranks(struct tower *t, const struct slice_ranks *ranks) { t->memory->sums.ranks = *ranks; }

int tower_failed(const struct tower *t, struct error *err)
{
    const struct error *failed = &t->memory->sums.failed;
    if (failed->code && err) *err = *failed;
    return failed->code;
}

void tower_bind_weights(struct tower *t, group_needed needed, void *context)
{
    t->needed = needed;
    t->needed_by = context;
}
