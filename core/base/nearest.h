/* Suggestions for an unknown name. */
#ifndef MEOPT_BASE_NEAREST_H
#define MEOPT_BASE_NEAREST_H

/* Returns the nearest name within a third of the word's length, the first of equals; NULL: none. `next`
 * returns the i-th name, valid until its next call, and NULL after the last. */
const char *nearest_name(const char *word, const char *(*next)(const void *table, int i), const void *table);

#endif
