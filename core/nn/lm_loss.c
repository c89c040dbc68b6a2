/* Loss of a language model's head, part by part of its logits: see lm_loss.h. */
#include "core/nn/lm_loss.h"
#include "core/model/parameters.h"

#include <math.h>

enum { COLUMNS = 64 }; /* slabs and strides are multiples of it, so that rows of a part are aligned */

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t at_least(int64_t n, int64_t least) { return n < least ? least : n; }

/* The layout without the state of the rows. */
static struct lm_loss_layout layout_of(int64_t R, int64_t V, size_t chunk)
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
    return l;
}

struct lm_loss_layout lm_loss_layout(int64_t R, int64_t V, size_t chunk, int slices, int own)
{
    struct lm_loss_layout l = layout_of(R, slice_of_rows(V, 0, slices).count, chunk / (size_t)slices);
    int64_t states = R + (slices > 1 ? slices * l.rows : 0);
    l.bytes =
        (size_t)(own * l.rows * l.stride) * sizeof(float) + (size_t)(states * LOGIT_STATE) * sizeof(double);
    return l;
}

/* A part of the logits: `rows` rows from `row` on, `columns` columns from `column` on */
struct part {
    const struct lm_loss *o;
    struct device *device;
    struct lm_loss_head head;
    int64_t first, V; /* its columns in the vocabulary; all of the vocabulary, or of a slice */
    float *logits;
    double *state; /* of its rows: to write, and complete */
    const double *complete;
    float *dx; /* (rows, D) */
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
                                                   .b = element(p->head.weights, o->type, p->column * o->D),
                                                   .c = p->logits,
                                                   .lda = o->D,
                                                   .ldb = o->D,
                                                   .ldc = p->stride,
                                                   .ab_type = o->type,
                                                   .c_type = DTYPE_F32,
                                                   .alpha = 1,
                                                   .bias = p->head.bias ? p->head.bias + p->column : NULL});
}

static void add_sums(const struct part *p)
{
    const struct lm_loss *o = p->o;
    bool last = p->column + p->columns == o->V; /* never of a slice */
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
                                                               .first = p->first + p->column,
                                                               .begin = p->column == 0,
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
                                                            .state = p->complete,
                                                            .smoothing = o->smoothing,
                                                            .weight = o->weight,
                                                            .R = p->rows,
                                                            .C = p->columns,
                                                            .first = p->first + p->column,
                                                            .classes = o->V});
    ops->gemm(p->device, &(struct gemm){.m = p->rows,
                                        .n = D,
                                        .k = p->columns,
                                        .a = p->logits,
                                        .b = element(p->head.weights, o->type, p->column * D),
                                        .c = p->dx,
                                        .lda = stride,
                                        .ldb = D,
                                        .ldc = D,
                                        .ab_type = o->type,
                                        .c_type = DTYPE_F32,
                                        .alpha = 1,
                                        .beta = p->column > 0 ? 1 : 0});
    if (p->head.dbias) /* column sums: dlogits^T 1 */
        ops->gemm(p->device, &(struct gemm){.m = p->columns,
                                            .n = 1,
                                            .k = p->rows,
                                            .transpose_a = true,
                                            .a = p->logits,
                                            .b = o->ones,
                                            .c = p->head.dbias + p->column,
                                            .lda = stride,
                                            .ldb = 1,
                                            .ldc = 1,
                                            .ab_type = o->type,
                                            .c_type = DTYPE_F32,
                                            .alpha = 1,
                                            .beta = 1});
    if (!p->head.dweights) return;
    ops->gemm(p->device, &(struct gemm){.m = p->columns,
                                        .n = D,
                                        .k = p->rows,
                                        .transpose_a = true,
                                        .a = p->logits,
                                        .b = element(o->x, o->type, p->row * D),
                                        .c = (char *)p->head.dweights +
                                             (size_t)(p->column * D) * dtype_bytes(o->dweights_type),
                                        .lda = stride,
                                        .ldb = D,
                                        .ldc = D,
                                        .ab_type = o->type,
                                        .c_type = o->dweights_type,
                                        .alpha = 1,
                                        .beta = o->add || p->row > 0 ? 1 : 0});
}

