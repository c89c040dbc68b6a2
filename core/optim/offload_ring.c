/* The ring of stages that a step works through: see offload.h. */
#include "core/base/crc32c.h"
#include "core/optim/offload_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEP_PIECES = 8 }; /* at most, per sweep of the ring: work for many threads */

/* Records the first failure. Returns it now and in every later call. */
__attribute__((format(printf, 4, 5))) static int failed(struct offload *o, int status,
                                                        struct meopt_error *err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!o->failed) {
        text_format(o->why, sizeof o->why, format, args);
        o->failed = status;
    }
    va_end(args);
    return optim_fail(err, o->failed, "%s", o->why);
}

struct layout piece_layout(const struct tensor *t, int64_t groups)
{
    struct layout l = t->layout;
    l.groups = groups;
    layout_state(&l);
    l.residual_bytes = rounded((size_t)groups * optim_residual_bytes(l.weights));
    return l;
}

int ring_settle(const struct meopt *opt, int stage, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    struct stage *s = &o->stages[stage];
    struct error why = {0};
    if (o->failed) return optim_fail(err, o->failed, "%s", o->why);
    if (o->copier) copier_start_file(o, stage);
    int code = o->transfers ? transfers_wait(o->transfers, stage, &o->wait_seconds, &why) : 0;
    if (code)
        return failed(o, why.code == EXIT_DISK ? MEOPT_DISK_FULL : MEOPT_IO, err, "offloaded states: %.220s",
                      why.what);
    if (s->writes != NONE && o->transfers) o->pieces[s->writes].writer = NONE;
    s->writes = NONE;
    if (!s->unread) return MEOPT_OK;
    s->unread = false;
    const struct piece *p = &o->pieces[s->piece];
    if (p->written && o->transfers && crc32c(0, s->host, p->bytes) != p->crc)
        return failed(o, MEOPT_BAD_STATE, err,
                      "offloaded state of %.100s: the data read from its file differ from the data written",
                      opt->tensors[p->tensor].name);
    if (o->copier && stage < o->stage_count) copier_deliver(o, stage);
    else if (!p->written) memset(s->host, 0, p->bytes);
    return MEOPT_OK;
}

int ring_empty(const struct meopt *opt, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    int status = MEOPT_OK;
    for (int s = 0; s < o->stage_count && !status; s++) {
        status = ring_settle(opt, s, err);
        if (o->stages[s].piece != NONE) o->pieces[o->stages[s].piece].stage = NONE;
        o->stages[s].piece = NONE;
    }
    o->next = o->due;
    if (o->copier) copier_finish(o);
    return status;
}

/* Returns the next piece of the sequence that needs a stage, or NONE. */
static int next_piece(const struct offload *o)
{
    if (!o->order_count || (!o->repeats && o->next >= o->order_count)) return NONE;
    int piece = o->order[o->next % o->order_count];
    return o->pieces[piece].stage == NONE ? piece : NONE;
}

/* Writes the stage's old piece (out; NONE: unchanged), then reads the next one. */
static int stage_exchange(const struct meopt *opt, int stage, int out, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    struct stage *s = &o->stages[stage];
    int in = next_piece(o), status = MEOPT_OK;
    if (in != NONE) {
        int writer = o->pieces[in].writer;
        if (writer != NONE && writer != stage && o->transfers) status = ring_settle(opt, writer, err);
        if (status) return status;
        o->next++;
        o->pieces[in].stage = stage;
    }
    struct transfer w = {0}, r = {0};
    if (out != NONE) {
        struct piece *p = &o->pieces[out];
        p->written = true;
        p->writer = stage;
        w = (struct transfer){s->memory, p->bytes, p->offset};
        o->bytes_written += (int64_t)p->bytes;
    }
    bool stays = in == out && in != NONE, read = in != NONE && !stays && o->pieces[in].written;
    if (read) {
        r = (struct transfer){s->memory, o->pieces[in].bytes, o->pieces[in].offset};
        o->bytes_read += (int64_t)r.bytes;
    }
    s->piece = in;
    s->writes = out;
    s->unread = in != NONE && !stays;
    if (o->copier) {
        copier_exchange(o, stage, out, read ? in : NONE);
        return MEOPT_OK;
    }
    if (out != NONE) o->pieces[out].crc = crc32c(0, s->memory, w.bytes);
    if (w.bytes || r.bytes) transfers_start(o->transfers, stage, &w, &r);
    return MEOPT_OK;
}

