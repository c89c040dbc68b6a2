/* Prints what the bits of a run depend on besides the code: the kernels that meopt selects on this processor,
 * and what oneDNN, libm, libjpeg and the processor's approximations give for fixed inputs, each called
 * directly. The test `bits` compares weights only where these are what they were when its table was recorded.
 *
 *     bits_arithmetic PRODUCTS IMAGE...     one line for each part: its name and a hash of its results
 *
 * PRODUCTS has a line for each matrix product, "sgemm|f32|bf16 TRANSPOSE_A TRANSPOSE_B M N K BIAS BETA OUT":
 * the kinds and shapes that the runs of the test ask for, through dnnl_sgemm or as a matmul primitive whose
 * result is OUT (f32 or bf16). One that oneDNN does not have is hashed as such. */
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"

#include <math.h>
#include <oneapi/dnnl/dnnl.h>
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
#define REQUIRE(call) require((call) == dnnl_success, #call)

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

/* ---- Matrix products
 * ------------------------------------------------------------------------------------------ */

struct product {
    char kind[8], transpose_a, transpose_b;
    int64_t m, n, k;
    int bias, beta;
    char out[8];
};

static void *operand(int64_t count, int bf16, uint32_t seed)
{
    float *x = malloc((size_t)count * sizeof *x);
    require(x != NULL, "malloc");
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float value = (float)(seed >> 8) / 8388608.0f - 1.0f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (bf16) ((uint16_t *)(void *)x)[i] = (uint16_t)(bits >> 16);
        else x[i] = value;
    }
    return x;
}

static dnnl_memory_t memory(dnnl_engine_t engine, int64_t rows, int64_t columns, dnnl_data_type_t type,
                            int transposed, void *data)
{
    dnnl_dims_t dims = {rows, columns}, strides = {transposed ? 1 : columns, transposed ? rows : 1};
    dnnl_memory_desc_t d;
    dnnl_memory_t m;
#if DNNL_VERSION_MAJOR >= 3
    REQUIRE(dnnl_memory_desc_create_with_strides(&d, 2, dims, type, strides));
    REQUIRE(dnnl_memory_create(&m, d, engine, data));
    dnnl_memory_desc_destroy(d);
#else
    REQUIRE(dnnl_memory_desc_init_by_strides(&d, 2, dims, type, strides));
    REQUIRE(dnnl_memory_create(&m, &d, engine, data));
#endif
    return m;
}

/* memories: a, b, bias (or NULL), c. Not there in oneDNN: NULL. */
static dnnl_primitive_t primitive(dnnl_engine_t engine, const dnnl_memory_t memories[4], int beta)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t made = NULL;
    REQUIRE(dnnl_primitive_attr_create(&attr));
    REQUIRE(dnnl_primitive_attr_set_fpmath_mode(attr, dnnl_fpmath_mode_strict));
    REQUIRE(dnnl_post_ops_create(&ops));
#if DNNL_VERSION_MAJOR >= 3
    const_dnnl_memory_desc_t d[4] = {0};
    if (beta) REQUIRE(dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef));
#else
    const dnnl_memory_desc_t *d[4] = {0};
    if (beta) REQUIRE(dnnl_post_ops_append_sum(ops, 1.0f));
#endif
    REQUIRE(dnnl_primitive_attr_set_post_ops(attr, ops));
    for (int i = 0; i < 4; i++)
        if (memories[i]) REQUIRE(dnnl_memory_get_memory_desc(memories[i], &d[i]));
#if DNNL_VERSION_MAJOR >= 3
    dnnl_status_t status = dnnl_matmul_primitive_desc_create(&pd, engine, d[0], d[1], d[2], d[3], attr);
#else
    dnnl_matmul_desc_t desc;
    REQUIRE(dnnl_matmul_desc_init(&desc, d[0], d[1], d[2], d[3]));
    dnnl_status_t status = dnnl_primitive_desc_create(&pd, &desc, attr, engine, NULL);
