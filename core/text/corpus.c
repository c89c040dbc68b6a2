/* Text files to tokens: see corpus.h. */
#include "core/text/corpus.h"
#include "core/base/memory.h"
#include "core/base/progress.h"
#include "core/text/container.h"
#include "core/text/text_internal.h"

#include <pthread.h>
#include <stdlib.h>

enum { JOB_BYTES = 1 << 20, MOST_JOB = 16 << 20, MOST_LINE = 256 << 20 };

/* A record that is left out. */
struct bad_record {
    size_t at, why; /* in the text; in the reasons: what and hint, each with its NUL */
};

struct job {
    const char *text;
    size_t bytes;
    struct text_buffer own; /* the text of a compressed file */
    int64_t offset, lines;  /* of the text; the lines before it, -1: not counted */
    int64_t read;           /* bytes of the file */
    enum text_container container;
    bool array, first; /* of CONTAINER_VALUES: the file has one array; the job begins with the file */
    bool begins, ends; /* a document, if documents are files */
    bool validation;   /* the document that is encoded belongs to this part */
    struct corpus_position after;
    struct token_list tokens;
    struct corpus_piece *pieces;
    int64_t piece_count, piece_capacity;
    struct text_buffer names; /* classes of the documents in turn, each with its NUL */
    int64_t forms[RECORD_FORMS];
    struct bad_record *bad_records;
    int64_t bad_count, bad_capacity;
    struct text_buffer reasons;
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
    int64_t skipped;               /* records */
    bool stops;
    bool breaks[TEXT_BREAK_COUNT]; /* before which a document may be cut */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
};

/* ---- documents ---- */

/* Returns whether the document with this hash belongs to the validation part. */
static bool is_validation(const struct corpus_options *o, uint64_t hash)
{
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9u; /* splitmix64's last steps (Steele et al. 2014) */
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBu;
    return (double)((hash ^ hash >> 31) >> 11) / 9007199254740992. < o->validation;
}

