/* What the samples of a run are, and the words for them: images, or sequences of tokens. A run of tokens has
 * "tokens" in meta.json and "tokens_per_s" in its metrics, all others count images. */
#ifndef MEOPT_RUN_UNITS_H
#define MEOPT_RUN_UNITS_H

#include <stdbool.h>

struct unit {
    const char *counted;    /* what throughput counts: "images", "tokens" */
    const char *samples;    /* what a batch counts: "images", "samples" */
    const char *rate;       /* "images/s", "tokens/s" */
    const char *short_rate; /* "img/s", "tok/s" */
};

const struct unit *unit_of(bool tokens);

#endif
