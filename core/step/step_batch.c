/* The micro-batches of a step in device memory: input, labels, and what the student reads next to them. */
#include "core/base/memory.h"
#include "core/base/retry.h"
#include "core/weights/cached_rows.h"
#include "core/step/step.h"

#include <stdlib.h>
#include <string.h>

void step_select(struct trainer *t, int64_t slot)
{
    int64_t by = slot - t->in.slot, arrays = t->in.label_arrays, outs = t->micro * t->student->out_values;
    if (!by) return;
    t->in.more_labels[t->in.slot] = t->in.labels_more;
    t->in.labels_more = t->in.more_labels[slot];
    t->in.slot = slot;
    t->input = (char *)t->input + by * (int64_t)trainer_input_bytes(t, t->micro);
    if (t->in.labels) t->in.labels += by * arrays * t->micro * t->in.values_each;
    if (t->in.keep) t->in.keep += by * 2 * t->student_shape.depth * t->micro;
    if (t->in.target) t->in.target += by * outs;
    if (t->dout) t->dout += by * outs;
}

/* Sets t->input to the micro-batch: swaps in the prefetched buffer, or uploads it. Afterwards next_input
 * may be overwritten once the operations issued so far are done. */
static void set_input(struct trainer *t, const struct batch *host)
{
    struct device *dev = t->device;
    if (t->in.sent.input) dev->streams->wait(dev, NULL, t->in.arrived);
    if (t->in.sent.input && t->in.sent.input == host->input && t->in.sent.count == host->count) {
        void *taken = t->in.next_input;
        t->in.next_input = t->input;
        t->input = taken;
    } else {
        dev->upload(dev, t->input, host->input, trainer_input_bytes(t, host->count));
    }
    t->in.sent.input = NULL;
    if (t->in.next_input) dev->streams->record(dev, t->in.taken, NULL);
}

void step_prefetch(struct trainer *t, int64_t index, const struct batch_source *source)
{
    const int64_t *ids;
    struct error ignored;
    if (!t->in.next_input) return;
    int64_t left = t->batch - index * t->micro - step_micro_images(t, index);
    struct batch host = {.count = left <= 0 || left > t->micro ? t->micro : left};
    if (left > 0 && source->fetch(source->context, index + 1, &host, &ids, &ignored))
        return; /* set_input will report it */
    if (left <= 0 && source->peek) host.input = source->peek(source->context);
    if (!host.input) return;
    struct device *dev = t->device;
    dev->streams->wait(dev, t->in.copies, t->in.taken);
    dev->streams->upload(dev, t->in.copies, t->in.next_input, host.input, trainer_input_bytes(t, host.count));
    dev->streams->record(dev, t->in.arrived, t->in.copies);
    t->in.sent = host;
}

/* Sorts the numbers of tokens stably by token: two passes of 11 bits, enough for every vocabulary
 * (model_shape_check). */
static void token_order(const int32_t *tokens, int64_t count, int32_t *order, int32_t *other)
{
    enum { BITS = 11, DIGITS = 1 << BITS };
    for (int64_t i = 0; i < count; i++) other[i] = (int32_t)i;
    for (int pass = 0; pass < 2; pass++) {
        const int32_t *from = pass ? order : other;
        int32_t *to = pass ? other : order;
        int64_t at[DIGITS + 1] = {0};
        for (int64_t i = 0; i < count; i++) at[1 + (tokens[i] >> pass * BITS & (DIGITS - 1))]++;
        for (int d = 0; d < DIGITS; d++) at[d + 1] += at[d];
        for (int64_t i = 0; i < count; i++) to[at[tokens[from[i]] >> pass * BITS & (DIGITS - 1)]++] = from[i];
    }
    memcpy(order, other, (size_t)count * sizeof *order);
}

/* The arrays of t->in.labels after the labels. */
enum { LABELS2 = 1, SHARE, BEGINS = 1, ENDS, ORDER };
static int32_t *labels_at(const struct trainer *t, int array)
{
    return t->in.labels + array * t->micro * t->in.values_each;
}

/* The last array: rows that an encoder predicts. */
static int32_t *picked_at(const struct trainer *t) { return labels_at(t, (int)t->in.label_arrays - 1); }

/* Collects the labelled rows of each sample, out_rows of them; where there are fewer, the last row fills
 * up without a label. */
static void pick_rows(const struct trainer *t, const struct batch *host, int32_t *picked, int32_t *labels)
{
    int64_t each = t->student->out_rows, N = t->labels_each;
    for (int64_t sample = 0, to = 0; sample < host->count; sample++) {
        int64_t end = to + each, row = sample * N;
        for (; row < (sample + 1) * N && to < end; row++) {
            if (host->labels[row] < 0) continue;
            picked[to] = (int32_t)row;
            labels[to++] = host->labels[row];
        }
        for (; to < end; to++) {
            picked[to] = (int32_t)((sample + 1) * N - 1);
            labels[to] = -1;
        }
    }
}

