/* Loads batches with worker threads into a ring of buffers and returns them in order: see data.h.
 *
 * The work is divided into samples. Sample t belongs to batch t / batch; a worker loads the next sample
 * whose batch has a free buffer. The image of a sample depends on its position alone. An image that cannot
 * be decoded is replaced by that of the next position, so that the replacement is the same on every run.
 * In a whole pass it is not replaced. It is logged once and counted. A file that cannot be read, also for
 * lack of memory, is retried for a moment, then loading fails. The image may be good, and skipping it
 * would make a run irreproducible. A dataset that is small after resizing (and not augmented) is decoded
 * once, before data_start returns: decoding would take longer than steps of the small towers. */
#include "core/data/data.h"
#include "core/data/augment.h"
#include "core/base/processors.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/base/platform.h"
#include "core/data/labels.h"
#include "core/data/token_loader.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KEEP_BYTES = 16 << 20, ATTEMPTS = 5, FIRST_PAUSE_MS = 20 };

struct data {
    struct data_options options;
    char *root;
    struct image_list list;
    struct token_loader *tokens; /* NULL: images, which the rest is for */
    int64_t epoch_batches;
    int64_t depth;  /* buffers in the ring */
    float **images; /* (depth) of (batch, 3, S, S) */
    int64_t **ids;
    int32_t **labels; /* (depth) of (2, batch): own, and of the image mixed in; NULL: not read */
    float **share;    /* (depth) of (batch); NULL: no mixing */
    int64_t *ready;   /* (depth) finished samples of the batch in the buffer */
    uint8_t *bad;     /* (list.count) logged as undecodable */
    int64_t bad_count;
    uint8_t **kept; /* (list.count) resized images, NULL for undecodable ones; NULL: not kept */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t *threads;
    int64_t thread_count;
    bool stop;
    int64_t first_batch; /* batch of data_start */
    int64_t next_sample; /* counted from first_batch * batch */
    int64_t next_batch;  /* the next batch to return */
    /* images claimed and finished by the workers; samples begin when all are done */
    int64_t next_kept, done_kept;
    struct error failure;
};

int64_t data_images(const struct data *d)
{
    return d->tokens ? token_loader_samples(d->tokens) : d->list.count;
}
int64_t data_tokens(const struct data *d) { return d->tokens ? token_loader_tokens(d->tokens) : 0; }
const struct document_facts *data_documents(const struct data *d)
{
    return d->tokens ? token_loader_documents(d->tokens) : NULL;
}
const char *data_name(const struct data *d, int64_t image) { return d->list.names[image]; }
const struct image_list *data_list(const struct data *d) { return &d->list; }
uint32_t data_hash(const struct data *d) { return image_list_hash(&d->list); }
int32_t data_classes(const struct data *d) { return d->list.labels ? d->list.class_count : 0; }
const char *data_class_name(const struct data *d, int32_t class) { return d->list.classes[class]; }
uint32_t data_classes_hash(const struct data *d) { return image_list_classes_hash(&d->list); }
int64_t data_epoch_batches(const struct data *d) { return d->epoch_batches; }

int64_t data_bad_allowed(double max_bad, int64_t images) { return 1 + (int64_t)(max_bad * (double)images); }

enum { ALIGNED = 16 }; /* floats */
static int64_t aligned(int64_t count) { return (count + ALIGNED - 1) / ALIGNED * ALIGNED; }

static int64_t side_of(const struct data_options *o, int view)
{
    return view ? o->more[view - 1].size : o->image_size;
}
static const struct preprocess *preprocess_of(const struct data_options *o, int view)
{
    return view ? &o->more[view - 1].preprocess : &o->preprocess;
}

int64_t data_view_at(const struct data_options *o, int view)
{
    int64_t at = 0;
    for (int i = 0; i < view; i++) at += aligned(o->micro * 3 * side_of(o, i) * side_of(o, i));
    return at;
}

int64_t data_chunk(const struct data_options *o)
{
    return o->more_views ? data_view_at(o, o->more_views + 1) : o->micro * 3 * o->image_size * o->image_size;
}

