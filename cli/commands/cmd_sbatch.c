/* meopt sbatch: writes a commented job script for Slurm that starts or resumes a run with one task per card.
 * Slurm signals the script before the time limit; the run saves, and the job is requeued. */
#include "cli/command.h"
#include "cli/slurm/script.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/config/config.h"
#include "core/config/value.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <strings.h>
#include <unistd.h>

enum { WARN_SECONDS = 180 };

/* Checks a value for a line "#SBATCH --NAME=VALUE", which sbatch splits at blanks. */
static int check_word(const char *option, const char *text, struct error *err)
{
    if (!text) return 0;
    bool features = strcmp(option, "constraint") == 0; /* a&b, [a|b]*2 */
    for (const char *p = text; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("._:,=@%+/()[]-", *p) && !(features && strchr("&|*", *p)))
            return error_set(err, EXIT_USAGE, "allowed: letters, digits and . _ : , = @ % + / ( ) [ ] -",
                             "--%s '%.100s' has a character that is not allowed in a job script", option,
                             text);
    if (!*text || *text == '-')
        return error_set(err, EXIT_USAGE, NULL, "--%s '%.100s' is not a value for sbatch", option, text);
    return 0;
}

/* Returns the seconds of a time limit as sbatch reads it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. -1: none of
 * these; INT64_MAX: no limit. */
static int64_t limit_seconds(const char *text)
{
    int64_t parts[4] = {0}; /* days, then what the ':' separate */
    int count = 1, days = strchr(text, '-') != NULL;
    if (strcasecmp(text, "infinite") == 0 || strcasecmp(text, "unlimited") == 0) return INT64_MAX;
    for (const char *p = text; *p;) {
        size_t digits = strspn(p, "0123456789");
        if (digits == 0 || digits > 7 || count > 3) return -1;
        int64_t number = strtoll(p, NULL, 10);
        p += digits;
        if (*p == '-' && (p - digits != text || !p[1])) return -1;
        if (*p == '-') parts[0] = number;
        else parts[count++] = number;
        if (*p && ((*p != ':' && *p != '-') || !p[1])) return -1;
        p += *p != 0;
    }
    static const int64_t units[2][4][3] = {{{0}, {60, 0, 0}, {60, 1, 0}, {3600, 60, 1}},
                                           {{0}, {3600, 0, 0}, {3600, 60, 0}, {3600, 60, 1}}};
    int64_t seconds = parts[0] * 86400;
    for (int i = 1; i < count; i++) seconds += parts[i] * units[days][count - 1][i - 1];
    return count > 1 && seconds > 0 ? seconds : -1;
}

static bool is_memory(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits;
    return digits && digits < 12 && (!*unit || (strchr("KMGTkmgt", *unit) && !unit[1]));
}

/* Returns whether sbatch accepts the array: 0-4, 1,3,7, 0-15:4, each also with a limit such as %2. */
static bool is_array(const char *text)
{
    for (const char *p = text; *p;) {
        char separator = p > text ? p[-1] : ',';
        size_t digits = strspn(p, "0123456789");
        if (digits == 0 || digits > 7 || (separator == '%' && p[digits])) return false;
        if (separator == ':' && p[digits] && !strchr(",%", p[digits])) return false;
        if (separator == '-' && p[digits] && !strchr(",:%", p[digits])) return false;
        if (separator == ',' && p[digits] && !strchr(",-%", p[digits])) return false;
        p += digits;
        if (*p && !p[1]) return false;
        p += *p != 0;
    }
    return *text;
}

/* ---- values of a sweep ---- */

enum { SWEEP_KEYS = 8, SWEEP_RUNS = 1000 };

/* The overrides with several values, as optim.lr=1e-5,2e-5: the runs are all combinations, the last key's
 * values change first. */
struct sweep {
    int operand[SWEEP_KEYS], values[SWEEP_KEYS]; /* number of the operand, and of its values */
    int keys, runs;                              /* 0: no key has several */
};

/* Returns the number of values of an override: commas separate those of a number or a choice, and belong to a
 * text, such as lora.targets. */
