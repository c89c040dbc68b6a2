/* The memory of a tower: all of it is allocated by class when the tower is created, so that a plan counts
 * it. */
#include "core/nn/parameters.h"
#include "core/nn/positions.h"
#include "core/base/file.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* EVA has a bias for q and v but none for k (baaivision/EVA, eva_vit_model.py: q_bias, v_bias). Both are
 * stored in one (3D) array with zeros between them, so that the GEMM has one bias. The array is taken at
 * ROLE_Q_B; ROLE_V_B points into it. */
static int64_t stored_count(const struct parameter *p)
{
    return p->role == ROLE_Q_B ? 3 * p->count : p->role == ROLE_V_B ? 0 : p->count;
}

/* Lays out weights of a group from *at: F32 vectors first, then the matrices, like the gradients. If groups
 * share buffers, there are two kinds: those that use the buffers, and those that stay in memory. */
static void lay_weights(struct tower *t, int group, bool staying, size_t *at, size_t *masters_at)
{
    struct tower_memory *m = t->memory;
    for (int matrices = 0; matrices < 2; matrices++) {
        for (int i = 0; i < t->parameter_count; i++) {
            struct parameter *p = &t->parameters[i];
            if (p->group != group || p->matrix != (matrices == 1)) continue;
            if (t->options.weight_buffers && p->resident != staying) continue;
            p->weight_type = p->matrix ? t->options.weight_type : DTYPE_F32;
            size_t here = tower_place(at, (size_t)stored_count(p) * dtype_bytes(p->weight_type));
            if (m->weights)
                p->weight = p->role == ROLE_V_B ? (float *)p[-1].weight + 2 * p->count
                                                : (void *)((char *)m->weights + here);
            if (!t->options.master || p->weight_type != DTYPE_BF16 || !p->trained) continue;
            here = tower_place(masters_at, (size_t)p->count * sizeof(float));
            if (m->masters) p->master = (float *)(void *)((char *)m->masters + here);
        }
    }
}

int tower_weight_buffer(const struct tower *t, int group)
{
    return group == 0 && tower_tied(t) ? 2 : group % t->options.weight_buffers;
}

/* Lays out the groups that share one buffer, or two, at *at, in whole pages: the O_DIRECT reads of
 * core/train/weight_stream.c then stay inside a group's buffer. */
static void lay_turns(struct tower *t, size_t *at)
{
    struct tower_memory *m = t->memory;
    size_t begin[WEIGHT_BUFFERS + 1] = {*at}, largest[WEIGHT_BUFFERS] = {0}, none = 0;
    for (int group = 0; group < t->group_count; group++) {
        size_t end = 0;
        lay_weights(t, group, false, &end, &none);
        m->weight_bytes[group] = end;
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
            size_t begin = bytes;
            lay_weights(t, group, true, &bytes, &master_bytes);
            if (o->weight_buffers) continue;
            m->weight_offset[group] = begin;
            m->weight_bytes[group] = bytes - begin;
        }
        if (pass) break;
        m->weights = device_alloc(
            t->device, o->weights_class, bytes,
            o->weight_buffers ? "weights of the blocks that are computed" : "tower weights", err);
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
    return (struct weight_span){.p = (char *)m->weights + m->weight_offset[group],
                                .bytes = m->weight_bytes[group]};
}

/* The buffer of a group's gradients. */
static char *gradient_buffer(const struct tower *t, int group)
{
    const struct tower_memory *m = t->memory;
    return group == 0 && m->tied_gradients ? m->tied_gradients : m->gradients;
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
            size_t here = tower_place(&at, (size_t)stored_count(p) * dtype_bytes(p->grad_type));
            if (buffer)
                p->grad = p->role == ROLE_V_B ? (float *)p[-1].grad + 2 * p->count : (void *)(buffer + here);
        }
        if (!matrices) m->small_bytes[group] = at - begin;
    }
    m->group_offset[group] = begin;
    m->group_bytes[group] = at - begin;
}

