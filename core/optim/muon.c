/* Muon (Keller Jordan et al. 2024, kellerjordan.github.io/posts/muon): the momentum of a matrix, of which
 * Newton-Schulz makes all singular values about 1, is subtracted from the weights.
 *
 * A tensor steps in three parts, in one workspace for all tensors:
 *   1  a sweep over the gradient updates the momentum and stores the matrix to orthogonalize (RULE_MUON)
 *   2  each matrix of the tensor is divided by its norm, then X = a X + (b A + c A A) X with A = X X^T (for a
 *      tall matrix X^T X, from the right); the last X is multiplied by the factor of the learning rate
 *   3  a sweep subtracts it from the weights (RULE_APPLY)
 * Of handles that have parts of tensors (options.reduce), either each computes part 2 of every tensor, or,
 * with options.ranks, they divide the tensors of a call. Both have the same bits.
 *
 * The workspace is NaN before part 1, which skips groups whose gradient is not finite. So one of them makes
 * the norm and the whole update NaN, and part 3 skips the matrix, without that the host waits for a card.
 *
 * Gram form: with A known, step k multiplies X by P = a + W, W = b A + c A A, so X after all steps is the
 * product of the P times X, and A becomes P A P. Only A is multiplied in each step, in fp32.
 */
#include "core/optim/muon.h"
#include "core/optim/offload.h"
#include "core/device/threads.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PANELS = 8, PANEL_LEAST = 256 }; /* X is replaced in panels, each of which is first copied */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static size_t most_bytes(size_t a, size_t b) { return a > b ? a : b; }

/* ---- Matrices of a tensor ------------------------------------------------------------------------------ */

int muon_read(struct meopt_tensor *t, const struct meopt_options *o, int wide, int64_t count,
              struct meopt_error *err)
{
    int64_t rows = 0;
    if (wide < 2)
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "tensor %.100s has rule muon and fewer than two dimensions above 1: it is no matrix", t->name);
    for (int d = t->ndim; d-- > 0;)
        if (t->shape[d] > 1) rows = t->shape[d];
    if (!t->rows[0]) t->rows[0] = rows;
    rows = 0;
    bool ended = false, right = true;
    for (int i = 0; i < 4; i++) {
        right = right && t->rows[i] >= 0 && t->rows[i] <= count && !(ended && t->rows[i]);
        ended = ended || !t->rows[i];
        if (right) rows += t->rows[i];
    }
    if (!right || rows > count || count % rows)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: %lld elements are not matrices of %lld, %lld, %lld, %lld rows",
                          t->name, (long long)count, (long long)t->rows[0], (long long)t->rows[1],
                          (long long)t->rows[2], (long long)t->rows[3]);
    bool part = t->flags & MEOPT_PART, owned = t->flags & MEOPT_ONE_OWNER;
    if (part && (owned ? t->count && t->count != count : t->count != count && !o->reduce))
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            owned ? N_("tensor %.100s: %lld of %lld elements, expected all or 0 of a matrix with "
                       "MEOPT_ONE_OWNER")
                  : N_("tensor %.100s: %lld of %lld elements, and no options.reduce, by which muon "
                       "gathers parts"),
            t->name, (long long)t->count, (long long)count);
    return MEOPT_OK;
}

void muon_describe(struct tensor *t, const struct meopt_tensor *from)
{
    int64_t count = 1, rows = 0;
    t->rule = from->rule;
    if (!RULE_HAS(t->rule, WITH_MATRICES)) return;
    for (int d = 0; d < from->ndim; d++) count *= from->shape[d];
    memcpy(t->rows, from->rows, sizeof t->rows);
    for (t->matrices = 0; t->matrices < 4 && t->rows[t->matrices]; t->matrices++)
        rows += t->rows[t->matrices];
    t->columns = count / rows;
    t->gathers = (from->flags & MEOPT_PART) && !(from->flags & MEOPT_ONE_OWNER);
}

/* Elements that the workspace holds: of the whole tensor, or 0. */
static int64_t elements_of(const struct tensor *t)
{
    int64_t count = 0;
    for (int i = 0; i < t->matrices; i++) count += t->rows[i] * t->columns;
    return t->layout.count || t->gathers ? count : 0;
}

