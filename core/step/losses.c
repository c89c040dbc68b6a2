/* Loss and metrics: on the card per micro-batch, on the host once a step. */
#include "core/step/step.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int step_sums(const struct trainer *t)
{
    return t->targets.count ? 2 * t->targets.count : objective_sums(t->objective);
}

void step_total(const struct trainer *t, const double *sums, double units, double *total)
{
    int targets = t->targets.count;
    if (!targets) {
        total[0] += sums[0];
        for (int i = 1; i < objective_sums(t->objective); i++) total[i] += units > 0 ? sums[i] / units : 0;
        return;
    }
    for (int i = 0; i < targets; i++) { /* loss and cosines of the class rows, or else of the patches */
        int64_t rows = targets_rows(t, i) - t->targets.of[i].rows_s;
        if (!rows) rows = t->targets.of[i].rows_s;
        total[0] += sums[2 * i];
        total[2 + t->targets.of[i].loss] += sums[2 * i];
        total[1] += units > 0 ? sums[2 * i + 1] / (units * (double)(rows * targets)) : 0;
    }
}

int64_t step_loss_sums(const struct trainer *t) { return step_sums(t) * step_micro_batches(t); }

int step_read_sums(struct trainer *t, int64_t count, struct error *err)
{
    t->device->download(t->device, t->host_sums, t->sums, (size_t)count * sizeof *t->sums);
    return device_check(t->device, err);
}

void step_loss(struct trainer *t, int64_t index, const struct batch *batch, const float *target)
{
    const struct device_ops *ops = t->device->ops;
    int count = step_sums(t);
    double *sums = t->sums + count * index;
    int64_t images = t->targets.count > 1 ? t->micro : batch->count;
    ops->fill(t->device, sums, 0, (size_t)count * sizeof *sums);
    if (t->dout) ops->fill(t->device, t->dout, 0, (size_t)(images * t->student->out_values) * sizeof(float));
    if (t->objective->loss) t->objective->loss(t, batch, target, t->units, sums);
}

/* Adds the sums of one micro-batch (host memory) to the result of the step. */
static int add_sums(struct trainer *t, int64_t step, const double *sums, struct step_result *result,
                    struct error *err)
{
    double total[1 + OBJECTIVE_METRICS] = {0};
    step_total(t, sums, t->units, total);
    if (!isfinite(total[0])) return step_diverged(t, step, "the loss is not finite", false, err);
    result->loss += total[0];
    for (int i = 0; i < OBJECTIVE_METRICS; i++) result->metrics[i].value += total[1 + i];
    return 0;
}

int step_add_losses(struct trainer *t, int64_t step, struct step_result *result, struct error *err)
{
    int code = 0;
    for (int64_t i = 0; i < step_micro_batches(t) && !code; i++)
        code = add_sums(t, step, t->host_sums + step_sums(t) * i, result, err);
    return code;
}

/* The losses of all ranks, which rank 0 adds in the order of the micro-batches. */
struct loss_sum {
    struct trainer *t;
    int64_t step, rounds;
    struct step_result result; /* so far */
};
struct loss_total {
    double loss, metrics[OBJECTIVE_METRICS], diverged; /* diverged: 0 or 1 */
};

static void sum_losses(void *context, const void *gathered, void *out)
{
    struct loss_sum *s = context;
    const double *all = gathered;
    struct loss_total *total = out;
    struct error err;
    int64_t ranks = s->t->data->size, stages = s->t->ranks.size / ranks, count = step_sums(s->t);
    int code = 0;
    for (int64_t p = 0; p < s->rounds * ranks && !code; p++) /* the last round may have no micro-batch */
        code = add_sums(s->t, s->step, all + count * (p % ranks * stages * s->rounds + p / ranks), &s->result,
                        &err);
    *total = (struct loss_total){.loss = s->result.loss, .diverged = code != 0};
    for (int i = 0; i < OBJECTIVE_METRICS; i++) total->metrics[i] = s->result.metrics[i].value;
}

