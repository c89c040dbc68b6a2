/* Writing token files: see token_write.h. */
#include "core/data/token_write.h"
#include "core/base/file.h"
#include "core/base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum {
    BUFFER = 1 << 20,
    LABELS_HEAD = 16,
    LARGEST_U16 = 65500 /* as in Megatron-LM's best_fitting_dtype */,
    MOST_CLASSES = 1 << 16
};

struct part {
    int fd;
    char *path, *buffer;
    size_t count;
    int64_t bytes; /* with those in the buffer */
};

struct token_writer {
    struct part tokens, lengths, labels; /* labels: once a token is none */
    struct part classes;                 /* path NULL: none */
    char **names;                        /* (name_count) */
    int32_t *sorted, name_count;         /* sorted: their numbers in the order of the names */
    char *base;
    const char *description; /* of the caller */
    int width;
    struct token_position at;
};

static void put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> 8 * i);
}

static int part_flush(struct part *p, struct error *err)
{
    int code = file_write_all_at(p->fd, p->buffer, p->count, p->bytes - (int64_t)p->count, p->path, err);
    if (!code) p->count = 0;
    return code;
}

static int part_write(struct part *p, const void *data, size_t bytes, struct error *err)
{
    int code = p->count + bytes > BUFFER ? part_flush(p, err) : 0;
    if (code) return code;
    memcpy(p->buffer + p->count, data, bytes);
    p->count += bytes;
    p->bytes += (int64_t)bytes;
    return 0;
}

/* Opens a part and drops what follows its first `bytes` bytes. */
static int part_open(struct part *p, char *path, int64_t bytes, struct error *err)
{
    struct stat st;
    *p = (struct part){.path = path, .buffer = xmalloc(BUFFER), .bytes = bytes};
    p->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->fd < 0) {
        error_errno(err, EXIT_FAILED, "give a path that can be written: -o DIR/NAME",
                    "cannot create this file");
        return error_at(err, path, 0, 0);
    }
    if (flock(p->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        error_set(err, EXIT_LOCKED, "wait for it, or give another name: -o NAME",
                  "a different process writes this file");
        return error_at(err, path, 0, 0);
    }
    if (fstat(p->fd, &st) || st.st_size < bytes) {
        error_set(err, EXIT_INTEGRITY, "remove it to begin again", "has %lld bytes, expected %lld",
                  (long long)st.st_size, (long long)bytes);
        return error_at(err, path, 0, 0);
    }
    return file_shorten(p->fd, bytes, path, err);
}

static void part_close(struct part *p)
{
    if (p->path && p->fd >= 0) close(p->fd);
    free(p->path);
    free(p->buffer);
}

int token_writer_open(struct token_writer **writer, const char *base, int64_t vocabulary, bool classes,
                      const struct token_position *at, struct error *err)
{
    struct token_writer *w = xcalloc(1, sizeof *w);
    w->base = xstrdup(base);
    w->width = vocabulary < LARGEST_U16 ? 2 : 4;
    w->at = at ? *at : (struct token_position){.largest = -1};
    char *labels = xasprintf("%s.labels.part", base);
    if (w->at.labels >= w->at.tokens) unlink(labels); /* of a command that got further */
    free(labels);
    int code = part_open(&w->tokens, xasprintf("%s.bin.part", base), w->at.tokens * w->width, err);
    if (!code) code = part_open(&w->lengths, xasprintf("%s.idx.part", base), w->at.documents * 4, err);
    if (!code && w->at.labels < w->at.tokens)
        code = part_open(&w->labels, xasprintf("%s.labels.part", base), LABELS_HEAD + w->at.tokens / 8, err);
    if (!code && classes)
        code = part_open(&w->classes, xasprintf("%s.classes.part", base), w->at.documents * 4, err);
    if (code) token_writer_close(w);
    *writer = code ? NULL : w;
    return code;
}

const char *token_writer_type(const struct token_writer *w) { return w->width == 2 ? "uint16" : "int32"; }
int32_t token_writer_classes(const struct token_writer *w) { return w->name_count; }
const char *token_writer_class_name(const struct token_writer *w, int32_t class) { return w->names[class]; }

int32_t token_writer_class(struct token_writer *w, const char *name, struct error *err)
{
    int32_t low = 0, high = w->name_count, n = w->name_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2, order = strcmp(w->names[w->sorted[middle]], name);
        if (order == 0) return w->sorted[middle];
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    if (n == MOST_CLASSES) {
        error_set(err, EXIT_FAILED, "is it the key of a class?", "there are more than %d classes", n);
        return -1;
    }
    w->names = xrealloc(w->names, (size_t)(n + 1) * sizeof *w->names);
    w->sorted = xrealloc(w->sorted, (size_t)(n + 1) * sizeof *w->sorted);
    memmove(w->sorted + low + 1, w->sorted + low, (size_t)(n - low) * sizeof *w->sorted);
    w->names[n] = xstrdup(name);
    return w->sorted[low] = w->name_count++;
}

