/* The files that meopt tokenize writes: see tokenize_output.h. */
#include "cli/text/tokenize_output.h"
#include "core/base/file.h"
#include "core/base/memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *skipped_part(const struct tokenize_output *o) { return xasprintf("%s.part", o->skipped_name); }

void output_begin(struct tokenize_output *o, const char *name, bool validation, bool classes)
{
    *o = (struct tokenize_output){.parts = validation ? 2 : 1, .classes = classes, .skipped_fd = -1};
    o->names[OUTPUT_TRAINING] = xstrdup(name);
    if (validation) o->names[OUTPUT_VALIDATION] = xasprintf("%s-val", name);
    o->skipped_name = xasprintf("%s.skipped", name);
    for (int k = 0; k < o->parts; k++) o->at[k].largest = -1;
}

static int check_absent(const char *path, struct error *err)
{
    if (file_absent(path)) return 0;
    error_set(err, EXIT_FAILED, "remove it, or give another name: -o NAME", "exists already");
    return error_at(err, path, 0, 0);
}

int output_check_names(const struct tokenize_output *o, bool all, struct error *err)
{
    static const char *const ends[] = {".bin", ".idx", ".json", ".labels", ".classes"};
    int code = 0;
    for (int k = 0; k < o->parts; k++)
        for (size_t i = 0; i < (all ? sizeof ends / sizeof *ends : 1) && !code; i++) {
            char *path = xasprintf("%s%s", o->names[k], ends[i]);
            code = check_absent(path, err);
            free(path);
        }
    return code || !all ? code : check_absent(o->skipped_name, err);
}

int output_undo_names(const struct tokenize_output *o, const json_t *state, struct error *err)
{
    int code = json_integer_value(json_object_get(state, "skipped_bytes"))
                   ? token_writer_renamed(o->skipped_name, err)
                   : 0;
    for (int k = 0; k < o->parts && !code; k++) {
        char *path = xasprintf("%s.bin", o->names[k]);
        code = token_writer_renamed(path, err);
        free(path);
    }
    return code;
}

/* ---- positions ---- */

static json_t *position_json(const struct token_position *at)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:i}", "tokens", (json_int_t)at->tokens, "written",
                     (json_int_t)at->documents, "open", (json_int_t)at->open, "largest",
                     (json_int_t)at->largest, "labels", (json_int_t)at->labels, "bits", at->bits);
}

static bool position_read(struct token_position *at, const json_t *json)
{
    json_int_t tokens, documents, open, largest, labels;
    int bits;
    if (json_unpack((json_t *)(uintptr_t)json, "{s:I,s:I,s:I,s:I,s:I,s:i}", "tokens", &tokens, "written",
                    &documents, "open", &open, "largest", &largest, "labels", &labels, "bits", &bits) != 0)
        return false;
    *at = (struct token_position){(int64_t)tokens,  (int64_t)documents, (int64_t)open,
                                  (int64_t)largest, (int64_t)labels,    bits};
    return true;
}

void output_state(const struct tokenize_output *o, json_t *state)
{
    json_t *parts = json_array(), *classes = o->classes ? json_array() : NULL;
    for (int k = 0; k < o->parts; k++) json_array_append_new(parts, position_json(&o->at[k]));
    json_object_set_new(state, "parts", parts);
    json_object_set_new(state, "skipped", json_integer(o->skipped));
    json_object_set_new(state, "skipped_bytes", json_integer(o->skipped_bytes));
    const struct token_writer *w = o->writers[OUTPUT_TRAINING]; /* all have the same classes */
    for (int32_t i = 0; classes && i < token_writer_classes(w); i++)
        json_array_append_new(classes, json_string(token_writer_class_name(w, i)));
    if (classes) json_object_set_new(state, "classes", classes);
}

bool output_resumable(const struct tokenize_output *o, const json_t *state)
{
    const json_t *parts = json_object_get(state, "parts");
    bool good = json_array_size(parts) == (size_t)o->parts;
    for (int k = 0; k < o->parts && good; k++) {
        struct token_position at;
        good = position_read(&at, json_array_get(parts, (size_t)k));
    }
    return good && json_is_integer(json_object_get(state, "skipped")) &&
           json_is_integer(json_object_get(state, "skipped_bytes"));
}

/* Opens the list of records that were left out, and drops what follows the position. */
static int open_skipped(struct tokenize_output *o, struct error *err)
{
    char *path = skipped_part(o);
    struct stat st;
    int code = 0;
    o->skipped_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (o->skipped_fd < 0)
        code = error_errno(err, EXIT_FAILED, "give a path that can be written: -o DIR/NAME",
                           "cannot create this file");
    else if (fstat(o->skipped_fd, &st) || st.st_size < o->skipped_bytes)
        code = error_set(err, EXIT_INTEGRITY, "remove it to begin again", "has %lld bytes, expected %lld",
                         (long long)st.st_size, (long long)o->skipped_bytes);
    else code = file_shorten(o->skipped_fd, o->skipped_bytes, path, err);
    if (code) error_at(err, path, 0, 0);
    free(path);
    return code;
}

