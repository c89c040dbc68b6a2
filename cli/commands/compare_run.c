/* Trains the runs of a comparison: see compare_run.h. */
#include "cli/commands/compare_run.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "cli/supervisor/supervise.h"
#include "cli/train/train_change.h"
#include "cli/train/train_ranks.h"
#include "core/run/run.h"
#include "core/experiment/experiment.h"
#include "core/plan/plan.h"
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

static struct compare_variant *variant_add(struct compare_plan *plan, const char *label, const char *suffix)
{
    plan->variants = xrealloc(plan->variants, (size_t)(plan->variant_count + 1) * sizeof *plan->variants);
    struct compare_variant *v = &plan->variants[plan->variant_count++];
    *v = (struct compare_variant){.label = xstrdup(label), .suffix = xstrdup(suffix)};
    return v;
}
/* Takes ownership of the override. */
static void variant_set(struct compare_variant *v, char *override)
{
    v->overrides = xrealloc(v->overrides, (size_t)(v->override_count + 1) * sizeof *v->overrides);
    v->overrides[v->override_count++] = override;
}
void compare_variants_free(struct compare_plan *plan)
{
    for (int i = 0; i < plan->variant_count; i++) {
        struct compare_variant *v = &plan->variants[i];
        for (int k = 0; k < v->override_count; k++) free((char *)(uintptr_t)v->overrides[k]);
        free(v->overrides);
        free(v->label);
        free(v->suffix);
    }
    free(plan->variants);
    plan->variants = NULL;
    plan->variant_count = 0;
}
/* Returns the rule that optim.name reads from the first n characters; -1: none. */
static int rule_named(const char *name, size_t n)
{
    for (int r = 0; r < RULE_COUNT; r++) {
        const char *const names[] = {optim_rules[r].name, optim_rules[r].alias};
        for (int i = 0; i < 2; i++)
            if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) return r;
    }
    return -1;
}
static struct compare_variant *variant_of(const struct compare_plan *plan, int rule)
{
    for (int i = 0; i < plan->variant_count; i++)
        if (plan->variants[i].rule == rule) return &plan->variants[i];
    return NULL;
}

/* Adds a variant for each rule of the list. */
static int add_rules(struct compare_plan *plan, const char *rules, struct error *err)
{
    const char *hint = N_("rules of optim.name, each once, as in adamw,lion,schedule_free");
    for (const char *p = rules;; p++) {
        size_t n = strcspn(p, ",");
        int rule = rule_named(p, n);
        if (rule < 0)
            return error_set(err, EXIT_USAGE, hint, "--rules %s: there is no rule '%.*s'", rules, (int)n, p);
        const struct compare_variant *same = variant_of(plan, rule);
        if (same)
            return error_set(err, EXIT_USAGE, hint, "--rules %s: '%.*s' is the rule of '%s', listed already",
                             rules, (int)n, p, same->label);
        char *name = xasprintf("%.*s", (int)n, p);
        struct compare_variant *v = variant_add(plan, name, name);
        v->rule = rule;
        variant_set(v, xasprintf("optim.name=%s", name));
        free(name);
        p += n;
        if (!*p) return 0;
    }
}

/* Refuses a setting that would give a run a rule different from its name. */
static int check_override(const char *setting, const char *rules, struct error *err)
{
    if (strncmp(setting, "optim.name=", 11) != 0) return 0;
    return error_set(err, EXIT_USAGE, "list the rule in --rules",
                     "%s: --rules %s sets optim.name of each run", setting, rules);
}

int compare_variants(struct compare_plan *plan, const char *rules, struct error *err)
{
    int code = 0, shared = 0;
    plan->variants = NULL;
    plan->variant_count = 0;
    if (!rules) {
        variant_set(variant_add(plan, _("without MEOpt"), "without"), xstrdup("optim.use_meopt=false"));
        variant_set(variant_add(plan, _("with MEOpt"), "with"), xstrdup("optim.use_meopt=true"));
        return 0;
    }
    code = add_rules(plan, rules, err);
    for (int i = 0; i < plan->override_count && !code; i++) {
        char *setting = plan->overrides[i], *colon = strchr(setting, ':');
        bool own = colon && (size_t)(colon - setting) < strcspn(setting, "=");
        struct compare_variant *v =
            own ? variant_of(plan, rule_named(setting, (size_t)(colon - setting))) : NULL;
        code = check_override(own ? colon + 1 : setting, rules, err);
        if (code) break;
        if (v) variant_set(v, xstrdup(colon + 1));
        else if (!own) plan->overrides[shared++] = setting;
        else
            code = error_set(err, EXIT_USAGE, "RULE:KEY=VALUE is for a rule of --rules",
                             "'%s' is for a rule that --rules %s does not have", setting, rules);
    }
    plan->override_count = shared;
    for (int i = 0; i < plan->variant_count && !code; i++) {
        bool own = false;
        for (int k = 0; k < plan->variants[i].override_count; k++)
            own |= strncmp(plan->variants[i].overrides[k], "optim.lr=", 9) == 0;
        if (!own)
            log_info("%s: with the common optim.lr; to give it its own: %s:optim.lr=LR",
                     plan->variants[i].label, plan->variants[i].suffix);
    }
    if (code) compare_variants_free(plan);
    return code;
}

