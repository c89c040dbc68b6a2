/* Evaluation: see evaluate.h. */
#include "core/step/evaluate.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "core/step/knn.h"
#include "core/step/probe.h"
#include "core/step/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS, LOSS };            /* of the sums of a micro-batch: units, loss, then the metrics */
enum { TOP1, TOP5, SCORE_SUMS }; /* of nearest neighbours, and then of the probe: after them */
enum { KNN, PROBE };
static const char *const score_names[][SCORE_SUMS] = {
    [KNN] = {"knn_top1", "knn_top5"}, [PROBE] = {"probe_top1", "probe_top5"}};

/* One pass over images of this rank. */
struct pass {
    struct trainer *t;
    struct class_count *classes; /* may be NULL */
    double *sums;                /* of the next micro-batch */
    int64_t width;               /* of its sums */
    float *rows;                 /* train.eval: features of a round, (ranks, micro, width) */
    int32_t *labels;             /* (ranks, micro) */
    bool (*asked)(void);         /* validation_data.stop */
    bool stop;                   /* a stop is requested of a rank */
};

static void count_class(struct class_count *classes, int32_t label, bool correct)
{
    if (!classes || label < 0) return;
    classes[label].images++;
    classes[label].correct += correct;
}

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
        count_class(classes, host->labels[i], first == host->labels[i]);
    }
    free(out);
}

/* Returns whether train.eval has a score: KNN or PROBE. */
static bool has_score(const struct trainer *t, int score)
{
    return config_eval_has(t->config, score == KNN ? TRAIN_EVAL_KNN : TRAIN_EVAL_PROBE);
}

static int count_scores(const struct trainer *t) { return has_score(t, KNN) + has_score(t, PROBE); }

const char *trainer_best_metric(const struct trainer *t)
{
    return has_score(t, PROBE) ? score_names[PROBE][TOP1]
           : has_score(t, KNN) ? score_names[KNN][TOP1]
                               : t->objective->best;
}

/* Adds the scores of the student's features. Classes are counted by the last score. */
static int score_features(struct pass *p, const struct data_batch *host, double *sums, struct error *err)
{
    struct trainer *t = p->t;
    struct knn_found *near = xcalloc((size_t)host->count, sizeof *near);
    struct probe_found *found = xcalloc((size_t)host->count, sizeof *found);
    bool probe = has_score(t, PROBE), knn = has_score(t, KNN);
    knn_features(t->knn, t->student, host->count, p->rows);
    int code = knn ? knn_classify(t->knn, p->rows, host->labels, host->count, near, err) : 0;
    if (!code && probe) probe_classify(t->probe, p->rows, host->labels, host->count, found);
    for (int64_t i = 0; i < host->count && !code; i++) {
        double *of_probe = sums + (knn ? SCORE_SUMS : 0);
        if (knn) sums[TOP1] += near[i].top1, sums[TOP5] += near[i].top5;
        if (probe) of_probe[TOP1] += found[i].top1, of_probe[TOP5] += found[i].top5;
        count_class(p->classes, host->labels[i], probe ? found[i].top1 : near[i].top1);
    }
    free(near);
    free(found);
    return code;
}

/* Computes the sums of one micro-batch, over its runs of images that could be decoded, or all its tokens. */
static int evaluate_batch(struct pass *p, const struct data_batch *host, struct error *err)
{
    struct trainer *t = p->t;
    struct device *dev = t->device;
    size_t bytes = (size_t)step_sums(t) * sizeof(double);
    bool tokens = t->objective->tokens;
    struct batch in = {.input = tokens ? (const void *)host->tokens : host->images,
                       .count = host->count,
                       .labels = host->labels,
                       .begins = host->begins,
                       .ends = host->ends};
    dev->upload(dev, t->input, in.input, trainer_input_bytes(t, in.count));
    if (t->in.labels) step_set_labels(t, &in);
    struct batch batch = step_batch(t, 0, in.count);
    batch.evaluates = true;
    dev->ops->fill(dev, t->sums, 0, bytes);
    const float *target = NULL;
    int code = trainer_teaches(t) ? targets_compute(t, host->count, &target, err) : 0;
    if (!code) code = step_tower_forward(t, t->student, &batch, err);
    if (code) return code;
    if (t->stages && t->stages->rank) return device_check(dev, err);
    for (int64_t first = 0, end; first < host->count; first = end + 1) {
        for (end = first; end < host->count && (tokens || host->ids[end] >= 0);) end++;
        p->sums[UNITS] += (double)(tokens ? t->objective->units(t, &in) : end - first);
        if (end > first) t->objective->evaluate(t, &batch, target, first, end - first, t->sums);
    }
    dev->download(dev, p->sums + LOSS, t->sums, bytes);
    if (t->knn) return score_features(p, host, p->sums + LOSS + step_sums(t), err);
    if (p->classes) count_classes(t, host, p->classes);
    return device_check(dev, err);
}

