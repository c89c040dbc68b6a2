/* libmeopt: optimizers that need a fraction of the usual memory, for any C or C++ program.
 *
 * An optimizer is a RULE (enum meopt_rule) x a WEIGHT FORMAT x a STATE FORMAT. What each one does, its
 * equations, bytes and evidence: meopt-optimizers(7). A complete program: libmeopt(3).
 *
 * Rules of use
 * - Every function returns a status; 0 is MEOPT_OK. `err` may be NULL; else it gets one sentence that names
 *   the object and the numbers. The library prints nothing, never exits or aborts, and has no global state.
 *   A call that returns MEOPT_NO_MEMORY may be repeated, and then computes the same as without the failure.
 * - Handles are independent of each other, also those on one device: any thread may use any of them. Between
 *   begin and end, several threads may call meopt_step_tensor on one handle, for different tensors. Every
 *   other call requires that no other thread uses the handle.
 * - The same seed, tensors, gradients and steps give the same bits. Instruction set, number of threads,
 *   number of ranks (`first` below), order of tensors, and stopping and resuming do not change them. Muon on
 *   options.device: the same except on another instruction set or card, whose GEMM sums in another order.
 * - Structs grow at their end. A program works with a newer library, and, if it uses nothing newer, with an
 *   older one, from 1.0 on: before it, one release is not promised to work with another. Each struct that
 *   may grow comes with its size: in its first field, or passed by a macro that leaves out the first
 *   argument of NAME_sized. A binding without macros (ctypes, Rust) calls NAME_sized and passes the sizes
 *   of its own declarations. Bytes after the fields that the library knows must be 0 on input, and
 *   are 0 on output. Always call meopt_options_init, and zero a struct meopt_tensor before filling it. These
 *   never change: struct meopt_error, meopt_gradient, meopt_grad_stats, meopt_clip. */
#ifndef MEOPT_H
#define MEOPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum meopt_status {
    MEOPT_OK = 0,
    MEOPT_BAD_ARGUMENT, /* NULL, out of range, misaligned, or inconsistent sizes */
    MEOPT_NO_MEMORY,
    MEOPT_NOT_FINITE,    /* a NaN or an infinity in a gradient or in imported weights */
    MEOPT_BAD_STATE,     /* saved state: damaged, truncated, of another version or of another model */
    MEOPT_BAD_ORDER,     /* a call outside begin and end, or between them */
    MEOPT_IO,            /* the caller's write or reduce function failed, or the file of offloaded states */
    MEOPT_DEVICE_FAILED, /* a card could not be opened, or failed; the message has the driver's error */
    MEOPT_DISK_FULL      /* no space for the file of offloaded states */
};

struct meopt_error {
    int status;
    char message[252];
};

const char *meopt_status_name(int status); /* "bad argument", ...; never NULL */
/* Version of the library: "0.2.0". Instruction set of its CPU steps: "avx512", "avx2", "plain". */
const char *meopt_version(void);
const char *meopt_instruction_set(void);

/* ---- Kinds ------------------------------------------------------------------------------------------- */
// clang-format off
enum meopt_rule { MEOPT_APADAM, MEOPT_APADAMW, MEOPT_APSGD, MEOPT_LAMB, MEOPT_LION, MEOPT_MUON,
                  MEOPT_SCHEDULE_FREE, MEOPT_ADAFACTOR, MEOPT_RULE_COUNT };
// clang-format on

/* Bytes per parameter in []. Forward and backward read the weights that meopt_weights() returns: fp32 for
 * MEOPT_WEIGHTS_F32, bf16 for all others; fp16 with MEOPT_COPY_F16. */
enum meopt_weight_format {
    MEOPT_WEIGHTS_F32,      /* [4]    "fp32" */
    MEOPT_WEIGHTS_F32_COPY, /* [4+2]  "fp32+copy": the step also writes a copy in 16 bits (like AMP) */
    MEOPT_WEIGHTS_BF16,     /* [2]    "bf16": nearest, loses small updates; for comparison only */
    MEOPT_WEIGHTS_BF16_SR,  /* [2]    "bf16_sr": stochastic rounding */
    MEOPT_WEIGHTS_20,       /* [2.5]  "bf16+4": 4 more bits, stochastic rounding */
    MEOPT_WEIGHTS_24,       /* [3]    "bf16+8": 8 more bits, stochastic rounding */
    MEOPT_WEIGHTS_32,       /* [4]    "bf16+16": the other 16 bits of fp32, lossless */
    MEOPT_WEIGHT_FORMAT_COUNT
};

enum meopt_state_format {
    MEOPT_STATE_F32,          /* [4] "fp32" */
    MEOPT_STATE_BF16,         /* [2] "bf16": stochastic rounding */
    MEOPT_STATE_BF16_NEAREST, /* [2] "bf16_nearest": v cannot decay for beta2 near 1; for comparison only */
    MEOPT_STATE_8BIT,         /* [1 + 2/64 for one moment; 2 + 4/64 for both] "8bit" */
    MEOPT_STATE_4BIT,         /* [1/2 + 1/64 per moment] "4bit" */
    MEOPT_STATE_FORMAT_COUNT
};

enum meopt_dtype { MEOPT_F32, MEOPT_BF16, MEOPT_F16 };

