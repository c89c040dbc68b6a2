/* Token files: every format gives its tokens; samples are a function of seed, epoch and position; documents
 * stay apart; damaged files are refused with their position. */
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/mapped_file.h"
#include "core/data/list.h"
#include "core/data/token_write.h"
#include "tests/mentions.h"
#include "tests/unit/token_batches.h"
#include "tests/work_directory.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { TOKENS = 1000, VOCABULARY = 997 };

static char *put(const char *name, const void *bytes, size_t size)
{
    put_file(name, bytes, size);
    return path_join(work, name);
}

static int32_t token(int64_t i) { return (int32_t)(i * 7919 % VOCABULARY); }

/* Writes the tokens `first` to `first + count` in `width` bytes each, after `head` bytes. */
static char *put_tokens(const char *name, int64_t first, int64_t count, int width, const void *head,
                        size_t head_bytes)
{
    size_t bytes = head_bytes + (size_t)(count * width);
    uint8_t *file = xcalloc(bytes, 1);
    if (head) memcpy(file, head, head_bytes);
    for (int64_t i = 0; i < count; i++) {
        int32_t value = width == 1 ? token(first + i) % 256 : token(first + i);
        memcpy(file + head_bytes + i * width, &value, width < 4 ? (size_t)width : 4);
    }
    char *path = put(name, file, bytes);
    free(file);
    return path;
}

/* An index of Megatron: sequences of `length` tokens, documents of two sequences. */
struct index {
    uint8_t bytes[4096];
    size_t size;
};

static void add(struct index *x, int64_t value, size_t width)
{
    memcpy(x->bytes + x->size, &value, width);
    x->size += width;
}

static struct index make_index(int type, int width, int64_t sequences, int64_t length)
{
    struct index x = {.size = 9};
    memcpy(x.bytes, "MMIDIDX\0\0", 9);
    add(&x, 1, 8);
    add(&x, type, 1);
    add(&x, sequences, 8);
    add(&x, sequences / 2 + 1, 8);
    for (int64_t i = 0; i < sequences; i++) add(&x, length, 4);
    for (int64_t i = 0; i < sequences; i++) add(&x, i * length * width, 8);
    for (int64_t i = 0; i <= sequences; i += 2) add(&x, i, 8);
    return x;
}

static struct data_options options(const char *root)
{
    return (struct data_options){.root = root,
                                 .tokens = TOKENS_AUTO,
                                 .context = 16,
                                 .vocabulary = VOCABULARY,
                                 .end = -1,
                                 .shuffle = true,
                                 .seed = 5,
                                 .batch = 4,
                                 .ranks = 1};
}

/* In file order every sample continues where the one before it ends. */
static void check_order(const char *path, enum token_form form, int modulus)
{
    struct data_options o = options(path);
    o.tokens = form;
    o.shuffle = false;
    o.documents = DOCUMENTS_JOINED;
    o.vocabulary = modulus;
    struct data *d = open_data(&o, 0);
    assert_int_equal(data_tokens(d), TOKENS);
    assert_int_equal(data_images(d), (TOKENS - 1) / 16);
    for (int64_t step = 0; step < data_epoch_batches(d); step++) {
        struct data_batch b = next(d);
        assert_null(b.begins);
        for (int64_t i = 0; i < 4 * 16; i++) {
            assert_int_equal(b.tokens[i], token(step * 64 + i) % modulus);
            assert_int_equal(b.labels[i], token(step * 64 + i + 1) % modulus);
        }
    }
    data_close(d);
}

