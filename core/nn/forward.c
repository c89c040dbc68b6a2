/* The forward pass, from a batch of images to the output. All families use the same code; a parameter that a
 * family lacks is NULL. Source: the modules of open_clip, baaivision/EVA, facebookresearch/dinov2 and dinov3;
 * tests/data/towers has their outputs. */
#include "core/nn/tower.h"

#include <assert.h>

const void *tower_matrix(struct tower *t, const struct parameter *p)
{
    if (p->weight_type == t->options.compute) return p->weight;
    void *cast = t->memory->scratch + t->memory->cast_at;
    t->device->ops->cast(t->device, p->weight, p->weight_type, cast, t->options.compute, p->count);
    return cast;
}

void tower_linear_apart(struct tower *t, const void *x, int64_t ldx, const struct parameter *w,
                        const float *bias, void *y, int64_t ldy, enum dtype y_type, int64_t rows)
{
    int64_t out = w->shape[0], in = w->count / out;
    t->device->ops->gemm(t->device, &(struct gemm){.m = rows,
                                                   .n = out,
                                                   .k = in,
                                                   .transpose_b = true,
                                                   .a = x,
                                                   .b = tower_matrix(t, w),
                                                   .c = y,
                                                   .lda = ldx,
                                                   .ldb = in,
                                                   .ldc = ldy,
                                                   .ab_type = t->options.compute,
                                                   .c_type = y_type,
                                                   .alpha = 1,
                                                   .bias = bias,
                                                   .floats = tower_post_norm(t)});
    if (w->pair_count) lora_forward(t, x, ldx, w, y, ldy, y_type, rows);
}
void tower_linear(struct tower *t, const void *x, const struct parameter *w, const float *bias, void *y,
                  enum dtype y_type, int64_t rows)
{
    int64_t out = w->shape[0];
    tower_linear_apart(t, x, w->count / out, w, bias, y, out, y_type, rows);
}

float *tower_stream(const struct tower *t) { return t->memory->stream; }

void tower_norm(struct tower *t, const void *x, const struct parameter *w, const struct parameter *b, void *y,
                float *mean, float *rstd, int64_t R, int64_t D)
{
    enum dtype e = t->options.compute;
    t->device->ops->layernorm_forward(t->device,
                                      &(struct layernorm){.type = e,
                                                          .x_type = e,
                                                          .x = x,
                                                          .x_stride = D,
                                                          .weight = f32(w),
                                                          .bias = f32(b),
                                                          .y = y,
                                                          .mean = mean,
                                                          .rstd = rstd,
                                                          .R = R,
                                                          .D = D,
                                                          .eps = model_shape_norm_eps(&t->model_shape),
                                                          .rms = t->family->rms});
}

struct layernorm tower_stream_norm(const struct tower *t, const struct parameter *w,
                                   const struct parameter *b, void *hat, float *mean, float *rstd, int64_t R)
{
    const struct tower_memory *m = t->memory;
    int64_t D = t->model_shape.width;
    return (struct layernorm){.type = t->options.compute,
                              .x = tower_stream(t),
                              .x_stride = D,
                              .weight = f32(w),
                              .bias = f32(b),
                              .y = m->scratch + m->t1_at,
                              .mean = mean,
                              .rstd = rstd,
                              .R = R,
                              .D = D,
                              .eps = model_shape_norm_eps(&t->model_shape),
                              .hat_type = m->stored,
                              .hat = hat,
                              .rms = t->family->rms};
}

void tower_rotate(struct tower *t, const struct batch *in, void *qkv, bool inverse)
{
    const struct model_shape *g = &t->model_shape;
    int64_t dh = model_shape_head_dim(g);
    if (!model_shape_rotates(g)) return;
    t->device->ops->rotate(t->device, &(struct rotation){.type = t->options.compute,
                                                         .qkv = qkv,
                                                         .table = t->memory->rotation + in->first * dh,
                                                         .B = in->count,
                                                         .N = tower_sample_rows(t, in),
                                                         .H = g->heads / tower_slices(t),
                                                         .G = model_shape_kv_heads(g) / tower_slices(t),
                                                         .dh = dh,
                                                         .skip = t->tokens - t->rotated,
                                                         .half = t->family->rope >= ROPE_DINOV3,
                                                         .inverse = inverse,
                                                         .begins = in->begins});
}

