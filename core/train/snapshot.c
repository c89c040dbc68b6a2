/* The trainer in a checkpoint: see snapshot.h. */
#include "core/train/snapshot.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/run/checkpoint.h"
#include "core/nn/notes.h"
#include "core/train/internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- ranks: one writes the weights and asks the others for what it lacks; each writes its states ---- */

enum question { ASK_TENSOR, ASK_RECORDS, ASK_LOOK, ASK_END };

/* What the rank that leads tells all. */
struct asked {
    int64_t question, index;
    int code; /* ASK_END: how it ended */
    struct error err;
};

static struct dist *ranks_of(const struct trainer *t) { return (struct dist *)(uintptr_t)&t->ranks; }

static int ask(const struct trainer *t, enum question question, int64_t index, struct error *err)
{
    struct asked asked = {.question = question, .index = index};
    return many_sharded(t) ? dist_broadcast(ranks_of(t), &asked, sizeof asked, 0, err) : 0;
}

static int fill_record(void *context, int64_t index, void *dst, size_t bytes, struct error *err)
{
    const struct trainer *t = context;
    struct meopt_error library = {0};
    return meopt_state_save(t->opt, (size_t)index, dst, bytes, &library)
               ? trainer_library_error(&library, err)
               : 0;
}

/* (tensor_count): this rank's states, of its part or whole. */
static struct checkpoint_record *records_of(const struct trainer *t)
{
    struct checkpoint_record *records = xcalloc((size_t)t->tensor_count + 1, sizeof *records);
    for (int i = 0; i < t->tensor_count; i++)
        records[i] = (struct checkpoint_record){meopt_state_bytes(t->opt, (size_t)i), fill_record,
                                                (void *)(uintptr_t)t};
    return records;
}

/* What a rank tells of what it did. */
struct told {
    int code;
    char host[65];
    struct error err;
};

/* That rank's trouble, named; code: as what. */
static int name_rank(const struct told *told, int rank, int code, const char *hint, const char *what,
                     struct error *err)
{
    struct error named = {0};
    error_set(&named, code, hint, "rank %d (host %s) %s: %s", rank, told->host, what, told->err.what);
    if (told->err.file[0]) error_at(&named, told->err.file, 0, 0);
    if (err) *err = named;
    return code;
}

struct wrote {
    struct checkpoint_written written;
    struct told told;
};

/* Every rank writes the states of its part, all at once; the first that could not fails all, and is named.
 * all (ranks): what each has written, or NULL. */
static int write_records(const struct trainer *t, const char *directory, int64_t step,
                         struct checkpoint_written *all, struct error *err)
{
    int ranks = t->ranks.size, rank = t->ranks.rank;
    char there[PATH_MAX] = "";
    struct wrote *wrote = xcalloc((size_t)ranks, sizeof *wrote), *own = &wrote[rank];
    struct checkpoint_record *records = records_of(t);
    snprintf(there, sizeof there, "%s", directory);
    int code = dist_broadcast(ranks_of(t), there, sizeof there, 0, err);
    if (!code) {
        struct told *told = &own->told;
        if (!file_absent(directory)) snprintf(there, sizeof there, "%s", directory);
        /* else it was moved, and one rank alone follows */
        gethostname(told->host, sizeof told->host - 1);
        told->code = checkpoint_save_part(there, step, rank, ranks, records, t->tensor_count, &own->written,
                                          &told->err);
        code = dist_gather_each(ranks_of(t), wrote, sizeof *wrote, err);
    }
    for (int r = 0; r < ranks && !code; r++) {
        if (all) all[r] = wrote[r].written;
        const struct told *told = &wrote[r].told;
        if (told->code) code = name_rank(told, r, told->code, told->err.hint, "cannot write its part", err);
    }
    free(records);
    free(wrote);
    return code;
}

/* A rank that does not write the weights: does what it is asked until the other has ended, and ends like it.
 */
static int answer(const struct trainer *t, const char *directory, struct error *err)
{
    struct asked asked = {0};
    struct error own;
    float *staging = NULL;
    int code = 0;
    while (!code && (code = dist_broadcast(ranks_of(t), &asked, sizeof asked, 0, err)) == 0) {
        if (asked.question == ASK_END) break;
        if (asked.question == ASK_RECORDS) { /* what failed the other has heard of, and ends with it */
            code = write_records(t, directory, asked.index, NULL, &own);
            if (code == EXIT_RANK_LOST && err) *err = own;
            if (code != EXIT_RANK_LOST) code = 0;
            continue;
        }
        staging = xrealloc(staging, (size_t)t->student->parameters[asked.index].count * sizeof *staging);
        code = trainer_export(t, (int)asked.index, staging, err);
    }
    free(staging);
    if (!code && asked.code && err) *err = asked.err;
    return code ? code : asked.code;
}

