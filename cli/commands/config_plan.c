/* Plans the memory of a configuration for the form: see cmd_config.h. */
#include "cli/commands/cmd_config.h"
#include "core/train/plan.h"

int config_plan(const struct config *config, struct memory_use *use, struct error *err)
{
    struct plan plan;
    int code = plan_make(&plan, config, err);
    if (code == 0) *use = plan.use;
    return code;
}
