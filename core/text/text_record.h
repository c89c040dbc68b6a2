/* Records of .jsonl: a text, a conversation, or a prompt with its completion, as spans of which some are
 * labels; or a text with its class. */
#ifndef MEOPT_TEXT_TEXT_RECORD_H
#define MEOPT_TEXT_TEXT_RECORD_H

#include "core/text/tokenizer.h"

/* How a model writes a conversation: one row per template. A turn is before, role, after, content, end,
 * between; content and `end` of the assistant's turns are labels. */
struct chat_template {
    const char *name;
    /* tokenizer_config.json's chat_template has all parts of `has`, separated by '|', and none of `lacks` */
    const char *has, *lacks;
    const char *begin, *before, *after, *end, *between; /* between: after `end`, never a label */
    const char *system;                                 /* of conversations without one; NULL: none */
    bool trims;                                         /* white space around a content is removed */
    bool thinks;                                        /* keeps thoughts after the last question alone */
};
extern const struct chat_template chat_templates[];             /* ends with name NULL */
#define CHAT_TEMPLATE_NAMES "chatml|qwen2|qwen2.5|qwen3|llama3" /* of the rows, for options */
/* Returns the row with this name, NULL if there is none. */
const struct chat_template *chat_template_named(const char *name);
/* Recognises a Jinja template by its parts, without evaluating it; NULL: unknown. */
const struct chat_template *chat_template_like(const char *jinja);

struct text_span {
    size_t begin, end; /* in the text */
    bool label;
};
struct text_record {
    struct text_buffer text;
    struct text_span *spans;
    int64_t count, capacity;
    bool plain;               /* the tokens of the post-processor and the end token belong to it */
    struct text_buffer class; /* its name or number, as text */
};
void text_record_free(struct text_record *record);
/* Reads a line. chat NULL: conversations are refused. label: key of the class, with which records have a
 * text; NULL: none. The caller names file and line. */
int text_record_read(struct text_record *record, const char *line, size_t bytes,
                     const struct chat_template *chat, const char *label, struct error *err);
/* Sets the record to a question of the user, up to where the answer begins. system: NULL: the template's. */
void text_record_ask(struct text_record *record, const struct chat_template *chat, const char *system,
                     const char *question);

#endif