#endif
    if (status == dnnl_success) {
        REQUIRE(dnnl_primitive_create(&made, pd));
        dnnl_primitive_desc_destroy(pd);
    } else require(status == dnnl_unimplemented, "dnnl_primitive_desc_create");
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return made;
}

static int multiply(dnnl_engine_t engine, dnnl_stream_t stream, const struct product *p, void *a, void *b,
                    void *bias, void *c)
{
    dnnl_data_type_t in = strcmp(p->kind, "bf16") == 0 ? dnnl_bf16 : dnnl_f32,
                     out = strcmp(p->out, "bf16") == 0 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_t m[4] = {memory(engine, p->m, p->k, in, p->transpose_a == 'T', a),
                          memory(engine, p->k, p->n, in, p->transpose_b == 'T', b),
                          p->bias ? memory(engine, 1, p->n, dnnl_f32, 0, bias) : NULL,
                          memory(engine, p->m, p->n, out, 0, c)};
    dnnl_primitive_t made = primitive(engine, m, p->beta);
    if (made) {
        dnnl_exec_arg_t args[] = {
            {DNNL_ARG_SRC, m[0]}, {DNNL_ARG_WEIGHTS, m[1]}, {DNNL_ARG_DST, m[3]}, {DNNL_ARG_BIAS, m[2]}};
        REQUIRE(dnnl_primitive_execute(made, stream, p->bias ? 4 : 3, args));
        REQUIRE(dnnl_stream_wait(stream));
        dnnl_primitive_destroy(made);
    }
    for (int i = 0; i < 4; i++)
        if (m[i]) dnnl_memory_destroy(m[i]);
    return made != NULL;
}

static uint64_t hash_products(const char *path)
{
    FILE *f = fopen(path, "re");
    require(f != NULL, path);
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    REQUIRE(dnnl_engine_create(&engine, dnnl_cpu, 0));
    REQUIRE(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    uint64_t hash = hash_start;
    struct product p;
    long long m, n, k;
    while (fscanf(f, "%7s %c %c %lld %lld %lld %d %d %7s", p.kind, &p.transpose_a, &p.transpose_b, &m, &n, &k,
                  &p.bias, &p.beta, p.out) == 9) {
        int narrow = strcmp(p.kind, "bf16") == 0, there = 1;
        p.m = m, p.n = n, p.k = k;
        void *a = operand(m * k, narrow, 1), *b = operand(k * n, narrow, 2), *bias = operand(n, 0, 3),
             *c = operand(m * n, strcmp(p.out, "bf16") == 0, 4);
        if (strcmp(p.kind, "sgemm") == 0)
            REQUIRE(dnnl_sgemm(p.transpose_a, p.transpose_b, m, n, k, 1.0f, a, p.transpose_a == 'T' ? m : k,
                               b, p.transpose_b == 'T' ? k : n, (float)p.beta, c, n));
        else there = multiply(engine, stream, &p, a, b, bias, c);
        hash = hash_bytes(hash, &there, sizeof there);
        hash = hash_bytes(hash, c, (size_t)(m * n) * (strcmp(p.out, "bf16") == 0 ? 2 : 4));
        free(a);
        free(b);
        free(bias);
        free(c);
    }
    require(feof(f) != 0, "reading the products");
    fclose(f);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return hash;
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    printf("kernels %s%s\n", gemm_amx_available() ? "amx " : "", cpu_ops_select()->isa);
    printf("libm %016llx\n", (unsigned long long)hash_libm());
    printf("libjpeg %016llx\n", (unsigned long long)hash_jpeg(argv + 2, argc - 2));
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) printf("rcp14 %016llx\n", (unsigned long long)hash_rcp14());
#endif
    printf("oneDNN %016llx isa %x\n", (unsigned long long)hash_products(argv[1]),
           (unsigned)dnnl_get_effective_cpu_isa());
    return 0;
}
