/* Plans the memory of a configuration for the form: see cmd_config.h. */
#include "cli/config/cmd_config.h"
#include "core/plan/plan.h"

int config_plan(const struct config *config, struct memory_use *use, struct error *err)
{
    struct plan plan;
    int code = plan_make(&plan, config, err);
    if (code == 0) *use = plan.use;
    return code;
}
