/* One YAML scalar as a value of one key: for core/config and for readers of single values.
 *
 * Scalars follow YAML 1.2's core schema. One that readers of YAML 1.1 (PyYAML) may parse differently is
 * accepted with a note and the spelling that all readers parse alike.
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

/* Parses a scalar. `quoted`: it was in quotes or a block scalar, so it is text. message and hint (each
 * `size` bytes) are filled unless VALUE_GOOD. */
enum value_status value_read(int key, const char *text, size_t bytes, bool quoted, struct value *value,
                             char *message, char *hint, size_t size);

/* Returns "a whole number from 1 to 64", "one of mse, cosine": for messages and pages. */
char *value_expected(int key);
/* Whether the key also accepts a YAML list of numbers. Its value is these numbers, separated by commas. */
bool value_takes_list(int key);

/* Writes the shortest spelling of a number that reads back equal and that every YAML reader parses as a
 * number. */
void value_real_text(char *dst, size_t size, double x);
/* Returns a typed value as it should be written to a file, malloc'ed. A number that other YAML readers
 * would parse differently gets the spelling that all of them read. key may be -1. */
char *value_typed(int key, const char *text);
/* Returns a value of the command line, malloc'ed: a relative path with the working directory before it. */
char *value_from_here(int key, const char *text);
/* Whether readers of YAML 1.1 or 1.2 may parse this plain scalar as a type different from text. */
bool value_plain_is_not_text(const char *text);
/* Whether it can be written unquoted as text, in a block or (flow) in a flow collection. */
bool value_plain_safe(const char *text, bool flow);
/* Returns the text in double quotes, malloc'ed. */
char *value_quoted(const char *text);

/* Returns the key for another program's name ("learning_rate", "bs"), NULL if there is none; case and - or
 * _ are ignored. */
const char *config_synonym(const char *word);
/* Returns the nearest name, ignoring case, within a third of its length; NULL if there is none. */
const char *value_nearest(const char *word, const char *const *names, int count);

/* Stores a value in the key's field; texts are copied, paths made absolute from the config's
 * directory, hf:OWNER/REPO to its snapshot in the cache. */
void value_store(struct config *config, int key, const struct value *value, const char *text);

/* Sets defaults that depend only on the config itself, and on the family if it is known. */
void resolve_defaults(struct config *config);
/* One of the two keys of the warm-up on the command line replaces the other one in the file. */
void warmup_settle(struct config *config);
/* Returns whether a key is set to a value different from the default. */
bool config_changed(const struct config *config, const char *name);

/* The usual settings of a family, and the keys that apply to its towers. */
struct family_usual {
    bool normalize; /* loss.normalize */
    enum data_pipeline pipeline;
    bool patch_tokens, gated; /* loss.tokens cls+patch, ffn swiglu */
    bool crops;               /* an image may have pixels after its last whole patch */
    bool encoder;             /* a classifier of it reads texts */
};
const struct family_usual *config_usual(enum family family);
/* Return the family of an arch, and of a tower as far as the keys determine it; else AUTO. */
enum family config_arch_family(enum tower_arch arch);
enum family config_tower_family(const struct config *config, const struct config_tower *tower);

/* Reports all problems of a text, in the order of its lines as far as possible: for `config check`. */
typedef void (*config_report)(void *context, bool fatal, const struct error *problem);
int config_examine(struct config *config, const char *path, const char *text, size_t bytes, char **overrides,
                   int override_count, config_report report, void *context, struct error *err);

int config_read_file(const char *path, char **text, size_t *bytes, struct error *err);
/* The same in a directory that other users can write to: symbolic links are not followed
 * (file_read_below). */
int config_read_below(const char *directory, const char *name, char **text, size_t *bytes, struct error *err);

#endif
