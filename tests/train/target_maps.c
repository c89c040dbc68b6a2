/* loss.standardize: the maps that a training estimates give outputs of mean 0 and variance 1, and their means
 * are those of the outputs in double; ranks and a resume have the same bits, and a file of other targets is
 * refused. */
#include "core/experiment/experiment.h"
#include "core/step/step.h"
#include "core/train/target_maps.h"
#include "tests/mentions.h"
#include "tests/train/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

enum { IMAGES = 5, MOST = 1 << 16 };
static char path[128];

#define TEACHER                                                                                              \
    "model.family=dinov2 model_t.layerscale=without model_t.width=48 model_t.out=48 model_t.heads=2 "        \
    "model_t.pos_grid=2 "
#define TARGETS                                                                                              \
    TEACHER "model_s.width=48 model_s.out=48 model_s.heads=2 model_s.pos_grid=2 "                            \
            "train.precision=fp32 data.augment=false train.batch_size=1 train.target_images=9 "              \
            "loss.tokens=patch "                                                                             \
            "loss2.tokens=cls "

static int fill(void *context, struct trainer *t, struct error *err)
{
    (void)context;
    return t->filling == FILL_MAPS ? target_maps_fill(t, path, NULL, NULL, err) : 0;
}

/* The targets of all images, as a trainer with these settings has them: rows of 4 patches and a class token.
 * Returns the values per image. */
static int64_t targets_of(const char *settings, float *out)
{
    struct tiny tiny;
    struct error err = {0};
    struct data *data;
    struct data_batch batch;
    assert_int_equal(tiny_begin(&tiny), 0);
    if (tiny_open(&tiny, settings, fill, NULL, &err)) fail_msg("%s: %s", settings, err.what);
    int64_t values = targets_values(tiny.trainer);
    struct data_options options = experiment_data_options(&tiny.config);
    options.whole = true;
    options.shuffle = false;
    options.batch = options.micro = 1;
    assert_int_equal(data_open(&data, &options, &err), 0);
    assert_int_equal(data_start(data, 0, &err), 0);
    for (int64_t done = 0; done < IMAGES; done += batch.count) {
        assert_int_equal(data_next(data, &batch, &err), 0);
        assert_int_equal(trainer_embed_teacher(tiny.trainer,
                                               &(struct batch){.input = batch.images, .count = batch.count},
                                               out + done * values, &err),
                         0);
    }
    data_close(data);
    tiny_close(&tiny);
    assert_int_equal(tiny_end(&tiny), 0);
    return values;
}

/* Compares the mean of the rows with what the file has, and the variances of the mapped rows with 1. */
static void check(const float *plain, const float *mapped, int64_t values, int64_t at, int64_t rows,
                  const char *name)
{
    enum { D = 48 };
    struct error err = {0};
    struct weights *w;
    float mean[D];
    assert_int_equal(weights_open(&w, path, &err), 0);
    int64_t tensor = weights_find(w, name);
    assert_true(tensor >= 0);
    assert_int_equal(weights_read(w, tensor, mean, DTYPE_F32, &err), 0);
    weights_close(w);
    for (int64_t k = 0; k < D; k++) {
        double sum = 0, sums = 0, squares = 0, spread = 0, count = (double)(IMAGES * rows);
        for (int64_t i = 0; i < IMAGES; i++)
            for (int64_t r = 0; r < rows; r++) {
                double x = (double)plain[i * values + at + r * D + k],
                       y = (double)mapped[i * values + at + r * D + k];
                sum += x / count, spread += x * x / count;
                sums += y / count, squares += y * y / count;
            }
        spread = sqrt(spread - sum * sum);
        if (!(fabs(sum - (double)mean[k]) <= 1e-6 * fmax(spread, fabs(sum)) + 1e-7))
            fail_msg("%s: mean of channel %d is %g, should be %g", name, (int)k, (double)mean[k], sum);
        if (!(fabs(sums) < 1e-5 && fabs(squares - 1) < 1e-5))
            fail_msg("%s: channel %d has mean %g and variance %g", name, (int)k, sums, squares);
    }
}

static void channels_have_mean_0_and_variance_1(void **state)
{
    static const char *const forms[] = {"channel", "phi-s"};
    float *plain = xmalloc(MOST * sizeof *plain), *mapped = xmalloc(MOST * sizeof *mapped),
          *again = xmalloc(MOST * sizeof *again);
    (void)targets_of(TARGETS, plain);
    for (int i = 0; i < 2; i++) {
        char *settings = xasprintf(TARGETS "loss.standardize=%s loss2.standardize=%s", forms[i], forms[i]);
        unlink(path);
        int64_t values = targets_of(settings, mapped);
        check(plain, mapped, values, 0, 4, "target1.mean");
        if (i == 0) check(plain, mapped, values, 4 * 48, 1, "target2.mean");
        (void)targets_of(settings, again); /* from the file */
        assert_memory_equal(mapped, again, (size_t)(IMAGES * values) * sizeof *mapped);
        free(settings);
    }
    free(plain), free(mapped), free(again);
}

static void a_file_of_other_targets_is_refused(void **state)
{
    struct tiny tiny;
    struct error err = {0};
    float *out = xmalloc(MOST * sizeof *out);
    unlink(path);
    (void)targets_of(TARGETS "loss.standardize=channel", out);
    assert_int_equal(tiny_begin(&tiny), 0);
    assert_int_equal(tiny_open(&tiny, TARGETS "loss.standardize=phi-s", fill, NULL, &err), EXIT_CONFIG);
    if (!mentions(err.what, "channel|phi-s")) fail_msg("%s", err.what);
    tiny_close(&tiny);
    assert_int_equal(tiny_end(&tiny), 0);
    free(out);
}

static int begin_all(void **state)
{
    snprintf(path, sizeof path, "/tmp/meopt-maps-%d.safetensors", (int)getpid());
    return 0;
}
static int end_all(void **state)
{
    unlink(path);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(channels_have_mean_0_and_variance_1),
                                       cmocka_unit_test(a_file_of_other_targets_is_refused)};
    return cmocka_run_group_tests(tests, begin_all, end_all);
}
