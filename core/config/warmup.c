/* The steps of warm-up: optim.warmup_steps, optim.warmup_ratio, or what fits the run. And the rule without a
 * schedule. */
#include "core/config/value.h"

int64_t config_warmup(const struct config *c, int64_t total)
{
    enum { USUAL_PART = 10, USUAL_MOST = 500 };
    int64_t steps = c->optim.warmup_steps, part = total / USUAL_PART;
    if (steps < 0 && c->optim.warmup_ratio > 0) steps = (int64_t)(c->optim.warmup_ratio * (double)total);
    if (steps < 0) steps = part < USUAL_MOST ? part : USUAL_MOST;
    return steps < total ? steps : total;
}

void warmup_settle(struct config *c)
{
    const struct config_origin *steps = &c->origins[config_key_index("optim.warmup_steps")],
                               *ratio = &c->origins[config_key_index("optim.warmup_ratio")];
    if (RULE_HAS(c->optim.name, WITH_POINTS) && !config_given(c, "optim.schedule"))
        c->optim.schedule = OPTIM_SCHEDULE_CONSTANT;
    if (c->optim.warmup_steps < 0 || c->optim.warmup_ratio <= 0 || steps->from == ratio->from) return;
    if (steps->from == ORIGIN_OVERRIDE) c->optim.warmup_ratio = 0;
    if (ratio->from == ORIGIN_OVERRIDE) c->optim.warmup_steps = -1;
}
