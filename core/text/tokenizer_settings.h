/* The files next to a tokenizer.json: tokenizer_config.json, chat_template.jinja and generation_config.json,
 * as transformers saves them. */
#ifndef MEOPT_TEXT_TOKENIZER_SETTINGS_H
#define MEOPT_TEXT_TOKENIZER_SETTINGS_H

#include "core/text/text_record.h"
#include "core/text/token_roles.h"

enum { TOKENIZER_ENDS = 16 };

struct tokenizer_settings {
    struct chat_template chat;    /* of conversations, its `bos` and `eos` are set; name NULL: none */
    char *bos, *eos;              /* bos_token, eos_token; NULL: none */
    json_t *own;                  /* texts of a template of one's own */
    struct error no_chat;         /* the reason why there is none */
    int32_t end;                  /* eos_token; -1: none */
    int32_t ends[TOKENIZER_ENDS]; /* tokens that end an answer: eos_token, eos_token_id, the end of a turn */
    int end_count;
    struct token_roles roles;
    /* of generation_config.json, which draws: the options of meopt generate that do, and members without one;
     * "": none */
    char sampling[96], not_applied[128];
};

/* path: a tokenizer.json or its directory. Files that are absent set nothing; damaged ones are an error.
 * name: the template to use, a row of chat_templates or a file (chat_template_read); NULL: the files', if it
 * is a published one of a row and the tokenizer has its tokens. EXIT_USAGE if the tokenizer does not have
 * those of `name`. */
int tokenizer_settings_read(struct tokenizer_settings *settings, const char *path, const char *name,
                            const struct tokenizer *tokenizer, struct error *err);
void tokenizer_settings_free(struct tokenizer_settings *settings);

#endif
