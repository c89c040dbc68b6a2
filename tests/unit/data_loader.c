/* Order of the images, and the loader. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/augment.h"
#include "core/data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static void shuffle_is_a_permutation(void **state)
{
    const int64_t counts[] = {1, 2, 3, 5, 64, 160, 1000, 4097};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            uint8_t *seen = xcalloc((size_t)counts[c], 1);
            int64_t moved = 0;
            for (int64_t i = 0; i < counts[c]; i++) {
                int64_t x = data_shuffle(7, epoch, i, counts[c]);
                assert_true(x >= 0 && x < counts[c] && !seen[x]);
                seen[x] = 1;
                moved += x != i;
            }
            assert_true(counts[c] < 64 || moved > counts[c] / 2);
            free(seen);
        }
}

static void put_file(const char *dir, const char *name, const char *from)
{
    char *path = path_join(dir, name),
         *source = path_join(MEOPT_SOURCE_DIR "/tests/data/preprocess/images", from), *bytes;
    size_t size;
    assert_int_equal(file_read(source, 1 << 24, &bytes, &size, NULL), 0);
    assert_int_equal(file_write_atomic(path, bytes, size, NULL), 0);
    free(bytes);
    free(source);
    free(path);
}

static int64_t collect(const char *root, int64_t workers, int rank, int ranks, int64_t start, int64_t ids[8],
                       float *sum)
{
    struct data_options o = {.root = root,
                             .image_size = 32,
                             .preprocess = preprocess_clip,
                             .shuffle = true,
                             .seed = 3,
                             .batch = 2,
                             .rank = rank,
                             .ranks = ranks,
                             .workers = workers,
                             .prefetch = 2,
                             .max_bad = 0.5};
    struct data *d;
    struct error err;
    struct data_batch b;
    assert_int_equal(data_open(&d, &o, &err), 0);
    assert_int_equal(data_start(d, start, &err), 0);
    *sum = 0;
    for (int64_t i = 0; i < 4; i++) {
        assert_int_equal(data_next(d, &b, &err), 0);
        assert_int_equal(b.count, 2);
        if (i == 0) assert_true(b.wait_ms == 0); /* a set this small is there when data_start returns */
        for (int64_t k = 0; k < 2; k++) ids[2 * i + k] = b.ids[k];
        for (int64_t k = 0; k < 2 * 3 * 32 * 32; k++) *sum += b.images[k];
    }
    int64_t batches = data_epoch_batches(d);
    data_close(d);
    return batches;
}

static void order_does_not_depend_on_workers_ranks_or_restart(void **state)
{
    char root[] = "/tmp/meopt-test-XXXXXX";
    assert_non_null(mkdtemp(root));
    struct error err;
    char *train = path_join(root, "x/train2014");
    assert_int_equal(file_make_dirs(train, &err), 0);
    static const char *const files[] = {"01_base444.jpg",   "02_base422.jpg", "05_gray.jpg",
                                        "13_cmyk.jpg",      "14_rgb.png",     "16_palette.png",
                                        "17_truncated.jpg", "06_tiny.jpg"};
    for (int i = 0; i < 8; i++) {
        char name[32];
        strcpy(name, "a.JPG");
        name[0] = (char)('a' + i);
        put_file(train, name, files[i]);
    }
    put_file(root, "not-train.jpg", "01_base444.jpg");
    int64_t one[8], other[8], shifted[8], rank0[8], rank1[8];
    float sum, again;
    assert_int_equal(collect(root, 1, 0, 1, 0, one, &sum),
                     4); /* 8 images: the one outside train2014 does not count */
    for (int64_t workers = 2; workers <= 8; workers *= 2) {
        collect(root, workers, 0, 1, 0, other, &again);
        assert_memory_equal(one, other, sizeof one);
        assert_true(sum == again);
    }
    collect(root, 3, 0, 1, 2, shifted, &again);
    assert_memory_equal(one + 4, shifted, 4 * sizeof *one);
    collect(root, 2, 0, 2, 0, rank0, &again);
    collect(root, 2, 1, 2, 0, rank1, &again);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rank0[i], one[2 * i]);
        assert_int_equal(rank1[i], one[2 * i + 1]);
    }
    for (int i = 0; i < 8; i++) assert_int_not_equal(one[i], 6); /* the truncated one is replaced */
    struct data_options o = {.root = "/nonexistent/images",
                             .image_size = 32,
                             .preprocess = preprocess_clip,
                             .batch = 1,
                             .ranks = 1};
    struct data *d;
    assert_int_equal(data_open(&d, &o, &err), EXIT_FAILED);
    assert_string_equal(err.file, "/nonexistent/images");
    assert_int_equal(file_remove_tree(root, &err), 0);
    free(train);
}