static void formats_give_their_tokens(void **state)
{
    static const struct {
        int type, width;
    } types[] = {{4, 4}, {5, 8}, {8, 2}, {3, 2}};
    char *path;
    check_order(path = put_tokens("a.bin", 0, TOKENS, 2, NULL, 0), TOKENS_AUTO, VOCABULARY);
    free(path);
    check_order(path = put_tokens("a.u32", 0, TOKENS, 4, NULL, 0), TOKENS_UINT32, VOCABULARY);
    free(path);
    check_order(path = put_tokens("a.txt", 0, TOKENS, 1, NULL, 0), TOKENS_AUTO, 256);
    free(path);
    int32_t head[256] = {20240520, 1, TOKENS};
    check_order(path = put_tokens("c.bin", 0, TOKENS, 2, head, sizeof head), TOKENS_AUTO, VOCABULARY);
    free(path);
    head[0] = 20240801, head[1] = 7;
    check_order(path = put_tokens("d.bin", 0, TOKENS, 4, head, sizeof head), TOKENS_AUTO, VOCABULARY);
    free(path);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct index x = make_index(types[i].type, types[i].width, 10, 100);
        free(put("m.idx", x.bytes, x.size));
        check_order(path = put_tokens("m.bin", 0, TOKENS, types[i].width, NULL, 0), TOKENS_AUTO, VOCABULARY);
        free(path);
    }
    /* three files of a directory, one of them empty, are one sequence */
    free(put_tokens("shards/1.bin", 0, 300, 2, NULL, 0));
    free(put("shards/2.bin", "", 0));
    free(put_tokens("shards/3.bin", 300, TOKENS - 300, 2, NULL, 0));
    free(put("shards/README", "text", 4));
    path = path_join(work, "shards");
    check_order(path, TOKENS_AUTO, VOCABULARY);
    free(path);
}

/* A batch on 1 rank is that of 2 and 4 ranks, after a resume too; an epoch visits each window once. */
static void places_depend_on_seed_epoch_and_position(void **state)
{
    enum { RANKS = 4, BATCHES = 30 };
    char *path = put_tokens("order.bin", 0, TOKENS, 2, NULL, 0);
    static int32_t alone[BATCHES][8 * 16];
    struct data_options o = options(path);
    o.batch = o.global = 8;
    o.micro = 1;
    struct data *d = open_data(&o, 0);
    int64_t epoch = data_epoch_batches(d);
    assert_int_equal(data_images(d), 61);
    int seen[TOKENS] = {0};
    for (int step = 0; step < BATCHES; step++) {
        struct data_batch b = next(d);
        memcpy(alone[step], b.tokens, sizeof alone[step]);
        assert_int_equal(b.epoch, step / epoch);
        for (int64_t i = 0; i < 128 && step < epoch; i++) {
            int at = 0;
            while (token(at) != b.tokens[i] || (i % 16 < 15 && token(at + 1) != b.tokens[i + 1])) at++;
            assert_int_equal(seen[at]++, 0);
        }
    }
    data_close(d);
    assert_memory_not_equal(alone[0], alone[epoch], sizeof alone[0]);
    for (int ranks = 2; ranks <= RANKS; ranks *= 2)
        for (int rank = 0; rank < ranks; rank++) {
            o.rank = rank;
            o.ranks = ranks;
            o.batch = 8 / ranks;
            d = open_data(&o, 0);
            assert_int_equal(data_start(d, 9, NULL), 0); /* as after a resume */
            for (int step = 9; step < BATCHES; step++) {
                struct data_batch b = next(d);
                for (int64_t slot = 0; slot < o.batch; slot++)
                    assert_memory_equal(b.tokens + slot * 16, alone[step] + (slot * ranks + rank) * 16, 64);
            }
            data_close(d);
        }
    free(path);
}

/* Checks bounds and labels of a batch; at: the first token of its samples, in file order. */
static void check_documents(const struct data_batch *b, int64_t at, int64_t total, int64_t length)
{
    for (int64_t i = 0; i < b->count * 16; i++) {
        int64_t t = at + i, sample = i / 16 * 16, doc = t / length * length;
        int64_t begin = doc > at + sample ? doc - at - sample : 0, end = doc + length - at - sample;
        if (t >= total) { /* padding */
            assert_int_equal(b->labels[i], -1);
            assert_int_equal(b->begins[i], total - at - sample > 0 ? total - at - sample : 0);
            assert_int_equal(b->ends[i], 16);
            continue;
        }
        if (end > total - at - sample) end = total - at - sample;
        assert_int_equal(b->begins[i], begin);
        assert_int_equal(b->ends[i], end < 16 ? end : 16);
        bool labelled = t + 1 < total && (t + 1) % length != 0;
        assert_int_equal(b->labels[i], labelled ? token(t + 1) : -1);
    }
}

