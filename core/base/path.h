/* Paths: joined, divided, and of files that are installed. */
#ifndef MEOPT_BASE_PATH_H
#define MEOPT_BASE_PATH_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Path of a file that is installed with the program: share/meopt/NAME next to a build tree or in an installed
 * prefix. The result is a real path (the caller frees it), or NULL if the file does not exist. */
char *path_shipped(const char *name);
/* The same in share/KIND. */
char *path_shipped_in(const char *kind, const char *name);
/* Path of a file of the user: $VARIABLE/meopt/FILE or ~/FALLBACK/meopt/FILE, malloc'ed. NULL without a home
 * directory. */
char *path_xdg(const char *variable, const char *fallback, const char *file);
/* Returns a + "/" + b as a new string; b alone if it is absolute or a is "". */
char *path_join(const char *a, const char *b);
/* Returns the directory part, malloc'ed: "." if there is none. */
char *path_dirname(const char *path);
/* Returns the directory of a model's files, malloc'ed: path itself if it is a directory, else the one that
 * contains it. NULL: it cannot be examined now. */
char *path_directory(const char *path, struct error *err);
/* Returns the last component within path, never NULL. */
const char *path_basename(const char *path);

/* Returns whether path is a dangling symbolic link; `to` is then its target in printable form. */
bool path_is_dead_link(const char *path, char *to, size_t size);

#endif
