/* Replaces a directory atomically: see export_directory.h. */
#include "cli/export/export_directory.h"
#include "cli/export/export_language.h"
#include "cli/export/export_shards.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/base/platform.h"
#include "core/experiment/adapters.h"
#include "core/weights/weights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns whether a name is one of an export's files. */
static bool is_file_name(const char *name)
{
    static const char *const names[] = {
        ".",          "..",           "config.json", "preprocessor_config.json", "model.safetensors",
        EXPORT_INDEX, ADAPTER_CONFIG, ADAPTER_VALUES};
    int file, files, end = 0;
    bool known =
        export_language_file(name) ||
        (sscanf(name, "model-%5d-of-%5d.safetensors%n", &file, &files, &end) == 2 && end > 0 && !name[end]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) known |= strcmp(name, names[i]) == 0;
    return known;
}

/* Returns whether a name is that of a temporary file of one: .NAME.XXXXXX, .NAME.partial-XXXXXX (file.h). */
static bool is_temporary_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    size_t mark = dot && strncmp(dot, ".partial-", 9) == 0 ? 9 : 1;
    if (name[0] != '.' || !dot || dot == name || strlen(dot) != mark + 6) return false;
    char *own = xasprintf("%.*s", (int)(dot - name - 1), name + 1);
    bool known = is_file_name(own);
    free(own);
    return known;
}

/* Returns whether a directory has only files of an export, which may be unfinished. Closes it. */
static bool has_export_files(DIR *dir, bool unfinished)
{
    bool only = true;
    const struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL)
        only &= is_file_name(entry->d_name) || (unfinished && is_temporary_name(entry->d_name));
    if (dir) closedir(dir);
    return dir && only;
}

/* Returns whether the directory has only files of an export, and weights with its metadata. */
static bool is_export(const char *path)
{
    bool only = has_export_files(opendir(path), false);
    struct weights *weights = NULL;
    char *adapters = path_join(path, ADAPTER_VALUES);
    const char *values = file_absent(adapters) ? path : adapters;
    bool ours = only && weights_open(&weights, values, NULL) == 0 && weights_metadata(weights, "meopt.heads");
    weights_close(weights);
    free(adapters);
    return ours;
}

/* A condition of file_remove_left: a directory of an export that was killed. */
static bool is_unfinished(int fd)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = own < 0 ? NULL : fdopendir(own);
    if (own >= 0 && !dir) close(own);
    return has_export_files(dir, true);
}

/* Makes the directory of the files, PATH.partial-XXXXXX, and holds it. */
static int make_side(struct export_directory *d, const char *path, struct error *err)
{
    mode_t mask = umask(0);
    umask(mask);
    bool gone; /* another export has taken it for one that a killed process left */
    do {
        if (d->held >= 0) close(d->held);
        free(d->side);
        d->side = xasprintf("%s.partial-XXXXXX", path);
        bool made = mkdtemp(d->side) != NULL;
        d->held = made ? open(d->side, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        gone = made && (d->held < 0 ? errno == ENOENT : !file_hold(d->held));
        if (d->held < 0 && !gone) {
            int code = error_errno(err, EXIT_FAILED, "use a different directory with --out",
                                   "cannot create a directory");
            return error_at(err, d->side, 0, 0), code;
        }
    } while (gone);
    (void)fchmod(d->held, 0777 & ~mask); /* mkdtemp makes it accessible to its owner only */
    char *left = xasprintf("%s.partial-", path);
    file_remove_left(left, is_unfinished);
    free(left);
    return 0;
}

static bool is_empty(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, NULL);
    for (int i = 0; i < count; i++) free(entries[i]);
    if (count >= 0) free(entries);
    return count == 2;
}

int export_directory_begin(struct export_directory *d, const char *path, struct error *err)
{
    struct stat status;
    bool exists = lstat(path, &status) == 0;
    char *real = exists ? realpath(path, NULL) : NULL; /* keeps a link, and replaces its target */
    *d = (struct export_directory){NULL, NULL, -1};
    if (exists && (!real || !(is_empty(real) || is_export(real)))) {
        free(real);
        error_set(err, EXIT_FAILED, "use a different directory with --out, or move this one",
                  "exists and is not an export");
        return error_at(err, path, 0, 0);
    }
    char *final = real ? real : xstrdup(path);
    for (size_t n = strlen(final); n > 1 && final[n - 1] == '/'; n--) final[n - 1] = 0;
    char *parent = path_dirname(final);
    int code = file_make_dirs(parent, err);
    if (!code) code = make_side(d, final, err);
    free(parent);
    if (!code) {
        d->final = final;
        return 0;
    }
    if (d->held >= 0) close(d->held);
    free(d->side);
    free(final);
    *d = (struct export_directory){NULL, NULL, -1};
    return code;
}

/* Renames d->side to d->final. An earlier d->final becomes d->side. */
static int publish(struct export_directory *d, struct error *err)
{
    if (rename(d->side, d->final) == 0) return 0; /* d->final did not exist or was empty */
    if (errno != ENOTEMPTY && errno != EEXIST) goto failed;
    if (rename_exchange(d->side, d->final) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) goto failed;
    char *old = xasprintf("%s.old", d->side); /* this file system cannot exchange names */
    int failed = rename(d->final, old) || (rename(d->side, d->final) && (rename(old, d->final), 1)) ||
                 rename(old, d->side);
    free(old);
    if (!failed) return 0;
failed:
    error_errno(err, EXIT_FAILED, NULL, "cannot rename %s to it", path_basename(d->side));
    return error_at(err, d->final, 0, 0);
}

int export_directory_end(struct export_directory *d, int code, struct error *err)
{
    if (!d->side) return code;
    char *parent = path_dirname(d->final);
    struct error why = {0};
    if (!code && !file_absent(d->final)) code = export_language_keep(d->side, d->final, err);
    if (!code) code = file_sync_dir(d->side, err);
    if (!code) code = publish(d, err);
    if (!code) code = file_sync_dir(parent, err);
    if (file_remove_tree(d->side, &why) && !file_absent(d->side))
        log_warn("could not remove %s: %s", d->side, why.what);
    close(d->held);
    free(parent);
    free(d->final);
    free(d->side);
    *d = (struct export_directory){NULL, NULL, -1};
    return code;
}
