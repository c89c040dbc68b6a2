/* The back end of one rank: its own sum, its own neighbour. Arguments are checked as strictly as a back end
 * of many ranks must, so that a run of one shows what would fail on four. */
#include "core/dist/dist.h"

static int self_check(const char *collective, const void *p, int64_t count, enum dtype type,
                      struct error *err)
{
    if (p && count >= 0 && (type == DTYPE_F32 || type == DTYPE_BF16)) return 0;
    return error_set(err, EXIT_FAILED, NULL, "%s of %lld values of type %s", collective, (long long)count,
                     dtype_name(type));
}

static void self_copy(struct dist *dist, const void *from, void *to, int64_t count, enum dtype type)
{
    if (from != to && count)
        dist->device->ops->copy(dist->device, to, from, (size_t)count * dtype_bytes(type));
}

static int self_reduce_scatter(struct dist *dist, const void *send, void *receive, int64_t count,
                               enum dtype type, struct error *err)
{
    int code = self_check("reduce_scatter", receive ? send : NULL, count, type, err);
    if (!code) self_copy(dist, send, receive, count, type);
    return code;
}

static int self_all_gather(struct dist *dist, const void *send, void *receive, int64_t count, enum dtype type,
                           struct error *err)
{
    int code = self_check("all_gather", receive ? send : NULL, count, type, err);
    if (!code) self_copy(dist, send, receive, count, type);
    return code;
}

static int self_all_reduce(struct dist *dist, enum dist_operation operation, double *values, int64_t count,
                           struct error *err)
{
    (void)dist;
    if (values && count >= 0 && operation <= DIST_MAX) return 0;
    return error_set(err, EXIT_FAILED, NULL, "all_reduce of %lld values, operation %d", (long long)count,
                     (int)operation);
}

static int self_broadcast(struct dist *dist, void *p, size_t bytes, int root, struct error *err)
{
    (void)dist;
    if ((p || !bytes) && root == 0) return 0;
    return error_set(err, EXIT_FAILED, NULL, "broadcast of %zu bytes from rank %d of 1", bytes, root);
}

static int self_barrier(struct dist *dist, struct error *err)
{
    (void)dist;
    (void)err;
    return 0;
}

static void self_abort(struct dist *dist, int exit_code) /* nobody else waits; the caller ends by itself */
{
    (void)dist;
    (void)exit_code;
}

void dist_self(struct dist *dist, struct device *device)
{
    static const struct dist_ops self = {.name = "self",
                                         .reduce_scatter = self_reduce_scatter,
                                         .all_gather = self_all_gather,
                                         .all_reduce = self_all_reduce,
                                         .broadcast = self_broadcast,
                                         .barrier = self_barrier,
                                         .abort = self_abort};
    *dist = (struct dist){.ops = &self, .rank = 0, .size = 1, .device = device};
}