/* Returns where a version of a sample is among its pixels, decoded and resized; and the bytes of all. */
static size_t place_of(const struct data *d, int view)
{
    size_t at = 0;
    for (int i = 0; i < view; i++)
        at += (size_t)aligned(
            (int64_t)preprocess_bytes(preprocess_of(&d->options, i), side_of(&d->options, i)));
    return at;
}
static size_t pixel_bytes(const struct data *d)
{
    int last = d->options.more_views;
    return place_of(d, last) + preprocess_bytes(preprocess_of(&d->options, last), side_of(&d->options, last));
}

/* One version of a sample. */
struct view {
    const struct preprocess *how;
    int side;
    size_t place; /* in its pixels */
    float *to;    /* (3, side, side) */
};
enum { VIEWS = 1 + MOST_MORE_VIEWS };

/* Returns the number of views of a sample, whose values are in a slot of a batch. */
static int sample_views(const struct data *d, float *batch, int64_t slot, struct view views[VIEWS])
{
    const struct data_options *o = &d->options;
    for (int i = 0; i <= o->more_views; i++) {
        int64_t side = side_of(o, i);
        views[i] = (struct view){preprocess_of(o, i), (int)side, place_of(d, i),
                                 batch + slot / o->micro * data_chunk(o) + data_view_at(o, i) +
                                     slot % o->micro * 3 * side * side};
    }
    return 1 + o->more_views;
}

/* Converts decoded and resized pixels into a slot of a batch; pixels NULL: zeros. */
static void store_sample(const struct data *d, float *batch, int64_t slot, const uint8_t *pixels,
                         const struct image_draw *draw)
{
    const struct data_options *o = &d->options;
    struct view views[VIEWS];
    int count = sample_views(d, batch, slot, views);
    for (struct view *v = views; v < views + count; v++) {
        if (pixels) image_normalize(pixels + v->place, v->how, v->side, v->to);
        else memset(v->to, 0, 3 * (size_t)v->side * (size_t)v->side * sizeof *v->to);
        if (pixels && o->augment && o->erasing > 0)
            image_erase(v->to, v->side, image_erasing(v->side, o->erasing, draw));
    }
}

/* Returns the number of samples in batch b; 0 after the end of a whole pass. */
static int64_t batch_samples(const struct data *d, int64_t b)
{
    const struct data_options *o = &d->options;
    if (!o->whole) return o->batch;
    int64_t left = d->list.count - (b * o->ranks + o->rank) * o->batch;
    return left < 0 ? 0 : left < o->batch ? left : o->batch;
}

/* Returns the row of the global batch that a slot of this rank holds; whole: of this rank's. */
static int64_t global_row(const struct data_options *o, int64_t slot)
{
    if (o->ranks == 1 || o->whole) return slot;
    return (slot / o->micro * o->ranks + o->rank) * o->micro + slot % o->micro;
}

/* Returns the position of a row among the samples of an epoch. */
static int64_t sample_at(const struct data *d, int64_t batch, int64_t row)
{
    const struct data_options *o = &d->options;
    return o->whole ? (batch * o->ranks + o->rank) * o->batch + row
                    : batch % d->epoch_batches * o->global + row;
}

/* Returns the image and the crop of a row, or, `offset` images later in the order, of its replacement. */
static struct image_draw draw_at(const struct data *d, int64_t batch, int64_t row, int64_t offset)
{
    const struct data_options *o = &d->options;
    int64_t epoch = o->whole ? 0 : batch / d->epoch_batches, sample = sample_at(d, batch, row),
            position = (sample / o->crops + offset) % d->list.count;
    if (o->shuffle && !o->whole) position = data_shuffle(o->seed, (uint64_t)epoch, position, d->list.count);
    return (struct image_draw){o->seed, (uint64_t)epoch, (uint64_t)position, (uint32_t)(sample % o->crops)};
}

/* The result of loading an image. */
enum outcome { LOADED, UNDECODABLE, UNREADABLE };

