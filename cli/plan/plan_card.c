/* Memory of cards: see plan_card.h. */
#include "cli/plan/plan_card.h"
#include "cli/train/train_ranks.h"
#include "core/base/nearest.h"
#include "core/config/value.h"
#include "core/device/device.h"
#include "core/device/driver.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Nominal memory in GiB. A driver keeps some hundreds of MiB of it. device, units: as the driver reports
 * them, for the published peaks (core/device/card_peak.c); NULL: none are known. */
static const struct {
    const char *name;
    double gib;
    const char *device;
    int units;
} cards[] = {{"k100-ai", 64, "K100_AI", 120},
             {"k100", 64, NULL, 0},
             {"bw1000", 64, NULL, 0},
             {"z100l", 32, NULL, 0},
             {"z100-32g", 32, NULL, 0},
             {"z100-16g", 16, NULL, 0},
             {"bw1100", 144, NULL, 0},
             {"mi300x", 192, "MI300X", 304},
             {"mi250x", 64, "MI250X", 110},
             {"mi210", 64, "MI210", 104},
             {"mi100", 32, NULL, 0},
             {"mi50", 32, NULL, 0},
             {"h200", 141, "H200", 132},
             {"h100", 80, "H100 HBM3", 132},
             {"a100-80g", 80, "A100 SXM4 80GB", 108},
             {"a100-40g", 40, "A100", 108},
             {"a800", 80, NULL, 0},
             {"l40s", 48, "L40S", 142},
             {"a6000", 48, "RTX A6000", 84},
             {"v100-32g", 32, NULL, 0},
             {"v100-16g", 16, NULL, 0},
             {"rtx4090", 24, "RTX 4090", 128},
             {"rtx3090", 24, "RTX 3090", 82},
             {"t4", 16, NULL, 0}};
enum { CARDS = sizeof cards / sizeof *cards };

/* Compares names: "K100_AI" equals k100-ai. */
static bool same_name(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        char x = (char)tolower((unsigned char)*a), y = *b;
        if (x == '_' || x == ' ') x = '-';
        if (x != y) return false;
    }
    return !*a && !*b;
}

static const char *card_name(const void *table, int i)
{
    (void)table;
    return i < CARDS ? cards[i].name : NULL;
}

const char *plan_card_name(int i) { return card_name(NULL, i); }

struct card_peaks plan_card_peaks(const char *name)
{
    for (int i = 0; i < CARDS; i++)
        if (same_name(name, cards[i].name) && cards[i].device)
            return card_peaks(cards[i].device, cards[i].units);
    return (struct card_peaks){0};
}

int plan_card_bytes(const char *name, size_t *bytes, struct error *err)
{
    char list[400] = "", hint[320];
    for (int i = 0; i < CARDS; i++) {
        if (same_name(name, cards[i].name)) {
            *bytes = (size_t)(cards[i].gib * 1073741824.0);
            return 0;
        }
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s %.0fG", i ? ", " : "", cards[i].name, cards[i].gib);
    }
    const char *near = nearest_name(name, card_name, NULL);
    snprintf(hint, sizeof hint, _("%s%s%sgive other cards by --card-memory, for example 64G"),
             near ? _("did you mean ") : "", near ? near : "", near ? "? " : "");
    return error_set(err, EXIT_USAGE, hint, "unknown card; known: %s", list);
}

/* Returns MemAvailable of /proc/meminfo in bytes, memory that is available without swapping; 0: unknown. */
static size_t host_available(void)
{
    char line[160];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && !kib && fgets(line, sizeof line, f)) (void)sscanf(line, "MemAvailable: %llu kB", &kib);
    if (f) fclose(f);
    return (size_t)kib * 1024;
}

/* Finds the smallest of the cards that the ranks of this host use; skips cards that this machine lacks. */
static void find_smallest_card(struct card *card, const struct config *config, int host_ranks)
{
    static const enum device_type types[DRIVER_KINDS] = {
        [DRIVER_HIP] = DEVICE_TYPE_HIP, [DRIVER_CUDA] = DEVICE_TYPE_CUDA};
    struct driver driver;
    struct card_info found;
    struct error absent;
    int named = config_cards(config, NULL), count = named > 0 ? named : host_ranks;
    for (int kind = 0; kind < DRIVER_KINDS && !card->bytes; kind++) {
        if (config->device.type != DEVICE_TYPE_AUTO && config->device.type != types[kind]) continue;
        if (driver_open(&driver, (enum driver_kind)kind, &absent)) continue;
        for (int i = 0; i < count; i++) {
            int ordinal = named > 0 ? train_ranks_card(config, i) : i;
            size_t free_bytes;
            char name[40];
            if (driver_card(&driver, ordinal, &found, &absent)) continue;
            if (driver_card_free(&driver, ordinal, &free_bytes)) free_bytes = found.total_bytes;
            if (!card->free_bytes || free_bytes < card->free_bytes) card->free_bytes = free_bytes;
            if (card->bytes && found.total_bytes >= card->bytes) continue;
            card->bytes = found.total_bytes;
            name_printable(name, sizeof name, found.name);
            snprintf(card->name, sizeof card->name, "%s:%d %s", driver_names[kind], ordinal, name);
        }
    }
}

/* Divides the memory of this machine by its ranks. */
static void share_machine(struct card *card, int ranks)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) card->bytes = (size_t)pages * (size_t)page / (size_t)ranks;
    snprintf(card->name, sizeof card->name, _("this machine's memory"));
    if (ranks > 1) snprintf(card->name, sizeof card->name, _("1/%d of this machine's memory"), ranks);
    card->assumed = true;
    card->free_bytes = host_available() / (size_t)ranks;
}

int plan_card_find(struct card *card, const struct arguments *args, const struct config *config,
                   int host_ranks, struct error *err)
{
    const char *named = args ? argument_text(args, "card-memory", NULL) : NULL;
    const char *model = args ? argument_text(args, "card", NULL) : NULL;
    *card = (struct card){0};
    if (named && model)
        return error_set(err, EXIT_USAGE, "use one of them", "--card cannot be used with --card-memory");
    if (model) {
        snprintf(card->name, sizeof card->name, "--card %.40s", model);
        return plan_card_bytes(model, &card->bytes, err);
    }
    if (named) {
        struct value value;
        char message[320], hint[320];
        if (value_read(config_key_index("device.memory_limit"), named, strlen(named), false, &value, message,
                       hint, sizeof message) == VALUE_BAD ||
            value.integer <= 0)
            return error_set(err, EXIT_USAGE, "for example 64G",
                             "--card-memory requires a number of bytes, found '%s'", named);
        card->bytes = (size_t)value.integer;
        snprintf(card->name, sizeof card->name, "--card-memory");
    } else if (config->device.memory_limit > 0) {
        card->bytes = (size_t)config->device.memory_limit;
        snprintf(card->name, sizeof card->name, "device.memory_limit");
    } else if (device_is_card(device_type_names[config->device.type])) {
        find_smallest_card(card, config, host_ranks);
    } else {
        share_machine(card, host_ranks);
    }
    if (!card->free_bytes || card->free_bytes > card->bytes) card->free_bytes = card->bytes;
    return 0;
}
