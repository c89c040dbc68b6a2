/* Published peaks of cards by the names that drivers report. */
#include "core/device/card_peak.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct {
    const char *name;
    int units;
    double teraflops; /* 0: unknown */
} cards[] = {{"NVIDIA H100 80GB HBM3", 132, 989.5},
             {"NVIDIA H100 PCIe", 114, 756.5},
             {"NVIDIA H100 NVL", 132, 835.5},
             {"NVIDIA H200", 132, 989.5},
             {"NVIDIA A100-SXM4-80GB", 108, 312},
             {"NVIDIA A100-PCIE-40GB", 108, 312},
             {"NVIDIA RTX A6000", 84, 154.8},
             {"NVIDIA GeForce RTX 4090", 128, 165.2},
             {"NVIDIA GeForce RTX 3090", 82, 71},
             {"Tesla V100-SXM2-32GB", 80, 125},
             {"Tesla V100-PCIE-16GB", 80, 112},
             {"Tesla V100S-PCIE-32GB", 80, 130},
             {"NVIDIA L40S", 142, 362.05},
             {"AMD Instinct MI210", 104, 181},
             {"AMD Instinct MI250X", 110, 191.5},
             {"AMD Instinct MI250X / MI250", 110, 191.5},
             {"AMD Instinct MI250X / MI250", 104, 181.05},
             {"AMD Instinct MI300X", 304, 1307.4},
             {"K100_AI", 120, 196},
             {"K100", 120, 100},
             /* cards without a figure, and parts of cards */
             {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 0},
             {"NVIDIA A100-SXM-64GB", 124, 0},
             {"NVIDIA GeForce RTX 4090 Laptop GPU", 76, 0},
             {"NVIDIA GeForce RTX 3090 Ti", 84, 0},
             {"NVIDIA GH200 480GB", 132, 0},
             {"AMD Instinct MI300X", 38, 0},
             {"WK100", 120, 0},
             {"AMD EPYC 9B45", 120, 0},
             {"", 0, 0}};

static void peaks_of_names(void **state)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (card_peak_flops(cards[i].name, cards[i].units) != cards[i].teraflops * 1e12)
            fail_msg("%s, %d units: %g", cards[i].name, cards[i].units,
                     card_peak_flops(cards[i].name, cards[i].units));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(peaks_of_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