/* ---- Workspace ----------------------------------------------------------------------------------------- */

/* A matrix and its memory. short_side: of A; X has rows x columns. */
struct matrix {
    int64_t rows, columns, short_side, panel;
    bool gram;
    enum dtype type;
    char *x, *square[4], *copy; /* DIRECT: square[0], [1] of `type`; GRAM: four of fp32 */
};

static size_t type_bytes(const struct meopt_options *o) { return o->ns_dtype == MEOPT_F32 ? 4 : 2; }

/* Returns the bytes after X that a matrix needs, and sets its pointers from `at` if that is not NULL. */
static size_t matrix_place(const struct meopt_options *o, struct matrix *m, int64_t rows, int64_t columns,
                           bool card, char *at)
{
    int64_t long_side = most(rows, columns), panel = (long_side / PANELS + 63) & ~(int64_t)63;
    *m = (struct matrix){.rows = rows,
                         .columns = columns,
                         .short_side = least(rows, columns),
                         .gram = matrix_uses_gram(o->ns_form, long_side, least(rows, columns), card),
                         .type = o->ns_dtype == MEOPT_F32 ? DTYPE_F32 : DTYPE_BF16};
    m->panel = least(most(panel, PANEL_LEAST), long_side);
    size_t used = 0, square = (size_t)m->short_side * (size_t)m->short_side;
    for (int i = 0; i < (m->gram ? 4 : 2); i++) {
        m->square[i] = at ? at + used : NULL;
        used += rounded(square * (m->gram ? 4 : type_bytes(o)));
    }
    m->copy = at ? at + used : NULL;
    return used + rounded((size_t)(m->short_side * m->panel) * type_bytes(o));
}

/* X begins after the statistics of its norm, which a card stores. */
enum { X_AT = 64 };

/* Returns the bytes of the matrices in which a tensor steps; 0: it has another rule. card: the GEMMs are a
 * card's. */
static size_t muon_bytes(const struct meopt_options *o, const struct tensor *t, bool card)
{
    size_t rest = 0;
    if (!RULE_HAS(t->rule, WITH_MATRICES) || !elements_of(t)) return 0;
    for (int i = 0; i < t->matrices; i++) {
        struct matrix m;
        size_t bytes = matrix_place(o, &m, t->rows[i], t->columns, card, NULL);
        if (bytes > rest) rest = bytes;
    }
    return X_AT + rounded((size_t)elements_of(t) * type_bytes(o)) + rest;
}

bool muon_space_add(struct muon_space *space, const struct meopt_options *o, const struct tensor *t)
{
    size_t bytes = muon_bytes(o, t, optim_device_of(o)->optim->asynchronous), type = type_bytes(o);
    if (bytes && t->gathers && o->ranks > 1) {
        space->result = most_bytes(space->result, X_AT + rounded((size_t)elements_of(t) * type));
        space->part = most_bytes(space->part, rounded((size_t)t->layout.count * type));
    }
    if (bytes <= space->most) return false;
    space->most = bytes;
    return true;
}

size_t muon_space_bytes(const struct muon_space *space)
{
    return most_bytes(space->most, space->result + space->part);
}

size_t muon_chunks(const struct meopt *opt)
{
    size_t chunks = 0;
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        size_t own = RULE_HAS(t->rule, WITH_MATRICES) ? (size_t)optim_chunks(elements_of(t)) : 0;
        if (own > chunks) chunks = own;
    }
    return chunks;
}

/* ---- Newton-Schulz ------------------------------------------------------------------------------------- */