static int count_values(const char *override)
{
    const char *equals = strchr(override, '=');
    char *name = equals ? strndup(override, (size_t)(equals - override)) : NULL;
    int key = name ? config_key_index(name) : -1, count = 1;
    free(name);
    if (key < 0 || config_keys[key].type == CONFIG_TEXT || config_keys[key].type == CONFIG_PATH) return 1;
    for (const char *p = equals; *p; p++) count += *p == ',';
    return count;
}

static int read_sweep(struct sweep *s, const struct arguments *args, struct error *err)
{
    const char *array = argument_text(args, "array", NULL);
    *s = (struct sweep){0};
    for (int i = 1; i < args->operand_count; i++) {
        int count = count_values(args->operands[i]);
        if (count < 2) continue;
        if (s->keys == SWEEP_KEYS)
            return error_set(err, EXIT_USAGE, NULL, "more than %d keys have several values", SWEEP_KEYS);
        s->runs = (s->runs ? s->runs : 1) * count;
        s->operand[s->keys] = i;
        s->values[s->keys++] = count;
        if (s->runs > SWEEP_RUNS)
            return error_set(err, EXIT_USAGE, "give fewer values",
                             "the values have more than %d combinations", SWEEP_RUNS);
    }
    if (s->runs && array && (array[0] != '%' || !array[1] || array[1 + strspn(array + 1, "0123456789")]))
        return error_set(err, EXIT_USAGE, "give --array %2 to run two at a time, or leave it out",
                         "--array %.100s cannot be used with several values of a key", array);
    return 0;
}

/* Returns the override of key k in a run, malloc'ed. */
static char *sweep_override(const struct sweep *s, const struct arguments *args, int k, int run)
{
    const char *operand = args->operands[s->operand[k]], *p = strchr(operand, '=') + 1;
    for (int i = s->keys - 1; i > k; i--) run /= s->values[i];
    for (int i = run % s->values[k]; i > 0; i--) p = strchr(p, ',') + 1;
    return xasprintf("%.*s%.*s", (int)(strchr(operand, '=') + 1 - operand), operand, (int)strcspn(p, ","), p);
}

/* Returns the name of a run, malloc'ed: NAME-lr=1e-5-seed=2. */
static char *sweep_name(const struct sweep *s, const struct arguments *args, const char *name, int run)
{
    char *whole = xstrdup(name);
    for (int k = 0; k < s->keys; k++) {
        char *override = sweep_override(s, args, k, run), *equals = strchr(override, '='), *last = override;
        for (char *p = override; p < equals; p++)
            if (*p == '.') last = p + 1;
        char *longer = xasprintf("%s-%s", whole, last);
        free(whole);
        free(override);
        whole = longer;
    }
    return whole;
}

struct job {
    const struct arguments *args;
    const struct config *config;
    char *program, *experiment, *parent, *name;
    struct sweep sweep;
    const char *array; /* NULL: one run, or a sweep */
    int64_t cards;     /* per node; 0: trains on the CPU */
};

/* Comments and messages of the script are in the user's language, one line each. */
static void write_comment(FILE *out, const char *text) { fprintf(out, "# %s\n", _(text)); }

static void write_line(FILE *out, const char *option, const char *value, const char *why)
{
    if (*why) write_comment(out, why);
    fprintf(out, "#SBATCH --%s%s%s\n", option, *value ? "=" : "", value);
}

static void write_number(FILE *out, const char *option, int64_t number, const char *why)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)number);
    write_line(out, option, text, why);
}

/* Returns Slurm's name of the cards: --gres, else "dcu" if DTK is installed, else "gpu". */
static const char *gres_name(const struct job *job)
{
    bool hygon = access("/opt/dtk", F_OK) == 0 || access("/opt/hyhal", F_OK) == 0;
    return argument_text(job->args, "gres",
                         job->config->device.type != DEVICE_TYPE_CUDA && hygon ? "dcu" : "gpu");
}

