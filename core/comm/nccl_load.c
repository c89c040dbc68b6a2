/* RCCL and NCCL by dlopen: see nccl_api.h. */
#include "core/base/library.h"
#include "core/comm/comm_internal.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const nccl_names[DEVICE_KIND_COUNT] = {[DEVICE_HIP] = "RCCL", [DEVICE_CUDA] = "NCCL"};

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
            snprintf(why, size, _("%s has no %s (required: release 2.14 or later)"), api->path,
                     nccl_symbols[i].symbol);
            return false;
        }
        memcpy((char *)api + nccl_symbols[i].at, &p, sizeof p);
    }
    void *p = dlsym(library, "ncclGetLastError");
    memcpy(&api->last_error, &p, sizeof p);
    bool known = api->version(&api->number) == NCCL_SUCCESS;
    p = known && api->number >= NCCL_SPLITS_SINCE ? dlsym(library, "ncclCommSplit") : NULL;
    memcpy(&api->split, &p, sizeof p);
    if (known) return true;
    snprintf(why, size, _("%s does not report its version"), api->path);
    return false;
}

const struct nccl_api *nccl_load(enum device_kind kind, char *why, size_t size)
{
    static struct nccl_api apis[DEVICE_KIND_COUNT];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct nccl_api *api = &apis[kind], *found = NULL;
    pthread_mutex_lock(&lock);
    if (api->number) found = api;
    else {
        struct library library;
        if (!library_open(kind == DEVICE_HIP ? LIBRARY_RCCL : LIBRARY_NCCL, &library))
            snprintf(why, size, "%s", library.why);
        snprintf(api->path, sizeof api->path, "%s", library.path);
        if (library.handle && nccl_fill(api, library.handle, why, size)) found = api;
        else api->number = 0;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
