/* Samples and batches of token files: the part of data.h for data_options.tokens.
 *
 * The files are one sequence of tokens, in the order of their names. A sample is a window of `context`
 * tokens, and the label of each is the token after it. An epoch begins at an offset drawn from seed and
 * epoch and visits windows in the order of data_shuffle; less than two windows are left out. In file
 * order, and in a whole pass, windows begin at the first token; the last one of a whole pass may be padded.
 *
 * With data_options.labels a sample is a document, padded to `context` tokens, and its label is its class.
 * Of a longer one the first tokens and the last one remain. An epoch visits all in the order of data_shuffle.
 *
 * Whole documents (token_pack.h): a sample is a few documents and padding, which is a document of its own
 * without labels. A document of n tokens takes n, and its last one has no label. The composition of samples
 * is fixed by the seed; an epoch visits all in the order of data_shuffle, a whole pass in that of the files.
 *
 * Documents apart: a token sees and predicts only tokens of its document, so the last one has no label. They
 * end by Megatron's index, after each token data_options.end, and with their file.
 */
#ifndef MEOPT_DATA_TOKEN_LOADER_H
#define MEOPT_DATA_TOKEN_LOADER_H

#include "core/data/data.h"
#include "core/data/list.h"

/* Lists the token files of options->root: itself, or those in the directory that end in .bin, or else all,
 * and their indices. */
int token_list_open(struct image_list *list, const struct data_options *options, struct error *err);
struct stat;
/* Examines the root: of a single file, the listed name is no part of the path. */
int token_root(const char *root, struct stat *status, struct error *err);
/* Returns whether a listed name is that of an index, of labels or of classes. */
bool token_list_part(const char *name);

/* Reads all files: opens each, and compares each token with the vocabulary (0: unknown). */
int token_check(const struct data_options *options, struct data_findings *findings, struct error *err);

struct token_loader;
int token_loader_open(struct token_loader **loader, const struct data_options *options,
                      const struct image_list *list, struct error *err);
void token_loader_close(struct token_loader *loader);
int64_t token_loader_tokens(const struct token_loader *loader);
int64_t token_loader_samples(const struct token_loader *loader); /* of an epoch */
/* NULL: documents have classes. */
const struct document_facts *token_loader_documents(const struct token_loader *loader);
/* Logs what the documents are, how many are cut, and what is assumed of labels. */
void token_loader_report(const struct token_loader *loader);
void token_loader_start(struct token_loader *loader, int64_t batch);
int token_loader_next(struct token_loader *loader, struct data_batch *batch, struct error *err);

#endif
