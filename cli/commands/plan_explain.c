/* Tensors with their remedies, and cards by name: see plan_explain.h. */
#include "cli/commands/plan_explain.h"
#include "cli/command.h"
#include "core/base/nearest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const double MIB = 1 << 20;

int plan_explain_class(const char *name)
{
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++)
        if (strcmp(name, memory_class_names[c]) == 0) return c;
    return -1;
}

void plan_explain_line(char *dst, size_t size, const struct explanation *e, const struct explain_row *row)
{
    char count[32] = "";
    if (row->count > 1) snprintf(count, sizeof count, "x %lld", (long long)row->count);
    int n = snprintf(dst, size, "%10.2f  %-6s %-34s", row->bytes / MIB, count, row->name);
    if (row->remedy >= 0 && n > 0 && (size_t)n < size) {
        const struct memory_option *r = &e->settings.options[row->remedy];
        snprintf(dst + n, size - (size_t)n, "  %.2f by %s, compute x %.2f", -row->saved / MIB, r->keys,
                 r->compute);
    }
}

void plan_explain_print(const struct explanation *e, int class)
{
    for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
        if ((class >= 0 && c != class) || (class < 0 && !e->use.peak_bytes[c])) continue;
        printf("\n%s, MiB: %.2f\n", memory_class_names[c], (double)e->use.peak_bytes[c] / MIB);
        double small = (double)e->use.peak_bytes[c] / 1000, rest = 0;
        int smaller = 0;
        for (int i = 0; i < e->row_count; i++) {
            char line[512];
            if (e->rows[i].class != (enum memory_class)c) continue;
            if (e->rows[i].bytes < small) {
                rest += e->rows[i].bytes;
                smaller++;
                continue;
            }
            plan_explain_line(line, sizeof line, e, &e->rows[i]);
            size_t n = strlen(line);
            while (n && line[n - 1] == ' ') line[--n] = 0;
            printf("%s\n", line);
        }
        if (smaller) printf("%10.2f         %d smaller tensors\n", rest / MIB, smaller);
    }
    printf(
        "  blocks.*: sum over all blocks. compute: per step relative to now. 'meopt plan --what-if' compares "
        "settings.\n");
}

json_t *plan_explain_json(const struct explanation *e, int class)
{
    json_t *all = json_array();
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
    return all;
}

/* ---- cards ---- */

/* Nominal memory in GiB. A driver keeps some hundreds of MiB of it. */
static const struct {
    const char *name;
    double gib;
} cards[] = {{"k100-ai", 64},  {"k100", 64},    {"bw1000", 64},  {"z100l", 32},  {"z100-32g", 32},
             {"z100-16g", 16}, {"bw1100", 144}, {"mi300x", 192}, {"mi250x", 64}, {"mi210", 64},
             {"mi100", 32},    {"mi50", 32},    {"h200", 141},   {"h100", 80},   {"a100-80g", 80},
             {"a100-40g", 40}, {"a800", 80},    {"l40s", 48},    {"a6000", 48},  {"v100-32g", 32},
             {"v100-16g", 16}, {"rtx4090", 24}, {"rtx3090", 24}, {"t4", 16}};
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

int plan_card(const char *name, size_t *bytes, struct error *err)
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
    snprintf(hint, sizeof hint, "%s%s%sgive other cards by --card-memory, for example 64G",
             near ? "did you mean " : "", near ? near : "", near ? "? " : "");
    return error_set(err, EXIT_USAGE, hint, "unknown card; known: %s", list);
}
