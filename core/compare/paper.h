/* The comparison as a paper would have it: a table of booktabs, a paragraph of methods, and a document that
 * holds them and the figures (plot.h) so that it can be looked at. English, or Chinese (ctex, XeLaTeX). */
#ifndef MEOPT_COMPARE_PAPER_H
#define MEOPT_COMPARE_PAPER_H

#include "core/compare/plot.h"

enum paper_language { PAPER_ENGLISH, PAPER_CHINESE, PAPER_LANGUAGES };
extern const char *const paper_suffixes[PAPER_LANGUAGES]; /* of file names: "", "_zh" */

void paper_table(FILE *out, const struct table *table, enum paper_language language);
void paper_methods(FILE *out, const struct table *table, enum paper_language language);
/* \input of the two above, and \includegraphics of each plot that says something. */
void paper_document(FILE *out, const struct plot plots[PLOT_COUNT], enum paper_language language);

#endif