/* Computes the features of one micro-batch of training images. */
static int bank_batch(struct pass *p, const struct data_batch *host, struct error *err)
{
    struct trainer *t = p->t;
    int64_t at = t->data->rank * t->micro;
    char *input = (char *)t->input + t->in.student_at;
    t->device->upload(t->device, input, host->images,
                      model_shape_input_bytes(&t->student_shape, host->count));
    int code = step_tower_forward(t, t->student, &(struct batch){.input = input, .count = host->count}, err);
    if (code) return code;
    if (t->stages && t->stages->rank) return device_check(t->device, err);
    knn_features(t->knn, t->student, host->count, p->rows + at * t->knn->width);
    memcpy(p->labels + at, host->labels, (size_t)host->count * sizeof *p->labels);
    return device_check(t->device, err);
}

/* Adds the features of all ranks to the bank, in the order of the images; of a pipeline on stage 0. */
static int gather_bank(struct pass *p, struct error *err)
{
    struct trainer *t = p->t;
    size_t images = (size_t)t->micro, ranks = (size_t)t->data->size;
    if (t->stages && t->stages->rank) return 0;
    int code = comm_gather_each(t->data, p->labels, images * sizeof *p->labels, err);
    if (!code)
        code = comm_gather_each(t->data, p->rows, images * (size_t)t->knn->width * sizeof *p->rows, err);
    if (!code) knn_add(t->knn, p->rows, p->labels, (int64_t)(images * ranks));
    if (!code && t->probe) probe_add(t->probe, p->rows, p->labels, (int64_t)(images * ranks));
    for (size_t i = 0; i < images * ranks; i++) p->labels[i] = -1;
    return code;
}

/* Agrees with the other ranks whether a stop is requested of one of them. */
static int agree_stop(struct pass *p, struct error *err)
{
    struct trainer *t = p->t;
    double asked = p->asked && p->asked();
    int code = t->ranks.size > 1 ? comm_all_reduce(&t->ranks, COMM_MAX, &asked, 1, err) : 0;
    p->stop = asked > 0;
    return code;
}

/* Runs `visit` for this rank's micro-batches, one per round, and `end` (may be NULL) after each round,
 * until a stop is requested. After an error it joins the collectives of the others. */
static int each_round(struct pass *p, struct data *data,
                      int (*visit)(struct pass *p, const struct data_batch *host, struct error *err),
                      int (*end)(struct pass *p, struct error *err), struct error *err)
{
    struct error own;
    int code = data_start(data, 0, err);
    for (int64_t round = 0; round < data_epoch_batches(data); round++) {
        struct data_batch batch = {0};
        progress_mark();
        int lost = agree_stop(p, &own);
        if (lost && !code && err) *err = own;
        if (lost) return lost;
        if (p->stop) break;
        if (!code) code = data_next(data, &batch, err);
        if (!code && batch.count) code = visit(p, &batch, err);
        else if (code && (p->t->stages || p->t->tensor)) comm_fail(&p->t->ranks, code, err); /* they wait */
        else if (!p->t->stages) lost = dp_forward_idle(p->t, &own);
        else lost = pipeline_forward(p->t, p->t->student, &(struct batch){0}, &own);
        if (!lost && end) lost = end(p, &own);
        if (lost && !code && err) *err = own;
        if (lost) return lost;
        p->sums += p->width;
    }
    return code;
}

