/* Fetches an archive: see fetch.h. */
#include "fetch/fetch.h"

#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/retry.h"
#include "fetch/hasher.h"
#include "fetch/partial.h"
#include "fetch/publish.h"
#include "fetch/download.h"
#include "fetch/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

const char *const fetch_phase_names[] = {"waiting", "download", "unpack", "verify", "publish"};
const char *const fetch_state_names[] = {N_("missing"), N_("partial"), N_("there"), N_("foreign")};

struct job {
    const struct source *source;
    const struct fetch_options *o;
    struct fetch_result *result;
    struct error *err;
    char *directory, *staging, *kept;
    struct partial part;
    int fd;             /* of the archive: the part's, or a local file's */
    const char *opened; /* its path */
    bool local;
    struct hasher hasher;
    struct unpack unpack;
    bool zip_known, zip;
    bool damaged;          /* the existing tree lacks files, and a notice was sent */
    bool first_use;        /* no checksum of the archive is known */
    char expected[65];     /* "" unknown */
    char trusted_url[600]; /* key of the stored checksum */
    double reported_at;
    struct fetch_progress progress;
};

static void notice(const struct job *j, const char *text)
{
    if (j->o->notice) j->o->notice(j->o->context, text);
}

static void report_progress(struct job *j, bool always)
{
    double t = clock_seconds();
    if (!j->o->progress || (!always && t - j->reported_at < 0.1)) return;
    j->reported_at = t;
    struct archive_counts c;
    if (j->unpack.shared) unpack_counts(&j->unpack, &c);
    else
        c = (struct archive_counts){.files = j->result->files,
                                    .out = j->result->unpacked,
                                    .in = j->result->files ? j->progress.total : 0};
    j->progress.files = c.files;
    j->progress.unpacked_bytes = c.out;
    j->progress.unpack_bytes = c.in;
    j->o->progress(j->o->context, &j->progress);
}

static bool cancelled(const struct job *j) { return j->o->cancel && *j->o->cancel; }

static int make_staging(struct job *j)
{
    if (mkdir(j->staging, 0700) == 0 || errno == EEXIST) return 0;
    int code = error_errno(j->err, EXIT_FAILED, NULL, "cannot make the directory");
    return error_at(j->err, j->staging, 0, 0), code;
}

static int start_unpack(struct job *j)
{
    struct archive_limits limits = archive_limits_default;
    struct statvfs fs;
    int64_t free_bytes = INT64_MAX;
    if (statvfs(j->o->dest, &fs) == 0) free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
    bool known = j->o->limit > 0 || j->source->unpacked_size >= 0;
    limits.bytes = j->o->limit > 0                 ? j->o->limit
                   : j->source->unpacked_size >= 0 ? j->source->unpacked_size
                                                   : free_bytes;
    if (known) limits.ratio_from = INT64_MAX; /* the size is known: no limit of the ratio */
    if (j->source->entries >= 0)
        limits.entries = 2 * j->source->entries + 1000; /* entries counts files only; allow directories */
    int code = make_staging(j);
    return code ? code : unpack_start(&j->unpack, j->fd, j->opened, j->staging, &limits, j->err);
}

/* Passes the available bytes to the hasher and to unpacking. A tar is unpacked while it arrives, a zip
 * after its checksum is verified. The child is forked before the hashing thread starts: fork() copies one
 * thread only, with the locks that other threads hold. */
static int feed_archive(struct job *j, int64_t available, bool last)
{
    int code = 0;
    if (!j->zip_known && (available >= 4 || last)) {
        unsigned char head[4] = {0};
        ssize_t n = retry_read(j->fd, head, 4, 0);
        if (n < 0) {
            code = error_errno(j->err, EXIT_FAILED, "check the disk", "cannot read the archive back");
            return error_at(j->err, j->opened, 0, 0), code;
        }
        j->zip_known = true;
        j->zip = archive_is_zip(head, n > 0 ? (size_t)n : 0);
        if (!j->zip) code = start_unpack(j);
        if (!code) code = hasher_start(&j->hasher, j->fd, j->err);
    }
    if (code || !j->zip_known) return code;
    hasher_feed(&j->hasher, available, last);
    if (j->unpack.pid) {
        unpack_feed(&j->unpack, available, last);
        if (unpack_ended(&j->unpack) && j->unpack.pid && !last) { /* only an error ends it early */
            code = unpack_wait(&j->unpack, j->err);
            return code ? code
                        : error_set(j->err, EXIT_INTEGRITY, NULL, "the archive ends before the file does");
        }
    }
    return 0;
}

