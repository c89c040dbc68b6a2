/* A device: memory by class, and the operations of a transformer on it.
 *
 * Every byte has a class (enum memory_class): all device memory comes from device_alloc, current and peak
 * per class are counted there and nowhere else. The device "dry" counts and hands out addresses without
 * memory behind them: `meopt plan` runs the same allocations on it as `meopt train` on a real device, so
 * the plan equals the measurement because it is the same code.
 *
 * Operations are slots of one table, the rows of OPERATIONS (kernels/operations.h), filled by each back end
 * (cpu.c from kernels/cpu, gpu_ops.c from kernels/gpu), same names and contracts. Pointers in their arguments
 * are device memory, tensors are row-major and contiguous, operations run in issue order (a card may return
 * before they are done: device->sync waits). Failures surface in device_check; a shape that `supports`
 * refuses is a programming error.
 */
#ifndef MEOPT_DEVICE_H
#define MEOPT_DEVICE_H

#include "core/base/error.h"
#include "kernels/operations.h"
#include "kernels/optim_task.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* safetensors' spelling: "F32", "BF16", ... */

enum memory_class {
    MEMORY_WEIGHTS,
    MEMORY_GRADIENTS,
    MEMORY_OPTIMIZER,
    MEMORY_ACTIVATIONS,
    MEMORY_TEACHER,
    MEMORY_WORKSPACE,
    MEMORY_COMM,
    MEMORY_DATA,
    MEMORY_CLASS_COUNT
};
/* "weights", "gradients", ...: the keys of "classes" in every JSON output. */
extern const char *const memory_class_names[MEMORY_CLASS_COUNT];

/* Where bytes of a class stand that are not in the device's memory: in this machine's, beside a card's, or in
 * a file. They are in no sum of the device's own. */
enum memory_place { PLACE_HOST, PLACE_FILE, PLACE_COUNT };
extern const char *const memory_place_names[PLACE_COUNT]; /* "host", "file" */

struct memory_use {
    size_t current_bytes[MEMORY_CLASS_COUNT];
    size_t peak_bytes[MEMORY_CLASS_COUNT];        /* of each class by itself */
    size_t current_total_bytes, peak_total_bytes; /* the peak of the sum: at most the sum of the peaks */
    size_t offloaded_bytes[PLACE_COUNT][MEMORY_CLASS_COUNT],
        offloaded_peak_bytes[PLACE_COUNT][MEMORY_CLASS_COUNT];
};

/* Shapes in comments: B images, N tokens, D width, H heads, dh head dimension, R rows = B*N, F hidden.
 * `t` is the dtype of activations (F32 or BF16); parameters of norms, biases, gammas and tokens are F32,
 * so are their gradients, which are ADDED to what is there. */
struct device;
/* The operations whose shape is asked about before they are planned;
 * those that are not here take all that these take. */
enum device_operation { OPERATION_GEMM, OPERATION_ATTENTION };
struct operation_shape {
    enum device_operation operation;
    enum dtype type;
    int64_t rows;     /* gemm: of the result */
    int64_t B, H, dh; /* attention */
};
struct device_ops {
    /* Can it do that? 0, or EXIT_CONFIG with the numbers. Ask for everything
     * that a model will need before its memory is taken: an operation itself
     * does not look. A dry device answers for the one it stands for. */
    int (*supports)(const struct device *, const struct operation_shape *, struct error *err);

#define SLOT(name, kind, parameters, ...) void (*name)(struct device *, OPERATION_LIST parameters);
    OPERATIONS(SLOT)
#undef SLOT
};

/* What kind of device; its name in specifications and output is device_kind_names[kind]. */
enum device_kind { DEVICE_CPU, DEVICE_DRY, DEVICE_HIP, DEVICE_CUDA, DEVICE_KIND_COUNT };
extern const char *const device_kind_names[DEVICE_KIND_COUNT]; /* "cpu", "dry", "hip", "cuda" */

/* Operations that are issued again and again with the same arguments.
 * Two with equal bytes here are the same. */
struct device_work {
    const void *owner, *inputs[2]; /* whose they are, and what they read that may change places */
    int64_t count;
    int32_t part, flags;
};

