/* Terminal, JSON, CSV, Markdown: see output.h. */
#include "core/compare/output.h"
#include "core/compare/sweep.h"
#include "core/base/memory.h"
#include "core/base/json.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char *const section_titles[3] = {N_("Facts"), N_("Configuration"), N_("NOT COMPARABLE")};

/* Returns whether a row is written for programs. */
static bool is_written(const struct row *row, const struct output_options *options)
{
    return row->section != SECTION_CONFIG || row->changed || options->all;
}

static bool has_figure(const struct cell *cell)
{
    return cell->number ? isfinite(cell->mean) : cell->text && cell->text[0];
}

bool output_row_shown(const struct table *t, const struct row *row, const struct output_options *options)
{
    bool published = false, figure = false;
    if (!is_written(row, options)) return false;
    if (row->section != SECTION_FACTS) return true;
    if (row->hidden) return false;
    for (int c = 0; c < t->column_count; c++) {
        if (!t->columns[c].runs[0].published) continue;
        published = true;
        figure |= has_figure(&row->cells[c]);
    }
    return figure || !published || options->all;
}

/* ---- Terminal ---- */

static int width_of(const char *text) { return text_columns(text, SIZE_MAX); }

static void pad(FILE *out, const char *text, int width, bool right)
{
    int spaces = width - width_of(text);
    if (right)
        for (int i = 0; i < spaces; i++) fputc(' ', out);
    fputs(text, out);
    if (!right)
        for (int i = 0; i < spaces; i++) fputc(' ', out);
}

const char *output_label(const struct row *row)
{
    static char text[256];
    int indent = (int)strspn(row->label, " ");
    const char *evaluated = "evaluation: ";
    size_t n = strlen(evaluated); /* followed by a key */
    bool key = strncmp(row->label, evaluated, n) == 0;
    snprintf(text, sizeof text, "%*s%s%s", indent, "", key ? _("evaluation: ") : _(row->label + indent),
             key ? row->label + n : "");
    return text;
}

static void change_words(char change[CELL_TEXT + 32], const struct row *row, const struct cell *cell,
                         bool unicode)
{
    cell_change(change, row, cell, unicode ? "±" : "+-");
    size_t n = strlen(change);
    if (!isnan(cell->p)) snprintf(change + n, CELL_TEXT + 32 - n, "%sp=%.2g", n ? "  " : "", cell->p);
}

static int name_width(const struct table *t, int c)
{
    return width_of(t->columns[c].name) + (c == t->reference ? 2 : 0);
}

/* Columns of a table that are printed next to each other. */
struct group {
    int *columns, count, label; /* label: width of the rows' names */
    int (*widths)[2];           /* of each column of the table: its values, its changes */
};

/* Returns the narrowest width of a column's values: that of its name, at least 16. */
static int least_width(const struct table *t, const struct group *g, int c)
{
    int gap = g->widths[c][1] ? 2 : 0, name = name_width(t, c) - gap - g->widths[c][1];
    int least = name > 16 ? name : 16;
    return g->widths[c][0] < least ? g->widths[c][0] : least;
}

/* Returns the width of a column with the space before it. values: the width of its values. */
static int whole_width(const struct group *g, int c, int values)
{
    return 3 + values + (g->widths[c][1] ? 2 + g->widths[c][1] : 0);
}

/* Narrows the widest values until the row fits. */
static void narrow(struct group *g, const struct table *t, int width)
{
    for (;;) {
        int sum = g->label, widest = -1;
        for (int i = 0; i < g->count; i++) {
            int c = g->columns[i], values = g->widths[c][0];
            sum += whole_width(g, c, values);
            if (values > least_width(t, g, c) && (widest < 0 || values > g->widths[widest][0])) widest = c;
        }
        if (sum <= width || widest < 0) return;
        g->widths[widest][0]--;
    }
}

/* Puts the columns from `first` on into the group, as many as fit but never the reference alone, which stands
 * before them. Returns the first column of the next group. */
static int next_group(struct group *g, const struct table *t, int first, const struct output_options *o)
{
    int sum = g->label, c = first, own = 0;
    g->count = 0;
    if (first > 0 && t->reference >= 0 && t->reference < first) g->columns[g->count++] = t->reference;
    for (int i = 0; i < g->count; i++) sum += whole_width(g, g->columns[i], least_width(t, g, g->columns[i]));
    for (; c < t->column_count; c++, own++) {
        sum += whole_width(g, c, least_width(t, g, c));
        if (sum > o->width && o->terminal && own > (first == 0 && t->reference == 0)) break;
        g->columns[g->count++] = c;
    }
    narrow(g, t, o->width);
    return c;
}

