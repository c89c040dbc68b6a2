/* Optimizers on a card: see card.h. */
#include "core/optim/card.h"
#include "core/device/device.h"
#include "core/device/gpu.h"

#include <stdlib.h>
#include <string.h>

struct card {
    struct device *device;
    struct optim_card_task *table; /* host */
    void *tasks, *partials;        /* card; partials: struct optim_partial, as opt->partials */
    void *squares;                 /* card: a double, an int */
    bool ask, checked; /* look into the gradients of the next sweep; the int says whether to step */
};

struct device *card_of_options(const struct meopt_options *options)
{
    struct device *device = options->device;
    return device && !options->dry && gpu_is(device) ? device : NULL;
}
struct device *card_of(const struct meopt *opt) { return card_of_options(&opt->options); }

void *card_allocate(const struct meopt_options *options, int kind, size_t bytes)
{
    static const enum memory_class classes[MEOPT_MEMORY_KINDS] = {[MEOPT_MEMORY_WEIGHTS] = MEMORY_WEIGHTS,
                                                                  [MEOPT_MEMORY_COPY] = MEMORY_WEIGHTS,
                                                                  [MEOPT_MEMORY_CORRECTION] = MEMORY_WEIGHTS,
                                                                  [MEOPT_MEMORY_MOMENTS] = MEMORY_OPTIMIZER,
                                                                  [MEOPT_MEMORY_ACCUMULATOR] =
                                                                      MEMORY_GRADIENTS};
    return device_alloc(card_of_options(options), classes[kind], bytes, "optimizer", NULL);
}

static int card_failed(const struct meopt *opt, struct meopt_error *err)
{
    struct error why = {0};
    struct device *device = card_of(opt);
    device->sync(device);
    return device_check(device, &why) ? optim_fail(err, MEOPT_IO, "%.200s", why.what) : MEOPT_OK;
}

int card_create(struct meopt *opt, size_t partials, struct meopt_error *err)
{
    struct device *device = opt->options.device; /* dry cards count it too */
    if (!device || !gpu_is(device)) return MEOPT_OK;
    size_t rows = opt->count ? opt->count : 1;
    struct error why = {0};
    struct card *card = calloc(1, sizeof *card);
    opt->card = card;
    if (!card || !(card->table = malloc(rows * sizeof *card->table)))
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu tasks", rows);
    card->device = device;
    card->tasks = device_alloc(device, MEMORY_WORKSPACE, rows * sizeof(struct optim_card_task),
                               "tasks of the optimizer", &why);
    if (card->tasks)
        card->partials = device_alloc(device, MEMORY_WORKSPACE, (partials + 1) * sizeof(struct optim_partial),
                                      "norms of the optimizer", &why);
    if (card->partials)
        card->squares = device_alloc(device, MEMORY_WORKSPACE, 16, "norms of the optimizer", &why);
    return card->squares ? MEOPT_OK : optim_fail(err, MEOPT_NO_MEMORY, "%.200s", why.what);
}

void card_destroy(struct meopt *opt)
{
    struct card *card = opt->card;
    if (!card) return;
    if (card->device) {
        device_free(card->device, card->tasks);
        device_free(card->device, card->partials);
        device_free(card->device, card->squares);
    }
    free(card->table);
    free(card);
    opt->card = NULL;
}

/* Kernels that were compiled for a pair of state formats, and the one for all others. */
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

static int32_t *go_of(const struct card *card) { return (int32_t *)(void *)((double *)card->squares + 1); }

