/* Ranks of a new or resumed run: see train_ranks.h. */
#include "cli/train/train_ranks.h"
#include "cli/train/train_change.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/device/driver.h"
#include "core/comm/rendezvous.h"
#include "core/run/run.h"
#include "core/run/status.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Returns the value of an option; args NULL: a command without these options. */
static int64_t option_int(const struct arguments *args, const char *name, int64_t missing)
{
    return args ? argument_int(args, name, missing) : missing;
}

static const char *option_text(const struct arguments *args, const char *name)
{
    return args ? argument_text(args, name, NULL) : NULL;
}

int train_ranks_read(struct train_ranks *r, const struct arguments *args, struct error *err)
{
    *r = (struct train_ranks){0};
    int code = launch_read(&r->launch, NULL, NULL, err);
    if (code) return code;
    if (r->launch.idle_tasks)
        log_info(
            "this job has %d tasks, but this process is not one of them; to start one per task: srun meopt "
            "train ...",
            r->launch.idle_tasks);
    if (r->launch.size < 2) return 0;
    if (option_int(args, "workers", 0))
        return error_set(err, EXIT_USAGE, "remove --workers", "%s already started %d ranks",
                         r->launch.launcher, r->launch.size);
    if (option_int(args, "restarts", 0))
        return error_set(err, EXIT_USAGE, "use the script of 'meopt sbatch', or start the job again",
                         "--restarts cannot restart ranks that %s started", r->launch.launcher);
    return 0;
}

/* Returns the number of ranks: as the launcher started, else by options and configuration. */
static int ranks_wanted(const struct train_ranks *r, const struct arguments *args,
                        const struct config *config)
{
    int named = config->device.type == DEVICE_TYPE_CPU ? 0 : config_cards(config, NULL);
    return r->launch.size > 1 ? r->launch.size : (int)option_int(args, "workers", named > 1 ? named : 1);
}

/* Sets train.global_batch, so that a different number of ranks later makes the same steps. */
static int assign_images(const struct train_ranks *r, const struct arguments *args, struct config *config,
                         struct error *err)
{
    char images[32];
    int ranks = ranks_wanted(r, args, config);
    if (ranks < 2 || config->train.global_batch > 0 || option_text(args, "resume")) return 0;
    snprintf(images, sizeof images, "%lld",
             (long long)config->train.batch_size * config_replicas(config, ranks));
    return config_assign(config, "train.global_batch", images, err);
}

int train_ranks_assign(const struct train_ranks *r, const struct arguments *args, struct config *config,
                       struct error *err)
{
    const char *cards = option_text(args, "cards");
    int code = 0;
    if (cards && option_int(args, "workers", 0))
        return error_set(err, EXIT_USAGE,
                         "use one of them: --cards starts one worker per card, --workers trains on the CPU",
                         "--cards cannot be used with --workers");
    if (cards) code = config_assign(config, "device.cards", cards, err);
    if (!code && cards && config->device.type == DEVICE_TYPE_CPU)
        code = config_assign(config, "device.type", "auto", err);
    if (!code && option_int(args, "workers", 0)) {
        if (config->device.type > DEVICE_TYPE_CPU)
            log_warn("--workers trains on the CPU: device.type %s is not used",
                     device_type_names[config->device.type]);
        code = config_assign(config, "device.type", "cpu", err);
    }
    return code ? code : assign_images(r, args, config, err);
}

/* ---- cards ---- */

int train_ranks_card(const struct config *config, int i)
{
    const char *p = config->device.cards;
    if (config_cards(config, NULL) <= i) return -1;
    for (; i > 0; i--) p = strchr(p, ',') + 1;
    return atoi(p);
}

/* Returns the specification of a card, such as "hip:2", malloc'ed; NULL: not in this machine, or
 * device.type is cpu. */
