/* The bytes that one additional block of the student moves in a step, and its kernel launches, for each
 * class of work. The simulated card (tests/gpu/fake_traffic.h) counts them, so that no change adds a pass
 * over memory unnoticed. `bytes_moved --table` prints them: R rows of D columns, F hidden columns, all
 * figures in bytes for each of R D elements. */
#include "tests/train/tiny.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

enum { SIDE = 56, TOKENS = 17, PIXELS = 3 * SIDE * SIDE, BATCH = 32, ROWS = BATCH * TOKENS };
enum { WIDTH = 32, HIDDEN = 64 };
enum { STEPS = 1, KERNELS = 96 };

enum class { PRODUCTS, ATTENTION, ELEMENTWISE, OPTIMIZER, CLASSES };
static const char *const class_names[CLASSES] = {"products", "attention", "elementwise", "optimizer"};
static enum class class_of(const char *kernel) {
    if (strncmp(kernel, "gemm", 4) == 0 || strcmp(kernel, "rocblas") == 0) return PRODUCTS;
    if (strncmp(kernel, "attention", 9) == 0) return ATTENTION;
    return strncmp(kernel, "optim", 5) == 0 ? OPTIMIZER : ELEMENTWISE;
}

struct moved {
    char kernel[64];
    long long launches, read, written;
};
struct moves {
    struct moved kernels[KERNELS];
    int count;
};

static float pixels[BATCH * PIXELS];
static int64_t ids[BATCH];

static int give(void *context, int64_t index, struct batch *batch, const int64_t **image_ids,
                struct error *err)
{
    (void)context, (void)index, (void)err;
    batch->input = pixels;
    *image_ids = ids;
    return 0;
}

static void collect(void *context, const char *kernel, long long launches, long long read, long long written)
{
    struct moves *step = context;
    assert_true(step->count < KERNELS);
    struct moved *m = &step->kernels[step->count++];
    snprintf(m->kernel, sizeof m->kernel, "%s", kernel);
    m->launches = launches;
    m->read = read;
    m->written = written;
}

typedef void (*give_moved)(void *context, const char *kernel, long long launches, long long read,
                           long long written);

/* Returns the bytes that the last of several steps moved, with a student of `blocks` blocks. */
static void measure(const char *settings, int depth, struct moves *step)
{
    const char *device = getenv("MEOPT_TEST_DEVICE"), *driver = getenv("MEOPT_HIP_LIBRARY");
    void (*traffic)(give_moved, void *);
    struct tiny tiny = {.directory = "/nowhere"};
    struct error err = {0};
    if (!device || !driver) skip();
    void *library = dlopen(driver, RTLD_NOW), *entry = library ? dlsym(library, "fake_driver_traffic") : NULL;
    assert_non_null(entry);
    memcpy(&traffic, &entry, sizeof entry);
    for (int i = 0; i < BATCH; i++) ids[i] = i;
    for (int i = 0; i < BATCH * PIXELS; i++) pixels[i] = (float)(i % 251) / 125.0f - 1.0f;
    char *words = xasprintf(
        "train.batch_size=%d data.image_size=%d model_t.width=32 model_t.hidden=32 "
        "model_t.heads=1 model_t.depth=1 model_t.out=32 model_s.out=32 model_s.width=%d model_s.heads=1 "
        "model_s.hidden=%d model_s.depth=%d optim.gradients=release optim.clip_grad_norm=0 %s",
        BATCH, SIDE, WIDTH, HIDDEN, depth, settings);
    int code = tiny_join(&tiny, device, NULL, words, NULL, NULL, &err);
    if (code) fail_msg("%s: %s", settings, err.what);
    for (int64_t number = 1; number <= STEPS; number++) {
        struct step_result result;
        step->count = 0;
        traffic(collect, step);
        step->count = 0;
        code = trainer_step(tiny.trainer, number, 1e-3, &(struct batch_source){.fetch = give}, &result, &err);
        if (code) fail_msg("%s: %s", settings, err.what);
    }
    step->count = 0;
    traffic(collect, step);
    tiny_close(&tiny);
    free(words);
}

/* One block: what a student with one more moves beyond one without it. */
static void subtract(struct moves *more, const struct moves *less)
{
    for (int i = 0; i < less->count; i++)
        for (int k = 0; k < more->count; k++)
            if (strcmp(more->kernels[k].kernel, less->kernels[i].kernel) == 0) {
                more->kernels[k].launches -= less->kernels[i].launches;
                more->kernels[k].read -= less->kernels[i].read;
                more->kernels[k].written -= less->kernels[i].written;
            }
}
static void measure_block(const char *settings, struct moves *block)
{
    struct moves *one = xcalloc(1, sizeof *one);
    measure(settings, 2, block);
    measure(settings, 1, one);
    subtract(block, one);
    free(one);
}
static double units(long long bytes) { return (double)bytes / ((double)ROWS * WIDTH); }

