/* main() of meopt: finds the command, parses its options by its table, runs it, and prints its error. */
#include "cli/config/cmd_config.h"
#include "cli/command.h"
#include "cli/help_topics.h"
#include "cli/language.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/base/mapped_file.h"
#include "core/base/nearest.h"
#include "core/base/processors.h"
#include "core/train/meta.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All commands in the order of the help: X(name, computes). name: of the struct, without cmd_. computes: the
 * command computes on the CPU in its own process. */
// clang-format off
#define COMMANDS(X) \
    X(fetch, false) X(config_get, false) X(config_set, false) X(config_unset, false) X(config_list, false) \
    X(config_check, false) X(config_diff, false) X(config_new, false) X(config_edit, false) \
    X(config_man, false) X(tokenize, false) X(plan, true) X(train, false) X(sbatch, false) \
    X(attach, false) X(runs, false) X(stop, false) X(checkpoint, false) X(worker, true) X(compare, true) \
    X(embed, true) X(eval, true) X(generate, true) X(export, false) X(bench_optim, true) \
    X(bench_ranks, false) X(bench_speedup, true) X(bench_train, true) X(doctor, true) X(complete, false) \
    X(monitor_helper, false) X(help, false) X(version, false)
// clang-format on
#define DECLARE(name, computes) extern const struct command cmd_##name;
COMMANDS(DECLARE)
#define ADDRESS(name, computes) &cmd_##name,
const struct command *const commands[] = {COMMANDS(ADDRESS) NULL};

static bool computes(const struct command *command)
{
#define COMPUTES(name, computes) computes,
    static const bool computing[] = {COMMANDS(COMPUTES)};
    int i = 0;
    while (commands[i] != command) i++;
    return computing[i];
}

/* Sets GOMP_SPINCOUNT, because threads that spin long at the end of a parallel loop slow down other
 * processes. The OpenMP library reads the variable before main, so a command that computes executes itself
 * again; if that fails, it continues unchanged. Child processes inherit the variable. */
static void limit_spinning(const struct command *command, char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    if (setenv("GOMP_SPINCOUNT", "1000", 0) == 0 && computes(command)) execv("/proc/self/exe", argv);
}

/* Uses one thread per physical core, unless OMP_NUM_THREADS is set. */
static void use_cores(const struct command *command)
{
#ifdef _OPENMP
    if (computes(command) && !getenv("OMP_NUM_THREADS")) omp_set_num_threads(processors_cores(""));
#else
    (void)command;
#endif
}

const struct command *command_find(char **words, int count, int *taken)
{
    for (int i = 0; commands[i]; i++) {
        size_t n = strlen(words[0]);
        const char *name = commands[i]->name;
        if (strncmp(name, words[0], n) != 0) continue;
        *taken = name[n] == 0 ? 1 : 2;
        if (name[n] == 0 || (name[n] == ' ' && count > 1 && strcmp(name + n + 1, words[1]) == 0))
            return commands[i];
    }
    return NULL;
}

static void usage(FILE *out)
{
    fprintf(out, _("Usage: meopt COMMAND [options] [operands]\n\n"
                   "Trains large transformers in a fraction of the usual memory.\n\nCommands:\n"));
    for (int i = 0; commands[i]; i++)
        if (!commands[i]->hidden)
            fprintf(out, "  %-14s %s\n", commands[i]->name, translation(commands[i]->summary));
    fprintf(out, _("\nTopics of 'meopt help TOPIC':\n"));
    for (const struct help_topic *t = help_topics; t->name; t++)
        fprintf(out, "  %-14s %s\n", t->name, translation(t->summary));
    fprintf(out, _("\n'meopt' alone opens the list of runs. 'meopt COMMAND --help' lists the options of a "
                   "command, 'man meopt' the exit codes.\n"));
}

/* Returns whether the command belongs to the group: "config get" belongs to "config". */
static bool in_group(const struct command *command, const char *group)
{
    size_t n = strlen(group);
    return !command->hidden && strncmp(command->name, group, n) == 0 && command->name[n] == ' ';
}

static bool is_group(const char *word)
{
    for (int i = 0; commands[i]; i++)
        if (in_group(commands[i], word)) return true;
    return false;
}

static void group_usage(FILE *out, const char *group)
{
    fprintf(out, _("Usage: meopt %s COMMAND [options] [operands]\n\nCommands:\n"), group);
    for (int i = 0; commands[i]; i++)
        if (in_group(commands[i], group))
            fprintf(out, "  %-14s %s\n", commands[i]->name, translation(commands[i]->summary));
    fprintf(out, _("\n'meopt help %s COMMAND' lists the options of a command.\n"), group);
}

/* Returns the second word of the i-th command of a group; NULL after the last. */
static const char *group_name_at(const void *table, int i)
{
    const char *group = table;
    for (int k = 0, n = 0; commands[k]; k++)
        if (in_group(commands[k], group) && n++ == i) return commands[k]->name + strlen(group) + 1;
    return NULL;
}

/* Returns the first word of the i-th command; NULL after the last. */
static const char *first_word_at(const void *table, int i)
{
    static char words[64][16];
    (void)table;
    if (i >= 64 || !commands[i]) return NULL;
    snprintf(words[i], sizeof words[i], "%.*s", (int)strcspn(commands[i]->name, " "), commands[i]->name);
    return commands[i]->hidden ? "(hidden)" : words[i];
}