/* arXiv:2505.16932, for singular values from 1e-3 on; all but the last are for 1.01 times the matrix. */
static const double polar_express[][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                          {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                          {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                          {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                          {2.300652019954817, -1.6689039845747493, 0.4188073119525673},
                                          {1.891301407787398, -1.2679958271945868, 0.37680408948524835},
                                          {1.8750014808534479, -1.2500016453999487, 0.3750001645474248},
                                          {1.875, -1.25, 0.375}};
enum { POLAR_LAST = sizeof polar_express / sizeof *polar_express - 1 };
#define POLAR_SAFETY 1.01

static void coefficients(const struct meopt_options *o, int step, float abc[3])
{
    const double *of = o->ns_coefficients;
    double safety = 1;
    if (o->ns_schedule == MEOPT_NS_POLAR_EXPRESS) {
        of = polar_express[step < POLAR_LAST ? step : POLAR_LAST];
        safety = step < POLAR_LAST ? POLAR_SAFETY : 1;
    }
    for (int i = 0; i < 3; i++) abc[i] = (float)(of[i] / pow(safety, 2 * i + 1));
}

static double adjusted(const struct meopt_options *o, const struct matrix *m)
{
    double rows = (double)m->rows, columns = (double)m->columns;
    switch (o->adjust_lr) {
    case MEOPT_ADJUST_ORIGINAL: return sqrt(fmax(1, rows / columns));
    case MEOPT_ADJUST_SPECTRAL: return sqrt(rows / columns);
    default: return 0.2 * sqrt(fmax(rows, columns));
    }
}

/* The products of a step: by the device's GEMM, or on the host in shares of its blocks. */
struct products {
    struct device *device;
    const struct optim_kernels *kernels;
    char *scratch;
    int threads;
    bool dry; /* products reserve their scratch, all else is left out */
};
struct product_shares {
    const struct products *by;
    const struct gemm *gemm;
};

static void product_share(void *context, int thread, int threads)
{
    const struct product_shares *s = context;
    int64_t blocks = optim_product_blocks(s->gemm);
    s->by->kernels->product(s->gemm, s->by->scratch + (size_t)thread * OPTIM_PRODUCT_SCRATCH,
                            threads_share(blocks, thread, threads),
                            threads_share(blocks, thread + 1, threads));
}

static void product(const struct products *by, const struct gemm *g)
{
    if (by->device->ops) {
        by->device->ops->gemm(by->device, g);
        return;
    }
    int64_t blocks = optim_product_blocks(g);
    threads_run((int)least(by->threads, blocks), product_share, &(struct product_shares){by, g});
}

/* C = alpha A B + beta C of square matrices of one type, B = A B A and the like being symmetric. */
static void square_product(const struct products *by, const struct matrix *m, enum dtype type, const void *a,
                           const void *b, void *c, float alpha, float beta)
{
    int64_t n = m->short_side;
    product(by, &(struct gemm){.m = n,
                               .n = n,
                               .k = n,
                               .a = a,
                               .b = b,
                               .c = c,
                               .lda = n,
                               .ldb = n,
                               .ldc = n,
                               .ab_type = type,
                               .c_type = type,
                               .alpha = alpha,
                               .beta = beta});
}

static void copy_matrix(const struct products *by, struct optim_copy copy)
{
    if (!by->dry) by->device->optim->copy_matrix(by->device, &copy);
}
static void square_copy(const struct products *by, const struct matrix *m, enum dtype type, void *to,
                        const void *from)
{
    int64_t n = m->short_side;
    copy_matrix(by, (struct optim_copy){to, from, type, type, n, n, n, n});
}

/* A = X X^T, of a tall matrix X^T X. */
static void gram_matrix(const struct products *by, const struct matrix *m, void *a, enum dtype type)
{
    bool tall = m->rows > m->columns;
    int64_t n = m->short_side;
    product(by, &(struct gemm){.m = n,
                               .n = n,
                               .k = tall ? m->rows : m->columns,
                               .transpose_a = tall,
                               .transpose_b = !tall,
                               .a = m->x,
                               .b = m->x,
                               .c = a,
                               .lda = m->columns,
                               .ldb = m->columns,
                               .ldc = n,
                               .ab_type = m->type,
                               .c_type = type,
                               .alpha = 1});
}

/* X = alpha S X + beta X with the square matrix S of X's type, of a tall one from the right. */
static void multiply_matrix(const struct products *by, const struct matrix *m, const void *s, float alpha,
                            float beta)
{
    bool tall = m->rows > m->columns;
    int64_t n = m->short_side, long_side = tall ? m->rows : m->columns;
    for (int64_t at = 0; at < long_side; at += m->panel) {
        int64_t width = least(m->panel, long_side - at), rows = tall ? width : n, columns = tall ? n : width;
        char *x = m->x + (size_t)(tall ? at * n : at) * (m->type == DTYPE_F32 ? 4 : 2);
        copy_matrix(by,
                    (struct optim_copy){m->copy, x, m->type, m->type, rows, columns, columns, m->columns});
        struct gemm g = {.m = rows,
                         .n = columns,
                         .k = n,
                         .c = x,
                         .ldc = m->columns,
                         .ab_type = m->type,
                         .c_type = m->type,
                         .alpha = alpha,
                         .beta = beta};
        g.a = tall ? m->copy : s;
        g.b = tall ? s : m->copy;
        g.lda = n;
        g.ldb = columns;
        product(by, &g);
    }
}

static void steps_direct(const struct products *by, const struct meopt_options *o, const struct matrix *m,
                         float factor)
{
    for (int step = 0; step < o->ns_steps; step++) {
        float abc[3], last = step == o->ns_steps - 1 ? factor : 1;
        coefficients(o, step, abc);
        gram_matrix(by, m, m->square[0], m->type);
        square_copy(by, m, m->type, m->square[1], m->square[0]);
        square_product(by, m, m->type, m->square[0], m->square[0], m->square[1], abc[2], abc[1]);
        multiply_matrix(by, m, m->square[1], last, last * abc[0]);
    }
}

static void steps_gram(const struct products *by, const struct meopt_options *o, const struct matrix *m,
                       float factor)
{
    const enum dtype f32 = DTYPE_F32;
    char *a = m->square[0], *w = m->square[1], *all = m->square[2], *next = m->square[3];
    int64_t n = m->short_side;
    gram_matrix(by, m, a, f32);
    copy_matrix(by, (struct optim_copy){all, NULL, f32, f32, n, n, n, n});
    for (int step = 0; step < o->ns_steps; step++) {
        float abc[3];
        coefficients(o, step, abc);
        square_copy(by, m, f32, w, a);
        square_product(by, m, f32, a, a, w, abc[2], abc[1]); /* W */
        square_copy(by, m, f32, next, all);
        square_product(by, m, f32, w, all, next, 1, abc[0]); /* P times the product so far */
        char *swap = all;
        all = next;
        next = swap;
        if (step == o->ns_steps - 1) break;
        square_copy(by, m, f32, next, a);
        square_product(by, m, f32, w, a, next, 1, abc[0]); /* P A */
        square_copy(by, m, f32, a, next);
        square_product(by, m, f32, next, w, a, 1, abc[0]); /* P A P */
    }
    copy_matrix(by, (struct optim_copy){w, all, m->type, f32, n, n, n, n});
    multiply_matrix(by, m, w, factor, 0);
}

static void orthogonalize(struct meopt *opt, const struct products *by, const struct tensor *t,
                          const struct meopt_options *o)
{
    const struct device *dev = opt->device;
    char *x = (char *)opt->workspace + X_AT, *rest = x + rounded((size_t)elements_of(t) * type_bytes(o));
    for (int i = 0; i < t->matrices; i++) {
        struct matrix m;
        matrix_place(o, &m, t->rows[i], t->columns, dev->optim->asynchronous, rest);
        m.x = x;
        int64_t count = m.rows * m.columns;
        double safety = o->ns_schedule == MEOPT_NS_POLAR_EXPRESS ? POLAR_SAFETY : 1;
        const struct tensor *last = &opt->tensors[opt->count - 1];
        struct optim_normalize norm = {.x = x,
                                       .type = m.type,
                                       .count = count,
                                       .least = o->ns_eps,
                                       .norm = 1 / safety,
                                       .threads = by->threads,
                                       .first_partial = (int64_t)last->first_partial + chunks_of(last),
                                       .found = opt->workspace};
        if (!by->dry) dev->optim->normalize(opt->device, opt->work, &norm);
        (m.gram ? steps_gram : steps_direct)(by, o, &m, (float)adjusted(o, &m));
        x += (size_t)count * type_bytes(o);
    }
}

int muon_reserve(struct meopt *opt, struct meopt_error *err)
{
    const struct tensor *largest = NULL;
    bool card = opt->device->optim->asynchronous;
    struct muon_space space = {0};
    for (size_t i = 0; i < opt->count; i++)
        if (muon_space_add(&space, &opt->options, &opt->tensors[i])) largest = &opt->tensors[i];
    size_t bytes = muon_space_bytes(&space);
    if (bytes <= opt->workspace_bytes) return MEOPT_OK;
    void *p = memory_allocate(&opt->options, MEOPT_MEMORY_WORKSPACE, bytes, "matrices of muon");
    if (!p)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu bytes of muon's matrices of %.100s", bytes,
                          largest->name);
    memory_release(&opt->options, MEOPT_MEMORY_WORKSPACE, opt->workspace, opt->workspace_bytes);
    opt->workspace = p;
    opt->workspace_bytes = bytes;
    struct products dry = {.device = opt->device, .dry = true};
    for (size_t i = 0; i < opt->count && opt->options.dry && opt->device->ops; i++)
        if (muon_bytes(&opt->options, &opt->tensors[i], card))
            orthogonalize(opt, &dry, &opt->tensors[i], &opt->options);
    return optim_device_status(opt, err);
}

/* ---- A step -------------------------------------------------------------------------------------------- */

static int sweep_one(struct meopt *opt, const struct tensor *t, const struct optim_task *task,
                     struct optim_sweep *sweep, bool wait, struct meopt_error *err)
{
    size_t tensor = (size_t)(t - opt->tensors);
    sweep->tasks = task;
    sweep->count = 1;
    sweep->wait = wait;
    if (t->offloaded) return offload_sweep(opt, &tensor, sweep, err);
    opt->device->optim->step(opt->device, opt->work, sweep);
    return MEOPT_OK;
}

/* Packs `count` values of X, of `type` bytes, as integers in doubles: one fp32, or three bf16. */
static void pack(const char *values, size_t type, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t number = 0;
        uint16_t half[3];
        if (type == 4) memcpy(&number, values + 4 * i, 4);
        else memcpy(half, values + 6 * i, 6);
        for (int k = 0; k < 3 && type == 2; k++) number = number << 16 | half[k];
        to[i] = (double)number;
    }
}
static void unpack(const double *from, size_t type, int64_t count, char *values)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t number = (uint64_t)from[i];
        uint16_t half[3];
        for (int k = 0; k < 3; k++) half[k] = (uint16_t)(number >> (32 - 16 * k));
        memcpy(values + (type == 4 ? 4 : 6) * i, type == 4 ? (void *)&number : half, type == 4 ? 4 : 6);
    }
}

