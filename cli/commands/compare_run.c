/* Trains the runs of a comparison: see compare_run.h. */
#include "cli/commands/compare_run.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "cli/supervisor/supervise.h"
#include "cli/commands/train_change.h"
#include "cli/commands/train_ranks.h"
#include "core/run/run.h"
#include "core/train/experiment.h"
#include "core/run/status.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_done(const char *directory)
{
    struct run_status status;
    return run_status_read(&status, directory, NULL) == 0 && strcmp(status.state, "done") == 0;
}

static int same_experiment(const char *directory, const struct config *config, struct error *err)
{
    struct config old;
    int code = config_load_below(&old, directory, NULL, 0, err);
    if (!code) {
        if (config_hash(&old) != config_hash(config))
            code = error_set(err, EXIT_LOCKED, "use a different --name, or remove it",
                             "the run directory exists and has a different configuration");
        config_free(&old);
    }
    if (code == EXIT_LOCKED) error_at(err, directory, 0, 0);
    return code;
}

/* Loads the configuration with that value of use_meopt and that seed. "auto" depends on use_meopt, so both
 * are overrides. After an error there is nothing to free. */
static int load_setting(struct config *config, const struct compare_plan *plan,
                        const struct train_ranks *ranks, bool use_meopt, int repeat, struct error *err)
{
    char use[32], seed[48];
    int code = config_load(config, plan->config, plan->overrides, plan->override_count, err);
    if (code) return code;
    snprintf(seed, sizeof seed, "train.seed=%lld", (long long)config->train.seed + repeat);
    snprintf(use, sizeof use, "optim.use_meopt=%s", use_meopt ? "true" : "false");
    char **overrides = xcalloc((size_t)plan->override_count + 2, sizeof *overrides);
    if (plan->override_count)
        memcpy(overrides, plan->overrides, (size_t)plan->override_count * sizeof *overrides);
    overrides[plan->override_count] = use;
    overrides[plan->override_count + 1] = seed;
    config_free(config);
    code = config_load(config, plan->config, overrides, plan->override_count + 2, err);
    free(overrides);
    if (code) return code;
    if (config_memory(config))
        code = error_set(err, EXIT_CONFIG,
                         "remove it (train.memory=), and set the keys that 'meopt plan --fit' lists",
                         "train.memory is for one run; the two runs would get different keys");
    if (!code) code = train_ranks_assign(ranks, NULL, config, err);
    if (!code) code = train_dry_run(config, err);
    if (code) config_free(config);
    return code;
}

/* Trains like 'meopt train': workers on every card, and a supervisor that records them. */
static int train_supervised(struct train_ranks *ranks, const struct config *config, const char *directory,
                            int lock, bool resume, struct error *err)
{
    int code = train_ranks_plan(ranks, NULL, config, directory, err);
    struct supervision s = {.directory = directory,
                            .lock = lock,
                            .resume = resume,
                            .brief = true,
                            .foreground = true,
                            .monitor = getenv("MEOPT_MONITOR"),
                            .monitor_root = getenv("MEOPT_MONITOR_ROOT"),
                            .ranks = ranks->how};
    if (!code) code = supervise(&s, err);
    train_ranks_free(ranks);
    return code;
}

static int one_run(const struct compare_plan *plan, bool use_meopt, int repeat, char **directory,
                   struct error *err)
{
    struct config config, own;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    struct train_ranks ranks;
    int lock = -1, code = train_ranks_read(&ranks, NULL, err);
    if (!code && ranks.launch.size > 1)
        code = error_set(err, EXIT_USAGE,
                         "set device.cards, or train both runs with the launcher and compare them",
                         "compare --run starts its own ranks, but %d were started by %s", ranks.launch.size,
                         ranks.launch.launcher);
    if (!code) code = load_setting(&config, plan, &ranks, use_meopt, repeat, err);
    if (code) return code;
    const char *parent = plan->run_dir ? plan->run_dir : config.run.dir[0] ? config.run.dir : "runs";
    const char *stem = plan->name ? plan->name : config.run.name[0] ? config.run.name : config.stem;
    char *name = plan->repeats > 1 ? xasprintf("%s-%s-%d", stem, use_meopt ? "with" : "without", repeat + 1)
                                   : xasprintf("%s-%s", stem, use_meopt ? "with" : "without");
    *directory = path_join(parent, name);
    char *earlier = path_join(*directory, "config.yaml");
    bool exists = !file_absent(earlier), done = exists && is_done(*directory);
    free(earlier);
    if (exists) code = same_experiment(*directory, &config, err);
    if (!code && done) log_info("== %s: already done", *directory);
    else if (!code) {
        log_info("== %s: %s MEOpt, seed %lld%s", *directory, use_meopt ? "with" : "without",
                 (long long)config.train.seed, exists ? ", resumes" : "");
        if (exists && (code = train_reopen(*directory, &own, &lock, err)) == 0) config_free(&own);
        if (!exists) {
            code = run_create(&run, parent, name, &config, err);
            lock = run_release(&run);
        }
        if (!code) code = train_supervised(&ranks, &config, *directory, lock, exists, err);
        if (lock >= 0) close(lock);
        if (code == EXIT_STOPPED)
            error_set(err, EXIT_STOPPED, "to resume: run the same command again", "stopped and saved in %s",
                      *directory);
    }
    free(name);
    config_free(&config);
    return code;
}

/* Runs without and with MEOpt alternate, so that a slow period of the machine affects both. A supervisor
 * leaves its signals blocked, so that a signal between two runs stops the second. */
int compare_run(const struct compare_plan *plan, char **directories, struct error *err)
{
    int code = 0;
    sigset_t before;
    bool (*hurry)(void) = log_hurry;
    sigprocmask(SIG_SETMASK, NULL, &before);
    for (int r = 0; r < plan->repeats && !code; r++)
        for (int with = 0; with < 2 && !code; with++)
            code = one_run(plan, with, r, &directories[with * plan->repeats + r], err);
    log_hurry = hurry;
    if (!code) sigprocmask(SIG_SETMASK, &before, NULL);
    return code;
}
