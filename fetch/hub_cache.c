/* The environment of a hub and its cache: see hub.h. */
#include "fetch/hub.h"

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/retry.h"
#include "fetch/libcrypto.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *environment(const char *name)
{
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* Reads a token: printable characters without spaces, in the environment or a file. NULL: none. */
static char *read_token(enum hub_kind kind)
{
    const char *given = environment(hub_rows[kind].token);
    if (!given && kind == HUB_HUGGING_FACE)
        given = environment("HUGGING_FACE_HUB_TOKEN"); /* its older name */
    char *text = given ? xstrdup(given) : NULL;
    if (!text && kind == HUB_HUGGING_FACE) {
        size_t bytes = 0;
        char *home = hub_home();
        char *path =
            environment("HF_TOKEN_PATH") ? xstrdup(getenv("HF_TOKEN_PATH")) : path_join(home, "token");
        if (file_read(path, 4096, &text, &bytes, NULL) != 0) text = NULL;
        free(path);
        free(home);
    }
    if (text) text[strcspn(text, " \t\r\n")] = 0;
    for (const char *p = text; p && *p; p++)
        if (*p < '!' || *p > '~') text[0] = 0;
    if (text && !*text) free(text), text = NULL;
    return text;
}

static bool loopback(const char *url)
{
    static const char *const hosts[] = {"127.0.0.1", "localhost", "[::1]"};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        size_t n = strlen(hosts[i]);
        if (strncasecmp(url + 7, hosts[i], n) == 0 && strchr(":/", url[7 + n])) return true;
    }
    return false;
}

static char *endpoint_of(enum hub_kind kind)
{
    const char *text = environment(hub_rows[kind].endpoint);
    if (!text) text = hub_rows[kind].url;
    /* ModelScope's may be a host alone */
    char *endpoint =
        xasprintf("%s%s", kind == HUB_MODELSCOPE && !strstr(text, "://") ? "https://" : "", text);
    for (size_t n = strlen(endpoint); n && endpoint[n - 1] == '/';) endpoint[--n] = 0;
    return endpoint;
}

int hub_open(struct hub *hub, enum hub_kind kind, const atomic_int *cancel, struct error *err)
{
    const struct hub_row *row = &hub_rows[kind];
    const char *offline = kind == HUB_HUGGING_FACE ? environment("HF_HUB_OFFLINE") : NULL;
    *hub =
        (struct hub){.kind = kind, .cancel = cancel, .cache = hub_cache(kind), .endpoint = endpoint_of(kind)};
    hub->offline = offline && (strcmp(offline, "1") == 0 || strcasecmp(offline, "true") == 0 ||
                               strcasecmp(offline, "yes") == 0 || strcasecmp(offline, "on") == 0);
    char *token = read_token(kind), hint[120];
    bool plain = strncasecmp(hub->endpoint, "http://", 7) == 0;
    int code = 0;
    snprintf(hint, sizeof hint, _("set %s=https://HOST"), row->endpoint);
    if ((!plain && strncasecmp(hub->endpoint, "https://", 8) != 0) || strpbrk(hub->endpoint, "@?# "))
        code = error_set(err, EXIT_USAGE, hint, "%s is not the URL of a hub", row->endpoint);
    else if (token && plain && !loopback(hub->endpoint)) {
        snprintf(hint, sizeof hint, _("use https:// in %s, or unset %s"), row->endpoint, row->token);
        code = error_set(err, EXIT_USAGE, hint, "a token is not sent over http://");
    }
    if (token && kind == HUB_MODELSCOPE) /* its older requests read the cookie */
        hub->authorization = xasprintf("Authorization: Bearer %s\nCookie: m_session_id=%s", token, token);
    else if (token) hub->authorization = xasprintf("Authorization: Bearer %s", token);
    free(token);
    if (code) hub_close(hub);
    return code;
}

void hub_close(struct hub *hub)
{
    free(hub->endpoint);
    free(hub->cache);
    free(hub->authorization);
    *hub = (struct hub){0};
}

static bool cancelled(const struct hub *hub) { return hub->cancel && *hub->cancel; }

static int stopped(struct error *err)
{
    return error_set(err, EXIT_SIGNAL + SIGINT, "run the same command again to resume", "stopped");
}