static int on_sized(void *context, int64_t total, struct error *err)
{
    struct job *j = context;
    struct statvfs fs;
    j->progress.total = total;
    if (total < 0 || statvfs(j->o->dest, &fs) != 0) return 0;
    struct stat st = {0};
    fstat(j->part.fd, &st);
    int64_t free_bytes = (int64_t)fs.f_bavail * (int64_t)fs.f_frsize,
            missing = total - (int64_t)st.st_blocks * 512;
    int64_t unpacked =
        j->source->unpacked_size >= 0 ? j->source->unpacked_size : total; /* photographs do not compress */
    int64_t already = 0;
    if (missing < 0) missing = 0;
    if (!file_absent(j->staging))
        already = partial_bytes(&j->part.state); /* estimate of the bytes unpacked by an earlier run */
    if (already > unpacked) already = unpacked;
    double need = ((double)missing + (double)(unpacked - already)) * 1.02; /* a server may claim any length */
    if ((double)free_bytes >= need) return 0;
    error_set(err, EXIT_DISK, "free some space or choose another --dest, then run the same command again",
              "needs %.2f GiB (archive %.2f, unpacked %.2f%s), %.2f GiB are free", need / 1073741824.0,
              (double)missing / 1073741824.0, (double)unpacked / 1073741824.0,
              j->source->unpacked_size >= 0 ? "" : _(" as an estimate"), (double)free_bytes / 1073741824.0);
    return error_at(err, j->o->dest, 0, 0), EXIT_DISK;
}

static int on_arrived(void *context, int64_t frontier, struct error *err)
{
    struct job *j = context;
    (void)err;
    return feed_archive(j, frontier, false);
}

static int on_restarted(void *context, const char *why, struct error *err)
{
    struct job *j = context;
    char text[256];
    snprintf(text, sizeof text, _("restarting the download: %s"), why);
    notice(j, text);
    unpack_kill(&j->unpack);
    hasher_end(&j->hasher, true);
    j->zip_known = j->zip = false;
    j->progress.resumed = 0;
    return file_remove_tree(j->staging, err);
}

static void on_progress(void *context, const struct transfer_progress *p)
{
    struct job *j = context;
    j->progress.phase = FETCH_DOWNLOAD;
    j->progress.bytes = p->bytes;
    j->progress.total = p->total;
    j->progress.tries = p->tries;
    j->progress.retry_in = p->retry_in;
    j->progress.pause_begins = p->pause_begins;
    j->progress.reason = p->reason;
    j->result->received = p->received;
    report_progress(j, p->pause_begins);
}

static void on_notice(void *context, const char *text) { notice(context, text); }

/* Claims the part; waits while a process on this host owns it. */
static int wait_for_claim(struct job *j)
{
    bool here = false, noticed = false;
    for (;;) {
        int code = partial_claim(&j->part, j->directory, j->source->name, &here, j->err);
        if (code != EXIT_LOCKED || !here) return code;
        if (!noticed) {
            char text[sizeof j->err->what + 32];
            snprintf(text, sizeof text, _("%s; waiting for it"), j->err->what);
            notice(j, text);
            noticed = true;
        }
        j->progress.phase = FETCH_WAITING;
        partial_status(j->directory, j->source->name, &j->progress.bytes, &j->progress.total);
        report_progress(j, false);
        if (cancelled(j)) return error_set(j->err, EXIT_SIGNAL + SIGINT, NULL, "stopped waiting");
        struct timespec pause = {.tv_nsec = 200000000};
        nanosleep(&pause, NULL);
        *j->err = (struct error){0};
    }
}

