/* Names and lists of files of a hub: see hub.h. */
#include "fetch/hub.h"

#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HUB_FILES = 1000000, HUB_VALUES = 2000000 };

void hub_files_free(struct hub_files *files)
{
    for (int i = 0; i < files->count; i++) free(files->all[i].path);
    free(files->all);
    *files = (struct hub_files){0};
}

static bool hexadecimal(const char *text, size_t n)
{
    return text && strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

static int wrong_list(struct error *err, enum hub_kind kind, const char *why)
{
    char hint[80];
    snprintf(hint, sizeof hint, _("check %s"), hub_rows[kind].endpoint);
    return error_set(err, EXIT_INTEGRITY, hint, "the hub's list of files: %s", why);
}

static struct hub_file *new_file(struct hub_files *files, const char *path, int64_t size)
{
    if ((files->count & (files->count - 1)) == 0)
        files->all = xrealloc(files->all, (size_t)(files->count ? 2 * files->count : 1) * sizeof *files->all);
    struct hub_file *f = &files->all[files->count++];
    *f = (struct hub_file){.path = xstrdup(path), .size = size};
    files->bytes += size;
    return f;
}

/* Names of one hub's members: of a file and, at Hugging Face Hub, of its object "lfs". */
static const struct {
    const char *type, *file, *path, *size, *id;
} members[] = {[HUB_HUGGING_FACE] = {"type", "file", "path", "size", "oid"},
               [HUB_MODELSCOPE] = {"Type", "blob", "Path", "Size", "Sha256"}};

static int add_file(struct hub_files *files, enum hub_kind kind, const json_t *entry, struct error *err)
{
    const json_t *lfs = kind == HUB_HUGGING_FACE ? json_object_get(entry, "lfs") : entry;
    const json_t *from = json_is_object(lfs) ? lfs : entry, *size = json_object_get(from, members[kind].size),
                 *named = json_object_get(entry, members[kind].path);
    const char *path = json_string_value(named),
               *id = json_string_value(json_object_get(from, members[kind].id));
    if (!path || strlen(path) != json_string_length(named))
        return wrong_list(err, kind, _("a file has no name"));
    const char *refused = hub_path_refused(path);
    char shown[256];
    if (refused)
        return error_set(err, EXIT_INTEGRITY, NULL, "refused the file '%s': %s",
                         name_printable(shown, sizeof shown, path), refused);
    if (!hexadecimal(id, from == lfs ? 64 : 40)) return wrong_list(err, kind, _("a file has no checksum"));
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        json_integer_value(size) > INT64_MAX / 4 - files->bytes)
        return wrong_list(err, kind, _("the size of a file is not possible"));
    if (files->count >= HUB_FILES) return wrong_list(err, kind, _("more than 1,000,000 files"));
    struct hub_file *f = new_file(files, path, json_integer_value(size));
    f->lfs = from == lfs;
    strcpy(f->id, id);
    return 0;
}

/* Parses an answer with at most HUB_VALUES values, as "[{},{},..." takes 50 times its size in memory. */
static json_t *parse_answer(const char *json, size_t bytes, size_t flags)
{
    json_error_t why;
    size_t values = 0;
    for (const char *p = json, *end = json + bytes; p < end; p++)
        values += *p == ',' || *p == '{' || *p == '[';
    return values > HUB_VALUES ? NULL : json_parse(json, bytes, flags, &why);
}

int hub_files_add(struct hub_files *files, enum hub_kind kind, const char *json, size_t bytes, int *entries,
                  struct error *err)
{
    json_t *page = parse_answer(json, bytes, JSON_ALLOW_NUL);
    const json_t *list = page, *data = json_object_get(page, "Data");
    if (kind == HUB_MODELSCOPE) list = json_is_array(data) ? data : json_object_get(data, "Files");
    int code =
        json_is_array(list) ? 0 : wrong_list(err, kind, _("it is not a JSON array, or has too many values"));
    *entries = (int)json_array_size(list);
    for (size_t i = 0; i < json_array_size(list) && !code; i++) {
        const json_t *entry = json_array_get(list, i);
        const char *type = json_string_value(json_object_get(entry, members[kind].type));
        if (type && strcmp(type, members[kind].file) == 0) code = add_file(files, kind, entry, err);
    }
    json_decref(page);
    return code;
}

