/* Whole documents in samples: none is cut, each is in one sample, little is padding, at a cost that grows
 * with their number; the same samples for any ranks, after a resume, and in an evaluation each label once. */
#include "core/data/token_pack.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/token_write.h"
#include "tests/mentions.h"
#include "tests/unit/token_batches.h"
#include "tests/work_directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { DOCUMENTS = 200, CONTEXT = 128, MOST = 64, VOCABULARY = DOCUMENTS * MOST, GLOBAL = 6 };

static int64_t length_of(int64_t i) { return 5 + (int64_t)((uint64_t)i * 2654435761u % 57); } /* 5 to 61 */

/* Checks that each document is in one sample, none of which has more than `context` tokens. */
static void check_pack(const struct token_pack *p, int64_t context)
{
    uint8_t *seen = xcalloc((size_t)p->documents, 1);
    int64_t tokens = 0, documents = 0, first_before = -1;
    for (int64_t s = 0; s < p->samples; s++) {
        int64_t sum = 0, before = -1, first;
        assert_true(token_pack_count(p, s) > 0);
        for (int64_t i = 0; i < token_pack_count(p, s); i++, documents++) {
            sum += token_pack_document(p, s, i, &first);
            assert_true(first % MOST == 0 && first > before && !seen[first / MOST]++);
            if (i == 0) assert_true(first > first_before); /* samples are in the order of the files */
            if (i == 0) first_before = first;
            before = first;
        }
        assert_true(sum <= context);
        tokens += sum;
    }
    assert_int_equal(documents, p->documents);
    assert_int_equal(tokens, p->tokens);
    free(seen);
}

static struct token_pack pack_of(int64_t documents, int64_t (*length)(int64_t), int64_t context,
                                 uint64_t seed)
{
    struct token_pack p = {0};
    struct error err;
    for (int64_t i = 0; i < documents; i++)
        assert_int_equal(token_pack_add(&p, i * MOST, length(i), &err), 0);
    assert_int_equal(token_pack_make(&p, context, seed, &err), 0);
    return p;
}

static void documents_are_packed_whole(void **state)
{
    struct token_pack p = pack_of(DOCUMENTS, length_of, CONTEXT, 1),
                      again = pack_of(DOCUMENTS, length_of, CONTEXT, 1),
                      other = pack_of(DOCUMENTS, length_of, CONTEXT, 2);
    check_pack(&p, CONTEXT);
    check_pack(&other, CONTEXT);
    assert_true(20 * (p.samples * CONTEXT - p.tokens) < p.samples * CONTEXT); /* padding below 5 % */
    assert_int_equal(p.samples, again.samples);
    assert_memory_equal(p.order, again.order, DOCUMENTS * sizeof *p.order);
    assert_memory_equal(p.begins, again.begins, (size_t)(p.samples + 1) * sizeof *p.begins);
    assert_true(p.samples != other.samples || memcmp(p.order, other.order, DOCUMENTS * sizeof *p.order) != 0);
    token_pack_free(&p);
    token_pack_free(&again);
    token_pack_free(&other);
}

/* A few documents fill a sample: best fit alone leaves more than 5 % of these. */
static int64_t third(int64_t i) { return 25 + (int64_t)((uint64_t)i * 2654435761u % 37); }   /* 25 to 61 */
static int64_t quarter(int64_t i) { return 24 + (int64_t)((uint64_t)i * 2654435761u % 18); } /* 24 to 41 */

static void few_documents_fill_a_sample(void **state)
{
    int64_t (*const lengths[])(int64_t) = {third, quarter};
    for (int i = 0; i < 2; i++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct token_pack p = pack_of(DOCUMENTS, lengths[i], CONTEXT, seed),
                              again = pack_of(DOCUMENTS, lengths[i], CONTEXT, seed);
            check_pack(&p, CONTEXT);
            assert_true(20 * (p.samples * CONTEXT - p.tokens) < p.samples * CONTEXT);
            assert_memory_equal(p.order, again.order, DOCUMENTS * sizeof *p.order);
            token_pack_free(&p);
            token_pack_free(&again);
        }
}

static int64_t one(int64_t i) { return 1 + i % 1; }
static int64_t full(int64_t i) { return 7 + i % 1; }

