/* Signals and requests: see signals.h. */
#include "core/train/signals.h"
#include "core/base/clock.h"
#include "core/run/request.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const struct signal_row {
    int number;
    enum signal_request request;
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
                      [PHASE_SAVE] = ACT_STOP,
                      [PHASE_EVALUATE] = ACT_SAVE_STOP},
    [REQUEST_SAVE] = {[PHASE_DATA] = ACT_SAVE, [PHASE_STEP] = ACT_SAVE},
    [REQUEST_CHANGE] = {[PHASE_DATA] = ACT_CHANGE, [PHASE_STEP] = ACT_CHANGE},
};

enum { FORCE_QUIT_SECONDS = 1 };
#define POLL_SECONDS 0.1 /* between two scans for request files */

static volatile sig_atomic_t signal_asked[REQUEST_COUNT];
static struct signal_interrupts signal_interrupts;
static struct run *signal_run;
static double signal_polled_at;

bool signals_force_quit(struct signal_interrupts *interrupts, double now)
{
    if (interrupts->any) return now - interrupts->first > FORCE_QUIT_SECONDS;
    *interrupts = (struct signal_interrupts){true, now};
    return false;
}

static void on_signal(int number)
{
    /* clock_seconds only calls clock_gettime, which is async-signal-safe */
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
    signal_polled_at = 0;
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
        if (signal_rows[i].number == number) return signal_rows[i].request;
    return REQUEST_NONE;
}

static void poll_requests(void)
{
    double now = clock_seconds();
    if (!signal_run || (signal_polled_at > 0 && now - signal_polled_at < POLL_SECONDS)) return;
    signal_polled_at = now;
    if (signal_run->lock >= 0 && (run_follow(signal_run, NULL) != 0 || !run_is_here(signal_run))) return;
    for (int i = 0; i < REQUEST_COUNT; i++)
        if (signal_requests[i] && run_requested(signal_run->directory, signal_requests[i]))
            signal_asked[i] = 1;
}

void signals_handled(enum signal_request request) { signal_asked[request] = 0; }
bool signals_asked(enum signal_request request) { return signal_asked[request]; }

enum signal_act signals_act(enum train_phase phase)
{
    poll_requests();
    for (int request = REQUEST_STOP; request < REQUEST_COUNT; request++)
        if (signal_asked[request] && signal_acts[request][phase] != ACT_CONTINUE)
            return signal_acts[request][phase];
    return ACT_CONTINUE;
}
