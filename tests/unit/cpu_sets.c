/* kernels/cpu/select: the set of kernels of each processor; a requested set is used or refused.
 * core/base/cpu: the features of a processor, and that all code that chooses before the kernels uses it. */
#include "core/base/cpu.h"
#include "core/base/crc32c.h"
#include "core/device/device.h"
#include "core/meopt.h"
#include "core/weights/weights_internal.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select.h"
#include "tests/mentions.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum {
    WIDE = CAN_AVX2 | CAN_AVX512,
    WIDE_VNNI = WIDE | CAN_AVX512_VNNI,
    WIDE_BF16 = WIDE_VNNI | CAN_AVX512_BF16,
    CLIENT = CAN_AVX2 | CAN_AVX_VNNI,
};
#define INTEL   "GenuineIntel"
#define AMD     "AuthenticAMD"
#define HYGON   "HygonGenuine"
#define ZHAOXIN "  Shanghai  "
#define CENTAUR "CentaurHauls"

static const struct {
    const char *what;
    struct processor is;
    enum cpu_isa takes;
} processors[] = {
    {"Core i7-3770, Ivy Bridge", {INTEL, 6, 0x3a, 0}, SET_PLAIN},
    {"Core i7-4770, Haswell", {INTEL, 6, 0x3c, CAN_AVX2}, SET_AVX2_FMA},
    {"Xeon E5-2680 v3, Haswell", {INTEL, 6, 0x3f, CAN_AVX2}, SET_AVX2_FMA},
    {"Core i5-4200U, Haswell", {INTEL, 6, 0x45, CAN_AVX2}, SET_AVX2_FMA},
    {"Core i7-4770R, Haswell", {INTEL, 6, 0x46, CAN_AVX2}, SET_AVX2_FMA},
    {"Core i7-5500U, Broadwell", {INTEL, 6, 0x3d, CAN_AVX2}, SET_AVX2_FMA},
    {"Core i7-5775C, Broadwell", {INTEL, 6, 0x47, CAN_AVX2}, SET_AVX2_FMA},
    {"Xeon E5-2690 v4, Broadwell", {INTEL, 6, 0x4f, CAN_AVX2}, SET_AVX2_FMA},
    {"Xeon D-1541, Broadwell", {INTEL, 6, 0x56, CAN_AVX2}, SET_AVX2_FMA},
    {"Core i7-6500U, Skylake", {INTEL, 6, 0x4e, CAN_AVX2}, SET_AVX2},
    {"Core i7-6700, Skylake", {INTEL, 6, 0x5e, CAN_AVX2}, SET_AVX2},
    {"Core i7-8700K, Coffee Lake", {INTEL, 6, 0x9e, CAN_AVX2}, SET_AVX2},
    {"Core i9-10900K, Comet Lake", {INTEL, 6, 0xa5, CAN_AVX2}, SET_AVX2},
    {"Core i9-12900K, Alder Lake", {INTEL, 6, 0x97, CLIENT}, SET_AVX2_VNNI},
    {"Core i9-13900K, Raptor Lake", {INTEL, 6, 0xb7, CLIENT}, SET_AVX2_VNNI},
    {"Core Ultra 9 285K, Arrow Lake", {INTEL, 6, 0xc6, CLIENT}, SET_AVX2_VNNI},
    {"Xeon 6780E, Sierra Forest", {INTEL, 6, 0xaf, CLIENT}, SET_AVX2_VNNI},
    {"Xeon Gold 6148, Skylake", {INTEL, 6, 0x55, WIDE}, SET_AVX512},
    {"the same, without AVX-512", {INTEL, 6, 0x55, CAN_AVX2}, SET_AVX2},
    {"Xeon Gold 6248, Cascade Lake", {INTEL, 6, 0x55, WIDE_VNNI}, SET_AVX512_VNNI},
    {"Xeon Gold 6348H, Cooper Lake", {INTEL, 6, 0x55, WIDE_BF16}, SET_AVX512_VNNI},
    {"Core i7-1065G7, Ice Lake", {INTEL, 6, 0x7e, WIDE_VNNI}, SET_AVX512_VNNI},
    {"Xeon Platinum 8380, Ice Lake", {INTEL, 6, 0x6a, WIDE_VNNI}, SET_AVX512_VNNI},
    {"Xeon Platinum 8480, Sapphire Rapids", {INTEL, 6, 0x8f, WIDE_BF16 | CLIENT}, SET_AVX512_VNNI},
    {"Xeon Phi 7250, Knights Landing", {INTEL, 6, 0x57, CAN_AVX2}, SET_AVX2_FMA},
    {"an Intel to come", {INTEL, 19, 1, WIDE_BF16 | CLIENT}, SET_AVX512_VNNI},
    {"A10-8700P, Excavator", {AMD, 0x15, 0x60, CAN_AVX2}, SET_AVX2_FMA},
    {"EPYC 7601, Zen 1", {AMD, 0x17, 0x01, CAN_AVX2}, SET_AVX2_FMA},
    {"Ryzen 7 2700X, Zen+", {AMD, 0x17, 0x08, CAN_AVX2}, SET_AVX2_FMA},
    {"EPYC 7742, Zen 2", {AMD, 0x17, 0x31, CAN_AVX2}, SET_AVX2_FMA},
    {"Ryzen 9 3900X, Zen 2", {AMD, 0x17, 0x71, CAN_AVX2}, SET_AVX2_FMA},
    {"EPYC 7763, Zen 3", {AMD, 0x19, 0x01, CAN_AVX2}, SET_AVX2},
    {"Ryzen 9 5900X, Zen 3", {AMD, 0x19, 0x21, CAN_AVX2}, SET_AVX2},
    {"EPYC 9654, Zen 4", {AMD, 0x19, 0x11, WIDE_BF16}, SET_AVX512_BF16},
    {"the same, without bf16", {AMD, 0x19, 0x11, WIDE_VNNI}, SET_AVX512_VNNI},
    {"the same, without AVX-512", {AMD, 0x19, 0x11, CAN_AVX2}, SET_AVX2},
    {"EPYC 9755, Zen 5", {AMD, 0x1a, 0x02, WIDE_BF16 | CLIENT}, SET_AVX512_BF16},
    {"the same, without AVX-512", {AMD, 0x1a, 0x02, CLIENT}, SET_AVX2_VNNI},
    {"C86 7185, Dhyana", {HYGON, 0x18, 0x01, CAN_AVX2}, SET_AVX2_FMA},
    {"C86-4G-M4", {HYGON, 0x18, 0x04, CAN_AVX2}, SET_AVX2_FMA},
    {"C86-4G-M6", {HYGON, 0x18, 0x06, CAN_AVX2}, SET_AVX2_FMA},
    {"C86-4G-M7", {HYGON, 0x18, 0x07, WIDE_BF16}, SET_AVX512_VNNI},
    {"the same, without AVX-512", {HYGON, 0x18, 0x07, CAN_AVX2}, SET_AVX2},
    {"KX-7000", {ZHAOXIN, 7, 0x5b, CAN_AVX2}, SET_AVX2_FMA},
    {"CNS, of Broadwell's numbers", {CENTAUR, 6, 0x47, WIDE}, SET_AVX512},
    {"an unknown vendor", {"TheNewVendor", 6, 0x9e, CAN_AVX2}, SET_AVX2_FMA},
    {"the same, with VNNI", {"TheNewVendor", 6, 0x9e, CLIENT}, SET_AVX2_VNNI},
    {"the same, with bf16", {"TheNewVendor", 6, 0x9e, WIDE_BF16}, SET_AVX512_VNNI},
};

