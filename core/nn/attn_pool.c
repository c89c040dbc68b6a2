/* Attention pooling: learned queries attend to the tokens after the last block, and the embedding is computed
 * from the first query's output.
 *
 *   k = n W_k^T + b_k, v = n W_v^T + b_v (R, O), n = norm_k(x) (R, D)
 *   a = W_o attention(q, k, v) + b_o (B, O), q = norm_q(query_0) W_q^T + b_q
 *
 * CoCa (Yu et al. 2022; open_clip's AttentionalPooler): the embedding is norm(a). The other queries serve a
 * text decoder: they are loaded, changed by weight decay alone, and saved.
 *
 * SigLIP (Zhai et al. 2023; timm's AttentionPoolLatent): norm_k is the tower's last norm, W_q, W_k and W_v
 * are the rows of one matrix, the one query has no norm, and the embedding is a + fc2(f(fc1(norm_p(a)))).
 *
 * The attention is the blocks' kernel: q is stored in the first row of an image. The other rows are 0 and
 * their output is unused.
 */
#include "core/nn/tower.h"

#define P(name) (m->roles[ROLE_POOL_##name])

static bool has_mlp(const struct tower *t) { return t->memory->roles[ROLE_POOL_FC1_W] != NULL; }

size_t attn_pool_lay(const struct tower *t, struct attn_pool_activations *k, char *base, size_t at)
{
    size_t B = (size_t)t->options.batch, R = B * (size_t)t->tokens, O = (size_t)t->model_shape.out,
           e = dtype_bytes(t->options.compute), f = sizeof(float), mlp = has_mlp(t) ? B : 0;
    size_t query = tower_place(&at, B * O * e), query_norm = tower_place(&at, B * O * e),
           qkv = tower_place(&at, 3 * R * O * e), attn = tower_place(&at, R * O * e),
           out = tower_place(&at, B * O * (mlp ? f : e)),
           lse = tower_place(&at, R * (size_t)t->model_shape.pool_heads * f),
           moments = tower_place(&at, 2 * (B + R) * f),
           key_hat = tower_place(
               &at, t->options.gradients == GRADIENTS_NONE ? 0 : R * (size_t)t->model_shape.width * e);
    size_t sum = tower_place(&at, mlp * O * f), normed = tower_place(&at, mlp * O * e),
           h = tower_place(&at, mlp * (size_t)t->model_shape.hidden * e);
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
                                            t->options.gradients == GRADIENTS_NONE ? NULL : base + key_hat,
                                        .sum = (float *)(void *)(base + sum),
                                        .normed = base + normed,
                                        .h = base + h};
    return at;
}

/* Backward's scratch after the gradients of the output. */
struct pool_scratch {
    float *dout;          /* (B, O) gradient of out, with an mlp */
    void *du, *dact, *dh; /* t (B, O), (B, F), (B, F): the mlp's */
    void *dattn, *dqkv;   /* t (R, O), (R, 3O) */
    size_t bytes;
};
static struct pool_scratch scratch_of(const struct tower *t, char *base)
{
    size_t B = (size_t)t->options.batch, R = B * (size_t)t->tokens, O = (size_t)t->model_shape.out,
           F = (size_t)t->model_shape.hidden, e = dtype_bytes(t->options.compute), mlp = has_mlp(t) ? B : 0,
           at = 0;
    size_t dout = tower_place(&at, mlp * O * sizeof(float)), du = tower_place(&at, mlp * O * e),
           dact = tower_place(&at, mlp * F * e), dh = tower_place(&at, mlp * F * e),
           dattn = tower_place(&at, R * O * e), dqkv = tower_place(&at, 3 * R * O * e);
    if (!base) return (struct pool_scratch){.bytes = at};
    return (struct pool_scratch){.dout = (float *)(void *)(base + dout),
                                 .du = base + du,
                                 .dact = base + dact,
                                 .dh = base + dh,
                                 .dattn = base + dattn,
                                 .dqkv = base + dqkv,
                                 .bytes = at};
}

size_t attn_pool_scratch(const struct tower *t) { return scratch_of(t, NULL).bytes; }

