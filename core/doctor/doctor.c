/* The table of checks: see doctor.h. */
#include "core/doctor/doctor.h"
#include "core/base/message.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const finding_names[] = {N_("ok"), N_("warning"), N_("missing")};

static const char *current; /* name of the running check */

struct line *doctor_add(struct doctor *d, enum finding finding, const char *format, ...)
{
    char text[640];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    d->rows = xrealloc(d->rows, (d->row_count + 1) * sizeof *d->rows);
    struct line *line = &d->rows[d->row_count++];
    memset(line, 0, sizeof *line);
    line->check = current;
    line->finding = finding;
    name_printable(line->found, sizeof line->found, text);
    if (d->progress) d->progress(d, current);
    return line;
}

void line_advise(struct line *line, const char *meaning, const char *remedy)
{
    if (meaning) name_printable(line->meaning, sizeof line->meaning, translation(meaning));
    if (remedy) name_printable(line->remedy, sizeof line->remedy, translation(remedy));
}

static json_t *values(struct line *line)
{
    if (!line->values) line->values = json_object();
    return line->values;
}
void line_real(struct line *line, const char *name, double value)
{
    json_object_set_new(values(line), name, isfinite(value) ? json_real(value) : json_null());
}
void line_text(struct line *line, const char *name, const char *value)
{
    char text[512];
    json_object_set_new(values(line), name, json_string(name_printable(text, sizeof text, value)));
}

char *doctor_path(const struct doctor *d, const char *path) { return xasprintf("%s%s", d->root, path); }

char *doctor_read(const struct doctor *d, const char *path)
{
    char *full = doctor_path(d, path), *text = NULL;
    FILE *f = fopen(full, "re");
    free(full);
    if (!f) return NULL;
    size_t size = 0;
    if (getline(&text, &size, f) < 0) {
        free(text);
        text = NULL;
    } else text[strcspn(text, "\n")] = 0;
    fclose(f);
    return text;
}

void doctor_run(struct doctor *d, const struct doctor_row *rows)
{
    for (; rows->name; rows++) {
        current = rows->name;
        if (d->progress) d->progress(d, current);
        rows->run(d);
    }
}

/* Returns a text in English, null if it is empty. */
static json_t *english(const char *text)
{
    char dst[sizeof((struct line *)0)->found + sizeof((struct line *)0)->meaning];
    return text[0] ? json_string(message_english(dst, sizeof dst, text)) : json_null();
}

json_t *doctor_json(const struct doctor *d)
{
    int count[3] = {0};
    json_t *checks = json_array();
    for (size_t i = 0; i < d->row_count; i++) {
        const struct line *line = &d->rows[i];
        json_t *row = json_object();
        count[line->finding]++;
        json_object_set_new(row, "name", json_string(line->check));
        json_object_set_new(row, "status", json_string(finding_names[line->finding]));
        json_object_set_new(row, "detail", english(line->found));
        json_object_set_new(row, "meaning", english(line->meaning));
        json_object_set_new(row, "hint", english(line->remedy));
        if (line->values) json_object_update(row, line->values);
        json_array_append_new(checks, row);
    }
    json_t *report = json_object();
    json_object_set_new(report, "checks", checks);
    for (int i = 0; i < 3; i++) json_object_set_new(report, finding_names[i], json_integer(count[i]));
    return report;
}

void doctor_free(struct doctor *d)
{
    for (size_t i = 0; i < d->row_count; i++) json_decref(d->rows[i].values);
    free(d->rows);
    d->rows = NULL;
    d->row_count = 0;
}
