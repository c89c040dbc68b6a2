/* Readings of the cards, for live.json and cards.jsonl. */
#include "cli/supervisor/supervise_internal.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/run/metric_line.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NOTE_SECONDS = 5, OLD_SECONDS = 5 };

static const struct {
    const char *key;
    enum monitor_field field;
} readings[] = {{"mem_used_bytes", MONITOR_MEM_USED},
                {"mem_total_bytes", MONITOR_MEM_TOTAL},
                {"process_bytes", MONITOR_PROCESS},
                {"busy_percent", MONITOR_BUSY},
                {"temp_c", MONITOR_TEMP},
                {"power_w", MONITOR_POWER},
                {"clock_mhz", MONITOR_CLOCK},
                {"ecc_uncorrected", MONITOR_ECC_ERRORS}};

/* Returns the reasons why the clock is held down, or NULL for an unknown or too old reading. */
static json_t *throttle_json(const struct monitor_value *v, bool with_age)
{
    if (!v->valid || (!with_age && v->age_s > OLD_SECONDS)) return with_age ? json_null() : NULL;
    json_t *names = json_array();
    for (int i = 0; i < THROTTLES; i++)
        if ((int)v->value >> i & 1) json_array_append_new(names, json_string(monitor_throttle_names[i]));
    return names;
}

static json_t *card_json(const struct monitor_card *c, int rank, bool with_age)
{
    double age = 0;
    json_t *card = json_pack("{s:o, s:s, s:s}", "rank", rank < 0 ? json_null() : json_integer(rank), "name",
                             c->name, "pci", c->pci);
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++) {
        const struct monitor_value *m = &c->field[readings[i].field];
        if (m->valid && (with_age || m->age_s <= OLD_SECONDS))
            json_object_set_new(card, readings[i].key, json_real(m->value));
        else if (with_age) json_object_set_new(card, readings[i].key, json_null());
        if (m->valid && m->age_s > age) age = m->age_s;
    }
    json_t *throttle = throttle_json(&c->throttle, with_age);
    if (throttle) json_object_set_new(card, "throttle", throttle);
    if (!with_age) return card;
    json_object_set_new(card, "age_s", json_real(age));
    json_t *others = json_array();
    for (int i = 0; i < c->holder_count; i++) {
        const struct monitor_holder *h = &c->holders[i];
        json_array_append_new(
            others, json_pack("{s:i, s:s, s:f}", "pid", h->pid, "name", h->name, "mem_bytes", h->bytes));
    }
    json_object_set_new(card, "others", others);
    return card;
}

/* Returns the rank of this node that trains on card i; -1: none. */
static int rank_on(const struct supervisor *v, int i)
{
    for (int k = 0; k < v->count; k++)
        if (v->report[k].pci[0] && monitor_find(&v->seen, v->report[k].pci) == i) return k;
    return -1;
}

/* A CPU run assigns ranks to the provider's first card, or to all cards of a provider named by the user. */
json_t *cards_json(const struct supervisor *v, bool age)
{
    json_t *cards = json_array();
    if (!v->monitor) return cards;
    const struct monitor_snapshot *seen = &v->seen;
    bool on_card = v->report->pci[0];
    int last = v->s->monitor ? seen->card_count : 1;
    for (int i = 0; i < seen->card_count; i++)
        json_array_append_new(cards, card_json(&seen->cards[i],
                                               on_card    ? rank_on(v, i)
                                               : i < last ? i
                                                          : -1,
                                               age));
    return cards;
}

/* Reads the kernel's pressure stall information of the last 10 s (Documentation/accounting/psi.rst). */
json_t *io_pressure(const struct supervisor *v)
{
    char *path = xasprintf("%s/proc/pressure/io", v->s->monitor_root ? v->s->monitor_root : ""),
         text[128] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    double percent = NAN;
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0 && strncmp(text, "some avg10=", 11) == 0)
        percent = metric_number(text + 11, text + strlen(text), &(const char *){NULL});
    if (fd >= 0) close(fd);
    free(path);
    return isfinite(percent) ? json_real(percent) : NULL;
}

void cards_record(struct supervisor *v, bool end)
{
    double now = clock_seconds();
    if (!v->monitor || v->seen.samples == 0) return;
    if (v->cards_recorded_at > 0 && now - v->cards_recorded_at < (end ? 1 : NOTE_SECONDS)) return;
    v->cards_recorded_at = now;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    json_t *line = json_pack("{s:I, s:o}", "step", (json_int_t)atomic_load(&v->report->step), "cards",
                             cards_json(v, false)),
           *pressure = io_pressure(v);
    if (pressure) json_object_set_new(line, "io_pressure_percent", pressure);
    char *rest = json_dumps(line, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12)),
         *path = path_join(v->home.directory, "cards.jsonl");
    json_decref(line);
    struct error err = {0};
    int fd, code = run_append(v->home.directory, "cards.jsonl", &fd, &err);
    if (!code && rest) {
        char *text =
            xasprintf("{\"time\":%lld.%03ld,%s\n", (long long)t.tv_sec, t.tv_nsec / 1000000, rest + 1);
        off_t before = lseek(fd, 0, SEEK_END);
        code = file_write_all(fd, text, strlen(text), path, &err);
        if (code && before >= 0) file_shorten(fd, before, path, NULL);
        free(text);
    }
    if (fd >= 0) close(fd);
    if (code && !v->cards_warned) log_warn("cannot write the history of the cards: %s: %s", path, err.what);
    v->cards_warned |= code != 0;
    free(path);
    free(rest);
}
