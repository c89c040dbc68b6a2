/* The emulation finds what a card does only sometimes: races of kernels and streams (tests/gpu/fake_races.h)
 * and shared memory that is read before it is written (tests/gpu/emulate_shared.h). Each is planted here
 * (tests/gpu/planted.hip), and its like without the fault. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { WAVES = 2, WAVE = 64, BLOCKS = 3, THREADS = WAVES * WAVE, VALUES = BLOCKS * THREADS };

static void *library;
static void *entry(const char *name)
{
    void *found = dlsym(library, name);
    if (!found) _exit(3);
    return found;
}
/* Calls a function of the driver that must succeed. */
#define CALL(name, types, ...)                                                                               \
    do {                                                                                                     \
        int(*call) types;                                                                                    \
        void *at = entry(name);                                                                              \
        memcpy(&call, &at, sizeof call);                                                                     \
        if (call(__VA_ARGS__)) _exit(4);                                                                     \
    } while (0)

static float out[VALUES], *on_card;
static void *streams[2], *event;

static void begin(void)
{
    library = dlopen(getenv("MEOPT_HIP_LIBRARY"), RTLD_NOW);
    if (!library) _exit(2);
    CALL("hipInit", (unsigned), 0);
    CALL("hipSetDevice", (int), 0);
    CALL("hipMalloc", (void **, size_t), (void **)&on_card, sizeof out);
    for (int i = 0; i < 2; i++) CALL("hipStreamCreateWithFlags", (void **, unsigned), &streams[i], 0);
    CALL("hipEventCreateWithFlags", (void **, unsigned), &event, 0);
    CALL("hipMemsetD8Async", (void *, unsigned char, size_t, void *), on_card, 0, sizeof out, streams[0]);
    CALL("hipStreamSynchronize", (void *), streams[0]);
}
static void launch(const char *kernel, int stream)
{
    void *module, *function, *arguments[] = {&on_card};
    CALL("hipModuleLoadData", (void **, const void *), &module, "emulated gfx90a\n");
    CALL("hipModuleGetFunction", (void **, void *, const char *), &function, module, kernel);
    CALL("hipModuleLaunchKernel",
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
          void **),
         function, BLOCKS, 1, 1, THREADS, 1, 1, 0, streams[stream], arguments, NULL);
}
static void end(void)
{
    CALL("hipStreamSynchronize", (void *), streams[0]);
    CALL("hipMemcpyDtoHAsync", (void *, const void *, size_t, void *), out, on_card, sizeof out, streams[0]);
    CALL("hipStreamSynchronize", (void *), streams[0]);
}

/* Runs `work` in a process of its own; returns whether it aborted, with what it printed. */
static bool aborts(void (*work)(const char *), const char *kernel, char *text, size_t size)
{
    int ends[2], status;
    size_t have = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        work(kernel);
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t n; (n = read(ends[0], text + have, size - 1 - have)) > 0;) have += (size_t)n;
    text[have] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return false;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("%s: status %x %s", kernel, status, text);
    return true;
}

static void in_one_launch(const char *kernel)
{
    setenv("FAKE_RACES", "1", 1);
    begin();
    launch(kernel, 0);
    end();
}
static void without_its_barrier(const char *kernel) /* the text after the name: which */
{
    char name[64] = "";
    snprintf(name, sizeof name, "%.*s", (int)strcspn(kernel, " "), kernel);
    setenv("EMULATE_WITHOUT", strchr(kernel, ' ') + 1, 1);
    in_one_launch(name);
}
static void on_two_streams(const char *kernel)
{
    setenv("FAKE_RACES", "1", 1);
    begin();
    launch(kernel, 0);
    launch(kernel, 1);
}
static void with_an_event(const char *kernel)
{
    setenv("FAKE_RACES", "1", 1);
    begin();
    launch(kernel, 0);
    CALL("hipEventRecord", (void *, void *), event, streams[0]);
    CALL("hipStreamWaitEvent", (void *, void *, unsigned), streams[1], event, 0);
    launch(kernel, 1);
    CALL("hipStreamSynchronize", (void *), streams[1]);
    end();
}
static void copied_meanwhile(const char *kernel)
{
    setenv("FAKE_RACES", "1", 1);
    begin();
    CALL("hipMemcpyDtoHAsync", (void *, const void *, size_t, void *), out, on_card, sizeof out, streams[1]);
    launch(kernel, 0);
}

static const struct {
    void (*work)(const char *);
    const char *kernel;
    bool race;
} cases[] = {{in_one_launch, "planted_missing_barrier", true},
             {in_one_launch, "planted_barrier", false},
             {without_its_barrier, "planted_barrier planted.hip:17", true},
             {in_one_launch, "planted_two_stores", true},
             {in_one_launch, "planted_load_then_store", true},
             {in_one_launch, "planted_shuffle", true},
             {in_one_launch, "planted_shuffled_load", false},
             {in_one_launch, "planted_blocks_store", true},
             {in_one_launch, "planted_block_loads", true},
             {in_one_launch, "planted_blocks_flag", false},
             {in_one_launch, "planted_own", false},
             {on_two_streams, "planted_own", true},
             {with_an_event, "planted_own", false},
             {copied_meanwhile, "planted_own", true}};

static void races_are_found_and_named(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int order = 0; order < 3; order++) {
            char text[2000], kernel[64];
            const char *const orders[] = {"forward", "reversed", "7"};
            setenv("EMULATE_ORDER", orders[order], 1);
            bool found = aborts(cases[i].work, cases[i].kernel, text, sizeof text);
            snprintf(kernel, sizeof kernel, "%.*s", (int)strcspn(cases[i].kernel, " "), cases[i].kernel);
            if (found != cases[i].race || (found && !strstr(text, kernel)))
                fail_msg("%s, case %zu, %s: %s", cases[i].kernel, i, orders[order], text);
        }
    unsetenv("EMULATE_ORDER");
}

static void with_nan(const char *kernel)
{
    int strange = 0;
    begin();
    for (int times = 0; times < 2; times++) {
        launch(kernel, 0);
        end();
        for (int block = 0; block < BLOCKS; block++) strange += isnan(out[block * THREADS + THREADS - 1]);
    }
    if (strange == 2 * BLOCKS) abort();
}

/* "Thread 0 stores, all load": no other thread ever has its value, nor that of the block before. */
static void other_orders_show_a_missing_barrier(void **state)
{
    char text[2000];
    unsetenv("EMULATE_ORDER");
    assert_true(aborts(with_nan, "planted_missing_barrier", text, sizeof text));
    assert_false(aborts(with_nan, "planted_barrier", text, sizeof text));
    setenv("EMULATE_ORDER", "forward", 1);
    assert_false(aborts(with_nan, "planted_missing_barrier", text, sizeof text));
    unsetenv("EMULATE_ORDER");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(races_are_found_and_named),
                                       cmocka_unit_test(other_orders_show_a_missing_barrier)};
    return getenv("MEOPT_TEST_DEVICE") ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
