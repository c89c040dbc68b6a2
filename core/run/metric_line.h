/* One line of metrics.jsonl, read without a JSON library:
 * a run of millions of steps is read in about a second.
 *
 * The dashboard and compare read runs that are being written, were cut off, or were made by other versions,
 * so the reader is strict about the line (one whole JSON object with a step) and lenient about the fields:
 * one that is missing, null, or not a number is NAN; one that is unknown is skipped. Numbers are rounded
 * exactly as strtod rounds them.
 */
#ifndef MEOPT_RUN_METRIC_LINE_H
#define MEOPT_RUN_METRIC_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct metric_line {
    int64_t step;
    int64_t epoch; /* -1 when the line has none */
    double loss, cosine, lr, grad_norm, images_per_s, step_ms, data_wait_ms, stream_wait_ms, offload_wait_ms;
    size_t cards_at,
        cards_bytes; /* the value of "cards" (a JSON array) within the line; 0 bytes when there is none */
};

/* text: the line, with or without its newline. false, contents undefined, for a torn or foreign line: not one
 * whole object, or no whole-numbered "step" from 0. NaN, Infinity and -Infinity are read as such. */
bool metric_line_parse(struct metric_line *line, const char *text, size_t bytes);

/* One JSON number at `text` (not beyond end), as strtod;
 * *after is behind it, or text when there is none. Also NaN, Infinity. */
double metric_number(const char *text, const char *end, const char **after);

/* "step":N of any line of ours: metrics, events, readings of cards; -1: none. */
double metric_step(const char *text, size_t bytes);

/* The first whole line of an open file that begins behind `at` (0: there); the last one of its `size` bytes.
 * Bytes of the line, 0: there is none. No more is read than it takes. */
int64_t metric_line_at(int fd, int64_t at, struct metric_line *line);
int64_t metric_line_last(int fd, int64_t size, struct metric_line *line);

#endif