int step_sum_losses(struct trainer *t, int64_t step, struct step_result *result, struct error *err)
{
    int64_t own = step_micro_batches(t), rounds = t->schedule.rounds, count = step_sums(t);
    struct loss_sum sum = {t, step, rounds, *result};
    struct loss_total total = {0};
    int code = step_read_sums(t, count * own, err);
    if (code) return code;
    double *values = xcalloc((size_t)(count * rounds), sizeof *values);
    memcpy(values, t->host_sums, (size_t)(count * own) * sizeof *values);
    struct comm_fold fold = {.own = values,
                             .bytes = (size_t)(count * rounds) * sizeof *values,
                             .fold = sum_losses,
                             .context = &sum,
                             .result = &total,
                             .result_bytes = sizeof total};
    code = comm_fold(&t->ranks, &fold, err);
    free(values);
    if (code) return code;
    if (total.diverged != 0) return step_diverged(t, step, "the loss is not finite", false, err);
    result->loss = total.loss;
    for (int i = 0; i < OBJECTIVE_METRICS; i++) result->metrics[i].value = total.metrics[i];
    return 0;
}

int trainer_loss_variants(struct trainer *t, const struct batch_source *source,
                          struct loss_variant variants[LOSS_VARIANTS], struct error *err)
{
    static const struct {
        const char *name;
        struct distill_options options;
    } rows[LOSS_VARIANTS] = {{"mse", {LOSS_MSE, false, false}},
                             {"mse normalized", {LOSS_MSE, true, false}},
                             {"mse sum-dim", {LOSS_MSE, false, true}},
                             {"mse normalized sum-dim", {LOSS_MSE, true, true}},
                             {"smooth-l1", {LOSS_SMOOTH_L1, false, false}},
                             {"smooth-l1 normalized", {LOSS_SMOOTH_L1, true, false}},
                             {"cosine", {LOSS_COSINE, false, false}}};
    const float *target;
    struct device *dev = t->device;
    int code = step_prepare(t, 0, t->micro, source, &target, err);
    if (code) return code;
    struct batch batch = step_batch(t, 0, t->micro);
    if (step_teacher_by_groups(t) && (code = targets_compute(t, t->micro, &target, err)) != 0) return code;
    if ((code = step_tower_forward(t, t->student, &batch, err)) != 0) return code;
    for (int i = 0; i < LOSS_VARIANTS; i++) {
        variants[i] = (struct loss_variant){.name = rows[i].name};
        if (!t->student->out) continue; /* of another stage */
        dev->ops->fill(dev, t->sums, 0, 2 * sizeof(double));
        distill_loss(dev, &rows[i].options, t->student->out, target, NULL, t->sums, t->sums + 1, 1, t->micro,
                     t->student->out_rows, t->student->out_width); /* of the first target */
        dev->download(dev, &variants[i].value, t->sums, sizeof(double));
    }
    return device_check(dev, err);
}

int trainer_embed_teacher(struct trainer *t, const struct batch *host, float *out, struct error *err)
{
    struct device *dev = t->device;
    const float *target;
    int64_t count = host->count, values = targets_values(t), before = 0;
    float *part = xmalloc((size_t)(count * values) * sizeof *part);
    dev->upload(dev, t->input, host->input, trainer_input_bytes(t, count));
    int code = targets_compute(t, count, &target, err);
    for (int i = 0; i < t->targets.count && !code; i++) {
        int64_t width = targets_width(t, i), rows = targets_rows(t, i), patches = t->targets.of[i].rows_s,
                classes = rows - patches;
        if (!target_owns(&t->targets, i)) continue;
        dev->download(dev, part, target + targets_at(t, i), (size_t)(count * rows * width) * sizeof *part);
        for (int64_t image = 0; image < count; image++) {
            float *to = out + image * values + before;
            memcpy(to, part + image * classes * width, (size_t)(classes * width) * sizeof *to);
            memcpy(to + classes * width, part + (count * classes + image * patches) * width,
                   (size_t)(patches * width) * sizeof *to);
        }
        before += rows * width;
    }
    free(part);
    return code ? code : device_check(dev, err);
}
