/* The ends of an encoder of tokens (BERT and its kin): embedding with its norm, and the head of a masked
 * language model. The head computes the picked rows only (struct batch), those of masked tokens:
 *
 *   e_r = norm(table[token_r] + positions[r] (+ types[0])) (P^T + p)
 *   p = the picked rows of x, h = p W^T + b, n = norm(activation(h)), logits = n table^T + b'
 *
 * Picked rows are gathered and scattered by the operations of token tables, with row numbers as tokens.
 * Source: transformers' modeling_bert.py, modeling_distilbert.py, modeling_roberta.py, modeling_electra.py
 * and modeling_big_bird.py. */
#include "core/nn/tower.h"

static int64_t picked_rows(const struct tower *t, const struct batch *in) { return in->count * t->out_rows; }

/* Returns the rows (R, E) of the embedding: the stream, or memory in scratch if a projection follows. */
static float *embedding_rows(const struct tower *t)
{
    const struct tower_memory *m = t->memory;
    return m->roles[ROLE_EMBED_W] ? (float *)(void *)(m->scratch + m->region_at) : tower_stream(t);
}

void encoder_embed(struct tower *t, const struct batch *in)
{
    const struct device_ops *ops = t->device->ops;
    struct tower_memory *m = t->memory;
    const struct parameter *types = m->roles[ROLE_TYPES], *project = m->roles[ROLE_EMBED_W];
    int64_t R = in->count * t->tokens, E = model_shape_embedding(&t->model_shape);
    const float *positions = f32(m->roles[ROLE_POS]) + t->family->first_position * E;
    float *rows = embedding_rows(t);
    if (types)
        ops->token_embed(t->device, &(struct token_embedding){.type = DTYPE_F32,
                                                              .tokens = m->types,
                                                              .table = f32(types),
                                                              .positions = positions,
                                                              .y = m->pos,
                                                              .R = t->tokens,
                                                              .N = t->tokens,
                                                              .D = E,
                                                              .rows = t->model_shape.types});
    tower_token_embed(t, &(struct token_embedding){.tokens = in->input,
                                                   .positions = types ? m->pos : positions,
                                                   .begins = in->begins,
                                                   .y = rows,
                                                   .R = R,
                                                   .N = t->tokens,
                                                   .D = E});
    struct layernorm norm = tower_stream_norm(t, m->roles[ROLE_PRE_W], m->roles[ROLE_PRE_B], m->tokens,
                                              m->pre_mean, m->pre_rstd, R);
    norm.x = rows;
    norm.x_stride = norm.D = E;
    norm.type = project ? t->options.compute : DTYPE_F32;
    norm.y = project ? m->embedded : rows;
    ops->layernorm_forward(t->device, &norm);
    if (project)
        tower_linear(t, m->embedded, project, f32(m->roles[ROLE_EMBED_B]), tower_stream(t), DTYPE_F32, R);
}

/* From the gradient of the stream to that of the projection's input, in F32. */
static void project_backward(const struct pass *pass, float *rows)
{
    struct tower *t = pass->tower;
    const struct tower_memory *m = t->memory;
    int64_t R = pass->batch->count * t->tokens, E = model_shape_embedding(&t->model_shape);
    void *dy = m->scratch + m->t1_at, *dx = rows + R * E;
    t->device->ops->cast(t->device, tower_stream(t), DTYPE_F32, dy, t->options.compute,
                         R * t->model_shape.width);
    tower_linear_backward(pass, dy, m->embedded, m->roles[ROLE_EMBED_W], m->roles[ROLE_EMBED_B], dx, R);
    t->device->ops->cast(t->device, dx, t->options.compute, rows, DTYPE_F32, R * E);
}

void encoder_embed_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    const struct device_ops *ops = t->device->ops;
    const struct tower_memory *m = t->memory;
    int64_t R = pass->batch->count * t->tokens, E = model_shape_embedding(&t->model_shape);
    float *rows = embedding_rows(t);
    if (m->roles[ROLE_EMBED_W]) project_backward(pass, rows);
    ops->layernorm_backward(t->device, &(struct layernorm_gradient){.type = DTYPE_F32,
                                                                    .x_type = m->stored,
                                                                    .dy = rows,
                                                                    .x = m->tokens,
                                                                    .x_stride = E,
                                                                    .weight = f32(m->roles[ROLE_PRE_W]),
                                                                    .rstd = m->pre_rstd,
                                                                    .dweight = m->roles[ROLE_PRE_W]->grad,
                                                                    .dbias = m->roles[ROLE_PRE_B]->grad,
                                                                    .R = R,
                                                                    .D = E,
                                                                    .to = rows});
    if (m->roles[ROLE_TYPES]) ops->column_sums(t->device, DTYPE_F32, rows, m->roles[ROLE_TYPES]->grad, R, E);
    language_table_backward(pass, rows);
}

