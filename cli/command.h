/* The tables of commands and options. Each command has one file, which ends with its `const struct command`.
 * Its option table drives parsing, --help, shell completion, and the test that compares it with the man page.
 */
#ifndef MEOPT_CLI_COMMAND_H
#define MEOPT_CLI_COMMAND_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* OPTION_MODEL: a path, or hf:OWNER/REPO or ms:OWNER/REPO, whose snapshot in the cache is the value. */
enum option_type { OPTION_FLAG, OPTION_TEXT, OPTION_MODEL, OPTION_INT, OPTION_REAL, OPTION_LIST };

/* A row names every field after the first: {"seconds", .type = OPTION_REAL, .value = "S", .help = "..."}. */
struct option {
    const char *name; /* long name without the dashes */
    char letter;      /* short form, or 0 */
    enum option_type type;
    const char *value; /* placeholder in the help: "FILE", "[FILE]" (may be absent), "N"; NULL for a flag */
    const char
        *choices;     /* "pt|safetensors": checked and completed, FILE.json: any such name; NULL: free text */
    double min, max;  /* range of OPTION_INT and OPTION_REAL; unchecked when min == max */
    const char *help; /* one line, no full stop */
};

/* A parsed command line: options by name, operands in order. */
struct arguments {
    int operand_count;
    char **operands;
    struct argument_value *values; /* one per option row */
    const struct command *command;
};

struct command {
    const char *name;             /* "train", or two words: "bench optim" */
    const char *operands;         /* "CONFIG [key=value ...]" */
    const char *summary;          /* one line */
    const char *details;          /* paragraphs of --help after the usage line, examples first; may be NULL */
    const struct option *options; /* ends with name NULL; may be NULL */
    int min_operands, max_operands; /* max -1: any number */
    bool hidden;
    int (*run)(const struct arguments *args, struct error *err);
};

/* Return the value of an option, `missing` if it is not given. `name` must be in the command's table
 * (asserted). */
bool argument_flag(const struct arguments *args, const char *name);
const char *argument_text(const struct arguments *args, const char *name, const char *missing);
int64_t argument_int(const struct arguments *args, const char *name, int64_t missing);
double argument_real(const struct arguments *args, const char *name, double missing);
/* Returns the i-th value of an OPTION_LIST (an option that may be repeated), NULL after the last. */
const char *argument_list(const struct arguments *args, const char *name, int i);

/* Parses argv[1..] of a command; the caller frees args, also after an error. --help prints and returns -1.
 * Options and operands may be in any order; "--" ends the options. */
int arguments_parse(struct arguments *args, const struct command *command, int argc, char **argv,
                    struct error *err);
void arguments_free(struct arguments *args);
void command_help(const struct command *command);

/* All commands, ending with NULL (cli/main.c). */
extern const struct command *const commands[];
/* Finds the command whose name is the first word ("train") or the first two ("bench optim"); *taken is the
 * number of words of its name. Returns NULL if there is none. */
const struct command *command_find(char **words, int count, int *taken);

#endif
