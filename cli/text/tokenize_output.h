/* The files that meopt tokenize writes: the token files of one part or two (training, validation), and the
 * list of records that were left out, NAME.skipped. */
#ifndef MEOPT_CLI_TEXT_TOKENIZE_OUTPUT_H
#define MEOPT_CLI_TEXT_TOKENIZE_OUTPUT_H

#include "core/base/json.h"
#include "core/data/token_write.h"
#include "core/text/corpus.h"

enum { OUTPUT_TRAINING, OUTPUT_VALIDATION, OUTPUT_PARTS };

struct tokenize_output {
    int parts; /* 1: no validation part */
    bool classes;
    char *names[OUTPUT_PARTS]; /* NAME, NAME-val */
    struct token_writer *writers[OUTPUT_PARTS];
    struct token_position at[OUTPUT_PARTS];
    char *skipped_name; /* NAME.skipped */
    int skipped_fd;     /* of NAME.skipped.part; -1: none yet */
    int64_t skipped, skipped_bytes;
};
void output_begin(struct tokenize_output *output, const char *name, bool validation, bool classes);
/* Refuses files that are there; all: also those that a killed command may have written. */
int output_check_names(const struct tokenize_output *output, bool all, struct error *err);
/* Gives files that a killed command, whose state it is, had renamed their unfinished names back. */
int output_undo_names(const struct tokenize_output *output, const json_t *state, struct error *err);
/* Opens the files, at the position of a state (output_state) or at the beginning (NULL). */
int output_open(struct tokenize_output *output, int64_t vocabulary, const json_t *state, struct error *err);
/* Returns whether a state can be resumed. */
bool output_resumable(const struct tokenize_output *output, const json_t *state);
int output_add(struct tokenize_output *output, const struct corpus_result *result, struct error *err);
/* Adds a record that is left out to the list. */
int output_skip(struct tokenize_output *output, const struct error *why, struct error *err);
int output_sync(struct tokenize_output *output, struct error *err);
/* Adds the position of the last sync to a state. */
void output_state(const struct tokenize_output *output, json_t *state);
/* Refuses a part without documents (EXIT_FAILED). */
int output_check_parts(const struct tokenize_output *output, struct error *err);
/* Gives the files their names; descriptions: X.json of each part. Then remove the state and the unfinished
 * files. */
int output_commit(struct tokenize_output *output, char *const *descriptions, struct error *err);
void output_remove_unfinished(struct tokenize_output *output);
void output_close(struct tokenize_output *output);

#endif
