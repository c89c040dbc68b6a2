/* A device: memory by class, and the operations of a transformer on it.
 *
 * Every byte has a class (enum memory_class). All device memory comes from device_alloc, which alone counts
 * current and peak bytes per class. The "dry" device counts and returns addresses without memory: `meopt
 * plan` runs the same allocations on it as `meopt train` on a real device, so plan and measurement come from
 * the same code.
 *
 * Operations are entries of one table, the rows of OPERATIONS (kernels/operations.h). Each back end fills it
 * (cpu.c from kernels/cpu, gpu_ops.c from kernels/gpu) with the same names and contracts. Pointers in their
 * arguments are device memory; tensors are row-major and contiguous. Operations run in issue order (a card
 * may return before they are done: device->sync waits). Failures surface in device_check. A shape that
 * `supports` refuses is a programming error.
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
const char *dtype_name(enum dtype dtype); /* name in safetensors: "F32", "BF16", ... */

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

/* Location of bytes that are not in the device's memory: in host memory (for a card), or in a file. The
 * device's own sums exclude them. */
enum memory_place { PLACE_HOST, PLACE_FILE, PLACE_COUNT };

struct memory_use {
    size_t current_bytes[MEMORY_CLASS_COUNT];
    size_t peak_bytes[MEMORY_CLASS_COUNT];        /* per class */
    size_t current_total_bytes, peak_total_bytes; /* the peak of the sum: at most the sum of the peaks */
    size_t offloaded_bytes[PLACE_COUNT][MEMORY_CLASS_COUNT],
        offloaded_peak_bytes[PLACE_COUNT][MEMORY_CLASS_COUNT];
};

/* Shapes in comments: B images, N tokens, D width, H heads, dh head dimension, R rows = B*N, F hidden. `t` is
 * the dtype of activations (F32 or BF16). Parameters of norms, biases, gammas and tokens are F32, and so are
 * their gradients, which are ADDED to the existing values. */
struct device;
/* Operations whose shapes are checked before they are planned. All other operations support every shape that
 * these support. */
enum device_operation { OPERATION_GEMM, OPERATION_ATTENTION };
struct operation_shape {
    enum device_operation operation;
    enum dtype type;
    int64_t rows;     /* gemm: rows of the result */
    int64_t B, H, dh; /* attention */
};
struct device_ops {
    /* Returns 0, or EXIT_CONFIG with the numbers if the operation is not supported. Check every shape of a
     * model before allocating: operations do not check. A dry device answers for the device that it
     * models. */
    int (*supports)(const struct device *, const struct operation_shape *, struct error *err);

#define SLOT(name, kind, parameters, ...) void (*name)(struct device *, OPERATION_LIST parameters);
    OPERATIONS(SLOT)
#undef SLOT
};

/* The kind of a device; its name in specifications and output is device_kind_names[kind]. */
enum device_kind { DEVICE_CPU, DEVICE_DRY, DEVICE_HIP, DEVICE_CUDA, DEVICE_KIND_COUNT };
extern const char *const device_kind_names[DEVICE_KIND_COUNT]; /* "cpu", "dry", "hip", "cuda" */

/* Key of a sequence of operations that is issued repeatedly with the same arguments. Equal bytes mean the
 * same sequence. */
struct device_work {
    const void *owner, *inputs[3]; /* the owner, and inputs that may swap between two buffers or be NULL */
    int64_t count;
    int32_t part, flags;
};

/* Clipping of a sweep's gradients (kernels/optim_scale.h). */
struct optim_clip {
    const struct optim_grad_stats *found; /* on the device: statistics of the work issued before */
    double divide, clip;
    bool refuses; /* after a NaN or infinity, this sweep and later ones step nothing ... */
    bool first;   /* ... until the next first one; becomes false when done */
};

/* The optimizer's work: passes over the chunks of many tensors, bit-identical on every device. */
struct optim_kernels;
struct optim_sweep {
    const struct optim_task *tasks; /* those of count 0 are skipped */
    size_t count;
    struct optim_partial *partials;      /* on the host: results, where the tasks request them */
    const struct optim_kernels *kernels; /* on the host */
    int threads;                         /* on the host; 0: as OpenMP decides */
    bool wait;                           /* partials are complete on return; else after `results` */
    /* step: check the gradients first. If one holds a NaN or an infinity, this call and later calls with the
     * same struct step nothing, all groups count as bad, and the norm is infinite */
    bool check;
    bool checked;                   /* set by the check */
    bool check_only;                /* step: only the check */
    struct optim_grad_stats *found; /* squares, on a card: the total is stored there; or NULL */
    struct optim_clip *clip;        /* step, on a card: clip by its statistics; or NULL */
    /* step and squares, on a card whose ranks hold parts of the tensors: combines the norms over ranks. Each
     * of the `bytes` of card memory is zero on all ranks but one; all ranks receive that one's value, after
     * the work issued before and before the work issued next. 0, or an error, recorded in reduce_failed.
     * NULL: one rank only. */
    int (*combine)(void *context, void *values, size_t bytes);
    void *context;
    bool reduce_failed;
    bool trust;  /* step, on a card: tasks of LAMB with norms also step, with the trust ratios */
    int64_t bad; /* in: -1. The task of the bad gradient; on a card only the results have it */
};
/* A matrix of muon: copies rows x columns, and may round fp32 to bf16 (to nearest). from NULL: the unit
 * matrix. ld: elements between rows. */
