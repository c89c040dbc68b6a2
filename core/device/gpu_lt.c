/* GEMM with bias by hipBLASLt or cuBLASLt, loaded when a card is opened. See gpu.h.
 *
 * The two have the same interface with different enumerations (blas_api.h). The values differ before HIP 6,
 * so hipBLASLt is not used there (DTK). GEMMs with known results verify a library. Only the algorithm is kept
 * from the libraries' structures; both have it at the front of a result.
 *
 * The algorithm for a shape is the first one of the library's heuristic, or the run's choice
 * (gemm_choices.h). The former depends on shape, card and library only, so equal runs use the same algorithm.
 * Alignments above 16 bytes, which differ between layouts of memory, are not reported to the heuristic.
 * cuBLASLt's split-k sums are restricted to an extra pass with a fixed order. Column-major as in gpu_blas.c:
 * operands are swapped, so that C's columns are the rows to which the library adds the bias.
 */
#include "core/device/gpu_lt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct lt_numbers vendor[DRIVER_KINDS] = {
    {HIPBLASLT_COMPUTE_F32, HIPBLASLT_F32, HIPBLASLT_BF16, HIPBLASLT_PLAIN, HIPBLASLT_TRANSPOSED,
     HIPBLASLT_TRANSPOSE_A, HIPBLASLT_TRANSPOSE_B, HIPBLASLT_EPILOGUE, HIPBLASLT_BIAS, HIPBLASLT_WORKSPACE,
     -1, -1, HIPBLASLT_VERSION, "HIP 6", "hipblasLt", LIBRARY_HIPBLASLT, 24, 56, 32},
    {CUBLAS_COMPUTE_F32, CUBLAS_F32, CUBLAS_BF16, CUBLASLT_PLAIN, CUBLASLT_TRANSPOSED, CUBLASLT_TRANSPOSE_A,
     CUBLASLT_TRANSPOSE_B, CUBLASLT_EPILOGUE_OF, CUBLASLT_BIAS, CUBLASLT_WORKSPACE, CUBLASLT_REDUCTION,
     CUBLASLT_ALIGNMENT, CUBLASLT_VERSION, "CUDA 11", "cublasLt", LIBRARY_CUBLASLT, 64, 96, 72},
};

static const struct {
    const char *name;
    size_t at;
} entries[] = {
#define ROW(member, name, arguments) {#name, offsetof(struct lt, call.member)},
    LT_ENTRIES(ROW)};

int lt_heuristic(struct lt *lt, const struct lt_plan *p, int wanted, void *results, int *found)
{
    const struct lt_numbers *is = lt->is;
    void *preference = NULL;
    uint64_t workspace = LT_WORKSPACE_BYTES;
    uint32_t reduction = LT_REDUCTION_IN_COMPUTE_TYPE;
    const uint32_t aligned[4] = {p->key.aligned[1], p->key.aligned[0], p->key.aligned[2], p->key.aligned[2]};
    int code = lt->call.preference_create(&preference);
    *found = 0;
    if (!code) code = lt->call.preference_set(preference, is->workspace, &workspace, sizeof workspace);
    if (!code && is->reduction >= 0)
        code = lt->call.preference_set(preference, is->reduction, &reduction, sizeof reduction);
    for (int i = 0; i < 4 && !code && is->alignment >= 0; i++)
        code = lt->call.preference_set(preference, is->alignment + i, &aligned[i], sizeof aligned[i]);
    if (!code)
        code = lt->call.heuristic(lt->handle, p->description, p->a, p->b, p->c, p->c, preference, wanted,
                                  results, found);
    if (preference) lt->call.preference_destroy(preference);
    return code;
}

static int describe(struct lt *lt, struct lt_plan *p, const void *bias)
{
    const struct lt_numbers *is = lt->is;
    const struct gemm_key *k = &p->key;
    int in = k->in16 ? is->bf16 : is->f32, out = k->out16 ? is->bf16 : is->f32;
    int32_t first = k->transpose_b ? is->transposed : is->plain,
            second = k->transpose_a ? is->transposed : is->plain;
    uint32_t epilogue = k->bias ? LT_EPILOGUE_BIAS : LT_EPILOGUE_NONE;
    uint64_t m = (uint64_t)k->m, n = (uint64_t)k->n, depth = (uint64_t)k->k;
    int code = lt->call.product_create(&p->description, is->compute_f32, is->f32);
    if (!code) code = lt->call.gemm_isa(p->description, is->transpose_a, &first, sizeof first);
    if (!code) code = lt->call.gemm_isa(p->description, is->transpose_b, &second, sizeof second);
    if (!code) code = lt->call.gemm_isa(p->description, is->epilogue, &epilogue, sizeof epilogue);
    if (!code && k->bias) code = lt->call.gemm_isa(p->description, is->bias, &bias, sizeof bias);
    if (!code)
        code =
            lt->call.layout_create(&p->a, in, k->transpose_b ? depth : n, k->transpose_b ? n : depth, k->ldb);
    if (!code)
        code =
            lt->call.layout_create(&p->b, in, k->transpose_a ? m : depth, k->transpose_a ? depth : m, k->lda);
    if (!code) code = lt->call.layout_create(&p->c, out, n, m, k->ldc);
    int found = 0;
    if (!code) code = lt_heuristic(lt, p, 1, p->result, &found);
    return code || found < 1;
}

