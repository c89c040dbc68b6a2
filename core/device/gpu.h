/* A card as a device. gpu.c has the card itself (memory, code objects), gpu_launch.c what the other files
 * share (errors, launches, scratch memory), gpu_copy.c streams and copies, gpu_ops.c the operations of
 * device.h, gpu_blas.c and gpu_lt.c the GEMMs, gpu_matrix.c the choice between the own kernels, gpu_graph.c
 * operations as graphs.
 *
 * Operations run on one stream, in issue order; device->sync waits for it. A driver's error inside an
 * operation becomes dev->pending with the driver's message; later operations do nothing (device_check).
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

/* Another program's context (CUDA) and stream, or NULL. */
struct gpu_callers {
    void *context, *stream;
};
/* The current context of a thread. */
struct gpu_before {
    void *context;
    int ordinal;
};

struct gpu {
    struct driver driver;
    struct card_info card;
    int ordinal, handle, wave;
    void *context, *stream, *module;
    void *own_stream; /* NULL: none was needed yet */
    void *restreamed; /* event: the end of the former stream's work */
    char *image;      /* of the module: HIP reads it while the module is loaded */
    struct gpu_callers callers;
    struct gpu_before before; /* enter and leave */
    int entered;
    struct graphs *graphs; /* NULL: graphs are off */
    bool recording,
        stale;       /* operations go into a graph; memory was allocated or freed: all graphs are invalid */
    bool anew;       /* the current recording is discarded, and will be repeated */
    bool dry;        /* no driver: scratch is counted, nothing is launched */
    bool meant;      /* dry: driver.kind is the modelled driver */
    bool assumed;    /* that driver is not installed: its libraries' memory is assumed */
    bool plain;      /* bf16 kernels run without matrix instructions */
    char matrix[32]; /* used by the kernels: "mma", "mfma", "mmac", or "none" and the reason */
    char matrix_why[160]; /* the reason why the card's instructions are not used; "" */
    char object[600];     /* the code object in use */
    struct arena arena;
    /* GEMMs use the first of these that supports the shape: lt, blas, the own kernel. NULL: the library was
     * not found. */
    struct lt *lt;
    struct blas *blas;
    bool lt_planned;                 /* a dry card: lt would be used, so its memory is counted */
    char lt_why[160], blas_why[160]; /* why not */
    void *workspace;
    size_t workspace_bytes;
    char *staging[2]; /* pinned */
    void *staged[2];  /* events: the copy from the buffer is done */
    int next_staging;
    char *ring; /* pinned, for uploads of up to GPU_SMALL bytes: the host does not wait for them */
    int ring_half;
    size_t ring_used;   /* bytes used in the current half */
    void *ring_left[2]; /* events: the copies from a half are done */
    struct gpu_kernel kernels[256];
};

extern const struct device_ops gpu_operations;
extern const struct device_streams gpu_streams;
extern const struct device_optim gpu_optim;

/* callers NULL: opened by meopt itself. */
int gpu_device_open(struct device **device, enum driver_kind kind, int ordinal, size_t limit_bytes,
                    const struct gpu_callers *callers, struct error *err);
/* Opens a dry card of the first driver of this type ("hip", "cuda", "auto"): every operation reserves its
 * scratch and returns. */
int gpu_device_dry(struct device **device, const char *type, size_t limit_bytes, struct error *err);
/* Returns whether this is a card, real or dry. */
static inline bool gpu_is(const struct device *dev) { return dev->ops == &gpu_operations; }
static inline struct gpu *gpu_of(struct device *dev) { return dev->state; }

/* device_restream */
int gpu_restream(struct device *dev, void *stream, struct error *err);

/* Number of cards that the driver sees; 1 if unknown, and for a dry card. */
int gpu_count(const struct device *dev);
/* Returns a kernel by name (static text) for a stream of the caller; NULL with dev->pending if there is
 * none. */