#define P(role) block_role(t, l, role)

/* Encodes the tensors that are kept in 8 bits; no effect on other tensors. */
static void tower_encode(struct tower *t, const struct coded *kept, int64_t R)
{
    struct coded rows = *kept;
    rows.R = R;
    if (rows.codes) t->device->ops->encode(t->device, &rows);
}

void tower_decode(struct tower *t, const struct coded *kept, int64_t R)
{
    struct coded rows = *kept;
    rows.R = R;
    if (rows.codes) t->device->ops->decode(t->device, &rows);
}

/* Adds a branch: x += gamma (branch + b) times the factor of drop path, with the branch in t1 (post-norm:
 * after its norm, b included). Also computes the input of the second branch, unless NULL. again: only the
 * latter. */
static void end_branch(struct tower *t, const struct parameter *b, const struct parameter *gamma, int64_t R,
                       struct drop_path drop, const struct second_input *second, bool again)
{
    float *x = again ? NULL : tower_stream(t);
    t->device->ops->residual_forward(
        t->device,
        &(struct residual){t->options.compute, .x = x, .branch = t->memory->scratch + t->memory->t1_at,
                           .bias = tower_post_norm(t) ? NULL : bias_later(t, b), .gamma = f32(gamma), .y = x,
                           R, t->model_shape.width, second, drop});
}

/* Ends a branch u of a SUM_NORM block: u += x, of the compute type. The stream is not read. */
static void add_branch(struct tower *t, const void *x, void *u, const struct parameter *b, int64_t R,
                       struct drop_path drop)
{
    struct second_input sum = {.from = {t->options.compute, .x = x}, .z = u};
    t->device->ops->residual_forward(t->device, &(struct residual){.type = t->options.compute,
                                                                   .branch = u,
                                                                   .bias = bias_later(t, b),
                                                                   .R = R,
                                                                   .D = t->model_shape.width,
                                                                   .second = &sum,
                                                                   .drop = drop});
}

/* The GEMM at the end of a branch: u = a W^T, and b if a post-norm follows, whose input includes it. */
static void branch_linear(struct tower *t, const void *a, const struct parameter *w,
                          const struct parameter *b, void *u, int64_t R)
{
    tower_linear(t, a, w, tower_post_norm(t) ? f32(b) : bias_at_once(t, b), u, t->options.compute, R);
}

/* The same of all slices: u = sum_s a_s W_s^T + b. a: those of the tower follow each other, `each` bytes
 * apart. */
static void branch_slices(struct tower *t, const void *a, size_t each, const struct parameter *w,
                          const struct parameter *b, void *u, int64_t R)
{
    int64_t D = t->model_shape.width;
    for (int i = 0; i < tower_own_slices(t); i++) {
        const struct parameter *slice = own_slice(t, w, i);
        float *part = slice_sums_next(&t->memory->sums);
        tower_linear(t, (const char *)a + (size_t)i * each, slice,
                     slice->slice == 0 ? bias_at_once(t, b) : NULL, part, DTYPE_F32, R);
        slice_sums_add(&t->memory->sums, R * D);
    }
    slice_sums_begin(&t->memory->sums, R * D);
    t->device->ops->cast(t->device, slice_sums_end(&t->memory->sums), DTYPE_F32, u, t->options.compute,
                         R * D);
}

