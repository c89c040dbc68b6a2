/* The cards of a run, now and earlier: see follow_internal.h. */
#include "core/run/follow_internal.h"
#include "core/base/memory.h"
#include "core/base/retry.h"
#include "core/run/telemetry.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { WHOLE_BYTES = 2 << 20, PLACES = FOLLOW_READINGS / 2 };
enum source { FROM_METRICS = 1, FROM_LIVE = 2, FROM_READINGS = 4 };

static struct follow_card blank(int rank)
{
    return (struct follow_card){.rank = rank,
                                .memory = {.now_bytes = -1, .peak_bytes = -1},
                                .images_per_s = NAN,
                                .waiting_percent = NAN,
                                .used_bytes = NAN,
                                .total_bytes = NAN,
                                .process_bytes = NAN,
                                .busy_percent = NAN,
                                .temp_c = NAN,
                                .power_w = NAN,
                                .age_s = NAN};
}

/* Returns the card of a rank. Of more than FOLLOW_CARDS ranks only some are stored; NULL: no space. */
static struct follow_card *card_of(struct follow *f, int64_t rank, enum source source)
{
    int at = 0;
    if (rank < 0 || rank >= (f->rank_count ? f->rank_count : FOLLOW_CARDS)) return NULL;
    for (; !f->rank_count && f->card_count <= rank; f->card_count++)
        f->cards[f->card_count] = blank(f->card_count);
    while (at < f->card_count && f->cards[at].rank != rank) at++;
    if (at == FOLLOW_CARDS) return NULL;
    if (at == f->card_count) f->cards[f->card_count++] = blank((int)rank);
    f->cards[at].sources |= source;
    return &f->cards[at];
}

/* Of many ranks those without activity come first, then those with the highest peak. */
static int by_trouble(const void *a, const void *b)
{
    const struct follow_card *x = a, *y = b;
    if (x->silent != y->silent) return x->silent ? -1 : 1;
    if (x->memory.peak_bytes != y->memory.peak_bytes)
        return x->memory.peak_bytes < y->memory.peak_bytes ? 1 : -1;
    return x->rank - y->rank;
}

/* Begins, and ends, a list of some of many ranks: those that no file lists any longer are dropped. */
static void begin_list(struct follow *f, enum source source)
{
    for (int i = 0; i < f->card_count; i++) f->cards[i].sources &= ~(unsigned)source;
}
static void end_list(struct follow *f)
{
    int kept = 0, count = f->card_count;
    if (!f->rank_count) return;
    for (int i = 0; i < count; i++) {
        if (!f->cards[i].sources) free(f->cards[i].readings);
        else f->cards[kept++] = f->cards[i];
    }
    for (int i = kept; i < count; i++) f->cards[i].readings = NULL; /* moved, or freed */
    f->card_count = kept;
    qsort(f->cards, (size_t)kept, sizeof *f->cards, by_trouble);
}

static void take_rank_count(struct follow *f, const json_t *summary)
{
    int64_t ranks = json_member_count(summary, "ranks");
    f->rank_count = ranks > FOLLOW_CARDS && ranks < INT_MAX ? (int)ranks : 0;
}

void follow_take_cards(struct follow *f, const struct metric_line *line, const char *text)
{
    json_t *cards = json_loadb(text + line->cards_at, line->cards_bytes, 0, NULL), *card;
    size_t i;
    if (line->summary_bytes) {
        json_t *summary = json_loadb(text + line->summary_at, line->summary_bytes, 0, NULL);
        take_rank_count(f, summary);
        f->now_bytes = many_ranks_parse(summary, "mem_bytes");
        f->peak_bytes = many_ranks_parse(summary, "peak_bytes");
        json_decref(summary);
    }
    begin_list(f, FROM_METRICS);
    json_array_foreach(cards, i, card)
    {
        struct follow_card *c = card_of(f, json_member_count(card, "rank"), FROM_METRICS);
        if (!c) continue;
        json_member_name(c->device, sizeof c->device, card, "device");
        c->memory = memory_parse(card);
        c->images_per_s = json_member_number(card, "images_per_s");
        if (f->replay && json_is_number(json_object_get(card, "busy_percent"))) { /* stored with the step */
            c->busy_percent = json_member_number(card, "busy_percent");
            c->temp_c = json_member_number(card, "temp_c");
            c->power_w = json_member_number(card, "power_w");
            c->total_bytes = json_member_number(card, "total_bytes");
            c->age_s = 0;
        }
    }
    end_list(f);
    json_decref(cards);
}