/* All versions of an image use the same box and the same operations. */
static int prepare(const struct data_options *o, const struct image *image, const struct preprocess *how,
                   int64_t side, const struct image_draw *draw, uint8_t *to, struct error *err)
{
    bool local = (int64_t)draw->crop >= o->crops - o->local_crops;
    if (!o->augment) return image_prepare(image, how, (int)side, to, err);
    int code = image_prepare_random(image, how, (int)side, local ? o->local_scale_min : o->crop_scale_min,
                                    local ? o->local_scale_max : o->crop_scale_max, o->flip, draw, to, err);
    return code || !o->randaugment ? code : image_randaugment(to, (int)side, o->randaugment, draw, err);
}

/* A worker's buffers. */
struct worker {
    uint8_t *rgb;   /* pixel_bytes */
    float *partner; /* with mixing: one slot of a batch */
    /* With several crops: the last image that was decoded, and its index */
    struct image decoded;
    int64_t decoded_id;
};

/* Decodes and resizes an image into w->rgb. */
static enum outcome load_once(const struct data *d, struct worker *w, const char *path,
                              const struct image_draw *draw, struct error *err)
{
    const struct data_options *o = &d->options;
    int64_t id = (int64_t)draw->index;
    bool again = w->decoded.rgb && w->decoded_id == id, read = true;
    struct image image = w->decoded;
    int code = again ? 0 : image_load(&image, d->root, d->list.names[id], err);
    if (code) read = errno == 0; /* an error of the file itself, not of the system */
    for (int i = 0; i <= o->more_views && !code; i++)
        code = prepare(o, &image, preprocess_of(o, i), side_of(o, i), draw, w->rgb + place_of(d, i), err);
    if (code) error_at(err, path, 0, 0);
    if (!again && o->crops > 1 && image.rgb) {
        image_free(&w->decoded);
        w->decoded = image;
        w->decoded_id = id;
    } else if (!again) image_free(&image);
    return !code ? LOADED : read && code != EXIT_HOST_MEMORY ? UNDECODABLE : UNREADABLE;
}

/* Retries for a second or two: full file tables, an unavailable server and lack of memory may be
 * temporary. */
static enum outcome load_image(const struct data *d, struct worker *w, const struct image_draw *draw,
                               struct error *err)
{
    char *path = path_join(d->root, d->list.names[draw->index]);
    enum outcome outcome = load_once(d, w, path, draw, err);
    for (int64_t i = 1, pause = FIRST_PAUSE_MS; outcome == UNREADABLE && i < ATTEMPTS; i++, pause *= 4) {
        nanosleep(&(struct timespec){pause / 1000, pause % 1000 * 1000000}, NULL);
        outcome = load_once(d, w, path, draw, err);
    }
    free(path);
    return outcome;
}

/* Stores the first failure, under the lock. */
static void fail(struct data *d, const struct error *why)
{
    if (!d->failure.code) d->failure = *why;
}

/* Logs a bad image once, under the lock; too many are fatal. */
static void count_bad(struct data *d, int64_t id, const struct error *why)
{
    if (d->bad[id]) return;
    d->bad[id] = 1;
    d->bad_count++;
    log_warn("%s: %s; left out (%lld bad so far)", why->file, why->what, (long long)d->bad_count);
    if (d->bad_count > data_bad_allowed(d->options.max_bad, d->list.count) && !d->failure.code) {
        error_set(&d->failure, EXIT_FAILED, "repair or remove them, or raise data.max_bad",
                  "%lld of %lld images cannot be decoded, more than data.max_bad allows; the last: %s",
                  (long long)d->bad_count, (long long)d->list.count, why->what);
        error_at(&d->failure, why->file, 0, 0);
    }
}

/* Decodes the images to keep, with all workers, under the lock. Bad ones are logged when a sample uses
 * them. */
