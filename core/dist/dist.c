/* What every back end shares: see dist.h. */
#include "core/dist/dist.h"

#include <string.h>

int dist_sum(struct dist *dist, void *p, int64_t count, enum dtype type, struct error *err)
{
    int64_t part = count / dist->size;
    char *own = (char *)p + (size_t)(part * dist->rank) * dtype_bytes(type);
    if (count % dist->size)
        return error_set(err, EXIT_FAILED, NULL, "a sum of %lld values cannot be shared by %d ranks",
                         (long long)count, dist->size);
    int code = dist->ops->reduce_scatter(dist, p, own, part, type, err);
    return code ? code : dist->ops->all_gather(dist, own, p, part, type, err);
}

void dist_close(struct dist *dist)
{
    if (dist->ops && dist->ops->close) dist->ops->close(dist);
    memset(dist, 0, sizeof *dist);
}