static void each_processor_takes_the_products_it_is_fast_at(void **state)
{
    for (size_t i = 0; i < sizeof processors / sizeof *processors; i++) {
        enum cpu_isa takes = cpu_isa_of(&processors[i].is);
        if (takes != processors[i].takes)
            fail_msg("%s: %s, not %s", processors[i].what, cpu_isa_names[takes],
                     cpu_isa_names[processors[i].takes]);
    }
}

/* Of a vendor that the compiler's own check does not know, too. */
static void what_the_system_lists_is_used(void **state)
{
#if defined(__x86_64__)
    static const struct {
        const char *flag;
        unsigned can;
    } flags[] = {{" avx2 ", CAN_AVX2},
                 {" avx512bw ", CAN_AVX512},
                 {" avx512_vnni ", CAN_AVX512_VNNI},
                 {" sse4_2 ", CAN_CRC32C},
                 {" pclmulqdq ", CAN_CARRYLESS}};
    char line[8192] = "";
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f) && strncmp(line, "flags", 5) != 0) line[0] = 0;
    if (f) fclose(f);
    if (!line[0]) skip();
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        assert_int_equal(cpu_can(flags[i].can), strstr(line, flags[i].flag) != NULL);
#endif
}

static unsigned asked;
static bool says_no;

bool __real_cpu_can(unsigned what);
bool __wrap_cpu_can(unsigned what);
bool __wrap_cpu_can(unsigned what)
{
    asked |= what;
    return !says_no && __real_cpu_can(what);
}

