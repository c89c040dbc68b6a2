/* Shared by the `meopt config` commands. */
#ifndef MEOPT_CLI_COMMANDS_CMD_CONFIG_H
#define MEOPT_CLI_COMMANDS_CMD_CONFIG_H

#include "core/base/error.h"
#include "core/config/config.h"

#include "core/device/device.h"

#include <jansson.h>
#include <stdio.h>

/* The value of a key with its type: number, true, text; null for not set and for "auto" of a switch. */
json_t *config_value_json(const struct config *config, int key);
/* For people: the value without quotes, controls escaped; "-" when not set. malloc'ed. */
char *config_value_plain(const struct config *config, int key);
/* "file.yaml:12", "default", "command line". */
void config_origin_text(char *dst, size_t size, const struct config *config, int key);
/* Index of a key that the user named, -1 and err (with the nearest one) when there is none. */
int config_key_named(const char *name, struct error *err);
/* One JSON document and a newline on stdout; takes the reference. */
void print_json(json_t *root);
/* A path as JSON, escaped where it is not UTF-8. */
json_t *path_json(const char *path);
/* A diff on stdout: as it is into a pipe, with controls escaped (and colours) on a terminal. */
void print_diff(const char *diff);
/* Colour on this stream: a terminal, no NO_COLOR, no TERM=dumb. */
bool colour_wanted(FILE *stream);

/* Peak memory of the experiment, by running the trainer's allocations on the dry device. */
int config_plan(const struct config *config, struct memory_use *use, struct error *err);

/* Shipped experiments, compiled in: name, text; NULL behind the last. */
struct config_template {
    const char *name;
    const unsigned char *text;
    size_t bytes;
};
extern const struct config_template config_templates[];

#endif