static void extremes(void **state)
{
    static const struct {
        int64_t documents, (*length)(int64_t), context, samples;
    } rows[] = {{0, one, 7, 0},          {1, one, 1, 1},     {1, full, 7, 1},     {1, full, 4096, 1},
                {9, full, 7, 9},         {9, full, 14, 5},   {4096, one, 64, 64}, {4097, one, 64, 65},
                {100, full, 1 << 24, 1}, {64, full, 448, 1}, {65, full, 448, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct token_pack p = pack_of(rows[i].documents, rows[i].length, rows[i].context, i);
        assert_int_equal(p.samples, rows[i].samples);
        check_pack(&p, rows[i].context);
        token_pack_free(&p);
    }
    struct token_pack p = {0};
    struct error err;
    assert_int_equal(token_pack_add(&p, 1LL << 40, 1, &err), EXIT_CONFIG);
    token_pack_free(&p);
}

/* The cost of a document does not grow with their number or with the context. */
static void a_million_documents(void **state)
{
    enum { MILLION = 1000000 };
    for (int64_t context = CONTEXT; context <= 1 << 17; context <<= 10) {
        struct token_pack p = pack_of(MILLION, length_of, context, 3);
        check_pack(&p, context);
        assert_true(p.operations < 40LL * MILLION);
        assert_true(1000 * (p.samples * context - p.tokens) < 5 * p.samples * context);
        token_pack_free(&p);
    }
    struct token_pack p = pack_of(MILLION / 10, quarter, CONTEXT, 3);
    check_pack(&p, CONTEXT);
    assert_true(p.operations < 30LL * MILLION);
    token_pack_free(&p);
}

/* ---- token files ---- */

static bool is_label(int64_t document, int64_t k) { return document % 10 && k >= length_of(document) / 2; }

/* Writes documents, of which each tenth has no label: token k of document i is MOST i + k. */
static char *put_documents(const char *name, int64_t count)
{
    char *base = path_join(work, name), *path = xasprintf("%s.bin", base);
    struct token_writer *w;
    struct token_position at;
    struct error err;
    assert_int_equal(token_writer_open(&w, base, VOCABULARY, false, NULL, &err), 0);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0, n = length_of(i); k < n; k++) {
            int32_t id = (int32_t)(MOST * i + k);
            assert_int_equal(token_writer_add(w, &id, 1, is_label(i, k), k + 1 == n, 0, &err), 0);
        }
    assert_int_equal(token_writer_prepare(w, &at, NULL, &err), 0);
    assert_int_equal(token_writer_commit(w, &err), 0);
    token_writer_remove(w);
    token_writer_close(w);
    free(base);
    return path;
}

static struct data_options options(const char *root)
{
    return (struct data_options){.root = root,
                                 .tokens = TOKENS_AUTO,
                                 .context = CONTEXT,
                                 .vocabulary = VOCABULARY,
                                 .end = -1,
                                 .shuffle = true,
                                 .seed = 5,
                                 .batch = GLOBAL,
                                 .micro = 1,
                                 .global = GLOBAL,
                                 .ranks = 1};
}

/* Checks a sample, counts its documents in `seen`, and returns its labels. */
static int64_t check_sample(const struct data_batch *b, int64_t slot, int *seen)
{
    const int32_t *tokens = b->tokens + slot * CONTEXT, *labels = b->labels + slot * CONTEXT,
                  *begins = b->begins + slot * CONTEXT, *ends = b->ends + slot * CONTEXT;
    int64_t found = 0;
    for (int64_t at = 0; at < CONTEXT; at = ends[at]) {
        int64_t document = tokens[at] / MOST, count = ends[at] - at;
        bool padding = tokens[at] == 0; /* document 0 has no label, and is in no sample */
        assert_int_equal(begins[at], at);
        assert_true(!padding || ends[at] == CONTEXT);
        if (!padding) assert_int_equal(count, length_of(document));
        if (!padding) seen[document]++;
        for (int64_t k = 0; k < count; k++) {
            bool label = !padding && k + 1 < count && is_label(document, k + 1);
            assert_true(begins[at + k] == at && ends[at + k] == at + count);
            assert_int_equal(tokens[at + k], padding ? 0 : MOST * document + k);
            assert_int_equal(labels[at + k], label ? tokens[at + k + 1] : -1);
            found += label;
        }
    }
    return found;
}

