/* Saving and loading of a trainer: see trainer_checkpoint.h. */
#include "core/train/trainer_checkpoint.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/run/checkpoint.h"
#include "core/experiment/adapters.h"
#include "core/model/metadata.h"
#include "core/model/parameters.h"
#include "core/step/partition.h"
#include "core/step/step.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- saving: rank 0 writes the weights and sends commands to the other ranks; each writes its states
 * ---- */

enum command_kind { ASK_TENSOR, ASK_RECORDS, ASK_SCAN, ASK_END };

/* A command of rank 0 to the other ranks. */
struct command {
    int64_t kind, index;
    int code; /* ASK_END: how it ended */
    struct error err;
};

static struct comm *ranks_of(const struct trainer *t) { return (struct comm *)(uintptr_t)&t->ranks; }

static int send_command(const struct trainer *t, enum command_kind kind, int64_t index, struct error *err)
{
    struct command command = {.kind = kind, .index = index};
    return dp_sharded(t) ? comm_broadcast(ranks_of(t), &command, sizeof command, 0, err) : 0;
}

/* The file that a record is written to, and its first error. */
struct record_sink {
    checkpoint_put *put;
    void *file;
    int code;
    struct error *err;
};

static int put_record_part(void *context, const void *data, size_t bytes)
{
    struct record_sink *s = context;
    return s->code = s->put(s->file, data, bytes, s->err);
}

static int write_record(void *context, int64_t index, checkpoint_put *put, void *file, struct error *err)
{
    const struct trainer *t = context;
    struct record_sink sink = {put, file, 0, err};
    struct meopt_error library = {0};
    if (!layout_gives(t, &t->student->parameters[t->tensors.parameter[index]])) return 0;
    int code = trainer_hold_trained(t, t->tensors.parameter[index], false, err);
    if (code) return code;
    int status = meopt_state_write(t->opt, (size_t)index, put_record_part, &sink, &library);
    return sink.code ? sink.code : status ? trainer_library_error(&library, err) : 0;
}

/* Returns this rank's states, (t->tensors.count), whole or its part; NULL: out of memory. Empty ones are of
 * tensors that another rank of the tensor group gives. */
static struct checkpoint_record *records_of(const struct trainer *t)
{
    struct checkpoint_record *records = calloc((size_t)t->tensors.count + 1, sizeof *records);
    for (int i = 0; i < t->tensors.count && records; i++) {
        bool gives = layout_gives(t, &t->student->parameters[t->tensors.parameter[i]]);
        records[i] = (struct checkpoint_record){gives ? meopt_state_bytes(t->opt, (size_t)i) : 0,
                                                write_record, (void *)(uintptr_t)t};
    }
    return records;
}

static int no_memory(struct error *err)
{
    return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the list of a checkpoint's tensors");
}

/* Writes the states of this rank's part (collective call). If a rank fails, all return its error. all
 * (ranks): set to the files that were written; may be NULL. */
static int write_records(const struct trainer *t, const char *directory, int64_t step,
                         struct checkpoint_written *all, struct error *err)
{
    int writers = dp_writers(t), rank = t->ranks.rank;
    char there[PATH_MAX] = "";
    struct error own = {0};
    struct checkpoint_written *written = calloc((size_t)t->ranks.size, sizeof *written);
    struct checkpoint_record *records = records_of(t);
    snprintf(there, sizeof there, "%s", directory);
    int lost = comm_broadcast(ranks_of(t), there, sizeof there, 0, err);
    int code = lost ? lost : records && written ? 0 : no_memory(&own);
    /* only rank 0 follows a run that was moved */
    if (!file_absent(directory)) snprintf(there, sizeof there, "%s", directory);
    if (!code && rank < writers)
        code =
            checkpoint_save_part(there, step, rank, writers, records, t->tensors.count, &written[rank], &own);
    if (!lost) code = comm_agree(ranks_of(t), code, &own, "cannot write its part", err);
    if (!code) code = comm_gather_each(ranks_of(t), written, sizeof *written, err);
    if (!code && all) memcpy(all, written, (size_t)writers * sizeof *all);
    free(records);
    free(written);
    return code;
}