/* The matrices of queries, keys and values: separate, or rows of one. */
struct projections {
    struct parameter q, k, v;
};
static struct parameter rows_of(const struct parameter *p, int64_t first, int64_t rows)
{
    struct parameter part = *p;
    int64_t columns = p->count / p->shape[0];
    part.shape[0] = rows;
    part.count = rows * columns;
    part.weight = (char *)p->weight + (size_t)(first * columns) * dtype_bytes(p->weight_type);
    if (p->grad) part.grad = (char *)p->grad + (size_t)(first * columns) * dtype_bytes(p->grad_type);
    return part;
}
static struct projections projections_of(const struct tower *t)
{
    const struct tower_memory *m = t->memory;
    const struct parameter *all = P(QKV_W);
    int64_t O = t->model_shape.out;
    if (!all) return (struct projections){*P(Q_W), *P(K_W), *P(V_W)};
    return (struct projections){rows_of(all, 0, O), rows_of(all, O, O), rows_of(all, 2 * O, O)};
}

/* norm_k's weight or bias */
static const struct parameter *key_norm(const struct tower *t, int bias)
{
    const struct tower_memory *m = t->memory;
    return P(K_NORM_W) ? m->roles[ROLE_POOL_K_NORM_W + bias] : m->roles[ROLE_NORM_W + bias];
}
static struct layernorm norm_of_keys(const struct tower *t, int64_t R)
{
    const struct attn_pool_activations *k = &t->memory->attn_pool;
    return tower_stream_norm(t, key_norm(t, 0), key_norm(t, 1), k->key_hat, k->key_mean, k->key_rstd, R);
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

/* pooled = a + fc2(f(h)), h = fc1(normed), normed = norm_p(a); a = out, fp32 */
static void mlp_forward(struct tower *t, int64_t batch)
{
    struct tower_memory *m = t->memory;
    const struct device_ops *ops = t->device->ops;
    const struct attn_pool_activations *k = &m->attn_pool;
    enum dtype e = t->options.compute;
    int64_t O = t->model_shape.out;
    char *branch = m->scratch + m->t1_at, *act = m->scratch + m->region_at;
    float *y = m->pooled_type == DTYPE_F32 ? m->pooled : k->sum;
    ops->layernorm_forward(t->device, &(struct layernorm){.type = e,
                                                          .x = k->out,
                                                          .x_stride = O,
                                                          .weight = f32(P(NORM_W)),
                                                          .bias = f32(P(NORM_B)),
                                                          .y = k->normed,
                                                          .mean = m->norm_mean,
                                                          .rstd = m->norm_rstd,
                                                          .R = batch,
                                                          .D = O,
                                                          .eps = model_shape_norm_eps(&t->model_shape)});
    tower_linear(t, k->normed, P(FC1_W), bias_at_once(t, P(FC1_B)), k->h, e, batch);
    ops->activation_forward(t->device,
                            &(struct activation_value){.type = e,
                                                       .kind = (enum activation)(t->model_shape.ffn - 1),
                                                       .h = k->h,
                                                       .bias = bias_later(t, P(FC1_B)),
                                                       .y = act,
                                                       .R = batch,
                                                       .F = t->model_shape.hidden});
    tower_linear(t, act, P(FC2_W), bias_at_once(t, P(FC2_B)), branch, e, batch);
    ops->residual_forward(t->device, &(struct residual){.type = e,
                                                        .x = k->out,
                                                        .branch = branch,
                                                        .bias = bias_later(t, P(FC2_B)),
                                                        .y = y,
                                                        .R = batch,
                                                        .D = O});
    if (y != m->pooled) ops->cast(t->device, y, DTYPE_F32, m->pooled, e, batch * O);
}

static struct attention attention_of(const struct tower *t, int64_t batch)
{
    const struct attn_pool_activations *k = &t->memory->attn_pool;
    int64_t heads = t->model_shape.pool_heads;
    return (struct attention){.type = t->options.compute,
                              .qkv = k->qkv,
                              .out = k->attn,
                              .lse = k->lse,
                              .B = batch,
                              .N = t->tokens,
                              .H = heads,
                              .G = heads,
                              .dh = t->model_shape.out / heads};
}

void attn_pool_forward(struct tower *t, int64_t batch)
{
    struct tower_memory *m = t->memory;
    const struct device_ops *ops = t->device->ops;
    struct attn_pool_activations *k = &m->attn_pool;
    struct projections w = projections_of(t);
    enum dtype e = t->options.compute;
    int64_t N = t->tokens, R = batch * N, D = t->model_shape.width, O = t->model_shape.out;
    size_t row = (size_t)O * dtype_bytes(e);
    char *qkv = k->qkv, *n = m->scratch + m->t1_at;
    const float *bias = f32(P(QKV_B));
    void *query = P(Q_NORM_W) ? k->query : k->query_norm;
    for (int64_t i = 0; i < batch; i++)
        ops->cast(t->device, f32(P(QUERY)), DTYPE_F32, (char *)query + (size_t)i * row, e, O);
    if (P(Q_NORM_W))
        tower_norm(t, query, P(Q_NORM_W), P(Q_NORM_B), k->query_norm, k->query_mean, k->query_rstd, batch, O);
    struct layernorm keys = norm_of_keys(t, R);
    ops->layernorm_forward(t->device, &keys);
    ops->fill(t->device, qkv, 0, 3 * (size_t)R * row);
    linear(t, k->query_norm, O, &w.q, bias, qkv, N * 3 * O, batch);
    linear(t, n, D, &w.k, bias + O, qkv + row, 3 * O, R);
    linear(t, n, D, &w.v, bias + 2 * O, qkv + 2 * row, 3 * O, R);
    struct attention attention = attention_of(t, batch);
    ops->attention_forward(t->device, &attention);
    tower_linear_apart(t, k->attn, N * O, P(PROJ_W), f32(P(PROJ_B)), k->out, O, has_mlp(t) ? DTYPE_F32 : e,
                       batch);
    if (has_mlp(t)) mlp_forward(t, batch);
    else
        tower_norm(t, k->out, m->roles[ROLE_NORM_W], m->roles[ROLE_NORM_B], m->pooled, m->norm_mean,
                   m->norm_rstd, batch, O);
}

/* With dy the gradient of the embedding: dact = dy W_fc2, dh = dact f'(h), da = dy + dnorm_p(dh W_fc1), in
 * the compute type at s->du. */
static void mlp_backward(const struct pass *pass, const void *dy, const struct pool_scratch *s)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    struct device *dev = t->device;
    const struct attn_pool_activations *k = &m->attn_pool;
    enum dtype e = t->options.compute;
    int64_t B = pass->batch->count, O = t->model_shape.out, F = t->model_shape.hidden;
    void *dn = m->scratch + m->t1_at;
    dev->ops->cast(dev, dy, m->pooled_type, s->dout, DTYPE_F32, B * O);
    dev->ops->cast(dev, dy, m->pooled_type, s->du, e, B * O);
    dev->ops->column_sums(dev, e, s->du, P(FC2_B)->grad, B, O);
    tower_input_gradient(pass, s->du, O, P(FC2_W), s->dact, F, false, B);
    dev->ops->activation_backward(
        dev, &(struct activation_gradient){.type = e,
                                           .kind = (enum activation)(t->model_shape.ffn - 1),
                                           .dy = s->dact,
                                           .h = k->h,
                                           .bias = bias_later(t, P(FC1_B)),
                                           .dh = s->dh,
                                           .act = s->dact,
                                           .sums = P(FC1_B)->grad,
                                           .R = B,
                                           .F = F});
    tower_weight_gradient(pass, s->du, O, s->dact, F, P(FC2_W), B);
    tower_linear_backward(pass, s->dh, k->normed, P(FC1_W), NULL, dn, B);
    dev->ops->layernorm_backward(dev, &(struct layernorm_gradient){.type = e,
                                                                   .dy = dn,
                                                                   .x = k->out,
                                                                   .x_stride = O,
                                                                   .weight = f32(P(NORM_W)),
                                                                   .mean = m->norm_mean,
                                                                   .rstd = m->norm_rstd,
                                                                   .dx = s->dout,
                                                                   .dx_stride = O,
                                                                   .dweight = P(NORM_W)->grad,
                                                                   .dbias = P(NORM_B)->grad,
                                                                   .R = B,
                                                                   .D = O});
    dev->ops->cast(dev, s->dout, DTYPE_F32, s->du, e, B * O);
}