static void end_piece(struct job *j, int64_t before, bool label, bool ends)
{
    if (j->piece_count == j->piece_capacity) {
        j->piece_capacity = 2 * j->piece_capacity + 64;
        j->pieces = xrealloc(j->pieces, (size_t)j->piece_capacity * sizeof *j->pieces);
    }
    j->pieces[j->piece_count++] =
        (struct corpus_piece){j->tokens.count - before, label, ends, j->validation, NULL};
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
    j->validation = !code && is_validation(o, r->hash);
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

static int check_utf8(struct job *j, const char *text, size_t bytes)
{
    size_t bad = utf8_invalid(text, bytes);
    if (bad == bytes) return 0;
    j->bad += bad;
    return error_set(&j->err, EXIT_FAILED, "convert it: iconv -t UTF-8; unpack it if it is compressed",
                     "byte 0x%02X is not UTF-8", (uint8_t)text[bad]);
}

/* Keeps the reason why the record at `at` is left out. */
static void leave_out(struct job *j, size_t at)
{
    if (j->bad_count == j->bad_capacity) {
        j->bad_capacity = 2 * j->bad_capacity + 16;
        j->bad_records = xrealloc(j->bad_records, (size_t)j->bad_capacity * sizeof *j->bad_records);
    }
    j->bad_records[j->bad_count++] = (struct bad_record){at, j->reasons.count};
    text_append(&j->reasons, j->err.what, strlen(j->err.what) + 1);
    text_append(&j->reasons, j->err.hint, strlen(j->err.hint) + 1);
}

/* Encodes the record at an offset of the job's text. One that cannot be read is left out, if the options
 * allow it; once there are more than these, the job ends with the last one. */
static int add_record(const struct corpus_options *o, struct encoder *e, struct job *j, struct text_record *r,
                      size_t at, size_t bytes)
{
    int64_t tokens = j->tokens.count, pieces = j->piece_count;
    size_t names = j->names.count;
    j->bad = at;
    int code = check_utf8(j, j->text + at, bytes);
    bool read = !code;
    if (read) code = encode_record(o, e, j, r, j->text + at, bytes);
    if (!code) j->forms[r->form]++;
    bool no_template = read && !r->plain && !o->record.chat; /* which is no fault of the record */
    if (!code || !o->skip || no_template) return code;
    j->tokens.count = tokens;
    j->piece_count = pieces;
    j->names.count = names;
    leave_out(j, at);
    return 0;
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
    for (size_t at = 0, begin; at < j->bytes && !code && j->bad_count <= o->skip; first = false) {
        found = text_container_next(j->text, j->bytes, at, j->array, first, &begin, &at, &j->err);
        j->bad = begin;
        if (found < 1) return found ? j->err.code : 0;
        code = add_record(o, e, j, record, begin, at - begin);
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
    for (size_t at = 0, next; at < j->bytes && !code && j->bad_count <= o->skip; at += next) {
        const char *text = j->text + at;
        size_t n = document_length(text, j->bytes - at, paragraph, &next);
        j->bad = at;
        if (n && records) code = add_record(o, e, j, record, at, n);
        else if (n) {
            j->validation = o->record.hashes && is_validation(o, hash_bytes(text, n));
            code = encode_document(o, e, j, text, n, true, true);
        }
    }
    return code;
}

static int encode_job(const struct corpus_options *o, struct encoder *e, struct job *j)
{
    bool text = j->container == CONTAINER_TEXT;
    struct text_record record = {0};
    const char *nul = text ? memchr(j->text, 0, utf8_invalid(j->text, j->bytes)) : NULL;
    j->bad = nul ? (size_t)(nul - j->text) : 0;
    if (nul)
        return error_set(&j->err, EXIT_FAILED, "remove it; is the file a text?", "a text has no NUL bytes");
    if (text && check_utf8(j, j->text, j->bytes)) return j->err.code;
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
        j->tokens.count = j->piece_count = j->bad_count = 0;
        j->names.count = j->reasons.count = 0;
        memset(j->forms, 0, sizeof j->forms);
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

/* Sets the place of an error in a job's text. */
static int error_in_job(struct error *err, const char *path, struct text_source *source, const struct job *j,
                        size_t at)
{
    int64_t before = j->lines >= 0 ? j->lines : text_source_lines(source, j->offset);
    return error_at(err, path, text_line_at(before, j->text, at), 0);
}

/* Reports the records of a job that are left out; an error if there are more than may be. */
static int write_skipped(struct corpus *c, const char *path, struct text_source *source, const struct job *j,
                         struct error *err)
{
    int code = 0;
    for (int64_t i = 0; i < j->bad_count && !code; i++) {
        const char *what = j->reasons.data + j->bad_records[i].why, *hint = what + strlen(what) + 1;
        struct error why;
        if (c->skipped == c->o->skip) hint = N_("raise --skip-bad, which allows no more, or repair the file");
        error_set(&why, EXIT_FAILED, *hint ? hint : NULL, "%s", what);
        code = error_in_job(&why, path, source, j, j->bad_records[i].at);
        if (c->skipped++ < c->o->skip) code = c->o->skipped(c->o->context, &why, err);
        else *err = why;
    }
    return code;
}

/* Writes the oldest job's result once it is done. */
static int write_oldest(struct corpus *c, const char *path, struct text_source *source, struct error *err)
{
    struct job *j = &c->jobs[c->written % c->ring];
    pthread_mutex_lock(&c->lock);
    while (j->state != JOB_DONE) pthread_cond_wait(&c->done, &c->lock);
    pthread_mutex_unlock(&c->lock);
    c->written++;
    j->state = JOB_FREE;
    int code = write_skipped(c, path, source, j, err);
    if (code) return code;
    if (j->code) {
        *err = j->err;
        return error_in_job(err, path, source, j, j->bad);
    }
    struct corpus_result r = {.tokens = &j->tokens,
                              .pieces = j->pieces,
                              .piece_count = j->piece_count,
                              .bytes = j->read,
                              .after = j->after};
    memcpy(r.forms, j->forms, sizeof r.forms);
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
static size_t find_values_end(const struct job *j, const char *text, size_t left, size_t *bad,
                              struct error *err)
{
    size_t at = 0;
    bool first = j->first;
    for (int found; at < JOB_BYTES; first = false) {
        found = text_container_next(text, left, at, j->array, first, bad, &at, err);
        if (found < 1) return found ? 0 : left;
    }
    return at;
}

/* Fills the job that comes next, without `inside`; returns its bytes. 0: the end of the text, or an error. */
static size_t fill_job(const struct corpus *c, struct job *j, struct text_source *source, const char *path,
                       struct error *err)
{
    const struct corpus_options *o = c->o;
    bool text = j->container == CONTAINER_TEXT, whole = text && o->documents == DOCUMENT_FILE,
         paragraph = text && o->documents == DOCUMENT_PARAGRAPH, all = false;
    size_t left = 0, n = 0, bad = 0;
    err->code = 0;
    for (size_t want = 2 * JOB_BYTES; !all && (n == 0 || n == left) && left <= MOST_LINE; want *= 2) {
        int code = text_source_view(source, want, &j->text, &left, &all, err);
        if (code) return error_at(err, path, 0, 0), 0;
        if (!left) return 0;
        n = j->container == CONTAINER_VALUES ? find_values_end(j, j->text, left, &bad, err)
                                             : find_end(c, j->text, left, whole, paragraph, err);
    }
    if (n == left && !all)
        n = 0, error_set(err, EXIT_FAILED, NULL, "a record is longer than %d MiB", MOST_LINE >> 20);
    j->offset = source->offset;
    j->lines = source->stream ? source->lines : -1;
    if (!n) return error_in_job(err, path, source, j, bad), 0;
    err->code = 0;
    j->bytes = n;
    j->ends = all && n == left;
    if (!source->stream) return n;
    j->own.count = 0;
    text_append(&j->own, j->text, n);
    j->text = j->own.data;
    return n;
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

/* What a file is, found at its start. */
struct file_form {
    enum text_container container;
    bool array, validation; /* validation: of a file that is one document */
    size_t mark;            /* bytes of a byte order mark */
};

static int find_form(const struct corpus_options *o, struct file_form *f, struct text_source *source,
                     const char *path, struct error *err)
{
    const char *text;
    size_t bytes = 0;
    bool all = false, decided = false;
    for (size_t want = JOB_BYTES; !all && !decided; want *= 2) {
        int code = text_source_view(source, want, &text, &bytes, &all, err);
        if (code) return error_at(err, path, 0, 0);
        f->mark = bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        decided = text_container_decides(text + f->mark, bytes - f->mark);
    }
    text += f->mark;
    bytes -= f->mark;
    if (text_container(&f->container, path, text, bytes, err)) return error_at(err, path, 0, 0);
    size_t begin = 0;
    while (begin < bytes && strchr(" \t\r\n", text[begin]) && text[begin]) begin++;
    f->array = f->container == CONTAINER_VALUES && begin < bytes && text[begin] == '[';
    f->validation =
        o->record.hashes && is_validation(o, hash_bytes(text, bytes < JOB_BYTES ? bytes : JOB_BYTES));
    return 0;
}

/* Fills jobs and writes those that are done, up to the end of the file. */
static int encode_source(struct corpus *c, int64_t file, bool inside, const struct file_form *f,
                         struct text_source *source, struct error *err)
{
    const char *path = c->o->files[file];
    bool whole = f->container == CONTAINER_TEXT && c->o->documents == DOCUMENT_FILE;
    int64_t read = source->stream ? source->unpacker->consumed(source->stream) : 0;
    struct error problem = {0};
    int code = 0;
    for (size_t n = 1; n && !code;) {
        if (c->begun - c->written == c->ring && (code = write_oldest(c, path, source, err)) != 0) break;
        struct job *j = &c->jobs[c->begun % c->ring];
        j->container = f->container;
        j->array = f->array;
        j->validation = f->validation;
        j->first = source->offset == (int64_t)f->mark;
        j->begins = !inside;
        n = fill_job(c, j, source, path, &problem);
        if (!n) break;
        text_source_advance(source, n);
        int64_t now = source->stream ? source->unpacker->consumed(source->stream) : 0;
        j->read = source->stream ? now - read : (int64_t)n;
        read = now;
        inside = whole && !j->ends;
        j->after = (struct corpus_position){j->ends ? file + 1 : file, j->ends ? 0 : source->offset, inside};
        j->state = JOB_WAITS;
        pthread_mutex_lock(&c->lock);
        c->begun++;
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&c->lock);
    }
    while (!code && c->written < c->begun) code = write_oldest(c, path, source, err);
    if (!code && problem.code) code = (*err = problem).code; /* after those of the records before it */
    return code;
}

static int encode_file(struct corpus *c, int64_t file, struct corpus_position from, struct error *err)
{
    const char *path = c->o->files[file];
    struct text_source source;
    struct file_form form = {0};
    int code = text_source_open(&source, path, c->o->unpacker, err);
    if (code) return code;
    code = find_form(c->o, &form, &source, path, err);
    int64_t at = from.offset > (int64_t)form.mark ? from.offset : (int64_t)form.mark;
    if (!code && text_source_skip(&source, at, err)) code = error_at(err, path, 0, 0);
    if (!code) code = encode_source(c, file, from.inside, &form, &source, err);
    if (code) drop_jobs(c);
    text_source_close(&source);
    return code;
}

int corpus_encode(const struct corpus_options *o, struct error *err)
{
    struct corpus c = {.o = o, .ring = 2 * o->threads + 2, .skipped = o->skipped_before};
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
        text_free(&c.jobs[i].own);
        text_free(&c.jobs[i].reasons);
        free(c.jobs[i].pieces);
        free(c.jobs[i].bad_records);
    }
    pthread_mutex_destroy(&c.lock);
    pthread_cond_destroy(&c.work);
    pthread_cond_destroy(&c.done);
    free(c.jobs);
    free(threads);
    return code;
}