/* Allocates gradients. Kept: group after group. Released: all in one buffer, or alternating between two; and
 * in a buffer of their own those of a tied table, which the head's backward begins and the embedding's
 * completes. */
static int alloc_gradients(struct tower *t, struct error *err)
{
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    m->group_offset = xcalloc((size_t)t->group_count, sizeof *m->group_offset);
    m->small_bytes = xcalloc((size_t)t->group_count, sizeof *m->small_bytes);
    m->group_bytes = xcalloc((size_t)t->group_count, sizeof *m->group_bytes);
    if (o->gradients == GRADIENTS_NONE) return 0;
    bool released = o->gradients == GRADIENTS_RELEASE, two = released && o->gradient_buffers == 2,
         tied = released && tower_tied(t) && t->lowest == 0;
    size_t total = 0, buffer[2] = {0, 0};
    for (int group = 0; group < t->group_count; group++) {
        lay_group(t, group, released ? 0 : total);
        total += m->group_bytes[group];
        if (group > 0 || !tied)
            buffer[two && group % 2] = larger(buffer[two && group % 2], m->group_bytes[group]);
    }
    m->gradients = device_alloc(t->device, MEMORY_GRADIENTS, released ? buffer[0] + buffer[1] : total,
                                two        ? "gradients of two blocks"
                                : released ? "gradients of one block"
                                           : "gradients",
                                err);
    if (!m->gradients) return err->code;
    if (tied && !(m->tied_gradients = device_alloc(t->device, MEMORY_GRADIENTS, m->group_bytes[0],
                                                   "gradients of the tied token table", err)))
        return err->code;
    for (int group = 0; group < t->group_count; group++)
        lay_group(t, group, two && group % 2 ? buffer[0] : m->group_offset[group]);
    return 0;
}

struct gradient_span tower_group_gradients(const struct tower *t, int group)
{
    const struct tower_memory *m = t->memory;
    if (!m->gradients) return (struct gradient_span){0};
    return (struct gradient_span){.p = gradient_buffer(t, group) + m->group_offset[group],
                                  .bytes = m->group_bytes[group],
                                  .f32_bytes = m->small_bytes[group]};
}

/* Lays out codes, words and maxima of (R, D) at `base`; x comes with the scratch. */
static struct coded lay_coded(const struct tower *t, char *base, size_t *at, size_t R, size_t D)
{
    size_t codes = tower_place(at, R * D), groups = tower_groups(R, D),
           words = tower_place(at, groups * sizeof(uint32_t)),
           tops = tower_place(at, groups * sizeof(uint16_t));
    struct coded none = {.type = t->options.compute};
    if (!base) return none;
    return (struct coded){.type = t->options.compute,
                          .codes = (int8_t *)(void *)(base + codes),
                          .words = (uint32_t *)(void *)(base + words),
                          .tops = (uint16_t *)(void *)(base + tops),
                          .R = (int64_t)R,
                          .D = (int64_t)D};
}

/* Lays out the moments of a block's two norms, which are not recomputed. */
static void lay_moments(struct block_activations *k, char *base, size_t *at, size_t R)
{
    size_t here = tower_place(at, 4 * R * sizeof(float));
    if (!base) return;
    k->mean1 = (float *)(void *)(base + here);
    k->rstd1 = k->mean1 + R;
    k->mean2 = k->rstd1 + R;
    k->rstd2 = k->mean2 + R;
}