/* The first column of a part; then the next one. */
static void first_columns(struct part *p, const struct lm_loss_layout *l)
{
    p->column = 0;
    p->columns = p->V < l->columns ? p->V : l->columns;
}
static void next_columns(struct part *p)
{
    p->column += p->columns;
    if (p->columns > p->V - p->column) p->columns = p->V - p->column;
}

/* Computes the state of a part's rows from all of its columns. */
static void sum_columns(struct part *p, const struct lm_loss_layout *l)
{
    for (first_columns(p, l); p->column < p->V; next_columns(p)) {
        compute_logits(p);
        add_sums(p);
    }
}

/* Computes the gradients; the logits are still there, or are computed again. */
static void gradients_of_columns(struct part *p, const struct lm_loss_layout *l)
{
    for (first_columns(p, l); p->column < p->V; next_columns(p)) {
        if (l->form == LM_LOSS_SLABS) compute_logits(p);
        add_gradients(p);
    }
}

/* The part of the i-th own slice, of these rows. */
static struct part part_of_slice(const struct part *rows, int i)
{
    const struct lm_loss *o = rows->o;
    struct part p = *rows;
    struct slice_rows columns = slice_of_rows(o->V, o->first_slice + i, o->slices);
    p.head = o->heads[i];
    p.first = columns.first;
    p.V = columns.count;
    p.logits = rows->logits + i * (rows->stride * rows->rows);
    return p;
}

/* One part of the rows, of all slices: each one's state, then that of whole rows, then the gradients, with dx
 * as the sum over slices. states: of the slices, (slices, rows). */
static void loss_of_slices(const struct part *rows, double *states, const struct lm_loss_layout *l)
{
    const struct lm_loss *o = rows->o;
    int64_t each = rows->rows * LOGIT_STATE, count = rows->rows * o->D;
    for (int i = 0; i < o->own; i++) {
        struct part p = part_of_slice(rows, i);
        p.state = states + (o->first_slice + i) * each;
        sum_columns(&p, l);
    }
    slice_gather(o->sums_of_slices, states, (size_t)(o->own * each) * sizeof *states);
    rows->device->ops->logit_merge(rows->device, &(struct logit_merge){.states = states,
                                                                       .labels = o->labels + rows->row,
                                                                       .state = rows->state,
                                                                       .loss = o->sums,
                                                                       .correct = o->sums + 1,
                                                                       .smoothing = o->smoothing,
                                                                       .weight = o->weight,
                                                                       .R = rows->rows,
                                                                       .S = o->slices,
                                                                       .classes = o->V});
    for (int i = 0; i < o->own && o->dx; i++) {
        struct part p = part_of_slice(rows, i);
        p.dx = slice_sums_next(o->sums_of_slices);
        gradients_of_columns(&p, l);
        slice_sums_add(o->sums_of_slices, count);
    }
    if (!o->dx) return;
    slice_sums_begin(o->sums_of_slices, count);
    rows->device->ops->copy(rows->device, rows->dx, slice_sums_end(o->sums_of_slices),
                            (size_t)count * sizeof(float));
}

void lm_loss(struct device *device, const struct lm_loss *o, const struct lm_loss_layout *layout)
{
    bool sliced = o->slices > 1;
    int64_t own = sliced ? o->own : 1;
    size_t logits = (size_t)(own * layout->rows * layout->stride) * sizeof(float);
    double *state = (double *)(void *)((char *)o->scratch + logits);
    for (int64_t row = 0; row < o->R; row += layout->rows) {
        struct part p = {o,
                         device,
                         .head = o->head,
                         .V = o->V,
                         .logits = o->scratch,
                         .state = state + row * LOGIT_STATE,
                         .dx = o->dx ? o->dx + row * o->D : NULL,
                         .stride = layout->stride,
                         .row = row};
        p.rows = o->R - row < layout->rows ? o->R - row : layout->rows;
        p.complete = p.state;
        if (sliced) {
            loss_of_slices(&p, state + o->R * LOGIT_STATE, layout);
            continue;
        }
        sum_columns(&p, layout);
        if (o->dx) gradients_of_columns(&p, layout);
    }
}
