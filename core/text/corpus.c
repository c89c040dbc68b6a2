/* Text files to tokens: see corpus.h. */
#include "core/text/corpus.h"
#include "core/base/file.h"
#include "core/base/progress.h"
#include "core/text/container.h"
#include "core/text/text_internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { JOB_BYTES = 1 << 20, MOST_JOB = 16 << 20, MOST_LINE = 256 << 20 };

struct job {
    const char *text;
    size_t bytes;
    enum text_container container;
    bool array, first; /* of CONTAINER_VALUES: the file has one array; the job begins with the file */
    bool begins, ends; /* a document, if documents are files */
    struct corpus_position after;
    struct token_list tokens;
    struct corpus_piece *pieces;
    int64_t piece_count, piece_capacity;
    struct text_buffer names; /* classes of the documents in turn, each with its NUL */
    struct error err;
    int code;
    size_t bad; /* offset of the error */
    enum { JOB_FREE, JOB_WAITS, JOB_DONE } state;
};

struct corpus {
    const struct corpus_options *o;
    struct job *jobs; /* a ring */
    int ring;
    int64_t begun, taken, written; /* jobs */
    bool stops;
    bool breaks[TEXT_BREAK_COUNT]; /* before which a document may be cut */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
};

/* ---- documents ---- */

static void end_piece(struct job *j, int64_t before, bool label, bool ends)
{
    if (j->piece_count == j->piece_capacity) {
        j->piece_capacity = 2 * j->piece_capacity + 64;
        j->pieces = xrealloc(j->pieces, (size_t)j->piece_capacity * sizeof *j->pieces);
    }
    j->pieces[j->piece_count++] = (struct corpus_piece){j->tokens.count - before, label, ends, NULL};
}

/* Encodes a span of a document. plain: with the tokens before and after a document that begins and ends. */
static int encode_span(const struct corpus_options *o, struct encoder *e, struct job *j, const char *text,
                       struct text_span span, bool begins, bool ends, bool plain)
{
    int64_t before = j->tokens.count;
    int count;
    const int32_t *added = tokenizer_added(o->tokenizer, false, &count);
    for (int i = 0; i < count && begins && plain; i++) token_list_append(&j->tokens, added[i]);
    int code = encoder_encode(e, text + span.begin, span.end - span.begin, begins, &j->tokens, &j->err);
    if (code) return code;
    added = tokenizer_added(o->tokenizer, true, &count);
    for (int i = 0; i < count && ends && plain; i++) token_list_append(&j->tokens, added[i]);
    bool ended = count && added[count - 1] == o->end;
    if (ends && plain && o->end >= 0 && !ended) token_list_append(&j->tokens, o->end);
    end_piece(j, before, span.label, ends);
    return 0;
}

static int encode_document(const struct corpus_options *o, struct encoder *e, struct job *j, const char *text,
                           size_t bytes, bool begins, bool ends)
{
    return encode_span(o, e, j, text, (struct text_span){0, bytes, true}, begins, ends, true);
}

static int encode_record(const struct corpus_options *o, struct encoder *e, struct job *j,
                         struct text_record *r, const char *line, size_t bytes)
{
    int code = text_record_read(r, line, bytes, &o->record, &j->err);
    if (!code && o->record.label) {
        text_append(&j->names, r->class.data, r->class.count);
        text_append(&j->names, "", 1);
        if (!r->count) /* an empty text has the tokens of the post-processor */
            return encode_document(o, e, j, "", 0, true, true);
    }
    for (int64_t i = 0; i < r->count && !code; i++)
        code = encode_span(o, e, j, r->text.data, r->spans[i], i == 0, i + 1 == r->count, r->plain);
    return code;
}

/* Returns the length of the document at the start of a text, and in *next where the next one begins. */
static size_t document_length(const char *text, size_t bytes, bool paragraph, size_t *next)
{
    size_t end = 0;
    *next = bytes;
    for (size_t at = 0; at < bytes;) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        size_t line = newline ? (size_t)(newline - text) : bytes, after = newline ? line + 1 : bytes;
        bool empty = line == at || (line == at + 1 && text[at] == '\r');
        if (paragraph && empty) {
            *next = after;
            return end;
        }
        end = line > at && text[line - 1] == '\r' ? line - 1 : line;
        if (!paragraph) {
            *next = after;
            return end;
        }
        at = after;
    }
    return end;
}

