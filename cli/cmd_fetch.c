/* meopt fetch: archives from their sources to their places. This file talks; fetch/ does. */
#include "cli/command.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "fetch/fetch.h"
#include "fetch/publish.h"

#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    if (stop_signal) { /* the second time: at once; what is on the disk is as good as after SIGKILL */
        signal(number, SIG_DFL);
        raise(number);
    }
    stop_signal = number;
}

/* ---- how far it is ---- */

enum { RATES = 64 };

struct meter {
    const char *name;
    bool json, quiet, terminal, line_open;
    double shown_at, shown_share;
    enum fetch_phase phase;
    int count, at;
    struct {
        double time, bytes;
    } rates[RATES]; /* of the last 5 s */
    double begin;
};

static const char *size_text(char text[32], double bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (bytes >= 1000 && u < 4) bytes /= 1024, u++;
    snprintf(text, 32,
             bytes < 10 && u    ? "%.2f %s"
             : bytes < 100 && u ? "%.1f %s"
                                : "%.0f %s",
             bytes, units[u]);
    return text;
}

static const char *time_text(char text[32], double seconds)
{
    long s = seconds < 0 || seconds > 8640000 ? -1 : (long)(seconds + 0.5);
    if (s < 0) snprintf(text, 32, "-");
    else if (s < 60) snprintf(text, 32, "%lds", s);
    else if (s < 3600) snprintf(text, 32, "%ldm%02lds", s / 60, s % 60);
    else snprintf(text, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    return text;
}

/* Bytes per second over the last 5 s. */
static double rate(struct meter *m, double t, double bytes)
{
    int last = (m->at + RATES - 1) % RATES;
    if (m->count == 0 || t - m->rates[last].time >= 0.1 || m->rates[last].bytes > bytes) {
        if (m->count && m->rates[last].bytes > bytes) m->count = 0; /* it began anew */
        m->rates[m->at].time = t;
        m->rates[m->at].bytes = bytes;
        m->at = (m->at + 1) % RATES;
        if (m->count < RATES) m->count++;
    }
    int oldest = (m->at + RATES - m->count) % RATES;
    while (m->count > 2 && t - m->rates[oldest].time > 5) oldest = (oldest + 1) % RATES, m->count--;
    double span = t - m->rates[oldest].time;
    return span > 0.05 ? (bytes - m->rates[oldest].bytes) / span : 0;
}

static void line_end(struct meter *m)
{
    if (m->line_open) fputc('\n', stderr);
    m->line_open = false;
}

static void event(struct meter *m, json_t *fields)
{
    json_t *all = json_pack("{s:s}", "name", m->name);
    json_object_update(all, fields);
    json_decref(fields);
    json_print(stdout, all, JSON_COMPACT | JSON_PRESERVE_ORDER);
    fflush(stdout);
    json_decref(all);
}

static json_t *number_or_null(bool known, double value) { return known ? json_real(value) : json_null(); }

static void progress(void *context, const struct fetch_progress *p)
{
    struct meter *m = context;
    double t = clock_seconds();
    bool unpacking = p->phase == FETCH_UNPACK || p->phase == FETCH_PUBLISH;
    double bytes = unpacking ? (double)p->unpack_bytes : (double)p->bytes, total = (double)p->total;
    if (m->phase != p->phase) {
        m->phase = p->phase;
        m->count = 0;
        m->shown_at = 0;
        m->shown_share = -1;
    }
    double speed = rate(m, t, bytes), share = p->total > 0 ? bytes / total : 0;
    double eta = speed > 0 && p->total >= 0 ? (total - bytes) / speed : -1;
    double gap = m->json ? 1 : m->terminal ? 0.1 : 10;
    if (m->quiet || (t - m->shown_at < gap &&
                     !(!m->terminal && !m->json && share - m->shown_share >= 0.05 && t - m->shown_at > 0.5)))
        return;
    if (!m->terminal && !m->json && m->shown_at == 0 && t - m->begin < 2)
        return; /* short ones need no progress in a log */
    m->shown_at = t;
    m->shown_share = share;
    if (m->json) {
        event(m, json_pack("{s:s, s:s, s:I, s:o, s:I, s:o, s:o, s:i, s:I, s:I}", "event", "progress", "phase",
                           fetch_phase_names[p->phase], "bytes", (json_int_t)p->bytes, "total_bytes",
                           p->total >= 0 ? json_integer(p->total) : json_null(), "resumed_bytes",
                           (json_int_t)p->resumed, "bytes_per_s", number_or_null(speed > 0, speed), "eta_s",
                           number_or_null(eta >= 0, eta), "try", p->tries, "files", (json_int_t)p->files,
                           "unpacked_bytes", (json_int_t)p->unpacked_bytes));
        return;
    }
    char a[32], b[32], c[32], d[32], text[400];
    int n = 0;
    if (unpacking)
        n = snprintf(text, sizeof text, "%s  %s %lld files  %s", m->name,
                     p->phase == FETCH_PUBLISH ? "writing to the disk" : "unpack", (long long)p->files,
                     size_text(a, (double)p->unpacked_bytes));
    else if (p->phase == FETCH_WAITING)
        n = snprintf(text, sizeof text, "%s  waiting, the other has %s", m->name, size_text(a, bytes));
    else if (p->total > 0)
        n = snprintf(text, sizeof text, "%s %3.0f%%  %s / %s", m->name, 100 * share, size_text(a, bytes),
                     size_text(b, total));
    else n = snprintf(text, sizeof text, "%s  %s", m->name, size_text(a, bytes));
    if (p->retry_in > 0) {
        char reason[160];
        text_printable(reason, sizeof reason, p->reason);
        snprintf(text + n, sizeof text - (size_t)n, "  %s; try %d in %s", reason, p->tries,
                 time_text(c, p->retry_in));
    } else if (p->phase != FETCH_WAITING && p->phase != FETCH_PUBLISH) {
        n += snprintf(text + n, sizeof text - (size_t)n, "  %s/s", size_text(c, speed));
        if (eta >= 0) n += snprintf(text + n, sizeof text - (size_t)n, "  ETA %s", time_text(d, eta));
        if (p->phase == FETCH_DOWNLOAD && p->tries > 1)
            snprintf(text + n, sizeof text - (size_t)n, "  try %d", p->tries);
    }
    if (m->terminal) {
        fprintf(stderr, "\r\033[K%s", text);
        m->line_open = true;
    } else {
        fprintf(stderr, "%s\n", text);
    }
    fflush(stderr);
}

static void notice(void *context, const char *text)
{
    struct meter *m = context;
    char shown[700];
    line_end(m);
    text_printable(shown, sizeof shown, text);
    if (m->json) event(m, json_pack("{s:s, s:s}", "event", "notice", "text", shown));
    else log_info("%s: %s", m->name, shown);
}

/* ---- what is there ---- */

static const char *dest_of(const struct arguments *args, const struct source *source)
{
    return argument_text(args, "dest", source->dest ? source->dest : ".");
}

static int list(const struct arguments *args, const struct sources *sources)
{
    bool json = argument_flag(args, "json");
    json_t *all = json_array();
    if (!json) printf("%-18s %-9s %12s %12s  %s\n", "NAME", "STATE", "HERE", "ARCHIVE", "ABOUT");
    for (int i = 0; i < sources->count; i++) {
        const struct source *s = &sources->all[i];
        int64_t bytes = 0, total = -1;
        if (s->include_count) {
            if (!json)
                printf("%-18s %-9s %12s %12s  %s\n", s->name, "group", "", "", s->about ? s->about : "");
            continue;
        }
        enum fetch_state state = fetch_look(s, dest_of(args, s), &bytes, &total);
        char a[32] = "-", b[32] = "-";
        if (bytes > 0) size_text(a, (double)bytes);
        if (total >= 0) size_text(b, (double)total);
        if (json)
            json_array_append_new(
                all, json_pack("{s:s, s:s, s:I, s:o, s:s, s:o}", "name", s->name, "state",
                               fetch_state_names[state], "bytes", (json_int_t)bytes, "total_bytes",
                               total >= 0 ? json_integer(total) : json_null(), "dest", dest_of(args, s),
                               "sha256", s->sha256[0] ? json_string(s->sha256) : json_null()));
        else
            printf("%-18s %-9s %12s %12s  %s\n", s->name, fetch_state_names[state], a, b,
                   s->about ? s->about : "");
    }
    if (json) json_print(stdout, all, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(all);
    return 0;
}

static void verify_progress(void *context, int64_t files, int64_t bytes)
{
    struct meter *m = context;
    struct fetch_progress p = {.phase = FETCH_VERIFY, .bytes = bytes, .total = -1, .files = files};
    progress(m, &p);
}

static int verify(const struct source *source, const char *dest, struct meter *m, struct error *err)
{
    char *tree = path_join(dest, source->top ? source->top : source->name);
    int code = published_verify(tree, &stop_signal, verify_progress, m, err);
    line_end(m);
    if (!code && m->json) event(m, json_pack("{s:s, s:s}", "event", "verified", "tree", tree));
    else if (!code && !m->quiet) log_info("%s: every file of %s is as it was published", m->name, tree);
    free(tree);
    return code;
}

/* ---- fetching ---- */

static int fetch_one(const struct arguments *args, const struct source *source, struct error *err)
{
    struct meter m = {.name = source->name,
                      .json = argument_flag(args, "json"),
                      .quiet = argument_flag(args, "quiet"),
                      .shown_share = -1,
                      .begin = clock_seconds(),
                      .phase = FETCH_WAITING};
    const char *term = getenv("TERM"), *dest = dest_of(args, source);
    m.terminal = !m.json && isatty(2) && term && strcmp(term, "dumb") != 0;
    if (argument_flag(args, "verify")) return verify(source, dest, &m, err);
    char sha256[65], a[32], b[32], url[300];
    const char *given = argument_text(args, "sha256", NULL);
    if (given && !sha256_parse(sha256, given))
        return error_set(err, EXIT_USAGE, "the output of sha256sum", "--sha256 is not 64 hexadecimal digits");
    if (argument_flag(args, "dry-run")) {
        int64_t bytes = 0, total = -1;
        enum fetch_state state = fetch_look(source, dest, &bytes, &total);
        url_printable(url, sizeof url, source->urls[0]);
        if (m.json)
            event(&m, json_pack("{s:s, s:s, s:s, s:s, s:o}", "event", "plan", "state",
                                fetch_state_names[state], "url", url, "dest", dest, "total_bytes",
                                total >= 0 ? json_integer(total) : json_null()));
        else
            printf("%s: %s; %s%s from %s into %s/%s\n", source->name, fetch_state_names[state],
                   state == FETCH_THERE ? "nothing to do, was " : "would fetch ",
                   total >= 0 ? size_text(a, (double)total) : "an archive of unknown size", url, dest,
                   source->top ? source->top : "");
        return 0;
    }
    double limit = argument_real(args, "limit", 0) * 1073741824.0;
    struct fetch_options o = {.dest = dest,
                              .sha256 = given ? sha256 : NULL,
                              .trust = argument_flag(args, "trust"),
                              .allow_plain = true,
                              .connections = (int)argument_int(args, "connections", 1),
                              .keep = !argument_flag(args, "stream"),
                              .limit = (int64_t)limit,
                              .cancel = &stop_signal,
                              .context = &m,
                              .progress = progress,
                              .notice = notice};
    struct fetch_result r;
    int code = fetch_archive(source, &o, &r, err);
    line_end(&m);
    if (code) {
        if (m.json)
            event(&m, json_pack("{s:s, s:i, s:s, s:s}", "event", "failed", "exit_code", code, "what",
                                err->what, "hint", err->hint));
    } else if (m.json) {
        event(&m, json_pack("{s:s, s:b, s:s, s:s, s:I, s:I, s:I, s:I, s:o}", "event", "done", "already",
                            r.already, "tree", r.tree, "sha256", r.sha256, "archive_bytes",
                            (json_int_t)r.size, "files", (json_int_t)r.files, "unpacked_bytes",
                            (json_int_t)r.unpacked, "received_bytes", (json_int_t)r.received, "archive",
                            r.archive ? json_string(r.archive) : json_null()));
    } else if (r.already) {
        log_info("%s: %s is there and complete (%lld files): nothing to do", source->name, r.tree,
                 (long long)r.files);
    } else if (!m.quiet) {
        log_info("%s: %s, %lld files, %s, in %s", source->name, r.tree, (long long)r.files,
                 size_text(a, (double)r.unpacked), time_text(b, clock_seconds() - m.begin));
        log_info("%s: SHA-256 of the archive %s%s", source->name, r.sha256,
                 r.first_use ? " (first use: remembered, and demanded from now on)" : "");
        if (r.archive)
            log_info("%s: the archive stays as %s (--stream would not keep it)", source->name, r.archive);
    }
    fetch_result_free(&r);
    return code;
}

static const char *source_name_at(const void *table, int i)
{
    const struct sources *sources = table;
    return i < sources->count ? sources->all[i].name : NULL;
}

static int no_source(const struct sources *sources, const char *name, struct error *err)
{
    const char *near = nearest_name(name, source_name_at, sources);
    char hint[320] = "'meopt fetch --list' names them", shown[256];
    if (near) snprintf(hint, sizeof hint, "did you mean %.200s? 'meopt fetch --list' names them", near);
    return error_set(err, EXIT_USAGE, hint, "no source '%s'", name_printable(shown, sizeof shown, name));
}

static int fetch_named(const struct arguments *args, const struct sources *sources, const char *name,
                       int depth, struct error *err)
{
    const struct source *s = sources_find(sources, name);
    if (!s) return no_source(sources, name, err);
    if (depth > 8)
        return error_set(err, EXIT_CONFIG, "mend sources.yaml", "source '%s' includes itself", name);
    int code = 0;
    if (s->include_count == 0) return fetch_one(args, s, err);
    for (int i = 0; i < s->include_count && !code; i++)
        code = fetch_named(args, sources, s->includes[i], depth + 1, err);
    return code;
}

/* --from FILE|URL, with or without the name of a source that it stands in for. */
static int fetch_from(const struct arguments *args, const struct sources *sources, const char *from,
                      struct error *err)
{
    struct source own = {.size = -1, .unpacked_size = -1, .entries = -1};
    char *url = strstr(from, "://") ? xstrdup(from) : NULL, *clean = NULL;
    if (!url) {
        char *whole = realpath(from, NULL);
        url = whole ? xasprintf("file://%s", whole) : xasprintf("file://%s", from);
        free(whole);
    }
    if (args->operand_count == 1) {
        const struct source *s = sources_find(sources, args->operands[0]);
        if (!s || s->include_count) {
            free(url);
            return s ? error_set(err, EXIT_USAGE, "'meopt fetch --list' names them",
                                 "'%s' is a group: --from needs one archive", args->operands[0])
                     : no_source(sources, args->operands[0], err);
        }
        own = *s;
    } else {
        clean = xstrdup(path_basename(from));
        clean[strcspn(clean, "?#")] = 0;
        for (char *p = clean; *p; p++)
            if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '_';
        if (!clean[0] || clean[0] == '.' || strlen(clean) > 200) {
            free(clean);
            clean = xstrdup("archive");
        }
        own.name = own.file = clean;
    }
    own.urls = &url;
    own.url_count = 1;
    int code = 0;
    if (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0 &&
        strncmp(url, "file:///", 8) != 0)
        code = strncmp(url, "file://", 7) == 0
                   ? error_set(err, EXIT_FAILED, "check the path", "no archive %s", from)
                   : error_set(err, EXIT_USAGE, "https://, http:// with --sha256, or a path",
                               "cannot fetch from %s", from);
    if (!code) code = fetch_one(args, &own, err);
    free(url);
    free(clean);
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
            sigaction(stops[i], &action, NULL); /* nohup stays nohup */
    }
    if (argument_flag(args, "list")) code = list(args, &sources);
    else if (argument_flag(args, "stream") && argument_flag(args, "keep-archive"))
        code = error_set(err, EXIT_USAGE, "choose one", "--keep-archive and --stream contradict each other");
    else if (from && args->operand_count > 1)
        code = error_set(err, EXIT_USAGE, "one name, or none", "--from is one archive");
    else if (argument_text(args, "sha256", NULL) && args->operand_count > 1)
        code = error_set(err, EXIT_USAGE, "one name at a time", "--sha256 is of one archive");
    else if (from) code = fetch_from(args, &sources, from, err);
    else if (args->operand_count == 0)
        code = error_set(err, EXIT_USAGE, "'meopt fetch --list' names what there is",
                         "meopt fetch needs NAME, or --from URL|FILE");
    for (int i = 0; !from && !argument_flag(args, "list") && i < args->operand_count && !code; i++)
        code = fetch_named(args, &sources, args->operands[i], 0, err);
    sources_free(&sources);
    if (code > EXIT_SIGNAL && stop_signal) code = EXIT_SIGNAL + stop_signal;
    return code;
}

static const struct option options[] = {
    {"list", 'l', OPTION_FLAG, NULL, NULL, 0, 0,
     "what can be fetched, and what is there, partial or missing"},
    {"dest", 'd', OPTION_TEXT, "DIR", NULL, 0, 0,
     "directory to unpack into (default: the working directory)"},
    {"from", 0, OPTION_TEXT, "URL|FILE", NULL, 0, 0, "take the archive from here, through the same checks"},
    {"sha256", 0, OPTION_TEXT, "HEX", NULL, 0, 0, "the archive must have this checksum"},
    {"trust", 0, OPTION_FLAG, NULL, NULL, 0, 0,
     "take an archive of which no checksum is known, and remember its own"},
    {"connections", 0, OPTION_INT, "N", NULL, 1, 8,
     "fetch N ranges of 64 MiB or more side by side (default 1)"},
    {"keep-archive", 0, OPTION_FLAG, NULL, NULL, 0, 0, "keep the archive beside the tree (default)"},
    {"stream", 0, OPTION_FLAG, NULL, NULL, 0, 0, "delete the archive once it is unpacked"},
    {"limit", 0, OPTION_REAL, "GIB", NULL, 0.000001, 1e6,
     "refuse an archive that unpacks to more (default: what the source says, else the free space)"},
    {"verify", 0, OPTION_FLAG, NULL, NULL, 0, 0, "check every file of a tree that was fetched before"},
    {"dry-run", 'n', OPTION_FLAG, NULL, NULL, 0, 0, "say what would be done"},
    {"quiet", 'q', OPTION_FLAG, NULL, NULL, 0, 0, "only errors"},
    {"json", 0, OPTION_FLAG, NULL, NULL, 0, 0, "an event per line on stdout; with --list one array"},
    {0},
};

const struct command cmd_fetch = {
    "fetch",
    "[NAME ...]",
    "bring datasets and weights: resumed, verified, safely unpacked",
    "Examples:\n  meopt fetch coco2014 model-weight\n  meopt fetch sample --dest sample\n  meopt fetch "
    "--list\n"
    "  meopt fetch coco2014 --from /media/usb/COCO2014.tar.gz\n\n"
    "Ctrl-C stops cleanly; the same command goes on where it was. A killed run, too.",
    options,
    0,
    -1,
    false,
    fetch_run};
