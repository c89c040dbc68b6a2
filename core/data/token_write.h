/* Writes token files that can be resumed: X.bin and X.idx in Megatron's format (token_file.h), one document
 * per sequence, u16 tokens if the vocabulary permits it, else i32. X.labels (token_file.h) is written if some
 * tokens are no labels, X.classes if the documents have classes.
 *
 * Until the commit, the content is in X.bin.part, X.idx.part (the lengths alone) and so on. token_writer_sync
 * returns a position that token_writer_open resumes from: what was written after it is dropped.
 */
#ifndef MEOPT_DATA_TOKEN_WRITE_H
#define MEOPT_DATA_TOKEN_WRITE_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct token_position {
    int64_t tokens, documents;
    int64_t open;    /* tokens of the document that has not ended */
    int64_t largest; /* token; -1: none */
    int64_t labels;  /* tokens that are labels */
    int bits;        /* of X.labels, of the last tokens, less than a byte */
};

struct token_writer;
/* Opens the files of the output `base` ("data" for data.bin) at a position (NULL: the beginning). classes:
 * each document has one. A second process with the same output is refused (EXIT_LOCKED). */
int token_writer_open(struct token_writer **writer, const char *base, int64_t vocabulary, bool classes,
                      const struct token_position *at, struct error *err);
/* Returns the number of a class by its name, which may be new: numbers are in the order of the first use.
 * After a position is resumed, the names so far come first, in this order. */
int32_t token_writer_class(struct token_writer *writer, const char *name,
                           struct error *err); /* -1: too many */
int32_t token_writer_classes(const struct token_writer *writer);
const char *token_writer_class_name(const struct token_writer *writer, int32_t class);
/* Returns the type of the tokens: "uint16" or "int32". */
const char *token_writer_type(const struct token_writer *writer);
/* Adds tokens to the current document. label: training predicts them. class: of a document that ends, in a
 * writer of classes. */
int token_writer_add(struct token_writer *writer, const int32_t *ids, int64_t count, bool label, bool ends,
                     int32_t class, struct error *err);
/* Writes to the disk, and returns the position. */
int token_writer_sync(struct token_writer *writer, struct token_position *at, struct error *err);
/* Writes the description X.json (NULL: none), the index, classes and labels under their names. All parts stay
 * until the commit, so that a command that is killed meanwhile is resumed; it finds its own files again by
 * their bytes. A different file of one of these names is an error. */
int token_writer_prepare(struct token_writer *writer, struct token_position *at, const char *description,
                         struct error *err);
/* Gives X.bin of a writer that is prepared its name. Then remove the position, and the unfinished files. */
int token_writer_commit(struct token_writer *writer, struct error *err);
/* Undoes what a killed command began: renames `name` to name.part if that is not there. */
int token_writer_renamed(const char *name, struct error *err);
/* Removes the unfinished files, which no position refers to. */
void token_writer_remove(struct token_writer *writer);
/* Frees the writer. The unfinished files stay. */
void token_writer_close(struct token_writer *writer);

#endif
