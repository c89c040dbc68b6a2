/* The table of a sweep: see sweep.h. */
#include "core/compare/sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEP_COLUMNS = 24, FACT_COLUMNS = 6 };

/* ---- order ---- */

static int score_number(const char *key)
{
    for (int i = 0; key && i < SCORE_COUNT; i++)
        if (strcmp(score_rows[i].key, key) == 0) return i;
    return -1;
}

/* Returns the number by which a column is ordered; the smaller, the better. score -1: the converged loss. */
static double rank_value(const struct column *column, int score)
{
    double sum = 0;
    for (int i = 0; i < column->run_count; i++)
        sum += score < 0 ? column->runs[i].tail_loss : column->runs[i].best_scores[score];
    return score >= 0 && !score_rows[score].lower ? -sum : sum;
}

static bool finished(const struct column *column)
{
    bool all = true;
    for (int i = 0; i < column->run_count; i++) all &= strcmp(column->runs[i].state, "done") == 0;
    return all;
}

/* Returns whether a is to be listed before b. */
static bool precedes(const struct column *a, const struct column *b, int score)
{
    double left = rank_value(a, score), right = rank_value(b, score);
    if (finished(a) != finished(b)) return finished(a);
    return isfinite(left) && (!isfinite(right) || left < right);
}

const char *sweep_sort(struct column *columns, int first, int before, const char *best)
{
    static char key[64];
    const int candidates[] = {SCORE_PROBE_TOP1, SCORE_KNN_TOP1, score_number(best)};
    int score = -1;
    for (int k = 0; k < 3 && score < 0; k++) {
        bool all = candidates[k] >= 0, any = false;
        for (int c = first; c < before && all; c++)
            if (finished(&columns[c])) any = true, all = isfinite(rank_value(&columns[c], candidates[k]));
        if (all && any) score = candidates[k];
    }
    for (int i = first + 1; i < before; i++)
        for (int k = i; k > first && precedes(&columns[k], &columns[k - 1], score); k--) {
            struct column swapped = columns[k];
            columns[k] = columns[k - 1];
            columns[k - 1] = swapped;
        }
    snprintf(key, sizeof key, score < 0 ? "converged_loss" : "best_%s",
             score < 0 ? "" : score_rows[score].key);
    return key;
}

static void free_tasks(struct sweep_tasks *tasks)
{
    for (int i = 0; i < tasks->count; i++) {
        free(tasks->all[i].name);
        free(tasks->all[i].job);
        free(tasks->all[i].state);
    }
    free(tasks->all);
}

void sweep_free(struct sweep *s)
{
    free_tasks(&s->missing);
    free_tasks(&s->queued);
    free(s->name);
    *s = (struct sweep){0};
}

/* ---- the table ---- */

struct field {
    const struct row *row;
    const char *head;
};

/* Returns the columns: rows of the settings that differ, then facts. */
static int choose(const struct table *t, struct field columns[SWEEP_COLUMNS], int *keys)
{
    static const char best[] = "best_";
    const char *metric = t->sweep->metric;
    int score = score_number(strncmp(metric, best, strlen(best)) == 0 ? metric + strlen(best) : NULL),
        count = 0;
    const struct {
        const char *key, *head;
    } facts[FACT_COLUMNS] = {{"state", N_("state")},
                             {"steps", N_("steps")},
                             {metric, score < 0 ? "" : score_rows[score].label},
                             {"converged_loss", N_("converged loss")},
                             {"peak_bytes", N_("peak memory")},
                             {"step_ms", N_("step time")}};
    for (int r = 0; r < t->row_count && count < SWEEP_COLUMNS - FACT_COLUMNS; r++)
        if (t->rows[r].section == SECTION_CONFIG && t->rows[r].changed && !table_harmless(t->rows[r].key))
            columns[count++] = (struct field){&t->rows[r], t->rows[r].key};
    *keys = count;
    for (int f = 0; f < FACT_COLUMNS; f++) {
        const struct row *row = facts[f].head[0] ? table_row(t, facts[f].key) : NULL;
        if (row) columns[count++] = (struct field){row, facts[f].head};
    }
    return count;
}

/* Writes the text of a field; line 0 is the head, then the runs, then those without a directory. column -1:
 * the name. */
