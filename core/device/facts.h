/* What a device computes with, in words: the table at a run's start, meta.json and doctor show the same. A
 * fallback says what it costs, so that nothing is slow in silence. */
#ifndef MEOPT_DEVICE_FACTS_H
#define MEOPT_DEVICE_FACTS_H

#include "core/device/device.h"

enum {
    FACT_DEVICE,    /* name, memory, where */
    FACT_DRIVER,    /* library and versions */
    FACT_KERNELS,   /* code object or instruction set */
    FACT_GEMM,      /* who computes products of matrices */
    FACT_ATTENTION, /* by which instructions */
    FACT_GRAPHS,    /* whether operations are started together */
    DEVICE_FACTS
};
struct device_fact {
    const char *name; /* static text: "products" */
    char is[512];
    char cost[200];   /* of a fallback; "": it is none */
    char remedy[200]; /* the command that fixes it; "" if there is none */
};

void device_facts(struct device *device, struct device_fact facts[DEVICE_FACTS]);
/* "products: MEOpt's own kernel: several times slower ...: put ..."; "" for what is no fallback. */
char *fact_warning(const struct device_fact *fact, char *text, size_t size);

/* Instruction sets that this processor runs, as bits; and the name of the best one among such bits, as
 * MEOPT_CPU_ISA takes it; NULL: none. */
uint32_t facts_cpu_sets(void);
const char *facts_best_cpu_isa(uint32_t sets);

/* A warning on stderr for each fallback. */
void device_facts_warn(struct device *device);

/* Those of a card (gpu_facts.c) and of the processor (cpu_facts.c). */
void gpu_facts(struct device *device, struct device_fact facts[DEVICE_FACTS]);
void cpu_facts(struct device *device, struct device_fact facts[DEVICE_FACTS]);

#endif
