/* Gradient of out -> gradients of every parameter, by hand, last block first.
 *
 * dz stands for dL/dz everywhere. dx, the gradient of the residual stream (R, D), is F32 throughout; operands
 * of the gemms are cast to the compute type. Each function has its derivation above it; those of the
 * operations themselves (layernorm, attention, activations, loss) stand in kernels/cpu.
 */
#include "core/nn/tower.h"

/* dx */
static float *stream_gradient(const struct tower *t)
{
    return (float *)(void *)(t->memory->scratch + t->memory->dx_at);
}

static void zero_small(const struct pass *pass, int group)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    if (pass->first)
        t->device->ops->fill(t->device, (char *)m->gradients + m->group_offset[group], 0,
                             m->small_bytes[group]);
}

void tower_weight_gradient(const struct pass *pass, const void *dy, int64_t ldy, const void *x, int64_t ldx,
                           const struct parameter *w, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t out = w->shape[0], in = w->count / out;
    t->device->ops->gemm(t->device, &(struct gemm){.m = out,
                                                   .n = in,
                                                   .k = rows,
                                                   .transpose_a = true,
                                                   .a = dy,
                                                   .b = x,
                                                   .c = w->grad,
                                                   .lda = ldy,
                                                   .ldb = ldx,
                                                   .ldc = in,
                                                   .ab_type = t->options.compute,
                                                   .c_type = w->grad_type,
                                                   .alpha = 1,
                                                   .beta = pass->first ? 0.0f : 1.0f});
}

void tower_input_gradient(const struct pass *pass, const void *dy, int64_t ldy, const struct parameter *w,
                          void *dx, int64_t lddx, bool add, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t out = w->shape[0], in = w->count / out;
    t->device->ops->gemm(t->device, &(struct gemm){.m = rows,
                                                   .n = in,
                                                   .k = out,
                                                   .a = dy,
                                                   .b = tower_matrix(t, w),
                                                   .c = dx,
                                                   .lda = ldy,
                                                   .ldb = in,
                                                   .ldc = lddx,
                                                   .ab_type = t->options.compute,
                                                   .c_type = t->options.compute,
                                                   .alpha = 1,
                                                   .beta = add ? 1.0f : 0.0f});
}

/* y = x W^T + b: dW, db_j = sum_r dy_rj, and dx unless NULL (may be x: dW has read it) */
static void linear_backward(const struct pass *pass, const void *dy, const void *x, const struct parameter *w,
                            const struct parameter *b, void *dx, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t out = w->shape[0], in = w->count / out;
    tower_weight_gradient(pass, dy, out, x, in, w, rows);
    if (b) t->device->ops->column_sums(t->device, t->options.compute, dy, b->grad, rows, out);
    if (dx) tower_input_gradient(pass, dy, out, w, dx, in, false, rows);
}

/* Through the end of a branch, x' = x + gamma u with u = a W^T + b: a (R, K), W (D, K), gamma (D) or 1.
 *
 *   du = gamma dx (each column by its own gamma), dx itself passes on unchanged
 *   da (R, K) = du W,  dW (D, K) = du^T a,  db_j = sum_r du_rj,  dgamma_j = sum_r dx_rj u_rj
 *
 * u is not kept. With G (D, K) = dx^T a, the gradient of W before gamma, and s_j = sum_r dx_rj,
 *
 *   dW_jk = gamma_j G_jk,  db_j = gamma_j s_j
 *   dgamma_j = sum_r dx_rj (sum_k a_rk W_jk + b_j) = sum_k W_jk G_jk + b_j s_j
 *
 * G and s are linear in the images: micro-batches add them up in the places of dW and db, and only the last
 * one turns them into the three gradients (layerscale_backward).
 *
 * With its norm behind, x' = x + norm(u): du = dnorm(dx), then as in any linear. */
struct branch {
    const struct parameter *w, *b, *gamma;
    void *dx, *du; /* (R, D) of the compute type; the same without gamma */
};

