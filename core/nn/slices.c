/* Sums over the slices of a model: see slices.h. */
#include "core/nn/slices.h"

#include <assert.h>

float *slice_sums_next(struct slice_sums *s) { return s->buffers + s->depth * s->each; }

void rows_add(struct device *device, float *sum, const float *part, int64_t rows, int64_t columns)
{
    device->ops->residual_forward(
        device,
        &(struct residual){.type = DTYPE_F32, .x = sum, .branch = part, .y = sum, .R = rows, .D = columns});
}

/* After the n-th slice as many sums of equal numbers of slices are added as n can be halved. */
void slice_sums_add(struct slice_sums *s, int64_t count)
{
    assert(s->depth < slice_buffers(s->own) && s->done < s->own);
    s->depth++;
    for (int n = ++s->done; n % 2 == 0; n /= 2) {
        float *sum = s->buffers + (s->depth - 2) * s->each;
        int64_t D = count % s->width ? count : s->width;
        rows_add(s->device, sum, sum + s->each, count / D, D);
        s->depth--;
    }
}

void slice_sums_all(struct slice_sums *s)
{
    s->depth = 1;
    s->done = s->own;
}

void slice_sums_begin(struct slice_sums *s, int64_t count)
{
    assert(s->done == s->own && s->depth == 1);
    if (s->ranks.begin && !s->failed.code)
        (void)s->ranks.begin(s->ranks.context, s->buffers, count, &s->failed);
}

float *slice_sums_end(struct slice_sums *s)
{
    if (s->ranks.begin && !s->failed.code) (void)s->ranks.end(s->ranks.context, &s->failed);
    s->depth = s->done = 0;
    return s->buffers;
}

void slice_gather(struct slice_sums *s, void *p, size_t bytes)
{
    if (s->ranks.begin && !s->failed.code) (void)s->ranks.gather(s->ranks.context, p, bytes, &s->failed);
}