/* Computes the features of the training images. */
static int fill_bank(struct trainer *t, const struct validation_data *data, struct error *err)
{
    int64_t images = t->micro * t->data->size;
    struct error own = {0};
    struct pass p = {.t = t,
                     .asked = data->stop,
                     .rows = xcalloc((size_t)(images * t->knn->width), sizeof *p.rows),
                     .labels = xmalloc((size_t)images * sizeof *p.labels)};
    for (int64_t i = 0; i < images; i++) p.labels[i] = -1;
    bool features = !t->stages || !t->stages->rank;
    t->knn->count = 0;
    if (t->probe && features) probe_begin(t->probe);
    int code = each_round(&p, data->bank, bank_batch, gather_bank, &own);
    code = comm_agree(&t->ranks, code, &own, "cannot evaluate", err);
    if (!code && p.stop) code = EXIT_STOPPED;
    if (!code && t->probe && features) probe_fit(t->probe);
    free(p.rows);
    free(p.labels);
    return code;
}

/* Sets the result from the sums of all ranks' micro-batches, (ranks, rounds, width), in the order of the
 * images; of a pipeline those of stage 0. */
static void add_up(const struct trainer *t, const double *sums, int64_t rounds, int64_t width,
                   struct evaluation *result)
{
    int64_t ranks = t->data->size, stages = t->ranks.size / ranks, own = 1 + step_sums(t), last = LOSS;
    while (last - LOSS <= OBJECTIVE_METRICS && t->objective->evaluation[last - LOSS]) last++;
    double *total = xcalloc((size_t)width, sizeof *total);
    for (int64_t n = 0; n < rounds * ranks; n++)
        for (int64_t k = 0; k < width; k++)
            total[k] += sums[width * (n % ranks * stages * rounds + n / ranks) + k];
    result->images = (int64_t)total[UNITS];
    double values[1 + OBJECTIVE_METRICS] = {0};
    step_total(t, total + LOSS, total[UNITS], values);
    values[0] /= total[UNITS];
    for (int64_t k = LOSS; k < last; k++)
        result->metrics[k - LOSS] = (struct metric){t->objective->evaluation[k - LOSS], values[k - LOSS]};
    for (int64_t k = own; k < width; k++) {
        int64_t score = (k - own) / SCORE_SUMS + !has_score(t, KNN);
        result->metrics[last - LOSS + k - own] =
            (struct metric){score_names[score][(k - own) % SCORE_SUMS], total[k] / total[UNITS]};
    }
    if (t->objective->perplexity) /* after the means of the sums */
        result->metrics[last - LOSS] =
            (struct metric){t->objective->perplexity, exp(result->metrics[0].value)};
    free(total);
}

static int evaluate(struct trainer *t, const struct validation_data *data, struct evaluation *result,
                    struct class_count *classes, struct error *err)
{
    int64_t width = 1 + step_sums(t) + count_scores(t) * SCORE_SUMS, rounds = data_epoch_batches(data->val),
            ranks = t->ranks.size;
    struct error own = {0};
    *result = (struct evaluation){0};
    int code = t->knn ? fill_bank(t, data, err) : 0;
    if (code) return code;
    double *sums = xcalloc((size_t)(width * rounds * ranks), sizeof *sums);
    struct pass p = {.t = t,
                     .asked = data->stop,
                     .classes = classes,
                     .sums = sums + width * rounds * t->ranks.rank,
                     .width = width};
    if (t->knn) p.rows = xmalloc((size_t)(t->micro * t->knn->width) * sizeof *p.rows);
    code = each_round(&p, data->val, evaluate_batch, NULL, &own);
    code = comm_agree(&t->ranks, code, &own, "cannot evaluate", err);
    if (!code && p.stop) code = EXIT_STOPPED;
    if (!code) code = comm_gather_each(&t->ranks, sums, (size_t)(width * rounds) * sizeof *sums, err);
    if (!code) add_up(t, sums, rounds, width, result);
    free(p.rows);
    free(sums);
    return code;
}

int trainer_evaluate(struct trainer *t, const struct validation_data *data, struct evaluation *result,
                     struct class_count *classes, struct error *err)
{
    struct error own = {0};
    int code = trainer_set_point(t, MEOPT_POINT_EVAL, err);
    if (!code) code = evaluate(t, data, result, classes, err);
    int moved = code == EXIT_RANK_LOST ? 0 : trainer_set_point(t, MEOPT_POINT_TRAIN, &own);
    if (moved && !code && err) *err = own;
    return code ? code : moved;
}
