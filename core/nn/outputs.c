/* The outputs of a tower for a distillation (core/model/outputs.h): tokens of the last norm or of a block,
 * through a head. */
#include "core/nn/tower.h"

static const struct output *output_of(const struct tower *t, int i)
{
    static const struct output embedding = {OUTPUT_CLS, 0, HEAD_NONE, 0, 0};
    return t->options.outputs.count ? &t->options.outputs.of[i] : &embedding;
}

static int64_t rows_each(const struct tower *t, int i)
{
    return i == 0 ? t->out_rows : output_rows(&t->model_shape, output_of(t, i));
}

static int64_t width_of(const struct tower *t, int i)
{
    return i == 0 ? t->out_width : output_width(&t->model_shape, output_of(t, i));
}

int64_t tower_output_at(const struct tower *t, int i)
{
    int64_t values = 0;
    while (i-- > 0) values += rows_each(t, i) * width_of(t, i);
    return t->options.batch * values;
}

bool outputs_headless(const struct tower *t)
{
    const struct output *o = output_of(t, 0);
    return tower_outputs(t) == 1 && !t->memory->outputs[0].w && !o->block &&
           (o->tokens == OUTPUT_CLS || o->tokens == OUTPUT_CLS_PATCH);
}

bool outputs_of_blocks(const struct tower *t)
{
    bool any = false;
    for (int i = 0; i < tower_outputs(t); i++) any = any || output_of(t, i)->block > 0;
    return any;
}

static size_t hidden_bytes(const struct tower *t, const struct output *o, int64_t rows)
{
    int64_t K = o->head == HEAD_MLP ? o->hidden : 0;
    return (size_t)(rows * K) * dtype_bytes(t->options.compute);
}

void outputs_lay(struct tower *t, char *base, size_t *at)
{
    int64_t B = t->options.batch, D = t->model_shape.width;
    for (int i = 0; i < tower_outputs(t); i++) {
        const struct output *o = output_of(t, i);
        struct output_memory *k = &t->memory->outputs[i];
        int64_t rows = B * rows_each(t, i);
        bool mean = o->tokens == OUTPUT_AVG && o->head != HEAD_NONE, mlp = o->head == HEAD_MLP;
        size_t mean_at = tower_place(at, mean ? (size_t)(B * D) * dtype_bytes(t->options.compute) : 0),
               h = tower_place(at, hidden_bytes(t, o, rows)),
               moments = tower_place(at, mlp ? 2 * (size_t)rows * sizeof(float) : 0);
        if (!base) continue;
        k->mean = base + mean_at;
        k->h = base + h;
        k->norm_mean = (float *)(void *)(base + moments);
        k->norm_rstd = k->norm_mean + rows;
    }
}

size_t outputs_bytes(const struct tower *t)
{
    size_t at = 0;
    struct tower copy = *t;
    outputs_lay(&copy, NULL, &at);
    return at;
}

/* ---- Scratch of a head, from `at` on ---- */

struct head_scratch {
    char *dy;             /* t (rows, T): gradient of the result */
    char *normed, *act;   /* t (rows, K): hidden layer after its norm, and after its activation */
    char *dact;           /* t (rows, K) */
    char *input, *dinput; /* t (rows, D): tokens of a block; gradient of these or of a mean */
    float *moments;       /* (2, 1 + P) of the norm of a block's tokens, which are not read */
    int64_t block;        /* of the tokens */
    size_t bytes;
};

