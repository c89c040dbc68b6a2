/* Saves and loads optimizer state: records of one tensor, a sequence of all, conversion between formats.
 *
 * A record consists of a header, m, v (joint codes: both in m), the scales, an average of the weights,
 * adafactor's row and column means, and a CRC-32C of all that. Arrays are stored as in memory: little-endian,
 * padded to whole groups of 64. Records are untrusted input: every field and every value is checked before
 * the tensor changes. */
#include "core/base/crc32c.h"
#include "core/optim/offload.h"
#include "core/optim/state.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_MAGIC "MEOPTAL1"

/* The header of each tensor of meopt_save; then name, weights, correction, record, CRC-32C of all that. */
struct stream_tensor {
    uint32_t name_bytes;
    int32_t weights;
    uint64_t weight_bytes, residual_bytes, record_bytes;
};
struct stream {
    char magic[8];
    uint64_t count;
};

static struct record record_of(const struct meopt *opt, const struct tensor *t)
{
    const struct layout *l = &t->layout;
    struct record r = {.m = l->m, .v = l->v, .ndim = t->ndim, .first = t->first, .updates = t->updates};
    memcpy(r.magic, RECORD_MAGIC, sizeof RECORD_MAGIC - 1);
    r.magic[7] = (char)('0' + record_version(l->m, l->v));
    r.m_range = l->m == STATE_4BIT ? opt->m_range4 : opt->m_range8;
    memcpy(r.shape, t->shape, sizeof r.shape);
    r.flags = record_flags_of(&r, l->count) + (l->average ? RECORD_AVERAGE : 0) +
              (l->matrices ? RECORD_FACTORS : 0);
    if (RULE_HAS(t->rule, WITH_POINTS)) {
        r.flags += RECORD_POINTS;
        r.weight_sum = t->averaging.weight_sum;
        r.lr_max = t->averaging.lr_max;
    }
    r.header_bytes = (uint32_t)record_header_bytes(&r);
    size_t each[RECORD_ARRAYS];
    record_group_bytes(&r, each);
    r.m_bytes = (uint64_t)l->groups * each[0];
    r.v_bytes = (uint64_t)l->groups * each[1];
    r.scale_bytes = (uint64_t)l->groups * each[2];
    return r;
}

size_t meopt_state_bytes(const struct meopt *opt, size_t tensor)
{
    if (!opt || tensor >= opt->count) return 0;
    struct record r = record_of(opt, &opt->tensors[tensor]);
    return record_bytes(&r);
}

/* Receives a sequence of bytes, with their checksum so far. */
struct sink {
    int (*write)(void *context, const void *data, size_t bytes);
    void *context;
    uint32_t crc;
    int failed;
};
static void put(struct sink *sink, const void *data, size_t bytes)
{
    if (sink->failed || !bytes) return;
    sink->crc = crc32c(sink->crc, data, bytes);
    sink->failed = sink->write(sink->context, data, bytes);
}

/* A pass over the pieces of an offloaded state: writes one of its arrays, and collects its scales, which are
 * a small part, to spare a pass. */
struct array_pass {
    struct sink *sink;
    const size_t *each; /* bytes of a group */
    int array;
    char *scales; /* NULL: they are not collected */
};
static void put_piece(void *context, int64_t group, int64_t groups,
                      const uint8_t *const arrays[RECORD_ARRAYS])
{
    const struct array_pass *pass = context;
    size_t scales = pass->each[SCALES];
    if (pass->scales) memcpy(pass->scales + (size_t)group * scales, arrays[SCALES], (size_t)groups * scales);
    put(pass->sink, arrays[pass->array], (size_t)groups * pass->each[pass->array]);
}

/* The weights of training, in fp32. */
static int write_trained(const struct meopt *opt, const struct tensor *t, struct sink *sink,
                         struct meopt_error *err)
{
    struct tensor host;
    int status = trained_hold(opt, t, &host, err);
    if (status) return status;
    struct optim_task task = task_of(opt, &host);
    for (int64_t group = 0; group < t->layout.groups; group++) {
        float values[OPTIM_GROUP];
        opt->kernels->weights_out(&task, group, group + 1, values);
        put(sink, values, sizeof values);
    }
    return trained_release(opt, t, &host, err);
}

