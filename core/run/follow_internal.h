/* Inside the reader of a run: what follow.c (steps, events, the whole) and follow_cards.c (the cards) share.
 */
#ifndef MEOPT_RUN_FOLLOW_INTERNAL_H
#define MEOPT_RUN_FOLLOW_INTERNAL_H

#include "core/run/follow.h"

enum { CARDS_LINE_BYTES = 64 << 10 }; /* of cards.jsonl, at most: the cards of one node */

#include <jansson.h>

double follow_number(const json_t *object, const char *key); /* NAN without */
int64_t follow_whole(const json_t *object, const char *key); /* -1 without */
void follow_text(char *dst, size_t size, const json_t *object, const char *key);
/* A JSON file of the run; NULL when there is none. */
json_t *follow_load(const struct follow *f, const char *name);

/* A line of events.jsonl, of worker.log. */
void follow_take_event(struct follow *f, const char *text, size_t bytes);
void follow_take_log(struct follow *f, const char *text, size_t bytes);

/* ---- follow_cards.c ---- */

/* What the monitor said of the node's cards, as old as that. Those of the run are known by rank. */
void follow_take_readings(struct follow *f, const json_t *cards, double age);

/* What the trainer says of each rank's memory: the text of "cards" in a metric line. */
void follow_take_cards(struct follow *f, const char *text, size_t bytes);
void follow_take_live(struct follow *f);
/* What was added to cards.jsonl; of a replay, what belongs to its steps. */
void follow_take_telemetry(struct follow *f);

#endif
