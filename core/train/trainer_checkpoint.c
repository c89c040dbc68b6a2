/* The trainer in a checkpoint: see trainer_checkpoint.h. */
#include "core/train/trainer_checkpoint.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/run/checkpoint.h"
#include "core/nn/metadata.h"
#include "core/train/partition.h"
#include "core/train/train_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- ranks: one writes the weights and asks the others for what it lacks; each writes its states ---- */

enum question { ASK_TENSOR, ASK_RECORDS, ASK_LOOK, ASK_END };

/* What the rank that leads tells all. */
struct asked {
    int64_t question, index;
    int code; /* ASK_END: how it ended */
    struct error err;
};

static struct comm *ranks_of(const struct trainer *t) { return (struct comm *)(uintptr_t)&t->ranks; }

static int ask(const struct trainer *t, enum question question, int64_t index, struct error *err)
{
    struct asked asked = {.question = question, .index = index};
    return dp_sharded(t) ? comm_broadcast(ranks_of(t), &asked, sizeof asked, 0, err) : 0;
}

static int fill_record(void *context, int64_t index, void *dst, size_t bytes, struct error *err)
{
    const struct trainer *t = context;
    struct meopt_error library = {0};
    return meopt_state_save(t->opt, (size_t)index, dst, bytes, &library)
               ? trainer_library_error(&library, err)
               : 0;
}

/* (tensor_count): this rank's states, of its part or whole; NULL: no memory. */
static struct checkpoint_record *records_of(const struct trainer *t)
{
    struct checkpoint_record *records = calloc((size_t)t->tensor_count + 1, sizeof *records);
    for (int i = 0; i < t->tensor_count && records; i++)
        records[i] = (struct checkpoint_record){meopt_state_bytes(t->opt, (size_t)i), fill_record,
                                                (void *)(uintptr_t)t};
    return records;
}

static int no_memory(struct error *err)
{
    return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for what a checkpoint lists");
}

/* Every rank writes the states of its part, all at once; the first that could not fails all, and is named.
 * all (ranks): what each has written, or NULL. */
static int write_records(const struct trainer *t, const char *directory, int64_t step,
                         struct checkpoint_written *all, struct error *err)
{
    int ranks = t->ranks.size, rank = t->ranks.rank;
    char there[PATH_MAX] = "";
    struct error own = {0};
    struct checkpoint_written *own_all = all ? NULL : calloc((size_t)ranks, sizeof *own_all);
    struct checkpoint_written *written = all ? all : own_all;
    struct checkpoint_record *records = records_of(t);
    snprintf(there, sizeof there, "%s", directory);
    int lost = comm_broadcast(ranks_of(t), there, sizeof there, 0, err);
    int code = lost ? lost : records && written ? 0 : no_memory(&own);
    /* a run that was moved has its directory elsewhere, and rank 0 alone follows it */
    if (!file_absent(directory)) snprintf(there, sizeof there, "%s", directory);
    if (!code)
        code = checkpoint_save_part(there, step, rank, ranks, records, t->tensor_count, &written[rank], &own);
    if (!lost) code = comm_agree(ranks_of(t), code, &own, "cannot write its part", err);
    if (!code) code = comm_gather_each(ranks_of(t), written, sizeof *written, err);
    free(records);
    free(own_all);
    return code;
}

/* A rank that does not write the weights: does what it is asked until the other has ended, and ends like it.
 * What fails here fails on all ranks, and rank 0 ends the save. staging: for the largest parameter. */
static int answer(const struct trainer *t, const char *directory, float *staging, struct error *err)
{
    struct asked asked = {0};
    struct error agreed;
    int code;
    while ((code = comm_broadcast(ranks_of(t), &asked, sizeof asked, 0, err)) == 0) {
        if (asked.question == ASK_END) break;
        if (asked.question == ASK_RECORDS) write_records(t, directory, asked.index, NULL, &agreed);
        else trainer_export(t, (int)asked.index, staging, &agreed);
    }
    if (!code && asked.code && err) *err = asked.err;
    return code ? code : asked.code;
}

