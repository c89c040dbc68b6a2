/* Unpacking in a child process, while the archive still arrives.
 *
 * The child holds nothing but the archive and the staging directory: no new privileges, no core file,
 * Landlock where the kernel has it. Every path is opened component by component below the staging directory
 * without following links, and no link is ever made. Files get 0644, directories 0755 (less umask), and the
 * archive's modification times. A file that is there already from a run that was killed is compared, and
 * rewritten from the first difference on. For each file a line "CRC32C SIZE PATH" goes to
 * staging/.meopt-files: the manifest that --verify reads.
 */
#ifndef MEOPT_FETCH_UNPACK_H
#define MEOPT_FETCH_UNPACK_H

#include "fetch/archive.h"

#include <sys/types.h>

#define UNPACK_MANIFEST ".meopt-files"

struct unpack {
    pid_t pid;
    int wake; /* pipe: more bytes are there */
    struct unpack_shared *shared;
};

/* Begin. `archive` is read with pread, and called `path`; `staging` is a path that exists. */
int unpack_start(struct unpack *u, int archive, const char *path, const char *staging,
                 const struct archive_limits *limits, struct error *err);
/* So many bytes from the start are in the file now. `last`: and no more will come. */
void unpack_feed(struct unpack *u, int64_t available, bool last);
void unpack_counts(const struct unpack *u, struct archive_counts *counts);
/* Whether it has ended (then unpack_wait does not block). */
bool unpack_ended(struct unpack *u);
int unpack_wait(struct unpack *u, struct error *err);
/* Kill it. Safe on a struct that is zero or has been waited for. */
void unpack_kill(struct unpack *u);

/* The same in this process, for tests: everything at once. */
int unpack_here(int archive, int64_t bytes, int staging, const struct archive_limits *limits,
                struct archive_counts *counts, struct error *err);

#endif