/* Names as above and in the YAML: "apadamw", "bf16+8", "8bit". Unknown: NULL or -1. */
const char *meopt_rule_name(int rule);
const char *meopt_weight_format_name(int format);
const char *meopt_state_format_name(int format);
int meopt_rule_from_name(const char *name);
int meopt_weight_format_from_name(const char *name);
int meopt_state_format_from_name(const char *name);

/* ---- Devices ----------------------------------------------------------------------------------------- */
enum meopt_device_kind { MEOPT_DEVICE_CPU, MEOPT_DEVICE_HIP, MEOPT_DEVICE_CUDA };

/* Opens a card for optimizers: options.device. Results are bit-identical on every kind. The caller's
 * weights, copies and gradients must then be in the card's memory (from any allocator). The library's own
 * memory is there, too.
 *
 * ordinal: the driver's number of the card. context: a CUcontext, or NULL for the card's primary context,
 * which PyTorch uses, and for HIP. stream: the CUstream or hipStream_t of that context to which the library
 * issues all work, in order with the caller's own. NULL: a stream of the device; gradients must then be
 * complete before a call. Both belong to the caller and must outlive the device. Every call makes the context
 * current on its thread and restores the previous one. One thread at a time uses a device; others wait.
 *
 * The search for drivers and code objects: meopt-devices(7). */
struct meopt_device;
int meopt_device_open(struct meopt_device **device, int kind, int ordinal, void *context, void *stream,
                      struct meopt_error *err);
/* For `stream`: the context's default stream, whose handle is 0, as of torch.cuda.default_stream(). */
#define MEOPT_STREAM_DEFAULT ((void *)1)
/* Changes the stream to which later work is issued: frameworks have one per thread. It starts after the work
 * issued before, on whatever stream, also inside a step. stream: as above; the former one must still exist.
 * Threads that use different streams set theirs before their calls, under a lock of their own. */
int meopt_device_stream(struct meopt_device *device, void *stream, struct meopt_error *err);
void meopt_device_close(struct meopt_device *device); /* after the handles that use it; NULL is fine */
const char *meopt_device_name(const struct meopt_device *device);
/* Returns the number of cards that its driver sees, and that driver's file. For the CPU: 1, NULL. */
int meopt_device_count(const struct meopt_device *device);
const char *meopt_device_driver(const struct meopt_device *device);

/* Device memory, for programs without an allocator of their own; 64-byte aligned. An upload is complete on
 * return; meopt_export reads weights. */
int meopt_device_allocate(struct meopt_device *device, size_t bytes, void **p, struct meopt_error *err);
void meopt_device_release(struct meopt_device *device, void *p); /* NULL is fine */
int meopt_device_upload(struct meopt_device *device, void *to, const void *host, size_t bytes,
                        struct meopt_error *err);

/* ---- Options ----------------------------------------------------------------------------------------- */
/* The purpose of memory, passed to the allocator, so that a program can account for it. */
enum meopt_memory {
    MEOPT_MEMORY_WEIGHTS,     /* fp32 weights, and the weights that forward and backward read */
    MEOPT_MEMORY_COPY,        /* the copy of MEOPT_WEIGHTS_F32_COPY */
    MEOPT_MEMORY_CORRECTION,  /* residual bits of weights: the bits below their bf16 half */
    MEOPT_MEMORY_MOMENTS,     /* optimizer state with its scales */
    MEOPT_MEMORY_ACCUMULATOR, /* gradient accumulators, if enabled */
    MEOPT_MEMORY_WORKSPACE,   /* muon: the matrix that steps */
    MEOPT_MEMORY_KINDS
};