/* Executes the commands of rank 0 until ASK_END, and returns its result. Errors here are errors of a
 * collective, which rank 0 also receives. staging: for the largest parameter. */
static int serve_save(const struct trainer *t, const char *directory, float *staging, struct error *err)
{
    struct command command = {0};
    struct error agreed;
    int code;
    while ((code = comm_broadcast(ranks_of(t), &command, sizeof command, 0, err)) == 0) {
        if (command.kind == ASK_END) break;
        if (command.kind == ASK_RECORDS) write_records(t, directory, command.index, NULL, &agreed);
        else trainer_export(t, (int)command.index, staging, &agreed);
    }
    if (!code && command.code && err) *err = command.err;
    return code ? code : command.code;
}

/* Source of one parameter of model.safetensors, which is exported as its bytes are read. */
struct tensor_source {
    struct saving *saving;
    int parameter;
};

/* State of a save on rank 0. */
struct saving {
    const struct trainer *trainer;
    const char *directory;
    int64_t step;
    float *staging, *slice;
    int64_t capacity; /* of staging, a multiple of 64 */
    int staged;       /* the parameter in `staging`; -1: none */
    int64_t first;    /* its first value there */
    bool agreed;      /* the error is that of all ranks */
};

/* Returns the tensor that the index-th of the saved parameters is in files. */
static struct parameter saved_tensor(const struct trainer *t, int64_t index)
{
    return parameter_whole(&t->student_shape, &t->student->parameters[t->saved[index]]);
}

/* Returns the values that are exported at a time: of sharded or sliced weights a whole tensor, else an eighth
 * of the largest, for each export may read all of it from a card or a file. */
static int64_t staged_values(const struct trainer *t)
{
    enum { EIGHTH = 8, LEAST = 4 << 20 };
    int64_t largest = 1;
    for (int i = 0; i < t->saved_count; i++) {
        int64_t count = saved_tensor(t, i).count;
        if (count > largest) largest = count;
    }
    int64_t part = largest / EIGHTH > LEAST ? largest / EIGHTH : LEAST;
    bool whole = dp_sharded(t) || t->student_shape.slices > 1;
    return ((whole || part > largest ? largest : part) + 63) / 64 * 64;
}

/* Returns the bytes of staging, and with slices of a slice after it. */
static size_t staging_bytes(const struct trainer *t)
{
    int64_t values = staged_values(t);
    return (size_t)(t->student_shape.slices > 1 ? 2 * values : values) * sizeof(float);
}

/* Exports all slices of a tensor, the first of which is `parameter`, and puts them together. */
static int stage_slices(struct saving *s, int parameter, struct error *err)
{
    const struct trainer *t = s->trainer;
    const struct parameter *p = &t->student->parameters[parameter];
    int code = 0;
    for (int i = 0; i < p->slices && !code; i++) {
        code = send_command(t, ASK_TENSOR, parameter + i, err);
        if (code) return code;
        code = trainer_export(t, parameter + i, s->slice, err);
        s->agreed = code && dp_sharded(t);
        if (!code) parameter_merge(&t->student_shape, p + i, s->slice, s->staging);
    }
    if (code) return code;
    s->staged = parameter;
    s->first = 0;
    return 0;
}

/* Exports the values from `first` on that fit into staging. */
static int stage(struct saving *s, int parameter, int64_t first, struct error *err)
{
    const struct trainer *t = s->trainer;
    int64_t left = t->student->parameters[parameter].count - first;
    s->staged = -1;
    if (t->student->parameters[parameter].slices > 1) return stage_slices(s, parameter, err);
    int code = send_command(t, ASK_TENSOR, parameter, err);
    if (!code)
        code = dp_sharded(t) ? trainer_export(t, parameter, s->staging, err)
                             : trainer_export_range(t, parameter, first,
                                                    left < s->capacity ? left : s->capacity, s->staging, err);
    s->agreed = code && dp_sharded(t);
    if (code) return code;
    s->staged = parameter;
    s->first = first;
    return 0;
}

