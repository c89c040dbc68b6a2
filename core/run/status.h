/* The status of a run, for readers: state.json, and whether its process is still running. */
#ifndef MEOPT_RUN_STATUS_H
#define MEOPT_RUN_STATUS_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run_status {
    char state[16]; /* starting, training, done, stopped, diverged, failed; lost: ended without a message */
    int64_t step, total, epoch; /* total 0: unknown */
    int pid;                    /* of the worker; 0: unknown */
    char host[128];
    bool here;                    /* host is this machine */
    double time;                  /* seconds since the epoch: last activity */
    int exit_code;                /* -1 while it runs */
    char message[512], hint[256]; /* why it failed, in the user's language; the file has them in English */
    bool ended;
};

/* EXIT_FAILED if the directory is no run. */
int run_status_read(struct run_status *status, const char *directory, struct error *err);
/* Whether it has ended, or its process is gone. */
bool run_status_over(const struct run_status *status);
/* The file in a run that its trainer locks, and whether a process holds it. True if that cannot be
 * determined. */
#define RUN_LOCK ".lock"
bool run_held(const char *directory);
/* Replaces state.json with this status. */
int run_status_write(const struct run_status *status, const char *directory, struct error *err);

/* Writes the run's path as a shell word, quoted if necessary. */
char *run_word(char *dst, size_t size, const char *directory);
/* Formats a time of a run, in UTC, with strftime; "-" for an invalid time. */
char *run_time_text(char *dst, size_t size, const char *format, double seconds);

#endif