/* The entry of a branch, without a norm behind: dx and du, and s in the place of db. */
static struct branch_gradient branch_entry(const struct pass *pass, const struct branch *branch, int64_t rows)
{
    return (struct branch_gradient){.type = pass->tower->options.compute,
                                    .dx = stream_gradient(pass->tower),
                                    .gamma = f32(branch->gamma),
                                    .plain = branch->dx,
                                    .scaled = branch->du,
                                    .sums = branch->b->grad,
                                    .R = rows,
                                    .D = branch->w->shape[0]};
}

/* da, which may be where a was: then the weights' gradient comes first. */
static void branch_input_gradient(const struct pass *pass, const struct branch *branch, void *da,
                                  int64_t rows)
{
    int64_t D = branch->w->shape[0], K = branch->w->shape[1];
    tower_input_gradient(pass, branch->du, D, branch->w, da, K, false, rows);
}

static void branch_weight_gradient(const struct pass *pass, const struct branch *branch, const void *a,
                                   int64_t rows)
{
    struct tower *t = pass->tower;
    const struct parameter *w = branch->w, *b = branch->b, *gamma = branch->gamma;
    int64_t D = w->shape[0], K = w->shape[1];
    tower_weight_gradient(pass, branch->dx, D, a, K, w, rows);
    if (gamma && pass->last)
        t->device->ops->layerscale_backward(t->device,
                                            &(struct layerscale_gradient){.weights = w->weight,
                                                                          .weight_type = w->weight_type,
                                                                          .gradient = w->grad,
                                                                          .gradient_type = w->grad_type,
                                                                          .bias = b->weight,
                                                                          .sums = b->grad,
                                                                          .gamma = gamma->weight,
                                                                          .dgamma = gamma->grad,
                                                                          .dbias = b->grad,
                                                                          .D = D,
                                                                          .K = K});
}

/* y = norm(x) W^T + b: dn = dy W, dx += dnorm(dn), with the gradients of both; of b where it is given. n: the
 * norm as it was computed forward; its output is made again in n->y, where dn then takes its place. then: the
 * branch that dx enters next, or NULL. */
static void norm_linear_backward(const struct pass *pass, const void *dy, const struct layernorm *n,
                                 const struct parameter *norm_w, const struct parameter *norm_b,
                                 const struct parameter *w, const struct parameter *b,
                                 const struct branch_gradient *then)
{
    struct tower *t = pass->tower;
    const struct device_ops *ops = t->device->ops;
    ops->layernorm_apply(t->device, n);
    linear_backward(pass, dy, n->y, w, b, n->y, n->R);
    ops->layernorm_backward(t->device, &(struct layernorm_gradient){.type = n->type,
                                                                    .dy = n->y,
                                                                    .x = n->x,
                                                                    .x_stride = n->x_stride,
                                                                    .weight = n->weight,
                                                                    .mean = n->mean,
                                                                    .rstd = n->rstd,
                                                                    .dx = stream_gradient(t),
                                                                    .dx_stride = n->D,
                                                                    .dweight = norm_w->grad,
                                                                    .dbias = norm_b->grad,
                                                                    .R = n->R,
                                                                    .D = n->D,
                                                                    .then = then});
}

/* The same without the norm, y = x W^T + b on the residual stream: dx += dy W. */
static void stream_linear_backward(const struct pass *pass, const void *dy, const void *x,
                                   const struct parameter *w, const struct parameter *b, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t out = w->shape[0], in = w->count / out;
    linear_backward(pass, dy, x, w, b, NULL, rows);
    t->device->ops->gemm(t->device, &(struct gemm){.m = rows,
                                                   .n = in,
                                                   .k = out,
                                                   .a = dy,
                                                   .b = tower_matrix(t, w),
                                                   .c = stream_gradient(t),
                                                   .lda = out,
                                                   .ldb = in,
                                                   .ldc = in,
                                                   .ab_type = t->options.compute,
                                                   .c_type = DTYPE_F32,
                                                   .alpha = 1,
                                                   .beta = 1});
}