static int read_tensor(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    const struct tensor_source *source = context;
    struct saving *s = source->saving;
    for (char *to = dst; bytes;) {
        int64_t at = (int64_t)(offset / sizeof(float));
        if (s->staged != source->parameter || at < s->first || at >= s->first + s->capacity) {
            int code = stage(s, source->parameter, at / s->capacity * s->capacity, err);
            if (code) return code;
        }
        size_t from = offset - (size_t)s->first * sizeof(float),
               left = (size_t)s->capacity * sizeof(float) - from;
        size_t part = bytes < left ? bytes : left;
        memcpy(to, (const char *)s->staging + from, part);
        to += part;
        offset += part;
        bytes -= part;
    }
    return 0;
}

/* Returns what precedes a parameter's name in the file. */
static const char *key_prefix(const struct tower *tower, const struct parameter *p)
{
    return p->head ? "" : family_prefix(tower->model_shape.family);
}

int trainer_parameter_named(const struct trainer *t, const char *key)
{
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        const char *prefix = key_prefix(t->student, p);
        if (strncmp(key, prefix, strlen(prefix)) == 0 && strcmp(key + strlen(prefix), p->name) == 0) return i;
    }
    return -1;
}

/* Returns names and shapes of the tensors in the file, (saved_count). */
static struct weights_row *rows_of(const struct trainer *t)
{
    const struct tower *tower = t->student;
    struct weights_row *rows = xcalloc((size_t)t->saved_count, sizeof *rows);
    for (int i = 0; i < t->saved_count; i++) {
        struct parameter p = saved_tensor(t, i);
        rows[i] = (struct weights_row){
            .name = xasprintf("%s%s", key_prefix(tower, &p), p.name), .dtype = DTYPE_F32, .ndim = p.ndim};
        for (int d = 0; d < p.ndim; d++) rows[i].shape[d] = p.shape[d];
    }
    return rows;
}

static void rows_free(const struct trainer *t, struct weights_row *rows)
{
    for (int i = 0; i < t->saved_count; i++) free((void *)(uintptr_t)rows[i].name);
    free(rows);
}

/* Returns the further members of the manifest. pipeline, tensor: the layout of its writers. averaged:
 * the tensors of model.safetensors with an average (train.ema), in the order of the records. NULL: out of
 * memory. */
static json_t *manifest_members(const struct trainer *t, const struct weights_row *rows)
{
    json_t *more = json_pack("{s:f}", "previous_norm", t->previous_norm);
    if (more && t->stages) json_object_set_new(more, "pipeline", json_integer(t->stages->size));
    if (more && t->tensor) json_object_set_new(more, "tensor", json_integer(t->tensor->size));
    if (more && t->config->model_s.slices > 1)
        json_object_set_new(more, "slices", json_integer(t->config->model_s.slices));
    if (more && config_trains_adapters(t->config))
        json_object_set_new(more, "base", adapters_base(t->config, t->student_content.crc32c));
    if (!more || !(t->config->train.ema > 0)) return more;
    json_t *averaged = json_array();
    for (int i = 0; i < t->tensors.count; i++)
        json_array_append_new(averaged, json_string(rows[t->tensors.parameter[i]].name));
    json_object_set_new(more, "averaged", averaged);
    return more;
}

static int gather_records(void *context, struct checkpoint_written *all, struct error *err)
{
    struct saving *s = context;
    int code = send_command(s->trainer, ASK_RECORDS, s->step, err);
    if (!code) code = write_records(s->trainer, s->directory, s->step, all, err);
    s->agreed = code;
    return code;
}

static int save_rank0(struct saving *s, int keep, struct error *err)
{
    const struct trainer *t = s->trainer;
    struct weights_row *rows = rows_of(t);
    struct tensor_source *sources = xcalloc((size_t)t->saved_count, sizeof *sources);
    for (int i = 0; i < t->saved_count; i++) {
        sources[i] = (struct tensor_source){s, t->saved[i]};
        rows[i].read = read_tensor;
        rows[i].context = &sources[i];
    }
    struct checkpoint_record *records = records_of(t);
    struct metadata metadata;
    metadata_make(&metadata, &t->student_shape, false);
    struct checkpoint_content content = {.tensors = rows,
                                         .tensor_count = t->saved_count,
                                         .records = records,
                                         .record_count = t->tensors.count,
                                         .more = manifest_members(t, rows),
                                         .metadata = metadata.metadata,
                                         .writers = dp_writers(t),
                                         .gather = gather_records,
                                         .context = s};
    int code = records && content.more ? checkpoint_save(s->directory, s->step, keep, &content, err)
                                       : no_memory(err);
    json_decref(content.more);
    rows_free(t, rows);
    free(records);
    free(sources);
    return code;
}