/* By an index, by an end token, and by files; also in a whole pass, whose last sample is padded. */
static void documents_stay_apart(void **state)
{
    struct index x = make_index(8, 2, 40, 25); /* documents of 50 tokens */
    free(put("apart.idx", x.bytes, x.size));
    char *path = put_tokens("apart.bin", 0, TOKENS, 2, NULL, 0);
    for (int whole = 0; whole < 2; whole++) {
        struct data_options o = options(path);
        o.shuffle = false;
        o.whole = whole;
        struct data *d = open_data(&o, 0);
        int64_t batches = data_epoch_batches(d), labelled = 0, at = 0;
        for (int64_t k = 0; k < batches; k++) {
            struct data_batch b = next(d);
            check_documents(&b, at, TOKENS, 50);
            for (int64_t i = 0; i < b.count * 16; i++) labelled += b.labels[i] >= 0;
            at += b.count * 16;
        }
        if (whole) assert_int_equal(labelled, TOKENS - 20); /* the first of each document is not predicted */
        if (whole) assert_int_equal(next(d).count, 0);
        data_close(d);
    }
    free(path);
    uint16_t text[] = {5, 6, 2, 7, 2, 8, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const int32_t begins[] = {0, 0, 0, 3, 3, 5, 5}, ends[] = {3, 3, 3, 5, 5, 16, 16},
                         labels[] = {6, 2, -1, 2, -1, 9, 1};
    struct data_options o = options(path = put("end.bin", text, sizeof text));
    o.batch = 1;
    o.end = 2;
    struct data *d = open_data(&o, 0);
    struct data_batch b = next(d);
    assert_memory_equal(b.begins, begins, sizeof begins);
    assert_memory_equal(b.ends, ends, sizeof ends);
    assert_memory_equal(b.labels, labels, sizeof labels);
    data_close(d);
    free(path);
    free(put_tokens("two/1.bin", 0, 10, 2, NULL, 0));
    free(put_tokens("two/2.bin", 10, 10, 2, NULL, 0));
    o = options(path = path_join(work, "two"));
    o.batch = 1;
    o.shuffle = false;
    b = next(d = open_data(&o, 0));
    assert_int_equal(b.labels[9], -1);
    assert_int_equal(b.begins[10], 10);
    assert_int_equal(b.ends[9], 10);
    data_close(d);
    free(path);
}

/* Every third token is no label; the writer is closed and opened again in the middle of a byte. */
static void labels_are_those_of_the_file(void **state)
{
    char *base = path_join(work, "labels"), *path = path_join(work, "labels.bin"),
         *labels = path_join(work, "labels.labels");
    struct token_writer *w;
    struct token_position at;
    struct error err;
    assert_int_equal(token_writer_open(&w, base, VOCABULARY, false, NULL, &err), 0);
    for (int64_t i = 0; i < TOKENS; i++) {
        int32_t id = token(i);
        assert_int_equal(token_writer_add(w, &id, 1, i < 20 || i % 3 != 0, i + 1 == TOKENS, 0, &err), 0);
        if (i != 500) continue;
        assert_int_equal(token_writer_sync(w, &at, &err), 0);
        assert_int_equal(token_writer_add(w, &id, 1, false, false, 0, &err), 0); /* dropped */
        token_writer_close(w);
        assert_int_equal(token_writer_open(&w, base, VOCABULARY, false, &at, &err), 0);
    }
    assert_int_equal(token_writer_prepare(w, &at, NULL, &err), 0);
    assert_int_equal(token_writer_commit(w, &err), 0);
    token_writer_remove(w);
    token_writer_close(w);
    assert_int_equal(at.tokens, TOKENS);
    struct data_options o = options(path);
    o.documents = DOCUMENTS_APART;
    o.shuffle = false;
    o.whole = true;
    struct data *d = open_data(&o, 0);
    int64_t first = 0, labelled = 0;
    for (struct data_batch b; (b = next(d)).count > 0; first += b.count * 16)
        for (int64_t i = 0; i < b.count * 16; i++) {
            int64_t of = first + i + 1;
            bool is = of < TOKENS && (of < 20 || of % 3 != 0);
            assert_int_equal(b.labels[i], is ? token(of) : -1);
            labelled += is;
        }
    assert_int_equal(labelled + 1, at.labels); /* the first token is never predicted */
    data_close(d);
    assert_int_equal(truncate(labels, 40), 0);
    assert_int_equal(data_open(&d, &o, &err), EXIT_INTEGRITY);
    assert_true(mentions(err.file, "labels.labels"));
    free(labels);
    free(path);
    free(base);
}

static void refused(const struct data_options *o, int code, const char *file, const char *parts)
{
    struct data *d;
    struct error err;
    assert_int_equal(data_open(&d, o, &err), code);
    assert_true(mentions(err.file, file));
    if (!mentions(err.what, parts)) fail_msg("'%s' is not in: %s", parts, err.what);
}

static void damaged_files_are_refused_with_their_position(void **state)
{
    static const struct {
        size_t at, width;
        int64_t value;
        const char *parts;
    } rows[] = {{3, 1, 0, "index"},
                {9, 8, 2, "byte|9"},
                {17, 1, 6, "byte|17"},
                {17, 1, 255, "byte|17"},
                {18, 8, INT64_MAX, "byte|18"},
                {18, 8, -1, "byte|18"},
                {18, 8, 9, "byte|18"},
                {26, 8, INT64_MIN, "byte|18"},
                {26, 8, 0, "byte|18"},
                {34 + 4, 4, -1, "byte|38"},
                {34 + 4, 4, INT32_MAX, "byte|38"},
                {34 + 40 + 8, 8, 8, "byte|82"},
                {34 + 40 + 8, 8, INT64_MIN, "byte|82"},
                {34 + 120, 8, 1, "byte|154"},
                {34 + 120 + 8, 8, 11, "byte|162"},
                {34 + 120 + 16, 8, 1, "byte|170"},
                {34 + 120 + 40, 8, 9, "byte|194"}};
    char *path = put_tokens("bad.bin", 0, TOKENS, 2, NULL, 0);
    struct data_options o = options(path);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct index x = make_index(8, 2, 10, 100);
        memcpy(x.bytes + rows[i].at, &rows[i].value, rows[i].width);
        free(put("bad.idx", x.bytes, x.size));
        refused(&o, EXIT_INTEGRITY, "bad.idx", rows[i].parts);
    }
    struct index x = make_index(8, 2, 10, 100);
    for (size_t size = 0; size < x.size; size += 7) {
        free(put("bad.idx", x.bytes, size));
        refused(&o, EXIT_INTEGRITY, "bad.idx", "");
    }
    free(put("bad.idx", x.bytes, x.size));
    free(put_tokens("bad.bin", 0, TOKENS + 1, 2, NULL, 0));
    refused(&o, EXIT_INTEGRITY, "bad.idx", "2002");
    free(path);
    o = options(path = put_tokens("odd.bin", 0, 101, 1, NULL, 0));
    refused(&o, EXIT_INTEGRITY, "odd.bin", "101");
    o.tokens = TOKENS_MEGATRON;
    refused(&o, EXIT_FAILED, "odd.bin", "index");
    o.tokens = TOKENS_LLMC;
    refused(&o, EXIT_INTEGRITY, "odd.bin", "");
    free(path);
    int32_t head[256] = {20240520, 1, TOKENS + 1};
    o = options(path = put_tokens("head.bin", 0, TOKENS, 2, head, sizeof head));
    refused(&o, EXIT_INTEGRITY, "head.bin", "byte|8");
    free(path);
    o = options(path = put_tokens("short.bin", 0, 16, 2, NULL, 0));
    refused(&o, EXIT_CONFIG, "short.bin", "16");
    free(path);
    o = options(path = put_tokens("text.txt.gz", 0, TOKENS, 1, "\x1f\x8b", 2));
    refused(&o, EXIT_INTEGRITY, "text.txt.gz", "gzip");
    free(path);
}

