/* GPU kernels on the host: blocks one after another, the threads of a block as fibers that switch at barriers
 * and wave operations, so that every kernel's arithmetic runs, with shared memory and out-of-bounds accesses
 * watched by AddressSanitizer. Included in front of each kernel (tests/CMakeLists.txt) in place of a vendor's
 * runtime; the driver in front of it is tests/gpu/emulate.cc.
 *
 * A wave operation that not every lane of the wave reaches, or a barrier that not every thread reaches, is
 * reported and aborts: on a card it would hang or read garbage.
 */
#ifndef MEOPT_TESTS_GPU_EMULATE_H
#define MEOPT_TESTS_GPU_EMULATE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <utility>
#include <vector>

#define WAVE       MEOPT_EMULATE_WAVE
#define CARDS_WAVE (emulate::cards_wave)
#define DEVICE     static inline
#define SHARED                                                                                               \
    emulate::shares = true;                                                                                  \
    static
#define ROLLED
#define UNROLLED
#define THREAD   (emulate::thread)
#define THREADS  (emulate::threads)
#define BLOCK_X  (emulate::block[0])
#define BLOCK_Y  (emulate::block[1])
#define BLOCKS_X (emulate::blocks[0])
#define BLOCKS_Y (emulate::blocks[1])
#define DEVICE_METHOD
template <class T> static inline T *in_memory(T *p) { return p; }
/* Keeps an operation apart from those that use it, where the build fuses a * b + c (-ffp-contract=fast). */
template <class T> static inline T rounded_alone(T x)
{
#if defined(__FMA__)
    __asm__("" : "+x"(x));
#endif
    return x;
}
static inline float exact_add(float a, float b) { return rounded_alone(a + b); }
static inline float exact_mul(float a, float b) { return rounded_alone(a * b); }
static inline double exact_mul(double a, double b) { return rounded_alone(a * b); }
static inline float exact_div(float a, float b) { return a / b; }
static inline float exact_sqrt(float a) { return sqrtf(a); }
static inline float power_of_2(float x) { return exp2f(x); }
static inline bool agreed(bool x) { return x; }
#define barrier() emulate::wait_block(__FILE__, __LINE__)

namespace emulate
{
extern int thread, threads;
extern int cards_wave; /* what the card says */
extern int wrong_lane; /* planted: this lane's sums stand one element further; -1: none */
extern int64_t block[3], blocks[3];
extern bool shares; /* this launch has reached a declaration of shared memory */
void wait_block(const char *file, int line);
/* Every lane gives 8 bytes and gets those of lane `from` of its wave. */
uint64_t exchange(uint64_t value, int from, const char *file, int line);

/* The matrix instructions of kernels/gpu/matrix.h: registers of this lane, which stand for the elements that
 * the vendor's manual says. Two bf16 in 32 bits. c += a b; every lane of the wave gives its own. */
void mfma_f32_16x16x16_bf16(float c[4], const uint32_t a[2], const uint32_t b[2]);
void mmac_f32_16x16x16_bf16(float c[4], const uint32_t a[2], const uint32_t b[2]);
void mma_m16n8k16_bf16(float c[4], const uint32_t a[4], const uint32_t b[2]);
/* ldmatrix: this lane's row of 16 bytes; lanes 8 m and further have the rows of matrix m. */
void ldmatrix_x4(uint32_t pair[4], const uint32_t row[4], bool turned);
/* cp.async of 16 bytes, zeros without `real`: done when this thread waits, not before. */
struct copy {
    void *to;
    const void *from;
    bool real;
};
extern std::vector<copy> copies[1024]; /* by thread */
static inline void copy_async(void *to, const void *from, bool real)
{
    copies[thread].push_back({to, from, real});
}
static inline void copies_wait()
{
    static const char zeros[16] = {};
    for (const copy &c : copies[thread]) memcpy(c.to, c.real ? c.from : zeros, 16);
    copies[thread].clear();
}

template <class T> T shuffle(T x, int from, const char *file, int line)
{
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = exchange(bits, from, file, line);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A kernel by name, callable with the array of pointers to arguments that drivers take. */
struct kernel {
    const char *name;
    void (*call)(void *function, void **arguments);
    void *function;
    kernel *next;
    static kernel *first;
};
template <class... A, size_t... I> void unpack(void (*f)(A...), void **a, std::index_sequence<I...>)
{
    f(*(A *)a[I]...);
}
template <class... A> struct caller {
    static void call(void *f, void **a) { unpack((void (*)(A...))f, a, std::index_sequence_for<A...>{}); }
};
struct registration : kernel {
    template <class... A> registration(const char *kernel_name, void (*f)(A...))
    {
        name = kernel_name;
        call = caller<A...>::call;
        function = (void *)f;
        next = first;
        first = this;
    }
};
} // namespace emulate

#define wave_xor(x, mask) emulate::shuffle(x, THREAD % WAVE ^ (mask), __FILE__, __LINE__)
#define KERNEL(name, ...)                                                                                    \
    static void name(__VA_ARGS__);                                                                           \
    static emulate::registration registration_##name(#name, name);                                           \
    static void name(__VA_ARGS__)
#define KERNEL_TWICE(name, ...)          KERNEL(name, __VA_ARGS__)
#define KERNEL_BLOCKS(blocks, name, ...) KERNEL(name, __VA_ARGS__)

#endif