/* Opens the file of labels when a token is none: all tokens before it are. */
static int begin_labels(struct token_writer *w, struct error *err)
{
    uint8_t head[LABELS_HEAD] = {0}, all = 0xFF;
    int code = part_open(&w->labels, xasprintf("%s.labels.part", w->base), 0, err);
    if (!code) code = part_write(&w->labels, head, sizeof head, err);
    for (int64_t i = 0; i < w->at.tokens / 8 && !code; i++) code = part_write(&w->labels, &all, 1, err);
    w->at.bits = (1 << w->at.tokens % 8) - 1;
    return code;
}

static int add_labels(struct token_writer *w, int64_t count, bool label, struct error *err)
{
    int code = 0;
    if (label) w->at.labels += count;
    if (!w->labels.path && label) return 0;
    if (!w->labels.path) code = begin_labels(w, err);
    for (int64_t i = w->at.tokens; i < w->at.tokens + count && !code; i++) {
        w->at.bits |= label << i % 8;
        if (i % 8 < 7) continue;
        uint8_t byte = (uint8_t)w->at.bits;
        w->at.bits = 0;
        code = part_write(&w->labels, &byte, 1, err);
    }
    return code;
}

int token_writer_add(struct token_writer *w, const int32_t *ids, int64_t count, bool label, bool ends,
                     int32_t class, struct error *err)
{
    int code = count ? add_labels(w, count, label, err) : 0;
    for (int64_t i = 0; i < count && !code; i++) {
        uint8_t bytes[4];
        put(bytes, (uint32_t)ids[i], 4);
        if (ids[i] > w->at.largest) w->at.largest = ids[i];
        code = part_write(&w->tokens, bytes, (size_t)w->width, err);
    }
    w->at.tokens += count;
    w->at.open += count;
    if (w->at.open > INT32_MAX)
        return error_set(err, EXIT_FAILED, "split the file: --documents line, or --documents paragraph",
                         "a document has more than %d tokens", INT32_MAX);
    if (code || !ends) return code;
    uint8_t length[4];
    put(length, (uint64_t)w->at.open, 4);
    w->at.documents++;
    w->at.open = 0;
    code = part_write(&w->lengths, length, 4, err);
    if (code || !w->classes.path) return code;
    put(length, (uint32_t) class, 4);
    return part_write(&w->classes, length, 4, err);
}

int token_writer_sync(struct token_writer *w, struct token_position *at, struct error *err)
{
    int code = part_flush(&w->tokens, err);
    if (!code) code = part_flush(&w->lengths, err);
    struct part *const more[] = {&w->labels, &w->classes};
    for (int i = 0; i < 2 && !code; i++) {
        if (!more[i]->path) continue;
        code = part_flush(more[i], err);
        if (!code) code = file_sync(more[i]->fd, more[i]->path, err);
    }
    if (!code) code = file_sync(w->tokens.fd, w->tokens.path, err);
    if (!code) code = file_sync(w->lengths.fd, w->lengths.path, err);
    *at = w->at;
    return code;
}

