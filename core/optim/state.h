/* The record of one tensor's state: see state.c. */
#ifndef MEOPT_OPTIM_STATE_H
#define MEOPT_OPTIM_STATE_H

#include "core/optim/optim.h"

#include <string.h>

#define RECORD_MAGIC  "MEOPTST2" /* with m and v of 8 bits as pairs */
#define RECORD_BEFORE "MEOPTST1" /* without; if they are of 8 bits both, each has codes of its own */

struct record {
    char magic[8];
    uint32_t header_bytes;
    int32_t m, v, m_range, ndim;
    uint32_t promoted; /* the formats are not what the options say: adaptive precision widened them */
    int64_t shape[8], first, updates;
    uint64_t m_bytes, v_bytes, scale_bytes;
};

static inline bool record_before(const struct record *r) { return memcmp(r->magic, RECORD_BEFORE, 8) == 0; }
static inline bool record_apart(const struct record *r) { return record_before(r) && OPTIM_PAIR(r->m, r->v); }
/* Bytes of a group of 64 in the record's three arrays; formats are checked. */
static inline void record_group_bytes(const struct record *r, size_t each[3])
{
    each[0] = optim_state_bytes(r->m);
    each[1] = optim_state_bytes(r->v);
    each[2] = record_apart(r) ? 1 : optim_scale_bytes(r->m, r->v);
    if (record_apart(r) || !OPTIM_PAIR(r->m, r->v)) return;
    each[0] += each[1];
    each[1] = 0;
}

#endif
