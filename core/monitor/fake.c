/* Provider fake: the values of a JSON file, read again at each sample. A test writes the file and the screen
 * follows.
 *
 *     {"note": "text", "cards": [{"name": "Z100", "pci": "0000:c1:00.0",
 *       "mem_used_bytes": 1e9, "mem_total_bytes": 16e9, "busy_percent": 97, "temp_c": null,
 *       "power_w": {"value": 210, "age_s": 12}, "process_bytes": 9e8,
 *       "processes": [{"pid": 4711, "name": "python", "bytes": 4e9}]}]}
 *
 * null is N/A. A number with age_s was read that long ago. A missing field keeps its last value, which grows
 * old. If the file is missing or cannot be parsed, the values stay and the note says why. */
#include "core/monitor/monitor_internal.h"

#include <jansson.h>
#include <string.h>

static const char *const keys[MONITOR_FIELDS] = {[MONITOR_MEM_USED] = "mem_used_bytes",
                                                 [MONITOR_MEM_TOTAL] = "mem_total_bytes",
                                                 [MONITOR_BUSY] = "busy_percent",
                                                 [MONITOR_TEMP] = "temp_c",
                                                 [MONITOR_POWER] = "power_w",
                                                 [MONITOR_PROCESS] = "process_bytes",
                                                 [MONITOR_ECC_ERRORS] = "ecc_uncorrected",
                                                 [MONITOR_CLOCK] = "clock_mhz",
                                                 [MONITOR_THROTTLE] = "throttle",
                                                 [MONITOR_ECC] = "ecc",
                                                 [MONITOR_CLOCK_MOST] = "clock_max_mhz",
                                                 [MONITOR_CAP] = "power_cap_w",
                                                 [MONITOR_CAP_DEFAULT] = "power_cap_default_w",
                                                 [MONITOR_MIG] = "mig",
                                                 [MONITOR_INDEX] = "index"};

static void fake_value(struct monitor_value *v, const json_t *j)
{
    if (json_is_null(j)) value_take(v, 0, 0);
    const json_t *number = json_is_object(j) ? json_object_get(j, "value") : j;
    if (!json_is_number(number)) return;
    value_set(v, json_number_value(number));
    if (json_is_object(j)) v->time_s -= json_number_value(json_object_get(j, "age_s"));
}

static void fake_sample(struct monitor *m)
{
    json_error_t wrong;
    json_t *file = json_load_file(m->options.root, 0, &wrong), *cards = json_object_get(file, "cards");
    if (!json_is_array(cards)) {
        monitor_note(m, "%s: %s", m->options.root, file ? N_("no list \"cards\"") : wrong.text);
        json_decref(file);
        return;
    }
    const char *note = json_string_value(json_object_get(file, "note"));
    monitor_note(m, "%s", note ? note : "");
    int count = (int)json_array_size(cards);
    if (count > MONITOR_CARDS) count = MONITOR_CARDS;
    for (int i = 0; i < count; i++) {
        struct monitor_card *card = &m->work.cards[i];
        const json_t *j = json_array_get(cards, (size_t)i);
        if (i >= m->work.card_count) memset(card, 0, sizeof *card);
        const char *name = json_string_value(json_object_get(j, "name"));
        card_name(card, name ? name : "fake");
        monitor_pci(card->pci, json_string_value(json_object_get(j, "pci")));
        const json_t *process;
        size_t k;
        card->holder_count = 0;
        json_array_foreach(json_object_get(j, "processes"), k, process)
            card_holder(m, card, (int)json_integer_value(json_object_get(process, "pid")),
                        json_number_value(json_object_get(process, "bytes")),
                        json_string_value(json_object_get(process, "name")));
        for (int f = 0; f < MONITOR_FIELDS; f++) fake_value(&card->field[f], json_object_get(j, keys[f]));
    }
    m->work.card_count = count;
    json_decref(file);
}

static int fake_open(struct monitor *m, struct error *err)
{
    if (m->options.root[0]) return 0;
    return error_set(err, EXIT_USAGE, "say fake:FILE.json", "the fake monitor needs a file");
}

const struct monitor_provider monitor_fake = {"fake", fake_open, fake_sample, NULL};
