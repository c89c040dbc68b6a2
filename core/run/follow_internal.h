/* Private to the reader of a run: shared by follow.c (steps, events) and follow_cards.c (cards). */
#ifndef MEOPT_RUN_FOLLOW_INTERNAL_H
#define MEOPT_RUN_FOLLOW_INTERNAL_H

#include "core/base/json.h"
#include "core/run/follow.h"

enum { CARDS_LINE_BYTES = 64 << 10 }; /* of cards.jsonl, at most: the cards of one node */

enum { FOLLOW_FILE_BYTES = 4 << 20 }; /* of a JSON file of the run, at most */

/* Adds a line of events.jsonl, or of worker.log. */
void follow_take_event(struct follow *f, const char *text, size_t bytes);
void follow_take_log(struct follow *f, const char *text, size_t bytes);

/* ---- follow_cards.c ---- */

/* Stores the monitor's readings of the node's cards, with their age. The run's cards are identified by
 * rank. */
void follow_take_readings(struct follow *f, const json_t *cards, double age);

/* Stores the trainer's memory accounting of each rank: "cards" and "cards_summary" in the text of a line. */
void follow_take_cards(struct follow *f, const struct metric_line *line, const char *text);
void follow_take_live(struct follow *f);
/* Reads lines added to cards.jsonl; in a replay, those up to its step. */
void follow_take_telemetry(struct follow *f);

#endif
