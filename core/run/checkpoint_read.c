/* Reading a checkpoint: all of it, or the part that one of several processes requires. See checkpoint.h. */
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/run/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Verifies the header: 8 bytes with its length, then the names and offsets of the tensors. */
static int check_header(struct checkpoint_reader *r, struct error *err)
{
    uint64_t header = 0;
    int code = checkpoint_reader_span(r, 0, &header, sizeof header, err);
    uint64_t rest = (uint64_t)r->bytes - sizeof header;
    int64_t bytes = code || header > rest ? 0 : (int64_t)header + (int64_t)sizeof header;
    for (int64_t i = 1; i * CHECKPOINT_BLOCK < bytes && !code; i++) code = checkpoint_reader_block(r, i, err);
    return code;
}

int checkpoint_tensors(const struct checkpoint *c, const struct weights_row *rows, int64_t count,
                       checkpoint_wanted *part,
                       int (*take)(void *context, int64_t index, const float *values, struct error *err),
                       void *context, struct error *err)
{
    struct weights *w = c->model;
    struct checkpoint_reader reader;
    bool spans = part && checkpoint_reader_open(&reader, c, checkpoint_model, c->model_file);
    float *values = NULL;
    int code = spans ? check_header(&reader, err) : 0;
    for (int64_t i = 0; i < count && !code; i++) {
        int64_t at = weights_find(w, rows[i].name), wanted = 1;
        for (int d = 0; d < rows[i].ndim; d++) wanted *= rows[i].shape[d];
        if (at < 0 || weights_tensor(w, at)->count != wanted) {
            code = error_set(err, EXIT_INTEGRITY, "resume with the configuration that made the checkpoint",
                             "tensor %s is missing or has a different shape", rows[i].name);
            error_at(err, weights_path(w), 0, 0);
            break;
        }
        float *larger = realloc(values, (size_t)wanted * sizeof *values);
        if (!larger)
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %lld values", (long long)wanted);
        else values = larger;
        bool plain = spans && weights_tensor(w, at)->dtype == DTYPE_F32;
        int64_t first = 0, some = wanted, place = plain ? weights_place(w, at) : -1;
        if (place >= 0) part(context, i, &first, &some);
        if (!code && place >= 0)
            code = checkpoint_reader_span(&reader, place + first * (int64_t)sizeof *values, values + first,
                                          (size_t)some * sizeof *values, err);
        else if (!code) code = weights_read(w, at, values, DTYPE_F32, err);
        if (!code) code = take(context, i, values, err);
    }
    if (spans) checkpoint_reader_close(&reader);
    free(values);
    return code;
}

/* A file of records that is read from its beginning. */
struct cursor {
    int fd;
    char *path;
    uint64_t at;   /* offset of the next record */
    int64_t index; /* index of that record */
};

/* Reads record `index`, which is not before the cursor, and skips those between. The file is open. */
static int read_record(struct cursor *f, int64_t index, char **record, size_t *record_bytes,
                       struct error *err)
{
    struct stat st;
    size_t got = 0;
    uint64_t bytes = 0;
    int code = fstat(f->fd, &st) == 0 ? 0 : error_errno(err, EXIT_FAILED, NULL, "cannot read");
    for (bool there = false; !there && !code;) {
        code = checkpoint_read_at(f->fd, &bytes, sizeof bytes, (int64_t)f->at, &got, f->path, err);
        if (!code && (got < sizeof bytes || bytes > (uint64_t)st.st_size - f->at - sizeof bytes))
            code = error_set(err, EXIT_INTEGRITY, NULL, "optimizer state is truncated");
        there = f->index++ == index;
        if (!code && !there) f->at += sizeof bytes + bytes;
    }
    if (!code && !(*record = malloc(bytes ? bytes : 1)))
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %llu bytes of optimizer state",
                         (unsigned long long)bytes);
    if (!code)
        code = checkpoint_read_at(f->fd, *record, bytes, (int64_t)(f->at + sizeof bytes), &got, f->path, err);
    if (!code && got < bytes) code = error_set(err, EXIT_INTEGRITY, NULL, "became shorter while it was read");
    if (code) {
        error_at(err, f->path, 0, 0);
    } else {
        *record_bytes = (size_t)bytes;
        f->at += sizeof bytes + bytes;
    }
    return code;
}

int checkpoint_records(const struct checkpoint *c, int64_t count, checkpoint_writers *want,
                       int (*take)(void *context, int64_t index, const void *const *parts,
                                   const size_t *bytes, struct error *err),
                       void *context, struct error *err)
{
    size_t writers = (size_t)c->writers, *bytes = xcalloc(writers, sizeof *bytes);
    struct cursor *files = xcalloc(writers, sizeof *files);
    char **parts = xcalloc(writers, sizeof *parts);
    bool *wanted = xcalloc(writers, sizeof *wanted);
    int code = 0;
    for (int w = 0; w < c->writers; w++) {
        char *name = checkpoint_records_name(w, c->writers);
        files[w] = (struct cursor){.path = path_join(c->directory, name)};
        free(name);
    }
    for (int64_t i = 0; i < count && !code; i++) {
        int last = 0;
        memset(wanted, !want, writers);
        if (want) want(context, i, wanted);
        for (code = CHECKPOINT_MORE; code == CHECKPOINT_MORE; memset(wanted, 1, writers)) {
            code = 0;
            for (int w = 0; w < c->writers && !code; w++) {
                if (parts[w] || !wanted[w]) continue;
                code = checkpoint_open_records(c, w, err);
                files[last = w].fd = c->records[w];
                if (!code) code = read_record(&files[w], i, &parts[w], &bytes[w], err);
            }
            if (code) break;
            code = take(context, i, (const void *const *)parts, bytes, err);
            if (code > 0) error_at(err, files[last].path, 0, 0);
        }
        for (size_t w = 0; w < writers; w++) {
            free(parts[w]);
            parts[w] = NULL;
        }
    }
    for (size_t w = 0; w < writers; w++) free(files[w].path);
    free(wanted);
    free(parts);
    free(files);
    free(bytes);
    return code;
}
