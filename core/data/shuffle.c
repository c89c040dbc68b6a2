/* Order of the images of an epoch: see data.h. */
#include "core/data/data.h"
#include "kernels/philox.h"

/* A balanced Feistel network over the next even number of bits,
 * walked until it lands inside (Black, Rogaway 2002). */
int64_t data_shuffle(uint64_t seed, uint64_t epoch, int64_t position, int64_t count)
{
    int half = 1;
    while (((int64_t)1 << (2 * half)) < count) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1, x = (uint64_t)position;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t counter[4] = {(uint32_t)right, (uint32_t)(right >> 32), (uint32_t)epoch, round}, out[4];
            uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ 0x6f726465u};
            philox4x32_10(counter, key, out);
            uint64_t next = left ^ (out[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}
