/* meopt train: checks the configuration, makes the run directory, starts workers under a supervisor, and
 * opens the dashboard. */
#include "cli/command.h"
#include "cli/config/cmd_config.h"
#include "cli/dashboard/dash.h"
#include "cli/plan/plan_memory.h"
#include "cli/run_name.h"
#include "cli/terminal/screen.h"
#include "cli/supervisor/supervise.h"
#include "cli/train/train_change.h"
#include "cli/train/train_ranks.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/data/cifar.h"
#include "core/run/checkpoint.h"
#include "core/run/run.h"
#include "core/experiment/experiment.h"
#include "core/experiment/objective.h"
#include "core/experiment/preprocess.h"
#include "core/run/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Opens the existing run, whose configuration must be equal to the requested one. */
static int reopen_same(const struct config *asked, const char *directory, bool from, int *lock,
                       struct error *err)
{
    struct config own;
    int code = train_reopen(directory, &own, lock, err);
    if (code) return code;
    for (int key = 0; key < config_key_count && !code; key++) {
        if (!config_keys[key].numbers || (from && strcmp(config_keys[key].name, "model_s.weight") == 0))
            continue;
        if (config_memory(asked) && asked->origins[key].from != ORIGIN_OVERRIDE &&
            memory_options_has_key(config_keys[key].name))
            continue; /* train.memory chose it when the run began */
        char *before = config_value_text(&own, key), *now = config_value_text(asked, key);
        if (strcmp(before, now) != 0)
            code = error_set(err, EXIT_CONFIG,
                             "use a different --name, or change the run: meopt config set RUN/config.yaml",
                             "%s differs from the run: the run has %.120s, found %.120s",
                             config_keys[key].name, before, now);
        free(before);
        free(now);
    }
    if (code) error_at(err, directory, 0, 0);
    config_free(&own);
    return code;
}

static const char *name_of(const struct arguments *args, const struct config *config)
{
    return argument_text(args, "name", config->run.name[0] ? config->run.name : NULL);
}

static const char *runs_of(const struct arguments *args, const struct config *config)
{
    return argument_text(args, "run-dir", config->run.dir[0] ? config->run.dir : "runs");
}

/* Suggests the command that writes a shipped configuration, where its name was given in place of a file. */
static void suggest_shipped(const char *name, struct error *err)
{
    for (int i = 0; config_templates[i].name && file_absent(name); i++)
        if (strcmp(config_templates[i].name, name) == 0)
            snprintf(err->hint, sizeof err->hint, _("write it first: meopt config new %s %s.yaml"), name,
                     name);
}

/* Loads the configuration with the overrides and options of the command line. After an error *config is
 * freed. */
static int load_asked(struct config *config, const struct arguments *args, const struct train_ranks *ranks,
                      const struct train_overrides *o, struct error *err)
{
    char text[32];
    int64_t steps;
    int code = train_steps_asked(args, -1, &steps, err);
    if (!code) code = config_load(config, args->operands[0], o->all, o->count, err);
    if (code) suggest_shipped(args->operands[0], err);
    if (code) return code;
    if (steps) {
        snprintf(text, sizeof text, "%lld", (long long)steps);
        code = config_assign(config, "train.steps", text, err);
    }
    if (!code) code = train_ranks_assign(ranks, args, config, err);
    if (code) config_free(config);
    return code;
}

/* With train.memory, loads the configuration again with the keys of the fastest memory option that fits the
 * rank with the most memory. After an error config is freed. */
static int apply_memory_option(struct config *config, const struct arguments *args,
                               const struct train_ranks *ranks, struct train_overrides *o, struct error *err)
{
    static const char *const assigned[] = {"device.type", "device.cards", "train.global_batch"};
    enum { ASSIGNED = sizeof assigned / sizeof *assigned };
    int own = o->count, size = ranks->how.size > 1 ? ranks->how.size : 1;
    struct memory_option chosen;
    o->all = xrealloc(o->all, (size_t)(own + ASSIGNED) * sizeof *o->all);
    for (int i = 0; i < ASSIGNED; i++) { /* as set by options */
        char *value = config_value_text(config, config_key_index(assigned[i]));
        o->all[o->count++] = xasprintf("%s=%s", assigned[i], value);
        free(value);
    }
    int code = plan_memory_choose(&chosen, config, args->operands[0], o->all, o->count, size,
                                  train_ranks_of_host(ranks), err);
    while (o->count > own) free(o->all[--o->count]);
    if (code || chosen.keys[0]) config_free(config);
    if (!chosen.keys[0]) return code;
    memory_option_append(&chosen, &o->all, &o->count);
    return load_asked(config, args, ranks, o, err);
}

