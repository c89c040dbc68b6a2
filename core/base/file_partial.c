/* Unfinished files and directories that a killed process has left: see file.h. */
#include "core/base/file.h"
#include "core/base/path.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

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