/* One parameter on its way into model.safetensors: exported whole at its first byte. */
struct stream {
    struct saving *saving;
    int parameter;
};

/* What the writing rank is at. */
struct saving {
    const struct trainer *trainer;
    const char *directory;
    int64_t step;
    float *staging;
    int staged;  /* the parameter in it, -1: none */
    bool agreed; /* what failed has failed on all ranks, and the error names one of them */
};

static int stream_read(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    const struct stream *stream = context;
    struct saving *s = stream->saving;
    if (s->staged != stream->parameter) {
        s->staged = -1;
        int code = ask(s->trainer, ASK_TENSOR, stream->parameter, err);
        if (!code) code = trainer_export(s->trainer, stream->parameter, s->staging, err);
        s->agreed = code && dp_sharded(s->trainer);
        if (code) return code;
        s->staged = stream->parameter;
    }
    memcpy(dst, (const char *)s->staging + offset, bytes);
    return 0;
}

/* (parameter_count): the student's tensors as they are called and shaped in the file. */
static struct weights_row *rows_of(const struct trainer *t)
{
    const struct tower *tower = t->student;
    struct weights_row *rows = xcalloc((size_t)tower->parameter_count, sizeof *rows);
    for (int i = 0; i < tower->parameter_count; i++) {
        const struct parameter *p = &tower->parameters[i];
        rows[i] = (struct weights_row){
            .name = xasprintf("%s%s", p->head ? "" : family_prefix(tower->model_shape.family), p->name),
            .dtype = DTYPE_F32,
            .ndim = p->ndim};
        for (int d = 0; d < p->ndim; d++) rows[i].shape[d] = p->shape[d];
    }
    return rows;
}

static void rows_free(const struct trainer *t, struct weights_row *rows)
{
    for (int i = 0; i < t->student->parameter_count; i++) free((void *)(uintptr_t)rows[i].name);
    free(rows);
}

static int gather_records(void *context, struct checkpoint_written *all, struct error *err)
{
    struct saving *s = context;
    int code = ask(s->trainer, ASK_RECORDS, s->step, err);
    if (!code) code = write_records(s->trainer, s->directory, s->step, all, err);
    s->agreed = code;
    return code;
}

static int save_here(struct saving *s, int keep, struct error *err)
{
    const struct trainer *t = s->trainer;
    const struct tower *tower = t->student;
    struct weights_row *rows = rows_of(t);
    struct stream *streams = xcalloc((size_t)tower->parameter_count, sizeof *streams);
    for (int i = 0; i < tower->parameter_count; i++) {
        streams[i] = (struct stream){s, i};
        rows[i].read = stream_read;
        rows[i].context = &streams[i];
    }
    struct checkpoint_record *records = records_of(t);
    struct metadata notes;
    metadata_make(&notes, &t->student_shape, false);
    struct checkpoint_content content = {.tensors = rows,
                                         .tensor_count = tower->parameter_count,
                                         .records = records,
                                         .record_count = t->tensor_count,
                                         .more = json_pack("{s:f}", "previous_norm", t->previous_norm),
                                         .metadata = notes.metadata,
                                         .writers = dp_sharded(t) ? t->ranks.size : 1,
                                         .gather = gather_records,
                                         .context = s};
    int code = records && content.more ? checkpoint_save(s->directory, s->step, keep, &content, err)
                                       : no_memory(err);
    json_decref(content.more);
    rows_free(t, rows);
    free(records);
    free(streams);
    return code;
}

/* Rank 0: saves, and tells the others how that ended. */
static int save_and_end(struct saving *s, int keep, struct error *err)
{
    const struct trainer *t = s->trainer;
    struct error own = {0};
    int code = save_here(s, keep, &own);
    if (code && code != EXIT_RANK_LOST && !s->agreed && t->ranks.size > 1) {
        struct comm_report report;
        comm_report(&report, code, &own);
        comm_name_rank(&report, 0, code, own.hint, "cannot save", &own);
    }
    struct asked end = {.question = ASK_END, .code = code, .err = own};
    int lost = code == EXIT_RANK_LOST ? 0 : comm_broadcast(ranks_of(t), &end, sizeof end, 0, &own);
    if ((code || lost) && err) *err = own;
    return lost ? lost : code;
}

