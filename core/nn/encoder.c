/* The ends of an encoder of tokens (BERT): embedding with its norm, and the head of a masked language model.
 * The head computes the picked rows only (struct batch), those of masked tokens:
 *
 *   e_r = norm(table[token_r] + positions[r] + types[0])
 *   p = the picked rows of x, h = p W^T + b, n = norm(activation(h)), logits = n table^T + b'
 *
 * Picked rows are gathered and scattered by the operations of token tables, with row numbers as tokens.
 * Source: transformers' modeling_bert.py. */
#include "core/nn/tower.h"

static int64_t picked_rows(const struct tower *t, const struct batch *in) { return in->count * t->out_rows; }

void encoder_embed(struct tower *t, const struct batch *in)
{
    const struct device_ops *ops = t->device->ops;
    struct tower_memory *m = t->memory;
    int64_t R = in->count * t->tokens, D = t->model_shape.width;
    ops->token_embed(t->device, &(struct token_embedding){.type = DTYPE_F32,
                                                          .tokens = m->types,
                                                          .table = f32(m->roles[ROLE_TYPES]),
                                                          .positions = f32(m->roles[ROLE_POS]),
                                                          .y = m->pos,
                                                          .R = t->tokens,
                                                          .N = t->tokens,
                                                          .D = D,
                                                          .rows = 2});
    tower_token_embed(t, &(struct token_embedding){.tokens = in->input,
                                                   .positions = m->pos,
                                                   .begins = in->begins,
                                                   .y = tower_stream(t),
                                                   .R = R,
                                                   .N = t->tokens,
                                                   .D = D});
    struct layernorm norm = tower_stream_norm(t, m->roles[ROLE_PRE_W], m->roles[ROLE_PRE_B], m->tokens,
                                              m->pre_mean, m->pre_rstd, R);
    norm.type = DTYPE_F32;
    norm.y = tower_stream(t);
    ops->layernorm_forward(t->device, &norm);
}

void encoder_embed_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    const struct device_ops *ops = t->device->ops;
    const struct tower_memory *m = t->memory;
    int64_t R = pass->batch->count * t->tokens, D = t->model_shape.width;
    ops->layernorm_backward(t->device, &(struct layernorm_gradient){.type = DTYPE_F32,
                                                                    .x_type = m->stored,
                                                                    .dy = tower_stream(t),
                                                                    .x = m->tokens,
                                                                    .x_stride = D,
                                                                    .weight = f32(m->roles[ROLE_PRE_W]),
                                                                    .rstd = m->pre_rstd,
                                                                    .dweight = m->roles[ROLE_PRE_W]->grad,
                                                                    .dbias = m->roles[ROLE_PRE_B]->grad,
                                                                    .R = R,
                                                                    .D = D,
                                                                    .to = tower_stream(t)});
    ops->column_sums(t->device, DTYPE_F32, tower_stream(t), m->roles[ROLE_TYPES]->grad, R, D);
    language_embed_backward(pass);
}

static void activate(struct tower *t, enum activation kind, void *y, int64_t rows)
{
    t->device->ops->activation_forward(t->device, &(struct activation_value){.type = t->options.compute,
                                                                             .kind = kind,
                                                                             .h = t->memory->picked_h,
                                                                             .y = y,
                                                                             .R = rows,
                                                                             .F = t->model_shape.width});
}
static enum activation kind_of(const struct tower *t) { return (enum activation)(t->model_shape.ffn - 1); }

/* picked = rows of the stream, picked_h = picked W^T + b */
static void dense_of_rows(struct tower *t, const struct batch *in, const int32_t *picked,
                          const struct parameter *w, const struct parameter *b)
{
    struct tower_memory *m = t->memory;
    int64_t M = picked_rows(t, in), D = t->model_shape.width;
    float *rows = (float *)(void *)(m->scratch + m->region_at);
    t->device->ops->token_embed(t->device, &(struct token_embedding){.type = DTYPE_F32,
                                                                     .tokens = picked,
                                                                     .table = tower_stream(t),
                                                                     .y = rows,
                                                                     .R = M,
                                                                     .N = M,
                                                                     .D = D,
                                                                     .rows = in->count * t->tokens});
    t->device->ops->cast(t->device, rows, DTYPE_F32, m->picked, t->options.compute, M * D);
    tower_linear(t, m->picked, w, f32(b), m->picked_h, t->options.compute, M);
}