static char *card_spec(const struct config *config, int ordinal)
{
    static const enum device_type types[DRIVER_KINDS] = {
        [DRIVER_HIP] = DEVICE_TYPE_HIP, [DRIVER_CUDA] = DEVICE_TYPE_CUDA};
    struct driver driver;
    struct card_info info;
    for (int kind = 0; kind < DRIVER_KINDS && config->device.type != DEVICE_TYPE_CPU; kind++) {
        if (config->device.type != DEVICE_TYPE_AUTO && config->device.type != types[kind]) continue;
        if (driver_open(&driver, (enum driver_kind)kind, NULL) || driver_card(&driver, ordinal, &info, NULL))
            continue;
        return xasprintf("%s:%d", driver_names[kind], ordinal);
    }
    return NULL;
}

/* Finds the card of a rank that a launcher started: by device.cards, else the card with its local rank,
 * else the only visible card. */
static int launched_card(const struct train_ranks *r, const struct config *config, char **spec,
                         struct error *err)
{
    int local = r->launch.local_rank < 0 ? 0 : r->launch.local_rank, named = config_cards(config, NULL);
    *spec = NULL;
    if (config->device.type == DEVICE_TYPE_CPU) return 0;
    if (named > 0 && local >= named)
        return error_set(err, EXIT_CONFIG, "list one card per rank of a host, or all cards",
                         "device.cards %s has no card for rank %d of this host", config->device.cards, local);
    *spec = card_spec(config, named > 0 ? train_ranks_card(config, local) : local);
    if (!*spec && named <= 0) *spec = card_spec(config, 0);
    if (*spec || config->device.type == DEVICE_TYPE_AUTO) return 0;
    return error_set(err, EXIT_NO_CARD, "see 'meopt doctor'", "no %s card for rank %d of this host",
                     device_type_names[config->device.type], local);
}

static int spawned_cards(struct train_ranks *r, const struct config *config, struct error *err)
{
    for (int i = 0; i < r->how.size; i++) {
        int ordinal = train_ranks_card(config, i);
        for (int k = 0; k < i; k++)
            if (train_ranks_card(config, k) == ordinal)
                return error_set(err, EXIT_CONFIG, "list each card once", "device.cards %s has card %d twice",
                                 config->device.cards, ordinal);
        if ((r->cards[i] = card_spec(config, ordinal)) == NULL)
            return error_set(err, EXIT_NO_CARD, "see 'meopt doctor'; *_VISIBLE_DEVICES may hide cards",
                             "card %d of device.cards %s is not in this machine", ordinal,
                             config->device.cards);
    }
    return 0;
}

/* Removes rendezvous files of runs that no process trains any more; their rank 0 was killed. */
static void remove_stale_places(const char *directory)
{
    DIR *dir = opendir(directory);
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        if (strncmp(entry->d_name, ".ranks-", 7) != 0) continue;
        struct rendezvous rendezvous;
        char *path = path_join(directory, entry->d_name);
        if (rendezvous_read(&rendezvous, path, NULL) == 0 && rendezvous.run[0] && !run_held(rendezvous.run))
            unlink(path);
        free(path);
    }
    if (dir) closedir(dir);
}

int train_ranks_plan(struct train_ranks *r, const struct arguments *args, const struct config *config,
                     const char *directory, struct error *err)
{
    int code, named = config->device.type == DEVICE_TYPE_CPU ? 0 : config_cards(config, NULL);
    bool launched = r->launch.size > 1;
    r->how =
        (struct supervised_ranks){.size = ranks_wanted(r, args, config),
                                  .layout = {config_stages(config), config_tensor(config)},
                                  .launched = launched,
                                  .hasty = launched && strcmp(r->launch.launcher, "mpirun of Open MPI") == 0,
                                  .local_rank = r->launch.local_rank < 0 ? 0 : r->launch.local_rank,
                                  .one_host = !launched || r->launch.one_host,
                                  .config_hash = config_hash(config)};
    if (r->how.size < 2) return 0;
    r->cards = xcalloc((size_t)r->how.size, sizeof *r->cards);
    r->how.cards = (const char **)r->cards;
    if (launched) {
        if (r->launch.rank == 0) remove_stale_places(directory);
        r->file = xasprintf("%s/.ranks-%s", directory, r->launch.job);
        r->how.file = r->file;
        return launched_card(r, config, &r->cards[0], err);
    }
    code = named > 1 ? spawned_cards(r, config, err) : 0;
    if (!code) log_info("%d ranks on this host", r->how.size);
    return code;
}

