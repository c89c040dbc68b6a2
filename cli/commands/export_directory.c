/* Replaces a directory atomically: see export_directory.h. */
#include "cli/commands/export_directory.h"
#include "cli/commands/export_language.h"
#include "cli/commands/export_shards.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/base/platform.h"
#include "core/train/adapters.h"
#include "core/weights/weights.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns whether the directory has only files of an export, and weights with its metadata. */
static bool is_export(const char *path)
{
    static const char *const names[] = {
        ".",          "..",           "config.json", "preprocessor_config.json", "model.safetensors",
        EXPORT_INDEX, ADAPTER_CONFIG, ADAPTER_VALUES};
    bool only = true;
    DIR *dir = opendir(path);
    const struct dirent *entry;
    while (dir && (entry = readdir(dir)) != NULL) {
        int file, files, end = 0;
        bool known = export_language_file(entry->d_name) ||
                     (sscanf(entry->d_name, "model-%5d-of-%5d.safetensors%n", &file, &files, &end) == 2 &&
                      end > 0 && !entry->d_name[end]);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            known |= strcmp(entry->d_name, names[i]) == 0;
        only &= known;
    }
    if (!dir) return false;
    closedir(dir);
    struct weights *weights = NULL;
    char *adapters = path_join(path, ADAPTER_VALUES);
    const char *values = file_absent(adapters) ? path : adapters;
    bool ours = only && weights_open(&weights, values, NULL) == 0 && weights_metadata(weights, "meopt.heads");
    weights_close(weights);
    free(adapters);
    return ours;
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
    *d = (struct export_directory){NULL, NULL};
    if (exists && (!real || !(is_empty(real) || is_export(real)))) {
        free(real);
        error_set(err, EXIT_FAILED, "use a different directory with --out, or move this one",
                  "exists and is not an export");
        return error_at(err, path, 0, 0);
    }
    char *final = real ? real : xstrdup(path);
    for (size_t n = strlen(final); n > 1 && final[n - 1] == '/'; n--) final[n - 1] = 0;
    char *parent = path_dirname(final), *side = xasprintf("%s.partial-XXXXXX", final);
    int code = file_make_dirs(parent, err);
    if (!code && !mkdtemp(side)) {
        code = error_errno(err, EXIT_FAILED, "use a different directory with --out",
                           "cannot create a directory");
        error_at(err, side, 0, 0);
    }
    mode_t mask = umask(0);
    umask(mask);
    if (!code) (void)chmod(side, 0777 & ~mask); /* mkdtemp makes it accessible to its owner only */
    free(parent);
    if (code) {
        free(final);
        free(side);
        return code;
    }
    *d = (struct export_directory){final, side};
    return 0;
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
    if (!code) code = file_sync_dir(d->side, err);
    if (!code) code = publish(d, err);
    if (!code) code = file_sync_dir(parent, err);
    if (file_remove_tree(d->side, &why)) log_warn("could not remove %s: %s", d->side, why.what);
    free(parent);
    free(d->final);
    free(d->side);
    *d = (struct export_directory){NULL, NULL};
    return code;
}
