/* What signals ask: see signals.h. */
#include "core/train/signals.h"
#include "core/base/error.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static const struct signal_row {
    int number;
    enum signal_wish wish;
    bool insists; /* ends the process at once when the wish was asked before */
} signal_rows[] = {
    {SIGTERM, WISH_STOP, true},
    {SIGINT, WISH_STOP, true},
    {SIGUSR1, WISH_STOP, false},
    {SIGUSR2, WISH_SAVE, false},
};
enum { SIGNAL_ROWS = sizeof signal_rows / sizeof *signal_rows };

static volatile sig_atomic_t asked[WISH_COUNT];

static void on_signal(int number)
{
    for (int i = 0; i < SIGNAL_ROWS; i++) {
        const struct signal_row *row = &signal_rows[i];
        if (row->number != number) continue;
        if (row->insists && asked[row->wish]) _exit(EXIT_SIGNAL + number);
        asked[row->wish] = 1;
    }
}

void signals_catch(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (int i = 0; i < WISH_COUNT; i++) asked[i] = 0;
    for (int i = 0; i < SIGNAL_ROWS; i++) sigaction(signal_rows[i].number, &action, NULL);
}

bool signals_asked(enum signal_wish wish) { return asked[wish] != 0; }
void signals_ask(enum signal_wish wish) { asked[wish] = 1; }
void signals_obeyed(enum signal_wish wish) { asked[wish] = 0; }
