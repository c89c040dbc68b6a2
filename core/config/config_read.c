/* Configuration files: the text of one, and from it struct config (config_load.c). */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/config/document.h"
#include "core/config/value.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Suggests a configuration with a similar name in the directory. */
static void suggest_file(struct error *err, const char *path)
{
    enum { MOST = 256 };
    char *directory = path_dirname(path), *all[MOST], shown[256], *whole;
    int count = 0;
    DIR *dir = opendir(directory);
    for (struct dirent *e; dir && count < MOST && (e = readdir(dir)) != NULL;) {
        const char *ending = strrchr(e->d_name, '.');
        if (ending && (strcmp(ending, ".yaml") == 0 || strcmp(ending, ".yml") == 0))
            all[count++] = xstrdup(e->d_name);
    }
    if (dir) closedir(dir);
    const char *near = value_nearest(path_basename(path), (const char *const *)all, count);
    if (near) {
        whole = strchr(path, '/') ? path_join(directory, near) : xstrdup(near);
        snprintf(err->hint, sizeof err->hint, _("did you mean %s?"),
                 name_printable(shown, sizeof shown, whole));
        free(whole);
    }
    for (int i = 0; i < count; i++) free(all[i]);
    free(directory);
}

/* Reads like file_read or file_read_below, but checks the size first and returns the exit code for a
 * configuration. */
static int read_file(const char *directory, const char *name, char **text, size_t *bytes, struct error *err)
{
    struct stat st;
    char *path = directory ? path_join(directory, name) : xstrdup(name);
    int code;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > DOCUMENT_MAX_BYTES) {
        code = error_set(err, EXIT_CONFIG, "check the name of the file",
                         "has %lld bytes, a configuration at most %d", (long long)st.st_size,
                         DOCUMENT_MAX_BYTES);
        error_at(err, path, 0, 0);
    } else if (directory) code = file_read_below(directory, name, DOCUMENT_MAX_BYTES, text, bytes, err);
    else code = file_read(path, DOCUMENT_MAX_BYTES, text, bytes, err);
    if (code && err && file_absent(path)) suggest_file(err, path);
    free(path);
    if (code == EXIT_FAILED && err) err->code = EXIT_CONFIG;
    return code == EXIT_FAILED ? EXIT_CONFIG : code;
}

int config_read_file(const char *path, char **text, size_t *bytes, struct error *err)
{
    return read_file(NULL, path, text, bytes, err);
}

int config_read_below(const char *directory, const char *name, char **text, size_t *bytes, struct error *err)
{
    return read_file(directory, name, text, bytes, err);
}

static int load_file(struct config *config, const char *directory, const char *name, char **overrides,
                     int override_count, struct error *err)
{
    char *text;
    size_t bytes;
    *config = (struct config){0};
    int code = read_file(directory, name, &text, &bytes, err);
    if (code) return code;
    char *path = directory ? path_join(directory, name) : xstrdup(name);
    code = config_load_text(config, path, text, bytes, overrides, override_count, err);
    free(path);
    free(text);
    return code;
}

int config_load(struct config *config, const char *path, char **overrides, int override_count,
                struct error *err)
{
    return load_file(config, NULL, path, overrides, override_count, err);
}

int config_load_below(struct config *config, const char *directory, char **overrides, int override_count,
                      struct error *err)
{
    return load_file(config, directory, "config.yaml", overrides, override_count, err);
}
