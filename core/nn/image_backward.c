/* Backward through the ends of an image tower: from the output to the gradient after the last block, and from
 * the gradient before the first block to the embedding's parameters. backward.c has the blocks. */
#include "core/nn/tower.h"

/* Backward through the final norm: dense rows of dy -> dx of the stream's rows from `at`, `stride` rows
 * apart. `first`: the first of these rows in the norm's order (forward.c, final_norm). */
static void final_norm_backward(const struct pass *pass, const void *dy, enum dtype dy_type, int64_t first,
                                int64_t rows, int64_t at, int64_t stride)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    int64_t D = t->model_shape.width;
    const struct parameter *w = m->roles[ROLE_NORM_W], *b = m->roles[ROLE_NORM_B];
    const char *hat = m->norm_hat, *from = dy;
    int64_t together = stride == 1 ? rows : 1;
    for (int64_t i = 0; !w && i < rows; i += together)
        t->device->ops->cast(t->device, from + (size_t)(i * D) * dtype_bytes(dy_type), dy_type,
                             tower_stream(t) + (at + i * stride) * D, DTYPE_F32, together * D);
    if (!w) return;
    t->device->ops->layernorm_backward(
        t->device, &(struct layernorm_gradient){.type = dy_type,
                                                .x_type = m->norm_type,
                                                .dy = dy,
                                                .x = hat + (size_t)(first * D) * dtype_bytes(m->norm_type),
                                                .x_stride = D,
                                                .weight = f32(w),
                                                .rstd = m->norm_rstd + first,
                                                .dx = tower_stream(t) + at * D,
                                                .dx_stride = stride * D,
                                                .dweight = w->grad,
                                                .dbias = b->grad,
                                                .R = rows,
                                                .D = D});
}

/* Backward for `count` tokens of each image from its token `from`, image by image (forward.c,
 * norm_tokens). */
static void norm_tokens_backward(const struct pass *pass, const char *dy, enum dtype dy_type, int64_t first,
                                 int64_t from, int64_t count)
{
    const struct tower *t = pass->tower;
    size_t image = (size_t)(count * t->model_shape.width) * dtype_bytes(dy_type);
    for (int64_t i = 0; i < pass->batch->count; i++)
        final_norm_backward(pass, dy + (size_t)i * image, dy_type, first + i * count, count,
                            i * t->tokens + from, 1);
}

/* Separates the gradients of class tokens and means, dy (B, 2D) -> t1 (B, D) and, returned, (B, D). */
static const char *separate(struct tower *t, const char *dy, int64_t B)
{
    enum dtype type = t->memory->pooled_type;
    size_t row = (size_t)t->model_shape.width * dtype_bytes(type);
    char *cls = t->memory->scratch + t->memory->t1_at, *mean = cls + (size_t)B * row;
    for (int64_t i = 0; i < B; i++, dy += 2 * row) {
        t->device->ops->copy(t->device, cls + (size_t)i * row, dy, row);
        t->device->ops->copy(t->device, mean + (size_t)i * row, dy + row, row);
    }
    return mean;
}

/* pooled = the pooled rows of x after the last norm; dy its gradient (rows, D) of pooled_type -> dx (B, N, D)
 *
 *   the class token y = norm(x_0): dx_0 = dnorm(dy), of patches too if they are in the output, and 0
 * elsewhere
 *   y = norm(mean(x)): dx_n = dnorm(dy) / count of every token in the mean; y = mean(x): dy / count
 *   y = mean(norm(x)): dx_n = dnorm(dy / count); the norms' output gradient is computed in dx, and moved to
 * td. Of a concatenation with the class token, both parts of dy
 *   attention pooling: attn_pool_backward
 */
static void pool_backward(const struct pass *pass, char *dy)
{
    struct tower *t = pass->tower;
    struct device *dev = t->device;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t B = pass->batch->count, N = t->tokens, D = t->model_shape.width, first, count;
    model_shape_averaged(&t->model_shape, &first, &count);
    float *dx = tower_stream(t);
    char *td = m->scratch + m->td_at;
    const struct parameter *w = m->roles[ROLE_NORM_W], *b = m->roles[ROLE_NORM_B];
    size_t all = (size_t)(B * N * D);
    struct row_mean_gradient mean = {m->pooled_type, .dy = dy, .dx = dx, B, N, D, first};
    dev->ops->fill(dev, dx, 0, all * sizeof *dx);
    if (tower_pools_by_attention(t)) {
        attn_pool_backward(pass, dy);
        return;
    }
    if (tower_averages_first(t)) {
        struct layernorm_gradient norm = {.type = m->pooled_type,
                                          .dy = dy,
                                          .x = m->mean,
                                          .x_stride = D,
                                          .weight = f32(w),
                                          .mean = m->norm_mean,
                                          .rstd = m->norm_rstd,
                                          .dweight = w ? w->grad : NULL,
                                          .dbias = w ? b->grad : NULL,
                                          .R = B,
                                          .D = D,
                                          .to = dy};
        if (t->model_shape.pool != POOL_AVG_RAW) dev->ops->layernorm_backward(dev, &norm);
        dev->ops->row_mean_backward(dev, &mean);
    } else if (tower_averages_last(t)) {
        int64_t classes = tower_class_rows(t, B);
        mean.N = count; /* the averaged tokens only, image by image */
        mean.skip = 0;
        if (classes) mean.dy = separate(t, dy, B);
        dev->ops->row_mean_backward(dev, &mean);
        dev->ops->cast(dev, dx, DTYPE_F32, td, e, B * count * D);
        dev->ops->fill(dev, dx, 0, all * sizeof *dx);
        if (classes) final_norm_backward(pass, m->scratch + m->t1_at, m->pooled_type, 0, B, 0, t->tokens);
        norm_tokens_backward(pass, td, e, classes, first, count);
    } else {
        final_norm_backward(pass, dy, m->pooled_type, 0, B, 0, N);
        if (m->pooled_rows > 1)
            norm_tokens_backward(pass, dy + (size_t)(B * D) * dtype_bytes(m->pooled_type), m->pooled_type, B,
                                 N - t->patches, t->patches);
    }
}

