/* What each signal asks of a process that trains: told in a child, which ends with what it has been asked. */
#include "core/train/signals.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { STOP = 1, SAVE = 2 };

static int asked(void)
{
    return (signals_asked(WISH_STOP) ? STOP : 0) | (signals_asked(WISH_SAVE) ? SAVE : 0);
}

/* The status of a child that got these signals, one after another; 0 ends the list. */
static int ended(const int *signals)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signals_catch();
        for (; *signals; signals++) raise(*signals);
        _exit(asked());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status)); /* caught: by none of them */
    return WEXITSTATUS(status);
}

static void each_signal_asks_for_its_own(void **state)
{
    (void)state;
    static const struct {
        int signals[4], wanted;
    } rows[] = {
        {{0}, 0},
        {{SIGTERM}, STOP},
        {{SIGINT}, STOP},
        {{SIGUSR1}, STOP},
        {{SIGUSR2}, SAVE},
        {{SIGUSR2, SIGUSR2, SIGUSR2}, SAVE},
        {{SIGUSR1, SIGUSR1}, STOP},
        {{SIGTERM, SIGUSR1}, STOP},
        {{SIGUSR2, SIGTERM, SIGUSR2}, STOP | SAVE},
        {{SIGTERM, SIGTERM}, 128 + SIGTERM},
        {{SIGINT, SIGINT}, 128 + SIGINT},
        {{SIGTERM, SIGUSR2, SIGINT}, 128 + SIGINT},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ended(rows[i].signals) != rows[i].wanted)
            fail_msg("row %zu: %d instead of %d", i, ended(rows[i].signals), rows[i].wanted);
}

static void a_request_asks_as_a_signal_does(void **state)
{
    (void)state;
    signals_catch();
    signals_ask(WISH_SAVE);
    assert_int_equal(asked(), SAVE);
    signals_obeyed(WISH_SAVE);
    assert_int_equal(asked(), 0);
    raise(SIGUSR2); /* and may ask again */
    assert_int_equal(asked(), SAVE);
    signals_ask(WISH_STOP);
    assert_int_equal(asked(), SAVE | STOP);
    signals_catch(); /* a new start: nothing is asked */
    assert_int_equal(asked(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_signal_asks_for_its_own),
                                       cmocka_unit_test(a_request_asks_as_a_signal_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