static struct head_scratch scratch_of(const struct tower *t, int i, char *base)
{
    const struct output *o = output_of(t, i);
    size_t at = 0, e = dtype_bytes(t->options.compute);
    int64_t B = t->options.batch, rows = B * rows_each(t, i);
    size_t tokens = (size_t)((o->block || o->tokens == OUTPUT_AVG ? rows : 0) * t->model_shape.width) * e,
           dy = tower_place(&at, (size_t)(rows * width_of(t, i)) * e),
           normed = tower_place(&at, hidden_bytes(t, o, rows)),
           act = tower_place(&at, hidden_bytes(t, o, rows)),
           dact = tower_place(&at, hidden_bytes(t, o, rows)), input = tower_place(&at, o->block ? tokens : 0),
           dinput = tower_place(&at, tokens),
           moments = tower_place(&at, o->block ? 2 * (size_t)(1 + t->patches) * sizeof(float) : 0);
    if (!base) return (struct head_scratch){.bytes = at};
    return (struct head_scratch){.dy = base + dy,
                                 .normed = base + normed,
                                 .act = base + act,
                                 .dact = base + dact,
                                 .input = base + input,
                                 .dinput = base + dinput,
                                 .moments = (float *)(void *)(base + moments),
                                 .bytes = at};
}

size_t outputs_scratch(const struct tower *t)
{
    size_t most = 0;
    for (int i = 0; i < tower_outputs(t); i++) most = larger(most, scratch_of(t, i, NULL).bytes);
    return most;
}

/* Bytes of the gradients of pooled rows and of projected ones, at region_at in this order. */
static size_t pooled_bytes(const struct tower *t)
{
    const struct tower_memory *m = t->memory;
    int64_t B = t->options.batch, D = t->model_shape.width,
            values = B * (model_shape_pooled(&t->model_shape) + (m->pooled_rows - 1) * D);
    return ((size_t)values * dtype_bytes(m->pooled_apart ? t->options.compute : m->pooled_type) + 63) &
           ~(size_t)63;
}
static size_t projected_bytes(const struct tower *t)
{
    int64_t values = t->memory->roles[ROLE_OUT_W] ? t->options.batch * t->model_shape.out : 0;
    return ((size_t)values * dtype_bytes(t->options.compute) + 63) & ~(size_t)63;
}

size_t tower_output_gradients(const struct tower *t)
{
    return pooled_bytes(t) + projected_bytes(t) + outputs_scratch(t);
}

struct output_gradients tower_output_gradients_at(const struct tower *t)
{
    char *region = t->memory->scratch + t->memory->region_at;
    return (struct output_gradients){region, region + pooled_bytes(t)};
}

/* ---- Heads ---- */

/* n = norm(h), a = gelu(n): the hidden layer of `rows` rows. */
static void activate(struct tower *t, const struct output_memory *k, const struct head_scratch *s,
                     int64_t rows)
{
    int64_t K = k->fc1_w->shape[0];
    tower_norm(t, k->h, k->norm_w, k->norm_b, s->normed, k->norm_mean, k->norm_rstd, rows, K);
    t->device->ops->activation_forward(t->device, &(struct activation_value){.type = t->options.compute,
                                                                             .kind = ACTIVATION_GELU,
                                                                             .h = s->normed,
                                                                             .y = s->act,
                                                                             .R = rows,
                                                                             .F = K});
}

/* x t (rows, input) -> out */
static void head_forward(struct tower *t, int i, const void *x, int64_t rows, const struct head_scratch *s)
{
    const struct output_memory *k = &t->memory->outputs[i];
    float *out = t->out + tower_output_at(t, i);
    if (!k->w) {
        t->device->ops->cast(t->device, x, t->options.compute, out, DTYPE_F32, rows * width_of(t, i));
        return;
    }
    if (k->fc1_w) {
        tower_linear(t, x, k->fc1_w, f32(k->fc1_b), k->h, t->options.compute, rows);
        activate(t, k, s, rows);
        x = s->act;
    }
    tower_linear(t, x, k->w, f32(k->b), out, DTYPE_F32, rows);
}

