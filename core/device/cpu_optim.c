/* The optimizer's work on this machine: see device.h. Nothing is kept between calls, so that any number of
 * threads may be in here for different tasks.
 *
 * Tensors of many chunks are split among the threads in the same way as their state was first touched; the
 * chunks of the others are dealt out together. */
#include "core/device/cpu.h"
#include "kernels/cpu/optim.h"

#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static int threads_of(int wanted)
{
#ifdef _OPENMP
    return wanted ? wanted : omp_get_max_threads();
#else
    return (void)wanted, 1;
#endif
}

static int cpu_optim_create(struct device *dev, size_t tasks, size_t partials, struct optim_work **work,
                            struct error *err)
{
    (void)dev, (void)tasks, (void)partials, (void)err;
    *work = NULL;
    return 0;
}
static void cpu_optim_destroy(struct device *dev, struct optim_work *work) { (void)dev, (void)work; }

/* ---- The step ------------------------------------------------------------------------------------------ */

static void step_chunk(const struct optim_kernels *kernels, const struct optim_sweep *s,
                       const struct optim_task *t, int64_t chunk)
{
    int64_t groups = optim_groups(t->count), begin = chunk * OPTIM_CHUNK, end = begin + OPTIM_CHUNK;
    kernels->step(t, begin, end < groups ? end : groups, &s->partials[t->first_partial + chunk]);
}

static void step_all(const struct optim_sweep *s)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    int threads = threads_of(s->threads);
    int64_t small = 0, many = (int64_t)threads * 8;
    for (size_t i = 0; i < s->count; i++) {
        int64_t chunks = optim_chunks(s->tasks[i].count);
        if (chunks < many) small += chunks;
    }
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
#endif
    {
        for (size_t i = 0; i < s->count; i++) {
            int64_t chunks = optim_chunks(s->tasks[i].count);
            if (chunks < many) continue;
#ifdef _OPENMP
#pragma omp for schedule(static) nowait
#endif
            for (int64_t c = 0; c < chunks; c++) step_chunk(kernels, s, &s->tasks[i], c);
        }
        size_t at = 0; /* each thread's own place in the table: its chunks come in rising order */
        int64_t before = 0;
#ifdef _OPENMP
#pragma omp for schedule(static)
#endif
        for (int64_t c = 0; c < small; c++) {
            int64_t chunks;
            while ((chunks = optim_chunks(s->tasks[at].count)) >= many || c - before >= chunks) {
                if (chunks < many) before += chunks;
                at++;
            }
            step_chunk(kernels, s, &s->tasks[at], c - before);
        }
    }
}

static bool gradient_finite(const struct optim_task *t, int threads)
{
    int64_t size = OPTIM_CHUNK * OPTIM_GROUP, chunks = optim_chunks(t->count);
    size_t bytes = t->gradient_format == GRADIENT_F32 ? 4 : 2;
    int fine = 1;
    (void)threads; /* where there is no OpenMP */
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (chunks > 8) reduction(& : fine)
#endif
    for (int64_t c = 0; c < chunks; c++) {
        int64_t n = t->count - c * size < size ? t->count - c * size : size;
        fine &=
            optim_all_finite((const char *)t->gradient + (size_t)(c * size) * bytes, t->gradient_format, n);
    }
    return fine;
}

static void check(struct optim_sweep *s)
{
    s->check = false;
    for (size_t i = 0; i < s->count && s->bad < 0; i++)
        if (s->tasks[i].count && s->tasks[i].gradient_format != GRADIENT_ACCUMULATOR &&
            !gradient_finite(&s->tasks[i], threads_of(s->threads)))
            s->bad = (int64_t)i;
}

/* Nothing is stepped: results as a card gives them. */
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
    else step_all(s);
}

static void cpu_optim_results(struct device *dev, struct optim_work *work, struct optim_partial *partials,
                              size_t count)
{
    (void)dev, (void)work, (void)partials, (void)count; /* they are there */
}

/* ---- Norms --------------------------------------------------------------------------------------------- */

/* Of one chunk, OPTIM_BATCH groups at a time: a card adds up in the same order. */
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
    from.m = (void *)(uintptr_t)t->gradient; /* an accumulator has the form of a first moment */
    from.scales = (uint8_t *)(uintptr_t)t->gradient_scales;
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

static void cpu_optim_squares(struct device *dev, struct optim_work *work, struct optim_sweep *s)
{
    const struct optim_kernels *kernels = optim_kernels_find(NULL);
    (void)dev, (void)work;
    for (size_t i = 0; i < s->count; i++) {
        const struct optim_task *t = &s->tasks[i];
        int64_t chunks = optim_chunks(t->count);
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads_of(s->threads)) if (chunks > 1)
#endif
        for (int64_t c = 0; c < chunks; c++) s->partials[t->first_partial + c] = chunk_squares(kernels, t, c);
    }
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void cpu_optim_clear(struct device *dev, void *block, size_t bytes, int64_t chunks, int threads)
{
    (void)dev, (void)threads;
    if (dev->kind == DEVICE_DRY) return;
    size_t part = (bytes + (size_t)chunks - 1) / (size_t)chunks;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads_of(threads)) if (chunks > 1)
#endif
    for (int64_t c = 0; c < chunks; c++) {
        size_t at = (size_t)c * part;
        if (at < bytes) memset((char *)block + at, 0, bytes - at < part ? bytes - at : part);
    }
}

const struct device_optim cpu_optim = {
    .later = false,
    .create = cpu_optim_create,
    .destroy = cpu_optim_destroy,
    .step = cpu_optim_step,
    .squares = cpu_optim_squares,
    .results = cpu_optim_results,
    .clear = cpu_optim_clear,
};