static int write_offloaded(const struct meopt *opt, const struct tensor *t, const size_t each[RECORD_ARRAYS],
                           struct sink *sink, struct meopt_error *err)
{
    char *scales = malloc(t->layout.scale_bytes + 1);
    int status =
        scales ? MEOPT_OK : optim_fail(err, MEOPT_NO_MEMORY, "no memory for scales of %.100s", t->name);
    for (int i = 0; i < RECORD_ARRAYS && !status && !sink->failed; i++) {
        struct array_pass pass = {sink, each, i, i == 0 ? scales : NULL};
        if (i == SCALES) put(sink, scales, t->layout.scale_bytes);
        else if (i == TRAINED && each[i]) status = write_trained(opt, t, sink, err);
        else if (each[i]) status = offload_each(opt, t, put_piece, &pass, err);
    }
    free(scales);
    return status;
}

/* The arrays of a state in the device's memory. */
static int write_resident(const struct meopt *opt, const struct tensor *t, const size_t each[RECORD_ARRAYS],
                          struct sink *sink, struct meopt_error *err)
{
    enum { PART_BYTES = 1 << 20 };
    const struct layout *l = &t->layout;
    const size_t begin[TRAINED] = {0, l->v_at, l->scales_at, l->average_at};
    bool host = opt->device->host_memory;
    char *part = host ? NULL : malloc(PART_BYTES);
    int status =
        host || part ? MEOPT_OK : optim_fail(err, MEOPT_NO_MEMORY, "no memory for a part of %.100s", t->name);
    for (int i = 0; i < TRAINED && !status; i++) {
        size_t bytes = (size_t)l->groups * each[i], most = host ? bytes : PART_BYTES;
        for (size_t at = 0; at < bytes && !status && !sink->failed; at += most) {
            size_t some = bytes - at < most ? bytes - at : most;
            const uint8_t *from = t->state + begin[i] + at;
            if (!host) {
                opt->device->download(opt->device, part, from, some);
                status = optim_device_status(opt, err);
            }
            if (!status) put(sink, host ? (const void *)from : part, some);
        }
    }
    free(part);
    return status || !each[TRAINED] || sink->failed ? status : write_trained(opt, t, sink, err);
}

/* Row and column means, which are small and never offloaded. */
static int write_factors(const struct meopt *opt, const struct tensor *t, struct sink *sink,
                         struct meopt_error *err)
{
    size_t bytes = factor_count(&t->layout) * sizeof(float);
    struct tensor host;
    if (!bytes || opt->device->host_memory) {
        put(sink, t->factors, bytes);
        return MEOPT_OK;
    }
    int status = tensor_hold(opt, t, PART_FACTORS, &host, err);
    if (status) return status;
    put(sink, host.factors, bytes);
    return tensor_release(opt, t, &host, false, err);
}

int meopt_state_write(const struct meopt *opt, size_t tensor,
                      int (*write)(void *context, const void *data, size_t bytes), void *context,
                      struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    if (!opt || tensor >= opt->count || !write || opt->options.dry)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "no optimizer, a dry one, no tensor %zu in it, or no function", tensor);
    const struct tensor *t = &opt->tensors[tensor];
    struct record r = record_of(opt, t);
    struct sink sink = {write, context, 0, 0};
    size_t each[RECORD_ARRAYS];
    record_group_bytes(&r, each);
    put(&sink, &r, r.header_bytes);
    int status = MEOPT_OK;
    if (each[0] || each[1])
        status = t->offloaded ? write_offloaded(opt, t, each, &sink, err)
                              : write_resident(opt, t, each, &sink, err);
    if (!status) status = write_factors(opt, t, &sink, err);
    uint32_t crc = sink.crc;
    if (!status) put(&sink, &crc, sizeof crc);
    return !status && sink.failed ? optim_fail(err, MEOPT_IO, "writing the state of %.100s failed", t->name)
                                  : status;
}

