/* Features of this processor: see cpu.h. */
#include "core/base/cpu.h"

#include <pthread.h>
#include <string.h>

static struct processor here = {.vendor = ""};
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
#include <cpuid.h>

/* c: ECX of leaf 1 */
static unsigned vectors(unsigned c)
{
    enum { YMM = 6, ZMM = 0xe6 }; /* state that the operating system saves: XCR0 */
    enum { FMA = 1 << 12, XSAVED = 1 << 27 | 1 << 28 };
    const unsigned wide = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const unsigned tiles = 1u << 22 | 1u << 24;                      /* AMX-BF16, AMX-TILE */
    unsigned a, b, d, tile, saved, high, last, can;
    if ((c & XSAVED) != XSAVED || !(c & FMA)) return 0;
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if ((saved & YMM) != YMM || !__get_cpuid_count(7, 0, &last, &b, &c, &tile) || !(b >> 5 & 1)) return 0;
    can = CAN_AVX2;
    if ((saved & ZMM) == ZMM && (b & wide) == wide) can |= CAN_AVX512;
    if (can & CAN_AVX512 && c >> 11 & 1) can |= CAN_AVX512_VNNI;
    if (last < 1 || !__get_cpuid_count(7, 1, &a, &b, &c, &d)) return can;
    if (a >> 4 & 1) can |= CAN_AVX_VNNI;
    if (can & CAN_AVX512 && a >> 5 & 1) can |= CAN_AVX512_BF16;
    if (can & CAN_AVX512_BF16 && (tile & tiles) == tiles) can |= CAN_AMX;
    return can;
}

static void ask(void)
{
    enum { CARRYLESS = 1 << 1 | 1 << 19, CRC32C = 1 << 20 };
    static char vendor[13];
    unsigned a, b, c, d, letters[3];
    if (__get_cpuid(0, &a, &letters[0], &letters[2], &letters[1])) memcpy(vendor, letters, 12);
    here.vendor = vendor;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    here.family = (int)(a >> 8 & 15);
    here.model = (int)(a >> 4 & 15) | (int)(a >> 12 & 0xf0);
    if (here.family == 15) here.family += (int)(a >> 20 & 255);
    here.can = vectors(c);
    if (c & CRC32C) here.can |= CAN_CRC32C;
    if ((c & CARRYLESS) == CARRYLESS) here.can |= CAN_CARRYLESS;
}
#else
static void ask(void) {}
#endif

const struct processor *cpu_here(void)
{
    pthread_once(&once, ask);
    return &here;
}

bool cpu_can(unsigned what) { return (cpu_here()->can & what) == what; }
