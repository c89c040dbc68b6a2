/* Metrics of objectives: see scores.h. */
#include "core/run/scores.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct score_row score_rows[SCORE_COUNT] = {
    [SCORE_COSINE] = {.key = "cosine",
                      .label = "cosine",
                      .gauge = "meopt_train_cosine_similarity",
                      .help = "Mean cosine between teacher and student in the last step."},
    [SCORE_TOP1] = {.key = "top1",
                    .label = "top-1",
                    .gauge = "meopt_train_top1_ratio",
                    .help = "Share of the last step's images whose class was predicted first.",
                    .percent = true},
    [SCORE_TOP5] = {.key = "top5",
                    .label = "top-5",
                    .gauge = "meopt_train_top5_ratio",
                    .help = "Share of the last step's images whose class was among the first five.",
                    .percent = true},
    [SCORE_VAL_LOSS] = {.key = "val_loss",
                        .label = "val loss",
                        .gauge = "meopt_val_loss",
                        .help = "Loss of the last evaluation.",
                        .rare = true,
                        .lower = true},
    [SCORE_VAL_TOP1] = {.key = "val_top1",
                        .label = "val top-1",
                        .gauge = "meopt_val_top1_ratio",
                        .help = "Top-1 accuracy of the last evaluation, 0 to 1.",
                        .percent = true,
                        .rare = true},
    [SCORE_VAL_TOP5] = {.key = "val_top5",
                        .label = "val top-5",
                        .gauge = "meopt_val_top5_ratio",
                        .help = "Top-5 accuracy of the last evaluation, 0 to 1.",
                        .percent = true,
                        .rare = true},
};

const struct score_row *score_named(const char *key)
{
    for (int i = 0; i < SCORE_COUNT; i++)
        if (strcmp(score_rows[i].key, key) == 0) return &score_rows[i];
    return NULL;
}

char *score_text(char *dst, size_t size, const struct score_row *row, double value, const char *format)
{
    if (isnan(value)) snprintf(dst, size, "-");
    else if (row && row->percent) snprintf(dst, size, "%.2f%%", 100 * value);
    else snprintf(dst, size, format, value);
    return dst;
}

void scores_update(double into[SCORE_COUNT], const double from[SCORE_COUNT])
{
    for (int i = 0; i < SCORE_COUNT; i++)
        if (!score_rows[i].rare || !isnan(from[i])) into[i] = from[i];
}

void scores_best(double into[SCORE_COUNT], const double from[SCORE_COUNT])
{
    for (int i = 0; i < SCORE_COUNT; i++)
        into[i] =
            score_rows[i].lower ? fmin(into[i], from[i]) : fmax(into[i], from[i]); /* of a NAN: the other */
}
