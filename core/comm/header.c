/* Headers of collectives: ranks compare them, and the heartbeat reports the current one. */
#include "core/comm/comm_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

const char *const comm_call_names[COMM_CALLS] = {
    [COMM_NO_CALL] = "no collective", [COMM_JOIN] = "join",       [COMM_REDUCE] = "reduce",
    [COMM_GATHER] = "gather",         [COMM_COMBINE] = "combine", [COMM_ALL_REDUCE] = "all_reduce",
    [COMM_BROADCAST] = "broadcast",   [COMM_BARRIER] = "barrier",
};

/* Number, call and `inside` of comm_status in one atomic word, which the heartbeat's thread reads. */
enum { STATUS_CALL_BITS = 8 };
static _Atomic uint64_t status;
_Static_assert(COMM_CALLS <= 1 << (STATUS_CALL_BITS - 1), "call and inside must fit");

static void publish_status(const struct comm *comm, bool inside)
{
    atomic_store(&status, (uint64_t)comm->header.number << STATUS_CALL_BITS |
                              (uint64_t)comm->header.call << 1 | (inside ? 1u : 0u));
}

struct comm_status comm_status(void)
{
    uint64_t word = atomic_load(&status);
    return (struct comm_status){(int64_t)(word >> STATUS_CALL_BITS),
                                (enum comm_call)(word >> 1 & ((1 << (STATUS_CALL_BITS - 1)) - 1)), word & 1};
}

int comm_enter(struct comm *comm, enum comm_call call, int64_t bytes, uint32_t shape, struct error *err)
{
    if (comm->broken.code) {
        if (err) *err = comm->broken;
        return comm->broken.code;
    }
    comm->header =
        (struct comm_header){.number = comm->header.number + 1, .bytes = bytes, .call = call, .shape = shape};
    comm->compared = false;
    publish_status(comm, true);
    return 0;
}

int comm_leave(struct comm *comm, int code, const struct error *err)
{
    publish_status(comm, false);
    if (code && err) comm->broken = *err;
    comm->broken.code = code;
    return code;
}

static void describe_call(char *text, size_t size, int rank, const struct comm_header *h, bool numbered)
{
    const char *name = h->call < COMM_CALLS ? comm_call_names[h->call] : "an unknown collective";
    int n = snprintf(text, size, "rank %d in %s of %lld bytes", rank, name, (long long)h->bytes);
    if (numbered && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, " (#%lld)", (long long)h->number);
}

int comm_compare(const struct comm *comm, const void *headers, size_t stride, struct error *err)
{
    struct comm_header first, other;
    char sides[2][120];
    memcpy(&first, headers, sizeof first);
    for (int r = 1; r < comm->size; r++) {
        memcpy(&other, (const char *)headers + (size_t)r * stride, sizeof other);
        if (memcmp(&first, &other, sizeof first) == 0) continue;
        bool numbered = first.number != other.number;
        bool parts = !numbered && first.call == other.call && first.bytes == other.bytes;
        describe_call(sides[0], sizeof sides[0], 0, &first, false);
        describe_call(sides[1], sizeof sides[1], r, &other, numbered);
        return error_set(err, EXIT_RANK_LOST,
                         "please report this defect; continue with: meopt train --resume",
                         "collective mismatch at #%lld: %s, %s%s", (long long)first.number, sides[0],
                         sides[1], parts ? ", with different arguments" : "");
    }
    return 0;
}