void step_set_labels(struct trainer *t, const struct batch *host)
{
    struct device *dev = t->device;
    bool tokens = t->objective->tokens;
    int64_t count = host->count * t->in.values_each;
    size_t bytes = (size_t)count * sizeof *t->in.labels,
           labelled = (size_t)(host->count * t->labels_each) * sizeof *t->in.labels;
    const void *second = tokens ? host->begins : host->labels2,
               *third = tokens ? host->ends : (void *)host->share;
    if (t->student->picks) {
        int32_t *labels = t->in.host_picked + t->micro * t->labels_each;
        size_t head = (size_t)(host->count * t->student->out_rows) * sizeof *labels;
        pick_rows(t, host, t->in.host_picked, labels);
        dev->upload(dev, picked_at(t), t->in.host_picked, head);
        dev->upload(dev, t->in.labels, labels, head);
    } else dev->upload(dev, t->in.labels, host->labels, labelled);
    if (t->in.host_order && t->step) { /* only backward reads it */
        token_order(host->input, count, t->in.host_order, t->in.host_order + t->micro * t->in.values_each);
        dev->upload(dev, labels_at(t, ORDER), t->in.host_order, bytes);
    }
    t->in.labels_more = second != NULL;
    if (!t->in.labels_more) return;
    dev->upload(dev, labels_at(t, 1), second, bytes);
    dev->upload(dev, labels_at(t, 2), third, bytes);
}

/* Draws and uploads drop path's factors of this rank's micro-batch `index`. */
static void set_keep(struct trainer *t, int64_t index, int64_t count)
{
    int64_t depth = t->student_shape.depth, row = (index * t->data->size + t->data->rank) * t->micro;
    drop_path_factors(t->config->model_s.drop_path, depth, (uint64_t)t->config->train.seed, t->step, row,
                      count, t->in.host_keep);
    t->device->upload(t->device, t->in.keep, t->in.host_keep,
                      (size_t)(2 * depth * count) * sizeof *t->in.keep);
}

bool step_teacher_by_groups(const struct trainer *t)
{
    const struct tower *teacher = t->teachers[0].tower;
    return teacher && (teacher->options.slots > 1 || teacher->options.stages > 1);
}

_Static_assert((int)CACHED_BF16 == (int)TRAIN_CACHE_TYPE_BF16 &&
                   (int)CACHED_INT8 == (int)TRAIN_CACHE_TYPE_INT8,
               "enum train_cache_type is enum cached_type");
int64_t step_cached_bytes(const struct trainer *t)
{
    return cached_slot_bytes((enum cached_type)t->config->train.cache_type, targets_values(t));
}

/* Reads the cached targets of an image. */
static int read_cached(struct trainer *t, int64_t image, float *to, struct error *err)
{
    enum cached_type type = (enum cached_type)t->config->train.cache_type;
    int64_t values = targets_values(t), slot = cached_slot_bytes(type, values);
    size_t bytes = cached_row_bytes(type, values);
    const char *row = t->cache.rows;
    struct cached_head head;
    if (row) row += (size_t)image * bytes;
    else {
        ssize_t got = retry_read(t->cache.file, t->cache.row, (size_t)slot, CACHED_ROWS_AT + image * slot);
        if (got < 0)
            return error_errno(err, EXIT_FAILED, NULL, "cannot read the cached outputs of image %lld",
                               (long long)image);
        memcpy(&head, t->cache.row, sizeof head);
        row = (const char *)t->cache.row + sizeof head;
        if (got < slot || head.state != 1 || head.crc != cached_row_crc(image, head.state, row, bytes))
            return error_set(err, EXIT_INTEGRITY, "delete teacher.rows of the run, and resume",
                             "the cached outputs of image %lld are damaged", (long long)image);
    }
    cached_row_decode(type, row, values, to);
    return 0;
}