/* Returns the i-th word that 'meopt help' takes: a topic or a first word; NULL after the last. */
static const char *help_word_at(const void *table, int i)
{
    int topics = 0;
    while (help_topics[topics].name) topics++;
    return i < topics ? help_topics[i].name : first_word_at(table, i - topics);
}

static int no_command(char **words, int count, struct error *err)
{
    char hint[256] = N_("see 'meopt help'");
    const char *group = words[0], *second = count > 1 ? words[1] : NULL;
    if (!is_group(group)) {
        const char *near = nearest_name(group, first_word_at, NULL);
        if (near) snprintf(hint, sizeof hint, _("did you mean 'meopt %s'? see 'meopt help'"), near);
        return error_set(err, EXIT_USAGE, hint, "no command '%s'", group);
    }
    const char *near = second ? nearest_name(second, group_name_at, group) : NULL, *name;
    size_t used = 0;
    if (near) snprintf(hint, sizeof hint, _("did you mean 'meopt %s %s'?"), group, near);
    for (int i = 0; !near && (name = group_name_at(group, i)) != NULL && used + 40 < sizeof hint; i++)
        used += (size_t)snprintf(hint + used, sizeof hint - used, "%s%s %s",
                                 used ? ", " : _("commands are: "), group, name);
    if (second) return error_set(err, EXIT_USAGE, hint, "no command '%s %s'", group, second);
    return error_set(err, EXIT_USAGE, hint, "'%s' requires a subcommand", group);
}

static int help_run(const struct arguments *args, struct error *err)
{
    int taken;
    int count = args->operand_count;
    const struct command *command = count ? command_find(args->operands, count, &taken) : NULL;
    const struct help_topic *topic = count == 1 ? help_topic_named(args->operands[0]) : NULL;
    if (count == 0) usage(stdout);
    else if (command) command_help(command);
    else if (topic) fputs(translation(topic->text), stdout);
    else if (count == 1 && is_group(args->operands[0])) group_usage(stdout, args->operands[0]);
    else if (count > 1 || is_group(args->operands[0])) return no_command(args->operands, count, err);
    else {
        char hint[256] = N_("see 'meopt help'");
        const char *near = nearest_name(args->operands[0], help_word_at, NULL);
        if (near) snprintf(hint, sizeof hint, _("did you mean 'meopt help %s'? see 'meopt help'"), near);
        return error_set(err, EXIT_USAGE, hint, "no command or topic '%s'", args->operands[0]);
    }
    return 0;
}

const struct command cmd_help = {
    .name = "help",
    .operands = "[COMMAND|TOPIC]",
    .summary = "print the help of meopt, of a command, a group of commands, or a topic",
    .max_operands = 2,
    .run = help_run,
};
/* Opens descriptors 0, 1 and 2 if they are closed, so that no file that is opened later receives messages.
 * Input is opened for writing and output for reading, so that using them still fails (as gnulib's stdopen).
 */
static void open_missing(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDWR};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", modes[fd]) != fd)
            _exit(EXIT_FAILED);
}

/* Returns whether the reader of standard output has closed its end, as in `meopt runs | head`. */
static bool reader_has_closed(void)
{
    struct pollfd out = {STDOUT_FILENO, POLLOUT, 0};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* Flushes standard output, and returns EXIT_DISK if that fails. If the reader has closed its end, ends the
 * process by SIGPIPE without a message, as other programs do. A worker never does, because its supervisor
 * would report the signal as a crash. */
static int finish(int code, bool worker)
{
    struct error err;
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (!lost || code) return code;
    if (!worker && reader_has_closed()) {
        signal(SIGPIPE, SIG_DFL);
        raise(SIGPIPE);
    }
    error_set(&err, EXIT_DISK, "is the disk full?", "cannot write the output");
    error_print(&err);
    return EXIT_DISK;
}

int main(int argc, char **argv)
{
    open_missing();
    mapped_file_catch(NULL);
    json_set_alloc_funcs(xmalloc, free); /* on malloc failure jansson would return a truncated text */
    language_open(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error like a full disk: EFBIG */
    const char *level = getenv("MEOPT_LOG");
    if (level && strcmp(level, "debug") == 0) log_level = LOG_DEBUG;
    static char *list[] = {"meopt", "attach", NULL};
    if (argc < 2 && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
        argc = 2, argv = list; /* the list of runs */
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) argv[1] = "help";
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) argv[1] = "version";
    struct error err = {0};
    int taken = 1;
    const struct command *command = command_find(argv + 1, argc - 1, &taken);
    if (!command && argc == 3 && is_group(name) &&
        (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0)) {
        group_usage(stdout, name);
        return finish(0, false);
    }
    if (!command) {
        no_command(argv + 1, argc - 1, &err);
        error_print(&err);
        return EXIT_USAGE;
    }
    limit_spinning(command, argv);
    use_cores(command);
    struct arguments args;
    int code = arguments_parse(&args, command, argc - taken, argv + taken, &err);
    if (code == 0) code = command->run(&args, &err);
    arguments_free(&args);
    if (code > 0 && err.what[0]) error_print(&err);
    return finish(code < 0 ? 0 : code, strcmp(name, "worker") == 0); /* negative: --help */
}
