/* What training will learn of token files: their first document, with its labels marked. */
#ifndef MEOPT_CLI_TEXT_TOKENIZE_SHOW_H
#define MEOPT_CLI_TEXT_TOKENIZE_SHOW_H

#include "core/text/tokenizer.h"

#include <jansson.h>

/* Returns {"tokens", "shown", "pieces": [{"text", "tokens", "label"}]} of the first document of NAME.bin, at
 * most 4096 tokens of it. NULL: the files cannot be read, or every token of them is a label. */
json_t *tokenize_first(const char *name, const struct tokenizer *tokenizer);
/* Prints it on stderr, shortened: labels underlined on a terminal, else in brackets. */
void tokenize_show(const char *name, const struct tokenizer *tokenizer);

#endif
