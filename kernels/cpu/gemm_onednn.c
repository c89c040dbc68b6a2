/* Matrix products through oneDNN (2.6 and 3.x), one compiled primitive per shape, scratchpad from the caller:
 * for fp32 on processors without AVX-512 (else products are our own, gemm.c), and as a peak to compare with.
 *
 * fp32 products are true fp32: the math mode is set to strict, whatever DNNL_DEFAULT_FPMATH_MODE says.
 * A failing oneDNN call means a shape it cannot do (never seen) or no memory for its own small objects: the
 * first one that fails is kept by name, and nothing is done from then on.
 */
#include "kernels/cpu/gemm_onednn.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    struct matmul shape; /* pointers NULL, but bias when there is one */
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, bias, scratchpad;
    size_t scratch_bytes;
    struct entry *next;
};

enum { BUCKETS = 256 };
struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct entry *buckets[BUCKETS];
    char why[128]; /* the first call that failed; "" when none did */
};

/* Keeps the first failure; false when there has been one. */
static bool require(struct onednn *cache, dnnl_status_t status, const char *call)
{
    if (status != dnnl_success && !cache->why[0])
        snprintf(cache->why, sizeof cache->why, "%.80s failed with status %d", call, (int)status);
    return !cache->why[0];
}
#define REQUIRE(call) (cache->why[0] ? false : require(cache, call, #call))

struct onednn *onednn_open(void)
{
    struct onednn *cache = calloc(1, sizeof *cache);
    if (!cache) return NULL;
    if (REQUIRE(dnnl_engine_create(&cache->engine, dnnl_cpu, 0)) &&
        REQUIRE(dnnl_stream_create(&cache->stream, cache->engine, dnnl_stream_default_flags)))
        return cache;
    onednn_close(cache);
    return NULL;
}

const char *onednn_why(const struct onednn *cache) { return cache->why; }

static void entry_free(struct entry *entry)
{
    if (entry->primitive) { /* NULL: not supported */
        dnnl_primitive_destroy(entry->primitive);
        dnnl_memory_destroy(entry->a);
        dnnl_memory_destroy(entry->b);
        dnnl_memory_destroy(entry->c);
        dnnl_memory_destroy(entry->bias);
        dnnl_memory_destroy(entry->scratchpad);
    }
    free(entry);
}

void onednn_close(struct onednn *cache)
{
    if (!cache) return;
    for (int i = 0; i < BUCKETS; i++)
        while (cache->buckets[i]) {
            struct entry *entry = cache->buckets[i];
            cache->buckets[i] = entry->next;
            entry_free(entry);
        }
    if (cache->stream) dnnl_stream_destroy(cache->stream);
    if (cache->engine) dnnl_engine_destroy(cache->engine);
    free(cache);
}

/* The two versions differ in how descriptors are held: 2.x by value, 3.x by handle. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t descriptor;
#define DESCRIPTOR(d) (d)
static void describe(struct onednn *cache, descriptor *d, int64_t rows, int64_t columns,
                     dnnl_data_type_t type, int64_t stride_row, int64_t stride_column)
{
    dnnl_dims_t dims = {rows, columns}, strides = {stride_row, stride_column};
    (void)REQUIRE(dnnl_memory_desc_create_with_strides(d, 2, dims, type, strides));
}
static void forget(descriptor *d)
{
    if (*d) dnnl_memory_desc_destroy(*d);
}
#else
typedef dnnl_memory_desc_t descriptor;
#define DESCRIPTOR(d) (&(d))
static void describe(struct onednn *cache, descriptor *d, int64_t rows, int64_t columns,
                     dnnl_data_type_t type, int64_t stride_row, int64_t stride_column)
{
    dnnl_dims_t dims = {rows, columns}, strides = {stride_row, stride_column};
    (void)REQUIRE(dnnl_memory_desc_init_by_strides(d, 2, dims, type, strides));
}
static void forget(descriptor *d) { (void)d; }
#endif

/* alpha by an eltwise operation before beta's sum;
 * only then must the bias come last (not scaled), as a binary one. */