/* Lays out one block's other kept tensors from `base` at *at; NULL base only counts. */
static void lay_block(const struct tower *t, struct block_activations *k, char *base, size_t *at)
{
    const struct model_shape *g = &t->model_shape;
    size_t R = (size_t)(t->options.batch * t->tokens), D = (size_t)g->width,
           e = dtype_bytes(t->options.compute);
    size_t G = (size_t)g->hidden * (g->ffn == 1 + ACTIVATION_SWIGLU ? 2 : 1),
           A = (size_t)model_shape_attn_width(g), Q = (size_t)model_shape_qkv_width(g);
    int parts = model_shape_parts(g);
    size_t norms = (parts & PART_ATTN_NORM ? 1 : 0) + (parts & PART_FFN_NORM ? 1 : 0);
    bool coded = t->options.saved == SAVED_8BIT;
    size_t x_mid = tower_place(at, R * D * e), qkv = tower_place(at, R * Q * e),
           attn = tower_place(at, coded ? 0 : R * A * e), h = tower_place(at, coded ? 0 : R * G * e);
    struct coded h8 = coded ? lay_coded(t, base, at, R, G) : (struct coded){0};
    size_t lse = tower_place(at, (size_t)(t->options.batch * g->heads * t->tokens) * sizeof(float));
    size_t stats = tower_place(at, 2 * norms * R * sizeof(float)),
           head_stats = tower_place(at, tower_head_moments(t));
    size_t post_norm = tower_post_norm(t) ? R * D * e : 0, u1 = tower_place(at, post_norm),
           u2 = tower_place(at, post_norm);
    if (!base) return;
    float *moments = (float *)(void *)(base + stats);
    *k = (struct block_activations){.x_mid = base + x_mid,
                                    .qkv = base + qkv,
                                    .attn = base + attn,
                                    .h = base + h,
                                    .h8 = h8,
                                    .lse = (float *)(void *)(base + lse),
                                    .head_rstd = (float *)(void *)(base + head_stats)};
    float **kept[] = {&k->attn_mean, &k->attn_rstd, &k->ffn_mean, &k->ffn_rstd};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (!(parts & (i < 2 ? PART_ATTN_NORM : PART_FFN_NORM))) continue;
        *kept[i] = moments;
        moments += R;
    }
    if (post_norm) {
        k->u1 = base + u1;
        k->u2 = base + u2;
    }
}

/* Lays out a frozen block, which keeps nothing: q,k,v and the feed-forward share one region. */
static void lay_frozen_block(const struct tower *t, struct block_activations *k, char *base, size_t *at)
{
    const struct model_shape *g = &t->model_shape;
    size_t R = (size_t)(t->options.batch * t->tokens), e = dtype_bytes(t->options.compute);
    size_t G = (size_t)g->hidden * (g->ffn == 1 + ACTIVATION_SWIGLU ? 2 : 1),
           A = (size_t)model_shape_attn_width(g), Q = (size_t)model_shape_qkv_width(g);
    size_t region = tower_place(at, larger(R * (Q + A), R * G) * e);
    size_t lse = tower_place(at, (size_t)(t->options.batch * g->heads * t->tokens) * sizeof(float)),
           head_stats = tower_place(at, tower_head_moments(t));
    if (base)
        *k = (struct block_activations){.qkv = base + region,
                                        .attn = base + region + R * Q * e,
                                        .h = base + region,
                                        .lse = (float *)(void *)(base + lse),
                                        .head_rstd = (float *)(void *)(base + head_stats)};
    lay_moments(k, base, at, R);
    if (!base) return;
    k->attn_mean = k->ffn_mean = k->mean2;
    k->attn_rstd = k->ffn_rstd = k->rstd2;
}