struct meopt_options {
    size_t size;        /* sizeof(struct meopt_options) of the caller; set by meopt_options_init */
    size_t tensor_size; /* sizeof(struct meopt_tensor) of the caller; likewise */
    int rule;           /* enum meopt_rule */
    int weights;        /* enum meopt_weight_format of tensors that are not kept in fp32 */
    int first_moment;   /* enum meopt_state_format: m (momentum) */
    int second_moment;  /* v; apsgd and lion have none; adafactor: fp32, of vectors only */
    /* apadam, apadamw, lamb: .9 .999 1e-8 (lamb 1e-6); lion: .9 .99; adafactor: beta1 0 (no first moment),
     * eps 1e-30, without beta2. eps is not of tensors of adafactor among other rules, nor of others among
     * adafactor: these have their rule's default, or that of meopt_set_group */
    double beta1, beta2, eps;
    /* apadam, apsgd: added to the gradient; apadamw, lion, adafactor: decoupled; lamb: part of the update */
    double weight_decay;
    double momentum, dampening; /* apsgd; muon: momentum .95, and no dampening */
    int nesterov;               /* apsgd; muon: 1 */
    int trust_clip;             /* lamb: trust ratio at most 1 */
    int always_adapt;           /* lamb: trust ratio also without weight decay (NVLAMB) */
    uint64_t seed;              /* random seed of stochastic rounding */
    int threads;                /* 0: OpenMP's default; libmeopt-optim: the cores that meopt_create finds */
    int64_t small_count;        /* tensors with fewer elements stay in fp32; default 4096 */
    int accumulator;            /* enum meopt_state_format of gradient accumulators; -1: none (default) */
    int reserved[5];            /* 0, else MEOPT_BAD_ARGUMENT */
    /* Allocator of 64-byte aligned blocks; both NULL: the library's own. tensor: its name, for messages. */
    void *(*allocate)(void *context, int kind, size_t bytes, const char *tensor);
    void (*release)(void *context, int kind, void *p, size_t bytes);
    void *context;
    int dry;                     /* 1: allocate and count, but never touch the memory: for planning */
    struct meopt_device *device; /* location of weights, states and gradients; NULL: host memory */
    /* Shards: replaces `count` values by their sums over all handles that hold parts of the same tensors.
     * LAMB's norms, meopt_gradient_norm and meopt_step_end use it. All handles call it in the same order with
     * the same count. If it returns nonzero, the call returns MEOPT_IO. NULL: this handle holds all parts. */
    int (*reduce)(void *context, double *values, size_t count);
    int bias_correction;  /* apadam, apadamw, lamb: 1 (default); 0: off (apex has both) */
    int grad_averaging;   /* likewise: 1 (default): m = beta1 m + (1 - beta1) g; 0: m = beta1 m + g (apex) */
    double max_grad_norm; /* meopt_step divides all gradients by norm / max_grad_norm if their norm is larger,
                             like timm's Lamb (1 there) and NVLAMB; 0 (default): off. If a gradient is not
                             finite, it returns MEOPT_NOT_FINITE and changes nothing. Per-tensor steps are
                             then refused: their caller computes the norm first, and passes `scale` */
    int all_or_nothing;   /* 1: meopt_step changes nothing if a gradient is not finite; default 0 */
    /* Offloading: storage between steps of moments and residual bits, for tensors of 8192 elements and more.
     * Each step reads and writes them through a ring of buffers, in the order of the previous step and
     * overlapped with other work. Results are bit-identical. The step that needs a failed transfer reports
     * it, and so does every later call: MEOPT_IO, MEOPT_DISK_FULL, or MEOPT_BAD_STATE if the data read
     * differs from the data written. */
    int offload;               /* enum meopt_offload; default: none */
    double offload_fraction;   /* 0 to 1 of the bytes, spread evenly over the table; default 1 */
    const char *offload_dir;   /* directory of an unnamed temporary file; only meopt_create reads the name */
    size_t offload_ring_bytes; /* bytes of states that step together (one block's); 0: the largest tensor's */
    int decoupled_decay;       /* lamb: 1: weights times 1 - lr weight_decay, none in the update (timm); 0 */
    /* Shards on a card, in addition to `reduce`: combines the norms for clipping (meopt_gradient_found) and
     * for LAMB on the card. Each of `bytes` bytes in device memory is zero on all handles except one, and
     * every handle gets that handle's byte. The transfer is ordered after the work already in the device's
     * stream, and before later work. All handles call it in the same order. Parts must begin at multiples of
     * 32768 elements. If it returns nonzero, the call returns MEOPT_IO. NULL: `reduce` adds up those norms,
     * and the host waits. */
    int (*combine)(void *context, void *values, size_t bytes);
    int maximize; /* 1: negate gradients before everything else, like torch's maximize; default 0 */
    /* Keeps an exponential moving average of the weights, in bf16 with stochastic rounding: 2 bytes per
     * parameter, counted as moments, saved and offloaded with them. It begins as the weights after a tensor's
     * first step; update t decays it by min(average_decay, t / (9 + t)). Once that is at least 1 - 1/256,
     * chunks of 32768 elements take turns: each is updated in one step of 16, with the decay of 16. Weights
     * and states do not depend on it. 0 (default): none. apsgd without momentum: MEOPT_BAD_ARGUMENT. */
    double average_decay;
    /* Numbers of sets, one for each tensor of the table, whose accumulators share memory: that of the largest
     * set. They hold gradients of one set at a time, and meopt_accumulate of another one returns
     * MEOPT_BAD_ORDER, until each tensor of the set has stepped or meopt_accumulators_clear was called.
     * meopt_norms_begin waits for a card, and its results stay also after a step. Only meopt_create reads the
     * array. NULL (default): each tensor has its own. */
    const int *accumulator_sets;
    /* Muon: m is orthogonalized by ns_steps (5) of Newton-Schulz, X = a X + (b A + c A A) X with A = X X^T,
     * from X = m / max(its norm, ns_eps (1e-7)), in ns_dtype (MEOPT_BF16, or MEOPT_F32) with fp32 sums. */
    int ns_steps, ns_schedule, ns_form, ns_dtype, adjust_lr; /* the enums below */
    double ns_eps, ns_coefficients[3]; /* a, b, c of MEOPT_NS_QUINTIC: 3.4445, -4.7750, 2.0315 */
    /* schedule_free, like schedulefree.AdamWScheduleFree: the lr of a tensor's update t is multiplied by
     * min(1, t / warmup_steps), and t^r lr^weight_lr_power is its weight in the average, with the largest lr
     * so far. Defaults: 0 (no warm-up), 0, 2. Other rules ignore them. */
    int64_t warmup_steps;
    double r, weight_lr_power;
    /* adafactor, in brackets the default and torch's name. eps2 (1e-3): least root mean square of a weight,
     * for scale_parameter. clip_threshold (1, d): largest root mean square of the update. decay_rate (-.8,
     * beta2_decay): beta2 of update t is 1 - t^decay_rate. Flags (0): scale_parameter: the rate times the
     * weight's root mean square; relative_step: at most 1 / sqrt(t) (torch has both); warmup_init, with it:
     * also at most 1e-6 t; torch_form: eps is the least root of the second moment and the least mean of a
     * matrix, and decay is the step's rate times weight_decay; else, like transformers, eps is added to
     * squares, and decay has the tensor's rate. */
    double eps2, clip_threshold, decay_rate;
    int scale_parameter, relative_step, warmup_init, torch_form;
    /* Muon with `reduce`: this handle is number `rank` of the `ranks` that call it. They then divide the
     * tensors that a call of meopt_step or meopt_step_tensors names, largest first, and exchange the results
     * by `reduce`, with the same bits. Each handle computes one that is alone, or left. 0 (default): each
     * handle orthogonalizes every matrix. */
    int rank, ranks;
};

