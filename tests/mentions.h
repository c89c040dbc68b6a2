/* Checks of messages by what they name: the object, keys, values found and expected; not by their wording. */
#ifndef MEOPT_TESTS_MENTIONS_H
#define MEOPT_TESTS_MENTIONS_H

#include <stdbool.h>
#include <string.h>

/* Returns whether the text contains these parts, separated by '|', in this order. */
static inline bool mentions(const char *text, const char *parts)
{
    for (;;) {
        size_t n = strcspn(parts, "|");
        while (*text && strncmp(text, parts, n) != 0) text++;
        if (strncmp(text, parts, n) != 0) return false;
        if (!parts[n]) return true;
        text += n, parts += n + 1;
    }
}

#endif
