/* The two runs of a comparison: see compare_run.h. */
#include "cli/compare_run.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/train/experiment.h"
#include "core/train/loop.h"
#include "core/run/request.h"
#include "core/run/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void stepped(void *context, const struct train_progress *p)
{
    const struct config *c = context;
    if (p->step != 1 && p->step % c->train.log_every && p->step != p->total) return;
    log_info("step %5lld/%lld  loss %.6f  cosine %.4f  %8.1f images/s", (long long)p->step,
             (long long)p->total, p->loss, p->cosine, p->images_per_s);
}

static bool is_done(const char *directory)
{
    struct run_status status;
    return run_status_read(&status, directory, NULL) == 0 && strcmp(status.state, "done") == 0;
}

static int same_experiment(const char *directory, const struct config *config, struct error *err)
{
    char *path = path_join(directory, "config.yaml");
    struct config old;
    int code = config_load(&old, path, NULL, 0, err);
    if (!code) {
        if (config_hash(&old) != config_hash(config))
            code = error_set(err, EXIT_LOCKED, "choose another --name, or remove it",
                             "the run directory exists already and is of another configuration");
        config_free(&old);
    }
    if (code == EXIT_LOCKED) error_at(err, directory, 0, 0);
    free(path);
    return code;
}

static int one_run(const struct compare_plan *plan, bool use_meopt, int repeat, char **directory,
                   struct error *err)
{
    struct config config;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    char seed[32];
    int code = config_load(&config, plan->config, plan->overrides, plan->override_count, err);
    if (code) return code;
    snprintf(seed, sizeof seed, "%lld", (long long)config.train.seed + repeat);
    /* config_assign would keep what "auto" became for the other setting of use_meopt:
     * load again with both said */
    char use[32], seed_is[48];
    snprintf(use, sizeof use, "optim.use_meopt=%s", use_meopt ? "true" : "false");
    snprintf(seed_is, sizeof seed_is, "train.seed=%s", seed);
    char **overrides = xcalloc((size_t)plan->override_count + 2, sizeof *overrides);
    if (plan->override_count)
        memcpy(overrides, plan->overrides, (size_t)plan->override_count * sizeof *overrides);
    overrides[plan->override_count] = use;
    overrides[plan->override_count + 1] = seed_is;
    config_free(&config);
    code = config_load(&config, plan->config, overrides, plan->override_count + 2, err);
    free(overrides);
    if (code) return code;
    if (config_memory(&config))
        code = error_set(err, EXIT_CONFIG,
                         "leave it out (train.memory=), and type the keys that 'meopt plan --fit' tells",
                         "train.memory is for one run: the two of a comparison would be given other keys");
    if (!code) code = train_rehearse(&config, err);
    const char *parent = plan->run_dir ? plan->run_dir : config.run.dir[0] ? config.run.dir : "runs";
    const char *stem = plan->name ? plan->name : config.run.name[0] ? config.run.name : config.stem;
    char *name = plan->repeats > 1 ? xasprintf("%s-%s-%d", stem, use_meopt ? "with" : "without", repeat + 1)
                                   : xasprintf("%s-%s", stem, use_meopt ? "with" : "without");
    *directory = path_join(parent, name);
    char *earlier = path_join(*directory, "config.yaml");
    bool there = !file_absent(earlier), done = there && is_done(*directory);
    free(earlier);
    if (!code && there) code = same_experiment(*directory, &config, err);
    if (!code && done) log_info("== %s: done already", *directory);
    else if (!code) {
        log_info("== %s: %s MEOpt, seed %s%s", *directory, use_meopt ? "with" : "without", seed,
                 there ? ", goes on" : "");
        struct train_listener listener = {.context = &config, .step = stepped};
        code = there ? run_open(&run, *directory, err) : run_create(&run, parent, name, &config, err);
        if (!code && there) run_requests_forget(*directory);
        if (!code) run_tidy(&run);
        if (!code)
            code = train_loop(&run, &config, (struct train_resume){there, NULL}, 0, NULL, &listener, err);
        run_close(&run);
        if (code == EXIT_STOPPED)
            error_set(err, EXIT_STOPPED, "the same command goes on", "stopped and saved in %s", *directory);
    }
    free(name);
    config_free(&config);
    return code;
}

/* Without and with alternate, so that a slow hour of the machine falls on both. */
int compare_run(const struct compare_plan *plan, char **directories, struct error *err)
{
    int code = 0;
    for (int r = 0; r < plan->repeats && !code; r++)
        for (int with = 0; with < 2 && !code; with++)
            code = one_run(plan, with, r, &directories[with * plan->repeats + r], err);
    return code;
}
