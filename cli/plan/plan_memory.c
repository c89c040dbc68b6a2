/* Views of memory options: see plan_memory.h. */
#include "cli/plan/plan_memory.h"
#include "cli/language.h"
#include "core/base/log.h"

#include <stdio.h>
#include <string.h>

static const double MIB = 1 << 20, GIB = 1 << 30;

/* ---- --what-if and --explain ---- */

enum { NAME = 26 }; /* columns */

static void print_setting(const struct explanation *e, int i, int ranks)
{
    const struct memory_option *s = &e->settings.options[i];
    double peak = (double)s->peak_bytes, now = (double)e->use.peak_total_bytes;
    size_t limit = e->settings.limit_bytes;
    if (!s->possible) {
        print_line(NAME + 3, "  %*s not possible: %s", PAD(-NAME, _(s->name)), s->why);
        return;
    }
    printf("  %*s %8.*f   %5.0f %%   x %.2f   %s%s\n", PAD(-NAME, _(s->name)), peak < GIB / 10 ? 4 : 2,
           peak / GIB, 100 * peak / now, s->compute,
           !limit                   ? ""
           : s->peak_bytes <= limit ? _("fits")
                                    : _("does not fit"),
           i == e->settings.chosen ? _("  <- cheapest that fits") : "");
    printf("      %s", s->keys[0] ? s->keys : _("(unchanged)"));
    if (ranks > 1) printf(_("; each rank sends %.1f MiB per step"), s->sent / MIB);
    printf("\n");
}

void plan_memory_print_settings(const struct explanation *e, int ranks)
{
    printf(_("\nwhat if%*s peak GiB   of now   compute%s\n"), 21, "",
           e->settings.limit_bytes ? "" : _("   (give a card: --card-memory 64G)"));
    for (int i = 0; i < e->settings.count; i++) print_setting(e, i, ranks);
    print_line(2,
               "  '+': this configuration with that change. compute: per step relative to now; with a cached "
               "teacher, after the first epoch.");
}

static void print_tensor(const struct explanation *e, const struct explain_row *row)
{
    char count[32] = "";
    if (row->count > 1) snprintf(count, sizeof count, "x %lld", (long long)row->count);
    printf("%10.2f  %-6s ", row->bytes / MIB, count);
    const struct memory_option *r = row->remedy >= 0 ? &e->settings.options[row->remedy] : NULL;
    if (!r) printf("%s\n", row->name);
    else printf(_("%-34s  %.2f by %s, compute x %.2f\n"), row->name, -row->saved / MIB, r->keys, r->compute);
}

void plan_memory_print_tensors(const struct explanation *e, int class)
{
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
        double all = (double)e->use.peak_bytes[c], rest = 0;
        int smaller = 0;
        if (class >= 0 ? c != class : all == 0) continue;
        printf("\n%s, MiB: %.2f\n", _(memory_class_names[c]), all / MIB);
        for (const struct explain_row *row = e->rows; row < e->rows + e->row_count; row++) {
            if (row->class != (enum memory_class)c) continue;
            if (row->bytes >= all / 1000) {
                print_tensor(e, row);
                continue;
            }
            rest += row->bytes;
            smaller++;
        }
        if (smaller) printf(_("%10.2f         %d smaller tensors\n"), rest / MIB, smaller);
    }
    print_line(2,
               "  blocks.*: sum over all blocks. compute: per step relative to now. 'meopt plan --what-if' "
               "compares settings.");
}

static json_t *setting_json(const struct memory_options *l, int i)
{
    const struct memory_option *s = &l->options[i];
    json_t *row = json_pack("{s:s, s:b, s:n, s:n, s:n, s:n, s:b, s:s}", "name", s->name, "possible",
                            s->possible, "peak_bytes", "relative_compute", "sent_bytes_per_step", "fits",
                            "cheapest_that_fits", i == l->chosen, "keys", s->keys);
    if (!s->possible) return row;
    json_object_set_new(row, "peak_bytes", json_integer((json_int_t)s->peak_bytes));
    json_object_set_new(row, "relative_compute", json_real(s->compute));
    json_object_set_new(row, "sent_bytes_per_step", json_real(s->sent));
    if (l->limit_bytes) json_object_set_new(row, "fits", json_boolean(s->peak_bytes <= l->limit_bytes));
    return row;
}

