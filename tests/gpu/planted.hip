/* Kernels with a race, and each without it, for tests/gpu/races.c. Blocks of 2 waves; out: a value of each
 * thread, 0 before. */
#include "kernels/gpu/vendor.h"

#define OUT out[BLOCK_X * THREADS + THREAD]

KERNEL(planted_missing_barrier, float *out)
{
    SHARED float x[8];
    if (THREAD == 0) x[0] = 1;
    OUT = x[0];
}
KERNEL(planted_barrier, float *out)
{
    SHARED float x[8];
    if (THREAD == 0) x[0] = 1;
    barrier();
    OUT = x[0];
}
KERNEL(planted_two_stores, float *out)
{
    SHARED float x[8];
    x[THREAD % WAVE % 8] = 1;
    barrier();
    OUT = x[0];
}
KERNEL(planted_load_then_store, float *out)
{
    SHARED float x[2 * WAVE];
    x[THREAD] = 1;
    barrier();
    OUT = x[(THREAD + WAVE) % THREADS];
    x[THREAD] = 2;
}
/* What a lane stores before a shuffle is not there for others after it. */
KERNEL(planted_shuffle, float *out)
{
    SHARED float x[2 * WAVE];
    x[THREAD] = 1;
    float one = wave_xor(1.0f, 1);
    OUT = one + x[THREAD ^ 1];
}
/* What a lane gives to a shuffle it has loaded. */
KERNEL(planted_shuffled_load, float *out)
{
    SHARED float x[2 * WAVE];
    x[THREAD] = 1;
    barrier();
    float other = wave_xor(x[THREAD ^ 1], 1);
    x[THREAD] = other;
    OUT = x[THREAD];
}
KERNEL(planted_blocks_store, float *out)
{
    if (THREAD == 0) out[0] = (float)BLOCK_X;
}
KERNEL(planted_block_loads, float *out)
{
    if (BLOCK_X == 0) OUT = 1;
    else OUT = out[THREAD] + 1;
}
KERNEL(planted_blocks_flag, float *out) { store_flag((int *)out, 0); }
KERNEL(planted_own, float *out) { OUT += 1; }