/* Through y = norm(x) inside a branch: dy becomes dx, in its place. */
static void inner_norm_backward(const struct pass *pass, void *dy, const void *x, const struct parameter *w,
                                const struct parameter *b, const float *mean, const float *rstd, int64_t R,
                                int64_t D)
{
    struct tower *t = pass->tower;
    t->device->ops->layernorm_backward(t->device, &(struct layernorm_gradient){.type = t->options.compute,
                                                                               .dy = dy,
                                                                               .x = x,
                                                                               .x_stride = D,
                                                                               .weight = f32(w),
                                                                               .mean = mean,
                                                                               .rstd = rstd,
                                                                               .dweight = w->grad,
                                                                               .dbias = b->grad,
                                                                               .R = R,
                                                                               .D = D,
                                                                               .to = dy});
}

/* Into a branch whose norm is behind: du = dnorm(dx), with the norm's gradients and b's. */
static void branch_behind_entry(const struct pass *pass, const struct branch *branch, const void *u,
                                const struct parameter *norm_w, const struct parameter *norm_b,
                                const float *mean, const float *rstd, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t D = branch->w->shape[0];
    enum dtype e = t->options.compute;
    t->device->ops->cast(t->device, stream_gradient(t), DTYPE_F32, branch->du, e, rows * D);
    inner_norm_backward(pass, branch->du, u, norm_w, norm_b, mean, rstd, rows, D);
    t->device->ops->column_sums(t->device, e, branch->du, branch->b->grad, rows, D);
}

/* A block, from its end (tower_block_forward). dx is the gradient behind the block and becomes, with what
 * each branch adds, the one before it:
 *
 *   x_out = x_mid + gamma2 fc2(act), act = f(h), h = fc1(n2), n2 = norm2(x_mid)
 *     dact = (gamma2 dx) W_fc2 (R, F), dh = dact f'(h) (R, F or 2F), dn2 = dh W_fc1 (R, D), dx += dnorm2(dn2)
 *   x_mid = x + gamma1 proj(attn), attn = attention(qkv), qkv = linear(n1), n1 = norm1(x)
 *     dattn = (gamma1 dx) W_proj (R, D), dqkv (R, 3D), dn1 = dqkv W_qkv (R, D), dx += dnorm1(dn1)
 *
 * with dnorm between where a norm is inside the branch, or behind it. n1, n2, act and what inner norms give
 * are made again from x, x_mid, h and attn; t1 holds du, then n2 (n1), then its gradient. */
#define P(role) block_role(t, l, role)
/* Where dx and du of a branch are: du of a branch with gamma where n and dn are before and behind it. */
static struct branch branch_of(struct tower *t, const struct parameter *w, const struct parameter *b,
                               const struct parameter *gamma)
{
    char *scratch = t->memory->scratch, *td = scratch + t->memory->td_at;
    return (struct branch){w, b, gamma, .dx = td, .du = gamma ? scratch + t->memory->t1_at : td};
}

