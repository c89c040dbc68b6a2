/* A device at work: what the files of its checks share. Each check adds its lines, and tells of a wrong
 * result by work_wrong. Operands are multiples of 1/8 below 1, so that sums of their products are exact in
 * fp32 whatever their order: what a product must be is known to the bit. */
#ifndef MEOPT_DOCTOR_WORK_H
#define MEOPT_DOCTOR_WORK_H

#include "core/doctor/doctor.h"

struct work {
    struct doctor *doctor;
    struct device *device;
    const char *spec;  /* "hip:0" */
    bool card;         /* not the processor */
    bool slow;         /* emulated: everything is made small */
    int checks, wrong; /* results looked at, and found wrong */
};

/* A line of that check with "device": spec. */
struct line *work_add(struct work *work, const char *check, enum finding finding, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* One result was looked at. wrong: the line says FINDING_MISSING with this remedy (NULL: to the maintainers).
 */
void work_grad_stats(struct work *work, struct line *line, bool right, const char *mend);

/* Element i of an operand, and many of them in device memory. */
float work_value(uint64_t seed, int64_t i);
void work_fill(struct device *device, void *p, enum dtype type, int64_t count, uint64_t seed);
/* count values of `type` from the device, as floats. */
void work_fetch(struct device *device, const void *p, enum dtype type, int64_t count, float *values);
/* Memory for a trial, all bits set: NaN. NULL: the line says that there is none. */
char *work_memory(struct work *work, const char *check, size_t bytes);

/* Seconds of run(context), with the device waited for. */
double work_seconds(struct device *device, void (*run)(void *context), void *context);

void work_bandwidth(struct work *work);
void work_copies(struct work *work);
void work_graph(struct work *work);
void work_gemms(struct work *work, const struct doctor_shape *shape);
void work_attention(struct work *work, const struct doctor_shape *shape);
void work_optimizer(struct work *work, const struct doctor_shape *shape);

#endif
