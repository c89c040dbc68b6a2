/* The optimizer's work on a card (kernels/gpu/optim.hip), bit-identical to the CPU: see device.h. A sweep is
 * one table of rows on the card and one launch per pair of state formats in it. */
#include "core/device/gpu.h"
#include "kernels/cpu/optim.h"
#include "kernels/optim_factor.h"

#include <stdlib.h>

struct optim_work {
    struct optim_row *table; /* host */
    size_t rows;
    void *tasks, *partials; /* card: the table; struct optim_partial */
    void *slots;            /* card: struct optim_partial of whole tensors, parts of which other ranks hold */
    void *proceed;          /* card: an int, whether to step */
    void *sums;             /* card: sums of rows and columns of one tensor */
};

static void gpu_optim_destroy(struct device *dev, struct optim_work *work)
{
    if (!work) return;
    device_free(dev, work->tasks);
    device_free(dev, work->partials);
    device_free(dev, work->slots);
    device_free(dev, work->proceed);
    device_free(dev, work->sums);
    free(work->table);
    free(work);
}

/* Counted on dry cards, too. */
static int gpu_optim_create(struct device *dev, size_t tasks, size_t partials, size_t slots, size_t sums,
                            struct optim_work **work, struct error *err)
{
    size_t rows = tasks ? tasks : 1;
    struct optim_work *w = *work = calloc(1, sizeof *w);
    if (!w || !(w->table = malloc(rows * sizeof *w->table)))
        return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %zu tasks of the optimizer", rows);
    w->rows = rows;
    w->tasks =
        device_alloc(dev, MEMORY_WORKSPACE, rows * sizeof(struct optim_row), "tasks of the optimizer", err);
    if (w->tasks)
        w->partials = device_alloc(dev, MEMORY_WORKSPACE, (partials + 1) * sizeof(struct optim_partial),
                                   "norms of the optimizer", err);
    if (w->partials && slots)
        w->slots = device_alloc(dev, MEMORY_WORKSPACE, slots * sizeof(struct optim_partial),
                                "norms of the optimizer", err);
    if (w->partials && !w->slots == !slots)
        w->proceed = device_alloc(dev, MEMORY_WORKSPACE, sizeof(int32_t), "norms of the optimizer", err);
    if (w->proceed && sums)
        w->sums = device_alloc(dev, MEMORY_WORKSPACE, sums * sizeof(double), "sums of the optimizer", err);
    return w->proceed && !w->sums == !sums ? 0 : EXIT_CARD_MEMORY;
}

/* Kernels compiled for one pair of state formats, and the generic one. */
static const struct {
    const char *kernel;
    int m, v;
} variants[] = {{"optim_step_8bit", STATE_8BIT, STATE_8BIT},
                {"optim_step_bf16", STATE_BF16, STATE_BF16},
                {"optim_step_f32", STATE_F32, STATE_F32},
                {"optim_step_4bit", STATE_4BIT, STATE_4BIT},
                {"optim_step_any", -9, -9}};
enum { VARIANTS = sizeof variants / sizeof *variants };

static size_t variant_of(const struct optim_task *t)
{
    size_t i = 0;
    while (i < VARIANTS - 1 && (t->m_format != variants[i].m || t->v_format != variants[i].v)) i++;
    return i;
}

/* The rows of a launch, and the results of a sweep. */
struct launch {
    int first, rows;
    int64_t blocks;
};
struct range {
    int64_t from, to;
};

/* Appends the rows of a variant's tasks (SIZE_MAX: of all) to the table. If other ranks hold parts, every
 * tensor has a row, and slots in the order of tasks, even without a chunk on this rank. */
static struct launch fill_table(struct optim_work *w, const struct optim_sweep *s, size_t variant, int first,
                                struct range *results)
{
    struct launch l = {first, 0, 0};
    int64_t slot = 0;
    for (size_t i = 0; i < s->count; i++) {
        const struct optim_task *t = &s->tasks[i];
        int64_t chunks = optim_chunks(t->count), last = t->first_partial + chunks,
                slots = s->combine ? optim_chunks(t->whole) : chunks;
        int64_t first_slot = s->combine ? slot : t->first_partial;
        slot += slots;
        if (!slots || (variant != SIZE_MAX && variant_of(t) != variant)) continue;
        w->table[first + l.rows++] =
            (struct optim_row){*t, l.blocks, first_slot, slots, s->checked ? w->proceed : NULL};
        l.blocks += chunks;
        if (!chunks) continue;
        if (t->first_partial < results->from) results->from = t->first_partial;
        if (last > results->to) results->to = last;
    }
    return l;
}

