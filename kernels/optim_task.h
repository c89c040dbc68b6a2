/* Arguments of an optimizer kernel: one tensor, its formats, the scalars of this step. Plain data, passed
 * to the CPU kernels and (by value) to the GPU kernels. The formats themselves: kernels/optim_math.h. */
#ifndef MEOPT_KERNELS_OPTIM_TASK_H
#define MEOPT_KERNELS_OPTIM_TASK_H

#include "kernels/optim_rules.h"

#include <stdint.h>

#define OPTIM_GROUP 64 /* consecutive elements that share a scale */
#define OPTIM_CHUNK                                                                                          \
    512                /* groups that a thread of the CPU or a block of a card takes at a time: one result   \
                        */
#define OPTIM_BATCH 16 /* groups whose squares are added up before they are added to the chunk's */

/* In the order of enum meopt_weight_format (core/meopt.h), which core/optim/optim_options.c asserts. */
enum { WEIGHTS_F32, WEIGHTS_F32_COPY, WEIGHTS_BF16, WEIGHTS_BF16_SR, WEIGHTS_20, WEIGHTS_24, WEIGHTS_32 };
/* In the order of enum meopt_state_format, also asserted. NONE: the rule has no such moment. */
enum { STATE_NONE = -1, STATE_F32, STATE_BF16, STATE_BF16_NEAREST, STATE_8BIT, STATE_4BIT };
/* Codes with one scale per group. */
#define OPTIM_LOW_BIT(format) ((format) == STATE_8BIT || (format) == STATE_4BIT)
/* Scale of a group: 0 if all values are zero, else an exponent for which every intermediate product is a
 * normal number: roots 2^-59 .. 2^65. */
#define STATE_EXPONENT_MIN 83u
#define STATE_EXPONENT_MAX 191u
/* m and v in one joint code of 16 bits. */
#define OPTIM_JOINT(m_format, v_format) ((m_format) == STATE_8BIT && (v_format) == STATE_8BIT)
/* m without v, in 8-bit codes on a grid per group. Does not apply to accumulators. */
#define OPTIM_M_GRID(m_format, v_format) ((m_format) == STATE_8BIT && (v_format) == STATE_NONE)
/* Gradients: arrays, or an accumulator in one of the state formats. */
enum { GRADIENT_F32, GRADIENT_BF16, GRADIENT_F16, GRADIENT_ACCUMULATOR };
/* Purposes of random numbers (high byte of the last counter word). */
enum { RANDOM_STEP, RANDOM_ACCUMULATE, RANDOM_AVERAGE };

/* Scalars of one step, computed in double and rounded once. t = updates of the tensor, from 1. */
struct optim_scalars {
    float lr;           /* learning rate of the tensor; LAMB: times the trust ratio */
    float decay;        /* ADAMW, LION, decoupled LAMB: 1 - lr * weight_decay; LAMB: 1 */
    float weight_decay; /* ADAM, SGD: added to the gradient; LAMB unless decoupled: added to the update */
    float beta1, rest1; /* and 1 - beta1. SGD: momentum, 1 - dampening (0, 1 at the first step) */
    float beta2, rest2;
    float eps;
    float step_size;       /* lr / (1 - beta1^t); LAMB: 1 / (1 - beta1^t) */
    float root_scale;      /* 1 / sqrt(1 - beta2^t) */
    float direction_limit; /* bound of |m| / (sqrt(v) root_scale) after t exact steps */
    float gradient_scale;
    int32_t nesterov;
    float root_floor; /* ADAFACTOR: the smallest divisor of a gradient */
};

/* ADAFACTOR: the state of a tensor of two or more dimensions, which consists of `matrices` of rows x columns,
 * its last two dimensions. Complete on every handle that holds a part. */
struct optim_factors {
    int64_t matrices, rows, columns; /* matrices 0: a vector, which has v */
    float *row_means, *column_means; /* (matrices, rows), (matrices, columns): averages of squares */
    float *row_quotients; /* (matrices, rows): root of row mean / mean of its matrix, of this step */
};

/* ADAFACTOR: how the learning rate follows from the norms of weight and update (kernels/optim_scale.h). */
struct optim_clipping {
    double count;           /* elements of the whole tensor */
    double threshold;       /* of the update's root mean square */
    double eps2;            /* smallest root mean square of the weight; 0: the rate does not depend on it */
    double decay, decay_lr; /* weight decay is lr decay; decay_lr >= 0: decay_lr decay */
};

struct optim_task {
    int64_t count;         /* elements */
    int64_t whole;         /* a part: elements of the whole tensor; else 0 */
    int64_t first_group;   /* group index in the whole tensor of the first group here */
    int64_t first_element; /* ADAFACTOR: index in the whole tensor of the first element here */
    int64_t first_partial; /* index of the first chunk's result */
    int32_t rule, weight_format, m_format, v_format, gradient_format, accumulator_format;
    uint32_t updates;     /* of the tensor so far; they rotate the rounding thresholds */
    int32_t norms_only;   /* LAMB, ADAFACTOR, first pass: squares of weight and update; writes nothing */
    int32_t m_range;      /* 8- and 4-bit m with low-bit v: |m| <= 2^m_range * 1.9 * binade of sqrt(v) */
    int32_t copy_f16;     /* the copy of F32_COPY is fp16 */
    const void *gradient; /* (count); an accumulator: padded to whole groups, with its scales */
    const uint8_t *gradient_scales;
    void *weights;            /* (count): fp32, or the bf16 half */
    void *copy;               /* (count) bf16, or fp16 with copy_f16; F32_COPY only */
    void *correction;         /* padded to whole groups, as m, v and scales */
    void *m, *v;              /* joint codes: both in m */
    uint8_t *scales;          /* per group: 1 byte; joint codes JOINT_HEADER, m alone M_GRID_HEADER bytes */
    uint32_t key[2], step[2]; /* random numbers: key, and counter words 2 and 3 */
    struct optim_scalars s;
    /* Average of the weights: bf16 with stochastic rounding, padded to whole groups; average += rest (weight
     * - average). A chunk of the whole tensor is averaged every `average_every` steps; 0: none. */
    void *average;
    float average_rest;
    uint32_t average_every;
    double lr;                      /* LAMB, ADAFACTOR: learning rate before the norms are known */
    int32_t trust, trust_at_most_1; /* LAMB: apply a trust ratio; limit it to 1 */
    struct optim_factors factors;   /* ADAFACTOR */
    struct optim_clipping clipping; /* ADAFACTOR */
};

/* Returns whether a group is averaged in this step. */
#define OPTIM_AVERAGES(t, group)                                                                             \
    (((uint32_t)(((t)->first_group + (group)) / OPTIM_CHUNK) + (t)->step[0]) % (t)->average_every == 0)

/* Statistics of gradients on a device, for clipping. */
struct optim_grad_stats {
    double squares; /* sum of squares */
    int32_t finite, unused;
};

/* A row of the table of a card's launch, which has one block per chunk. */
struct optim_row {
    struct optim_task task;
    int64_t first_block;       /* in the launch */
    int64_t first_slot, slots; /* results of the whole tensor's chunks */
    int32_t *proceed; /* or NULL; *proceed 0: step nothing, count all groups as bad, the norm is infinite */
};

/* Result of a pass over some groups. */
struct optim_partial {
    double gradient_squares;               /* before gradient_scale */
    double weight_squares, update_squares; /* norms_only */
    int64_t bad_groups;
    int64_t wide_groups; /* saturated groups: joint codes on the widest grid, perhaps too narrow */
};

#endif
