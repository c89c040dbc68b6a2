/* The next token: see sample_token.h. */
#include "core/nn/sample_token.h"
#include "core/base/memory.h"
#include "kernels/philox.h"

#include <math.h>
#include <stdlib.h>

struct candidate {
    double share;
    int32_t token;
};

static int by_share(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->share != y->share) return x->share > y->share ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Returns a number from 0 to below 1. */
static double draw_uniform(uint64_t seed, int64_t draw)
{
    uint32_t counter[4] = {(uint32_t)draw, (uint32_t)((uint64_t)draw >> 32), 0, 0}, out[4];
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ 0x746f6b65u};
    philox4x32_10(counter, key, out);
    return ((double)out[0] * 0x1p-32) + (double)(out[1] >> 12) * 0x1p-52;
}

int32_t token_sample(const float *logits, int64_t vocabulary, const struct token_sampling *how, int64_t draw)
{
    int64_t largest = 0;
    double sum = 0, kept = 0, until = 0;
    for (int64_t v = 0; v < vocabulary; v++) {
        if (!isfinite(logits[v])) return -1;
        if (logits[v] > logits[largest]) largest = v;
    }
    if (how->temperature <= 0) return (int32_t)largest;
    struct candidate *all = xmalloc((size_t)vocabulary * sizeof *all);
    for (int64_t v = 0; v < vocabulary; v++) {
        double share = exp(((double)logits[v] - logits[largest]) / how->temperature);
        all[v] = (struct candidate){share, (int32_t)v};
        sum += share;
    }
    qsort(all, (size_t)vocabulary, sizeof *all, by_share);
    int64_t count = 0, most = vocabulary;
    if (how->top_k > 0 && how->top_k < vocabulary) {
        for (most = how->top_k; most < vocabulary && all[most].share == all[how->top_k - 1].share;) most++;
        sum = 0;
        for (int64_t i = 0; i < most; i++) sum += all[i].share;
    }
    while (count < most && (count == 0 || kept < how->top_p * sum)) kept += all[count++].share;
    double at = draw_uniform(how->seed, draw) * kept;
    int64_t i = 0;
    while (i + 1 < count && (until += all[i].share) <= at) i++;
    int32_t token = all[i].token;
    free(all);
    return token;
}