struct block_activations block_slice_view(const struct tower *t, const struct block_activations *kept, int i)
{
    struct block_activations k = *kept;
    size_t e = dtype_bytes(t->options.compute);
    int64_t R = t->options.batch * t->tokens, at = i * R, heads = t->model_shape.heads / tower_slices(t),
            keys = model_shape_kv_heads(&t->model_shape) / tower_slices(t);
    k.qkv = (char *)k.qkv + (size_t)(at * slice_qkv(t)) * e;
    if (k.attn) k.attn = (char *)k.attn + (size_t)(at * slice_attn(t)) * e;
    if (k.h) k.h = (char *)k.h + (size_t)(at * slice_gated(t)) * e;
    k.lse += at * heads;
    if (k.head_rstd) k.head_rstd += at * (heads + keys);
    return k;
}

static void *queries(struct tower *t, const struct batch *in, int64_t l, const struct block_activations *k)
{
    const struct model_shape *g = &t->model_shape;
    if (!P(ROLE_Q_NORM_W)) return k->qkv;
    void *x = tower_new_rows(t, in, k->qkv, slice_qkv(t)),
         *y = tower_block_kept(t, l) ? t->memory->scratch + t->memory->heads_at : x;
    t->device->ops->head_norm(t->device,
                              &(struct head_norm){.type = t->options.compute,
                                                  .x = x,
                                                  .y = y,
                                                  .weight = {f32(P(ROLE_Q_NORM_W)), f32(P(ROLE_K_NORM_W))},
                                                  .rstd = k->head_rstd,
                                                  .R = tower_rows(t, in),
                                                  .H = g->heads / tower_slices(t),
                                                  .G = model_shape_kv_heads(g) / tower_slices(t),
                                                  .dh = model_shape_head_dim(g),
                                                  .eps = model_shape_norm_eps(g)});
    tower_rotate(t, in, y, false);
    return y == x ? k->qkv : y;
}

/* Sets the lists of block l. */
static void attend_blocks(const struct tower *t, const struct batch *in, int64_t l, struct attention *o)
{
    const struct model_shape *g = &t->model_shape;
    bool training = t->options.gradients != GRADIENTS_NONE && !in->evaluates;
    int64_t list = 0, numbers = blocks_list_numbers(g);
    for (int before = 0; before < l && training; before++) list += 2 * tower_owns(t, before + 1);
    o->block = g->block;
    o->listed = blocks_listed(g);
    o->keys = t->memory->lists + (training ? 1 + list : 0) * numbers;
    o->queries = training ? o->keys + numbers : NULL;
}

struct attention tower_attention(struct tower *t, const struct batch *in, int64_t l,
                                 const struct block_activations *k)
{
    const struct model_shape *g = &t->model_shape;
    struct attention o = {.type = t->options.compute,
                          .qkv = queries(t, in, l, k),
                          .out = k->attn,
                          .lse = k->lse,
                          .B = in->count,
                          .N = in->first + tower_sample_rows(t, in),
                          .H = g->heads / tower_slices(t),
                          .G = model_shape_kv_heads(g) / tower_slices(t),
                          .dh = model_shape_head_dim(g),
                          .floats = tower_post_norm(t),
                          .causal = t->family->kind == MODEL_DECODER,
                          .window = g->window,
                          .begins = in->begins,
                          .ends = in->ends,
                          .first = in->first};
    if (blocks_used(g)) attend_blocks(t, in, l, &o);
    return o;
}

/* x_mid = x + gamma1 proj(a), a = attention(rotated(qkv)), qkv = linear(norm1(x)); with an inner norm
 * proj(norm(a)). Post-norm: x + norm1(proj(a)), qkv = linear(x); otherwise norm2(x_mid) is also computed, in
 * t1. x and x_mid are stored in their stored type, and the fp32 stream is updated as well; again: not
 * updated. Sum-norm: norm1(x + proj(a)) in t1, qkv = linear(x). */
