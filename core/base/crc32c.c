/* CRC-32C. The processor's instruction has a latency of three cycles and a throughput of one per
 * cycle, so three chains run at once, each over LANE bytes. Their registers are joined by the linear map that
 * LANE zero bytes apply to a register (as in M. Adler's crc32c.c). Without the instruction, tables are
 * used. */
#include "core/base/cpu.h"
#include "core/base/crc32c.h"
#include "core/base/progress.h"

#include <pthread.h>
#include <string.h>

enum {
    PART_BYTES = 1 << 24, /* between two calls of progress_mark */
    LANE = 4096
};

/* Register update over bytes, without the initial and final inversion. */
static uint32_t table[8][256]; /* slicing-by-8 */
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_fill(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82F63B78u : c >> 1;
        table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int t = 1; t < 8; t++) {
            uint32_t c = table[t - 1][i];
            table[t][i] = (c >> 8) ^ table[0][c & 255];
        }
}

static uint32_t by_tables(uint32_t crc, const uint8_t *p, size_t bytes)
{
    pthread_once(&table_once, table_fill);
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint32_t a, b;
        memcpy(&a, p, 4);
        memcpy(&b, p + 4, 4);
        a ^= crc;
        crc = table[7][a & 255] ^ table[6][a >> 8 & 255] ^ table[5][a >> 16 & 255] ^ table[4][a >> 24] ^
              table[3][b & 255] ^ table[2][b >> 8 & 255] ^ table[1][b >> 16 & 255] ^ table[0][b >> 24];
    }
    for (; bytes; bytes--, p++) crc = (crc >> 8) ^ table[0][(crc ^ *p) & 255];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

static uint32_t zeros[4][256]; /* the register after LANE zeros, by its bytes */
static pthread_once_t zeros_once = PTHREAD_ONCE_INIT;

static inline uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

__attribute__((target("sse4.2"))) static void zeros_fill(void)
{
    for (int bit = 0; bit < 32; bit++) {
        uint64_t c = 1u << bit;
        for (int i = 0; i < LANE; i += 8) c = _mm_crc32_u64(c, 0);
        for (uint32_t value = 0; value < 256; value++)
            if (value >> bit % 8 & 1) zeros[bit / 8][value] ^= (uint32_t)c;
    }
}

static inline uint32_t after_zeros(uint64_t c)
{
    return zeros[0][c & 255] ^ zeros[1][c >> 8 & 255] ^ zeros[2][c >> 16 & 255] ^ zeros[3][c >> 24 & 255];
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t bytes)
{
    uint64_t c = crc;
    if (bytes >= 3 * LANE) pthread_once(&zeros_once, zeros_fill);
    for (; bytes >= 3 * LANE; bytes -= 3 * LANE, p += 3 * LANE) {
        uint64_t second = 0, third = 0;
        for (int i = 0; i < LANE; i += 8) {
            c = _mm_crc32_u64(c, word_at(p + i));
            second = _mm_crc32_u64(second, word_at(p + LANE + i));
            third = _mm_crc32_u64(third, word_at(p + 2 * LANE + i));
        }
        c = after_zeros(after_zeros(c) ^ second) ^ third;
    }
    for (; bytes >= 8; bytes -= 8, p += 8) c = _mm_crc32_u64(c, word_at(p));
    uint32_t c32 = (uint32_t)c;
    for (; bytes; bytes--, p++) c32 = _mm_crc32_u8(c32, *p);
    return c32;
}
#endif

static uint32_t part(uint32_t crc, const uint8_t *p, size_t bytes)
{
#if defined(__x86_64__)
    if (cpu_can(CAN_CRC32C)) return ~by_instruction(~crc, p, bytes);
#endif
    return ~by_tables(~crc, p, bytes);
}

uint32_t crc32c(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    for (; bytes > PART_BYTES; bytes -= PART_BYTES, p += PART_BYTES) {
        crc = part(crc, p, PART_BYTES);
        progress_mark();
    }
    return part(crc, p, bytes);
}
