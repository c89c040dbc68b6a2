/* The special tokens of a tokenizer and their roles, as the files next to its tokenizer.json name them. */
#ifndef MEOPT_TEXT_TOKEN_ROLES_H
#define MEOPT_TEXT_TOKEN_ROLES_H

#include "core/text/tokenizer.h"

#include <jansson.h>

enum token_role {
    SPECIAL_MASK,
    SPECIAL_PAD,
    SPECIAL_CLS,
    SPECIAL_SEP,
    SPECIAL_UNK,
    SPECIAL_BOS,
    SPECIAL_EOS,
    TOKEN_ROLES
};

struct token_roles {
    int32_t ids[TOKEN_ROLES];  /* -1: no file names one */
    struct token_list special; /* sorted: those, and special ones among added_tokens */
};

/* Reads tokenizer_config.json (`config`, NULL: absent), special_tokens_map.json, config.json, and for mask
 * and pad the class that they name. Refuses files that name different tokens, or one that the tokenizer does
 * not have. A mask that no file names is the only special token with "mask" in its text, which is logged. */
int token_roles_read(struct token_roles *roles, const char *directory, const json_t *config,
                     const struct tokenizer *tokenizer, struct error *err);
void token_roles_free(struct token_roles *roles);

#endif