/* Elements of a tensor's X in memory. */
struct range {
    char *at;
    int64_t first, count;
};

/* Copies the elements that two ranges share. */
static void range_copy(struct device *dev, struct range to, struct range from, size_t type, bool upload)
{
    int64_t first = most(to.first, from.first), end = least(to.first + to.count, from.first + from.count);
    if (end <= first) return;
    char *there = to.at + (size_t)(first - to.first) * type,
         *here = from.at + (size_t)(first - from.first) * type;
    size_t bytes = (size_t)(end - first) * type;
    if (dev->host_memory) memcpy(there, here, bytes);
    else if (upload) dev->upload(dev, there, here, bytes);
    else dev->download(dev, there, here, bytes);
}

/* Sends the elements of X that this handle has to those that want them: options.reduce adds them, and other
 * handles' are 0. */
static int exchange(const struct meopt *opt, const struct tensor *t, size_t type, struct range has,
                    struct range wants, struct meopt_error *err)
{
    enum { AT_ONCE = 1 << 17 };
    struct device *dev = opt->device;
    int64_t each = type == 4 ? 1 : 3, piece = AT_ONCE * each, all = elements_of(t);
    char *values = malloc((size_t)piece * type);
    double *sums = malloc(AT_ONCE * sizeof *sums);
    int status = MEOPT_OK;
    if (!values || !sums)
        status = optim_fail(err, MEOPT_NO_MEMORY, "no memory to gather the parts of %.100s", t->name);
    for (int64_t at = 0; at < all && !status; at += piece) {
        struct range held = {values, at, least(piece, all - at)};
        int64_t count = (held.count + each - 1) / each;
        memset(values, 0, (size_t)piece * type);
        range_copy(dev, held, has, type, false);
        pack(values, type, count, sums);
        status = optim_reduce(opt, sums, (size_t)count, err);
        if (status) break;
        unpack(sums, type, count, values);
        range_copy(dev, wants, held, type, true);
    }
    free(values);
    free(sums);
    return status;
}

