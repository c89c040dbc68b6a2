/* Random numbers of drop path: contract in nn.h. */
#include "core/nn/nn.h"
#include "kernels/philox.h"

enum { DROP_PATH_STREAM = 0x64726f70 }; /* separates these numbers from others of the same seed */

void drop_path_factors(double rate, int64_t depth, uint64_t seed, int64_t step, int64_t first, int64_t count,
                       float *keep)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ DROP_PATH_STREAM};
    for (int64_t branch = 0; branch < 2 * depth; branch++) {
        double p = depth > 1 ? rate * (double)(branch / 2) / (double)(depth - 1) : 0;
        for (int64_t i = 0; i < count; i++) {
            uint64_t row = (uint64_t)(first + i);
            const uint32_t counter[4] = {(uint32_t)row, (uint32_t)step, (uint32_t)((uint64_t)step >> 32),
                                         (uint32_t)branch};
            uint32_t words[4];
            philox4x32_10(counter, key, words);
            keep[branch * count + i] = words[0] * 0x1p-32 < p ? 0 : (float)(1 / (1 - p));
        }
    }
}
