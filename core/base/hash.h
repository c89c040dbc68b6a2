/* FNV-1a (Fowler, Noll, Vo), for small tables and for keys that must not depend on a position in a table. */
#ifndef MEOPT_BASE_HASH_H
#define MEOPT_BASE_HASH_H

#include <stdint.h>

static inline uint32_t fnv1a(const char *text)
{
    uint32_t hash = 2166136261u;
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 16777619u;
    return hash;
}
static inline uint64_t fnv1a_64(const char *text)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 0x100000001B3u;
    return hash;
}

#endif