static void attention_forward(struct tower *t, const struct batch *in, int64_t l, struct block_activations *k,
                              bool again)
{
    const struct model_shape *g = &t->model_shape;
    const struct device_ops *ops = t->device->ops;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t R = tower_rows(t, in), D = g->width;
    char *t1 = m->scratch + m->t1_at, *region = m->scratch + m->region_at;
    enum role qkv_bias = P(ROLE_QKV_B) ? ROLE_QKV_B : ROLE_Q_B;
    bool post_norm = tower_post_norm(t), sum_norm = tower_sum_norm(t);
    struct layernorm norm1 = tower_stream_norm(t, P(ROLE_NORM1_W), P(ROLE_NORM1_B), m->x[l], k->mean1,
                                               k->rstd1, R),
                     norm2 = tower_stream_norm(t, P(ROLE_NORM2_W), P(ROLE_NORM2_B), k->x_mid, k->mean2,
                                               k->rstd2, R);
    const float *mean1 = t->family->rms ? NULL : k->mean1;
    struct second_input second = {.from = {m->stored, m->x[l], mean1, k->rstd1}, .norm = &norm2};
    if (post_norm || sum_norm) {
        if (!again) ops->cast(t->device, tower_stream(t), DTYPE_F32, m->x[l], e, R * D);
        second = (struct second_input){.from = {m->stored, .x = m->x[l]}, .z = k->x_mid};
    } else if (again) ops->layernorm_apply(t->device, &norm1);
    else ops->layernorm_forward(t->device, &norm1);
    for (int i = 0; i < tower_own_slices(t); i++) {
        struct block_activations of = block_slice_view(t, k, i);
        void *qkv = tower_new_rows(t, in, of.qkv, slice_qkv(t));
        tower_linear(t, post_norm || sum_norm ? m->x[l] : t1, block_slice(t, l, ROLE_QKV_W, i),
                     f32(block_slice(t, l, qkv_bias, i)), qkv, e, R);
        if (!P(ROLE_Q_NORM_W)) tower_rotate(t, in, qkv, false);
        struct attention attention = tower_attention(t, in, l, &of);
        ops->attention_forward(t->device, &attention);
    }
    const void *a = tower_new_rows(t, in, k->attn, model_shape_attn_width(g));
    if (P(ROLE_ATTN_NORM_W)) {
        tower_norm(t, a, P(ROLE_ATTN_NORM_W), P(ROLE_ATTN_NORM_B), region, k->attn_mean, k->attn_rstd, R, D);
        a = region;
    }
    void *u = k->u1 ? k->u1 : sum_norm ? region : t1;
    if (tower_slices(t) > 1)
        branch_slices(t, a, (size_t)(t->options.batch * t->tokens * slice_attn(t)) * dtype_bytes(e),
                      P(ROLE_PROJ_W), P(ROLE_PROJ_B), u, R);
    else branch_linear(t, a, P(ROLE_PROJ_W), P(ROLE_PROJ_B), u, R);
    if (sum_norm) {
        add_branch(t, m->x[l], u, P(ROLE_PROJ_B), R, tower_drop(t, in, l, 0));
        tower_norm(t, u, P(ROLE_NORM1_W), P(ROLE_NORM1_B), t1, k->mean1, k->rstd1, R, D);
        return;
    }
    if (post_norm) tower_norm(t, u, P(ROLE_NORM1_W), P(ROLE_NORM1_B), t1, k->mean1, k->rstd1, R, D);
    end_branch(t, P(ROLE_PROJ_B), P(ROLE_LS1), R, tower_drop(t, in, l, 0), &second, again);
}

void tower_activation(struct tower *t, int64_t l, int i, const void *h, void *act, int64_t R)
{
    t->device->ops->activation_forward(
        t->device, &(struct activation_value){.type = t->options.compute,
                                              .kind = (enum activation)(t->model_shape.ffn - 1),
                                              .h = h,
                                              .bias = bias_later(t, block_slice(t, l, ROLE_FC1_B, i)),
                                              .y = act,
                                              .R = R,
                                              .F = slice_hidden(t)});
}

