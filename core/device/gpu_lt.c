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
#include "core/base/clock.h"
#include "core/base/log.h"

#include <dlfcn.h>
#include <math.h>
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

/* Asks the heuristic for `wanted` results. Returns 0 or the library's code; *found: their number. */
static int lt_heuristic(struct lt *lt, const struct lt_plan *p, int wanted, void *results, int *found)
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

/* Starts the GEMM with the algorithm of `result`. 0, or the library's code. */
static int lt_multiply(struct gpu *gpu, const struct lt_plan *p, const struct gemm *g, const void *result)
{
    struct lt *lt = gpu->lt;
    return lt->call.multiply(lt->handle, p->description, &g->alpha, g->b, p->a, g->a, p->b, &g->beta, g->c,
                             p->c, g->c, p->c, result, lt->workspace, LT_WORKSPACE_BYTES, gpu->stream);
}

/* ---- trials of algorithms: see gemm_choices.h ----
 *
 * The heuristic's first result is an estimate, and its next ones are often faster. Each of the first eight is
 * timed on the operands of the first GEMM of a shape. The winner must be 3 % faster than the first one, give
 * the same bits twice, and agree with the first one's result. A GEMM that adds to its result (beta) changes
 * it at each trial: the result is kept in host memory meanwhile. */
static const double worth = 0.97;         /* of the first one's time */
static const double agreement = 1.0 / 64; /* relative difference of norms: two roundings to bf16 */
static const double run_seconds = 1e-3;   /* of one measurement */
enum {
    MOST_RUNS = 20,
    WINDOW_BYTES = 4 << 20, /* compared at the begin and at the end of the result */
    BUFFER = LT_TRIED * LT_RESULT_BYTES
};

/* Returns the number of results in `all`, of the size in the table; 0: the library writes another layout. */
static int list_results(struct lt *lt, const struct lt_plan *p, unsigned char *all)
{
    enum { MARK = 0xA5 };
    size_t each = (size_t)lt->is->result_bytes;
    int found = 0, again = 0;
    memset(all, MARK, BUFFER);
    if (lt_heuristic(lt, p, LT_TRIED, all, &found) || found < 1 || found > LT_TRIED) return 0;
    size_t used = BUFFER;
    while (used > 0 && all[used - 1] == MARK) used--;
    if (used > (size_t)found * each || used + each <= (size_t)found * each + (size_t)lt->is->algorithm_bytes)
        return 0;
    memset(all, 0, BUFFER);
    return lt_heuristic(lt, p, LT_TRIED, all, &again) || again != found ? 0 : found;
}

static bool is_offered(const struct lt *lt, const unsigned char *result)
{
    int state;
    memcpy(&state, result + lt->is->state_at, sizeof state);
    return state == 0;
}

/* ---- choices ---- */

static const struct gemm_choice *find_choice(const struct gemm_choices *all, const struct gemm_key *key)
{
    for (int i = 0; all && i < all->count; i++)
        if (memcmp(&all->list[i].key, key, sizeof *key) == 0) return &all->list[i];
    return NULL;
}

static void look_up(struct device *dev, struct lt *lt, struct lt_plan *p)
{
    unsigned char all[BUFFER];
    const struct gemm_choice *choice = find_choice(lt->used, &p->key);
    p->looked_up = true;
    int count = choice ? list_results(lt, p, all) : 0;
    for (int i = 0; i < count; i++) {
        const unsigned char *result = all + (size_t)i * (size_t)lt->is->result_bytes;
        if (memcmp(result, choice->algorithm, (size_t)lt->is->algorithm_bytes) != 0 ||
            !is_offered(lt, result))
            continue;
        memcpy(p->result, result, (size_t)lt->is->result_bytes);
        return;
    }
    if (choice)
        log_warn(
            "%s: the run's algorithm for a GEMM of %lld x %lld x %lld is not offered by %s here: its first "
            "one is used",
            dev->name, (long long)p->key.m, (long long)p->key.n, (long long)p->key.k, lt->version);
}

/* ---- trials ---- */

struct trial {
    struct device *dev;
    struct lt *lt;
    const struct lt_plan *plan;
    const struct gemm *gemm;
    size_t bytes; /* of C */
    char *kept;   /* C before the trials, if beta is not 0 */
};

static void restore(const struct trial *t)
{
    if (t->kept) gpu_upload(t->dev, t->gemm->c, t->kept, t->bytes);
}

/* Returns the seconds of `runs` GEMMs, infinity if the library refuses or the card fails. */
static double seconds_of(const struct trial *t, const unsigned char *result, int runs)
{
    double begin = clock_seconds();
    for (int i = 0; i < runs; i++)
        if (lt_multiply(gpu_of(t->dev), t->plan, t->gemm, result)) return INFINITY;
    gpu_sync(t->dev);
    return t->dev->pending.code ? INFINITY : clock_seconds() - begin;
}

