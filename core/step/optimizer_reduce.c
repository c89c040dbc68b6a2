/* All-reduces between the ranks that store parts of the optimizer's tensors (meopt_options.reduce,
 * combine). */
#include "core/step/step.h"

/* Returns the ranks that share the tensors of the current call; NULL: this rank has them whole. */
static struct comm *sharers(struct trainer *t)
{
    if (!dp_divides_states(t)) return t->reduce.of_all ? t->stages : NULL;
    return t->reduce.of_all ? t->plane : t->data;
}

static int reduce_parts(void *context, double *values, size_t count)
{
    struct trainer *t = context;
    struct device *dev = t->device; /* earlier communication may need the device meanwhile */
    if (dev->leave) dev->leave(dev);
    struct comm *ranks = sharers(t);
    int code = ranks ? comm_all_reduce(ranks, COMM_SUM, values, (int64_t)count, &t->reduce.lost) : 0;
    if (dev->enter) dev->enter(dev);
    return code;
}

static int combine_parts(void *context, void *values, size_t bytes)
{
    struct trainer *t = context;
    struct device *dev = t->device;
    if (dev->leave) dev->leave(dev);
    struct comm *ranks = sharers(t);
    int code = ranks ? comm_combine(ranks, values, bytes, &t->reduce.lost) : 0;
    if (dev->enter) dev->enter(dev);
    return code;
}

void set_reduce_callbacks(const struct trainer *t, struct meopt_options *options)
{
    if (!dp_sharded(t)) return;
    options->reduce = reduce_parts;
    if (comm_combines(&t->ranks)) options->combine = combine_parts;
}
