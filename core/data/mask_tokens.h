/* The mask and the special tokens that descriptions of token files (X.json of `meopt tokenize`) name. */
#ifndef MEOPT_DATA_MASK_TOKENS_H
#define MEOPT_DATA_MASK_TOKENS_H

#include "core/data/data.h"

#include <jansson.h>

struct mask_tokens {
    bool described; /* a file says it */
    int64_t token;  /* -1: the tokenizer has no mask */
    int32_t *apart; /* (count) sorted: special tokens, which are never masked */
    int64_t count;
};

/* Reads the members of a description. Refuses one that differs from that of a file before. */
int mask_tokens_read(struct mask_tokens *mask, const json_t *description, struct error *err);
/* Reads the description of the first of the token files in data.root; absent files describe nothing. */
int mask_tokens_find(struct mask_tokens *mask, const struct data_options *options, struct error *err);
/* Refuses a mask that is not the tokenizer's, or outside the vocabulary. Drops tokens outside of it. */
int mask_tokens_check(struct mask_tokens *mask, const struct data_options *options, struct error *err);
void mask_tokens_free(struct mask_tokens *mask);

#endif