void plan_memory_explain_json(json_t *root, const struct explanation *e, int class)
{
    json_t *settings = json_array(), *all = json_array();
    for (int i = 0; i < e->settings.count; i++)
        json_array_append_new(settings, setting_json(&e->settings, i));
    for (int i = 0; i < e->row_count; i++) {
        const struct explain_row *row = &e->rows[i];
        if (class >= 0 && row->class != (enum memory_class) class) continue;
        const struct memory_option *r = row->remedy >= 0 ? &e->settings.options[row->remedy] : NULL;
        json_t *one =
            json_pack("{s:s, s:s, s:I, s:I}", "class", memory_class_names[row->class], "name", row->name,
                      "tensors", (json_int_t)row->count, "bytes", (json_int_t)row->bytes);
        json_object_set_new(one, "keys", r ? json_string(r->keys) : json_null());
        json_object_set_new(one, "saved_bytes", r ? json_integer((json_int_t)row->saved) : json_null());
        json_object_set_new(one, "relative_compute", r ? json_real(r->compute) : json_null());
        json_array_append_new(all, one);
    }
    json_object_set_new(root, "what_if", settings);
    json_object_set_new(root, "tensors", all);
}

/* ---- --fit and train.memory ---- */

/* Formats both rates, and whether each was given, measured or assumed. */
static void speed_text(const struct memory_options_speed *s, char *text, size_t size)
{
    static const char *const carry[] = {
        [CARRY_ASSUMED] = N_(" (assumed: --carry, --measure)"), [CARRY_GIVEN] = "", [CARRY_MEASURED] = ""};
    snprintf(text, size, _("%.4g GFLOP/s%s, %.3g GB/s for weights and states%s%s%s%s"), s->gflops,
             s->assumed ? _(" (assumed: --gflops, --measure)") : "", s->carried_gb_per_s,
             translation(carry[s->carry]), s->carried_by ? _(" (measured: ") : "",
             s->carried_by ? s->carried_by : "", s->carried_by ? _(")") : "");
}

void plan_memory_print_fit(const struct memory_options *l, const char *path)
{
    char speed[200];
    speed_text(&l->speed, speed, sizeof speed);
    printf(_("\nmemory options for %.2f GiB, %s\n  peak GiB    step s\n"), (double)l->limit_bytes / GIB,
           speed);
    for (int i = 0; i < l->count; i++) {
        const struct memory_option *r = &l->options[i];
        printf("  %8.2f  %8.3g   %s%s%s\n", (double)r->peak_bytes / GIB, r->step_s,
               r->keys[0] ? r->keys : _("(unchanged)"), memory_option_note(r),
               i == l->chosen ? _("  <- fastest that fits") : "");
    }
    if (l->chosen >= 0 && l->options[l->chosen].keys[0])
        printf(_("  to write them: meopt config set %s %s\n"), path, l->options[l->chosen].keys);
}

json_t *plan_memory_fit_json(const struct memory_options *l)
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

int plan_memory_check(const struct memory_options *l, struct error *err)
{
    if (l->chosen >= 0) return 0;
    size_t least = l->count ? l->options[l->count - 1].peak_bytes : 0;
    return error_set(err, EXIT_CONFIG,
                     "use fewer images, a smaller student, or a format of 'meopt plan --what-if'",
                     "no memory option fits into %s; the smallest requires %s", amount(l->limit_bytes).text,
                     amount(least).text);
}

size_t plan_memory_auto(const struct card *card) { return card->free_bytes / 20 * 19; }

int plan_memory_choose(struct memory_option *chosen, const struct config *config, const char *path,
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
    if (bytes < 0 && (code = plan_card_find(&card, NULL, config, host_ranks, err)) != 0) return code;
    if ((code = memory_planner_open(&p, path, overrides, count, &largest, err)) != 0) return code;
    memory_options_find(&l, &p, bytes < 0 ? plan_memory_auto(&card) : (size_t)bytes);
    memory_planner_close(&p);
    code = plan_memory_check(&l, err);
    if (!code) {
        *chosen = l.options[l.chosen];
        log_info("train.memory %s%s: %s, peak %s", config->train.memory, ranks > 1 ? _(" per rank") : "",
                 chosen->keys[0] ? chosen->keys : _("fits unchanged"), amount(chosen->peak_bytes).text);
        if (memory_option_note(chosen)[0]) log_info("train.memory%s", memory_option_note(chosen));
    }
    memory_options_free(&l);
    return code;
}
