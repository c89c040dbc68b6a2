/* Replaces an exported directory atomically. Its files are written into a temporary directory next to it,
 * which is renamed when it is complete; until then an earlier export stays. */
#ifndef MEOPT_CLI_EXPORT_DIRECTORY_H
#define MEOPT_CLI_EXPORT_DIRECTORY_H

#include "core/base/error.h"

struct export_directory {
    char *final, *side; /* NULL: not begun */
    int held;           /* descriptor of `side` */
};

/* Makes the temporary directory d->side. EXIT_FAILED if `path` exists and is neither an empty directory nor
 * an export of MEOpt, because nothing else is ever replaced. */
int export_directory_begin(struct export_directory *d, const char *path, struct error *err);
/* With code 0 syncs the directory and renames it to `path`; else removes it. Returns the first error code;
 * the struct is empty afterwards. */
int export_directory_end(struct export_directory *d, int code, struct error *err);

#endif
