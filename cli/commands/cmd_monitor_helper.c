/* meopt monitor-helper (hidden): the process that loads librocm_smi64 or libnvidia-ml for the monitor. See
 * core/monitor/helper.c. */
#include "cli/command.h"
#include "core/monitor/monitor.h"

static int monitor_helper_run(const struct arguments *args, struct error *err)
{
    int code = monitor_helper(args->operands[0], args->operands[1]);
    return code ? error_set(err, code, NULL, "only meopt itself starts the helper of the monitor") : 0;
}

const struct command cmd_monitor_helper = {
    .name = MONITOR_HELPER,
    .operands = "PROVIDER LIBRARY",
    .summary = "read cards for the monitor",
    .min_operands = 2,
    .max_operands = 2,
    .hidden = true,
    .run = monitor_helper_run,
};
