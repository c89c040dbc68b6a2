/* The optimizer's work on the host: see device.h. No state is kept between calls, so that any number of
 * threads may run different tasks.
 *
 * Tensors of many chunks are divided among the threads as at the first touch of their state; the chunks of
 * all other tensors are distributed together.
 */
#include "core/device/cpu.h"
#include "core/device/threads.h"
#include "kernels/bf16.h"
#include "kernels/cpu/optim.h"
#include "kernels/optim_factor.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of the sums of rows and columns: shares of a tensor, and values of all of them together. */
enum { FACTOR_PARTS_MOST = 256, FACTOR_PARTS_VALUES = 1 << 23 };

static int cpu_optim_create(struct device *dev, size_t tasks, size_t partials, size_t slots, size_t sums,
                            struct optim_work **work, struct error *err)
{
    (void)dev, (void)tasks, (void)partials, (void)slots, (void)sums, (void)err;
    *work = NULL;
    return 0;
}
static void cpu_optim_destroy(struct device *dev, struct optim_work *work) { (void)dev, (void)work; }

/* ---- The step ------------------------------------------------------------------------------------------ */

static void step_chunk(const struct optim_kernels *kernels, const struct optim_sweep *s,
                       const struct optim_task *t, int64_t chunk)
{
    int64_t groups = optim_groups(t->count), begin = chunk * OPTIM_CHUNK, end = begin + OPTIM_CHUNK;
    if (end > groups) end = groups;
    kernels->step(t, begin, end, &s->partials[t->first_partial + chunk]);
    if (t->average_every && !t->norms_only) kernels->average(t, begin, end);
}

struct steps {
    const struct optim_sweep *sweep;
    const struct optim_kernels *kernels;
    int64_t small, many; /* chunks of the tensors with fewer than `many` */
};

static void steps_run(void *context, int thread, int threads)
{
    const struct steps *steps = context;
    const struct optim_sweep *s = steps->sweep;
    for (size_t i = 0; i < s->count; i++) {
        int64_t chunks = optim_chunks(s->tasks[i].count), end = threads_share(chunks, thread + 1, threads);
        if (chunks < steps->many) continue;
        for (int64_t c = threads_share(chunks, thread, threads); c < end; c++)
            step_chunk(steps->kernels, s, &s->tasks[i], c);
    }
    size_t at = 0;
    int64_t before = 0, end = threads_share(steps->small, thread + 1, threads);
    for (int64_t c = threads_share(steps->small, thread, threads); c < end; c++) {
        int64_t chunks;
        while ((chunks = optim_chunks(s->tasks[at].count)) >= steps->many || c - before >= chunks) {
            if (chunks < steps->many) before += chunks;
            at++;
        }
        step_chunk(steps->kernels, s, &s->tasks[at], c - before);
    }
}

static void step_all(const struct optim_sweep *s)
{
    int threads = threads_count(s->threads);
    struct steps steps = {s, s->kernels, 0, (int64_t)threads * 8};
    int64_t all = 0;
    for (size_t i = 0; i < s->count; i++) {
        int64_t chunks = optim_chunks(s->tasks[i].count);
        all += chunks;
        if (chunks < steps.many) steps.small += chunks;
    }
    if (all) threads_run(all < threads ? (int)all : threads, steps_run, &steps);
}

struct finite {
    const struct optim_task *task;
    atomic_bool bad;
};

static void finite_run(void *context, int thread, int threads)
{
    struct finite *f = context;
    const struct optim_task *t = f->task;
    int64_t size = OPTIM_CHUNK * OPTIM_GROUP, chunks = optim_chunks(t->count);
    size_t bytes = t->gradient_format == GRADIENT_F32 ? 4 : 2;
    for (int64_t c = threads_share(chunks, thread, threads); c < threads_share(chunks, thread + 1, threads);
         c++) {
        int64_t n = t->count - c * size < size ? t->count - c * size : size;
        if (!optim_all_finite((const char *)t->gradient + (size_t)(c * size) * bytes, t->gradient_format, n))
            atomic_store(&f->bad, true);
    }
}