/* Backward through the output: dout -> dx after the last block.
 *
 *   out = heads(y), y = project(pooled), pooled = norm(x) of the output rows
 *   outputs_backward: dy (B, O), or dpooled without a projection, and dpooled of the patches
 *   dpooled = dy W_out, or dy P^T where y = pooled P with P (D, O): then dP = pooled^T dy
 *   then pool_backward
 */
void image_head_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct model_shape *g = &t->model_shape;
    enum dtype e = t->options.compute;
    int64_t D = model_shape_pooled(g), B = pass->batch->count;
    struct output_gradients d = tower_output_gradients_at(t);
    const struct parameter *out = m->roles[ROLE_OUT_W];
    if (m->pooled_apart) outputs_backward(pass);
    else
        t->device->ops->cast(t->device, pass->dout, DTYPE_F32, d.pooled, m->pooled_type,
                             B * t->out_rows * t->out_width);
    if (t->options.frozen_end) return;
    if (out && t->family->out_transposed) { /* y = x P, P (in, out) */
        tower_weight_gradient(pass, m->pooled, D, d.projected, g->out, out, B);
        t->device->ops->gemm(t->device, &(struct gemm){.m = B,
                                                       .n = D,
                                                       .k = g->out,
                                                       .transpose_b = true,
                                                       .a = d.projected,
                                                       .b = tower_matrix(t, out),
                                                       .c = d.pooled,
                                                       .lda = g->out,
                                                       .ldb = g->out,
                                                       .ldc = D,
                                                       .ab_type = e,
                                                       .c_type = e,
                                                       .alpha = 1});
    } else if (out)
        tower_linear_backward(pass, d.projected, m->pooled, out, m->roles[ROLE_OUT_B], d.pooled, B);
    pool_backward(pass, d.pooled);
}

/* Backward through the embedding. tokens (B, N, D), row 0 of an image = cls + pos_0, then the registers, then
 * patch_i + pos_i with patch (B*P, D) = patches W^T + b; x = tokens, or ln_pre(tokens).
 *
 *   dcls = sum_b dtokens_b0, dpos_n = sum_b dtokens_bn, dpatch_bi = dtokens_bi, dregister_q = sum_b
 * dtokens_bq; W and b as in any linear
 *   pos = M stored if positions are resized, M (1 + P, 1 + pos_grid^2): dstored = M^T dpos; without a class
 * token there is no row 0
 *
 * dtokens is dx, or dnorm(dx) in dx's storage. The images need no gradient.
 */
void image_embed_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct device *dev = t->device;
    const struct device_ops *ops = dev->ops;
    struct tower_memory *m = t->memory;
    const struct model_shape *g = &t->model_shape;
    enum dtype e = t->options.compute;
    int64_t N = t->tokens, D = g->width, R = pass->batch->count * N,
            positions = model_shape_position_rows(g, g->image / g->patch);
    const struct parameter *cls = m->roles[ROLE_CLS], *registers = m->roles[ROLE_REGISTERS];
    float *dx = tower_stream(t), *dpos = m->roles[ROLE_POS] ? m->roles[ROLE_POS]->grad : NULL;
    void *dpatch = m->scratch + m->t1_at, *patches = m->scratch + m->region_at;
    if (m->roles[ROLE_PRE_W]) {
        ops->layernorm_backward(dev, &(struct layernorm_gradient){.type = DTYPE_F32,
                                                                  .x_type = m->stored,
                                                                  .dy = dx,
                                                                  .x = m->tokens,
                                                                  .x_stride = D,
                                                                  .weight = f32(m->roles[ROLE_PRE_W]),
                                                                  .rstd = m->pre_rstd,
                                                                  .dweight = m->roles[ROLE_PRE_W]->grad,
                                                                  .dbias = m->roles[ROLE_PRE_B]->grad,
                                                                  .R = R,
                                                                  .D = D,
                                                                  .to = dx});
    }
    if (t->resized) {
        dpos = m->dpos;
        ops->fill(dev, dpos, 0, (size_t)(positions * D) * sizeof *dpos);
    }
    ops->embed_backward(dev, &(struct embedding_gradient){.type = e,
                                                          .dtokens = dx,
                                                          .dpatches = dpatch,
                                                          .dcls = cls ? cls->grad : NULL,
                                                          .dpos = dpos,
                                                          .dregisters = registers ? registers->grad : NULL,
                                                          .B = pass->batch->count,
                                                          .N = N,
                                                          .D = D,
                                                          .Q = g->registers});
    if (t->resized)
        ops->resize_rows(dev, m->resize, m->dpos, m->roles[ROLE_POS]->grad, positions,
                         model_shape_position_rows(g, g->pos_grid), D, true);
    ops->patchify(dev, e, pass->batch->input, patches, pass->batch->count, g->image, g->patch);
    tower_linear_backward(pass, dpatch, patches, m->roles[ROLE_PATCH_W], m->roles[ROLE_PATCH_B], NULL,
                          pass->batch->count * t->patches);
}
