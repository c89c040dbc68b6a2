/* What attention's kernels know of masks and heads (struct attention). */
#ifndef MEOPT_GPU_ATTENTION_RANGE_H
#define MEOPT_GPU_ATTENTION_RANGE_H

#include "kernels/attention_shape.h"
#include "kernels/gpu/vendor.h"

/* From first to end; both never decrease with the token. */
struct range {
    int first, end;
};
/* Returns the keys that query i of a sample sees; none after row N. */
DEVICE range keys_of(const attention_shape &s, int64_t b, int64_t i)
{
    if (i >= s.N) return {0, 0};
    int64_t first = s.begins ? s.begins[b * s.N + i] : 0, end = s.ends ? s.ends[b * s.N + i] : s.N;
    if (s.window && first <= i - s.window) first = i - s.window + 1;
    if (s.causal && end > i + 1) end = i + 1;
    return {(int)first, (int)end};
}
/* Returns the queries that see key j; none after row N. */
DEVICE range queries_of(const attention_shape &s, int64_t b, int64_t j)
{
    if (j >= s.N) return {0, 0};
    int64_t first = s.begins ? s.begins[b * s.N + j] : 0, end = s.ends ? s.ends[b * s.N + j] : s.N;
    if (s.causal && first < j) first = j;
    if (s.window && end > j + s.window) end = j + s.window;
    return {(int)first, (int)end};
}
/* Returns the range of all of `count` tokens, the first of which is below N. */
template <range (*OF)(const attention_shape &, int64_t, int64_t)>
DEVICE range range_of(const attention_shape &s, int64_t b, int64_t first, int count)
{
    int64_t last = first + count < s.N ? first + count - 1 : s.N - 1;
    return {OF(s, b, first).first, OF(s, b, last).end};
}
DEVICE bool inside(const range &r, int64_t i) { return i >= r.first && i < r.end; }

/* The tokens of a block of block-sparse attention, of those in `all` */
DEVICE range tokens_of(const attention_shape &s, int block, const range &all)
{
    int64_t first = block * s.block, end = first + s.block;
    return {(int)(first > all.first ? first : all.first), (int)(end < all.end ? end : all.end)};
}
/* A head's list of a block */
struct block_list {
    const int32_t *at;
    int count;
};
DEVICE block_list list_of(const attention_shape &s, const int32_t *lists, int64_t h, int64_t block)
{
    const int32_t *start = lists + h * ((s.N + s.block - 1) / s.block) + block;
    return {lists + start[0], start[1] - start[0]};
}

/* The key and the value head of a query head in qkv, after the H query heads */
DEVICE int64_t key_head(const attention_shape &s, int64_t h) { return s.H + h / (s.H / s.G); }
DEVICE int64_t value_head(const attention_shape &s, int64_t h) { return key_head(s, h) + s.G; }

#endif
