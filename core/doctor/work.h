/* Shared by the checks of a device. Each check adds its lines and reports results with work_result. Operands
 * are multiples of 1/8 below 1, so that sums of their products are exact in fp32 in any order: the expected
 * GEMM is known to the bit. */
#ifndef MEOPT_DOCTOR_WORK_H
#define MEOPT_DOCTOR_WORK_H

#include "core/doctor/doctor.h"
#include "core/monitor/monitor.h"

struct card_state {
    struct monitor *monitor; /* NULL: none */
    bool known;              /* it lists the card */
    struct monitor_card card;
    char why[256]; /* why readings are missing; "" */
};

struct work {
    struct doctor *doctor;
    struct device *device;
    const char *spec;  /* "hip:0" */
    bool card;         /* not the CPU */
    bool slow;         /* emulated: all sizes are small */
    int checks, wrong; /* results checked; wrong results */
    struct card_state state;
};

/* Adds a line of that check with "device": spec. */
struct line *work_add(struct work *work, const char *check, enum finding finding, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Counts one checked result. A wrong one becomes FINDING_MISSING with this remedy (NULL: the default). */
void work_result(struct work *work, struct line *line, bool right, const char *remedy);

/* Return element i of an operand; fill device memory with them. */
float work_value(uint64_t seed, int64_t i);
void work_fill(struct device *device, void *p, enum dtype type, int64_t count, uint64_t seed);
/* Copies count values of `type` from the device, as floats. */
void work_fetch(struct device *device, const void *p, enum dtype type, int64_t count, float *values);
/* Allocates memory for a trial, all bits set (NaN). NULL: adds a line that there is none. */
char *work_memory(struct work *work, const char *check, size_t bytes);

/* Returns the seconds of run(context), including the device's work. */
double work_seconds(struct device *device, void (*run)(void *context), void *context);

/* Open the card's telemetry and read it; read it again, keeping the reasons of throttling; report it; close
 * it. */
void work_state_open(struct work *work);
void work_state_sample(struct work *work);
void work_state_report(struct work *work);
void work_state_close(struct work *work);
/* Reports the last Xid of NVIDIA's driver in the kernel's log, if it can be read: of the card at this PCI
 * address, NULL: of any. */
void doctor_xid(struct doctor *doctor, const char *spec, const char *pci);

void work_gemms(struct work *work, const struct doctor_shape *shape);
void work_attention(struct work *work, const struct doctor_shape *shape);
void work_optimizer(struct work *work, const struct doctor_shape *shape);

#endif