/* Starts reading the next pieces into all free stages. */
static int stages_prefetch(const struct meopt *opt, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    int status = MEOPT_OK;
    for (int s = 0; s < o->stage_count && !status; s++) {
        if (o->stages[s].piece != NONE) continue;
        if (next_piece(o) == NONE) break;
        status = ring_settle(opt, s, err); /* its last write */
        if (!status) status = stage_exchange(opt, s, NONE, err);
    }
    return status;
}

/* ---- The order --------------------------------------------------------------------------------------------
 */

static int order_set(const struct meopt *opt, const int *pieces, int64_t count, bool repeats,
                     struct meopt_error *err)
{
    struct offload *o = opt->offload;
    int status = ring_empty(opt, err);
    int *order = status ? NULL : malloc((size_t)(count + 1) * sizeof *order);
    if (status) return status;
    if (!order)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for the order of %lld pieces", (long long)count);
    memcpy(order, pieces, (size_t)count * sizeof *order);
    free(o->order);
    o->order = order;
    o->order_count = count;
    o->repeats = repeats;
    o->due = o->next = 0;
    return MEOPT_OK;
}

/* Returns whether the sequence continues with these pieces. */
static bool order_continues(const struct offload *o, const int *pieces, int64_t count)
{
    if (!o->order_count || (!o->repeats && o->due + count > o->order_count)) return false;
    for (int64_t i = 0; i < count; i++)
        if (o->order[(o->due + i) % o->order_count] != pieces[i]) return false;
    return true;
}

/* Records that these pieces step now. A different order than expected discards what was prefetched. */
static int order_follow(const struct meopt *opt, const int *pieces, int64_t count, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    int status = MEOPT_OK;
    if (opt->step != o->step) { /* the previous step is complete */
        bool same = o->repeats && o->current_count == o->order_count && o->due % o->order_count == 0;
        if (!same && o->current_count) status = order_set(opt, o->current, o->current_count, true, err);
        o->current_count = 0;
        o->step = opt->step;
    }
    if (o->current_count + count > o->current_capacity) {
        int64_t capacity = (o->current_count + count) * 2;
        int *current = realloc(o->current, (size_t)capacity * sizeof *current);
        if (!current)
            return optim_fail(err, MEOPT_NO_MEMORY, "no memory for the order of %lld pieces",
                              (long long)capacity);
        o->current = current;
        o->current_capacity = capacity;
    }
    memcpy(o->current + o->current_count, pieces, (size_t)count * sizeof *pieces);
    o->current_count += count;
    if (!status && !order_continues(o, pieces, count)) status = order_set(opt, pieces, count, false, err);
    return status ? status : stages_prefetch(opt, err);
}

/* ---- The sweep --------------------------------------------------------------------------------------------
 */

static struct optim_task piece_task(const struct meopt *opt, const struct optim_task *whole,
                                    const struct piece *p, uint8_t *memory)
{
    const struct tensor *t = &opt->tensors[p->tensor];
    struct layout l = piece_layout(t, p->groups);
    struct optim_task task = *whole;
    int64_t first = p->group * OPTIM_GROUP, left = t->layout.count - first;
    size_t at = (size_t)first, gradient = whole->gradient_format == GRADIENT_F32 ? 4 : 2;
    task.count = left < p->groups * OPTIM_GROUP ? left : p->groups * OPTIM_GROUP;
    task.first_group += p->group;
    task.first_element += first;
    task.first_partial += p->group / OPTIM_CHUNK;
    if (whole->gradient_format == GRADIENT_ACCUMULATOR) {
        task.gradient =
            (const char *)whole->gradient + (size_t)p->group * optim_state_bytes(whole->accumulator_format);
        task.gradient_scales = whole->gradient_scales + p->group;
    } else task.gradient = (const char *)whole->gradient + at * gradient;
    task.weights = (char *)whole->weights + at * optim_weight_bytes(whole->weight_format);
    if (whole->copy) task.copy = (char *)whole->copy + at * 2;
    task.correction = l.residual_bytes ? memory + l.state_bytes : NULL;
    task.m = l.state_bytes ? memory : NULL;
    task.v = l.state_bytes ? memory + l.v_at : NULL;
    task.scales = l.state_bytes ? memory + l.scales_at : NULL;
    task.average = l.average ? memory + l.average_at : NULL;
    return task;
}

