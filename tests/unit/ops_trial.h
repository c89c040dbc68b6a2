/* One trial of one operation (tests/unit/ops.c): its operands on a device, between guards, what they hold
 * before
 * the call and what is expected of them after it. */
#ifndef MEOPT_TESTS_UNIT_OPS_TRIAL_H
#define MEOPT_TESTS_UNIT_OPS_TRIAL_H

#include "core/device/device.h"
#include "kernels/f16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum role { IN, OUT, ADD }; /* read, written, added to */
struct operand {
    enum role role;
    enum dtype type;
    int64_t count;
    double *x;     /* values before the call, exact in `type` */
    double *want;  /* values after it */
    double *slack; /* error allowed in addition to the rounding to `type` */
    double *bfp;   /* and in addition to that of an integer GEMM; NULL: none */
    void *device;
};
enum { OPERANDS = 13 };
struct trial {
    struct device *device; /* NULL while a reference is computed */
    bool card;             /* the operations of a card are tried */
    bool bfp;              /* the device multiplies as integers */
    enum dtype t;
    int64_t s[8]; /* sizes and switches of the operation, in its own order */
    struct operand o[OPERANDS];
    int count;
};

enum { SHAPES = 18 };
struct operation {
    const char *name;
    void (*setup)(struct trial *);
    void (*call)(struct trial *);
    void (*reference)(struct trial *);
    double (*objective)(struct trial *);
    int gradients[8]; /* of the objective: pairs (operand, operand with the gradient), ends with -1 */
    int64_t shapes[SHAPES][8];
    int64_t timed[8];
    double (*flops)(const int64_t *s); /* NULL: bound by memory */
};

/* the first members of a row */
#define OP(name) #name, name##_setup, name##_call, name##_reference

#define F32 DTYPE_F32

static uint64_t random_state;
static double random_normal(void) /* the sum of 12 uniform numbers */
{
    double sum = -6;
    for (int i = 0; i < 12; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(random_state >> 40) * 0x1p-24;
    }
    return sum;
}

/* Rounds to nearest even; `bf16_rounds_to_even_and_keeps_nan` checks the kernels' own rounding. */
static uint16_t to_bf16(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (isnan(f)) return 0x7FC0;
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
static void encode(enum dtype type, double x, void *p)
{
    float f = (float)x;
    uint16_t h = type == DTYPE_F16 ? f16_of(f) : to_bf16(x);            /* tests/unit/scalars.c tries it */
    int32_t i = type == DTYPE_I32 || type == DTYPE_I8 ? (int32_t)x : 0; /* others may be NaN */
    const void *from = type == DTYPE_F64        ? (void *)&x
                       : type == F32            ? (void *)&f
                       : dtype_bytes(type) == 2 ? (void *)&h
                                                : (void *)&i;
    memcpy(p, from, dtype_bytes(type));
}
static double decode(enum dtype type, const void *p)
{
    double x = 0;
    float f = 0;
    uint16_t h;
    int32_t i;
    switch (type) {
    case DTYPE_F64: memcpy(&x, p, 8); return x;
    case DTYPE_I32: memcpy(&i, p, 4); return i;
    case DTYPE_I8: return *(const int8_t *)p;
    case DTYPE_F16: memcpy(&h, p, 2); return (double)f16_value(h);
    case DTYPE_BF16: {
        memcpy(&h, p, 2);
        uint32_t bits = (uint32_t)h << 16;
        memcpy(&f, &bits, 4);
        return (double)f;
    }
    default: memcpy(&f, p, 4); return (double)f;
    }
}

/* With random normal numbers times scale. */
static void operand_add(struct trial *T, enum role role, enum dtype type, int64_t count, double scale)
{
    struct operand *o = &T->o[T->count++];
    size_t n = (size_t)count;
    *o = (struct operand){role,
                          type,
                          count,
                          malloc((n + 1) * sizeof(double)),
                          malloc((n + 1) * sizeof(double)),
                          calloc(n + 1, sizeof(double)),
                          NULL,
                          NULL};
    assert_true(o->x && o->want && o->slack);
    for (size_t i = 0; i < n; i++) o->x[i] = random_normal() * scale;
}

/* Bytes on both sides of an operand; floats and bfloat16 of that pattern are tiny. */
enum { GUARD = 192, MARK = 0xB5 };

static size_t operand_bytes(const struct operand *o) { return (size_t)o->count * dtype_bytes(o->type); }

static uint8_t *operand_image(const struct operand *o)
{
    size_t bytes = operand_bytes(o), element = dtype_bytes(o->type);
    uint8_t *image = malloc(bytes + 2 * GUARD);
    assert_non_null(image);
    memset(image, MARK, bytes + 2 * GUARD);
    for (int64_t i = 0; i < o->count; i++)
        if (o->role == OUT) memset(image + GUARD + (size_t)i * element, 0xFF, element); /* NaN */
        else encode(o->type, o->x[i], image + GUARD + (size_t)i * element);
    return image;
}

/* Every value to its type; for setups, too, that compute one operand from another. */
static void trial_round(struct trial *T)
{
    for (int i = 0; i < T->count; i++)
        for (int64_t j = 0; j < T->o[i].count; j++) {
            uint8_t bytes[8];
            encode(T->o[i].type, T->o[i].x[j], bytes);
            T->o[i].x[j] = decode(T->o[i].type, bytes);
        }
}

/* Sizes, values rounded to their types, and what is expected of them. */
static void trial_open(struct trial *T, const struct operation *op, struct device *device, enum dtype t,
                       const int64_t *s)
{
    *T = (struct trial){.device = device, .card = getenv("MEOPT_TEST_DEVICE") != NULL, .t = t};
    memcpy(T->s, s, sizeof T->s);
    random_state = 42;
    op->setup(T);
    trial_round(T);
    for (int i = 0; i < T->count; i++) {
        struct operand *o = &T->o[i];
        for (int64_t j = 0; j < o->count; j++) {
            o->want[j] = o->role == OUT ? 0 : o->x[j];
            o->slack[j] = 0;
        }
    }
}

static void trial_upload(struct trial *T)
{
    struct error err;
    for (int i = 0; i < T->count; i++) {
        struct operand *o = &T->o[i];
        uint8_t *image = operand_image(o), *base = o->device ? (uint8_t *)o->device - GUARD : NULL;
        if (!base) base = device_alloc(T->device, MEMORY_DATA, operand_bytes(o) + 2 * GUARD, "operand", &err);
        assert_non_null(base);
        o->device = base + GUARD;
        T->device->upload(T->device, base, image, operand_bytes(o) + 2 * GUARD);
        free(image);
    }
}

/* The device's memory alone; another device may follow. */
static void trial_leave(struct trial *T)
{
    for (int i = 0; i < T->count; i++) {
        if (T->o[i].device) device_free(T->device, (uint8_t *)T->o[i].device - GUARD);
        T->o[i].device = NULL;
    }
}

static void trial_close(struct trial *T)
{
    trial_leave(T);
    for (int i = 0; i < T->count; i++) {
        free(T->o[i].x);
        free(T->o[i].want);
        free(T->o[i].slack);
        free(T->o[i].bfp);
    }
}

static uint8_t *operand_download(struct trial *T, int i)
{
    size_t bytes = operand_bytes(&T->o[i]) + 2 * GUARD;
    uint8_t *image = malloc(bytes);
    assert_non_null(image);
    T->device->sync(T->device);
    T->device->download(T->device, image, (uint8_t *)T->o[i].device - GUARD, bytes);
    return image;
}

#endif
