/* Text files to tokens, by several threads, in the order of the files.
 *
 *   records   JSON objects (container.h), each of which is a document (text_record.h)
 *   others    UTF-8 text. A document is a file, a line, or a paragraph (ends at an empty line)
 *
 * Files are mapped, or decompressed as a stream (text_source.h), and cut into jobs of about 1 MiB, so memory
 * is bounded. Offsets are those of the text. A document that is longer is cut
 * where the tokenizer joins no characters (tokenizer_breaks); a tokenizer without such places encodes it as a
 * whole. Tokens are independent of the number of threads.
 */
#ifndef MEOPT_TEXT_CORPUS_H
#define MEOPT_TEXT_CORPUS_H

#include "core/text/text_record.h"
#include "core/text/text_source.h"
#include "core/text/tokenizer.h"

enum corpus_documents { DOCUMENT_FILE, DOCUMENT_LINE, DOCUMENT_PARAGRAPH };

/* A place between two jobs. */
struct corpus_position {
    int64_t file, offset;
    bool inside; /* of a document */
};

/* Tokens of a document, or of a part of it. label: training predicts them. */
struct corpus_piece {
    int64_t count;
    bool label;
    bool ends;         /* the document */
    bool validation;   /* the document belongs to the validation part */
    const char *class; /* of a document that ends, with a label in corpus_options; else NULL */
};
struct corpus_result {
    const struct token_list *tokens;
    const struct corpus_piece *pieces;
    int64_t piece_count;
    int64_t forms[RECORD_FORMS];  /* records of each */
    int64_t bytes;                /* of the file that were read */
    struct corpus_position after; /* this result */
};

struct corpus_options {
    const struct tokenizer *tokenizer;
    char *const *files;
    int file_count, threads;
    enum corpus_documents documents; /* of text files */
    int32_t end;                     /* token after each document but conversations; -1: none */
    struct text_record_options record;
    const struct text_unpacker *unpacker; /* of compressed files; NULL: they are refused */
    double validation; /* share of the documents, chosen by a hash of their content; with record.hashes */
    int64_t skip, skipped_before; /* most records that may be left out; those before `from` */
    struct corpus_position from;
    /* Receives the results in order. An error ends the work. */
    int (*write)(void *context, const struct corpus_result *result, struct error *err);
    /* Receives a record that is left out, before its result; why: with file and line. */
    int (*skipped)(void *context, const struct error *why, struct error *err);
    void *context;
};

/* An error names file and line. */
int corpus_encode(const struct corpus_options *options, struct error *err);
#endif
