/* The next token of a language model, from its logits. As in transformers: temperature, then top-k, then
 * top-p of the probabilities that are left. */
#ifndef MEOPT_NN_SAMPLE_TOKEN_H
#define MEOPT_NN_SAMPLE_TOKEN_H

#include <stdint.h>

struct token_sampling {
    double temperature; /* divides the logits; 0: the token with the largest */
    double top_p;       /* draw from the likeliest tokens whose probabilities first reach this sum; 1: all */
    uint64_t seed;
    int64_t top_k; /* draw from the k likeliest tokens alone, and from those equal to the last one; 0: all */
};

/* Returns the token of draw number `draw`; of equal logits the first. -1: a logit is not finite. */
int32_t token_sample(const float *logits, int64_t vocabulary, const struct token_sampling *how, int64_t draw);

#endif
