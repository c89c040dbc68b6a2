/* Gradient of out -> gradients of every parameter, derived by hand, last block first.
 *
 * dz stands for dL/dz everywhere. dx, the gradient of the residual stream (R, D), is F32 throughout; GEMM
 * operands are cast to the compute type. Each function has its derivation above it; kernels/cpu has those of
 * the operations (layernorm, attention, activations, loss). This file has the blocks; image_backward.c has
 * the layers before and after them.
 */
#include "core/nn/tower.h"

#include <assert.h>

static void zero_small(const struct pass *pass, int group)
{
    struct tower *t = pass->tower;
    struct gradient_span span = tower_group_gradients(t, group);
    if (pass->first) t->device->ops->fill(t->device, span.p, 0, span.f32_bytes);
}

void tower_weight_gradient(const struct pass *pass, const void *dy, int64_t ldy, const void *x, int64_t ldx,
                           const struct parameter *w, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t out = w->shape[0], in = w->count / out;
    if (w->pair_count) lora_gradients(pass, dy, ldy, x, ldx, w, rows);
    if (!w->trained) return;
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
                                                   .beta = pass->first ? 0.0f : 1.0f,
                                                   .floats = tower_post_norm(t)});
}

/* dx = dy W, or dx += dy W; ldy, lddx: values between the rows. */
static void input_gradient(struct tower *t, const void *dy, int64_t ldy, const struct parameter *w, void *dx,
                           int64_t lddx, enum dtype dx_type, bool add, int64_t rows)
{
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
                                                   .c_type = dx_type,
                                                   .alpha = 1,
                                                   .beta = add ? 1.0f : 0.0f,
                                                   .floats = tower_post_norm(t)});
    if (w->pair_count) lora_input_gradient(t, dy, ldy, w, dx, lddx, dx_type, rows);
}

void tower_input_gradient(const struct pass *pass, const void *dy, int64_t ldy, const struct parameter *w,
                          void *dx, int64_t lddx, bool add, int64_t rows)
{
    input_gradient(pass->tower, dy, ldy, w, dx, lddx, pass->tower->options.compute, add, rows);
}

/* dx_rk = sum_j dy_rj W_jk of a slice: its part of the sum over slices. */
static void partial_gradient(const struct pass *pass, const void *dy, const struct parameter *w, int64_t rows)
{
    struct slice_sums *sums = &pass->tower->memory->sums;
    int64_t out = w->shape[0], in = w->count / out;
    input_gradient(pass->tower, dy, out, w, slice_sums_next(sums), in, DTYPE_F32, false, rows);
    slice_sums_add(sums, rows * in);
}

/* y_s = x W_s^T + b_s of all slices: the gradients of W_s and b_s; returns dx = sum_s dy_s W_s, F32. dy:
 * those of the tower's slices follow each other, `each` bytes apart. The other ranks' part of dx is added
 * while the weights' gradients are computed. */
static const float *sliced_linear_backward(const struct pass *pass, const void *dy, size_t each,
                                           const void *x, const struct parameter *w,
                                           const struct parameter *b, int64_t rows)
{
    struct tower *t = pass->tower;
    int own = tower_own_slices(t);
    for (int i = 0; i < own; i++)
        partial_gradient(pass, (const char *)dy + (size_t)i * each, own_slice(t, w, i), rows);
    slice_sums_begin(&t->memory->sums, rows * t->model_shape.width);
    for (int i = 0; i < own; i++)
        tower_linear_backward(pass, (const char *)dy + (size_t)i * each, x, own_slice(t, w, i),
                              own_slice(t, b, i), NULL, rows);
    return slice_sums_end(&t->memory->sums);
}

void tower_linear_backward(const struct pass *pass, const void *dy, const void *x, const struct parameter *w,
                           const struct parameter *b, void *dx, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t out = w->shape[0], in = w->count / out;
    tower_weight_gradient(pass, dy, out, x, in, w, rows);
    if (b && b->trained) t->device->ops->column_sums(t->device, t->options.compute, dy, b->grad, rows, out);
    if (dx) tower_input_gradient(pass, dy, out, w, dx, in, false, rows);
}

