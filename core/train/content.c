/* Checksums of content: see content.h. */
#include "core/train/content.h"
#include "core/base/file.h"

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
static int first_difference(const struct image_sample *a, const struct image_sample *b, int count)
{
    for (int i = 0; i < count; i++)
        if (a[i].crc32c != b[i].crc32c && a[i].crc32c && b[i].crc32c) return i;
    return -1;
}

int content_compare_images(struct comm *ranks, const struct image_list *list, const char *root,
                           struct error *err)
{
    typedef struct {
        struct image_sample samples[IMAGE_SAMPLES];
        char host[64];
    } each;
    if (ranks->size == 1) return 0;
    each *all = xcalloc((size_t)ranks->size, sizeof *all), *own = &all[ranks->rank];
    int count = image_list_sample(list, root, own->samples), code;
    gethostname(own->host, sizeof own->host - 1);
    code = comm_gather_each(ranks, all, sizeof *all, err);
    for (int r = 1; r < ranks->size && !code; r++) {
        int i = first_difference(all[0].samples, all[r].samples, count);
        if (i < 0) continue;
        wait_for_all(ranks);
        code = error_set(
            err, EXIT_CONFIG, "all ranks must see the same images",
            "rank %d (host %s) has different bytes of the same size than rank 0 (host %s) in %.200s/%s", r,
            all[r].host, all[0].host, root, list->names[own->samples[i].image]);
    }
    free(all);
    return code;
}

char *content_samples(const struct image_list *list, const char *root)
{
    struct image_sample samples[IMAGE_SAMPLES];
    int count = image_list_sample(list, root, samples);
    char *text = xcalloc((size_t)count * 9 + 1, 1), *end = text;
    for (int i = 0; i < count; i++)
        end += samples[i].crc32c ? sprintf(end, "%s%08x", i ? " " : "", (unsigned)samples[i].crc32c)
                                 : sprintf(end, "%s-", i ? " " : "");
    return text;
}

static int read_samples(const char *text, struct image_sample *samples)
{
    int count = 0;
    for (char *end; count < IMAGE_SAMPLES && *text; text = end + (*end == ' ')) {
        samples[count++].crc32c = (uint32_t)strtoul(text, &end, 16); /* "-": 0 */
        end += end == text;
    }
    return count;
}

const char *content_changed_sample(const struct image_list *list, const char *before, const char *now)
{
    struct image_sample a[IMAGE_SAMPLES] = {0}, b[IMAGE_SAMPLES] = {0};
    int count = read_samples(before, a);
    if (count != read_samples(now, b)) return NULL;
    int at = first_difference(a, b, count);
    return at < 0 ? NULL : list->names[image_sample_at(list, at)];
}
