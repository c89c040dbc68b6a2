/* What a run directory says of its run, for readers:
 * state.json, and whether the process behind it still lives. */
#ifndef MEOPT_RUN_STATUS_H
#define MEOPT_RUN_STATUS_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run_status {
    char state[16]; /* starting, training, done, stopped, diverged, failed; lost: ended without a word */
    int64_t step, total, epoch; /* total 0: not known yet */
    int pid;                    /* of the worker; 0 unknown */
    char host[128];
    bool here;                    /* that host is this one */
    double time;                  /* seconds since the epoch: last sign of life */
    int exit_code;                /* -1 while it runs */
    char message[512], hint[256]; /* why it ended, when it did not end well */
    bool ended;
};

/* EXIT_FAILED when the directory is no run. */
int run_status_read(struct run_status *status, const char *directory, struct error *err);
/* It has ended, or its process is gone. */
bool run_status_over(const struct run_status *status);
/* Replace state.json with this status. */
int run_status_write(const struct run_status *status, const char *directory, struct error *err);

/* The run as it is typed on a command line: with quotes where a shell needs them. */
char *run_word(char *dst, size_t size, const char *directory);
/* A time of a run, in UTC, by strftime's format; "-" when it is none. */
char *run_time_text(char *dst, size_t size, const char *format, double seconds);

#endif
