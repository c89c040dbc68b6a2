/* Token files, mapped read-only:
 *
 *   Megatron   X.bin and X.idx. The index: "MMIDIDX\0\0", u64 version 1, u8 type (1 u8, 2 i8, 3 i16, 4 i32,
 *              5 i64, 8 u16), u64 sequences, u64 documents, then i32 length of each sequence in tokens, i64
 *              offset of each sequence in X.bin, i64 number of the first sequence of each document, of which
 *              the last is the number of sequences (Megatron-LM, indexed_dataset.py)
 *              X.labels, if it exists, says which tokens are labels: "MEOPTLBL", u64 tokens, then a bit for
 *              each token, the lowest of a byte first (meopt tokenize)
 *              X.classes, if it exists, has a class for each document: "MEOPTCLS", u64 documents, u64
 *              classes, i32 class of each document, then the name of each class, with its NUL (meopt tokenize
 *              --label)
 *   llm.c      256 i32: magic 20240520, version 1, tokens, zeros; then u16. Or magic 20240801, version 7, and
 *              u32 (llm.c, dataloader.h)
 *   uint16     u16 alone (nanoGPT); uint32: u32 alone
 *   bytes      any file: each byte is a token
 *
 * All numbers are little-endian. The index is checked as a whole when it is opened: a contradiction is
 * refused with its byte.
 */
#ifndef MEOPT_DATA_TOKEN_FILE_H
#define MEOPT_DATA_TOKEN_FILE_H

#include "core/base/error.h"
#include "core/base/file.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* AUTO: Megatron with an index, llm.c by its magic, uint16 if the name ends in .bin, else bytes. */
enum token_form {
    TOKENS_NONE,
    TOKENS_AUTO,
    TOKENS_MEGATRON,
    TOKENS_LLMC,
    TOKENS_UINT16,
    TOKENS_UINT32,
    TOKENS_BYTES,
    TOKEN_FORMS
};

struct token_file {
    char *path;
    enum token_form form;
    struct file_map data, index; /* index.data NULL: none */
    struct file_map labels;      /* data NULL: every token is a label */
    int width;                   /* bytes of a token */
    bool is_signed;
    int64_t first;                     /* byte of the first token */
    int64_t count;                     /* tokens */
    const uint8_t *offsets, *starts;   /* of the index: i64 of sequences, of documents */
    int64_t sequences, document_count; /* document_count: with the last, which ends the others */
};

int token_file_open(struct token_file *file, const char *path, enum token_form form, struct error *err);
void token_file_close(struct token_file *file);
/* Parses maps that the caller owns. The file of an error is the caller's: *in_index says which it is. */
int token_file_parse(struct token_file *file, const char *path, enum token_form form, bool *in_index,
                     struct error *err);
/* Returns the path of the index of a data file, malloc'ed: X.idx of X.bin; NULL if the name does not end in
 * .bin. */
char *token_file_index(const char *path);
/* Returns the path of the file of labels, malloc'ed; NULL as above. */
char *token_file_labels(const char *path);
char *token_file_classes(const char *path);
/* Reads the description by `meopt tokenize`, X.json. *root NULL: there is none; a file of that name that
 * others wrote describes nothing. */
int token_file_description(const char *path, json_t **root, struct error *err);
/* Returns whether training predicts a token. */
bool token_file_is_label(const struct token_file *file, int64_t at);
/* Returns how many of `count` tokens from `at` on training predicts. */
int64_t token_file_label_count(const struct token_file *file, int64_t at, int64_t count);
/* Copies `count` tokens from `at` on. Returns the first that is not below `vocabulary`, or is negative; -1:
 * none. */
int64_t token_file_read(const struct token_file *file, int64_t at, int64_t count, int64_t vocabulary,
                        int32_t *to);
/* Returns a token's value. */
int64_t token_file_value(const struct token_file *file, int64_t at);
/* Returns the first token after `at` that begins another document; the count if there is none. */
int64_t token_file_document_end(const struct token_file *file, int64_t at);
/* Documents of a file with an index; 0: it has none. */
int64_t token_file_documents(const struct token_file *file);
/* Sets the first token of a document, and returns its tokens. */
int64_t token_file_document(const struct token_file *file, int64_t document, int64_t *first);

/* The content of X.classes, in memory that the caller owns. */
struct document_classes {
    int64_t documents, classes;
    const uint8_t *of;  /* i32 of each document */
    const char **names; /* (classes), malloc'ed */
};
int document_classes_parse(struct document_classes *classes, const uint8_t *data, size_t bytes,
                           struct error *err);
int32_t document_class(const struct document_classes *classes, int64_t document);

#endif
