/* The trainer in a checkpoint: see snapshot.h. */
#include "core/train/snapshot.h"
#include "core/base/file.h"
#include "core/run/checkpoint.h"
#include "core/nn/notes.h"
#include "core/train/internal.h"

#include <stdlib.h>
#include <string.h>

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
        int code = trainer_export(s->trainer, s->parameter, s->staging, err);
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

static int fill_record(void *context, int64_t index, void *dst, size_t bytes, struct error *err)
{
    const struct trainer *t = context;
    struct meopt_error library = {0};
    return meopt_state_save(t->opt, (size_t)index, dst, bytes, &library)
               ? trainer_library_error(&library, err)
               : 0;
}

int trainer_save(const struct trainer *t, const char *directory, int64_t step, int keep, struct error *err)
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
    struct checkpoint_record *records = xcalloc((size_t)t->tensor_count + 1, sizeof *records);
    for (int i = 0; i < t->tensor_count; i++)
        records[i] = (struct checkpoint_record){meopt_state_bytes(t->opt, (size_t)i), fill_record,
                                                (void *)(uintptr_t)t};
    struct notes notes;
    notes_make(&notes, &t->student_geometry, false);
    struct checkpoint_content content = {rows,
                                         tower->parameter_count,
                                         records,
                                         t->tensor_count,
                                         json_pack("{s:f}", "previous_norm", t->previous_norm),
                                         notes.metadata};
    int code = checkpoint_save(directory, step, keep, &content, err);
    json_decref(content.more);
    rows_free(t, rows);
    free(records);
    free(streams);
    free(staging);
    return code;
}

static int take_tensor(void *context, int64_t index, const float *values, struct error *err)
{
    return trainer_import(context, (int)index, values, err);
}

static int take_record(void *context, int64_t index, const void *record, size_t bytes, struct error *err)
{
    struct trainer *t = context;
    struct meopt_error library = {0};
    return meopt_state_load(t->opt, (size_t)index, record, bytes, &library)
               ? trainer_library_error(&library, err)
               : 0;
}

int trainer_resume(struct trainer *t, const char *directory, int64_t *step, struct error *err)
{
    struct checkpoint c;
    int code = checkpoint_newest(&c, directory, true, err);
    *step = c.step;
    if (code || c.step < 0) return code;
    struct weights_row *rows = rows_of(t);
    code = checkpoint_tensors(&c, rows, t->student->parameter_count, take_tensor, t, err);
    if (!code) code = checkpoint_records(&c, t->tensor_count, take_record, t, err);
    t->previous_norm = json_number_value(json_object_get(c.manifest, "previous_norm"));
    rows_free(t, rows);
    checkpoint_close(&c);
    return code;
}