/* ---- Mixing and augmentation ---- */

enum { MIX_SIDE = 24, MIX_ROWS = 6, MIX_STEPS = 5, MIX_VALUES = 3 * MIX_SIDE * MIX_SIDE };

struct mixed {
    float images[MIX_STEPS][MIX_ROWS][MIX_VALUES], share[MIX_STEPS][MIX_ROWS];
    int32_t labels[MIX_STEPS][MIX_ROWS], labels2[MIX_STEPS][MIX_ROWS];
    int64_t ids[MIX_STEPS][MIX_ROWS];
};

/* Loads the rows of all ranks into their places in the global batches, from step `from` on. */
static void take_mixed(struct data_options o, int ranks, int64_t micro, int64_t workers, int64_t from,
                       struct mixed *m)
{
    for (int rank = 0; rank < ranks; rank++) {
        struct data *d;
        struct data_batch b;
        struct error err;
        o.rank = rank;
        o.ranks = ranks;
        o.micro = micro;
        o.workers = workers;
        o.batch = MIX_ROWS / ranks;
        o.global = MIX_ROWS;
        if (data_open(&d, &o, &err)) fail_msg("%s", err.what);
        assert_int_equal(data_start(d, from, &err), 0);
        for (int64_t step = from; step < MIX_STEPS; step++) {
            assert_int_equal(data_next(d, &b, &err), 0);
            for (int64_t slot = 0; slot < o.batch; slot++) {
                int64_t row = (slot / micro * ranks + rank) * micro + slot % micro;
                memcpy(m->images[step][row], b.images + slot * MIX_VALUES, sizeof m->images[step][row]);
                m->ids[step][row] = b.ids[slot];
                m->labels[step][row] = b.labels[slot];
                m->labels2[step][row] = b.labels2 ? b.labels2[slot] : b.labels[slot];
                m->share[step][row] = b.share ? b.share[slot] : 1;
            }
        }
        data_close(d);
    }
}

enum { FILES = 8 };
static const char *const files[FILES] = {"01_base444.jpg",   "02_base422.jpg", "05_gray.jpg",
                                         "13_cmyk.jpg",      "14_rgb.png",     "16_palette.png",
                                         "17_truncated.jpg", "06_tiny.jpg"};

/* Makes a directory with the files in directories of classes. */
static void put_classes(char *root)
{
    struct error err;
    assert_non_null(mkdtemp(root));
    for (int i = 0; i < FILES; i++) {
        char name[32];
        snprintf(name, sizeof name, "%c/%d", 'a' + i % 3, i);
        char *directory = path_join(root, name);
        assert_int_equal(file_make_dirs(directory, &err), 0);
        put_file(directory, files[i], files[i]);
        free(directory);
    }
}

/* Ways to share and load six rows. */
static const struct {
    int ranks;
    int64_t micro, workers;
} forms[] = {{1, 6, 1}, {1, 6, 4}, {1, 1, 2}, {1, 3, 3}, {2, 1, 2},
             {2, 3, 2}, {3, 1, 1}, {3, 2, 2}, {6, 1, 2}};

