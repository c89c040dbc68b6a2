/* Writes what transformers needs next to the weights of a language model: config.json, generation_config.json
 * and the files of the tokenizer. */
#ifndef MEOPT_CLI_EXPORT_LANGUAGE_H
#define MEOPT_CLI_EXPORT_LANGUAGE_H

#include "core/nn/nn.h"

#include <jansson.h>

/* Sets the members of a config.json for sizes of the model; the list ends with FACT_COUNT. */
void export_set_sizes(json_t *o, const struct model_shape *g, const enum fact *sizes);

/* Adds id2label and label2id to a config.json; LABEL_N where a name is not known. classes may be NULL. */
void export_set_classes(json_t *config, int64_t count, const json_t *classes);
/* classes: their names in a classifier, may be NULL. original: the model that the run began with, a directory
 * or a file in one; "": none. Its tokenizer is copied, and the numbers of its special tokens. EXIT_CONFIG if
 * transformers has no class for such a model. */
int export_language_write(const char *directory, const struct model_shape *model_shape, const json_t *classes,
                          const char *original, bool bf16, struct error *err);
/* Copies the tokenizer's files that exist next to a model. */
int export_language_tokenizer(const char *directory, const char *original, struct error *err);
/* Copies files of a tokenizer that an earlier export has and this one lacks: its user may have added them.
 * Names these, and those that differ. */
int export_language_keep(const char *directory, const char *earlier, struct error *err);
/* Returns whether a file of that name is one of these. */
bool export_language_file(const char *name);

#endif