/* Gives each document that ends its class. */
static void name_classes(struct job *j)
{
    const char *at = j->names.data;
    for (int64_t i = 0; i < j->piece_count; i++) {
        if (!j->pieces[i].ends) continue;
        j->pieces[i].class = at;
        at += strlen(at) + 1;
    }
}

static int encode_values(const struct corpus_options *o, struct encoder *e, struct job *j,
                         struct text_record *record)
{
    int found, code = 0;
    bool first = j->first;
    for (size_t at = 0, begin; !code; first = false) {
        found = text_container_next(j->text, j->bytes, at, j->array, first, &begin, &at, &j->err);
        j->bad = begin;
        if (found < 1) return found ? j->err.code : 0;
        code = encode_record(o, e, j, record, j->text + begin, at - begin);
    }
    return code;
}

/* Encodes the documents of a text or the lines of records. */
static int encode_lines(const struct corpus_options *o, struct encoder *e, struct job *j,
                        struct text_record *record)
{
    bool records = j->container == CONTAINER_LINES,
         paragraph = !records && o->documents == DOCUMENT_PARAGRAPH;
    int code = 0;
    for (size_t at = 0, next; at < j->bytes && !code; at += next) {
        const char *text = j->text + at;
        size_t n = document_length(text, j->bytes - at, paragraph, &next);
        j->bad = at;
        if (n && records) code = encode_record(o, e, j, record, text, n);
        else if (n) code = encode_document(o, e, j, text, n, true, true);
    }
    return code;
}

static int encode_job(const struct corpus_options *o, struct encoder *e, struct job *j)
{
    bool text = j->container == CONTAINER_TEXT;
    size_t bad = utf8_invalid(j->text, j->bytes);
    struct text_record record = {0};
    const char *nul = text ? memchr(j->text, 0, bad) : NULL;
    j->bad = nul ? (size_t)(nul - j->text) : bad;
    if (nul)
        return error_set(&j->err, EXIT_FAILED, "remove it; is the file a text?", "a text has no NUL bytes");
    if (bad < j->bytes)
        return error_set(&j->err, EXIT_FAILED, "convert it: iconv -t UTF-8; unpack it if it is compressed",
                         "byte 0x%02X is not UTF-8", (uint8_t)j->text[bad]);
    j->bad = 0;
    if (o->record.label && text)
        return error_set(&j->err, EXIT_FAILED, "write the texts and their classes to a .jsonl file",
                         "has no records, which --label requires");
    if (text && o->documents == DOCUMENT_FILE)
        return encode_document(o, e, j, j->text, j->bytes, j->begins, j->ends);
    int code =
        j->container == CONTAINER_VALUES ? encode_values(o, e, j, &record) : encode_lines(o, e, j, &record);
    text_record_free(&record);
    if (!code && o->record.label) name_classes(j);
    return code;
}

/* ---- threads ---- */

static void *work(void *context)
{
    struct corpus *c = context;
    struct encoder *e = encoder_create(c->o->tokenizer);
    pthread_mutex_lock(&c->lock);
    while (!c->stops) {
        if (c->taken == c->begun) {
            pthread_cond_wait(&c->work, &c->lock);
            continue;
        }
        struct job *j = &c->jobs[c->taken++ % c->ring];
        pthread_mutex_unlock(&c->lock);
        j->tokens.count = j->piece_count = 0;
        j->names.count = 0;
        j->code = encode_job(c->o, e, j);
        progress_mark();
        pthread_mutex_lock(&c->lock);
        j->state = JOB_DONE;
        pthread_cond_signal(&c->done);
    }
    pthread_mutex_unlock(&c->lock);
    encoder_free(e);
    return NULL;
}

/* Returns the line of a position in a file. */
static int line_of(const struct file_map *map, const char *at)
{
    int line = 1;
    for (const char *p = (const char *)map->data; (p = memchr(p, '\n', (size_t)(at - p))) != NULL; p++)
        line++;
    return line;
}