/* Returns the seconds of one GEMM: the shorter of two means. One that is clearly slower than `best` is not
 * measured further. */
static double measure(const struct trial *t, const unsigned char *result, double best)
{
    double once = seconds_of(t, result, 1); /* loads the kernel */
    if (isfinite(once)) once = seconds_of(t, result, 1);
    if (!isfinite(once) || once > 2 * best) return once;
    int runs = once * MOST_RUNS < run_seconds ? MOST_RUNS : (int)(run_seconds / once) + 1;
    double a = seconds_of(t, result, runs), b = seconds_of(t, result, runs);
    return (a < b ? a : b) / runs;
}

static double value_at(const struct trial *t, const char *p, size_t i)
{
    float x;
    uint32_t bits;
    if (t->plan->key.out16) bits = (uint32_t)((const uint16_t *)(const void *)p)[i] << 16;
    else memcpy(&bits, p + 4 * i, sizeof bits);
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

/* Computes the result and copies its begin and its end to `window`. */
static bool fetch(const struct trial *t, const unsigned char *result, char *window, size_t part)
{
    restore(t);
    if (!isfinite(seconds_of(t, result, 1))) return false;
    gpu_download(t->dev, window, t->gemm->c, part);
    gpu_download(t->dev, window + part, (const char *)t->gemm->c + t->bytes - part, part);
    return !t->dev->pending.code;
}

/* Whether an algorithm gives the same bits twice, and the first one's result up to rounding. */
static bool agrees(const struct trial *t, const unsigned char *first, const unsigned char *other)
{
    size_t part = t->bytes < WINDOW_BYTES ? t->bytes : WINDOW_BYTES, each = t->plan->key.out16 ? 2 : 4;
    char *a = malloc(4 * part), *b = a ? a + 2 * part : NULL;
    double squares = 0, differ = 0;
    bool right = a && fetch(t, other, a, part) && fetch(t, other, b, part) && memcmp(a, b, 2 * part) == 0 &&
                 fetch(t, first, a, part);
    for (size_t i = 0; right && i < 2 * part / each; i++) {
        double x = value_at(t, a, i), d = value_at(t, b, i) - x;
        squares += x * x, differ += d * d;
    }
    free(a);
    return right && differ <= agreement * agreement * squares; /* false for NaN */
}

static void add_found(struct lt *lt, const struct lt_plan *p, const unsigned char *result, double first,
                      double ms)
{
    struct gemm_choices *found = lt->found;
    if (!found || found->count == GEMM_CHOICES || !isfinite(first)) return;
    struct gemm_choice *c = &found->list[found->count++];
    memset(c, 0, sizeof *c);
    c->key = p->key, c->first_ms = first, c->ms = ms;
    memcpy(c->algorithm, result, (size_t)lt->is->algorithm_bytes);
}

static void try_all(struct device *dev, struct lt *lt, struct lt_plan *p, const struct gemm *g)
{
    unsigned char all[BUFFER];
    struct trial t = {dev, lt, p, g, (size_t)g->m * (size_t)g->n * (p->key.out16 ? 2 : 4), NULL};
    int count = list_results(lt, p, all), best = 0;
    if (count < 1 || !is_offered(lt, all)) return;
    if (g->beta != 0 && g->ldc != g->n)
        return; /* other memory between the rows; its next use may be without */
    if (g->beta != 0 && count > 1) {
        if (!(t.kept = malloc(t.bytes))) return;
        gpu_download(dev, t.kept, g->c, t.bytes);
    }
    p->tried = true;
    double first = count > 1 ? measure(&t, all, INFINITY) : 0, least = first;
    for (int i = 1; i < count && isfinite(first); i++) {
        const unsigned char *result = all + (size_t)i * (size_t)lt->is->result_bytes;
        double seconds = is_offered(lt, result) ? measure(&t, result, least) : INFINITY;
        if (seconds < least && seconds < worth * first) least = seconds, best = i;
    }
    if (best && !agrees(&t, all, all + (size_t)best * (size_t)lt->is->result_bytes)) best = 0, least = first;
    restore(&t);
    free(t.kept);
    add_found(lt, p, all + (size_t)best * (size_t)lt->is->result_bytes, first * 1e3, least * 1e3);
}

/* Called before a GEMM of this plan is started: uses the choice for it, or tries its algorithms. */
static void lt_prepare(struct device *dev, struct lt_plan *p, const struct gemm *g)
{
    struct lt *lt = gpu_of(dev)->lt;
    if (lt->used && !p->looked_up) look_up(dev, lt, p);
    if (lt->trying && !p->tried && !gpu_of(dev)->recording && !dev->pending.code) try_all(dev, lt, p, g);
}

/* ---- gemm_choices.h ---- */

/* ---- GEMMs ---- */

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