/* Prints what a row means after it, or below it where it does not fit. */
static void print_why(FILE *out, const char *why, int used, const struct output_options *o)
{
    if (!o->terminal || used + 3 + width_of(why) <= o->width) {
        fprintf(out, "   %s", why);
        return;
    }
    for (size_t bytes; *why; why += bytes + strspn(why + bytes, " ")) {
        bytes = text_line(why, o->width - 6);
        fprintf(out, "\n      %.*s", (int)bytes, why);
    }
}

/* Prints a row; a value wider than its column has several lines. */
static void print_row(FILE *out, const struct table *t, const struct row *row, const struct group *g,
                      const struct output_options *o)
{
    char(*values)[CELL_TEXT] = xcalloc((size_t)t->column_count, sizeof *values), change[CELL_TEXT + 32];
    bool more = true;
    for (int c = 0; c < t->column_count; c++)
        cell_words(values[c], row, &row->cells[c], o->unicode ? "±" : "+-");
    for (int line = 0; more; line++) {
        int used = g->label;
        more = false;
        pad(out, line ? "" : output_label(row), g->label, false);
        for (int i = 0; i < g->count; i++) {
            int c = g->columns[i], *widths = g->widths[c];
            char text[CELL_TEXT], *value = values[c];
            size_t bytes = text_line(value, widths[0]), next = bytes + strspn(value + bytes, " ");
            snprintf(text, sizeof text, "%.*s", (int)bytes, value);
            memmove(value, value + next, strlen(value + next) + 1);
            more = more || value[0];
            change_words(change, row, &row->cells[c], o->unicode);
            fputs("   ", out);
            pad(out, text, widths[0], true);
            if (widths[1] && (change[0] || i + 1 < g->count || row->why)) {
                fputs("  ", out);
                pad(out, line ? "" : change, widths[1], true);
            }
            used += whole_width(g, c, widths[0]);
        }
        if (row->why && !line) print_why(out, _(row->why), used, o);
        fputc('\n', out);
    }
    free(values);
}

/* Measures the columns of a section. Returns the number of its rows. */
static int measure(struct group *g, const struct table *t, enum section section,
                   const struct output_options *o)
{
    char value[CELL_TEXT], change[CELL_TEXT + 32];
    int rows = 0;
    g->label = width_of(_(section_titles[section]));
    for (int r = 0; r < t->row_count; r++) {
        const struct row *row = &t->rows[r];
        if (row->section != section || !output_row_shown(t, row, o)) continue;
        rows++;
        if (width_of(output_label(row)) > g->label) g->label = width_of(output_label(row));
        for (int c = 0; c < t->column_count; c++) {
            change_words(change, row, &row->cells[c], o->unicode);
            cell_words(value, row, &row->cells[c], o->unicode ? "±" : "+-");
            if (width_of(value) > g->widths[c][0]) g->widths[c][0] = width_of(value);
            if (width_of(change) > g->widths[c][1]) g->widths[c][1] = width_of(change);
        }
    }
    for (int c = 0; c < t->column_count; c++) {
        int name = name_width(t, c), gap = g->widths[c][1] ? 2 : 0, *widths = g->widths[c];
        if (widths[0] + gap + widths[1] < name) widths[0] = name - gap - widths[1];
    }
    return rows;
}

static void print_title(FILE *out, const struct table *t, enum section section, const struct group *g,
                        const struct output_options *o)
{
    const char *bold = o->color ? section == SECTION_COMPARABLE ? "\033[1;31m" : "\033[1m" : "",
               *plain = o->color ? "\033[0m" : "";
    fputs(bold, out);
    pad(out, _(section_titles[section]), g->label, false);
    for (int i = 0; i < g->count; i++) {
        char name[320];
        int c = g->columns[i];
        snprintf(name, sizeof name, "%s%s", t->columns[c].name, c == t->reference ? " *" : "");
        fputs("   ", out);
        pad(out, name, whole_width(g, c, g->widths[c][0]) - 3, true);
    }
    fprintf(out, "%s\n", plain);
}

/* Prints a section, in several tables if its columns are wider than the terminal. Changes have their own
 * column within the run's. */
static void print_section(FILE *out, const struct table *t, enum section section,
                          const struct output_options *o)
{
    struct group g = {.columns = xcalloc((size_t)t->column_count + 1, sizeof *g.columns),
                      .widths = xcalloc((size_t)t->column_count, sizeof *g.widths)};
    int rows = measure(&g, t, section, o);
    for (int c = 0; rows && c < t->column_count;) {
        c = next_group(&g, t, c, o);
        print_title(out, t, section, &g, o);
        for (int r = 0; r < t->row_count; r++) {
            const struct row *row = &t->rows[r];
            if (row->section == section && output_row_shown(t, row, o)) print_row(out, t, row, &g, o);
        }
        fputc('\n', out);
    }
    free(g.widths);
    free(g.columns);
}

