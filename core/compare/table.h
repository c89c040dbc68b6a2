/* The comparison as one table: rows of facts, columns of runs. Every output format (terminal, JSON, CSV,
 * Markdown, HTML) prints it and computes nothing, so that all agree.
 *
 * A column is one run, or several repeats of one, with mean and standard deviation. One column is the
 * reference of ratios, changes and gaps.
 */
#ifndef MEOPT_COMPARE_TABLE_H
#define MEOPT_COMPARE_TABLE_H

#include "core/compare/record.h"

enum section {
    SECTION_FACTS,      /* measurements */
    SECTION_CONFIG,     /* keys of config.yaml */
    SECTION_COMPARABLE, /* rows that make the runs incomparable */
};

struct cell {
    bool number;     /* mean and sd are set, else text ("": unknown) */
    double mean, sd; /* sd NAN for a single value; mean NAN for a value that is NaN or unknown */
    int n;
    double ratio, ratio_sd, p; /* ratio to the reference column, and Welch's p; NAN if meaningless */
    char *text;
    char *history; /* of a setting, with its changes during the run: "0.01 -> 1.0e-5 @40"; NULL elsewhere */
};

struct row {
    enum section section;
    char *key, *label;  /* key: stable, with the unit; label: for people */
    const char *unit;   /* "bytes", "s", "ms", "%", "steps", "" */
    const char *why;    /* SECTION_COMPARABLE: the consequence */
    int better;         /* +1 larger, -1 smaller, 0 neither */
    bool changed;       /* cells differ */
    bool hidden;        /* for programs: not in the terminal, on pages and in papers */
    struct cell *cells; /* one per column */
};

struct column {
    char *name;
    struct record *runs;
    int run_count;
};

struct table {
    struct column *columns;
    int column_count, reference;
    const struct unit *unit; /* of the reference; if it is published, of the first run */
    bool only_tokens;        /* no run counts images */
    struct row *rows;
    int row_count;
    char **warnings;
    int warning_count;
    bool comparable;           /* no row in SECTION_COMPARABLE */
    const struct sweep *sweep; /* NULL: the runs are no sweep (sweep.h) */
};

/* Makes the table. It takes ownership of the columns (each malloc'ed with its runs); reference is an
 * index. */
struct table *table_make(struct column *columns, int count, int reference);
void table_free(struct table *table);
const struct row *table_row(const struct table *table, const char *key); /* NULL when there is none */
/* Returns a sentence about a column against the reference: saved memory, change of time and loss,
 * significance; malloc'ed. NULL for the reference itself and published figures. */
char *table_headline(const struct table *table, int column);
/* Whether a setting changes neither the numbers of a run nor its memory and time. */
bool table_harmless(const char *key);
void table_warn(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns a text cell with the changes of a setting; "" if unknown. */
const char *cell_shown(const struct cell *cell);
/* Formats a cell for people: "193.7 MiB", "51.30 ± 0.12 s", "-" if unknown. plus_minus: "±" or "+-". */
enum { CELL_TEXT = 192 };
char *cell_text(char dst[CELL_TEXT], const struct row *row, const struct cell *cell, const char *plus_minus);
/* The same with words translated. */
char *cell_words(char dst[CELL_TEXT], const struct row *row, const struct cell *cell, const char *plus_minus);
/* Writes text for Markdown, with its signs escaped. */
void markdown_text(FILE *out, const char *text);
/* Formats a change: "-62.0 %", "-62.0 ± 0.3 %"; "" for the reference and where a change is meaningless. */
char *cell_change(char dst[CELL_TEXT], const struct row *row, const struct cell *cell,
                  const char *plus_minus);

/* 'peak_bytes:-20%': this row's change against the reference is at most -20 % if smaller is better, at
 * least -20 % if larger is better, and within 20 % otherwise. Without %, the limit is in the row's own
 * unit. */
struct threshold {
    const char *expression;
    const struct row *row;
    double limit;
    bool relative;
};
int threshold_parse(struct threshold *threshold, const struct table *table, const char *expression,
                    struct error *err);
/* Checks one column; *change receives its change (in percent if relative). An unknown value has not
 * passed. */
bool threshold_passed(const struct threshold *threshold, const struct cell *reference,
                      const struct cell *cell, double *change);

/* ---- Of the table's own files ---- */

struct row *table_add_row(struct table *table, enum section section, const char *key, const char *label,
                          const char *unit, int better);
/* Joins the distinct texts of a column's runs, in order; malloc'ed. */
char *table_join(const struct column *column, const char *(*text)(const struct record *run, const void *what),
                 const void *what);
/* Returns the value of a key of config.yaml, "" if it is missing. */
const char *table_setting(const struct record *run, const void *key);

/* ---- checks.c ---- */

/* Adds a row for each difference that makes runs incomparable; after the settings. */
void checks_add(struct table *table);
/* Warns about settings that change the loss without the user's intention. */
void checks_warn(struct table *table);

#endif
