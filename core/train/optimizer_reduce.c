/* All-reduces between the ranks that store parts of the optimizer's tensors (meopt_options.reduce,
 * combine). */
#include "core/train/train_internal.h"

static int reduce_parts(void *context, double *values, size_t count)
{
    struct trainer *t = context;
    struct device *dev = t->device; /* earlier communication may need the device meanwhile */
    if (dev->leave) dev->leave(dev);
    int code = comm_all_reduce(&t->ranks, COMM_SUM, values, (int64_t)count, &t->lost);
    if (dev->enter) dev->enter(dev);
    return code;
}

static int combine_parts(void *context, void *values, size_t bytes)
{
    struct trainer *t = context;
    struct device *dev = t->device;
    if (dev->leave) dev->leave(dev);
    int code = comm_combine(&t->ranks, values, bytes, &t->lost);
    if (dev->enter) dev->enter(dev);
    return code;
}

void set_reduce_callbacks(const struct trainer *t, struct meopt_options *options)
{
    if (!dp_sharded(t)) return;
    options->reduce = reduce_parts;
    if (comm_combines(&t->ranks)) options->combine = combine_parts;
}
