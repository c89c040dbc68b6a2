/* Pooling by attention (CoCa: Yu et al. 2022; open_clip's AttentionalPooler): learned queries look into the
 * tokens behind the last block, and the embedding is what the first of them finds. The other queries serve a
 * text decoder: they are read, trained by weight decay alone, and written again.
 *
 *   n = norm_k(x) (R, D), k = n W_k^T + b_k, v = n W_v^T + b_v (R, O)
 *   q = norm_q(query_0) W_q^T + b_q, out = W_o attention(q, k, v) + b_o (B, O)
 *
 * The attention is the blocks' own: q stands in the first row of an image, the others are 0 and nobody reads
 * what they find. */
#include "core/nn/tower.h"

#define P(name) (m->roles[ROLE_POOL_##name])

size_t attn_pool_lay(const struct tower *t, struct attn_pool_activations *k, char *base, size_t at)
{
    size_t B = (size_t)t->options.batch, R = B * (size_t)t->tokens, O = (size_t)t->geometry.out,
           e = dtype_bytes(t->options.compute), f = sizeof(float);
    size_t query = tower_place(&at, B * O * e), query_norm = tower_place(&at, B * O * e),
           qkv = tower_place(&at, 3 * R * O * e), attn = tower_place(&at, R * O * e),
           out = tower_place(&at, B * O * e), lse = tower_place(&at, R * (size_t)t->geometry.pool_heads * f),
           moments = tower_place(&at, 2 * (B + R) * f),
           key_hat = tower_place(
               &at, t->options.gradients == GRADIENTS_NONE ? 0 : R * (size_t)t->geometry.width * e);
    if (!base) return at;
    float *mean = (float *)(void *)(base + moments);
    *k = (struct attn_pool_activations){.query = base + query,
                                        .query_norm = base + query_norm,
                                        .qkv = base + qkv,
                                        .attn = base + attn,
                                        .out = base + out,
                                        .lse = (float *)(void *)(base + lse),
                                        .query_mean = mean,
                                        .query_rstd = mean + B,
                                        .key_mean = mean + 2 * B,
                                        .key_rstd = mean + 2 * B + R,
                                        .key_hat =
                                            t->options.gradients == GRADIENTS_NONE ? NULL : base + key_hat};
    return at;
}

static void linear(struct tower *t, const void *x, int64_t ldx, const struct parameter *w, const float *bias,
                   void *y, int64_t ldy, int64_t rows)
{
    tower_linear_apart(t, x, ldx, w, bias, y, ldy, t->options.compute, rows);
}

/* dW = dy^T x, and dx = dy W or dx += dy W */
static void linear_backward(const struct pass *pass, const void *dy, int64_t ldy, const void *x, int64_t ldx,
                            const struct parameter *w, void *dx, int64_t lddx, bool add, int64_t rows)
{
    tower_weight_gradient(pass, dy, ldy, x, ldx, w, rows);
    tower_input_gradient(pass, dy, ldy, w, dx, lddx, add, rows);
}

void attn_pool_forward(struct tower *t, int64_t batch)
{
    struct tower_memory *m = t->memory;
    const struct device_ops *ops = t->device->ops;
    struct attn_pool_activations *k = &m->attn_pool;
    enum dtype e = t->options.compute;
    int64_t N = t->tokens, R = batch * N, D = t->geometry.width, O = t->geometry.out,
            H = t->geometry.pool_heads;
    size_t row = (size_t)O * dtype_bytes(e);
    char *qkv = k->qkv, *n = m->scratch + m->t1_at;
    const float *bias = f32(P(QKV_B));
    for (int64_t i = 0; i < batch; i++)
        ops->cast(t->device, f32(P(QUERY)), DTYPE_F32, (char *)k->query + (size_t)i * row, e, O);
    tower_norm(t, k->query, P(Q_NORM_W), P(Q_NORM_B), k->query_norm, k->query_mean, k->query_rstd, batch, O);
    struct layernorm keys =
        tower_stream_norm(t, P(K_NORM_W), P(K_NORM_B), k->key_hat, k->key_mean, k->key_rstd, R);
    ops->layernorm_forward(t->device, &keys);
    ops->fill(t->device, qkv, 0, 3 * (size_t)R * row);
    linear(t, k->query_norm, O, P(Q_W), bias, qkv, N * 3 * O, batch);
    linear(t, n, D, P(K_W), bias + O, qkv + row, 3 * O, R);
    linear(t, n, D, P(V_W), bias + 2 * O, qkv + 2 * row, 3 * O, R);
    ops->attention_forward(
        t->device, &(struct attention){e, .qkv = qkv, .out = k->attn, .lse = k->lse, batch, N, H, O / H});
    linear(t, k->attn, N * O, P(PROJ_W), f32(P(PROJ_B)), k->out, O, batch);
}