void follow_take_readings(struct follow *f, const json_t *cards, double age)
{
    const json_t *object;
    size_t i;
    f->other_count = 0;
    json_array_foreach(cards, i, object)
    {
        struct telemetry_card t;
        telemetry_card(&t, object);
        struct follow_card *c = t.rank >= 0                     ? card_of(f, t.rank, FROM_READINGS)
                                : f->other_count < FOLLOW_CARDS ? &f->others[f->other_count++]
                                                                : NULL;
        if (!c) continue;
        if (t.rank < 0) *c = blank(-1);
        if (!c->device[0]) snprintf(c->device, sizeof c->device, "%s", t.name);
        snprintf(c->pci, sizeof c->pci, "%s", t.pci);
        c->used_bytes = t.used_bytes;
        c->total_bytes = t.total_bytes;
        c->process_bytes = t.process_bytes;
        c->busy_percent = t.busy_percent;
        c->temp_c = t.temp_c;
        c->power_w = t.power_w;
        const json_t *holder;
        size_t k;
        c->holder_count = 0;
        json_array_foreach(json_object_get(object, "others"), k, holder)
        {
            if (c->holder_count == FOLLOW_HOLDERS) break;
            int at = c->holder_count++;
            c->holders[at].pid = (int)json_member_count(holder, "pid");
            json_member_name(c->holders[at].name, sizeof c->holders[at].name, holder, "name");
            c->holders[at].bytes = json_member_number(holder, "mem_bytes");
        }
        double own = json_member_number(object, "age_s");
        c->age_s = age + (isfinite(own) ? own : 0);
    }
}

static void read_hosts(struct follow *f, const json_t *summary, const json_t *hosts)
{
    const json_t *host;
    size_t i;
    take_rank_count(f, summary);
    f->running_count = (int)json_member_count(summary, "running");
    f->host_count = (int)json_member_count(summary, "hosts");
    if (!(f->peak_bytes.max > 0)) f->peak_bytes = many_ranks_parse(summary, "peak_bytes");
    f->hosts_listed = 0;
    json_array_foreach(hosts, i, host)
    {
        if (f->hosts_listed == HOSTS_LISTED) break;
        struct follow_host *h = &f->hosts[f->hosts_listed++];
        json_member_name(h->name, sizeof h->name, host, "host");
        h->first_rank = (int)json_member_count(host, "first_rank");
        h->ranks = (int)json_member_count(host, "ranks");
        h->running = (int)json_member_count(host, "running");
        h->peak_bytes = json_member_count(host, "peak_bytes");
    }
}

/* Reads the supervisor's report about each rank on any host, and the rank that the others wait for. */
static void read_ranks(struct follow *f, const json_t *ranks, const json_t *summary)
{
    const json_t *rank;
    size_t i;
    double most = summary ? many_ranks_parse(summary, "waiting_percent").max : NAN, own = NAN;
    f->slowest_rank = -1;
    begin_list(f, FROM_LIVE);
    json_array_foreach(ranks, i, rank)
    {
        char state[16];
        double waiting = json_member_number(rank, "waiting_percent");
        int64_t number = json_member_count(rank, "rank");
        struct follow_card *c = card_of(f, number, FROM_LIVE);
        most = fmax(most, waiting);
        if (json_is_true(json_object_get(rank, "slowest"))) {
            f->slowest_rank = (int)number;
            json_member_name(f->slowest_host, sizeof f->slowest_host, rank, "host");
            own = waiting;
        }
        if (!c) continue;
        json_member_name(state, sizeof state, rank, "state");
        c->waiting_percent = waiting;
        c->silent = strcmp(state, "silent") == 0 || strcmp(state, "missing") == 0;
        if (c->memory.now_bytes < 0) c->memory.now_bytes = json_member_count(rank, "mem_bytes");
        if (c->memory.peak_bytes < 0) c->memory.peak_bytes = json_member_count(rank, "peak_bytes");
        if (!c->device[0]) json_member_name(c->device, sizeof c->device, rank, "device");
    }
    end_list(f);
    f->slowest_costs = most - own;
}

void follow_take_live(struct follow *f)
{
    json_t *object = json_read_below(f->directory, "live.json", FOLLOW_FILE_BYTES, NULL),
           *worker = json_object_get(object, "worker");
    f->live_time = object ? json_member_number(object, "time") : 0;
    if (!object) { /* the run has ended: the last known values remain */
        f->worker[0] = 0;
        f->slowest_rank = -1;
        f->running_count = f->host_count = f->hosts_listed = 0;
        for (int i = 0; i < f->card_count; i++) {
            f->cards[i].age_s = 0;
            f->cards[i].waiting_percent = NAN;
            f->cards[i].silent = false;
        }
        for (int i = 0; i < f->other_count; i++) f->others[i].age_s = 0;
        return;
    }
    json_member_name(f->worker, sizeof f->worker, worker, "state");
    json_member_name(f->phase, sizeof f->phase, worker, "phase");
    f->silent_s = json_member_number(worker, "silent_s");
    f->io_percent = json_member_number(object, "io_pressure_percent");
    const json_t *summary = json_object_get(object, "ranks_summary");
    if (summary) read_hosts(f, summary, json_object_get(object, "hosts"));
    read_ranks(f, json_object_get(object, "ranks"), summary);
    follow_take_readings(f, json_object_get(object, "cards"), (double)time(NULL) - f->live_time);
    json_decref(object);
}