int output_open(struct tokenize_output *o, int64_t vocabulary, const json_t *state, struct error *err)
{
    int code = 0;
    json_t *name;
    size_t i;
    o->skipped = json_integer_value(json_object_get(state, "skipped"));
    o->skipped_bytes = json_integer_value(json_object_get(state, "skipped_bytes"));
    for (int k = 0; k < o->parts && !code; k++) {
        bool there = position_read(&o->at[k], json_array_get(json_object_get(state, "parts"), (size_t)k));
        code = token_writer_open(&o->writers[k], o->names[k], vocabulary, o->classes,
                                 there ? &o->at[k] : NULL, err);
        json_array_foreach(json_object_get(state, "classes"), i, name) if (!code)(void)
            token_writer_class(o->writers[k], json_string_value(name), err);
    }
    if (code || o->skipped_bytes) return code ? code : open_skipped(o, err);
    char *left = skipped_part(o);
    unlink(left); /* of a command that got further */
    free(left);
    return 0;
}

/* ---- results ---- */

int output_add(struct tokenize_output *o, const struct corpus_result *r, struct error *err)
{
    const int32_t *ids = r->tokens->ids;
    int code = 0;
    for (int64_t i = 0; i < r->piece_count && !code; i++) {
        const struct corpus_piece *p = &r->pieces[i];
        int32_t class = 0;
        for (int k = 0; p->class && k < o->parts && class >= 0; k++) /* the same numbers in both parts */
            class = token_writer_class(o->writers[k], p->class, err);
        if (class < 0) return err->code;
        code = token_writer_add(o->writers[p->validation ? OUTPUT_VALIDATION : OUTPUT_TRAINING], ids,
                                p->count, p->label, p->ends, class, err);
        ids += p->count;
    }
    return code;
}

int output_skip(struct tokenize_output *o, const struct error *why, struct error *err)
{
    int code = o->skipped_fd >= 0 ? 0 : open_skipped(o, err);
    if (code) return code;
    char *line = xasprintf("%s:%d: %s\n", why->file, why->line, why->what);
    size_t bytes = strlen(line);
    code = file_write_all_at(o->skipped_fd, line, bytes, o->skipped_bytes, o->skipped_name, err);
    free(line);
    o->skipped++;
    o->skipped_bytes += (int64_t)bytes;
    return code;
}

int output_sync(struct tokenize_output *o, struct error *err)
{
    int code = o->skipped_fd >= 0 ? file_sync(o->skipped_fd, o->skipped_name, err) : 0;
    for (int k = 0; k < o->parts && !code; k++) code = token_writer_sync(o->writers[k], &o->at[k], err);
    return code;
}

int output_check_parts(const struct tokenize_output *o, struct error *err)
{
    int64_t documents = 0;
    for (int k = 0; k < o->parts; k++) documents += o->at[k].documents;
    if (!documents) return error_set(err, EXIT_FAILED, "give files with text", "the files have no text");
    for (int k = 0; k < o->parts; k++)
        if (!o->at[k].documents)
            return error_set(
                err, EXIT_FAILED,
                k ? N_("give a larger share, or no --val") : N_("give a smaller share: --val 5%"),
                "%s.bin would have none of the %lld documents", o->names[k], (long long)documents);
    return 0;
}

int output_commit(struct tokenize_output *o, char *const *descriptions, struct error *err)
{
    int code = 0;
    for (int k = 0; k < o->parts && !code; k++)
        code = token_writer_prepare(o->writers[k], &o->at[k], descriptions[k], err);
    if (!code && o->skipped_fd >= 0) {
        char *part = skipped_part(o);
        if (rename(part, o->skipped_name) != 0) {
            code = error_errno(err, EXIT_FAILED, NULL, "cannot rename it to %s", o->skipped_name);
            error_at(err, part, 0, 0);
        } else code = file_sync_name(o->skipped_name, err);
        free(part);
    }
    for (int k = o->parts; k-- > 0 && !code;) code = token_writer_commit(o->writers[k], err);
    return code;
}

void output_remove_unfinished(struct tokenize_output *o)
{
    char *part = skipped_part(o);
    for (int k = 0; k < o->parts; k++)
        if (o->writers[k]) token_writer_remove(o->writers[k]);
    if (o->skipped_fd >= 0) unlink(part);
    free(part);
}

void output_close(struct tokenize_output *o)
{
    for (int k = 0; k < o->parts; k++) {
        token_writer_close(o->writers[k]);
        free(o->names[k]);
    }
    if (o->parts && o->skipped_fd >= 0) close(o->skipped_fd);
    free(o->skipped_name);
}
