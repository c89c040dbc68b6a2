/* Finds runs by name: see run_name.h. */
#include "cli/run_name.h"
#include "cli/command.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/nearest.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

char **run_names(const char *directory, bool check, int *count)
{
    DIR *dir = opendir(directory);
    char **names = NULL;
    int capacity = 0, problem = dir ? 0 : errno;
    *count = dir ? 0 : -1;
    for (struct dirent *e; dir && (errno = 0, e = readdir(dir), problem = errno, e);) {
        if (e->d_name[0] == '.' || (e->d_type != DT_DIR && e->d_type != DT_LNK && e->d_type != DT_UNKNOWN))
            continue;
        char *config = xasprintf("%s/config.yaml", e->d_name);
        errno = 0; /* a directory that cannot be read may be a run */
        if (!check || faccessat(dirfd(dir), config, F_OK, 0) == 0 ||
            (errno != ENOENT && errno != ENOTDIR && errno != ELOOP)) {
            if (*count == capacity)
                names = xrealloc(names, (size_t)(capacity = capacity ? 2 * capacity : 16) * sizeof *names);
            names[(*count)++] = xstrdup(e->d_name);
        }
        free(config);
    }
    if (dir) closedir(dir);
    if (*count > 0) qsort(names, (size_t)*count, sizeof *names, by_name);
    if (problem) { /* a partial list is not returned */
        run_names_free(names, *count);
        names = NULL;
        *count = -1;
    }
    errno = problem;
    return names;
}

void run_names_free(char **names, int count)
{
    for (int i = 0; i < count; i++) free(names[i]);
    free(names);
}

struct names {
    char **all;
    int count;
};

static const char *name_at(const void *table, int i)
{
    const struct names *names = table;
    return i < names->count ? names->all[i] : NULL;
}

/* Lists the names with that prefix, as many as fit. */
static void list_matches(char *dst, size_t size, const struct names *names, const char *prefix)
{
    size_t used = 0;
    for (int i = 0; i < names->count; i++) {
        char shown[256];
        if (strncmp(names->all[i], prefix, strlen(prefix)) != 0) continue;
        name_printable(shown, sizeof shown, names->all[i]);
        if (used + strlen(shown) + 8 > size) {
            snprintf(dst + used, size - used, ", ...");
            return;
        }
        used += (size_t)snprintf(dst + used, size - used, "%s%s", used ? ", " : _("one of "), shown);
    }
}

/* Returns whether a name is that of a run of a sweep ("eva-lr=1.0e-5"), or of an array ("eva-3"). */
static bool is_run_of(const char *name, const char *base, bool array)
{
    static const char key[] = "abcdefghijklmnopqrstuvwxyz_0123456789", digits[] = "0123456789";
    size_t n = strlen(base);
    if (strncmp(name, base, n) != 0 || name[n] != '-') return false;
    const char *rest = name + n + 1, *end = rest + strspn(rest, array ? digits : key);
    return end > rest && (array ? !*end : *end == '=' && end[1]);
}

char **run_sweep(const char *word, const char *parent, int *count)
{
    size_t n = strlen(word);
    while (n > 1 && word[n - 1] == '/') n--;
    char *bare = strndup(word, n),
         *within = strchr(bare, '/') ? path_dirname(bare) : xstrdup(parent ? parent : "runs"),
         *whole = path_join(within, path_basename(bare)), **found = NULL;
    int all = 0;
    *count = 0;
    char **names = file_absent(bare) && file_absent(whole) ? run_names(within, true, &all) : NULL;
    for (int array = 0; array < 2 && !found; array++) {
        found = xcalloc((size_t)(all > 0 ? all : 0) + 1, sizeof *found);
        for (int i = 0; i < all; i++)
            if (is_run_of(names[i], path_basename(bare), array))
                found[(*count)++] = path_join(within, names[i]);
        if (*count > array) continue;
        run_names_free(found, *count);
        found = NULL;
        *count = 0;
    }
    run_names_free(names, all);
    free(bare);
    free(within);
    free(whole);
    return found;
}

char *run_named(const char *word, const char *parent, int *code, struct error *err)
{
    *code = 0;
    size_t n = strlen(word);
    while (n > 1 && word[n - 1] == '/') n--;
    if (!file_absent(word) || n == 0) return xstrdup(word);
    char *bare = strndup(word, n),
         *within = strchr(bare, '/') ? path_dirname(bare) : xstrdup(parent ? parent : "runs");
    const char *prefix = path_basename(bare);
    char *found = path_join(within, prefix), hint[400] = N_("to list the runs: meopt runs");
    struct names names;
    names.all = run_names(within, true, &names.count);
    int problem = names.count < 0 && errno != ENOENT && errno != ENOTDIR ? errno : 0;
    int same = 0, last = -1;
    if (file_absent(found)) {
        free(found);
        found = NULL;
        for (int i = 0; i < names.count; i++)
            if (strncmp(names.all[i], prefix, strlen(prefix)) == 0) same++, last = i;
        const char *near = same ? NULL : nearest_name(prefix, name_at, &names);
        if (same == 1) found = path_join(within, names.all[last]);
        else if (same > 1) list_matches(hint, sizeof hint, &names, prefix);
        else if (near)
            snprintf(hint, sizeof hint, _("did you mean %.300s? to list the runs: meopt runs"), near);
        char shown[256], place[256];
        name_printable(shown, sizeof shown, word);
        errno = problem;
        if (problem)
            *code = error_errno(err, EXIT_FAILED, "check its permissions",
                                "no run '%s' here, and %s cannot be listed", shown,
                                name_printable(place, sizeof place, within));
        else if (!found && same > 1)
            *code = error_set(err, EXIT_USAGE, hint, "'%s' is a prefix of %d runs", shown, same);
        else if (!found)
            *code = error_set(err, EXIT_FAILED, hint, "no run '%s' here or in %s", shown,
                              name_printable(place, sizeof place, within));
    }
    run_names_free(names.all, names.count);
    free(within);
    free(bare);
    errno = problem;
    return found;
}
