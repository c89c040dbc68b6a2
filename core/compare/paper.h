/* The comparison for a paper: a booktabs table, a paragraph of methods, and a document that includes them
 * and the plots (plot.h) for viewing. English, or Chinese (ctex, XeLaTeX). */
#ifndef MEOPT_COMPARE_PAPER_H
#define MEOPT_COMPARE_PAPER_H

#include "core/compare/plot.h"

enum paper_language { PAPER_ENGLISH, PAPER_CHINESE, PAPER_LANGUAGES };
extern const char *const paper_suffixes[PAPER_LANGUAGES]; /* suffixes of file names: "", "_zh" */

void paper_table(FILE *out, const struct table *table, enum paper_language language);
void paper_methods(FILE *out, const struct table *table, enum paper_language language);
/* Writes a document with \input of the two above, and \includegraphics of each plot with content. */
void paper_document(FILE *out, const struct plot plots[PLOT_COUNT], enum paper_language language);

#endif