static void download_results(struct device *dev, const struct optim_work *w, struct optim_partial *partials,
                             struct range r)
{
    if (r.to > r.from)
        dev->download(dev, partials + r.from, (const struct optim_partial *)w->partials + r.from,
                      (size_t)(r.to - r.from) * sizeof *partials);
}

/* Launches one kernel over all rows; NULL: each row's own kernel. */
static void launch_all(struct device *dev, struct optim_work *w, struct launch launches[VARIANTS],
                       const char *kernel)
{
    for (size_t v = 0; v < VARIANTS; v++) {
        struct optim_row *table = (struct optim_row *)w->tasks + launches[v].first;
        if (launches[v].blocks)
            gpu_launch(dev, kernel ? kernel : variants[v].kernel, launches[v].blocks, 1,
                       (void *[]){&table, &launches[v].rows, &w->partials});
    }
}

static void clip_rows(struct device *dev, struct optim_work *w, const struct optim_clip *c, int rows)
{
    const void *found = c->found;
    double divide = c->divide, clip = c->clip;
    gpu_launch(dev, "optim_clip", (rows + GPU_THREADS - 1) / GPU_THREADS, 1,
               (void *[]){&w->tasks, &rows, &found, &divide, &clip});
}

/* Returns where the norms of whole tensors are summed: this rank's chunks only, or combined over ranks. */
static void *norms_of(struct device *dev, const struct optim_work *w, struct optim_sweep *s, int rows)
{
    size_t bytes = 0;
    if (!s->combine) return w->partials;
    for (size_t i = 0; i < s->count; i++)
        bytes += (size_t)optim_chunks(s->tasks[i].whole) * sizeof(struct optim_partial);
    dev->ops->fill(dev, w->slots, 0, bytes);
    gpu_launch(dev, "optim_spread", rows, 1,
               (void *[]){(void *)&w->tasks, &rows, (void *)&w->partials, (void *)&w->slots});
    if (s->combine(s->context, w->slots, bytes)) s->reduce_failed = true;
    return w->slots;
}

/* Before the rows of a sweep are uploaded: whether gradients may be refused, by a check or a clip. */
static void proceed_begin(struct device *dev, struct optim_work *w, struct optim_sweep *s)
{
    static const int32_t yes = 1;
    bool clips = s->clip && s->clip->refuses;
    if (s->check || (clips && s->clip->first)) dev->upload(dev, w->proceed, &yes, sizeof yes);
    if (clips) s->clip->first = false;
    s->checked = s->checked || s->check || clips;
    s->check = false;
}

static bool gpu_optim_refused(struct device *dev, struct optim_work *w, struct optim_sweep *s, bool also)
{
    static const int32_t no = 0;
    int32_t proceed = 1;
    if (also) {
        dev->upload(dev, w->proceed, &no, sizeof no);
        s->checked = true;
    } else if (s->checked) dev->download(dev, &proceed, w->proceed, sizeof proceed);
    return also || !proceed;
}

/* One task as the only row of the table. */
static void factor_row(struct device *dev, struct optim_work *w, struct optim_sweep *s, size_t task)
{
    proceed_begin(dev, w, s);
    w->table[0] = (struct optim_row){s->tasks[task], 0, 0, 0, s->checked ? w->proceed : NULL};
    dev->upload(dev, w->tasks, w->table, sizeof *w->table);
    if (s->clip) clip_rows(dev, w, s->clip, 1);
}

static size_t factor_bytes(const struct optim_factors *f)
{
    return (size_t)(f->matrices * (f->rows + f->columns)) * FACTOR_LEVELS * sizeof(double);
}

