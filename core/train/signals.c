/* What signals ask: see signals.h. */
#include "core/train/signals.h"
#include "core/base/clock.h"
#include "core/run/request.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const struct signal_row {
    int number;
    enum signal_request wish;
} signal_rows[] = {
    {SIGTERM, REQUEST_STOP}, {SIGINT, REQUEST_STOP},  {SIGUSR1, REQUEST_STOP}, {SIGXCPU, REQUEST_STOP},
    {SIGPWR, REQUEST_STOP},  {SIGUSR2, REQUEST_SAVE}, {SIGHUP, REQUEST_NONE},
};
enum { SIGNAL_ROWS = sizeof signal_rows / sizeof *signal_rows };

static const char *const signal_requests[REQUEST_COUNT] = {
    [REQUEST_STOP] = "stop", [REQUEST_SAVE] = "checkpoint", [REQUEST_CHANGE] = "change"};

static const enum signal_act signal_acts[REQUEST_COUNT][PHASE_COUNT] = {
    [REQUEST_STOP] = {[PHASE_LOAD] = ACT_STOP,
                      [PHASE_TEACHER] = ACT_STOP,
                      [PHASE_DATA] = ACT_SAVE_STOP,
                      [PHASE_STEP] = ACT_SAVE_STOP,
                      [PHASE_SAVE] = ACT_STOP},
    [REQUEST_SAVE] = {[PHASE_DATA] = ACT_SAVE, [PHASE_STEP] = ACT_SAVE},
    [REQUEST_CHANGE] = {[PHASE_DATA] = ACT_CHANGE, [PHASE_STEP] = ACT_CHANGE},
};

enum { HASTE_SECONDS = 1 };
#define LOOK_SECONDS 0.1 /* between two looks for requests: each asks the file system */

static volatile sig_atomic_t signal_asked[REQUEST_COUNT];
static struct signal_interrupts signal_interrupts;
static struct run *signal_run;
static double signal_looked;

bool signals_force_quit(struct signal_interrupts *interrupts, double now)
{
    if (interrupts->any) return now - interrupts->first > HASTE_SECONDS;
    *interrupts = (struct signal_interrupts){true, now};
    return false;
}

static void on_signal(int number)
{
    /* clock_seconds asks clock_gettime alone, which a handler may */
    if (number == SIGINT && signals_force_quit(&signal_interrupts, clock_seconds()))
        _exit(EXIT_SIGNAL + number);
    signal_asked[signals_request(number)] = 1;
}

void signals_catch(struct run *run)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigset_t ours;
    sigemptyset(&ours);
    signal_interrupts = (struct signal_interrupts){0};
    signal_run = run;
    signal_looked = 0;
    for (int i = 0; i < REQUEST_COUNT; i++) signal_asked[i] = 0;
    for (int i = 0; i < SIGNAL_ROWS; i++) {
        sigaction(signal_rows[i].number, &action, NULL);
        sigaddset(&ours, signal_rows[i].number);
    }
    sigprocmask(SIG_UNBLOCK, &ours, NULL);
}

enum signal_request signals_request(int number)
{
    for (int i = 0; i < SIGNAL_ROWS; i++)
        if (signal_rows[i].number == number) return signal_rows[i].wish;
    return REQUEST_NONE;
}

static void look_for_requests(void)
{
    double now = clock_seconds();
    if (!signal_run || (signal_looked > 0 && now - signal_looked < LOOK_SECONDS)) return;
    signal_looked = now;
    if (signal_run->lock >= 0 && (run_follow(signal_run, NULL) != 0 || !run_is_here(signal_run))) return;
    for (int i = 0; i < REQUEST_COUNT; i++)
        if (signal_requests[i] && run_requested(signal_run->directory, signal_requests[i]))
            signal_asked[i] = 1;
}

void signals_handled(enum signal_request wish) { signal_asked[wish] = 0; }
bool signals_asked(enum signal_request wish) { return signal_asked[wish]; }

enum signal_act signals_act(enum train_phase phase)
{
    look_for_requests();
    for (int wish = REQUEST_STOP; wish < REQUEST_COUNT; wish++)
        if (signal_asked[wish] && signal_acts[wish][phase] != ACT_CONTINUE) return signal_acts[wish][phase];
    return ACT_CONTINUE;
}
