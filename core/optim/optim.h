/* Inside libmeopt: the handle of core/meopt.h. */
#ifndef MEOPT_OPTIM_H
#define MEOPT_OPTIM_H

#include "core/device/device.h"
#include "core/meopt.h"
#include "kernels/cpu/optim.h"

#include <stdbool.h>

/* Formats and block sizes of one tensor. In the state block m is at offset 0, v at v_at, the scales at
 * scales_at; in the accumulator block the scales are at accumulator_scales_at. */
struct layout {
    int64_t count, groups;
    int weights, m, v, accumulator; /* kernels/optim_task.h; STATE_NONE: none */
    bool copy_f16;                  /* the copy of F32_COPY is fp16 */
    bool average;                   /* the state has an average of the weights, at average_at */
    size_t weight_bytes, copy_bytes, residual_bytes, state_bytes, accumulator_bytes;
    size_t v_at, scales_at, scale_bytes, average_at, average_bytes, accumulator_scales_at;
    int64_t matrices, rows, columns; /* adafactor: matrices of the whole tensor; 0: none, or a vector */
    size_t factor_bytes;             /* of tensor.factors */
};

/* Of the average of a rule WITH_POINTS. */
struct averaging {
    double weight_sum, lr_max;
};

struct tensor {
    struct layout layout;
    char *name;
    int ndim;
    int64_t shape[8], first;
    int64_t whole; /* MEOPT_PART: elements of the whole tensor; else 0 */
    bool decay;
    bool shares; /* MEOPT_SHARED_MEMORY */
    int rule;
    bool gathers;    /* muon: other handles have other parts */
    int matrices;    /* of a tensor of muon, one below the other */
    int64_t rows[4]; /* of each */
    int64_t columns;
    double lr_scale;
    bool grouped;             /* meopt_set_group was called: */
    struct meopt_group group; /* its options */
    uint32_t key;             /* of the random numbers: a hash of the name */
    void *weights, *copy, *correction, *accumulator;
    uint8_t *state;
    float *factors; /* adafactor: row means, column means, row quotients; never offloaded */
    bool own_weights, own_copy;
    bool offloaded;                               /* state and correction are NULL: offload.h */
    int64_t updates;                              /* steps taken */
    bool averaged;                                /* the average has values */
    struct averaging averaging, averaging_before; /* now, and before the last step */
    void *trained;         /* at MEOPT_POINT_EVAL: host copy of the arrays of the weights of training */
    uint32_t point_crc[2]; /* of the arrays that replaced them: weights, residual bits */
    int64_t last_step;     /* number of the last step; the next number must be higher; 0: any is accepted */
    int64_t accumulated;   /* gradients added since the accumulator was last cleared */
    int set;               /* of tensors whose accumulators exist at the same time */
    bool stepped;          /* in the current step */
    struct optim_partial found;
    size_t first_partial; /* its chunks in meopt.partials */
};

static inline size_t rounded(size_t bytes) { return (bytes + 63) & ~(size_t)63; } /* to cache lines */
static inline int64_t chunks_of(const struct tensor *t) { return optim_chunks(t->layout.count); }

struct meopt {
    struct meopt_options options;
    struct device *device;               /* location of the arrays: options.device, or the host */
    struct optim_work *work;             /* the device's data of a step */
    const struct optim_kernels *kernels; /* CPU kernels, also for host copies (hold.c) */
    struct tensor *tensors;
    size_t count;
    struct optim_partial *partials; /* one per chunk */
    double *sums; /* of meopt_step_end: allocated early, since it must not fail after weights changed */
    bool stepping;
    bool evaluating;                /* at MEOPT_POINT_EVAL */
    int check;                      /* of meopt_step_begin; 2 becomes 0 after the first tensor */
    bool clipped;                   /* meopt_step_clipped was called in this step */
    bool refused;                   /* it found a gradient that is not finite */
    bool deferred;                  /* the card has results that were not fetched */
    int64_t step, wide_groups;      /* of the last step that ended */
    void *accumulators;             /* shared by sets of tensors (options.accumulator_sets), else NULL */
    size_t accumulator_bytes;       /* its size */
    struct optim_partial *measured; /* with accumulators: results of meopt_norms_begin, one per chunk */
    double lr;
    int m_range8, m_range4;
    void *workspace; /* of muon, NULL: no tensor has it. One tensor uses it at a time: */
    size_t workspace_bytes;
    int64_t orthogonalized;         /* matrices of this step here */
    pthread_mutex_t workspace_lock; /* on a card, OPTIM_ENTER */
    double *factor_sums; /* of adafactor on the host, with the devices's scratch; also under that lock */
    size_t factor_sums_bytes;
    struct offload *offload;            /* NULL: no state is offloaded */
    double offload_seen, offload_taken; /* bytes examined and selected by offload_select */
};