static void ffn_backward(const struct pass *pass, int64_t l, int64_t R, const struct branch_gradient *then)
{
    struct tower *t = pass->tower;
    const struct device_ops *ops = t->device->ops;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    enum activation ffn = (enum activation)(t->geometry.ffn - 1);
    struct block_activations *k = &m->kept[l];
    int64_t D = t->geometry.width, F = t->geometry.hidden;
    const struct parameter *inner = P(ROLE_FFN_NORM_W), *b = P(ROLE_FC1_B);
    struct branch branch = branch_of(t, P(ROLE_FC2_W), P(ROLE_FC2_B), P(ROLE_LS2));
    /* the gradient of h takes h's place unless a second pass needs h; act takes that of its gradient, or,
     * with a norm between, dact that of the norm's output. What is in 8 bits is found again in scratch */
    char *in = m->scratch + m->region_at;
    struct activation_gradient gradient = {
        e, ffn, .dy = in, .h = k->h, .act = inner ? NULL : in, .sums = b ? b->grad : NULL, .R = R, .F = F};
    gradient.bias = bias_later(t, b);
    gradient.dh = t->options.backward_twice ? (void *)(m->scratch + m->dh_at) : k->h;
    tower_decode(t, &k->h8, R);
    if (tower_norms_behind(t))
        branch_behind_entry(pass, &branch, k->u2, P(ROLE_NORM2_W), P(ROLE_NORM2_B), k->mean2, k->rstd2, R);
    else {
        struct branch_gradient entry = branch_entry(pass, &branch, R);
        ops->branch_gradient(t->device, &entry);
    }
    if (inner) {
        char *act = in + (size_t)(R * F) * dtype_bytes(e);
        tower_activation(t, l, k->h, act, R);
        tower_norm(t, act, inner, P(ROLE_FFN_NORM_B), in, k->ffn_mean, k->ffn_rstd, R, F);
        branch_weight_gradient(pass, &branch, in, R);
        branch_input_gradient(pass, &branch, in, R);
        inner_norm_backward(pass, in, act, inner, P(ROLE_FFN_NORM_B), k->ffn_mean, k->ffn_rstd, R, F);
        ops->activation_backward(t->device, &gradient);
    } else {
        branch_input_gradient(pass, &branch, in, R);
        ops->activation_backward(t->device, &gradient);
        branch_weight_gradient(pass, &branch, in, R);
    }
    if (tower_norms_behind(t)) {
        stream_linear_backward(pass, gradient.dh, k->x_mid, P(ROLE_FC1_W), NULL, R);
        return;
    }
    struct layernorm norm = {.type = e,
                             .x = k->x_mid,
                             .x_stride = D,
                             .weight = f32(P(ROLE_NORM2_W)),
                             .bias = f32(P(ROLE_NORM2_B)),
                             .y = m->scratch + m->t1_at,
                             .mean = k->mean2,
                             .rstd = k->rstd2,
                             .R = R,
                             .D = D};
    norm_linear_backward(pass, gradient.dh, &norm, P(ROLE_NORM2_W), P(ROLE_NORM2_B), P(ROLE_FC1_W), NULL,
                         then);
}

/* dattn from the branch's du; its dx and du were made at the end of ffn_backward, but with norms behind */
static void attention_branch_backward(const struct pass *pass, int64_t l, const struct branch *branch,
                                      void *dattn, int64_t R)
{
    struct tower *t = pass->tower;
    struct block_activations *k = &t->memory->kept[l];
    int64_t D = t->geometry.width;
    const struct parameter *inner = P(ROLE_ATTN_NORM_W);
    const void *a = k->attn;
    if (inner) {
        t->device->ops->layernorm_apply(t->device, &(struct layernorm){.type = t->options.compute,
                                                                       .x = k->attn,
                                                                       .x_stride = D,
                                                                       .weight = f32(inner),
                                                                       .bias = f32(P(ROLE_ATTN_NORM_B)),
                                                                       .y = dattn,
                                                                       .mean = k->attn_mean,
                                                                       .rstd = k->attn_rstd,
                                                                       .R = R,
                                                                       .D = D});
        a = dattn;
    }
    if (tower_norms_behind(t))
        branch_behind_entry(pass, branch, k->u1, P(ROLE_NORM1_W), P(ROLE_NORM1_B), k->mean1, k->rstd1, R);
    branch_weight_gradient(pass, branch, a, R);
    branch_input_gradient(pass, branch, dattn, R);
    if (inner)
        inner_norm_backward(pass, dattn, k->attn, inner, P(ROLE_ATTN_NORM_B), k->attn_mean, k->attn_rstd, R,
                            D);
}

