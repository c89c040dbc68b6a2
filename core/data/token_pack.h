/* Whole documents in samples of equal length.
 *
 * Best fit: the longest document is placed first, each in the sample with the fewest tokens left that holds
 * it; those of one length are in an order drawn from a seed (Ding et al. 2024, arXiv:2404.10830). Where that
 * leaves more than 1 % of padding, as for documents of about a third of a sample, the documents of two random
 * samples are divided again so that one is as full as it can be, many times. Then samples are numbered by
 * their first document in the files, and the documents of a sample are in the order of the files.
 *
 * A document takes 16 bytes while samples are made and 12 afterwards, a sample 8 and 4.
 */
#ifndef MEOPT_DATA_TOKEN_PACK_H
#define MEOPT_DATA_TOKEN_PACK_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct token_pack {
    int64_t documents, samples;
    int64_t longest, tokens; /* of all documents */
    uint64_t *places;        /* (documents) place of each, in the order of token_pack_add */
    uint32_t *order;         /* (documents) the documents of each sample */
    uint32_t *begins;        /* (samples + 1) the first of them in `order` */
    int64_t capacity;        /* of places */
    int64_t operations;      /* words read and written by token_pack_make: what it costs */
};

/* Adds a document of `count` tokens, of which the first is number `first` of all. */
int token_pack_add(struct token_pack *pack, int64_t first, int64_t count, struct error *err);
/* Makes the samples of `context` tokens; no document is longer. */
int token_pack_make(struct token_pack *pack, int64_t context, uint64_t seed, struct error *err);
/* Returns the number of documents in a sample. */
int64_t token_pack_count(const struct token_pack *pack, int64_t sample);
/* Sets the first token of document `i` of a sample, and returns its tokens. */
int64_t token_pack_document(const struct token_pack *pack, int64_t sample, int64_t i, int64_t *first);
void token_pack_free(struct token_pack *pack);

#endif
