/* batch -> out. The equations are those of models.md section 1; all families run through the same lines,
 * with NULL where a family has no such parameter. */
#include "core/nn/tower.h"

#include <stdlib.h>

const void *tower_matrix(struct tower *t, const struct parameter *p)
{
    if (p->weight_type == t->options.compute) return p->weight;
    void *cast = t->memory->scratch + t->memory->cast_at;
    t->device->ops->cast(t->device, p->weight, p->weight_type, cast, t->options.compute, p->count);
    return cast;
}

void tower_linear(struct tower *t, const void *x, const struct parameter *w, const float *bias, void *y,
                  enum dtype y_type, int64_t rows)
{
    int64_t out = w->shape[0], in = w->count / out;
    t->device->ops->gemm(t->device, &(struct gemm){.m = rows,
                                                   .n = out,
                                                   .k = in,
                                                   .transpose_b = true,
                                                   .a = x,
                                                   .b = tower_matrix(t, w),
                                                   .c = y,
                                                   .lda = in,
                                                   .ldb = in,
                                                   .ldc = out,
                                                   .ab_type = t->options.compute,
                                                   .c_type = y_type,
                                                   .alpha = 1,
                                                   .bias = bias});
}

void tower_block_forward(struct tower *t, int64_t l, const void *x_in, struct block_activations *k,
                         void *x_out, int64_t batch)
{
    struct device *dev = t->device;
    const struct device_ops *ops = dev->ops;
    const struct geometry *g = &t->geometry;
    enum dtype e = t->options.compute;
    int64_t N = t->tokens, R = batch * N, D = g->width, H = g->heads;
    float eps = t->family->norm_eps;
    void *t1 = t->memory->scratch + t->memory->t1_at, *act = t->memory->scratch + t->memory->region_at;
#define P(role) block_role(t, l, role)
    const struct parameter *qkv_bias = P(ROLE_QKV_B) ? P(ROLE_QKV_B) : P(ROLE_Q_B);

    /* x_mid = x + gamma1 * proj(attention(norm1(x))) */
    ops->layernorm_forward(dev, &(struct layernorm){.type = e,
                                                    .x = x_in,
                                                    .x_stride = D,
                                                    .weight = f32(P(ROLE_NORM1_W)),
                                                    .bias = f32(P(ROLE_NORM1_B)),
                                                    .y = t1,
                                                    .mean = k->mean1,
                                                    .rstd = k->rstd1,
                                                    .R = R,
                                                    .D = D,
                                                    .eps = eps});
    tower_linear(t, t1, P(ROLE_QKV_W), f32(qkv_bias), k->qkv, e, R);
    ops->attention_forward(
        dev, &(struct attention){e, .qkv = k->qkv, .out = k->attn, .lse = k->lse, batch, N, H, D / H});
    tower_linear(t, k->attn, P(ROLE_PROJ_W), f32(P(ROLE_PROJ_B)), t1, e, R);
    ops->residual_forward(
        dev, &(struct residual){e, .x = x_in, .branch = t1, .gamma = f32(P(ROLE_LS1)), .y = k->x_mid, R, D});

    /* x_out = x_mid + gamma2 * fc2(activation(fc1(norm2(x_mid)))) */
    ops->layernorm_forward(dev, &(struct layernorm){.type = e,
                                                    .x = k->x_mid,
                                                    .x_stride = D,
                                                    .weight = f32(P(ROLE_NORM2_W)),
                                                    .bias = f32(P(ROLE_NORM2_B)),
                                                    .y = t1,
                                                    .mean = k->mean2,
                                                    .rstd = k->rstd2,
                                                    .R = R,
                                                    .D = D,
                                                    .eps = eps});
    tower_linear(t, t1, P(ROLE_FC1_W), f32(P(ROLE_FC1_B)), k->h, e, R);
    if (!x_out) return;
    ops->activation_forward(dev, e, (enum activation)(g->ffn - 1), k->h, act, R, g->hidden);
    tower_linear(t, act, P(ROLE_FC2_W), f32(P(ROLE_FC2_B)), t1, e, R);
    ops->residual_forward(
        dev, &(struct residual){e, .x = k->x_mid, .branch = t1, .gamma = f32(P(ROLE_LS2)), .y = x_out, R, D});
#undef P
}

void tower_block(struct tower *t, const struct batch *in, int64_t l)
{
    tower_block_forward(t, l, t->memory->x[l], &t->memory->kept[l], t->memory->x[l + 1], in->count);
}