/* Prints a text with line breaks between words. */
static void print_sentence(FILE *out, const char *text, int width)
{
    while (text_columns(text, SIZE_MAX) > width) {
        size_t bytes = text_line(text, width);
        fprintf(out, "%.*s\n", (int)bytes, text);
        text += bytes + strspn(text + bytes, " ");
    }
    fprintf(out, "%s\n\n", text);
}

void output_terminal(FILE *out, const struct table *t, const struct plot plots[PLOT_COUNT],
                     const struct output_options *o)
{
    bool whole = !t->sweep || o->all;
    if (t->sweep) sweep_terminal(out, t, o);
    for (int c = 0; c < t->column_count && whole; c++) {
        char *headline = table_headline(t, c);
        if (headline) print_sentence(out, headline, o->width);
        free(headline);
    }
    int width = o->width < 100 ? o->width : 100;
    if (plot_worthwhile(&plots[PLOT_MEMORY]))
        plot_terminal(out, &plots[PLOT_MEMORY], width, 12, o->unicode, o->color);
    if (whole) print_section(out, t, SECTION_FACTS, o);
    if (whole) print_section(out, t, SECTION_CONFIG, o);
    print_section(out, t, SECTION_COMPARABLE, o);
    if (t->column_count > 1) fprintf(out, _("* reference: changes and gaps are against it\n\n"));
    for (int k = PLOT_LOSS; k < PLOT_COUNT; k++)
        if (plot_worthwhile(&plots[k])) plot_terminal(out, &plots[k], width, 12, o->unicode, o->color);
}

/* ---- JSON ---- */

static json_t *real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *row_json(const struct table *t, const struct row *row)
{
    json_t *values = json_array(), *sd = json_array(), *n = json_array(), *ratio = json_array(),
           *ratio_sd = json_array(), *p = json_array(), *history = json_array();
    bool any_sd = false, any_history = false;
    for (int c = 0; c < t->column_count; c++) {
        const struct cell *cell = &row->cells[c];
        json_array_append_new(values, cell->number                  ? real_or_null(cell->mean)
                                      : cell->text && cell->text[0] ? json_string(cell->text)
                                                                    : json_null());
        json_array_append_new(sd, real_or_null(cell->sd));
        json_array_append_new(n, json_integer(cell->n));
        json_array_append_new(ratio, real_or_null(cell->ratio));
        json_array_append_new(ratio_sd, real_or_null(cell->ratio_sd));
        json_array_append_new(p, real_or_null(cell->p));
        any_sd |= isfinite(cell->sd);
        bool moved = cell->history && strcmp(cell->history, cell->text) != 0;
        json_array_append_new(history, moved ? json_string(cell->history) : json_null());
        any_history |= moved;
    }
    json_t *object =
        json_pack("{s:s, s:s, s:b, s:o}", "key", row->key, "label", row->label + strspn(row->label, " "),
                  "changed", row->changed, "values", values);
    if (row->section == SECTION_FACTS) {
        json_object_set(object, "ratio", ratio);
        if (any_sd) {
            json_object_set(object, "n", n);
            json_object_set(object, "sd", sd);
            json_object_set(object, "ratio_sd", ratio_sd);
            json_object_set(object, "p", p);
        }
    }
    if (any_history) json_object_set(object, "history", history);
    json_decref(history);
    if (row->why) json_object_set_new(object, "why", json_string(row->why));
    json_decref(sd);
    json_decref(n);
    json_decref(ratio);
    json_decref(ratio_sd);
    json_decref(p);
    return object;
}