int trainer_save(const struct trainer *t, const char *directory, int64_t step, int keep, struct error *err)
{
    struct saving saving = {.trainer = t, .directory = directory, .step = step, .staged = -1};
    struct error own = {0};
    int64_t largest = 1;
    int code = 0;
    for (int i = 0; i < t->student->parameter_count; i++)
        if (t->student->parameters[i].count > largest) largest = t->student->parameters[i].count;
    if (t->ranks.rank == 0 || dp_sharded(t)) {
        saving.staging = malloc((size_t)largest * sizeof *saving.staging);
        if (!saving.staging)
            code = error_set(&own, EXIT_HOST_MEMORY, NULL,
                             "out of memory for a staging buffer of %lld values", (long long)largest);
    }
    code = comm_agree(ranks_of(t), code, &own, "cannot save", err);
    if (!code)
        code = t->ranks.rank ? answer(t, directory, saving.staging, err) : save_and_end(&saving, keep, err);
    free(saving.staging);
    return code;
}

/* ---- room for a save ---- */

size_t trainer_save_bytes(const struct trainer *t)
{
    enum { FILES = 16 << 20 }; /* buffers of the files, the manifest, and what a heap grows at once */
    size_t staging = 0, record = 0;
    for (int i = 0; i < t->student->parameter_count; i++) {
        size_t bytes = (size_t)t->student->parameters[i].count * sizeof(float);
        if (bytes > staging) staging = bytes;
    }
    for (int i = 0; i < t->tensor_count; i++) {
        size_t bytes = meopt_state_bytes(t->opt, (size_t)i);
        if (bytes > record) record = bytes;
    }
    return staging + 2 * record + FILES; /* twice: offloaded states are read first */
}

int save_reserve(struct save_reservation *room, size_t bytes, struct error *err)
{
    struct rlimit limit;
    *room = (struct save_reservation){.bytes = bytes};
    if (!bytes || getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 0;
    room->p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room->p != MAP_FAILED) return 0;
    room->p = NULL;
    return error_set(
        err, EXIT_HOST_MEMORY, "raise the limit: ulimit -v unlimited",
        "a checkpoint could not be saved: it takes %.1f MiB, and the address space is limited to "
        "%.1f MiB (ulimit -v)",
        (double)bytes / 1048576.0, (double)limit.rlim_cur / 1048576.0);
}

void save_release(struct save_reservation *room)
{
    if (room->p) munmap(room->p, room->bytes);
    room->p = NULL;
}

static int take_tensor(void *context, int64_t index, const float *values, struct error *err)
{
    return trainer_import(context, (int)index, values, err);
}

/* What this rank holds of a parameter. */
static void want_part(void *context, int64_t index, int64_t *first, int64_t *count)
{
    const struct trainer *t = context;
    if (t->tensor_of[index] >= 0) dp_part(t, (int)index, first, count);
}

/* parts: of so many ranks as have written them, who cut the tensors like this. */
struct taking {
    struct trainer *trainer;
    size_t parts;
    struct partition *cut;
    int64_t *offsets; /* (parts + 1) */
    const void **some;
    size_t *some_bytes; /* (parts) */
    bool told;          /* that states are of an earlier version */
};

/* Those ranks that have written something of this rank's part. */
static void want_records(void *context, int64_t index, bool *writers)
{
    const struct taking *taking = context;
    const struct trainer *t = taking->trainer;
    int parameter = t->parameter_of[index];
    int64_t first, count;
    dp_part(t, parameter, &first, &count);
    partition_offsets(taking->cut, t->student, parameter, 1, taking->offsets);
    for (size_t w = 0; w < taking->parts; w++) {
        int64_t begin = taking->offsets[w], end = taking->offsets[w + 1];
        writers[w] = count ? begin < first + count && end > first
                           : w == (size_t)t->ranks.rank % taking->parts; /* any says what it is of */
    }
}

