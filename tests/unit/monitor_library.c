/* core/monitor on the vendors' libraries: tests/gpu/fake_smi.c replaces both, and does what $FAKE_SMI
 * says. */
#include "tests/unit/monitor_root.h"
#include "tests/mentions.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>

static struct monitor *opened_library(const char *provider, const char *faults)
{
    struct error err;
    struct monitor *m;
    assert_int_equal(setenv("FAKE_SMI", faults, 1), 0);
    if (monitor_open(&m,
                     &(struct monitor_options){.provider = provider,
                                               .root = root,
                                               .rsmi_library = FAKE_SMI,
                                               .nvml_library = FAKE_SMI,
                                               .deadline_s = 0.3},
                     &err))
        fail_msg("%s", err.what);
    return m;
}

static void libraries_are_read_through_the_helper(void **state)
{
    for (int nvml = 0; nvml < 2; nvml++) {
        struct monitor *m = opened_library(nvml ? "nvml" : "rsmi", "");
        monitor_watch(m, (pid_t[]){77}, 1);
        monitor_sample(m);
        struct monitor_snapshot s;
        monitor_read(m, &s);
        assert_string_equal(s.note, "");
        assert_non_null(strstr(s.library, "fake_smi"));
        assert_int_equal(s.card_count, 2);
        assert_string_equal(s.cards[1].pci, nvml ? "0000:c2:00.0" : "0001:c2:02.1");
        assert_string_equal(s.cards[1].name, nvml ? "NVIDIA H200" : "rsmi 2");
        for (int i = 0; i < 2; i++) {
            assert_value(s.cards[i].mem_used_bytes, 1e10 * (i + 1));
            assert_value(s.cards[i].mem_total_bytes, nvml ? 15e10 : 2e10 * (i + 1));
            assert_value(s.cards[i].busy_percent, 40 * (i + 1));
            assert_value(s.cards[i].temp_c, (nvml ? 30 : 30.25) * (i + 1));
            assert_value(s.cards[i].power_w, (nvml ? 300.5 : 200.5) * (i + 1));
        }
        if (nvml) assert_value(s.cards[0].process_bytes, 1000);
        assert_int_equal(s.cards[1].holder_count, nvml ? 1 : 0); /* of the others */
        if (nvml) assert_true(s.cards[1].holders[0].pid == 88 && s.cards[1].holders[0].bytes == 5000);
        monitor_close(m);
    }
}

static struct monitor_snapshot health_of(const char *provider, const char *faults)
{
    struct error err;
    struct monitor *m;
    struct monitor_snapshot s;
    assert_int_equal(setenv("FAKE_SMI", faults, 1), 0);
    assert_int_equal(monitor_open(&m,
                                  &(struct monitor_options){.provider = provider,
                                                            .root = root,
                                                            .rsmi_library = FAKE_SMI,
                                                            .nvml_library = FAKE_SMI,
                                                            .health = true},
                                  &err),
                     0);
    monitor_sample(m);
    monitor_read(m, &s);
    monitor_close(m);
    return s;
}

static void health_is_read_or_unknown(void **state)
{
    struct monitor_snapshot s = health_of("nvml", "value=0.6.3 value=0.8.104 value=0.11.400000 status=1.9.3 "
                                                  "status=1.6.999 status=1.11.4 value=1.8.1");
    assert_value(s.cards[0].ecc, 1);
    assert_value(s.cards[0].ecc_errors, 3);
    assert_value(s.cards[0].clock_mhz, 1980);
    assert_value(s.cards[0].clock_most, 1980);
    assert_value(s.cards[0].throttle, THROTTLE_HEAT | THROTTLE_HARDWARE); /* 0x68 */
    assert_value(s.cards[0].cap_w, 400);
    assert_value(s.cards[0].cap_default_w, 700);
    assert_value(s.cards[0].mig, 0);
    assert_value(s.cards[1].index, 1);
    assert_value(s.cards[1].throttle, 0);
    assert_true(s.cards[1].ecc.absent && !s.cards[1].ecc.valid);
    assert_false(s.cards[1].ecc_errors.absent || s.cards[1].ecc_errors.valid); /* the call failed */
    assert_false(s.cards[1].cap_w.absent || s.cards[1].cap_w.valid);           /* no permission */
    s = health_of("rsmi", "value=1.6.2");
    assert_value(s.cards[1].ecc, 1);
    assert_value(s.cards[1].ecc_errors, 2);
    assert_value(s.cards[1].cap_w, 350);
    assert_value(s.cards[1].cap_default_w, 350);
    assert_true(s.cards[1].throttle.absent);
}

