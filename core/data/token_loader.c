/* Samples and batches of token files: see token_loader.h. Tokens are copied when a batch is returned, which
 * takes microseconds, and the kernel is asked to read those of the next batch ahead. A token out of the
 * vocabulary is found by that copy, so that a start does not read the files; those of `meopt tokenize` say
 * their largest token. */
#include "core/data/token_loader.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/progress.h"
#include "core/data/mask.h"
#include "core/data/mask_tokens.h"
#include "core/data/token_documents.h"
#include "core/data/token_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct token_loader {
    struct data_options options;
    struct token_file *files;
    int64_t *begins_at; /* (file_count + 1) first token of each file among all */
    int64_t file_count, tokens, samples;
    bool labelled;   /* a file says which tokens are labels */
    bool bounded;    /* documents are apart, and the files have boundaries */
    int64_t assumed; /* files of which no description says that all tokens are labels */
    struct document_facts facts;
    struct mask_tokens mask;
    struct token_pack pack; /* the samples, if documents are whole */
    /* A sample is a document; NULL: a window of all tokens */
    const int32_t *classes; /* of each document */
    int64_t *documents_at;  /* (file_count + 1) first document of each file among all */
    int64_t cut;            /* documents that are longer than a sample */
    int64_t next;
    int32_t *input, *labels, *begins, *ends; /* (batch, context) */
    int32_t *row;                            /* (context + 1) of one sample */
    uint64_t *order;                         /* (context) of one sample that is masked */
};

int64_t token_loader_tokens(const struct token_loader *l) { return l->tokens; }
int64_t token_loader_samples(const struct token_loader *l) { return l->samples; }
/* Returns whether samples have numbers; else they are windows, and have a first token. */
static bool numbered(const struct token_loader *l) { return l->classes || l->pack.samples; }
const struct document_facts *token_loader_documents(const struct token_loader *l)
{
    return l->classes ? NULL : &l->facts;
}
void token_loader_start(struct token_loader *l, int64_t batch) { l->next = batch; }

/* Returns the file that has item `at`, of which begins_at[i] is the first of file i. */
static int64_t file_among(const struct token_loader *l, const int64_t *begins_at, int64_t at)
{
    int64_t low = 0, high = l->file_count - 1;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (begins_at[middle] <= at) low = middle;
        else high = middle - 1;
    }
    return low;
}

static int64_t file_of(const struct token_loader *l, int64_t at) { return file_among(l, l->begins_at, at); }

/* ---- one sample ---- */

static int refuse_token(const struct token_loader *l, const struct token_file *f, int64_t at,
                        struct error *err)
{
    error_set(err, EXIT_CONFIG, "the tokenizer of the files is not the model's, or raise model.vocabulary",
              "token %lld (byte %lld) is %lld, the model has a vocabulary of %lld", (long long)at,
              (long long)(f->first + at * f->width), (long long)token_file_value(f, at),
              (long long)l->options.vocabulary);
    return error_at(err, f->path, 0, 0);
}

/* Copies `count` tokens from `at` on to l->row. */
static int read_tokens(struct token_loader *l, int64_t at, int64_t count, struct error *err)
{
    int64_t done = 0;
    for (int64_t file = file_of(l, at); done < count; file++) {
        const struct token_file *f = &l->files[file];
        int64_t from = at + done - l->begins_at[file], n = f->count - from;
        if (n > count - done) n = count - done;
        int64_t bad = token_file_read(f, from, n, l->options.vocabulary, l->row + done);
        if (bad >= 0) return refuse_token(l, f, bad, err);
        done += n;
    }
    return 0;
}

/* Returns the index in l->row, whose first token is `at`, of the first document that begins after index i;
 * `count` if there is none. */
static int64_t document_end(const struct token_loader *l, int64_t at, int64_t i, int64_t count)
{
    if (l->facts.as == DOCUMENTS_JOINED) return count;
    int64_t file = file_of(l, at + i), begin = l->begins_at[file];
    const struct token_file *f = &l->files[file];
    int64_t end = (f->index.data ? token_file_document_end(f, at + i - begin) : f->count) + begin - at;
    if (end > count) end = count;
    for (int64_t k = i; k + 1 < end && l->options.end >= 0 && !f->index.data; k++)
        if (l->row[k] == l->options.end) end = k + 1;
    return end;
}