static int64_t all_labels(int *seen)
{
    int64_t labels = 0;
    for (int64_t i = 0; i < DOCUMENTS; i++) {
        assert_int_equal(seen ? seen[i] : 0, seen && i % 10 ? 1 : 0);
        for (int64_t k = 1; k < length_of(i); k++) labels += is_label(i, k);
    }
    return labels;
}

/* Each kept document is in a whole pass once, on any number of ranks. */
static void an_evaluation_has_each_label_once(void **state)
{
    char *path = put_documents("pass", DOCUMENTS);
    for (int ranks = 1; ranks <= 3; ranks++) {
        int seen[DOCUMENTS] = {0};
        int64_t labels = 0, samples = 0;
        struct data_options o = options(path);
        o.whole = true;
        o.batch = o.micro = 4;
        o.global = 0;
        o.ranks = ranks;
        for (o.rank = 0; o.rank < ranks; o.rank++) {
            struct data *d = open_data(&o, 0);
            const struct document_facts *f = data_documents(d);
            assert_int_equal(f->as, DOCUMENTS_WHOLE); /* there are labels */
            assert_true(f->assumed && f->documents == DOCUMENTS && f->kept == DOCUMENTS * 9 / 10);
            assert_int_equal(f->unlabelled, DOCUMENTS / 10);
            assert_int_equal(f->samples, data_images(d));
            assert_int_equal(f->tokens + f->padding, f->samples * CONTEXT);
            assert_true(20 * f->padding < f->samples * CONTEXT);
            for (int64_t step = 0; step < data_epoch_batches(d); step++) {
                struct data_batch b = next(d);
                for (int64_t i = 0; i < b.count; i++) labels += check_sample(&b, i, seen);
                samples += b.count;
            }
            assert_int_equal(f->samples * (o.rank + 1 == ranks), samples * (o.rank + 1 == ranks));
            assert_int_equal(f->labels, all_labels(NULL));
            data_close(d);
        }
        assert_int_equal(labels, all_labels(seen));
    }
    free(path);
}

/* Micro-batch n has the same sample on 1, 2 and 3 ranks, and after a resume; an epoch has each sample once,
 * in another order than the one before. */
static void samples_depend_on_seed_and_epoch_alone(void **state)
{
    char *path = put_documents("epochs", DOCUMENTS);
    struct data_options o = options(path);
    struct data *d = open_data(&o, 0);
    int64_t batches = data_epoch_batches(d), values = GLOBAL * CONTEXT;
    int32_t *first = xcalloc((size_t)(2 * batches * values), sizeof *first);
    for (int64_t epoch = 0; epoch < 2; epoch++) {
        int seen[DOCUMENTS] = {0};
        for (int64_t step = 0; step < batches; step++) {
            struct data_batch b = next(d);
            assert_int_equal(b.epoch, epoch);
            for (int64_t i = 0; i < GLOBAL; i++) assert_true(check_sample(&b, i, seen) > 0);
            memcpy(first + (epoch * batches + step) * values, b.tokens, (size_t)values * sizeof *first);
        }
        for (int64_t i = 0; i < DOCUMENTS; i++) assert_true(seen[i] <= 1);
    }
    assert_memory_not_equal(first, first + batches * values, (size_t)(batches * values) * sizeof *first);
    data_close(d);
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            o.ranks = ranks;
            o.rank = rank;
            o.batch = GLOBAL / ranks;
            d = open_data(&o, 2);
            for (int64_t step = 2; step < 2 * batches; step++) {
                struct data_batch b = next(d);
                for (int64_t i = 0; i < b.count; i++)
                    assert_memory_equal(b.tokens + i * CONTEXT,
                                        first + step * values + (i * ranks + rank) * CONTEXT,
                                        CONTEXT * sizeof *first);
            }
            data_close(d);
        }
    free(first);
    free(path);
}

static void refused(const struct data_options *o, int code, const char *file, const char *parts)
{
    struct data *d;
    struct error err = {0};
    assert_int_equal(data_open(&d, o, &err), code);
    if (!mentions(err.file, file) || !mentions(err.what, parts)) fail_msg("%s: %s", err.file, err.what);
}