/* With --resume-if-exists, returns the directory of the run if it exists (malloc'ed), else NULL. */
static char *existing_run(const struct arguments *args, const struct config *config)
{
    const char *name = name_of(args, config);
    char *there =
        name && argument_flag(args, "resume-if-exists") ? path_join(runs_of(args, config), name) : NULL;
    if (there && !file_absent(there)) return there;
    free(there);
    return NULL;
}

/* Loads the configuration and plans its ranks. *there: the run to resume, else NULL; then train.memory
 * chooses keys. After an error there is nothing to free. */
static int load_and_plan(struct config *config, const struct arguments *args, struct train_ranks *ranks,
                         char **there, struct error *err)
{
    struct train_overrides overrides;
    int code = train_overrides(&overrides, args, err);
    *there = NULL;
    if (code) return code;
    code = load_asked(config, args, ranks, &overrides, err);
    if (!code && (code = train_ranks_plan(ranks, args, config, runs_of(args, config), err)) != 0)
        config_free(config);
    if (!code && (*there = existing_run(args, config)) == NULL)
        code = apply_memory_option(config, args, ranks, &overrides, err);
    train_overrides_free(&overrides);
    return code;
}

/* Makes and locks the run directory; with --resume-if-exists opens an existing one. */
static int begin(const struct arguments *args, struct train_ranks *ranks, char **directory, bool *resume,
                 int *lock, struct error *err)
{
    struct config config;
    struct run run = {.metrics = -1, .events = -1, .lock = -1};
    char stamp[32];
    int code = load_and_plan(&config, args, ranks, directory, err);
    if (code) return code;
    *resume = *directory != NULL;
    code = plan_dry_run(&config, err); /* before a directory is made */
    if (!code && !*resume && !objective_of(&config)->tokens) {
        bool two = objective_of(&config)->teacher && preprocess_two(&config);
        for (int i = two ? 0 : TOWER_STUDENT; i <= TOWER_STUDENT; i++) {
            char images[320];
            if (i < TOWER_STUDENT && i >= config_teachers(&config)) continue;
            preprocess_text(&config, i, images, sizeof images);
            log_info("images%s: %s",
                     !two                 ? ""
                     : i == TOWER_STUDENT ? _(" of the student")
                                          : _(" of the teacher"),
                     images);
        }
    }
    if (*resume) {
        if (!code)
            code = reopen_same(&config, *directory, argument_text(args, "from", NULL) != NULL, lock, err);
        config_free(&config);
        return code;
    }
    time_t t = time(NULL);
    struct tm utc;
    strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", gmtime_r(&t, &utc));
    const char *given = name_of(args, &config);
    if (!code && !given && argument_flag(args, "resume-if-exists"))
        code = error_set(err, EXIT_USAGE, "for example --name first", "--resume-if-exists requires --name");
    for (int i = 1; !code; i++) { /* several runs of one configuration may begin in the same second */
        char *name = given   ? xstrdup(given)
                     : i > 1 ? xasprintf("%s-%s-%d", config.stem, stamp, i)
                             : xasprintf("%s-%s", config.stem, stamp);
        code = run_create(&run, runs_of(args, &config), name, &config, err);
        free(name);
        if (!code || given || code != EXIT_LOCKED || i == 100) break;
        code = 0;
    }
    if (!code) *directory = xstrdup(run.directory);
    *lock = run_release(&run);
    config_free(&config);
    return code;
}

/* Returns in *keys the keys of every --force-resume, separated by commas (malloc'ed); NULL if there is
 * none. */
static int forced_keys(const struct arguments *args, char **keys, struct error *err)
{
    const char *key;
    *keys = NULL;
    for (int i = 0; (key = argument_list(args, "force-resume", i)) != NULL; i++) {
        int found = config_key_index(key);
        if (found < 0) {
            free(*keys);
            *keys = NULL;
            return error_set(err, EXIT_USAGE, "see meopt.yaml(5); data.root: the images",
                             "--force-resume: %s is not a key", key);
        }
        key = config_keys[found].name;
        char *longer = *keys ? xasprintf("%s,%s", *keys, key) : xstrdup(key);
        free(*keys);
        *keys = longer;
    }
    return 0;
}