/* A tensor's step. part: this handle's elements of X. */
struct matrix_step {
    const struct tensor *t;
    const struct optim_task *task;
    struct meopt_options own;
    const struct meopt_options *o;
    size_t type;
    struct range whole, part;
};

/* apart: part is at the end of the workspace, else inside of the whole. */
static void step_prepare(struct meopt *opt, struct matrix_step *s, const struct tensor *t,
                         const struct optim_task *task, bool apart)
{
    int64_t first = t->gathers ? t->first : 0, count = t->layout.count;
    *s = (struct matrix_step){.t = t, .task = task};
    s->o = tensor_options(opt, t, &s->own);
    s->type = type_bytes(s->o);
    s->whole = (struct range){(char *)opt->workspace + X_AT, 0, elements_of(t)};
    s->part = (struct range){s->whole.at + (size_t)first * s->type, first, count};
    if (apart) s->part.at = (char *)opt->workspace + opt->workspace_bytes - rounded((size_t)count * s->type);
}

/* Stores the part of the matrix to orthogonalize. */
static int step_momentum(struct meopt *opt, const struct matrix_step *s, const struct optim_sweep *sweep,
                         struct meopt_error *err)
{
    struct optim_sweep one = *sweep;
    struct optim_task momentum = *s->task;
    size_t bytes = (size_t)s->part.count * s->type;
    if (opt->device->ops) opt->device->ops->fill(opt->device, s->part.at, 0xff, bytes);
    else memset(s->part.at, 0xff, bytes);
    momentum.weights = s->part.at;
    momentum.weight_format = s->type == 4 ? WEIGHTS_F32 : WEIGHTS_BF16;
    momentum.copy = momentum.correction = NULL;
    momentum.average_every = 0;
    return !s->part.count ? 0 : sweep_one(opt, s->t, &momentum, &one, false, err);
}

