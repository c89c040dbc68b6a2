/* Files: whole, atomic, checked.
 *
 * Every function returns 0 or an exit code and fills `err` with the path, the system's reason and what to do.
 * Paths are bytes as the system has them (UTF-8 by convention); nothing is translated.
 */
#ifndef MEOPT_BASE_FILE_H
#define MEOPT_BASE_FILE_H

#include "core/base/error.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

/* A file that is shipped with the program, share/meopt/NAME beside a build or in an installed prefix: its
 * real path (the caller frees), or NULL when it is not there. */
char *path_shipped(const char *name);
/* A file of the user's own: $VARIABLE/meopt/FILE or ~/FALLBACK/meopt/FILE, malloc'ed; NULL without a home. */
char *path_xdg(const char *variable, const char *fallback, const char *file);

/* Every file that is read is opened here: a regular one, for reading. A FIFO, a terminal, a directory is
 * refused, and nothing is waited for: the directory that it lies in may be another's. *status may be NULL.
 * Behind an error errno is the system's reason, and 0 where the file itself is the reason. */
int file_open(const char *path, int *fd, struct stat *status, struct error *err);

/* Read a file of at most max_bytes; *data is malloc'ed, NUL-terminated behind *bytes (the caller frees).
 * errno as behind file_open. */
int file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, struct error *err);

/* Whoever reads a file, changes it and replaces it holds its lock from before the reading; close(*fd) gives
 * it back. Waits up to ten seconds (EXIT_LOCKED). Where the file system has no locks *fd is the open file
 * only. directory: as for the functions below a directory; NULL: name is a path of its own. */
int file_lock(const char *directory, const char *name, int *fd, struct error *err);

/* Replace `path` atomically: temporary file beside it, write, fsync, rename, fsync of the directory.
 * An existing file keeps its mode; a symbolic link stays one (its target is replaced). */
int file_write_atomic(const char *path, const void *data, size_t bytes, struct error *err);

/* ---- below a directory that others may have filled, such as a run ----
 *
 * `name` is relative to `directory`: "ckpt/LATEST". Links that lead to the directory itself are followed.
 * Below it no symbolic link is: a reader refuses one, a writer that replaces a file replaces the link. What
 * is no regular file is refused without waiting for it. errno as after file_open. */
int file_open_below(const char *directory, const char *name, int flags, int *fd, struct stat *status,
                    struct error *err);
int file_read_below(const char *directory, const char *name, size_t max_bytes, char **data, size_t *bytes,
                    struct error *err);
/* As file_write_atomic; and without the syncs, for what is replaced every second: readers see the old or the
 * new one, a crash of the machine may leave neither. */
int file_write_below(const char *directory, const char *name, const void *data, size_t bytes,
                     struct error *err);
int file_replace_below(const char *directory, const char *name, const void *data, size_t bytes,
                       struct error *err);
int file_make_dirs_below(const char *directory, const char *name, struct error *err);
bool file_absent_below(const char *directory, const char *name);
/* As open, opendir, unlinkat: -1 or NULL with errno. */
int file_at(const char *directory, const char *name, int flags);
DIR *file_list_below(const char *directory, const char *name);
int file_unlink_below(const char *directory, const char *name, int flags);
/* The error of one of these, from errno; doing: "open". */
int file_below_error(const char *directory, const char *name, const char *doing, struct error *err);

/* Where such a name is, for the calls that end in ...at: `name` from the directory `at`, opened without
 * following a link below `directory` (NULL: an ordinary path). -1 with errno; close it in either case. */
struct file_place {
    int at;
    const char *name;
    char *path; /* of the whole, for messages */
};
int file_place_open(struct file_place *place, const char *directory, const char *name);
void file_place_close(struct file_place *place);

/* rename within the directory `at`. One that failed because it had been done already is done: over NFS the
 * reply of a rename may be lost, and its repetition finds nothing to rename. */
int file_rename_at(int at, const char *from, const char *to);

