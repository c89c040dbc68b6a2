/* The supervisor's decisions: whether a silence is a slow file system or a long step, and the kernel's
 * reports about memory. */
#include "cli/supervisor/supervise_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void ten_minutes_are_no_hang(void **state)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        assert_true(silence_limit_seconds((enum train_phase)phase, 0, 0) > 600);
        assert_true(hung_seconds((enum train_phase)phase, 0, 0, false) > 600);
    }
}

static void patience_follows_the_measured_step_and_the_bytes_to_write(void **state)
{
    assert_true(silence_limit_seconds(PHASE_STEP, 600, 0) >= 6000);
    assert_true(silence_limit_seconds(PHASE_SAVE, 0, 6000000000) >= 6000); /* at 1 MB/s */
    assert_true(silence_limit_seconds(PHASE_STEP, 0, 6000000000) < 2000);
}

static void a_hang_is_detected_by_the_measured_step_time(void **state)
{
    assert_true(hung_seconds(PHASE_STEP, 1, 0, true) <= 60);
    assert_true(hung_seconds(PHASE_STEP, 100, 0, true) >= 500);
    assert_true(hung_seconds(PHASE_SAVE, 1, 0, true) > 600); /* short steps say nothing of a save */
}

/* As with one rank alone: a file system that stands still for minutes ends no run. */
static void a_rank_that_waits_for_images_is_not_stuck(void **state)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        assert_int_equal(rank_phases[phase].exempt, phase == PHASE_DATA || phase == PHASE_SAVE);
}

static void memory_kills_are_counted(void **state)
{
    assert_int_equal(oom_kills("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"), 2);
    assert_int_equal(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), 7);
    assert_int_equal(oom_kills("oom_kill_disable 0\nunder_oom 0\n"), -1);
    assert_int_equal(oom_kills(""), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_minutes_are_no_hang),
        cmocka_unit_test(patience_follows_the_measured_step_and_the_bytes_to_write),
        cmocka_unit_test(a_hang_is_detected_by_the_measured_step_time),
        cmocka_unit_test(a_rank_that_waits_for_images_is_not_stuck),
        cmocka_unit_test(memory_kills_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
