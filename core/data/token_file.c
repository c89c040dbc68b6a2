/* Token files: see token_file.h. */
#include "core/data/token_file.h"
#include "core/base/file_kind.h"
#include "core/base/json.h"
#include "core/base/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char megatron_magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
enum {
    INDEX_VERSION = 9,
    INDEX_TYPE = 17,
    INDEX_SEQUENCES = 18,
    INDEX_DOCUMENTS = 26,
    INDEX_HEAD = 34, /* bytes */
    LLMC_HEAD = 1024,
    LABELS_HEAD = 16
};

/* The types of Megatron's index by their number. */
static const struct {
    int width;
    bool is_signed;
} types[] = {
    [1] = {1, false}, [2] = {1, true}, [3] = {2, true}, [4] = {4, true}, [5] = {8, true}, [8] = {2, false}};

static const struct {
    int32_t magic, version;
    int width;
} llmc[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static uint64_t number(const uint8_t *p, int width)
{
    uint64_t value = 0;
    for (int i = 0; i < width; i++) value |= (uint64_t)p[i] << 8 * i;
    return value;
}

static int64_t number64(const uint8_t *p)
{
    int64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static int contradiction(struct error *err, size_t at, const char *what, long long expected, long long found)
{
    return error_set(err, EXIT_INTEGRITY, "write the index again with Megatron-LM's preprocess_data.py",
                     "byte %zu of the index: %s is %lld, expected %lld", at, what, found, expected);
}

/* Checks offsets and lengths: each sequence begins where the one before it ends. */
static int check_sequences(struct token_file *f, const uint8_t *lengths, struct error *err)
{
    int64_t bytes = 0, left = (int64_t)f->data.bytes;
    for (int64_t i = 0; i < f->sequences; i++) {
        int64_t length = (int32_t)number(lengths + 4 * i, 4), offset = number64(f->offsets + 8 * i);
        if (offset != bytes)
            return contradiction(err, (size_t)(f->offsets + 8 * i - f->index.data),
                                 "the offset of a sequence", bytes, offset);
        if (length < 0 || length > left / f->width)
            return error_set(err, EXIT_INTEGRITY, "copy both files again",
                             "byte %zu of the index: a sequence has %lld tokens, but %lld bytes are left",
                             (size_t)(lengths + 4 * i - f->index.data), (long long)length, (long long)left);
        bytes += length * f->width;
        left -= length * f->width;
    }
    f->count = bytes / f->width;
    if (left)
        return error_set(err, EXIT_INTEGRITY, "copy both files again",
                         "the index describes %lld bytes of tokens, the file has %zu", (long long)bytes,
                         f->data.bytes);
    return 0;
}

static int check_documents(const struct token_file *f, struct error *err)
{
    int64_t before = 0, last = f->document_count - 1;
    for (int64_t i = 0; i <= last; i++) {
        int64_t first = number64(f->starts + 8 * i);
        size_t at = (size_t)(f->starts + 8 * i - f->index.data);
        if (i == 0 && first) return contradiction(err, at, "the first document's sequence", 0, first);
        if (first < before || first > f->sequences)
            return error_set(
                err, EXIT_INTEGRITY, "write the index again",
                "byte %zu of the index: a document begins with sequence %lld, expected %lld to %lld", at,
                (long long)first, (long long)before, (long long)f->sequences);
        if (i == last && first != f->sequences)
            return contradiction(err, at, "the end of the last document", f->sequences, first);
        before = first;
    }
    return 0;
}

static int parse_megatron(struct token_file *f, bool *in_index, struct error *err)
{
    const struct file_map *x = &f->index;
    *in_index = true;
    if (x->bytes < INDEX_HEAD || memcmp(x->data, megatron_magic, sizeof megatron_magic) != 0)
        return error_set(err, EXIT_INTEGRITY, "data.tokens names other formats",
                         "is no index of Megatron-LM");
    uint64_t version = number(x->data + INDEX_VERSION, 8), type = x->data[INDEX_TYPE],
             sequences = number(x->data + INDEX_SEQUENCES, 8),
             documents = number(x->data + INDEX_DOCUMENTS, 8), rest = x->bytes - INDEX_HEAD;
    if (version != 1) return contradiction(err, INDEX_VERSION, "the version", 1, (long long)version);
    if (type >= sizeof types / sizeof *types || !types[type].width)
        return error_set(err, EXIT_INTEGRITY, "tokens are integers: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16",
                         "byte %d of the index: unknown type %d of tokens", INDEX_TYPE, (int)type);
    if (sequences && sequences <= rest / 13 && documents == (rest - 13 * sequences) / 8 &&
        13 * sequences + 8 * documents == rest)
        return error_set(err, EXIT_INTEGRITY, "write the text alone, without multimodal=True",
                         "byte %zu of the index: it has modes, of a dataset of text and images",
                         (size_t)INDEX_HEAD + rest - sequences);
    if (sequences > rest / 12 || documents < 1 || documents > (rest - 12 * sequences) / 8 ||
        12 * sequences + 8 * documents != rest)
        return error_set(err, EXIT_INTEGRITY, "copy it again",
                         "byte %d of the index: %llu sequences and %llu documents, but %llu bytes follow",
                         INDEX_SEQUENCES, (unsigned long long)sequences, (unsigned long long)documents,
                         (unsigned long long)rest);
    f->width = types[type].width;
    f->is_signed = types[type].is_signed;
    f->sequences = (int64_t)sequences;
    f->document_count = (int64_t)documents;
    const uint8_t *lengths = x->data + INDEX_HEAD;
    f->offsets = lengths + 4 * sequences;
    f->starts = f->offsets + 8 * sequences;
    int code = check_sequences(f, lengths, err);
    return code ? code : check_documents(f, err);
}

static bool has_llmc_magic(const struct file_map *data)
{
    int32_t magic = data->bytes >= 4 ? (int32_t)number(data->data, 4) : 0;
    return magic == llmc[0].magic || magic == llmc[1].magic;
}

static int parse_llmc(struct token_file *f, struct error *err)
{
    const struct file_map *d = &f->data;
    if (d->bytes < LLMC_HEAD || !has_llmc_magic(d))
        return error_set(err, EXIT_INTEGRITY, "data.tokens names other formats", "is no token file of llm.c");
    int32_t magic = (int32_t)number(d->data, 4), version = (int32_t)number(d->data + 4, 4);
    int64_t tokens = (int32_t)number(d->data + 8, 4);
    int row = magic == llmc[1].magic;
    f->width = llmc[row].width;
    f->first = LLMC_HEAD;
    f->count = ((int64_t)d->bytes - LLMC_HEAD) / f->width;
    if (version != llmc[row].version)
        return error_set(err, EXIT_INTEGRITY, "write it again with llm.c's dev/data",
                         "byte 4: version %d, expected %d", version, llmc[row].version);
    if (tokens != f->count || ((int64_t)d->bytes - LLMC_HEAD) % f->width)
        return error_set(err, EXIT_INTEGRITY, "copy it again",
                         "byte 8: the header has %lld tokens of %d bytes, but %lld bytes follow it",
                         (long long)tokens, f->width, (long long)d->bytes - LLMC_HEAD);
    return 0;
}

static int parse_raw(struct token_file *f, int width, struct error *err)
{
    f->width = width;
    f->count = (int64_t)f->data.bytes / width;
    if (f->data.bytes % (size_t)width)
        return error_set(err, EXIT_INTEGRITY, "copy it again, or set data.tokens",
                         "has %zu bytes, expected a multiple of %d", f->data.bytes, width);
    return 0;
}

/* Refuses a file that its first bytes show to be something else. */
static int check_kind(const struct token_file *f, bool certain, struct error *err)
{
    const struct file_kind *kind = file_kind(f->data.data, f->data.bytes, certain);
    if (!kind) return 0;
    return error_set(err, EXIT_INTEGRITY, kind->hint,
                     certain ? "is %s, expected tokens" : N_("is %s, expected a text"), kind->is);
}

/* Returns whether u16 tokens are i32 ones whose index is lost: each second one is the upper half of a number
 * below 2^20, and the others are not all small. */
static bool looks_wide(const struct token_file *f)
{
    enum { PAIRS = 1024, LEAST = 32, UPPER = 16 };
    int64_t pairs = f->count / 2 < PAIRS ? f->count / 2 : PAIRS, large = 0;
    for (int64_t i = 0; i < pairs; i++) {
        if (token_file_value(f, 2 * i + 1) >= UPPER) return false;
        large += token_file_value(f, 2 * i) >= UPPER;
    }
    return pairs >= LEAST && 2 * large > pairs;
}

/* Reads u16 tokens that only the name shows to be some. */
static int parse_guessed(struct token_file *f, struct error *err)
{
    int code = check_kind(f, true, err);
    if (!code) code = parse_raw(f, 2, err);
    if (!code && looks_wide(f))
        code = error_set(err, EXIT_INTEGRITY, "copy the .idx file, too; without one, set data.tokens: uint32",
                         "has tokens of 32 bits, but no index next to it, without which they are of 16");
    return code;
}

static bool is_bin(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".bin") == 0;
}

char *token_file_index(const char *path)
{
    return is_bin(path) ? xasprintf("%.*s.idx", (int)strlen(path) - 4, path) : NULL;
}

char *token_file_labels(const char *path)
{
    return is_bin(path) ? xasprintf("%.*s.labels", (int)strlen(path) - 4, path) : NULL;
}

char *token_file_classes(const char *path)
{
    return is_bin(path) ? xasprintf("%.*s.classes", (int)strlen(path) - 4, path) : NULL;
}

int token_file_description(const char *path, json_t **root, struct error *err)
{
    enum { MOST_BYTES = 1 << 20 };
    char *file = is_bin(path) ? xasprintf("%.*s.json", (int)strlen(path) - 4, path) : NULL;
    *root = NULL;
    errno = 0;
    struct error why;
    int code = file ? json_read_optional(file, MOST_BYTES, root, &why) : 0;
    if (code && errno == 0) code = 0; /* it can be read, but is none of ours */
    if (code) *err = why;
    if (!json_is_string(json_object_get(*root, "tokenizer"))) {
        json_decref(*root);
        *root = NULL;
    }
    free(file);
    return code;
}

bool token_file_is_label(const struct token_file *f, int64_t at)
{
    return !f->labels.data || f->labels.data[LABELS_HEAD + at / 8] >> at % 8 & 1;
}

int64_t token_file_label_count(const struct token_file *f, int64_t at, int64_t count)
{
    if (!f->labels.data) return count;
    int64_t found = 0, end = at + count;
    while (at < end) {
        if (at % 8 == 0 && end - at >= 64) {
            uint64_t bits;
            memcpy(&bits, f->labels.data + LABELS_HEAD + at / 8, sizeof bits);
            found += __builtin_popcountll(bits);
            at += 64;
        } else found += token_file_is_label(f, at++);
    }
    return found;
}

/* Opens X.labels if it exists. */
static int open_labels(struct token_file *f, const char *path, struct error *err)
{
    char *labels = token_file_labels(path);
    int code = 0;
    if (labels && !file_absent(labels) && (code = file_map_open(&f->labels, labels, err)) == 0) {
        const struct file_map *m = &f->labels;
        if (m->bytes != LABELS_HEAD + (size_t)(f->count + 7) / 8 || memcmp(m->data, "MEOPTLBL", 8) != 0 ||
            number64(m->data + 8) != f->count) {
            code = error_set(err, EXIT_INTEGRITY, "copy both files again, or run meopt tokenize again",
                             "does not have the labels of %lld tokens", (long long)f->count);
            error_at(err, labels, 0, 0);
        }
    }
    free(labels);
    return code;
}

int token_file_parse(struct token_file *f, const char *path, enum token_form form, bool *in_index,
                     struct error *err)
{
    *in_index = false;
    bool guessed = form == TOKENS_AUTO;
    f->form = form > TOKENS_AUTO         ? form
              : has_llmc_magic(&f->data) ? TOKENS_LLMC
              : is_bin(path)             ? TOKENS_UINT16
                                         : TOKENS_BYTES;
    switch (f->form) {
    case TOKENS_MEGATRON: return parse_megatron(f, in_index, err);
    case TOKENS_LLMC: return parse_llmc(f, err);
    case TOKENS_UINT16: return guessed ? parse_guessed(f, err) : parse_raw(f, 2, err);
    case TOKENS_UINT32: return parse_raw(f, 4, err);
    default: return check_kind(f, false, err) ? err->code : parse_raw(f, 1, err);
    }
}

int token_file_open(struct token_file *f, const char *path, enum token_form form, struct error *err)
{
    bool in_index = false;
    *f = (struct token_file){.path = xstrdup(path)};
    char *index = token_file_index(path);
    bool absent = !index || file_absent(index);
    int code = file_map_open(&f->data, path, err);
    if (form == TOKENS_AUTO && !absent) form = TOKENS_MEGATRON;
    if (!code && form == TOKENS_MEGATRON && absent) {
        code = error_set(err, EXIT_FAILED, "Megatron-LM's preprocess_data.py writes X.bin and X.idx",
                         "has no index next to it: %s", index ? index : _("X.idx of X.bin"));
        error_at(err, path, 0, 0);
    }
    if (!code && form == TOKENS_MEGATRON) code = file_map_open(&f->index, index, err);
    if (!code && (code = token_file_parse(f, path, form, &in_index, err)) != 0)
        error_at(err, in_index && index ? index : path, 0, 0);
    if (!code && form == TOKENS_MEGATRON) code = open_labels(f, path, err);
    free(index);
    if (code) token_file_close(f);
    return code;
}

void token_file_close(struct token_file *f)
{
    file_map_close(&f->data);
    file_map_close(&f->index);
    file_map_close(&f->labels);
    free(f->path);
    *f = (struct token_file){0};
}

int64_t token_file_value(const struct token_file *f, int64_t at)
{
    uint64_t value = number(f->data.data + f->first + at * f->width, f->width);
    int unused = 64 - 8 * f->width;
    return f->is_signed ? (int64_t)(value << unused) >> unused : (int64_t)value;
}

int64_t token_file_read(const struct token_file *f, int64_t at, int64_t count, int64_t vocabulary,
                        int32_t *to)
{
    int64_t bad = -1;
    for (int64_t i = 0; i < count && bad < 0; i++) {
        int64_t value = token_file_value(f, at + i);
        if (value < 0 || value >= vocabulary) bad = at + i;
        else to[i] = (int32_t)value;
    }
    return bad;
}

/* Returns the first token of a document. The file may have changed since it was checked. */
static int64_t document_start(const struct token_file *f, int64_t document)
{
    int64_t sequence = number64(f->starts + 8 * document);
    if (sequence < 0 || sequence >= f->sequences) return f->count;
    return number64(f->offsets + 8 * sequence) / f->width;
}

int64_t token_file_document_end(const struct token_file *f, int64_t at)
{
    int64_t low = 0, high = f->document_count; /* documents before `low` begin at or before `at` */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (document_start(f, middle) <= at) low = middle + 1;
        else high = middle;
    }
    int64_t end = low < f->document_count ? document_start(f, low) : f->count;
    return end > at && end < f->count ? end : f->count;
}

int64_t token_file_documents(const struct token_file *f) { return f->index.data ? f->document_count - 1 : 0; }

int64_t token_file_document(const struct token_file *f, int64_t document, int64_t *first)
{
    int64_t end = document_start(f, document + 1);
    *first = document_start(f, document);
    return end > *first ? end - *first : 0;
}
