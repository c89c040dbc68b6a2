/* Which name was meant by one that nobody knows. */
#ifndef MEOPT_BASE_NEAREST_H
#define MEOPT_BASE_NEAREST_H

/* Slips between two names, whatever their case: a letter too many, too few or wrong, or two neighbours
 * swapped (optimal string alignment). 99 where one is longer than 60 bytes. */
int name_distance(const char *a, const char *b);

/* The nearest name within a third of the word's length, the first of equals; NULL: none is. `next` gives the
 * i-th name, valid until its next call, NULL behind the last. */
const char *nearest_name(const char *word, const char *(*next)(const void *table, int i), const void *table);

#endif
