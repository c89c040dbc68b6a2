/* RCCL and NCCL by dlopen: see nccl_api.h. */
#include "core/base/library.h"
#include "core/dist/parts.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const nccl_names[DEVICE_KIND_COUNT] = {[DEVICE_HIP] = "RCCL", [DEVICE_CUDA] = "NCCL"};

static const char *const nccl_files[DEVICE_KIND_COUNT][6] = {
    [DEVICE_HIP] = {"librccl.so.1", "librccl.so", "/opt/dtk/lib/librccl.so.1", "/opt/rocm/lib/librccl.so.1",
                    NULL},
    [DEVICE_CUDA] = {"libnccl.so.2", "libnccl.so", NULL}};

static const struct {
    size_t at;
    const char *symbol;
} nccl_symbols[] = {
#define NCCL_ROW(name, symbol, arguments) {offsetof(struct nccl_api, name), #symbol},
    NCCL_ENTRIES(NCCL_ROW)
#undef NCCL_ROW
        {offsetof(struct nccl_api, text), "ncclGetErrorString"}};

static bool nccl_fill(struct nccl_api *api, void *library, char *why, size_t size)
{
    for (size_t i = 0; i < sizeof nccl_symbols / sizeof *nccl_symbols; i++) {
        void *p = dlsym(library, nccl_symbols[i].symbol);
        if (!p) {
            snprintf(why, size, "%s has no %s, as releases since 2.14 have", api->path,
                     nccl_symbols[i].symbol);
            return false;
        }
        memcpy((char *)api + nccl_symbols[i].at, &p, sizeof p);
    }
    void *p = dlsym(library, "ncclGetLastError");
    memcpy(&api->last_error, &p, sizeof p);
    if (api->version(&api->number) == NCCL_SUCCESS) return true;
    snprintf(why, size, "%s does not say its version", api->path);
    return false;
}

const struct nccl_api *nccl_load(enum device_kind kind, char *why, size_t size)
{
    static struct nccl_api apis[DEVICE_KIND_COUNT];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const char *const variables[DEVICE_KIND_COUNT] = {
        [DEVICE_HIP] = "MEOPT_RCCL_LIBRARY", [DEVICE_CUDA] = "MEOPT_NCCL_LIBRARY"};
    struct nccl_api *api = &apis[kind], *found = NULL;
    const char *own = getenv(variables[kind]);
    pthread_mutex_lock(&lock);
    if (api->number) found = api;
    else if (own && strcmp(own, "none") == 0) snprintf(why, size, "%s=none", variables[kind]);
    else {
        void *library = library_open(nccl_files[kind], variables[kind], api->path, sizeof api->path);
        if (!library) snprintf(why, size, "%s is not found", own && *own ? own : nccl_files[kind][0]);
        else if (nccl_fill(api, library, why, size)) found = api;
        else api->number = 0;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
