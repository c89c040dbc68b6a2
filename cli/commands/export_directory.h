/* A directory that is an export: there whole, or not at all. Its files are written into a new directory
 * beside it, which takes its name when all of them are there; until then what stood there stays. */
#ifndef MEOPT_CLI_COMMANDS_EXPORT_DIRECTORY_H
#define MEOPT_CLI_COMMANDS_EXPORT_DIRECTORY_H

#include "core/base/error.h"

struct export_directory {
    char *final, *side; /* NULL: nothing is begun */
};

/* EXIT_FAILED when `path` is there and is neither an empty directory nor an export that MEOpt wrote: nothing
 * else is ever replaced. Files go to d->side. */
int export_directory_begin(struct export_directory *d, const char *path, struct error *err);
/* After code 0 the directory is there, whole and synced; else nothing is left of it. Returns the first code;
 * the struct is empty then. */
int export_directory_end(struct export_directory *d, int code, struct error *err);

#endif