/* QUINTIC: the same coefficients in each step; POLAR_EXPRESS: each step's own (arXiv:2505.16932). GRAM: steps
 * multiply A in fp32, and X once; AUTO: if a side is 8 times the other (on cards 40). Factors of the learning
 * rate: 0.2 sqrt(max(rows, columns)), for AdamW's rates; sqrt(max(1, rows / columns)); without the limit. */
enum meopt_ns_schedule { MEOPT_NS_QUINTIC, MEOPT_NS_POLAR_EXPRESS };
enum meopt_ns_form { MEOPT_NS_AUTO, MEOPT_NS_DIRECT, MEOPT_NS_GRAM };
enum meopt_adjust_lr { MEOPT_ADJUST_RMS_MATCH, MEOPT_ADJUST_ORIGINAL, MEOPT_ADJUST_SPECTRAL };

/* HOST: the states of a card, in pinned host memory. On the CPU they are there anyway: refused. */
enum meopt_offload { MEOPT_OFFLOAD_NONE, MEOPT_OFFLOAD_FILE, MEOPT_OFFLOAD_HOST };

/* Sets the defaults of a rule with everything in fp32. Call with sizeof *options. */
int meopt_options_init_sized(size_t tensor_size, struct meopt_options *options, size_t size, int rule);
#define meopt_options_init(...) meopt_options_init_sized(sizeof(struct meopt_tensor), __VA_ARGS__)

/* Sets weights, first_moment, second_moment by name. For apadamw, bytes held per parameter in []: "quality"
 * [5.06], "balanced" [4.56], "minimal" [4.06]; "fp32" [12]; "amp" [14]: fp32 + bf16 copy; "pure_bf16" [6]:
 * bf16 nearest throughout, as in the original MEOpt. */
int meopt_options_preset(struct meopt_options *options, const char *preset, struct meopt_error *err);
#define MEOPT_PRESET_DEFAULT "balanced" /* the preset of `use_meopt: true` */

/* ---- Tensors ----------------------------------------------------------------------------------------- */
enum meopt_tensor_flags {
    MEOPT_NO_DECAY = 1, /* no weight decay (norms, biases, tokens) */
    MEOPT_KEEP_F32 = 2, /* fp32 weights and states, whatever the options (tokens, positional embeddings) */
    MEOPT_PART = 4,     /* this handle holds `count` elements from `first`; shape is the whole tensor's */
    /* Other tensors use the same memory for weights or copy at other times (streaming). Without the flag,
     * meopt_create refuses tensors whose memory overlaps. meopt_rebind does not check. */
    MEOPT_SHARED_MEMORY = 8,
    MEOPT_KEEP_BF16 = 16, /* the caller's weights are bf16, whatever the size (model.bfloat16()) */
    MEOPT_COPY_F16 = 32,  /* fp32+copy, whatever options and size, with a copy in fp16 (model.half()) */
    MEOPT_OWN_RULE = 64,  /* the tensor's rule is its field `rule` */
    MEOPT_ONE_OWNER = 128 /* MEOPT_PART: each part is all of the tensor, or nothing of it */
};
/* Also kept in fp32: tensors with fewer than two dimensions above 1, or fewer than small_count elements. With
 * MEOPT_KEEP_BF16, a tensor that would be kept in fp32 has weights bf16+16 and fp32 states, and steps with
 * the bits of fp32. Any other has the formats of the options, with bf16+16 in place of fp32 and fp32+copy.
 * With MEOPT_COPY_F16, states are those without the flag. The copy is rounded to nearest, and from 65520 on
 * it is infinite, like torch's half(); the fp32 weight then keeps its value. */

struct meopt_tensor {
    const char *name; /* unique; copied. It keys the random numbers, so the order of the table is free */
    int ndim;         /* 0 to 8; a dimension may be 0: steps of such a tensor change nothing */
    int64_t shape[8]; /* of the memory given here; with MEOPT_PART of the whole tensor */
    unsigned flags;   /* enum meopt_tensor_flags */
    double lr_scale;  /* learning rate of this tensor / learning rate of the step; 0 means 1 */
    void *weights;    /* caller's memory (4-byte aligned; 2 for bf16), or NULL: allocated here */
    void *copy;       /* caller's memory for the copy, or NULL: allocated here */
    int64_t first;    /* shards: index in the whole tensor of the first element held */
    /* MEOPT_PART: elements held here. 0: none, and its steps accept any gradient that is not NULL.
     *
     * If every part begins at a multiple of 64, results do not depend on the parts. Otherwise groups of 64
     * are counted from the part's first element: the same first and count give the same bits, and other
     * parts round differently. If `first` is a multiple of 32768 in every part, sums over the tensor are
     * bit-identical to those of the whole tensor. */
    int64_t count;
    /* MEOPT_OWN_RULE: enum meopt_rule; lamb and schedule_free go with no other. Without it, tensors of fewer
     * than two dimensions above 1 have apadamw in place of muon. Embeddings and heads should, too, or
     * adafactor */
    int rule;
    int64_t rows[4]; /* muon: rows of matrices in the tensor, orthogonalized apart (queries, keys, values); 0:
                        one, of shape[0] rows. Parts without MEOPT_ONE_OWNER need `reduce` */
};

