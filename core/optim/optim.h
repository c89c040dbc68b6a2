/* Inside libmeopt: the handle of core/meopt.h. */
#ifndef MEOPT_OPTIM_H
#define MEOPT_OPTIM_H

#include "core/device/device.h"
#include "core/meopt.h"
#include "kernels/cpu/optim.h"

#include <stdbool.h>

/* How one tensor is kept: formats, and bytes of each block. Inside the state block m lies at 0, v and the
 * scales at the offsets; inside the accumulator block the scales at theirs. */
struct layout {
    int64_t count, groups;
    int weights, m, v, accumulator; /* kernels/optim_task.h; STATE_NONE where there is none */
    bool copy_f16;                  /* of F32_COPY */
    size_t weight_bytes, copy_bytes, residual_bytes, state_bytes, accumulator_bytes;
    size_t v_at, scales_at, scale_bytes, accumulator_scales_at;
};

struct tensor {
    struct layout layout;
    char *name;
    int ndim;
    int64_t shape[8], first;
    int64_t whole; /* elements of the tensor of which this is a part (MEOPT_PART); 0: shape is what is here */
    bool decay;
    bool shares; /* MEOPT_SHARED_MEMORY */
    double lr_scale;
    bool grouped;             /* it has options of its own: */
    struct meopt_group group; /* meopt_set_group */
    uint32_t key;             /* of its random numbers: a hash of the name */
    void *weights, *copy, *correction, *accumulator;
    uint8_t *state;
    bool own_weights, own_copy;
    bool offloaded;      /* state and correction are not here: offload.h */
    int64_t updates;     /* steps taken */
    int64_t last_step;   /* number of the last of them, which the next one's is above; 0: any may come */
    int64_t accumulated; /* gradients added since the accumulator was last emptied */
    bool stepped;        /* in the current step */
    struct optim_partial found;
    size_t first_partial; /* its chunks in meopt.partials */
};

static inline int64_t chunks_of(const struct tensor *t) { return optim_chunks(t->layout.count); }

struct meopt {
    struct meopt_options options;
    struct device *device;               /* where the arrays are: the options', or this machine */
    struct optim_work *work;             /* the step's */
    const struct optim_kernels *kernels; /* for what the host has copies of */
    struct tensor *tensors;
    size_t count;
    struct optim_partial *partials; /* one a chunk */
    double *sums; /* of a step's end, one a place and one: it has no memory to ask for once weights moved */
    bool stepping;
    int check; /* as meopt_step_begin says; 0 when 2 has become that */
    bool clipped,
        refused;   /* in the current step: meopt_step_clipped was called; it found what is not finite */
    bool deferred; /* results of single tensors are to be fetched */
    int64_t step, wide_groups; /* of the last step that ended */
    double lr;
    int m_range8, m_range4;
    struct offload *offload;            /* NULL: every state is where the weights are */
    double offload_seen, offload_taken; /* bytes, while tensors are chosen */
};

/* Sums over a tensor whose parts several hold are made of what each chunk found, in the places of the whole
 * tensor's chunks: those of others are 0 until options.reduce has added theirs, and x + 0 is x. So the sum
 * has the bits of the whole tensor's. Of a tensor that does not say what it is a part of there is one sum. */
static inline size_t optim_places(const struct meopt *opt, const struct tensor *t)
{
    return t->whole ? (size_t)optim_chunks(t->whole) : opt->options.reduce ? 1 : (size_t)chunks_of(t);
}

/* Set err (may be NULL) and return status. */
int optim_fail(struct meopt_error *err, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Returns the sums of a tensor's chunks, added in chunk order on every device. */
struct optim_partial partials_total(const struct meopt *opt, const struct tensor *tensor);

/* Sums over all who hold parts of these tensors, in the caller's hands (options.reduce). */
int optim_reduce(const struct meopt *opt, double *values, size_t count, struct meopt_error *err);
int optim_reduce_failed(const struct meopt *opt, struct meopt_error *err); /* reduce or combine failed */

/* Every function that touches the device begins with OPTIM_ENTER(opt): one thread at a time on a card, with
 * its context current, and the caller's again at the end. */
struct device *optim_enter(struct device *device);
void optim_leave(struct device **device);
#define OPTIM_ENTER(opt)                                                                                     \
    struct device *entered_ __attribute__((cleanup(optim_leave), unused)) =                                  \
        optim_enter((opt) ? (opt)->device : NULL)

/* Copy structs of the caller, which may be shorter or longer than the library's (core/optim/abi.c). give:
 * fills the caller's struct, with zeros after the library's fields. take: keeps defaults for fields that the
 * caller lacks; returns false if an unknown field is set. */
void struct_give(void *to, size_t to_size, const void *from, size_t from_size);
bool struct_take(void *to, size_t to_size, const void *from, size_t from_size);
/* Options of any caller's size, checked. */
int options_read(struct meopt_options *to, const struct meopt_options *from, struct meopt_error *err);
/* Are the numbers of a rule in their ranges, and can the formats bear them? */
int options_check(const struct meopt_options *options, struct meopt_error *err);
/* Returns MEOPT_BAD_ORDER during a step. */
int optim_between_steps(const struct meopt *opt, struct meopt_error *err);
/* Is [first, first + count) a range of a tensor in groups of 64, and are there values for it? */
int optim_range_check(const struct meopt *opt, size_t tensor, int64_t first, int64_t count,
                      const void *values, struct meopt_error *err);
int tensor_read(struct meopt_tensor *to, const struct meopt_options *options,
                const struct meopt_tensor *table, size_t i, struct meopt_error *err);

void layout_plan(struct layout *layout, const struct meopt_options *options,
                 const struct meopt_tensor *tensor);
/* Offsets and sizes for given state formats. */
void layout_state(struct layout *layout);
void layout_add(struct meopt_bytes *bytes, const struct layout *layout, bool callers_weights,
                bool callers_copy);

void *memory_get(const struct meopt_options *options, int kind, size_t bytes, const char *tensor);
void memory_add(const struct meopt_options *options, int kind, void *p, size_t bytes);

/* A task for a tensor: pointers and formats, no scalars, no gradient. */
struct optim_task task_of(const struct meopt *opt, const struct tensor *tensor);
/* Set to zero by the threads that will step it. */
void state_clear(const struct meopt *opt, struct tensor *tensor);

/* The range of m with a low-bit v (struct optim_task), and the bound of |m| / sqrt(v) after t steps; t 0: for
 * ever. */
double ratio_limit(const struct meopt_options *options, double t);
int m_range(const struct meopt_options *options, int m_format);
/* The options of a tensor: the handle's, or in *own with what meopt_set_group changed. */
const struct meopt_options *tensor_options(const struct meopt *opt, const struct tensor *tensor,
                                           struct meopt_options *own);
struct optim_scalars step_scalars(const struct meopt *opt, const struct tensor *tensor, double scale);

/* Did the device fail? */
int optim_device_status(const struct meopt *opt, struct meopt_error *err);

/* A tensor as the host may touch it. On the CPU that is the tensor; on a card,
 * copies of the parts asked for (the other pointers are NULL). tensor_release
 * ends it, after bringing the parts back to the card when `changed`. */
enum { PART_WEIGHTS = 1, PART_STATE = 2 }; /* weights: with their copy and correction */
int tensor_hold(const struct meopt *opt, const struct tensor *t, unsigned parts, struct tensor *host,
                struct meopt_error *err);
int tensor_release(const struct meopt *opt, const struct tensor *t, struct tensor *host, bool changed,
                   struct meopt_error *err);

#endif