static void field_text(char dst[CELL_TEXT], const struct table *t, const struct field *field, int line,
                       const char *plus_minus)
{
    const struct sweep *s = t->sweep;
    const struct sweep_task *missing =
        line > t->column_count ? &s->missing.all[line - 1 - t->column_count] : NULL;
    const struct row *row = field ? field->row : NULL;
    bool state = row && strcmp(row->key, "state") == 0;
    if (!line) snprintf(dst, CELL_TEXT, "%s", field ? _(field->head) : _("run"));
    else if (missing && !row) snprintf(dst, CELL_TEXT, "%s", missing->name);
    else if (missing && state) snprintf(dst, CELL_TEXT, _("no run: %s"), missing->state);
    else if (missing) snprintf(dst, CELL_TEXT, "-");
    else if (row) cell_words(dst, row, &row->cells[line - 1], plus_minus);
    else
        snprintf(dst, CELL_TEXT, "%s%s", t->columns[line - 1].name,
                 line - 1 == t->reference && t->column_count > 1 ? " *" : "");
    for (int i = 0; i < s->queued.count && line && !missing && state; i++)
        if (strcmp(s->queued.all[i].name, t->columns[line - 1].name) == 0)
            snprintf(dst + strlen(dst), CELL_TEXT - strlen(dst), ", %s", s->queued.all[i].state);
}

static int line_count(const struct table *t) { return 1 + t->column_count + t->sweep->missing.count; }

void sweep_terminal(FILE *out, const struct table *t, const struct output_options *o)
{
    struct field columns[SWEEP_COLUMNS];
    int keys, count = choose(t, columns, &keys), widths[SWEEP_COLUMNS + 1] = {0};
    char text[CELL_TEXT];
    for (int pass = 0; pass < 2; pass++)
        for (int line = 0; line < line_count(t); line++) {
            if (pass && !line && o->color) fputs("\033[1m", out);
            for (int c = -1; c < count; c++) {
                field_text(text, t, c < 0 ? NULL : &columns[c], line, o->unicode ? "±" : "+-");
                int width = text_columns(text, SIZE_MAX), *widest = &widths[c + 1];
                if (width > *widest) *widest = width;
                if (!pass) continue;
                if (c >= 0) fprintf(out, "   %*s", *widest - width, "");
                fputs(text, out);
                if (c < 0) fprintf(out, "%*s", *widest - width, "");
            }
            if (pass && !line && o->color) fputs("\033[0m", out);
            if (pass) fputc('\n', out);
        }
    fputc('\n', out);
}

void sweep_markdown(FILE *out, const struct table *t)
{
    struct field columns[SWEEP_COLUMNS];
    int keys, count = choose(t, columns, &keys);
    char text[CELL_TEXT];
    for (int line = 0; line < line_count(t); line++) {
        fputc('|', out);
        for (int c = -1; c < count; c++) {
            field_text(text, t, c < 0 ? NULL : &columns[c], line, "±");
            fputc(' ', out);
            markdown_text(out, text);
            fputs(" |", out);
        }
        fputs(line ? "\n" : "\n|:--|", out);
        for (int c = 0; c < count && !line; c++) fputs("--:|", out);
        if (!line) fputc('\n', out);
    }
    fputc('\n', out);
}

void sweep_html(FILE *out, const struct table *t)
{
    struct field columns[SWEEP_COLUMNS];
    int keys, count = choose(t, columns, &keys);
    char text[CELL_TEXT];
    fprintf(out,
            "<section class=\"sweep\"><h2>%s</h2><div class=\"wide\"><table style=\"--n:%d\">\n<tbody>\n",
            _("Runs, the best first"), count);
    for (int line = 0; line < line_count(t); line++) {
        fputs("<tr>", out);
        for (int c = -1; c < count; c++) {
            field_text(text, t, c < 0 ? NULL : &columns[c], line, "±");
            fputs(line ? "<td>" : "<th>", out);
            html_text(out, text);
            fputs(line ? "</td>" : "</th>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div></section>\n", out);
}

static json_t *tasks_json(const struct sweep_tasks *tasks)
{
    json_t *all = json_array();
    for (int i = 0; i < tasks->count; i++)
        json_array_append_new(all, json_pack("{s:s, s:s, s:s}", "name", tasks->all[i].name, "job",
                                             tasks->all[i].job, "state", tasks->all[i].state));
    return all;
}

json_t *sweep_json(const struct table *t)
{
    struct field columns[SWEEP_COLUMNS];
    const struct sweep *s = t->sweep;
    int keys;
    json_t *names = json_array();
    choose(t, columns, &keys);
    for (int k = 0; k < keys; k++) json_array_append_new(names, json_string(columns[k].head));
    return json_pack("{s:s, s:s, s:o, s:o, s:o}", "name", s->name, "metric", s->metric, "keys", names,
                     "missing", tasks_json(&s->missing), "queued", tasks_json(&s->queued));
}