/* Compares the bytes with the file's checksum: sha256, or git's sha1 of "blob SIZE\0" and the bytes. */
static int verify(int fd, const struct hub *hub, const struct hub_file *file, struct error *err)
{
    int code = libcrypto_load(err);
    if (code) return code;
    EVP_MD_CTX *md = libcrypto.digest_new();
    unsigned char *buffer = xmalloc(1 << 20), digest[EVP_MAX_MD_SIZE];
    char head[64], text[2 * EVP_MAX_MD_SIZE + 1];
    unsigned n = 0;
    ssize_t got = 0;
    bool ok = md && libcrypto.digest_init(md, file->lfs ? libcrypto.sha256() : libcrypto.sha1(), NULL) == 1;
    int length = snprintf(head, sizeof head, "blob %lld", (long long)file->size) + 1;
    if (ok && !file->lfs) ok = libcrypto.digest_update(md, head, (size_t)length) == 1;
    for (int64_t at = 0; ok && !cancelled(hub) && (got = retry_read(fd, buffer, 1 << 20, at)) > 0; at += got)
        ok = libcrypto.digest_update(md, buffer, (size_t)got) == 1;
    if (cancelled(hub)) code = stopped(err);
    else if (got < 0)
        code = error_errno(err, EXIT_FAILED, "check the disk", "cannot read %s back", file->path);
    else if (!ok || libcrypto.digest_final(md, digest, &n) != 1)
        code = error_set(err, EXIT_FAILED, NULL, "cannot compute the checksum of %s", file->path);
    for (unsigned i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (!code && strcmp(text, file->id) != 0)
        code = error_set(err, EXIT_INTEGRITY,
                         "run the same command again; if it fails again, use another mirror",
                         "%s: the checksum is %.12s..., expected %.12s...", file->path, text, file->id);
    libcrypto.digest_free(md);
    free(buffer);
    return code;
}

/* Whether other users can write the file, or have. Any other blob of Hugging Face is known by its name. */
static bool is_shared(const struct stat *st)
{
    return (st->st_uid != geteuid() && st->st_uid != 0) || st->st_mode & S_IWOTH ||
           (st->st_mode & S_IWGRP && st->st_gid != getegid());
}

/* Whether the file is in the cache. At ModelScope a name is not that of the bytes, so these are compared. */
static bool is_there(const struct hub *hub, const struct hub_file *file, const char *path)
{
    struct stat st;
    struct error ignored = {0};
    int fd = -1;
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != file->size) return false;
    if (hub->kind == HUB_HUGGING_FACE && !is_shared(&st)) return true;
    if (file_open(path, &fd, NULL, &ignored) != 0) return false;
    bool same = verify(fd, hub, file, &ignored) == 0;
    close(fd);
    return same;
}

/* Whether the snapshot has the file itself, as huggingface_hub keeps it without symbolic links. */
static bool is_in_snapshot(const struct hub_download *d, const char *directory)
{
    struct stat st;
    struct error ignored = {0};
    int fd = -1;
    if (d->hub->kind != HUB_HUGGING_FACE) return false;
    char *name = xasprintf("snapshots/%s/%s", d->commit, d->file->path);
    bool same = file_open_below(directory, name, O_RDONLY, &fd, &st, &ignored) == 0 &&
                st.st_size == d->file->size && verify(fd, d->hub, d->file, &ignored) == 0;
    if (fd >= 0) close(fd);
    free(name);
    return same;
}

/* Makes or replaces the link `name`. A file system without links gets the blob itself. */
static int make_link(const char *target, const char *blob, int at, const char *name)
{
    char temporary[40];
    snprintf(temporary, sizeof temporary, ".meopt-link-%d", (int)gettid());
    const char *const names[] = {name, temporary};
    unlinkat(at, temporary, 0);
    for (int i = 0; i < 2; i++) {
        if (symlinkat(target, at, names[i]) == 0) return i == 0 ? 0 : file_rename_at(at, temporary, name);
        if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS)
            return renameat(AT_FDCWD, blob, at, name);
        if (errno != EEXIST) break;
    }
    return -1;
}

