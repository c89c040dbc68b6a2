/* Evaluation: see evaluate.h. */
#include "core/train/evaluate.h"
#include "core/base/file.h"
#include "core/base/progress.h"
#include "core/train/signals.h"
#include "core/train/train_internal.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS, LOSS }; /* of the sums of a micro-batch: units, loss, then the metrics */

/* Adds the images of a micro-batch to the counts of their classes. */
static void count_classes(struct trainer *t, const struct data_batch *host, struct class_count *classes)
{
    int64_t width = t->student->out_width;
    float *out = xmalloc((size_t)(host->count * width) * sizeof *out);
    t->device->download(t->device, out, t->student->out, (size_t)(host->count * width) * sizeof *out);
    for (int64_t i = 0; i < host->count; i++) {
        const float *row = out + i * width;
        int64_t first = 0;
        for (int64_t k = 1; k < width; k++)
            if (row[k] > row[first]) first = k;
        if (host->labels[i] < 0) continue;
        classes[host->labels[i]].images++;
        classes[host->labels[i]].correct += first == host->labels[i];
    }
    free(out);
}

/* Computes the sums of one micro-batch, over its runs of images that could be decoded. */
static int evaluate_batch(struct trainer *t, const struct data_batch *host, double *sums,
                          struct class_count *classes, struct error *err)
{
    struct device *dev = t->device;
    size_t bytes = (size_t)objective_sums(t->objective) * sizeof *sums;
    struct batch in = {.input = host->images, .count = host->count, .labels = host->labels};
    dev->upload(dev, t->input, in.input, trainer_input_bytes(t, in.count));
    if (t->labels) step_set_labels(t, &in);
    struct batch batch = step_batch(t, 0, in.count);
    int code = 0;
    if (t->teacher)
        code = tower_forward_bound(t->teacher, &(struct batch){.input = t->input, .count = host->count}, err);
    if (!code) code = tower_forward_bound(t->student, &batch, err);
    if (code) return code;
    dev->ops->fill(dev, t->sums, 0, bytes);
    for (int64_t first = 0, end; first < host->count; first = end + 1) {
        for (end = first; end < host->count && host->ids[end] >= 0;) end++;
        sums[UNITS] += (double)(end - first);
        if (end > first)
            t->objective->evaluate(t, &batch, t->teacher ? t->teacher->out : NULL, first, end - first,
                                   t->sums);
    }
    dev->download(dev, sums + LOSS, t->sums, bytes);
    if (classes) count_classes(t, host, classes);
    return device_check(dev, err);
}

/* Agrees with the other ranks whether a stop is requested of one of them. */
static int agree_stop(struct trainer *t, bool *stop, struct error *err)
{
    double asked = signals_act(PHASE_EVALUATE) == ACT_SAVE_STOP;
    int code = t->ranks.size > 1 ? comm_all_reduce(&t->ranks, COMM_MAX, &asked, 1, err) : 0;
    *stop = asked > 0;
    return code;
}

/* Evaluates this rank's micro-batches, one per round, until a stop is requested. After an error it joins the
 * collectives of the others. */
static int evaluate_rounds(struct trainer *t, struct data *data, int64_t rounds, double *sums,
                           struct class_count *classes, bool *stop, struct error *err)
{
    int64_t width = 1 + objective_sums(t->objective);
    struct error own;
    int code = data_start(data, 0, err);
    for (int64_t round = 0; round < rounds; round++) {
        struct data_batch batch = {0};
        progress_mark();
        int lost = agree_stop(t, stop, &own);
        if (lost && !code && err) *err = own;
        if (lost) return lost;
        if (*stop) break;
        if (!code) code = data_next(data, &batch, err);
        if (code || !batch.count) {
            int idle = dp_forward_idle(t, &own);
            if (idle && !code && err) *err = own;
            if (idle) return idle;
            continue;
        }
        code = evaluate_batch(t, &batch, sums + width * round, classes, err);
    }
    return code;
}

int trainer_evaluate(struct trainer *t, struct data *data, struct evaluation *result,
                     struct class_count *classes, struct error *err)
{
    int64_t width = 1 + objective_sums(t->objective), rounds = data_epoch_batches(data),
            ranks = t->ranks.size;
    double *sums = xcalloc((size_t)(width * rounds * ranks), sizeof *sums), *total;
    struct error own = {0};
    bool stop = false;
    *result = (struct evaluation){0};
    int code = evaluate_rounds(t, data, rounds, sums + width * rounds * t->ranks.rank, classes, &stop, &own);
    code = comm_agree(&t->ranks, code, &own, "cannot evaluate", err);
    if (!code && stop) code = EXIT_STOPPED;
    if (!code) code = comm_gather_each(&t->ranks, sums, (size_t)(width * rounds) * sizeof *sums, err);
    total = xcalloc((size_t)width, sizeof *total);
    for (int64_t n = 0; n < rounds * ranks && !code; n++) /* in the order of the images */
        for (int64_t k = 0; k < width; k++) total[k] += sums[width * (n % ranks * rounds + n / ranks) + k];
    result->images = (int64_t)total[UNITS];
    for (int64_t k = 0; k + LOSS < width; k++)
        result->metrics[k] = (struct metric){t->objective->evaluation[k], total[LOSS + k] / total[UNITS]};
    free(total);
    free(sums);
    return code;
}