static void gpu_factor_sums(struct device *dev, struct optim_work *w, struct optim_sweep *s, size_t task,
                            double *sums, double *scratch)
{
    enum {
        ROWS_PER_BLOCK = GPU_THREADS / 64,
        STRIP = 32
    }; /* with waves of 32 half of the blocks have no row */
    (void)scratch;
    const struct optim_task *t = &s->tasks[task];
    const struct optim_factors *f = &t->factors;
    dev->ops->fill(dev, w->sums, 0, factor_bytes(f));
    if (t->count) {
        int64_t first = t->first_element / f->columns, last = (t->first_element + t->count - 1) / f->columns,
                rows = last - first + 1, matrices = last / f->rows - first / f->rows + 1,
                strips = (f->columns + STRIP - 1) / STRIP;
        factor_row(dev, w, s, task);
        void *arguments[] = {&w->tasks, &w->sums};
        gpu_launch(dev, "optim_factor_rows", (rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK, 1, arguments);
        gpu_launch(dev, "optim_factor_columns", matrices * strips, 1, arguments);
    }
    if (sums) dev->download(dev, sums, w->sums, factor_bytes(f));
}

static void gpu_factor_means(struct device *dev, struct optim_work *w, struct optim_sweep *s, size_t task,
                             const double *sums)
{
    const struct optim_factors *f = &s->tasks[task].factors;
    if (sums) dev->upload(dev, w->sums, sums, factor_bytes(f));
    factor_row(dev, w, s, task);
    gpu_launch(dev, "optim_factor_means", f->matrices, 1, (void *[]){&w->tasks, &w->sums});
}

static void gpu_optim_step(struct device *dev, struct optim_work *w, struct optim_sweep *s)
{
    struct launch launches[VARIANTS];
    struct range results = {INT64_MAX, 0};
    bool ask = s->check;
    int rows = 0;
    proceed_begin(dev, w, s);
    for (size_t v = 0; v < VARIANTS; v++) {
        launches[v] = fill_table(w, s, v, rows, &results);
        rows += launches[v].rows;
    }
    if (!rows) return;
    dev->upload(dev, w->tasks, w->table, (size_t)rows * sizeof *w->table);
    if (s->clip) clip_rows(dev, w, s->clip, rows);
    if (ask) launch_all(dev, w, launches, "optim_check"); /* all are checked before the first is stepped */
    if (s->check_only) return;
    launch_all(dev, w, launches, NULL);
    if (s->trust) {
        void *norms = norms_of(dev, w, s, rows);
        if (s->reduce_failed) return;
        gpu_launch(dev, "optim_trust", rows, 1, (void *[]){&w->tasks, &rows, &norms});
        launch_all(dev, w, launches, NULL);
    }
    if (s->wait) download_results(dev, w, s->partials, results);
}

static void gpu_optim_squares(struct device *dev, struct optim_work *w, struct optim_sweep *s)
{
    struct range results = {INT64_MAX, 0};
    struct launch l = fill_table(w, s, SIZE_MAX, 0, &results);
    if (!l.rows) return;
    dev->upload(dev, w->tasks, w->table, (size_t)l.rows * sizeof *w->table);
    if (l.blocks) gpu_launch(dev, "optim_squares", l.blocks, 1, (void *[]){&w->tasks, &l.rows, &w->partials});
    if (s->found) {
        void *norms = norms_of(dev, w, s, l.rows);
        gpu_launch(dev, "optim_total", 1, 1, (void *[]){&w->tasks, &l.rows, &norms, &s->found});
    }
    if (s->wait) download_results(dev, w, s->partials, results);
}

static void gpu_optim_results(struct device *dev, struct optim_work *w, struct optim_partial *partials,
                              size_t count)
{
    download_results(dev, w, partials, (struct range){0, (int64_t)count});
}

static void gpu_optim_clear(struct device *dev, void *block, size_t bytes, int64_t chunks, int threads)
{
    (void)chunks, (void)threads;
    dev->ops->fill(dev, block, 0, bytes);
}

static void gpu_copy_matrix(struct device *dev, const struct optim_copy *given)
{
    struct optim_copy c = *given;
    const char *kernel = c.from_type != c.to_type ? "optim_copy_f32_bf16"
                         : c.to_type == DTYPE_F32 ? "optim_copy_f32_f32"
                                                  : "optim_copy_bf16_bf16";
    gpu_launch(dev, kernel, gpu_blocks(dev, c.rows * c.columns), 1,
               (void *[]){&c.to, &c.from, &c.rows, &c.columns, &c.to_ld, &c.from_ld});
}

static void gpu_normalize(struct device *dev, struct optim_work *w, const struct optim_normalize *given)
{
    struct optim_normalize n = *given;
    bool f32 = n.type == DTYPE_F32;
    struct optim_task task = {.count = n.count,
                              .first_partial = n.first_partial,
                              .gradient = n.x,
                              .gradient_format = f32 ? GRADIENT_F32 : GRADIENT_BF16};
    gpu_optim_squares(dev, w, &(struct optim_sweep){.tasks = &task, .count = 1, .found = n.found});
    gpu_launch(dev, f32 ? "optim_normalize_f32" : "optim_normalize_bf16", gpu_blocks(dev, n.count), 1,
               (void *[]){&n.x, &n.count, &n.least, &n.norm, &n.found});
}

const struct device_optim gpu_optim = {
    .asynchronous = true,
    .create = gpu_optim_create,
    .destroy = gpu_optim_destroy,
    .step = gpu_optim_step,
    .squares = gpu_optim_squares,
    .factor_sums = gpu_factor_sums,
    .factor_means = gpu_factor_means,
    .refused = gpu_optim_refused,
    .results = gpu_optim_results,
    .clear = gpu_optim_clear,
    .copy_matrix = gpu_copy_matrix,
    .normalize = gpu_normalize,
};