int train_ranks_of_host(const struct train_ranks *r)
{
    bool known = r->launch.size > 1 && !r->launch.one_host && r->launch.local_size > 0;
    return known ? r->launch.local_size : r->how.size > 1 ? r->how.size : 1;
}

void train_ranks_free(struct train_ranks *r)
{
    for (int i = 0; i < r->how.size && r->cards; i++) free(r->cards[i]);
    free(r->cards);
    free(r->file);
    *r = (struct train_ranks){0};
}

/* ---- Ranks above 0 of a launcher ---- */

bool train_ranks_follows(const struct train_ranks *r) { return r->launch.size > 1 && r->launch.rank > 0; }

/* Reads the same configuration as rank 0, and finds the directory in which rank 0 will publish its address.
 */
static int read_own(struct train_ranks *r, const struct arguments *args, const char *resume,
                    struct error *err)
{
    struct config config;
    struct train_overrides overrides;
    int code = train_overrides(&overrides, args, err);
    if (!code) {
        code = resume ? config_load_below(&config, resume, overrides.all, overrides.count, err)
                      : config_load(&config, args->operands[0], overrides.all, overrides.count, err);
        train_overrides_free(&overrides);
    }
    if (code) return code;
    code = train_ranks_assign(r, args, &config, err);
    int64_t from = -1, steps = 0;
    if (!code && resume) code = train_resumed_step(args, resume, &from, err);
    if (!code) code = train_steps_asked(args, from, &steps, err);
    if (!code && steps) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)steps);
        code = config_assign(&config, "train.steps", text, err);
    }
    bool branch = resume && argument_int(args, "at", -1) >= 0;
    const char *parent = argument_text(args, "run-dir", config.run.dir[0] ? config.run.dir : "runs");
    char *shared = branch   ? train_branch_parent(resume, argument_text(args, "run-dir", NULL))
                   : resume ? xstrdup(resume)
                            : xstrdup(parent);
    if (!code) code = train_ranks_plan(r, args, &config, shared, err);
    free(shared);
    config_free(&config);
    return code;
}

int train_ranks_follow(struct train_ranks *r, const struct arguments *args, const char *resume,
                       const char *force, struct error *err)
{
    char hash[32], stop[32], threads[32];
    const char *argv[24] = {"meopt", "worker", "--join"};
    int n = 3, code = read_own(r, args, resume, err);
    if (code) return code;
    argv[n++] = r->file;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)r->how.config_hash);
    argv[n++] = "--config-hash";
    argv[n++] = hash;
    if (r->cards[0]) {
        argv[n++] = "--card";
        argv[n++] = r->cards[0];
    }
    if (force) {
        argv[n++] = "--force-resume";
        argv[n++] = force;
    }
    if (argument_int(args, "stop-after", 0)) {
        snprintf(stop, sizeof stop, "--stop-after=%lld", (long long)argument_int(args, "stop-after", 0));
        argv[n++] = stop;
    }
    if (argument_int(args, "threads", 0)) {
        snprintf(threads, sizeof threads, "--threads=%lld", (long long)argument_int(args, "threads", 0));
        argv[n++] = threads;
    }
    execv("/proc/self/exe", (char *const *)(uintptr_t)argv);
    return error_errno(err, EXIT_FAILED, NULL, "cannot start the worker");
}