/* Bytes by kind: the sizes requested from the allocator, each rounded up to 64 bytes. */
struct meopt_bytes {
    int64_t parameters;
    size_t weights, copy, correction, moments, scales, accumulators; /* scales: a part of `moments` */
    size_t total;                                                    /* without `scales`, a part of moments */
    size_t callers; /* the part of weights and copy in the caller's memory */
    /* muon: the matrix that steps; adafactor: sums of a matrix on the host; in `total`; 0 in meopt_info */
    size_t workspace;
    size_t point; /* at MEOPT_POINT_EVAL: host memory for y; in `total` */
};

/* Computes the bytes that meopt_create would hold, without allocating. */
int meopt_query_sized(size_t size, const struct meopt_options *options, const struct meopt_tensor *tensors,
                      size_t count, struct meopt_bytes *bytes, struct meopt_error *err);
#define meopt_query(...) meopt_query_sized(sizeof(struct meopt_bytes), __VA_ARGS__)

struct meopt;
int meopt_create(struct meopt **opt, const struct meopt_options *options, const struct meopt_tensor *tensors,
                 size_t count, struct meopt_error *err);
void meopt_destroy(struct meopt *opt); /* NULL is fine */

/* the bytes held now */
int meopt_held_sized(size_t size, const struct meopt *opt, struct meopt_bytes *bytes);
#define meopt_held(...) meopt_held_sized(sizeof(struct meopt_bytes), __VA_ARGS__)

struct meopt_offload_info {
    size_t size;                  /* sizeof(struct meopt_offload_info) of the caller */
    int64_t moments, corrections; /* bytes of the offloaded states; meopt_held counts them, too */
    int64_t ring;                 /* bytes of the buffers in memory, which meopt_held does not count */
    int64_t read, written;        /* bytes transferred since meopt_create */
    double wait_seconds;          /* time that steps waited for transfers */
    const char *how;              /* "threads"; NULL: there is no file */
    int direct, in_memory;        /* the file uses O_DIRECT; its directory is on tmpfs */
};
int meopt_offloaded(const struct meopt *opt, struct meopt_offload_info *info, struct meopt_error *err);
int meopt_tensor_offloaded(const struct meopt *opt, size_t tensor);

struct meopt_tensor_info {
    const char *name;
    int64_t count;
    int weights, first_moment, second_moment; /* formats; -1: the rule has no such moment */
    int64_t updates;                          /* steps that this tensor has taken */
    struct meopt_bytes bytes;                 /* last: both structs grow at their end */
};
int meopt_info_sized(size_t size, const struct meopt *opt, size_t tensor, struct meopt_tensor_info *info);
#define meopt_info(...) meopt_info_sized(sizeof(struct meopt_tensor_info), __VA_ARGS__)
int64_t meopt_find(const struct meopt *opt, const char *name); /* index of a tensor; -1: there is none */

/* Returns the weights that forward and backward read: *p and its dtype. For fp32+copy the copy. Valid
 * until meopt_destroy. */
int meopt_weights(const struct meopt *opt, size_t tensor, void **p, enum meopt_dtype *dtype);

/* Parameter group options of one tensor, settable between steps (one-cycle momentum, schedules of decay).
 * All fields apply, also weight_decay of a tensor with MEOPT_NO_DECAY. They are not part of the saved state:
 * set them again after loading. */
struct meopt_group {
    size_t size; /* sizeof(struct meopt_group) of the caller */
    double lr_scale, weight_decay, beta1, beta2, eps, momentum, dampening;
    int maximize;
};
int meopt_set_group(struct meopt *opt, size_t tensor, const struct meopt_group *group,
                    struct meopt_error *err);
int meopt_tensor_rule(const struct meopt *opt, size_t tensor); /* enum meopt_rule; -1: no such tensor */

/* Records that the caller moved a tensor's memory, weights or copy (MEOPT_WEIGHTS_F32_COPY), with its values.
 * NULL: unchanged. Reads and writes none of it. */
int meopt_rebind(struct meopt *opt, size_t tensor, void *weights, void *copy, struct meopt_error *err);

/* Accepts weights that the caller wrote (load_state_dict, clamping, a swapped-in average): sets residual bits
 * to 0, and fp32 weights with a copy to that copy. A copy with a NaN or an infinity: MEOPT_NOT_FINITE, and
 * nothing is changed. */
int meopt_sync(struct meopt *opt, size_t tensor, struct meopt_error *err);

