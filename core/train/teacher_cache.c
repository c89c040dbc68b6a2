/* The teacher's outputs in a file: see teacher_cache.h. */
#include "core/train/teacher_cache.h"
#include "core/base/clock.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/base/progress.h"
#include "core/base/retry.h"
#include "core/experiment/experiment.h"
#include "core/weights/cached_rows.h"
#include "core/step/step.h"
#include "core/step/weight_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SYNC_SECONDS = 10 };

/* State of an image, as in struct cached_head; trainer->cache.known is 0 or 1. */
enum { UNTRIED = 0, COMPUTED = 1, UNDECODABLE = 2 };

struct pass {
    struct trainer *t;
    struct comm *ranks;
    struct data *data;
    const char *path;
    struct data_options images_as; /* their versions, for micro-batches */
    float *chunk;                  /* a micro-batch of them */
    enum cached_type type;
    int64_t images, row;
    uint8_t *state; /* (images) */
    uint8_t *made;  /* (images of a round of all ranks): their states */
    int64_t done;
    int fd;       /* of the file; -1: not writable, or not rank 0 */
    bool disk;    /* the file alone has the rows */
    float *round; /* (images of a round of all ranks): their rows */
    char *slot;   /* a slot of the file */
    int64_t slot_bytes;
    size_t row_bytes;
    double synced_at;
    teacher_cache_tick tick;
    void *context;
};

/* ---- identification of the rows ---- */

/* Adds the teacher's weights, in the type that is computed with, to a CRC-32C. */
static int weights_hash(const struct trainer *t, const struct teacher *teacher, uint32_t *crc,
                        struct error *err)
{
    t->device->sync(t->device);
    for (int i = 0; i < teacher->tower->parameter_count; i++) {
        const struct parameter *p = &teacher->tower->parameters[i];
        size_t bytes = (size_t)p->count * dtype_bytes(p->weight_type);
        char *values = malloc(bytes);
        if (!values) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %s", p->name);
        int code = 0;
        if (teacher->stream) code = weight_stream_read(teacher->stream, i, values, err);
        else t->device->download(t->device, values, p->weight, bytes);
        if (code) {
            free(values);
            return code;
        }
        *crc = crc32c(crc32c(*crc, p->name, strlen(p->name) + 1), values, bytes);
        free(values);
    }
    return 0;
}

/* Formats the first line of the file; the caller frees. */
static int first_line(const struct pass *p, const struct data_options *o, char **line, struct error *err)
{
    const struct trainer *t = p->t;
    uint32_t weights = 0, targets;
    for (int i = 0; i < t->teacher_count; i++) {
        int code = weights_hash(t, &t->teachers[i], &weights, err);
        if (code) return code;
    }
    targets = preprocess_hash(&o->preprocess, o->image_size);
    for (int i = 0; i < o->more_views; i++)
        targets = targets * 31 + preprocess_hash(&o->more[i].preprocess, o->more[i].size);
    for (int i = 0; i < t->targets.count; i++) { /* the embedding alone adds nothing */
        const struct output *of = &t->targets.of[i].of_teacher;
        uint32_t kind = (uint32_t)(of->tokens + 4 * of->block + 4096 * t->targets.of[i].teacher);
        if (i || of->tokens != OUTPUT_CLS || of->block) targets = targets * 31 + kind;
        targets = targets_map_hash(t, i, targets);
    }
    *line = xasprintf(
        "meopt teacher 2 images %lld list %08x row %lld %s weights %08x dtype %d size %lld pipeline %u\n",
        (long long)p->images, data_hash(p->data), (long long)p->row, train_cache_type_names[p->type], weights,
        (int)t->teachers[0].tower->options.compute, (long long)o->image_size, targets);
    return 0;
}

/* ---- the file ---- */

/* Stops writing the file: with the rows in memory only a killed run needs it. */
static int stop_writing(struct pass *p, const char *what, struct error *err)
{
    int code = 0;
    if (p->disk) {
        code = error_errno(err, errno == ENOSPC ? EXIT_DISK : EXIT_FAILED, "train.cache_place: memory", "%s",
                           _(what));
        error_at(err, p->path, 0, 0);
    } else log_warn("%s: %s: %s; the teacher's outputs are not saved", p->path, what, strerror(errno));
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    return code;
}

static void *row_in_memory(const struct pass *p, int64_t image)
{
    return (char *)p->t->cache.rows + (size_t)image * p->row_bytes;
}

