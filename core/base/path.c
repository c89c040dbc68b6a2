/* Paths: see path.h. */
#include "core/base/memory.h"
#include "core/base/path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *path_xdg(const char *variable, const char *fallback, const char *file)
{
    const char *base = getenv(variable), *home = getenv("HOME");
    if (base && base[0] == '/') return xasprintf("%s/meopt/%s", base, file);
    if (home && home[0] == '/') return xasprintf("%s/%s/meopt/%s", home, fallback, file);
    return NULL;
}

char *path_join(const char *a, const char *b)
{
    if (b[0] == '/' || !a[0]) return xstrdup(b);
    size_t n = strlen(a);
    return xasprintf("%s%s%s", a, a[n - 1] == '/' ? "" : "/", b);
}

char *path_dirname(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return xstrdup(".");
    if (slash == path) return xstrdup("/");
    char *dir = xstrdup(path);
    dir[slash - path] = 0;
    return dir;
}

const char *path_basename(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

char *path_shipped_in(const char *kind, const char *name)
{
    static const char *const places[] = {"share", "../share",
                                         "../../share"}; /* build, installed prefix, test build */
    char exe[4096], *found = NULL;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *directory = path_dirname(exe);
    for (size_t i = 0; i < sizeof places / sizeof *places && !found; i++) {
        char *path = xasprintf("%s/%s/%s/%s", directory, places[i], kind, name);
        found = realpath(path, NULL);
        free(path);
    }
    free(directory);
    return found;
}

char *path_shipped(const char *name) { return path_shipped_in("meopt", name); }

bool path_is_dead_link(const char *path, char *to, size_t size)
{
    char raw[1024];
    ssize_t n = readlink(path, raw, sizeof raw - 1);
    if (n < 0 || access(path, F_OK) == 0 || errno != ENOENT) return false;
    raw[n] = 0;
    name_printable(to, size, raw);
    return true;
}

char *path_directory(const char *path, struct error *err)
{
    struct stat st;
    if (stat(path, &st) == 0) return S_ISDIR(st.st_mode) ? xstrdup(path) : path_dirname(path);
    if (errno == ENOENT || errno == ENOTDIR) return path_dirname(path);
    error_errno(err, EXIT_FAILED, NULL, "cannot examine this file");
    error_at(err, path, 0, 0);
    return NULL;
}