/* Returns the number of cards in --gres, as in dcu:4 or gpu:a100:2; 0: none. */
static int64_t gres_count(const char *gres)
{
    const char *colon = gres ? strrchr(gres, ':') : NULL;
    bool number = colon && colon[1] && !colon[1 + strspn(colon + 1, "0123456789")];
    return number ? strtoll(colon + 1, NULL, 10) : 0;
}

/* Options of sbatch that the script has as they are given. */
static const char *const passed_on[] = {"partition", "account", "qos", "constraint", "exclude"};

static void write_requests(FILE *out, const struct job *job)
{
    const struct arguments *args = job->args;
    char text[160];
    int64_t cpus = argument_int(args, "cpus", 8);
    write_line(out, "job-name", job->name, "");
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        if (argument_text(args, passed_on[i], NULL))
            write_line(out, passed_on[i], argument_text(args, passed_on[i], NULL), "");
    write_number(out, "nodes", argument_int(args, "nodes", 1), "");
    write_number(out, "ntasks-per-node", job->cards ? job->cards : 1,
                 job->cards ? N_("one task and one process per card")
                            : N_("one process trains on the CPUs of a node"));
    write_number(out, "cpus-per-task", cpus, N_("to decode images and write checkpoints"));
    if (job->cards) {
        if (gres_count(gres_name(job))) snprintf(text, sizeof text, "%.120s", gres_name(job));
        else snprintf(text, sizeof text, "%.100s:%lld", gres_name(job), (long long)job->cards);
        write_line(out, "gres", text, N_("cards per node, as in 'sinfo -o %G'"));
    }
    if (argument_text(args, "mem", NULL))
        write_line(out, "mem", argument_text(args, "mem", NULL), N_("per node"));
    write_line(out, "time", argument_text(args, "time", "24:00:00"), "");
    snprintf(text, sizeof text, "B:USR1@%lld", (long long)argument_int(args, "warn", WARN_SECONDS));
    write_line(out, "signal", text, N_("signals only this script N seconds before the limit"));
    write_line(out, "requeue", "", N_("allows a requeue under the same job id"));
    write_line(out, "open-mode", "append", N_("a requeued job appends to its output file"));
    if (job->array)
        write_line(out, "array", job->array, N_("one run per number, which replaces %a in overrides"));
    if (job->sweep.runs) {
        snprintf(text, sizeof text, "0-%d%.20s", job->sweep.runs - 1, argument_text(args, "array", ""));
        write_line(out, "array", text, N_("one run per combination of values, see below"));
    }
    write_line(out, "output", job->array || job->sweep.runs ? "slurm-%x-%A_%a.log" : "slurm-%x-%j.log", "");
}

static void write_environment(FILE *out, const struct job *job)
{
    const char *module = argument_list(job->args, "module", 0);
    fputs("\n", out);
    write_comment(out, "Modules of this site. No 'set -u': env.sh and modules read unset variables.");
    if (!module) write_comment(out, "module load compiler/dtk/25.04      # or: . /opt/dtk/env.sh");
    for (int i = 0; (module = argument_list(job->args, "module", i)) != NULL; i++) {
        fputs("module load ", out);
        slurm_script_write_word(out, module, false);
        fputs(" || exit 1\n", out);
    }
    write_comment(out, "Remove values of the submitting shell; srun sets these for each task.");
    fputs("unset CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES GPU_DEVICE_ORDINAL\n", out);
    write_comment(out, "RCCL's small messages between AMD and Hygon cards hang over PCIe without this.");
    fputs("export HSA_FORCE_FINE_GRAIN_PCIE=1\n"
          "export OMP_NUM_THREADS=\"${SLURM_CPUS_PER_TASK:-1}\"\n",
          out);
    write_comment(out, "No core files, which would have many gigabytes.");
    fputs("ulimit -c 0\n", out);
}

