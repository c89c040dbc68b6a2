/* hipBLASLt, or with FAKE_CUDA cuBLASLt, for tests: what MEOpt calls of it, column-major and slow, on the
 * emulated card's memory. Strict where the real ones are: attributes have one size, layouts fit the product,
 * pointers are as aligned as was promised, bias has the type of the result. It has no algorithm for some
 * depths, so that the next library is asked. FAKE_LT_WRONG: a library that takes the numbers of another
 * release, as far as one can see: its results are wrong; "large": those of more than 4096 elements alone.
 * FAKE_LT_ALGORITHMS: number of algorithms (1). Odd ones sum from the end, and all but FAKE_LT_FAST (0) take
 * FAKE_LT_SLOW microseconds (0); FAKE_LT_BAD is the number of one whose sums are wrong, FAKE_LT_RANDOM of one
 * whose sums differ from call to call. FAKE_LT_VERSION (1). */
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#ifdef FAKE_CUDA
#define ENTRY(name) cublasLt##name
enum {
    PLAIN = 0,
    TRANSPOSED = 1,
    COMPUTE = 68,
    OP_A = 3,
    OP_B = 4,
    EPILOGUE = 7,
    BIAS = 8,
    REDUCTION = 3,
    ALIGNED = 5,
    ALGORITHM_BYTES = 64
};
static const char driver_variable[] = "MEOPT_CUDA_LIBRARY", driver_sync[] = "cuStreamSynchronize";
#else
#define ENTRY(name) hipblasLt##name
enum {
    PLAIN = 111,
    TRANSPOSED = 112,
    COMPUTE = 2,
    OP_A = 0,
    OP_B = 1,
    EPILOGUE = 2,
    BIAS = 3,
    REDUCTION = -9,
    ALIGNED = -9,
    ALGORITHM_BYTES = 24
};
static const char driver_variable[] = "MEOPT_HIP_LIBRARY", driver_sync[] = "hipStreamSynchronize";
#endif
enum { F32 = 0, BF16 = 14, WORKSPACE = 1, INVALID = 7, NOT_SUPPORTED = 15, MARK = 0x4C54 };
#include "tests/gpu/fake_product.h"

struct product {
    int32_t op_a, op_b;
    uint32_t epilogue;
    const void *bias;
};
struct layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
};
struct preference {
    uint64_t workspace;
    uint32_t reduction, aligned[4];
};
struct result { /* as large as the library's own, with the algorithm at the front */
    uint32_t mark, number, aligned[4];
    char rest[ALGORITHM_BYTES - 24];
    uint64_t workspace;
    int state;
    float waves;
    int reserved[4];
};

#ifdef FAKE_CUDA
size_t ENTRY(GetVersion)(void);
#else
int ENTRY(GetVersion)(void *handle, int *version);
#endif
int ENTRY(Create)(void **handle);
int ENTRY(Destroy)(void *handle);
int ENTRY(MatmulDescCreate)(struct product **p, int compute, int scale);
int ENTRY(MatmulDescSetAttribute)(struct product *p, int attribute, const void *value, size_t bytes);
int ENTRY(MatmulDescDestroy)(struct product *p);
int ENTRY(MatrixLayoutCreate)(struct layout **l, int type, uint64_t rows, uint64_t columns, int64_t ld);
int ENTRY(MatrixLayoutDestroy)(struct layout *l);
int ENTRY(MatmulPreferenceCreate)(struct preference **p);
int ENTRY(MatmulPreferenceSetAttribute)(struct preference *p, int attribute, const void *value, size_t bytes);
int ENTRY(MatmulPreferenceDestroy)(struct preference *p);
int ENTRY(MatmulAlgoGetHeuristic)(void *handle, struct product *p, struct layout *a, struct layout *b,
                                  struct layout *c, struct layout *d, struct preference *preference,
                                  int wanted, struct result *r, int *found);
int ENTRY(Matmul)(void *handle, struct product *p, const float *alpha, const void *a, struct layout *la,
                  const void *b, struct layout *lb, const float *beta, const void *c, struct layout *lc,
                  void *d, struct layout *ld, const struct result *r, void *workspace, size_t workspace_bytes,
                  void *stream);

static long setting(const char *name, long usual)
{
    const char *text = getenv(name);
    return text ? atol(text) : usual;
}

#ifdef FAKE_CUDA
size_t ENTRY(GetVersion)(void) { return (size_t)setting("FAKE_LT_VERSION", 1); }
#else
int ENTRY(GetVersion)(void *handle, int *version)
{
    *version = (int)setting("FAKE_LT_VERSION", 1);
    return handle == 0;
}
#endif

int ENTRY(Create)(void **handle)
{
    *handle = handle;
    return find_wait(driver_variable, driver_sync) ? 0 : INVALID;
}
int ENTRY(Destroy)(void *handle) { return handle == 0; }

static int set(void *place, size_t size, const void *value, size_t bytes)
{
    if (size != bytes) return INVALID;
    memcpy(place, value, bytes);
    return 0;
}