static void step_orthogonalize(struct meopt *opt, const struct products *by, const struct matrix_step *s)
{
    bool shares = opt->device->ops && opt->device->host_memory; /* its GEMM has one scratch for all handles */
    void (*orthogonalizing)(struct device *, bool) = opt->device->optim->orthogonalizing;
    if (shares) pthread_mutex_lock(&opt->device->lock);
    if (orthogonalizing) orthogonalizing(opt->device, true);
    orthogonalize(opt, by, s->t, s->o);
    if (orthogonalizing) orthogonalizing(opt->device, false);
    if (shares) pthread_mutex_unlock(&opt->device->lock);
    opt->orthogonalized += s->t->matrices;
}

static int step_apply(struct meopt *opt, const struct matrix_step *s, const struct optim_sweep *sweep,
                      struct meopt_error *err)
{
    struct optim_sweep one = *sweep;
    struct optim_task apply = *s->task;
    apply.rule = RULE_APPLY;
    apply.m = NULL;
    apply.m_format = STATE_NONE;
    apply.gradient = s->part.at;
    apply.gradient_format = s->type == 4 ? GRADIENT_F32 : GRADIENT_BF16;
    apply.s.gradient_scale = 1;
    one.clip = NULL;
    int status = sweep_one(opt, s->t, &apply, &one, sweep->wait, err);
    return status ? status : optim_device_status(opt, err);
}

static int step_alone(struct meopt *opt, const struct products *by, const struct tensor *t,
                      const struct optim_task *task, const struct optim_sweep *sweep, struct meopt_error *err)
{
    struct matrix_step s;
    step_prepare(opt, &s, t, task, false);
    int status = step_momentum(opt, &s, sweep, err);
    if (!status && t->gathers) status = exchange(opt, t, s.type, s.part, s.whole, err);
    if (status || !s.part.count) return status;
    step_orthogonalize(opt, by, &s);
    return step_apply(opt, &s, sweep, err);
}