static void verified(void *context, int64_t files, int64_t bytes)
{
    struct job *j = context;
    j->progress.phase = FETCH_VERIFY;
    j->progress.files = files;
    j->progress.bytes = bytes;
    report_progress(j, false);
}

/* Checks an existing tree of this archive. *done: no file is missing or damaged. */
static int check_tree(struct job *j, const char *tree, bool *done)
{
    const struct published_pass pass = {
        .content = j->o->repair, .cancel = j->o->cancel, .progress = verified, .context = j};
    struct published_damage damage;
    char text[600];
    int code = published_check(tree, &pass, &damage, j->err);
    j->progress.files = j->progress.bytes = 0;
    if (code) return code;
    *done = damage.wrong == 0;
    if (!*done && !j->damaged) {
        snprintf(text, sizeof text,
                 _("%lld of %lld files are missing or damaged (the first: %s): restoring them"),
                 (long long)damage.wrong, (long long)damage.files, damage.first);
        notice(j, text);
    }
    j->damaged = !*done;
    return 0;
}

/* Checks the destination. *done: the tree is complete. Refuses a directory that is not of this archive. */
static int check_destination(struct job *j, bool *done)
{
    *done = false;
    if (!j->source->top) return 0;
    char *tree = path_join(j->o->dest, j->source->top);
    struct published what;
    struct stat st;
    int code = 0;
    if (published_read(tree, &what)) {
        if (j->expected[0] && strcmp(j->expected, what.sha256) != 0) {
            code = error_set(j->err, EXIT_INTEGRITY, "move the directory away, or fetch into another --dest",
                             "it was unpacked from an archive with SHA-256 %.12s..., expected %.12s...",
                             what.sha256, j->expected);
            error_at(j->err, tree, 0, 0);
        } else if (!j->expected[0] && strcmp(j->source->name, what.source) != 0) {
            char shown[256];
            code = error_set(j->err, EXIT_FAILED, "move the directory away, or fetch into another --dest",
                             "is there already, from the source '%s'",
                             name_printable(shown, sizeof shown, what.source));
            error_at(j->err, tree, 0, 0);
        } else if ((code = check_tree(j, tree, done)) == 0 && *done) {
            j->result->already = true;
            j->result->tree = tree;
            memcpy(j->result->sha256, what.sha256, 65);
            j->result->size = what.size;
            j->result->files = what.files;
            j->result->unpacked = what.unpacked;
            return 0;
        }
    } else if (lstat(tree, &st) == 0) {
        code = error_set(j->err, EXIT_FAILED, "move it away, or fetch into another --dest",
                         "is there already, but not from a complete fetch (it has no %s)", PUBLISH_MARKER);
        error_at(j->err, tree, 0, 0);
    }
    free(tree);
    return code;
}

/* Opens a local archive: --from FILE, a file:// source, or a kept one. */
static int open_local(struct job *j, const char *path)
{
    struct stat st;
    int fd, code = file_open(path, &fd, &st, j->err);
    if (code) return code;
    if (j->source->size >= 0 && st.st_size != j->source->size) {
        close(fd);
        error_set(j->err, EXIT_INTEGRITY, "copy the whole file", "has %lld bytes, expected %lld",
                  (long long)st.st_size, (long long)j->source->size);
        return error_at(j->err, path, 0, 0), EXIT_INTEGRITY;
    }
    j->fd = fd;
    j->opened = path;
    j->local = true;
    j->progress.total = j->progress.bytes = st.st_size;
    j->progress.resumed = st.st_size;
    return 0;
}

/* Returns the path of a file:// URL, or NULL. No percent-decoding: MEOpt creates these URLs. */
static const char *local_path(const char *url) { return strncmp(url, "file://", 7) == 0 ? url + 7 : NULL; }

