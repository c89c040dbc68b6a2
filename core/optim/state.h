/* The record of one tensor's state: see state.c. */
#ifndef MEOPT_OPTIM_STATE_H
#define MEOPT_OPTIM_STATE_H

#include "core/optim/optim.h"

#define RECORD_MAGIC "MEOPTST1"

struct record {
    char magic[8];
    uint32_t header_bytes;
    int32_t m, v, m_range, ndim;
    uint32_t promoted; /* the formats are not what the options say: adaptive precision widened them */
    int64_t shape[8], first, updates;
    uint64_t m_bytes, v_bytes, scale_bytes;
};

#endif