/* Patches, tokens, position embedding, ln_pre: images -> x[0] */
void image_embed(struct tower *t, const struct batch *in)
{
    struct device *dev = t->device;
    const struct device_ops *ops = dev->ops;
    const struct geometry *g = &t->geometry;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t batch = in->count, N = t->tokens, D = g->width;
    void *patches = m->scratch + m->region_at, *patch_out = m->scratch + m->t1_at;
    const float *pos = f32(m->roles[ROLE_POS]);
    if (t->resized) {
        ops->resize_rows(dev, m->resize, pos, m->pos, t->patches + 1, g->pos_grid * g->pos_grid + 1, D,
                         false);
        pos = m->pos;
    }
    ops->patchify(dev, e, in->input, patches, batch, g->image, g->patch);
    tower_linear(t, patches, m->roles[ROLE_PATCH_W], f32(m->roles[ROLE_PATCH_B]), patch_out, e,
                 batch * t->patches);
    bool pre = m->roles[ROLE_PRE_W] != NULL;
    ops->embed_forward(dev, &(struct embedding){.type = e,
                                                .patches = patch_out,
                                                .cls = f32(m->roles[ROLE_CLS]),
                                                .pos = pos,
                                                .registers = f32(m->roles[ROLE_REGISTERS]),
                                                .tokens = pre ? m->tokens : m->x[0],
                                                .B = batch,
                                                .N = N,
                                                .D = D,
                                                .Q = g->registers});
    if (pre)
        ops->layernorm_forward(dev, &(struct layernorm){.type = e,
                                                        .x = m->tokens,
                                                        .x_stride = D,
                                                        .weight = f32(m->roles[ROLE_PRE_W]),
                                                        .bias = f32(m->roles[ROLE_PRE_B]),
                                                        .y = m->x[0],
                                                        .mean = m->pre_mean,
                                                        .rstd = m->pre_rstd,
                                                        .R = batch * N,
                                                        .D = D,
                                                        .eps = t->family->norm_eps});
}

/* Final norm on the rows that are wanted, projection, distillation head: x[depth] -> out */
void image_head(struct tower *t, const struct batch *in)
{
    struct device *dev = t->device;
    const struct geometry *g = &t->geometry;
    struct tower_memory *m = t->memory;
    enum dtype e = t->options.compute;
    int64_t batch = in->count, N = t->tokens, D = g->width, rows = batch * t->out_rows;
    size_t bytes = dtype_bytes(e);
    float eps = t->family->norm_eps;
    char *x = m->x[g->depth], *pooled = m->pooled;
    struct layernorm norm = {.type = e,
                             .x = x,
                             .x_stride = N * D,
                             .weight = f32(m->roles[ROLE_NORM_W]),
                             .bias = f32(m->roles[ROLE_NORM_B]),
                             .y = pooled,
                             .mean = m->norm_mean,
                             .rstd = m->norm_rstd,
                             .R = batch,
                             .D = D,
                             .eps = eps};
    dev->ops->layernorm_forward(dev, &norm);
    norm.x_stride = D;
    norm.R = t->patches;
    for (int64_t i = 0; i < batch && t->out_rows > 1; i++) {
        int64_t row = batch + i * t->patches;
        norm.x = x + (size_t)((i * N + 1 + g->registers) * D) * bytes;
        norm.y = pooled + (size_t)(row * D) * bytes;
        norm.mean = m->norm_mean + row;
        norm.rstd = m->norm_rstd + row;
        dev->ops->layernorm_forward(dev, &norm);
    }
    const struct parameter *out = m->roles[ROLE_OUT_W], *head = m->roles[ROLE_HEAD_W];
    const void *y = pooled;
    if (out) {
        void *to = head ? m->projected : (void *)t->out;
        enum dtype type = head ? e : DTYPE_F32;
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
        y = to;
    }
    if (head) tower_linear(t, y, head, f32(m->roles[ROLE_HEAD_B]), t->out, DTYPE_F32, rows);
    else if (!out) dev->ops->cast(dev, pooled, e, t->out, DTYPE_F32, rows * D);
}

struct forward {
    struct tower *tower;
    const struct batch *batch;
};
static void forward(void *context)
{
    const struct forward *f = context;
    const struct model *model = f->tower->family->model;
    model->embed(f->tower, f->batch);
    for (int64_t l = 0; l < f->tower->geometry.depth; l++) model->block(f->tower, f->batch, l);
    model->head(f->tower, f->batch);
}
void tower_forward(struct tower *t, const struct batch *batch)
{
    device_issue(
        t->device,
        &(struct device_work){.owner = t, .inputs = {batch->input}, .count = batch->count, .part = -1},
        forward, &(struct forward){t, batch});
}

/* L = scale (mean of l over the cls rows + mean of l over the patch rows), l of a row (width) with e = y - t:
 *
 *   mse |e|^2, smooth l1 sum_i (e_i^2 / 2 where |e_i| < 1, else |e_i| - 1/2), both / width unless sum_dim
 *   cosine 1 - y.t / (|y| |t|)
 *
 * dy is their derivative, through y/|y| when normalised (kernels/cpu/loss.c). */
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
