/* cards.jsonl: what the node's cards did while a run trained, a line every few seconds, kept with the run.
 *
 *     {"time":1700000000.0,"step":12,"cards":[{"rank":0,"name":"K100
 * AI","pci":"0000:04:00.0","mem_used_bytes":5e9,
 *       "mem_total_bytes":64e9,"process_bytes":4e9,"busy_percent":97,"temp_c":61,"power_w":310}, ...]}
 *
 * rank null: a card of the node that is not the run's. A reading that is not known is left out. The same
 * objects stand in live.json.
 */
#ifndef MEOPT_RUN_TELEMETRY_H
#define MEOPT_RUN_TELEMETRY_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

enum { TELEMETRY_CARDS = 64 };

struct telemetry_card {
    int rank; /* -1: not of the run */
    char name[96], pci[32];
    double used_bytes, total_bytes, process_bytes, busy_percent, temp_c, power_w; /* NAN: not known */
};

/* One of the objects above; text from outside comes out fit to be shown. */
void telemetry_card(struct telemetry_card *card, const json_t *object);

/* Of the run's own cards, over all of its lines: mean share of the time that a card was busy, mean power of
 * all of them together, their energy, the highest temperature of one. NAN: never told. Pauses (60 s and more
 * between two lines) count for nothing. */
struct telemetry_sum {
    double busy_percent, power_w, energy_wh, temp_c;
};
void telemetry_sum(struct telemetry_sum *sum, const char *directory);

#endif