/* Writes the oldest job's result once it is done. */
static int write_oldest(struct corpus *c, const char *file, const struct file_map *map, struct error *err)
{
    struct job *j = &c->jobs[c->written % c->ring];
    pthread_mutex_lock(&c->lock);
    while (j->state != JOB_DONE) pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
    c->written++;
    j->state = JOB_FREE;
    if (j->code) {
        *err = j->err;
        return error_at(err, file, line_of(map, j->text + j->bad), 0);
    }
    struct corpus_result r = {.tokens = &j->tokens,
                              .pieces = j->pieces,
                              .piece_count = j->piece_count,
                              .bytes = (int64_t)j->bytes,
                              .after = j->after};
    return c->o->write(c->o->context, &r, err);
}

/* ---- jobs ---- */

static bool is_letter_before(const char *text, size_t at)
{
    uint32_t point;
    do at--;
    while (at && ((uint8_t)text[at] & 0xC0) == 0x80);
    utf8_read(text + at, &point);
    return point_is_letter(point);
}

/* Returns where a document may be cut: after a letter and before a break; 0: nowhere. */
static size_t find_cut(const struct corpus *c, const char *text, size_t bytes)
{
    static const char *const breaks[] = TEXT_BREAKS;
    for (size_t from = JOB_BYTES; from < bytes && from < MOST_JOB; from += JOB_BYTES / 4)
        for (int i = 0; i < TEXT_BREAK_COUNT; i++) {
            size_t n = strlen(breaks[i]), most = bytes - from < JOB_BYTES / 4 ? bytes - from : JOB_BYTES / 4;
            const char *p = c->breaks[i] ? text + from : NULL;
            for (; p && (p = memmem(p, (size_t)(text + from + most - p), breaks[i], n)); p++) {
                size_t at = (size_t)(p - text);
                if (at + 4 <= bytes && is_letter_before(text, at)) return at;
            }
        }
    return 0;
}

/* Returns the bytes of the next job; 0 with an error if a document is too long to be cut. */
static size_t find_end(const struct corpus *c, const char *text, size_t bytes, bool whole, bool paragraph,
                       struct error *err)
{
    if (bytes <= JOB_BYTES) return bytes;
    bool cuts = whole && (c->breaks[0] || c->breaks[1]);
    size_t cut = whole ? find_cut(c, text, bytes) : 0;
    for (const char *p = whole ? NULL : memchr(text + JOB_BYTES, '\n', bytes - JOB_BYTES); p && !cut;
         p = memchr(p + 1, '\n', bytes - (size_t)(p + 1 - text))) {
        size_t at = (size_t)(p - text);
        if (!paragraph || text[at - 1] == '\n' || (text[at - 1] == '\r' && text[at - 2] == '\n'))
            cut = at + 1;
    }
    if (!cut && (!cuts || bytes <= MOST_JOB)) cut = bytes;
    if (cut && cut <= MOST_LINE) return cut;
    error_set(err, EXIT_FAILED, "split it into lines, or give --documents",
              cuts ? N_("a word of the text is longer than %d MiB") : N_("a document is longer than %d MiB"),
              (cuts ? MOST_JOB : MOST_LINE) >> 20);
    return 0;
}

/* Returns the bytes of the next job of records that are no lines; 0 with an error at *bad. */
static size_t find_values_end(const struct job *j, size_t left, const char **bad, struct error *err)
{
    size_t begin, at = 0;
    bool first = j->first;
    for (int found; at < JOB_BYTES; first = false) {
        found = text_container_next(j->text, left, at, j->array, first, &begin, &at, err);
        *bad = j->text + begin;
        if (found < 1) return found ? 0 : left;
    }
    return at;
}