struct optim_copy {
    void *to;
    const void *from;
    enum dtype to_type, from_type;
    int64_t rows, columns, to_ld, from_ld;
};
/* x *= norm / max(|x|, least), |x| the root of the sum of squares; all NaN if one is. */
struct optim_normalize {
    void *x;
    enum dtype type;
    int64_t count;
    double least, norm;
    int threads;                    /* on the host */
    int64_t first_partial;          /* on a card: of results that no tensor has */
    struct optim_grad_stats *found; /* on a card: memory for the sum */
};
struct optim_work;
struct device_optim {
    bool asynchronous; /* results take time: request those of many tensors at once */
    /* Allocates work for sweeps over up to that many tasks and results, and `slots` for chunks that are
     * shared with other ranks (combine; else 0), and `sums` of rows and columns. Destroy it also after a
     * failure. */
    int (*create)(struct device *, size_t tasks, size_t partials, size_t slots, size_t sums,
                  struct optim_work **, struct error *);
    void (*destroy)(struct device *, struct optim_work *);
    void (*step)(struct device *, struct optim_work *, struct optim_sweep *);
    /* Computes gradient_squares of gradients and accumulators; bad_groups: some value is not finite. */
    void (*squares)(struct device *, struct optim_work *, struct optim_sweep *);
    /* Adafactor, for a task of the sweep with row and column means: adds up its squared gradients by rows and
     * columns; then updates the means from such sums. sums: on the host, zeros at first; NULL, on
     * a card: in its own memory. scratch: of factor_scratch values, which need no value; unused by a card. */
    void (*factor_sums)(struct device *, struct optim_work *, struct optim_sweep *, size_t task, double *sums,
                        double *scratch);
    size_t (*factor_scratch)(const struct optim_task *, int threads); /* optional: 0 */
    void (*factor_means)(struct device *, struct optim_work *, struct optim_sweep *, size_t task,
                         const double *sums);
    /* Returns whether the gradients of the sweep were refused by its check; refuse: they are now. */
    bool (*refused)(struct device *, struct optim_work *, struct optim_sweep *, bool refuse);
    /* Waits for the results of all sweeps that were not waited for. */
    void (*results)(struct device *, struct optim_work *, struct optim_partial *, size_t count);
    /* Clears memory by the threads that will step those chunks. */
    void (*clear)(struct device *, void *block, size_t bytes, int64_t chunks, int threads);
    void (*copy_matrix)(struct device *, const struct optim_copy *);
    void (*normalize)(struct device *, struct optim_work *, const struct optim_normalize *);
    void (*orthogonalizing)(struct device *, bool begins); /* optional: around Newton-Schulz, for a profile */
};

/* Streams next to the device's own, any number. Work on one stream runs in order; work on different streams
 * in any order. An event recorded in a stream is done when all earlier work of that stream is. A stream that
 * waits for an event starts later work only after the event is done. stream NULL is the device's own, on
 * which operations run; sync waits for that one only. Streams and events cannot be used inside issued work
 * (device_issue). */
struct device_stream;
struct device_event;
struct device_streams {
    bool overlap; /* false: each call completes before it returns, so that a second buffer gains nothing */
    int (*create)(struct device *, struct device_stream **, struct error *);
    void (*destroy)(struct device *, struct device_stream *); /* after its work; NULL is allowed */
    int (*event_create)(struct device *, struct device_event **, struct error *);
    void (*event_destroy)(struct device *, struct device_event *); /* NULL is allowed */
    void (*record)(struct device *, struct device_event *, struct device_stream *);
    void (*wait)(struct device *, struct device_stream *, struct device_event *); /* recorded before */
    /* The source may be overwritten on return. */
    void (*upload)(struct device *, struct device_stream *, void *device_dst, const void *host_src, size_t);
    /* host_src: from host_allocate. It is read until the stream, or an event recorded after this call, is
     * done. */
    void (*send)(struct device *, struct device_stream *, void *device_dst, const void *host_src, size_t);
    /* host_dst: from host_allocate. It is filled when the stream, or an event recorded after this call, is
     * done. */
    void (*download)(struct device *, struct device_stream *, void *host_dst, const void *device_src, size_t);
    void (*finish)(struct device *, struct device_stream *); /* blocks the caller */
    void (*finish_event)(struct device *, struct device_event *);
    void *(*host_allocate)(struct device *, size_t bytes); /* NULL: no memory */
    void (*host_free)(struct device *, void *);            /* NULL is allowed */
};