/* One parameter on its way into model.safetensors: exported whole at its first byte. */
struct stream {
    const struct trainer *trainer;
    int parameter;
    float *staging;
    int *staged;
};

static int stream_read(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    struct stream *s = context;
    if (*s->staged != s->parameter) {
        int code = ask(s->trainer, ASK_TENSOR, s->parameter, err);
        if (!code) code = trainer_export(s->trainer, s->parameter, s->staging, err);
        if (code) return code;
        *s->staged = s->parameter;
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
            .name = xasprintf("%s%s", p->head ? "" : family_prefix(tower->geometry.family), p->name),
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

/* What the writing rank is at, for when the others' turn comes. */
struct saving {
    const struct trainer *trainer;
    const char *directory;
    int64_t step;
};

static int gather_records(void *context, struct checkpoint_written *all, struct error *err)
{
    const struct saving *s = context;
    int code = ask(s->trainer, ASK_RECORDS, s->step, err);
    return code ? code : write_records(s->trainer, s->directory, s->step, all, err);
}

static int save_here(const struct trainer *t, const char *directory, int64_t step, int keep,
                     struct error *err)
{
    const struct tower *tower = t->student;
    int64_t largest = 1;
    for (int i = 0; i < tower->parameter_count; i++)
        if (tower->parameters[i].count > largest) largest = tower->parameters[i].count;
    float *staging = malloc((size_t)largest * sizeof *staging);
    if (!staging)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a staging buffer of %lld values",
                         (long long)largest);
    int staged = -1;
    struct weights_row *rows = rows_of(t);
    struct stream *streams = xcalloc((size_t)tower->parameter_count, sizeof *streams);
    for (int i = 0; i < tower->parameter_count; i++) {
        streams[i] = (struct stream){t, i, staging, &staged};
        rows[i].read = stream_read;
        rows[i].context = &streams[i];
    }
    struct checkpoint_record *records = records_of(t);
    struct saving saving = {t, directory, step};
    struct notes notes;
    notes_make(&notes, &t->student_geometry, false);
    struct checkpoint_content content = {.tensors = rows,
                                         .tensor_count = tower->parameter_count,
                                         .records = records,
                                         .record_count = t->tensor_count,
                                         .more = json_pack("{s:f}", "previous_norm", t->previous_norm),
                                         .metadata = notes.metadata,
                                         .writers = many_sharded(t) ? t->ranks.size : 1,
                                         .gather = gather_records,
                                         .context = &saving};
    int code = checkpoint_save(directory, step, keep, &content, err);
    json_decref(content.more);
    rows_free(t, rows);
    free(records);
    free(streams);
    free(staging);
    return code;
}

int trainer_save(const struct trainer *t, const char *directory, int64_t step, int keep, struct error *err)
{
    struct error own = {0};
    if (t->ranks.rank > 0) return answer(t, directory, err);
    int code = save_here(t, directory, step, keep, &own);
    struct asked end = {.question = ASK_END, .code = code, .err = own};
    if (code != EXIT_RANK_LOST) {
        int told = dist_broadcast(ranks_of(t), &end, sizeof end, 0, &own);
        if (!code) code = told;
    }
    if (code && err) *err = own;
    return code;
}

static int take_tensor(void *context, int64_t index, const float *values, struct error *err)
{
    return trainer_import(context, (int)index, values, err);
}

/* What this rank holds of a parameter. */
static void want_part(void *context, int64_t index, int64_t *first, int64_t *count)
{
    const struct trainer *t = context;
    if (t->tensor_of[index] >= 0) many_part(t, (int)index, first, count);
}

/* parts: of so many ranks as have written them. */
struct taking {
    struct trainer *trainer;
    size_t parts;
    bool told; /* that states are of an earlier version */
};

/* The whole record of a tensor from those of its parts. The caller frees. */
static void *join(const struct taking *taking, const void *const *parts, const size_t *part_bytes,
                  size_t *bytes, int *status, struct meopt_error *library)
{
    *status = meopt_state_join(parts, part_bytes, taking->parts, NULL, bytes, library);
    void *whole = *status ? NULL : xmalloc(*bytes);
    if (whole) *status = meopt_state_join(parts, part_bytes, taking->parts, whole, bytes, library);
    return whole;
}

/* Of several parts this rank's own comes first, alone. As many ranks as have written them, cut alike, need no
 * other; else all are asked for, joined and cut again. */
static int take_record(void *context, int64_t index, const void *const *parts, const size_t *part_bytes,
                       struct error *err)
{
    struct taking *taking = context;
    struct trainer *t = taking->trainer;
    struct meopt_error library = {0};
    int64_t first, count;
    void *whole = NULL, *part = NULL;
    const void *record = parts[0];
    size_t bytes = part_bytes[0], there = 0;
    int status = MEOPT_OK;
    for (size_t w = 0; w < taking->parts; w++) {
        there += parts[w] != NULL;
        if (parts[w]) record = parts[w], bytes = part_bytes[w];
    }
    bool own = there < taking->parts;
    if (own && meopt_state_load(t->opt, (size_t)index, record, bytes, &library)) return CHECKPOINT_MORE;
    int version = meopt_state_version(record, bytes);
    if (version >= 1 && version <= 3 && !taking->told) {
        taking->told = true;
        log_info(
            "the checkpoint's optimizer states are of an earlier version: moments of 8 bits are converted");
    }
    if (own) return 0;
    if (taking->parts > 1) record = whole = join(taking, parts, part_bytes, &bytes, &status, &library);
    if (!status && many_sharded(t)) {
        size_t room = bytes;
        many_part(t, t->parameter_of[index], &first, &count);
        part = xmalloc(bytes);
        status = meopt_state_cut(record, bytes, first, count, part, &room, &library);
        record = part;
        bytes = room;
    }
    if (!status) status = meopt_state_load(t->opt, (size_t)index, record, bytes, &library);
    free(part);
    free(whole);
    return status ? trainer_library_error(&library, err) : 0;
}

static int take(struct trainer *t, const struct checkpoint *c, struct error *err)
{
    struct weights_row *rows = rows_of(t);
    bool shared = t->ranks.size > 1, alike = many_sharded(t) && c->writers == t->ranks.size;
    int code = checkpoint_tensors(c, rows, t->student->parameter_count, shared ? want_part : NULL,
                                  take_tensor, t, err);
    struct taking taking = {t, (size_t)c->writers, false};
    if (!code)
        code = checkpoint_records(c, t->tensor_count, alike ? t->ranks.rank : -1, take_record, &taking, err);
    t->previous_norm = json_number_value(json_object_get(c->manifest, "previous_norm"));
    rows_free(t, rows);
    return code;
}

/* ---- ranks: the first looks for a checkpoint, all read it ---- */

/* (ranks), of all of them; the caller frees. */
static struct told *tell_all(const struct trainer *t, int own_code, const struct error *own, int *code,
                             struct error *err)
{
    int ranks = t->ranks.size;
    struct told *all = xcalloc((size_t)ranks, sizeof *all), *mine = &all[t->ranks.rank];
    mine->code = own_code;
    if (own_code) mine->err = *own;
    gethostname(mine->host, sizeof mine->host - 1);
    *code = dist_gather_each(ranks_of(t), all, sizeof *all, err);
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
    int code = dist_broadcast(ranks_of(l->trainer), &asked, sizeof asked, 0, err);
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
    struct told *all = tell_all(t, own_code, &own, &code, err);
    if (!code) code = own_code;
    for (int k = 0; k < 2 * t->ranks.size && !code; k++) { /* damage first: others may fail for it */
        int r = k % t->ranks.size;
        bool damaged = all[r].code == EXIT_INTEGRITY;
        if (!all[r].code || damaged != (k < t->ranks.size)) continue;
        if (damaged) code = checkpoint_compare_share(c, r, t->ranks.size, err);
        if (!code)
            code = name_rank(&all[r], r, EXIT_FAILED,
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
    while ((code = dist_broadcast(ranks_of(t), &asked, sizeof asked, 0, err)) == 0 &&
           asked.question == ASK_LOOK) {
        checkpoint_close(c);
        int found = checkpoint_look(c, directory, asked.index, &share, &own);
        free(tell_all(t, found, &own, &code, err));
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
        struct told own = {.code = code, .err = *err};
        gethostname(own.host, sizeof own.host - 1);
        name_rank(&own, 0, code, own.err.hint, "cannot go on", err);
    }
    struct asked told = {.question = ASK_END, .index = code ? -1 : c->step, .code = code};
    if (code && err) told.err = *err;
    int lost = alone || code == EXIT_RANK_LOST
                   ? 0
                   : dist_broadcast(ranks_of(t), &told, sizeof told, 0, code ? NULL : err);
    return code ? code : lost;
}

int trainer_resume(struct trainer *t, const char *directory, int64_t *step, struct error *err)
{
    struct checkpoint c = {.step = -1, .model_file = -1};
    struct error own = {0};
    int ranks = t->ranks.size,
        code = t->ranks.rank ? look(t, &c, directory, &own) : lead(t, &c, directory, &own);
    *step = c.step;
    if (!code && c.step >= 0) {
        int taken = take(t, &c, &own), told;
        struct told *all = tell_all(t, taken, &own, &told, &own);
        if ((code = told) == 0 && ranks == 1) code = taken;
        for (int r = 0; r < ranks && !code; r++)
            if (all[r].code) code = name_rank(&all[r], r, all[r].code, all[r].err.hint, "cannot go on", &own);
        free(all);
    }
    checkpoint_close(&c);
    if (!code && *step >= 0) code = many_share(t, &own);
    if (code && err) *err = own;
    return code;
}