/* Masks `count` tokens of a slot, which begin at `at`. Those of a whole pass depend on neither seed nor
 * epoch. */
static void mask_slot(struct token_loader *l, int64_t slot, int64_t at, int64_t count, int64_t epoch)
{
    const struct data_options *o = &l->options;
    const struct mask mask = {.seed = o->whole ? 0 : o->seed,
                              .epoch = epoch,
                              .sample = at,
                              .chosen = o->masked,
                              .context = o->context,
                              .token = o->mask_token,
                              .special = o->special,
                              .vocabulary = o->vocabulary,
                              .apart = l->mask.apart,
                              .apart_count = l->mask.count};
    mask_sample(&mask, l->input + slot * o->context, l->labels + slot * o->context, count, l->order);
}

/* Removes the labels that are not predicted, in a slot whose first token is `at`. */
static void drop_labels(const struct token_loader *l, int64_t at, int64_t count, int32_t *labels)
{
    int64_t file = file_of(l, at);
    for (int64_t i = 1; i < count; i++) {
        while (at + i >= l->begins_at[file + 1]) file++;
        if (!token_file_is_label(&l->files[file], at + i - l->begins_at[file])) labels[i - 1] = -1;
    }
}

/* Fills a slot with the tokens from `at` on; those after the last one are padding. */
static int fill_slot(struct token_loader *l, int64_t slot, int64_t at, int64_t epoch, struct error *err)
{
    int64_t N = l->options.context, count = l->tokens - at < N + 1 ? l->tokens - at : N + 1;
    int32_t *input = l->input + slot * N, *labels = l->labels + slot * N;
    int code = read_tokens(l, at, count, err);
    if (code) return code;
    for (int64_t i = 0; i < N; i++) {
        input[i] = i < count ? l->row[i] : 0;
        labels[i] = i + 1 < count ? l->row[i + 1] : -1;
    }
    if (l->labelled && !l->options.masked) drop_labels(l, at, count, labels);
    if (l->options.masked) mask_slot(l, slot, at, count < N ? count : N, epoch);
    if (!l->bounded) return 0;
    for (int64_t i = 0, end; i < N; i = end) { /* padding is a document of its own */
        end = i < count ? document_end(l, at, i, count) : N;
        if (end > N) end = N;
        else if (end < count && !l->options.masked) labels[end - 1] = -1;
        for (int64_t k = i; k < end; k++) {
            l->begins[slot * N + k] = (int32_t)i;
            l->ends[slot * N + k] = (int32_t)end;
        }
    }
    return 0;
}

/* Sets the first token of a document among all, and returns its tokens. */
static int64_t document_at(const struct token_loader *l, int64_t document, int64_t *first)
{
    int64_t file = file_among(l, l->documents_at, document),
            count = token_file_document(&l->files[file], document - l->documents_at[file], first);
    *first += l->begins_at[file];
    return count;
}

/* Fills a slot with a document and padding, which is a document of its own. */
static int fill_document(struct token_loader *l, int64_t slot, int64_t document, struct error *err)
{
    int64_t N = l->options.context, first, count = document_at(l, document, &first),
            n = count < N ? count : N;
    int32_t *input = l->input + slot * N;
    int code = read_tokens(l, first, n, err);
    for (int64_t i = 0; i < N && !code; i++) {
        input[i] = i < n ? l->row[i] : 0;
        l->begins[slot * N + i] = (int32_t)(i < n ? 0 : n);
        l->ends[slot * N + i] = (int32_t)(i < n ? n : N);
    }
    if (!code && count > N) { /* the token that ends it */
        code = read_tokens(l, first + count - 1, 1, err);
        input[N - 1] = l->row[0];
    }
    l->labels[slot] = l->classes[document];
    return code;
}