static void a_token_out_of_the_vocabulary_is_refused(void **state)
{
    struct error err;
    struct data *d;
    struct data_batch b;
    uint16_t tokens[100] = {0};
    tokens[33] = VOCABULARY;
    char *path = put("vocabulary.bin", tokens, sizeof tokens);
    struct data_options o = options(path);
    o.shuffle = false;
    d = open_data(&o, 0);
    assert_int_equal(data_next(d, &b, &err), EXIT_CONFIG);
    assert_true(mentions(err.file, "vocabulary.bin"));
    assert_true(mentions(err.what, "33|66|997|997"));
    data_close(d);
    free(path);
}

/* Masked tokens: the same on any ranks; an evaluation has its own for every seed, and padding is a document
 * of its own, also where documents are joined. */
static void masks_depend_on_seed_epoch_and_sample(void **state)
{
    char *path = put_tokens("masked.bin", 0, TOKENS, 2, NULL, 0);
    struct data_options o = options(path);
    int32_t first[4 * 16];
    o.masked = 2;
    o.mask_token = o.special = 0;
    for (int ranks = 1; ranks <= 2; ranks++) { /* rows 0 to 3 of the global batch */
        for (int rank = 0; rank < ranks; rank++) {
            o.ranks = ranks;
            o.rank = rank;
            o.batch = o.micro = 4 / ranks;
            o.global = 4;
            struct data *d = open_data(&o, 0);
            struct data_batch b = next(d);
            int32_t *from = first + rank * (4 / ranks) * 16;
            size_t bytes = (size_t)b.count * 16 * sizeof *from;
            if (ranks == 1) memcpy(from, b.labels, bytes);
            else assert_memory_equal(from, b.labels, bytes);
            for (int64_t row = 0, labels; row < b.count; row++) {
                labels = 0;
                for (int i = 0; i < 16; i++) labels += b.labels[row * 16 + i] >= 0;
                assert_int_equal(labels, 2);
            }
            data_close(d);
        }
    }
    o.whole = true;
    o.documents = DOCUMENTS_JOINED;
    o.shuffle = false;
    o.batch = o.micro = o.ranks = 1;
    o.rank = 0;
    o.end = token(3); /* not read: documents are joined */
    for (int seed = 0; seed < 2; seed++) {
        o.seed = (uint64_t)seed;
        struct data *d = open_data(&o, 0);
        struct data_batch b = next(d);
        if (seed) assert_memory_equal(first, b.labels, 16 * sizeof *first);
        else memcpy(first, b.labels, 16 * sizeof *first);
        for (int i = 0; i < 16; i++) assert_true(b.begins[i] == 0 && b.ends[i] == 16);
        data_close(d);
    }
    free(path);
}

