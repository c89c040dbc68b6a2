/* Card readings of a run: see telemetry.h. */
#include "core/run/telemetry.h"
#include "core/base/json.h"
#include "core/run/tail.h"

#include <math.h>

enum { PAUSE_SECONDS = 60 };

void telemetry_card(struct telemetry_card *c, const json_t *object)
{
    const json_t *rank = json_object_get(object, "rank");
    bool own = json_is_integer(rank) && json_integer_value(rank) >= 0 && json_integer_value(rank) < 1 << 20;
    *c = (struct telemetry_card){.rank = own ? (int)json_integer_value(rank) : -1,
                                 .used_bytes = json_member_number(object, "mem_used_bytes"),
                                 .total_bytes = json_member_number(object, "mem_total_bytes"),
                                 .process_bytes = json_member_number(object, "process_bytes"),
                                 .busy_percent = json_member_number(object, "busy_percent"),
                                 .temp_c = json_member_number(object, "temp_c"),
                                 .power_w = json_member_number(object, "power_w")};
    json_member_name(c->name, sizeof c->name, object, "name");
    json_member_name(c->pci, sizeof c->pci, object, "pci");
}

struct reading {
    double time, busy, power, temp; /* busy: mean over the cards; power: their sum */
};

static struct reading sum_cards(const json_t *line)
{
    struct reading r = {json_member_number(line, "time"), NAN, NAN, NAN};
    double busy = 0, power = 0;
    int busy_count = 0, power_count = 0;
    const json_t *card;
    size_t i;
    json_array_foreach(json_object_get(line, "cards"), i, card)
    {
        struct telemetry_card c;
        telemetry_card(&c, card);
        if (c.rank < 0) continue;
        if (isfinite(c.busy_percent)) busy += c.busy_percent, busy_count++;
        if (isfinite(c.power_w)) power += c.power_w, power_count++;
        if (isfinite(c.temp_c)) r.temp = fmax(r.temp, c.temp_c);
    }
    if (busy_count) r.busy = busy / busy_count;
    if (power_count) r.power = power;
    return r;
}

void telemetry_sum(struct telemetry_sum *sum, const char *directory)
{
    struct tail t;
    struct reading last = {NAN, NAN, NAN, NAN};
    double busy = 0, busy_s = 0, joule = 0, power_s = 0, single_busy = NAN, single_power = NAN;
    size_t bytes;
    *sum = (struct telemetry_sum){NAN, NAN, NAN, NAN};
    tail_init(&t, directory, "cards.jsonl");
    tail_poll(&t, NULL);
    for (const char *text; t.fd >= 0 && (text = tail_line(&t, &bytes)) != NULL;) {
        json_t *line = json_loadb(text, bytes, 0, NULL);
        struct reading now = sum_cards(line);
        json_decref(line);
        if (!isfinite(now.time)) continue;
        double s = now.time - last.time;
        if (s > 0 && s < PAUSE_SECONDS && isfinite(now.busy) && isfinite(last.busy))
            busy += s * (now.busy + last.busy) / 2, busy_s += s;
        if (s > 0 && s < PAUSE_SECONDS && isfinite(now.power) && isfinite(last.power))
            joule += s * (now.power + last.power) / 2, power_s += s;
        if (isfinite(now.busy)) single_busy = now.busy;
        if (isfinite(now.power)) single_power = now.power;
        if (isfinite(now.temp)) sum->temp_c = fmax(sum->temp_c, now.temp);
        last = now;
    }
    tail_free(&t);
    sum->busy_percent = busy_s > 0 ? busy / busy_s : single_busy;
    sum->power_w = power_s > 0 ? joule / power_s : single_power;
    if (power_s > 0) sum->energy_wh = joule / 3600;
}