/* x += gamma2 fc2(activation(fc1(norm2(x_mid)))), norm2(x_mid) in t1, an inner norm before fc2. Post-norm: x
 * += norm2(fc2(activation(fc1(x_mid)))). Sum-norm: x = norm2(n + fc2(activation(fc1(n)))), n in t1. */
static void ffn_forward(struct tower *t, const struct batch *in, int64_t l, struct block_activations *k,
                        bool again)
{
    const struct model_shape *g = &t->model_shape;
    enum dtype e = t->options.compute;
    int64_t R = tower_rows(t, in), D = g->width;
    char *t1 = t->memory->scratch + t->memory->t1_at, *act = t->memory->scratch + t->memory->region_at;
    bool post_norm = tower_post_norm(t), sum_norm = tower_sum_norm(t);
    const void *n = post_norm ? k->x_mid : t1;
    size_t each = (size_t)(t->options.batch * t->tokens * slice_hidden(t)) * dtype_bytes(e);
    for (int i = 0; i < tower_own_slices(t); i++) {
        struct block_activations of = block_slice_view(t, k, i);
        tower_linear(t, n, block_slice(t, l, ROLE_FC1_W, i),
                     bias_at_once(t, block_slice(t, l, ROLE_FC1_B, i)), of.h, e, R);
        tower_encode(t, &of.h8, R);
        if (!again || tower_norms_end(t)) tower_activation(t, l, i, of.h, act + (size_t)i * each, R);
    }
    if (again && !tower_norms_end(t)) return;
    if (P(ROLE_FFN_NORM_W))
        tower_norm(t, act, P(ROLE_FFN_NORM_W), P(ROLE_FFN_NORM_B), act, k->ffn_mean, k->ffn_rstd, R,
                   g->hidden);
    void *u = k->u2 ? k->u2 : sum_norm ? act + (size_t)tower_own_slices(t) * each : t1;
    if (tower_slices(t) > 1) branch_slices(t, act, each, P(ROLE_FC2_W), P(ROLE_FC2_B), u, R);
    else branch_linear(t, act, P(ROLE_FC2_W), P(ROLE_FC2_B), u, R);
    if (sum_norm) {
        add_branch(t, n, u, P(ROLE_FC2_B), R, tower_drop(t, in, l, 1));
        if (again) return;
        tower_norm(t, u, P(ROLE_NORM2_W), P(ROLE_NORM2_B), t1, k->mean2, k->rstd2, R, D);
        t->device->ops->cast(t->device, t1, e, tower_stream(t), DTYPE_F32, R * D);
        return;
    }
    if (post_norm) tower_norm(t, u, P(ROLE_NORM2_W), P(ROLE_NORM2_B), t1, k->mean2, k->rstd2, R, D);
    if (!again) end_branch(t, P(ROLE_FC2_B), P(ROLE_LS2), R, tower_drop(t, in, l, 1), NULL, false);
}
#undef P

void tower_block_forward(struct tower *t, const struct batch *in, int64_t l, bool again)
{
    struct block_activations *k = &t->memory->kept[l];
    attention_forward(t, in, l, k, again);
    ffn_forward(t, in, l, k, again);
}

void tower_block(struct tower *t, const struct batch *in, int64_t l) { tower_block_forward(t, in, l, false); }

