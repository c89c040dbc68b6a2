/* What is used of RCCL (AMD, Hygon DCU) and NCCL (NVIDIA), which have one interface: entry points that all
 * releases since 2.14 (2022) have, with numbers that have never moved. Loaded, never linked. The test
 * nccl_api holds this against NCCL's own header. */
#ifndef MEOPT_COMM_NCCL_API_H
#define MEOPT_COMM_NCCL_API_H

#include <limits.h>
#include <stddef.h>

enum {
    NCCL_SUCCESS = 0,
    NCCL_IN_PROGRESS = 7, /* of a communicator that does not block */
    NCCL_UINT8 = 1,
    NCCL_ID_BYTES = 128
};

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

/* The part of ncclConfig_t that release 2.14 had: a library takes as many bytes as `size` says, and its own
 * defaults for the rest. The last member is padding there and a number later: INT_MIN leaves it open. */
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
      (const void *from, void *to, size_t count, int type, void *comm, void *stream))

struct nccl_api {
    char path[4096]; /* of the library */
    int number;      /* of its release, as 22203 */
#define NCCL_MEMBER(name, symbol, arguments) int(*name) arguments;
    NCCL_ENTRIES(NCCL_MEMBER)
#undef NCCL_MEMBER
    const char *(*text)(int result);       /* ncclGetErrorString */
    const char *(*last_error)(void *comm); /* ncclGetLastError; NULL in old ones */
};

#endif
