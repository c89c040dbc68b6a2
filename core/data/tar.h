/* Tar archives of images, in webdataset's layout: the offsets of members, and the bytes of one. Regular
 * files of ustar, GNU and pax archives; other members are skipped. A .tar.gz is read through unpacked.h. */
#ifndef MEOPT_DATA_TAR_H
#define MEOPT_DATA_TAR_H

#include "core/base/error.h"

#include <stdint.h>

/* Calls `take` for each regular file of the archive, in order. A damaged or truncated archive is
 * EXIT_INTEGRITY. */
int tar_list(const char *path, void (*take)(void *context, const char *name, int64_t offset, int64_t bytes),
             void *context, struct error *err);
/* Reads the bytes of one member, malloc'ed (the caller frees); errno like file_open. */
int tar_read(const char *path, int64_t offset, int64_t bytes, char **data, struct error *err);

#endif
