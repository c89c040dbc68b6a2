/* Documents of token files: see token_documents.h. */
#include "core/data/token_documents.h"
#include "core/base/log.h"
#include "core/base/progress.h"

#include <stdio.h>

enum { PROGRESS = 1 << 20 };

static const char *const as_names[] = {
    [DOCUMENTS_AUTO] = "auto",
    [DOCUMENTS_APART] = "apart",
    [DOCUMENTS_JOINED] = "joined",
    [DOCUMENTS_WHOLE] = "whole",
};

void document_facts_resolve(struct document_facts *facts, const struct data_options *o, bool labelled)
{
    facts->assumed = o->documents == DOCUMENTS_AUTO;
    facts->as = !facts->assumed ? o->documents : labelled && !o->masked ? DOCUMENTS_WHOLE : DOCUMENTS_APART;
}

/* A document of a file; number -1: before the first. */
struct document {
    int64_t number, first, count;
};

/* Returns false after the last one. */
static bool next_document(const struct token_file *f, int64_t end, struct document *d)
{
    d->number++;
    if (f->index.data) {
        if (d->number >= token_file_documents(f)) return false;
        d->count = token_file_document(f, d->number, &d->first);
        return true;
    }
    d->first += d->count;
    if (d->first >= f->count) return false;
    int64_t at = end < 0 ? f->count - 1 : d->first;
    for (; at + 1 < f->count && token_file_value(f, at) != end; at++)
        if (at % PROGRESS == 0) progress_mark();
    d->count = at + 1 - d->first;
    return true;
}

static int64_t labels_of(const struct token_file *f, int64_t first, int64_t count)
{
    return count > 1 ? token_file_label_count(f, first + 1, count - 1) : 0;
}

void document_facts_count(struct document_facts *facts, const struct token_files *all)
{
    bool joined = facts->as == DOCUMENTS_JOINED; /* the first tokens of documents are predicted, too */
    for (int64_t i = 0; i < all->count; i++)
        if (!all->files[i].index.data) return;
    for (int64_t i = 0; i < all->count; i++) {
        const struct token_file *f = &all->files[i];
        for (struct document d = {.number = -1}; next_document(f, -1, &d); facts->documents++) {
            int64_t labels = labels_of(f, d.first, d.count);
            if (!joined) facts->labels += labels;
            facts->unlabelled += !labels;
            if (d.count > facts->longest) facts->longest = d.count;
            if (facts->documents % PROGRESS == 0) progress_mark();
        }
        facts->tokens += f->count;
        if (joined) facts->labels += token_file_label_count(f, 0, f->count);
        if (joined && i == 0 && f->count) facts->labels -= token_file_is_label(f, 0);
    }
    facts->kept = facts->documents;
}

/* Adds a document of file i if it has labels and is not too long. */
static int add_document(struct document_facts *facts, const struct token_files *all, int64_t i,
                        const struct document *d, const struct data_options *o, struct token_pack *pack,
                        struct error *err)
{
    const struct token_file *f = &all->files[i];
    int64_t labels = labels_of(f, d->first, d->count), count = d->count;
    facts->documents++;
    if (labels && count > facts->longest) facts->longest = count;
    if (labels && count > o->context) {
        facts->too_long++;
        if (o->too_long != DOCUMENTS_LONG_CUT) return 0;
        count = o->context;
        labels = labels_of(f, d->first, count);
    }
    if (!labels) {
        facts->unlabelled++;
        return 0;
    }
    facts->kept++;
    facts->tokens += count;
    facts->labels += labels;
    return token_pack_add(pack, all->begins_at[i] + d->first, count, err);
}

int document_facts_pack(struct document_facts *facts, const struct token_files *all,
                        const struct data_options *o, struct token_pack *pack, struct error *err)
{
    const char *longest_in = o->root;
    int code = 0;
    for (int64_t i = 0; i < all->count && !code; i++) {
        int64_t longest = facts->longest;
        for (struct document d = {.number = -1}; !code && next_document(&all->files[i], o->end, &d);)
            code = add_document(facts, all, i, &d, o, pack, err);
        if (facts->longest > longest) longest_in = all->files[i].path;
    }
    if (!code && facts->too_long && o->too_long == DOCUMENTS_LONG_REFUSE) {
        char hint[200];
        snprintf(hint, sizeof hint, _("raise model.context to %lld, or set data.too_long: cut or skip"),
                 (long long)facts->longest);
        error_set(err, EXIT_CONFIG, hint,
                  "%lld of %lld documents are longer than model.context %lld: the longest has %lld tokens",
                  (long long)facts->too_long, (long long)facts->documents, (long long)o->context,
                  (long long)facts->longest);
        return error_at(err, longest_in, 0, 0);
    }
    if (!code && !pack->documents) {
        code = error_set(err, EXIT_CONFIG, "add documents with answers, or raise model.context",
                         "none of %lld documents has a label in its first %lld tokens",
                         (long long)facts->documents, (long long)o->context);
        error_at(err, o->root, 0, 0);
    }
    if (!code) code = token_pack_make(pack, o->context, o->whole ? 0 : o->seed, err);
    if (code) return code;
    facts->samples = pack->samples;
    facts->padding = pack->samples * o->context - pack->tokens;
    return 0;
}

bool document_facts_text(const struct document_facts *f, char *text, size_t size)
{
    if (!f || !f->kept) return false;
    double tokens = (double)f->tokens, all = tokens + (double)f->padding;
    int64_t left_out = f->documents - f->kept, skipped = left_out ? left_out - f->unlabelled : 0;
    int n = snprintf(
        text, size,
        _("data.documents %s%s: %lld documents, %lld tokens, %lld labels, mean length %.1f, longest %lld; "
          "%lld samples, %.2f %% padding"),
        as_names[f->as], f->assumed ? " (auto)" : "", (long long)f->kept, (long long)f->tokens,
        (long long)f->labels, tokens / (double)f->kept, (long long)f->longest, (long long)f->samples,
        100 * (double)f->padding / all);
    if (left_out && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, _("; left out: %lld without labels, %lld too long"),
                 (long long)(left_out - skipped), (long long)skipped);
    return true;
}

void document_facts_report(const struct document_facts *f, const struct data_options *o)
{
    char text[400];
    if (f->too_long)
        log_warn(
            o->too_long == DOCUMENTS_LONG_CUT
                ? "%lld of %lld documents are longer than model.context %lld: data.too_long cuts their end"
                : N_("%lld of %lld documents are longer than model.context %lld: data.too_long skips them"),
            (long long)f->too_long, (long long)f->documents, (long long)o->context);
    if (document_facts_text(f, text, sizeof text)) log_info("%s: %s", o->root, text);
}

json_t *document_facts_json(const struct document_facts *f)
{
    if (!f) return json_null();
    if (!f->kept)
        return json_pack("{s:s, s:b, s:I}", "as", as_names[f->as], "assumed", f->assumed, "samples",
                         (json_int_t)f->samples);
    return json_pack("{s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:f}", "as", as_names[f->as],
                     "assumed", f->assumed, "documents", (json_int_t)f->documents, "too_long",
                     (json_int_t)f->too_long, "unlabelled", (json_int_t)f->unlabelled, "kept",
                     (json_int_t)f->kept, "tokens", (json_int_t)f->tokens, "labels", (json_int_t)f->labels,
                     "mean_length", (double)f->tokens / (double)f->kept, "longest", (json_int_t)f->longest,
                     "samples", (json_int_t)f->samples, "padding",
                     (double)f->padding / (double)(f->tokens + f->padding));
}