static dnnl_primitive_attr_t attributes(struct onednn *cache, const struct matmul *g, descriptor bias)
{
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    (void)REQUIRE(dnnl_primitive_attr_create(&attr));
    (void)REQUIRE(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    (void)REQUIRE(dnnl_primitive_attr_set_fpmath_mode(attr, dnnl_fpmath_mode_strict));
    (void)REQUIRE(dnnl_post_ops_create(&ops));
#if DNNL_VERSION_MAJOR >= 3
    if (g->alpha != 1.0f)
        (void)REQUIRE(dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_linear, g->alpha, 0.0f));
    if (g->beta != 0.0f) (void)REQUIRE(dnnl_post_ops_append_sum(ops, g->beta, 0, dnnl_data_type_undef));
#else
    if (g->alpha != 1.0f)
        (void)REQUIRE(dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_linear, g->alpha, 0.0f));
    if (g->beta != 0.0f) (void)REQUIRE(dnnl_post_ops_append_sum(ops, g->beta));
#endif
    if (g->alpha != 1.0f && g->bias)
        (void)REQUIRE(dnnl_post_ops_append_binary(ops, dnnl_binary_add, DESCRIPTOR(bias)));
    (void)REQUIRE(dnnl_primitive_attr_set_post_ops(attr, ops));
    if (ops) dnnl_post_ops_destroy(ops);
    return attr;
}

/* The memory objects of a supported product, their data pointers to come. */
static void entry_fill(struct onednn *cache, struct entry *entry, dnnl_primitive_desc_t pd,
                       const descriptor operands[4])
{
    dnnl_memory_t *memories[4] = {&entry->a, &entry->b, &entry->c, &entry->bias};
#if DNNL_VERSION_MAJOR >= 3
    const_dnnl_memory_desc_t scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
#else
    const dnnl_memory_desc_t *scratchpad = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
#endif
    entry->scratch_bytes = dnnl_memory_desc_get_size(scratchpad);
    (void)REQUIRE(dnnl_primitive_create(&entry->primitive, pd));
    (void)REQUIRE(dnnl_memory_create(&entry->scratchpad, scratchpad, cache->engine, DNNL_MEMORY_NONE));
    for (int i = 0; i < 4; i++)
        (void)REQUIRE(
            dnnl_memory_create(memories[i], DESCRIPTOR(operands[i]), cache->engine, DNNL_MEMORY_NONE));
}

static struct entry *entry_create(struct onednn *cache, const struct matmul *g)
{
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry) {
        require(cache, dnnl_out_of_memory, "an entry of the cache");
        return NULL;
    }
    memcpy(&entry->shape, g, sizeof *g); /* with its zeroed padding: compared by memcmp */
    dnnl_data_type_t in = g->ab_bf16 ? dnnl_bf16 : dnnl_f32, out = g->c_bf16 ? dnnl_bf16 : dnnl_f32;
    descriptor a = {0}, b = {0}, c = {0}, bias = {0};
    describe(cache, &a, g->m, g->k, in, g->transpose_a ? 1 : g->lda, g->transpose_a ? g->lda : 1);
    describe(cache, &b, g->k, g->n, in, g->transpose_b ? 1 : g->ldb, g->transpose_b ? g->ldb : 1);
    describe(cache, &c, g->m, g->n, out, g->ldc, 1);
    describe(cache, &bias, 1, g->n, dnnl_f32, g->n, 1);
    dnnl_primitive_attr_t attr = attributes(cache, g, bias);
    bool plain_bias = g->bias && g->alpha == 1.0f;

    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_success;
#if DNNL_VERSION_MAJOR >= 3
    if (!cache->why[0])
        status =
            dnnl_matmul_primitive_desc_create(&pd, cache->engine, a, b, plain_bias ? bias : NULL, c, attr);
#else
    dnnl_matmul_desc_t desc;
    if (REQUIRE(dnnl_matmul_desc_init(&desc, &a, &b, plain_bias ? &bias : NULL, &c)))
        status = dnnl_primitive_desc_create(&pd, &desc, attr, cache->engine, NULL);
