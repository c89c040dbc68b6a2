/* core/device/bench: the peak that figures are compared with is one of GEMMs that were done, by the kernels
 * of the instruction set that is in use. */
#include "core/device/bench.h"
#include "kernels/cpu/select.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void peak_of(const char *isa, enum dtype type)
{
    enum { SMALLER = 16 };
    struct device *device;
    struct error err;
    struct gemm_peak peak;
    setenv("MEOPT_CPU_ISA", isa, 1);
    assert_int_equal(device_open(&device, "cpu", 0, &err), 0);
    assert_int_equal(device_gemm_peak(device, type, SMALLER, &peak, &err), 0);
    print_message("%s %s: %.1f GFLOP/s, %s\n", isa, dtype_name(type), peak.gflops, peak.of);
    assert_true(peak.gflops > 0);
    assert_non_null(strstr(peak.of, isa));
    assert_true(device->use.peak_bytes[MEMORY_WORKSPACE] < (size_t)64
                                                               << 20); /* its operands are not counted */
    device_close(device);
}

static void the_peak_is_one_of_gemms_that_were_done(void **state)
{
    for (int set = 0; set < CPU_SETS; set++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            if (cpu_isa_runs((enum cpu_isa)set)) peak_of(cpu_isa_names[set], bf16 ? DTYPE_BF16 : DTYPE_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_peak_is_one_of_gemms_that_were_done)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