/* Fills a slot with whole documents; the rest is padding, a document of its own. */
static int fill_whole(struct token_loader *l, int64_t slot, int64_t sample, struct error *err)
{
    int64_t N = l->options.context, documents = token_pack_count(&l->pack, sample), first, from = 0;
    int32_t *input = l->input + slot * N, *labels = l->labels + slot * N;
    for (int64_t d = 0; d <= documents; d++) {
        bool padding = d == documents;
        int64_t count = padding ? N - from : token_pack_document(&l->pack, sample, d, &first);
        int code = padding ? 0 : read_tokens(l, first, count, err);
        if (code) return code;
        for (int64_t i = 0; i < count; i++) {
            input[from + i] = padding ? 0 : l->row[i];
            labels[from + i] = padding || i + 1 == count ? -1 : l->row[i + 1];
            l->begins[slot * N + from + i] = (int32_t)from;
            l->ends[slot * N + from + i] = (int32_t)(from + count);
        }
        if (!padding && l->labelled) drop_labels(l, first, count, labels + from);
        from += count;
    }
    return 0;
}

int token_check(const struct data_options *options, struct data_findings *findings, struct error *err)
{
    enum { WINDOW = 4096 };
    struct image_list list;
    struct token_loader *l = NULL;
    struct data_options o = *options;
    int code = token_list_open(&list, options, err);
    if (code) return code;
    image_list_report(&list, options->root);
    o.whole = true;
    o.labels = false;
    o.documents = DOCUMENTS_JOINED;
    o.batch = o.micro = o.global = 1;
    o.ranks = 1;
    o.context = WINDOW;
    if (!o.vocabulary) o.vocabulary = INT32_MAX;
    code = token_loader_open(&l, &o, &list, err);
    for (int64_t at = 0; !code && at < l->tokens; at += WINDOW) {
        progress_mark();
        code = read_tokens(l, at, l->tokens - at < WINDOW ? l->tokens - at : WINDOW, err);
    }
    if (!code) findings->images = l->tokens;
    token_loader_close(l);
    image_list_free(&list);
    return code;
}

/* ---- batches ---- */

static int64_t batch_samples(const struct token_loader *l, int64_t batch)
{
    const struct data_options *o = &l->options;
    if (!o->whole) return o->batch;
    int64_t left = l->samples - (batch * o->ranks + o->rank) * o->batch;
    return left < 0 ? 0 : left < o->batch ? left : o->batch;
}

static int64_t epoch_batches(const struct token_loader *l)
{
    return l->options.whole ? 1 : l->samples / l->options.global;
}

/* Returns the first token, or the number, of the sample in a slot of a batch. */
static int64_t sample_at(const struct token_loader *l, int64_t batch, int64_t slot)
{
    const struct data_options *o = &l->options;
    int64_t apart = numbered(l) ? 1 : o->context;
    if (o->whole) return ((batch * o->ranks + o->rank) * o->batch + slot) * apart;
    int64_t row = (slot / o->micro * o->ranks + o->rank) * o->micro + slot % o->micro,
            position = batch % epoch_batches(l) * o->global + row,
            spare = l->tokens - 1 - l->samples * o->context;
    uint64_t epoch = (uint64_t)(batch / epoch_batches(l));
    if (!o->shuffle) return position * apart;
    if (numbered(l)) return data_shuffle(o->seed, epoch, position, l->samples);
    return data_shuffle(~o->seed, epoch, 0, spare + 1) +
           data_shuffle(o->seed, epoch, position, l->samples) * o->context;
}

/* Asks the kernel to read the tokens from `at` on. */
static void read_ahead(const struct token_loader *l, int64_t at, int64_t count)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int64_t file = file_of(l, at);
    const struct token_file *f = &l->files[file];
    size_t begin = (size_t)(f->first + (at - l->begins_at[file]) * f->width),
           end = begin + (size_t)(count * f->width);
    begin -= begin % page;
    if (end > f->data.bytes) end = f->data.bytes;
    madvise((void *)(uintptr_t)(f->data.data + begin), end - begin, MADV_WILLNEED);
}