static void work_kept(struct data *d, struct worker *w)
{
    size_t bytes = pixel_bytes(d);
    while (!d->stop && !d->failure.code && d->next_kept < d->list.count) {
        int64_t id = d->next_kept++;
        pthread_mutex_unlock(&d->lock);
        struct error err = {0};
        enum outcome outcome = load_image(d, w, &(struct image_draw){.index = (uint64_t)id}, &err);
        if (outcome == LOADED) d->kept[id] = memcpy(xmalloc(bytes), w->rgb, bytes);
        pthread_mutex_lock(&d->lock);
        if (outcome == UNREADABLE) fail(d, &err);
        d->done_kept++;
        pthread_cond_broadcast(&d->changed);
    }
    while (!d->stop && !d->failure.code && d->done_kept < d->list.count)
        pthread_cond_wait(&d->changed, &d->lock);
}

/* Loads the image of a row into a slot of the batch `to`, or that of the next position that can be decoded.
 * In a whole pass a bad image gives zeros, and -1 as its index. False: loading failed or stops. */
static bool load_row(struct data *d, struct worker *w, int64_t batch, int64_t row, float *to, int64_t slot,
                     int64_t *number)
{
    const struct data_options *o = &d->options;
    struct error err = {0};
    for (int64_t offset = 0; offset < d->list.count; offset++) {
        struct image_draw draw = draw_at(d, batch, row, offset);
        int64_t id = (int64_t)draw.index;
        const uint8_t *kept = d->kept ? d->kept[id] : NULL;
        enum outcome outcome = kept ? LOADED : load_image(d, w, &draw, &err);
        if (outcome == LOADED) {
            store_sample(d, to, slot, kept ? kept : w->rgb, &draw);
            *number = id;
            return true;
        }
        pthread_mutex_lock(&d->lock);
        if (outcome == UNDECODABLE) count_bad(d, id, &err);
        else fail(d, &err);
        bool give_up = d->stop || d->failure.code, any = d->bad_count < d->list.count;
        pthread_mutex_unlock(&d->lock);
        if (give_up) return false;
        if (o->whole && any) {
            store_sample(d, to, slot, NULL, &draw);
            *number = -1;
            return true;
        }
        if (!any) break;
    }
    pthread_mutex_lock(&d->lock);
    error_set(&err, EXIT_FAILED, "repair them", "none of the %lld images can be decoded",
              (long long)d->list.count);
    error_at(&err, d->root, 0, 0);
    fail(d, &err);
    pthread_mutex_unlock(&d->lock);
    return false;
}

static bool mixes(const struct data_options *o) { return o->mixup > 0 || o->cutmix > 0; }

/* Mixes the values of `partner`, laid out as a batch with its image in partner_slot, into a slot; sets the
 * slot's label and share. */
static void mix_slot(struct data *d, int64_t batch, int64_t slot, float *partner, int64_t partner_slot,
                     int64_t partner_id)
{
    const struct data_options *o = &d->options;
    int64_t buffer = batch % d->depth;
    struct mix mix = mix_draw(o->mixup, o->cutmix, o->seed, batch, global_row(o, slot));
    struct view own[VIEWS], other[VIEWS];
    int count = sample_views(d, d->images[buffer], slot, own);
    sample_views(d, partner, partner_slot, other);
    for (int i = 0; i < count; i++) mix_images(own[i].to, other[i].to, own[i].side, &mix);
    float share = (float)mix.share;
    if (mix.cut) mix_box(&mix, own[0].side, &share);
    d->share[buffer][slot] = share;
    d->labels[buffer][o->batch + slot] = d->list.labels[partner_id];
}

/* Loads a slot and sets its label. */
static bool load_slot(struct data *d, struct worker *w, int64_t batch, int64_t slot)
{
    const struct data_options *o = &d->options;
    int64_t buffer = batch % d->depth, *id = &d->ids[buffer][slot];
    if (!load_row(d, w, batch, global_row(o, slot), d->images[buffer], slot, id)) return false;
    if (d->labels) d->labels[buffer][slot] = *id < 0 ? -1 : d->list.labels[*id];
    if (!d->share) return true;
    d->labels[buffer][o->batch + slot] = d->labels[buffer][slot];
    d->share[buffer][slot] = 1;
    return true;
}