/* A file that shrinks while it is mapped ends the process with an error, not with a signal. */
static void a_truncated_file_is_an_error(void **state)
{
    char *path = put_tokens("shrinks.bin", 0, 100000, 2, NULL, 0);
    pid_t child = fork();
    if (child == 0) {
        struct data *d;
        struct data_batch b;
        struct data_options o = options(path);
        mapped_file_catch(NULL);
        close(STDERR_FILENO);
        if (data_open(&d, &o, NULL) || data_start(d, 0, NULL) || truncate(path, 10)) _exit(99);
        for (int i = 0; i < 100; i++)
            if (data_next(d, &b, NULL)) _exit(98);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_FAILED);
    free(path);
}

/* Document i has 3 + 5i tokens, the first of which is i, and a class out of three. */
enum { DOCUMENTS = 13, LENGTH = 16 };
static int64_t document_length(int64_t i) { return 3 + 5 * i % 40; }

static char *put_documents(const char *name)
{
    static const char *const names[] = {"zeta", "alpha", "mid"};
    char *base = path_join(work, name), *path = xasprintf("%s.bin", base);
    struct token_writer *w;
    struct token_position at;
    struct error err;
    assert_int_equal(token_writer_open(&w, base, VOCABULARY, true, NULL, &err), 0);
    for (int64_t i = 0; i < DOCUMENTS; i++)
        for (int64_t k = 0, n = document_length(i); k < n; k++) {
            int32_t id = (int32_t)(k ? 100 + k : i), class = token_writer_class(w, names[i % 3], &err);
            assert_int_equal(token_writer_add(w, &id, 1, true, k + 1 == n, class, &err), 0);
        }
    assert_int_equal(token_writer_classes(w), 3);
    assert_int_equal(token_writer_prepare(w, &at, NULL, &err), 0);
    assert_int_equal(token_writer_commit(w, &err), 0);
    token_writer_remove(w);
    token_writer_close(w);
    free(base);
    return path;
}

