/* core/device/bench: the peak that figures are compared with is one of products that were done. oneDNN reads
 * the instruction set that it may use once in a process, so each is tried in one of its own. */
#include "core/device/bench.h"
#include "kernels/cpu/gemm_onednn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static int told_as_done(const char *isa, enum dtype type)
{
    enum { SMALLER = 16, SIDE = 2048 / SMALLER };
    struct device *device;
    struct error err;
    struct gemm_peak peak;
    if (device_open(&device, "cpu", 0, &err)) return 1;
    int code = device_gemm_peak(device, type, SMALLER, &peak, &err);
    size_t held = device->use.peak_bytes[MEMORY_WORKSPACE];
    device_close(device);
    struct onednn *onednn = onednn_open();
    struct matmul product = {
        .m = SIDE, .n = SIDE, .k = SIDE, .lda = SIDE, .ldb = SIDE, .ldc = SIDE, .alpha = 1};
    product.ab_bf16 = product.c_bf16 = type == DTYPE_BF16;
    bool able = onednn_supports(onednn, &product);
    onednn_close(onednn);
    printf("%s %s: own %.1f, oneDNN %.1f GFLOP/s\n", isa, dtype_name(type), peak.own_gflops,
           peak.library_gflops);
    if (code == 0 && peak.own_gflops > 0 && (peak.library_gflops > 0) == able && held < (size_t)64 << 20)
        return 0;
    printf("exit code %d, oneDNN is %s, %zu bytes of scratch are counted\n", code, able ? "able" : "not able",
           held);
    return 1;
}

/* what a process of its own says of the instruction set ISA */
static void peak_with(const char *isa)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("ONEDNN_MAX_CPU_ISA", isa, 1);
        setenv("DNNL_MAX_CPU_ISA", isa, 1);
        execl("/proc/self/exe", "gemm_peak", isa, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void the_peak_is_one_of_products_that_were_done(void **state)
{
    (void)state;
    static const char *const isas[] = {"SSE41", "AVX2", "ALL"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) peak_with(isas[i]);
}

int main(int count, char **arguments)
{
    if (count > 1) return told_as_done(arguments[1], DTYPE_F32) + told_as_done(arguments[1], DTYPE_BF16);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_peak_is_one_of_products_that_were_done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
