/* Low-rank adapters of a tower's matrices (LoRA; Hu et al., arXiv 2106.09685), as PEFT has them: y = x W^T
 * becomes
 *
 *   y = x W^T + s (x A^T) B^T,  s = alpha / rank,  A (rank, in), B (out, rank)
 *
 * W is frozen. A module is what a library calls one matrix: the rows of W that are its queries, for example,
 * with an A and a B of its own. */
#ifndef MEOPT_MODEL_LORA_H
#define MEOPT_MODEL_LORA_H

#include "core/model/shape.h"

enum { LORA_MODULES = 8 };

/* Adapters. Everything else is frozen. */
struct lora_options {
    int64_t rank; /* 0: none */
    float scale;
    unsigned targets; /* bits of the modules (lora_modules) */
    bool resident;    /* with weight_buffers: adapters stay in memory */
};

/* A module of each block: rows [first, first + out) of the matrix of `role`. */
struct lora_module {
    char name[48]; /* "self_attn.q_proj", after the block's prefix */
    int role;
    int64_t first, out, in;
};

/* Lists the modules of a block in the order of their bits in lora_options.targets; returns their number. */
int lora_modules(const struct model_shape *model_shape, struct lora_module modules[LORA_MODULES]);

/* Reads a list of targets, separated by commas: "all-linear", or ends of names ("q_proj", "mlp.c_proj"), as
 * in PEFT's target_modules. EXIT_CONFIG if one fits no module, with the names of all. */
int lora_targets(const struct model_shape *model_shape, const char *text, unsigned *targets,
                 struct error *err);

/* Writes the names of the modules that have adapters, separated by commas: the last components, or whole
 * names where these are not enough to distinguish modules, and in an image tower, whose patch embedding has a
 * "proj", too. */
void lora_target_names(const struct model_shape *model_shape, unsigned targets, char *text, size_t size);

/* Inserts the adapters into a list of parameters (parameters_list), at the end of each block; returns the new
 * count. */
int lora_parameters(const struct model_shape *model_shape, const struct lora_options *options,
                    struct parameter **list, int count);

#endif
