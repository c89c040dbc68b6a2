/* Runs another program without blocking a screen: bounded output, a time limit, no input. */
#ifndef MEOPT_CLI_SLURM_TOOL_H
#define MEOPT_CLI_SLURM_TOOL_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tool {
    pid_t pid;     /* 0: none runs */
    int fd[2];     /* its stdout and stderr; -1: closed */
    char *text[2]; /* what it has written, with a NUL */
    size_t bytes[2];
    double until; /* clock_seconds() */
    int status;   /* exit code; EXIT_SIGNAL + number; -1: killed after its time */
};

/* Starts argv[0] of PATH without variables that change the output of Slurm's commands. An error: it is not
 * installed. */
int tool_start(struct tool *tool, const char *const argv[], double seconds, struct error *err);
/* Waits up to wait_ms for the end of the program and returns whether it has ended. */
bool tool_ended(struct tool *tool, int wait_ms);
/* Starts the program and waits for its end. */
int tool_run(struct tool *tool, const char *const argv[], double seconds, struct error *err);
/* Writes the reason of a failure: the last line of stderr, else the exit code. Returns dst. */
char *tool_reason(const struct tool *tool, char *dst, size_t size);
/* Kills the program if it runs, and frees its output. */
void tool_close(struct tool *tool);

#endif
