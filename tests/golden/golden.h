/* Golden data: where it is, and tensors out of it. */
#ifndef MEOPT_TESTS_GOLDEN_GOLDEN_H
#define MEOPT_TESTS_GOLDEN_GOLDEN_H

#include "core/base/memory.h"
#include "core/device/device.h"
#include "core/nn/nn.h"
#include "core/weights/weights.h"
#include "tests/card.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static inline char *golden_path(const char *a, const char *b, const char *c)
{
    const char *root = getenv("MEOPT_FIXTURES");
    return xasprintf("%s/%s%s%s%s%s", root && *root ? root : source_file("tests/data"), a, b ? "/" : "",
                     b ? b : "", c ? "/" : "", c ? c : "");
}

static inline json_t *golden_json(const char *a, const char *b, const char *c)
{
    char *path = golden_path(a, b, c);
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);
    if (!json) fail_msg("%s: %s", path, error.text);
    free(path);
    return json;
}

static inline struct weights *golden_open(const char *a, const char *b, const char *c)
{
    char *path = golden_path(a, b, c);
    struct weights *w = NULL;
    struct error err = {0};
    if (weights_open(&w, path, &err)) fail_msg("%s: %s", path, err.what);
    free(path);
    return w;
}

static inline enum family golden_family(const char *name)
{
    for (int i = 1; i < FAMILY_COUNT; i++)
        if (strcmp(name, family_name((enum family)i)) == 0) return (enum family)i;
    return FAMILY_UNKNOWN;
}

static inline int64_t golden_integer(const json_t *json, const char *key)
{
    return json_integer_value(json_object_get(json, key));
}

static inline double golden_number(const json_t *json, const char *key, double missing)
{
    const json_t *v = json_object_get(json, key);
    return json_is_number(v) ? json_number_value(v) : json_is_boolean(v) ? json_is_true(v) : missing;
}

/* The difference from the reference, relative to it, in Euclidean norms. */
static inline double golden_relative(const float *x, const float *reference, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)x[i] - (double)reference[i];
        difference += d * d;
        size += (double)reference[i] * (double)reference[i];
    }
    return sqrt(difference / size);
}

/* The sizes of a tower in an index.json; what else it has is set by the caller. */
static inline struct model_shape golden_shape(const json_t *json)
{
    return (struct model_shape){.family = golden_family(json_string_value(json_object_get(json, "family"))),
                                .image = golden_integer(json, "image"),
                                .patch = golden_integer(json, "patch"),
                                .pos_grid = golden_integer(json, "pos_grid"),
                                .width = golden_integer(json, "width"),
                                .depth = golden_integer(json, "depth"),
                                .heads = golden_integer(json, "heads"),
                                .hidden = golden_integer(json, "hidden"),
                                .out = golden_integer(json, "out")};
}

/* A tensor as double, malloc'ed; NULL when there is none. */
static inline double *golden_tensor(const struct weights *w, const char *name, int64_t *count)
{
    int64_t i = weights_find(w, name);
    if (count) *count = 0;
    if (i < 0) return NULL;
    const struct weights_tensor *t = weights_tensor(w, i);
    struct error err = {0};
    double *values = xmalloc((size_t)t->count * sizeof *values + 8);
    float *narrow = (float *)(void *)values + (t->dtype == DTYPE_F64 ? 0 : t->count);
    if (weights_read(w, i, narrow, t->dtype == DTYPE_F64 ? DTYPE_F64 : DTYPE_F32, &err))
        fail_msg("%s: %s", name, err.what);
    for (int64_t k = 0; k < t->count && t->dtype != DTYPE_F64; k++) values[k] = narrow[k];
    if (count) *count = t->count;
    return values;
}

/* Device memory of `type` as double, malloc'ed. */
static inline double *device_values(struct device *device, const void *p, enum dtype type, int64_t count)
{
    double *values = xmalloc((size_t)count * sizeof *values + 8);
    void *raw = xmalloc((size_t)count * dtype_bytes(type) + 8);
    device->sync(device);
    device->download(device, raw, p, (size_t)count * dtype_bytes(type));
    for (int64_t i = 0; i < count; i++) {
        if (type == DTYPE_F32) values[i] = ((float *)raw)[i];
        else if (type == DTYPE_F64) values[i] = ((double *)raw)[i];
        else {
            uint32_t bits = (uint32_t)((uint16_t *)raw)[i] << 16;
            float x;
            memcpy(&x, &bits, 4);
            values[i] = x;
        }
    }
    free(raw);
    return values;
}

/* ||a-b|| / ||b|| */
static inline double rel_l2(const double *a, const double *b, int64_t count)
{
    double d = 0, n = 0;
    for (int64_t i = 0; i < count; i++) {
        d += (a[i] - b[i]) * (a[i] - b[i]);
        n += b[i] * b[i];
    }
    return n > 0 ? sqrt(d / n) : sqrt(d);
}

/* Runs f for every directory in tests/data/NAME, sorted. Fails when there is none. */
static inline void golden_each(const char *name, void (*f)(const char *dir))
{
    char *root = golden_path(name, NULL, NULL);
    struct dirent **list = NULL;
    int n = scandir(root, &list, NULL, alphasort), count = 0;
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.' &&
            (list[i]->d_type == DT_DIR || list[i]->d_type == DT_UNKNOWN || list[i]->d_type == DT_LNK)) {
            f(list[i]->d_name);
            count++;
        }
        free(list[i]);
    }
    free(list);
    if (count == 0) fail_msg("no golden data in %s", root);
    free(root);
}

#endif