int card_sweep(const struct meopt *opt, const struct tensor *tensors, const struct optim_task *tasks,
               size_t count, bool wait, struct meopt_error *err)
{
    struct card *card = opt->card;
    struct device *device = card->device;
    int64_t blocks[VARIANTS] = {0};
    int rows[VARIANTS] = {0}, first[VARIANTS], all = 0;
    size_t from = SIZE_MAX, to = 0;
    for (size_t v = 0; v < VARIANTS; v++) {
        first[v] = all;
        for (size_t i = 0; i < count; i++) {
            if (!tasks[i].count || variant_of(&tasks[i]) != v) continue;
            int64_t chunks = chunks_of(&tensors[i]);
            size_t partial = tensors[i].first_partial;
            card->table[all++] = (struct optim_card_task){tasks[i], blocks[v], (int64_t)partial,
                                                          card->checked ? go_of(card) : NULL};
            rows[v]++;
            blocks[v] += chunks;
            if (partial < from) from = partial;
            if (partial + (size_t)chunks > to) to = partial + (size_t)chunks;
        }
    }
    if (!all) return MEOPT_OK;
    device->upload(device, card->tasks, card->table, (size_t)all * sizeof *card->table);
    for (size_t v = 0; v < VARIANTS; v++) {
        struct optim_card_task *table = (struct optim_card_task *)card->tasks + first[v];
        if (rows[v] && card->ask)
            gpu_launch(device, "optim_check", blocks[v], 1, (void *[]){&table, &rows[v]});
    }
    card->ask = false;
    for (size_t v = 0; v < VARIANTS; v++) {
        struct optim_card_task *table = (struct optim_card_task *)card->tasks + first[v];
        if (rows[v])
            gpu_launch(device, variants[v].kernel, blocks[v], 1,
                       (void *[]){&table, &rows[v], &card->partials});
    }
    if (!wait) return MEOPT_OK;
    device->download(device, opt->partials + from, (struct optim_partial *)card->partials + from,
                     (to - from) * sizeof *opt->partials);
    return card_failed(opt, err);
}

int card_collect(const struct meopt *opt, size_t partials, struct meopt_error *err)
{
    const struct card *card = opt->card;
    return card_read(opt, opt->partials, card->partials, partials * sizeof *opt->partials, err);
}

struct found {
    double sum;
    int32_t finite, unused;
};
static const struct found nothing = {0, 1, 0};

void card_check_begin(const struct meopt *opt)
{
    struct card *card = opt->card;
    card->device->upload(card->device, card->squares, &nothing, sizeof nothing);
    card->ask = card->checked = true;
}
void card_check_end(const struct meopt *opt)
{
    struct card *card = opt->card;
    card->ask = card->checked = false;
}

int card_squares(const struct meopt *opt, const void *x, int gradient_format, int64_t count, double *squares,
                 int *finite, struct meopt_error *err)
{
    struct card *card = opt->card;
    struct device *device = card->device;
    struct found found;
    device->upload(device, card->squares, &nothing, sizeof nothing);
    device->ops->sum_squares(device, x, gradient_format == GRADIENT_F32 ? DTYPE_F32 : DTYPE_BF16, count,
                             card->squares, go_of(card));
    device->download(device, &found, card->squares, sizeof found);
    *squares += found.sum;
    *finite &= found.finite;
    return card_failed(opt, err);
}

void card_clear(const struct meopt *opt, void *block, size_t bytes)
{
    struct device *device = card_of(opt);
    device->ops->fill(device, block, 0, bytes);
}

int card_read(const struct meopt *opt, void *host, const void *from, size_t bytes, struct meopt_error *err)
{
    struct device *device = card_of(opt);
    device->download(device, host, from, bytes);
    return card_failed(opt, err);
}