/* Copies a slot's images. */
static void copy_slot(const struct data *d, float *to, float *from, int64_t slot)
{
    struct view in[VIEWS], out[VIEWS];
    int count = sample_views(d, from, slot, in);
    sample_views(d, to, 0, out);
    for (int i = 0; i < count; i++)
        memcpy(out[i].to, in[i].to, 3 * (size_t)in[i].side * (size_t)in[i].side * sizeof(float));
}

/* Returns the number of slots that a worker loads together, so that an image is decoded once: two partners,
 * or the crops of an image. */
static int64_t slots_at(const struct data *d, int64_t batch, int64_t slot, int64_t samples)
{
    const struct data_options *o = &d->options;
    int64_t row = global_row(o, slot), image = sample_at(d, batch, row) / o->crops, count = 1;
    bool pair = d->share && row % 2 == 0 && slot + 1 < samples && global_row(o, slot + 1) == row + 1;
    if (d->share) return pair ? 2 : 1;
    while (slot + count < samples && global_row(o, slot + count) == row + count &&
           sample_at(d, batch, row + count) / o->crops == image)
        count++;
    return count;
}

/* Loads `count` slots of a batch (slots_at) and mixes them. */
static bool load_slots(struct data *d, struct worker *w, int64_t batch, int64_t slot, int64_t count)
{
    const struct data_options *o = &d->options;
    int64_t row = global_row(o, slot), partner = mix_partner(row, o->global), id;
    int64_t *ids = d->ids[batch % d->depth];
    float *images = d->images[batch % d->depth];
    for (int64_t i = 0; i < count; i++)
        if (!load_slot(d, w, batch, slot + i)) return false;
    if (!d->share || partner == row) return true;
    if (count == 2) {
        copy_slot(d, w->partner, images, slot);
        mix_slot(d, batch, slot, images, slot + 1, ids[slot + 1]);
        mix_slot(d, batch, slot + 1, w->partner, 0, ids[slot]);
        return true;
    }
    if (!load_row(d, w, batch, partner, w->partner, 0, &id)) return false;
    mix_slot(d, batch, slot, w->partner, 0, id);
    return true;
}

