/* Memory limits and memory options of a configuration: see plan_fit.h. */
#include "cli/commands/plan_fit.h"
#include "cli/commands/plan_explain.h"
#include "cli/commands/train_ranks.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/config/value.h"
#include "core/device/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double GIB = 1 << 30;

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
    snprintf(card->name, sizeof card->name, "this machine's memory");
    if (ranks > 1) snprintf(card->name, sizeof card->name, "1/%d of this machine's memory", ranks);
    card->assumed = true;
    card->free_bytes = host_available() / (size_t)ranks;
}

int fit_card(struct card *card, const struct arguments *args, const struct config *config, int host_ranks,
             struct error *err)
{
    const char *named = args ? argument_text(args, "card-memory", NULL) : NULL;
    const char *model = args ? argument_text(args, "card", NULL) : NULL;
    *card = (struct card){0};
    if (named && model)
        return error_set(err, EXIT_USAGE, "use one of them", "--card cannot be used with --card-memory");
    if (model) {
        snprintf(card->name, sizeof card->name, "--card %.40s", model);
        return plan_card(model, &card->bytes, err);
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

/* Formats both rates, and whether each was given, measured or assumed. */
static void speed_text(const struct memory_options_speed *s, char *text, size_t size)
{
    static const char *const carry[] = {
        [CARRY_ASSUMED] = " (assumed: --carry, --measure)", [CARRY_GIVEN] = "", [CARRY_MEASURED] = ""};
    snprintf(text, size, "%.4g GFLOP/s%s, %.3g GB/s for weights and states%s%s%s%s", s->gflops,
             s->assumed ? " (assumed: --gflops, --measure)" : "", s->carried_gb_per_s, carry[s->carry],
             s->carried_by ? " (measured: " : "", s->carried_by ? s->carried_by : "",
             s->carried_by ? ")" : "");
}

void fit_print(const struct memory_options *l, const char *path)
{
    char speed[200];
    speed_text(&l->speed, speed, sizeof speed);
    printf("\nmemory options for %.2f GiB, %s\n  peak GiB    step s\n", (double)l->limit_bytes / GIB, speed);
    for (int i = 0; i < l->count; i++) {
        const struct memory_option *r = &l->options[i];
        printf("  %8.2f  %8.3g   %s%s%s\n", (double)r->peak_bytes / GIB, r->step_s,
               r->keys[0] ? r->keys : "(unchanged)", memory_option_note(r),
               i == l->chosen ? "  <- fastest that fits" : "");
    }
    if (l->chosen >= 0 && l->options[l->chosen].keys[0])
        printf("  to write them: meopt config set %s %s\n", path, l->options[l->chosen].keys);
}

json_t *fit_json(const struct memory_options *l)
{
    json_t *rows = json_array();
    for (int i = 0; i < l->count; i++)
        json_array_append_new(
            rows, json_pack("{s:I, s:f, s:s, s:b, s:b}", "peak_bytes", (json_int_t)l->options[i].peak_bytes,
                            "step_s", l->options[i].step_s, "keys", l->options[i].keys, "changes_numbers",
                            memory_option_note(&l->options[i])[0] != 0, "chosen", i == l->chosen));
    return json_pack("{s:I, s:f, s:f, s:b, s:b, s:o}", "limit_bytes", (json_int_t)l->limit_bytes, "gflops",
                     l->speed.gflops, "carried_gb_per_s", l->speed.carried_gb_per_s, "assumed",
                     l->speed.assumed, "carry_measured", l->speed.carry == CARRY_MEASURED, "rungs", rows);
}

/* A number of bytes as text, in GiB or MiB. */
struct amount {
    char text[32];
};
static struct amount amount(size_t bytes)
{
    struct amount a;
    bool much = (double)bytes >= GIB;
    snprintf(a.text, sizeof a.text, "%.2f %s", (double)bytes / (much ? GIB : GIB / 1024),
             much ? "GiB" : "MiB");
    return a;
}

int fit_check(const struct memory_options *l, struct error *err)
{
    if (l->chosen >= 0) return 0;
    size_t least = l->count ? l->options[l->count - 1].peak_bytes : 0;
    return error_set(err, EXIT_CONFIG,
                     "use fewer images, a smaller student, or a format of 'meopt plan --what-if'",
                     "no memory option fits into %s; the smallest requires %s", amount(l->limit_bytes).text,
                     amount(least).text);
}

size_t fit_auto(const struct card *card) { return card->free_bytes / 20 * 19; }

int fit_choose(struct memory_option *chosen, const struct config *config, const char *path,
               char *const *overrides, int count, int ranks, int host_ranks, struct error *err)
{
    int64_t bytes = config_memory(config);
    struct memory_planner p;
    struct memory_options l;
    struct card card;
    struct comm_options largest = {.rank = PLAN_LARGEST, .size = ranks};
    int code = 0;
    *chosen = (struct memory_option){0};
    if (!bytes) return 0;
    if (bytes < 0 && (code = fit_card(&card, NULL, config, host_ranks, err)) != 0) return code;
    if ((code = memory_planner_open(&p, path, overrides, count, &largest, err)) != 0) return code;
    memory_options_find(&l, &p, bytes < 0 ? fit_auto(&card) : (size_t)bytes);
    memory_planner_close(&p);
    code = fit_check(&l, err);
    if (!code) {
        *chosen = l.options[l.chosen];
        log_info("train.memory %s%s: %s, peak %s", config->train.memory, ranks > 1 ? " per rank" : "",
                 chosen->keys[0] ? chosen->keys : "fits unchanged", amount(chosen->peak_bytes).text);
        if (memory_option_note(chosen)[0]) log_info("train.memory%s", memory_option_note(chosen));
    }
    memory_options_free(&l);
    return code;
}