static bool gradient_finite(const struct optim_task *t, int threads)
{
    struct finite f = {.task = t};
    threads_run(optim_chunks(t->count) > 8 ? threads : 1, finite_run, &f);
    return !atomic_load(&f.bad);
}

static void check(struct optim_sweep *s)
{
    s->check = false;
    for (size_t i = 0; i < s->count && s->bad < 0; i++)
        if (s->tasks[i].count && s->tasks[i].gradient_format != GRADIENT_ACCUMULATOR &&
            !gradient_finite(&s->tasks[i], threads_count(s->threads)))
            s->bad = (int64_t)i;
}

static void refuse(const struct optim_sweep *s);
static bool cpu_refused(struct device *dev, struct optim_work *work, struct optim_sweep *s, bool also)
{
    (void)dev, (void)work;
    if (also && s->bad < 0) {
        s->bad = 0;
        refuse(s);
    }
    return s->bad >= 0;
}

/* Reports results as a card does when it refuses the step. */
static void refuse(const struct optim_sweep *s)
{
    for (size_t i = 0; i < s->count; i++) {
        int64_t groups = optim_groups(s->tasks[i].count);
        for (int64_t c = 0; c < optim_chunks(s->tasks[i].count); c++, groups -= OPTIM_CHUNK)
            s->partials[s->tasks[i].first_partial + c] = (struct optim_partial){
                .gradient_squares = INFINITY, .bad_groups = groups < OPTIM_CHUNK ? groups : OPTIM_CHUNK};
    }
}

static void cpu_optim_step(struct device *dev, struct optim_work *work, struct optim_sweep *s)
{
    (void)dev, (void)work;
    if (s->check) check(s);
    if (s->bad >= 0) refuse(s);
    else if (!s->check_only) step_all(s);
}

static void cpu_optim_results(struct device *dev, struct optim_work *work, struct optim_partial *partials,
                              size_t count)
{
    (void)dev, (void)work, (void)partials, (void)count; /* partials are complete already */
}

/* ---- Norms --------------------------------------------------------------------------------------------- */

/* Sums the squares of one chunk, OPTIM_BATCH groups at a time, in the same order as a card. */
static struct optim_partial chunk_squares(const struct optim_kernels *kernels, const struct optim_task *t,
                                          int64_t chunk)
{
    struct optim_partial found = {0};
    struct optim_task from = *t;
    float values[OPTIM_BATCH * OPTIM_GROUP];
    size_t bytes = t->gradient_format == GRADIENT_F32 ? 4 : 2;
    int64_t groups = optim_groups(t->count), end = (chunk + 1) * OPTIM_CHUNK;
    int finite = 1;
    if (end > groups) end = groups;
    from.m = (void *)(uintptr_t)t->gradient; /* an accumulator is stored like a first moment */
    from.scales = (uint8_t *)(uintptr_t)t->gradient_scales;
    from.rule = RULE_ACCUMULATE;
    from.m_format = t->accumulator_format;
    from.v_format = STATE_NONE;
    for (int64_t g = chunk * OPTIM_CHUNK; g < end; g += OPTIM_BATCH) {
        int64_t stop = g + OPTIM_BATCH < end ? g + OPTIM_BATCH : end, left = t->count - g * OPTIM_GROUP;
        int64_t n = (stop - g) * OPTIM_GROUP < left ? (stop - g) * OPTIM_GROUP : left;
        if (t->gradient_format == GRADIENT_ACCUMULATOR) {
            kernels->state_out(&from, g, stop, values, NULL);
            optim_sum_squares(values, GRADIENT_F32, n, &found.gradient_squares, &finite);
        } else
            optim_sum_squares((const char *)t->gradient + (size_t)(g * OPTIM_GROUP) * bytes,
                              t->gradient_format, n, &found.gradient_squares, &finite);
    }
    found.bad_groups = !finite;
    return found;
}