/* Documents that are longer than a sample are refused by their number, cut at their end, or skipped. */
static void long_documents(void **state)
{
    enum { SHORT = 50 };
    int64_t longer = 0, skipped = 0, cut = 0, longest = 0;
    char *path = put_documents("long", DOCUMENTS), numbers[64];
    struct data_options o = options(path);
    for (int64_t i = 0; i < DOCUMENTS; i++) {
        bool labelled = i % 10, is_long = length_of(i) > SHORT;
        if (length_of(i) > longest) longest = length_of(i);
        longer += labelled && is_long;
        skipped += labelled && is_long ? 0 : labelled ? length_of(i) : 0;
        cut += !labelled ? 0 : is_long ? SHORT : length_of(i);
    }
    o.context = SHORT;
    snprintf(numbers, sizeof numbers, "%lld|200|50|%lld", (long long)longer, (long long)longest);
    refused(&o, EXIT_CONFIG, "long.bin", numbers);
    for (o.too_long = DOCUMENTS_LONG_CUT; o.too_long <= DOCUMENTS_LONG_SKIP; o.too_long++) {
        struct data *d = open_data(&o, 0);
        const struct document_facts *f = data_documents(d);
        assert_int_equal(f->too_long, longer);
        assert_int_equal(f->tokens, o.too_long == DOCUMENTS_LONG_CUT ? cut : skipped);
        assert_int_equal(f->kept, DOCUMENTS * 9 / 10 - (o.too_long == DOCUMENTS_LONG_CUT ? 0 : longer));
        data_close(d);
    }
    o.too_long = DOCUMENTS_LONG_CUT;
    o.context = 2; /* no answer is left */
    refused(&o, EXIT_CONFIG, "long.bin", "200|2");
    free(path);
}

/* Documents without tokens, of one token and a single one; no index; a damaged index. */
static void other_files(void **state)
{
    struct __attribute__((packed)) {
        char magic[9];
        uint64_t version;
        uint8_t type;
        uint64_t sequences, documents;
        int32_t lengths[4];
        int64_t offsets[4], starts[6];
    } index = {"MMIDIDX", 1, 8, 4, 6, {0, 1, 9, 0}, {0, 0, 2, 20}, {0, 0, 1, 2, 3, 4}};
    uint16_t tokens[10] = {7, 1, 2, 3, 4, 7, 6, 5, 4, 3};
    char *path = path_join(work, "few.bin"), *index_path = path_join(work, "few.idx");
    struct error err;
    assert_int_equal(file_write_atomic(path, tokens, sizeof tokens, &err), 0);
    struct data_options o = options(path);
    o.context = 16;
    o.batch = o.global = 1;
    o.documents = DOCUMENTS_WHOLE;
    for (int indexed = 0; indexed < 2; indexed++) { /* without: one document, then three that end with 7 */
        if (indexed) assert_int_equal(file_write_atomic(index_path, &index, sizeof index, &err), 0);
        for (o.end = indexed ? -1 : 7; o.end >= -1; o.end -= 8) {
            struct data *d = open_data(&o, 0);
            const struct document_facts *f = data_documents(d);
            struct data_batch b = next(d);
            int64_t expected = indexed ? 5 : o.end < 0 ? 1 : 3;
            assert_int_equal(f->documents, expected);
            assert_int_equal(f->kept, indexed || o.end < 0 ? 1 : 2);
            assert_int_equal(f->labels, indexed ? 8 : o.end < 0 ? 9 : 4 + 3);
            assert_true(!f->assumed && f->samples == 1 && f->padding == 16 - f->tokens);
            assert_int_equal(b.ends[0], indexed ? 9 : o.end < 0 ? 10 : 5);
            data_close(d);
        }
    }
    index.lengths[1] = 2;
    assert_int_equal(file_write_atomic(index_path, &index, sizeof index, &err), 0);
    refused(&o, EXIT_INTEGRITY, "few.idx", "byte");
    free(index_path);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_packed_whole),
        cmocka_unit_test(few_documents_fill_a_sample),
        cmocka_unit_test(extremes),
        cmocka_unit_test(a_million_documents),
        cmocka_unit_test(an_evaluation_has_each_label_once),
        cmocka_unit_test(samples_depend_on_seed_and_epoch_alone),
        cmocka_unit_test(long_documents),
        cmocka_unit_test(other_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
