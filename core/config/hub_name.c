/* Names of repositories and their snapshots in the cache: see hub_name.h. */
#include "core/config/hub_name.h"

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HUB_PATH = 1024 };

const struct hub_row hub_rows[] = {
    [HUB_HUGGING_FACE] = {"hf:", "Hugging Face Hub", "main", "HF_ENDPOINT", "https://huggingface.co",
                          "HF_TOKEN", "HF_HUB_CACHE"},
    [HUB_MODELSCOPE] = {"ms:", "ModelScope", "master", "MODELSCOPE_ENDPOINT", "https://modelscope.cn",
                        "MODELSCOPE_API_TOKEN", "MODELSCOPE_CACHE"}};

static int kind_of(const char *text)
{
    for (int i = 0; i < HUB_KINDS; i++)
        if (strncmp(text, hub_rows[i].prefix, 3) == 0) return i;
    return -1;
}

bool hub_is_name(const char *text) { return kind_of(text) >= 0; }

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
    int kind = kind_of(text);
    *name = (struct hub_name){.kind = kind > 0 ? (enum hub_kind)kind : HUB_HUGGING_FACE};
    strcpy(name->revision, hub_rows[name->kind].revision);
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
    /* a name of ModelScope always has an owner */
    if (good && kind >= 0 && (kind != HUB_MODELSCOPE || owner < n)) return 0;
    return error_set(
        err, EXIT_USAGE,
        "write hf:OWNER/REPO, hf:OWNER/REPO@REVISION or hf:datasets/OWNER/REPO; ms: for ModelScope",
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

bool hub_is_commit(const char *text)
{
    return text && strlen(text) == 40 && strspn(text, "0123456789abcdef") == 40;
}

/* Value of a variable as a directory, or DIRECTORY/NAME if it is not set. "~/" is the home directory. */
static char *directory_of(const char *variable, const char *directory, const char *name)
{
    const char *text = getenv(variable), *user = getenv("HOME");
    if (!text || !*text) return path_join(directory, name);
    return text[0] == '~' && text[1] == '/' && user ? path_join(user, text + 2) : xstrdup(text);
}

char *hub_home(void)
{
    const char *user = getenv("HOME");
    char *base = directory_of("XDG_CACHE_HOME", user ? user : "", ".cache");
    char *home = directory_of("HF_HOME", base, "huggingface");
    free(base);
    return home;
}

char *hub_cache(enum hub_kind kind)
{
    const char *user = getenv("HOME"), *variable = hub_rows[kind].cache, *given = getenv(variable);
    char *base = kind == HUB_HUGGING_FACE ? hub_home() : path_join(user ? user : "", ".cache");
    if (kind == HUB_HUGGING_FACE && !(given && *given))
        variable = "HUGGINGFACE_HUB_CACHE"; /* its older name */
    char *cache = directory_of(variable, base, kind == HUB_HUGGING_FACE ? "hub" : "modelscope");
    free(base);
    return cache;
}

char *hub_repository(const char *cache, const struct hub_name *name)
{
    int owner = (int)strcspn(name->repo, "/");
    const char *kind = name->dataset ? "datasets" : "models",
               *between = name->kind == HUB_MODELSCOPE ? "/" : "--";
    if (!name->repo[owner]) return xasprintf("%s/%s%s%s", cache, kind, between, name->repo);
    return xasprintf("%s/%s%s%.*s--%s", cache, kind, between, owner, name->repo, name->repo + owner + 1);
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Directory that modelscope up to 1.37 kept a repository in: "." of its name is "___". NULL: none. */
static char *older_snapshot(const char *cache, const struct hub_name *name)
{
    int owner = (int)strcspn(name->repo, "/");
    char safe[3 * sizeof name->repo], *to = safe;
    for (const char *p = name->repo + owner + 1; *p; p++) {
        if (*p == '.') to = stpcpy(to, "___");
        else *to++ = *p;
    }
    *to = 0;
    for (int hub = 0; hub < 2; hub++) {
        char *path = xasprintf("%s%s/%s/%.*s/%s", cache, hub ? "/hub" : "",
                               name->dataset ? "datasets" : "models", owner, name->repo, safe);
        if (is_directory(path)) return path;
        free(path);
    }
    return NULL;
}

char *hub_cached_snapshot(char commit[HUB_REVISION], const char *cache, const struct hub_name *name)
{
    char *repository = hub_repository(cache, name), *text = NULL, *snapshot = NULL;
    size_t bytes = 0;
    if (name->kind == HUB_MODELSCOPE || hub_is_commit(name->revision)) text = xstrdup(name->revision);
    else {
        char *ref = xasprintf("%s/refs/%s", repository, name->revision);
        if (file_read(ref, 4096, &text, &bytes, NULL) != 0) text = NULL;
        free(ref);
        if (text) text[strcspn(text, " \t\r\n")] = 0;
        if (!hub_is_commit(text)) free(text), text = NULL;
    }
    if (text) {
        strcpy(commit, text);
        snapshot = xasprintf("%s/snapshots/%s", repository, commit);
        if (!is_directory(snapshot)) free(snapshot), snapshot = NULL;
    }
    if (!snapshot && name->kind == HUB_MODELSCOPE &&
        strcmp(name->revision, hub_rows[name->kind].revision) == 0)
        snapshot = older_snapshot(cache, name);
    free(text);
    free(repository);
    return snapshot;
}

char *hub_resolve(const char *text, struct error *err)
{
    const char *repo = text + (strncmp(text + 3, "datasets/", 9) == 0 ? 12 : 3), *end = strchr(repo, '@');
    bool revised = end;
    if (!end && (end = strchr(repo, '/'))) end = strchr(end + 1, '/');
    const char *rest = end ? end + 1 : NULL;
    char *head = end ? xasprintf("%.*s", (int)(end - text), text) : xstrdup(text), commit[HUB_REVISION];
    char shown[256], full[460], hint[900];
    struct hub_name name;
    int code = hub_name_parse(&name, head, err);
    char *cache = hub_cache(name.kind), *path = NULL, *snapshot = NULL;
    if (!code && !revised) snapshot = hub_cached_snapshot(commit, cache, &name);
    /* the shortest revision that the cache has: a ref is a file, so none is the directory of another one */
    for (size_t n = 0; revised && !snapshot && !code; n++) {
        bool first = n == 0;
        struct hub_name longer;
        n += strcspn(rest + n, "/");
        char *one = xasprintf("%s@%.*s", head, (int)n, rest);
        code = hub_name_parse(&longer, one, err);
        free(one);
        if (!code) snapshot = hub_cached_snapshot(commit, cache, &longer);
        if (snapshot || first) name = longer;
        if (!snapshot && rest[n]) continue;
        rest = rest[n] ? rest + n + 1 : NULL;
        break;
    }
    free(cache);
    free(head);
    if (code) return NULL;
    const char *title = hub_rows[name.kind].title, *refused = rest ? hub_path_refused(rest) : NULL;
    snprintf(full, sizeof full, "%s%s%s@%s", hub_rows[name.kind].prefix, name.dataset ? "datasets/" : "",
             name.repo, name.revision);
    snprintf(hint, sizeof hint, "meopt fetch %s", full);
    if (!snapshot)
        return error_set(err, EXIT_CONFIG, hint, "%s is not in the cache of %s", full, title), NULL;
    name_printable(shown, sizeof shown, rest ? rest : "");
    if (refused) error_set(err, EXIT_CONFIG, NULL, "refused the file '%s': %s", shown, refused);
    else {
        char *named = rest ? path_join(snapshot, rest) : xstrdup(snapshot);
        path = named[0] == '/' && access(named, F_OK) == 0 ? xstrdup(named) : realpath(named, NULL);
        free(named);
        snprintf(hint, sizeof hint, "meopt fetch %s --include '%.200s'", full, shown);
        if (!path)
            error_set(err, EXIT_CONFIG, hint, "the cache of %s has no file '%s' of %s", title, shown, full);
    }
    free(snapshot);
    return path;
}