void *gpu_function(struct device *dev, const char *name);
/* Launches a kernel by name; arguments as in the drivers' interface: pointers to the values. */
void gpu_launch(struct device *dev, const char *name, int64_t blocks_x, int64_t blocks_y, void **arguments);
/* The same with blocks of `threads`, a multiple of the wave width, in place of GPU_THREADS. */
void gpu_launch_block(struct device *dev, const char *name, int threads, int64_t blocks_x, int64_t blocks_y,
                      void **arguments);
/* Reserves scratch for one operation; NULL after a failure, and on a dry card. */
void *gpu_reserve(struct device *dev, size_t bytes);
/* Number of blocks for n elements of a grid-stride loop. */
int64_t gpu_blocks(const struct device *dev, int64_t n);
/* Keeps a driver's error for device_check. Returns code. */
int gpu_fail(struct device *dev, int code, const char *what);
/* Makes the card's context current on the calling thread. Every entry does this: threads begin with no
 * context, or with the first card's. 0 or the driver's error. */
int gpu_current(struct device *dev);
/* Copies to the card in stream order; returns the driver's error. Only one thread of the process copies at a
 * time: collectives have their own thread, and DTK drivers were seen to hang for hours when several threads
 * called at once. */
int gpu_to_card(struct device *dev, void *dst, const void *src, size_t bytes, void *stream);
void gpu_upload(struct device *dev, void *device_dst, const void *host_src, size_t bytes);
void gpu_download(struct device *dev, void *host_dst, const void *device_src, size_t bytes);
void gpu_sync(struct device *dev);

/* Creates the graphs of a card (device.h: issue). NULL if the driver has none, or with MEOPT_GRAPHS=none. */
struct graphs *graphs_open(struct device *dev);
void graphs_close(struct gpu *gpu);
void gpu_issue(struct device *dev, const struct device_work *work, void (*run)(void *), void *context);
/* Marks a call that cannot be recorded, or a library's failure in a recording: the operations are then issued
 * one by one. Returns true while a graph is recorded. */
bool gpu_unrecordable(struct device *dev);
/* Logs that a library refused a GEMM; it will not be called for that shape again. true: the current recording
 * will be repeated; false: the next implementation is tried. */
bool gpu_refused(struct device *dev, const struct gemm *gemm, const char *library, int code);
/* The reason why operations are issued one by one; NULL: they are launched as graphs. */
const char *graphs_off(const struct gpu *gpu);

/* Multiplies known matrices on the card, and sets plain, matrix and matrix_why. */
void gpu_matrix_choose(struct device *dev);

struct blas *blas_open(struct device *dev);
void blas_close(struct blas *blas);
const char *blas_path(const struct blas *blas);
/* GEMM of device.h without bias. 0, the library's error, or -1: the shape is not supported, or was refused
 * before. */
int blas_gemm(struct blas *blas, const struct gemm *gemm);

/* Loads hipBLASLt or cuBLASLt for gpu->lt; NULL if it is not installed or gives wrong results. */
struct lt *lt_open(struct device *dev);
/* Counts the memory of lt_open on a dry card, if the library is installed; driver NULL: it is. */
void lt_count(struct device *dev, const struct driver *driver);
void lt_close(struct lt *lt);
const char *lt_path(const struct lt *lt);
/* GEMM of device.h with bias. false: not supported by this library, nothing was done. */
bool lt_gemm(struct device *dev, const struct gemm *gemm);
/* GEMM of device.h by one given implementation; the enum has them in the order of preference. false: not
 * supported, nothing was done. */
enum gpu_gemms { GPU_LT, GPU_BLAS, GPU_OWN, GPU_GEMM_COUNT };
bool gpu_gemm_by(struct device *dev, enum gpu_gemms by, const struct gemm *gemm);
/* The source of GEMMs: the library's file, or "MEOpt's own kernel". */
const char *gpu_gemms(const struct gpu *gpu);
/* "HIP 5.7.31921", "CUDA 12.4" */
char *gpu_version_text(const struct driver *driver, char *text, size_t size);

#endif