/* ---- files too large to hold ----
 *
 * Begin, write to `fd` as you like, then commit (after which the file is there, whole and synced) or abort
 * (nothing is left). After begin failed, or either of them, the struct is empty; abort of an empty struct
 * does nothing. */
struct file_atomic {
    int fd;
    struct file_place place;
    char *temp; /* next to place.name */
};
int file_atomic_begin(struct file_atomic *f, const char *path, struct error *err);
int file_atomic_begin_below(struct file_atomic *f, const char *directory, const char *name,
                            struct error *err);
int file_atomic_commit(struct file_atomic *f, struct error *err);
void file_atomic_abort(struct file_atomic *f);

/* Write all of it, however often the kernel takes less; path is for the message. */
int file_write_all(int fd, const void *data, size_t bytes, const char *path, struct error *err);

/* The same at a place of the file, wherever the descriptor stands. */
int file_write_all_at(int fd, const void *data, size_t bytes, int64_t offset, const char *path,
                      struct error *err);

/* fsync and ftruncate, asked again when a signal interrupts them; path is for the message. */
int file_sync(int fd, const char *path, struct error *err);
int file_shorten(int fd, int64_t bytes, const char *path, struct error *err);

/* Whether nothing has this name. What cannot be asked now is not absent: to read it tells why. */
bool file_absent(const char *path);

/* A file without a name in this directory, open for reading and writing with these flags more: nothing is
 * left of it when it is closed. -1 with errno. */
int file_nameless(const char *directory, int flags);

/* Does an open file lie in memory (tmpfs, ramfs), where what is moved to it saves none? */
bool file_in_memory(int fd);

/* mkdir -p, each new name synced; an existing directory is success. */
int file_make_dirs(const char *path, struct error *err);

/* fsync a directory (so that a rename in it survives a power cut). */
int file_sync_dir(const char *path, struct error *err);

/* A file that has other names, as in a copy that was made with hard links, becomes one of its own: what is
 * written to it in place would change the others, too. None is there: success. */
int file_unshare(const char *directory, const char *name, struct error *err);

/* The directory that holds this new name: it is there after a power cut from then on. One that may be written
 * but not read cannot be asked. */
int file_sync_name(const char *path, struct error *err);

/* Remove a tree. Symbolic links are removed, never followed. A missing path is success. */
int file_remove_tree(const char *path, struct error *err);

/* a + "/" + b into a new string; b alone when it is absolute or a is "". */
char *path_join(const char *a, const char *b);
/* Directory part, malloc'ed: "." when there is none. */
char *path_dirname(const char *path);
/* Last component within path, never NULL. */
const char *path_basename(const char *path);

/* Is it a symbolic link to what is not there? Then `to` is what it names, as it may be printed. */
bool path_is_dead_link(const char *path, char *to, size_t size);

/* A read-only mapping of a whole file. bytes may be 0 (data NULL). A file that shrinks under the mapping, or
 * cannot be read, raises SIGBUS: see mapped_file.h. */
struct file_map {
    const uint8_t *data;
    size_t bytes;
};
int file_map_open(struct file_map *map, const char *path, struct error *err);
int file_map_below(struct file_map *map, const char *directory, const char *name, struct error *err);
/* Of an open regular file, which stays open; path: for messages. */
int file_map_descriptor(struct file_map *map, int fd, const char *path, struct error *err);
void file_map_close(struct file_map *map);

/* CRC-32C (Castagnoli, RFC 3720 appendix B.4), continuing from `crc` (0 to begin). */
uint32_t crc32c(uint32_t crc, const void *data, size_t bytes);

/* strdup, malloc, calloc, realloc that end the process with a message when memory is out: for small things
 * only (names, tables). Everything sized by data or models goes through device_alloc or checked malloc. */
char *xstrdup(const char *text);
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t bytes);
void *xrealloc(void *p, size_t bytes);
char *xasprintf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What they call before that message, from any thread: the terminal is given back. NULL: nothing. */
void memory_out_calls(void (*last)(void));

/* Asks for large pages where the whole of one lies inside:
 * arrays of many megabytes that are read from end to end. */
void memory_large_pages(void *p, size_t bytes);

#endif
