/* The action that each signal and each request causes in a process that trains, in each phase (man
 * meopt-train, STOPPING). Signals are sent in a child, whose exit status is the action. */
#include "core/base/file.h"
#include "core/run/request.h"
#include "core/train/signals.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { STOP = 1, SAVE = 2, LATER = -1 }; /* LATER: more than a second goes by */

static int asked(void)
{
    static const int actions[] = {[ACT_SAVE] = SAVE, [ACT_STOP] = -1, [ACT_SAVE_STOP] = STOP};
    return actions[signals_act(PHASE_STEP)];
}

/* The status of a child that got these signals, one after another; 0 ends the list. */
static int ended(const int *signals, bool before)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        sigset_t all;
        sigfillset(&all);
        if (before) sigprocmask(SIG_BLOCK, &all, NULL);
        else signals_catch(NULL);
        for (; *signals; signals++)
            if (*signals == LATER) usleep(1100000);
            else raise(*signals);
        if (before) signals_catch(NULL);
        _exit(asked());
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status)); /* caught: by none of them */
    return WEXITSTATUS(status);
}

static void each_signal_asks_for_its_own(void **state)
{
    static const struct {
        int signals[6], wanted;
    } rows[] = {
        {{0}, 0},
        {{SIGTERM}, STOP},
        {{SIGINT}, STOP},
        {{SIGUSR1}, STOP},
        {{SIGXCPU}, STOP},
        {{SIGPWR}, STOP},
        {{SIGUSR2}, SAVE},
        {{SIGHUP}, 0},
        {{SIGUSR2, SIGUSR2, SIGUSR2}, SAVE},
        {{SIGUSR1, SIGUSR1}, STOP},
        {{SIGTERM, SIGUSR1}, STOP},
        {{SIGUSR2, SIGTERM, SIGUSR2}, STOP},     /* to stop is to save */
        {{SIGTERM, SIGTERM}, STOP},              /* to the whole control group, and passed on */
        {{SIGTERM, LATER, SIGTERM}, STOP},       /* again by an impatient user */
        {{SIGUSR1, SIGTERM, SIGTERM}, STOP},     /* the warning of a batch system, then the end */
        {{SIGINT, SIGINT}, STOP},                /* from the terminal, and passed on */
        {{SIGTERM, LATER, SIGINT}, STOP},        /* a person's first */
        {{SIGINT, LATER, SIGTERM}, STOP},        /* no person */
        {{SIGINT, LATER, SIGINT}, 128 + SIGINT}, /* a person's second */
        {{SIGHUP, SIGTERM, SIGHUP}, STOP},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ended(rows[i].signals, false) != rows[i].wanted)
            fail_msg("row %zu: %d instead of %d", i, ended(rows[i].signals, false), rows[i].wanted);
}

static void a_signal_before_the_start_is_not_lost(void **state)
{
    assert_int_equal(ended((const int[]){SIGTERM, 0}, true), STOP);
    assert_int_equal(ended((const int[]){SIGTERM, SIGTERM, SIGUSR1, SIGHUP, 0}, true), STOP);
    assert_int_equal(ended((const int[]){SIGUSR2, 0}, true), SAVE);
}

static void a_person_asks_for_haste_with_the_second_interrupt(void **state)
{
    struct signal_interrupts i = {0};
    assert_false(signals_force_quit(&i, 100));
    assert_false(signals_force_quit(&i, 100.001)); /* the same one, told twice */
    assert_false(signals_force_quit(&i, 101));
    assert_true(signals_force_quit(&i, 101.1));
    assert_true(signals_force_quit(&i, 300));
}

static void each_phase_has_its_answer(void **state)
{
    static const enum signal_act stop[PHASE_COUNT] = {ACT_STOP,      ACT_STOP, ACT_SAVE_STOP,
                                                      ACT_SAVE_STOP, ACT_STOP, ACT_CONTINUE},
                                 save[PHASE_COUNT] = {ACT_CONTINUE, ACT_CONTINUE, ACT_SAVE,
                                                      ACT_SAVE,     ACT_CONTINUE, ACT_CONTINUE};
    signals_catch(NULL);
    for (int at = 0; at < PHASE_COUNT; at++)
        assert_int_equal(signals_act((enum train_phase)at), ACT_CONTINUE);
    raise(SIGUSR2);
    for (int at = 0; at < PHASE_COUNT; at++) assert_int_equal(signals_act((enum train_phase)at), save[at]);
    signals_handled(REQUEST_SAVE);
    for (int at = 0; at < PHASE_COUNT; at++)
        assert_int_equal(signals_act((enum train_phase)at), ACT_CONTINUE);
    raise(SIGUSR1);
    raise(SIGUSR2); /* to stop is to save */
    for (int at = 0; at < PHASE_COUNT; at++)
        if (stop[at] != ACT_CONTINUE) assert_int_equal(signals_act((enum train_phase)at), stop[at]);
}

static void a_request_asks_as_a_signal_does(void **state)
{
    struct error err = {0};
    char directory[] = "/tmp/meopt-signals-XXXXXX";
    assert_non_null(mkdtemp(directory));
    struct run run = {.directory = directory, .lock = -1};
    assert_int_equal(run_request(directory, "checkpoint", &err), 0);
    signals_catch(&run); /* one that was made before the start counts */
    assert_int_equal(asked(), SAVE);
    assert_false(run_requested(directory, "checkpoint")); /* taken away */
    signals_handled(REQUEST_SAVE);
    assert_int_equal(asked(), 0);
    raise(SIGUSR2); /* and may ask again */
    assert_int_equal(asked(), SAVE);
    assert_int_equal(run_request(directory, "stop", &err), 0);
    usleep(200000); /* it is not looked for at every moment */
    assert_int_equal(asked(), STOP);
    signals_catch(&run); /* a new start: nothing is asked */
    assert_int_equal(asked(), 0);
    signals_catch(NULL);
    assert_int_equal(file_remove_tree(directory, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_signal_asks_for_its_own),
                                       cmocka_unit_test(a_signal_before_the_start_is_not_lost),
                                       cmocka_unit_test(a_person_asks_for_haste_with_the_second_interrupt),
                                       cmocka_unit_test(each_phase_has_its_answer),
                                       cmocka_unit_test(a_request_asks_as_a_signal_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