void tower_block_backward(const struct pass *pass, int64_t l)
{
    struct tower *t = pass->tower;
    struct device *dev = t->device;
    struct tower_memory *m = t->memory;
    const struct geometry *g = &t->geometry;
    enum dtype e = t->options.compute;
    struct block_activations *k = &m->kept[l];
    int64_t B = pass->batch->count, N = t->tokens, R = B * N, D = g->width, H = g->heads;
    char *region = m->scratch + m->region_at;
    const struct parameter *qkv_bias = P(ROLE_QKV_B) ? P(ROLE_QKV_B) : P(ROLE_Q_B);

    /* of the last block everything is still there, until a second pass */
    if (t->options.recompute == RECOMPUTE_BLOCK && (l < g->depth - 1 || t->options.backward_twice))
        tower_block_forward(t, l, m->x[l], k, NULL, B);
    struct branch branch = branch_of(t, P(ROLE_PROJ_W), P(ROLE_PROJ_B), P(ROLE_LS1));
    struct branch_gradient entry = branch_entry(pass, &branch, R);
    ffn_backward(pass, l, R, &entry);

    void *dattn = region, *dqkv = region + (size_t)(R * D) * dtype_bytes(e);
    if (t->options.saved == SAVED_8BIT) tower_attention(t, k, B);
    attention_branch_backward(pass, l, &branch, dattn, R);
    dev->ops->attention_backward(dev, &(struct attention_gradient){.type = e,
                                                                   .qkv = k->qkv,
                                                                   .out = k->attn,
                                                                   .lse = k->lse,
                                                                   .dout = dattn,
                                                                   .dqkv = dqkv,
                                                                   .B = B,
                                                                   .N = N,
                                                                   .H = H,
                                                                   .dh = D / H});
    tower_rotate(t, dqkv, B, true);
    if (tower_norms_behind(t)) {
        stream_linear_backward(pass, dqkv, m->x[l], P(ROLE_QKV_W), qkv_bias, R);
        return;
    }
    struct layernorm norm = {.type = e,
                             .x = m->x[l],
                             .x_stride = D,
                             .weight = f32(P(ROLE_NORM1_W)),
                             .bias = f32(P(ROLE_NORM1_B)),
                             .y = m->scratch + m->t1_at,
                             .mean = k->mean1,
                             .rstd = k->rstd1,
                             .R = R,
                             .D = D};
    norm_linear_backward(pass, dqkv, &norm, P(ROLE_NORM1_W), P(ROLE_NORM1_B), P(ROLE_QKV_W), qkv_bias, NULL);
}
#undef P

/* dy -> dx of the patches, image by image, through the last norm: an image's P rows are `step` rows behind
 * those of the one before; their moments begin at `first`. */
static void norm_patches_backward(const struct pass *pass, const char *dy, int64_t step, int64_t first)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    int64_t N = t->tokens, D = t->geometry.width;
    size_t bytes = dtype_bytes(t->options.compute);
    const struct parameter *w = m->roles[ROLE_NORM_W], *b = m->roles[ROLE_NORM_B];
    for (int64_t i = 0; i < pass->batch->count; i++) {
        int64_t row = first + i * t->patches, at = ((i + 1) * N - t->patches) * D;
        t->device->ops->layernorm_backward(
            t->device,
            &(struct layernorm_gradient){.type = t->options.compute,
                                         .dy = dy + (size_t)(i * step * D) * bytes,
                                         .x = (const char *)m->x[t->geometry.depth] + (size_t)at * bytes,
                                         .x_stride = D,
                                         .weight = f32(w),
                                         .mean = m->norm_mean + row,
                                         .rstd = m->norm_rstd + row,
                                         .dx = stream_gradient(t) + at,
                                         .dx_stride = D,
                                         .dweight = w->grad,
                                         .dbias = b->grad,
                                         .R = t->patches,
                                         .D = D});
    }
}

/* pooled = what is wanted of x[depth], behind the last norm; dy its gradient (rows, D) -> dx (B, N, D)
 *
 *   the class token y = norm(x_0): dx_0 = dnorm(dy), of patches too where they are wanted, and 0 elsewhere
 *   y = norm(mean(x)): dx_n = dnorm(dy) / P of every patch
 *   y = mean(norm(x)): dx_n = dnorm(dy / P); that of the norms' outputs is made in dx, and moved to td
 *   y = norm(a) of what attention pools: attn_pool_backward(dnorm(dy)) */