/* Steps `count` tensors whose parts several handles have, at most one for each: handle i orthogonalizes the
 * i-th, at the same time as the others theirs. */
static int step_divided(struct meopt *opt, const struct products *by, const size_t *tensors,
                        const struct optim_sweep *sweep, const size_t *at, int count, struct meopt_error *err)
{
    struct matrix_step s, mine;
    const struct range none = {0};
    int status = MEOPT_OK;
    for (int i = 0; i < count && !status; i++) {
        step_prepare(opt, &s, &opt->tensors[tensors[at[i]]], &sweep->tasks[at[i]], true);
        status = step_momentum(opt, &s, sweep, err);
        bool own = i == opt->options.rank;
        if (!status) status = exchange(opt, s.t, s.type, s.part, own ? s.whole : none, err);
    }
    if (!status && opt->options.rank < count) {
        size_t own = at[opt->options.rank];
        step_prepare(opt, &mine, &opt->tensors[tensors[own]], &sweep->tasks[own], true);
        step_orthogonalize(opt, by, &mine);
    }
    for (int i = 0; i < count && !status; i++) {
        step_prepare(opt, &s, &opt->tensors[tensors[at[i]]], &sweep->tasks[at[i]], true);
        status = exchange(opt, s.t, s.type, i == opt->options.rank ? s.whole : none, s.part, err);
        if (!status && s.part.count) status = step_apply(opt, &s, sweep, err);
    }
    return status;
}

/* Sets the tensors of a sweep that are of muon, those of several handles first, by falling size; returns
 * their numbers. The order is the same on all handles. */
static size_t step_order(const struct meopt *opt, const size_t *tensors, const struct optim_sweep *sweep,
                         size_t *at, size_t *gather)
{
    size_t count = 0;
    *gather = 0;
    for (size_t i = 0; i < sweep->count; i++) {
        const struct tensor *t = &opt->tensors[tensors[i]];
        if (!RULE_HAS(sweep->tasks[i].rule, WITH_MATRICES) || !elements_of(t)) continue;
        size_t to = count++;
        if (t->gathers && opt->options.ranks > 1) {
            memmove(at + *gather + 1, at + *gather, (to - *gather) * sizeof *at);
            for (to = (*gather)++; to > 0; to--) {
                if (elements_of(&opt->tensors[tensors[at[to - 1]]]) >= elements_of(t)) break;
                at[to] = at[to - 1];
            }
        }
        at[to] = i;
    }
    return count;
}

static int step_all(struct meopt *opt, const struct products *by, const size_t *tensors,
                    const struct optim_sweep *sweep, size_t *at, struct meopt_error *err)
{
    size_t gather, count = step_order(opt, tensors, sweep, at, &gather), each;
    int status = MEOPT_OK;
    for (size_t i = 0; i < count && !status; i += each) {
        each = i < gather ? (size_t)least(opt->options.ranks, (int64_t)(gather - i)) : 1;
        if (each > 1) status = step_divided(opt, by, tensors, sweep, at + i, (int)each, err);
        else /* the others would wait for its owner, and for the result */
            status = step_alone(opt, by, &opt->tensors[tensors[at[i]]], &sweep->tasks[at[i]], sweep, err);
    }
    return status;
}

int muon_steps(struct meopt *opt, const size_t *tensors, const struct optim_sweep *sweep,
               struct meopt_error *err)
{
    struct products by = {.device = opt->device, .kernels = opt->kernels};
    size_t *at = malloc(sweep->count * sizeof *at);
    by.threads = threads_count(opt->options.threads);
    size_t bytes = opt->device->ops ? 0 : (size_t)by.threads * OPTIM_PRODUCT_SCRATCH;
    by.scratch = bytes ? aligned_alloc(64, bytes) : NULL;
    int status = MEOPT_OK;
    if (!at || (bytes && !by.scratch))
        status = optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu bytes of muon's products", bytes);
    pthread_mutex_lock(&opt->workspace_lock);
    if (!status) status = step_all(opt, &by, tensors, sweep, at, err);
    pthread_mutex_unlock(&opt->workspace_lock);
    free(by.scratch);
    free(at);
    return status;
}
