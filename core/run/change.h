/* Changing a run while it trains: whoever wants it edits a key in the run's own config.yaml and makes
 * request/change (request.h); the trainer takes it between two steps, and tells an event "changed" with
 * both values. A run that ends before it has taken the change has it from its next resume on, like any
 * other edit of that file.
 */
#ifndef MEOPT_RUN_CHANGE_H
#define MEOPT_RUN_CHANGE_H

#include "core/config/config.h"

#include <jansson.h>

/* The keys that may change so: the learning rate, and how often the run saves and tells. */
enum { CHANGE_KEYS = 6, CHANGE_TEXT = 48 };
extern const char *const change_keys[CHANGE_KEYS];
bool change_may(const char *key);

/* Their values, as YAML has them. */
struct change_values {
    char text[CHANGE_KEYS][CHANGE_TEXT];
};

/* Edit RUN/config.yaml, then make the request. EXIT_CONFIG where the value is none of the key's. */
int change_request(const char *directory, const char *key, const char *value, struct error *err);
/* What RUN/config.yaml says now. */
int change_read(struct change_values *values, const char *directory, struct error *err);
/* Take over those that differ: {key: [before, now]}, or NULL when none does; the caller frees. */
json_t *change_apply(struct config *config, const struct change_values *values);
/* What meta.json says of the run's configuration, after such a change. */
int change_record(const char *directory, const json_t *changed, struct error *err);

#endif