/* With dy the gradient of out:
 *
 *   da = dy W_o in the first rows, 0 elsewhere; (dq, dk, dv) = dattention(da); dn = dk W_k + dv W_v
 *   dx += dnorm_k(dn); dquery_0 = dnorm_q(dq W_q) summed over the images
 *
 * n is made again in t1. */
void attn_pool_backward(const struct pass *pass, void *dy)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    struct device *dev = t->device;
    const struct attn_pool_activations *k = &m->attn_pool;
    enum dtype e = t->options.compute;
    int64_t B = pass->batch->count, N = t->tokens, R = B * N, D = t->geometry.width, O = t->geometry.out,
            H = t->geometry.pool_heads;
    size_t row = (size_t)O * dtype_bytes(e);
    char *n = m->scratch + m->t1_at, *dn = m->scratch + m->td_at,
         *da = m->scratch + m->region_at + tower_output_gradients(t), *dqkv = da + (size_t)R * row;
    dev->ops->column_sums(dev, e, dy, P(PROJ_B)->grad, B, O);
    dev->ops->fill(dev, da, 0, (size_t)R * row);
    linear_backward(pass, dy, O, k->attn, N * O, P(PROJ_W), da, N * O, false, B);
    dev->ops->attention_backward(dev, &(struct attention_gradient){.type = e,
                                                                   .qkv = k->qkv,
                                                                   .out = k->attn,
                                                                   .lse = k->lse,
                                                                   .dout = da,
                                                                   .dqkv = dqkv,
                                                                   .B = B,
                                                                   .N = N,
                                                                   .H = H,
                                                                   .dh = O / H});
    dev->ops->column_sums(dev, e, dqkv, P(QKV_B)->grad, R, 3 * O);
    struct layernorm norm =
        tower_stream_norm(t, P(K_NORM_W), P(K_NORM_B), k->key_hat, k->key_mean, k->key_rstd, R);
    dev->ops->layernorm_apply(dev, &norm);
    linear_backward(pass, dqkv + row, 3 * O, n, D, P(K_W), dn, D, false, R);
    linear_backward(pass, dqkv + 2 * row, 3 * O, n, D, P(V_W), dn, D, true, R);
    struct layernorm_gradient keys = {.type = e,
                                      .x_type = m->stored,
                                      .dy = dn,
                                      .x = k->key_hat,
                                      .x_stride = D,
                                      .weight = norm.weight,
                                      .rstd = k->key_rstd,
                                      .dx = tower_stream(t),
                                      .dx_stride = D,
                                      .dweight = P(K_NORM_W)->grad,
                                      .dbias = P(K_NORM_B)->grad,
                                      .R = R,
                                      .D = D};
    dev->ops->layernorm_backward(dev, &keys);
    linear_backward(pass, dqkv, N * 3 * O, k->query_norm, O, P(Q_W), dy, O, false, B);
    struct layernorm_gradient query = {.type = e,
                                       .x_type = e,
                                       .dy = dy,
                                       .x = k->query,
                                       .x_stride = O,
                                       .weight = f32(P(Q_NORM_W)),
                                       .mean = k->query_mean,
                                       .rstd = k->query_rstd,
                                       .dweight = P(Q_NORM_W)->grad,
                                       .dbias = P(Q_NORM_B)->grad,
                                       .R = B,
                                       .D = O,
                                       .to = dy};
    dev->ops->layernorm_backward(dev, &query);
    dev->ops->column_sums(dev, e, dy, P(QUERY)->grad, B, O);
}