static void pool_backward(const struct pass *pass, char *dy)
{
    struct tower *t = pass->tower;
    struct device *dev = t->device;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t B = pass->batch->count, N = t->tokens, D = t->geometry.width, skip = N - t->patches;
    float *dx = stream_gradient(t);
    char *td = m->scratch + m->td_at;
    const struct parameter *w = m->roles[ROLE_NORM_W], *b = m->roles[ROLE_NORM_B];
    size_t all = (size_t)(B * N * D), bytes = dtype_bytes(e);
    struct row_mean_gradient mean = {e, .dy = dy, .dx = dx, B, N, D, skip};
    dev->ops->fill(dev, dx, 0, all * sizeof *dx);
    if (tower_pools_by_attention(t)) {
        inner_norm_backward(pass, dy, m->attn_pool.out, w, b, m->norm_mean, m->norm_rstd, B, t->geometry.out);
        attn_pool_backward(pass, dy);
        return;
    }
    switch (t->geometry.pool) {
    case POOL_AVG_FIRST:
        inner_norm_backward(pass, dy, m->mean, w, b, m->norm_mean, m->norm_rstd, B, D);
        dev->ops->row_mean_backward(dev, &mean);
        return;
    case POOL_AVG:
        dev->ops->row_mean_backward(dev, &mean);
        dev->ops->cast(dev, dx, DTYPE_F32, td, e, (int64_t)all);
        dev->ops->fill(dev, dx, 0, all * sizeof *dx);
        norm_patches_backward(pass, td + (size_t)(skip * D) * bytes, N, 0);
        return;
    default:
        dev->ops->layernorm_backward(dev, &(struct layernorm_gradient){.type = e,
                                                                       .dy = dy,
                                                                       .x = m->x[t->geometry.depth],
                                                                       .x_stride = N * D,
                                                                       .weight = f32(w),
                                                                       .mean = m->norm_mean,
                                                                       .rstd = m->norm_rstd,
                                                                       .dx = dx,
                                                                       .dx_stride = N * D,
                                                                       .dweight = w->grad,
                                                                       .dbias = b->grad,
                                                                       .R = B,
                                                                       .D = D});
        if (t->out_rows > 1) norm_patches_backward(pass, dy + (size_t)(B * D) * bytes, t->patches, B);
    }
}

/* The output, backward: dout (rows, T or O) -> dx behind the last block; rows = B, or B*N with patch tokens.
 *
 *   out = head(y), y = project(pooled), pooled = norm(x[depth]) of the rows that are wanted
 *     dy = dout W_head, dpooled = dy W_out, or dy P^T where y = pooled P with P (D, O): then dP = pooled^T dy
 *     then pool_backward
 */
void image_head_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct device *dev = t->device;
    struct tower_memory *m = t->memory;
    const struct geometry *g = &t->geometry;
    enum dtype e = t->options.compute;
    int64_t D = geometry_pooled(g), rows = pass->batch->count * t->out_rows;
    size_t bytes = dtype_bytes(e), step = ((size_t)(rows * t->out_width) * bytes + 63) & ~(size_t)63;
    char *region = m->scratch + m->region_at, *dy = region;
    const struct parameter *head = m->roles[ROLE_HEAD_W], *out = m->roles[ROLE_OUT_W];
    dev->ops->cast(dev, pass->dout, DTYPE_F32, dy, e, rows * t->out_width);
    if (head) {
        char *below = region + step;
        step += ((size_t)(rows * g->out) * bytes + 63) & ~(size_t)63;
        linear_backward(pass, dy, out ? m->projected : m->pooled, head, m->roles[ROLE_HEAD_B], below, rows);
        dy = below;
    }
    if (out) {
        char *below = region + step;
        if (t->family->out_transposed) { /* y = x P, P (in, out) */
            tower_weight_gradient(pass, m->pooled, D, dy, g->out, out, rows);
            dev->ops->gemm(dev, &(struct gemm){.m = rows,
                                               .n = D,
                                               .k = g->out,
                                               .transpose_b = true,
                                               .a = dy,
                                               .b = tower_matrix(t, out),
                                               .c = below,
                                               .lda = g->out,
                                               .ldb = g->out,
                                               .ldc = D,
                                               .ab_type = e,
                                               .c_type = e,
                                               .alpha = 1});
        } else linear_backward(pass, dy, m->pooled, out, m->roles[ROLE_OUT_B], below, rows);
        dy = below;
    }
    pool_backward(pass, dy);
}

/* The embedding, backward. tokens (B, N, D), row 0 of an image = cls + pos_0, then the registers, then
 * patch_i + pos_i with patch (B*P, D) = patches W^T + b; x[0] = tokens, or ln_pre(tokens).
 *
 *   dcls = sum_b dtokens_b0, dpos_n = sum_b dtokens_bn, dpatch_bi = dtokens_bi, dregister_q = sum_b
 * dtokens_bq; W and b as in any linear pos = M stored where positions are resized, M (1 + P, 1 + pos_grid^2):
 * dstored = M^T dpos
 *
 * dtokens is dx, or dnorm(dx), made in dx's place from its cast. The images need no gradient. */
