/* For tests of the optimizer's kernels: numbers to feed them, the bits of a float, and the instruction sets.
 */
#ifndef MEOPT_TESTS_OPTIM_OPTIM_NUMBERS_H
#define MEOPT_TESTS_OPTIM_OPTIM_NUMBERS_H

#include <stdint.h>
#include <string.h>

static const char *const variants[] = {"avx512", "avx2", "plain"};

static uint64_t random_state = 1;
static inline uint32_t random_next(void)
{
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}
static inline double uniform(void) { return random_next() / 4294967296.0; }
static inline float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

#endif
