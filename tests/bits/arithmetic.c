/* Prints what determines the bits of a run besides the code: the kernels that meopt selects on this
 * processor, and the results of libm, libjpeg and the processor's approximations for fixed inputs, called
 * directly. The test `bits` compares weights only if these match those of the recorded table.
 *
 *     bits_arithmetic IMAGE...     one line for each part: its name and a hash of its results */
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jpeglib.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t count) /* FNV-1a */
{
    for (size_t i = 0; i < count; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001B3u;
    return hash;
}
static const uint64_t hash_start = 0xCBF29CE484222325u;

static void require(int good, const char *what)
{
    if (good) return;
    fprintf(stderr, "bits_arithmetic: %s failed\n", what);
    exit(1);
}

/* Arguments from -range to range, close enough together that another polynomial shows. */
enum { ARGUMENTS = 1 << 18 };
static double argument(int i, double range) { return range * (2.0 * ((double)i + 0.37) / ARGUMENTS - 1); }

static uint64_t hash_libm(void)
{
    uint64_t hash = hash_start;
    for (int i = 0; i < ARGUMENTS; i++) {
        float wide = (float)argument(i, 100), near = (float)argument(i, 6);
        float positive = fabsf(wide) + 1e-6f;
        float f[] = {expf(wide), expf(near), erff(near), tanhf(near), logf(positive), logf(positive * 1e4f)};
        double x = argument(i, 4),
               d[] = {cos(x), exp(x), log(fabs(x) + 1e-6), pow(0.98, i % 1000), pow(fabs(x), 0.25 * x)};
        hash = hash_bytes(hash, f, sizeof f);
        hash = hash_bytes(hash, d, sizeof d);
    }
    return hash;
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static uint64_t hash_rcp14(void)
{
    uint64_t hash = hash_start;
    for (int i = 0; i < ARGUMENTS; i++) {
        float r[16];
        _mm512_storeu_ps(r, _mm512_rcp14_ps(_mm512_set1_ps(1.0f + (float)i / ARGUMENTS)));
        hash = hash_bytes(hash, r, sizeof *r);
    }
    return hash;
}
#endif

static uint64_t hash_jpeg(char *const *paths, int count)
{
    uint64_t hash = hash_start;
    for (int i = 0; i < count; i++) {
        FILE *f = fopen(paths[i], "rbe");
        require(f != NULL, paths[i]);
        struct jpeg_decompress_struct info;
        struct jpeg_error_mgr manager;
        info.err = jpeg_std_error(&manager);
        jpeg_create_decompress(&info);
        jpeg_stdio_src(&info, f);
        jpeg_read_header(&info, TRUE);
        info.dct_method = JDCT_ISLOW;
        jpeg_start_decompress(&info);
        size_t bytes = (size_t)info.output_width * (size_t)info.output_components;
        unsigned char *row = malloc(bytes);
        require(row != NULL, "malloc");
        while (info.output_scanline < info.output_height) {
            jpeg_read_scanlines(&info, &row, 1);
            hash = hash_bytes(hash, row, bytes);
        }
        free(row);
        jpeg_destroy_decompress(&info);
        fclose(f);
    }
    return hash;
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    printf("kernels %s%s\n", gemm_amx_available() ? "amx " : "", cpu_ops_select()->isa);
    printf("libm %016llx\n", (unsigned long long)hash_libm());
    printf("libjpeg %016llx\n", (unsigned long long)hash_jpeg(argv + 1, argc - 1));
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) printf("rcp14 %016llx\n", (unsigned long long)hash_rcp14());
#endif
    return 0;
}