/* Backward through the end of a branch, x' = x + gamma u with u = a W^T + b: a (R, K), W (D, K), gamma (D) or
 * 1.
 *
 *   du = gamma dx (each column by its own gamma), dx itself passes on unchanged
 *   da (R, K) = du W,  dW (D, K) = du^T a,  db_j = sum_r du_rj,  dgamma_j = sum_r dx_rj u_rj
 *
 * u is not kept. With G (D, K) = dx^T a, the gradient of W before gamma, and s_j = sum_r dx_rj,
 *
 *   dW_jk = gamma_j G_jk,  db_j = gamma_j s_j
 *   dgamma_j = sum_r dx_rj (sum_k a_rk W_jk + b_j) = sum_k W_jk G_jk + b_j s_j
 *
 * G and s are linear in the images. So micro-batches accumulate them in the storage of dW and db, and only
 * the last one converts them to the three gradients (layerscale_backward).
 *
 * Post-norm, x' = x + norm(u): du = dnorm(dx), then as in any linear.
 *
 * Drop path multiplies the branch of each image by a factor: dx in all of this is the gradient times that
 * factor, except where dx passes on.
 */
struct branch {
    const struct parameter *w, *b, *gamma;
    void *dx, *du; /* (R, D) of the compute type; the same without gamma */
    struct drop_path drop;
};

/* Start of a branch without post-norm: dx and du, and s in the storage of db. */
static struct branch_gradient branch_entry(const struct pass *pass, const struct branch *branch, int64_t rows)
{
    return (struct branch_gradient){.type = pass->tower->options.compute,
                                    .dx = tower_stream(pass->tower),
                                    .gamma = f32(branch->gamma),
                                    .plain = branch->dx,
                                    .scaled = branch->du,
                                    .sums = branch->b ? branch->b->grad : NULL,
                                    .R = rows,
                                    .D = branch->w->shape[0],
                                    .drop = branch->drop};
}

/* Computes da, which may overwrite a: then the weights' gradient is computed first. */
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
    tower_weight_gradient(pass, w->trained ? branch->dx : branch->du, D, a, K, w, rows);
    if (gamma && pass->last && w->trained)
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

/* y = norm(x) W^T + b: dn = dy W, dx += dnorm(dn), with the gradients of W, the norm, and b if given. n: the
 * norm of the stream as it was stored; its output is recomputed in n->y, which dn then overwrites. then: the
 * branch that dx enters next, or NULL. each: see sliced_linear_backward. */
static void norm_linear_backward(const struct pass *pass, const void *dy, size_t each,
                                 const struct layernorm *n, const struct parameter *norm_w,
                                 const struct parameter *norm_b, const struct parameter *w,
                                 const struct parameter *b, const struct branch_gradient *then)
{
    struct tower *t = pass->tower;
    const struct device_ops *ops = t->device->ops;
    ops->layernorm_apply(t->device, n);
    if (tower_slices(t) > 1)
        ops->cast(t->device, sliced_linear_backward(pass, dy, each, n->y, w, b, n->R), DTYPE_F32, n->y,
                  n->type, n->R * n->D);
    else tower_linear_backward(pass, dy, n->y, w, b, n->y, n->R);
    ops->layernorm_backward(t->device, &(struct layernorm_gradient){.type = n->type,
                                                                    .x_type = n->hat_type,
                                                                    .dy = n->y,
                                                                    .x = n->hat,
                                                                    .x_stride = n->D,
                                                                    .weight = n->weight,
                                                                    .rstd = n->rstd,
                                                                    .dx = tower_stream(t),
                                                                    .dx_stride = n->D,
                                                                    .dweight = norm_w->grad,
                                                                    .dbias = norm_b ? norm_b->grad : NULL,
                                                                    .R = n->R,
                                                                    .D = n->D,
                                                                    .then = then,
                                                                    .rms = n->rms});
}

