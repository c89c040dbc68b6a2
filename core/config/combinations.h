/* Combinations of keys that do not go together, one row each: a condition, the key to point at, a hint and a
 * sentence. combinations.c has the rows that need the configuration alone, core/experiment/combinations.c
 * those that need model shapes or the number of ranks. 'meopt config list --combinations' lists both. */
#ifndef MEOPT_CONFIG_COMBINATIONS_H
#define MEOPT_CONFIG_COMBINATIONS_H

#include "core/config/config.h"

/* Called with the key to point at; fatal or a note. */
typedef void (*combination_bad)(void *context, const char *key, bool fatal, const char *hint,
                                const char *sentence);

/* A walk over rows: `bad` is called for each whose condition holds. */
struct combinations {
    const struct config *config;
    combination_bad bad;
    void *context;
    bool list; /* for every row, with "..." in place of the sentence's values */
};

/* A row: REFUSE(walk, condition, key, hint, sentence, value...), NOTE for one that changes nothing. The
 * values are read in a list, too. */
#define REFUSE(walk, ...)         COMBINATION(walk, true, __VA_ARGS__)
#define NOTE(walk, ...)           COMBINATION(walk, false, __VA_ARGS__)
#define COMBINATION(w, f, c, ...) ((w)->list || (c) ? combination(w, f, __VA_ARGS__) : (void)0)
void combination(const struct combinations *walk, bool fatal, const char *key, const char *hint,
                 const char *sentence, ...) __attribute__((format(printf, 5, 6)));

/* Walks the rows that need the configuration alone. */
void config_combinations(const struct combinations *walk);

#endif
