/* Configuration changes during a run. The user, or the dashboard, edits a key in the run's config.yaml and
 * creates request/change (request.h). The trainer applies the change between two steps and logs an event
 * "changed" with both values. If the run ends first, the change applies from its next resume, like any
 * other edit of that file. */
#ifndef MEOPT_RUN_CHANGE_H
#define MEOPT_RUN_CHANGE_H

#include "core/config/config.h"

#include <jansson.h>

/* The keys that can change during a run: the learning rate, and the intervals of checkpoints and log
 * lines. */
enum { CHANGE_KEYS = 6, CHANGE_TEXT = 48 };
extern const char *const change_keys[CHANGE_KEYS];

/* The values of these keys as YAML text. */
struct change_values {
    char text[CHANGE_KEYS][CHANGE_TEXT];
};

/* Edits RUN/config.yaml and creates the request. EXIT_CONFIG if the value is invalid for the key. */
int change_request(const char *directory, const char *key, const char *value, struct error *err);
/* Reads the values from RUN/config.yaml. */
int change_read(struct change_values *values, const char *directory, struct error *err);
/* Assigns the values that differ. Returns {key: [before, now]}, or NULL if all are equal; the caller frees
 * it. */
json_t *change_apply(struct config *config, const struct change_values *values);
/* Updates the configuration in meta.json after such a change. */
int change_record(const char *directory, const json_t *changed, struct error *err);

#endif
