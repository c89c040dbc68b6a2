/* Documents of token files: what they are, and which of them are samples (data.h, DOCUMENTS_WHOLE).
 *
 * They end by Megatron's index, in other files after each token data_options.end, and with their file. A
 * label is a token from the second of a document on that training predicts.
 */
#ifndef MEOPT_DATA_TOKEN_DOCUMENTS_H
#define MEOPT_DATA_TOKEN_DOCUMENTS_H

#include "core/base/json.h"
#include "core/data/data.h"
#include "core/data/token_pack.h"

/* Files that are one sequence: begins_at[i] is the first token of file i among all. */
struct token_files {
    const struct token_file *files;
    const int64_t *begins_at;
    int64_t count;
};

/* Sets facts->as and facts->assumed by the options; labelled: a file says which tokens are labels. */
void document_facts_resolve(struct document_facts *facts, const struct data_options *options, bool labelled);
/* Counts the documents of files that all have an index; facts->documents stays 0 if one has none. */
void document_facts_count(struct document_facts *facts, const struct token_files *files);
/* Makes samples of whole documents with labels. Documents that are longer than a sample are refused, cut or
 * skipped by options->too_long. */
int document_facts_pack(struct document_facts *facts, const struct token_files *files,
                        const struct data_options *options, struct token_pack *pack, struct error *err);
/* Logs which documents are cut or left out, and the facts. */
void document_facts_report(const struct document_facts *facts, const struct data_options *options);
json_t *document_facts_json(const struct document_facts *facts);

#endif