/* Returns the run that an option names, malloc'ed; NULL if the option is not given. */
static char *run_of(const struct arguments *args, const char *option, int *code, struct error *err)
{
    const char *word = argument_text(args, option, NULL);
    *code = 0;
    return word ? run_named(word, argument_text(args, "run-dir", NULL), code, err) : NULL;
}

/* Trains in the run directory, with its dashboard or with lines. Closes its lock. */
static int train_in(const struct arguments *args, const struct train_ranks *ranks, const char *directory,
                    int lock, bool resume, const char *before, const char *force, char *const *baselines,
                    struct error *err)
{
    int code;
    struct supervision s = {.directory = directory,
                            .lock = lock,
                            .resume = resume,
                            .config_before = before,
                            .force_resume = force,
                            .json = argument_flag(args, "json"),
                            .stop_after = argument_int(args, "stop-after", 0),
                            .threads = argument_int(args, "threads", 0),
                            .foreground = true,
                            .monitor = getenv("MEOPT_MONITOR"),
                            .monitor_root = getenv("MEOPT_MONITOR_ROOT"),
                            .metrics_file = argument_text(args, "metrics-file", NULL),
                            .tensorboard = argument_flag(args, "tensorboard"),
                            .on_event = argument_text(args, "on-event", NULL),
                            .on_end = argument_text(args, "on-end", NULL),
                            .ranks = ranks->how,
                            .restarts = (int)argument_int(args, "restarts", 0),
                            .elastic = argument_flag(args, "elastic")};
    struct dash_options options = {.directory = directory,
                                   .trains = true,
                                   .ascii = argument_flag(args, "ascii"),
                                   .baselines = baselines};
    bool lines = argument_flag(args, "no-dashboard") || s.json;
    if (!lines && !screen_possible()) {
        struct error why = {0};
        screen_refused("the dashboard", "", &why);
        if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) log_warn("%s; printing lines instead", why.what);
        lines = true;
    }
    if (lines) {
        code = supervise(&s, err);
        close(lock);
    } else {
        s.foreground = false;
        int ended = -1;
        code = supervise_detached(&s, err);
        close(lock); /* the daemon holds it */
        if (!code) code = dash_view(&options, &ended, err);
        if (!code && ended > 0) {
            struct run_status status;
            code = ended;
            if (run_status_read(&status, directory, NULL) == 0 && status.message[0])
                error_set(err, ended, status.hint, "%s", status.message);
        }
    }
    return code;
}

static int replay_run(const struct arguments *args, struct error *err)
{
    int code;
    char *directory = run_of(args, "replay", &code, err), *baselines[DASH_BASELINES] = {NULL};
    if (!code) code = dash_baselines_given(baselines, args, err);
    struct dash_options options = {.directory = directory,
                                   .replay = true,
                                   .speed = argument_real(args, "speed", 1),
                                   .ascii = argument_flag(args, "ascii"),
                                   .baselines = baselines};
    if (!code) code = dash_view(&options, NULL, err);
    dash_baselines_free(baselines);
    free(directory);
    return code;
}

/* Checks the combination of options. */
static int check_options(const struct arguments *args, struct error *err)
{
    const char *resume = argument_text(args, "resume", NULL);
    bool at = argument_int(args, "at", -1) >= 0;
    if (resume && argument_text(args, "from", NULL))
        return error_set(err, EXIT_USAGE, "remove --from", "--from cannot be used with --resume");
    if (argument_text(args, "checkpoint", NULL) && !argument_text(args, "from", NULL))
        return error_set(err, EXIT_USAGE, "add --from RUN", "--checkpoint requires --from");
    if (at && !resume) return error_set(err, EXIT_USAGE, "add --resume RUN", "--at requires --resume");
    if (resume && !at && (argument_text(args, "name", NULL) || argument_text(args, "run-dir", NULL)))
        return error_set(err, EXIT_USAGE, "remove it, or add --at STEP",
                         "--name and --run-dir cannot be used with --resume");
    if (!resume && argument_list(args, "force-resume", 0))
        return error_set(err, EXIT_USAGE, "add --resume RUN", "--force-resume requires --resume");
    if (argument_flag(args, "elastic") && !argument_int(args, "restarts", 0))
        return error_set(err, EXIT_USAGE, "for example --restarts 3 --elastic",
                         "--elastic requires --restarts");
    if (!resume && args->operand_count == 0)
        return error_set(err, EXIT_USAGE, "see 'meopt train --help'",
                         "meopt train requires CONFIG or --resume RUN");
    return 0;
}

