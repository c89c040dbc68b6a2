/* meopt fetch: the options and messages of the command. The work is in fetch/. */
#include "cli/command.h"
#include "cli/language.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/nearest.h"
#include "cli/fetch/fetch_hub.h"
#include "cli/fetch/fetch_progress.h"
#include "fetch/fetch.h"
#include "fetch/hub.h"
#include "fetch/publish.h"

#include <jansson.h>
#include <signal.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static atomic_int stop_signal;

static void on_signal(int number)
{
    if (stop_signal) { /* the second signal ends at once; the files are as valid as after SIGKILL */
        signal(number, SIG_DFL);
        raise(number);
    }
    stop_signal = number;
}

/* ---- State ---- */

static const char *dest_of(const struct arguments *args, const struct source *source)
{
    return argument_text(args, "dest", source->dest ? source->dest : ".");
}

/* Formats the size of an archive: exact, "~" with the size in the source, or "-" if unknown. */
static void archive_size_text(char text[32], const struct source *s, int64_t total)
{
    char about[32];
    snprintf(text, 32, "-");
    if (total >= 0) size_text(text, (double)total);
    else if (s->size_about >= 0) snprintf(text, 32, "~%.29s", size_text(about, (double)s->size_about));
}

static int list(const struct arguments *args, const struct sources *sources)
{
    enum { NAME = 19, ABOUT = NAME + 38 }; /* columns */
    bool json = argument_flag(args, "json");
    json_t *all = json_array();
    if (!json)
        printf("%*s %*s %*s %*s  %s\n", PAD(-NAME, _("NAME")), PAD(-9, _("STATE")), PAD(12, _("HERE")),
               PAD(12, _("ARCHIVE")), _("ABOUT"));
    for (int i = 0; i < sources->count; i++) {
        const struct source *s = &sources->all[i];
        int64_t bytes = 0, total = -1;
        if (s->include_count) {
            if (!json) printf("%-*s %*s %12s %12s  ", NAME, s->name, PAD(-9, _("group")), "", "");
            if (!json) print_wrapped(ABOUT, ABOUT, s->about ? _(s->about) : "");
            continue;
        }
        enum fetch_state state = fetch_check(s, dest_of(args, s), &bytes, &total);
        char a[32] = "-", b[32];
        if (bytes > 0) size_text(a, (double)bytes);
        archive_size_text(b, s, total);
        if (json)
            json_array_append_new(
                all, json_pack("{s:s, s:s, s:I, s:o, s:s, s:o}", "name", s->name, "state",
                               fetch_state_names[state], "bytes", (json_int_t)bytes, "total_bytes",
                               total >= 0 ? json_integer(total) : json_null(), "dest", dest_of(args, s),
                               "sha256", s->sha256[0] ? json_string(s->sha256) : json_null()));
        else {
            printf("%-*s %*s %12s %12s  ", NAME, s->name, PAD(-9, _(fetch_state_names[state])), a, b);
            print_wrapped(ABOUT, ABOUT, s->about ? _(s->about) : "");
        }
    }
    if (json) json_print(stdout, all, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(all);
    return 0;
}

static void verify_progress(void *context, int64_t files, int64_t bytes)
{
    struct fetch_progress p = {.phase = FETCH_VERIFY, .bytes = bytes, .total = -1, .files = files};
    meter_progress(context, &p);
}

static int verify(const struct source *source, const char *dest, struct meter *m, struct error *err)
{
    char *tree = path_join(dest, source->top ? source->top : source->name);
    struct published_damage damage;
    int code = published_check(
        tree,
        &(struct published_pass){
            .content = true, .cancel = &stop_signal, .progress = verify_progress, .context = m},
        &damage, err);
    meter_clear(m);
    if (!code && damage.wrong) {
        char hint[300];
        snprintf(hint, sizeof hint, _("to restore them: meopt fetch --repair %.200s"), source->name);
        code = error_set(err, EXIT_INTEGRITY, hint, "%s: '%s' %s; %lld of %lld files are damaged", tree,
                         damage.first, damage.why, (long long)damage.wrong, (long long)damage.files);
    } else if (!code && m->json) meter_event(m, json_pack("{s:s, s:s}", "event", "verified", "tree", tree));
    else if (!code && !m->quiet) log_info("%s: all files of %s match the published ones", source->name, tree);
    free(tree);
    return code;
}

/* ---- Fetching ---- */

static void print_plan(const struct source *source, const char *dest, const struct meter *m)
{
    int64_t bytes = 0, total = -1;
    char size[32], url[300];
    enum fetch_state state = fetch_check(source, dest, &bytes, &total);
    url_printable(url, sizeof url, source->urls[0]);
    if (m->json) {
        meter_event(m, json_pack("{s:s, s:s, s:s, s:s, s:o}", "event", "plan", "state",
                                 fetch_state_names[state], "url", url, "dest", dest, "total_bytes",
                                 total >= 0 ? json_integer(total) : json_null()));
        return;
    }
    archive_size_text(size, source, total);
    printf(_("%s: %s; %s%s from %s into %s/%s\n"), source->name, fetch_state_names[state],
           state == FETCH_THERE ? _("nothing to do, fetched ") : _("would fetch "),
           strcmp(size, "-") != 0 ? size : _("an archive of unknown size"), url, dest,
           source->top ? source->top : "");
}

static void print_result(const struct source *source, const struct fetch_result *r, int code,
                         const struct meter *m, const struct error *err)
{
    char a[32], b[32];
    if (code) {
        if (m->json)
            meter_event(m, json_pack("{s:s, s:i, s:s, s:s}", "event", "failed", "exit_code", code, "what",
                                     err->what, "hint", err->hint));
    } else if (m->json) {
        meter_event(m, json_pack("{s:s, s:b, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "event", "done",
                                 "already", r->already, "restored", (json_int_t)r->restored, "tree", r->tree,
                                 "sha256", r->sha256, "archive_bytes", (json_int_t)r->size, "files",
                                 (json_int_t)r->files, "unpacked_bytes", (json_int_t)r->unpacked,
                                 "received_bytes", (json_int_t)r->received, "archive",
                                 r->archive ? json_string(r->archive) : json_null()));
    } else if (r->already) {
        log_info("%s: %s is complete (%lld files): nothing to do", source->name, r->tree,
                 (long long)r->files);
    } else if (r->restored) {
        log_info("%s: restored %lld of %lld files of %s", source->name, (long long)r->restored,
                 (long long)r->files, r->tree);
    } else if (!m->quiet) {
        log_info("%s: %s, %lld files, %s, in %s", source->name, r->tree, (long long)r->files,
                 size_text(a, (double)r->unpacked), time_text(b, clock_seconds() - m->begin));
        log_info("%s: SHA-256 of the archive %s%s", source->name, r->sha256,
                 r->first_use ? _(" (first use: recorded, and required from now on)") : "");
        if (r->archive) log_info("%s: kept the archive %s (--stream deletes it)", source->name, r->archive);
    }
}

/* Fetches the current archive of the meter. */
static int fetch_one(const struct arguments *args, struct meter *m, struct error *err)
{
    struct fetch_item *item = &m->items[m->at];
    const struct source *source = item->source;
    const char *dest = dest_of(args, source), *given = argument_text(args, "sha256", NULL);
    char sha256[65];
    if (argument_flag(args, "verify")) return verify(source, dest, m, err);
    if (given && !sha256_parse(sha256, given))
        return error_set(err, EXIT_USAGE, "use the output of sha256sum",
                         "--sha256 is not 64 hexadecimal digits");
    if (argument_flag(args, "dry-run")) return print_plan(source, dest, m), 0;
    struct fetch_options o = {.dest = dest,
                              .sha256 = given ? sha256 : NULL,
                              .trust = argument_flag(args, "trust"),
                              .allow_plain = true,
                              .connections = (int)argument_int(args, "connections", 1),
                              .keep = !argument_flag(args, "stream"),
                              .repair = argument_flag(args, "repair"),
                              .limit = (int64_t)(argument_real(args, "limit", 0) * 1073741824.0),
                              .cancel = &stop_signal,
                              .context = m,
                              .progress = meter_progress,
                              .notice = meter_notice};
    struct fetch_result r;
    int code = fetch_archive(source, &o, &r, err);
    meter_clear(m);
    print_result(source, &r, code, m, err);
    if (!code) {
        item->done = true;
        item->about = false;
        item->bytes = item->total = r.size;
    }
    fetch_result_free(&r);
    return code;
}

static const char *source_name_at(const void *table, int i)
{
    const struct sources *sources = table;
    return i < sources->count ? sources->all[i].name : NULL;
}

/* Writes how to fetch the repository whose page or name at a hub this is. Returns false if it is none. */
static bool repository_hint(char *hint, size_t size, const char *name)
{
    static const struct {
        const char *page, *prefix;
    } hubs[] = {{"https://huggingface.co/", "hf:"},
                {"https://hf-mirror.com/", "hf:"},
                {"https://modelscope.cn/models/", "ms:"},
                {"https://www.modelscope.cn/models/", "ms:"},
                {"", "hf:"}};
    for (size_t i = 0; i < sizeof hubs / sizeof hubs[0]; i++) {
        struct hub_name parsed;
        size_t n = strlen(hubs[i].page);
        if (strncmp(name, hubs[i].page, n) != 0 || !strchr(name + n, '/')) continue;
        char *text = xasprintf("%s%s", hubs[i].prefix, name + n);
        bool is_name = hub_name_parse(&parsed, text, NULL) == 0;
        if (is_name) snprintf(hint, size, _("for a repository of a hub: meopt fetch %.200s"), text);
        free(text);
        if (is_name) return true;
    }
    return false;
}

static int no_source(const struct sources *sources, const char *name, struct error *err)
{
    const char *near = nearest_name(name, source_name_at, sources);
    char hint[320] = N_("to list the sources: meopt fetch --list"), shown[256];
    if (!repository_hint(hint, sizeof hint, name) && near)
        snprintf(hint, sizeof hint, _("did you mean %.200s? to list the sources: meopt fetch --list"), near);
    return error_set(err, EXIT_USAGE, hint, "no source '%s'", name_printable(shown, sizeof shown, name));
}

/* Archives to fetch: groups are expanded, and each archive is in the list once. */
struct work {
    struct fetch_item *items;
    int count;
};

static void add_item(struct work *w, const struct arguments *args, const struct source *s)
{
    struct fetch_item item = {.source = s, .total = -1};
    for (int i = 0; i < w->count; i++)
        if (w->items[i].source == s) return;
    item.done = fetch_check(s, dest_of(args, s), &item.bytes, &item.total) == FETCH_THERE;
    if (item.done) item.bytes = item.total;
    if (item.total < 0 && s->size_about >= 0) item.total = s->size_about, item.about = true;
    w->items = xrealloc(w->items, (size_t)(w->count + 1) * sizeof *w->items);
    w->items[w->count++] = item;
}

static int add_named(struct work *w, const struct arguments *args, const struct sources *sources,
                     const char *name, int depth, struct error *err)
{
    const struct source *s = sources_find(sources, name);
    int code = 0;
    if (!s) return no_source(sources, name, err);
    if (depth > 8)
        return error_set(err, EXIT_CONFIG, "correct sources.yaml", "source '%s' includes itself", name);
    if (s->include_count == 0) add_item(w, args, s);
    for (int i = 0; i < s->include_count && !code; i++)
        code = add_named(w, args, sources, s->includes[i], depth + 1, err);
    return code;
}

/* Fetches the archives in order. */
static int fetch_work(const struct arguments *args, struct work *w, struct error *err)
{
    struct meter m;
    int code = 0;
    meter_open(&m, w->items, w->count, argument_flag(args, "json"), argument_flag(args, "quiet"));
    for (int i = 0; i < w->count && !code; i++) {
        meter_begin(&m, i);
        code = fetch_one(args, &m, err);
    }
    return code;
}

static int fetch_all(const struct arguments *args, const struct sources *sources, struct error *err)
{
    struct work w = {0};
    int code = 0;
    for (int i = 0; i < args->operand_count && !code; i++)
        code = add_named(&w, args, sources, args->operands[i], 0, err);
    if (!code) code = fetch_work(args, &w, err);
    free(w.items);
    return code;
}

/* ---- --from ---- */

/* Returns a name for an archive from its address, malloc'ed. */
static char *name_of_url(const char *from)
{
    char *clean = xstrdup(path_basename(from));
    clean[strcspn(clean, "?#")] = 0;
    for (char *p = clean; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '_';
    if (clean[0] && clean[0] != '.' && strlen(clean) <= 200) return clean;
    free(clean);
    return xstrdup("archive");
}

/* Reads the checksum of an archive whose source has none: that of an earlier download, else the one that
 * meopt fetch wrote next to it, FILE.sha256. */
static int read_checksum(struct source *own, const struct source *source, const char *file, struct error *err)
{
    char address[600];
    int64_t size;
    for (int i = 0; i < source->url_count && !own->sha256[0]; i++) {
        url_printable(address, sizeof address, source->urls[i]);
        if (!known_archive(address, own->sha256, &size)) own->sha256[0] = 0;
    }
    char *path = xasprintf("%s.sha256", file), *text = NULL, hex[65] = "";
    size_t bytes = 0;
    int code = own->sha256[0] || file_absent(path) ? 0 : file_read(path, 4096, &text, &bytes, err);
    if (text) snprintf(hex, sizeof hex, "%s", text);
    if (text && !sha256_parse(own->sha256, hex)) {
        code = error_set(err, EXIT_INTEGRITY, "remove it, or copy it again", "does not begin with a SHA-256");
        error_at(err, path, 0, 0);
    }
    free(text);
    free(path);
    return code;
}

/* Makes *own, a copy of `source`, whose only address is a file or a URL, malloc'ed. */
static int replace_address(struct source *own, char **url, const struct source *source, const char *from,
                           struct error *err)
{
    errno = 0;
    char *whole = realpath(from, NULL);
    int why = whole ? 0 : errno;
    *own = *source;
    *url = strstr(from, "://") ? xstrdup(from) : xasprintf("file://%s", whole ? whole : from);
    own->urls = url;
    own->url_count = 1;
    free(whole);
    if (strncmp(*url, "https://", 8) == 0 || strncmp(*url, "http://", 7) == 0) return 0;
    if (strncmp(*url, "file:///", 8) == 0) return read_checksum(own, source, *url + 7, err);
    if (strncmp(*url, "file://", 7) == 0 && why != ENOENT && (errno = why) != 0)
        return error_errno(err, EXIT_FAILED, "check the path", "cannot open %s", from);
    return strncmp(*url, "file://", 7) == 0
               ? error_set(err, EXIT_FAILED, "check the path", "archive %s does not exist", from)
               : error_set(err, EXIT_USAGE, "use https://, http:// with --sha256, or a path",
                           "cannot fetch from %s", from);
}

/* Fetches --from DIR|FILE|URL: the archives of the named sources in a directory, or one archive, with or
 * without the name of the source that it replaces. */
static int fetch_from(const struct arguments *args, const struct sources *sources, const char *from,
                      struct error *err)
{
    struct stat st;
    bool in_directory = !strstr(from, "://") && stat(from, &st) == 0 && S_ISDIR(st.st_mode);
    struct source unnamed = {.size = -1, .size_about = -1, .unpacked_size = -1, .entries = -1};
    struct work w = {0};
    int code = 0;
    for (int i = 0; i < args->operand_count && !code; i++)
        code = add_named(&w, args, sources, args->operands[i], 0, err);
    if (!code && in_directory && w.count == 0)
        code = error_set(err, EXIT_USAGE, "to list the sources: meopt fetch --list",
                         "--from %s, a directory, requires NAME", from);
    if (!code && !in_directory && w.count > 1)
        code = error_set(err, EXIT_USAGE, "give one name or none, or the directory of the archives",
                         "--from requires at most one archive");
    char *clean = name_of_url(from);
    unnamed.name = unnamed.file = clean;
    if (!code && w.count == 0) add_item(&w, args, &unnamed);
    struct source *own = xcalloc((size_t)w.count + 1, sizeof *own);
    char **urls = xcalloc((size_t)w.count + 1, sizeof *urls);
    for (int i = 0; i < w.count && !code; i++) {
        struct fetch_item *item = &w.items[i];
        char *path = in_directory ? path_join(from, item->source->file) : xstrdup(from);
        bool absent = in_directory && file_absent(path);
        if (absent &&
            (item->done || strncmp(item->source->urls[0], "file:", 5) == 0)) /* shipped with meopt */
            own[i] = *item->source;
        else if (!absent) code = replace_address(&own[i], &urls[i], item->source, path, err);
        else
            code = error_set(err, EXIT_FAILED, "copy it from where 'meopt fetch NAME --dest DIR' left it",
                             "archive %s does not exist", path);
        item->source = &own[i];
        free(path);
    }
    if (!code) code = fetch_work(args, &w, err);
    for (int i = 0; i < w.count; i++) free(urls[i]);
    free(urls);
    free(own);
    free(clean);
    free(w.items);
    return code;
}

static int fetch_run(const struct arguments *args, struct error *err)
{
    struct sources sources;
    const char *from = argument_text(args, "from", NULL);
    int code = sources_load(&sources, err);
    if (code) return code;
    const int stops[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        struct sigaction action = {.sa_handler = on_signal}, before;
        if (sigaction(stops[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stops[i], &action, NULL); /* ignored signals (nohup) stay ignored */
    }
    int repositories = 0;
    for (int i = 0; i < args->operand_count; i++) repositories += hub_is_name(args->operands[i]);
    if (repositories && repositories == args->operand_count) code = fetch_hub(args, &stop_signal, err);
    else if (repositories || argument_text(args, "include", NULL) || argument_text(args, "exclude", NULL))
        code = error_set(err, EXIT_USAGE, "give hf:OWNER/REPO alone",
                         "repositories of a hub and other archives need a command each");
    else if (argument_flag(args, "list")) code = list(args, &sources);
    else if (argument_flag(args, "stream") && argument_flag(args, "keep-archive"))
        code = error_set(err, EXIT_USAGE, "use one of them", "--keep-archive cannot be used with --stream");
    else if (argument_text(args, "sha256", NULL) && args->operand_count > 1)
        code = error_set(err, EXIT_USAGE, "give one name", "--sha256 requires exactly one archive");
    else if (from) code = fetch_from(args, &sources, from, err);
    else if (args->operand_count == 0)
        code = error_set(err, EXIT_USAGE, "to list the sources: meopt fetch --list",
                         "meopt fetch requires NAME or --from URL|FILE");
    else code = fetch_all(args, &sources, err);
    sources_free(&sources);
    if (code > EXIT_SIGNAL && stop_signal) code = EXIT_SIGNAL + stop_signal;
    return code;
}

static const struct option options[] = {
    {"list", .letter = 'l',
     .help = "list the sources and the state of each destination, or a repository's files"},
    {"dest", .letter = 'd', .type = OPTION_TEXT, .value = "DIR",
     .help = "directory to unpack into (default: the working directory)"},
    {"include", .type = OPTION_TEXT, .value = "PATTERN,...",
     .help = "of a hub's repository, only the files that match: '*.json,*.safetensors'"},
    {"exclude", .type = OPTION_TEXT, .value = "PATTERN,...",
     .help = "of a hub's repository, not the files that match"},
    {"from", .type = OPTION_TEXT, .value = "URL|FILE|DIR",
     .help = "read the archive from a mirror, a local file or a directory of archives, with the same checks"},
    {"sha256", .type = OPTION_TEXT, .value = "HEX", .help = "require this checksum of the archive"},
    {"trust", .help = "accept an archive without a known checksum, and record its own"},
    {"connections", .type = OPTION_INT, .value = "N", .min = 1, .max = 8,
     .help = "downloads in parallel: ranges of an archive, each of at least 64 MiB (default 1), or files of "
             "a repository (default 8)"},
    {"keep-archive", .help = "keep the archive next to the tree (default)"},
    {"stream", .help = "delete the archive after it is unpacked"},
    {"limit", .type = OPTION_REAL, .value = "GIB", .min = 0.000001, .max = 1e6,
     .help = "refuse an archive that unpacks to more (default: the size in the source, else the free space)"},
    {"verify", .help = "verify every file of a fetched tree"},
    {"repair", .help = "verify, then restore damaged files from the archive (missing files need no option)"},
    {"dry-run", .letter = 'n', .help = "print the actions without performing them"},
    {"quiet", .letter = 'q', .help = "print only errors"},
    {"json", .help = "print one event per line; with --list one array"},
    {0},
};

const struct command cmd_fetch = {
    .name = "fetch",
    .operands = "[NAME ...]",
    .summary = "download, verify and unpack datasets and weights",
    .details =
        "Examples:\n  meopt fetch coco2014 model-weight\n  meopt fetch sample --dest sample\n  meopt fetch "
        "--list\n"
        "  meopt fetch coco2014 --from /media/usb/COCO2014.tar.gz\n"
        "  meopt fetch coco2014 model-weight --from /media/usb     on a machine without a network\n"
        "  meopt fetch hf:facebook/dinov2-large --include '*.json,*.safetensors'\n\n"
        "After Ctrl-C or a crash, the same command resumes the download.",
    .options = options,
    .max_operands = -1,
    .run = fetch_run,
};