/* Saves as rank 0 and broadcasts the result. */
static int save_as_rank0(struct saving *s, int keep, struct error *err)
{
    const struct trainer *t = s->trainer;
    struct error own = {0};
    int code = save_rank0(s, keep, &own);
    if (code && code != EXIT_RANK_LOST && !s->agreed && t->ranks.size > 1) {
        struct comm_report report;
        comm_report(&report, &t->ranks, code, &own);
        comm_name_rank(&report, 0, code, own.hint, "cannot save", &own);
    }
    struct command end = {.kind = ASK_END, .code = code, .err = own};
    int lost = code == EXIT_RANK_LOST ? 0 : comm_broadcast(ranks_of(t), &end, sizeof end, 0, &own);
    if ((code || lost) && err) *err = own;
    return lost ? lost : code;
}

int trainer_save(const struct trainer *t, const char *directory, int64_t step, int keep, struct error *err)
{
    struct saving saving = {.trainer = t, .directory = directory, .step = step, .staged = -1};
    struct error own = {0};
    int code = 0;
    saving.capacity = staged_values(t);
    if (t->ranks.rank == 0 || dp_sharded(t)) {
        saving.staging = malloc(staging_bytes(t));
        if (saving.staging) saving.slice = saving.staging + saving.capacity;
        else
            code = error_set(&own, EXIT_HOST_MEMORY, NULL,
                             "out of memory for a staging buffer of %lld values", (long long)saving.capacity);
    }
    code = comm_agree(ranks_of(t), code, &own, "cannot save", err);
    if (!code)
        code =
            t->ranks.rank ? serve_save(t, directory, saving.staging, err) : save_as_rank0(&saving, keep, err);
    free(saving.staging);
    return code;
}

/* ---- memory of a save ---- */

size_t trainer_save_bytes(const struct trainer *t)
{
    enum {
        FILES = 16 << 20, /* file buffers, manifest, growth of the heap */
        SCALES = 16       /* those of an offloaded state are held, a smaller part of its record */
    };
    size_t staging = staging_bytes(t), record = 0;
    for (int i = 0; i < t->tensors.count; i++) {
        size_t bytes = meopt_state_bytes(t->opt, (size_t)i);
        if (bytes > record) record = bytes;
    }
    return staging + record / SCALES + FILES; /* records are written in parts */
}

int save_reserve(struct save_reservation *r, size_t bytes, struct error *err)
{
    struct rlimit limit;
    *r = (struct save_reservation){.bytes = bytes};
    if (!bytes || getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
    r->p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->p != MAP_FAILED) return 0;
    r->p = NULL;
    return error_set(
        err, EXIT_HOST_MEMORY, "raise the limit: ulimit -v unlimited",
        "saving a checkpoint needs %.1f MiB, and the address space is limited to %.1f MiB (ulimit -v)",
        (double)bytes / 1048576.0, (double)limit.rlim_cur / 1048576.0);
}

void save_release(struct save_reservation *r)
{
    if (r->p) munmap(r->p, r->bytes);
    r->p = NULL;
}

static int load_tensor(void *context, int64_t index, const float *values, struct error *err)
{
    struct trainer *t = context;
    int parameter = t->saved[index], code = 0;
    const struct parameter *p = &t->student->parameters[parameter];
    if (p->slices == 1) return trainer_import(t, parameter, values, err);
    float *slice = malloc((size_t)p->count * sizeof *slice); /* the first one is the largest */
    if (!slice) return no_memory(err);
    for (int i = 0; i < p->slices && !code; i++) {
        parameter_cut(&t->student_shape, p + i, values, slice);
        code = trainer_import(t, parameter + i, slice, err);
    }
    free(slice);
    return code;
}

