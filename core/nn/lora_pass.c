/* Forward and backward of adapters (lora.h). With u = x A^T and v = dy B, both (R, rank):
 *
 *   y += s u B^T,  dB = s dy^T u,  dA = s v^T x,  dx += s v A
 *
 * u and v are computed again where they are read: for a small rank that costs less than to keep them. */
#include "core/nn/tower.h"

static void *low_rank(const struct tower *t) { return t->memory->scratch + t->memory->lora_at; }

/* Rows of dy or y of a pair. */
static void *columns_of(const void *y, enum dtype type, const struct lora_pair *pair)
{
    return (char *)(uintptr_t)y + (size_t)pair->first * dtype_bytes(type);
}

static void product(struct tower *t, struct gemm gemm)
{
    gemm.ab_type = t->options.compute;
    gemm.floats = tower_post_norm(t);
    t->device->ops->gemm(t->device, &gemm);
}

/* u = x A^T */
static void narrow(struct tower *t, const void *x, int64_t ldx, const struct lora_pair *pair, int64_t rows)
{
    int64_t r = pair->a->shape[0], in = pair->a->shape[1];
    product(t, (struct gemm){.m = rows,
                             .n = r,
                             .k = in,
                             .transpose_b = true,
                             .a = x,
                             .b = tower_matrix(t, pair->a),
                             .c = low_rank(t),
                             .lda = ldx,
                             .ldb = in,
                             .ldc = r,
                             .c_type = t->options.compute,
                             .alpha = 1});
}

/* v = dy B */
static void narrow_gradient(struct tower *t, const void *dy, int64_t ldy, const struct lora_pair *pair,
                            int64_t rows)
{
    int64_t out = pair->b->shape[0], r = pair->b->shape[1];
    product(t, (struct gemm){.m = rows,
                             .n = r,
                             .k = out,
                             .a = columns_of(dy, t->options.compute, pair),
                             .b = tower_matrix(t, pair->b),
                             .c = low_rank(t),
                             .lda = ldy,
                             .ldb = r,
                             .ldc = r,
                             .c_type = t->options.compute,
                             .alpha = 1});
}

void lora_forward(struct tower *t, const void *x, int64_t ldx, const struct parameter *w, void *y,
                  int64_t ldy, enum dtype y_type, int64_t rows)
{
    for (int i = 0; i < w->pair_count; i++) {
        const struct lora_pair *pair = &w->pairs[i];
        int64_t out = pair->b->shape[0], r = pair->b->shape[1];
        narrow(t, x, ldx, pair, rows);
        product(t, (struct gemm){.m = rows,
                                 .n = out,
                                 .k = r,
                                 .transpose_b = true,
                                 .a = low_rank(t),
                                 .b = tower_matrix(t, pair->b),
                                 .c = columns_of(y, y_type, pair),
                                 .lda = r,
                                 .ldb = r,
                                 .ldc = ldy,
                                 .c_type = y_type,
                                 .alpha = t->options.lora.scale,
                                 .beta = 1});
    }
}

/* dW (out, in) = s dy^T x */
static void gradient(const struct pass *pass, const void *dy, int64_t ldy, const void *x, int64_t ldx,
                     const struct parameter *w, int64_t rows)
{
    int64_t out = w->shape[0], in = w->shape[1];
    product(pass->tower, (struct gemm){.m = out,
                                       .n = in,
                                       .k = rows,
                                       .transpose_a = true,
                                       .a = dy,
                                       .b = x,
                                       .c = w->grad,
                                       .lda = ldy,
                                       .ldb = ldx,
                                       .ldc = in,
                                       .c_type = w->grad_type,
                                       .alpha = pass->tower->options.lora.scale,
                                       .beta = pass->first ? 0.0f : 1.0f});
}

void lora_gradients(const struct pass *pass, const void *dy, int64_t ldy, const void *x, int64_t ldx,
                    const struct parameter *w, int64_t rows)
{
    struct tower *t = pass->tower;
    for (int i = 0; i < w->pair_count; i++) {
        const struct lora_pair *pair = &w->pairs[i];
        int64_t r = pair->a->shape[0];
        narrow(t, x, ldx, pair, rows);
        gradient(pass, columns_of(dy, t->options.compute, pair), ldy, low_rank(t), r, pair->b, rows);
        narrow_gradient(t, dy, ldy, pair, rows);
        gradient(pass, low_rank(t), r, x, ldx, pair->a, rows);
    }
}

void lora_input_gradient(struct tower *t, const void *dy, int64_t ldy, const struct parameter *w, void *dx,
                         int64_t lddx, enum dtype dx_type, int64_t rows)
{
    for (int i = 0; i < w->pair_count; i++) {
        const struct lora_pair *pair = &w->pairs[i];
        int64_t r = pair->a->shape[0], in = pair->a->shape[1];
        narrow_gradient(t, dy, ldy, pair, rows);
        product(t, (struct gemm){.m = rows,
                                 .n = in,
                                 .k = r,
                                 .a = low_rank(t),
                                 .b = tower_matrix(t, pair->a),
                                 .c = dx,
                                 .lda = r,
                                 .ldb = in,
                                 .ldc = lddx,
                                 .c_type = dx_type,
                                 .alpha = t->options.lora.scale,
                                 .beta = 1});
    }
}
