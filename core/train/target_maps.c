/* The maps of loss.standardize: see target_maps.h. */
#include "core/train/target_maps.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "core/experiment/experiment.h"
#include "core/experiment/phi_s.h"
#include "core/step/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The map of one target: y = matrix (x - mean). */
struct map {
    float *matrix, *shift; /* (width, width), and -matrix mean (width) */
    float *mean;           /* (width) */
    int64_t width;
};
struct maps {
    struct trainer *t;
    struct map of[MOST_OUTPUTS]; /* matrix NULL: the target has none */
};

static void maps_open(struct maps *m, struct trainer *t)
{
    *m = (struct maps){.t = t};
    for (int i = 0; i < t->targets.count; i++) {
        size_t width = (size_t)targets_width(t, i);
        if (!targets_are_mapped(t, i)) continue;
        m->of[i] = (struct map){.matrix = xcalloc(width * width, sizeof(float)),
                                .shift = xcalloc(width, sizeof(float)),
                                .mean = xcalloc(width, sizeof(float)),
                                .width = (int64_t)width};
    }
}

static void maps_close(struct maps *m)
{
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        free(m->of[i].matrix);
        free(m->of[i].shift);
        free(m->of[i].mean);
    }
}

/* ---- the file ---- */

static const char *name_of(int target, const char *what, char name[32])
{
    snprintf(name, 32, "target%d.%s", target + 1, what);
    return name;
}

/* Names the form of all maps, in the file's metadata. */
static void forms_of(const struct trainer *t, char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < t->targets.count && at + 16 < size; i++) {
        const struct config_loss *loss = &t->config->loss[t->targets.of[i].loss];
        at += (size_t)snprintf(text + at, size - at, "%s%s", i ? " " : "",
                               loss_standardize_names[loss->standardize]);
    }
}

static int read_tensor(const struct weights *w, int target, const char *what, float *to, int64_t count,
                       struct error *err)
{
    char name[32];
    int64_t at = weights_find(w, name_of(target, what, name));
    if (at < 0 || weights_tensor(w, at)->count != count)
        return error_set(err, EXIT_CONFIG, "delete the file: it is made again",
                         "%s is not a tensor of %lld values", name, (long long)count);
    int code = weights_read(w, at, to, DTYPE_F32, err);
    return code ? code : weights_check_finite(w, at, to, DTYPE_F32, err);
}

static int load(struct maps *m, const char *path, struct error *err)
{
    struct weights *w = NULL;
    char forms[256];
    int code = weights_open(&w, path, err);
    forms_of(m->t, forms, sizeof forms);
    const char *was = code ? NULL : weights_metadata(w, "standardize");
    if (!code && (!was || strcmp(was, forms) != 0))
        code = error_set(err, EXIT_CONFIG, "delete the file: it is made again",
                         "has maps of targets '%s', and loss.standardize is '%s'", was ? was : "", forms);
    for (int i = 0; i < MOST_OUTPUTS && !code; i++) {
        struct map *map = &m->of[i];
        if (!map->matrix) continue;
        code = read_tensor(w, i, "matrix", map->matrix, map->width * map->width, err);
        if (!code) code = read_tensor(w, i, "shift", map->shift, map->width, err);
    }
    weights_close(w);
    return code && err && !err->file[0] ? (error_at(err, path, 0, 0), code) : code;
}

static int save(const struct maps *m, const char *path, struct error *err)
{
    struct weights_row rows[3 * MOST_OUTPUTS];
    char names[3 * MOST_OUTPUTS][32], forms[256], images[24];
    int64_t count = 0;
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        const struct map *map = &m->of[i];
        const float *values[] = {map->mean, map->matrix, map->shift};
        static const char *const what[] = {"mean", "matrix", "shift"};
        for (int k = 0; k < 3 && map->matrix; k++, count++)
            rows[count] = (struct weights_row){.name = name_of(i, what[k], names[count]),
                                               .dtype = DTYPE_F32,
                                               .ndim = k == 1 ? 2 : 1,
                                               .shape = {map->width, k == 1 ? map->width : 0},
                                               .data = values[k]};
    }
    forms_of(m->t, forms, sizeof forms);
    snprintf(images, sizeof images, "%lld", (long long)m->t->config->train.target_images);
    const char *metadata[] = {"standardize", forms, "images", images, NULL};
    return weights_write_safetensors(path, rows, count, metadata, err);
}

/* ---- the estimate ---- */

/* Sums of x - shift of a target's rows. */
struct moments {
    double *sums, *products; /* (width), (width, width) */
    int64_t rows;
};

static void set_maps(const struct maps *m)
{
    for (int i = 0; i < MOST_OUTPUTS; i++)
        if (m->of[i].matrix) targets_set_map(m->t, i, m->of[i].matrix, m->of[i].shift);
}

/* The identity less the mean of the first micro-batch: near the mean of all, so that products of what remains
 * lose no digits to channels far from 0. */
static int begin(struct maps *m, int64_t count, struct error *err)
{
    int code = 0;
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        struct map *map = &m->of[i];
        for (int64_t k = 0; k < map->width; k++) map->matrix[k * map->width + k] = 1;
    }
    set_maps(m);
    code = targets_compute(m->t, count, NULL, err);
    for (int i = 0; i < MOST_OUTPUTS && !code; i++) {
        struct map *map = &m->of[i];
        if (!map->matrix) continue;
        struct moments first = {xcalloc((size_t)map->width, sizeof(double)), NULL, 0};
        code = targets_add_moments(m->t, i, count, first.sums, NULL, &first.rows, err);
        for (int64_t k = 0; k < map->width && !code; k++)
            map->shift[k] = (float)(-first.sums[k] / (double)first.rows);
        free(first.sums);
    }
    set_maps(m);
    return code;
}

