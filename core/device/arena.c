/* Chunks and their spans: see arena.h. */
#include "core/device/arena.h"
#include "core/device/driver.h"

#include <stdlib.h>

enum { CHUNK_BYTES = 16 << 20, SMALL_BYTES = 4 << 20 };
/* Under AddressSanitizer every block is a driver allocation, so that accesses of emulated kernels outside
 * their block are found. */
#if defined(__SANITIZE_ADDRESS__)
static const bool shared_chunks = false;
#else
static const bool shared_chunks = true;
#endif

struct span {
    size_t at, bytes;
    bool used;
    struct span *next;
};
struct chunk {
    char *base;
    size_t bytes;
    struct span *spans; /* by address, covering the chunk; no two neighbours are free */
    struct chunk *next;
};

static void *span_take(struct chunk *chunk, size_t bytes)
{
    for (struct span *s = chunk->spans; s; s = s->next) {
        if (s->used || s->bytes < bytes) continue;
        if (s->bytes > bytes) {
            struct span *rest = malloc(sizeof *rest);
            if (!rest) return NULL;
            *rest = (struct span){s->at + bytes, s->bytes - bytes, false, s->next};
            s->next = rest;
            s->bytes = bytes;
        }
        s->used = true;
        return chunk->base + s->at;
    }
    return NULL;
}

int arena_take(struct arena *a, enum memory_class class, size_t bytes, void **p)
{
    size_t rounded = (bytes + 255) & ~(size_t)255;
    bool small = shared_chunks && rounded < SMALL_BYTES;
    for (struct chunk *c = a->chunks[class]; small && c; c = c->next)
        if (c->bytes == CHUNK_BYTES && (*p = span_take(c, rounded)) != NULL) return 0;
    void *base;
    struct chunk *chunk = malloc(sizeof *chunk);
    struct span *span = malloc(sizeof *span);
    size_t chunk_bytes = small ? CHUNK_BYTES : rounded;
    int code = chunk && span ? a->take(a->context, chunk_bytes, &base) : DRIVER_OUT_OF_MEMORY;
    if (code && small && chunk && span)
        code = a->take(a->context, chunk_bytes = rounded, &base); /* the last megabytes of the card */
    if (code) {
        free(chunk);
        free(span);
        return code;
    }
    a->driver_bytes += chunk_bytes;
    *span = (struct span){0, chunk_bytes, false, NULL};
    *chunk = (struct chunk){base, chunk_bytes, span, a->chunks[class]};
    a->chunks[class] = chunk;
    *p = span_take(chunk, rounded);
    return *p ? 0 : DRIVER_OUT_OF_MEMORY; /* the next allocation reuses an empty chunk */
}

static void chunk_close(struct arena *a, struct chunk **link)
{
    struct chunk *c = *link;
    *link = c->next;
    a->give(a->context, c->base);
    a->driver_bytes -= c->bytes;
    while (c->spans) {
        struct span *s = c->spans;
        c->spans = s->next;
        free(s);
    }
    free(c);
}

static void span_join(struct span *s)
{
    struct span *next = s->next;
    if (!next || s->used || next->used) return;
    s->bytes += next->bytes;
    s->next = next->next;
    free(next);
}

void arena_give(struct arena *a, void *p)
{
    for (int class = 0; class < MEMORY_CLASS_COUNT; class ++)
        for (struct chunk **link = &a->chunks[class]; *link; link = &(*link)->next) {
            struct chunk *c = *link;
            if ((char *)p < c->base || (char *)p >= c->base + c->bytes) continue;
            struct span *before = NULL, *s = c->spans;
            while (c->base + s->at != p) before = s, s = s->next;
            s->used = false;
            span_join(s);
            if (before) span_join(before);
            if (!c->spans->next && !c->spans->used) chunk_close(a, link);
            return;
        }
}

void arena_close(struct arena *a)
{
    for (int class = 0; class < MEMORY_CLASS_COUNT; class ++)
        while (a->chunks[class]) chunk_close(a, &a->chunks[class]);
}