/* This rank's part of a record from those that overlap it. The caller frees. */
static void *assemble(const struct taking *taking, size_t there, int64_t index, size_t *bytes, int *status,
                      struct meopt_error *library)
{
    int64_t first, count;
    const void *const *some = (const void *const *)taking->some;
    dp_part(taking->trainer, taking->trainer->parameter_of[index], &first, &count);
    *status = meopt_state_range(some, taking->some_bytes, there, first, count, NULL, bytes, library);
    void *part = *status ? NULL : malloc(*bytes);
    if (part)
        *status = meopt_state_range(some, taking->some_bytes, there, first, count, part, bytes, library);
    return part;
}

/* Of several parts those come first that should have what this rank needs; where they have not, all. */
static int take_record(void *context, int64_t index, const void *const *parts, const size_t *part_bytes,
                       struct error *err)
{
    struct taking *taking = context;
    struct trainer *t = taking->trainer;
    struct meopt_error library = {0};
    void *part = NULL;
    size_t there = 0, bytes;
    for (size_t w = 0; w < taking->parts; w++)
        if (parts[w]) {
            taking->some[there] = parts[w];
            taking->some_bytes[there++] = part_bytes[w];
        }
    if (!there) return CHECKPOINT_MORE;
    const void *record = taking->some[0];
    bytes = taking->some_bytes[0];
    int version = meopt_state_version(record, bytes),
        status =
            there > 1 ? MEOPT_BAD_STATE : meopt_state_load(t->opt, (size_t)index, record, bytes, &library);
    bool memory = true;
    if (status && (there > 1 || dp_sharded(t))) {
        record = part = assemble(taking, there, index, &bytes, &status, &library);
        memory = status || part;
        if (!status && memory) status = meopt_state_load(t->opt, (size_t)index, record, bytes, &library);
        free(part);
    }
    if (!memory)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %zu bytes of optimizer state",
                         bytes);
    if (status && there < taking->parts) return CHECKPOINT_MORE;
    if (!status && version >= 1 && version <= 3 && !taking->told) {
        taking->told = true;
        log_info(
            "the checkpoint's optimizer states are of an earlier version: moments of 8 bits are converted");
    }
    return status ? trainer_library_error(&library, err) : 0;
}

static int take(struct trainer *t, const struct checkpoint *c, struct error *err)
{
    struct weights_row *rows = rows_of(t);
    bool shared = t->ranks.size > 1;
    int code = checkpoint_tensors(c, rows, t->student->parameter_count, shared ? want_part : NULL,
                                  take_tensor, t, err);
    size_t writers = (size_t)c->writers;
    struct taking taking = {.trainer = t,
                            .parts = writers,
                            .cut = writers > 1 ? partition_make(t->student, c->writers, 0) : NULL,
                            .offsets = xcalloc(writers + 1, sizeof *taking.offsets),
                            .some = xcalloc(writers, sizeof *taking.some),
                            .some_bytes = xcalloc(writers, sizeof *taking.some_bytes)};
    if (!code)
        code = checkpoint_records(c, t->tensor_count, writers > 1 ? want_records : NULL, take_record, &taking,
                                  err);
    partition_free(taking.cut);
    free(taking.offsets);
    free(taking.some);
    free(taking.some_bytes);
    t->previous_norm = json_number_value(json_object_get(c->manifest, "previous_norm"));
    rows_free(t, rows);
    return code;
}

/* ---- ranks: the first looks for a checkpoint, all read it ---- */

/* (ranks), of all of them; the caller frees. */
static struct comm_report *report_all(const struct trainer *t, int own_code, const struct error *own,
                                      int *code, struct error *err)
{
    int ranks = t->ranks.size;
    struct comm_report *all = xcalloc((size_t)ranks, sizeof *all);
    comm_report(&all[t->ranks.rank], own_code, own);
    *code = comm_gather_each(ranks_of(t), all, sizeof *all, err);
    return all;
}

/* The rank that leads: whether what fails is another's. */
struct leading {
    struct trainer *trainer;
    bool other;
};