static const struct tower_kind {
    const char *name, *settings;
    bool swiglu, layerscale;
    bool first; /* tried without MEOPT_LONG, too */
} kinds[] = {
    {"GELU", "model.family=openclip model_s.ffn=mlp", false, false, false},
    {"GELU and LayerScale", "model.family=dinov2 model_s.ffn=mlp", false, true, true},
    {"SwiGLU and LayerScale", "model.family=dinov2 model_s.ffn=swiglu", true, true, false},
};

static void sum_up(const struct moves *block, struct moved sums[CLASSES])
{
    memset(sums, 0, CLASSES * sizeof *sums);
    for (int k = 0; k < block->count; k++) {
        const struct moved *m = &block->kernels[k];
        struct moved *sum = &sums[class_of(m->kernel)];
        sum->launches += m->launches;
        sum->read += m->read;
        sum->written += m->written;
    }
}

/* What a block moves of R D elements, by its operations (core/nn/forward.c, backward.c), bf16 but for the
 * residual stream and its gradient; and what is not proportional to R D: sums by shares of rows, moments of
 * rows, weights. */
static void expect(const struct tower_kind *kind, bool library, double bytes[CLASSES], int launches[CLASSES])
{
    const double F = (double)HIDDEN / WIDTH, G = kind->swiglu ? 2 * F : F, scaled = kind->layerscale ? 2 : 0;
    const double shares = 2.0 * 64 * sizeof(float) / ROWS, moments = 2.0 * sizeof(float) / WIDTH,
                 square = (double)WIDTH / ROWS;
    double x = 8 + 16 + 2 * (G + F) + 10; /* norm1; residual and norm2; activation; residual */
    x += 4 + 2 + scaled;                  /* dx into the feed-forward */
    x += 4 * (G + F);                     /* dact, h -> dh, act */
    x += 4 + 4;                           /* n2, n1 again */
    x += 4 + 8 + 2 + scaled;              /* norm2's backward, and dx into attention */
    x += 4 + 8;                           /* norm1's backward */
    x += 6;                               /* sums of dqkv */
    x += (1 + 5 + G + 3) * shares + 7 * moments + (kind->layerscale ? 6 * (1 + F) * square : 0);
    if (library) x += 2 * 3; /* the bias of q, k and v is put where the results will be added */
    bytes[ELEMENTWISE] = x;
    launches[ELEMENTWISE] = 17 + (kind->layerscale ? 2 : 0) + (library ? 1 : 0);
    /* A product and the two of its gradients: each reads or writes each of three matrices. */
    bytes[PRODUCTS] = 3 * (2 * (4 + 2 + 1 + G + F + 1) + 2 * (4 + G + F) * square);
    if (library) bytes[PRODUCTS] += 2 * 3;
    launches[PRODUCTS] = 12;
    /* forward; out dout; q k v dout -> dq; the same -> dk dv; two sums of each row of a head */
    bytes[ATTENTION] = 8 + 4 + 10 + 12 + 6 * sizeof(float) / (double)WIDTH;
    launches[ATTENTION] = 4;
}

static void a_block_moves_no_more_than_its_operations_need(void **state)
{
    const char *library = getenv("MEOPT_ROCBLAS_LIBRARY");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (!kinds[i].first && !getenv("MEOPT_LONG")) continue;
        struct moves *block = xcalloc(1, sizeof *block);
        struct moved sums[CLASSES];
        double bytes[CLASSES];
        int launches[CLASSES];
        expect(&kinds[i], strcmp(library, "none") != 0, bytes, launches);
        measure_block(kinds[i].settings, block);
        sum_up(block, sums);
        for (int c = PRODUCTS; c < OPTIMIZER; c++) {
            double moved = units(sums[c].read + sums[c].written);
            if (moved > bytes[c] + 1 || moved < bytes[c] - 1) /* a pass over R D elements is 2 or more */
                fail_msg("%s: %s of a block move %.2f bytes for each of R D elements, expected are %.2f",
                         kinds[i].name, class_names[c], moved, bytes[c]);
            if (sums[c].launches > launches[c])
                fail_msg("%s: %s of a block are %lld kernels, %d are known", kinds[i].name, class_names[c],
                         sums[c].launches, launches[c]);
        }
        free(block);
    }
}

static void print_table(void **state)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct moves *block = xcalloc(1, sizeof *block);
        struct moved sums[CLASSES];
        measure_block(kinds[i].settings, block);
        sum_up(block, sums);
        printf("%s\n| kernel | launches | read | written |\n", kinds[i].name);
        for (int k = 0; k < block->count; k++) {
            const struct moved *m = &block->kernels[k];
            if (m->launches || m->read)
                printf("| %s | %lld | %.2f | %.2f |\n", m->kernel, m->launches, units(m->read),
                       units(m->written));
        }
        for (int c = 0; c < CLASSES; c++)
            printf("| all %s | %lld | %.2f | %.2f |\n", class_names[c], sums[c].launches, units(sums[c].read),
                   units(sums[c].written));
        free(block);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_block_moves_no_more_than_its_operations_need)},
                            table[] = {cmocka_unit_test(print_table)};
    if (argc > 1 && strcmp(argv[1], "--table") == 0) return cmocka_run_group_tests(table, NULL, NULL);
    return getenv("MEOPT_TEST_DEVICE") ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