/* Each by what the processor can do, to the bits of its plain form. */
static void checksums_and_conversions_are_by_what_it_can(void **state)
{
#if defined(__x86_64__)
    enum { BYTES = 5 * 4096, COUNT = BYTES / 2 };
    static uint8_t data[BYTES];
    static float wide[2][2][COUNT];
    static uint16_t narrow[2][2][COUNT];
    uint32_t c[2], zip[2], x = 1;
    for (size_t i = 0; i < BYTES; i++) data[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (size_t i = 1; i < BYTES; i += 2) data[i] &= 0xbb; /* finite of either format */
    for (int plain = 0; plain < 2; plain++) {
        says_no = plain;
        asked = 0;
        c[plain] = crc32c(0, data, BYTES - 1);
        assert_int_equal(asked, CAN_CRC32C);
        asked = 0;
        zip[plain] = crc32_zip(0, data, BYTES - 1);
        assert_int_equal(asked, CAN_CARRYLESS);
        for (int half = 0; half < 2; half++) {
            enum dtype type = half ? DTYPE_F16 : DTYPE_BF16;
            asked = 0;
            weights_convert(wide[plain][half], DTYPE_F32, data, type, COUNT);
            assert_int_equal(asked, CAN_AVX2);
            asked = 0;
            weights_convert(narrow[plain][half], half ? DTYPE_BF16 : DTYPE_F16, wide[plain][half], DTYPE_F32,
                            COUNT);
            assert_int_equal(asked, CAN_AVX2);
        }
    }
    says_no = false;
    assert_int_equal(c[0], c[1]);
    assert_int_equal(zip[0], zip[1]);
    assert_memory_equal(wide[0], wide[1], sizeof wide[0]);
    assert_memory_equal(narrow[0], narrow[1], sizeof narrow[0]);
#endif
}

static void a_set_that_runs_is_had(void **state)
{
    struct cpu_refusal refusal;
    unsetenv("MEOPT_CPU_ISA");
    const char *own = cpu_ops_select()->isa;
    assert_false(cpu_isa_refused(true, &refusal));
    setenv("MEOPT_CPU_ISA", "", 1); /* as unset */
    assert_string_equal(cpu_ops_select()->isa, own);
    assert_false(cpu_isa_refused(true, &refusal));
    bool own_runs = false;
    for (enum cpu_isa set = 0; set < CPU_SETS; set++) {
        setenv("MEOPT_CPU_ISA", cpu_isa_names[set], 1);
        bool runs = cpu_isa_runs(set);
        assert_string_equal(cpu_ops_select()->isa, runs ? cpu_isa_names[set] : own);
        assert_int_equal(cpu_isa_refused(true, &refusal), !runs);
        own_runs |= runs && strcmp(own, cpu_isa_names[set]) == 0;
    }
    assert_true(own_runs);
    assert_true(cpu_isa_runs(SET_PLAIN));
    unsetenv("MEOPT_CPU_ISA");
}

/* What tests/unit/isas.h relies on: a set with GEMMs of its own has the other operations of another set. */
static void sets_share_what_is_not_a_product(void **state)
{
#if defined(__x86_64__)
    static const struct {
        enum cpu_isa set, rest;
        bool attention;
    } rows[] = {{SET_AVX2_FMA, SET_AVX2, false},
                {SET_AVX2_VNNI, SET_AVX2, false},
                {SET_AVX512_VNNI, SET_AVX512, false},
                {SET_AVX512_BF16, SET_AVX512, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!cpu_isa_runs(rows[i].set)) continue;
        struct cpu_ops own, rest;
        setenv("MEOPT_CPU_ISA", cpu_isa_names[rows[i].set], 1);
        memcpy(&own, cpu_ops_select(), sizeof own);
        setenv("MEOPT_CPU_ISA", cpu_isa_names[rows[i].rest], 1);
        memcpy(&rest, cpu_ops_select(), sizeof rest);
        assert_ptr_not_equal(own.gemm, rest.gemm);
        assert_int_equal(own.attention_forward != rest.attention_forward, rows[i].attention);
        assert_int_equal(own.attention_backward != rest.attention_backward, rows[i].attention);
#define EQUAL(name, ...) assert_ptr_equal(own.name, rest.name);
#define NOTHING(...)
        OPERATION_ROWS(EQUAL, EQUAL, NOTHING)
    }
    unsetenv("MEOPT_CPU_ISA");
#endif
}

static void a_set_that_the_compiler_lacked_is_named(void **state)
{
    const struct {
        struct processor is;
        const char *lacked;
    } rows[] = {
        {{"GenuineIntel", 6, 0x55, CAN_AVX2 | CAN_AVX512}, NULL},
        {{"GenuineIntel", 6, 0x97, CAN_AVX2 | CAN_AVX_VNNI}, MEOPT_HAS_AVX2_VNNI ? NULL : "avx2_vnni"},
        {{"GenuineIntel", 6, 0x6a, CAN_AVX2 | CAN_AVX512 | CAN_AVX512_VNNI},
         MEOPT_HAS_AVX512_VNNI ? NULL : "avx512_vnni"},
        {{"AuthenticAMD", 0x19, 0x11, CAN_AVX2 | CAN_AVX512 | CAN_AVX512_BF16},
         MEOPT_HAS_AVX512_BF16 ? NULL : "avx512_bf16"},
        {{"GenuineIntel", 6, 0x8f, CAN_AVX2 | CAN_AVX512 | CAN_AVX512_BF16 | CAN_AMX},
         MEOPT_HAS_AMX ? NULL : "amx"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *lacked = cpu_isa_not_built(&rows[i].is);
        if (rows[i].lacked) assert_string_equal(lacked, rows[i].lacked);
        else assert_null(lacked);
    }
}

static void a_set_that_is_not_to_be_had_is_refused(void **state)
{
    struct cpu_refusal refusal;
    char own[64];
    struct error err;
    struct device *device;
    snprintf(own, sizeof own, "%s|plain", cpu_ops_select()->isa);
    setenv("MEOPT_CPU_ISA", "avx9", 1);
    static const char *const specs[] = {"cpu", "dry", "auto", "hip:0"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        assert_int_equal(device_open(&device, specs[i], 0, &err), EXIT_USAGE);
        assert_null(device);
        assert_non_null(strstr(err.what, "MEOPT_CPU_ISA=avx9"));
        assert_true(mentions(err.hint, own));
    }
    struct meopt *opt;
    struct meopt_options o;
    struct meopt_error e;
    assert_int_equal(meopt_options_init(&o, sizeof o, MEOPT_APADAMW), MEOPT_OK);
    assert_int_equal(meopt_create(&opt, &o, NULL, 0, &e), MEOPT_BAD_ARGUMENT);
    assert_null(opt);
    assert_true(mentions(e.message, "MEOPT_CPU_ISA=avx9|plain"));
    setenv("MEOPT_CPU_ISA", "amx", 1);
    assert_true(cpu_isa_refused(false, &refusal));
    assert_false(cpu_isa_refused(true, &refusal));
    assert_int_equal(device_open(&device, "cpu", 0, &err), gemm_amx_available() ? 0 : EXIT_USAGE);
    device_close(device);
    unsetenv("MEOPT_CPU_ISA");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_processor_takes_the_products_it_is_fast_at),
        cmocka_unit_test(what_the_system_lists_is_used),
        cmocka_unit_test(checksums_and_conversions_are_by_what_it_can),
        cmocka_unit_test(a_set_that_runs_is_had),
        cmocka_unit_test(sets_share_what_is_not_a_product),
        cmocka_unit_test(a_set_that_the_compiler_lacked_is_named),
        cmocka_unit_test(a_set_that_is_not_to_be_had_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