/* ---- history ---- */

static float mean(float a, float b, float n) { return isnan(a) ? b : isnan(b) ? a : (a * n + b) / (n + 1); }

static void halve(struct follow *f)
{
    int n = f->reading_count / 2;
    for (int i = 0; i < n; i++) {
        f->reading_times[i] = (f->reading_times[2 * i] + f->reading_times[2 * i + 1]) / 2;
        f->reading_steps[i] = f->reading_steps[2 * i + 1];
    }
    for (int c = 0; c < f->card_count; c++)
        for (int i = 0; i < n && f->cards[c].readings; i++)
            for (int k = 0; k < READING_COUNT; k++)
                f->cards[c].readings[i][k] =
                    mean(f->cards[c].readings[2 * i][k], f->cards[c].readings[2 * i + 1][k], 1);
    f->reading_count = n;
    f->reading_stride *= 2;
    f->reading_lines = f->reading_stride;
}

static void add_reading(struct follow *f, const json_t *line)
{
    double t = json_member_number(line, "time");
    const json_t *object;
    size_t i;
    if (!isfinite(t)) return;
    if (!f->reading_times) {
        f->reading_times = xcalloc(FOLLOW_READINGS, sizeof *f->reading_times);
        f->reading_steps = xcalloc(FOLLOW_READINGS, sizeof *f->reading_steps);
    }
    if (f->reading_stride < 1) f->reading_stride = f->reading_lines = 1;
    bool more = f->reading_count && f->reading_lines < f->reading_stride;
    if (!more && f->reading_count == FOLLOW_READINGS) halve(f);
    int at = more ? f->reading_count - 1 : f->reading_count++;
    f->reading_lines = more ? f->reading_lines + 1 : 1;
    double weight = f->reading_lines;
    f->reading_times[at] = more ? (f->reading_times[at] * (weight - 1) + t) / weight : t;
    f->reading_steps[at] = (double)json_member_count(line, "step");
    for (int c = 0; c < f->card_count && !more; c++)
        for (int k = 0; k < READING_COUNT && f->cards[c].readings; k++) f->cards[c].readings[at][k] = NAN;
    json_array_foreach(json_object_get(line, "cards"), i, object)
    {
        struct telemetry_card card;
        telemetry_card(&card, object);
        struct follow_card *c = card_of(f, card.rank, FROM_READINGS);
        if (!c) continue;
        if (!c->readings) {
            c->readings = xcalloc(FOLLOW_READINGS, sizeof *c->readings);
            for (int k = 0; k <= at; k++)
                for (int r = 0; r < READING_COUNT; r++) c->readings[k][r] = NAN;
        }
        const float now[READING_COUNT] = {(float)card.used_bytes, (float)card.busy_percent,
                                          (float)card.temp_c, (float)card.power_w};
        for (int k = 0; k < READING_COUNT; k++)
            c->readings[at][k] = mean(c->readings[at][k], now[k], (float)(f->reading_lines - 1));
    }
}

static void forget(struct follow *f)
{
    f->reading_count = 0;
    f->reading_stride = f->reading_lines = 1;
}

/* Samples a long file: one line at each of some offsets, then all lines of its end. */
static void sample(struct follow *f, int64_t size)
{
    char *buffer = xmalloc(CARDS_LINE_BYTES);
    int places = f->places < PLACES ? f->places : PLACES;
    for (int i = 0; i < places; i++) {
        ssize_t n = retry_read(f->card_tail.fd, buffer, CARDS_LINE_BYTES, (size - f->end_bytes) / places * i);
        char *start = n > 0 ? memchr(buffer, '\n', (size_t)n) : NULL,
             *stop = start ? memchr(start + 1, '\n', (size_t)(buffer + n - start - 1)) : NULL;
        if (!stop) continue;
        json_t *line = json_loadb(start + 1, (size_t)(stop - start - 1), 0, NULL);
        add_reading(f, line);
        json_decref(line);
    }
    free(buffer);
    tail_seek(&f->card_tail, size - f->end_bytes, true);
}

void follow_take_telemetry(struct follow *f)
{
    struct tail *t = &f->card_tail;
    bool anew, unread = t->at == 0;
    int64_t size = tail_poll(t, &anew);
    size_t bytes;
    if (size < 0) return;
    if (anew) forget(f);
    if ((unread || anew) && size > (f->places < PLACES ? f->end_bytes : WHOLE_BYTES) && !f->replay)
        sample(f, size);
    for (const char *text; (text = tail_line(t, &bytes)) != NULL;) {
        json_t *line = json_loadb(text, bytes, 0, NULL);
        if (f->replay && json_member_count(line, "step") > f->last.step) {
            tail_unread(t); /* later than the replay's clock */
            json_decref(line);
            break;
        }
        add_reading(f, line);
        f->io_percent = json_member_number(line, "io_pressure_percent");
        follow_take_readings(f, json_object_get(line, "cards"),
                             0); /* live.json replaces it while the run is active */
        json_decref(line);
    }
}