/* Returns the matmul of that shape, created at its first use; NULL when there are too many. */
static struct lt_plan *find(struct lt *lt, const struct gemm_key *key, const void *bias)
{
    for (int i = 0; i < lt->count; i++)
        if (memcmp(&lt->plans[i].key, key, sizeof *key) == 0) return &lt->plans[i];
    if (lt->count == LT_PLANS) return NULL;
    struct lt_plan *p = &lt->plans[lt->count++];
    p->key = *key;
    p->usable = describe(lt, p, bias) == 0;
    return p;
}

static uint32_t alignment(const struct lt *lt, const void *p)
{
    uintptr_t bits = (uintptr_t)p;
    uint32_t low = (uint32_t)(bits & (~bits + 1));
    return lt->is->alignment < 0 || low == 0 || low > LT_ALIGNED ? LT_ALIGNED : low;
}

int lt_multiply(struct gpu *gpu, const struct lt_plan *p, const struct gemm *g, const void *result)
{
    struct lt *lt = gpu->lt;
    return lt->call.multiply(lt->handle, p->description, &g->alpha, g->b, p->a, g->a, p->b, &g->beta, g->c,
                             p->c, g->c, p->c, result, lt->workspace, LT_WORKSPACE_BYTES, gpu->stream);
}

bool lt_gemm(struct device *dev, const struct gemm *g)
{
    struct gpu *gpu = gpu_of(dev);
    struct lt *lt = gpu->lt;
    bool in16 = g->ab_type == DTYPE_BF16, out16 = g->c_type == DTYPE_BF16;
    if ((!lt && !gpu->lt_planned) || g->m <= 0 || g->n <= 0 || g->k <= 0 || (!in16 && out16)) return false;
    const void *bias = g->bias;
    if (bias && out16) { /* the library accepts a bias only in the dtype of C */
        bias = gpu_reserve(dev, (size_t)g->n * 2);
        if (!bias) return true; /* counted on a dry card; else device_check reports it */
    }
    if (!lt) return false;
    struct gemm_key key = {
        g->m,
        g->n,
        g->k,
        g->lda,
        g->ldb,
        g->ldc,
        {alignment(lt, g->a), alignment(lt, g->b), alignment(lt, g->c), alignment(lt, bias)},
        g->transpose_a,
        g->transpose_b,
        in16,
        out16,
        bias != NULL,
        {0, 0, 0}};
    struct lt_plan *p = find(lt, &key, bias);
    if (!p || !p->usable) return false;
    if (bias && out16) {
        const float *from = g->bias;
        int64_t n = g->n;
        gpu_launch(dev, "cast_f32_bf16", gpu_blocks(dev, n), 1, (void *[]){&from, &bias, &n});
    }
    int code = bias ? lt->call.gemm_isa(p->description, lt->is->bias, &bias, sizeof bias) : 0;
    if (!code) lt_prepare(dev, p, g);
    if (!code) code = lt_multiply(gpu, p, g, p->result);
    p->usable = code == 0;
    return p->usable || gpu_refused(dev, g, lt->path, code);
}

/* A GEMM of small integers, exact in bf16: C = 2 A B^T + bias, or C = A^T B - C in fp32. */
static bool probe(struct device *dev, bool second)
{
    enum { M = 24, N = 40, K = 32 };
    static const uint16_t bf16[] = {0xC000, 0xBF80, 0, 0x3F80, 0x4000}; /* -2 to 2 */
    struct error ignored;
    uint16_t a[M * K], b[N * K], c16[M * N] = {0};
    float c[M * N], bias[N];
    for (int i = 0; i < M * K; i++) a[i] = bf16[i * 7 % 11 % 5];
    for (int i = 0; i < N * K; i++) b[i] = bf16[i * 5 % 13 % 5];
    for (int i = 0; i < M * N; i++) c[i] = (float)(i % 9);
    for (int i = 0; i < N; i++) bias[i] = (float)(i - 7);
    char *p = device_alloc(dev, MEMORY_WORKSPACE, sizeof a + sizeof b + sizeof c + sizeof bias, "GEMM probe",
                           &ignored);
    if (!p) return false;
    char *pb = p + sizeof a, *pc = pb + sizeof b, *pbias = pc + sizeof c;
    struct gemm g = {M,
                     N,
                     K,
                     second,
                     !second,
                     p,
                     pb,
                     pc,
                     second ? M : K,
                     second ? N : K,
                     N,
                     DTYPE_BF16,
                     second ? DTYPE_F32 : DTYPE_BF16,
                     second ? 1 : 2,
                     second ? -1 : 0,
                     second ? NULL : (const float *)(void *)pbias,
                     false};
    dev->upload(dev, p, a, sizeof a);
    dev->upload(dev, pb, b, sizeof b);
    dev->upload(dev, pc, c, sizeof c);
    dev->upload(dev, pbias, bias, sizeof bias);
    bool right = lt_gemm(dev, &g);
    dev->sync(dev);
    float result[M * N];
    if (second) dev->download(dev, result, pc, sizeof result);
    else dev->download(dev, c16, pc, sizeof c16);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N && right; j++) {
            int sum = 0;
            for (int l = 0; l < K; l++) {
                int x = (second ? l * M + i : i * K + l) * 7 % 11 % 5 - 2,
                    y = (second ? l * N + j : j * K + l) * 5 % 13 % 5 - 2;
                sum += x * y;
            }
            uint32_t bits = (uint32_t)c16[i * N + j] << 16;
            if (!second) memcpy(&result[i * N + j], &bits, sizeof bits);
            right = result[i * N + j] == (second ? (float)sum - c[i * N + j] : 2 * (float)sum + bias[j]);
        }
    right = right && !dev->pending.code;
    device_free(dev, p);
    device_free(dev, gpu_of(dev)->workspace); /* of the bias: training reserves what it needs */
    gpu_of(dev)->workspace = NULL;
    gpu_of(dev)->workspace_bytes = 0;
    return right;
}