/* Like norm_linear_backward without the norm: y = x W^T + b on the residual stream, dx += dy W. */
static void stream_linear_backward(const struct pass *pass, const void *dy, size_t each, const void *x,
                                   const struct parameter *w, const struct parameter *b, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t out = w->shape[0], in = w->count / out;
    if (tower_slices(t) > 1) {
        rows_add(t->device, tower_stream(t), sliced_linear_backward(pass, dy, each, x, w, b, rows), rows, in);
        return;
    }
    tower_linear_backward(pass, dy, x, w, b, NULL, rows);
    input_gradient(t, dy, out, w, tower_stream(t), in, DTYPE_F32, true, rows);
}

void tower_norm_backward(const struct pass *pass, void *dy, const void *x, const struct parameter *w,
                         const struct parameter *b, const float *mean, const float *rstd, int64_t R,
                         int64_t D)
{
    struct tower *t = pass->tower;
    t->device->ops->layernorm_backward(t->device, &(struct layernorm_gradient){.type = t->options.compute,
                                                                               .x_type = t->options.compute,
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

/* Start of a post-norm branch: du = dnorm(dx), with the gradients of the norm and of b. */
static void branch_post_norm_entry(const struct pass *pass, const struct branch *branch, const void *u,
                                   const struct parameter *norm_w, const struct parameter *norm_b,
                                   const float *mean, const float *rstd, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t D = branch->w->shape[0];
    enum dtype e = t->options.compute;
    struct branch_gradient dropped = branch_entry(pass, branch, rows);
    dropped.gamma = NULL;
    dropped.plain = branch->du;
    dropped.sums = NULL;
    if (branch->drop.keep) t->device->ops->branch_gradient(t->device, &dropped);
    else t->device->ops->cast(t->device, tower_stream(t), DTYPE_F32, branch->du, e, rows * D);
    tower_norm_backward(pass, branch->du, u, norm_w, norm_b, mean, rstd, rows, D);
    if (branch->b->trained) t->device->ops->column_sums(t->device, e, branch->du, branch->b->grad, rows, D);
}

/* Start of a branch of a SUM_NORM block, x' = norm(x + u): dx becomes the gradient of the sum, whose values
 * are in z, and du is the same, of the compute type. */
static void branch_sum_norm_entry(const struct pass *pass, const struct branch *branch, const void *z,
                                  const struct parameter *norm_w, const struct parameter *norm_b,
                                  const float *mean, const float *rstd, int64_t rows)
{
    struct tower *t = pass->tower;
    int64_t D = branch->w->shape[0];
    struct branch_gradient entry = branch_entry(pass, branch, rows);
    t->device->ops->layernorm_backward(t->device, &(struct layernorm_gradient){.type = DTYPE_F32,
                                                                               .x_type = t->options.compute,
                                                                               .dy = tower_stream(t),
                                                                               .x = z,
                                                                               .x_stride = D,
                                                                               .weight = f32(norm_w),
                                                                               .mean = mean,
                                                                               .rstd = rstd,
                                                                               .dweight = norm_w->grad,
                                                                               .dbias = norm_b->grad,
                                                                               .R = rows,
                                                                               .D = D,
                                                                               .to = tower_stream(t)});
    t->device->ops->branch_gradient(t->device, &entry);
}

/* Backward through a block, from its end (tower_block_forward). dx is the gradient after the block; each
 * branch adds to it, until it is the gradient before the block:
 *
 *   x_out = x_mid + gamma2 fc2(act), act = f(h), h = fc1(n2), n2 = norm2(x_mid)
 *     dact = (gamma2 dx) W_fc2 (R, F), dh = dact f'(h) (R, F or 2F), dn2 = dh W_fc1 (R, D), dx += dnorm2(dn2)
 *   x_mid = x + gamma1 proj(attn), attn = attention(qkv), qkv = linear(n1), n1 = norm1(x)
 *     dattn = (gamma1 dx) W_proj (R, A), dqkv (R, Q), dn1 = dqkv W_qkv (R, D), dx += dnorm1(dn1)
 *
 * A norm inside the branch, or after it (post-norm), adds its dnorm. With sum-norm, x_out = norm2(n +
 * fc2(act)), dx first passes dnorm2, and likewise dnorm1. n1, n2, act and the outputs of inner norms are
 * recomputed from x, x_mid, h and attn; t1 holds du, then n2 (n1), then its gradient.
 */
#define P(role) block_role(t, l, role)
/* Storage of dx and du of a branch: with gamma, du uses the storage of n before and dn after it. */
static struct branch branch_of(struct tower *t, const struct parameter *w, const struct parameter *b,
                               const struct parameter *gamma, struct drop_path drop)
{
    char *scratch = t->memory->scratch, *td = scratch + t->memory->td_at;
    return (struct branch){w,           b, gamma, .dx = td, .du = gamma ? scratch + t->memory->t1_at : td,
                           .drop = drop};
}

/* y = norm(x) of rows of the compute type, D wide, by the mean and rstd of the forward pass. */
static void apply_norm(struct tower *t, const void *x, const struct parameter *w, const struct parameter *b,
                       void *y, float *mean, float *rstd, int64_t R)
{
    int64_t D = t->model_shape.width;
    t->device->ops->layernorm_apply(t->device, &(struct layernorm){.type = t->options.compute,
                                                                   .x_type = t->options.compute,
                                                                   .x = x,
                                                                   .x_stride = D,
                                                                   .weight = f32(w),
                                                                   .bias = f32(b),
                                                                   .y = y,
                                                                   .mean = mean,
                                                                   .rstd = rstd,
                                                                   .R = R,
                                                                   .D = D});
}

static void ffn_backward(const struct pass *pass, int64_t l, int64_t R, const struct branch_gradient *then)
{
    struct tower *t = pass->tower;
    const struct device_ops *ops = t->device->ops;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    enum activation ffn = (enum activation)(t->model_shape.ffn - 1);
    struct block_activations *k = &m->kept[l];
    int64_t F = slice_hidden(t);
    const struct parameter *inner = P(ROLE_FFN_NORM_W);
    struct branch branch =
        branch_of(t, P(ROLE_FC2_W), P(ROLE_FC2_B), P(ROLE_LS2), tower_drop(t, pass->batch, l, 1));
    /* the gradient of h overwrites h unless a second pass needs h; act uses the storage of its gradient, or,
     * with a norm between, dact that of the norm's output. Tensors kept in 8 bits are decoded into scratch */
    char *in = m->scratch + m->region_at;
    size_t each = (size_t)(t->options.batch * t->tokens * slice_gated(t)) * dtype_bytes(e);
    char *dh = tower_saves_h(t) ? m->scratch + m->dh_at : k->h;
    tower_decode(t, &k->h8, R);
    if (tower_post_norm(t))
        branch_post_norm_entry(pass, &branch, k->u2, P(ROLE_NORM2_W), P(ROLE_NORM2_B), k->mean2, k->rstd2, R);
    else if (tower_sum_norm(t))
        branch_sum_norm_entry(pass, &branch, k->u2, P(ROLE_NORM2_W), P(ROLE_NORM2_B), k->mean2, k->rstd2, R);
    else {
        struct branch_gradient entry = branch_entry(pass, &branch, R);
        ops->branch_gradient(t->device, &entry);
    }
    for (int i = 0; i < tower_own_slices(t); i++) {
        const struct parameter *b = block_slice(t, l, ROLE_FC1_B, i);
        struct block_activations of = block_slice_view(t, k, i);
        struct activation_gradient gradient = {
            e,      ffn,   .dy = in, .h = of.h, .act = inner ? NULL : in, .sums = b ? b->grad : NULL,
            .R = R, .F = F};
        gradient.bias = bias_later(t, b);
        gradient.dh = dh + (size_t)i * each;
        branch.w = block_slice(t, l, ROLE_FC2_W, i);
        if (inner) {
            char *act = in + (size_t)(R * F) * dtype_bytes(e);
            tower_activation(t, l, i, of.h, act, R);
            tower_norm(t, act, inner, P(ROLE_FFN_NORM_B), in, k->ffn_mean, k->ffn_rstd, R, F);
            branch_weight_gradient(pass, &branch, in, R);
            branch_input_gradient(pass, &branch, in, R);
            tower_norm_backward(pass, in, act, inner, P(ROLE_FFN_NORM_B), k->ffn_mean, k->ffn_rstd, R, F);
            ops->activation_backward(t->device, &gradient);
        } else {
            branch_input_gradient(pass, &branch, in, R);
            ops->activation_backward(t->device, &gradient);
            branch_weight_gradient(pass, &branch, in, R);
        }
    }
    if (tower_post_norm(t)) {
        stream_linear_backward(pass, dh, each, k->x_mid, P(ROLE_FC1_W), NULL, R);
        return;
    }
    if (tower_sum_norm(t)) {
        void *n = m->scratch + m->t1_at;
        apply_norm(t, k->u1, P(ROLE_NORM1_W), P(ROLE_NORM1_B), n, k->mean1, k->rstd1, R);
        stream_linear_backward(pass, dh, each, n, P(ROLE_FC1_W), NULL, R);
        return;
    }
    struct layernorm norm =
        tower_stream_norm(t, P(ROLE_NORM2_W), P(ROLE_NORM2_B), k->x_mid, k->mean2, k->rstd2, R);
    norm_linear_backward(pass, dh, each, &norm, P(ROLE_NORM2_W), P(ROLE_NORM2_B), P(ROLE_FC1_W), NULL, then);
}

/* Computes du of the attention's branch. ffn_backward has computed dx and du already, except with a norm
 * after the branch. */
static void attention_branch_entry(const struct pass *pass, int64_t l, const struct branch *branch, int64_t R)
{
    struct tower *t = pass->tower;
    struct block_activations *k = &t->memory->kept[l];
    if (tower_post_norm(t))
        branch_post_norm_entry(pass, branch, k->u1, P(ROLE_NORM1_W), P(ROLE_NORM1_B), k->mean1, k->rstd1, R);
    if (tower_sum_norm(t))
        branch_sum_norm_entry(pass, branch, k->u1, P(ROLE_NORM1_W), P(ROLE_NORM1_B), k->mean1, k->rstd1, R);
}

/* Computes dattn of a slice from du. */
static void attention_branch_backward(const struct pass *pass, int64_t l, const struct branch *branch,
                                      const struct block_activations *k, void *dattn, int64_t R)
{
    struct tower *t = pass->tower;
    const struct parameter *inner = P(ROLE_ATTN_NORM_W);
    const void *a = k->attn;
    if (inner) {
        apply_norm(t, k->attn, inner, P(ROLE_ATTN_NORM_B), dattn, k->attn_mean, k->attn_rstd, R);
        a = dattn;
    }
    branch_weight_gradient(pass, branch, a, R);
    branch_input_gradient(pass, branch, dattn, R);
    if (inner)
        tower_norm_backward(pass, dattn, k->attn, inner, P(ROLE_ATTN_NORM_B), k->attn_mean, k->attn_rstd, R,
                            t->model_shape.width);
}

/* dqkv of a slice: from the gradient after the norms of heads to the one before them. The gradients of their
 * weights are added to dweight (2, dh). */
static void head_norms_backward(const struct pass *pass, int64_t l, const struct block_activations *kept,
                                void *dqkv, float *const dweight[2], int64_t R)
{
    struct tower *t = pass->tower;
    const struct model_shape *g = &t->model_shape;
    const struct parameter *q = P(ROLE_Q_NORM_W), *k = P(ROLE_K_NORM_W);
    t->device->ops->head_norm_gradient(
        t->device, &(struct head_norm_gradient){.type = t->options.compute,
                                                .x = kept->qkv,
                                                .dqkv = dqkv,
                                                .weight = {f32(q), f32(k)},
                                                .rstd = kept->head_rstd,
                                                .dweight = {dweight[0], dweight[1]},
                                                .R = R,
                                                .H = g->heads / tower_slices(t),
                                                .G = model_shape_kv_heads(g) / tower_slices(t),
                                                .dh = model_shape_head_dim(g)});
}

/* Adds the gradients of the norms of heads of all slices, (2, dh) of each at `parts`, to the weights'. */
static void add_head_norms(const struct pass *pass, int64_t l, const float *parts)
{
    struct tower *t = pass->tower;
    int64_t dh = model_shape_head_dim(&t->model_shape);
    float *grads[] = {P(ROLE_Q_NORM_W)->grad, P(ROLE_K_NORM_W)->grad};
    for (int i = 0; i < tower_own_slices(t); i++) {
        t->device->ops->copy(t->device, slice_sums_next(&t->memory->sums), parts + 2 * i * dh,
                             (size_t)(2 * dh) * sizeof(float));
        slice_sums_add(&t->memory->sums, 2 * dh);
    }
    slice_sums_begin(&t->memory->sums, 2 * dh);
    float *sum = slice_sums_end(&t->memory->sums);
    for (int k = 0; k < 2; k++) rows_add(t->device, grads[k], sum + k * dh, 1, dh);
}

/* Computes dqkv of all slices, and the gradients of the projection and of the norms of heads. */
static void attention_backward(const struct pass *pass, int64_t l, struct branch *branch, char *region,
                               char *dqkv, size_t each)
{
    struct tower *t = pass->tower;
    const struct device_ops *ops = t->device->ops;
    struct block_activations *k = &t->memory->kept[l];
    const struct batch *in = pass->batch;
    int64_t R = in->count * t->tokens, dh = model_shape_head_dim(&t->model_shape);
    bool norms = P(ROLE_Q_NORM_W), sliced = tower_slices(t) > 1;
    float *parts = (float *)(void *)(t->memory->scratch + t->memory->norms_at);
    if (norms && sliced)
        ops->fill(t->device, parts, 0, (size_t)(tower_own_slices(t) * 2 * dh) * sizeof(float));
    attention_branch_entry(pass, l, branch, R);
    for (int i = 0; i < tower_own_slices(t); i++) {
        struct block_activations of = block_slice_view(t, k, i);
        void *d = dqkv + (size_t)i * each;
        branch->w = block_slice(t, l, ROLE_PROJ_W, i);
        struct attention attention = tower_attention(t, in, l, &of);
        if (t->options.saved == SAVED_8BIT) ops->attention_forward(t->device, &attention);
        attention_branch_backward(pass, l, branch, &of, region, R);
        ops->attention_backward(t->device, &(struct attention_gradient){attention, region, d});
        tower_rotate(t, in, d, true);
        if (!norms) continue;
        float *part = parts + 2 * i * dh;
        float *const dweight[] = {sliced ? part : P(ROLE_Q_NORM_W)->grad,
                                  sliced ? part + dh : P(ROLE_K_NORM_W)->grad};
        head_norms_backward(pass, l, &of, d, dweight, R);
    }
    if (norms && sliced) add_head_norms(pass, l, parts);
}

/* Its tensors are still there, unless a second pass, another slot or the head has replaced them. */
static bool recomputes_last_block(const struct tower *t)
{
    return t->options.backward_twice || tower_keeps_streams(t) || tower_head_overwrites(t);
}

int64_t tower_recomputed_blocks(const struct tower *t)
{
    int64_t depth = t->model_shape.depth, each = recomputes_last_block(t) ? depth : depth - 1;
    return t->options.recompute == RECOMPUTE_BLOCK ? (t->options.backward_twice ? 2 : 1) * each : 0;
}

int64_t tower_logit_row_parts(const struct tower *t)
{
    const struct lm_loss_layout *l = &t->memory->loss;
    int64_t rows = t->options.batch * t->out_rows;
    return t->owns_loss && l->form == LM_LOSS_ROWS ? (rows + l->rows - 1) / l->rows : 1;
}

int tower_repeated_logits(const struct tower *t)
{
    int passes = t->options.backward_twice ? 2 : 1;
    return t->owns_loss ? passes * (t->memory->loss.form == LM_LOSS_SLABS ? 2 : 1) - 1 : 0;
}

void tower_block_backward(const struct pass *pass, int64_t l)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct model_shape *g = &t->model_shape;
    enum dtype e = t->options.compute;
    struct block_activations *k = &m->kept[l];
    const struct batch *in = pass->batch;
    int64_t R = in->count * t->tokens, most = t->options.batch * t->tokens;
    char *region = m->scratch + m->region_at;
    const struct parameter *qkv_bias = P(ROLE_QKV_B) ? P(ROLE_QKV_B) : P(ROLE_Q_B);

    if (t->options.recompute == RECOMPUTE_BLOCK && (l < g->depth - 1 || recomputes_last_block(t)))
        tower_block_forward(t, in, l, true);
    struct branch branch =
        branch_of(t, P(ROLE_PROJ_W), P(ROLE_PROJ_B), P(ROLE_LS1), tower_drop(t, pass->batch, l, 0));
    struct branch_gradient entry = branch_entry(pass, &branch, R);
    ffn_backward(pass, l, R, &entry);

    char *dqkv = region + (size_t)(R * slice_attn(t)) * dtype_bytes(e);
    size_t each = (size_t)(most * slice_qkv(t)) * dtype_bytes(e);
    attention_backward(pass, l, &branch, region, dqkv, each);
    if (tower_norms_end(t)) {
        stream_linear_backward(pass, dqkv, each, m->x[l], P(ROLE_QKV_W), qkv_bias, R);
        return;
    }
    struct layernorm norm =
        tower_stream_norm(t, P(ROLE_NORM1_W), P(ROLE_NORM1_B), m->x[l], k->mean1, k->rstd1, R);
    norm_linear_backward(pass, dqkv, each, &norm, P(ROLE_NORM1_W), P(ROLE_NORM1_B), P(ROLE_QKV_W), qkv_bias,
                         NULL);
}
#undef P

static void groups_backward(void *context)
{
    const struct pass *pass = context;
    const struct model *model = pass->tower->model;
    for (int group = pass->from; group >= pass->to; group--) {
        zero_small(pass, group);
        if (group == pass->tower->group_count - 1) model->head_backward(pass);
        else if (group > 0) {
            model->block_backward(pass, group - 1);
            outputs_of_block_backward(pass, group - 1);
        } else model->embed_backward(pass);
    }
}

/* Issues the part of a pass from group pass->from to pass->to. */
static void issue(struct pass *pass, int32_t flags)
{
    struct tower *t = pass->tower;
    const struct batch *batch = pass->batch;
    struct device_work work = {
        .owner = t,
        .inputs = {batch->input, t->owns_loss ? batch->begins : (void *)pass->dout, batch->keep},
        .count = batch->count,
        .part = pass->from,
        .flags = flags | pass->first | pass->last << 1 | (pass->to == t->lowest) << 2};
    /* the arguments of a head with a loss change from batch to batch, so it is not recorded; nor are the
     * calls of the ranks that share slices */
    if ((t->owns_loss && pass->from == t->group_count - 1) || tower_calls_ranks(t)) groups_backward(pass);
    else device_issue(t->device, &work, groups_backward, pass);
}

void tower_backward_group(struct tower *t, const struct batch *batch, const float *dout, int64_t slot,
                          int group)
{
    struct pass pass = {t, batch, dout, true, true, group, group};
    int64_t turn = tower_own_index(t, group) * t->options.slots + slot;
    assert(tower_owns(t, group));
    tower_select(t, slot);
    tower_select_gradients(t, group, turn);
    issue(&pass, tower_slot_flags(slot));
}

int tower_backward(struct tower *t, const struct batch *batch, const float *dout, bool first, bool last,
                   group_done done, void *context, struct error *err)
{
    int lowest = t->lowest;
    struct pass pass = {t, batch, dout, first, last, t->group_count - 1, lowest};
    int code = 0;
    assert(t->options.stages <= 1);
    tower_select(t, 0);
    for (; pass.from >= lowest && !code; pass.from = pass.to - 1) {
        bool loss = t->owns_loss && pass.from == t->group_count - 1;
        pass.to = (last && done) || t->needed || loss ? pass.from : lowest;
        code = tower_need(t, pass.from, pass.from > lowest ? pass.from - 1 : -1, err);
        if (code) break;
        tower_select_gradients(t, pass.from, pass.from);
        issue(&pass, 0);
        code = tower_failed(t, err);
        if (last && done && !code) code = done(context, pass.to, err);
    }
    return code;
}