/* Patches, tokens, position embedding, ln_pre: images -> x */
void image_embed(struct tower *t, const struct batch *in)
{
    struct device *dev = t->device;
    const struct device_ops *ops = dev->ops;
    const struct model_shape *g = &t->model_shape;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t batch = in->count, N = t->tokens, D = g->width;
    void *patches = m->scratch + m->region_at, *patch_out = m->scratch + m->t1_at;
    const float *pos = f32(m->roles[ROLE_POS]);
    if (t->resized) {
        ops->resize_rows(dev, m->resize, pos, m->pos, model_shape_position_rows(g, g->image / g->patch),
                         model_shape_position_rows(g, g->pos_grid), D, false);
        pos = m->pos;
    }
    ops->patchify(dev, e, in->input, patches, batch, g->image, g->patch);
    tower_linear(t, patches, m->roles[ROLE_PATCH_W], bias_at_once(t, m->roles[ROLE_PATCH_B]), patch_out, e,
                 batch * t->patches);
    ops->embed_forward(dev, &(struct embedding){.type = e,
                                                .patches = patch_out,
                                                .bias = bias_later(t, m->roles[ROLE_PATCH_B]),
                                                .cls = f32(m->roles[ROLE_CLS]),
                                                .pos = pos,
                                                .registers = f32(m->roles[ROLE_REGISTERS]),
                                                .tokens = tower_stream(t),
                                                .B = batch,
                                                .N = N,
                                                .D = D,
                                                .Q = g->registers});
    if (!m->roles[ROLE_PRE_W]) return;
    struct layernorm norm = tower_stream_norm(t, m->roles[ROLE_PRE_W], m->roles[ROLE_PRE_B], m->tokens,
                                              m->pre_mean, m->pre_rstd, batch * N);
    norm.type = DTYPE_F32;
    norm.y = tower_stream(t);
    ops->layernorm_forward(dev, &norm);
}

/* Normalizes rows of the stream. Row `first` of the final norm's output, and the `rows` rows after it, come
 * from row `at` of the stream and those at a distance of `stride` rows. */
static void final_norm(struct tower *t, void *y, enum dtype y_type, int64_t first, int64_t rows, int64_t at,
                       int64_t stride)
{
    struct tower_memory *m = t->memory;
    int64_t D = t->model_shape.width;
    char *hat = m->norm_hat, *out = y;
    int64_t together = stride == 1 ? rows : 1;
    for (int64_t i = 0; !m->roles[ROLE_NORM_W] && i < rows;
         i += together) /* the family has none: unchanged */
        t->device->ops->cast(t->device, tower_stream(t) + (at + i * stride) * D, DTYPE_F32,
                             out + (size_t)((first + i) * D) * dtype_bytes(y_type), y_type, together * D);
    if (!m->roles[ROLE_NORM_W]) return;
    struct layernorm norm =
        tower_stream_norm(t, m->roles[ROLE_NORM_W], m->roles[ROLE_NORM_B],
                          hat ? hat + (size_t)(first * D) * dtype_bytes(m->norm_type) : NULL,
                          m->norm_mean + first, m->norm_rstd + first, rows);
    norm.type = y_type;
    norm.y = out + (size_t)(first * D) * dtype_bytes(y_type);
    norm.x = tower_stream(t) + at * D;
    norm.x_stride = stride * D;
    norm.hat_type = m->norm_type;
    t->device->ops->layernorm_forward(t->device, &norm);
}

/* Normalizes `count` tokens of each image from its token `from`, image by image, into y from row `first`. */
static void norm_tokens(struct tower *t, void *y, enum dtype y_type, int64_t first, int64_t from,
                        int64_t count, int64_t batch)
{
    for (int64_t i = 0; i < batch; i++)
        final_norm(t, y, y_type, first + i * count, count, i * t->tokens + from, 1);
}

/* pooled (batch, 2D) = for each image its row of cls (batch, D), then its row of the mean */
static void concatenate(struct tower *t, const char *cls, int64_t batch)
{
    struct tower_memory *m = t->memory;
    int64_t D = t->model_shape.width;
    enum dtype e = t->options.compute;
    size_t from = (size_t)D * dtype_bytes(e), to = (size_t)D * dtype_bytes(m->pooled_type);
    char *pooled = m->pooled;
    for (int64_t i = 0; i < batch; i++, pooled += 2 * to) {
        t->device->ops->cast(t->device, cls + (size_t)i * from, e, pooled, m->pooled_type, D);
        t->device->ops->cast(t->device, m->mean + i * D, DTYPE_F32, pooled + to, m->pooled_type, D);
    }
}

