/* Slices: how arrays are divided for the windows of the back ends. */
#include "core/comm/comm_internal.h"

size_t comm_slice_bytes(int size)
{
    size_t slice = ((size_t)COMM_WINDOW_BYTES / (size_t)size) & ~(size_t)63;
    return slice > SMALL_SLICE ? slice : SMALL_SLICE;
}

int64_t comm_part(const int64_t *offsets, int rank, int64_t at, int64_t most)
{
    int64_t left = offsets[rank + 1] - offsets[rank] - at;
    return left < 0 ? 0 : left < most ? left : most;
}

int64_t comm_longest_part(int size, const int64_t *offsets)
{
    int64_t longest = 0;
    for (int q = 0; q < size; q++)
        if (offsets[q + 1] - offsets[q] > longest) longest = offsets[q + 1] - offsets[q];
    return longest;
}
