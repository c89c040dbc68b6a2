/* Lines of a run's metrics.jsonl. */
#ifndef MEOPT_TRAIN_METRICS_H
#define MEOPT_TRAIN_METRICS_H

#include "core/train/loop.h"

#include <jansson.h>

/* What a rank reports about its card. */
struct card_report {
    struct memory_use use;
    char name[128];
    double images_per_s; /* of its own images */
    struct comm_layout layout;
    double bubble; /* share of the steps since the last gathering in which it waited for other stages */
};

/* Returns {"cards"}, one object per rank, and with a pipeline {"bubble"}, the mean. With more than
 * RANKS_LISTED ranks (core/run/many_ranks.h) it lists some of them, and "cards_summary" has the range of each
 * measure over all. */
json_t *metrics_cards_json(const struct card_report *reports, int size);

/* Gathers the memory of each rank's card and its images per second (collective call) as fields of a line:
 * "cards", and with many ranks "cards_summary". Sets p->peak and p->peak_rank. *cards: NULL on an error. */
int metrics_cards(struct trainer *trainer, struct train_progress *p, json_t **cards, struct error *err);

/* Appends the line of a step. Takes ownership of cards; NULL: none in this line. */
int metrics_write(struct run *run, const struct train_progress *p, json_t *cards, struct error *err);

#endif
