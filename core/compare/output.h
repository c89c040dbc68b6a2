/* Output formats of the table. */
#ifndef MEOPT_COMPARE_OUTPUT_H
#define MEOPT_COMPARE_OUTPUT_H

#include "core/compare/plot.h"

/* The result of a threshold in one column, for JSON. */
struct threshold_result {
    const struct threshold *threshold;
    int column;
    double change;
    bool passed;
};

struct output_options {
    bool all; /* configuration: unchanged rows, too */
    bool color, unicode;
    int width;     /* of the terminal */
    bool terminal; /* tables that are wider are printed in parts */
    const struct threshold_result *results;
    int result_count;
};

void output_terminal(FILE *out, const struct table *table, const struct plot plots[PLOT_COUNT],
                     const struct output_options *options);
void output_json(FILE *out, const struct table *table, const struct output_options *options);
/* Writes a field of a CSV file (RFC 4180), with a leading apostrophe if a spreadsheet would parse it as a
 * formula. */
void output_csv_text(FILE *out, const char *text);
void output_csv(FILE *out, const struct table *table, const struct output_options *options);
void output_markdown(FILE *out, const struct table *table, const struct output_options *options);
void output_html(FILE *out, const struct table *table, const struct plot plots[PLOT_COUNT],
                 const struct output_options *options);

/* Returns the translated label of a row with its indentation, valid until the next call. */
const char *output_label(const struct row *row);
extern const char *const section_titles[3];
/* Returns whether a row is written for people: with published columns, not without a published figure. */
bool output_row_shown(const struct table *table, const struct row *row, const struct output_options *options);

#endif