/* From the gradient of the activation's output, in t1, to that of the stream, 0 in other rows. */
static void dense_of_rows_backward(const struct pass *pass, enum activation kind, const int32_t *picked,
                                   const struct parameter *w, const struct parameter *b)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct device_ops *ops = t->device->ops;
    enum dtype e = t->options.compute;
    int64_t M = picked_rows(t, pass->batch), D = t->model_shape.width;
    float *rows = (float *)(void *)(m->scratch + m->region_at);
    void *t1 = m->scratch + m->t1_at, *dh = rows + M * D;
    ops->activation_backward(
        t->device,
        &(struct activation_gradient){
            .type = e, .kind = kind, .dy = t1, .h = m->picked_h, .dh = dh, .sums = b->grad, .R = M, .F = D});
    tower_weight_gradient(pass, dh, D, m->picked, D, w, M);
    tower_input_gradient(pass, dh, D, w, t1, D, false, M);
    ops->cast(t->device, t1, e, rows, DTYPE_F32, M * D);
    ops->token_embed_gradient(t->device,
                              &(struct token_embedding_gradient){.type = DTYPE_F32,
                                                                 .tokens = picked,
                                                                 .order = m->numbers,
                                                                 .dx = rows,
                                                                 .dtable = tower_stream(t),
                                                                 .R = M,
                                                                 .N = M,
                                                                 .D = D,
                                                                 .rows = pass->batch->count * t->tokens});
}

void encoder_head(struct tower *t, const struct batch *in)
{
    struct tower_memory *m = t->memory;
    int64_t M = picked_rows(t, in), D = t->model_shape.width;
    void *act = m->scratch + m->t1_at;
    dense_of_rows(t, in, in->picked, m->roles[ROLE_MLM_W], m->roles[ROLE_MLM_B]);
    activate(t, kind_of(t), act, M);
    tower_norm(t, act, m->roles[ROLE_MLM_NORM_W], m->roles[ROLE_MLM_NORM_B], m->pooled, m->norm_mean,
               m->norm_rstd, M, D);
}

/* The first token of each sample: out = tanh(x W^T + b) C^T + c */
void encoder_classify(struct tower *t, const struct batch *in)
{
    struct tower_memory *m = t->memory;
    const int32_t *first = m->numbers + t->options.batch;
    dense_of_rows(t, in, first, m->roles[ROLE_POOLER_W], m->roles[ROLE_POOLER_B]);
    activate(t, ACTIVATION_TANH, m->pooled, in->count);
    tower_linear(t, m->pooled, m->roles[ROLE_HEAD_W], f32(m->roles[ROLE_HEAD_B]), t->out, DTYPE_F32,
                 in->count);
}

void encoder_classify_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    int64_t count = pass->batch->count;
    void *dy = m->scratch + m->region_at;
    t->device->ops->cast(t->device, pass->dout, DTYPE_F32, dy, t->options.compute, count * t->out_width);
    tower_linear_backward(pass, dy, m->pooled, m->roles[ROLE_HEAD_W], m->roles[ROLE_HEAD_B],
                          t->options.frozen_end ? NULL : m->scratch + m->t1_at, count);
    if (!t->options.frozen_end)
        dense_of_rows_backward(pass, ACTIVATION_TANH, m->numbers + t->options.batch, m->roles[ROLE_POOLER_W],
                               m->roles[ROLE_POOLER_B]);
}

/* Region: the rows in F32, then the gradient of the activation's input. */
size_t encoder_scratch(const struct tower *t)
{
    size_t values = (size_t)(t->options.batch * t->out_rows * t->model_shape.width);
    return tower_picks_rows(t) ? values * (sizeof(float) + dtype_bytes(t->options.compute)) : 0;
}

void encoder_head_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct parameter *norm = m->roles[ROLE_MLM_NORM_W];
    enum dtype e = t->options.compute;
    int64_t M = picked_rows(t, pass->batch), D = t->model_shape.width;
    float *stream = tower_stream(t);
    void *t1 = m->scratch + m->t1_at;
    language_loss_backward(pass);
    activate(t, kind_of(t), t1, M);
    t->device->ops->layernorm_backward(t->device,
                                       &(struct layernorm_gradient){.type = DTYPE_F32,
                                                                    .x_type = e,
                                                                    .dy = stream,
                                                                    .x = t1,
                                                                    .x_stride = D,
                                                                    .weight = f32(norm),
                                                                    .mean = m->norm_mean,
                                                                    .rstd = m->norm_rstd,
                                                                    .dweight = norm->grad,
                                                                    .dbias = m->roles[ROLE_MLM_NORM_B]->grad,
                                                                    .R = M,
                                                                    .D = D,
                                                                    .to = stream});
    t->device->ops->cast(t->device, stream, DTYPE_F32, t1, e, M * D);
    dense_of_rows_backward(pass, kind_of(t), pass->batch->picked, m->roles[ROLE_MLM_W], m->roles[ROLE_MLM_B]);
}
