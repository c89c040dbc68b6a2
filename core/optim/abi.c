/* Functions without sizes, for programs that were built with the headers of version 0.1.0. Newer headers have
 * macros of these names (core/meopt.h), which pass the caller's sizes. These functions write only the fields
 * of the old headers. */
#include "core/optim/optim.h"

#include <string.h>

#define UP_TO(type, last) (offsetof(struct type, last) + sizeof((struct type){0}.last))
enum {
    BYTES_FIRST = UP_TO(meopt_bytes, callers),
    INFO_FIRST = offsetof(struct meopt_tensor_info, bytes) + BYTES_FIRST,
    STATS_FIRST = UP_TO(meopt_step_stats, tensors),
    /* The size of the options identifies the header, and so the size of its tensors. */
    OPTIONS_BEFORE_PARTS = UP_TO(meopt_options, device),
    TENSOR_BEFORE_PARTS = UP_TO(meopt_tensor, first),
    TENSOR_FIRST = UP_TO(meopt_tensor, count)
};

int(meopt_options_init)(struct meopt_options *options, size_t size, int rule)
{
    size_t tensor_size = size <= OPTIONS_BEFORE_PARTS ? TENSOR_BEFORE_PARTS : TENSOR_FIRST;
    return meopt_options_init_sized(tensor_size, options, size, rule);
}

int(meopt_query)(const struct meopt_options *options, const struct meopt_tensor *tensors, size_t count,
                 struct meopt_bytes *bytes, struct meopt_error *err)
{
    return meopt_query_sized(BYTES_FIRST, options, tensors, count, bytes, err);
}

int(meopt_held)(const struct meopt *opt, struct meopt_bytes *bytes)
{
    return meopt_held_sized(BYTES_FIRST, opt, bytes);
}

int(meopt_info)(const struct meopt *opt, size_t tensor, struct meopt_tensor_info *info)
{
    return meopt_info_sized(INFO_FIRST, opt, tensor, info);
}

int(meopt_plan_tensor)(const struct meopt_options *options, const struct meopt_tensor *tensor,
                       struct meopt_tensor_info *info, struct meopt_error *err)
{
    return meopt_plan_tensor_sized(INFO_FIRST, options, tensor, info, err);
}

int(meopt_step_end)(struct meopt *opt, struct meopt_step_stats *stats, struct meopt_error *err)
{
    return meopt_step_end_sized(STATS_FIRST, opt, stats, err);
}

int(meopt_step)(struct meopt *opt, int64_t step, double lr, double scale,
                const struct meopt_gradient *gradients, struct meopt_step_stats *stats,
                struct meopt_error *err)
{
    return meopt_step_sized(STATS_FIRST, opt, step, lr, scale, gradients, stats, err);
}
