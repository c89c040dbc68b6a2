/* meopt fetch hf:OWNER/REPO, ms:OWNER/REPO: see fetch_hub.h. */
#include "cli/fetch/fetch_hub.h"

#include "cli/fetch/fetch_progress.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "fetch/hub.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

/* What the reports of a repository's files need. */
struct report {
    struct meter m; /* its only item is the repository */
    const struct hub_files *files;
};

static void on_progress(void *context, const struct hub_state *s)
{
    struct report *r = context;
    struct fetch_progress p = {.phase = FETCH_DOWNLOAD,
                               .bytes = s->bytes,
                               .total = r->files->bytes,
                               .resumed = s->bytes - s->received,
                               .tries = s->tries,
                               .retry_in = s->retry_in,
                               .pause_begins = s->pause_begins,
                               .reason = s->reason,
                               .files = s->done,
                               .file = {s->file->path, s->file_bytes, s->file->size, r->files->count}};
    meter_progress(&r->m, &p);
}

static void on_notice(void *context, const struct hub_file *file, const char *text)
{
    struct report *r = context;
    char shown[256];
    name_printable(shown, sizeof shown, file->path);
    meter_clear(&r->m);
    if (r->m.json)
        meter_event(&r->m, json_pack("{s:s, s:s, s:s}", "event", "notice", "file", file->path, "text", text));
    else log_info("%s: %s", shown, text);
}

static void on_ended(void *context, const struct hub_file *file, int code, const struct error *err)
{
    struct report *r = context;
    if (!r->m.json) return;
    if (code)
        meter_event(&r->m, json_pack("{s:s, s:s, s:i, s:s, s:s}", "event", "failed", "file", file->path,
                                     "exit_code", code, "what", err->what, "hint", err->hint));
    else
        meter_event(&r->m, json_pack("{s:s, s:s, s:I}", "event", "file", "file", file->path, "bytes",
                                     (json_int_t)file->size));
}

/* Prints why meopt waits for the hub, before the files are listed. */
static void on_wait(void *context, const char *text)
{
    (void)context;
    log_info("%s", text);
}