static int append(void *context, const void *data, size_t bytes)
{
    char **at = context;
    memcpy(*at, data, bytes);
    *at += bytes;
    return 0;
}

int meopt_state_save(const struct meopt *opt, size_t tensor, void *record, size_t bytes,
                     struct meopt_error *err)
{
    if (!opt || tensor >= opt->count || !record)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, no tensor %zu in it, or no buffer", tensor);
    struct record r = record_of(opt, &opt->tensors[tensor]);
    if (bytes != record_bytes(&r))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: its record has %zu bytes, the buffer %zu",
                          opt->tensors[tensor].name, record_bytes(&r), bytes);
    char *at = record;
    return meopt_state_write(opt, tensor, append, &at, err);
}

int record_read_header(struct record *r, const void *record, size_t bytes, const char *name,
                       struct meopt_error *err)
{
    size_t least = offsetof(struct record, weight_sum);
    memset(r, 0, sizeof *r);
    if (!record || bytes < least + sizeof(uint32_t))
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s: %zu bytes are too few", name, bytes);
    memcpy(r, record, least);
    int version = r->magic[7] - '0', expected = record_version(r->m, r->v);
    if (memcmp(r->magic, RECORD_MAGIC, sizeof RECORD_MAGIC - 1) != 0 || version < 1 || version > 9)
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s: not a record of libmeopt", name);
    if (version != expected)
        return optim_fail(err, MEOPT_BAD_STATE,
                          "state of %.100s: its record has version %d, expected %d: load it with the release "
                          "of meopt that wrote it",
                          name, version, expected);
    if (r->header_bytes == record_header_bytes(r) && bytes >= r->header_bytes + sizeof(uint32_t)) {
        memcpy(r, record, r->header_bytes);
        if (r->weight_sum >= 0 && r->weight_sum <= DBL_MAX && r->lr_max >= 0 && r->lr_max <= DBL_MAX)
            return MEOPT_OK;
    }
    return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s: its header is damaged", name);
}

/* Returns a task whose state is the payload of a checked record. */
static struct optim_task record_task(const struct meopt *opt, const struct tensor *t, const struct record *r,
                                     const char *payload)
{
    struct optim_task task = task_of(opt, t);
    task.m_format = r->m;
    task.v_format = r->v;
    task.m_range = r->m_range;
    task.m = (void *)(uintptr_t)payload;
    task.v = (void *)(uintptr_t)(payload + r->m_bytes);
    task.scales = (uint8_t *)(uintptr_t)(payload + r->m_bytes + r->v_bytes);
    return task;
}

/* Passes the values of a state to `use` in batches, until it returns false. */
#define BATCH_GROUPS 64
static int state_each(const struct meopt *opt, const struct optim_task *task, int64_t groups,
                      int (*use)(void *context, int64_t group, int64_t count, const float *m, const float *v),
                      void *context)
{
    float m[BATCH_GROUPS * OPTIM_GROUP], v[BATCH_GROUPS * OPTIM_GROUP];
    if (task->m_format == STATE_NONE && task->v_format == STATE_NONE) return 0;
    for (int64_t group = 0; group < groups; group += BATCH_GROUPS) {
        int64_t count = groups - group < BATCH_GROUPS ? groups - group : BATCH_GROUPS;
        float *vs = task->v_format == STATE_NONE ? NULL : v;
        opt->kernels->state_out(task, group, group + count, m, vs);
        int code = use(context, group, count, m, vs);
        if (code) return code;
    }
    return 0;
}

static int values_good(void *context, int64_t group, int64_t count, const float *m, const float *v)
{
    (void)context;
    (void)group;
    for (int64_t i = 0; i < count * OPTIM_GROUP; i++)
        if (!isfinite(m[i]) || (v && !(v[i] >= 0 && isfinite(v[i])))) return 1;
    return 0;
}

