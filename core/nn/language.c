/* The ends of a decoder language model, and what an encoder shares with it: tokens -> residual stream, and
 * residual stream -> loss. Logits (R, V) are never stored as a whole (lm_loss.h), so the loss and its
 * gradient are computed together in backward. */
#include "core/nn/tower.h"

#include <assert.h>

/* The first token of a slice of the table. */
static int64_t slice_first_token(const struct tower *t, const struct parameter *slice)
{
    return slice->slice < 0 ? 0 : slice_of_rows(t->model_shape.vocabulary, slice->slice, slice->slices).first;
}

void tower_token_embed(struct tower *t, const struct token_embedding *given)
{
    struct token_embedding o = *given;
    struct slice_sums *sums = &t->memory->sums;
    bool ranks = tower_calls_ranks(t);
    if (ranks)
        t->device->ops->fill(t->device, o.y = slice_sums_next(sums), 0, (size_t)(o.R * o.D) * sizeof *o.y);
    for (int i = 0; i < tower_own_slices(t); i++) {
        const struct parameter *table = own_slice(t, t->memory->roles[ROLE_TOKENS], i);
        o.type = table->weight_type;
        o.table = table->weight;
        o.first = slice_first_token(t, table);
        o.rows = table->shape[0];
        t->device->ops->token_embed(t->device, &o);
    }
    if (!ranks) return;
    slice_sums_all(sums); /* one slice has the token, the others leave 0 */
    slice_sums_begin(sums, o.R * o.D);
    t->device->ops->copy(t->device, given->y, slice_sums_end(sums), (size_t)(o.R * o.D) * sizeof *o.y);
}

/* x = table[token] (+ positions[place in the document]) */
void language_embed(struct tower *t, const struct batch *in)
{
    const struct model_shape *g = &t->model_shape;
    const float *positions = f32(t->memory->roles[ROLE_POS]);
    tower_token_embed(
        t, &(struct token_embedding){.tokens = in->input,
                                     .positions = positions ? positions + in->first * g->width : NULL,
                                     .begins = in->begins,
                                     .y = tower_stream(t),
                                     .R = tower_rows(t, in),
                                     .N = tower_sample_rows(t, in),
                                     .D = g->width});
}

/* The table's gradient adds to that of the head if they are one matrix, or to an earlier micro-batch. */
void language_table_backward(const struct pass *pass, const float *dx)
{
    struct tower *t = pass->tower;
    const struct model_shape *g = &t->model_shape;
    const struct parameter *positions = t->memory->roles[ROLE_POS];
    int64_t E = model_shape_embedding(g), before = t->family->first_position * E;
    float *dpositions = positions ? (float *)positions->grad + before : NULL;
    for (int i = 0; i < tower_own_slices(t); i++) {
        const struct parameter *table = own_slice(t, t->memory->roles[ROLE_TOKENS], i);
        t->device->ops->token_embed_gradient(
            t->device, &(struct token_embedding_gradient){.type = table->grad_type,
                                                          .tokens = pass->batch->input,
                                                          .order = pass->batch->order,
                                                          .begins = pass->batch->begins,
                                                          .dx = dx,
                                                          .dtable = table->grad,
                                                          .dpositions = i ? NULL : dpositions,
                                                          .R = pass->batch->count * t->tokens,
                                                          .N = t->tokens,
                                                          .D = E,
                                                          .first = slice_first_token(t, table),
                                                          .rows = table->shape[0],
                                                          .add = !pass->first || tower_tied(t)});
    }
}

void language_embed_backward(const struct pass *pass)
{
    language_table_backward(pass, tower_stream(pass->tower));
}

/* The last norm; its output stays for the loss. */
void language_head(struct tower *t, const struct batch *in)
{
    struct tower_memory *m = t->memory;
    struct layernorm norm = tower_stream_norm(t, m->roles[ROLE_NORM_W], m->roles[ROLE_NORM_B], m->norm_hat,
                                              m->norm_mean, m->norm_rstd, tower_rows(t, in));
    norm.y = m->pooled;
    norm.hat_type = m->norm_type;
    t->device->ops->layernorm_forward(t->device, &norm);
}