static void mixing_does_not_depend_on_ranks_or_workers(void **state)
{
    char root[] = "/tmp/meopt-test-XXXXXX";
    static struct mixed plain, one, other;
    struct error err;
    put_classes(root);
    struct data_options o = {.root = root,
                             .image_size = MIX_SIDE,
                             .preprocess = preprocess_clip,
                             .crop_scale_min = 0.3,
                             .crop_scale_max = 1,
                             .shuffle = true,
                             .seed = 11,
                             .prefetch = 2,
                             .max_bad = 0.5,
                             .labels = true};
    for (int augment = 0; augment < 2; augment++) {
        o.augment = o.flip = augment;
        o.randaugment = augment ? 9 : 0;
        o.erasing = augment ? 0.5 : 0;
        o.mixup = o.cutmix = 0;
        take_mixed(o, 1, 6, 2, 0, &plain);
        o.mixup = 0.8;
        o.cutmix = 1;
        take_mixed(o, 1, 6, 2, 0, &one);
        int mixed = 0, cut = 0;
        for (int step = 0; step < MIX_STEPS; step++)
            for (int row = 0; row < MIX_ROWS; row++) {
                struct mix mix = mix_draw(o.mixup, o.cutmix, o.seed, step, row);
                static float expected[MIX_VALUES];
                memcpy(expected, plain.images[step][row], sizeof expected);
                mix_images(expected, plain.images[step][row ^ 1], MIX_SIDE, &mix);
                assert_memory_equal(one.images[step][row], expected, sizeof expected);
                assert_int_equal(one.labels[step][row], plain.labels[step][row]);
                assert_int_equal(one.labels2[step][row], plain.labels[step][row ^ 1]);
                assert_int_equal(one.ids[step][row], plain.ids[step][row]);
                mixed += !mix.cut;
                cut += mix.cut;
                if (!mix.cut) assert_true(one.share[step][row] == (float)mix.share);
            }
        assert_true(mixed > 5 && cut > 5);
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            memset(&other, 0, sizeof other);
            take_mixed(o, forms[i].ranks, forms[i].micro, forms[i].workers, 0, &other);
            assert_memory_equal(&other, &one, sizeof one);
            take_mixed(o, forms[i].ranks, forms[i].micro, forms[i].workers, 3, &other); /* resumed */
            assert_memory_equal(&other, &one, sizeof one);
        }
    }
    o.preprocess.as = RESIZE_AS_HF_FLOAT;
    struct data *d;
    assert_int_equal(data_open(&d, &o, &err), EXIT_CONFIG);
    assert_int_equal(file_remove_tree(root, &err), 0);
}

/* Returns the bytes that this process has read; -1: unknown. */
static long long bytes_read(void)
{
    long long bytes = -1;
    FILE *f = fopen("/proc/self/io", "r");
    if (f && fscanf(f, "rchar: %lld", &bytes) != 1) bytes = -1;
    if (f) fclose(f);
    return bytes;
}

static float *sample(struct mixed *m, int at) { return m->images[at / MIX_ROWS][at % MIX_ROWS]; }

/* Crops of an image: neighbours in the epoch, each with its own draw, also where a batch, a micro-batch or a
 * resume begins between them; decoded once. */
