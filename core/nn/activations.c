/* Memory of a tower's passes: activations, which a forward pass keeps for the backward pass, and scratch.
 *
 * Activations have two parts. Those of a slot belong to one micro-batch; tower_select binds them. The others
 * are shared: of the blocks, which a backward pass recomputes if there are several slots, and
 * tables. */
#include "core/nn/tower.h"
#include "core/base/memory.h"

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

/* Where a block's tensors are stored: in the spare part of the gradients, as far as they fit, else from
 * `base` at *at. */
struct block_memory {
    struct tower_memory *memory;
    size_t spare;
    char *base;
    size_t *at;
    int index; /* of the next tensor, as in explain_block (tower_memory.c) */
};

static void *place_block_tensor(struct block_memory *b, size_t bytes)
{
    struct tower_memory *m = b->memory;
    int index = b->index++;
    if (b->spare + bytes > m->spare_end || !bytes) {
        size_t here = tower_place(b->at, bytes);
        return b->base ? b->base + here : NULL;
    }
    m->spared |= 1u << index;
    return (char *)m->gradients + tower_place(&b->spare, bytes);
}

/* Lays out one block's other kept tensors; NULL base only counts. */
static void lay_block(const struct tower *t, struct block_activations *k, char *base, size_t *at)
{
    const struct model_shape *g = &t->model_shape;
    int64_t own = tower_own_slices(t);
    size_t R = (size_t)(t->options.batch * t->tokens), D = (size_t)g->width,
           e = dtype_bytes(t->options.compute);
    size_t G = (size_t)(slice_gated(t) * own), A = (size_t)(slice_attn(t) * own),
           Q = (size_t)(slice_qkv(t) * own);
    int parts = model_shape_parts(g);
    size_t norms = (parts & PART_ATTN_NORM ? 1 : 0) + (parts & PART_FFN_NORM ? 1 : 0);
    bool coded = t->options.saved == SAVED_8BIT;
    struct block_memory b = {t->memory, t->memory->spare_begin, base, at, 0};
    void *x_mid = place_block_tensor(&b, tower_sum_norm(t) ? 0 : R * D * e),
         *qkv = place_block_tensor(&b, R * Q * e), *attn = place_block_tensor(&b, coded ? 0 : R * A * e),
         *h = place_block_tensor(&b, coded ? 0 : R * G * e);
    struct coded h8 = coded ? lay_coded(t, base, at, R, G) : (struct coded){0};
    float *lse = place_block_tensor(&b, (size_t)(t->options.batch * tower_share(t, g->heads) * t->tokens) *
                                            sizeof(float)),
          *moments = place_block_tensor(&b, 2 * norms * R * sizeof(float)),
          *head_rstd = place_block_tensor(&b, tower_head_moments(t));
    size_t branch = tower_norms_end(t) ? (R * D * e + 63) & ~(size_t)63 : 0;
    char *branches = place_block_tensor(&b, 2 * branch);
    if (!base) return;
    *k = (struct block_activations){.x_mid = x_mid,
                                    .qkv = qkv,
                                    .attn = attn,
                                    .h = h,
                                    .h8 = h8,
                                    .lse = lse,
                                    .head_rstd = head_rstd,
                                    .u1 = branch ? branches : NULL,
                                    .u2 = branch ? branches + branch : NULL};
    float **kept[] = {&k->attn_mean, &k->attn_rstd, &k->ffn_mean, &k->ffn_rstd};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        if (!(parts & (i < 2 ? PART_ATTN_NORM : PART_FFN_NORM))) continue;
        *kept[i] = moments;
        moments += R;
    }
}

