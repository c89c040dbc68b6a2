/* The table of properties: see facts.h. */
#include "core/model/shape.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FACT_ROW(number, name, kind, field, ...)                                                             \
    {#name, FACT_##kind, offsetof(struct model_shape, field), __VA_ARGS__},
const struct fact_row fact_rows[FACT_VALUES] = {FACTS(FACT_ROW)};
_Static_assert(sizeof(enum pool) == sizeof(int), "choices are read as int");

const char *fact_member(enum fact fact, enum fact_members of)
{
    const char *own = of ? fact_rows[fact].own[of - 1] : NULL;
    return own ? own : fact_rows[fact].member;
}

double fact_value(const struct model_shape *g, enum fact fact)
{
    const void *at = (const char *)g + fact_rows[fact].offset;
    switch (fact_rows[fact].kind) {
    case FACT_INT: return (double)*(const int64_t *)at;
    case FACT_FLOAT: return (double)*(const float *)at;
    case FACT_DOUBLE: return *(const double *)at;
    default: return *(const int *)at;
    }
}

void fact_set(struct model_shape *g, enum fact fact, double value, enum fact_source from)
{
    void *at = (char *)g + fact_rows[fact].offset;
    switch (fact_rows[fact].kind) {
    case FACT_INT: *(int64_t *)at = fabs(value) < 9e18 ? (int64_t)value : 0; break;
    case FACT_FLOAT: *(float *)at = (float)value; break;
    case FACT_DOUBLE: *(double *)at = value; break;
    default: *(int *)at = (int)value;
    }
    g->facts.from[fact] = (unsigned char)from;
}

void fact_take(struct model_shape *g, enum fact fact, const struct model_shape *says, enum fact_source from)
{
    double value = fact_value(says, fact);
    bool below = !g->facts.from[fact] || from < g->facts.from[fact];
    if (below && fabs(value) > 0) fact_set(g, fact, value, from);
}

const char *fact_text(const struct model_shape *g, enum fact fact, bool exact, char text[FACT_TEXT])
{
    const struct fact_row *row = &fact_rows[fact];
    double value = fact_value(g, fact);
    int digits = !exact && row->kind != FACT_INT ? 6 : row->kind == FACT_FLOAT ? 9 : 17;
    if (row->kind == FACT_FFN) snprintf(text, FACT_TEXT, "%s", model_shape_activation(g));
    else if (row->kind == FACT_CHOICE) snprintf(text, FACT_TEXT, "%s", row->words[(int)value]);
    else snprintf(text, FACT_TEXT, "%.*g", digits, value);
    return text;
}

bool fact_read(struct model_shape *g, enum fact fact, const char *text)
{
    const struct fact_row *row = &fact_rows[fact];
    bool integer = row->kind == FACT_INT;
    char *end;
    double value = 0;
    if (row->kind == FACT_FFN) value = activation_named(text);
    else if (row->kind == FACT_CHOICE)
        for (int i = 1; row->words[i]; i++) value = strcmp(row->words[i], text) == 0 ? i : value;
    else {
        value = integer ? (double)strtoll(text, &end, 10) : strtod(text, &end);
        if (end == text || *end || !(value > 0 && value < 1e30) || (integer && value > (double)row->most))
            value = 0;
    }
    fact_set(g, fact, value, SOURCE_METADATA);
    return fact_value(g, fact) > 0; /* a float may be 0 */
}

int facts_check(const struct model_shape *g, const enum fact *facts, struct error *err)
{
    for (; *facts != FACT_COUNT; facts++) {
        int64_t value = (int64_t)fact_value(g, *facts), most = fact_rows[*facts].most;
        if (value < 1 || value > most)
            return error_set(err, EXIT_CONFIG, "set an arch, a checkpoint, or the key",
                             "the %s's %s is %lld, expected 1 to %lld", family_noun(g->family),
                             fact_rows[*facts].name, (long long)value, (long long)most);
    }
    return 0;
}

bool fact_assumed(const struct model_shape *g, enum fact fact)
{
    return g->facts.from[fact] == SOURCE_ASSUMED;
}

bool facts_assumed(const struct model_shape *g)
{
    return memchr(g->facts.from, SOURCE_ASSUMED, sizeof g->facts.from) != NULL;
}

void facts_given(struct model_shape *g)
{
    for (enum fact f = 0; f < FACT_VALUES; f++)
        if (!g->facts.from[f] && fabs(fact_value(g, f)) > 0) g->facts.from[f] = SOURCE_KEY;
}

void facts_assume(struct model_shape *g, int set)
{
    for (enum fact f = 0; f < FACT_COUNT; f++)
        if (set & 1 << f && !g->facts.from[f]) g->facts.from[f] = SOURCE_ASSUMED;
}

bool fact_differs(const struct model_shape *a, const struct model_shape *b, enum fact fact)
{
    double is = fact_value(a, fact), other = fact_value(b, fact);
    bool real = fact_rows[fact].kind == FACT_FLOAT || fact_rows[fact].kind == FACT_DOUBLE;
    return fabs(is) > 0 && fabs(other) > 0 && fabs(is - other) > (real ? 1e-5 * fabs(other) : 0);
}
