/* Files: whole, atomic, checked.
 *
 * Every function returns 0 or an exit code and fills `err` with the path, the system's reason and the next
 * step. Paths are the system's bytes (UTF-8 by convention), without conversion.
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

/* Opens a regular file for reading; every read goes through this function. A FIFO, a terminal or a directory
 * is refused without waiting, because the file's directory may belong to another user. *status may be NULL.
 * After an error errno is the system's reason, or 0 if the file itself is the reason. */
int file_open(const char *path, int *fd, struct stat *status, struct error *err);

/* Reads a file of at most max_bytes. *data is malloc'ed (the caller frees it), with a NUL after its *bytes
 * bytes. errno as after file_open. */
int file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, struct error *err);

/* Locks a file against other processes that read, change and replace it: lock it before reading, and
 * close(*fd) to unlock. Waits up to ten seconds (EXIT_LOCKED). On a file system without locks, *fd is only
 * the open file. directory: as for the functions below a directory; NULL: name is an ordinary path. */
int file_lock(const char *directory, const char *name, int *fd, struct error *err);

/* Replaces `path` atomically: temporary file in the same directory, write, fsync, rename, fsync of the
 * directory. An existing file keeps its mode. If path is a symbolic link, its target is replaced. */
int file_write_atomic(const char *path, const void *data, size_t bytes, struct error *err);

/* ---- below a directory that others may have filled, such as a run ----
 *
 * `name` is relative to `directory`: "ckpt/LATEST". Links in the path of the directory itself are followed;
 * links below it are not. A reader refuses a link, a writer that replaces a file replaces the link. Other
 * files than regular ones are refused without waiting for them. errno as after file_open.
 */
int file_open_below(const char *directory, const char *name, int flags, int *fd, struct stat *status,
                    struct error *err);
int file_read_below(const char *directory, const char *name, size_t max_bytes, char **data, size_t *bytes,
                    struct error *err);
/* file_write_below is file_write_atomic below a directory. file_replace_below omits the syncs, for files that
 * are replaced every second: readers see the old or the new file, a crash of the machine may leave
 * neither. */
int file_write_below(const char *directory, const char *name, const void *data, size_t bytes,
                     struct error *err);
int file_replace_below(const char *directory, const char *name, const void *data, size_t bytes,
                       struct error *err);
int file_make_dirs_below(const char *directory, const char *name, struct error *err);
bool file_absent_below(const char *directory, const char *name);
/* Like open, opendir and unlinkat: -1 or NULL with errno. */
int file_at(const char *directory, const char *name, int flags);
DIR *file_list_below(const char *directory, const char *name);
int file_unlink_below(const char *directory, const char *name, int flags);
/* Fills the error of one of these functions from errno; doing: "open". */
int file_below_error(const char *directory, const char *name, const char *doing, struct error *err);

/* Location of such a name, for the calls that end in ...at: `name` in the directory `at`, opened without
 * following a link below `directory` (NULL: an ordinary path). -1 with errno; close it in either case. */
struct file_place {
    int at;
    const char *name;
    char *path; /* of the file, for messages */
};
int file_place_open(struct file_place *place, const char *directory, const char *name);
void file_place_close(struct file_place *place);

/* Renames within the directory `at`. A failure after the rename was done counts as success: over NFS its
 * reply may be lost, and the repetition finds nothing to rename. */
int file_rename_at(int at, const char *from, const char *to);

/* ---- files too large for memory ----
 *
 * Begin, write to `fd`, then commit (the file then exists, whole and synced) or abort (nothing is left).
 * After a failed begin, a commit or an abort the struct is empty; abort of an empty struct does nothing.
 */
struct file_atomic {
    int fd;
    struct file_place place;
    char *temp; /* next to place.name */
    bool held;  /* file_hold, until it has its name */
};
int file_atomic_begin(struct file_atomic *f, const char *path, struct error *err);
/* The same for large files: the temporary name is .NAME.partial-XXXXXX, and those that killed processes have
 * left are removed. */
int file_atomic_begin_large(struct file_atomic *f, const char *path, struct error *err);
int file_atomic_commit(struct file_atomic *f, struct error *err);
void file_atomic_abort(struct file_atomic *f);

/* Removes what killed processes have left: files and directories of this user, no links, whose path is
 * `begin` and six more characters, and that no process holds (file_hold). is_ours: one more condition, or
 * NULL. */
void file_remove_left(const char *begin, bool (*is_ours)(int fd));
/* Locks a new file or directory until it is closed. Returns false if file_remove_left removed it before. */
bool file_hold(int fd);

/* Writes all bytes, in several calls if the kernel accepts fewer; path is for the message. */
int file_write_all(int fd, const void *data, size_t bytes, const char *path, struct error *err);

/* Like file_write_all, at a position of the file, whatever the descriptor's. */
int file_write_all_at(int fd, const void *data, size_t bytes, int64_t offset, const char *path,
                      struct error *err);

/* fsync and ftruncate, repeated when a signal interrupts them; path is for the message. */
int file_sync(int fd, const char *path, struct error *err);
int file_shorten(int fd, int64_t bytes, const char *path, struct error *err);

/* Returns whether no file has this name. A name that cannot be checked is not absent: reading it reports the
 * reason. */
bool file_absent(const char *path);

/* Opens an unnamed file in this directory for reading and writing, with these additional flags. Closing it
 * removes it. -1 with errno. */
int file_nameless(const char *directory, int flags);

/* Returns whether an open file is stored in memory (tmpfs, ramfs), where offloading to it saves no memory. */
bool file_in_memory(int fd);

/* mkdir -p; each new name is synced, and an existing directory is success. */
int file_make_dirs(const char *path, struct error *err);

/* mkdir, or success for a directory that is there, belongs to this user and is no symbolic link; made:
 * whether it was not there (may be NULL). For names that are known beforehand, in a directory that others
 * may write to: what they put there is refused. */
int file_own_directory(const char *path, mode_t mode, bool *made, struct error *err);

/* Syncs a directory, so that a rename in it survives a power failure. */
int file_sync_dir(const char *path, struct error *err);

/* Gives a file with several hard links its own copy of the content, so that a write in place does not change
 * the other names' files. No such file: success. */
int file_unshare(const char *directory, const char *name, struct error *err);

/* Syncs the directory that contains this new name, so that the name survives a power failure. A directory
 * that is writable but not readable cannot be synced. */
int file_sync_name(const char *path, struct error *err);

/* Removes a tree. Symbolic links are removed, never followed. A missing path is success. file_remove_at: of
 * this name in an open directory, -1 with errno. */
int file_remove_tree(const char *path, struct error *err);
int file_remove_at(int directory, const char *name);

/* Read-only mapping of a whole file. bytes may be 0 (data NULL). A file that shrinks while it is mapped, or
 * cannot be read, raises SIGBUS: see mapped_file.h. */
struct file_map {
    const uint8_t *data;
    size_t bytes;
};
int file_map_open(struct file_map *map, const char *path, struct error *err);
int file_map_below(struct file_map *map, const char *directory, const char *name, struct error *err);
/* Maps an open regular file, which stays open; path is for messages. */
int file_map_descriptor(struct file_map *map, int fd, const char *path, struct error *err);
void file_map_close(struct file_map *map);

#endif