/* Returns the formats and bytes that meopt_create would choose for a tensor. info->name is tensor->name. */
int meopt_plan_tensor_sized(size_t size, const struct meopt_options *options,
                            const struct meopt_tensor *tensor, struct meopt_tensor_info *info,
                            struct meopt_error *err);
#define meopt_plan_tensor(...) meopt_plan_tensor_sized(sizeof(struct meopt_tensor_info), __VA_ARGS__)

/* Import and export moments as fp32 in host memory, ranges as below: m is torch's exp_avg (momentum_buffer),
 * v its exp_avg_sq, NULL for apsgd and lion; schedule_free: m is z - y. adafactor: v of vectors only (m is 0
 * without beta1), else NULL; row and column means are MEOPT_VIEW_ROWS and _COLUMNS, and 0 elements set the
 * number of updates. updates: the number of updates of the tensor, -1: unchanged. Values are rounded to
 * nearest. Only fp32 can hold values above 2^126; others return MEOPT_NOT_FINITE. */
int meopt_moments_import(struct meopt *opt, size_t tensor, int64_t first, int64_t count, const float *m,
                         const float *v, int64_t updates, struct meopt_error *err);
int meopt_moments_export(const struct meopt *opt, size_t tensor, int64_t first, int64_t count, float *m,
                         float *v, struct meopt_error *err);

/* Import and export weights as fp32 in host memory, `count` elements from `first` (a multiple of 64). import
 * rounds to nearest at the width of the format; import after export restores the same bits in every format.
 * Values that bf16 would make infinite (above 3.3895e38) are MEOPT_NOT_FINITE, except for weights in fp32
 * alone. Between steps only. */
int meopt_import(struct meopt *opt, size_t tensor, int64_t first, int64_t count, const float *values,
                 struct meopt_error *err);
int meopt_export(const struct meopt *opt, size_t tensor, int64_t first, int64_t count, float *values,
                 struct meopt_error *err);

/* schedule_free computes gradients at y and makes the model x, their average: y - (1 - beta1) / beta1 m, with
 * m = z - y. EVAL writes x, rounded to the format, to the weights and moves y to host memory; TRAIN, the
 * point of a new handle, restores its bits. A tensor that the caller wrote at EVAL gets y from this x. EVAL
 * refuses steps, accumulation, loading, meopt_moments_import: MEOPT_BAD_ORDER; records
 * have y. After an error except MEOPT_NO_MEMORY, call it again. Other rules have one point. */
enum meopt_point { MEOPT_POINT_TRAIN, MEOPT_POINT_EVAL };
int meopt_set_point(struct meopt *opt, enum meopt_point point, struct meopt_error *err);
/* For a tensor with MEOPT_SHARED_MEMORY, whose memory meopt_set_point leaves alone: writes x over y there,
 * rounded as that does, and no residual bits. Before meopt_set_point to EVAL the caller makes a copy of y,
 * calls this, stores x, and puts y back before TRAIN. At EVAL records of such a tensor are refused. */
int meopt_average_shared(struct meopt *opt, size_t tensor, struct meopt_error *err);
/* meopt_export of the weights of a point, at which the handle need not be; x is not rounded to the format. */
int meopt_export_point(const struct meopt *opt, size_t tensor, enum meopt_point point, int64_t first,
                       int64_t count, float *values, struct meopt_error *err);
/* Reads (get) and sets (set) what records hold besides m and y: sum of the average's weights, largest lr. */
int meopt_average_sums(struct meopt *opt, size_t tensor, const double set[2], double get[2],
                       struct meopt_error *err);

/* ---- Step -------------------------------------------------------------------------------------------- */
/* Per-tensor steps, in any order, each tensor at most once per step: for gradient release inside backward.
 * The caller may free the gradient on return. A tensor without a call keeps its weights and state.
 *
 * step counts from 1 and must rise for each tensor, because it keys the random numbers; otherwise the call
 * returns MEOPT_BAD_ARGUMENT. A step that returned MEOPT_NOT_FINITE may be repeated. After loading or
 * importing state, moments or weights of the tensor, any number is accepted. Bias corrections count the
 * updates of each tensor. scale multiplies the gradient first (clipping, 1/micro-batches).
 *
 * Non-finite gradients: the step checks each group of 64 elements before it changes the group's weights. A
 * group with a NaN or infinity keeps its old weights and state, and all other groups are updated.
 * meopt_step_tensor then returns MEOPT_NOT_FINITE, and so does meopt_step_end. Weights and states therefore
 * never hold a NaN that came with a gradient. For "all or nothing", call meopt_gradient_norm first, or set
 * check = 1: it reads the tensor's gradient once more, and changes nothing of the tensor if it is not finite.
 * check = 2 does so until the first tensor has stepped; after that, the step cannot be undone anyway. On a
 * card, the host does not wait for each tensor, so that only meopt_step_end returns MEOPT_NOT_FINITE. */
int meopt_step_begin(struct meopt *opt, int64_t step, double lr, int check, struct meopt_error *err);
int meopt_step_tensor(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                      double scale, struct meopt_error *err);

/* A gradient of the tensor's shape. data NULL: none; for meopt_step_tensors: the accumulated gradient. */
struct meopt_gradient {
    const void *data;
    int dtype; /* enum meopt_dtype */
};
/* Steps `count` different tensors in one pass, which is faster on cards: tensors[i] with gradients[i]. With
 * check = 1 no tensor changes if a gradient is not finite. After any other error nothing has changed. */