/* Passes over the lengths once per table of the index: lengths, offsets, documents. */
static int write_index(struct token_writer *w, struct part *to, struct error *err)
{
    uint8_t head[34] = "MMIDIDX\0", value[8];
    put(head + 9, 1, 8);
    head[17] = w->width == 2 ? 8 : 4;
    put(head + 18, (uint64_t)w->at.documents, 8);
    put(head + 26, (uint64_t)w->at.documents + 1, 8);
    struct file_map lengths;
    int code = part_write(to, head, sizeof head, err);
    if (!code) code = file_map_descriptor(&lengths, w->lengths.fd, w->lengths.path, err);
    if (code) return code;
    uint64_t offset = 0;
    for (int64_t i = 0; i < w->at.documents && !code; i++)
        code = part_write(to, lengths.data + 4 * i, 4, err);
    for (int64_t i = 0; i < w->at.documents && !code; i++) {
        const uint8_t *p = lengths.data + 4 * i;
        put(value, offset, 8);
        offset +=
            (uint64_t)w->width * (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        code = part_write(to, value, 8, err);
    }
    for (int64_t i = 0; i <= w->at.documents && !code; i++) {
        put(value, (uint64_t)i, 8);
        code = part_write(to, value, 8, err);
    }
    file_map_close(&lengths);
    return code ? code : part_flush(to, err);
}

static int rename_tokens(struct token_writer *w, struct error *err)
{
    char *to = xasprintf("%s.bin", w->base);
    int code = 0;
    if (rename(w->tokens.path, to) != 0) {
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename it to %s", to);
        error_at(err, w->tokens.path, 0, 0);
    }
    if (!code) code = file_sync_name(to, err);
    free(to);
    return code;
}

/* Writes the head, the labels so far and their last bits. */
static int write_labels(struct token_writer *w, struct part *to, struct error *err)
{
    uint8_t head[LABELS_HEAD] = "MEOPTLBL", byte = (uint8_t)w->at.bits;
    struct file_map bits;
    put(head + 8, (uint64_t)w->at.tokens, 8);
    int code = part_write(to, head, sizeof head, err);
    if (!code) code = file_map_descriptor(&bits, w->labels.fd, w->labels.path, err);
    if (code) return code;
    for (int64_t i = 0, all = w->at.tokens / 8; i < all && !code; i += BUFFER)
        code =
            part_write(to, bits.data + LABELS_HEAD + i, (size_t)(all - i < BUFFER ? all - i : BUFFER), err);
    file_map_close(&bits);
    if (!code && w->at.tokens % 8) code = part_write(to, &byte, 1, err);
    return code ? code : part_flush(to, err);
}

/* Writes the head, the class of each document, and the names. */
static int write_classes(struct token_writer *w, struct part *to, struct error *err)
{
    uint8_t head[24] = "MEOPTCLS";
    struct file_map of;
    put(head + 8, (uint64_t)w->at.documents, 8);
    put(head + 16, (uint64_t)w->name_count, 8);
    int code = part_write(to, head, sizeof head, err);
    if (!code) code = file_map_descriptor(&of, w->classes.fd, w->classes.path, err);
    if (code) return code;
    for (int64_t i = 0; i < w->at.documents && !code; i++) code = part_write(to, of.data + 4 * i, 4, err);
    file_map_close(&of);
    for (int32_t i = 0; i < w->name_count && !code; i++) {
        size_t bytes = strlen(w->names[i]) + 1;
        code = bytes <= BUFFER
                   ? part_write(to, w->names[i], bytes, err)
                   : error_set(err, EXIT_FAILED, NULL, "the name of a class has %zu bytes", bytes);
    }
    return code ? code : part_flush(to, err);
}

/* Compares a complete file with the one that has its name: a command that was killed while it gave the names
 * wrote the same one; any other is the user's. */
static int compare_existing(int fd, const char *path, struct error *err)
{
    struct file_map ours = {0}, there = {0};
    if (file_absent(path)) return 0;
    int code = file_map_descriptor(&ours, fd, path, err);
    if (!code) code = file_map_open(&there, path, err);
    if (!code &&
        (ours.bytes != there.bytes || (ours.bytes && memcmp(ours.data, there.data, ours.bytes) != 0))) {
        code = error_set(err, EXIT_FAILED, "move it away, then resume with the same command",
                         "exists already, and is not what this command writes");
        error_at(err, path, 0, 0);
    }
    file_map_close(&ours);
    file_map_close(&there);
    return code;
}

/* Writes a file that is complete under its name, or not there. */
static int write_whole(struct token_writer *w, const char *end,
                       int (*write)(struct token_writer *w, struct part *to, struct error *err),
                       struct error *err)
{
    char *path = xasprintf("%s%s", w->base, end);
    struct file_atomic f = {0};
    int code = file_atomic_begin(&f, path, err);
    if (!code) {
        struct part to = {.fd = f.fd, .path = path, .buffer = xmalloc(BUFFER)};
        code = write(w, &to, err);
        free(to.buffer);
        if (!code) code = compare_existing(f.fd, path, err);
        if (!code) code = file_atomic_commit(&f, err);
        else file_atomic_abort(&f);
    }
    free(path);
    return code;
}

static int write_description(struct token_writer *w, struct part *to, struct error *err)
{
    int code = part_write(to, w->description, strlen(w->description), err);
    return code ? code : part_flush(to, err);
}

int token_writer_prepare(struct token_writer *w, struct token_position *at, const char *description,
                         struct error *err)
{
    w->description = description;
    int code = token_writer_sync(w, at, err);
    if (!code && description) code = write_whole(w, ".json", write_description, err);
    if (!code) code = write_whole(w, ".idx", write_index, err);
    if (!code && w->classes.path) code = write_whole(w, ".classes", write_classes, err);
    if (!code && w->labels.path) code = write_whole(w, ".labels", write_labels, err);
    return code;
}

int token_writer_commit(struct token_writer *w, struct error *err) { return rename_tokens(w, err); }

int token_writer_renamed(const char *name, struct error *err)
{
    char *part = xasprintf("%s.part", name);
    int code = 0;
    if (!file_absent(name) && file_absent(part) && rename(name, part) != 0) {
        code = error_errno(err, EXIT_FAILED, NULL, "cannot rename it to %s", part);
        error_at(err, name, 0, 0);
    }
    free(part);
    return code;
}

void token_writer_remove(struct token_writer *w)
{
    unlink(w->tokens.path);
    unlink(w->lengths.path);
    if (w->labels.path) unlink(w->labels.path);
    if (w->classes.path) unlink(w->classes.path);
}

void token_writer_close(struct token_writer *w)
{
    if (!w) return;
    part_close(&w->tokens);
    part_close(&w->lengths);
    part_close(&w->labels);
    part_close(&w->classes);
    for (int32_t i = 0; i < w->name_count; i++) free(w->names[i]);
    free(w->names);
    free(w->sorted);
    free(w->base);
    free(w);
}