/* Links snapshots/COMMIT/PATH to the blob. Links in the snapshot's directories are not followed. */
static int link_blob(const char *directory, const char *blob, const char *commit, const struct hub_file *file,
                     struct error *err)
{
    char *name = xasprintf("snapshots/%s/%s", commit, file->path), *up = xstrdup("../..");
    for (const char *p = file->path; (p = strchr(p, '/')); p++) {
        char *longer = xasprintf("../%s", up);
        free(up);
        up = longer;
    }
    char *target = xasprintf("%s/blobs/%s", up, file->id), *parent = path_dirname(name), old[4096];
    struct file_place place = {.at = -1};
    int code = file_make_dirs_below(directory, parent, err);
    if (!code && file_place_open(&place, directory, name) != 0)
        code = file_below_error(directory, name, "open", err);
    if (!code) {
        ssize_t n = readlinkat(place.at, place.name, old, sizeof old - 1);
        old[n > 0 ? n : 0] = 0;
        if (strcmp(old, target) != 0 && make_link(target, blob, place.at, place.name) != 0)
            code = error_errno(err, EXIT_FAILED, NULL, "cannot make the link %s", name);
    }
    file_place_close(&place);
    free(parent);
    free(target);
    free(up);
    free(name);
    return code;
}

static int on_sized(void *context, int64_t total, struct error *err)
{
    (void)context, (void)total, (void)err;
    return 0;
}

static int on_arrived(void *context, int64_t contiguous, struct error *err)
{
    (void)context, (void)contiguous, (void)err;
    return 0;
}

static void on_notice(void *context, const char *text)
{
    const struct hub_download *d = context;
    d->notice(d->context, text);
}

static int on_restarted(void *context, const char *why, struct error *err)
{
    char text[256];
    (void)err;
    snprintf(text, sizeof text, _("restarting the download: %s"), why);
    on_notice(context, text);
    return 0;
}

static void on_progress(void *context, const struct transfer_progress *p)
{
    struct hub_download *d = context;
    struct transfer_progress all = *p;
    all.received = d->received = d->before + p->received;
    d->progress(d->context, &all);
}

static void pause_short(void) { nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL); }

/* Becomes the owner of the partial file. Waits for another process of this host. */
static int claim(struct partial *part, struct hub_download *d, const char *directory, struct error *err)
{
    char *private = path_join(directory, PARTIAL_DIRECTORY);
    int code = 0;
    for (bool reported = false;; reported = true) {
        bool here = false;
        code = partial_claim(part, private, d->file->id, &here, err);
        if (code != EXIT_LOCKED || !here) break;
        if (cancelled(d->hub)) {
            code = stopped(err);
            break;
        }
        if (!reported) on_notice(d, _("waiting for another process that is fetching this file"));
        pause_short();
    }
    free(private);
    return code;
}

/* Removes what a process that was killed after the file's last byte has left of its partial file. */
static void forget_partial(const struct hub_download *d, const char *directory)
{
    char *private = path_join(directory, PARTIAL_DIRECTORY);
    struct partial part;
    struct error ignored = {0};
    bool here = false;
    if (!file_absent(private) && partial_claim(&part, private, d->file->id, &here, &ignored) == 0)
        partial_release(&part, false, &ignored);
    free(private);
}

/* Receives the bytes from the current address of the file. */
static int receive(struct hub_download *d, struct partial *part, struct error *err)
{
    const struct hub *hub = d->hub;
    char *url = NULL;
    bool authorized = false;
    int used = 0, code = hub_locate(hub, d->name, d->commit, d->file->path, &url, &authorized, err);
    struct transfer t = {.urls = &url,
                         .url_count = 1,
                         .size = d->file->size,
                         .pinned = true,
                         .allow_plain = !code && strncasecmp(url, "http://", 7) == 0,
                         .authorization = authorized ? hub->authorization : NULL,
                         .identity = d->file->id,
                         .connections = d->connections,
                         .shared = hub->shared,
                         .multi = hub->multi,
                         .cancel = hub->cancel,
                         .context = d,
                         .sized = on_sized,
                         .arrived = on_arrived,
                         .restarted = on_restarted,
                         .progress = on_progress,
                         .notice = on_notice};
    d->before = d->received;
    if (!code) code = transfer_run(&t, part, &used, err);
    free(url);
    return code;
}