static int download(struct job *j)
{
    struct transfer t = {.urls = j->source->urls,
                         .url_count = j->source->url_count,
                         .size = j->source->size,
                         .pinned = j->expected[0] != 0,
                         .allow_plain = j->o->allow_plain,
                         .connections = j->o->connections,
                         .cancel = j->o->cancel,
                         .context = j,
                         .sized = on_sized,
                         .arrived = on_arrived,
                         .restarted = on_restarted,
                         .progress = on_progress,
                         .notice = on_notice};
    int used = 0;
    j->fd = j->part.fd;
    j->opened = j->part.path;
    j->progress.resumed = partial_bytes(&j->part.state);
    int code = transfer_run(&t, &j->part, &used, j->err);
    url_printable(j->trusted_url, sizeof j->trusted_url, j->source->urls[used]);
    return code;
}

static int wait_briefly(struct job *j)
{
    if (cancelled(j)) return error_set(j->err, EXIT_SIGNAL + SIGINT, NULL, "stopped while unpacking");
    report_progress(j, false);
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    return 0;
}

/* Verifies the complete archive and finishes unpacking. A wrong checksum takes precedence over an error of
 * unpacking. */
static int verify_and_unpack(struct job *j, int64_t total)
{
    int code = feed_archive(j, total, true);
    j->progress.phase = FETCH_UNPACK;
    while (!code && atomic_load(&j->hasher.done) < total && !atomic_load(&j->hasher.failed))
        code = wait_briefly(j);
    if (code) return code;
    hasher_end(&j->hasher, false);
    if (atomic_load(&j->hasher.failed)) {
        errno = j->hasher.reason;
        code = errno ? error_errno(j->err, EXIT_FAILED, "check the disk", "cannot read the archive back")
                     : error_set(j->err, EXIT_FAILED, "check that no other process writes it",
                                 "the archive was truncated while it was read");
        return error_at(j->err, j->opened, 0, 0), code;
    }
    for (int i = 0; i < 32; i++) snprintf(j->result->sha256 + 2 * i, 3, "%02x", j->hasher.digest[i]);
    j->result->size = total;
    if (j->expected[0] && strcmp(j->expected, j->result->sha256) != 0)
        return error_set(j->err, EXIT_INTEGRITY,
                         j->local ? NULL
                                  : "the server has a different file, or the checksum belongs to a different "
                                    "version",
                         "SHA-256 of the archive is %s, expected %s", j->result->sha256, j->expected);
    if (j->zip) {
        if ((code = start_unpack(j)) != 0) return code;
        unpack_feed(&j->unpack, total, true);
    }
    while (!unpack_ended(&j->unpack))
        if ((code = wait_briefly(j)) != 0) return code;
    struct archive_counts c;
    unpack_counts(&j->unpack, &c);
    if ((code = unpack_wait(&j->unpack, j->err)) != 0) return code;
    j->result->files = c.files;
    j->result->unpacked = c.out;
    if (j->source->entries >= 0 && c.files != j->source->entries)
        return error_set(j->err, EXIT_INTEGRITY, NULL, "the archive holds %lld files, expected %lld",
                         (long long)c.files, (long long)j->source->entries);
    return 0;
}

/* Writes the checksum next to a kept archive whose source has none, for --from on another machine. In place:
 * the archive follows, and a killed process leaves no second file. */
static int write_checksum(const struct job *j)
{
    if (j->source->sha256[0]) return 0;
    char *path = xasprintf("%s.sha256", j->kept),
         *text = xasprintf("%s  %s\n", j->result->sha256, j->source->file);
    int code = 0, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) code = error_errno(j->err, EXIT_FAILED, "remove it", "cannot create the file");
    else code = file_write_all(fd, text, strlen(text), path, j->err);
    if (!code && retry_sync(fsync, fd) != 0)
        code = error_errno(j->err, EXIT_FAILED, "check the disk", "cannot sync the file");
    if (code) error_at(j->err, path, 0, 0);
    if (fd >= 0) close(fd);
    free(text);
    free(path);
    return code;
}

/* Stores the checksum of a first use and moves the archive to its place, which makes it a local one. */
static int keep_archive(struct job *j)
{
    struct error ignored;
    if (j->first_use) {
        j->result->first_use = true;
        if (known_archive_add(j->trusted_url, j->result->sha256, j->result->size, &ignored) != 0)
            notice(j, ignored.what);
    }
    if (!j->o->keep || j->local) return 0;
    int code = write_checksum(j);
    if (!code) code = partial_move(&j->part, j->kept, j->err);
    if (code) return code;
    j->local = true;
    j->fd = -1; /* the part's, which closes it */
    return 0;
}