/* Returns whether ring_settle would not wait. */
static bool transfer_done(const struct offload *o, int stage)
{
    return !o->transfers || (!o->stages[stage].downloading && transfers_idle(o->transfers, stage));
}

/* Steps some pieces from `at` on, those already loaded, and starts writing them. */
static int step_ready(const struct meopt *opt, const struct optim_sweep *sweep, const size_t *task_of_piece,
                      const int *pieces, int64_t *at, int64_t count, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    struct optim_task tasks[SWEEP_PIECES];
    struct optim_sweep part = *sweep;
    bool changes = false;
    int n = 0, status = MEOPT_OK;
    for (; n < SWEEP_PIECES && *at + n < count && !status; n++) {
        const struct piece *p = &o->pieces[pieces[*at + n]];
        if (n && (p->stage == NONE || !transfer_done(o, p->stage))) break;
        if (p->stage == NONE) status = stages_prefetch(opt, err);
        if (!status) status = ring_settle(opt, p->stage, err);
        if (status) break;
        const struct optim_task *whole = &sweep->tasks[task_of_piece[*at + n]];
        tasks[n] = piece_task(opt, whole, p, o->stages[p->stage].memory);
        changes = !whole->norms_only;
    }
    if (status) return status;
    part.tasks = tasks;
    part.count = (size_t)n;
    opt->device->optim->step(opt->device, opt->work, &part);
    for (int s = 0; o->copier && s < o->stage_count; s++)
        copier_start_file(o, s); /* in parallel with the step */
    o->due += n;
    for (int i = 0; i < n && !status; i++) {
        int piece = pieces[*at + i], stage = o->pieces[piece].stage;
        o->pieces[piece].stage = NONE;
        status = stage_exchange(opt, stage, changes ? piece : NONE, err);
    }
    *at += n;
    return status ? status : stages_prefetch(opt, err);
}

static int sweep_pieces(const struct meopt *opt, const size_t *tensors, const struct optim_sweep *sweep,
                        struct meopt_error *err)
{
    struct offload *o = opt->offload;
    int64_t count = 0;
    for (size_t i = 0; i < sweep->count; i++) count += o->first[tensors[i] + 1] - o->first[tensors[i]];
    if (!count) return MEOPT_OK;
    int *pieces = malloc((size_t)count * sizeof *pieces);
    size_t *tasks = malloc((size_t)count * sizeof *tasks);
    int status = pieces && tasks
                     ? MEOPT_OK
                     : optim_fail(err, MEOPT_NO_MEMORY, "no memory for %lld pieces", (long long)count);
    count = 0;
    for (size_t i = 0; i < sweep->count && !status; i++)
        for (int p = o->first[tensors[i]]; p < o->first[tensors[i] + 1]; p++) {
            tasks[count] = i;
            pieces[count++] = p;
        }
    if (!status) status = order_follow(opt, pieces, count, err);
    for (int64_t at = 0; at < count && !status;)
        status = step_ready(opt, sweep, tasks, pieces, &at, count, err);
    for (int s = 0; o->copier && s < o->stage_count && !status; s++) copier_start_file(o, s);
    free(pieces);
    free(tasks);
    return status;
}

int offload_sweep(struct meopt *opt, const size_t *tensors, const struct optim_sweep *sweep,
                  struct meopt_error *err)
{
    struct offload *o = opt->offload;
    if (!o) return MEOPT_OK;
    pthread_mutex_lock(&o->lock);
    int status =
        o->failed ? optim_fail(err, o->failed, "%s", o->why) : sweep_pieces(opt, tensors, sweep, err);
    pthread_mutex_unlock(&o->lock);
    return status;
}