static int begin_share(void *context, int64_t step, struct error *err)
{
    struct leading *l = context;
    struct asked asked = {.question = ASK_LOOK, .index = step};
    int code = comm_broadcast(ranks_of(l->trainer), &asked, sizeof asked, 0, err);
    l->other = code != 0;
    return code;
}

/* Damaged is what this rank finds damaged, too: another may have a bad cable. */
static int end_share(void *context, const struct checkpoint *c, int own_code, struct error *err)
{
    struct leading *l = context;
    struct trainer *t = l->trainer;
    struct error own = err ? *err : (struct error){0};
    int code;
    struct comm_report *all = report_all(t, own_code, &own, &code, err);
    if (!code) code = own_code;
    for (int k = 0; k < 2 * t->ranks.size && !code; k++) { /* damage first: others may fail for it */
        int r = k % t->ranks.size;
        bool damaged = all[r].code == EXIT_INTEGRITY;
        if (!all[r].code || damaged != (k < t->ranks.size)) continue;
        if (damaged) code = checkpoint_compare_share(c, r, t->ranks.size, err);
        if (!code)
            code = comm_name_rank(&all[r], r, EXIT_FAILED,
                                  "is the run's directory the same on every host, and that host well?",
                                  "cannot read what rank 0 can", err);
    }
    free(all);
    l->other = code != own_code;
    return code;
}

/* Another rank: reads its share of what it is asked for, until the first has found one. */
static int look(struct trainer *t, struct checkpoint *c, const char *directory, struct error *err)
{
    struct checkpoint_share share = {.index = t->ranks.rank, .count = t->ranks.size};
    struct asked asked = {0};
    struct error own;
    int code;
    while ((code = comm_broadcast(ranks_of(t), &asked, sizeof asked, 0, err)) == 0 &&
           asked.question == ASK_LOOK) {
        checkpoint_close(c);
        int found = checkpoint_scan(c, directory, asked.index, &share, &own);
        free(report_all(t, found, &own, &code, err));
        if (code) return code;
    }
    if (!code && asked.code && err) *err = asked.err;
    if (!code) code = asked.code;
    if (!code && asked.index < 0) checkpoint_close(c); /* what was looked at is gone */
    if (!code && asked.index != c->step)
        code = error_set(err, EXIT_INTEGRITY, "is the run's directory the same on every host?",
                         "rank %d has no checkpoint of step %lld, rank 0 has", t->ranks.rank,
                         (long long)asked.index);
    return code;
}

/* The rank that owns the run: it puts damaged ones aside. */
static int lead(struct trainer *t, struct checkpoint *c, const char *directory, struct error *err)
{
    struct leading leading = {t, false};
    struct checkpoint_share share = {0, t->ranks.size, begin_share, end_share, &leading};
    bool alone = t->ranks.size == 1;
    int code = checkpoint_newest_among(c, directory, true, alone ? NULL : &share, err);
    if (code && code != EXIT_INTEGRITY && !alone && !leading.other && err) {
        struct comm_report own;
        comm_report(&own, code, err);
        comm_name_rank(&own, 0, code, own.err.hint, "cannot resume", err);
    }
    struct asked told = {.question = ASK_END, .index = code ? -1 : c->step, .code = code};
    if (code && err) told.err = *err;
    int lost = alone || code == EXIT_RANK_LOST
                   ? 0
                   : comm_broadcast(ranks_of(t), &told, sizeof told, 0, code ? NULL : err);
    return code ? code : lost;
}

int trainer_resume(struct trainer *t, const char *directory, int64_t *step, struct error *err)
{
    struct checkpoint c = {.step = -1, .at = -1, .model_file = -1};
    struct error own = {0};
    int code = t->ranks.rank ? look(t, &c, directory, err) : lead(t, &c, directory, err);
    *step = c.step;
    if (!code && c.step >= 0) code = comm_agree(ranks_of(t), take(t, &c, &own), &own, "cannot resume", err);
    checkpoint_close(&c);
    return code || *step < 0 ? code : dp_gather_weights(t, err);
}
