/* Checksums of content: see content.h. */
#include "core/step/content.h"
#include "core/base/crc32c.h"
#include "core/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 18 /* values; a megabyte */ };

/* Uses all threads, so that checksums do not slow down loading. */
void content_add(struct tower_content *content, const struct parameter *parameter, const float *values)
{
    int64_t chunks = (parameter->count + CHUNK - 1) / CHUNK;
    uint32_t *crcs = xcalloc((size_t)chunks + 1, sizeof *crcs);
#pragma omp parallel for schedule(static) if (chunks > 1)
    for (int64_t i = 0; i < chunks; i++) {
        int64_t left = parameter->count - i * CHUNK;
        crcs[i] = crc32c(0, values + i * CHUNK, (size_t)(left < CHUNK ? left : CHUNK) * sizeof *values);
    }
    content->crc32c +=
        crc32c(crc32c(0, parameter->name, strlen(parameter->name)), crcs, (size_t)chunks * sizeof *crcs);
    free(crcs);
}

void content_set_model(struct tower_content *content, const struct model_shape *g)
{
    const struct rope_of_tokens *r = &g->rope;
    size_t size = sizeof content->model,
           n = (size_t)snprintf(
               content->model, size,
               "family=%s depth=%lld width=%lld hidden=%lld heads=%lld patch=%lld image=%lld registers=%lld "
               "out=%lld activation=%s pool=%s norms=%s norm_eps=%g",
               family_name(g->family), (long long)g->depth, (long long)g->width, (long long)g->hidden,
               (long long)g->heads, (long long)g->patch, (long long)g->image, (long long)g->registers,
               (long long)g->out, model_shape_activation(g), model_shape_pool(g), model_shape_norms(g),
               (double)model_shape_norm_eps(g));
    if (model_shape_language(g) && n < size)
        snprintf(content->model + n, size - n,
                 " kv_heads=%lld head_dim=%lld window=%lld tied=%d rope=%d,%g,%g,%g,%g,%g,%g",
                 (long long)model_shape_kv_heads(g), (long long)model_shape_head_dim(g), (long long)g->window,
                 g->tied, r->scaling, r->theta, r->factor, r->original, r->low, r->high, r->attention);
}

/* What is gathered from each rank. */
struct rank_content {
    struct tower_content content;
    char host[64];
};

/* Waits until all ranks have found the difference: a rank that exits during the gather would be reported as
 * lost instead. */
static void wait_for_all(struct comm *ranks)
{
    struct error ignored;
    (void)comm_barrier(ranks, &ignored);
}

/* The message contains the path, because the logs of other hosts may show the message only. */
static int weights_differ(const struct rank_content *first, const struct rank_content *other, int rank,
                          const char *tower, const char *path, struct error *err)
{
    const struct tower_content *a = &first->content, *b = &other->content;
    if (a->crc32c != b->crc32c)
        return error_set(
            err, EXIT_CONFIG, "copy one file to all hosts, or name one that all of them see",
            "rank %d (host %s) has read different %s weights than rank 0 (host %s), checksum %08x, "
            "not %08x: %.200s",
            rank, other->host, tower, first->host, b->crc32c, a->crc32c, path);
    return error_set(err, EXIT_CONFIG, "copy the configuration next to the weights to all hosts, too",
                     "rank %d (host %s) has a different %s model than rank 0 (host %s): %.200s: %s, not %s",
                     rank, other->host, tower, first->host, path, b->model, a->model);
}

int content_compare_ranks(struct comm *ranks, const char *tower, const char *path,
                          const struct tower_content *content, struct error *err)
{
    if (ranks->size == 1) return 0;
    struct rank_content *all = xcalloc((size_t)ranks->size, sizeof *all), *own = &all[ranks->rank];
    own->content.crc32c = content->crc32c;
    snprintf(own->content.model, sizeof own->content.model, "%s", content->model);
    gethostname(own->host, sizeof own->host - 1);
    int code = comm_gather_each(ranks, all, sizeof *all, err);
    for (int r = 1; r < ranks->size && !code; r++)
        if (memcmp(&all[r].content, &all[0].content, sizeof all[r].content) != 0) {
            wait_for_all(ranks);
            code = weights_differ(&all[0], &all[r], r, tower, path, err);
        }
    free(all);
    return code;
}

/* Returns the first index at which two samples differ, ignoring unread ones; -1: none. */
static int64_t first_difference(const struct image_sample *a, const struct image_sample *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (a[i].crc32c != b[i].crc32c && a[i].crc32c && b[i].crc32c) return i;
    return -1;
}

int content_compare_images(struct comm *ranks, const struct image_list *list, const char *root,
                           struct error *err)
{
    if (ranks->size == 1) return 0;
    int64_t count;
    struct image_sample *own = image_list_sample(list, root, &count),
                        *all = xcalloc((size_t)(count * ranks->size) + 1, sizeof *all);
    char(*host)[64] = xcalloc((size_t)ranks->size, sizeof *host);
    size_t each = (size_t)count * sizeof *all;
    if (each) memcpy(all + count * ranks->rank, own, each);
    gethostname(host[ranks->rank], sizeof *host - 1);
    int code = comm_gather_each(ranks, host, sizeof *host, err);
    if (!code && each) code = comm_gather_each(ranks, all, each, err);
    for (int r = 1; r < ranks->size && !code; r++) {
        int64_t i = first_difference(all, all + count * r, count);
        if (i < 0) continue;
        wait_for_all(ranks);
        code = error_set(
            err, EXIT_CONFIG, "all ranks must see the same images",
            "rank %d (host %s) has different bytes of the same size than rank 0 (host %s) in %.200s/%s", r,
            host[r], host[0], root, list->names[own[i].image]);
    }
    free(host);
    free(all);
    free(own);
    return code;
}

char *content_samples(const struct image_list *list, const char *root)
{
    int64_t count;
    struct image_sample *samples = image_list_sample(list, root, &count);
    char *text = xcalloc((size_t)count * 9 + 1, 1), *end = text;
    for (int64_t i = 0; i < count; i++)
        end += samples[i].crc32c ? sprintf(end, "%s%08x", i ? " " : "", (unsigned)samples[i].crc32c)
                                 : sprintf(end, "%s-", i ? " " : "");
    free(samples);
    return text;
}

const char *content_samples_member(char member[CONTENT_MEMBER], const char *prefix,
                                   const struct image_list *list)
{
    snprintf(member, CONTENT_MEMBER, "%s_%s_crc32c", prefix, list->tokens ? "windows" : "samples");
    return member;
}

/* Parses such a text; returns the number of checksums. */
static int64_t read_samples(const char *text, struct image_sample *samples, int64_t most)
{
    int64_t count = 0;
    for (char *end; *text; text = end + (*end == ' ')) {
        uint32_t crc = (uint32_t)strtoul(text, &end, 16); /* "-": 0 */
        if (count < most) samples[count].crc32c = crc;
        count++;
        end += end == text;
    }
    return count;
}

const char *content_changed_sample(const struct image_list *list, const char *before, const char *now)
{
    struct image_sample *a = xcalloc((size_t)list->count + 1, sizeof *a),
                        *b = xcalloc((size_t)list->count + 1, sizeof *b);
    int64_t count = read_samples(before, a, list->count);
    int64_t at = count > list->count || count != read_samples(now, b, list->count)
                     ? -1
                     : first_difference(a, b, count);
    free(a);
    free(b);
    return at < 0 ? NULL : list->names[image_sample_at(list, at)];
}
