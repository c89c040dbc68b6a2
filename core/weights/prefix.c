/* Prefixes of a tower's names in files that wrappers wrote: see weights_find_suffix in weights.h. */
#include "core/weights/weights_internal.h"

#include <stdio.h>
#include <string.h>

/* Words from DistributedDataParallel, torch.compile, FSDP, Fabric, PEFT, Lightning and most training scripts;
 * DINOv2, MAE, MoCo, Depth Anything and others; models with a tower among other parts; averages. If two fit,
 * the earlier one is preferred. */
static const char *const words[] = {"module.",
                                    "_orig_mod.",
                                    "_fsdp_wrapped_module.",
                                    "_forward_module.",
                                    "base_model.",
                                    "model.",
                                    "net.",
                                    "network.",
                                    "backbone.",
                                    "encoder.",
                                    "base_encoder.",
                                    "pretrained.",
                                    "clip.",
                                    "clip_model.",
                                    "vision_tower.",
                                    "image_encoder.",
                                    "vision_encoder.",
                                    "visual_encoder.",
                                    "teacher.",
                                    "student.",
                                    "momentum_encoder.",
                                    "ema_model.",
                                    "ema."};
enum { WORD_COUNT = sizeof words / sizeof *words, MAX_WORDS = 6 };

/* Number of the word at the start of a prefix in the table, from 1; WORD_COUNT + 1: an unknown word with a
 * dot after it. */
static int word_at(const char *prefix, size_t bytes, size_t *word_bytes)
{
    for (int i = 0; i < WORD_COUNT; i++) {
        *word_bytes = strlen(words[i]);
        if (*word_bytes <= bytes && memcmp(prefix, words[i], *word_bytes) == 0) return i + 1;
    }
    const char *dot = memchr(prefix, '.', bytes);
    *word_bytes = dot ? (size_t)(dot - prefix) + 1 : bytes;
    return dot ? WORD_COUNT + 1 : 0;
}

/* Rank of a prefix: fewer words first, then the table's order, unknown words last; -1: contains other
 * words. */
static int64_t rank_of(const char *prefix, size_t bytes, bool any)
{
    int64_t rank = 0, others = 0;
    for (size_t at = 0, word_bytes; at < bytes; at += word_bytes) {
        int word = word_at(prefix + at, bytes - at, &word_bytes);
        if (word == 0 || (word > WORD_COUNT && !any) || rank >= 1 << (5 * (MAX_WORDS - 1))) return -1;
        rank = rank * 32 + word;
        others += word > WORD_COUNT;
    }
    return rank + (others << 40);
}

/* Finds the best prefix of `name`, and the second best in `other`. */
static int64_t find_prefix(const struct weights *w, const char *name, bool any, char *best, char *other,
                           size_t size)
{
    int64_t found = -1, best_rank = -1, other_rank = -1;
    size_t name_bytes = strlen(name);
    best[0] = other[0] = 0;
    for (int64_t i = 0; i < w->count; i++) {
        const char *full = w->rows[i].tensor.name;
        size_t bytes = strlen(full);
        if (bytes < name_bytes || bytes - name_bytes >= size || strcmp(full + bytes - name_bytes, name) != 0)
            continue;
        int64_t rank = rank_of(full, bytes - name_bytes, any);
        if (rank < 0 || (other_rank >= 0 && rank > other_rank)) continue;
        if (best_rank < 0 || rank < best_rank) {
            snprintf(other, size, "%s", best);
            other_rank = best_rank;
            snprintf(best, size, "%.*s", (int)(bytes - name_bytes), full);
            best_rank = rank;
            found = i;
        } else {
            snprintf(other, size, "%.*s", (int)(bytes - name_bytes), full);
            other_rank = rank;
        }
    }
    return found;
}

int64_t weights_find_suffix(const struct weights *w, const char *name, bool any,
                            struct weights_prefix *prefix)
{
    static const char tower[] = "visual.";
    *prefix = (struct weights_prefix){.drop = 0};
    int64_t found = find_prefix(w, name, any, prefix->add, prefix->other, sizeof prefix->add);
    if (found >= 0 || strncmp(name, tower, sizeof tower - 1) != 0) return found;
    prefix->drop = sizeof tower - 1;
    return find_prefix(w, name + prefix->drop, any, prefix->add, prefix->other, sizeof prefix->add);
}

int64_t weights_find_under(const struct weights *w, const struct weights_prefix *prefix, const char *name)
{
    char full[WEIGHTS_MAX_NAME_BYTES + 1];
    size_t bytes = strlen(name);
    if (bytes < prefix->drop) return -1;
    int n = snprintf(full, sizeof full, "%s%s", prefix->add, name + prefix->drop);
    return n > 0 && (size_t)n < sizeof full ? weights_find(w, full) : -1;
}