/* The gradients of a head, and of its input: dx = or, add, +=; NULL: not computed. */
static void head_backward(const struct pass *pass, int i, const void *x, int64_t rows, void *dx, bool add,
                          const struct head_scratch *s)
{
    struct tower *t = pass->tower;
    const struct output_memory *k = &t->memory->outputs[i];
    enum dtype e = t->options.compute;
    const void *dy = s->dy, *in = x;
    const struct parameter *w = k->w, *b = k->b;
    t->device->ops->cast(t->device, pass->dout + tower_output_at(t, i), DTYPE_F32, s->dy, e,
                         rows * width_of(t, i));
    if (k->fc1_w) {
        int64_t K = k->fc1_w->shape[0];
        activate(t, k, s, rows);
        tower_linear_backward(pass, s->dy, s->act, w, b, s->dact, rows);
        t->device->ops->activation_backward(t->device, &(struct activation_gradient){.type = e,
                                                                                     .kind = ACTIVATION_GELU,
                                                                                     .dy = s->dact,
                                                                                     .h = s->normed,
                                                                                     .dh = s->normed,
                                                                                     .R = rows,
                                                                                     .F = K});
        tower_norm_backward(pass, s->normed, k->h, k->norm_w, k->norm_b, k->norm_mean, k->norm_rstd, rows, K);
        dy = s->normed;
        w = k->fc1_w;
        b = k->fc1_b;
    }
    tower_linear_backward(pass, dy, in, w, b, NULL, rows);
    if (dx) tower_input_gradient(pass, dy, w->shape[0], w, dx, w->count / w->shape[0], add, rows);
}

/* ---- After the last norm ---- */

/* Where the tokens of an output begin in the pooled rows, and their number. */
static const char *tokens_of(const struct tower *t, const struct output *o, int64_t batch, const char *pooled,
                             int64_t *rows)
{
    int64_t patches = batch * t->patches, width = model_shape_pooled(&t->model_shape);
    bool later = o->tokens == OUTPUT_PATCH || o->tokens == OUTPUT_AVG;
    *rows = o->tokens == OUTPUT_CLS ? batch : later ? patches : batch + patches;
    return pooled + (later ? (size_t)(batch * width) * dtype_bytes(t->options.compute) : 0);
}

/* y F32 (B, D) = the mean of the patches x t (B, P, D) */
static void mean_of(struct tower *t, const void *x, float *y, int64_t batch)
{
    t->device->ops->row_mean_forward(
        t->device,
        &(struct row_mean){t->options.compute, x, y, .B = batch, .N = t->patches, .D = t->model_shape.width});
}

/* An output that is the mean of the patches x. */
static void average_forward(struct tower *t, int i, const void *x, int64_t batch,
                            const struct head_scratch *s)
{
    struct tower_memory *m = t->memory;
    float *mean = (float *)(void *)(m->scratch + m->t1_at);
    if (!m->outputs[i].w) {
        mean_of(t, x, t->out + tower_output_at(t, i), batch);
        return;
    }
    mean_of(t, x, mean, batch);
    t->device->ops->cast(t->device, mean, DTYPE_F32, m->outputs[i].mean, t->options.compute,
                         batch * t->model_shape.width);
    head_forward(t, i, m->outputs[i].mean, batch, s);
}

void outputs_forward(struct tower *t, const struct batch *in)
{
    struct tower_memory *m = t->memory;
    for (int i = 0; i < tower_outputs(t); i++) {
        const struct output *o = output_of(t, i);
        if (o->block) continue;
        struct head_scratch s = scratch_of(t, i, m->scratch + m->region_at);
        int64_t rows;
        const char *x = tokens_of(t, o, in->count, m->pooled, &rows);
        if (o->tokens == OUTPUT_AVG) average_forward(t, i, x, in->count, &s);
        else head_forward(t, i, o->tokens == OUTPUT_CLS && m->roles[ROLE_OUT_W] ? m->projected : x, rows, &s);
    }
}

/* Adds the gradients of outputs without a head, and of means, and writes the sum of each kind of tokens: the
 * embedding to cls (batch, `width`), the patches to patch; NULL: there are none. The stream is scratch. */
