/* One run directory (meopt-run(5)) as input of a comparison, whatever its state.
 *
 * The reader accepts missing data (a run of an older version, one that has just begun, a torn last line).
 * It refuses input that would give wrong figures: a directory that is no run, an unknown layout. Unknown
 * numbers are NAN, integers -1, strings "". Every string is printable (text_printable), because it is
 * external.
 */
#ifndef MEOPT_COMPARE_RECORD_H
#define MEOPT_COMPARE_RECORD_H

#include "core/base/error.h"
#include "core/device/device.h"
#include "core/run/history.h"
#include "core/run/scores.h"
#include "core/run/units.h"

#include <stdbool.h>
#include <stdint.h>

struct setting {
    char *key, *value; /* "optim.lr"; the value of the last steps */
    char *history;     /* "0.01 -> 1.0e-5 @40" if it changed during the run, else NULL */
};

struct record {
    char *path, *name;
    char state[24]; /* done, stopped, diverged, failed, running, broken off, empty, published */
    char objective[24];
    char device[128], family[32], version[32], program[16],
        data[16]; /* program: CRC-32C of the file; data: of the list of images */
    char host[64];
    char teacher_weights[16], student_weights[16]; /* CRC-32C of the towers' initial weights */
    char kernels[64], products[96], attention[64]; /* kernels and libraries */
    double started;                                /* Unix time */
    int64_t images, total_steps, student_parameters, teacher_parameters, seed, batch, ranks, epoch_steps;
    int64_t step_images;  /* of all ranks; batch: of one. Samples, like images, of a language model */
    int64_t tokens;       /* in the dataset; -1: images, or unknown */
    double sample_tokens; /* NAN: the samples are images */
    int64_t threads;      /* of a run on the CPU */
    double optimizer_bytes_per_param, checkpoint_bytes, peak_bytes, class_bytes[MEMORY_CLASS_COUNT];
    double offloaded_bytes[PLACE_COUNT]; /* of all classes; NAN: nothing is stored there */
    double offloaded_class_bytes[PLACE_COUNT][MEMORY_CLASS_COUNT];
    bool published;   /* not a run: published figures (published.h) */
    char source[256]; /* of published figures */

    /* One element per step, ascending. seconds: training time up to that step, without start-up and
     * pauses. */
    int64_t count, capacity;
    int64_t *step;
    double *loss, *seconds;
    float *rate; /* in the unit of the run */

    int64_t *epoch; /* numbers and mean losses of the epochs (NAN losses left out) */
    double *epoch_loss;
    int64_t *epoch_count;
    int epochs;

    double first_loss, final_loss, tail_loss, best_loss, median_rate, median_step_ms, wait_share,
        stream_share, offload_share, bubble, time_s;
    double median_sample_rate; /* images or samples per second */
    double mfu;                /* model FLOPs utilization, mean over the time of the steps */
    double final_scores[SCORE_COUNT], best_scores[SCORE_COUNT]; /* scores.h */
    double largest_norm; /* largest norm of a step's gradients before clipping; 0: not reported */
    double card_busy, card_power_w, card_energy_wh,
        card_temp_c;                              /* core/run/telemetry.h: of all cards of the run */
    int64_t tail_steps;                           /* number of last steps in the mean tail_loss */
    int64_t nan_steps, first_nan_step, bad_lines; /* bad_lines: neither a metric line nor the torn last one */
    bool torn;

    struct setting *settings; /* config.yaml, sorted by key */
    int setting_count;
    struct run_history history; /* of settings, kernels and libraries */
    char
        edited[200]; /* a key whose value in config.yaml differs from that of the training, and both values */
};

/* Sets all fields to unknown: NAN, and no first step with NAN. */
void record_unknown(struct record *record);
/* Reads a run. EXIT_USAGE if the directory is no run, EXIT_INTEGRITY for an unknown layout,
 * EXIT_HOST_MEMORY, or an I/O error. */
int record_read(struct record *record, const char *directory, struct error *err);
void record_free(struct record *record);
/* Returns what the run counts. */
const struct unit *record_unit(const struct record *record);
/* Whether the losses are the same quantity, as far as is known: those of one objective. */
bool record_same_objective(const struct record *a, const struct record *b);
/* Returns the value of a key of config.yaml in the last steps, NULL if it is missing. */
const char *record_setting(const struct record *record, const char *key);
/* Returns its changes during the run; NULL if it kept one value. */
const char *record_setting_history(const struct record *record, const char *key);

#endif