static void read_batch_ahead(const struct token_loader *l, int64_t batch)
{
    for (int64_t slot = 0; slot < batch_samples(l, batch); slot++) {
        int64_t sample = sample_at(l, batch, slot), first = sample;
        for (int64_t i = 0; l->pack.samples && i < token_pack_count(&l->pack, sample); i++) {
            int64_t count = token_pack_document(&l->pack, sample, i, &first);
            read_ahead(l, first, count);
        }
        if (l->classes) (void)document_at(l, sample, &first);
        if (!l->pack.samples) read_ahead(l, first, l->options.context + 1);
    }
}

int token_loader_next(struct token_loader *l, struct data_batch *batch, struct error *err)
{
    const struct data_options *o = &l->options;
    double begin = clock_seconds();
    int64_t count = batch_samples(l, l->next);
    int64_t epoch = o->whole ? 0 : l->next / epoch_batches(l);
    int code = 0;
    for (int64_t slot = 0; slot < count && !code; slot++) {
        int64_t sample = sample_at(l, l->next, slot);
        code = l->classes        ? fill_document(l, slot, sample, err)
               : l->pack.samples ? fill_whole(l, slot, sample, err)
                                 : fill_slot(l, slot, sample, epoch, err);
    }
    *batch = (struct data_batch){.tokens = l->input,
                                 .labels = l->labels,
                                 .begins = l->bounded ? l->begins : NULL,
                                 .ends = l->bounded ? l->ends : NULL,
                                 .count = count,
                                 .epoch = epoch};
    l->next++;
    if (!code) read_batch_ahead(l, l->next);
    batch->wait_ms = (clock_seconds() - begin) * 1e3;
    return code;
}

/* ---- open and close ---- */

/* Refuses text whose bytes would become numbers of tokens of another vocabulary. */
static int check_bytes(const struct token_file *f, const struct data_options *o, struct error *err)
{
    enum { BYTES = 256 };
    char hint[320], name[200];
    int64_t own = o->masked && o->mask_token >= BYTES ? 1 : 0; /* that of the mask */
    if (f->form != TOKENS_BYTES || o->tokens != TOKENS_AUTO || o->vocabulary == BYTES + own ||
        o->vocabulary == INT32_MAX)
        return 0;
    snprintf(hint, sizeof hint, _("meopt tokenize %s --tokenizer DIR -o NAME, then data.root: NAME.bin"),
             name_printable(name, sizeof name, path_basename(f->path)));
    error_set(err, EXIT_CONFIG, hint, "is a text: its bytes are tokens of a vocabulary of %d, not of %lld",
              BYTES, (long long)o->vocabulary);
    return error_at(err, f->path, 0, 0);
}

/* What a description (X.json of `meopt tokenize`) says must be so, and parts of the data that it names must
 * be there. */
static int check_facts(const struct token_file *f, json_t *facts, struct error *err)
{
    json_int_t tokens = json_integer_value(json_object_get(facts, "tokens")),
               labels = json_integer_value(json_object_get(facts, "labels")),
               documents = json_integer_value(json_object_get(facts, "documents"));
    const char *lost = !f->index.data ? "idx" : labels < tokens && !f->labels.data ? "labels" : NULL;
    if (lost)
        return error_set(err, EXIT_INTEGRITY, "copy all files of this name, or run meopt tokenize again",
                         "has no .%s file next to it, which its .json says there is", lost);
    if (tokens != f->count || documents != token_file_documents(f))
        return error_set(err, EXIT_INTEGRITY, "copy all files of this name, or run meopt tokenize again",
                         "has %lld tokens in %lld documents, but its .json says %lld in %lld",
                         (long long)f->count, (long long)token_file_documents(f), (long long)tokens,
                         (long long)documents);
    return 0;
}

/* Compares a file with its description, which only `meopt tokenize` writes: other JSON files of that name say
 * nothing. *described: it has one. */