/* bash runs a trap after the signal interrupts `wait`, so the script waits again. */
static const char shell_wait[] =
    "warned='' caught='' step=''\n"
    "trap 'caught=yes; warned=yes; kill -USR1 \"$step\" 2>/dev/null' USR1\n"
    "trap 'caught=yes; warned=no; kill -TERM \"$step\" 2>/dev/null' TERM INT\n"
    "left=%lld pause=5 # %s\n"
    "while :; do\n"
    "    run &\n"
    "    step=$!\n"
    "    [ -z \"$warned\" ] || kill -USR1 \"$step\" 2>/dev/null\n"
    "    while :; do\n"
    "        caught=''\n"
    "        wait \"$step\"\n"
    "        code=$?\n"
    "        [ -n \"$caught\" ] || break\n"
    "    done\n"
    "    if [ \"$code\" != 14 ] || [ \"$left\" = 0 ] || [ -n \"$warned\" ]; then break; fi\n"
    "    left=$((left - 1))\n"
    "    sleep \"$pause\"\n"
    "    pause=$((pause * 2))\n"
    "    if [ \"$warned\" = yes ]; then code=10; fi\n"
    "    [ -z \"$warned\" ] || break\n"
    "done\n"
    "if [ \"$code\" = 10 ] && [ \"$warned\" = yes ]; then\n"
    "    scontrol requeue \"$SLURM_JOB_ID\" || exit 10\n"
    "elif [ \"$code\" = 10 ] && [ -z \"$warned\" ]; then\n"
    "    echo '%s'\n"
    "    exit 0\n"
    "fi\n"
    "exit \"$code\"\n";

/* Adds key=value, a path of this directory as an absolute one: the job may start in another. */
static void add_override(struct slurm_script *script, const char *operand)
{
    const char *equals = strchr(operand, '=');
    char *key = strndup(operand, equals ? (size_t)(equals - operand) : 0),
         *value = equals ? value_from_here(config_key_index(key), equals + 1) : NULL,
         *whole = equals ? xasprintf("%s=%s", key, value) : xstrdup(operand);
    slurm_script_add(script, whole);
    free(whole);
    free(value);
    free(key);
}

static bool is_varied(const struct sweep *s, int operand)
{
    for (int k = 0; k < s->keys; k++)
        if (s->operand[k] == operand) return true;
    return false;
}

/* Returns what the script says of a run: a number of a sweep, else 0. */
static struct slurm_script run_of(const struct job *job, int run)
{
    const struct sweep *sweep = &job->sweep;
    char *name = sweep_name(sweep, job->args, job->name, run);
    struct slurm_script s = {
        .run = path_join(job->parent, name), .config = xstrdup(job->experiment), .value_count = sweep->keys};
    if (sweep->runs) snprintf(s.task, sizeof s.task, "%d", run);
    else snprintf(s.task, sizeof s.task, "%s", job->array ? "*" : "");
    for (int i = 1; i < job->args->operand_count; i++)
        if (!is_varied(sweep, i)) add_override(&s, job->args->operands[i]);
    for (int k = 0; k < sweep->keys; k++) {
        char *override = sweep_override(sweep, job->args, k, run);
        add_override(&s, override);
        free(override);
    }
    free(name);
    return s;
}