/* Returns the head's matrix: its own, or the token table. */
static const struct parameter *language_matrix(const struct tower *t)
{
    return t->memory->roles[ROLE_LM_HEAD] ? t->memory->roles[ROLE_LM_HEAD] : t->memory->roles[ROLE_TOKENS];
}

/* Sets the matrix and the bias of the head, or of each own slice; with gradients, also these. */
static void set_heads(struct tower *t, struct lm_loss *loss, bool gradients)
{
    const struct parameter *w = language_matrix(t), *bias = t->memory->roles[ROLE_LM_BIAS];
    struct lm_loss_head *heads = t->memory->heads;
    assert(tower_own_slices(t) <= MOST_SLICES);
    for (int i = 0; i < tower_own_slices(t); i++) {
        const struct parameter *of = own_slice(t, w, i), *b = own_slice(t, bias, i);
        heads[i] = (struct lm_loss_head){.weights = tower_matrix(t, of),
                                         .bias = f32(b),
                                         .dweights = gradients && of->trained ? of->grad : NULL,
                                         .dbias = gradients && b && b->trained ? b->grad : NULL};
    }
    loss->head = heads[0];
    if (tower_slices(t) == 1) return;
    assert(w->weight_type == t->options.compute);
    loss->slices = tower_slices(t);
    loss->first_slice = t->options.slices_first;
    loss->own = tower_own_slices(t);
    loss->heads = heads;
    loss->sums_of_slices = &t->memory->sums;
}

/* Returns the loss of the normalized rows in memory->pooled, without its head. */
static struct lm_loss language_loss(struct tower *t, const struct batch *in)
{
    return (struct lm_loss){.type = t->options.compute,
                            .x = t->memory->pooled,
                            .labels = in->labels,
                            .weight = in->weight,
                            .smoothing = in->smoothing,
                            .sums = in->sums,
                            .R = in->count * t->out_rows,
                            .D = tower_head_width(t),
                            .V = t->model_shape.vocabulary,
                            .scratch = t->memory->scratch + t->memory->region_at};
}

void tower_evaluate(struct tower *t, const struct batch *in)
{
    assert(t->owns_loss);
    struct lm_loss loss = language_loss(t, in);
    set_heads(t, &loss, false);
    lm_loss(t->device, &loss, &t->memory->loss);
}

void language_loss_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct lm_loss loss = language_loss(t, pass->batch);
    set_heads(t, &loss, true);
    loss.dx = tower_stream(t);
    loss.dweights_type = language_matrix(t)->grad_type;
    loss.add = !pass->first;
    loss.ones = t->memory->ones;
    lm_loss(t->device, &loss, &t->memory->loss);
}

/* labels -> sums and dx. y = norm(x), logits = y W^T: dy in the place of dx, dW, then dx = dnorm(dy). */
void language_head_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    const struct parameter *norm_w = m->roles[ROLE_NORM_W], *norm_b = m->roles[ROLE_NORM_B];
    int64_t R = pass->batch->count * t->tokens, D = t->model_shape.width;
    language_loss_backward(pass);
    t->device->ops->layernorm_backward(t->device,
                                       &(struct layernorm_gradient){.type = DTYPE_F32,
                                                                    .x_type = m->norm_type,
                                                                    .dy = tower_stream(t),
                                                                    .x = m->norm_hat,
                                                                    .x_stride = D,
                                                                    .weight = f32(norm_w),
                                                                    .rstd = m->norm_rstd,
                                                                    .dweight = norm_w->grad,
                                                                    .dbias = norm_b ? norm_b->grad : NULL,
                                                                    .R = R,
                                                                    .D = D,
                                                                    .to = tower_stream(t),
                                                                    .rms = t->family->rms});
}

void tower_logits(struct tower *t, const int64_t *rows, int64_t count, float *logits)
{
    const struct parameter *w = language_matrix(t);
    int64_t D = tower_head_width(t), V = t->model_shape.vocabulary;
    size_t row = (size_t)D * dtype_bytes(t->options.compute);
    assert(t->owns_loss && tower_slices(t) == 1);
    for (int64_t i = 0; i < count; i++)
        tower_linear(t, (char *)t->memory->pooled + (size_t)rows[i] * row, w,
                     f32(t->memory->roles[ROLE_LM_BIAS]), logits + i * V, DTYPE_F32, 1);
}
