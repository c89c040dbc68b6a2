/* Progress of a fetch: see fetch_progress.h. */
#include "cli/fetch/fetch_progress.h"
#include "core/base/clock.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"

#include <langinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { RATES = METER_RATES, BAR = 20, MOST_BARS = 8 };

const char *size_text(char text[32], double bytes)
{
    const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    while (bytes >= 1000 && u < 4) bytes /= 1024, u++;
    snprintf(text, 32,
             bytes < 10 && u    ? "%.2f %s"
             : bytes < 100 && u ? "%.1f %s"
                                : "%.0f %s",
             bytes, units[u]);
    return text;
}

const char *time_text(char text[32], double seconds)
{
    long s = seconds < 0 || seconds > 8640000 ? -1 : (long)(seconds + 0.5);
    if (s < 0) snprintf(text, 32, "-");
    else if (s < 60) snprintf(text, 32, "%lds", s);
    else if (s < 3600) snprintf(text, 32, "%ldm%02lds", s / 60, s % 60);
    else snprintf(text, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
    return text;
}

void meter_open(struct meter *m, struct fetch_item *items, int count, bool json, bool quiet)
{
    const char *term = getenv("TERM");
    *m = (struct meter){.items = items, .count = count, .json = json, .quiet = quiet};
    m->terminal = !json && !quiet && isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    m->unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

void meter_begin(struct meter *m, int item)
{
    m->at = item;
    m->phase = FETCH_WAITING;
    m->rate_count = 0;
    m->shown_at = 0;
    m->shown_share = -1;
    m->begin = clock_seconds();
}

/* Returns the bytes per second over the last 5 s. */
static double rate(struct meter *m, double t, double bytes)
{
    int last = (m->rate_at + RATES - 1) % RATES;
    if (m->rate_count == 0 || t - m->rates[last].time >= 0.1 || m->rates[last].bytes > bytes) {
        if (m->rate_count && m->rates[last].bytes > bytes) m->rate_count = 0; /* the transfer was restarted */
        m->rates[m->rate_at].time = t;
        m->rates[m->rate_at].bytes = bytes;
        m->rate_at = (m->rate_at + 1) % RATES;
        if (m->rate_count < RATES) m->rate_count++;
    }
    int oldest = (m->rate_at + RATES - m->rate_count) % RATES;
    while (m->rate_count > 2 && t - m->rates[oldest].time > 5) oldest = (oldest + 1) % RATES, m->rate_count--;
    double span = t - m->rates[oldest].time;
    return span > 0.05 ? (bytes - m->rates[oldest].bytes) / span : 0;
}

void meter_event(const struct meter *m, json_t *fields)
{
    json_t *all = json_pack("{s:s}", "name", m->items[m->at].source->name);
    json_object_update(all, fields);
    json_decref(fields);
    json_print(stdout, all, JSON_COMPACT | JSON_PRESERVE_ORDER);
    fflush(stdout);
    json_decref(all);
}

static json_t *number_or_null(bool known, double value) { return known ? json_real(value) : json_null(); }

static void event_progress(const struct meter *m, const struct fetch_progress *p, double speed, double left)
{
    json_t *fields = json_pack(
        "{s:s, s:s, s:I, s:o, s:I, s:o, s:o, s:i, s:I, s:I}", "event", "progress", "phase",
        fetch_phase_names[p->phase], "bytes", (json_int_t)p->bytes, "total_bytes",
        p->total >= 0 ? json_integer(p->total) : json_null(), "resumed_bytes", (json_int_t)p->resumed,
        "bytes_per_s", number_or_null(speed > 0, speed), "eta_s", number_or_null(left >= 0, left), "try",
        p->tries, "files", (json_int_t)p->files, "unpacked_bytes", (json_int_t)p->unpacked_bytes);
    if (p->file.name) {
        json_object_set_new(fields, "file", json_string(p->file.name));
        json_object_set_new(fields, "file_bytes", json_integer(p->file.bytes));
        json_object_set_new(fields, "file_total_bytes", json_integer(p->file.total));
    }
    if (p->retry_in > 0) {
        char reason[400];
        json_object_set_new(fields, "error", json_string(text_printable(reason, sizeof reason, p->reason)));
        json_object_set_new(fields, "retry_in_s", json_real(p->retry_in));
    }
    meter_event(m, fields);
}

/* ---- Lines, without a terminal ---- */

static void line_text(char *text, size_t size, const struct meter *m, const struct fetch_progress *p,
                      double speed, double left)
{
    bool unpacking = p->phase == FETCH_UNPACK || p->phase == FETCH_PUBLISH;
    const char *name = m->items[m->at].source->name;
    char a[32], b[32];
    int n = 0;
    if (unpacking)
        n = snprintf(text, size, _("%s  %s %lld files  %s"), name,
                     p->phase == FETCH_PUBLISH ? _("writing to the disk") : "unpack", (long long)p->files,
                     size_text(a, (double)p->unpacked_bytes));
    else if (p->phase == FETCH_WAITING)
        n = snprintf(text, size, _("%s  waiting for a different process, which has %s"), name,
                     size_text(a, (double)p->bytes));
    else if (p->total > 0)
        n = snprintf(text, size, "%s %3.0f%%  %s / %s", name, 100 * (double)p->bytes / (double)p->total,
                     size_text(a, (double)p->bytes), size_text(b, (double)p->total));
    else n = snprintf(text, size, "%s  %s", name, size_text(a, (double)p->bytes));
    if (p->retry_in > 0) {
        char reason[160];
        if (p->file.name) n += snprintf(text + n, size - (size_t)n, "  %.100s", p->file.name);
        snprintf(text + n, size - (size_t)n, _("  %s; try %d in %s"),
                 text_printable(reason, sizeof reason, p->reason), p->tries, time_text(a, p->retry_in));
    } else if (p->phase != FETCH_WAITING && p->phase != FETCH_PUBLISH) {
        n += snprintf(text + n, size - (size_t)n, "  %s/s", size_text(a, speed));
        if (left >= 0) snprintf(text + n, size - (size_t)n, "  ETA %s", time_text(b, left));
    }
}

/* ---- Bars, on a terminal ---- */

static int width_of_terminal(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

void meter_clear(struct meter *m)
{
    for (int i = 0; i < m->lines; i++) fputs(i ? "\033[A\033[2K" : "\r\033[2K", stderr);
    if (m->lines) fputs("\r", stderr);
    m->lines = 0;
    fflush(stderr);
}

/* Draws name, bar, percent and bytes of an archive; then `more`, as far as the line is wide. */
static void bar_line(struct meter *m, const char *name, int64_t bytes, int64_t total, bool about,
                     const char *more)
{
    char a[32], b[32], text[400];
    double share = total > 0 ? (double)bytes / (double)total : 0;
    int filled = (int)(share * BAR + 0.5), text_width = width_of_terminal() - 1 - 14 - 1 - BAR - 1;
    if (filled > BAR) filled = BAR;
    if (m->lines++) fputc('\n', stderr);
    fprintf(stderr, "\r\033[2K%-14.14s ", path_basename(name)); /* of a repository, without its owner */
    const char *full = m->unicode ? "█" : "#", *empty = m->unicode ? "░" : ".";
    for (int i = 0; i < BAR; i++) fputs(i < filled ? full : empty, stderr);
    if (total > 0)
        snprintf(text, sizeof text, " %3.0f%% %s/%s%s%s", 100 * (share > 1 ? 1 : share),
                 size_text(a, (double)bytes), about ? "~" : "", size_text(b, (double)total), more);
    else snprintf(text, sizeof text, " %s%s", size_text(a, (double)bytes), more);
    fprintf(stderr, "%.*s", text_width > 0 ? text_width : 0, text);
}

/* Formats the line below the bar of the current archive. */
static void current_text(char *text, size_t size, const struct fetch_progress *p, double speed, double left)
{
    char a[32], b[32], reason[160];
    size_t n = 0;
    text[0] = 0;
    if (p->retry_in > 0)
        n += (size_t)snprintf(text, size, _("%s; try %d in %s  "),
                              text_printable(reason, sizeof reason, p->reason), p->tries,
                              time_text(a, p->retry_in));
    else if (p->phase == FETCH_WAITING)
        n += (size_t)snprintf(text, size, _("a different process fetches it  "));
    else if (p->phase == FETCH_PUBLISH) n += (size_t)snprintf(text, size, _("writing to the disk  "));
    else if (p->phase == FETCH_DOWNLOAD && p->bytes != p->total)
        n += (size_t)snprintf(text, size, _("%s/s, %s left  "), size_text(a, speed), time_text(b, left));
    if (p->file.name && n < size)
        n +=
            (size_t)snprintf(text + n, size - n, _("%lld of %d files  "), (long long)p->files, p->file.count);
    else if (p->files > 0 && n < size)
        n += (size_t)snprintf(text + n, size - n, _("unpacked %lld  "), (long long)p->files);
    if (p->resumed > 0 && n < size && p->phase == FETCH_DOWNLOAD && p->resumed < p->total)
        snprintf(text + n, size - n, _("resumed at %s"), size_text(a, (double)p->resumed));
}

static void bars(struct meter *m, const struct fetch_progress *p, double speed, double left)
{
    char text[400];
    int64_t bytes = 0, total = 0, fresh = 0;
    bool known = true, about = false;
    struct fetch_item *now = &m->items[m->at];
    now->bytes = p->phase == FETCH_VERIFY || p->bytes > 0 ? p->bytes : now->bytes;
    if (p->total >= 0) now->total = p->total, now->about = false;
    now->resumed = p->resumed;
    for (int i = m->lines; i > 1; i--) fputs("\033[A", stderr);
    m->lines = 0;
    for (int i = 0; i < m->count; i++) {
        const struct fetch_item *item = &m->items[i];
        int64_t all = item->total;
        bytes += item->done && all >= 0 ? all : item->bytes;
        total += all > 0 ? all : 0;
        fresh += item->done ? 0 : all - item->bytes;
        known = known && all >= 0;
        about |= item->about;
        if (i == m->at || m->count <= MOST_BARS)
            bar_line(m, item->source->name, item->done && all >= 0 ? all : item->bytes, all, item->about,
                     item->done ? "  done" : "");
        if (i != m->at) continue;
        current_text(text, sizeof text, p, speed, left);
        m->lines++;
        fprintf(stderr, "\n\r\033[2K%15s%.*s", "", width_of_terminal() - 16, text);
    }
    if (m->count > 1) {
        char name[32], when[32];
        snprintf(name, sizeof name, _("all %d"), m->count);
        text[0] = 0;
        if (known && speed > 0 && p->phase == FETCH_DOWNLOAD)
            snprintf(text, sizeof text, _("  %s left"), time_text(when, (double)fresh / speed));
        bar_line(m, name, bytes, known ? total : -1, about, text);
    }
    fflush(stderr);
}

void meter_progress(void *context, const struct fetch_progress *p)
{
    struct meter *m = context;
    double t = clock_seconds();
    bool unpacking = p->phase == FETCH_UNPACK || p->phase == FETCH_PUBLISH;
    double bytes = unpacking ? (double)p->unpack_bytes : (double)p->bytes, total = (double)p->total;
    double moved = unpacking ? bytes : bytes - (double)p->resumed;
    if (m->phase != p->phase) {
        m->phase = p->phase;
        m->rate_count = 0;
        m->shown_at = 0;
        m->shown_share = -1;
    }
    double speed = rate(m, t, moved), share = p->total > 0 ? bytes / total : 0;
    double left = speed > 0 && p->total >= 0 ? (total - bytes) / speed : -1;
    double gap = m->json ? 1 : m->terminal ? 0.1 : 10;
    bool lines = !m->terminal && !m->json;
    if (m->quiet || (!p->pause_begins && t - m->shown_at < gap &&
                     !(lines && share - m->shown_share >= 0.05 && t - m->shown_at > 0.5)))
        return;
    if (lines && !p->pause_begins && m->shown_at == 0 && t - m->begin < 2)
        return; /* a short transfer needs no progress in a log */
    m->shown_at = t;
    m->shown_share = share;
    if (m->json) event_progress(m, p, speed, left);
    else if (m->terminal) bars(m, p, speed, left);
    else {
        char text[400];
        line_text(text, sizeof text, m, p, speed, left);
        fprintf(stderr, "%s\n", text);
        fflush(stderr);
    }
}

void meter_notice(void *context, const char *text)
{
    struct meter *m = context;
    char shown[700];
    meter_clear(m);
    text_printable(shown, sizeof shown, text);
    if (m->json) meter_event(m, json_pack("{s:s, s:s}", "event", "notice", "text", shown));
    else log_info("%s: %s", m->items[m->at].source->name, shown);
}
