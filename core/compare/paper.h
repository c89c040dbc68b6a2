/* The comparison as a booktabs table for LaTeX, in English or Chinese (for XeLaTeX). */
#ifndef MEOPT_COMPARE_PAPER_H
#define MEOPT_COMPARE_PAPER_H

#include "core/compare/table.h"

#include <stdio.h>

enum paper_language { PAPER_ENGLISH, PAPER_CHINESE, PAPER_LANGUAGES };
extern const char *const paper_suffixes[PAPER_LANGUAGES]; /* suffixes of file names: "", "_zh" */

void paper_table(FILE *out, const struct table *table, enum paper_language language);

#endif
