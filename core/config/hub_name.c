/* Names of repositories and their snapshots in the cache: see hub_name.h. */
#include "core/config/hub_name.h"

#include "core/base/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HUB_PATH = 1024 };

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

char *hub_cache(void)
{
    char *home = hub_home(), *cache = directory_of("HF_HUB_CACHE", home, "hub");
    free(home);
    return cache;
}

char *hub_repository(const char *cache, const struct hub_name *name)
{
    int owner = (int)strcspn(name->repo, "/");
    const char *kind = name->dataset ? "datasets" : "models";
    if (!name->repo[owner]) return xasprintf("%s/%s--%s", cache, kind, name->repo);
    return xasprintf("%s/%s--%.*s--%s", cache, kind, owner, name->repo, name->repo + owner + 1);
}

bool hub_cached_commit(char commit[41], const char *repository, const char *revision)
{
    char *ref = xasprintf("%s/refs/%s", repository, revision), *text = NULL, *snapshot;
    size_t bytes = 0;
    struct stat st;
    if (hub_is_commit(revision)) text = xstrdup(revision);
    else if (file_read(ref, 4096, &text, &bytes, NULL) != 0) text = NULL;
    free(ref);
    if (text) text[strcspn(text, " \t\r\n")] = 0;
    bool found = hub_is_commit(text);
    if (found) {
        strcpy(commit, text);
        snapshot = xasprintf("%s/snapshots/%s", repository, commit);
        found = stat(snapshot, &st) == 0 && S_ISDIR(st.st_mode);
        free(snapshot);
    }
    free(text);
    return found;
}

static char *not_cached(const struct hub_name *name, struct error *err)
{
    const char *kind = name->dataset ? "datasets/" : "";
    char hint[480];
    snprintf(hint, sizeof hint, "meopt fetch hf:%s%s@%s", kind, name->repo, name->revision);
    error_set(err, EXIT_CONFIG, hint, "hf:%s%s@%s is not in the cache of Hugging Face Hub", kind, name->repo,
              name->revision);
    return NULL;
}

char *hub_resolve(const char *text, struct error *err)
{
    const char *repo = text + (strncmp(text, "hf:datasets/", 12) == 0 ? 12 : 3), *end = strchr(repo, '@');
    bool revised = end;
    if (!end && (end = strchr(repo, '/'))) end = strchr(end + 1, '/');
    const char *rest = end ? end + 1 : NULL;
    char *head = end ? xasprintf("%.*s", (int)(end - text), text) : xstrdup(text), commit[41], shown[256];
    struct hub_name name;
    int code = hub_name_parse(&name, head, err);
    free(head);
    if (code) return NULL;
    char *cache = hub_cache(), *repository = hub_repository(cache, &name), *path = NULL;
    bool found = !revised && hub_cached_commit(commit, repository, name.revision);
    /* the shortest revision that the cache has: a ref is a file, so none is the directory of another one */
    for (size_t n = 0; revised && !found && !code; n++) {
        n += strcspn(rest + n, "/");
        struct hub_name longer = name;
        head = xasprintf("hf:%s%s@%.*s", name.dataset ? "datasets/" : "", name.repo, (int)n, rest);
        code = hub_name_parse(&longer, head, err);
        free(head);
        found = !code && hub_cached_commit(commit, repository, longer.revision);
        if (found || strcmp(name.revision, "main") == 0) name = longer;
        if (found || code || !rest[n]) {
            rest = rest[n] ? rest + n + 1 : NULL;
            break;
        }
    }
    const char *refused = rest && found ? hub_path_refused(rest) : NULL;
    struct stat st;
    if (code) goto done;
    if (!found) {
        not_cached(&name, err);
        goto done;
    }
    if (refused) {
        error_set(err, EXIT_USAGE, NULL, "refused the file '%s': %s",
                  name_printable(shown, sizeof shown, rest), refused);
        goto done;
    }
    path = xasprintf("%s/snapshots/%s%s%s", repository, commit, rest ? "/" : "", rest ? rest : "");
    if (path[0] != '/') {
        char *whole = realpath(path, NULL);
        free(path);
        path = whole;
    }
    if (!path || stat(path, &st) != 0) {
        char hint[900];
        snprintf(hint, sizeof hint, "meopt fetch hf:%s%s@%s --include '%.400s'",
                 name.dataset ? "datasets/" : "", name.repo, name.revision, rest ? rest : "*");
        error_set(err, EXIT_CONFIG, hint, "the cache of Hugging Face Hub has no file '%s' of hf:%s@%s",
                  name_printable(shown, sizeof shown, rest ? rest : ""), name.repo, name.revision);
        free(path);
        path = NULL;
    }
done:
    free(repository);
    free(cache);
    return path;
}