/* Downloads a file to `blob`. A wrong one leaves nothing. */
static int download(struct hub_download *d, const char *directory, const char *blob, struct error *err)
{
    const struct hub *hub = d->hub;
    struct partial part;
    int code = claim(&part, d, directory, err);
    if (code) return code;
    if (is_there(hub, d->file, blob)) return partial_release(&part, false, err); /* by another process */
    int64_t most = partial_bytes(&part.state), before;
    do { /* a signed address expires: ask for a new one, while that brings more of the file */
        before = most;
        code = receive(d, &part, err);
        if (partial_bytes(&part.state) > most) most = partial_bytes(&part.state);
    } while (code == EXIT_NETWORK && most > before);
    bool wrong = !code && (code = verify(part.fd, hub, d->file, err)) == EXIT_INTEGRITY;
    if (!code) code = partial_move(&part, blob, err);
    struct error ignored = {0};
    int released = partial_release(&part, code && !wrong, code ? &ignored : err);
    return code ? code : released;
}

/* Returns the path of a file's bytes in the cache, malloc'ed. */
static char *hub_file_path(const struct hub *hub, const struct hub_name *name, const char *commit,
                           const struct hub_file *file)
{
    char *directory = hub_repository(hub->cache, name);
    char *path = hub->kind == HUB_MODELSCOPE ? xasprintf("%s/snapshots/%s/%s", directory, commit, file->path)
                                             : xasprintf("%s/blobs/%s", directory, file->id);
    free(directory);
    return path;
}

int hub_make_repository(const char *directory, struct error *err)
{
    struct stat st;
    if (lstat(directory, &st) != 0 || !S_ISLNK(st.st_mode)) return file_make_dirs(directory, err);
    error_set(err, EXIT_FAILED, "remove it, or set HF_HUB_CACHE or MODELSCOPE_CACHE to its target",
              "is a symbolic link, expected a directory of the cache");
    return error_at(err, directory, 0, 0), EXIT_FAILED;
}

int64_t hub_file_missing(const struct hub *hub, const struct hub_name *name, const char *commit,
                         const struct hub_file *file)
{
    char *directory = hub_repository(hub->cache, name), *blob = hub_file_path(hub, name, commit, file);
    char *private = path_join(directory, PARTIAL_DIRECTORY),
         *kept = xasprintf("%s/snapshots/%s/%s", directory, commit, file->path);
    bool there = !file_absent(blob) || !file_absent(kept);
    int64_t missing = there ? 0 : file->size - partial_allocated(private, file->id);
    free(kept);
    free(private);
    free(blob);
    free(directory);
    return missing > 0 ? missing : 0;
}

int hub_fetch_file(struct hub_download *d, struct error *err)
{
    const struct hub *hub = d->hub;
    char *directory = hub_repository(hub->cache, d->name),
         *blob = hub_file_path(hub, d->name, d->commit, d->file);
    char *parent = path_dirname(blob);
    int code = hub_make_repository(directory, err);
    if (!code) code = file_make_dirs_below(directory, parent + strlen(directory) + 1, err);
    bool there = !code && (is_there(hub, d->file, blob) || is_in_snapshot(d, directory));
    if (there) forget_partial(d, directory);
    else if (!code) code = download(d, directory, blob, err);
    if (!code && hub->kind == HUB_HUGGING_FACE && !file_absent(blob))
        code = link_blob(directory, blob, d->commit, d->file, err);
    free(parent);
    free(blob);
    free(directory);
    return code;
}

int hub_finish(const struct hub *hub, const struct hub_name *name, const char *commit, struct error *err)
{
    if (hub->kind == HUB_MODELSCOPE || strcmp(name->revision, commit) == 0) return 0;
    char *directory = hub_repository(hub->cache, name), *ref = path_join("refs", name->revision);
    char *parent = path_dirname(ref), *old = NULL;
    size_t bytes = 0;
    bool same =
        file_read_below(directory, ref, HUB_REVISION, &old, &bytes, NULL) == 0 && strcmp(old, commit) == 0;
    int code = same ? 0 : file_make_dirs_below(directory, parent, err); /* a shared cache may be read-only */
    if (!code && !same) code = file_write_below(directory, ref, commit, strlen(commit), err);
    free(old);
    free(parent);
    free(ref);
    free(directory);
    return code;
}
