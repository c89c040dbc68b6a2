/* Offloaded states: selection of tensors, their pieces, access between steps. The ring: offload_ring.c. */
#include "core/base/crc32c.h"
#include "core/optim/offload_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 1 << 20, /* a disk reaches its rate with requests of this size */
    MIN_STAGES = 3,        /* one is read, one stepped, one written */
    SMALL_COUNT =
        8192 /* elements: norms and biases stay, a thousandth of the bytes and most of the tensors */
};

/* ---- Selection --------------------------------------------------------------------------------------- */

/* Selects tensors evenly along the table, so that every block of a model has an equal share offloaded. */
bool offload_select(struct meopt *opt, const struct layout *l)
{
    double bytes = (double)(l->state_bytes + l->residual_bytes);
    if (!opt->options.offload || l->count < SMALL_COUNT || bytes <= 0) return false;
    opt->offload_seen += bytes;
    if (opt->offload_taken + bytes / 2 > opt->options.offload_fraction * opt->offload_seen) return false;
    opt->offload_taken += bytes;
    return true;
}

static size_t piece_bytes(const struct tensor *t, int64_t groups)
{
    struct layout l = piece_layout(t, groups);
    size_t align = TRANSFER_ALIGNMENT;
    return (l.state_bytes + l.residual_bytes + align - 1) & ~(align - 1);
}

/* Returns the number of groups in each piece of a tensor, except the last. */
static int64_t piece_groups(const struct tensor *t)
{
    int64_t chunks = chunks_of(t), each = PIECE_BYTES / (int64_t)piece_bytes(t, OPTIM_CHUNK);
    int64_t pieces = each > 1 ? (chunks + each - 1) / each : chunks;
    return (chunks + pieces - 1) / pieces * OPTIM_CHUNK;
}

static int partition_pieces(struct meopt *opt, struct offload *o)
{
    int64_t count = 0;
    o->first = calloc(opt->count + 1, sizeof *o->first);
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        int64_t each = t->offloaded ? piece_groups(t) : 1;
        count += t->offloaded ? (t->layout.groups + each - 1) / each : 0;
    }
    o->pieces = count < 1 << 28 ? calloc((size_t)count + 1, sizeof *o->pieces) : NULL;
    if (!o->first || !o->pieces) return MEOPT_NO_MEMORY;
    for (size_t i = 0; i < opt->count; i++) {
        const struct tensor *t = &opt->tensors[i];
        o->first[i] = o->piece_count;
        int64_t each = t->offloaded ? piece_groups(t) : 1;
        for (int64_t g = 0; t->offloaded && g < t->layout.groups; g += each) {
            int64_t groups = t->layout.groups - g < each ? t->layout.groups - g : each;
            size_t bytes = piece_bytes(t, groups);
            o->pieces[o->piece_count++] = (struct piece){.tensor = (int32_t)i,
                                                         .group = g,
                                                         .groups = groups,
                                                         .offset = o->file_bytes,
                                                         .bytes = bytes,
                                                         .stage = NONE,
                                                         .writer = NONE};
            o->file_bytes += (int64_t)bytes;
            if (bytes > o->stage_bytes) o->stage_bytes = bytes;
        }
        o->offloaded_bytes[0] += t->offloaded ? (int64_t)t->layout.state_bytes : 0;
        o->offloaded_bytes[1] += t->offloaded ? (int64_t)t->layout.residual_bytes : 0;
    }
    o->first[opt->count] = o->piece_count;
    return MEOPT_OK;
}

/* ---- File and ring ------------------------------------------------------------------------------------- */

/* Returns options.offload_ring_bytes, or by default the bytes of the largest offloaded tensor. */
static size_t ring_bytes(const struct meopt *opt)
{
    size_t most = opt->options.offload_ring_bytes;
    for (size_t i = 0; i < opt->count && !opt->options.offload_ring_bytes; i++) {
        const struct layout *l = &opt->tensors[i].layout;
        if (opt->tensors[i].offloaded && l->state_bytes + l->residual_bytes > most)
            most = l->state_bytes + l->residual_bytes;
    }
    return most;
}