/* Loads the configuration of a variant with the seed of a repeat. "auto" depends on use_meopt, so these are
 * overrides. After an error there is nothing to free. */
static int load_setting(struct config *config, const struct compare_plan *plan,
                        const struct train_ranks *ranks, const struct compare_variant *variant, int repeat,
                        struct error *err)
{
    char seed[48];
    int code = config_load(config, plan->config, plan->overrides, plan->override_count, err);
    if (code) return code;
    snprintf(seed, sizeof seed, "train.seed=%lld", (long long)config->train.seed + repeat);
    int count = plan->override_count, own = variant->override_count;
    char **overrides = xcalloc((size_t)(count + own) + 1, sizeof *overrides);
    if (count) memcpy(overrides, plan->overrides, (size_t)count * sizeof *overrides);
    memcpy(overrides + count, variant->overrides, (size_t)own * sizeof *overrides);
    overrides[count + own] = seed;
    config_free(config);
    code = config_load(config, plan->config, overrides, count + own + 1, err);
    free(overrides);
    if (code) return code;
    if (config_memory(config))
        code = error_set(err, EXIT_CONFIG,
                         "remove it (train.memory=), and set the keys that 'meopt plan --fit' lists",
                         "train.memory is for one run; the runs would get different keys");
    if (!code) code = train_ranks_assign(ranks, NULL, config, err);
    if (!code) code = plan_dry_run(config, err);
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

static int read_ranks(struct train_ranks *ranks, struct error *err)
{
    int code = train_ranks_read(ranks, NULL, err);
    if (!code && ranks->launch.size > 1)
        code = error_set(err, EXIT_USAGE,
                         "set device.cards, or train the runs with the launcher and compare them",
                         "compare --run starts its own ranks, but %d were started by %s", ranks->launch.size,
                         ranks->launch.launcher);
    return code;
}

static int one_run(const struct compare_plan *plan, const struct compare_variant *variant, int repeat,
                   char **directory, struct error *err)
{
    struct config config, own;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    struct train_ranks ranks;
    int lock = -1, code = read_ranks(&ranks, err);
    if (!code) code = load_setting(&config, plan, &ranks, variant, repeat, err);
    if (code) return code;
    const char *parent = plan->run_dir ? plan->run_dir : config.run.dir[0] ? config.run.dir : "runs";
    const char *stem = plan->name ? plan->name : config.run.name[0] ? config.run.name : config.stem;
    char *name = plan->repeats > 1 ? xasprintf("%s-%s-%d", stem, variant->suffix, repeat + 1)
                                   : xasprintf("%s-%s", stem, variant->suffix);
    *directory = path_join(parent, name);
    char *earlier = path_join(*directory, "config.yaml");
    bool exists = !file_absent(earlier), done = exists && is_done(*directory);
    free(earlier);
    if (exists) code = same_experiment(*directory, &config, err);
    if (!code && done) log_info("== %s: already done", *directory);
    else if (!code) {
        log_info("== %s: %s, seed %lld%s", *directory, variant->label, (long long)config.train.seed,
                 exists ? _(", resumes") : "");
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

/* Checks the configurations of all variants before the first one trains. */
static int check_all(const struct compare_plan *plan, struct error *err)
{
    struct config config;
    struct train_ranks ranks;
    int code = 0;
    for (int v = 0; v < plan->variant_count && !code; v++) {
        if ((code = read_ranks(&ranks, err))) return code;
        code = load_setting(&config, plan, &ranks, &plan->variants[v], 0, err);
        if (!code) config_free(&config);
        train_ranks_free(&ranks);
    }
    return code;
}

/* Runs of the variants alternate, so that a slow period of the machine affects all. A supervisor
 * leaves its signals blocked, so that a signal between two runs stops the second. */
int compare_run(const struct compare_plan *plan, char **directories, struct error *err)
{
    int code = check_all(plan, err);
    sigset_t before;
    bool (*hurry)(void) = log_hurry;
    sigprocmask(SIG_SETMASK, NULL, &before);
    for (int r = 0; r < plan->repeats && !code; r++)
        for (int v = 0; v < plan->variant_count && !code; v++)
            code = one_run(plan, &plan->variants[v], r, &directories[v * plan->repeats + r], err);
    log_hurry = hurry;
    if (!code) sigprocmask(SIG_SETMASK, &before, NULL);
    return code;
}
