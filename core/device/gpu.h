/* A card as a device. gpu.c has the card itself (memory, code objects),
 * gpu_copy.c queues and copies, gpu_ops.c the operations of device.h,
 * gpu_blas.c and gpu_lt.c the matrix product, gpu_matrix.c the choice of the own kernels' way, gpu_graph.c
 * operations as graphs.
 *
 * Operations run on one stream, in issue order; device->sync waits for it. A driver's error inside an
 * operation becomes dev->pending with the driver's words; what follows does nothing (device_check).
 */
#ifndef MEOPT_DEVICE_GPU_H
#define MEOPT_DEVICE_GPU_H

#include "core/device/arena.h"
#include "core/device/driver.h"

enum { GPU_THREADS = 256, GPU_STAGING = 8 << 20, GPU_RING = 1 << 20, GPU_SMALL = 64 << 10 };
enum { GPU_GRID_Y = 65535, GPU_HEAD_DIM = 128 /* DH of kernels/gpu/attention.hip */ };

struct gpu_kernel {
    const char *name; /* static text */
    void *function;
};

/* What another program gives: a context (CUDA) and a stream, or NULL. */
struct gpu_callers {
    void *context, *stream;
};
/* What was current on a thread. */
struct gpu_before {
    void *context;
    int ordinal;
};

struct gpu {
    struct driver driver;
    struct card_info card;
    int ordinal, handle, wave;
    void *context, *stream, *module;
    char *image; /* of the module: HIP reads it as long as that is loaded */
    struct gpu_callers callers;
    struct gpu_before before; /* enter and leave */
    int entered;
    struct graphs *graphs; /* NULL: none are made */
    bool recording, stale; /* what is issued goes into a graph; memory came or went: graphs are void */
    bool anew;             /* the recording that goes on comes to nothing; the next one need not */
    bool dry;              /* no driver behind it: scratch is counted, nothing is launched */
    bool meant;            /* dry: driver.kind is what it stands for */
    bool assumed;          /* which is not on this machine: its libraries are as they usually are */
    bool plain;            /* kernels of bf16 go without matrix instructions */
    char matrix[32];       /* those that kernels use: "mma", "mfma", "mmac", or "none" and why */
    char matrix_why[160];  /* the card's are not used, although it has them; "" */
    char object[600];      /* the code object in use */
    struct arena arena;
    /* Products come from the first of these that has one for the shape: lt, blas, the own kernel.
     * Both NULL where the library is not found. */
    struct lt *lt;
    struct blas *blas;
    char lt_why[160], blas_why[160]; /* not */
    void *workspace;
    size_t workspace_bytes;
    char *staging[2]; /* pinned */
    void *staged[2];  /* events: the copy from it is done */
    int next_staging;
    char *ring; /* pinned, for uploads of up to GPU_SMALL bytes: the host does not wait for them */
    int ring_half;
    size_t ring_used;   /* of that half */
    void *ring_left[2]; /* events: the copies from a half are done */
    struct gpu_kernel kernels[256];
};

extern const struct device_ops gpu_operations;
extern const struct device_queues gpu_queues;
extern const struct device_optim gpu_optim;

/* callers NULL: the program itself. */
int gpu_device_open(struct device **device, enum driver_kind kind, int ordinal, size_t limit_bytes,
                    const struct gpu_callers *callers, struct error *err);
/* A card of the first driver of this type ("hip", "cuda", "auto") that only counts: every operation reserves
 * what it would, and returns. */
int gpu_device_dry(struct device **device, const char *type, size_t limit_bytes, struct error *err);
/* Is it a card, real or dry? */
static inline bool gpu_is(const struct device *dev) { return dev->ops == &gpu_operations; }
static inline struct gpu *gpu_of(struct device *dev) { return dev->state; }

/* Cards that the driver sees: 1 when it does not say, and for a dry card. */
int gpu_count(const struct device *dev);
/* A kernel by name, static text, for a stream of the caller's own; NULL with dev->pending when there is none.
 */
void *gpu_function(struct device *dev, const char *name);
/* Start a kernel by name; arguments as drivers take them: pointers to the values. */
void gpu_launch(struct device *dev, const char *name, int64_t blocks_x, int64_t blocks_y, void **arguments);
/* Scratch of one operation; NULL after a failure, and on a dry card. */
void *gpu_reserve(struct device *dev, size_t bytes);
/* Blocks for n elements of a loop that strides over the grid. */
int64_t gpu_blocks(const struct device *dev, int64_t n);
/* Keep a driver's error for device_check. Returns code. */
int gpu_fail(struct device *dev, int code, const char *what);
/* Make the card's context the calling thread's. Every entry does: threads begin with none, or with the first
 * card. 0 or the driver's error. */
int gpu_current(struct device *dev);
/* The driver's copy to the card, in the stream's order; its error. One thread of the process at a time:
 * collectives have one of their own, and drivers of DTK were seen to stand still for hours where several
 * threads asked at once. */
int gpu_to_card(struct device *dev, void *dst, const void *src, size_t bytes, void *stream);
void gpu_upload(struct device *dev, void *device_dst, const void *host_src, size_t bytes);
void gpu_download(struct device *dev, void *host_dst, const void *device_src, size_t bytes);
void gpu_sync(struct device *dev);

/* Operations as graphs (device.h: issue). NULL where the driver has none, or MEOPT_GRAPHS=none. */
struct graphs *graphs_open(struct device *dev);
void graphs_close(struct gpu *gpu);
void gpu_issue(struct device *dev, const struct device_work *work, void (*run)(void *), void *context);
/* What cannot be part of a graph was asked for while one is recorded, or a library failed in it: the
 * operations will be issued one by one. true when that is so. */
bool gpu_unrecordable(struct device *dev);
/* A library has refused a product, which will not be asked of it again: that is told. true: a graph is being
 * recorded, which will be done anew; false: the next way is tried. */
bool gpu_refused(struct device *dev, const struct gemm *gemm, const char *library, int code);
/* Why operations are issued one by one; NULL: they are started as graphs. */
const char *graphs_off(const struct gpu *gpu);

/* Multiply known matrices on the card, and set plain, matrix and matrix_why. */
void gpu_matrix_choose(struct device *dev);

struct blas *blas_open(struct device *dev);
void blas_close(struct blas *blas);
const char *blas_path(const struct blas *blas);
/* The product of device.h without bias. 0, the library's error, or -1: it has none for that shape, or has
 * refused it before. */
int blas_gemm(struct blas *blas, const struct gemm *gemm);

/* hipBLASLt or cuBLASLt, into gpu->lt; NULL when it is not there or gives wrong results. */
struct lt *lt_open(struct device *dev);
/* Take on a dry card what lt_open keeps, where the library is there; driver NULL: it is. */
void lt_count(struct device *dev, const struct driver *driver);
void lt_close(struct lt *lt);
const char *lt_path(const struct lt *lt);
/* The whole product of device.h. false: not by this library, nothing was done. */
bool lt_gemm(struct device *dev, const struct gemm *gemm);
/* The product of device.h by one of the three alone, in the order in which they are asked. false: it has
 * none for that shape, nothing was done. */
enum gpu_gemms { GPU_LT, GPU_BLAS, GPU_OWN, GPU_PRODUCTS };
bool gpu_gemm_by(struct device *dev, enum gpu_gemms by, const struct gemm *gemm);
/* Where products come from: the library's file, or "MEOpt's own kernel". */
const char *gpu_gemms(const struct gpu *gpu);
/* "HIP 5.7.31921", "CUDA 12.4" */
char *gpu_version_text(const struct driver *driver, char *text, size_t size);

#endif