int meopt_step_tensors(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                       size_t count, double scale, struct meopt_error *err);

/* Gradient statistics in memory of the handle's device, computed by work issued to it earlier. */
struct meopt_grad_stats {
    double squares; /* sum of squares */
    int finite;     /* all are finite */
    int unused;
};
/* meopt_step_tensors with a clipping scale. The gradients have norm sqrt(found->squares). A norm above
 * divide_norm is divided to divide_norm, then a norm above max_norm is clipped (meopt_clip_scale); 0 skips
 * either. A card computes the scale without a host synchronization. If a gradient is not finite, this and
 * every later call in the step changes nothing and returns MEOPT_NOT_FINITE (on a card: meopt_step_end). */
struct meopt_clip {
    const struct meopt_grad_stats *found;
    double max_norm, divide_norm;
};
int meopt_step_clipped(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                       size_t count, const struct meopt_clip *clip, struct meopt_error *err);

struct meopt_step_stats {
    double grad_norm;   /* norm of the gradients before `scale`, over all tensors stepped; inf: overflow */
    int64_t bad_groups; /* groups skipped because of NaN or infinity */
    int64_t tensors;    /* tensors stepped */
    int64_t matrices;   /* muon: matrices that this handle has orthogonalized */
};
int meopt_step_end_sized(size_t size, struct meopt *opt, struct meopt_step_stats *stats,
                         struct meopt_error *err);
#define meopt_step_end(...) meopt_step_end_sized(sizeof(struct meopt_step_stats), __VA_ARGS__)

/* Returns the number of saturated groups (64 elements) of the last step, in which 8-bit sqrt(v) has a range
 * of 2^29 and more. From 2^31 on, the smallest values are stored too large, and their weights barely move.
 * The number is summed over all handles that hold parts (options.reduce). */
int64_t meopt_wide_groups(const struct meopt *opt);

/* Returns figures of the last step by sets of tensors, after meopt_step_end, also if that returned
 * MEOPT_NOT_FINITE: the norm of the gradients of each set before `scale`, whether they are finite, and the
 * saturated groups, of the tensors that were stepped. set_of[i] is the set of tensor i, or -1. Calls
 * options.reduce once. */
int meopt_step_sets(struct meopt *opt, size_t sets, const int *set_of, double *norms, int *finite,
                    int64_t *wide, struct meopt_error *err);

/* Steps all tensors: begin, all tensors in one parallel pass, end. data NULL: no gradient for that tensor. */
int meopt_step_sized(size_t size, struct meopt *opt, int64_t step, double lr, double scale,
                     const struct meopt_gradient *gradients, struct meopt_step_stats *stats,
                     struct meopt_error *err);
#define meopt_step(...) meopt_step_sized(sizeof(struct meopt_step_stats), __VA_ARGS__)

/* Computes the global norm (in double) and whether all gradients are finite, and changes nothing. The sum
 * does not depend on threads. data NULL, or gradients NULL: the tensor's accumulated gradient, if any. */
int meopt_gradient_norm(struct meopt *opt, const struct meopt_gradient *gradients, double *norm, int *finite,
                        struct meopt_error *err);

/* The same for gradients that do not exist at the same time. Call norms_begin as gradients become available,
 * with data NULL for the others; a tensor's result stays until it steps or is passed again. norms_begin does
 * not wait for a card. norms_end waits once and calls options.reduce once. It returns the norm of each set of
 * tensors, and whether the set is finite: set_of[i] is the set of tensor i, or -1. */
int meopt_norms_begin(struct meopt *opt, const struct meopt_gradient *gradients, struct meopt_error *err);
int meopt_norms_end(struct meopt *opt, size_t sets, const int *set_of, double *norms, int *finite,
                    struct meopt_error *err);
/* Stores the same sum in device memory, for meopt_step_clipped, without waiting. Returns MEOPT_BAD_ORDER if
 * other handles hold parts (options.reduce) without options.combine. */
int meopt_gradient_found(struct meopt *opt, const struct meopt_gradient *gradients,
                         struct meopt_grad_stats *found, struct meopt_error *err);

/* Scale for clipping: min(1, max_norm / (norm + 1e-6)), like torch.nn.utils.clip_grad_norm_. */
double meopt_clip_scale(double norm, double max_norm);
/* Returns the scale of meopt_step_clipped for gradients of that norm; ignores clip->found. */
double meopt_clip_by(const struct meopt_clip *clip, double norm);

/* Adds scale * gradient to the tensor's accumulator (options.accumulator), for gradient release with
 * micro-batches. The caller may free the gradient on return. meopt_step_tensor with gradient NULL uses the
 * accumulator as its gradient and clears it. Accumulators round stochastically; their error:
 * meopt-optimizers(7). Groups with a NaN or infinity are not added: MEOPT_NOT_FINITE. On a card, the host
 * does not wait for each tensor: meopt_gradient_norm (finite 0) and meopt_step_end report them. */
int meopt_accumulate(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                     double scale, struct meopt_error *err);
/* The same for several tensors, on a card in one pass: gradients[i] of tensors[i]. Checks all arguments
 * before it adds any gradient. */
