/* Headers of collectives: which call a rank is in, compared among ranks and reported to the heartbeat. */
#include "core/comm/comm_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

const char *const dist_call_names[DIST_CALLS] = {
    [DIST_NO_CALL] = "no collective", [DIST_JOIN] = "join",       [DIST_REDUCE] = "reduce",
    [DIST_GATHER] = "gather",         [DIST_UNITE] = "unite",     [DIST_ALL_REDUCE] = "all_reduce",
    [DIST_BROADCAST] = "broadcast",   [DIST_BARRIER] = "barrier",
};

/* number, call and whether it is under way in one word: the heartbeat's thread never reads halves of two
 * collectives */
enum { STATUS_CALL_BITS = 8 };
static _Atomic uint64_t told;
_Static_assert(DIST_CALLS <= 1 << (STATUS_CALL_BITS - 1), "the call and one bit more fit");

static void tell(const struct dist *dist, bool inside)
{
    atomic_store(&told, (uint64_t)dist->header.number << STATUS_CALL_BITS | (uint64_t)dist->header.call << 1 |
                            (inside ? 1u : 0u));
}

struct dist_status dist_status(void)
{
    uint64_t word = atomic_load(&told);
    return (struct dist_status){(int64_t)(word >> STATUS_CALL_BITS),
                                (enum dist_call)(word >> 1 & ((1 << (STATUS_CALL_BITS - 1)) - 1)), word & 1};
}

int dist_enter(struct dist *dist, enum dist_call call, int64_t bytes, uint32_t shape, struct error *err)
{
    if (dist->broken.code) {
        if (err) *err = dist->broken;
        return dist->broken.code;
    }
    dist->header =
        (struct dist_header){.number = dist->header.number + 1, .bytes = bytes, .call = call, .shape = shape};
    dist->compared = false;
    tell(dist, true);
    return 0;
}

int dist_leave(struct dist *dist, int code, const struct error *err)
{
    tell(dist, false);
    if (code && err) dist->broken = *err;
    dist->broken.code = code;
    return code;
}

static void side_text(char *text, size_t size, int rank, const struct dist_header *h, bool numbered)
{
    const char *name = h->call < DIST_CALLS ? dist_call_names[h->call] : "an unknown collective";
    int n = snprintf(text, size, "rank %d in %s of %lld bytes", rank, name, (long long)h->bytes);
    if (numbered && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, " (#%lld)", (long long)h->number);
}

int dist_compare(const struct dist *dist, const void *headers, size_t stride, struct error *err)
{
    struct dist_header first, other;
    char sides[2][120];
    memcpy(&first, headers, sizeof first);
    for (int r = 1; r < dist->size; r++) {
        memcpy(&other, (const char *)headers + (size_t)r * stride, sizeof other);
        if (memcmp(&first, &other, sizeof first) == 0) continue;
        bool numbered = first.number != other.number;
        bool parts = !numbered && first.call == other.call && first.bytes == other.bytes;
        side_text(sides[0], sizeof sides[0], 0, &first, false);
        side_text(sides[1], sizeof sides[1], r, &other, numbered);
        return error_set(err, EXIT_RANK_LOST,
                         "please report this defect; continue with: meopt train --resume",
                         "collective mismatch at #%lld: %s, %s%s", (long long)first.number, sides[0],
                         sides[1], parts ? ", with different arguments" : "");
    }
    return 0;
}