/* Lays out a frozen block, which keeps nothing: q,k,v and the feed-forward share one region. */
static void lay_frozen_block(const struct tower *t, struct block_activations *k, char *base, size_t *at)
{
    const struct model_shape *g = &t->model_shape;
    int64_t own = tower_own_slices(t);
    size_t R = (size_t)(t->options.batch * t->tokens), e = dtype_bytes(t->options.compute);
    size_t G = (size_t)(slice_gated(t) * own), A = (size_t)(slice_attn(t) * own),
           Q = (size_t)(slice_qkv(t) * own);
    size_t region = tower_place(at, larger(R * (Q + A), R * G) * e);
    size_t lse = tower_place(at, (size_t)(t->options.batch * tower_share(t, g->heads) * t->tokens) *
                                     sizeof(float)),
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

/* Lays out the tensors of the layers before the first block and after the last one. */
static void lay_ends(struct tower *t, char *base, size_t *at)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    bool pre = m->roles[ROLE_PRE_W] != NULL, embedding = t->lowest == 0,
         averaged = tower_averages_first(t) || tower_averages_last(t);
    size_t e = dtype_bytes(o->compute), f = sizeof(float), B = (size_t)o->batch, R = B * (size_t)t->tokens,
           D = (size_t)g->width, rows = B * (size_t)m->pooled_rows, normed = (size_t)tower_normed_rows(t),
           E = (size_t)model_shape_embedding(g), H = (size_t)tower_head_width(t),
           wide = t->owns_loss ? H : D; /* of the rows after an image's first */
    size_t tokens = tower_place(at, pre && embedding ? R * E * e : 0),
           pre_stats = tower_place(at, pre ? 2 * R * f : 0), norm_stats = tower_place(at, 2 * normed * f),
           norm_hat = tower_place(at, m->norm_hat_bytes),
           pooled = tower_place(at, m->pooled_apart ? (B * H + (rows - B) * wide) * e : 0),
           projected = tower_place(at, m->projects ? B * (size_t)g->out * e : 0),
           mean = tower_place(at, averaged ? B * D * f : 0),
           picked = tower_place(at, tower_picks_rows(t) ? rows * D * e : 0),
           picked_h = tower_place(at, tower_picks_rows(t) ? rows * H * e : 0),
           embedded = tower_place(at, m->roles[ROLE_EMBED_W] ? R * E * e : 0);
    outputs_lay(t, base, at);
    if (tower_pools_by_attention(t)) *at = attn_pool_lay(t, &m->attn_pool, base, *at);
    if (!base) return;
    m->tokens = pre && embedding ? base + tokens : NULL;
    m->pre_mean = (float *)(void *)(base + pre_stats);
    m->pre_rstd = m->pre_mean + R;
    m->norm_mean = (float *)(void *)(base + norm_stats);
    m->norm_rstd = m->norm_mean + normed;
    m->norm_hat = m->norm_hat_bytes ? base + norm_hat : NULL;
    m->pooled = base + pooled;
    m->projected = m->projects ? base + projected : NULL;
    m->mean = (float *)(void *)(base + mean);
    m->picked = base + picked;
    m->picked_h = base + picked_h;
    m->embedded = base + embedded;
}

/* Lays out the tensors of one slot from `base`, and returns their bytes; NULL base only counts. A frozen
 * tower keeps its stream and its output only, and a stage what its groups need. */
static size_t lay_slot(struct tower *t, char *base)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    bool frozen = o->gradients == GRADIENTS_NONE;
    size_t R = (size_t)(o->batch * t->tokens), D = (size_t)g->width, at = 0;
    for (int64_t l = tower_first_kept(t); l < g->depth && !frozen; l++) {
        if (!tower_owns(t, (int)l + 1)) continue;
        size_t x = tower_place(&at, R * D * dtype_bytes(o->compute));
        if (base) m->x[l] = base + x;
        lay_moments(&m->kept[l], base, &at, R);
    }
    bool out_here = tower_has_ends(t) && !t->owns_loss;
    if (!frozen && tower_has_ends(t)) lay_ends(t, base, &at);
    size_t stream = tower_place(&at, tower_keeps_streams(t) ? tower_stream_values(t) * sizeof(float) : 0),
           out = tower_place(&at, out_here ? tower_out_bytes(t) : 0);
    if (!base) return at;
    if (tower_keeps_streams(t)) m->stream = (float *)(void *)(base + stream);
    t->out = out_here ? (float *)(void *)(base + out) : NULL;
    if (!m->pooled_apart) m->pooled = t->out;
    return at;
}