/* A sample is a document: padded, or cut before its last token. */
static void check_document(const struct data_batch *b, int64_t slot, bool seen[DOCUMENTS])
{
    const int32_t *tokens = b->tokens + slot * LENGTH;
    int64_t document = tokens[0], n = document_length(document), kept = n < LENGTH ? n : LENGTH;
    static const int32_t class[] = {2, 0, 1}; /* in the order of the names */
    assert_true(document < DOCUMENTS && !seen[document]);
    seen[document] = true;
    assert_int_equal(b->labels[slot], class[document % 3]);
    for (int64_t k = 0; k < LENGTH; k++) {
        int64_t of = k + 1 == kept ? n - 1 : k;
        bool padding = k >= kept;
        if (k) assert_int_equal(tokens[k], padding ? 0 : 100 + of);
        assert_int_equal(b->begins[slot * LENGTH + k], padding ? kept : 0);
        assert_int_equal(b->ends[slot * LENGTH + k], padding ? LENGTH : kept);
    }
}

static void documents_are_samples_with_a_class(void **state)
{
    char *path = put_documents("classes");
    for (int whole = 0; whole < 2; whole++) {
        bool seen[DOCUMENTS] = {false}, again[DOCUMENTS] = {false}, moved = false;
        struct data_options o = options(path);
        o.labels = true;
        o.context = LENGTH;
        o.batch = whole ? 4 : DOCUMENTS;
        o.whole = whole;
        o.shuffle = !whole;
        struct data *d = open_data(&o, 0);
        assert_int_equal(data_images(d), DOCUMENTS);
        assert_int_equal(data_classes(d), 3);
        assert_string_equal(data_class_name(d, 0), "alpha");
        assert_true(data_classes_hash(d));
        int64_t found = 0;
        for (struct data_batch b; found < DOCUMENTS && (b = next(d)).count > 0; found += b.count)
            for (int64_t i = 0; i < b.count; i++) {
                if (whole) assert_int_equal(b.tokens[i * LENGTH], found + i);
                moved |= b.tokens[i * LENGTH] != found + i;
                check_document(&b, i, seen);
            }
        assert_int_equal(found, DOCUMENTS);
        assert_int_equal(moved, !whole);
        struct data_batch b = next(d); /* the next epoch */
        assert_int_equal(b.count, whole ? 0 : DOCUMENTS);
        for (int64_t i = 0; i < b.count; i++) check_document(&b, i, again);
        data_close(d);
    }
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_give_their_tokens),
        cmocka_unit_test(places_depend_on_seed_epoch_and_position),
        cmocka_unit_test(documents_stay_apart),
        cmocka_unit_test(labels_are_those_of_the_file),
        cmocka_unit_test(damaged_files_are_refused_with_their_position),
        cmocka_unit_test(a_token_out_of_the_vocabulary_is_refused),
        cmocka_unit_test(masks_depend_on_seed_epoch_and_sample),
        cmocka_unit_test(a_truncated_file_is_an_error),
        cmocka_unit_test(documents_are_samples_with_a_class),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