struct target {
    const struct meopt *opt;
    struct optim_task task;
};
static int values_store(void *context, int64_t group, int64_t count, const float *m, const float *v)
{
    struct target *target = context;
    target->opt->kernels->state_in(&target->task, group, group + count, m, v);
    return 0;
}

/* Checks scales of `groups` groups, or headers of joint codes and ranges. Returns `groups` if all are valid,
 * else the first invalid one. */
static int64_t scales_wrong(int m, int v, const uint8_t *scales, int64_t groups)
{
    bool joint = OPTIM_JOINT(m, v);
    if (OPTIM_M_GRID(m, v)) return groups; /* every header is valid */
    size_t each = joint ? sizeof(uint32_t) : OPTIM_LOW_BIT(m) || OPTIM_LOW_BIT(v) ? 1 : 0;
    for (int64_t group = 0; each && group < groups; group++) {
        uint32_t header = scales[group * (int64_t)each];
        if (joint) memcpy(&header, scales + group * (int64_t)each, sizeof header);
        bool wrong =
            joint ? (header & 0x7ff) < 16 : header < STATE_EXPONENT_MIN || header > STATE_EXPONENT_MAX;
        if (header && wrong) return group;
    }
    return groups;
}

static bool average_good(const char *average, size_t bytes)
{
    bool good = true;
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t half;
        memcpy(&half, average + i, 2);
        good = good && (half & 0x7f80) != 0x7f80;
    }
    return good;
}

/* Sets the weights of `to`, or, if it is NULL, returns whether a value is not finite. */
static int trained_each(const struct meopt *opt, const struct optim_task *to, const char *values,
                        uint64_t bytes)
{
    float some[OPTIM_GROUP];
    for (uint64_t at = 0; at < bytes; at += sizeof some) {
        int64_t group = (int64_t)(at / sizeof some);
        memcpy(some, values + at, sizeof some); /* of no alignment */
        if (to) opt->kernels->weights_in(to, group, group + 1, some);
        else if (!optim_all_finite(some, GRADIENT_F32, OPTIM_GROUP)) return 1;
    }
    return 0;
}

static bool factors_good(const char *factors, size_t bytes)
{
    bool good = true;
    for (size_t i = 0; i < bytes; i += sizeof(float)) {
        float mean;
        memcpy(&mean, factors + i, sizeof mean);
        good = good && mean >= 0 && isfinite(mean);
    }
    return good;
}

