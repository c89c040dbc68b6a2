/* Components that a device computes with, in words. The table at a run's start, meta.json and doctor show the
 * same rows. A fallback states its cost, so that nothing is slow without a warning. */
#ifndef MEOPT_DEVICE_FACTS_H
#define MEOPT_DEVICE_FACTS_H

#include "core/device/device.h"

enum {
    FACT_DEVICE,    /* name, memory, location */
    FACT_DRIVER,    /* library and versions */
    FACT_KERNELS,   /* code object or instruction set */
    FACT_GEMM,      /* implementation of GEMMs */
    FACT_ATTENTION, /* instructions of the attention kernels */
    FACT_GRAPHS,    /* whether operations are launched together */
    DEVICE_FACTS
};
struct device_fact {
    const char *name; /* static text: "products" */
    char is[512];
    char cost[200];   /* cost of a fallback; "": no fallback */
    char remedy[200]; /* remedy; "" if there is none */
};

void device_facts(struct device *device, struct device_fact facts[DEVICE_FACTS]);
/* Writes "products: MEOpt's own kernel: several times slower ...: put ..."; "" for a row that is no
 * fallback. */
char *fact_warning(const struct device_fact *fact, char *text, size_t size);

/* Instruction sets that this processor runs, as bits; and the name of the best one among such bits, as in
 * MEOPT_CPU_ISA; NULL: none. */
uint32_t facts_cpu_sets(void);
const char *facts_best_cpu_isa(uint32_t sets);

/* Prints a warning on stderr for each fallback. */
void device_facts_warn(struct device *device);

/* Rows of a card. */
void gpu_facts(struct device *device, struct device_fact facts[DEVICE_FACTS]);

#endif