/* The memory of a divided card is that of the instance that CUDA uses, as far as it is known which. */
static void memory_of_a_divided_card_is_of_its_instance(void **state)
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    struct monitor_snapshot s = health_of("nvml", "value=0.13.1 instances=1");
    assert_value(s.cards[0].mem_total_bytes, 1e10);
    assert_value(s.cards[0].mig, 1);
    assert_value(s.cards[1].mem_total_bytes, 15e10);
    s = health_of("nvml", "value=0.13.1 instances=3");
    assert_true(!s.cards[0].mem_total_bytes.valid && s.cards[0].holder_count == 0);
    assert_non_null(strstr(s.note, "CUDA_VISIBLE_DEVICES"));
    setenv("CUDA_VISIBLE_DEVICES", "MIG-c7384736-0-2", 1);
    s = health_of("nvml", "value=0.13.1 instances=3");
    assert_value(s.cards[0].mem_total_bytes, 3e10);
    assert_true(s.cards[0].holder_count > 0);
    setenv("CUDA_VISIBLE_DEVICES", "MIG-another", 1);
    s = health_of("nvml", "value=0.13.1 instances=1");
    assert_false(s.cards[0].mem_total_bytes.valid);
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static void cards_of_hygon_have_names_and_are_measured(void **state)
{
    struct monitor *m = opened_library("rsmi", "hygon");
    struct monitor_snapshot s;
    monitor_sample(m);
    monitor_read(m, &s);
    assert_string_equal(s.cards[0].name, "Hygon K100 AI");
    assert_string_equal(s.cards[1].name, "0x66a1"); /* AMD's: WK100 is Hygon's of that number */
    assert_value(s.cards[0].busy_percent, 12.5);
    monitor_close(m);
}

static void a_field_the_library_lacks_is_not_available(void **state)
{
    struct monitor *m = opened_library("rsmi", "cards=1 status=0.2.2 status=0.3.16 status=0.4.4");
    monitor_sample(m);
    struct monitor_snapshot s;
    monitor_read(m, &s);
    assert_value(s.cards[0].mem_used_bytes, 1e10);
    assert_false(s.cards[0].busy_percent.valid);
    assert_false(s.cards[0].temp_c.valid);
    assert_false(s.cards[0].power_w.valid);
    assert_non_null(strstr(s.note, "power"));
    monitor_close(m);
    m = opened_library("nvml", "cards=1 status=0.3.15 garbage=0.2 status=0.4.3");
    monitor_sample(m);
    monitor_read(m, &s);
    assert_value(s.cards[0].mem_used_bytes, 1e10);
    assert_false(s.cards[0].busy_percent.valid);
    assert_false(s.cards[0].temp_c.valid);
    assert_false(s.cards[0].power_w.valid);
    assert_non_null(strstr(s.note, "card"));
    monitor_close(m);
}

/* One call hangs, or ends its process: that field is not available, and all others are still read, also later
 * ones. */
static void a_wedged_call_costs_its_field_only(void **state)
{
    static const char *const faults[][3] = {{"rsmi", "hang=0.3", "0.3 s|temperature|card 0"},
                                            {"nvml", "hang=0.3", "0.3 s|temperature|card 0"},
                                            {"rsmi", "abort=0.3", "signal 6|temperature|card 0|\\x1b[2J"}};
    for (int k = 0; k < 3; k++) {
        struct monitor *m = opened_library(faults[k][0], faults[k][1]);
        struct monitor_snapshot s;
        monitor_sample(m);
        monitor_read(m, &s);
        assert_value(s.cards[0].busy_percent, 40);
        assert_false(s.cards[1].busy_percent.valid);
        if (!mentions(s.note, faults[k][2])) fail_msg("note: %s", s.note);
        monitor_sample(m);
        monitor_read(m, &s);
        assert_value(s.cards[1].busy_percent, 80);
        assert_value(s.cards[1].temp_c, k == 1 ? 60 : 60.5);
        assert_false(s.cards[0].temp_c.valid);
        assert_true(s.cards[0].power_w.valid);
        monitor_close(m);
    }
}