/* Opens the library. NULL: not installed, disabled, or the driver is too old for it; library->why has the
 * reason. */
static void *library_of(const struct driver *driver, struct library *library)
{
    const struct lt_numbers *is = &vendor[driver->kind];
    char text[64];
    int version = 0;
    if (driver->version(&version) == 0 && version >= is->driver) return library_open(is->library, library);
    snprintf(library->why, sizeof library->why, N_("requires %s or later, found %s"), is->needs,
             gpu_version_text(driver, text, sizeof text));
    return NULL;
}

static void *workspace_of(struct device *dev)
{
    struct error ignored;
    return device_alloc(dev, MEMORY_WORKSPACE, LT_WORKSPACE_BYTES, "GEMM scratch", &ignored);
}

void lt_count(struct device *dev, const struct driver *driver)
{
    struct library library;
    gpu_of(dev)->lt_planned = !driver || library_of(driver, &library);
    if (gpu_of(dev)->lt_planned) workspace_of(dev);
}

/* cuBLASLt and hipBLASLt report their versions by calls of different types. */
static void read_version(struct lt *lt, void *library, enum driver_kind kind)
{
    union {
        void *symbol;
        size_t (*cuda)(void);
        int (*hip)(void *handle, int *version);
    } get;
    char name[64];
    int number = 0;
    snprintf(name, sizeof name, "%sGetVersion", lt->is->prefix);
    get.symbol = dlsym(library, name);
    if (get.symbol && kind == DRIVER_CUDA) number = (int)get.cuda();
    else if (get.symbol && get.hip(lt->handle, &number)) number = 0;
    snprintf(lt->version, sizeof lt->version, "%s %d", lt->is->prefix, number);
}

struct lt *lt_open(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    const struct lt_numbers *is = &vendor[gpu->driver.kind];
    char name[64];
    struct library library;
    gpu->lt_why[0] = 0;
    if (!library_of(&gpu->driver, &library)) {
        snprintf(gpu->lt_why, sizeof gpu->lt_why, "%.150s", library.why);
        return NULL;
    }
    struct lt *lt = calloc(1, sizeof *lt);
    struct lt_plan *plans = calloc(LT_PLANS, sizeof *plans);
    if (!lt || !plans) {
        free(lt);
        free(plans);
        return NULL;
    }
    lt->is = is;
    snprintf(lt->path, sizeof lt->path, "%s", library.path);
    lt->plans = plans;
    bool whole = true;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        snprintf(name, sizeof name, "%s%s", is->prefix, entries[i].name);
        void *p = dlsym(library.handle, name);
        whole = whole && p;
        memcpy((char *)lt + entries[i].at, &p, sizeof p);
    }
    whole = whole && lt->call.create(&lt->handle) == 0;
    if (whole) read_version(lt, library.handle, gpu->driver.kind);
    if (whole) lt->workspace = workspace_of(dev);
    gpu->lt = lt; /* for the probes */
    if (whole && lt->workspace && probe(dev, false) && probe(dev, true)) return lt;
    snprintf(gpu->lt_why, sizeof gpu->lt_why, "%.120s %s", lt->path,
             !whole ? N_("lacks required functions") : N_("gives wrong results"));
    dev->pending.code = 0;
    device_free(dev, lt->workspace);
    lt_close(lt);
    return gpu->lt = NULL;
}

void lt_close(struct lt *lt)
{
    if (!lt) return;
    for (int i = 0; i < lt->count; i++) {
        struct lt_plan *p = &lt->plans[i];
        void *const layouts[] = {p->a, p->b, p->c};
        for (int k = 0; k < 3; k++)
            if (layouts[k]) lt->call.layout_destroy(layouts[k]);
        if (p->description) lt->call.product_destroy(p->description);
    }
    if (lt->handle) lt->call.destroy(lt->handle);
    free(lt->plans);
    free(lt->found);
    free(lt->used);
    free(lt);
}

const char *lt_path(const struct lt *lt) { return lt->path; }