/* x -> pooled: the pooled rows after the last norm */
static void pool(struct tower *t, int64_t batch)
{
    struct device *dev = t->device;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t N = t->tokens, D = t->model_shape.width;
    const struct parameter *w = m->roles[ROLE_NORM_W], *b = m->roles[ROLE_NORM_B];
    void *t1 = m->scratch + m->t1_at;
    if (tower_pools_by_attention(t)) {
        attn_pool_forward(t, batch);
        return;
    }
    struct layernorm norm = tower_stream_norm(t, w, b, NULL, m->norm_mean, m->norm_rstd, batch);
    int64_t first, count;
    model_shape_averaged(&t->model_shape, &first, &count);
    if (tower_averages_first(t)) {
        dev->ops->row_mean_forward(dev, &(struct row_mean){DTYPE_F32, .x = tower_stream(t), .y = m->mean,
                                                           .B = batch, .N = N, .D = D, .skip = first});
        norm.x = m->mean;
        norm.hat_type = DTYPE_F32;
        norm.type = m->pooled_type;
        norm.y = m->pooled;
        if (t->model_shape.pool != POOL_AVG_RAW) dev->ops->layernorm_forward(dev, &norm);
        else dev->ops->cast(dev, m->mean, DTYPE_F32, m->pooled, m->pooled_type, batch * D);
    } else if (tower_averages_last(t)) {
        int64_t classes = tower_class_rows(t, batch);
        if (classes) final_norm(t, t1, e, 0, batch, 0, N);
        norm_tokens(t, t1, e, classes, first, count, batch);
        dev->ops->row_mean_forward(dev,
                                   &(struct row_mean){e, (char *)t1 + (size_t)(classes * D) * dtype_bytes(e),
                                                      .y = m->mean, .B = batch, .N = count, .D = D});
        if (!classes) dev->ops->cast(dev, m->mean, DTYPE_F32, m->pooled, m->pooled_type, batch * D);
        else concatenate(t, t1, batch);
    } else final_norm(t, m->pooled, m->pooled_type, 0, batch, 0, N);
}

/* After them the patches, image by image. Their moments replace those of a frozen tower's pooling. */
static void pool_patches(struct tower *t, int64_t batch)
{
    struct tower_memory *m = t->memory;
    char *pooled = m->pooled;
    int64_t wider = model_shape_pooled(&t->model_shape) - t->model_shape.width;
    if (m->pooled_rows > 1)
        norm_tokens(t, pooled + (size_t)(batch * wider) * dtype_bytes(m->pooled_type), m->pooled_type, batch,
                    t->tokens - t->patches, t->patches, batch);
}

/* Pooling, projection, heads: x -> out */
void image_head(struct tower *t, const struct batch *in)
{
    struct device *dev = t->device;
    const struct model_shape *g = &t->model_shape;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t D = model_shape_pooled(g), rows = in->count;
    void *pooled = m->pooled;
    pool(t, in->count);
    pool_patches(t, in->count);
    const struct parameter *out = m->roles[ROLE_OUT_W];
    if (out) {
        void *to = m->projected ? m->projected : (void *)t->out;
        enum dtype type = m->projected ? e : DTYPE_F32;
        if (t->family->out_transposed) /* proj is (in, out) */
            dev->ops->gemm(dev, &(struct gemm){.m = rows,
                                               .n = g->out,
                                               .k = D,
                                               .a = pooled,
                                               .b = tower_matrix(t, out),
                                               .c = to,
                                               .lda = D,
                                               .ldb = g->out,
                                               .ldc = g->out,
                                               .ab_type = e,
                                               .c_type = type,
                                               .alpha = 1});
        else tower_linear(t, pooled, out, f32(m->roles[ROLE_OUT_B]), to, type, rows);
    }
    if (m->pooled_apart && (!out || m->projected)) outputs_forward(t, in);
}