static void activate(struct tower *t, enum activation kind, void *y, int64_t rows)
{
    t->device->ops->activation_forward(t->device, &(struct activation_value){.type = t->options.compute,
                                                                             .kind = kind,
                                                                             .h = t->memory->picked_h,
                                                                             .y = y,
                                                                             .R = rows,
                                                                             .F = tower_head_width(t)});
}
/* Returns the activation of the head of masked tokens. */
static enum activation kind_of(const struct tower *t)
{
    return (enum activation)((t->family->mlm ? t->family->mlm : t->model_shape.ffn) - 1);
}
static enum activation pooler_of(const struct tower *t)
{
    return (enum activation)((t->family->pooler ? t->family->pooler : t->model_shape.ffn) - 1);
}

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

/* From the gradient of the activation's output, in t1, to that of the stream, 0 in other rows. The output has
 * F columns. */
static void dense_of_rows_backward(const struct pass *pass, enum activation kind, const int32_t *picked,
                                   const struct parameter *w, const struct parameter *b)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct device_ops *ops = t->device->ops;
    enum dtype e = t->options.compute;
    int64_t M = picked_rows(t, pass->batch), D = t->model_shape.width, F = tower_head_width(t);
    float *rows = (float *)(void *)(m->scratch + m->region_at);
    void *t1 = m->scratch + m->t1_at, *dh = rows + M * D;
    ops->activation_backward(
        t->device,
        &(struct activation_gradient){
            .type = e, .kind = kind, .dy = t1, .h = m->picked_h, .dh = dh, .sums = b->grad, .R = M, .F = F});
    tower_weight_gradient(pass, dh, F, m->picked, D, w, M);
    tower_input_gradient(pass, dh, F, w, t1, D, false, M);
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
    int64_t M = picked_rows(t, in), D = tower_head_width(t);
    void *act = m->scratch + m->t1_at;
    dense_of_rows(t, in, in->picked, m->roles[ROLE_MLM_W], m->roles[ROLE_MLM_B]);
    activate(t, kind_of(t), act, M);
    tower_norm(t, act, m->roles[ROLE_MLM_NORM_W], m->roles[ROLE_MLM_NORM_B], m->pooled, m->norm_mean,
               m->norm_rstd, M, D);
}

/* The first token of each sample: out = activation(x W^T + b) C^T + c */
void encoder_classify(struct tower *t, const struct batch *in)
{
    struct tower_memory *m = t->memory;
    const int32_t *first = m->numbers + t->options.batch;
    dense_of_rows(t, in, first, m->roles[ROLE_POOLER_W], m->roles[ROLE_POOLER_B]);
    activate(t, pooler_of(t), m->pooled, in->count);
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
        dense_of_rows_backward(pass, pooler_of(t), m->numbers + t->options.batch, m->roles[ROLE_POOLER_W],
                               m->roles[ROLE_POOLER_B]);
}

/* Region: the rows in F32, then the gradient of the activation's input; or all of the embedding and the
 * gradient of its projection's input. */
size_t encoder_scratch(const struct tower *t)
{
    size_t rows = (size_t)(t->options.batch * t->out_rows), all = (size_t)(t->options.batch * t->tokens),
           D = (size_t)t->model_shape.width, H = (size_t)tower_head_width(t), f = sizeof(float),
           E = (size_t)model_shape_embedding(&t->model_shape), e = dtype_bytes(t->options.compute),
           head = tower_picks_rows(t) ? rows * (D * f + H * e) : 0,
           embedding = t->memory->roles[ROLE_EMBED_W] ? all * E * (f + e) : 0;
    return head > embedding ? head : embedding;
}

void encoder_head_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct parameter *norm = m->roles[ROLE_MLM_NORM_W];
    enum dtype e = t->options.compute;
    int64_t M = picked_rows(t, pass->batch), D = tower_head_width(t);
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
