/* The shape and mask of attention forward and backward (struct attention), for kernels of CPUs and cards. */
#ifndef MEOPT_KERNELS_ATTENTION_SHAPE_H
#define MEOPT_KERNELS_ATTENTION_SHAPE_H

#include <stdint.h>

struct attention_shape {
    int64_t N, H, G, dh, window;
    int64_t causal;                /* 0 or 1 */
    const int32_t *begins, *ends;  /* (B, N) or NULL */
    int64_t first;                 /* query, forward */
    int64_t block;                 /* with lists: tokens of a block */
    const int32_t *keys, *queries; /* lists of blocks or NULL */
};
#define ATTENTION_SHAPE(o)                                                                                   \
    (struct attention_shape)                                                                                 \
    {                                                                                                        \
        (o)->N, (o)->H, (o)->G, (o)->dh, (o)->window, (o)->causal, (o)->begins, (o)->ends, (o)->first,       \
            (o)->block, (o)->keys, (o)->queries                                                              \
    }

#endif
