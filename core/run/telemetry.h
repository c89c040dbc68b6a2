/* cards.jsonl: readings of the node's cards while a run trains. It has one line every few seconds and stays
 * with the run:
 *
 *     {"time": 1700000000.0, "step": 12, "cards": [
 *         {"rank": 0, "name": "K100 AI", "pci": "0000:04:00.0", "mem_used_bytes": 5e9, "mem_total_bytes":
 *         64e9,
 *          "process_bytes": 4e9, "busy_percent": 97, "temp_c": 61, "power_w": 310, "clock_mhz": 1400,
 *          "ecc_uncorrected": 0, "throttle": ["heat"]}, ...]}
 *
 * "rank" is null for a card of the node that the run does not use. Unknown readings are left out. live.json
 * contains the same objects.
 */
#ifndef MEOPT_RUN_TELEMETRY_H
#define MEOPT_RUN_TELEMETRY_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct telemetry_card {
    int rank; /* -1: not used by the run */
    char name[96], pci[32];
    double used_bytes, total_bytes, process_bytes, busy_percent, temp_c, power_w; /* NAN: unknown */
};

/* Reads one of the objects above; control characters in its strings are replaced. */
void telemetry_card(struct telemetry_card *card, const json_t *object);

/* Sums over all lines, for the run's own cards: mean busy percentage per card, mean total power, total
 * energy, highest temperature of one card. NAN: unknown. Pauses (60 s and more between two lines) are not
 * counted. */
struct telemetry_sum {
    double busy_percent, power_w, energy_wh, temp_c;
};
void telemetry_sum(struct telemetry_sum *sum, const char *directory);

#endif