/* Selects this rank's part of a tensor; of one in slices the whole, if it has a part of any. */
static void select_part(void *context, int64_t index, int64_t *first, int64_t *count)
{
    const struct trainer *t = context;
    int parameter = t->saved[index], slices = t->student->parameters[parameter].slices;
    int64_t parts = 0;
    for (int i = 0; i < slices; i++) {
        dp_part(t, parameter + i, first, count);
        parts += *count;
    }
    if (slices == 1) return;
    *first = 0;
    *count = parts ? saved_tensor(t, index).count : 0;
}

/* State of a load. parts: number of ranks that wrote the checkpoint, in this layout; cuts: their partitions,
 * by tensor index. */
struct loading {
    struct trainer *trainer;
    size_t parts;
    struct comm_layout layout;
    struct partition *cuts[COMM_TREE_RANKS];
    int64_t *offsets; /* (parts + 1) */
    const void **present;
    size_t *present_bytes; /* (parts) */
};

/* Selects the writers whose parts overlap with this rank's part. */
static void select_writers(void *context, int64_t index, bool *writers)
{
    const struct loading *loading = context;
    const struct trainer *t = loading->trainer;
    int parameter = t->tensors.parameter[index];
    const struct parameter *p = &t->student->parameters[parameter];
    int stages = comm_layout_stages(loading->layout), tensor = comm_layout_tensor(loading->layout),
        each = stages * tensor, owner = layout_slice_owner(loading->layout, p);
    int64_t first, count;
    dp_part(t, parameter, &first, &count);
    partition_offsets(loading->cuts[owner], t->student, parameter, 1, loading->offsets);
    partition_spread(loading->offsets, (int)loading->parts / each, each,
                     stage_of_group(stages, t->student->group_count, p->group) * tensor + owner);
    for (size_t w = 0; w < loading->parts; w++) {
        int64_t begin = loading->offsets[w], end = loading->offsets[w + 1];
        int replica = t->data->rank % ((int)loading->parts / each);
        writers[w] = count ? begin < first + count && end > first && end > begin
                           : w == (size_t)(replica * each + owner); /* for an empty part any record will do */
    }
}

/* Assembles this rank's part of a record from the overlapping parts. The caller frees. */
static void *assemble(const struct loading *loading, size_t there, int64_t index, size_t *bytes, int *status,
                      struct meopt_error *library)
{
    int64_t first, count;
    const void *const *present = (const void *const *)loading->present;
    dp_part(loading->trainer, loading->trainer->tensors.parameter[index], &first, &count);
    *status = meopt_state_range(present, loading->present_bytes, there, first, count, NULL, bytes, library);
    void *part = *status ? NULL : malloc(*bytes);
    if (part)
        *status =
            meopt_state_range(present, loading->present_bytes, there, first, count, part, bytes, library);
    return part;
}

/* Loads a record from the selected parts. CHECKPOINT_MORE requests all parts, if these do not suffice. */
static int load_record(void *context, int64_t index, const void *const *parts, const size_t *part_bytes,
                       struct error *err)
{
    struct loading *loading = context;
    struct trainer *t = loading->trainer;
    struct meopt_error library = {0};
    void *part = NULL;
    size_t there = 0, read = 0, bytes;
    for (size_t w = 0; w < loading->parts; w++) {
        read += parts[w] != NULL;
        if (parts[w] && part_bytes[w]) { /* of a slice, one rank of a tensor group has written it */
            loading->present[there] = parts[w];
            loading->present_bytes[there++] = part_bytes[w];
        }
    }
    if (!there && read == loading->parts)
        return error_set(err, EXIT_INTEGRITY, NULL, "has no optimizer state of %s",
                         t->student->parameters[t->tensors.parameter[index]].name);
    if (!there) return CHECKPOINT_MORE;
    const void *record = loading->present[0];
    bytes = loading->present_bytes[0];
    int code = trainer_hold_trained(t, t->tensors.parameter[index], true, err);
    if (code) return code;
    int status =
        there > 1 ? MEOPT_BAD_STATE : meopt_state_load(t->opt, (size_t)index, record, bytes, &library);
    bool memory = true;
    if (status && (there > 1 || dp_sharded(t) || loading->parts > 1)) {
        record = part = assemble(loading, there, index, &bytes, &status, &library);
        memory = status || part;
        if (!status && memory) status = meopt_state_load(t->opt, (size_t)index, record, bytes, &library);
        free(part);
    }
    if (!memory)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %zu bytes of optimizer state",
                         bytes);
    if (status && read < loading->parts) return CHECKPOINT_MORE;
    return status ? trainer_library_error(&library, err) : 0;
}