static int record_check(const struct meopt *opt, const struct tensor *t, const void *record, size_t bytes,
                        struct record *r, struct meopt_error *err)
{
    const char *name = t->name;
    const struct layout *l = &t->layout;
    int status = record_read_header(r, record, bytes, name, err);
    if (status) return status;
    if (!(r->m == STATE_NONE || meopt_state_format_name(r->m)) ||
        !(r->v == STATE_NONE || meopt_state_format_name(r->v)) || r->m_range < 0 || r->m_range > 20 ||
        r->updates < 0 || !record_flags_valid(r))
        return optim_fail(err, MEOPT_BAD_STATE,
                          "state of %.100s: formats %d and %d or range %d are impossible", name, r->m, r->v,
                          r->m_range);
    if (r->ndim != t->ndim || memcmp(r->shape, t->shape, sizeof r->shape) != 0 || r->first != t->first)
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s has a different shape", name);
    bool points = RULE_HAS(t->rule, WITH_POINTS);
    if ((r->m == STATE_NONE) != (l->m == STATE_NONE) || (r->v == STATE_NONE) != (l->v == STATE_NONE) ||
        points != ((r->flags & RECORD_POINTS) != 0) || !(r->flags & RECORD_FACTORS) != !l->matrices)
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s has different moments than the rule %s",
                          name, meopt_rule_name(t->rule));
    size_t each[RECORD_ARRAYS], groups = (size_t)l->groups;
    record_group_bytes(r, each);
    if (r->m_bytes != groups * each[0] || r->v_bytes != groups * each[1] ||
        r->scale_bytes != groups * each[2] || bytes != record_bytes(r))
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s: %zu bytes do not fit its header", name,
                          bytes);
    int64_t count = record_count(r, l->groups);
    if (record_grouped(r) && count != l->count)
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s: expected %lld elements, found %lld", name,
                          (long long)l->count, (long long)count);
    uint32_t crc;
    memcpy(&crc, (const char *)record + bytes - 4, 4);
    if (crc != crc32c(0, record, bytes - 4))
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s: checksum does not match", name);
    const char *payload = (const char *)record + r->header_bytes;
    struct optim_task from = record_task(opt, t, r, payload);
    int64_t wrong = scales_wrong(r->m, r->v, from.scales, r->scale_bytes ? l->groups : 0);
    if (r->scale_bytes && wrong < l->groups)
        return optim_fail(err, MEOPT_BAD_STATE, "state of %.100s: the scale of group %lld is impossible",
                          name, (long long)wrong);
    const char *average = payload + r->m_bytes + r->v_bytes + r->scale_bytes;
    const char *trained = average + record_array_bytes(r, AVERAGE),
               *factors = trained + record_array_bytes(r, TRAINED);
    if (state_each(opt, &from, l->groups, values_good, NULL) ||
        !average_good(average, record_array_bytes(r, AVERAGE)) ||
        trained_each(opt, NULL, trained, record_array_bytes(r, TRAINED)) ||
        !factors_good(factors, record_factor_bytes(r)))
        return optim_fail(err, MEOPT_BAD_STATE,
                          "state of %.100s holds a NaN, an infinity or a negative second moment", name);
    return MEOPT_OK;
}

/* Loads the values of a checked record; converts those in a different format. */
static int record_apply(struct meopt *opt, struct tensor *t, const struct record *r, const char *payload,
                        struct meopt_error *err)
{
    t->updates = r->updates;
    t->averaging = (struct averaging){r->weight_sum, r->lr_max};
    t->last_step = 0;
    if (!t->layout.state_bytes && !t->layout.factor_bytes) return MEOPT_OK;
    const struct layout *l = &t->layout;
    int range = l->m == STATE_4BIT ? opt->m_range4 : opt->m_range8;
    bool relative = OPTIM_LOW_BIT(l->m) && OPTIM_LOW_BIT(l->v) && !OPTIM_JOINT(l->m, l->v);
    struct tensor host;
    unsigned parts = PART_STATE | PART_FACTORS | (r->flags & RECORD_POINTS ? PART_WEIGHTS : 0);
    int status = tensor_hold(opt, t, parts, &host, err);
    if (status) return status;
    const char *average = payload + r->m_bytes + r->v_bytes + r->scale_bytes,
               *trained = average + record_array_bytes(r, AVERAGE);
    if (l->factor_bytes)
        memcpy(host.factors, trained + record_array_bytes(r, TRAINED), record_factor_bytes(r));
    if (!l->state_bytes) return tensor_release(opt, t, &host, true, err);
    if (r->m == l->m && r->v == l->v && (r->m_range == range || !relative)) {
        memcpy(host.state, payload, r->m_bytes);
        memcpy(host.state + l->v_at, payload + r->m_bytes, r->v_bytes);
        memcpy(host.state + l->scales_at, payload + r->m_bytes + r->v_bytes, r->scale_bytes);
    } else {
        struct optim_task from = record_task(opt, t, r, payload);
        struct target target = {opt, task_of(opt, &host)};
        state_each(opt, &from, l->groups, values_store, &target);
    }
    t->averaged = l->average && r->flags & RECORD_AVERAGE && r->updates;
    if (t->averaged) memcpy(host.state + l->average_at, average, record_array_bytes(r, AVERAGE));
    if (r->flags & RECORD_POINTS) {
        struct optim_task to = task_of(opt, &host);
        trained_each(opt, &to, trained, record_array_bytes(r, TRAINED));
    }
    return tensor_release(opt, t, &host, true, err);
}