static void crops_do_not_depend_on_ranks_or_workers(void **state)
{
    enum { CROPS = 4, LOCAL = 2, SAMPLES = MIX_STEPS * MIX_ROWS };
    char root[] = "/tmp/meopt-test-XXXXXX";
    static struct mixed plain, small, one, other;
    struct error err;
    put_classes(root);
    struct data_options o = {.root = root,
                             .image_size = MIX_SIDE,
                             .preprocess = preprocess_clip,
                             .augment = true,
                             .flip = true,
                             .crop_scale_min = 0.4,
                             .crop_scale_max = 1,
                             .local_scale_min = 0.05,
                             .local_scale_max = 0.3,
                             .randaugment = 9,
                             .erasing = 0.5,
                             .shuffle = true,
                             .seed = 11,
                             .prefetch = 2,
                             .max_bad = 0.5,
                             .labels = true};
    size_t bytes = sizeof one.images[0][0];
    take_mixed(o, 1, 6, 2, 0, &plain); /* step 0: the first six images of epoch 0 */
    o.crops = CROPS;
    o.local_crops = LOCAL;
    long long before = bytes_read();
    take_mixed(o, 1, 6, 1, 0, &one);
    long long after = bytes_read(), all = 0;
    for (int i = 0; i < FILES; i++) {
        char *path = path_join(MEOPT_SOURCE_DIR "/tests/data/preprocess/images", files[i]);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        all += st.st_size;
        free(path);
    }
    /* 30 samples and up to 18 ahead, of 7.5 and 4.5 images, of which crops of their own would be 48 */
    if (before >= 0 && after - before > 3 * all) fail_msg("%lld bytes read of %lld", after - before, all);
    int replaced = 0;
    for (int at = 0; at < SAMPLES; at++) {
        int64_t id = one.ids[at / MIX_ROWS][at % MIX_ROWS], image = at / CROPS,
                next = data_shuffle(11, 0, image, FILES);
        int first = at / CROPS * CROPS;
        replaced += id != next; /* the truncated one */
        assert_int_equal(id, one.ids[first / MIX_ROWS][first % MIX_ROWS]);
        for (int i = first; i < at; i++) assert_memory_not_equal(sample(&one, i), sample(&one, at), bytes);
        if (at == first && image < MIX_ROWS)
            assert_memory_equal(plain.images[0][image], sample(&one, at), bytes);
    }
    assert_true(replaced <= CROPS);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        memset(&other, 0, sizeof other);
        take_mixed(o, forms[i].ranks, forms[i].micro, forms[i].workers, 0, &other);
        assert_memory_equal(&other, &one, sizeof one);
        take_mixed(o, forms[i].ranks, forms[i].micro, forms[i].workers, 1,
                   &other); /* resumed between crops */
        assert_memory_equal(&other, &one, sizeof one);
    }
    o.local_crops = 0;
    o.crop_scale_min = o.local_scale_min, o.crop_scale_max = o.local_scale_max;
    take_mixed(o, 1, 6, 2, 0, &small);
    for (int at = 0; at < SAMPLES; at++)
        assert_int_equal(memcmp(sample(&small, at), sample(&one, at), bytes) == 0,
                         at % CROPS >= CROPS - LOCAL);
    assert_int_equal(file_remove_tree(root, &err), 0);
}

/* Local crops have the distribution of torchvision 0.29's RandomResizedCrop(scale=(0.05, 0.32)) for an image
 * of 200 x 100: deciles of 100,000 draws of its get_params. The pixels are their positions. */
