/* Operands, memory, timing and report lines for the checks of a device: see work.h. */
#include "core/doctor/work.h"
#include "core/base/clock.h"
#include "core/base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line *work_add(struct work *w, const char *check, enum finding finding, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    struct line *l = doctor_add(w->doctor, finding, "%s: %s", w->spec, text);
    l->check = check;
    line_text(l, "device", w->spec);
    return l;
}

void work_result(struct work *w, struct line *l, bool right, const char *remedy)
{
    w->checks++;
    if (right) return;
    w->wrong++;
    l->finding = FINDING_MISSING;
    line_advise(l, "training on it computes wrong results",
                remedy
                    ? remedy
                    : N_("use another card (device.cards), or the CPU; send this report to the maintainers"));
}

/* splitmix64's last steps (Steele et al. 2014) */
float work_value(uint64_t seed, int64_t i)
{
    uint64_t x = (seed << 48) + (uint64_t)i * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (float)((int)(x >> 60) - 8) / 8.0f;
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

enum { PIECE = 1 << 18 };

void work_fill(struct device *dev, void *p, enum dtype type, int64_t count, uint64_t seed)
{
    size_t size = dtype_bytes(type);
    char *piece = xmalloc(PIECE * size);
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        for (int64_t i = 0; i < n; i++) {
            float x = work_value(seed, at + i);
            uint16_t half = bf16_of(x);
            memcpy(piece + (size_t)i * size, size == 2 ? (void *)&half : (void *)&x, size);
        }
        dev->upload(dev, (char *)p + (size_t)at * size, piece, (size_t)n * size);
    }
    dev->sync(dev);
    free(piece);
}

void work_fetch(struct device *dev, const void *p, enum dtype type, int64_t count, float *values)
{
    if (type == DTYPE_F32) {
        dev->download(dev, values, p, (size_t)count * sizeof *values);
        return;
    }
    uint16_t *halves = xmalloc((size_t)count * sizeof *halves + 1);
    dev->download(dev, halves, p, (size_t)count * sizeof *halves);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
    free(halves);
}

char *work_memory(struct work *w, const char *check, size_t bytes)
{
    struct error err;
    char *p = device_alloc(w->device, MEMORY_WORKSPACE, bytes, "measurement", &err);
    if (p) w->device->ops->fill(w->device, p, 0xFF, bytes);
    else
        line_advise(work_add(w, check, FINDING_WARNING, "not tested: could not allocate %.1f MiB",
                             (double)bytes / 1048576.0),
                    "an experiment of these shapes does not fit either", w->device->memory_error.hint);
    return p;
}

double work_seconds(struct device *dev, void (*run)(void *context), void *context)
{
    double t = clock_seconds();
    run(context);
    dev->sync(dev);
    return clock_seconds() - t;
}
