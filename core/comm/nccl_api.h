/* The entry points of RCCL (AMD, Hygon DCU) and NCCL (NVIDIA) that MEOpt uses. Both have the same
 * interface; all releases since 2.14 (2022) have these functions and constants. The library is loaded,
 * never linked. The test nccl_api compares this file with NCCL's own header. */
#ifndef MEOPT_COMM_NCCL_API_H
#define MEOPT_COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>

enum {
    NCCL_SUCCESS = 0,
    NCCL_IN_PROGRESS = 7, /* of a nonblocking communicator */
    NCCL_UINT8 = 1,
    NCCL_FLOAT32 = 7,
    NCCL_SUM = 0,
    NCCL_NO_COLOR = -1,
    NCCL_SPLITS_SINCE = 21800, /* release */
    NCCL_ID_BYTES = 128
};

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

/* ncclConfig_t of release 2.14. A library reads `size` bytes and uses its defaults for later members. The
 * last member is padding in 2.14 and a setting in later releases; INT_MIN means "not set". */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, open;
};
#define NCCL_CONFIG                                                                                          \
    {                                                                                                        \
        sizeof(struct nccl_config), 0xcafebeefu, 21400, 0, INT_MIN                                           \
    }

/* comm: ncclComm_t; stream: cudaStream_t or hipStream_t; type: ncclDataType_t. Results: ncclResult_t. */
#define NCCL_ENTRIES(X)                                                                                      \
    X(version, ncclGetVersion, (int *version))                                                               \
    X(new_id, ncclGetUniqueId, (struct nccl_id * id))                                                        \
    X(init, ncclCommInitRankConfig,                                                                          \
      (void **comm, int ranks, struct nccl_id id, int rank, struct nccl_config *config))                     \
    X(finalize, ncclCommFinalize, (void *comm))                                                              \
    X(destroy, ncclCommDestroy, (void *comm))                                                                \
    X(abort, ncclCommAbort, (void *comm))                                                                    \
    X(state, ncclCommGetAsyncError, (void *comm, int *result))                                               \
    X(group_start, ncclGroupStart, (void))                                                                   \
    X(group_end, ncclGroupEnd, (void))                                                                       \
    X(send, ncclSend, (const void *from, size_t count, int type, int peer, void *comm, void *stream))        \
    X(receive, ncclRecv, (void *to, size_t count, int type, int peer, void *comm, void *stream))             \
    X(broadcast, ncclBroadcast,                                                                              \
      (const void *from, void *to, size_t count, int type, int root, void *comm, void *stream))              \
    X(all_gather, ncclAllGather,                                                                             \
      (const void *from, void *to, size_t count, int type, void *comm, void *stream))                        \
    X(reduce_scatter, ncclReduceScatter,                                                                     \
      (const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream))

struct nccl_api {
    char path[4096]; /* of the library */
    int number;      /* of its release, as 22203 */
#define NCCL_MEMBER(name, symbol, arguments) int(*name) arguments;
    NCCL_ENTRIES(NCCL_MEMBER)
#undef NCCL_MEMBER
    const char *(*text)(int result); /* ncclGetErrorString */
    /* ncclCommSplit, since 2.18; NULL in older releases. color NCCL_NO_COLOR: this rank gets none */
    int (*split)(void *comm, int color, int key, void **part, struct nccl_config *config);
    const char *(*last_error)(void *comm); /* ncclGetLastError; NULL in old ones */
};

#endif
