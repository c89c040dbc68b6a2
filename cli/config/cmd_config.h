/* Shared by the `meopt config` commands. */
#ifndef MEOPT_CLI_CONFIG_CMD_CONFIG_H
#define MEOPT_CLI_CONFIG_CMD_CONFIG_H

#include "core/base/error.h"
#include "core/config/config.h"

#include "core/device/device.h"

#include <jansson.h>
#include <stdio.h>

/* Returns the value of a key with its type: number, boolean or text; null: not set, or "auto" of a switch. */
json_t *config_value_json(const struct config *config, int key);
/* Returns the value as text without quotes, with control characters escaped; "-": not set. malloc'ed. */
char *config_value_plain(const struct config *config, int key);
/* Formats the origin of a value: "file.yaml:12", "default" or "command line". */
void config_origin_text(char *dst, size_t size, const struct config *config, int key);
/* Returns the index of a key; -1 with an error that suggests the nearest name if there is none. */
int config_key_named(const char *name, struct error *err);
/* Prints one JSON document and a newline on stdout; takes the reference. */
void print_json(json_t *root);
/* Returns a path as JSON; bytes that are not UTF-8 are escaped. */
json_t *path_json(const char *path);
/* Returns a line "KEY: OLD -> NEW" for each key whose value or origin differs, malloc'ed. */
char *config_changes(const struct config *old, const struct config *new);
/* Returns whether to use colours on a stream: a terminal, no NO_COLOR, no TERM=dumb. */
bool colour_wanted(FILE *stream);

/* Computes the memory of a configuration by running the trainer's allocations on the dry device. */
int config_plan(const struct config *config, struct memory_use *use, struct error *err);

/* The shipped configurations, compiled in; the last row has name NULL. */
struct config_template {
    const char *name;
    const unsigned char *text;
    size_t bytes;
};
extern const struct config_template config_templates[];
/* The newest section of CHANGELOG.md; not terminated. */
extern const char changelog[];
extern const size_t changelog_bytes;

#endif