int meopt_accumulate_tensors(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                             size_t count, double scale, struct meopt_error *err);
/* Clears all accumulators without a step. The next gradients are rounded as if none had been added. */
int meopt_accumulators_clear(struct meopt *opt, struct meopt_error *err);

/* ---- State ------------------------------------------------------------------------------------------- */
/* One tensor's optimizer state (moments, scales, number of updates; weights are exported separately, except y
 * of schedule_free, in fp32) as a self-describing record with a checksum. Loading into the same format is
 * bit-identical; into a different format it converts the values, rounded to nearest. Records are untrusted
 * input: damage, and a part with a different first element or count, is MEOPT_BAD_STATE. */
size_t meopt_state_bytes(const struct meopt *opt, size_t tensor);
int meopt_state_save(const struct meopt *opt, size_t tensor, void *record, size_t bytes,
                     struct meopt_error *err);
int meopt_state_load(struct meopt *opt, size_t tensor, const void *record, size_t bytes,
                     struct meopt_error *err);
/* Passes the same record to `write` in order, in parts: an offloaded state, or one on a card, is never in
 * host memory as a whole. write returns 0, or nonzero to stop: MEOPT_IO. */
int meopt_state_write(const struct meopt *opt, size_t tensor,
                      int (*write)(void *context, const void *data, size_t bytes), void *context,
                      struct meopt_error *err);

/* Memory of a tensor's state, which a framework may shard, copy or inspect. Every array consists of groups of
 * 64 elements, from the tensor's first element on; the last group is padded. Bytes per group, by *format:
 *   M, V             fp32: float[64]; bf16: uint16_t[64]; 8bit: uint8_t[64]; 4bit: uint8_t[32], byte k holds
 *                    element k in its low half and element k + 32 in its high half. With 8bit for both, M is
 *                    one code for both moments, uint16_t[64], and there is no V
 *   SCALES           of 8bit and 4bit: uint8_t; of 8bit for both: uint32_t; of 8bit without a v: uint16_t.
 *                    *format: that of M and V whose scales they are
 *   RESIDUAL         *format is a weight format. bf16+4: uint8_t[32], halves as in 4bit; bf16+8: int8_t[64];
 *                    bf16+16: int16_t[64]: bits of the weight = (bf16 half << 16) + (residual << 12, 8 or 0)
 *   ACCUMULATOR, ACCUMULATOR_SCALES    as M of one moment, with a uint8_t per group for 8bit and 4bit
 *   ROWS, COLUMNS    adafactor, not in groups: float per row and per column of each matrix of the last two
 *                    dimensions, complete in every part: averages of squared gradients
 * M, V, SCALES are the arrays of a record (meopt_state_save), in this order. Codes mean something with their
 * scales only; meopt_moments_export decodes them. */
// clang-format off
enum meopt_view { MEOPT_VIEW_M, MEOPT_VIEW_V, MEOPT_VIEW_SCALES, MEOPT_VIEW_RESIDUAL, MEOPT_VIEW_ACCUMULATOR,
                  MEOPT_VIEW_ACCUMULATOR_SCALES, MEOPT_VIEW_ROWS, MEOPT_VIEW_COLUMNS, MEOPT_VIEW_COUNT };
// clang-format on
/* Returns the address (in the device's memory, in the order of its stream), bytes and format of one of them,
 * valid until meopt_destroy; NULL, 0 and -1 if the tensor has none. Between steps it may be read, and written
 * with bytes of the same view of a tensor with the same formats. An offloaded tensor has no such memory:
 * MEOPT_BAD_ARGUMENT. */
int meopt_state_view(const struct meopt *opt, size_t tensor, enum meopt_view which, void **p, size_t *bytes,
                     int *format, struct meopt_error *err);

/* Joins the records of a tensor's parts (MEOPT_PART, in rising order) to the record of the whole tensor.
 * *bytes: on input the capacity of `to` (NULL: query only), on output the size. Requires no handle; a damaged
 * record is MEOPT_BAD_STATE. Parts that do not begin at multiples of 64, here and below: MEOPT_BAD_ARGUMENT;
 * meopt_moments_export and _import move their moments. */
int meopt_state_join(const void *const *parts, const size_t *part_bytes, size_t count, void *to,
                     size_t *bytes, struct meopt_error *err);
/* Makes the record of a part from records of parts that cover it, in rising order, or from that of the whole
 * tensor, for a different number of ranks. */
int meopt_state_range(const void *const *parts, const size_t *part_bytes, size_t parts_count, int64_t first,
                      int64_t count, void *to, size_t *bytes, struct meopt_error *err);

/* Writes the average of the weights (options.average_decay) in a record of `count` elements as fp32. Requires
 * no handle. MEOPT_BAD_STATE: the record has none. */
int meopt_state_average(const void *record, size_t bytes, float *values, int64_t count,
                        struct meopt_error *err);

/* Save and load states, weights and residual bits of all tensors as one sequence of bytes. write returns 0,
 * or nonzero to stop. meopt_load finds tensors by name; all must exist, with the same shapes. */
int meopt_save(const struct meopt *opt, int (*write)(void *context, const void *data, size_t bytes),
               void *context, struct meopt_error *err);
int meopt_load(struct meopt *opt, const void *data, size_t bytes, struct meopt_error *err);

#ifdef __cplusplus
}
#endif

#endif