struct squares {
    const struct optim_kernels *kernels;
    const struct optim_task *task;
    struct optim_partial *partials;
};

static void squares_run(void *context, int thread, int threads)
{
    const struct squares *s = context;
    int64_t chunks = optim_chunks(s->task->count), end = threads_share(chunks, thread + 1, threads);
    for (int64_t c = threads_share(chunks, thread, threads); c < end; c++)
        s->partials[s->task->first_partial + c] = chunk_squares(s->kernels, s->task, c);
}

static void cpu_optim_squares(struct device *dev, struct optim_work *work, struct optim_sweep *s)
{
    (void)dev, (void)work;
    for (size_t i = 0; i < s->count; i++) {
        struct squares squares = {s->kernels, &s->tasks[i], s->partials};
        threads_run(optim_chunks(s->tasks[i].count) > 1 ? threads_count(s->threads) : 1, squares_run,
                    &squares);
    }
}

/* ---- Sums of rows and columns -------------------------------------------------------------------------- */

/* A share of a tensor's chunks, with sums of its own, which are added up at the end: they are exact, in any
 * order. */
struct factor_part {
    int64_t begin, end;        /* groups */
    int64_t row, rows, matrix; /* its first row, the number of rows and the first matrix */
    int64_t matrices;
    double *sums; /* (rows, FACTOR_LEVELS), (matrices, FACTOR_LEVELS, columns) */
};
struct factor_sums {
    const struct optim_kernels *kernels;
    const struct optim_task *task;
    struct factor_part parts[FACTOR_PARTS_MOST];
    int count;
};

static struct factor_part factor_part(const struct optim_task *t, int part, int parts)
{
    int64_t chunks = optim_chunks(t->count), groups = optim_groups(t->count);
    int64_t begin = threads_share(chunks, part, parts) * OPTIM_CHUNK,
            end = threads_share(chunks, part + 1, parts) * OPTIM_CHUNK;
    if (end > groups) end = groups;
    int64_t stop = end * OPTIM_GROUP < t->count ? end * OPTIM_GROUP : t->count,
            row = (t->first_element + begin * OPTIM_GROUP) / t->factors.columns,
            last = (t->first_element + stop - 1) / t->factors.columns, matrix = row / t->factors.rows;
    return (struct factor_part){begin, end, row, last - row + 1, matrix, last / t->factors.rows - matrix + 1,
                                NULL};
}

static void factor_sums_run(void *context, int thread, int threads)
{
    const struct factor_sums *s = context;
    for (int i = thread; i < s->count; i += threads) {
        const struct factor_part *p = &s->parts[i];
        s->kernels->factor_sums(s->task, p->begin, p->end, p->sums, p->sums + p->rows * FACTOR_LEVELS);
    }
}

static void factor_part_add(const struct optim_task *t, const struct factor_part *p, double *sums)
{
    int64_t each = t->factors.columns * FACTOR_LEVELS, rows = p->rows * FACTOR_LEVELS;
    double *row = sums + p->row * FACTOR_LEVELS,
           *column = sums + t->factors.matrices * t->factors.rows * FACTOR_LEVELS + p->matrix * each;
    for (int64_t i = 0; i < rows; i++) row[i] += p->sums[i];
    for (int64_t i = 0; i < p->matrices * each; i++) column[i] += p->sums[rows + i];
}

/* Divides a tensor into parts, and returns the values of their sums; 0: one part adds to the caller's. */
static size_t factor_parts(const struct optim_task *t, int threads, struct factor_sums *s)
{
    int64_t most = FACTOR_PARTS_VALUES / (t->factors.columns * FACTOR_LEVELS),
            chunks = optim_chunks(t->count);
    int parts = threads_count(threads);
    if (parts > most) parts = most > 1 ? (int)most : 1;
    if (parts > chunks) parts = (int)chunks;
    if (parts > FACTOR_PARTS_MOST) parts = FACTOR_PARTS_MOST;
    size_t values = 0;
    for (s->count = 0; s->count < parts; s->count++) {
        struct factor_part *p = &s->parts[s->count];
        *p = factor_part(t, s->count, parts);
        values += (size_t)(p->rows + p->matrices * t->factors.columns) * FACTOR_LEVELS;
    }
    return parts > 1 ? values : 0;
}

