/* Changes during a run: the settings and circumstances that events.jsonl reports with both values, in the
 * order of steps.
 *
 * If a run resumed from a checkpoint before its last step, its changes apply from that checkpoint on. A
 * change without a following step was never in effect.
 */
#ifndef MEOPT_RUN_HISTORY_H
#define MEOPT_RUN_HISTORY_H

#include "core/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct run_change {
    char *key, *before, *after;
    int64_t step; /* the new value applies from the step after this one */
};

struct run_history {
    struct run_change *changes;
    int count, keys; /* keys: different ones, at most HISTORY_KEYS; further ones are dropped */
};
enum { HISTORY_KEYS = 1000 };

/* Reads RUN/events.jsonl; a run without it has an empty history. */
int run_history_read(struct run_history *history, const char *directory, struct error *err);
/* Drops changes after which no step up to last_step was trained. */
void run_history_cut(struct run_history *history, int64_t last_step);
void run_history_free(struct run_history *history);

/* Returns "0.01 -> 1.0e-5 @40" for a key that changed after step 40, malloc'ed; NULL if it never changed. */
char *run_history_text(const struct run_history *history, const char *key);
/* Returns the first value of a key, or (last) its last one; NULL if it never changed. */
const char *run_history_value(const struct run_history *history, const char *key, bool last);
/* Returns {key: [value at that step, last value]} of the keys that changed after a step, or NULL. */
json_t *run_history_after(const struct run_history *history, int64_t step);

#endif
