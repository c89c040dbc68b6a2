/* Inside kernels/cpu: the segments of a sample and the keys that a query sees (struct attention). A segment
 * is computed as a sample of its own, so packed documents have the bits of separate ones. */
#ifndef MEOPT_KERNELS_ATTENTION_MASK_H
#define MEOPT_KERNELS_ATTENTION_MASK_H

#include "kernels/attention_shape.h"

#include <stdbool.h>

/* Returns the end of the segment that begins with token `first` of a sample. */
static inline int64_t segment_end(const struct attention_shape *s, int64_t sample, int64_t first)
{
    int64_t end = s->ends ? s->ends[sample * s->N + first] : s->N;
    return end <= first ? first + 1 : end < s->N ? end : s->N;
}

struct keys {
    int64_t first, end;
};
/* Keys of query i of a segment of N tokens; both ends never decrease with i. */
static inline struct keys keys_of(const struct attention_shape *s, int64_t N, int64_t i)
{
    return (struct keys){s->window && i >= s->window ? i - s->window + 1 : 0, s->causal ? i + 1 : N};
}
static inline bool is_masked(const struct attention_shape *s) { return s->causal || s->window; }

#endif