/* Lays out the tensors that slots share. */
static size_t lay_shared(struct tower *t, char *base)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    bool frozen = o->gradients == GRADIENTS_NONE;
    bool resized = t->resized && tower_has_ends(t);
    int64_t first = -1;
    size_t f = sizeof(float), D = (size_t)model_shape_embedding(g), at = 0,
           positions = resized ? (size_t)model_shape_position_rows(g, g->pos_grid) : 0,
           kept = resized ? (size_t)model_shape_position_rows(g, g->image / g->patch) : 0;
    for (int64_t l = tower_first_kept(t); l < g->depth && !frozen; l++) {
        if (!tower_owns(t, (int)l + 1)) continue;
        if (o->recompute == RECOMPUTE_NONE || first < 0) lay_block(t, &m->kept[l], base, &at);
        else m->kept[l] = m->kept[first];
        if (first < 0) first = l;
    }
    if (frozen && tower_has_ends(t)) lay_ends(t, base, &at);
    bool ends = tower_has_ends(t), head = ends && tower_picks_rows(t), types = ends && m->roles[ROLE_TYPES];
    size_t rows = (size_t)(o->batch * t->out_rows), n = (size_t)t->tokens;
    if (types) kept = n;
    size_t numbers = tower_place(&at, head ? 2 * rows * sizeof(int32_t) : 0),
           ones = tower_place(&at, head ? rows * dtype_bytes(o->compute) : 0),
           of_types = tower_place(&at, types ? n * sizeof(int32_t) : 0);
    size_t pos = tower_place(&at, kept * D * f),
           dpos = tower_place(&at, t->lowest == 0 && resized ? kept * D * f : 0),
           resize = tower_place(&at, kept * positions * f),
           rotation = tower_place(
               &at, model_shape_rotates(g) ? (size_t)(t->rotated * model_shape_head_dim(g)) * f : 0),
           lists = tower_place(&at, tower_lists_bytes(t)),
           unit = tower_place(&at, outputs_of_blocks(t) ? D * f : 0);
    if (!base) return at;
    m->unit = (float *)(void *)(base + unit);
    m->numbers = head ? (int32_t *)(void *)(base + numbers) : NULL;
    m->ones = head ? base + ones : NULL;
    m->types = types ? (int32_t *)(void *)(base + of_types) : NULL;
    m->pos = (float *)(void *)(base + pos);
    m->dpos = (float *)(void *)(base + dpos);
    m->resize = (float *)(void *)(base + resize);
    m->rotation = (float *)(void *)(base + rotation);
    m->lists = (int32_t *)(void *)(base + lists);
    return at;
}

/* Bytes of a block's queries, keys and values that are kept for generation. */
static size_t cache_bytes(const struct tower *t)
{
    return (size_t)(t->tokens * model_shape_qkv_width(&t->model_shape)) * dtype_bytes(t->options.compute);
}

int activations_alloc(struct tower *t, struct error *err)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    bool frozen = o->gradients == GRADIENTS_NONE,
         coca = tower_pools_by_attention(t) && !m->roles[ROLE_POOL_FC1_W],
         many = g->pool == POOL_AVG || g->pool == POOL_CLS_AVG || t->owns_loss,
         final = !frozen && !o->frozen_end && m->roles[ROLE_NORM_W] && !tower_averages_first(t) &&
                 !tower_pools_by_attention(t);
    m->stored = tower_post_norm(t) || o->compute != DTYPE_BF16 ? o->compute : DTYPE_F16;
    m->norm_type = many ? m->stored : DTYPE_F32;
    m->norm_hat_bytes = final ? (size_t)(tower_normed_rows(t) * g->width) * dtype_bytes(m->norm_type) : 0;
    m->projects = m->roles[ROLE_OUT_W] && !outputs_headless(t);
    m->pooled_apart = m->roles[ROLE_OUT_W] || !outputs_headless(t) || coca || t->owns_loss;
    m->pooled_type = m->pooled_apart ? o->compute : DTYPE_F32;
    m->x = xcalloc((size_t)g->depth, sizeof *m->x);
    m->kept = xcalloc((size_t)g->depth, sizeof *m->kept);
    m->slot_bytes = lay_slot(t, NULL);
    m->slots_at = lay_shared(t, NULL);
    m->activations =
        device_alloc(t->device, o->activations_class, m->slots_at + (size_t)o->slots * m->slot_bytes,
                     frozen ? "teacher outputs" : "activations", err);
    if (!m->activations) return err->code;
    lay_shared(t, m->activations);
    activations_select(t);
    if (o->cache && !(m->cache = device_alloc(t->device, o->activations_class,
                                              (size_t)g->depth * cache_bytes(t), "key/value cache", err)))
        return err->code;
    return 0;
}

void activations_select(struct tower *t)
{
    const struct tower_memory *m = t->memory;
    lay_slot(t, (char *)m->activations + m->slots_at + (size_t)m->slot * m->slot_bytes);
}