/* Allocates all stages as one block. Its class of memory is that of moments, most of the offloaded bytes. */
static int ring_create(struct meopt *opt, struct offload *o, struct meopt_error *err)
{
    size_t wanted = ring_bytes(opt) / o->stage_bytes + 2;
    if (wanted < MIN_STAGES) wanted = MIN_STAGES;
    o->stage_count = wanted < (size_t)o->piece_count ? (int)wanted : o->piece_count;
    o->stages = calloc((size_t)o->stage_count + 1, sizeof *o->stages);
    o->block_bytes = ((size_t)o->stage_count + 1) * o->stage_bytes + TRANSFER_ALIGNMENT;
    static const char name[] = "ring of offloaded states";
    o->block = opt->options.device && !opt->options.allocate
                   ? device_alloc(opt->device, MEMORY_OPTIMIZER, o->block_bytes, name, NULL)
                   : memory_allocate(&opt->options, MEOPT_MEMORY_MOMENTS, o->block_bytes, name);
    if (!o->stages || !o->block)
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for the ring of offloaded states (%zu bytes)",
                          o->block_bytes);
    uintptr_t at = ((uintptr_t)o->block + TRANSFER_ALIGNMENT - 1) & ~(uintptr_t)(TRANSFER_ALIGNMENT - 1);
    for (int s = 0; s <= o->stage_count; s++)
        o->stages[s] = (struct stage){.memory = (uint8_t *)at + (size_t)s * o->stage_bytes,
                                      .host = (uint8_t *)at + (size_t)s * o->stage_bytes,
                                      .reads = NONE,
                                      .piece = NONE,
                                      .writes = NONE};
    return MEOPT_OK;
}

static int file_create(struct meopt *opt, struct offload *o, struct meopt_error *err)
{
    struct error why = {0};
    if (transfers_open(&o->transfers, opt->options.offload_dir, o->file_bytes, o->stage_count + 1, &why))
        return optim_fail(err, why.code == EXIT_DISK ? MEOPT_DISK_FULL : MEOPT_IO, "%.100s%s%.150s", why.file,
                          why.file[0] ? ": " : "", why.what);
    return MEOPT_OK;
}

static enum memory_place place_of(const struct meopt *opt)
{
    return opt->options.offload == MEOPT_OFFLOAD_HOST ? PLACE_HOST : PLACE_FILE;
}

int offload_create(struct meopt *opt, struct meopt_error *err)
{
    bool any = false;
    for (size_t i = 0; i < opt->count; i++) any = any || opt->tensors[i].offloaded;
    if (!any) return MEOPT_OK;
    struct offload *o = opt->offload = calloc(1, sizeof *o);
    if (!o) return optim_fail(err, MEOPT_NO_MEMORY, "no memory");
    pthread_mutex_init(&o->lock, NULL);
    if (partition_pieces(opt, o))
        return optim_fail(err, MEOPT_NO_MEMORY, "no memory for the pieces of a file");
    int status = ring_create(opt, o, err);
    bool file = opt->options.offload == MEOPT_OFFLOAD_FILE;
    if (!status && opt->options.device) {
        device_offloaded(opt->device, place_of(opt), MEMORY_OPTIMIZER, o->offloaded_bytes[0]);
        device_offloaded(opt->device, place_of(opt), MEMORY_WEIGHTS, o->offloaded_bytes[1]);
        o->accounted = true;
    }
    if (!status && offload_on_card(opt)) status = copier_create(opt, o, err);
    if (!status && file && !opt->options.dry) status = file_create(opt, o, err);
    return status;
}

void offload_destroy(struct meopt *opt)
{
    struct offload *o = opt->offload;
    if (!o) return;
    transfers_close(o->transfers);
    memory_release(&opt->options, MEOPT_MEMORY_MOMENTS, o->block, o->block_bytes);
    if (o->accounted) {
        copier_destroy(opt, o);
        device_offloaded(opt->device, place_of(opt), MEMORY_OPTIMIZER, -o->offloaded_bytes[0]);
        device_offloaded(opt->device, place_of(opt), MEMORY_WEIGHTS, -o->offloaded_bytes[1]);
    }
    pthread_mutex_destroy(&o->lock);
    free(o->stages);
    free(o->pieces);
    free(o->first);
    free(o->order);
    free(o->current);
    free(o);
}

int meopt_offloaded(const struct meopt *opt, struct meopt_offload_info *info, struct meopt_error *err)
{
    if (!opt || !info || info->size < sizeof info->size)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "no optimizer, no info, or info->size is not set");
    struct meopt_offload_info all = {.size = info->size};
    const struct offload *o = opt->offload;
    if (o) {
        all.moments = o->offloaded_bytes[0];
        all.corrections = o->offloaded_bytes[1];
        all.ring = (int64_t)o->block_bytes;
        all.read = o->bytes_read;
        all.written = o->bytes_written;
        all.wait_seconds = o->wait_seconds;
        all.how = o->transfers ? "threads" : NULL;
        all.direct = o->transfers && transfers_direct(o->transfers);
        all.in_memory = o->transfers && transfers_in_memory(o->transfers);
    }
    struct_copy_out(info, info->size, &all, sizeof all);
    return MEOPT_OK;
}

int meopt_tensor_offloaded(const struct meopt *opt, size_t tensor)
{
    return opt && tensor < opt->count && opt->tensors[tensor].offloaded;
}

/* ---- Between steps ---------------------------------------------------------------------------------------
 */