/* Returns the layout of the ranks that wrote the checkpoint. One that is not possible is as none: all parts
 * are read then. */
static struct comm_layout writer_layout(const struct trainer *t, const struct checkpoint *c)
{
    json_int_t stages = json_integer_value(json_object_get(c->manifest, "pipeline")),
               tensor = json_integer_value(json_object_get(c->manifest, "tensor"));
    if (stages < 1) stages = 1;
    if (tensor < 1) tensor = 1;
    bool good = stages <= c->writers && tensor <= COMM_TREE_RANKS && c->writers % (stages * tensor) == 0 &&
                t->config->model_s.slices % tensor == 0;
    return good ? (struct comm_layout){(int)stages, (int)tensor} : (struct comm_layout){1, 1};
}

/* States are of slices: each has its own, so those of other slices fit none. */
static int check_slices(const struct trainer *t, const struct checkpoint *c, struct error *err)
{
    json_int_t was = json_integer_value(json_object_get(c->manifest, "slices"));
    long long now = (long long)t->config->model_s.slices;
    if ((was > 1 ? was : 1) == now) return 0;
    char hint[120];
    snprintf(hint, sizeof hint, _("set %s: %lld, or start a run with its weights: meopt train CONFIG --from"),
             config_key_here(t->config, "model_s.slices"), was > 1 ? (long long)was : 1);
    return error_set(err, EXIT_CONFIG, hint, "%s: its optimizer states are of %lld slices, not of %lld",
                     c->directory, was > 1 ? (long long)was : 1, now);
}

static int load_checkpoint(struct trainer *t, const struct checkpoint *c, struct error *err)
{
    int wrong = check_slices(t, c, err);
    if (wrong) return wrong;
    struct weights_row *rows = rows_of(t);
    bool shared = t->ranks.size > 1;
    int code = checkpoint_tensors(c, rows, t->saved_count, shared ? select_part : NULL, load_tensor, t, err);
    size_t writers = (size_t)c->writers;
    struct loading loading = {.trainer = t,
                              .parts = writers,
                              .layout = writer_layout(t, c),
                              .offsets = xcalloc(writers + 1, sizeof *loading.offsets),
                              .present = xcalloc(writers, sizeof *loading.present),
                              .present_bytes = xcalloc(writers, sizeof *loading.present_bytes)};
    int tensor = comm_layout_tensor(loading.layout), own = (int)t->config->model_s.slices / tensor;
    for (int i = 0; i < tensor && writers > 1; i++)
        loading.cuts[i] = partition_elsewhere(t->student, c->writers / comm_layout_ranks(loading.layout),
                                              comm_layout_stages(loading.layout),
                                              &(struct tower_slices){.first = i * own, .own = own});
    if (!code)
        code = checkpoint_records(c, t->tensors.count, writers > 1 ? select_writers : NULL, load_record,
                                  &loading, err);
    for (int i = 0; i < tensor; i++) partition_free(loading.cuts[i]);
    free(loading.offsets);
    free(loading.present);
    free(loading.present_bytes);
    t->previous_norm = json_number_value(json_object_get(c->manifest, "previous_norm"));
    rows_free(t, rows);
    return code;
}

/* ---- loading: rank 0 finds the newest checkpoint, all ranks verify and read it ---- */

/* Gathers the results of all ranks, (ranks); the caller frees. */
static struct comm_report *report_all(const struct trainer *t, int own_code, const struct error *own,
                                      int *code, struct error *err)
{
    int ranks = t->ranks.size;
    struct comm_report *all = xcalloc((size_t)ranks, sizeof *all);
    comm_report(&all[t->ranks.rank], &t->ranks, own_code, own);
    *code = comm_gather_each(ranks_of(t), all, sizeof *all, err);
    return all;
}

/* State of rank 0 while it scans a checkpoint together with the others. */
struct scan_round {
    struct trainer *trainer;
    bool other; /* the error is another rank's */
};