static void *work(void *argument)
{
    struct data *d = argument;
    const struct data_options *o = &d->options;
    struct worker w = {.rgb = xmalloc(pixel_bytes(d))};
    int64_t floats = o->more_views ? data_chunk(o) : 3 * o->image_size * o->image_size;
    if (d->share) w.partner = xmalloc((size_t)floats * sizeof *w.partner);
    processors_stay("", -1); /* the creating thread may be bound to a NUMA node */
    pthread_mutex_lock(&d->lock);
    if (d->kept) work_kept(d, &w);
    while (!d->stop && !d->failure.code) {
        int64_t batch = d->first_batch + d->next_sample / o->batch, slot = d->next_sample % o->batch,
                samples = batch_samples(d, batch);
        /* the last returned batch keeps its buffer until the next call */
        if (batch >= d->next_batch - 1 + d->depth || slot >= samples) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        int64_t count = slots_at(d, batch, slot, samples);
        d->next_sample += count;
        pthread_mutex_unlock(&d->lock);
        bool there = load_slots(d, &w, batch, slot, count);
        pthread_mutex_lock(&d->lock);
        if (!there) break;
        d->ready[batch % d->depth] += count;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    image_free(&w.decoded);
    free(w.rgb);
    free(w.partner);
    return NULL;
}

static void halt(struct data *d)
{
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (int64_t i = 0; i < d->thread_count; i++) pthread_join(d->threads[i], NULL);
    d->thread_count = 0;
    d->stop = false;
}

int data_open(struct data **data, const struct data_options *options, struct error *err)
{
    struct data *d = xcalloc(1, sizeof *d);
    *data = NULL;
    d->options = *options;
    d->root = xstrdup(options->root);
    d->options.root = d->root;
    if (d->options.micro <= 0) d->options.micro = 1;
    if (d->options.global <= 0) d->options.global = options->batch * options->ranks;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    if (d->options.crops <= 0 || !options->augment || options->whole) d->options.crops = 1;
    if (d->options.workers <= 0) d->options.workers = sysconf(_SC_NPROCESSORS_ONLN);
    int code = augment_check(options, err);
    if (!code && options->list && options->list->count) {
        d->list = *options->list;
        *options->list = (struct image_list){0};
    } else if (!code) code = image_list_open(&d->list, options, err);
    /* owned by the caller, and not used after the list was read */
    d->options.list = NULL;
    d->options.include = d->options.exclude = d->options.apart = NULL;
    d->options.classes = NULL;
    d->options.order = NULL;
    if (!code && options->tokens) code = token_loader_open(&d->tokens, &d->options, &d->list, err);
    if (!code) {
        int64_t global = d->options.global, count = data_images(d);
        int64_t samples = count * d->options.crops;
        d->epoch_batches = options->whole ? (count + global - 1) / global : samples / global;
        if (d->epoch_batches == 0)
            code = error_set(err, EXIT_CONFIG, "lower train.batch_size",
                             "%lld %s are fewer than one batch of %lld", (long long)samples,
                             d->options.crops > 1 ? _("crops") : _("images"), (long long)global);
        if (code) error_at(err, options->root, 0, 0);
    }
    if (code) data_close(d);
    else if (d->tokens) *data = d;
    if (code || d->tokens) return code;
    d->depth = (options->prefetch > 0 ? options->prefetch : 1) + 1;
    d->images = xcalloc((size_t)d->depth, sizeof *d->images);
    d->ids = xcalloc((size_t)d->depth, sizeof *d->ids);
    if (options->labels) d->labels = xcalloc((size_t)d->depth, sizeof *d->labels);
    if (options->labels && !options->whole && mixes(options))
        d->share = xcalloc((size_t)d->depth, sizeof *d->share);
    d->ready = xcalloc((size_t)d->depth, sizeof *d->ready);
    d->bad = xcalloc((size_t)d->list.count, 1);
    if (!options->augment && !options->whole && d->list.count <= KEEP_BYTES / (int64_t)pixel_bytes(d))
        d->kept = xcalloc((size_t)d->list.count, sizeof *d->kept);
    int64_t floats = options->more_views ? (options->batch + d->options.micro - 1) / d->options.micro *
                                               data_chunk(&d->options)
                                         : options->batch * 3 * options->image_size * options->image_size;
    for (int64_t i = 0; i < d->depth; i++) {
        d->images[i] = malloc((size_t)floats * sizeof(float));
        d->ids[i] = xcalloc((size_t)options->batch, sizeof **d->ids);
        if (d->labels) d->labels[i] = xcalloc(2 * (size_t)options->batch, sizeof **d->labels);
        if (d->share) d->share[i] = xcalloc((size_t)options->batch, sizeof **d->share);
        if (!d->images[i]) {
            data_close(d);
            return error_set(err, EXIT_HOST_MEMORY, "lower data.prefetch",
                             "out of memory for %lld prefetched batches", (long long)d->depth);
        }
    }
    *data = d;
    return 0;
}

void data_subset(struct data *d, int64_t count)
{
    image_list_subset(&d->list, count, d->options.seed);
    d->epoch_batches = (d->list.count + d->options.global - 1) / d->options.global;
}

void data_report(const struct data *d)
{
    image_list_report(&d->list, d->root);
    if (d->tokens) token_loader_report(d->tokens);
}

int data_start(struct data *d, int64_t step, struct error *err)
{
    if (d->tokens) {
        token_loader_start(d->tokens, step);
        return 0;
    }
    halt(d);
    d->first_batch = d->next_batch = step;
    d->next_sample = 0;
    memset(d->ready, 0, (size_t)d->depth * sizeof *d->ready);
    d->threads = xrealloc(d->threads, (size_t)d->options.workers * sizeof *d->threads);
    int reason = 0;
    for (int64_t i = 0; i < d->options.workers && !reason; i++)
        if ((reason = thread_start(&d->threads[i], work, d)) == 0) d->thread_count++;
    errno = reason;
    if (!d->thread_count)
        return error_errno(err, EXIT_HOST_MEMORY, "raise the limits on memory and processes (ulimit -v, -u)",
                           "cannot start a data worker");
    if (reason) /* images and their order are the same with fewer workers */
        log_warn("%lld of %lld data workers: no more can be started: %s", (long long)d->thread_count,
                 (long long)d->options.workers, strerror(reason));
    pthread_mutex_lock(&d->lock);
    while (d->kept && d->ready[step % d->depth] < batch_samples(d, step) && !d->failure.code)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

int data_next(struct data *d, struct data_batch *out, struct error *err)
{
    if (d->tokens) return token_loader_next(d->tokens, out, err);
    pthread_mutex_lock(&d->lock);
    int64_t batch = d->next_batch, count = batch_samples(d, batch), buffer = batch % d->depth;
    if (batch > d->first_batch)
        d->ready[(batch - 1) % d->depth] = 0; /* the previous batch may be overwritten now */
    d->next_batch++;
    bool there = d->ready[buffer] == count;
    double begin = clock_seconds();
    pthread_cond_broadcast(&d->changed);
    while (d->ready[buffer] < count && !d->failure.code) pthread_cond_wait(&d->changed, &d->lock);
    int code = d->failure.code;
    if (code && err) *err = d->failure;
    pthread_mutex_unlock(&d->lock);
    double wait_ms = there ? 0 : (clock_seconds() - begin) * 1e3;
    *out = (struct data_batch){.images = d->images[buffer],
                               .ids = d->ids[buffer],
                               .labels = d->labels ? d->labels[buffer] : NULL,
                               .labels2 = d->share ? d->labels[buffer] + d->options.batch : NULL,
                               .share = d->share ? d->share[buffer] : NULL,
                               .count = count,
                               .epoch = d->options.whole ? 0 : batch / d->epoch_batches,
                               .wait_ms = wait_ms};
    return code;
}

int data_image(struct data *d, int64_t image, float *out, bool *decoded, struct error *err)
{
    struct error local;
    if (!err) err = &local;
    struct worker w = {.rgb = xmalloc(pixel_bytes(d))};
    enum outcome outcome = load_image(d, &w, &(struct image_draw){.index = (uint64_t)image}, err);
    *decoded = outcome == LOADED;
    struct view views[VIEWS];
    int count = sample_views(d, out, 0, views);
    for (struct view *v = views; *decoded && v < views + count; v++)
        image_normalize(w.rgb + v->place, v->how, v->side, v->to);
    image_free(&w.decoded);
    free(w.rgb);
    return outcome == UNREADABLE ? err->code : 0;
}

const float *data_peek(struct data *d)
{
    if (d->tokens) return NULL;
    pthread_mutex_lock(&d->lock);
    int64_t batch = d->next_batch, buffer = batch % d->depth;
    const float *images =
        d->ready[buffer] == batch_samples(d, batch) && !d->failure.code ? d->images[buffer] : NULL;
    pthread_mutex_unlock(&d->lock);
    return images;
}

void data_close(struct data *d)
{
    if (!d) return;
    halt(d);
    for (int64_t i = 0; i < d->depth && d->images; i++) {
        free(d->images[i]);
        free(d->ids[i]);
        if (d->labels) free(d->labels[i]);
        if (d->share) free(d->share[i]);
    }
    token_loader_close(d->tokens);
    free(d->images);
    free(d->ids);
    free(d->labels);
    free(d->share);
    free(d->ready);
    for (int64_t i = 0; d->kept && i < d->list.count; i++) free(d->kept[i]);
    free(d->kept);
    free(d->bad);
    free(d->threads);
    free(d->root);
    image_list_free(&d->list);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    free(d);
}
