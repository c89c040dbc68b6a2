/* Files: see file.h. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/mapped_file.h"
#include "core/base/platform.h"
#include "core/base/progress.h"
#include "core/base/retry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

enum {
    PART_BYTES = 1 << 24 /* written between two calls of progress_mark */
};

int file_open(const char *path, int *fd, struct stat *status, struct error *err)
{
    struct stat local;
    int code = 0, reason = 0;
    if (!status) status = &local;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 || fstat(*fd, status) != 0) {
        char clean[256];
        reason = errno;
        if (reason == ENOENT && path_is_dead_link(path, clean, sizeof clean))
            code = error_set(err, EXIT_FAILED, "get the file that it names, as with 'git annex get'",
                             "is a symbolic link to %s, which is not there", clean);
        else
            code = error_errno(err, EXIT_FAILED, "check the path",
                               *fd < 0 ? N_("cannot open %s") : N_("cannot read %s"),
                               name_printable(clean, sizeof clean, path));
    } else if (!S_ISREG(status->st_mode)) {
        code = error_set(err, EXIT_FAILED, "name a file",
                         S_ISDIR(status->st_mode) ? N_("is a directory, expected a file")
                                                  : N_("is not a regular file"));
    }
    if (!code) return 0;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    error_at(err, path, 0, 0);
    errno = reason;
    return code;
}

/* Reads all of an open file and closes it. errno as after file_open. */
static int read_whole(int fd, const char *path, size_t max_bytes, char **data, size_t *bytes,
                      struct error *err)
{
    char *buffer = NULL;
    size_t used = 0, capacity = 0;
    int reason = 0, code = 0;
    for (;;) {
        if (used + 1 >= capacity) {
            capacity = capacity ? capacity * 2 : 65536;
            char *larger = realloc(buffer, capacity);
            if (!larger) {
                code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %zu bytes", capacity);
                reason = ENOMEM;
                goto done;
            }
            buffer = larger;
        }
        ssize_t n = retry_read(fd, buffer + used, capacity - used - 1, -1);
        if (n < 0) {
            reason = errno;
            code = error_errno(err, EXIT_FAILED, NULL, "cannot read");
            goto done;
        }
        if (n == 0) break;
        used += (size_t)n;
        if (used > max_bytes) {
            code =
                error_set(err, EXIT_FAILED, NULL, "is larger than the %zu bytes expected at most", max_bytes);
            goto done;
        }
    }
    buffer[used] = 0;
    *data = buffer;
    *bytes = used;
    buffer = NULL;
done:
    if (code) error_at(err, path, 0, 0);
    free(buffer);
    close(fd);
    errno = reason;
    return code;
}

int file_read(const char *path, size_t max_bytes, char **data, size_t *bytes, struct error *err)
{
    int fd, code = file_open(path, &fd, NULL, err);
    return code ? code : read_whole(fd, path, max_bytes, data, bytes, err);
}

int file_read_below(const char *directory, const char *name, size_t max_bytes, char **data, size_t *bytes,
                    struct error *err)
{
    int fd, code = file_open_below(directory, name, O_RDONLY, &fd, NULL, err);
    if (code) return code;
    char *path = path_join(directory, name);
    code = read_whole(fd, path, max_bytes, data, bytes, err);
    int saved = errno;
    free(path);
    errno = saved;
    return code;
}

int file_unshare(const char *directory, const char *name, struct error *err)
{
    struct stat st;
    char *data = NULL, *path = path_join(directory, name);
    size_t bytes;
    bool shared = lstat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink > 1;
    free(path);
    if (!shared) return 0;
    int code = file_read_below(directory, name, (size_t)st.st_size + (1 << 20), &data, &bytes, err);
    if (!code) code = file_write_below(directory, name, data, bytes, err);
    free(data);
    return code;
}

/* The lock belongs to the file that had the name when it was opened, and its holder may replace that file. So
 * the name is checked again after locking. */