static void write_command(FILE *out, const struct job *job)
{
    fputs("\n", out);
    if (job->sweep.runs) write_comment(out, "The runs of the array.");
    write_comment(out, "meopt reads the lines #MEOPT; a command and its line are changed together.");
    if (job->sweep.runs) fputs("case $SLURM_ARRAY_TASK_ID in\n", out);
    for (int run = 0; run < job->sweep.runs; run++) {
        struct slurm_script s = run_of(job, run);
        slurm_script_write_line(out, &s);
        slurm_script_write_case(out, &s);
        slurm_script_free(&s);
    }
    struct slurm_script s = run_of(job, 0);
    if (job->sweep.runs)
        fprintf(out, "*) echo \"%s\" >&2 && exit 2 ;;\nesac\n\n",
                _("no run has the number '$SLURM_ARRAY_TASK_ID'"));
    else slurm_script_write_line(out, &s);
    write_comment(
        out, "Starts the run, or resumes it from its newest checkpoint. If one task fails, srun ends all.");
    fputs("run() {\n"
          "    exec srun --kill-on-bad-exit=1 --cpus-per-task=\"${SLURM_CPUS_PER_TASK:-1}\" ",
          out);
    slurm_script_write_word(out, job->program, false);
    fputc(' ', out);
    slurm_script_write_command(out, &s);
    slurm_script_free(&s);
    fputs("}\n", out);
    fprintf(
        out,
        _("\n# Slurm signals this script %lld s before the time limit; the tasks save and exit with 10.\n"
          "# Only then the job is requeued. A run that a user stops also exits with 10, but stays stopped,\n"
          "# and the job is COMPLETED.\n"),
        (long long)argument_int(job->args, "warn", WARN_SECONDS));
    fprintf(out, shell_wait, (long long)argument_int(job->args, "restarts", 3),
            _("restarts from the newest checkpoint after a lost rank (14)"),
            _("stopped and saved on request; the same script resumes it"));
}

static void write_script_text(FILE *out, const struct job *job)
{
    char experiment[512];
    fputs("#!/bin/bash\n", out);
    fprintf(out, _("# %s: written by 'meopt sbatch'.\n"),
            name_printable(experiment, sizeof experiment, job->experiment));
    fprintf(out, "#     sbatch THIS_FILE                %s\n", _("submit"));
    fprintf(out, "#     meopt attach JOBID              %s\n",
            _("its position in the queue and its plan, then the dashboard"));
    fprintf(out, "#     meopt attach %s/%s%s    %s\n",
            name_printable(experiment, sizeof experiment, job->parent), job->name,
            job->sweep.runs ? "-KEY=VALUE"
            : job->array    ? "-N"
                            : "",
            _("the dashboard, from any machine with access to the directory"));
    if (job->array || job->sweep.runs)
        fprintf(out, "#     meopt compare %s/%s    %s\n",
                name_printable(experiment, sizeof experiment, job->parent), job->name,
                _("all runs of the array, the best first"));
    fprintf(out, "#     scancel --signal=USR1 --batch JOBID  %s\n", _("save now, and requeue"));
    write_requests(out, job);
    write_environment(out, job);
    write_command(out, job);
}

/* Checks values that Slurm would refuse only at submission, or would misinterpret. */
static int check_options(const struct arguments *args, const struct sweep *sweep, const char *name,
                         struct error *err)
{
    static const char *const words[] = {"partition", "account", "qos",  "constraint", "exclude",
                                        "gres",      "mem",     "time", "array"};
    const char *memory = argument_text(args, "mem", NULL), *array = argument_text(args, "array", NULL),
               *limit = argument_text(args, "time", "24:00:00");
    int64_t seconds = limit_seconds(limit), warn = argument_int(args, "warn", WARN_SECONDS),
            cards = argument_int(args, "cards", 0), requested = gres_count(argument_text(args, "gres", NULL));
    int code = check_word("name", name, err);
    if (!code && cards && requested && cards != requested)
        code = error_set(err, EXIT_USAGE, "give the number once, for example --gres dcu --cards 4",
                         "--gres %.100s requests %lld cards per node, --cards %lld",
                         argument_text(args, "gres", NULL), (long long)requested, (long long)cards);
    for (size_t i = 0; i < sizeof words / sizeof *words && !code; i++)
        code = check_word(words[i], argument_text(args, words[i], NULL), err);
    if (!code && seconds < 0)
        code = error_set(err, EXIT_USAGE,
                         "use minutes, H:M:S, D-H or D-H:M:S, for example 1-12:00:00, or UNLIMITED",
                         "--time %.100s is not a time limit that sbatch accepts", limit);
    if (!code && seconds <= warn)
        code = error_set(err, EXIT_USAGE, "raise --time or lower --warn",
                         "--warn %lld s is not less than --time %.100s (%lld s)", (long long)warn, limit,
                         (long long)seconds);
    if (!code && memory && !is_memory(memory))
        code = error_set(err, EXIT_USAGE, "use a number of MiB, or with K, M, G or T, for example 200G",
                         "--mem %.100s is not a size that sbatch accepts", memory);
    bool varied = false;
    for (int i = 1; i < args->operand_count; i++) varied |= strstr(args->operands[i], "%a") != NULL;
    if (!code && array && !varied && !sweep->runs)
        code = error_set(err, EXIT_USAGE, "write %a in an override, for example train.seed=%a",
                         "--array %.100s would train the same run several times", array);
    if (!code && (name[0] == '.' || strchr(name, '/')))
        code = error_set(err, EXIT_USAGE, "give the directory with --run-dir",
                         "--name %s is not a valid name", name);
    return code;
}