/* dquery_0 = dnorm_q(dq W_q) summed over the images; dy (B, O) is overwritten. */
static void query_backward(const struct pass *pass, const struct parameter *w, const void *dqkv, void *dy)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct attn_pool_activations *k = &m->attn_pool;
    int64_t B = pass->batch->count, O = t->model_shape.out;
    linear_backward(pass, dqkv, t->tokens * 3 * O, k->query_norm, O, w, dy, O, false, B);
    if (P(Q_NORM_W))
        tower_norm_backward(pass, dy, k->query, P(Q_NORM_W), P(Q_NORM_B), k->query_mean, k->query_rstd, B, O);
    t->device->ops->column_sums(t->device, t->options.compute, dy, P(QUERY)->grad, B, O);
}

/* With dy the gradient of the embedding, da that of a:
 *
 *   dattn = da W_o in the first rows, 0 elsewhere; (dq, dk, dv) = dattention(dattn); dn = dk W_k + dv W_v
 *   dx += dnorm_k(dn)
 *
 * n is recomputed in t1.
 */
void attn_pool_backward(const struct pass *pass, void *dy)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    struct device *dev = t->device;
    const struct attn_pool_activations *k = &m->attn_pool;
    struct projections w = projections_of(t);
    struct pool_scratch s = scratch_of(t, m->scratch + m->region_at + tower_output_gradients(t));
    enum dtype e = t->options.compute;
    int64_t B = pass->batch->count, N = t->tokens, R = B * N, D = t->model_shape.width,
            O = t->model_shape.out;
    size_t row = (size_t)O * dtype_bytes(e);
    char *n = m->scratch + m->t1_at, *dn = m->scratch + m->td_at, *dqkv = s.dqkv;
    void *da = has_mlp(t) ? s.du : dy;
    if (has_mlp(t)) mlp_backward(pass, dy, &s);
    else
        tower_norm_backward(pass, dy, k->out, m->roles[ROLE_NORM_W], m->roles[ROLE_NORM_B], m->norm_mean,
                            m->norm_rstd, B, O);
    dev->ops->column_sums(dev, e, da, P(PROJ_B)->grad, B, O);
    dev->ops->fill(dev, s.dattn, 0, (size_t)R * row);
    linear_backward(pass, da, O, k->attn, N * O, P(PROJ_W), s.dattn, N * O, false, B);
    dev->ops->attention_backward(dev, &(struct attention_gradient){attention_of(t, B), s.dattn, dqkv});
    dev->ops->column_sums(dev, e, dqkv, P(QKV_B)->grad, R, 3 * O);
    struct layernorm norm = norm_of_keys(t, R);
    dev->ops->layernorm_apply(dev, &norm);
    linear_backward(pass, dqkv + row, 3 * O, n, D, &w.k, dn, D, false, R);
    linear_backward(pass, dqkv + 2 * row, 3 * O, n, D, &w.v, dn, D, true, R);
    dev->ops->layernorm_backward(dev, &(struct layernorm_gradient){.type = e,
                                                                   .x_type = m->stored,
                                                                   .dy = dn,
                                                                   .x = k->key_hat,
                                                                   .x_stride = D,
                                                                   .weight = norm.weight,
                                                                   .rstd = k->key_rstd,
                                                                   .dx = tower_stream(t),
                                                                   .dx_stride = D,
                                                                   .dweight = key_norm(t, 0)->grad,
                                                                   .dbias = key_norm(t, 1)->grad,
                                                                   .R = R,
                                                                   .D = D});
    query_backward(pass, &w.q, dqkv, da);
}