struct forward {
    struct tower *tower;
    const struct batch *batch;
    int from, to; /* groups */
};
static void forward(void *context)
{
    const struct forward *f = context;
    const struct model *model = f->tower->model;
    for (int group = f->from; group <= f->to; group++) {
        if (group == 0) model->embed(f->tower, f->batch);
        else if (group < f->tower->group_count - 1) {
            outputs_of_block(f->tower, f->batch, group - 1);
            model->block(f->tower, f->batch, group - 1);
        } else model->head(f->tower, f->batch);
    }
}
void tower_forward(struct tower *t, const struct batch *batch)
{
    struct error none;
    assert(!t->needed);
    (void)tower_forward_bound(t, batch, &none);
}

/* Runs a part of the forward pass, recorded for passes alike. A pass of `rows` comes hardly ever again, and
 * calls of other ranks are not recorded. */
static void issue_forward(struct forward *f, int32_t flags)
{
    const struct batch *batch = f->batch;
    if (batch->rows || tower_calls_ranks(f->tower)) forward(f);
    else
        device_issue(f->tower->device,
                     &(struct device_work){.owner = f->tower,
                                           .inputs = {batch->input, batch->keep, batch->begins},
                                           .count = batch->count,
                                           .part = -1 - f->from,
                                           .flags = flags},
                     forward, f);
}

int tower_forward_bound(struct tower *t, const struct batch *batch, struct error *err)
{
    struct forward f = {t, batch, 0, 0};
    int code = 0, last = t->group_count - 1;
    assert(t->options.stages <= 1);
    tower_select(t, 0);
    for (; f.from <= last && !code; f.from = f.to + 1) {
        f.to = t->needed ? f.from : last;
        if (t->needed && (code = t->needed(t->needed_by, f.from, f.from < last ? f.from + 1 : -1, err)) != 0)
            break;
        issue_forward(&f, batch->evaluates);
        code = tower_failed(t, err);
    }
    return code;
}

void tower_forward_group(struct tower *t, const struct batch *batch, int64_t slot, int group)
{
    struct forward f = {t, batch, group, group};
    assert(tower_owns(t, group));
    tower_select(t, slot);
    issue_forward(&f, tower_slot_flags(slot) | batch->evaluates);
}

int tower_need(struct tower *t, int group, int next, struct error *err)
{
    return t->needed ? t->needed(t->needed_by, group, next, err) : 0;
}

void tower_pooled(struct tower *t, int64_t count, float *features)
{
    const struct tower_memory *m = t->memory;
    t->device->ops->cast(t->device, m->pooled, m->pooled_type, features, DTYPE_F32,
                         count * model_shape_pooled(&t->model_shape));
}

/* L = scale (mean of l over the cls rows + mean of l over the patch rows), l of a row (width) with e = y - t:
 *
 *   mse |e|^2, smooth l1 sum_i (e_i^2 / 2 where |e_i| < 1, else |e_i| - 1/2), both / width unless sum_dim
 *   cosine 1 - y.t / (|y| |t|)
 *
 * dy is their derivative, through y/|y| when normalised (kernels/cpu/loss.c).
 */
void distill_loss(struct device *dev, const struct distill_options *o, const float *out, const float *target,
                  float *dout, double *loss, double *cosine, float scale, int64_t batch, int64_t out_rows,
                  int64_t width)
{
    int64_t patches = batch * (out_rows - 1), at = batch * width;
    struct distillation rows = {.kind = o->kind,
                                .normalize = o->normalize,
                                .sum_dim = o->sum_dim,
                                .y = out,
                                .target = target,
                                .dy = dout,
                                .loss = loss,
                                .cosine = cosine,
                                .weight = scale,
                                .R = batch,
                                .D = width};
    dev->ops->distill_loss(dev, &rows);
    if (!patches) return;
    rows.y += at;
    rows.target += at;
    rows.dy = dout ? dout + at : NULL;
    rows.cosine = NULL;
    rows.R = patches;
    dev->ops->distill_loss(dev, &rows);
}