static int lock_file(const char *directory, const char *name, const char *path, int *fd, struct error *err)
{
    for (int i = 0; i < 1000; i++) {
        struct stat held, now;
        int code = directory ? file_open_below(directory, name, O_RDONLY, fd, &held, err)
                             : file_open(path, fd, &held, err);
        if (code) return code;
        int failed = flock(*fd, LOCK_EX | LOCK_NB);
        if (failed && errno == EBADF) { /* NFS requires a descriptor open for writing for an exclusive lock */
            close(*fd);
            *fd = directory ? file_at(directory, name, O_RDWR)
                            : open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
            failed = *fd < 0 ? 0 : flock(*fd, LOCK_EX | LOCK_NB);
        }
        if (*fd >= 0 && failed == 0) {
            if (stat(path, &now) == 0 && now.st_ino == held.st_ino && now.st_dev == held.st_dev) return 0;
        } else if (errno != EWOULDBLOCK && errno != EINTR) {
            return 0; /* a file system without locks */
        }
        close(*fd);
        *fd = -1;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    error_set(err, EXIT_LOCKED, "try again", "another process is changing it");
    error_at(err, path, 0, 0);
    return EXIT_LOCKED;
}

int file_lock(const char *directory, const char *name, int *fd, struct error *err)
{
    char *path = directory ? path_join(directory, name) : xstrdup(name);
    int code = lock_file(directory, name, path, fd, err);
    free(path);
    return code;
}

/* Writes at `offset`, or at the descriptor's position (-1). */
static int write_all(int fd, const void *data, size_t bytes, int64_t offset, const char *path,
                     struct error *err)
{
    const char *p = data;
    while (bytes) {
        ssize_t n = retry_write(fd, p, bytes > PART_BYTES ? PART_BYTES : bytes, offset);
        if (n == 0) errno = EIO; /* a file system that writes nothing and reports no error */
        if (n <= 0) {
            int code =
                error_errno(err, EXIT_FAILED, "free some space or choose another directory", "cannot write");
            error_at(err, path, 0, 0);
            return code;
        }
        p += n;
        bytes -= (size_t)n;
        if (offset >= 0) offset += n;
        progress_mark();
    }
    return 0;
}

int file_write_all(int fd, const void *data, size_t bytes, const char *path, struct error *err)
{
    return write_all(fd, data, bytes, -1, path, err);
}

int file_write_all_at(int fd, const void *data, size_t bytes, int64_t offset, const char *path,
                      struct error *err)
{
    return write_all(fd, data, bytes, offset, path, err);
}

int file_sync(int fd, const char *path, struct error *err)
{
    if (retry_sync(fsync, fd) == 0) return 0;
    int code =
        error_errno(err, EXIT_FAILED, "free some space or choose another directory", "cannot sync %s", path);
    error_at(err, path, 0, 0);
    return code;
}

int file_shorten(int fd, int64_t bytes, const char *path, struct error *err)
{
    if (retry_truncate(fd, bytes) == 0) return 0;
    int code = error_errno(err, EXIT_FAILED, NULL, "cannot shorten %s", path);
    error_at(err, path, 0, 0);
    return code;
}

int file_sync_dir(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some network file systems refuse fsync of a directory and offer no other way to sync it. */
    if (fd < 0 || (retry_sync(fsync, fd) != 0 && errno != EINVAL && errno != EROFS)) {
        int code = error_errno(err, EXIT_FAILED, NULL, "cannot sync directory %s", path);
        if (fd >= 0) close(fd);
        return code;
    }
    close(fd);
    return 0;
}

void file_atomic_abort(struct file_atomic *f)
{
    if (!f->temp) return;
    if (f->fd >= 0) close(f->fd);
    if (f->temp[0]) unlinkat(f->place.at, f->temp, 0);
    free(f->temp);
    file_place_close(&f->place);
    *f = (struct file_atomic){.fd = -1, .place.at = -1};
}

/* Creates a file next to the one that it will replace, with the same mode. Without an old file, the umask or
 * the directory's default ACL sets the mode. mark: what its name has before the random letters. */
static int create_temp(struct file_atomic *f, const char *mark)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t before = (size_t)(path_basename(f->place.name) - f->place.name);
    struct stat st;
    bool there = fstatat(f->place.at, f->place.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
    mode_t mode = there ? st.st_mode & 07777 : 0666;
    for (int i = 0; i < 100; i++) {
        unsigned char random[6];
        if (random_bytes(random, sizeof random)) return -1;
        for (size_t k = 0; k < sizeof random; k++) random[k] = (unsigned char)letters[random[k] % 62];
        free(f->temp);
        f->temp = xasprintf("%.*s.%s.%s%.6s", (int)before, f->place.name, f->place.name + before, mark,
                            (const char *)random);
        f->fd = openat(f->place.at, f->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (f->fd >= 0 || errno != EEXIST) break;
    }
    if (f->fd < 0) f->temp[0] = 0; /* nothing to remove */
    return f->fd >= 0 && (!there || fchmod(f->fd, mode) == 0) ? 0 : -1;
}

static int begin(struct file_atomic *f, const char *directory, const char *name, const char *mark,
                 struct error *err)
{
    char *real = directory ? NULL : realpath(name, NULL);
    *f = (struct file_atomic){.fd = -1, .temp = xstrdup("")};
    int failed = file_place_open(&f->place, directory, real ? real : name), code = 0;
    if (failed) code = file_below_error(directory, name, "create a file", err);
    else if (create_temp(f, mark)) {
        char *path = directory ? path_join(directory, name) : xstrdup(name), *dir = path_dirname(path);
        code = f->fd < 0 ? error_errno(err, EXIT_FAILED, "create the directory, or check its permissions",
                                       "cannot create a file in %s", dir)
                         : error_errno(err, EXIT_FAILED, NULL, "cannot set the mode of %s/%s", dir, f->temp);
        error_at(err, path, 0, 0);
        free(dir);
        free(path);
    }
    free(real);
    if (code) file_atomic_abort(f);
    return code;
}

static int begin_below(struct file_atomic *f, const char *directory, const char *name, struct error *err)
{
    return begin(f, directory, name, "", err);
}

int file_atomic_begin(struct file_atomic *f, const char *path, struct error *err)
{
    return begin(f, NULL, path, "", err);
}

int file_atomic_begin_large(struct file_atomic *f, const char *path, struct error *err)
{
    int code;
    while ((code = begin(f, NULL, path, "partial-", err)) == 0 && !file_hold(f->fd)) file_atomic_abort(f);
    if (code) return code;
    f->held = true;
    char *left = xasprintf("%.*s", (int)(strlen(f->temp) - 6), f->temp);
    file_remove_left(left, NULL);
    free(left);
    return 0;
}

/* Syncs the directory that contains the file. */
static int sync_parent(const struct file_atomic *f, struct error *err)
{
    if (f->place.at == AT_FDCWD) {
        char *dir = path_dirname(f->place.path);
        int code = file_sync_dir(dir, err);
        free(dir);
        return code;
    }
    int fd = openat(f->place.at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), code = 0;
    if (fd < 0 || (retry_sync(fsync, fd) != 0 && errno != EINVAL && errno != EROFS))
        code = error_errno(err, EXIT_FAILED, NULL, "cannot sync the directory of %s", f->place.path);
    if (fd >= 0) close(fd);
    return code;
}

static int commit(struct file_atomic *f, bool sync, struct error *err)
{
    int code = 0, held = f->held ? fcntl(f->fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (sync) code = file_sync(f->fd, f->temp, err);
    if (close(f->fd) != 0 && code == 0)
        code = error_errno(err, EXIT_FAILED, "free some space or choose another directory", "cannot close %s",
                           f->temp);
    f->fd = -1;
    if (code == 0 && file_rename_at(f->place.at, f->temp, f->place.name) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename %s to %s", f->temp, f->place.path);
    if (held >= 0) close(held);
    if (code) error_at(err, f->place.path, 0, 0);
    else {
        f->temp[0] = 0; /* nothing to remove */
        if (sync) code = sync_parent(f, err);
    }
    file_atomic_abort(f);
    return code;
}

int file_atomic_commit(struct file_atomic *f, struct error *err) { return commit(f, true, err); }

static int replace(const char *directory, const char *name, const void *data, size_t bytes, bool sync,
                   struct error *err)
{
    struct file_atomic f;
    int code = begin_below(&f, directory, name, err);
    if (code == 0) code = file_write_all(f.fd, data, bytes, f.place.path, err);
    if (code == 0) return commit(&f, sync, err);
    file_atomic_abort(&f);
    return code;
}

int file_write_atomic(const char *path, const void *data, size_t bytes, struct error *err)
{
    return replace(NULL, path, data, bytes, true, err);
}

int file_write_below(const char *directory, const char *name, const void *data, size_t bytes,
                     struct error *err)
{
    return replace(directory, name, data, bytes, true, err);
}

int file_replace_below(const char *directory, const char *name, const void *data, size_t bytes,
                       struct error *err)
{
    return replace(directory, name, data, bytes, false, err);
}

bool file_in_memory(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

bool file_absent(const char *path)
{
    struct stat st;
    return lstat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

int file_sync_name(const char *path, struct error *err)
{
    char *parent = path_dirname(path);
    int code = access(parent, R_OK) == 0 || errno != EACCES ? file_sync_dir(parent, err) : 0;
    free(parent);
    return code;
}

int file_make_dirs(const char *path, struct error *err)
{
    char *copy = xstrdup(path);
    int code = 0;
    for (char *p = copy + 1; code == 0; p++) {
        if (*p != '/' && *p != 0) continue;
        char kept = *p;
        *p = 0;
        struct stat st;
        bool made = mkdir(copy, 0777) == 0;
        if (!made && !(errno == EEXIST && stat(copy, &st) == 0 && S_ISDIR(st.st_mode))) {
            code = error_errno(err, EXIT_FAILED, "choose a directory that you may write to",
                               "cannot create directory %s", copy);
            error_at(err, path, 0, 0);
        }
        if (made) code = file_sync_name(copy, err);
        *p = kept;
        if (!kept) break;
    }
    free(copy);
    return code;
}

int file_make_dirs_below(const char *directory, const char *name, struct error *err)
{
    char *copy = xstrdup(name);
    int code = 0;
    for (char *p = copy + 1; !code; p++) {
        if (*p != '/' && *p != 0) continue;
        char kept = *p;
        struct file_place place;
        struct stat st;
        *p = 0;
        bool open = file_place_open(&place, directory, copy) == 0,
             made = open && mkdirat(place.at, place.name, 0777) == 0, there = made;
        if (open && !made && errno == EEXIST) {
            bool read = fstatat(place.at, place.name, &st, AT_SYMLINK_NOFOLLOW) == 0;
            there = read && S_ISDIR(st.st_mode);
            if (read && !there) errno = ENOTDIR;
        }
        if (!there) code = file_below_error(directory, copy, "create the directory", err);
        if (made) code = file_sync_name(place.path, err);
        if (open) file_place_close(&place);
        *p = kept;
        if (!kept) break;
    }
    free(copy);
    return code;
}

/* Returns whether files of `uid` belong to this user. Some file systems map user ids (NFS without root,
 * FUSE): there a new directory next to `directory` shows the mapped id. */
static bool is_of_user(const char *directory, uid_t uid)
{
    struct stat st;
    if (uid == geteuid()) return true;
    char *trial = xasprintf("%s.XXXXXX", directory);
    bool ours = mkdtemp(trial) && lstat(trial, &st) == 0 && st.st_uid == uid;
    rmdir(trial);
    free(trial);
    return ours;
}

int file_own_directory(const char *path, mode_t mode, bool *made, struct error *err)
{
    struct stat st;
    int code = 0, there = -1;
    if (made) *made = false;
    for (int i = 0; i < 100 && there != 0; i++) { /* its last owner may remove it meanwhile */
        if (mkdir(path, mode) == 0) {
            if (made) *made = true;
            return 0;
        }
        if (errno != EEXIST || ((there = lstat(path, &st)) != 0 && errno != ENOENT)) break;
    }
    if (there != 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot create the directory");
    else if (!S_ISDIR(st.st_mode))
        code = error_set(err, EXIT_FAILED, "remove it, or work in another directory", "is not a directory");
    else if (!is_of_user(path, st.st_uid))
        code = error_set(err, EXIT_FAILED, "work in another directory", "belongs to another user (%ld)",
                         (long)st.st_uid);
    if (code) error_at(err, path, 0, 0);
    return code;
}

static int remove_at(int parent, const char *name, int depth)
{
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT) return 0;
    if (errno != EISDIR && errno != EPERM) return -1;
    if (depth > 200) {
        errno = ELOOP;
        return -1;
    }
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -1;
    }
    int result = 0;
    for (struct dirent *entry; result == 0 && (errno = 0, entry = readdir(dir)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = remove_at(fd, entry->d_name, depth + 1);
    int saved = errno;
    if (saved) result = -1;
    closedir(dir);
    errno = saved;
    return result == 0 ? unlinkat(parent, name, AT_REMOVEDIR) : -1;
}

int file_remove_at(int directory, const char *name) { return remove_at(directory, name, 0); }

int file_remove_tree(const char *path, struct error *err)
{
    if (remove_at(AT_FDCWD, path, 0) == 0) return 0;
    int code = error_errno(err, EXIT_FAILED, NULL, "cannot remove %s", path);
    error_at(err, path, 0, 0);
    return code;
}

int file_map_descriptor(struct file_map *map, int fd, const char *path, struct error *err)
{
    struct stat st;
    *map = (struct file_map){0};
    if (fstat(fd, &st) != 0) {
        error_errno(err, EXIT_FAILED, NULL, "cannot read");
        return error_at(err, path, 0, 0);
    }
    if (st.st_size == 0) return 0;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        error_errno(err, EXIT_FAILED, NULL, "cannot map %lld bytes", (long long)st.st_size);
        return error_at(err, path, 0, 0);
    }
    map->data = p;
    map->bytes = (size_t)st.st_size;
    mapped_file_watch(p, map->bytes, path);
    return 0;
}

int file_map_open(struct file_map *map, const char *path, struct error *err)
{
    *map = (struct file_map){0};
    int fd, code = file_open(path, &fd, NULL, err);
    if (code) return code;
    code = file_map_descriptor(map, fd, path, err);
    close(fd);
    return code;
}

int file_map_below(struct file_map *map, const char *directory, const char *name, struct error *err)
{
    *map = (struct file_map){0};
    int fd, code = file_open_below(directory, name, O_RDONLY, &fd, NULL, err);
    if (code) return code;
    char *path = path_join(directory, name);
    code = file_map_descriptor(map, fd, path, err);
    free(path);
    close(fd);
    return code;
}

void file_map_close(struct file_map *map)
{
    if (map->data) mapped_file_forget(map->data);
    if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
    map->data = NULL;
    map->bytes = 0;
}

/* ---- unfinished files and directories that a killed process has left ---- */

enum { RANDOM_LETTERS = 6 };

bool file_hold(int fd)
{
    struct stat st;
    (void)flock(fd, LOCK_EX); /* where there are no locks, nothing is removed either */
    return fstat(fd, &st) != 0 || st.st_nlink > 0;
}

/* Returns whether no process holds the file or directory, and it can only be this user's own. */
static bool is_left(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
           (S_ISDIR(st.st_mode) || (S_ISREG(st.st_mode) && st.st_nlink == 1)) &&
           flock(fd, LOCK_EX | LOCK_NB) == 0;
}

void file_remove_left(const char *begin, bool (*is_ours)(int fd))
{
    char *directory = path_dirname(begin);
    const char *name = path_basename(begin);
    size_t n = strlen(name);
    DIR *dir = opendir(directory);
    for (struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        if (strncmp(e->d_name, name, n) != 0 || strlen(e->d_name) != n + RANDOM_LETTERS) continue;
        int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0) continue;
        if (is_left(fd) && (!is_ours || is_ours(fd))) (void)file_remove_at(dirfd(dir), e->d_name);
        close(fd);
    }
    if (dir) closedir(dir);
    free(directory);
}
