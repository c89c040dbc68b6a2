/* Adafactor's row and column means: the sums of a step over all chunks and all handles that hold parts of a
 * tensor, and the averages that follow from them. The sums are exact (kernels/optim_factor.h). */
#include "core/optim/norm.h"
#include "kernels/optim_factor.h"

#include <stdlib.h>

size_t factor_values(const struct layout *l) { return factor_count(l) * FACTOR_LEVELS; }

/* Returns whether sums are added up on the host, not by a card. */
static bool sums_on_host(const struct meopt_options *o)
{
    return o->reduce || !optim_device_of(o)->optim->asynchronous;
}

size_t factors_bytes(const struct meopt_options *o, const struct tensor *t)
{
    const struct device_optim *optim = optim_device_of(o)->optim;
    const struct layout *l = &t->layout;
    struct optim_task task = {.count = l->count,
                              .first_element = t->whole ? t->first : 0,
                              .factors = {.matrices = l->matrices, .rows = l->rows, .columns = l->columns}};
    size_t values = sums_on_host(o) ? factor_values(l) : 0;
    if (values && optim->factor_scratch) values += optim->factor_scratch(&task, o->threads);
    return rounded(values * sizeof(double));
}

int factors_reserve(struct meopt *opt, struct meopt_error *err)
{
    size_t most = 0;
    for (size_t i = 0; i < opt->count; i++) {
        size_t bytes = factors_bytes(&opt->options, &opt->tensors[i]);
        if (bytes > most) most = bytes;
    }
    if (!most) return MEOPT_OK;
    opt->factor_sums = host_allocate(opt, MEOPT_MEMORY_WORKSPACE, most, "sums of rows and columns");
    if (!opt->factor_sums)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu bytes of sums of rows and columns", most);
    opt->factor_sums_bytes = most;
    return MEOPT_OK;
}

int refuse_together(struct meopt *opt, struct optim_sweep *sweep, struct meopt_error *err)
{
    const struct device_optim *optim = opt->device->optim;
    double refused = optim->refused(opt->device, opt->work, sweep, false);
    int status = optim_reduce(opt, &refused, 1, err);
    if (!status && refused > 0) optim->refused(opt->device, opt->work, sweep, true);
    return status;
}

int factors_update(struct meopt *opt, const size_t *tensors, struct optim_sweep *sweep,
                   struct meopt_error *err)
{
    const struct device_optim *optim = opt->device->optim;
    bool host = sums_on_host(&opt->options);
    double *sums = opt->factor_sums;
    int status = opt->options.reduce ? refuse_together(opt, sweep, err) : MEOPT_OK;
    if (status || sweep->bad >= 0) return status;
    pthread_mutex_lock(&opt->workspace_lock);
    for (size_t i = 0; i < sweep->count && !status; i++) {
        size_t values = factor_values(&opt->tensors[tensors[i]].layout);
        if (!values) continue;
        for (size_t k = 0; k < values && host; k++) sums[k] = 0;
        optim->factor_sums(opt->device, opt->work, sweep, i, sums, sums ? sums + values : NULL);
        status = host ? optim_reduce(opt, sums, values, err) : MEOPT_OK;
        if (!status) optim->factor_means(opt->device, opt->work, sweep, i, sums);
    }
    pthread_mutex_unlock(&opt->workspace_lock);
    return status ? status : optim_device_status(opt, err);
}
