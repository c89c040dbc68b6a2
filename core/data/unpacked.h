/* Archives that are read in place: .tar files, and .tar.gz files, which are decompressed once per process to
 * an anonymous file in memory (at most UNPACKED_BYTES). Processes that this one starts share that memory
 * (unpacked_inherit). It is released when the last of them ends. */
#ifndef MEOPT_DATA_UNPACKED_H
#define MEOPT_DATA_UNPACKED_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* The archives of CIFAR-10 and CIFAR-100 have 163 to 186 MB. */
#define UNPACKED_BYTES ((size_t)512 << 20)

/* Returns whether a name ends in .gz or .tgz, as those of compressed archives do. */
bool unpacked_name(const char *path);
/* Opens an archive for reading at any position: the file, or the tar that a .tar.gz contains. The caller
 * closes *fd. errno as after file_open. A damaged or truncated archive is EXIT_INTEGRITY. */
int unpacked_open(const char *path, int *fd, struct error *err);
/* Lets the program that this process executes next share the decompressed archives: called between fork and
 * exec. */
void unpacked_inherit(void);

#endif