static size_t cpu_factor_scratch(const struct optim_task *task, int threads)
{
    struct factor_sums s;
    return task->count ? factor_parts(task, threads, &s) : 0;
}

static void cpu_factor_sums(struct device *dev, struct optim_work *work, struct optim_sweep *sweep,
                            size_t task, double *sums, double *scratch)
{
    (void)dev, (void)work;
    const struct optim_task *t = &sweep->tasks[task];
    struct factor_sums s = {.kernels = sweep->kernels, .task = t};
    if (!t->count) return;
    size_t values = factor_parts(t, sweep->threads, &s);
    if (!values) {
        const struct factor_part *p = &s.parts[0];
        s.kernels->factor_sums(
            t, p->begin, p->end, sums + p->row * FACTOR_LEVELS,
            sums + (t->factors.matrices * t->factors.rows + p->matrix * t->factors.columns) * FACTOR_LEVELS);
        return;
    }
    memset(scratch, 0, values * sizeof *scratch);
    for (int i = 0; i < s.count; i++) {
        s.parts[i].sums = scratch;
        scratch += (s.parts[i].rows + s.parts[i].matrices * t->factors.columns) * FACTOR_LEVELS;
    }
    threads_run(s.count, factor_sums_run, &s);
    for (int i = 0; i < s.count; i++) factor_part_add(t, &s.parts[i], sums);
}

static void cpu_factor_means(struct device *dev, struct optim_work *work, struct optim_sweep *sweep,
                             size_t task, const double *sums)
{
    (void)dev, (void)work;
    const struct optim_task *t = &sweep->tasks[task];
    const struct optim_factors *f = &t->factors;
    for (int64_t b = 0; b < f->matrices; b++) {
        const double *columns = sums + (f->matrices * f->rows + b * f->columns) * FACTOR_LEVELS;
        double part[FACTOR_PARTS] = {0}, sum = 0;
        for (int64_t i = 0; i < f->rows; i++) {
            float *mean = &f->row_means[b * f->rows + i];
            double total = factor_total(sums + (b * f->rows + i) * FACTOR_LEVELS, 1);
            *mean = factor_average(*mean, total, f->columns, &t->s);
            part[i % FACTOR_PARTS] += (double)*mean;
        }
        for (int i = 0; i < FACTOR_PARTS; i++) sum += part[i];
        for (int64_t i = b * f->rows; i < (b + 1) * f->rows; i++)
            f->row_quotients[i] = factor_quotient(f->row_means[i], sum, f->rows, &t->s);
        for (int64_t j = 0; j < f->columns; j++) {
            float *mean = &f->column_means[b * f->columns + j];
            *mean = factor_average(*mean, factor_total(columns + j, f->columns), f->rows, &t->s);
        }
    }
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

struct clearing {
    char *block;
    size_t bytes;
    int64_t chunks;
};

/* Clears memory by the threads that will step it. */
static void clearing_run(void *context, int thread, int threads)
{
    const struct clearing *b = context;
    size_t part = (b->bytes + (size_t)b->chunks - 1) / (size_t)b->chunks;
    size_t at = (size_t)threads_share(b->chunks, thread, threads) * part,
           end = (size_t)threads_share(b->chunks, thread + 1, threads) * part;
    if (end > b->bytes) end = b->bytes;
    if (at < end) memset(b->block + at, 0, end - at);
}

static void cpu_optim_clear(struct device *dev, void *block, size_t bytes, int64_t chunks, int threads)
{
    struct clearing clearing = {block, bytes, chunks};
    if (dev->kind == DEVICE_DRY || !chunks) return;
    threads_run(chunks > 1 ? threads_count(threads) : 1, clearing_run, &clearing);
}

/* ---- Matrices of muon ---------------------------------------------------------------------------------- */

static float matrix_value(const void *x, enum dtype type, int64_t at)
{
    float value;
    uint32_t bits;
    if (type == DTYPE_F32) return ((const float *)x)[at];
    bits = (uint32_t)((const uint16_t *)x)[at] << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static void matrix_put(void *x, enum dtype type, int64_t at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == DTYPE_F32) ((float *)x)[at] = value;
    else ((uint16_t *)x)[at] = bf16_of_bits(bits);
}

static void cpu_copy_matrix(struct device *dev, const struct optim_copy *c)
{
    (void)dev;
    size_t size = c->from_type == DTYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < c->rows; i++)
        if (!c->from)
            for (int64_t j = 0; j < c->columns; j++) matrix_put(c->to, c->to_type, i * c->to_ld + j, i == j);
        else if (c->from_type == c->to_type)
            memcpy((char *)c->to + (size_t)(i * c->to_ld) * size,
                   (const char *)c->from + (size_t)(i * c->from_ld) * size, (size_t)c->columns * size);
        else
            for (int64_t j = 0; j < c->columns; j++)
                matrix_put(c->to, c->to_type, i * c->to_ld + j,
                           matrix_value(c->from, c->from_type, i * c->from_ld + j));
}