static int alloc_activations(struct tower *t, struct error *err)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    bool frozen = o->gradients == GRADIENTS_NONE, pre = m->roles[ROLE_PRE_W] != NULL, resized = t->resized,
         embedding = !frozen && t->lowest == 0;
    int64_t first = t->lowest > 0 ? t->lowest - 1 : 0; /* block that keeps activations */
    size_t e = dtype_bytes(o->compute), f = sizeof(float);
    size_t B = (size_t)o->batch, N = (size_t)t->tokens, R = B * N, D = (size_t)g->width,
           rows = B * (size_t)t->out_rows;
    size_t positions = t->resized ? (size_t)model_shape_position_rows(g, g->pos_grid) : 0,
           kept = t->resized ? (size_t)model_shape_position_rows(g, g->image / g->patch) : 0;
    size_t normed = (size_t)tower_normed_rows(t);
    bool coca = tower_pools_by_attention(t) && !m->roles[ROLE_POOL_FC1_W];
    bool apart = m->roles[ROLE_OUT_W] || m->roles[ROLE_HEAD_W] || coca || t->owns_loss;
    bool averaged = tower_averages_first(t) || tower_averages_last(t);
    m->stored = tower_post_norm(t) || o->compute != DTYPE_BF16 ? o->compute : DTYPE_F16;
    bool many = g->pool == POOL_AVG || g->pool == POOL_CLS_AVG || t->owns_loss;
    m->norm_type = many ? m->stored : DTYPE_F32;
    m->pooled_type = apart ? o->compute : DTYPE_F32;
    bool final = !frozen && !o->frozen_end && !tower_averages_first(t) && !tower_pools_by_attention(t);
    m->norm_hat_bytes = final ? normed * D * dtype_bytes(m->norm_type) : 0;
    m->x = xcalloc((size_t)g->depth, sizeof *m->x);
    m->kept = xcalloc((size_t)g->depth, sizeof *m->kept);
    for (int pass = 0; pass < 2; pass++) {
        size_t at = 0;
        char *base = m->activations;
        size_t tokens = pre ? tower_place(&at, embedding ? R * D * e : 0) : 0,
               pre_stats = pre ? tower_place(&at, 2 * R * f) : 0;
        size_t x = tower_place(&at, 0);
        if (!frozen)
            for (int64_t l = first; l < g->depth; l++) tower_place(&at, R * D * e);
        size_t stream = (R * D * e + 63) & ~(size_t)63;
        for (int64_t l = first; l < g->depth && !frozen; l++) {
            if (o->recompute == RECOMPUTE_NONE || l == first) lay_block(t, &m->kept[l], base, &at);
            else m->kept[l] = m->kept[first];
            lay_moments(&m->kept[l], base, &at, R);
        }
        size_t norm_stats = tower_place(&at, 2 * normed * f), norm_hat = tower_place(&at, m->norm_hat_bytes),
               pooled = tower_place(&at, apart ? rows * (size_t)model_shape_pooled(g) * e : 0);
        size_t projected = tower_place(&at, m->roles[ROLE_HEAD_W] ? rows * (size_t)g->out * e : 0),
               out = tower_place(&at, t->owns_loss ? 0 : rows * (size_t)t->out_width * f);
        size_t pos = tower_place(&at, resized ? kept * D * f : 0),
               dpos = tower_place(&at, resized && embedding ? kept * D * f : 0);
        size_t resize = tower_place(&at, resized ? kept * positions * f : 0);
        size_t rotation =
            tower_place(&at, model_shape_rotates(g) ? (size_t)(t->rotated * model_shape_head_dim(g)) * f : 0);
        size_t mean = tower_place(&at, averaged ? B * D * f : 0);
        if (tower_pools_by_attention(t)) at = attn_pool_lay(t, &m->attn_pool, base, at);
        if (!pass) {
            m->activations = device_alloc(t->device, o->activations_class, at,
                                          frozen ? "teacher outputs" : "activations", err);
            if (!m->activations) return err->code;
            continue;
        }
        m->tokens = pre && embedding ? base + tokens : NULL;
        m->pre_mean = (float *)(void *)(base + pre_stats);
        m->pre_rstd = m->pre_mean + R;
        for (int64_t l = first; l < g->depth && !frozen; l++)
            m->x[l] = base + x + (size_t)(l - first) * stream;
        m->norm_mean = (float *)(void *)(base + norm_stats);
        m->norm_rstd = m->norm_mean + normed;
        m->norm_hat = m->norm_hat_bytes ? base + norm_hat : NULL;
        m->projected = base + projected;
        t->out = t->owns_loss ? NULL : (float *)(void *)(base + out);
        m->pooled = apart ? (void *)(base + pooled) : t->out;
        m->pos = (float *)(void *)(base + pos);
        m->dpos = (float *)(void *)(base + dpos);
        m->resize = (float *)(void *)(base + resize);
        m->rotation = (float *)(void *)(base + rotation);
        m->mean = (float *)(void *)(base + mean);
    }
    return 0;
}

