/* The metrics that objectives add to the loss, one row each: names for files and people. The parser of lines,
 * dashboard, compare, TensorBoard and Prometheus read the rows. A run has those of its objective; NAN is
 * unknown. */
#ifndef MEOPT_RUN_SCORES_H
#define MEOPT_RUN_SCORES_H

#include <stdbool.h>
#include <stddef.h>

// clang-format off
/* X(number, key, label, label of compare, percent, rare, lower, speed, gauge, help) */
#define SCORES(X) \
X(COSINE, cosine, "cosine", "cosine to the teacher", false, false, false, false, \
  "meopt_train_cosine_similarity", \
  "Mean cosine between teacher and student in the last step.") \
X(LOSS_1, loss_1, "loss 1", "loss 1 in training", false, false, true, false, "meopt_train_loss_1", \
  "Part 1 of the loss of the last step, with its weight.") \
X(LOSS_2, loss_2, "loss 2", "loss 2 in training", false, false, true, false, "meopt_train_loss_2", \
  "Part 2 of the loss of the last step, with its weight.") \
X(LOSS_3, loss_3, "loss 3", "loss 3 in training", false, false, true, false, "meopt_train_loss_3", \
  "Part 3 of the loss of the last step, with its weight.") \
X(LOSS_4, loss_4, "loss 4", "loss 4 in training", false, false, true, false, "meopt_train_loss_4", \
  "Part 4 of the loss of the last step, with its weight.") \
X(LOSS_5, loss_5, "loss 5", "loss 5 in training", false, false, true, false, "meopt_train_loss_5", \
  "Part 5 of the loss of the last step, with its weight.") \
X(LOSS_6, loss_6, "loss 6", "loss 6 in training", false, false, true, false, "meopt_train_loss_6", \
  "Part 6 of the loss of the last step, with its weight.") \
X(LOSS_7, loss_7, "loss 7", "loss 7 in training", false, false, true, false, "meopt_train_loss_7", \
  "Part 7 of the loss of the last step, with its weight.") \
X(LOSS_8, loss_8, "loss 8", "loss 8 in training", false, false, true, false, "meopt_train_loss_8", \
  "Part 8 of the loss of the last step, with its weight.") \
X(TOP1, top1, "top-1", "top-1 in training", true, false, false, false, "meopt_train_top1_ratio", \
  "Share of the last step's images whose class was predicted first.") \
X(TOP5, top5, "top-5", "top-5 in training", true, false, false, false, "meopt_train_top5_ratio", \
  "Share of the last step's images whose class was among the first five.") \
X(VAL_LOSS, val_loss, "val loss", "validation loss", false, true, true, false, "meopt_val_loss", \
  "Loss of the last evaluation.") \
X(VAL_COSINE, val_cosine, "val cosine", "validation cosine", false, true, false, false, \
  "meopt_val_cosine_similarity", "Mean cosine between teacher and student in the last evaluation.") \
X(VAL_TOP1, val_top1, "val top-1", "validation top-1", true, true, false, false, "meopt_val_top1_ratio", \
  "Top-1 accuracy of the last evaluation, 0 to 1.") \
X(VAL_TOP5, val_top5, "val top-5", "validation top-5", true, true, false, false, "meopt_val_top5_ratio", \
  "Top-5 accuracy of the last evaluation, 0 to 1.") \
X(KNN_TOP1, knn_top1, "kNN top-1", "kNN top-1", true, true, false, false, "meopt_knn_top1_ratio", \
  "Top-1 accuracy of the nearest neighbours in the last evaluation, 0 to 1.") \
X(KNN_TOP5, knn_top5, "kNN top-5", "kNN top-5", true, true, false, false, "meopt_knn_top5_ratio", \
  "Top-5 accuracy of the nearest neighbours in the last evaluation, 0 to 1.") \
X(PROBE_TOP1, probe_top1, "probe top-1", "linear probe top-1", true, true, false, false, \
  "meopt_probe_top1_ratio", "Top-1 accuracy of the linear probe in the last evaluation, 0 to 1.") \
X(PROBE_TOP5, probe_top5, "probe top-5", "linear probe top-5", true, true, false, false, \
  "meopt_probe_top5_ratio", "Top-5 accuracy of the linear probe in the last evaluation, 0 to 1.") \
X(ACCURACY, accuracy, "accuracy", "accuracy in training", true, false, false, false, \
  "meopt_train_accuracy_ratio", \
  "Share of the last step's tokens that were predicted first.") \
X(TOKENS_PER_S, tokens_per_s, "tokens/s", "tokens/s", false, false, false, true, \
  "meopt_train_tokens_per_second", \
  "Throughput of the last step in tokens.") \
X(MFU, mfu, "MFU", "MFU", true, false, false, true, "meopt_train_mfu_ratio", \
  "Model FLOPs utilization of the last step, 0 to 1.") \
X(VAL_ACCURACY, val_accuracy, "val accuracy", "validation accuracy", true, true, false, false, \
  "meopt_val_accuracy_ratio", "Share of the tokens of the last evaluation that were predicted first.") \
X(VAL_PERPLEXITY, val_perplexity, "perplexity", "validation perplexity", false, true, true, false, \
  "meopt_val_perplexity", "Perplexity of the last evaluation, e to its loss.")

#define SCORE_NUMBER(number, ...)  SCORE_##number,
#define SCORE_UNKNOWN(...)         NAN,
#define SCORES_UNKNOWN             {SCORES(SCORE_UNKNOWN)}
enum score { SCORES(SCORE_NUMBER) SCORE_COUNT };
// clang-format on

struct score_row {
    const char *key;          /* in metrics.jsonl, tag in TensorBoard */
    const char *label;        /* for people */
    const char *gauge, *help; /* in Prometheus */
    bool percent;             /* a share from 0 to 1, which people read as a percentage */
    bool rare;                /* only in the lines of evaluations */
    bool lower;               /* the better, the lower */
    bool speed;               /* depends on the machine: not a result of the training */
};
extern const struct score_row score_rows[SCORE_COUNT];

/* Returns the row of a key of metrics.jsonl; NULL: none. */
const struct score_row *score_named(const char *key);
/* Writes the value for people, as "93.75%" or with `format`. Returns dst. */
char *score_text(char *dst, size_t size, const struct score_row *row, double value, const char *format);
/* Keeps the better values. */
void scores_best(double into[SCORE_COUNT], const double from[SCORE_COUNT]);
/* Copies the scores of a step, and keeps the last ones of evaluations. */
void scores_update(double into[SCORE_COUNT], const double from[SCORE_COUNT]);

#endif
