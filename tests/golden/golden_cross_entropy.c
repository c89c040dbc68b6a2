/* The operation cross_entropy against torch.nn.functional.cross_entropy in float64
 * (tests/make/cross_entropy.py): loss and gradient to 1e-6, the hits of torch.topk. */
#include "tests/golden/golden.h"

#include <stdio.h>

enum { LOGITS, LABEL, LABEL2, SHARE, SMOOTHING, LOSS, DLOGITS, TOP, PARTS };
static const char *const parts[PARTS] = {"logits",    "label", "label2",  "share",
                                         "smoothing", "loss",  "dlogits", "top"};

/* Device memory with n values of a type */
static void *upload(struct device *dev, const double *values, enum dtype type, int64_t n)
{
    struct error err;
    size_t bytes = (size_t)n * dtype_bytes(type);
    float *host = xmalloc(bytes);
    for (int64_t i = 0; i < n; i++) {
        if (type == DTYPE_I32) ((int32_t *)(void *)host)[i] = (int32_t)values[i];
        else host[i] = (float)values[i];
    }
    void *p = device_alloc(dev, MEMORY_DATA, bytes, "operand", &err);
    assert_non_null(p);
    dev->upload(dev, p, host, bytes);
    dev->sync(dev);
    free(host);
    return p;
}

static void check_case(struct device *dev, const struct weights *w, const char *name)
{
    double *x[PARTS];
    int64_t count[PARTS];
    for (int i = 0; i < PARTS; i++) {
        char *key = xasprintf("%s.%s", name, parts[i]);
        x[i] = golden_tensor(w, key, &count[i]);
        free(key);
        assert_non_null(x[i]);
    }
    int64_t R = count[LABEL], C = count[LOGITS] / R;
    struct error err;
    double *sums = device_alloc(dev, MEMORY_DATA, 3 * sizeof *sums, "sums", &err);
    float *dlogits = device_alloc(dev, MEMORY_DATA, (size_t)(R * C) * sizeof *dlogits, "dlogits", &err);
    dev->ops->fill(dev, sums, 0, 3 * sizeof *sums);
    struct cross_entropy o = {.logits = upload(dev, x[LOGITS], DTYPE_F32, R * C),
                              .label = upload(dev, x[LABEL], DTYPE_I32, R),
                              .label2 = upload(dev, x[LABEL2], DTYPE_I32, R),
                              .share = upload(dev, x[SHARE], DTYPE_F32, R),
                              .smoothing = (float)x[SMOOTHING][0],
                              .weight = 1,
                              .dlogits = dlogits,
                              .loss = sums,
                              .top1 = sums + 1,
                              .top5 = sums + 2,
                              .R = R,
                              .C = C};
    bool two = false;
    for (int64_t r = 0; r < R; r++) two = two || x[LABEL2][r] >= 0;
    dev->ops->cross_entropy(dev, &o);
    assert_int_equal(device_check(dev, &err), 0);
    double *got = device_values(dev, sums, DTYPE_F64, 3),
           *gradient = device_values(dev, dlogits, DTYPE_F32, R * C);
    if (!(fabs(got[0] - x[LOSS][0]) <= 1e-6 * x[LOSS][0]))
        fail_msg("%s: loss %.9g, should be %.9g", name, got[0], x[LOSS][0]);
    for (int64_t i = 0; i < R * C; i++)
        if (!(fabs(gradient[i] - x[DLOGITS][i]) <= 1e-6))
            fail_msg("%s: gradient %lld is %.9g, should be %.9g", name, (long long)i, gradient[i],
                     x[DLOGITS][i]);
    for (int i = 0; i < 2 && !two; i++) assert_float_equal(got[1 + i], x[TOP][i], 0);
    free(got);
    free(gradient);
    for (int i = 0; i < PARTS; i++) free(x[i]);
}

static void equals_pytorch(void **state)
{
    static const char *const cases[] = {"plain", "smooth", "mixed", "mixed_hard", "outliers", "binary"};
    const char *spec = getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
    struct device *dev;
    struct error err;
    assert_int_equal(device_open(&dev, spec, 0, &err), 0);
    struct weights *w = golden_open("classify", "cross_entropy.safetensors", NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(dev, w, cases[i]);
    weights_close(w);
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
