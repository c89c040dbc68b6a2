/* meopt export: the student of a run as a file that PyTorch opens. */
#include "cli/command.h"
#include "core/base/file.h"
#include "core/run/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct source {
    const struct weights *weights;
    int64_t index;
    enum dtype dtype;
    void **buffer;
    int64_t *held;
};

static int read_part(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    struct source *s = context;
    if (*s->held != s->index) {
        size_t whole = (size_t)weights_tensor(s->weights, s->index)->count * dtype_bytes(s->dtype);
        void *larger = realloc(*s->buffer, whole ? whole : 1);
        if (!larger)
            return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a tensor of %zu bytes", whole);
        *s->buffer = larger;
        int code = weights_read(s->weights, s->index, larger, s->dtype, err);
        if (code) return code;
        *s->held = s->index;
    }
    memcpy(dst, (const char *)*s->buffer + offset, bytes);
    return 0;
}

static int export_run(const struct arguments *args, struct error *err)
{
    bool pt = strcmp(argument_text(args, "format", "safetensors"), "pt") == 0;
    enum dtype dtype = strcmp(argument_text(args, "dtype", "fp32"), "bf16") == 0 ? DTYPE_BF16 : DTYPE_F32;
    struct checkpoint newest;
    int code = checkpoint_newest(&newest, args->operands[0], false, err);
    if (!code && newest.step < 0) {
        code = error_set(err, EXIT_FAILED, "name the directory of a run that has saved", "has no checkpoint");
        error_at(err, args->operands[0], 0, 0);
    }
    if (code) return code;
    char *out = argument_text(args, "out", NULL)
                    ? xstrdup(argument_text(args, "out", NULL))
                    : xasprintf("%s/student.%s", args->operands[0], pt ? "pt" : "safetensors");
    const struct weights *w = newest.model;
    int64_t count = weights_count(w), held = -1;
    void *buffer = NULL;
    struct weights_row *rows = xcalloc((size_t)count, sizeof *rows);
    struct source *sources = xcalloc((size_t)count, sizeof *sources);
    for (int64_t i = 0; i < count; i++) {
        const struct weights_tensor *t = weights_tensor(w, i);
        sources[i] = (struct source){w, i, dtype, &buffer, &held};
        rows[i] = (struct weights_row){
            .name = t->name, .dtype = dtype, .ndim = t->ndim, .read = read_part, .context = &sources[i]};
        memcpy(rows[i].shape, t->shape, sizeof rows[i].shape);
    }
    const char *const metadata[] = {"format", "pt", NULL};
    code = pt ? weights_write_pt(out, rows, count, err)
              : weights_write_safetensors(out, rows, count, metadata, err);
    free(rows);
    free(sources);
    free(buffer);
    if (!code) printf("%s: the student at step %lld\n", out, (long long)newest.step);
    free(out);
    checkpoint_close(&newest);
    return code;
}

static const struct option options[] = {
    {"format", 0, OPTION_TEXT, "FORMAT", "pt|safetensors", 0, 0, "what to write (default safetensors)"},
    {"dtype", 0, OPTION_TEXT, "TYPE", "fp32|bf16", 0, 0, "of the values (default fp32)"},
    {"out", 'o', OPTION_TEXT, "FILE", NULL, 0, 0, "where (default RUN/student.FORMAT)"},
    {0},
};

const struct command cmd_export = {
    "export", "RUN",   "write the student of a run for PyTorch, in its family's key layout",
    NULL,     options, 1,
    1,        false,   export_run};
