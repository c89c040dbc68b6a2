/* Loss of a language model's head, part by part of its logits: see lm_loss.h. */
#include "core/nn/lm_loss.h"

#include <math.h>

enum { COLUMNS = 64 }; /* slabs and strides are multiples of it, so that rows of a part are aligned */

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t at_least(int64_t n, int64_t least) { return n < least ? least : n; }

struct lm_loss_layout lm_loss_layout(int64_t R, int64_t V, size_t chunk)
{
    int64_t floats = (int64_t)(chunk / sizeof(float)), stride = round_up(V, COLUMNS), rows = floats / stride;
    struct lm_loss_layout l = {LM_LOSS_WHOLE, R, V, stride, 0};
    if (rows < R && rows * LM_LOSS_ROW_PARTS >= R) {
        int64_t parts = (R + rows - 1) / rows;
        l.form = LM_LOSS_ROWS;
        l.rows = (R + parts - 1) / parts;
    } else if (rows < R) {
        int64_t parts = round_up(V, at_least(floats / R / COLUMNS, 1) * COLUMNS);
        l.form = LM_LOSS_SLABS;
        parts /= at_least(floats / R / COLUMNS, 1) * COLUMNS;
        l.columns = l.stride = round_up((V + parts - 1) / parts, COLUMNS);
    }
    l.bytes = (size_t)(l.rows * l.stride) * sizeof(float) + (size_t)(R * LOGIT_STATE) * sizeof(double);
    return l;
}

/* A part of the logits: `rows` rows from `row` on, `columns` columns from `column` on */
struct part {
    const struct lm_loss *o;
    struct device *device;
    float *logits;
    double *state; /* of its rows */
    int64_t stride, row, rows, column, columns;
};

static const void *element(const void *p, enum dtype type, int64_t i)
{
    return (const char *)p + (size_t)i * dtype_bytes(type);
}

/* logits = x W^T + b */
static void compute_logits(const struct part *p)
{
    const struct lm_loss *o = p->o;
    p->device->ops->gemm(p->device, &(struct gemm){.m = p->rows,
                                                   .n = p->columns,
                                                   .k = o->D,
                                                   .transpose_b = true,
                                                   .a = element(o->x, o->type, p->row * o->D),
                                                   .b = element(o->weights, o->type, p->column * o->D),
                                                   .c = p->logits,
                                                   .lda = o->D,
                                                   .ldb = o->D,
                                                   .ldc = p->stride,
                                                   .ab_type = o->type,
                                                   .c_type = DTYPE_F32,
                                                   .alpha = 1,
                                                   .bias = o->bias ? o->bias + p->column : NULL});
}

static void add_sums(const struct part *p)
{
    const struct lm_loss *o = p->o;
    bool last = p->column + p->columns == o->V;
    p->device->ops->logit_sums(p->device, &(struct logit_sums){.logits = p->logits,
                                                               .stride = p->stride,
                                                               .labels = o->labels + p->row,
                                                               .state = p->state,
                                                               .loss = last ? o->sums : NULL,
                                                               .correct = last ? o->sums + 1 : NULL,
                                                               .smoothing = o->smoothing,
                                                               .weight = o->weight,
                                                               .R = p->rows,
                                                               .C = p->columns,
                                                               .first = p->column,
                                                               .classes = o->V});
}

/* logits -> dlogits; dx (+)= dlogits W; dW (+)= dlogits^T x */
static void add_gradients(const struct part *p)
{
    const struct lm_loss *o = p->o;
    const struct device_ops *ops = p->device->ops;
    int64_t D = o->D, stride = o->type == DTYPE_F32 ? p->stride : 2 * p->stride;
    ops->logit_gradient(p->device, &(struct logit_gradient){.type = o->type,
                                                            .logits = p->logits,
                                                            .stride = p->stride,
                                                            .labels = o->labels + p->row,
                                                            .state = p->state,
                                                            .smoothing = o->smoothing,
                                                            .weight = o->weight,
                                                            .R = p->rows,
                                                            .C = p->columns,
                                                            .first = p->column,
                                                            .classes = o->V});
    ops->gemm(p->device, &(struct gemm){.m = p->rows,
                                        .n = D,
                                        .k = p->columns,
                                        .a = p->logits,
                                        .b = element(o->weights, o->type, p->column * D),
                                        .c = o->dx + p->row * D,
                                        .lda = stride,
                                        .ldb = D,
                                        .ldc = D,
                                        .ab_type = o->type,
                                        .c_type = DTYPE_F32,
                                        .alpha = 1,
                                        .beta = p->column > 0 ? 1 : 0});
    if (o->dbias) /* column sums: dlogits^T 1 */
        ops->gemm(p->device, &(struct gemm){.m = p->columns,
                                            .n = 1,
                                            .k = p->rows,
                                            .transpose_a = true,
                                            .a = p->logits,
                                            .b = o->ones,
                                            .c = o->dbias + p->column,
                                            .lda = stride,
                                            .ldb = 1,
                                            .ldc = 1,
                                            .ab_type = o->type,
                                            .c_type = DTYPE_F32,
                                            .alpha = 1,
                                            .beta = 1});
    if (!o->dweights) return;
    ops->gemm(p->device, &(struct gemm){.m = p->columns,
                                        .n = D,
                                        .k = p->rows,
                                        .transpose_a = true,
                                        .a = p->logits,
                                        .b = element(o->x, o->type, p->row * D),
                                        .c = (char *)o->dweights +
                                             (size_t)(p->column * D) * dtype_bytes(o->dweights_type),
                                        .lda = stride,
                                        .ldb = D,
                                        .ldc = D,
                                        .ab_type = o->type,
                                        .c_type = o->dweights_type,
                                        .alpha = 1,
                                        .beta = o->add || p->row > 0 ? 1 : 0});
}

void lm_loss(struct device *device, const struct lm_loss *o, const struct lm_loss_layout *layout)
{
    size_t logits = (size_t)(layout->rows * layout->stride) * sizeof(float);
    double *state = (double *)(void *)((char *)o->scratch + logits);
    bool slabs = layout->form == LM_LOSS_SLABS;
    for (int64_t row = 0; row < o->R; row += layout->rows) {
        struct part p = {o,
                         device,
                         .logits = o->scratch,
                         .state = state + row * LOGIT_STATE,
                         .stride = layout->stride,
                         .row = row};
        p.rows = o->R - row < layout->rows ? o->R - row : layout->rows;
        for (int sweep = 0; sweep < (slabs && o->dx ? 2 : 1); sweep++)
            for (p.column = 0; p.column < o->V; p.column += layout->columns) {
                p.columns = o->V - p.column < layout->columns ? o->V - p.column : layout->columns;
                compute_logits(&p);
                if (sweep == 0) add_sums(&p);
                if (o->dx && (sweep == 1 || !slabs)) add_gradients(&p);
            }
    }
}