/* By what the gradients of a sweep are clipped (kernels/optim_scale.h). */
struct optim_clip {
    const struct optim_grad_stats *found; /* of the device: of what was issued before */
    double divide, clip;
    bool refuses; /* where not all is finite nothing is stepped, by this sweep and those behind it ... */
    bool first;   /* ... up to the next first one; false when it is done */
};

/* The optimizer's work: passes over the chunks of many tensors, the same bits on every device. */
struct optim_kernels;
struct optim_sweep {
    const struct optim_task *tasks; /* those of count 0 are left out */
    size_t count;
    struct optim_partial *partials;      /* of this machine: results, where the tasks say */
    const struct optim_kernels *kernels; /* of this machine */
    int threads;                         /* of this machine; 0: as OpenMP decides */
    bool wait;                           /* results are in partials on return; else when `results` asks */
    /* step: look into the gradients first; where one holds a NaN or an infinity nothing is stepped by this
     * call and those with the same struct, all groups are bad and the norm infinite */
    bool check;
    bool checked;                   /* set by it */
    bool look;                      /* step: nothing but that */
    struct optim_grad_stats *found; /* squares, on a card: of all of them to there; or NULL */
    struct optim_clip *clip;        /* step, on a card: scaled by what it has found; or NULL */
    /* step and squares, on a card where others hold parts of the tensors: norms are those of the whole ones.
     * Of `bytes` of the card's memory each is zero at all but one of them; that one's to all, behind what was
     * issued and before what is issued next. 0, or it failed: `ununited`. NULL: nobody holds others. */
    int (*combine)(void *context, void *values, size_t bytes);
    void *context;
    bool reduce_failed;
    bool trust;  /* step, on a card: tasks of LAMB that ask for norms go on to step, with the trust ratios */
    int64_t bad; /* in: -1. The task whose gradient it was; on a card only the results tell */
};
struct optim_work;
struct device_optim {
    bool later; /* results take time: better ask for those of many tensors at once */
    /* What sweeps over up to that many tasks and results need, and places of chunks that others hold some of
     * (unite; else 0); also a failed one is given to destroy. */
    int (*create)(struct device *, size_t tasks, size_t partials, size_t places, struct optim_work **,
                  struct error *);
    void (*destroy)(struct device *, struct optim_work *);
    void (*step)(struct device *, struct optim_work *, struct optim_sweep *);
    /* gradient_squares of gradients and accumulators; bad_groups: not all are finite. */
    void (*squares)(struct device *, struct optim_work *, struct optim_sweep *);
    /* The results of all that was not waited for. */
    void (*results)(struct device *, struct optim_work *, struct optim_partial *, size_t count);
    /* Zeros, by the threads that will step those chunks. */
    void (*clear)(struct device *, void *block, size_t bytes, int64_t chunks, int threads);
};

/* Queues beside the device's own, any number. What is given to one is done in order; what is given to two, in
 * any. An event recorded in one is done when all that was given to it before is; another that waits for the
 * event begins nothing of what it is given from then on until it is. queue NULL is the device's own, on which
 * operations run; sync waits for that one alone. Neither exists inside work that is issued (device_issue). */
struct device_queue;
struct device_event;
struct device_queues {
    bool overlap; /* else each thing is done when it is given: a second buffer gains nothing */
    int (*create)(struct device *, struct device_queue **, struct error *);
    void (*destroy)(struct device *, struct device_queue *); /* after its work; NULL is fine */
    int (*event_create)(struct device *, struct device_event **, struct error *);
    void (*event_destroy)(struct device *, struct device_event *); /* NULL is fine */
    void (*record)(struct device *, struct device_event *, struct device_queue *);
    void (*wait)(struct device *, struct device_queue *, struct device_event *); /* recorded before */
    /* The source may be overwritten on return. */
    void (*upload)(struct device *, struct device_queue *, void *device_dst, const void *host_src, size_t);
    /* host_src: of host_allocate. It is read until the queue, or an event recorded behind, is done. */
    void (*send)(struct device *, struct device_queue *, void *device_dst, const void *host_src, size_t);
    /* host_dst: of host_allocate. It is filled when the queue, or an event recorded behind, is done. */
    void (*download)(struct device *, struct device_queue *, void *host_dst, const void *device_src, size_t);
    void (*finish)(struct device *, struct device_queue *); /* the caller waits */
    void (*finish_event)(struct device *, struct device_event *);
    void *(*host_allocate)(struct device *, size_t bytes); /* NULL: no memory */
    void (*host_free)(struct device *, void *);            /* NULL is fine */
};

