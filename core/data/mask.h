/* Masked tokens of a sample (Devlin et al., arXiv 1810.04805): of those chosen, 80 % become the mask, 10 %
 * another token, 10 % stay; each one's label is the token itself. Philox by seed, epoch, first token and
 * place of the sample, so the same on any number of ranks. */
#ifndef MEOPT_DATA_MASK_H
#define MEOPT_DATA_MASK_H

#include <stdint.h>

struct mask {
    uint64_t seed;
    int64_t epoch, sample;              /* number of the sample's first token among all */
    int64_t chosen, context;            /* chosen of a sample with `context` tokens that may be; at least 1 */
    int64_t token, special, vocabulary; /* tokens below `special` are not chosen and do not replace others */
    const int32_t *apart;               /* (apart_count) sorted: those from `special` on, neither */
    int64_t apart_count;
};
/* Masks tokens (count); writes labels (count), -1 for those that are not chosen. order (count): scratch. */
void mask_sample(const struct mask *mask, int32_t *tokens, int32_t *labels, int64_t count, uint64_t *order);

#endif
