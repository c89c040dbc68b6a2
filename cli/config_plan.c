/* Memory of an experiment for the form: see cmd_config.h. */
#include "cli/cmd_config.h"

int config_plan(const struct config *config, struct memory_use *use, struct error *err)
{
    (void)config;
    (void)use;
    return error_set(err, EXIT_FAILED, NULL, "not known");
}