/* Opens and locks the run to resume, or makes its branch (--at), and changes its configuration. */
static int resume_run(const struct arguments *args, struct train_ranks *ranks, const char *force,
                      char **directory, char **before, int *lock, struct error *err)
{
    struct config config;
    int64_t at = argument_int(args, "at", -1), from, steps;
    const char *parent = argument_text(args, "run-dir", NULL);
    /* the directory in which other ranks find rank 0: they do not know the name of a branch */
    char *branch = NULL, *shared = at < 0 ? xstrdup(*directory) : train_branch_parent(*directory, parent);
    int code = train_resumed_step(args, *directory, &from, err);
    if (!code) code = train_steps_asked(args, from, &steps, err); /* before a branch is made */
    if (!code && at >= 0)
        code = train_branch(*directory, at, parent, argument_text(args, "name", NULL), &branch, lock, err);
    if (branch) {
        close(*lock);
        *lock = -1;
        free(*directory);
        *directory = branch;
    }
    if (!code && (code = train_reopen(*directory, &config, lock, err)) == 0) {
        code = train_change_run(args, *directory, force, &config, before, err);
        if (!code && (code = train_ranks_plan(ranks, args, &config, shared, err)) != 0 && *before)
            file_write_below(*directory, "config.yaml", *before, strlen(*before), NULL);
        if (!code) cifar_decompress(config.data.root); /* once for all ranks */
        config_free(&config);
    }
    free(shared);
    return code;
}

/* Returns whether resuming cannot help: other codes have a hint with --resume. */
static bool is_refusal(const char *directory, int code)
{
    char *events = NULL;
    size_t bytes;
    if (code == EXIT_NO_CARD || code == EXIT_CONFIG) return true;
    if ((code != EXIT_FAILED && code != EXIT_INTEGRITY) ||
        file_read_below(directory, "events.jsonl", 1 << 20, &events, &bytes, NULL))
        return false;
    bool started = strstr(events, "\"started\"") != NULL; /* then data or weights ended it */
    free(events);
    return !started;
}

/* Removes a new run that failed before its first step, for example because there is no card. Keeps it if it
 * has metrics, checkpoints, cached teacher outputs or output of hooks. */
static void remove_refused(const char *directory)
{
    static const char *const kept[] = {"teacher.rows", "hooks.log"};
    struct run run;
    struct run_status s;
    struct stat st;
    int64_t *steps = NULL;
    int count = 1;
    for (int i = 0; run_open(&run, directory, NULL); i++) { /* waits for its supervisor to end */
        if (i == 20) return;
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
    bool empty = run_status_read(&s, directory, NULL) == 0 && strcmp(s.state, "failed") == 0 &&
                 !strstr(s.hint, "--resume") && fstat(run.metrics, &st) == 0 && st.st_size == 0 &&
                 checkpoint_steps(directory, &steps, &count, NULL) == 0 && count == 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) empty &= file_absent_below(directory, kept[i]);
    if (empty && file_remove_tree(directory, NULL) == 0)
        log_info("removed %s, which made no step", directory);
    free(steps);
    run_close(&run);
}

static int train_run(const struct arguments *args, struct error *err)
{
    const char *resume = argument_text(args, "resume", NULL);
    char *directory = NULL, *force = NULL, *before = NULL;
    int code, lock = -1;
    bool resumes = resume != NULL;
    if (argument_text(args, "replay", NULL)) return replay_run(args, err);
    if ((code = check_options(args, err)) != 0) return code;
    char *baselines[DASH_BASELINES];
    if ((code = dash_baselines_given(baselines, args, err)) != 0) return code;
    struct train_ranks ranks;
    code = train_ranks_read(&ranks, args, err);
    if (!code && resume) directory = run_of(args, "resume", &code, err);
    if (!code) code = forced_keys(args, &force, err);
    if (!code && train_ranks_follows(&ranks)) {
        code = train_ranks_follow(&ranks, args, directory, force, err);
    } else if (!code && resume) {
        code = resume_run(args, &ranks, force, &directory, &before, &lock, err);
    } else if (!code) {
        code = begin(args, &ranks, &directory, &resumes, &lock, err);
    }
    if (!code) {
        code = train_in(args, &ranks, directory, lock, resumes, before, force, baselines, err);
        if (!resumes && is_refusal(directory, code)) remove_refused(directory);
    } else if (lock >= 0) close(lock);
    train_ranks_free(&ranks);
    dash_baselines_free(baselines);
    free(force);
    free(before);
    free(directory);
    return code;
}