/* The archive first: the next run ends at once where the tree is complete, also after a kill. */
static int publish_tree(struct job *j)
{
    j->progress.phase = FETCH_PUBLISH;
    report_progress(j, true);
    char *top = publish_top(j->staging, j->source->top, j->err);
    if (!top) return j->err->code;
    int code = keep_archive(j);
    if (code) return free(top), code;
    struct published what = {
        .size = j->result->size, .files = j->result->files, .unpacked = j->result->unpacked};
    snprintf(what.source, sizeof what.source, "%s", j->source->name);
    snprintf(what.archive, sizeof what.archive, "%s", j->source->file);
    memcpy(what.sha256, j->result->sha256, 65);
    char *tree = path_join(j->o->dest, top);
    struct published before;
    if (published_read(tree, &before) && strcmp(before.sha256, what.sha256) == 0) {
        char *from = path_join(j->staging, top);
        struct published_damage damage;
        code = published_check(tree, &(struct published_pass){.content = j->o->repair, .restore_from = from},
                               &damage, j->err);
        j->result->restored = damage.wrong;
        j->result->already = damage.wrong == 0; /* without `top`, the tree is known only now */
        free(from);
    } else code = publish(j->staging, j->o->dest, top, &what, j->err);
    if (!code) j->result->tree = tree;
    else free(tree);
    free(top);
    return code;
}

/* Removes staging and part. A failure is only a notice. */
static void remove_private_files(struct job *j)
{
    struct error why;
    if (file_remove_tree(j->staging, &why)) notice(j, why.what);
    if (partial_release(&j->part, false, &why)) notice(j, why.what);
}

/* Cleans up after a failure. The part is kept if it can be resumed, and removed if the archive was refused.
 * */
static void clean_after_failure(struct job *j, int code)
{
    unpack_kill(&j->unpack);
    hasher_end(&j->hasher, true);
    bool keep = code != EXIT_INTEGRITY && !j->local && partial_bytes(&j->part.state) > 0;
    if (code == EXIT_INTEGRITY && !j->local && j->expected[0] && j->result->sha256[0] &&
        strcmp(j->expected, j->result->sha256) != 0) {
        char *bad = xasprintf("%s/%s.corrupt", j->directory, j->source->name),
             text[600]; /* keep one wrong archive for inspection */
        if (rename(j->part.path, bad) == 0) {
            snprintf(text, sizeof text, _("the wrong archive is kept as %s"), bad);
            notice(j, text);
        }
        free(bad);
    }
    if (keep) partial_release(&j->part, true, NULL);
    else remove_private_files(j);
}

/* Removes files that an earlier fetch left when it was killed after publishing, unless another process owns
 * them. */
static void remove_leftovers(struct job *j)
{
    struct stat st;
    struct error why;
    bool here;
    char *directory = path_join(j->o->dest, PARTIAL_DIRECTORY);
    int code = EXIT_LOCKED;
    if (lstat(directory, &st) == 0) code = partial_claim(&j->part, directory, j->source->name, &here, &why);
    if (code && code != EXIT_LOCKED) notice(j, why.what);
    if (!code) {
        j->staging = partial_staging(&j->part);
        remove_private_files(j);
        free(j->staging);
        j->staging = NULL;
    }
    free(directory);
}

