/* Lines of a run's metrics.jsonl. */
#ifndef MEOPT_TRAIN_METRICS_H
#define MEOPT_TRAIN_METRICS_H

#include "core/train/loop.h"

#include <jansson.h>

/* Gathers one JSON object per rank: memory of its card, images per second (collective call). Sets p->peak and
 * p->peak_rank. *cards: NULL on an error. */
int metrics_cards(struct trainer *trainer, struct train_progress *p, json_t **cards, struct error *err);

/* Appends the line of a step. Takes ownership of cards; NULL: none in this line. */
int metrics_write(struct run *run, const struct train_progress *p, json_t *cards, struct error *err);

#endif