int ENTRY(MatmulDescCreate)(struct product **p, int compute, int scale)
{
    if (compute != COMPUTE || scale != F32) return INVALID;
    *p = calloc(1, sizeof **p);
    (*p)->op_a = (*p)->op_b = PLAIN;
    (*p)->epilogue = 1;
    return 0;
}
int ENTRY(MatmulDescSetAttribute)(struct product *p, int attribute, const void *value, size_t bytes)
{
    return attribute == OP_A       ? set(&p->op_a, sizeof p->op_a, value, bytes)
           : attribute == OP_B     ? set(&p->op_b, sizeof p->op_b, value, bytes)
           : attribute == EPILOGUE ? set(&p->epilogue, sizeof p->epilogue, value, bytes)
           : attribute == BIAS     ? set(&p->bias, sizeof p->bias, value, bytes)
                                   : INVALID;
}
int ENTRY(MatmulDescDestroy)(struct product *p)
{
    free(p);
    return 0;
}
int ENTRY(MatrixLayoutCreate)(struct layout **l, int type, uint64_t rows, uint64_t columns, int64_t ld)
{
    if ((type != F32 && type != BF16) || ld < (int64_t)rows) return INVALID;
    *l = malloc(sizeof **l);
    **l = (struct layout){type, rows, columns, ld};
    return 0;
}
int ENTRY(MatrixLayoutDestroy)(struct layout *l)
{
    free(l);
    return 0;
}
int ENTRY(MatmulPreferenceCreate)(struct preference **p)
{
    *p = malloc(sizeof **p);
    **p = (struct preference){0, 7, {256, 256, 256, 256}};
    return 0;
}
int ENTRY(MatmulPreferenceSetAttribute)(struct preference *p, int attribute, const void *value, size_t bytes)
{
    if (attribute == WORKSPACE) return set(&p->workspace, sizeof p->workspace, value, bytes);
    if (attribute == REDUCTION) return set(&p->reduction, sizeof p->reduction, value, bytes);
    if (ALIGNED > 0 && attribute >= ALIGNED && attribute < ALIGNED + 4)
        return set(&p->aligned[attribute - ALIGNED], sizeof(uint32_t), value, bytes);
    return INVALID;
}
int ENTRY(MatmulPreferenceDestroy)(struct preference *p)
{
    free(p);
    return 0;
}

/* m, n and k of a product, or not one. */
static int fits(const struct product *p, const struct layout *a, const struct layout *b,
                const struct layout *c, uint64_t size[3])
{
    int ta = p->op_a == TRANSPOSED, tb = p->op_b == TRANSPOSED;
    if ((!ta && p->op_a != PLAIN) || (!tb && p->op_b != PLAIN) || a->type != b->type ||
        (a->type == F32 && c->type != F32))
        return 0;
    size[0] = ta ? a->columns : a->rows;
    size[1] = tb ? b->rows : b->columns;
    size[2] = ta ? a->rows : a->columns;
    return size[0] == c->rows && size[1] == c->columns && size[2] == (tb ? b->columns : b->rows);
}

int ENTRY(MatmulAlgoGetHeuristic)(void *handle, struct product *p, struct layout *a, struct layout *b,
                                  struct layout *c, struct layout *d, struct preference *preference,
                                  int wanted, struct result *r, int *found)
{
    uint64_t size[3];
    *found = 0;
    if (!handle || wanted < 1 || c != d || !fits(p, a, b, c, size) || (p->epilogue == 4) != (p->bias != 0))
        return INVALID;
    if (size[2] % 7 == 3) return NOT_SUPPORTED;
    for (int i = 0; i < wanted && i < (int)setting("FAKE_LT_ALGORITHMS", 1); i++, (*found)++) {
        r[i] = (struct result){.mark = MARK, .number = (uint32_t)i, .workspace = preference->workspace};
        memcpy(r[i].aligned, preference->aligned, sizeof r[i].aligned);
    }
    return 0;
}

int ENTRY(Matmul)(void *handle, struct product *p, const float *alpha, const void *a, struct layout *la,
                  const void *b, struct layout *lb, const float *beta, const void *c, struct layout *lc,
                  void *d, struct layout *ld, const struct result *r, void *workspace, size_t workspace_bytes,
                  void *stream)
{
    uint64_t size[3];
    const void *const pointers[4] = {a, b, c, d};
    if (!handle || c != d || lc != ld || r->mark != MARK || !workspace || workspace_bytes < r->workspace ||
        !fits(p, la, lb, lc, size))
        return INVALID;
    for (int i = 0; i < 4 && ALIGNED > 0; i++)
        if ((uintptr_t)pointers[i] % r->aligned[i]) return INVALID;
    wait_for(stream);
    if (r->number != (uint32_t)setting("FAKE_LT_FAST", 0)) usleep((unsigned)setting("FAKE_LT_SLOW", 0));
    static int calls;
    float varies = r->number == (uint32_t)setting("FAKE_LT_RANDOM", -1) && calls++ % 2 ? 1e-4f : 0;
    for (int64_t j = 0; j < (int64_t)size[1]; j++)
        for (int64_t i = 0; i < (int64_t)size[0]; i++) {
            float sum = varies + (r->number == (uint32_t)setting("FAKE_LT_BAD", -1) ? 1 : 0);
            for (int64_t step = 0; step < (int64_t)size[2]; step++) {
                int64_t l = r->number % 2 ? (int64_t)size[2] - 1 - step : step;
                sum += load(a, la->type, p->op_a == TRANSPOSED ? i * la->ld + l : l * la->ld + i) *
                       load(b, lb->type, p->op_b == TRANSPOSED ? l * lb->ld + j : j * lb->ld + l);
            }
            int64_t at = j * lc->ld + i;
            const char *wrong = getenv("FAKE_LT_WRONG");
            if (wrong && (strcmp(wrong, "large") != 0 || size[0] * size[1] > 4096)) sum += 1;
            store(d, lc->type, at,
                  *alpha * sum + (*beta != 0 ? *beta * load(c, lc->type, at) : 0) +
                      (p->epilogue == 4 ? load(p->bias, lc->type, i) : 0));
        }
    return 0;
}