int card_write(const struct meopt *opt, void *to, const void *host, size_t bytes, struct meopt_error *err)
{
    struct device *device = card_of(opt);
    device->upload(device, to, host, bytes);
    return card_failed(opt, err);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

/* The blocks of a tensor by part: where they lie, and how long they are. */
struct block {
    unsigned part;
    void **p;
    size_t bytes;
};
static void blocks_of(struct tensor *t, struct block blocks[4])
{
    const struct layout *l = &t->layout;
    size_t count = (size_t)l->count; /* a caller's weights need not be padded */
    blocks[0] = (struct block){PART_WEIGHTS, &t->weights, count * (l->weights <= WEIGHTS_F32_COPY ? 4 : 2)};
    blocks[1] = (struct block){PART_WEIGHTS, &t->copy, l->copy_bytes ? count * 2 : 0};
    blocks[2] = (struct block){PART_WEIGHTS, &t->correction, l->correction_bytes};
    blocks[3] = (struct block){PART_STATE, (void **)&t->state, l->state_bytes};
}

int tensor_hold(const struct meopt *opt, const struct tensor *t, unsigned parts, struct tensor *host,
                struct meopt_error *err)
{
    *host = *t;
    if (!card_of(opt)) return MEOPT_OK;
    struct block blocks[4];
    blocks_of(host, blocks);
    int status = MEOPT_OK;
    host->accumulator = NULL;
    for (int i = 0; i < 4; i++) {
        const void *card = *blocks[i].p;
        *blocks[i].p = NULL;
        if (status || !(blocks[i].part & parts) || !card || !blocks[i].bytes) continue;
        void *copy = aligned_alloc(64, (blocks[i].bytes + 63) & ~(size_t)63);
        *blocks[i].p = copy;
        if (!copy) status = optim_fail(err, MEOPT_NO_MEMORY, "no memory for a copy of %.100s", t->name);
        else status = card_read(opt, copy, card, blocks[i].bytes, err);
    }
    if (status) tensor_release(opt, t, host, false, NULL);
    return status;
}

int tensor_release(const struct meopt *opt, const struct tensor *t, struct tensor *host, bool changed,
                   struct meopt_error *err)
{
    if (!card_of(opt)) return MEOPT_OK;
    struct tensor card = *t;
    struct block from[4], to[4];
    int status = MEOPT_OK;
    blocks_of(host, from);
    blocks_of(&card, to);
    for (int i = 0; i < 4; i++) {
        if (changed && *from[i].p && !status)
            status = card_write(opt, *to[i].p, *from[i].p, from[i].bytes, err);
        free(*from[i].p);
        *from[i].p = NULL;
    }
    return status;
}

int group_hold(const struct meopt *opt, const struct optim_task *task, int64_t group, struct group_room *room,
               struct optim_task *host, struct meopt_error *err)
{
    *host = *task;
    int64_t left = task->count - group * OPTIM_GROUP;
    host->count = left < OPTIM_GROUP ? left : OPTIM_GROUP;
    host->first_group += group;
    size_t count = (size_t)host->count, at = (size_t)group;
    bool accumulated = task->gradient_format == GRADIENT_ACCUMULATOR;
    size_t m = optim_state_bytes(task->m_format), v = optim_state_bytes(task->v_format),
           correction = optim_correction_bytes(task->weight_format);
    size_t gradient = accumulated                             ? optim_state_bytes(task->accumulator_format)
                      : task->gradient_format == GRADIENT_F32 ? 256
                                                              : 128;
    size_t weights = task->weight_format <= WEIGHTS_F32_COPY ? 4 : 2;
    struct {
        void **p;
        void *room;
        size_t step, bytes;
    } arrays[] = {
        {(void **)&host->gradient, room->gradient, gradient,
         accumulated ? gradient : count * gradient / OPTIM_GROUP},
        {(void **)&host->gradient_scales, room->gradient_scales, 1, accumulated ? 1 : 0},
        {&host->weights, room->weights, weights * OPTIM_GROUP, count * weights},
        {&host->copy, room->copy, 128, 0},
        {&host->correction, room->correction, correction, correction},
        {&host->m, room->m, m, m},
        {&host->v, room->v, v, v},
        {(void **)&host->scales, room->scales, 1,
         task->m_format >= STATE_8BIT || task->v_format >= STATE_8BIT ? 1 : 0},
    };
    int status = MEOPT_OK;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays && !status; i++) {
        if (!*arrays[i].p) continue;
        const char *from = (const char *)*arrays[i].p + at * arrays[i].step;
        if (!card_of(opt)) *arrays[i].p = (void *)(uintptr_t)from;
        else {
            memset(arrays[i].room, 0, arrays[i].bytes);
            if (arrays[i].bytes) status = card_read(opt, arrays[i].room, from, arrays[i].bytes, err);
            *arrays[i].p = arrays[i].room;
        }
    }
    return status;
}