static void a_reader_never_waits_for_a_wedged_call(void **state)
{
    struct error err;
    struct monitor *m = opened_library("nvml", "slow=50 hang=1.4");
    assert_int_equal(monitor_start(m, 0.1, &err), 0);
    struct monitor_snapshot s = {0};
    double longest_s = 0, begun = 0;
    for (int i = 0; i < 150; i++) {
        struct timespec t[2];
        clock_gettime(CLOCK_MONOTONIC, &t[0]);
        monitor_read(m, &s);
        clock_gettime(CLOCK_MONOTONIC, &t[1]);
        double took = (double)(t[1].tv_sec - t[0].tv_sec) + 1e-9 * (double)(t[1].tv_nsec - t[0].tv_nsec);
        if (took > longest_s) longest_s = took;
        if (i == 0) begun = s.time_s;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    assert_true(s.time_s > begun + 1);
    assert_true(longest_s < 0.2); /* (a copy, and what the machine's other work takes) */
    assert_true(s.samples >= 1);
    monitor_close(m);
}

static void a_library_that_fails_leaves_the_kernels_files(void **state)
{
    struct monitor_snapshot s;
    put("proc/stat", "cpu  1 0 1 8\n");
    put("proc/driver/nvidia/version", "x\n");
    struct monitor *m = opened_library("auto", "init=9");
    for (int i = 0; i < 4; i++) monitor_sample(m);
    monitor_read(m, &s);
    assert_string_equal(s.provider, "proc");
    assert_int_equal(s.card_count, 1);
    assert_string_equal(s.note, "nvml: nvmlInit: 9 Driver Not Loaded");
    monitor_close(m);
    m = opened_library("nvml", "init=9"); /* who asked for it by name is not given something else */
    for (int i = 0; i < 5; i++) monitor_sample(m);
    monitor_read(m, &s);
    assert_string_equal(s.provider, "nvml");
    assert_int_equal(s.card_count, 0);
    monitor_close(m);
    put("sys/class/drm/card0/device/vendor", "0x1d94\n");
    put("sys/class/drm/card0/device/gpu_busy_percent", "55\n");
    m = opened_library("rsmi", "init=8");
    for (int i = 0; i < 4; i++) monitor_sample(m);
    monitor_read(m, &s);
    assert_string_equal(s.provider, "sysfs");
    assert_value(s.cards[0].busy_percent, 55);
    assert_string_equal(s.note, "rsmi: rsmi_init: 8 RSMI_STATUS_INIT_ERROR");
    monitor_close(m);
    struct error err;
    assert_int_equal(monitor_open(&m,
                                  &(struct monitor_options){
                                      .provider = "rsmi", .rsmi_library = "/nonexistent.so", .root = root},
                                  &err),
                     0);
    monitor_sample(m);
    monitor_read(m, &s);
    assert_non_null(strstr(s.note, "nonexistent.so"));
    monitor_close(m);
}

static void debug_variables_do_not_reach_the_library(void **state)
{
    setenv("RSMI_DEBUG_INFINITE_LOOP", "1", 1);
    struct monitor *m = opened_library("rsmi", "");
    monitor_sample(m);
    unsetenv("RSMI_DEBUG_INFINITE_LOOP");
    struct monitor_snapshot s;
    monitor_read(m, &s);
    assert_int_equal(s.card_count, 2);
    monitor_close(m);
}

/* While the library hangs in its initialisation, closing is bounded and leaves no process. */
static void closing_ends_a_hanging_helper(void **state)
{
    struct error err;
    struct monitor *m = opened_library("nvml", "init_hang");
    assert_int_equal(monitor_start(m, 1, &err), 0);
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    struct timespec t[2];
    clock_gettime(CLOCK_MONOTONIC, &t[0]);
    monitor_close(m);
    clock_gettime(CLOCK_MONOTONIC, &t[1]);
    assert_true(t[1].tv_sec - t[0].tv_sec <= 2);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child */
}

/* The note goes when what it told of is over. */
static void notes_end_with_their_cause(void **state)
{
    struct error err;
    struct monitor *m;
    struct monitor_snapshot s;
    setenv("FAKE_SMI", "", 1);
    char *library = xasprintf("%s/libsmi.so", root);
    assert_int_equal(
        monitor_open(&m, &(struct monitor_options){.provider = "nvml", .root = root, .nvml_library = library},
                     &err),
        0);
    monitor_sample(m);
    monitor_read(m, &s);
    assert_non_null(strstr(s.note, "libsmi.so"));
    assert_int_equal(symlink(FAKE_SMI, library), 0);
    monitor_sample(m);
    monitor_read(m, &s);
    assert_string_equal(s.note, "");
    assert_int_equal(s.card_count, 2);
    monitor_close(m);
    free(library);
    assert_int_equal(
        monitor_open(
            &m, &(struct monitor_options){.provider = "nvml", .root = root, .helper = "/nonexistent/meopt"},
            &err),
        0);
    for (int i = 0; i < 5; i++) monitor_sample(m);
    monitor_read(m, &s);
    assert_non_null(strstr(s.note, "/nonexistent/meopt"));
    monitor_close(m);
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], MONITOR_HELPER) == 0) return monitor_helper(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(libraries_are_read_through_the_helper, setup, teardown),
        cmocka_unit_test_setup_teardown(cards_of_hygon_have_names_and_are_measured, setup, teardown),
        cmocka_unit_test_setup_teardown(health_is_read_or_unknown, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_of_a_divided_card_is_of_its_instance, setup, teardown),
        cmocka_unit_test_setup_teardown(a_field_the_library_lacks_is_not_available, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wedged_call_costs_its_field_only, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_never_waits_for_a_wedged_call, setup, teardown),
        cmocka_unit_test_setup_teardown(a_library_that_fails_leaves_the_kernels_files, setup, teardown),
        cmocka_unit_test_setup_teardown(debug_variables_do_not_reach_the_library, setup, teardown),
        cmocka_unit_test_setup_teardown(closing_ends_a_hanging_helper, setup, teardown),
        cmocka_unit_test_setup_teardown(notes_end_with_their_cause, setup, teardown),
    };
    return cmocka_run_group_tests_name("monitor_library", tests, NULL, NULL);
}