int meopt_state_load(struct meopt *opt, size_t tensor, const void *record, size_t bytes,
                     struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    if (!opt || tensor >= opt->count || opt->options.dry)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, a dry one, or no tensor %zu in it", tensor);
    struct record r;
    int status = optim_at_training(opt, err);
    if (!status) status = record_check(opt, &opt->tensors[tensor], record, bytes, &r, err);
    if (!status)
        status = record_apply(opt, &opt->tensors[tensor], &r, (const char *)record + r.header_bytes, err);
    return status;
}

/* ---- All tensors: meopt_save, meopt_load ------------------------------------------------------------- */

static size_t weight_bytes(int format, int64_t count) { return (size_t)count * optim_weight_bytes(format); }

static int put_on(void *context, const void *data, size_t bytes)
{
    struct sink *sink = context;
    put(sink, data, bytes);
    return sink->failed;
}

int meopt_save(const struct meopt *opt, int (*write)(void *context, const void *data, size_t bytes),
               void *context, struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    if (!opt || !write || opt->options.dry)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, a dry one, or write is NULL");
    struct sink sink = {write, context, 0, 0};
    struct stream stream = {.count = opt->count};
    memcpy(stream.magic, STREAM_MAGIC, 8);
    put(&sink, &stream, sizeof stream);
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        const struct layout *l = &t->layout;
        struct stream_tensor head = {
            (uint32_t)strlen(t->name), l->weights, weight_bytes(l->weights, l->count),
            (size_t)l->groups * optim_residual_bytes(l->weights), meopt_state_bytes(opt, i)};
        struct tensor host;
        int status = trained_hold(opt, t, &host, err);
        if (status) return status;
        sink.crc = 0;
        put(&sink, &head, sizeof head);
        put(&sink, t->name, head.name_bytes);
        put(&sink, host.weights, head.weight_bytes);
        put(&sink, host.correction, head.residual_bytes);
        trained_release(opt, t, &host, NULL);
        status = meopt_state_write(opt, i, put_on, &sink, err);
        if (status && !sink.failed) return status;
        uint32_t crc = sink.crc;
        put(&sink, &crc, 4);
    }
    if (sink.failed) return optim_fail(err, MEOPT_IO, "writing the state failed");
    return MEOPT_OK;
}

/* Loads saved weights into a tensor of any format. check_only: changes nothing. */
static int weights_load(struct meopt *opt, size_t tensor, const struct stream_tensor *head,
                        const char *weights, const char *correction, bool apply, struct meopt_error *err)
{
    struct tensor *t = &opt->tensors[tensor];
    struct optim_task from = task_of(opt, t);
    int failed = MEOPT_OK;
    from.weight_format = head->weights == WEIGHTS_F32_COPY ? WEIGHTS_F32 : head->weights;
    from.weights = (void *)(uintptr_t)weights;
    from.correction = (void *)(uintptr_t)correction;
    struct tensor host;
    if (apply && (failed = tensor_hold(opt, t, PART_WEIGHTS, &host, err))) return failed;
    struct optim_task to = task_of(opt, apply ? &host : t);
    for (int64_t group = 0; group < t->layout.groups; group++) {
        float values[OPTIM_GROUP];
        int finite = 1;
        double squares = 0;
        opt->kernels->weights_out(&from, group, group + 1, values);
        optim_sum_squares(values, GRADIENT_F32, OPTIM_GROUP, &squares, &finite);
        if (!finite) {
            failed = optim_fail(err, MEOPT_BAD_STATE, "saved weights of %.100s hold a NaN or an infinity",
                                t->name);
            break;
        }
        if (apply) opt->kernels->weights_in(&to, group, group + 1, values);
    }
    int released = apply ? tensor_release(opt, t, &host, !failed, failed ? NULL : err) : MEOPT_OK;
    return failed ? failed : released;
}