int hub_commit_parse(char commit[HUB_REVISION], const char *json, size_t bytes, struct error *err)
{
    json_t *about = parse_answer(json, bytes, 0);
    const char *sha = json_string_value(json_object_get(about, "sha"));
    int code = 0;
    if (hub_is_commit(sha)) strcpy(commit, sha);
    else
        code = error_set(err, EXIT_INTEGRITY, "check HF_ENDPOINT", "the hub names no commit of the revision");
    json_decref(about);
    return code;
}

static int list_cached(struct hub_files *files, const char *tree, const char *below, int level,
                       struct error *err)
{
    char *directory = below[0] ? path_join(tree, below) : xstrdup(tree), target[4096];
    DIR *entries = opendir(directory);
    int code = entries ? 0
                       : error_errno(err, EXIT_NETWORK, "unset HF_HUB_OFFLINE",
                                     "cannot open the directory %s", directory);
    for (struct dirent *e; !code && (e = readdir(entries)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        char *path = below[0] ? path_join(below, e->d_name) : xstrdup(e->d_name),
             *whole = path_join(tree, path);
        ssize_t n = readlink(whole, target, sizeof target - 1);
        struct stat st;
        target[n > 0 ? n : 0] = 0;
        const char *id = path_basename(target), *refused = hub_path_refused(path);
        if (refused || stat(whole, &st) != 0)
            code = error_set(err, EXIT_NETWORK, "unset HF_HUB_OFFLINE, and run the same command again",
                             "%s: the snapshot is not complete", whole);
        else if (S_ISDIR(st.st_mode) && n < 0 && level < 32)
            code = list_cached(files, tree, path, level + 1, err);
        else if (S_ISREG(st.st_mode)) {
            struct hub_file *f = new_file(files, path, st.st_size);
            f->lfs = hexadecimal(id, 64);
            if (f->lfs || hexadecimal(id, 40)) strcpy(f->id, id);
        }
        free(whole);
        free(path);
    }
    if (entries) closedir(entries);
    free(directory);
    return code;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

int hub_list_cached(const struct hub *hub, const struct hub_name *name, char commit[HUB_REVISION],
                    struct hub_files *files, struct error *err)
{
    char *tree = hub_cached_snapshot(commit, hub->cache, name);
    if (!tree)
        return error_set(err, EXIT_NETWORK, "unset HF_HUB_OFFLINE",
                         "HF_HUB_OFFLINE forbids requests, and the cache does not have %s@%s", name->repo,
                         name->revision);
    int code = list_cached(files, tree, "", 0, err);
    if (files->count) qsort(files->all, (size_t)files->count, sizeof *files->all, by_path);
    free(tree);
    return code;
}

static bool matches(const char *patterns, const char *path)
{
    for (const char *p = patterns; *p;) {
        size_t n = strcspn(p, ",");
        char *one = xasprintf("%.*s%s", (int)n, p, n && p[n - 1] == '/' ? "*" : "");
        bool found = n && fnmatch(one, path, 0) == 0;
        free(one);
        if (found) return true;
        p += n;
        if (*p) p++;
    }
    return false;
}

void hub_files_select(struct hub_files *files, const char *include, const char *exclude)
{
    int kept = 0;
    files->bytes = 0;
    for (int i = 0; i < files->count; i++) {
        struct hub_file *f = &files->all[i];
        if ((include && !matches(include, f->path)) || (exclude && matches(exclude, f->path))) {
            free(f->path);
            continue;
        }
        files->bytes += f->size;
        files->all[kept++] = *f;
    }
    files->count = kept;
}
