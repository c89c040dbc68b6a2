/* Components that a device computes with: see facts.h. This file has the processor; gpu_facts.c has cards. */
#include "core/device/facts.h"
#include "core/device/gpu.h"
#include "core/base/log.h"
#include "core/base/message.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/optim.h"
#include "kernels/cpu/select.h"

#include <stdio.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static int threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

static void cpu_facts(struct device *device, struct device_fact facts[DEVICE_FACTS])
{
    const struct cpu_ops *ops = cpu_ops_select();
    bool plain = strcmp(ops->isa, "plain") == 0, tiles = gemm_amx_available();
    snprintf(facts[FACT_DEVICE].is, sizeof facts->is, N_("%s, %d thread%s"), device->name, threads(),
             threads() == 1 ? "" : "s");
    snprintf(facts[FACT_DRIVER].is, sizeof facts->is, N_("none: the processor needs none"));
    snprintf(facts[FACT_KERNELS].is, sizeof facts->is, N_("%s, optimizer %s"), ops->isa,
             optim_kernels_find(NULL)->name);
    if (plain) {
        snprintf(facts[FACT_KERNELS].cost, sizeof facts->cost,
                 N_("everything is several times slower than with AVX2"));
        snprintf(facts[FACT_KERNELS].remedy, sizeof facts->remedy, "%s", cpu_plain_remedy());
    }
    struct device_fact *gemm = &facts[FACT_GEMM];
    if (tiles)
        snprintf(gemm->is, sizeof gemm->is, N_("bf16 on AMX tiles, fp32 by MEOpt's own, %s"), ops->isa);
    else if (ops->gemm_bfp)
        snprintf(gemm->is, sizeof gemm->is,
                 N_("bf16 by MEOpt's own, %s (whole numbers), fp32 by MEOpt's own, %s"), ops->isa, ops->isa);
    else snprintf(gemm->is, sizeof gemm->is, N_("MEOpt's own, %s"), ops->isa);
    snprintf(facts[FACT_ATTENTION].is, sizeof facts->is, tiles ? N_("bf16 on AMX tiles, fp32 by %s") : "%s",
             ops->isa);
    snprintf(facts[FACT_GRAPHS].is, sizeof facts->is, N_("none: operations are calls"));
}

uint32_t facts_cpu_sets(void)
{
    uint32_t sets = 0;
    for (int s = 0; s < CPU_SETS; s++) sets |= (uint32_t)cpu_isa_runs((enum cpu_isa)s) << s;
    return sets;
}

const char *facts_best_cpu_isa(uint32_t sets)
{
    for (int s = CPU_SETS - 1; s >= 0; s--)
        if (sets >> s & 1) return cpu_isa_names[s];
    return NULL;
}

void device_facts(struct device *device, struct device_fact facts[DEVICE_FACTS])
{
    static const char *const names[DEVICE_FACTS] = {N_("device"),   N_("driver"),    N_("kernels"),
                                                    N_("products"), N_("attention"), N_("graphs")};
    memset(facts, 0, DEVICE_FACTS * sizeof *facts);
    for (int i = 0; i < DEVICE_FACTS; i++) facts[i].name = names[i];
    if (gpu_is(device)) gpu_facts(device, facts);
    else cpu_facts(device, facts);
}

char *fact_warning(const struct device_fact *fact, char *text, size_t size)
{
    if (!fact->cost[0]) snprintf(text, size, "%s", "");
    else {
        char is[sizeof fact->is], cost[sizeof fact->cost], remedy[sizeof fact->remedy];
        snprintf(text, size, "%s: %s: %s%s%s", _(fact->name), message_translated(is, sizeof is, fact->is),
                 message_translated(cost, sizeof cost, fact->cost), fact->remedy[0] ? "; " : "",
                 message_translated(remedy, sizeof remedy, fact->remedy));
    }
    return text;
}

void device_facts_warn(struct device *device)
{
    struct device_fact facts[DEVICE_FACTS];
    char text[1024];
    device_facts(device, facts);
    for (int i = 0; i < DEVICE_FACTS; i++)
        if (fact_warning(&facts[i], text, sizeof text)[0]) log_warn("%s", text);
}