/* Reads the slots: their rows, or where these stay in the file, their states. */
static int read_slots(struct pass *p, struct error *err)
{
    struct cached_head *head = (struct cached_head *)(void *)p->slot;
    const char *row = p->slot + sizeof *head;
    for (int64_t i = 0; i < p->images; i++) {
        int64_t at = CACHED_ROWS_AT + i * p->slot_bytes;
        size_t bytes = p->disk ? sizeof *head : (size_t)p->slot_bytes;
        ssize_t got = retry_read(p->fd, p->slot, bytes, at);
        if (got < 0) return stop_writing(p, N_("cannot read"), err);
        if (got < (ssize_t)bytes) break;
        bool written = head->state == COMPUTED || head->state == UNDECODABLE;
        if (!written || (!p->disk && head->crc != cached_row_crc(i, head->state, row, p->row_bytes)))
            continue;
        p->state[i] = (uint8_t)head->state;
        p->done += head->state == COMPUTED;
        if (!p->disk && head->state == COMPUTED) memcpy(row_in_memory(p, i), row, p->row_bytes);
    }
    return 0;
}

/* Opens the file and reads its slots; a file of different input is emptied. */
static int open_file(struct pass *p, const char *line, struct error *err)
{
    struct stat st;
    char first[CACHED_ROWS_AT] = "", *found = xcalloc(CACHED_ROWS_AT, 1);
    snprintf(first, sizeof first, "%s", line);
    p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    int code = 0;
    if (p->fd >= 0 && (fstat(p->fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        errno = EINVAL;
        code = stop_writing(p, N_("is not a regular file"), err);
    } else if (p->fd < 0) code = stop_writing(p, N_("cannot open"), err);
    ssize_t got = p->fd < 0 ? 0 : retry_read(p->fd, found, sizeof first, 0);
    bool same = got == (ssize_t)sizeof first && memcmp(found, first, sizeof first) == 0;
    if (got < 0) code = stop_writing(p, N_("cannot read"), err);
    free(found);
    if (same) return read_slots(p, err);
    if (p->fd < 0) return code;
    if (st.st_size > 0)
        log_info("%s has outputs of different images or of a different teacher: they are computed again",
                 p->path);
    if (retry_truncate(p->fd, 0) != 0 || retry_write(p->fd, first, sizeof first, 0) != (ssize_t)sizeof first)
        code = stop_writing(p, N_("cannot write"), err);
    return code;
}

/* Opens the file for the steps, which read its rows. */
static int open_rows(struct pass *p, const char *line, struct error *err)
{
    char first[CACHED_ROWS_AT] = "", found[CACHED_ROWS_AT];
    snprintf(first, sizeof first, "%s", line);
    int fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        error_errno(err, EXIT_FAILED, "all ranks read the run directory; or train.cache_place: memory",
                    "cannot open");
        return error_at(err, p->path, 0, 0);
    }
    ssize_t got = retry_read(fd, found, sizeof found, 0);
    if (got < (ssize_t)sizeof found || memcmp(found, first, sizeof first)) {
        if (got < 0) error_errno(err, EXIT_FAILED, "train.cache_place: memory", "cannot read");
        else
            error_set(err, EXIT_INTEGRITY, "all ranks read the run directory; or train.cache_place: memory",
                      "does not have the outputs that rank 0 has written");
        close(fd);
        return error_at(err, p->path, 0, 0);
    }
    p->t->cache.file = fd;
    p->t->cache.row = xmalloc((size_t)p->slot_bytes);
    return 0;
}

/* Records the state of an image, with its row if it was computed. */
static int record_row(struct pass *p, int64_t image, const float *values, struct error *err)
{
    struct cached_head *head = (struct cached_head *)(void *)p->slot;
    char *row = p->slot + sizeof *head;
    *head = (struct cached_head){.state = values ? COMPUTED : UNDECODABLE};
    p->state[image] = (uint8_t)head->state;
    p->done += values != NULL;
    if (values) cached_row_encode(p->type, values, p->row, row);
    if (values && !p->disk) memcpy(row_in_memory(p, image), row, p->row_bytes);
    if (p->fd < 0) return 0;
    int64_t at = CACHED_ROWS_AT + image * p->slot_bytes;
    size_t rest = (size_t)p->slot_bytes - sizeof *head;
    head->crc = cached_row_crc(image, head->state, row, p->row_bytes);
    bool written = !values || retry_write(p->fd, row, rest, at + (int64_t)sizeof *head) == (ssize_t)rest;
    written = written && retry_write(p->fd, head, sizeof *head, at) == (ssize_t)sizeof *head;
    return written ? 0 : stop_writing(p, N_("cannot write"), err);
}

static int sync_file(struct pass *p, bool now, struct error *err)
{
    if (p->fd < 0 || (!now && clock_seconds() - p->synced_at < SYNC_SECONDS)) return 0;
    p->synced_at = clock_seconds();
    return retry_sync(fdatasync, p->fd) != 0 ? stop_writing(p, N_("cannot sync"), err) : 0;
}

/* ---- the rows ---- */

/* Copies `count` images from the i-th on of a batch, as the loader lays out a micro-batch, to the beginning
 * of another. */
static void move_images(struct pass *p, const float *batch, int64_t i, int64_t count, float *to)
{
    const struct data_options *o = &p->images_as;
    for (int v = 0; v <= o->more_views; v++) {
        int64_t side = v ? o->more[v - 1].size : o->image_size, pixels = 3 * side * side,
                at = data_view_at(o, v);
        memcpy(to + at, batch + at + i * pixels, (size_t)(count * pixels) * sizeof *to);
    }
}

/* Computes the rows of `count` images of a batch, from one of them on: on a card in one forward, on a CPU
 * one image per forward, where batching has no gain and would change the bits. */
static int compute(struct pass *p, float *rows, const float *batch, int64_t first, int64_t count,
                   struct error *err)
{
    int64_t at_once = p->t->device->host_memory ? 1 : count;
    int code = 0;
    for (int64_t i = 0; i < count && !code; i += at_once) {
        move_images(p, batch, first + i, at_once, p->chunk);
        code = trainer_embed_teacher(p->t, &(struct batch){.input = p->chunk, .count = at_once},
                                     rows + i * p->row, err);
        progress_mark();
    }
    return code;
}

/* Retries images that an earlier process could not decode: they may have been fixed. */
static int retry_undecodable(struct pass *p, struct error *err)
{
    float *image = malloc((size_t)data_chunk(&p->images_as) * sizeof *image);
    int code = image ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for an image");
    for (int64_t i = 0; i < p->images && !code; i++) {
        bool decoded = false;
        if (p->state[i] != UNDECODABLE) continue;
        code = data_image(p->data, i, image, &decoded, err);
        if (!code && decoded) code = compute(p, p->round, image, 0, 1, err);
        if (!code && decoded) code = record_row(p, i, p->round, err);
    }
    free(image);
    return code;
}

/* Returns on all ranks whether one has failed: its own code, else the largest code of the others. */
static int agree_ranks(struct pass *p, int code, struct error *err)
{
    struct error other;
    double worst = code;
    int lost = comm_all_reduce(p->ranks, COMM_MAX, &worst, 1, &other);
    if (code) return code;
    if (lost) {
        if (err) *err = other;
        return lost;
    }
    return worst > 0 ? error_set(err, (int)worst, "see the log of that rank",
                                 "another rank failed while the teacher's outputs were computed")
                     : 0;
}

/* Broadcasts the rows that rank 0 has read or recomputed. */
static int broadcast_known(struct pass *p, struct error *err)
{
    int code = comm_broadcast(p->ranks, p->state, (size_t)p->images, 0, err);
    bool any = false;
    p->done = 0;
    for (int64_t i = 0; i < p->images; i++) {
        any = any || p->state[i] == COMPUTED;
        p->done += p->state[i] == COMPUTED;
    }
    if (!code && any && !p->disk)
        code = comm_broadcast(p->ranks, p->t->cache.rows, (size_t)p->images * p->row_bytes, 0, err);
    return code;
}

/* All-gathers the rows of a round, which begins with image `first`, and records them. */
static int gather_round(struct pass *p, int64_t first, int64_t at_once, struct error *err)
{
    int ranks = p->ranks->size;
    int64_t *offsets = xcalloc(2 * ((size_t)ranks + 1), sizeof *offsets), *rows = offsets + ranks + 1;
    for (int r = 0; r <= ranks; r++) {
        int64_t end = first + r * at_once;
        offsets[r] = (end < p->images ? end : p->images) - first;
        rows[r] = offsets[r] * p->row * (int64_t)sizeof(float);
    }
    int64_t count = offsets[ranks];
    uint8_t *made = p->made;
    int code = comm_gather_host(p->ranks, made, offsets, err);
    if (!code) code = comm_gather_host(p->ranks, p->round, rows, err);
    for (int64_t i = 0; i < count && !code; i++)
        if (p->state[first + i] == UNTRIED)
            code = record_row(p, first + i, made[i] == COMPUTED ? p->round + i * p->row : NULL, err);
    free(offsets);
    return code;
}

/* Returns whether the image was decoded (else the loader substitutes another) and was never tried. */
static bool is_missing(const struct pass *p, int64_t image, int64_t id)
{
    return id == image && p->state[image] == UNTRIED;
}

/* Computes the missing rows from the first untried image on. In each round every rank computes `at_once`
 * consecutive images. */
static int compute_all(struct pass *p, int64_t at_once, struct error *err)
{
    struct data_batch batch;
    int64_t first = 0, round = at_once * p->ranks->size, own = at_once * p->ranks->rank;
    while (first < p->images && p->state[first] != UNTRIED) first++;
    if (first == p->images) return 0;
    first -= first % round;
    p->made = xcalloc((size_t)round, 1);
    int code = data_start(p->data, first / round, err);
    for (; !code && first < p->images; first += round) {
        int64_t left = p->images - first - own, mine = left < 0 ? 0 : left < at_once ? left : at_once;
        if (mine) code = data_next(p->data, &batch, err);
        for (int64_t i = 0; i < mine && !code; i++) { /* in runs of missing rows */
            int64_t run = 0;
            while (i + run < mine && is_missing(p, first + own + i + run, batch.ids[i + run])) run++;
            for (int64_t k = i; k < mine && k <= i + run; k++)
                p->made[own + k] = batch.ids[k] == first + own + k ? COMPUTED : UNDECODABLE;
            if (run) code = compute(p, p->round + (own + i) * p->row, batch.images, i, run, err);
            i += run;
        }
        if ((code = agree_ranks(p, code, err)) == 0) code = gather_round(p, first, at_once, err);
        if (!code) code = sync_file(p, false, err);
        if (p->disk) code = agree_ranks(p, code, err);
        if (!code && p->tick) code = agree_ranks(p, p->tick(p->context, p->done, p->images, err), err);
    }
    free(p->made);
    return code;
}

static void open_memory(struct pass *p, const struct data_options *images)
{
    struct trainer *t = p->t;
    const struct config *c = t->config;
    p->images_as = *images;
    p->chunk = xmalloc((size_t)data_chunk(images) * sizeof *p->chunk);
    p->images = t->cache.images = data_images(p->data);
    p->row = targets_values(t);
    p->type = (enum cached_type)c->train.cache_type;
    p->disk = c->train.cache_place == TRAIN_CACHE_PLACE_DISK;
    p->row_bytes = cached_row_bytes(p->type, p->row);
    p->slot_bytes = cached_slot_bytes(p->type, p->row);
    p->slot = xcalloc(1, (size_t)p->slot_bytes);
    p->round = xmalloc((size_t)(t->micro * p->ranks->size * p->row) * sizeof *p->round);
    p->state = t->cache.known = xcalloc((size_t)p->images, 1);
    t->cache.list = data_hash(p->data);
    t->cache.rows = p->disk ? NULL : malloc((size_t)p->images * p->row_bytes);
}

int teacher_cache_fill(struct trainer *t, const char *path, teacher_cache_tick tick, void *context,
                       struct error *err)
{
    struct data_options options = experiment_images(t->config, false);
    struct pass p = {.t = t,
                     .ranks = &t->ranks,
                     .path = path,
                     .fd = -1,
                     .synced_at = clock_seconds(),
                     .tick = tick,
                     .context = context};
    options.whole = true;
    options.shuffle = options.augment = false;
    options.batch = options.micro = t->micro;
    options.rank = t->ranks.rank;
    options.ranks = t->ranks.size;
    int code = data_open(&p.data, &options, err);
    if (code) return code;
    char *line = NULL;
    open_memory(&p, &options);
    if (!p.disk && !t->cache.rows)
        code = error_set(err, EXIT_HOST_MEMORY, "train.cache_place: disk, or train.cache_teacher: false",
                         "out of memory for the teacher's output of %lld images", (long long)p.images);
    if (!code) code = first_line(&p, &options, &line, err);
    if (!code && t->ranks.rank == 0) {
        code = open_file(&p, line, err);
        log_info("the teachers' outputs take %.1f MiB: %lld bytes for each of %lld images",
                 (double)p.slot_bytes * (double)p.images / 1048576.0, (long long)p.slot_bytes,
                 (long long)p.images);
        if (!code) code = retry_undecodable(&p, err);
    }
    code = agree_ranks(&p, code, err);
    if (!code) code = broadcast_known(&p, err);
    if (!code) code = compute_all(&p, options.batch, err);
    if (!code) code = sync_file(&p, true, err);
    if (p.disk) code = agree_ranks(&p, code, err);
    if (!code && p.disk) code = agree_ranks(&p, open_rows(&p, line, err), err);
    for (int64_t i = 0; i < p.images; i++) t->cache.known[i] = t->cache.known[i] == COMPUTED;
    if (p.fd >= 0) close(p.fd);
    free(p.slot);
    free(p.round);
    free(p.chunk);
    free(line);
    data_close(p.data);
    return code;
}
