/* Writes token files that can be resumed: X.bin and X.idx in Megatron's format (token_file.h), one document
 * per sequence, u16 tokens if the vocabulary permits it, else i32. X.labels (token_file.h) is written if some
 * tokens are no labels.
 *
 * Until the commit, the content is in X.bin.part and X.idx.part (the lengths alone). token_writer_sync
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
/* Opens the files of the output `base` ("data" for data.bin) at a position (NULL: the beginning). A second
 * process with the same output is refused (EXIT_LOCKED). */
int token_writer_open(struct token_writer **writer, const char *base, int64_t vocabulary,
                      const struct token_position *at, struct error *err);
/* Adds tokens to the current document. label: training predicts them. */
int token_writer_add(struct token_writer *writer, const int32_t *ids, int64_t count, bool label, bool ends,
                     struct error *err);
/* Writes to the disk, and returns the position. */
int token_writer_sync(struct token_writer *writer, struct token_position *at, struct error *err);
/* Writes the index and gives the files their names. */
int token_writer_commit(struct token_writer *writer, struct token_position *at, struct error *err);
/* Removes the unfinished files, which no position refers to. */
void token_writer_remove(struct token_writer *writer);
/* Frees the writer. The unfinished files stay. */
void token_writer_close(struct token_writer *writer);

#endif