/* Lays out scratch: tensors that live inside one pass, overlapping where lifetimes allow. */
void activations_lay_scratch(struct tower *t)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    struct tower_memory *m = t->memory;
    bool frozen = o->gradients == GRADIENTS_NONE;
    int parts = model_shape_parts(g);
    size_t e = dtype_bytes(o->compute), B = (size_t)o->batch, N = (size_t)t->tokens, R = B * N,
           D = (size_t)g->width;
    size_t own = (size_t)tower_own_slices(t), F = own * (size_t)slice_hidden(t),
           G = own * (size_t)slice_gated(t), p = (size_t)(3 * g->patch * g->patch),
           A = own * (size_t)slice_attn(t), Q = own * (size_t)slice_qkv(t),
           heads = parts & PART_QK_NORM && !frozen ? (size_t)slice_qkv(t) : 0;
    size_t at = 0, largest = 0, attention = (R * (A + Q) * e + 63) & ~(size_t)63;
    m->t1_at = tower_place(&at, larger(R, 4 * B) * D * e);       /* 4 B: image_backward.c, separate */
    size_t inner = parts & PART_FFN_NORM && !frozen ? R * F : 0; /* input of the feed-forward's norm */
    if (frozen && tower_sum_norm(t)) inner = R * D;              /* the sum before a block's second norm */
    size_t region = larger(R * F + inner, frozen ? R * (A + D) : 0);
    region = larger(region, tower_has_ends(t) ? B * (size_t)t->patches * p : 0) * e; /* patches */
    region = larger(region, frozen ? 0 : attention + R * heads * e);
    size_t pool = tower_pools_by_attention(t) ? attn_pool_scratch(t) : 0,
           ends = t->owns_loss ? m->loss.bytes
                  : frozen     ? outputs_scratch(t)
                               : tower_output_gradients(t) + pool;
    region = larger(region, tower_has_ends(t) ? larger(ends, encoder_scratch(t)) : 0);
    m->region_at = tower_place(&at, region);
    m->heads_at = m->region_at + attention;
    m->dx_at = tower_place(&at, tower_keeps_streams(t) ? 0 : tower_stream_values(t) * sizeof(float));
    size_t end = m->frozen_at = at; /* the gradients of a backward pass take its place */
    if (!tower_block_kept(t, 0)) lay_frozen_block(t, NULL, NULL, &end);
    if (!frozen) {
        m->td_at = tower_place(&at, R * D * e);
        m->dh_at = tower_place(&at, o->saved == SAVED_8BIT ? R * larger(G, A) * e
                                    : tower_saves_h(t)     ? R * G * e
                                                           : 0);
    }
    at = larger(at, end);
    for (int i = 0; i < t->parameter_count; i++)
        if (t->parameters[i].matrix && t->parameters[i].weight_type != o->compute &&
            tower_owns_parameter(t, &t->parameters[i]))
            largest = larger(largest, (size_t)t->parameters[i].count * e);
    bool sliced = tower_slices(t) > 1;
    size_t sums = sliced ? (size_t)(slice_buffers((int)own) * m->sums.each) * sizeof(float) : 0,
           norms = sliced && heads ? own * 2 * (size_t)model_shape_head_dim(g) * sizeof(float) : 0;
    m->sums_at = tower_place(&at, sums);
    m->norms_at = tower_place(&at, norms);
    m->cast_at = tower_place(&at, largest);
    m->lora_at = tower_place(&at, R * (size_t)o->lora.rank * e);
    t->scratch_bytes = at;
}

void tower_bind_scratch(struct tower *t, void *scratch)
{
    struct tower_memory *m = t->memory;
    m->scratch = scratch;
    m->sums.buffers = (float *)(void *)(m->scratch + m->sums_at);
    if (!tower_keeps_streams(t)) m->stream = (float *)(void *)(m->scratch + m->dx_at);
    for (int64_t l = 0; l < t->model_shape.depth && t->options.saved == SAVED_8BIT; l++) {
        struct block_activations *k = &m->kept[l];
        if (tower_block_kept(t, l)) k->attn = k->h = k->h8.x = m->scratch + m->dh_at;
    }
    size_t attention =
        (size_t)(t->options.batch * t->tokens *
                 tower_share(t, model_shape_attn_width(&t->model_shape))) * /* after its norm */
        dtype_bytes(t->options.compute);
    for (int64_t l = 0; l < t->model_shape.depth && !tower_block_kept(t, l); l++) {
        size_t at = m->frozen_at;
        lay_frozen_block(t, &m->kept[l], m->scratch, &at);
        if (m->cache) m->kept[l].qkv = m->cache + (size_t)l * cache_bytes(t);
        m->x[l] = m->scratch + m->region_at + attention;
        m->kept[l].x_mid = tower_post_norm(t) ? m->scratch + m->t1_at : NULL;
    }
}
