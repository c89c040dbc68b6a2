/* Lines of a run's metrics.jsonl. */
#ifndef MEOPT_TRAIN_METRICS_H
#define MEOPT_TRAIN_METRICS_H

#include "core/train/loop.h"

#include <jansson.h>

/* An array with an object per rank: memory of its card, images per second. Sets p->peak. All ranks make this
 * call together. *cards: NULL on an error. */
int metrics_cards(struct trainer *trainer, struct train_progress *p, json_t **cards, struct error *err);

/* Appends the line of a step. cards: taken over; NULL: none in this line. */
int metrics_write(struct run *run, const struct train_progress *p, json_t *cards, struct error *err);

#endif
