/* Names and lists of files of a hub: see hub.h. */
#include "fetch/hub.h"

#include "core/base/file.h"
#include "core/base/json.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { HUB_PATH = 1024, HUB_FILES = 1000000 };

bool hub_is_name(const char *text) { return strncmp(text, "hf:", 3) == 0; }

static bool repository_part(const char *part, size_t n)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (n == 0 || n > 96 || strspn(part, allowed) < n || strchr(".-", part[0]) || strchr(".-", part[n - 1]))
        return false;
    for (size_t i = 1; i < n; i++)
        if (part[i] == part[i - 1] && strchr(".-", part[i])) return false;
    return true;
}

int hub_name_parse(struct hub_name *name, const char *text, struct error *err)
{
    *name = (struct hub_name){.revision = "main"};
    const char *repo = text + 3;
    char shown[256];
    if (strncmp(repo, "datasets/", 9) == 0) name->dataset = true, repo += 9;
    size_t n = strcspn(repo, "@"), owner = strcspn(repo, "/@");
    bool good = n < sizeof name->repo;
    if (owner < n)
        good = good && repository_part(repo, owner) && repository_part(repo + owner + 1, n - owner - 1);
    else good = good && repository_part(repo, n);
    if (good) memcpy(name->repo, repo, n);
    if (good && repo[n] == '@') {
        good = strlen(repo + n + 1) < sizeof name->revision && !hub_path_refused(repo + n + 1);
        if (good) strcpy(name->revision, repo + n + 1);
    }
    if (good) return 0;
    return error_set(err, EXIT_USAGE, "write hf:OWNER/REPO, hf:OWNER/REPO@REVISION or hf:datasets/OWNER/REPO",
                     "'%s' is not the name of a repository", name_printable(shown, sizeof shown, text));
}

const char *hub_path_refused(const char *path)
{
    size_t n = strlen(path);
    int levels = 0;
    char shown[4 * HUB_PATH + 8];
    if (n == 0) return _("empty name");
    if (n > HUB_PATH) return _("path longer than 1024 bytes");
    if (path[0] == '/') return _("absolute path");
    if (strcmp(name_printable(shown, sizeof shown, path), path) != 0)
        return _("control character or invalid UTF-8 in the name");
    for (const char *p = path;; p++) {
        size_t length = strcspn(p, "/");
        if (length == 0) return _("empty name");
        if (length > 255) return _("component longer than 255 bytes");
        if (p[0] == '.' && (length == 1 || (length == 2 && p[1] == '.'))) return _("'..' in the path");
        if (++levels > 32) return _("more than 32 directory levels");
        p += length;
        if (!*p) return NULL;
    }
}

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

static int wrong_list(struct error *err, const char *why)
{
    return error_set(err, EXIT_INTEGRITY, "check HF_ENDPOINT", "the hub's list of files: %s", why);
}

static int add_file(struct hub_files *files, const json_t *entry, struct error *err)
{
    const json_t *lfs = json_object_get(entry, "lfs"), *from = json_is_object(lfs) ? lfs : entry,
                 *size = json_object_get(from, "size");
    const char *path = json_string_value(json_object_get(entry, "path")),
               *id = json_string_value(json_object_get(from, "oid"));
    if (!path || strlen(path) != json_string_length(json_object_get(entry, "path")))
        return wrong_list(err, _("a file has no name"));
    const char *refused = hub_path_refused(path);
    char shown[256];
    if (refused)
        return error_set(err, EXIT_INTEGRITY, NULL, "refused the file '%s': %s",
                         name_printable(shown, sizeof shown, path), refused);
    if (!hexadecimal(id, from == lfs ? 64 : 40)) return wrong_list(err, _("a file has no checksum"));
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        json_integer_value(size) > INT64_MAX / 4 - files->bytes)
        return wrong_list(err, _("the size of a file is not possible"));
    if (files->count >= HUB_FILES) return wrong_list(err, _("more than 1,000,000 files"));
    if ((files->count & (files->count - 1)) == 0)
        files->all = xrealloc(files->all, (size_t)(files->count ? 2 * files->count : 1) * sizeof *files->all);
    struct hub_file *f = &files->all[files->count++];
    *f = (struct hub_file){.path = xstrdup(path), .size = json_integer_value(size), .lfs = from == lfs};
    strcpy(f->id, id);
    files->bytes += f->size;
    return 0;
}

int hub_files_add(struct hub_files *files, const char *json, size_t bytes, struct error *err)
{
    json_error_t why;
    json_t *page = json_parse(json, bytes, JSON_ALLOW_NUL, &why);
    int code = json_is_array(page) ? 0 : wrong_list(err, _("it is not a JSON array"));
    for (size_t i = 0; i < json_array_size(page) && !code; i++) {
        const json_t *entry = json_array_get(page, i);
        const char *type = json_string_value(json_object_get(entry, "type"));
        if (type && strcmp(type, "file") == 0) code = add_file(files, entry, err);
    }
    json_decref(page);
    return code;
}

int hub_commit_parse(char commit[41], const char *json, size_t bytes, struct error *err)
{
    json_error_t why;
    json_t *about = json_parse(json, bytes, 0, &why);
    const char *sha = json_string_value(json_object_get(about, "sha"));
    int code = 0;
    if (hexadecimal(sha, 40)) strcpy(commit, sha);
    else
        code = error_set(err, EXIT_INTEGRITY, "check HF_ENDPOINT", "the hub names no commit of the revision");
    json_decref(about);
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