/* Fills the job that begins at `at`, without `inside`; returns its bytes, 0 with an error. */
static size_t fill_job(const struct corpus *c, struct job *j, const struct file_map *map, size_t at,
                       const char *path, struct error *err)
{
    const struct corpus_options *o = c->o;
    bool text = j->container == CONTAINER_TEXT;
    const char *bad = NULL;
    size_t left = map->bytes - at;
    j->text = (const char *)map->data + at;
    j->bytes = j->container == CONTAINER_VALUES
                   ? find_values_end(j, left, &bad, err)
                   : find_end(c, j->text, left, text && o->documents == DOCUMENT_FILE,
                              text && o->documents == DOCUMENT_PARAGRAPH, err);
    j->ends = j->bytes == left;
    if (!j->bytes) error_at(err, path, bad ? line_of(map, bad) : 0, 0);
    return j->bytes;
}

/* Waits until no thread reads the file of the jobs. */
static void drop_jobs(struct corpus *c)
{
    pthread_mutex_lock(&c->lock);
    c->begun = c->taken;
    for (int64_t i = c->written; i < c->taken; i++)
        while (c->jobs[i % c->ring].state != JOB_DONE) pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

static int encode_file(struct corpus *c, int64_t file, struct corpus_position from, struct error *err)
{
    const struct corpus_options *o = c->o;
    const char *path = o->files[file];
    struct file_map map;
    enum text_container container;
    int code = file_map_open(&map, path, err);
    if (code) return code;
    size_t at = (size_t)from.offset,
           mark = map.bytes >= 3 && memcmp(map.data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    const char *begin = map.bytes ? (const char *)map.data + mark : "";
    bool inside = from.inside;
    code = text_container(&container, path, begin, map.bytes - mark, err);
    if (code) error_at(err, path, 0, 0);
    bool whole = container == CONTAINER_TEXT && o->documents == DOCUMENT_FILE,
         array = container == CONTAINER_VALUES && begin[strspn(begin, " \t\r\n")] == '[';
    if (at < mark) at = mark;
    while (!code && at < map.bytes) {
        if (c->begun - c->written == c->ring && (code = write_oldest(c, path, &map, err)) != 0) break;
        struct job *j = &c->jobs[c->begun % c->ring];
        j->container = container;
        j->array = array;
        j->first = at == mark;
        j->begins = !inside;
        size_t n = fill_job(c, j, &map, at, path, err);
        if (!n) {
            code = err->code;
            break;
        }
        at += n;
        inside = whole && !j->ends;
        j->after = (struct corpus_position){j->ends ? file + 1 : file, j->ends ? 0 : (int64_t)at, inside};
        j->state = JOB_WAITS;
        pthread_mutex_lock(&c->lock);
        c->begun++;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
    }
    while (!code && c->written < c->begun) code = write_oldest(c, path, &map, err);
    if (code) drop_jobs(c);
    file_map_close(&map);
    return code;
}

int corpus_encode(const struct corpus_options *o, struct error *err)
{
    struct corpus c = {.o = o, .ring = 2 * o->threads + 2};
    pthread_t *threads = xcalloc((size_t)o->threads, sizeof *threads);
    int started = 0, code = 0;
    c.jobs = xcalloc((size_t)c.ring, sizeof *c.jobs);
    tokenizer_breaks(o->tokenizer, c.breaks);
    pthread_mutex_init(&c.lock, NULL);
    pthread_cond_init(&c.work, NULL);
    pthread_cond_init(&c.done, NULL);
    while (started < o->threads && pthread_create(&threads[started], NULL, work, &c) == 0) started++;
    if (!started) code = error_set(err, EXIT_FAILED, "see ulimit -u", "cannot start a thread");
    struct corpus_position from = o->from;
    for (int64_t i = from.file; i < o->file_count && !code; i++) {
        code = encode_file(&c, i, from, err);
        from = (struct corpus_position){0};
    }
    pthread_mutex_lock(&c.lock);
    c.stops = true;
    pthread_cond_broadcast(&c.work);
    pthread_mutex_unlock(&c.lock);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < c.ring; i++) {
        token_list_free(&c.jobs[i].tokens);
        text_free(&c.jobs[i].names);
        free(c.jobs[i].pieces);
    }
    pthread_mutex_destroy(&c.lock);
    pthread_cond_destroy(&c.work);
    pthread_cond_destroy(&c.done);
    free(c.jobs);
    free(threads);
    return code;
}