static void sum_headless(const struct pass *pass, char *cls, int64_t width, char *patch)
{
    struct tower *t = pass->tower;
    struct device *dev = t->device;
    enum dtype e = t->options.compute;
    int64_t B = pass->batch->count, D = t->model_shape.width, patches = B * t->patches;
    float *sum = tower_stream(t);
    for (int k = 0; k < 2; k++) {
        int64_t rows = k ? patches : B, columns = k ? D : width;
        if (!(k ? patch : cls)) continue;
        dev->ops->fill(dev, sum, 0, (size_t)(rows * columns) * sizeof *sum);
        for (int i = 0; i < tower_outputs(t); i++) {
            const struct output *o = output_of(t, i);
            const struct output_memory *head = &t->memory->outputs[i];
            const float *dout = pass->dout + tower_output_at(t, i);
            struct row_mean_gradient mean = {DTYPE_F32, dout, sum, .B = B, .N = t->patches, .D = D};
            if (o->block || (o->tokens != OUTPUT_AVG && head->w)) continue;
            if (o->tokens == OUTPUT_AVG && k) {
                struct output_gradients at = tower_output_gradients_at(t);
                struct head_scratch s = scratch_of(t, i, at.projected + projected_bytes(t));
                if (head->w) head_backward(pass, i, head->mean, B, s.dinput, false, &s);
                if (head->w) mean.type = e, mean.dy = s.dinput;
                dev->ops->row_mean_backward(dev, &mean);
            } else if (o->tokens == OUTPUT_CLS_PATCH)
                rows_add(dev, sum, dout + (k ? B * D : 0), rows, columns);
            else if (o->tokens == (k ? OUTPUT_PATCH : OUTPUT_CLS)) rows_add(dev, sum, dout, rows, columns);
        }
        dev->ops->cast(dev, sum, DTYPE_F32, k ? patch : cls, e, rows * columns);
    }
}

void outputs_backward(const struct pass *pass)
{
    struct tower *t = pass->tower;
    struct tower_memory *m = t->memory;
    struct output_gradients to = tower_output_gradients_at(t);
    int64_t B = pass->batch->count, rows,
            width = m->roles[ROLE_OUT_W] ? t->model_shape.out : model_shape_pooled(&t->model_shape);
    const struct output *only = output_of(t, 0);
    bool frozen = t->options.frozen_end,
         one = tower_outputs(t) == 1 && (only->tokens == OUTPUT_CLS || only->tokens == OUTPUT_CLS_PATCH);
    char *cls = m->roles[ROLE_OUT_W] ? to.projected : to.pooled,
         *patch = m->pooled_rows > 1 ? to.pooled + (size_t)(B * model_shape_pooled(&t->model_shape)) *
                                                       dtype_bytes(t->options.compute)
                                     : NULL;
    if (one && !m->outputs[0].w) {
        t->device->ops->cast(t->device, pass->dout, DTYPE_F32, cls, t->options.compute,
                             B * t->out_rows * t->out_width);
        return;
    }
    if (!one) sum_headless(pass, cls, width, patch);
    for (int i = 0; i < tower_outputs(t); i++) {
        const struct output *o = output_of(t, i);
        if (o->block || !m->outputs[i].w || o->tokens == OUTPUT_AVG) continue;
        struct head_scratch s = scratch_of(t, i, to.projected + projected_bytes(t));
        bool projected = o->tokens == OUTPUT_CLS && m->roles[ROLE_OUT_W];
        const char *x = tokens_of(t, o, B, m->pooled, &rows);
        char *dx = to.pooled + (x - (const char *)m->pooled);
        head_backward(pass, i, projected ? m->projected : x, rows,
                      frozen      ? NULL
                      : projected ? to.projected
                                  : dx,
                      !one, &s);
    }
}

/* ---- Of a block ---- */

/* Calls `visit` for the tokens of each image that an output of a block reads, `count` that follow each
 * other, the first one number `first` of all images; `row` is their first row in the output. */
typedef void (*visit_tokens)(const struct pass *pass, const struct head_scratch *s, int64_t first,
                             int64_t count, int64_t row);
static int64_t each_token(const struct pass *pass, const struct output *o, const struct head_scratch *s,
                          visit_tokens visit)
{
    const struct tower *t = pass->tower;
    int64_t row = 0;
    for (int patches = o->tokens == OUTPUT_PATCH; patches < (o->tokens == OUTPUT_CLS ? 1 : 2); patches++)
        for (int64_t b = 0, count = patches ? t->patches : 1; b < pass->batch->count; b++, row += count)
            visit(pass, s, b * t->tokens + (patches ? t->tokens - count : 0), count, row);
    return row;
}