struct device_profile;
struct device {
    const struct device_ops *ops;
    const struct device_queues *queues;
    const struct device_optim *optim;
    enum device_kind kind;
    char name[128]; /* what the maker calls it */
    char pci[16];   /* of a card: "0000:65:00.0"; "" where there is none */
    struct memory_use use;
    /* A product's bias costs it a pass over the result: where an operation that takes one reads that next,
     * the bias is left to it. Else no operation but gemm is given one. */
    bool biases_apart;
    bool host_memory;   /* its memory is this machine's: read and written without copies */
    size_t limit_bytes; /* 0: what the machine has */
    struct allocation *allocations;
    pthread_mutex_t lock;      /* recursive: of the accounts, and of a card inside enter and leave */
    char memory_note[256];     /* what the driver says when it has no more memory */
    struct error memory_error; /* of the last device_alloc that failed */
    struct error pending;      /* the first failure inside an operation (see device_check) */
    int (*allocate)(struct device *, enum memory_class, size_t bytes, void **p); /* 0 or an exit code */
    void (*release)(struct device *, void *p, size_t bytes);
    void (*upload)(struct device *, void *device_dst, const void *host_src, size_t bytes);
    void (*download)(struct device *, void *host_dst, const void *device_src, size_t bytes);
    /* Optional: run(context), which only issues operations, always the same for the same work; a card may
     * keep them as one graph and start that in place of run. */
    void (*issue)(struct device *, const struct device_work *work, void (*run)(void *context), void *context);
    void (*sync)(struct device *);
    /* Optional, both or none: calls between them are one thread's at a time, with the card's context current;
     * at the end the thread has the one that it came with. They may be nested. */
    void (*enter)(struct device *);
    void (*leave)(struct device *);
    void (*close)(struct device *);
    void *state;
    struct device_profile *profile; /* profile.h; NULL: none */
};

/* "cpu", "dry" (what the CPU would take; "dry:hip", "dry:cuda", "dry:auto": what that would on
 * this machine), "hip:N", "cuda:N" (N may be left out: 0), or "auto" ("auto:N"): that card of
 * the first driver whose kernels work on it, else the CPU. limit_bytes 0 = no limit of ours. */
int device_open(struct device **device, const char *spec, size_t limit_bytes, struct error *err);
/* This machine's memory without accounts, for libmeopt: `optim` and `host_memory` are all that it has. */
struct device *device_host(void);

/* A card whose context and stream are the caller's (either may be NULL), without products of matrices and
 * graphs: for the optimizers of other programs. context: a CUcontext, nothing for HIP. stream: operations and
 * copies are issued to it in place of a stream of the device's own. */
int device_adopt(struct device **device, enum device_kind kind, int ordinal, void *context, void *stream,
                 struct error *err);
/* Would device.type "cpu", "hip", "cuda" or "auto" mean a card here? auto: when a driver sees one. */
bool device_is_card(const char *type);
/* A dry card whose maker's driver is not on this machine: what its libraries take is assumed. */
bool device_assumed(const struct device *device);
/* Devices of this one's kind: what its driver sees; 1 for all but cards. */
int device_count(const struct device *device);
void device_close(struct device *device);

/* 64-byte aligned, contents undefined. NULL and err (EXIT_CARD_MEMORY or EXIT_HOST_MEMORY, with the table by
 * class in the message) when there is not enough. name: static text, said in the out-of-memory table. */
void *device_alloc(struct device *device, enum memory_class class, size_t bytes, const char *name,
                   struct error *err);
void device_free(struct device *device, void *p); /* NULL is fine */
/* To the account: bytes of a class that came to a place beside the device's memory, or, below 0, that left
 * it. */
void device_offloaded(struct device *device, enum memory_place place, enum memory_class class, int64_t bytes);

static inline void device_issue(struct device *device, const struct device_work *work, void (*run)(void *),
                                void *context)
{
    if (device->issue) device->issue(device, work, run, context);
    else run(context);
}

/* Operations take their scratch from one growing block of MEMORY_WORKSPACE, sized at the first pass. When
 * that or a card fails, the operation and all behind it do nothing, and this returns the error: call it once
 * a step, before results are used. 0 when all is well. */
int device_check(struct device *device, struct error *err);

#endif