void output_json(FILE *out, const struct table *t, const struct output_options *o)
{
    static const char *const names[] = {"facts", "config", "not_comparable"};
    json_t *columns = json_array(), *warnings = json_array(),
           *sections[3] = {json_array(), json_array(), json_array()}, *results = json_array();
    for (int c = 0; c < t->column_count; c++) {
        json_t *runs = json_array();
        for (int i = 0; i < t->columns[c].run_count; i++) {
            char printable[1024];
            json_array_append_new(
                runs, json_string(name_printable(printable, sizeof printable, t->columns[c].runs[i].path)));
        }
        char *headline = table_headline(t, c);
        json_array_append_new(columns,
                              json_pack("{s:s, s:b, s:b, s:o, s:s?}", "name", t->columns[c].name, "reference",
                                        c == t->reference, "published", t->columns[c].runs[0].published,
                                        "runs", runs, "headline", headline));
        free(headline);
    }
    for (int r = 0; r < t->row_count; r++)
        if (is_written(&t->rows[r], o))
            json_array_append_new(sections[t->rows[r].section], row_json(t, &t->rows[r]));
    for (int i = 0; i < t->warning_count; i++) json_array_append_new(warnings, json_string(t->warnings[i]));
    for (int i = 0; i < o->result_count; i++) {
        const struct threshold_result *v = &o->results[i];
        json_array_append_new(
            results, json_pack("{s:s, s:s, s:s, s:b}", "threshold", v->threshold->expression, "column",
                               t->columns[v->column].name, "unit",
                               v->threshold->relative ? "%" : v->threshold->row->unit, "passed", v->passed));
        json_object_set_new(json_array_get(results, (size_t)i), "change", real_or_null(v->change));
    }
    json_t *root =
        json_pack("{s:i, s:b, s:o}", "version", 1, "comparable", t->comparable, "columns", columns);
    for (int s = 0; s < 3; s++) json_object_set_new(root, names[s], sections[s]);
    if (t->sweep) json_object_set_new(root, "sweep", sweep_json(t));
    json_object_set_new(root, "warnings", warnings);
    json_object_set_new(root, "thresholds", results);
    json_print(out, root, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    json_decref(root);
}

/* ---- CSV (RFC 4180) ---- */

void output_csv_text(FILE *out, const char *text)
{
    bool formula = text[0] && strchr("=+-@", text[0]) && !(text[0] == '-' && !text[1]);
    if (!formula && !strpbrk(text, ",\"\r\n")) {
        fputs(text, out);
        return;
    }
    fprintf(out, "\"%s", formula ? "'" : "");
    for (; *text; text++) fprintf(out, *text == '"' ? "\"\"" : "%c", *text);
    fputc('"', out);
}

void output_csv(FILE *out, const struct table *t, const struct output_options *o)
{
    static const char *const names[] = {"facts", "config", "not_comparable"};
    bool spread = false;
    for (int c = 0; c < t->column_count; c++) spread |= t->columns[c].run_count > 1;
    fputs("section,key", out);
    for (int c = 0; c < t->column_count; c++) {
        fputc(',', out);
        output_csv_text(out, t->columns[c].name);
        if (spread) {
            char name[320];
            snprintf(name, sizeof name, "%s (sd)", t->columns[c].name);
            fputc(',', out);
            output_csv_text(out, name);
        }
    }
    fputs("\r\n", out);
    for (int r = 0; r < t->row_count; r++) {
        const struct row *row = &t->rows[r];
        if (!is_written(row, o)) continue;
        fprintf(out, "%s,", names[row->section]);
        output_csv_text(out, row->key);
        for (int c = 0; c < t->column_count; c++) {
            const struct cell *cell = &row->cells[c];
            fputc(',', out);
            if (cell->number && isfinite(cell->mean)) fprintf(out, "%.12g", cell->mean);
            if (!cell->number) output_csv_text(out, cell_shown(cell));
            if (spread) fputc(',', out);
            if (spread && isfinite(cell->sd)) fprintf(out, "%.12g", cell->sd);
        }
        fputs("\r\n", out);
    }
}

/* ---- Markdown ---- */

void output_markdown(FILE *out, const struct table *t, const struct output_options *o)
{
    if (t->sweep) sweep_markdown(out, t);
    for (int s = 0; s < 3; s++) {
        bool any = false;
        for (int r = 0; r < t->row_count; r++) {
            const struct row *row = &t->rows[r];
            if (row->section != (enum section)s || !output_row_shown(t, row, o)) continue;
            if (!any) {
                fprintf(out, "%s| %s |", s ? "\n" : "", section_titles[s]);
                for (int c = 0; c < t->column_count; c++) {
                    fputc(' ', out);
                    markdown_text(out, t->columns[c].name);
                    fputs(c == t->reference ? " (reference) |" : " |", out);
                }
                fputs(s == SECTION_COMPARABLE ? " |\n|:--|" : "\n|:--|", out);
                for (int c = 0; c < t->column_count; c++) fputs("--:|", out);
                fputs(s == SECTION_COMPARABLE ? ":--|\n" : "\n", out);
                any = true;
            }
            fputs("| ", out);
            markdown_text(out, row->label + strspn(row->label, " "));
            fputs(" |", out);
            for (int c = 0; c < t->column_count; c++) {
                char value[CELL_TEXT], change[CELL_TEXT + 32];
                cell_text(value, row, &row->cells[c], "±");
                change_words(change, row, &row->cells[c], true);
                fputc(' ', out);
                markdown_text(out, value);
                if (change[0]) {
                    fputs(" (", out);
                    markdown_text(out, change);
                    fputc(')', out);
                }
                fputs(" |", out);
            }
            if (row->why) {
                fputc(' ', out);
                markdown_text(out, row->why);
                fputs(" |", out);
            }
            fputc('\n', out);
        }
    }
    for (int i = 0; i < t->warning_count; i++) {
        fputs(i ? "* " : "\n* ", out);
        markdown_text(out, t->warnings[i]);
        fputc('\n', out);
    }
}