/* The norm of such tokens, which has no weights: y in s->input. */
static struct layernorm norm_of_tokens(const struct tower *t, const struct head_scratch *s, int64_t count,
                                       int64_t row)
{
    struct layernorm norm = tower_stream_norm(t, NULL, NULL, NULL, s->moments, s->moments + count, count);
    norm.weight = t->memory->unit;
    norm.y = s->input + (size_t)(row * norm.D) * dtype_bytes(norm.type);
    return norm;
}

static void normalize(const struct pass *pass, const struct head_scratch *s, int64_t first, int64_t count,
                      int64_t row)
{
    struct layernorm norm = norm_of_tokens(pass->tower, s, count, row);
    norm.x = tower_stream(pass->tower) + first * norm.D;
    pass->tower->device->ops->layernorm_forward(pass->tower->device, &norm);
}

void outputs_of_block(struct tower *t, const struct batch *in, int64_t block)
{
    const struct pass pass = {.tower = t, .batch = in};
    for (int i = 0; i < tower_outputs(t) && block > 0; i++) {
        const struct output *o = output_of(t, i);
        if (o->block != block) continue;
        struct head_scratch s = scratch_of(t, i, t->memory->scratch + t->memory->region_at);
        head_forward(t, i, s.input, each_token(&pass, o, &s, normalize), &s);
    }
}

static void normalize_again(const struct pass *pass, const struct head_scratch *s, int64_t first,
                            int64_t count, int64_t row)
{
    const struct tower_memory *m = pass->tower->memory;
    struct layernorm norm = norm_of_tokens(pass->tower, s, count, row);
    norm.hat = (char *)m->x[s->block] + (size_t)(first * norm.D) * dtype_bytes(m->stored);
    norm.mean = m->kept[s->block].mean1 + first;
    norm.rstd = m->kept[s->block].rstd1 + first;
    pass->tower->device->ops->layernorm_apply(pass->tower->device, &norm);
}

/* Adds the gradient of such tokens to the stream's. */
static void normalize_backward(const struct pass *pass, const struct head_scratch *s, int64_t first,
                               int64_t count, int64_t row)
{
    struct tower *t = pass->tower;
    const struct tower_memory *m = t->memory;
    int64_t D = t->model_shape.width;
    enum dtype e = t->options.compute;
    const char *hat = m->x[s->block];
    t->device->ops->layernorm_backward(
        t->device, &(struct layernorm_gradient){.type = e,
                                                .x_type = m->stored,
                                                .dy = s->dinput + (size_t)(row * D) * dtype_bytes(e),
                                                .x = hat + (size_t)(first * D) * dtype_bytes(m->stored),
                                                .x_stride = D,
                                                .weight = m->unit,
                                                .rstd = m->kept[s->block].rstd1 + first,
                                                .dx = tower_stream(t) + first * D,
                                                .dx_stride = D,
                                                .R = count,
                                                .D = D});
}

void outputs_of_block_backward(const struct pass *pass, int64_t block)
{
    struct tower *t = pass->tower;
    for (int i = 0; i < tower_outputs(t) && block > 0; i++) {
        const struct output *o = output_of(t, i);
        if (o->block != block) continue;
        struct head_scratch s = scratch_of(t, i, t->memory->scratch + t->memory->region_at);
        int64_t rows = pass->batch->count * rows_each(t, i), width = width_of(t, i);
        s.block = block;
        if (t->memory->outputs[i].w) {
            (void)each_token(pass, o, &s, normalize_again);
            head_backward(pass, i, s.input, rows, s.dinput, false, &s);
        } else
            t->device->ops->cast(t->device, pass->dout + tower_output_at(t, i), DTYPE_F32, s.dinput,
                                 t->options.compute, rows * width);
        (void)each_token(pass, o, &s, normalize_backward);
    }
}