/* Lays out scratch: tensors that live inside one pass, overlapping where lifetimes allow. */
static void lay_scratch(struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    bool frozen = o->gradients == GRADIENTS_NONE;
    int parts = model_shape_parts(g);
    size_t e = dtype_bytes(o->compute), B = (size_t)o->batch, N = (size_t)t->tokens, R = B * N,
           D = (size_t)g->width;
    size_t F = (size_t)g->hidden, G = F * (g->ffn == 1 + ACTIVATION_SWIGLU ? 2 : 1),
           p = (size_t)(3 * g->patch * g->patch), A = (size_t)model_shape_attn_width(g),
           Q = (size_t)model_shape_qkv_width(g), heads = parts & PART_QK_NORM && !frozen ? Q : 0;
    size_t at = 0, largest = 0, attention = (R * (A + Q) * e + 63) & ~(size_t)63;
    m->t1_at = tower_place(&at, larger(R, 4 * B) * D * e);       /* 4 B: image_backward.c, separate */
    size_t inner = parts & PART_FFN_NORM && !frozen ? R * F : 0; /* input of the feed-forward's norm */
    size_t region = larger(R * F + inner, frozen ? R * (A + D) : 0);
    region = larger(region, B * (size_t)t->patches * p) * e; /* patches */
    region = larger(region, frozen ? 0 : attention + R * heads * e);
    size_t pool = tower_pools_by_attention(t) ? attn_pool_scratch(t) : 0;
    region = larger(region, frozen || t->owns_loss ? m->loss.bytes : tower_output_gradients(t) + pool);
    m->region_at = tower_place(&at, region);
    m->heads_at = m->region_at + attention;
    m->dx_at = tower_place(&at, R * D * sizeof(float)); /* the residual stream, and its gradient */
    size_t end = m->frozen_at = at;                     /* the gradients of a backward pass take its place */
    if (!tower_block_kept(t, 0)) lay_frozen_block(t, NULL, NULL, &end);
    if (!frozen) {
        m->td_at = tower_place(&at, R * D * e);
        m->dh_at = tower_place(&at, o->saved == SAVED_8BIT ? R * larger(G, A) * e
                                    : o->backward_twice    ? R * G * e
                                                           : 0);
    }
    at = larger(at, end);
    for (int i = 0; i < t->parameter_count; i++)
        if (t->parameters[i].matrix && t->parameters[i].weight_type != o->compute)
            largest = larger(largest, (size_t)t->parameters[i].count * e);
    m->cast_at = tower_place(&at, largest);
    t->scratch_bytes = at;
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

static void upload_rotation(struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    size_t count = (size_t)(t->rotated * model_shape_head_dim(g));
    float *table = xcalloc(count, sizeof *table);
    positions_rotation(g, table);
    t->device->upload(t->device, t->memory->rotation, table, count * sizeof *table);
    free(table);
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
    bool patches = t->options.patch_tokens;
    if (patches && tower_pools_by_attention(t))
        return error_set(err, EXIT_CONFIG, "loss.tokens: cls",
                         "loss.tokens includes the patch tokens, but the embedding is pooled by "
                         "attention");
    if (patches && g->pool > POOL_CLS)
        return error_set(err, EXIT_CONFIG, "set loss.tokens to cls, or pool to cls",
                         "loss.tokens includes the class and patch tokens, but the embedding is a "
                         "mean of them");
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
    for (int i = 0; i < t->parameter_count && t->options.gradients != GRADIENTS_NONE; i++) {
        struct parameter *p = &t->parameters[i];
        bool end = p->group == t->group_count - 1 && t->options.frozen_end && !p->head;
        if (p->group < t->lowest || end) p->trained = false;
        if (end) p->resident = true;
    }
}

int tower_create(struct tower **tower, struct device *device, const struct model_shape *model_shape,
                 const struct tower_options *options, struct error *err)
{
    assert(options->batch > 0 && !(options->master && options->weight_type != DTYPE_BF16));
    assert(options->saved == SAVED_MINIMAL || options->recompute == RECOMPUTE_NONE);
    assert(options->gradient_buffers >= 0 && options->gradient_buffers <= 2);
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
    t->tokens = model_shape_tokens(model_shape);
    t->patches = model_shape_patches(model_shape);
    t->resized = model_shape_resizes(model_shape);
    t->owns_loss = t->family->model->owns_loss;
    t->rotated = t->owns_loss ? t->tokens : t->patches;
    t->out_rows = t->owns_loss ? t->tokens : options->patch_tokens ? 1 + t->patches : 1;
    t->out_width = t->owns_loss               ? model_shape->vocabulary
                   : model_shape->classes > 0 ? model_shape->classes
                   : options->target          ? options->target
                                              : model_shape->out;
    t->group_count = (int)model_shape->depth + 2;
    t->parameter_count = parameters_list(model_shape, options->target, &t->parameters);
    t->lowest = options->gradients == GRADIENTS_NONE ? t->group_count
                : options->frozen_end                ? t->group_count - 1
                                                     : options->frozen;
    freeze(t);
    struct tower_memory *m = t->memory;
    m->blocks = xcalloc((size_t)model_shape->depth, sizeof *m->blocks);
    for (int i = 0; i < t->parameter_count; i++) {
        struct parameter *p = &t->parameters[i];
        if (p->group > 0 && p->group <= model_shape->depth) m->blocks[p->group - 1][p->role] = p;
        else m->roles[p->role] = p;
    }
    int code = supported(t, err);
    if (!code) code = alloc_weights(t, err);
    if (!code) code = alloc_gradients(t, err);
    if (!code) code = alloc_activations(t, err);
    if (code) {
        tower_close(t);
        return code;
    }
    if (t->owns_loss)
        m->loss = lm_loss_layout(options->batch * t->tokens, model_shape->vocabulary,
                                 options->loss_chunk ? options->loss_chunk : LM_LOSS_CHUNK);
    lay_scratch(t);
    if (t->resized) upload_resize(t);
    if (model_shape_rotates(model_shape)) upload_rotation(t);
    *tower = t;
    return 0;
}

void tower_close(struct tower *t)
{
    if (!t) return;
    struct tower_memory *m = t->memory;
    device_free(t->device, m->activations);
    device_free(t->device, m->gradients);
    device_free(t->device, m->tied_gradients);
    device_free(t->device, m->masters);
    device_free(t->device, m->weights);
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

void tower_bind_weights(struct tower *t, group_needed needed, void *context)
{
    t->needed = needed;
    t->needed_by = context;
}

void tower_bind_scratch(struct tower *t, void *scratch)
{
    struct tower_memory *m = t->memory;
    m->scratch = scratch;
    for (int64_t l = 0; l < t->model_shape.depth && t->options.saved == SAVED_8BIT; l++) {
        struct block_activations *k = &m->kept[l];
        if (tower_block_kept(t, l)) k->attn = k->h = k->h8.x = m->scratch + m->dh_at;
    }
    size_t attention = (size_t)(t->options.batch * t->tokens *
                                model_shape_attn_width(&t->model_shape)) * /* after its norm */
                       dtype_bytes(t->options.compute);
    for (int64_t l = 0; l < t->model_shape.depth && !tower_block_kept(t, l); l++) {
        size_t at = m->frozen_at;
        lay_frozen_block(t, &m->kept[l], m->scratch, &at);
        m->x[l] = m->scratch + m->region_at + attention;
        m->kept[l].x_mid = tower_post_norm(t) ? m->scratch + m->t1_at : NULL;
    }
}