/* Makes the map of a target from its moments, which are overwritten. */
static int finish(struct map *map, struct moments *all, enum loss_standardize form, struct error *err)
{
    int64_t D = map->width;
    double rows = (double)all->rows, alpha, *mean = xmalloc((size_t)D * sizeof *mean),
           *matrix = xcalloc((size_t)(D * D), sizeof *matrix);
    int code = 0;
    for (int64_t i = 0; i < D; i++) all->sums[i] /= rows;
    for (int64_t i = 0; i < D; i++)
        for (int64_t j = 0; j < D; j++)
            all->products[i * D + j] = all->products[i * D + j] / rows - all->sums[i] * all->sums[j];
    for (int64_t i = 0; i < D; i++) mean[i] = all->sums[i] - (double)map->shift[i];
    if (form == LOSS_STANDARDIZE_PHI_S) code = phi_s_matrix(all->products, D, matrix, &alpha, err);
    else
        for (int64_t i = 0; i < D; i++) { /* a channel that does not vary stays as it is */
            double variance = all->products[i * D + i];
            matrix[i * D + i] = variance > 0 ? 1 / sqrt(variance) : 1;
        }
    for (int64_t i = 0; i < D && !code; i++) {
        double shift = 0;
        for (int64_t k = 0; k < D; k++) {
            shift -= matrix[i * D + k] * mean[k];
            map->matrix[i * D + k] = (float)matrix[i * D + k];
        }
        map->shift[i] = (float)shift;
        map->mean[i] = (float)mean[i];
        if (!isfinite(shift))
            code = error_set(err, EXIT_DIVERGED, "check its weights for NaN and infinities",
                             "the teacher's outputs are not finite");
    }
    free(mean);
    free(matrix);
    return code;
}

static int estimate_from(struct maps *m, struct data *data, target_maps_tick tick, void *context,
                         struct error *err)
{
    struct trainer *t = m->t;
    struct moments all[MOST_OUTPUTS] = {{0}};
    int64_t images = t->config->train.target_images, done = 0;
    struct data_batch batch;
    int code = data_start(data, 0, err);
    int64_t epoch = data_epoch_batches(data) * t->micro;
    if (images > epoch) images = epoch;
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        size_t width = (size_t)m->of[i].width;
        all[i] = (struct moments){xcalloc(width + 1, sizeof(double)),
                                  xcalloc(width * width + 1, sizeof(double)), 0};
    }
    for (; !code && done < images; done += t->micro) {
        int64_t count = images - done < t->micro ? images - done : t->micro;
        code = data_next(data, &batch, err);
        if (code) break;
        t->device->upload(t->device, t->input, batch.images, trainer_input_bytes(t, t->micro));
        if (done == 0) code = begin(m, count, err);
        if (!code) code = targets_compute(t, count, NULL, err);
        for (int i = 0; i < MOST_OUTPUTS && !code; i++)
            if (m->of[i].matrix)
                code = targets_add_moments(t, i, count, all[i].sums, all[i].products, &all[i].rows, err);
        progress_mark();
        if (!code && tick) code = tick(context, done + count, images, err);
    }
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        const struct config_loss *loss = &t->config->loss[t->targets.of[i].loss];
        if (!code && m->of[i].matrix && all[i].rows)
            code = finish(&m->of[i], &all[i], loss->standardize, err);
        free(all[i].sums);
        free(all[i].products);
    }
    return code;
}

static int estimate(struct maps *m, target_maps_tick tick, void *context, struct error *err)
{
    struct trainer *t = m->t;
    struct data_options options = experiment_images(t->config, !t->config->train.cache_teacher);
    struct data *data;
    options.augment = false;
    options.shuffle = true;
    options.batch = options.micro = options.global = t->micro;
    int code = data_open(&data, &options, err);
    if (code) return code;
    code = estimate_from(m, data, tick, context, err);
    data_close(data);
    return code;
}

int target_maps_load(struct trainer *t, const char *path, struct error *err)
{
    struct maps m;
    maps_open(&m, t);
    int code = load(&m, path, err);
    if (!code) set_maps(&m);
    maps_close(&m);
    return code;
}

int target_maps_fill(struct trainer *t, const char *path, target_maps_tick tick, void *context,
                     struct error *err)
{
    struct maps m;
    struct error own = {0};
    double known = t->ranks.rank == 0 && !file_absent(path);
    maps_open(&m, t);
    int code = known > 0 ? load(&m, path, &own) : 0;
    code = comm_agree(&t->ranks, code, &own, "cannot read the maps of the targets", err);
    if (!code) code = comm_all_reduce(&t->ranks, COMM_MAX, &known, 1, err);
    if (!code && !(known > 0)) {
        code = estimate(&m, tick, context, &own);
        if (!code && t->ranks.rank == 0) code = save(&m, path, &own);
        code = comm_agree(&t->ranks, code, &own, "cannot estimate the maps of the targets", err);
    }
    for (int i = 0; i < MOST_OUTPUTS && !code; i++) { /* those of rank 0, to the last bit */
        struct map *map = &m.of[i];
        if (!map->matrix) continue;
        size_t width = (size_t)map->width;
        code = comm_broadcast(&t->ranks, map->matrix, width * width * sizeof(float), 0, err);
        if (!code) code = comm_broadcast(&t->ranks, map->shift, width * sizeof(float), 0, err);
    }
    if (!code) set_maps(&m);
    maps_close(&m);
    return code;
}
