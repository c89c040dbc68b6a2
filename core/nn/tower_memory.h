/* The tensors of a tower's memory, one by one: what its few large allocations are made of. */
#ifndef MEOPT_NN_TOWER_MEMORY_H
#define MEOPT_NN_TOWER_MEMORY_H

#include "core/nn/nn.h"

/* Hears of each: parameters and their gradients by name, what a forward pass keeps by what it is, "blocks.N."
 * before what a block keeps. Padding is not told. */
typedef void (*tower_tensor)(void *context, enum memory_class class, const char *name, size_t bytes);
void tower_explain(const struct tower *tower, tower_tensor take, void *context);
/* Of these allocations (device.h) the tensors above are told. */
bool tower_explains(const char *allocation);

#endif