static int check_description(const struct token_file *f, int64_t vocabulary, bool *described,
                             struct mask_tokens *mask, struct error *err)
{
    json_t *root;
    int code = token_file_description(f->path, &root, err);
    if (code) return code;
    const json_t *largest = json_object_get(root, "largest");
    const char *tokenizer = json_string_value(json_object_get(root, "tokenizer"));
    *described = root && json_is_integer(largest) && json_is_integer(json_object_get(root, "tokens")) &&
                 json_is_integer(json_object_get(root, "labels"));
    if (*described && vocabulary > 0 && json_integer_value(largest) >= vocabulary) {
        char name[256];
        code = error_set(err, EXIT_CONFIG, "use the model's tokenizer, or raise model.vocabulary",
                         "has token %lld, of the tokenizer %s; the model has a vocabulary of %lld",
                         (long long)json_integer_value(largest), name_printable(name, sizeof name, tokenizer),
                         (long long)vocabulary);
    }
    if (!code && *described) code = check_facts(f, root, err);
    if (!code && *described && mask) code = mask_tokens_read(mask, root, err);
    if (code) error_at(err, f->path, 0, 0);
    json_decref(root);
    return code;
}

static int open_files(struct token_loader *l, const struct image_list *list, struct error *err)
{
    const struct data_options *o = &l->options;
    struct stat st = {0};
    int code = token_root(o->root, &st, err);
    bool single = S_ISREG(st.st_mode);
    l->files = xcalloc((size_t)list->count, sizeof *l->files);
    l->begins_at = xcalloc((size_t)list->count + 1, sizeof *l->begins_at);
    l->documents_at = xcalloc((size_t)list->count + 1, sizeof *l->documents_at);
    for (int64_t i = 0; i < list->count && !code; i++) {
        if (token_list_part(list->names[i])) continue;
        char *path = single ? xstrdup(o->root) : path_join(o->root, list->names[i]);
        struct token_file *f = &l->files[l->file_count];
        code = token_file_open(f, path, o->tokens, err);
        bool described;
        if (!code &&
            ((code = check_bytes(f, o, err)) ||
             (code = check_description(f, o->vocabulary, &described, o->masked ? &l->mask : NULL, err))))
            token_file_close(f);
        int64_t listed = image_place(list->names[i]).bytes, found = (int64_t)f->data.bytes;
        if (!code && listed != found) {
            code = error_set(err, EXIT_FAILED, "wait until it is complete, or copy it",
                             "has %lld bytes, and had %lld when it was listed: it is being written",
                             (long long)found, (long long)listed);
            error_at(err, path, 0, 0);
            token_file_close(f);
        }
        free(path);
        if (code) break;
        l->labelled |= f->labels.data != NULL;
        l->assumed += f->index.data && !f->labels.data && !described;
        if (o->shuffle && f->data.bytes) madvise((void *)(uintptr_t)f->data.data, f->data.bytes, MADV_RANDOM);
        l->tokens += f->count;
        l->documents_at[l->file_count + 1] = l->documents_at[l->file_count] + token_file_documents(f);
        l->begins_at[++l->file_count] = l->tokens;
    }
    if (!code && o->masked && (code = mask_tokens_check(&l->mask, o, err))) error_at(err, o->root, 0, 0);
    document_facts_resolve(&l->facts, o, l->labelled);
    for (int64_t i = 0; i < l->file_count && l->facts.as != DOCUMENTS_JOINED; i++)
        l->bounded |= l->files[i].index.data || o->end >= 0 || i > 0;
    return code;
}

/* Sets the samples of an epoch where these are documents. */
static int count_documents(struct token_loader *l, const struct image_list *list, struct error *err)
{
    int64_t first;
    l->classes = list->labels;
    l->samples = l->documents_at[l->file_count];
    l->bounded = true;
    if (l->samples != list->documents)
        error_set(err, EXIT_FAILED, "wait until they are complete", "the token files have changed");
    for (int64_t i = 0; i < l->samples && l->samples == list->documents; i++) {
        int64_t count = document_at(l, i, &first);
        l->cut += count > l->options.context && l->options.context;
        if (count) continue;
        error_set(err, EXIT_FAILED, "run meopt tokenize again", "document %lld has no tokens", (long long)i);
        return error_at(err, l->options.root, 0, 0);
    }
    return l->samples == list->documents ? 0 : error_at(err, l->options.root, 0, 0);
}

