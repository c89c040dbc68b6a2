/* Unpacks an archive in a child process, while it is downloaded.
 *
 * The child can access only the archive and the staging directory. It has no new privileges, no core file,
 * and Landlock if the kernel supports it. It opens paths component by component under the staging
 * directory, follows no links and creates none. Files have mode 0644 and directories 0755 (less umask),
 * with the archive's modification times. An existing file of an interrupted run is compared and rewritten
 * from the first difference. For each file, a line "CRC32C SIZE PATH" is written to staging/.meopt-files,
 * which publish.c reads.
 */
#ifndef MEOPT_FETCH_UNPACK_H
#define MEOPT_FETCH_UNPACK_H

#include "fetch/archive.h"

#include <sys/types.h>

#define UNPACK_MANIFEST ".meopt-files"

struct unpack {
    pid_t pid;
    int wake; /* pipe: a write wakes the child */
    struct unpack_shared *shared;
};

/* Starts the child. archive: file descriptor, read with pread; path: its name in messages; staging: an
 * existing directory. */
int unpack_start(struct unpack *u, int archive, const char *path, const char *staging,
                 const struct archive_limits *limits, struct error *err);
/* Reports that the first `available` bytes are in the file; last: the file is complete. */
void unpack_feed(struct unpack *u, int64_t available, bool last);
void unpack_counts(const struct unpack *u, struct archive_counts *counts);
/* Returns whether the child has ended; unpack_wait then does not block. */
bool unpack_ended(struct unpack *u);
int unpack_wait(struct unpack *u, struct error *err);
/* Kills the child. Safe on a zero struct and after unpack_wait. */
void unpack_kill(struct unpack *u);

#endif
