/* Published peaks of cards: see card_peak.h. */
#include "core/device/card_peak.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The words of a name, and the device's compute units (multiprocessors), which differ in laptops' cards, in
 * cards of a similar name, and in a part of a card (MIG). Dense rates: data sheets that list sparse ones have
 * twice as much. fp32 is the rate of GEMMs: of AMD's matrix instructions, of NVIDIA's cores (not TF32). The
 * first matching row counts. 0: not published. */
static const struct {
    const char *words;
    int units;
    double teraflops, teraflops_f32, gb_per_s;
} cards[] = {
    /* NVIDIA H100 data sheet (resources.nvidia.com): PCIe 1513, NVL 1671, SXM 1979 with sparsity */
    {"h100 pcie", 114, 756.5, 51, 2000},
    {"h100 nvl", 132, 835.5, 60, 3900},
    {"h100 hbm3", 132, 989.5, 67, 3350},
    /* NVIDIA H200 data sheet: NVL 1671, SXM 1979 with sparsity */
    {"h200 nvl", 132, 835.5, 60, 4800},
    {"h200", 132, 989.5, 67, 4800},
    /* NVIDIA A100 data sheets, PCIe and SXM, 40 and 80 GB */
    {"a100 sxm4 80gb", 108, 312, 19.5, 2039},
    {"a100 pcie 80gb", 108, 312, 19.5, 1935},
    {"a100", 108, 312, 19.5, 1555},
    /* NVIDIA Ampere GA102 and Ada whitepapers: bf16 with fp32 accumulation; L40S data sheet */
    {"rtx a6000", 84, 154.8, 38.7, 768},
    {"rtx 3090", 82, 71, 35.6, 936},
    {"rtx 4090", 128, 165.2, 82.6, 1008},
    {"l40s", 142, 362.05, 91.6, 864},
    /* NVIDIA V100 data sheets, fp16 tensor cores: no bf16 */
    {"v100s pcie", 80, 130, 16.4, 1134},
    {"v100 pcie", 80, 112, 14, 900},
    {"v100 sxm2", 80, 125, 15.7, 900},
    /* AMD's product pages, peak bfloat16, fp32 matrix and memory bandwidth: MI250 and MI250X have two dies,
     * each a device with half of 362.1 and 383.0 TFLOP/s and of 3276.8 GB/s */
    {"mi210", 104, 181, 45.3, 1638.4},
    {"mi250x", 110, 191.5, 47.85, 1638.4},
    {"mi250", 104, 181.05, 45.25, 1638.4},
    {"mi300x", 304, 1307.4, 163.4, 5300},
    /* Hygon's figures as listed by github.com/wangzy0327/hblas-bench, DCU-bench.md; the K100's are fp16 */
    {"k100 ai", 120, 196, 49, 896},
    {"k100", 120, 100, 24.5, 0},
};

/* Whether the name has the word of n bytes: letters and digits, of any case. */
static bool has_word(const char *name, const char *word, size_t n)
{
    for (const char *p = name; *p;) {
        size_t length = 0;
        while (isalnum((unsigned char)p[length])) length++;
        bool same = length == n;
        for (size_t i = 0; same && i < n; i++) same = tolower((unsigned char)p[i]) == word[i];
        if (same) return true;
        p += length ? length : 1;
    }
    return false;
}

static bool has_words(const char *name, const char *words)
{
    for (size_t n; *words; words += n + strspn(words + n, " ")) {
        n = strcspn(words, " ");
        if (!has_word(name, words, n)) return false;
    }
    return true;
}

struct card_peaks card_peaks(const char *name, int units)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (cards[i].units == units && has_words(name, cards[i].words))
            return (struct card_peaks){cards[i].teraflops * 1e12, cards[i].teraflops_f32 * 1e12,
                                       cards[i].gb_per_s * 1e9};
    return (struct card_peaks){0};
}

double card_peak_flops(const char *name, int units) { return card_peaks(name, units).flops; }