/* Uploads the cached targets of `count` images, in the layout of a micro-batch. */
static int upload_targets(struct trainer *t, const int64_t *ids, int64_t count, struct error *err)
{
    int64_t values = targets_values(t);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] >= t->cache.images || !t->cache.known[ids[i]])
            return error_set(err, EXIT_FAILED, "start again with --resume, which computes it",
                             "there is no output of the teacher for image %lld: it could not be decoded when "
                             "they were computed",
                             (long long)ids[i]);
    float *row = xmalloc((size_t)values * sizeof *row);
    int code = 0;
    for (int64_t i = 0; i < count && !code; i++) {
        const float *from = row;
        code = read_cached(t, ids[i], row, err);
        for (int k = 0; k < t->targets.count && !code; k++) {
            int64_t width = targets_width(t, k), patches = t->targets.of[k].rows_s,
                    classes = targets_rows(t, k) - patches;
            float *to = t->in.host_target + targets_at(t, k);
            if (!target_owns(&t->targets, k)) continue;
            memcpy(to + i * classes * width, from, (size_t)(classes * width) * sizeof *to);
            from += classes * width;
            memcpy(to + (count * classes + i * patches) * width, from,
                   (size_t)(patches * width) * sizeof *to);
            from += patches * width;
        }
    }
    free(row);
    if (code) return code;
    size_t most = (size_t)(t->targets.count > 1 ? t->micro : count);
    t->device->upload(t->device, t->in.target, t->in.host_target, most * (size_t)values * sizeof(float));
    return 0;
}

int step_prepare(struct trainer *t, int64_t index, int64_t count, const struct batch_source *source,
                 const float **target, struct error *err)
{
    struct batch host = {.count = count};
    const int64_t *ids = NULL;
    int code = source ? source->fetch(source->context, index, &host, &ids, err) : 0;
    if (code) return code;
    if (source) set_input(t, &host);
    *target = NULL;
    if (t->objective->labels && source) step_set_labels(t, &host);
    if (t->in.keep && t->step) set_keep(t, index, count);
    if (!t->objective->teacher || step_teacher_by_groups(t)) return 0;
    if (trainer_teaches(t)) return targets_compute(t, count, target, err);
    *target = t->in.target;
    return source ? upload_targets(t, ids, count, err) : 0;
}

struct batch step_batch(const struct trainer *t, int64_t index, int64_t count)
{
    struct batch batch = {.input = trainer_student_input(t),
                          .count = count,
                          .labels = t->in.labels,
                          .keep = t->step ? t->in.keep : NULL};
    if (t->objective->tokens) {
        batch.begins = t->in.labels_more ? labels_at(t, BEGINS) : NULL;
        batch.ends = t->in.labels_more ? labels_at(t, ENDS) : NULL;
        batch.order = t->in.host_order ? labels_at(t, ORDER) : NULL;
    }
    if (t->student->owns_loss) {
        batch.picked = t->student->picks ? picked_at(t) : NULL;
        batch.sums = t->sums + step_sums(t) * index;
        batch.weight = t->units > 0 ? (float)(1 / t->units) : 0;
        batch.smoothing = (float)t->config->train.label_smoothing;
    } else if (t->in.labels_more && !t->objective->tokens) {
        batch.labels2 = labels_at(t, LABELS2);
        batch.share = (const float *)(const void *)labels_at(t, SHARE);
    }
    return batch;
}

/* Refuses labels that the classifier does not have, and tokens outside the vocabulary: those of documents
 * are compared where they are read. */
static int check_labels(const struct trainer *t, const struct batch *host, struct error *err)
{
    bool tokens = t->student->owns_loss;
    const char *samples = t->objective->tokens ? _("documents") : _("images");
    int64_t count = host->count * t->labels_each;
    const int32_t *labels[] = {host->labels, tokens ? host->input : host->labels2};
    if (!host->labels) return error_set(err, EXIT_CONFIG, NULL, "the %s have no labels", samples);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; labels[k] && i < count; i++) {
            if (labels[k][i] >= (tokens && k ? 0 : -1) && labels[k][i] < t->student->out_width) continue;
            if (!tokens)
                return error_set(err, EXIT_CONFIG, "raise model.classes",
                                 "one of the %s has the label %d, the classifier has %lld classes", samples,
                                 labels[k][i], (long long)t->student->out_width);
            return error_set(err, EXIT_CONFIG, "use the tokenizer of the model",
                             "token %d at %lld of sample %lld, the vocabulary has %lld", labels[k][i],
                             (long long)(i % t->labels_each), (long long)(i / t->labels_each),
                             (long long)t->student->out_width);
        }
    return 0;
}

int step_count_units(struct trainer *t, const struct batch_source *source, struct error *err)
{
    const int64_t *ids;
    double units = 0;
    int code = 0;
    t->units = (double)t->images;
    if (!t->objective->units) return 0;
    for (int64_t done = 0, index = 0; done < t->batch && !code; index++) {
        struct batch host = {.count = t->batch - done < t->micro ? t->batch - done : t->micro};
        code = source->fetch(source->context, index, &host, &ids, err);
        if (!code && t->objective->labels) code = check_labels(t, &host, err);
        if (!code) units += (double)t->objective->units(t, &host);
        done += host.count;
    }
    if (!code && t->dp) code = comm_all_reduce(t->data, COMM_SUM, &units, 1, err);
    t->units = units;
    return code;
}
