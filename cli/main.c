/* meopt: the command line. Finds the command, parses by its table, runs it, prints the error, exits. */
#include "cli/command.h"
#include "core/base/log.h"
#include "core/base/lost_map.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct command cmd_fetch, cmd_worker, cmd_attach, cmd_runs, cmd_stop, cmd_checkpoint, cmd_help,
    cmd_version, cmd_bench_optim, cmd_bench_speedup, cmd_bench_train, cmd_train, cmd_embed, cmd_export;
extern const struct command cmd_compare, cmd_doctor;
extern const struct command cmd_config_get, cmd_config_set, cmd_config_unset, cmd_config_list,
    cmd_config_check, cmd_config_diff, cmd_config_new, cmd_config_edit, cmd_config_man, cmd_complete,
    cmd_plan, cmd_sbatch, cmd_monitor_helper;

const struct command *const commands[] = {
    &cmd_fetch,        &cmd_config_get,     &cmd_config_set,    &cmd_config_unset, &cmd_config_list,
    &cmd_config_check, &cmd_config_diff,    &cmd_config_new,    &cmd_config_edit,  &cmd_config_man,
    &cmd_plan,         &cmd_train,          &cmd_sbatch,        &cmd_attach,       &cmd_runs,
    &cmd_stop,         &cmd_checkpoint,     &cmd_worker,        &cmd_compare,      &cmd_embed,
    &cmd_export,       &cmd_bench_optim,    &cmd_bench_speedup, &cmd_bench_train,  &cmd_doctor,
    &cmd_complete,     &cmd_monitor_helper, &cmd_help,          &cmd_version,      NULL,
};

/* Those that compute on the processor in their own process. */
static const struct command *const computing[] = {
    &cmd_worker, &cmd_embed,       &cmd_compare,       &cmd_plan,
    &cmd_doctor, &cmd_bench_optim, &cmd_bench_speedup, &cmd_bench_train,
};

/* Threads that spin for long at the end of a parallel loop starve each other where others compute too. The
 * OpenMP library reads its environment before main, so a command that computes begins once more with the
 * variable set (where that fails, it goes on as it is); what others start finds it set. */
static void spin_shortly(const struct command *command, char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    bool computes = false;
    for (size_t i = 0; i < sizeof computing / sizeof *computing; i++) computes |= computing[i] == command;
    if (setenv("GOMP_SPINCOUNT", "1000", 0) == 0 && computes) execv("/proc/self/exe", argv);
}

static const char *command_name_at(const void *table, int i)
{
    const struct command *const *all = table;
    return all[i] ? all[i]->name : NULL;
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
    fprintf(out, "Usage: meopt COMMAND [options] [operands]\n\n"
                 "Trains large vision transformers in a fraction of the usual memory.\n\nCommands:\n");
    for (int i = 0; commands[i]; i++)
        if (!commands[i]->hidden) fprintf(out, "  %-14s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\n'meopt COMMAND --help' tells more; 'man meopt' has the tour and the exit codes.\n");
}

static int help_run(const struct arguments *args, struct error *err)
{
    if (args->operand_count == 0) {
        usage(stdout);
        return 0;
    }
    int taken;
    const struct command *command = command_find(args->operands, args->operand_count, &taken);
    if (!command) return error_set(err, EXIT_USAGE, "see 'meopt help'", "no command '%s'", args->operands[0]);
    command_help(command);
    return 0;
}

static int version_run(const struct arguments *args, struct error *err)
{
    (void)args;
    (void)err;
    printf("meopt %s\n", MEOPT_VERSION);
    return 0;
}

const struct command cmd_help = {"help", "[COMMAND]", "how to use meopt, or one command", NULL, NULL, 0, 2,
                                 false,  help_run};
const struct command cmd_version = {"version", "", "print the version", NULL, NULL, 0, 0, false, version_run};

/* A missing descriptor 0, 1 or 2 would be the next file that is opened, and the talk would go there. Standard
 * input and output are opened the wrong way round, so that using them fails as without (gnulib's stdopen). */
static void open_missing(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDWR};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", modes[fd]) != fd)
            _exit(EXIT_FAILED);
}

int main(int argc, char **argv)
{
    open_missing();
    lost_map_catch(NULL);
    setlocale(LC_CTYPE, "");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error like a full disk: EFBIG */
    const char *talk = getenv("MEOPT_LOG");
    if (talk && strcmp(talk, "debug") == 0) log_level = LOG_DEBUG;
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
    if (!command) {
        char hint[256] = "see 'meopt help'";
        const char *near = nearest_name(name, command_name_at, commands);
        size_t n = strlen(name), used = 0;
        for (int i = 0; commands[i]; i++) { /* the first of two words: name the second ones */
            if (strncmp(commands[i]->name, name, n) != 0 || commands[i]->name[n] != ' ' ||
                commands[i]->hidden || used + 40 > sizeof hint)
                continue;
            used += (size_t)snprintf(hint + used, sizeof hint - used, "%s%s",
                                     used ? ", " : "commands are: ", commands[i]->name);
            near = NULL;
        }
        if (near) snprintf(hint, sizeof hint, "did you mean 'meopt %s'? see 'meopt help'", near);
        error_set(&err, EXIT_USAGE, hint, "no command '%s'", name);
        error_print(&err);
        return EXIT_USAGE;
    }
    spin_shortly(command, argv);
    struct arguments args;
    int code = arguments_parse(&args, command, argc - taken, argv + taken, &err);
    if (code == 0) code = command->run(&args, &err);
    arguments_free(&args);
    if (code < 0) return 0; /* --help */
    if (code && err.what[0]) error_print(&err);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        error_set(&err, EXIT_DISK, "is the disk full, or the pipe closed?", "cannot write the output");
        error_print(&err);
        code = EXIT_DISK;
    }
    return code;
}