/* Returns the number of slots of a sum over a tensor. A part of a tensor has one slot per chunk of the whole
 * tensor: chunks of other handles are 0 until options.reduce adds them, and x + 0 is x. The sum is therefore
 * bit-identical to that of the whole tensor. With `reduce` but without MEOPT_PART there is one slot. */
static inline size_t optim_slots(const struct meopt *opt, const struct tensor *t)
{
    return t->whole ? (size_t)optim_chunks(t->whole) : opt->options.reduce ? 1 : (size_t)chunks_of(t);
}

/* Sets *err (may be NULL) and returns status. */
int optim_fail(struct meopt_error *err, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns the sums of a tensor's chunks, added in chunk order on every device. */
struct optim_partial partials_total(const struct meopt *opt, const struct tensor *tensor);
/* Returns MEOPT_DEVICE_FAILED if a chunk counts more groups than it has: a card computed it wrongly. */
int partials_check(const struct meopt *opt, const struct tensor *tensor, struct meopt_error *err);

/* Replaces values by their sums over all handles that hold parts (options.reduce). */
int optim_reduce(const struct meopt *opt, double *values, size_t count, struct meopt_error *err);
int optim_reduce_failed(const struct meopt *opt, struct meopt_error *err); /* reduce or combine failed */

/* Every function that uses the device begins with OPTIM_ENTER(opt). It lets one thread at a time use a card,
 * makes its context current, and restores the caller's context at the end. */
struct device *optim_enter(struct device *device);
void optim_leave(struct device **device);
/* Returns the device of these options; without one, the host. */
struct device *optim_device_of(const struct meopt_options *options);
#define OPTIM_ENTER(opt)                                                                                     \
    struct device *entered_ __attribute__((cleanup(optim_leave), unused)) =                                  \
        optim_enter((opt) ? (opt)->device : NULL)

/* Copy structs of the caller, which may be shorter or longer than the library's (struct_copy.c). copy_out
 * fills the caller's struct, with zeros after the library's fields. copy_in keeps defaults for fields that
 * the caller lacks, and returns false if an unknown field is set. */
void struct_copy_out(void *to, size_t to_size, const void *from, size_t from_size);
bool struct_copy_in(void *to, size_t to_size, const void *from, size_t from_size);
/* Reads and checks options of any size. */
int options_read(struct meopt_options *to, const struct meopt_options *from, struct meopt_error *err);
/* Checks that the rule's numbers are in range, and suitable for the formats. */
int options_check(const struct meopt_options *options, struct meopt_error *err);
/* Returns MEOPT_BAD_ORDER during a step. */
int optim_between_steps(const struct meopt *opt, struct meopt_error *err);
/* Returns MEOPT_BAD_ORDER at MEOPT_POINT_EVAL. */
int optim_at_training(const struct meopt *opt, struct meopt_error *err);
/* Checks that [first, first + count) is a range of the tensor in groups of 64, and values is not NULL. */
int optim_range_check(const struct meopt *opt, size_t tensor, int64_t first, int64_t count,
                      const void *values, struct meopt_error *err);
/* Reads and checks a row of the caller's table; its rule is set in any case. */
int tensor_read(struct meopt_tensor *to, const struct meopt_options *options,
                const struct meopt_tensor *table, size_t i, struct meopt_error *err);

void layout_plan(struct layout *layout, const struct meopt_options *options,
                 const struct meopt_tensor *tensor);
/* Computes offsets and sizes for given state formats. */
void layout_state(struct layout *layout);
void layout_add(struct meopt_bytes *bytes, const struct layout *layout, bool callers_weights,
                bool callers_copy);

/* Allocates the accumulators that sets of tensors share. Afterwards the handle does not use the array. */
int accumulators_share(struct meopt *opt, struct meopt_error *err);
/* Clears a tensor's accumulator. */
void accumulator_clear(const struct meopt *opt, struct tensor *tensor);

void *memory_allocate(const struct meopt_options *options, int kind, size_t bytes, const char *tensor);
void memory_release(const struct meopt_options *options, int kind, void *p, size_t bytes);

/* Returns a task for a tensor with pointers and formats, but without scalars and gradient. */
struct optim_task task_of(const struct meopt *opt, const struct tensor *tensor);

/* ratio_limit returns the bound of |m| / sqrt(v) after t steps; t 0: after any number. m_range returns the
 * range of m with a low-bit v (struct optim_task). */
double ratio_limit(const struct meopt_options *options, double t);
int m_range(const struct meopt_options *options, int m_format);
/* Returns the options of a tensor: the handle's, or *own with the values of meopt_set_group. */
const struct meopt_options *tensor_options(const struct meopt *opt, const struct tensor *tensor,
                                           struct meopt_options *own);
/* Returns the averaging after the tensor's next step, WITH_POINTS; *lr is multiplied by the warm-up. */
struct averaging averaging_next(const struct meopt_options *o, const struct tensor *tensor, double *lr);
/* Returns the values of row and column means, which are the saved part of tensor.factors. */
static inline size_t factor_count(const struct layout *l)
{
    return (size_t)l->matrices * (size_t)(l->rows + l->columns);
}
/* Returns adafactor's learning rate of a tensor's next update before the norms of weight and update are
 * known. */
double factored_rate(const struct meopt *opt, const struct tensor *tensor);
/* Lets every handle refuse what one of them refuses: their means or matrices would differ otherwise. */
int refuse_together(struct meopt *opt, struct optim_sweep *sweep, struct meopt_error *err);
/* Updates row and column means from the gradients of a sweep, over all handles that hold parts. Where these
 * were refused (sweep->bad, on a card its check), or after a failure, nothing has changed. */
int factors_update(struct meopt *opt, const size_t *tensors, struct optim_sweep *sweep,
                   struct meopt_error *err);
/* Returns the bytes of host memory in which factors_update adds up a tensor's sums. */
size_t factors_bytes(const struct meopt_options *o, const struct tensor *t);
/* Allocates it for the largest tensor. */
int factors_reserve(struct meopt *opt, struct meopt_error *err);
/* Returns the number of sums over rows and columns of a tensor. */
size_t factor_values(const struct layout *layout);
struct optim_scalars step_scalars(const struct meopt *opt, const struct tensor *tensor, double scale);

/* Returns the device's error, if it failed. */
int optim_device_status(const struct meopt *opt, struct meopt_error *err);

/* Sets residual bits of a held tensor to 0, and fp32 weights with a copy to that copy. */
void weights_accept(struct tensor *host);

/* Allocates host memory that is counted: in the device's account if its memory is the host's, else as memory
 * outside it. NULL: no memory; a plan for a card only counts. kind: MEOPT_MEMORY_COPY or _WORKSPACE. */
void *host_allocate(const struct meopt *opt, int kind, size_t bytes, const char *name);
void host_release(const struct meopt *opt, int kind, void *p, size_t bytes);

/* Returns the bytes of the weights of training that are held at MEOPT_POINT_EVAL. */
size_t point_bytes(const struct layout *l);
/* Frees the weights of training of a tensor. */
void point_forget(const struct meopt *opt, struct tensor *t);
/* tensor_hold of the weights of training, at either point, for reading. */
int trained_hold(const struct meopt *opt, const struct tensor *t, struct tensor *host,
                 struct meopt_error *err);
int trained_release(const struct meopt *opt, const struct tensor *t, struct tensor *host,
                    struct meopt_error *err);

/* tensor_hold gives the host access to a tensor: on the CPU the tensor itself, on a card copies of the given
 * parts (other pointers are NULL). tensor_release frees the copies, after storing them if `changed`. */
enum { PART_WEIGHTS = 1, PART_STATE = 2, PART_FACTORS = 4 }; /* weights: with their copy and correction */
int tensor_hold(const struct meopt *opt, const struct tensor *t, unsigned parts, struct tensor *host,
                struct meopt_error *err);
int tensor_release(const struct meopt *opt, const struct tensor *t, struct tensor *host, bool changed,
                   struct meopt_error *err);

#endif