static const struct option options[] = {
    {"run-dir", .type = OPTION_TEXT, .value = "DIR", .help = "directory of runs (default runs)"},
    {"name", .type = OPTION_TEXT, .value = "NAME", .help = "name of the run (default CONFIG-UTCTIME)"},
    {"steps", .type = OPTION_TEXT, .value = "N",
     .help = "train N steps in all (train.steps), or +N more with --resume; a resumed run keeps it"},
    {"stop-after", .type = OPTION_INT, .value = "N", .min = 1, .max = 1e12,
     .help = "save and stop after step N (exit 10)"},
    {"resume", .type = OPTION_TEXT, .value = "RUN",
     .help = "resume this run from its newest complete checkpoint"},
    {"at", .type = OPTION_INT, .value = "STEP", .max = 1e12,
     .help = "with --resume: from its checkpoint of that step or before it, in a new run next to it"},
    {"from", .type = OPTION_TEXT, .value = "RUN",
     .help = "start a new run whose student begins with that run's weights"},
    {"checkpoint", .type = OPTION_TEXT, .value = "WHICH", .choices = "best|last",
     .help = "with --from: checkpoint of that run (default last)"},
    {"resume-if-exists", .help = "resume the run --name if it exists, else start it"},
    {"force-resume", .type = OPTION_LIST, .value = "KEY",
     .help = "resume although this key differs from the run's; data.root: the images; may be repeated"},
    {"cards", .type = OPTION_TEXT, .value = "N,...",
     .help = "train on these cards, for example 0 or 0,1,2,3: one worker per card (device.cards)"},
    {"workers", .type = OPTION_INT, .value = "N", .min = 1, .max = 1024,
     .help = "train on the CPU with N ranks"},
    {"restarts", .type = OPTION_INT, .value = "N", .max = 1000,
     .help = "number of restarts from the last checkpoint after a rank is lost or killed"},
    {"elastic", .help = "with --restarts: resume without the lost rank"},
    {"threads", .type = OPTION_INT, .value = "N", .min = 1, .max = 4096, .help = "number of CPU threads"},
    {"no-dashboard", .help = "print lines instead of the dashboard, also on a terminal"},
    {"baseline", .type = OPTION_LIST, .value = "RUN",
     .help = "draw the curves of this run below; may be repeated"},
    {"ascii", .help = "draw with ASCII characters only"},
    {"metrics-file", .type = OPTION_TEXT, .value = "FILE",
     .help = "keep the newest figures in this file as Prometheus text (node_exporter's textfile collector)"},
    {"tensorboard", .help = "write event files into RUN/tensorboard"},
    {"on-event", .type = OPTION_TEXT, .value = "CMD",
     .help = "run this shell command at each event; MEOPT_... and JSON on stdin describe it"},
    {"on-end", .type = OPTION_TEXT, .value = "CMD",
     .help = "run this shell command when the run has ended, for example mail or a webhook"},
    {"replay", .type = OPTION_TEXT, .value = "RUN", .help = "replay a finished run in the dashboard"},
    {"speed", .type = OPTION_REAL, .value = "X", .max = 1e9,
     .help = "with --replay: X times as fast; 0: its end (default 1)"},
    {"json", .help = "print one JSON object per line"},
    {0},
};

const struct command cmd_train = {
    .name = "train",
    .operands = "CONFIG [key=value ...]",
    .summary = "train a model: a student, a classifier or a language model",
    .details =
        "Examples:\n  meopt train configs/eva_clip.yaml\n  meopt train "
        "configs/eva_clip.yaml optim.use_meopt=false --name without\n"
        "  meopt train --resume runs/without\n"
        "  meopt train --resume runs/without optim.lr=1.0e-5\n"
        "  meopt train configs/eva_clip.yaml --from runs/without\n\nOn a terminal the dashboard opens; "
        "closing it never affects the run: 'meopt attach RUN' opens it again.",
    .options = options,
    .max_operands = -1,
    .run = train_run,
};
