/* Adafactor's row and column means: the sums of a step over all chunks and all handles that hold parts of a
 * tensor, and the averages that follow from them. The sums are exact (kernels/optim_factor.h). */
#include "core/optim/norm.h"
#include "kernels/optim_factor.h"

#include <stdlib.h>

size_t factor_values(const struct layout *l) { return factor_count(l) * FACTOR_LEVELS; }

/* Lets every handle refuse what one of them refuses: their means would differ otherwise. */
static int refuse_together(struct meopt *opt, struct optim_sweep *sweep, struct meopt_error *err)
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
    bool host = opt->options.reduce || !optim->asynchronous;
    size_t most = 0;
    int status = MEOPT_OK;
    for (size_t i = 0; i < sweep->count; i++) {
        size_t values = factor_values(&opt->tensors[tensors[i]].layout);
        if (values > most) most = values;
    }
    if (opt->options.reduce) status = refuse_together(opt, sweep, err);
    if (status || !most || sweep->bad >= 0) return status;
    double *sums = host ? malloc(most * sizeof *sums) : NULL;
    if (host && !sums)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for %zu sums of rows and columns", most);
    for (size_t i = 0; i < sweep->count && !status; i++) {
        size_t values = factor_values(&opt->tensors[tensors[i]].layout);
        if (!values) continue;
        for (size_t k = 0; k < values && host; k++) sums[k] = 0;
        optim->factor_sums(opt->device, opt->work, sweep, i, sums);
        status = host ? optim_reduce(opt, sums, values, err) : MEOPT_OK;
        if (!status) optim->factor_means(opt->device, opt->work, sweep, i, sums);
    }
    free(sums);
    return status ? status : optim_device_status(opt, err);
}