static int list_files(const struct arguments *args, const char *commit, const struct hub_files *files)
{
    bool json = argument_flag(args, "json");
    json_t *all = json_array();
    for (int i = 0; i < files->count; i++) {
        const struct hub_file *f = &files->all[i];
        char size[32];
        if (json)
            json_array_append_new(all, json_pack("{s:s, s:I, s:s, s:s}", "name", f->path, "bytes",
                                                 (json_int_t)f->size, f->lfs ? "sha256" : "git_blob", f->id,
                                                 "commit", commit));
        else printf("%12s  %s\n", size_text(size, (double)f->size), f->path);
    }
    if (json) json_print(stdout, all, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(all);
    return 0;
}

/* Compares the free space with the files that are not in the cache. */
static int check_space(const struct hub *hub, const struct hub_name *name, const char *commit,
                       const char *directory, const struct hub_files *files, struct error *err)
{
    struct statvfs fs;
    int64_t missing = 0;
    char need[32], here[32];
    int code = hub_make_repository(directory, err);
    if (code)
        snprintf(err->hint, sizeof err->hint, _("set %s to a directory that you may write to"),
                 hub_rows[hub->kind].cache);
    if (code || statvfs(directory, &fs) != 0) return code;
    for (int i = 0; i < files->count; i++) { missing += hub_file_missing(hub, name, commit, &files->all[i]); }
    double unused = (double)fs.f_bavail * (double)fs.f_frsize;
    if ((double)missing <= unused) return 0;
    char hint[120];
    snprintf(hint, sizeof hint, _("free some space, set %s, or give --include"), hub_rows[hub->kind].cache);
    error_set(err, EXIT_DISK, hint, "needs %s, %s are free", size_text(need, (double)missing),
              size_text(here, unused));
    return error_at(err, directory, 0, 0), EXIT_DISK;
}

static int fetch_files(const struct arguments *args, const struct hub *hub, const struct hub_name *name,
                       const char *commit, const struct hub_files *files, struct error *err)
{
    struct source repository = {.name = (char *)(uintptr_t)name->repo};
    struct fetch_item item = {.source = &repository, .total = files->bytes};
    struct report r = {.files = files};
    const struct hub_progress progress = {&r, on_progress, on_notice, on_ended};
    char *directory = hub_repository(hub->cache, name),
         *tree = xasprintf("%s/snapshots/%s", directory, commit), a[32];
    int64_t received = 0;
    int code = hub->offline ? 0 : check_space(hub, name, commit, directory, files, err);
    meter_open(&r.m, &item, 1, argument_flag(args, "json"), argument_flag(args, "quiet"));
    meter_begin(&r.m, 0);
    if (!code && !hub->offline)
        code =
            hub_fetch_files(hub, name, commit, files, (int)argument_int(args, "connections", HUB_CONNECTIONS),
                            &progress, &received, err);
    meter_clear(&r.m);
    if (!code && !hub->offline) code = hub_finish(hub, name, commit, err);
    if (!code && r.m.json)
        meter_event(&r.m, json_pack("{s:s, s:s, s:s, s:i, s:I, s:I}", "event", "done", "tree", tree, "commit",
                                    commit, "files", files->count, "bytes", (json_int_t)files->bytes,
                                    "received_bytes", (json_int_t)received));
    else if (!code && !r.m.quiet)
        log_info("%s: %s, %d files, %s%s", name->repo, tree, files->count, size_text(a, (double)files->bytes),
                 hub->offline ? _(" (HF_HUB_OFFLINE: not compared with the hub)") : "");
    free(tree);
    free(directory);
    return code;
}

static int fetch_repository(const struct arguments *args, const atomic_int *cancel, const char *text,
                            struct error *err)
{
    const char *include = argument_text(args, "include", NULL),
               *exclude = argument_text(args, "exclude", NULL);
    struct hub_name name;
    struct hub_files files = {0};
    char commit[HUB_REVISION];
    struct hub hub = {0};
    int code = hub_name_parse(&name, text, err);
    if (!code) code = hub_open(&hub, name.kind, cancel, err);
    if (!code) hub_keep_connections(&hub);
    hub.notice = on_wait;
    if (!code) code = (hub.offline ? hub_list_cached : hub_list)(&hub, &name, commit, &files, err);
    if (!code) hub_files_select(&files, include, exclude);
    if (!code && files.count == 0)
        code = error_set(err, EXIT_USAGE, "to list the files, add --list", "%s: no file matches", name.repo);
    if (!code && argument_flag(args, "list")) code = list_files(args, commit, &files);
    else if (!code) code = fetch_files(args, &hub, &name, commit, &files, err);
    hub_files_free(&files);
    hub_drop_connections(&hub);
    hub_close(&hub);
    return code;
}

int fetch_hub(const struct arguments *args, const atomic_int *cancel, struct error *err)
{
    static const struct {
        const char *name, *hint;
        bool text;
    } others[] = {{"dest", N_("to choose the cache, set HF_HUB_CACHE or MODELSCOPE_CACHE"), true},
                  {"from", N_("to use a mirror, set HF_ENDPOINT or MODELSCOPE_ENDPOINT"), true},
                  {"sha256", NULL, true},
                  {"trust", NULL, false},
                  {"keep-archive", NULL, false},
                  {"stream", NULL, false},
                  {"verify", NULL, false},
                  {"repair", NULL, false},
                  {"dry-run", N_("to list the files, add --list"), false}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i].text ? argument_text(args, others[i].name, NULL) != NULL
                           : argument_flag(args, others[i].name))
            return error_set(err, EXIT_USAGE, others[i].hint,
                             "--%s cannot be used with a repository of a hub", others[i].name);
    int code = 0;
    for (int i = 0; i < args->operand_count && !code; i++)
        code = fetch_repository(args, cancel, args->operands[i], err);
    return code;
}
