/* The comparison as one table: rows of facts, columns of runs. Every output (terminal, JSON, CSV, Markdown,
 * HTML) prints this and computes nothing, so that they cannot disagree.
 *
 * A column is one run, or several repeats of one, of which it shows mean and standard deviation. One column
 * is the reference: ratios, changes and gaps are against it.
 */
#ifndef MEOPT_COMPARE_TABLE_H
#define MEOPT_COMPARE_TABLE_H

#include "core/compare/record.h"

enum section {
    SECTION_FACTS,      /* what was measured */
    SECTION_CONFIG,     /* keys of config.yaml */
    SECTION_COMPARABLE, /* rows that stand in the way of a comparison */
};

struct cell {
    bool number;     /* mean and sd are there, else text ("" not known) */
    double mean, sd; /* sd NAN for a single value; mean NAN for a value that is NaN or not known */
    int n;
    double ratio, ratio_sd, p; /* to the reference column, and Welch's p; NAN when they have no meaning */
    char *text;
    char *history; /* of a setting, with its changes during the run: "0.01 -> 1.0e-5 @40"; NULL elsewhere */
};

struct row {
    enum section section;
    char *key, *label;  /* key: stable, with the unit; label: for people */
    const char *unit;   /* "bytes", "s", "ms", "%", "steps", "" */
    const char *why;    /* SECTION_COMPARABLE: what it means */
    int better;         /* +1 larger, -1 smaller, 0 neither */
    bool changed;       /* cells differ */
    struct cell *cells; /* one a column */
};

struct column {
    char *name;
    struct record *runs;
    int run_count;
};

struct table {
    struct column *columns;
    int column_count, reference;
    struct row *rows;
    int row_count;
    char **warnings;
    int warning_count;
    bool comparable; /* no row in SECTION_COMPARABLE */
};

/* Takes the columns over (each malloc'ed with its runs); reference is an index. */
struct table *table_make(struct column *columns, int count, int reference);
void table_free(struct table *table);
const struct row *table_row(const struct table *table, const char *key); /* NULL when there is none */
/* What this column saves against the reference, at what time and loss, and how certain that is: a sentence,
 * malloc'ed; NULL where there is nothing to say (the reference itself, published figures). */
char *table_headline(const struct table *table, int column);
/* Whether a setting changes neither the numbers of a run nor its memory and time. */
bool table_harmless(const char *key);
void table_warn(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A text cell with the changes of a setting; "" where it is not known. */
const char *cell_shown(const struct cell *cell);
/* As people read it: "193.7 MiB", "51.30 ± 0.12 s", "-" for what is not known. plus_minus: "±" or "+-". */
enum { CELL_TEXT = 192 };
char *cell_text(char dst[CELL_TEXT], const struct row *row, const struct cell *cell, const char *plus_minus);
/* "-62.0 %", "-62.0 ± 0.3 %"; "" for the reference and where a change has no meaning. */
char *cell_change(char dst[CELL_TEXT], const struct row *row, const struct cell *cell,
                  const char *plus_minus);

/* 'peak_bytes:-20%': this row's change against the reference is at most -20 % where smaller is better, at
 * least where larger is better, and within where neither is; without % in the row's own unit. */
struct threshold {
    const char *expression;
    const struct row *row;
    double limit;
    bool relative;
};
int threshold_parse(struct threshold *threshold, const struct table *table, const char *expression,
                    struct error *err);
/* Of one column; *change gets what was found (in percent when relative).
 * A value that is not known has not passed. */
bool threshold_passed(const struct threshold *threshold, const struct cell *reference,
                      const struct cell *cell, double *change);

#endif
