/* One line of metrics.jsonl, parsed without a JSON library: a run of millions of steps is read in about a
 * second.
 *
 * The dashboard and compare read runs that are being written, were interrupted, or come from other
 * versions. The parser is strict about the line (one complete JSON object with a step) and lenient about
 * the fields. One that is missing, null, or no number is NAN; an unknown one is skipped. Numbers are
 * rounded exactly like strtod.
 */
#ifndef MEOPT_RUN_METRIC_LINE_H
#define MEOPT_RUN_METRIC_LINE_H

#include "core/run/scores.h"
#include "core/run/units.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct metric_line {
    bool no_loss; /* null: a step without labels */
    int64_t step;
    int64_t epoch; /* -1: none */
    double loss, lr, grad_norm, images_per_s, step_ms, data_wait_ms, stream_wait_ms, offload_wait_ms, bubble;
    double scores[SCORE_COUNT];
    /* the values of "cards" (a JSON array) and "cards_summary" (an object) in the line; 0 bytes: none */
    size_t cards_at, cards_bytes, summary_at, summary_bytes;
};

/* A line without a known value. */
extern const struct metric_line metric_line_unknown;

/* Parses a line, with or without its newline. Returns false, with undefined contents, for a torn or
 * foreign line: not one complete object, or no integer "step" >= 0. NaN, Infinity and -Infinity are
 * accepted. */
bool metric_line_parse(struct metric_line *line, const char *text, size_t bytes);

/* Returns the throughput in the unit of the run. */
double metric_rate(const struct metric_line *line, const struct unit **unit);

/* Parses one JSON number at `text` (not beyond end), like strtod, and NaN and Infinity. *after is its end,
 * or `text` if there is none. */
double metric_number(const char *text, const char *end, const char **after);

/* Returns N of "step":N in any line of a run: metrics, events, card readings; -1: none. */
double metric_step(const char *text, size_t bytes);

/* Reads the first complete line of an open file that begins after `at` (0: at it), or the last one of its
 * `size` bytes. Returns the bytes of the line; 0: there is none. Reads no more than necessary. */
int64_t metric_line_at(int fd, int64_t at, struct metric_line *line);
int64_t metric_line_last(int fd, int64_t size, struct metric_line *line);

#endif