/* Returns the absolute path, malloc'ed, because the script may be started in a different directory. */
static char *absolute(const char *path)
{
    if (*path == '/') return xstrdup(path);
    char *here = realpath(".", NULL), *whole = path_join(here ? here : ".", path);
    free(here);
    return whole;
}

static int write_script(const struct job *job, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return error_errno(err, EXIT_HOST_MEMORY, NULL, "out of memory for the script");
    write_script_text(out, job);
    fclose(out);
    const char *path = argument_text(job->args, "output", NULL);
    int code = 0;
    if (!path) fwrite(text, 1, bytes, stdout);
    else if ((code = file_write_atomic(path, text, bytes, err)) == 0) chmod(path, 0755);
    free(text);
    return code;
}

/* Loads the configuration of a run: the first one of an array, or a number of a sweep. */
static int load_run(struct config *config, const struct arguments *args, const struct sweep *sweep, int run,
                    struct error *err)
{
    const char *array = sweep->runs ? NULL : argument_text(args, "array", NULL);
    int count = args->operand_count - 1, digits = array ? (int)strspn(array, "0123456789") : 0;
    if (array && !is_array(array))
        return error_set(err, EXIT_USAGE, "for example 0-4, 1,3,7 or 0-15%2 (two at a time)",
                         "--array %.100s is not an array that sbatch accepts", array);
    char **overrides = xcalloc((size_t)count + 1, sizeof *overrides);
    for (int i = 0; i < count; i++) {
        overrides[i] = xstrdup(args->operands[i + 1]);
        for (char *at; array && (at = strstr(overrides[i], "%a")) != NULL;) {
            char *whole =
                xasprintf("%.*s%.*s%s", (int)(at - overrides[i]), overrides[i], digits, array, at + 2);
            free(overrides[i]);
            overrides[i] = whole;
        }
    }
    for (int k = 0; k < sweep->keys; k++) {
        char **to = &overrides[sweep->operand[k] - 1];
        free(*to);
        *to = sweep_override(sweep, args, k, run);
    }
    int code = config_load(config, args->operands[0], overrides, count, err);
    for (int i = 0; i < count; i++) free(overrides[i]);
    free(overrides);
    return code;
}

/* Loads the first run, after each of a sweep has been checked. */
static int load_runs(struct config *config, const struct arguments *args, const struct sweep *sweep,
                     struct error *err)
{
    for (int run = sweep->runs - 1; run > 0; run--) {
        int code = load_run(config, args, sweep, run, err);
        if (code) return code;
        config_free(config);
    }
    return load_run(config, args, sweep, 0, err);
}