/* Sums of squares of fixed shares, added in their order. */
enum { NORM_SHARES = 256 };
struct norm {
    const struct optim_normalize *n;
    int64_t share; /* elements */
    double squares[NORM_SHARES];
    float factor;
};
static void norm_squares(void *context, int thread, int threads)
{
    struct norm *norm = context;
    const struct optim_normalize *n = norm->n;
    int finite = 1;
    for (int64_t s = threads_share(NORM_SHARES, thread, threads);
         s < threads_share(NORM_SHARES, thread + 1, threads); s++) {
        int64_t begin = s * norm->share, left = n->count - begin;
        if (left <= 0) continue;
        optim_sum_squares((const char *)n->x + (size_t)begin * (n->type == DTYPE_F32 ? 4 : 2),
                          n->type == DTYPE_F32 ? GRADIENT_F32 : GRADIENT_BF16,
                          left < norm->share ? left : norm->share, &norm->squares[s], &finite);
    }
}
static void norm_divide(void *context, int thread, int threads)
{
    const struct norm *norm = context;
    const struct optim_normalize *n = norm->n;
    for (int64_t i = threads_share(n->count, thread, threads);
         i < threads_share(n->count, thread + 1, threads); i++)
        matrix_put(n->x, n->type, i, matrix_value(n->x, n->type, i) * norm->factor);
}
static void cpu_normalize(struct device *dev, struct optim_work *work, const struct optim_normalize *n)
{
    (void)dev, (void)work;
    struct norm norm = {.n = n, .share = (n->count / NORM_SHARES + 64) & ~(int64_t)63};
    int threads = n->count > 65536 ? threads_count(n->threads) : 1;
    double squares = 0;
    threads_run(threads, norm_squares, &norm);
    for (int s = 0; s < NORM_SHARES; s++) squares += norm.squares[s];
    norm.factor = scale_normal(squares, n->least, n->norm);
    threads_run(threads, norm_divide, &norm);
}

const struct device_optim cpu_optim = {
    .asynchronous = false,
    .create = cpu_optim_create,
    .destroy = cpu_optim_destroy,
    .step = cpu_optim_step,
    .squares = cpu_optim_squares,
    .factor_sums = cpu_factor_sums,
    .factor_scratch = cpu_factor_scratch,
    .factor_means = cpu_factor_means,
    .refused = cpu_refused,
    .results = cpu_optim_results,
    .clear = cpu_optim_clear,
    .copy_matrix = cpu_copy_matrix,
    .normalize = cpu_normalize,
};