static int stream_read(struct meopt *opt, const char *data, size_t bytes, bool apply, struct meopt_error *err)
{
    struct stream stream;
    if (bytes < sizeof stream)
        return optim_fail(err, MEOPT_BAD_STATE, "a saved state of %zu bytes is truncated", bytes);
    memcpy(&stream, data, sizeof stream);
    if (memcmp(stream.magic, STREAM_MAGIC, 8) != 0)
        return optim_fail(err, MEOPT_BAD_STATE, "not a saved state of libmeopt: it does not begin with %s",
                          STREAM_MAGIC);
    if (stream.count != opt->count)
        return optim_fail(err, MEOPT_BAD_STATE, "the saved state has %llu tensors, the optimizer %zu",
                          (unsigned long long)stream.count, opt->count);
    const char *at = data + sizeof stream, *end = data + bytes;
    bool *loaded = calloc(opt->count + 1, sizeof *loaded);
    if (!loaded) return optim_fail(err, MEOPT_NO_MEMORY, "no memory");
    int status = MEOPT_OK;
    for (size_t i = 0; !status && i < opt->count; i++) {
        struct stream_tensor head;
        char name[1025];
        size_t left = (size_t)(end - at);
        status = optim_fail(err, MEOPT_BAD_STATE, "the saved state is truncated in tensor %zu", i);
        if (left < sizeof head + 4) break;
        memcpy(&head, at, sizeof head);
        left -= sizeof head + 4;
        if (head.name_bytes >= sizeof name || head.name_bytes > left || head.weight_bytes > left ||
            head.residual_bytes > left || head.record_bytes > left ||
            head.name_bytes + head.weight_bytes + head.residual_bytes + head.record_bytes > left)
            break;
        const char *body = at + sizeof head, *weights = body + head.name_bytes,
                   *correction = weights + head.weight_bytes, *record = correction + head.residual_bytes,
                   *tail = record + head.record_bytes;
        memcpy(name, body, head.name_bytes);
        name[head.name_bytes] = 0;
        uint32_t crc;
        memcpy(&crc, tail, 4);
        if (crc != crc32c(0, at, (size_t)(tail - at))) {
            status = optim_fail(err, MEOPT_BAD_STATE, "checksum of tensor %.100s does not match", name);
            break;
        }
        int64_t index = meopt_find(opt, name);
        if (index < 0 || loaded[index]) {
            status = optim_fail(
                err, MEOPT_BAD_STATE,
                "the saved state has a tensor %.100s that the optimizer lacks, or has it twice", name);
            break;
        }
        loaded[index] = true;
        struct tensor *t = &opt->tensors[index];
        if (!meopt_weight_format_name(head.weights) ||
            head.weight_bytes != weight_bytes(head.weights, t->layout.count) ||
            head.residual_bytes != (size_t)t->layout.groups * optim_residual_bytes(head.weights)) {
            status = optim_fail(err, MEOPT_BAD_STATE, "saved weights of %.100s have a different size", name);
            break;
        }
        struct record r;
        status = record_check(opt, t, record, head.record_bytes, &r, err);
        if (!status) status = weights_load(opt, (size_t)index, &head, weights, correction, apply, err);
        if (!status && apply) status = record_apply(opt, t, &r, record + r.header_bytes, err);
        at = tail + 4;
    }
    free(loaded);
    if (!status && at != end)
        status = optim_fail(err, MEOPT_BAD_STATE, "%zu unexpected bytes after the saved state",
                            (size_t)(end - at));
    return status;
}

int meopt_load(struct meopt *opt, const void *data, size_t bytes, struct meopt_error *err)
{
    OPTIM_ENTER(opt);
    if (!opt || !data || opt->options.dry)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, a dry one, or no data");
    if (optim_between_steps(opt, err) || optim_at_training(opt, err)) return MEOPT_BAD_ORDER;
    int status = stream_read(opt, data, bytes, false, err);
    return status ? status : stream_read(opt, data, bytes, true, err);
}
