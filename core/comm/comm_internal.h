/* Inside core/comm: what the back ends and the arithmetic above them share. */
#ifndef MEOPT_COMM_COMM_INTERNAL_H
#define MEOPT_COMM_COMM_INTERNAL_H

#include "core/comm/comm.h"
#include "core/comm/nccl_api.h"

enum {
    COMM_WINDOW_BYTES = 8 << 20, /* of one direction, all ranks together, at most */
    SMALL_SLICE = 4096,          /* of a rank, before anything is reserved, and at least */
    SMALL_MESSAGE = 232 /* that travels with a header, where a back end does not compare them itself */
};

/* Through which arrays travel: slices of equal size for each rank. Host memory. */
struct comm_window {
    size_t slice_bytes;   /* at most of one call; a multiple of 64 */
    char *send, *receive; /* (size * slice_bytes) */
    float *sum;           /* (slice_bytes / 2): of a device whose memory is not this machine's */
    void *planned;        /* of a dry card: what comm_nccl_open would take */
};

/* At most slice bytes for each rank of so many. */
size_t comm_slice_bytes(int size);

/* The thread that makes the back end's calls. `open` and, at the end, ops->close are called in it. */
int comm_thread_start(struct comm *comm, int (*open)(struct comm *, void *context, struct error *err),
                      void *context, struct error *err);
void comm_thread_stop(struct comm *comm);

/* In the thread, waited for. */
int comm_call(struct comm *comm, int (*run)(struct comm *, void *context, struct error *err), void *context,
              struct error *err);

/* Back ends, opened in their thread. */
int comm_local_open(struct comm *comm, void *options, struct error *err);
int comm_mpi_open(struct comm *comm, void *options, struct error *err);

/* The library for cards of this kind (DEVICE_HIP, DEVICE_CUDA), or NULL with `why` (size bytes).
 * $MEOPT_RCCL_LIBRARY and $MEOPT_NCCL_LIBRARY name another file, "none": none. It stays loaded. */
const struct nccl_api *nccl_load(enum device_kind kind, char *why, size_t size);
extern const char *const nccl_names[DEVICE_KIND_COUNT]; /* "RCCL", "NCCL" */

/* The library of the cards. All ranks ask each other whether they have it, and rank 0 gives an id; together:
 * all have, and comm_nccl_open is given this. */
enum { NCCL_CARD_BYTES = 32 << 20 }; /* of each card, by class comm */
extern const char nccl_parts_name[];
struct nccl_meeting {
    const struct nccl_api *api;
    struct nccl_id id;
    bool together;
};
int nccl_meet(struct comm *comm, const struct comm_options *options, struct nccl_meeting *meeting,
              struct error *err);
int comm_nccl_open(struct comm *comm, void *meeting, struct error *err);
/* Would ranks on this dry card meet there? */
bool nccl_planned(const struct device *device);

/* Of an array that is cut at offsets: values of a rank's part from its `at`-th on, `most` at most; and the
 * longest part. */
int64_t comm_part(const int64_t *offsets, int rank, int64_t at, int64_t most);
int64_t comm_longest_part(int size, const int64_t *offsets);

/* A collective begins (sets comm->header, comm_status) and ends with this code. Returns an error of an
 * earlier
 * one, and the code. */
int comm_enter(struct comm *comm, enum comm_call call, int64_t bytes, uint32_t shape, struct error *err);
int comm_leave(struct comm *comm, int code, const struct error *err);

/* headers (size, `stride` bytes apart) of all ranks: EXIT_RANK_LOST where one differs from that of rank 0. */
int comm_compare(const struct comm *comm, const void *headers, size_t stride, struct error *err);

#endif
