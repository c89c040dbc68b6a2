/* Published peaks of cards: see card_peak.h. */
#include "core/device/card_peak.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The words of a name, and the device's compute units (multiprocessors), which differ in laptops' cards, in
 * cards of a similar name, and in a part of a card (MIG). Dense rates: data sheets that list sparse ones have
 * twice as much. The first matching row counts. */
static const struct {
    const char *words;
    int units;
    double teraflops;
} cards[] = {
    /* NVIDIA H100 data sheet (resources.nvidia.com): PCIe 1513, NVL 1671, SXM 1979 with sparsity */
    {"h100 pcie", 114, 756.5},
    {"h100 nvl", 132, 835.5},
    {"h100 hbm3", 132, 989.5},
    /* NVIDIA H200 data sheet: NVL 1671, SXM 1979 with sparsity */
    {"h200 nvl", 132, 835.5},
    {"h200", 132, 989.5},
    {"a100", 108, 312}, /* NVIDIA A100 data sheet, PCIe and SXM */
    /* NVIDIA Ampere GA102 and Ada whitepapers: bf16 with fp32 accumulation */
    {"rtx a6000", 84, 154.8},
    {"rtx 3090", 82, 71},
    {"rtx 4090", 128, 165.2},
    /* NVIDIA V100 data sheets, fp16 tensor cores: no bf16 */
    {"v100s pcie", 80, 130},
    {"v100 pcie", 80, 112},
    {"v100 sxm2", 80, 125},
    /* AMD's product pages, peak bfloat16: MI250 362.1 and MI250X 383.0 of two dies, each a device */
    {"mi210", 104, 181},
    {"mi250x", 110, 191.5},
    {"mi250", 104, 181.05},
    {"mi300x", 304, 1307.4},
    /* Hygon's figures as listed by github.com/wangzy0327/hblas-bench, DCU-bench.md; the K100's are fp16 */
    {"k100 ai", 120, 196},
    {"k100", 120, 100},
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

double card_peak_flops(const char *name, int units)
{
    for (size_t i = 0; i < sizeof cards / sizeof *cards; i++)
        if (cards[i].units == units && has_words(name, cards[i].words)) return cards[i].teraflops * 1e12;
    return 0;
}