int fetch_archive(const struct source *source, const struct fetch_options *options,
                  struct fetch_result *result, struct error *err)
{
    struct error local_error = {0};
    *result = (struct fetch_result){0};
    struct job j = {.source = source,
                    .o = options,
                    .result = result,
                    .err = err ? err : &local_error,
                    .fd = -1,
                    .part = {.fd = -1},
                    .unpack = {.wake = -1},
                    .progress = {.total = source->size}};
    int64_t known_size;
    bool done = false;
    if (options->sha256) snprintf(j.expected, sizeof j.expected, "%s", options->sha256);
    else memcpy(j.expected, source->sha256, 65);
    url_printable(j.trusted_url, sizeof j.trusted_url, source->urls[0]);
    const char *path = local_path(source->urls[0]);
    if (!j.expected[0] && !path) {
        j.first_use = !known_archive(j.trusted_url, j.expected, &known_size);
        if (j.first_use && !source->trust_first_use && !options->trust)
            return error_set(j.err, EXIT_USAGE,
                             "use --sha256 HEX, or --trust to accept the file and store its checksum",
                             "no checksum is known for %s", j.trusted_url);
    }
    if (!path && strncmp(source->urls[0], "http://", 7) == 0 &&
        !(options->allow_plain && j.expected[0] && !j.first_use))
        return error_set(j.err, EXIT_USAGE, "use https://, or add --sha256 HEX",
                         "a file fetched over http:// can be modified in transit");
    int code = file_make_dirs(options->dest, j.err);
    if (!code) code = check_destination(&j, &done);
    if (done) remove_leftovers(&j);
    if (code || done) return code;
    j.directory = path_join(options->dest, PARTIAL_DIRECTORY);
    code = wait_for_claim(&j);
    if (!code) {
        j.staging = partial_staging(&j.part);
        j.kept = path_join(options->dest, source->file);
        code = check_destination(&j, &done); /* another process may have finished meanwhile */
        if (!code && !done) {
            struct stat st;
            /* unpacked files of an earlier run are only valid with the bytes of that run */
            bool resumes = !path && partial_bytes(&j.part.state) > 0;
            if (!resumes) code = file_remove_tree(j.staging, j.err);
            if (!code && path && !j.expected[0] && source->trust_first_use)
                notice(&j, _("no checksum of the archive is known: its content is not verified"));
            if (!code && path) code = open_local(&j, path);
            else if (!code && lstat(j.kept, &st) == 0 &&
                     S_ISREG(st.st_mode)) { /* kept by an earlier fetch; its tree was removed */
                if (resumes) code = file_remove_tree(j.staging, j.err);
                if (!code) code = open_local(&j, j.kept);
                notice(&j, "using the kept archive");
            } else if (code == 0) code = download(&j);
            if (!code) code = verify_and_unpack(&j, j.local ? j.progress.total : j.part.state.total);
            if (!code) code = publish_tree(&j);
        }
        if (!code && !done && j.local && !path) result->archive = xstrdup(j.kept);
        if (code) clean_after_failure(&j, code);
        else remove_private_files(&j);
    }
    if (code && j.opened && j.local) error_at(j.err, j.opened, 0, 0);
    if (code && !j.err->hint[0])
        snprintf(j.err->hint, sizeof j.err->hint, "%s",
                 code != EXIT_INTEGRITY ? _("run the same command again to resume")
                 : !j.local             ? _("the partial archive was removed")
                 : j.opened == j.kept   ? _("remove the archive, then run the same command again")
                                        : _("copy the archive again, with its .sha256"));
    if (j.local && j.fd >= 0) close(j.fd);
    free(j.kept);
    free(j.staging);
    free(j.directory);
    return code;
}

void fetch_result_free(struct fetch_result *result)
{
    free(result->tree);
    free(result->archive);
    *result = (struct fetch_result){0};
}

enum fetch_state fetch_check(const struct source *source, const char *dest, int64_t *bytes, int64_t *total)
{
    struct published what;
    struct stat st;
    char *tree = path_join(dest, source->top ? source->top : source->name),
         *directory = path_join(dest, PARTIAL_DIRECTORY);
    enum fetch_state state = FETCH_MISSING;
    partial_status(directory, source->name, bytes, total);
    if (published_read(tree, &what) &&
        (strcmp(what.source, source->name) == 0 || strcmp(what.sha256, source->sha256) == 0)) {
        state = FETCH_THERE;
        *bytes = what.unpacked;
        *total = what.size;
    } else if (*bytes > 0) {
        state = FETCH_PARTIAL;
    } else if (lstat(tree, &st) == 0) {
        state = FETCH_FOREIGN;
    }
    if (*total < 0) *total = source->size;
    free(tree);
    free(directory);
    return state;
}