static int begin_scan(void *context, int64_t step, struct error *err)
{
    struct scan_round *l = context;
    struct command command = {.kind = ASK_SCAN, .index = step};
    int code = comm_broadcast(ranks_of(l->trainer), &command, sizeof command, 0, err);
    l->other = code != 0;
    return code;
}

/* Gathers the ranks' findings. Rank 0 verifies damage that another rank reports: that rank may have a bad
 * connection. */
static int end_scan(void *context, const struct checkpoint *c, int own_code, struct error *err)
{
    struct scan_round *l = context;
    struct trainer *t = l->trainer;
    struct error own = err ? *err : (struct error){0};
    int code;
    struct comm_report *all = report_all(t, own_code, &own, &code, err);
    if (!code) code = own_code;
    for (int k = 0; k < 2 * t->ranks.size && !code; k++) { /* damage first: it may be the cause of others */
        int r = k % t->ranks.size;
        bool damaged = all[r].code == EXIT_INTEGRITY;
        if (!all[r].code || damaged != (k < t->ranks.size)) continue;
        if (damaged) code = checkpoint_compare_share(c, r, t->ranks.size, err);
        if (!code)
            code = comm_name_rank(
                &all[r], r, EXIT_FAILED,
                "check that the run's directory is the same on every host, and check that host",
                "cannot read what rank 0 can", err);
    }
    free(all);
    l->other = code != own_code;
    return code;
}

/* Scans its share of each checkpoint that rank 0 tries, until rank 0 has found a complete one. */
static int resume_as_other(struct trainer *t, struct checkpoint *c, const char *directory, struct error *err)
{
    struct checkpoint_share share = {.index = t->ranks.rank, .count = t->ranks.size};
    struct command command = {0};
    struct error own;
    int code;
    while ((code = comm_broadcast(ranks_of(t), &command, sizeof command, 0, err)) == 0 &&
           command.kind == ASK_SCAN) {
        checkpoint_close(c);
        int found = checkpoint_scan(c, directory, command.index, &share, &own);
        free(report_all(t, found, &own, &code, err));
        if (code) return code;
    }
    if (!code && command.code && err) *err = command.err;
    if (!code) code = command.code;
    if (!code && command.index < 0) checkpoint_close(c); /* the scanned one is not used */
    if (!code && command.index != c->step)
        code = error_set(err, EXIT_INTEGRITY, "check that the run's directory is the same on every host",
                         "rank %d has no checkpoint of step %lld, rank 0 has", t->ranks.rank,
                         (long long)command.index);
    return code;
}

/* Finds the newest complete checkpoint as rank 0, and moves damaged ones aside. */
static int resume_as_rank0(struct trainer *t, struct checkpoint *c, const char *directory, struct error *err)
{
    struct scan_round scan = {t, false};
    struct checkpoint_share share = {0, t->ranks.size, begin_scan, end_scan, &scan};
    bool alone = t->ranks.size == 1;
    int code = checkpoint_newest_among(c, directory, true, alone ? NULL : &share, err);
    if (code && code != EXIT_INTEGRITY && !alone && !scan.other && err) {
        struct comm_report own;
        comm_report(&own, &t->ranks, code, err);
        comm_name_rank(&own, 0, code, own.err.hint, "cannot resume", err);
    }
    struct command reported = {.kind = ASK_END, .index = code ? -1 : c->step, .code = code};
    if (code && err) reported.err = *err;
    int lost = alone || code == EXIT_RANK_LOST
                   ? 0
                   : comm_broadcast(ranks_of(t), &reported, sizeof reported, 0, code ? NULL : err);
    return code ? code : lost;
}

int trainer_resume(struct trainer *t, const char *directory, int64_t *step, struct error *err)
{
    struct checkpoint c = {.step = -1, .at = -1, .model_file = -1};
    struct error own = {0};
    int code =
        t->ranks.rank ? resume_as_other(t, &c, directory, err) : resume_as_rank0(t, &c, directory, err);
    *step = c.step;
    if (!code && c.step >= 0)
        code = comm_agree(ranks_of(t), load_checkpoint(t, &c, &own), &own, "cannot resume", err);
    checkpoint_close(&c);
    return code || *step < 0 ? code : dp_gather_weights(t, err);
}