/* The arrays of a state: offset, and bytes per group. */
struct arrays {
    size_t at[4], each[4];
};
static struct arrays arrays_of(const struct layout *l)
{
    struct arrays a = {{0, l->v_at, l->scales_at, l->average_at},
                       {optim_state_bytes(l->m), optim_state_bytes(l->v), optim_scale_bytes(l->m, l->v),
                        l->average ? optim_state_bytes(STATE_BF16) : 0}};
    if (OPTIM_JOINT(l->m, l->v)) {
        a.each[0] *= 2;
        a.each[1] = 0;
    }
    return a;
}

/* Copies between a piece in its stage and the whole tensor's arrays. in: into the stage. */
static void piece_copy(const struct tensor *t, const struct piece *p, uint8_t *stage, uint8_t *state,
                       uint8_t *correction, bool in)
{
    struct layout l = piece_layout(t, p->groups);
    struct arrays whole = arrays_of(&t->layout), part = arrays_of(&l);
    size_t group = (size_t)p->group, groups = (size_t)p->groups, each = optim_residual_bytes(l.weights);
    for (int i = 0; i < 4 && state; i++) {
        uint8_t *mine = state + whole.at[i] + group * whole.each[i], *its = stage + part.at[i];
        memcpy(in ? its : mine, in ? mine : its, groups * whole.each[i]);
    }
    if (!correction || !each) return;
    uint8_t *mine = correction + group * each, *its = stage + l.state_bytes;
    memcpy(in ? its : mine, in ? mine : its, groups * each);
}

/* Reads or writes a piece through the extra stage, which no step uses. */
static int piece_move(const struct meopt *opt, int index, bool write, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    struct piece *p = &o->pieces[index];
    struct stage *s = &o->stages[o->stage_count];
    uint8_t *storage = copier_storage(o, p);
    if (storage) s->host = storage;
    struct transfer all = {s->host, p->bytes, p->offset};
    if (!write && !p->written) memset(s->host, 0, p->bytes);
    if (storage || (!write && !p->written)) {
        p->written = p->written || write;
        return MEOPT_OK;
    }
    if (write) {
        p->crc = crc32c(0, s->host, p->bytes);
        p->written = true;
        o->bytes_written += (int64_t)p->bytes;
    } else o->bytes_read += (int64_t)p->bytes;
    s->piece = index;
    s->unread = !write;
    transfers_start(o->transfers, o->stage_count, write ? &all : NULL, write ? NULL : &all);
    return ring_settle(opt, o->stage_count, err);
}

int offload_read(const struct meopt *opt, const struct tensor *t, uint8_t *state, uint8_t *correction,
                 struct meopt_error *err)
{
    struct offload *o = opt->offload;
    size_t tensor = (size_t)(t - opt->tensors);
    int status = ring_empty(opt, err);
    for (int p = o->first[tensor]; p < o->first[tensor + 1] && !status; p++) {
        status = piece_move(opt, p, false, err);
        if (!status) piece_copy(t, &o->pieces[p], o->stages[o->stage_count].host, state, correction, false);
    }
    return status;
}

int offload_each(const struct meopt *opt, const struct tensor *t,
                 void (*use)(void *context, int64_t group, int64_t groups, const uint8_t *const arrays[4]),
                 void *context, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    size_t tensor = (size_t)(t - opt->tensors);
    int status = ring_empty(opt, err);
    for (int i = o->first[tensor]; i < o->first[tensor + 1] && !status; i++) {
        const struct piece *p = &o->pieces[i];
        struct layout l = piece_layout(t, p->groups);
        struct arrays part = arrays_of(&l);
        if ((status = piece_move(opt, i, false, err)) != 0) break;
        const uint8_t *host = o->stages[o->stage_count].host;
        use(context, p->group, p->groups,
            (const uint8_t *const[]){host + part.at[0], host + part.at[1], host + part.at[2],
                                     host + part.at[3]});
    }
    return status;
}

int offload_write(const struct meopt *opt, const struct tensor *t, const uint8_t *state,
                  const uint8_t *correction, struct meopt_error *err)
{
    struct offload *o = opt->offload;
    size_t tensor = (size_t)(t - opt->tensors);
    bool all = (state || !t->layout.state_bytes) && (correction || !t->layout.residual_bytes);
    int status = ring_empty(opt, err);
    for (int p = o->first[tensor]; p < o->first[tensor + 1] && !status; p++) {
        uint8_t *storage = copier_storage(o, &o->pieces[p]);
        if (storage) o->stages[o->stage_count].host = storage;
        uint8_t *memory = o->stages[o->stage_count].host;
        if (all) memset(memory, 0, o->pieces[p].bytes);
        else status = piece_move(opt, p, false, err);
        if (status) break;
        piece_copy(t, &o->pieces[p], memory, (uint8_t *)(uintptr_t)state, (uint8_t *)(uintptr_t)correction,
                   true);
        status = piece_move(opt, p, true, err);
    }
    return status;
}