static int sbatch_run(const struct arguments *args, struct error *err)
{
    struct config config;
    struct sweep sweep;
    int code = read_sweep(&sweep, args, err);
    if (!code) code = load_runs(&config, args, &sweep, err);
    if (code) return code;
    const char *name = argument_text(args, "name", config.run.name[0] ? config.run.name : config.stem);
    const char *parent = argument_text(args, "run-dir", config.run.dir[0] ? config.run.dir : "runs");
    int named = config_cards(&config, NULL);
    int64_t requested = gres_count(argument_text(args, "gres", NULL));
    struct job job = {.args = args,
                      .config = &config,
                      .program = realpath("/proc/self/exe", NULL),
                      .experiment = realpath(args->operands[0], NULL),
                      .parent = absolute(parent),
                      .name = xstrdup(name),
                      .sweep = sweep,
                      .array = sweep.runs ? NULL : argument_text(args, "array", NULL),
                      .cards = config.device.type == DEVICE_TYPE_CPU ? 0
                                                                     : argument_int(args, "cards",
                                                                                    requested   ? requested
                                                                                    : named > 0 ? named
                                                                                                : 1)};
    code = check_options(args, &sweep, name, err);
    if (!code && (!job.program || !job.experiment))
        code = error_errno(err, EXIT_FAILED, NULL, "cannot find the path of this program or of %s",
                           args->operands[0]);
    if (!code) code = write_script(&job, err);
    free(job.program);
    free(job.experiment);
    free(job.parent);
    free(job.name);
    config_free(&config);
    return code;
}

static const struct option options[] = {
    {"output", .letter = 'o', .type = OPTION_TEXT, .value = "FILE",
     .help = "output file (default: standard output)"},
    {"nodes", .type = OPTION_INT, .value = "N", .min = 1, .max = 65536, .help = "nodes (default 1)"},
    {"cards", .type = OPTION_INT, .value = "N", .min = 1, .max = 1024,
     .help = "cards per node, one task each (default: the number of device.cards, else 1)"},
    {"gres", .type = OPTION_TEXT, .value = "NAME",
     .help = "Slurm's name of the cards, for example dcu:K100 (default dcu if DTK is installed, else gpu)"},
    {"cpus", .type = OPTION_INT, .value = "N", .min = 1, .max = 4096, .help = "CPUs per task (default 8)"},
    {"mem", .type = OPTION_TEXT, .value = "SIZE",
     .help = "memory per node, for example 200G (default: not requested)"},
    {"partition", .type = OPTION_TEXT, .value = "NAME", .help = "partition of the cluster"},
    {"account", .type = OPTION_TEXT, .value = "NAME", .help = "account"},
    {"qos", .type = OPTION_TEXT, .value = "NAME", .help = "quality of service"},
    {"constraint", .type = OPTION_TEXT, .value = "FEATURES", .help = "features that the nodes must have"},
    {"exclude", .type = OPTION_TEXT, .value = "NODES", .help = "nodes that are not used"},
    {"time", .type = OPTION_TEXT, .value = "TIME",
     .help = "time limit, for example 1-12:00:00 (default 24:00:00)"},
    {"warn", .type = OPTION_INT, .value = "SECONDS", .min = 10, .max = 65535,
     .help = "seconds before the limit at which the run saves and is requeued (default 180)"},
    {"array", .type = OPTION_TEXT, .value = "NUMBERS",
     .help = "one run per number, for example 0-4 or 0-15%2: NAME-0, NAME-1 ...; %a in an override is the "
             "number; %2: with several values of a key, two at a time"},
    {"module", .type = OPTION_LIST, .value = "NAME", .help = "module to load; may be repeated"},
    {"run-dir", .type = OPTION_TEXT, .value = "DIR",
     .help = "directory of runs, which all nodes must see (default runs)"},
    {"name", .type = OPTION_TEXT, .value = "NAME",
     .help = "name of the run and of the job (default: that of CONFIG)"},
    {"restarts", .type = OPTION_INT, .value = "N", .max = 1000,
     .help = "number of restarts after a lost rank (default 3)"},
    {0},
};

const struct command cmd_sbatch = {
    .name = "sbatch",
    .operands = "CONFIG [key=value ...]",
    .summary = "write a job script for Slurm that starts or resumes a run",
    .details = "Examples:\n  meopt sbatch configs/eva_clip.yaml --cards 4 --partition "
               "kshdtest --module compiler/dtk/25.04 "
               "-o job.sh\n  sbatch job.sh\n"
               "  meopt sbatch configs/eva_clip.yaml optim.lr=1.0e-5,2.0e-5,5.0e-5 -o sweep.sh",
    .options = options,
    .min_operands = 1,
    .max_operands = -1,
    .run = sbatch_run,
};