void image_embed_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct device *dev = t->device;
    const struct device_ops *ops = dev->ops;
    struct tower_memory *m = t->memory;
    const struct geometry *g = &t->geometry;
    enum dtype e = t->options.compute;
    int64_t N = t->tokens, D = g->width, R = pass->batch->count * N;
    const struct parameter *registers = m->roles[ROLE_REGISTERS];
    float *dx = stream_gradient(t), *dpos = m->roles[ROLE_POS] ? m->roles[ROLE_POS]->grad : NULL;
    void *td = m->scratch + m->td_at, *dpatch = m->scratch + m->t1_at, *patches = m->scratch + m->region_at;
    if (m->roles[ROLE_PRE_W]) {
        ops->cast(dev, dx, DTYPE_F32, td, e, R * D);
        ops->fill(dev, dx, 0, (size_t)(R * D) * sizeof *dx);
        ops->layernorm_backward(dev, &(struct layernorm_gradient){.type = e,
                                                                  .dy = td,
                                                                  .x = m->tokens,
                                                                  .x_stride = D,
                                                                  .weight = f32(m->roles[ROLE_PRE_W]),
                                                                  .mean = m->pre_mean,
                                                                  .rstd = m->pre_rstd,
                                                                  .dx = dx,
                                                                  .dx_stride = D,
                                                                  .dweight = m->roles[ROLE_PRE_W]->grad,
                                                                  .dbias = m->roles[ROLE_PRE_B]->grad,
                                                                  .R = R,
                                                                  .D = D});
    }
    if (t->resized) {
        dpos = m->dpos;
        ops->fill(dev, dpos, 0, (size_t)((t->patches + 1) * D) * sizeof *dpos);
    }
    ops->embed_backward(dev, &(struct embedding_gradient){.type = e,
                                                          .dtokens = dx,
                                                          .dpatches = dpatch,
                                                          .dcls = m->roles[ROLE_CLS]->grad,
                                                          .dpos = dpos,
                                                          .dregisters = registers ? registers->grad : NULL,
                                                          .B = pass->batch->count,
                                                          .N = N,
                                                          .D = D,
                                                          .Q = g->registers});
    if (t->resized)
        ops->resize_rows(dev, m->resize, m->dpos, m->roles[ROLE_POS]->grad, t->patches + 1,
                         g->pos_grid * g->pos_grid + 1, D, true);
    ops->patchify(dev, e, pass->batch->input, patches, pass->batch->count, g->image, g->patch);
    linear_backward(pass, dpatch, patches, m->roles[ROLE_PATCH_W], m->roles[ROLE_PATCH_B], NULL,
                    pass->batch->count * t->patches);
}

static void groups_backward(void *context)
{
    const struct pass *pass = context;
    const struct model *model = pass->tower->family->model;
    for (int group = pass->from; group >= pass->to; group--) {
        zero_small(pass, group);
        if (group == pass->tower->group_count - 1) model->head_backward(pass);
        else if (group > 0) model->block_backward(pass, group - 1);
        else model->embed_backward(pass);
    }
}

int tower_backward(struct tower *t, const struct batch *batch, const float *dout, bool first, bool last,
                   group_done done, void *context, struct error *err)
{
    struct pass pass = {t, batch, dout, first, last, t->group_count - 1, 0};
    int code = 0;
    for (; pass.from >= 0 && !code; pass.from = pass.to - 1) {
        pass.to = (last && done) || t->needed ? pass.from : 0;
        if (t->needed && (code = t->needed(t->needed_by, pass.from, pass.from - 1, err)) != 0) break;
        device_issue(t->device,
                     &(struct device_work){.owner = t,
                                           .inputs = {batch->input, dout},
                                           .count = batch->count,
                                           .part = pass.from,
                                           .flags = first | last << 1 | (pass.to == 0) << 2},
                     groups_backward, &pass);
        if (last && done) code = done(context, pass.to, err);
    }
    return code;
}