struct device_profile;
struct device {
    const struct device_ops *ops;
    const struct device_streams *streams;
    const struct device_optim *optim;
    enum device_kind kind;
    char name[128];    /* the vendor's name */
    double peak_flops; /* published dense bf16 FLOP/s (card_peak.h); 0: unknown */
    char pci[16];      /* PCI address of a card: "0000:65:00.0"; else "" */
    struct memory_use use;
    /* A GEMM's bias costs an extra pass over the result, or another kernel that casts the bias. If the next
     * operation reads the result and accepts a bias, it applies the bias instead. On other devices only gemm
     * applies one. */
    bool biases_apart;
    bool host_memory;   /* device memory is host memory: read and written without copies */
    size_t limit_bytes; /* 0: the machine's memory */
    struct allocation *allocations;
    pthread_mutex_t lock;      /* recursive: protects the accounts, and a card between enter and leave */
    char memory_note[256];     /* the driver's message when its memory is exhausted */
    struct error memory_error; /* of the last device_alloc that failed */
    struct error pending;      /* the first failure inside an operation (see device_check) */
    int (*allocate)(struct device *, enum memory_class, size_t bytes, void **p); /* 0 or an exit code */
    void (*release)(struct device *, void *p, size_t bytes);
    void (*upload)(struct device *, void *device_dst, const void *host_src, size_t bytes);
    void (*download)(struct device *, void *host_dst, const void *device_src, size_t bytes);
    /* Optional. run(context) only issues operations, always the same for the same work. A card may record
     * them as a graph and launch that instead. */
    void (*issue)(struct device *, const struct device_work *work, void (*run)(void *context), void *context);
    void (*sync)(struct device *);
    /* Optional, both or none. Calls between them are serialised, with the card's context current; leave
     * restores the thread's previous context. They may be nested. */
    void (*enter)(struct device *);
    void (*leave)(struct device *);
    void (*close)(struct device *);
    void *state;
    struct device_profile *profile; /* profile.h; NULL: none */
};

/* Opens a device: "cpu"; "dry", which counts as the CPU ("dry:hip", "dry:cuda", "dry:auto": as that device of
 * this machine); "hip:N", "cuda:N" (N defaults to 0); or "auto" ("auto:N"): that card of the first driver
 * whose kernels work on it, else the CPU. limit_bytes 0: no limit of ours. */
int device_open(struct device **device, const char *spec, size_t limit_bytes, struct error *err);
/* Host memory without accounts, for libmeopt: only `optim` and `host_memory` are set. */
struct device *device_host(void);

/* Opens a card on the caller's context and stream (either may be NULL), without GEMMs and graphs, for the
 * optimizers of other programs. context: a CUcontext; unused for HIP. stream: operations and copies are
 * issued to it. */
int device_adopt(struct device **device, enum device_kind kind, int ordinal, void *context, void *stream,
                 struct error *err);
#define DEVICE_STREAM_DEFAULT ((void *)1) /* the context's default stream, which drivers call NULL */
/* Changes the stream of an adopted card; NULL: its own. Later work starts after all earlier work. */
int device_restream(struct device *device, void *stream, struct error *err);
/* Returns whether device.type "cpu", "hip", "cuda" or "auto" selects a card here. auto: whether a driver sees
 * one. */
bool device_is_card(const char *type);
/* Returns whether this is a dry card whose driver is not installed, so that its libraries' memory is
 * assumed. */
bool device_assumed(const struct device *device);
/* Number of devices of this kind: the driver's count for cards, else 1. */
int device_count(const struct device *device);
/* File of the driver of a card; NULL for other devices. */
const char *device_driver(const struct device *device);
void device_close(struct device *device);

/* Allocates 64-byte aligned memory with undefined contents. NULL and err (EXIT_CARD_MEMORY or
 * EXIT_HOST_MEMORY, with the table by class in the message) if memory is short. name: static text for that
 * table. */
void *device_alloc(struct device *device, enum memory_class class, size_t bytes, const char *name,
                   struct error *err);
void device_free(struct device *device, void *p); /* NULL is allowed */
/* Returns whether the device's memory is the host's, or is planned as such. */
static inline bool device_counts_host_memory(const struct device *device)
{
    return device->kind == DEVICE_CPU ||
           (device->kind == DEVICE_DRY && !(device->streams && device->streams->overlap));
}
/* Adds bytes of a class that are located outside the device's memory to the account; below 0: removes
 * them. */
void device_offloaded(struct device *device, enum memory_place place, enum memory_class class, int64_t bytes);

static inline void device_issue(struct device *device, const struct device_work *work, void (*run)(void *),
                                void *context)
{
    if (device->issue) device->issue(device, work, run, context);
    else run(context);
}

/* Reports the first failure. Operations use scratch from one growing block of MEMORY_WORKSPACE, sized in the
 * first pass. If that allocation or a card fails, this operation and all later ones do nothing, and
 * device_check returns the error. Call it once per step, before the results are used. 0: no failure. */
int device_check(struct device *device, struct error *err);

#endif