void token_loader_report(const struct token_loader *l)
{
    if (l->assumed && !l->options.masked && !l->classes)
        log_info("every token is a label (assumed): %lld token files have neither .labels nor the .json of "
                 "meopt tokenize",
                 (long long)l->assumed);
    if (l->cut)
        log_info(
            "%lld of %lld documents are longer than model.context %lld: their first tokens and the last one "
            "are read",
            (long long)l->cut, (long long)l->samples, (long long)l->options.context);
    if (!l->classes) document_facts_report(&l->facts, &l->options);
}

/* Sets the samples of an epoch. */
static int count_samples(struct token_loader *l, struct error *err)
{
    const struct data_options *o = &l->options;
    const struct token_files all = {l->files, l->begins_at, l->file_count};
    struct document_facts *facts = &l->facts;
    int64_t N = o->context, least = o->whole ? 2 : N + 1;
    if (facts->as == DOCUMENTS_WHOLE) {
        int code = document_facts_pack(facts, &all, o, &l->pack, err);
        l->samples = l->pack.samples;
        l->bounded = true;
        return code;
    }
    if (l->tokens < least) {
        error_set(err, EXIT_CONFIG, "lower model.context, or add files",
                  "has %lld tokens, a sample requires %lld", (long long)l->tokens, (long long)least);
        return error_at(err, o->root, 0, 0);
    }
    document_facts_count(facts, &all);
    l->samples = o->whole ? (l->tokens - 1 + N - 1) / N : (l->tokens - 1) / N;
    if (!o->whole && o->shuffle && l->samples > 1) l->samples--; /* for the offset of an epoch */
    facts->samples = l->samples;
    facts->padding = l->samples * N > l->tokens ? l->samples * N - l->tokens : 0;
    return 0;
}

/* Refuses fewer samples than one batch of all ranks. */
static int check_batch(const struct token_loader *l, struct error *err)
{
    const struct data_options *o = &l->options;
    if (o->whole || l->samples >= o->global) return 0;
    if (numbered(l))
        error_set(err, EXIT_CONFIG, "lower train.batch_size", "%lld %s are fewer than one batch of %lld",
                  (long long)l->samples, "samples", (long long)o->global);
    else
        error_set(err, EXIT_CONFIG, "lower model.context or train.batch_size, or add text",
                  "%lld tokens make %lld samples of %lld, fewer than one batch of %lld", (long long)l->tokens,
                  (long long)l->samples, (long long)o->context, (long long)o->global);
    return error_at(err, o->root, 0, 0);
}

static int allocate(struct token_loader *l, struct error *err)
{
    const struct data_options *o = &l->options;
    size_t values = (size_t)(o->batch * o->context) * sizeof(int32_t);
    l->input = malloc(values);
    l->labels = malloc(values);
    l->begins = malloc(values);
    l->ends = malloc(values);
    l->row = malloc((size_t)(o->context + 1) * sizeof *l->row);
    l->order = malloc((size_t)o->context * sizeof *l->order);
    if (l->input && l->labels && l->begins && l->ends && l->row && l->order) return 0;
    return error_set(err, EXIT_HOST_MEMORY, "lower train.batch_size", "out of memory for a batch of tokens");
}

int token_loader_open(struct token_loader **loader, const struct data_options *options,
                      const struct image_list *list, struct error *err)
{
    struct token_loader *l = xcalloc(1, sizeof *l);
    *loader = NULL;
    l->options = *options;
    l->bounded = options->masked && options->whole; /* padding is seen by no other token */
    int code = open_files(l, list, err);
    if (!code) code = options->labels ? count_documents(l, list, err) : count_samples(l, err);
    if (!code) code = check_batch(l, err);
    if (!code) code = allocate(l, err);
    if (code) token_loader_close(l);
    else *loader = l;
    return code;
}

void token_loader_close(struct token_loader *l)
{
    if (!l) return;
    for (int64_t i = 0; i < l->file_count; i++) token_file_close(&l->files[i]);
    free(l->files);
    free(l->begins_at);
    free(l->documents_at);
    token_pack_free(&l->pack);
    free(l->input);
    free(l->labels);
    free(l->begins);
    free(l->ends);
    free(l->row);
    free(l->order);
    mask_tokens_free(&l->mask);
    free(l);
}