#endif
    if (status == dnnl_success && pd) {
        entry_fill(cache, entry, pd, (descriptor[]){a, b, c, bias});
        dnnl_primitive_desc_destroy(pd);
    } else if (status != dnnl_unimplemented) require(cache, status, "dnnl_primitive_desc_create");
    if (attr) dnnl_primitive_attr_destroy(attr);
    forget(&a);
    forget(&b);
    forget(&c);
    forget(&bias);
    return entry;
}

/* What makes two products the same to oneDNN, without padding bytes. */
static struct matmul shape_of(const struct matmul *g)
{
    struct matmul shape;
    memset(&shape, 0, sizeof shape);
    shape.m = g->m;
    shape.n = g->n;
    shape.k = g->k;
    shape.transpose_a = g->transpose_a;
    shape.transpose_b = g->transpose_b;
    shape.lda = g->lda;
    shape.ldb = g->ldb;
    shape.ldc = g->ldc;
    shape.ab_bf16 = g->ab_bf16;
    shape.c_bf16 = g->c_bf16;
    shape.alpha = g->alpha;
    shape.beta = g->beta;
    static const float some;
    shape.bias = g->bias ? &some : NULL;
    return shape;
}

static struct entry *entry_find(struct onednn *cache, const struct matmul *product)
{
    struct matmul shape = shape_of(product);
    uint64_t hash = (uint64_t)(shape.m * 31 + shape.n * 1009 + shape.k * 7919 + shape.transpose_a * 2 +
                               shape.transpose_b) *
                    0x9E3779B97F4A7C15u;
    struct entry **bucket = &cache->buckets[hash >> 56];
    for (struct entry *entry = *bucket; entry; entry = entry->next)
        if (memcmp(&entry->shape, &shape, sizeof shape) == 0) return entry;
    struct entry *entry = entry_create(cache, &shape);
    if (!entry) return NULL;
    entry->next = *bucket;
    *bucket = entry;
    return entry;
}

enum onednn_answer onednn_supports(struct onednn *cache, const struct matmul *product)
{
    const struct entry *entry = cache->why[0] ? NULL : entry_find(cache, product);
    return !entry || cache->why[0] ? ONEDNN_FAILED : entry->primitive ? ONEDNN_YES : ONEDNN_NO;
}

size_t onednn_scratch(struct onednn *cache, const struct matmul *product)
{
    const struct entry *entry = entry_find(cache, product);
    return entry ? entry->scratch_bytes : 0;
}

bool onednn_run(struct onednn *cache, const struct matmul *product, void *scratch)
{
    struct entry *entry = entry_find(cache, product);
    if (!entry || !entry->primitive) return false;
    (void)REQUIRE(dnnl_memory_set_data_handle(entry->a, (void *)(uintptr_t)product->a));
    (void)REQUIRE(dnnl_memory_set_data_handle(entry->b, (void *)(uintptr_t)product->b));
    (void)REQUIRE(dnnl_memory_set_data_handle(entry->c, product->c));
    (void)REQUIRE(dnnl_memory_set_data_handle(entry->scratchpad, scratch));
    dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, entry->a},
                               {DNNL_ARG_WEIGHTS, entry->b},
                               {DNNL_ARG_DST, entry->c},
                               {DNNL_ARG_SCRATCHPAD, entry->scratchpad}};
    int count = 4;
    if (product->bias) {
        (void)REQUIRE(dnnl_memory_set_data_handle(entry->bias, (void *)(uintptr_t)product->bias));
        int binary_at = product->beta != 0.0f ? 2 : 1;
        args[count++] = (dnnl_exec_arg_t){product->alpha == 1.0f
                                              ? DNNL_ARG_BIAS
                                              : DNNL_ARG_ATTR_MULTIPLE_POST_OP(binary_at) | DNNL_ARG_SRC_1,
                                          entry->bias};
    }
    (void)REQUIRE(dnnl_primitive_execute(entry->primitive, cache->stream, count, args));
    return REQUIRE(dnnl_stream_wait(cache->stream));
}