static void crops_have_the_distribution_of_torchvision(void **state)
{
    enum { DRAWS = 4000, SIDE = 8, FIGURES = 4 };
    static const double deciles[FIGURES][9] = {
        {0.0770, 0.1040, 0.1316, 0.1581, 0.1852, 0.2112, 0.2380, 0.2660, 0.2926}, /* share of the area */
        {0.7949, 0.8413, 0.8912, 0.9437, 1.0000, 1.0600, 1.1216, 1.1888, 1.2581}, /* width / height */
        {0.2200, 0.2900, 0.3600, 0.4275, 0.5000, 0.5675, 0.6400, 0.7100, 0.7800}, /* centre */
        {0.3350, 0.3900, 0.4300, 0.4650, 0.5000, 0.5350, 0.5700, 0.6100, 0.6650}};
    struct preprocess how = {.resample = RESAMPLE_BILINEAR, .as = RESIZE_AS_HF_FLOAT};
    struct image image = {xcalloc(200 * 100, 3), 200, 100};
    struct error err;
    int below[FIGURES][9] = {{0}};
    for (int i = 0; i < 200 * 100; i++)
        image.rgb[3 * i] = (uint8_t)(i % 200), image.rgb[3 * i + 1] = (uint8_t)(i / 200);
    for (uint32_t n = 0; n < DRAWS; n++) {
        struct image_draw draw = {7, 1, n / 8, n % 8};
        float out[SIDE][SIDE][3];
        assert_int_equal(image_prepare_random(&image, &how, SIDE, 0.05, 0.32, false, &draw, out, &err), 0);
        double w = 255 * (double)(out[0][6][0] - out[0][1][0]) * SIDE / 5,
               h = 255 * (double)(out[6][0][1] - out[1][0][1]) * SIDE / 5;
        double found[FIGURES] = {w * h / 20000, w / h,
                                 (127.5 * (double)(out[0][3][0] + out[0][4][0]) + 0.5) / 200,
                                 (127.5 * (double)(out[3][0][1] + out[4][0][1]) + 0.5) / 100};
        for (int f = 0; f < FIGURES; f++)
            for (int k = 0; k < 9; k++) below[f][k] += found[f] <= deciles[f][k] + 1e-6;
    }
    for (int f = 0; f < FIGURES; f++)
        for (int k = 0; k < 9; k++)
            if (abs(below[f][k] - DRAWS * (k + 1) / 10) > DRAWS * 3 / 100) /* four deviations */
                fail_msg("figure %d, decile %d: %d of %d", f, k + 1, below[f][k], DRAWS);
    free(image.rgb);
}

/* The vector form of the resize against the plain one: odd boxes, tiny and long images, to the last byte. */
static void vector_resize_equals_plain(void **state)
{
    uint32_t random = 12345;
    for (int round = 0; round < 300; round++) {
        int n[8];
        for (int i = 0; i < 8; i++) n[i] = (int)((random = random * 1664525u + 1013904223u) >> 8) & 0xFFFF;
        int width = 1 + n[0] % (round % 3 ? 300 : 12), height = 1 + n[1] % (round % 5 ? 200 : 9),
            side = 1 + n[2] % 70;
        int w = 1 + n[3] % width, h = 1 + n[4] % height, x = n[5] % (width - w + 1),
            y = n[6] % (height - h + 1);
        int out_w = side + n[7] % 40, out_h = side + n[0] % 40, left = n[1] % (out_w - side + 1),
            top = n[2] % (out_h - side + 1);
        struct image image = {xmalloc((size_t)width * (size_t)height * 3), width,
                              height}; /* exact: a read beyond is found */
        for (int i = 0; i < width * height * 3; i++)
            image.rgb[i] = (uint8_t)((random = random * 1664525u + 1013904223u) >> 24);
        for (int i = 0; i < width * height * 3 && round % 4 == 0; i++)
            image.rgb[i] = image.rgb[i] & 64 ? 255 : 0; /* overshoot */
        struct preprocess how = {.resample = (enum resample)(round % (RESAMPLE_HAMMING + 1)),
                                 .as = (enum resize_as)(round / 7 % 2)};
        struct resize_task task = {x, y, w, h, out_w, out_h, left, top, side};
        uint8_t *out[2];
        for (int plain = 0; plain < 2; plain++) {
            struct error err;
            if (plain) setenv("MEOPT_CPU_ISA", "plain", 1);
            out[plain] = xmalloc((size_t)side * (size_t)side * 3);
            assert_int_equal(image_resize(&image, &how, &task, out[plain], &err), 0);
        }
        unsetenv("MEOPT_CPU_ISA");
        assert_memory_equal(out[0], out[1], (size_t)side * (size_t)side * 3);
        free(out[0]);
        free(out[1]);
        free(image.rgb);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffle_is_a_permutation),
        cmocka_unit_test(vector_resize_equals_plain),
        cmocka_unit_test(mixing_does_not_depend_on_ranks_or_workers),
        cmocka_unit_test(crops_do_not_depend_on_ranks_or_workers),
        cmocka_unit_test(crops_have_the_distribution_of_torchvision),
        cmocka_unit_test(order_does_not_depend_on_workers_ranks_or_restart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
