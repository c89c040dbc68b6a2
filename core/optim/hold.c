/* Host copies of tensors whose arrays are on a card. Rare operations (save, load, import, conversion,
 * measuring errors) use such copies and the CPU's kernels. The step runs where the arrays are
 * (core/device/device.h, struct device_optim). */
#include "core/optim/offload.h"

#include <stdlib.h>
#include <string.h>

int optim_device_status(const struct meopt *opt, struct meopt_error *err)
{
    struct error why = {0};
    return device_check(opt->device, &why) ? optim_fail(err, MEOPT_DEVICE_FAILED, "%.200s", why.what)
                                           : MEOPT_OK;
}

static int copy_in(const struct meopt *opt, void *host, const void *from, size_t bytes,
                   struct meopt_error *err)
{
    opt->device->download(opt->device, host, from, bytes);
    return optim_device_status(opt, err);
}

static int copy_out(const struct meopt *opt, void *to, const void *host, size_t bytes,
                    struct meopt_error *err)
{
    opt->device->upload(opt->device, to, host, bytes);
    opt->device->sync(opt->device);
    return optim_device_status(opt, err);
}

/* A block of a tensor: its part, its pointer and its size. */
struct block {
    unsigned part;
    void **p;
    size_t bytes;
};
enum { BLOCKS = 5 };
static void blocks_of(struct tensor *t, struct block blocks[BLOCKS])
{
    const struct layout *l = &t->layout;
    size_t count = (size_t)l->count; /* the caller's weights have no padding */
    blocks[0] = (struct block){PART_WEIGHTS, &t->weights, count * optim_weight_bytes(l->weights)};
    blocks[1] = (struct block){PART_WEIGHTS, &t->copy, l->copy_bytes ? count * 2 : 0};
    blocks[2] = (struct block){PART_WEIGHTS, &t->correction, l->residual_bytes};
    blocks[3] = (struct block){PART_STATE, (void **)&t->state, l->state_bytes};
    blocks[4] = (struct block){PART_FACTORS, (void **)&t->factors, l->factor_bytes};
}

static void *copy_allocate(const struct tensor *t, size_t bytes, int *status, struct meopt_error *err)
{
    void *copy = *status || !bytes ? NULL : aligned_alloc(64, rounded(bytes));
    if (!copy && bytes && !*status)
        *status = optim_fail(err, MEOPT_NO_MEMORY, "no memory for a copy of %.100s", t->name);
    return copy;
}

/* Reads the offloaded states and residual bits of a tensor into host memory. */
static int offloaded_hold(const struct meopt *opt, const struct tensor *t, unsigned parts,
                          struct tensor *host, struct meopt_error *err)
{
    const struct layout *l = &t->layout;
    int status = MEOPT_OK;
    host->state = copy_allocate(t, parts & PART_STATE ? l->state_bytes : 0, &status, err);
    host->correction = copy_allocate(t, parts & PART_WEIGHTS ? l->residual_bytes : 0, &status, err);
    if (status || !(host->state || host->correction)) return status;
    return offload_read(opt, t, host->state, host->correction, err);
}

static int offloaded_release(const struct meopt *opt, const struct tensor *t, struct tensor *host,
                             bool changed, struct meopt_error *err)
{
    int status = MEOPT_OK;
    if (changed && (host->state || host->correction))
        status = offload_write(opt, t, host->state, host->correction, err);
    free(host->state);
    free(host->correction);
    host->state = NULL;
    host->correction = NULL;
    return status;
}

int tensor_hold(const struct meopt *opt, const struct tensor *t, unsigned parts, struct tensor *host,
                struct meopt_error *err)
{
    *host = *t;
    int status = t->offloaded ? offloaded_hold(opt, t, parts, host, err) : MEOPT_OK;
    if (opt->device->host_memory) {
        if (status) tensor_release(opt, t, host, false, NULL);
        return status;
    }
    struct tensor card = *t; /* its pointers to offloaded blocks are NULL */
    struct block blocks[BLOCKS], from[BLOCKS];
    blocks_of(host, blocks);
    blocks_of(&card, from);
    host->accumulator = NULL;
    for (int i = 0; i < BLOCKS; i++) {
        const void *there = *from[i].p;
        if (!there) continue;
        *blocks[i].p = copy_allocate(t, blocks[i].part & parts ? blocks[i].bytes : 0, &status, err);
        if (*blocks[i].p) status = copy_in(opt, *blocks[i].p, there, blocks[i].bytes, err);
    }
    if (status) tensor_release(opt, t, host, false, NULL);
    return status;
}

int tensor_release(const struct meopt *opt, const struct tensor *t, struct tensor *host, bool changed,
                   struct meopt_error *err)
{
    int status = t->offloaded ? offloaded_release(opt, t, host, changed, err) : MEOPT_OK;
    if (opt->device->host_memory) return status;
    struct tensor card = *t;
    struct block from[BLOCKS], to[BLOCKS];
    blocks_of(host, from);
    blocks_of(&card, to);
    for (int i = 0; i < BLOCKS; i++) {
        if (changed && *from[i].p && !status)
            status = copy_out(opt, *to[i].p, *from[i].p, from[i].bytes, err);
        free(*from[i].p);
        *from[i].p = NULL;
    }
    return status;
}
