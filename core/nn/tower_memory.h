/* The tensors of a tower's memory, one by one, inside its few large allocations. */
#ifndef MEOPT_NN_TOWER_MEMORY_H
#define MEOPT_NN_TOWER_MEMORY_H

#include "core/nn/nn.h"

/* Called for each tensor: parameters and their gradients by name, activations by description, with the prefix
 * "blocks.N." inside a block. Padding is not reported. */
typedef void (*tower_tensor)(void *context, enum memory_class class, const char *name, size_t bytes);
void tower_explain(const struct tower *tower, tower_tensor report, void *context);
/* Returns whether this allocation (device.h) is reported tensor by tensor. */
bool tower_explains(const char *allocation);

#endif
