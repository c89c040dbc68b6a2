/* One YAML scalar as a value of one key: for core/config and for readers of single values.
 *
 * Scalars are taken as YAML 1.2's core schema takes them. Where PyYAML (YAML 1.1) takes one differently, it
 * is accepted with a note and the spelling that all readers agree on.
 */
#ifndef MEOPT_CONFIG_VALUE_H
#define MEOPT_CONFIG_VALUE_H

#include "core/config/config.h"

struct value {
    bool null;       /* not set */
    int64_t integer; /* CONFIG_INT, CONFIG_BYTES, CONFIG_BOOL, CONFIG_SWITCH; CONFIG_CHOICE: its number */
    double real;     /* CONFIG_REAL */
};

enum value_status { VALUE_GOOD, VALUE_NOTE, VALUE_BAD };

/* `quoted`: it stood in quotes or a block scalar, so it is text.
 * message and hint (each `size` bytes) are filled unless VALUE_GOOD. */
enum value_status value_read(int key, const char *text, size_t bytes, bool quoted, struct value *value,
                             char *message, char *hint, size_t size);

/* "a whole number from 1 to 64", "one of mse, cosine": for messages and pages. */
char *value_expected(int key);
/* Does the key take a YAML list of numbers, too? Its value is they with commas between. */
bool value_takes_list(int key);

/* The shortest spelling of a number that reads back the same and that every YAML reader takes as a number. */
void value_real_text(char *dst, size_t size, double x);
/* Returns a typed value as a file should have it, malloc'ed: a number that other YAML readers would take for
 * something else is written in the spelling that all of them read. key may be -1. */
char *value_typed(int key, const char *text);
/* True when YAML 1.1 or 1.2 readers would take this plain scalar for something else than text. */
bool value_plain_is_not_text(const char *text);
/* True when it may stand unquoted as text, in a block or (flow) in a flow collection. */
bool value_plain_safe(const char *text, bool flow);
/* In double quotes, malloc'ed. */
char *value_quoted(const char *text);

/* The key that other programs call so ("learning_rate", "bs"), NULL when there is none; regardless of case,
 * and of
 * - for _. */
const char *config_synonym(const char *word);
/* Nearest name, regardless of case, within a third of its length; NULL when there is none. */
const char *value_nearest(const char *word, const char *const *names, int count);

/* Store in the field of the key; texts are copied, paths made absolute from the config's directory. */
void value_store(struct config *config, int key, const struct value *value, const char *text);

/* Defaults that depend on nothing but the config itself, and on the family where it is known. */
void resolve_defaults(struct config *config);
/* Values that cannot stand together. `bad` is called for each, with the key to point at; fatal or a note. */
typedef void (*combination_bad)(void *context, const char *key, bool fatal, const char *hint,
                                const char *sentence);
void resolve_check(const struct config *config, combination_bad bad, void *context);

/* Every problem of a text, in the order of its lines as far as possible: for `config check`. */
typedef void (*config_report)(void *context, bool fatal, const struct error *problem);
int config_examine(struct config *config, const char *path, const char *text, size_t bytes, char **overrides,
                   int override_count, config_report report, void *context, struct error *err);

int config_read_file(const char *path, char **text, size_t *bytes, struct error *err);
/* The same below a directory that others may have filled: no symbolic link is followed (file_read_below). */
int config_read_below(const char *directory, const char *name, char **text, size_t *bytes, struct error *err);

#endif
