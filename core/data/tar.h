/* Tar archives of images, as webdataset keeps them: which members lie where, and the bytes of one. Plain
 * files of ustar, GNU and pax archives that are not compressed; what else is in them is passed by. */
#ifndef MEOPT_DATA_TAR_H
#define MEOPT_DATA_TAR_H

#include "core/base/error.h"

#include <stdint.h>

/* Calls `take` for each regular file of the archive, in its order. One that is damaged or cut off is
 * EXIT_INTEGRITY. */
int tar_list(const char *path, void (*take)(void *context, const char *name, int64_t offset, int64_t bytes),
             void *context, struct error *err);
/* The bytes of one, malloc'ed (the caller frees); errno as behind file_open. */
int tar_read(const char *path, int64_t offset, int64_t bytes, char **data, struct error *err);

#endif
