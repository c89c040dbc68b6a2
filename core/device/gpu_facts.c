/* Components that a card computes with: see facts.h. */
#include "core/device/facts.h"
#include "core/device/gpu.h"
#include "core/device/site.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAY(fact, field, ...) snprintf((fact)->field, sizeof(fact)->field, __VA_ARGS__)

static void driver_fact(const struct gpu *gpu, struct device_fact *f)
{
    char version[64], module[32], module_version[64], dtk[64];
    bool hip = gpu->driver.kind == DRIVER_HIP;
    gpu_version_text(&gpu->driver, version, sizeof version);
    bool loaded = site_module("", hip, module, sizeof module, module_version, sizeof module_version),
         toolkit = hip && site_dtk("", dtk, sizeof dtk);
    SAY(f, is, "%.150s, %s", gpu->driver.path, version);
    if (loaded) {
        size_t n = strlen(f->is);
        snprintf(f->is + n, sizeof f->is - n, ", ");
        snprintf(f->is + n + 2, sizeof f->is - n - 2, N_("kernel module %s%s%s"), module,
                 module_version[0] ? " " : "", module_version);
    }
    size_t n = strlen(f->is);
    if (toolkit) snprintf(f->is + n, sizeof f->is - n, ", DTK %s", dtk);
}

static void gemm_fact(const struct gpu *gpu, struct device_fact *f)
{
    bool hip = gpu->driver.kind == DRIVER_HIP;
    const char *lt = hip ? "hipBLASLt" : "cuBLASLt", *blas = hip ? "rocBLAS" : "cuBLAS";
    if (gpu->lt && gpu->blas)
        SAY(f, is, N_("%s (%.120s), else %s (%.120s)"), lt, lt_path(gpu->lt), blas, blas_path(gpu->blas));
    else if (gpu->lt) SAY(f, is, N_("%s (%.120s); no %s: %s"), lt, lt_path(gpu->lt), blas, gpu->blas_why);
    else if (gpu->blas) {
        SAY(f, is, N_("%s (%.120s); no %s: %s"), blas, blas_path(gpu->blas), lt, gpu->lt_why);
        SAY(f, cost, N_("a bias costs an extra pass over each GEMM's result"));
    } else {
        SAY(f, is, N_("MEOpt's own kernel; no %s: %s; no %s: %s"), lt, gpu->lt_why, blas, gpu->blas_why);
        SAY(f, cost, N_("several times slower than %s"), blas);
        SAY(f, remedy, "%s",
            strstr(gpu->blas_why, "=none") ? N_("unset that variable")
            : hip ? N_("install rocBLAS, or put its directory into LD_LIBRARY_PATH (DTK: source "
                       "/opt/dtk/env.sh)")
                  : N_("install cuBLAS, or put its directory into LD_LIBRARY_PATH (/usr/local/cuda/lib64)"));
    }
}

static void attention_fact(const struct gpu *gpu, struct device_fact *f)
{
    if (!gpu->plain) SAY(f, is, N_("MEOpt's kernel on matrix instructions (%s), fp32 without"), gpu->matrix);
    else if (!gpu->matrix_why[0])
        SAY(f, is, N_("MEOpt's kernel in fp32, bf16 is widened; matrix instructions: %s"), gpu->matrix);
    else {
        SAY(f, is, N_("MEOpt's kernel by plain loops; matrix instructions: %s"), gpu->matrix_why);
        SAY(f, cost, N_("attention and MEOpt's own GEMMs are several times slower"));
    }
}

static void graphs_fact(struct gpu *gpu, struct device_fact *f)
{
    const char *why = graphs_off(gpu);
    if (!why) SAY(f, is, N_("on: a pass over a tower is one launch"));
    else {
        SAY(f, is, N_("off: %s"), why);
        SAY(f, cost, N_("the host launches each of the hundreds of operations per step"));
    }
}

void gpu_facts(struct device *device, struct device_fact facts[DEVICE_FACTS])
{
    struct gpu *gpu = gpu_of(device);
    const struct card_info *card = &gpu->card;
    struct device_fact *f = &facts[FACT_DEVICE];
    SAY(f, is,
        gpu->driver.kind == DRIVER_HIP ? N_("%s, %s, %.1f GiB, %d compute units")
                                       : N_("%s, %s, %.1f GiB, %d multiprocessors"),
        device->name, card->arch[0] ? card->arch : N_("arch unknown"),
        (double)card->total_bytes / 1073741824.0, card->units);
    size_t n = strlen(f->is);
    if (device->pci[0]) snprintf(f->is + n, sizeof f->is - n, ", PCI %s", device->pci);
    driver_fact(gpu, &facts[FACT_DRIVER]);
    SAY(&facts[FACT_KERNELS], is, N_("%.360s, wave %d"), gpu->object, gpu->wave);
    gemm_fact(gpu, &facts[FACT_GEMM]);
    attention_fact(gpu, &facts[FACT_ATTENTION]);
    graphs_fact(gpu, &facts[FACT_GRAPHS]);
}
