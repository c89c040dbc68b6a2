/* Records of .jsonl: a text, a conversation, or a prompt with its completion (record_forms.h), as spans of
 * which some are labels; or a text with its class. */
#ifndef MEOPT_TEXT_TEXT_RECORD_H
#define MEOPT_TEXT_TEXT_RECORD_H

#include "core/text/chat_template.h"
#include "core/text/record_forms.h"
#include "core/text/tokenizer.h"

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
    enum record_form form;
    uint64_t hash; /* record_hash, if the options say so */
};
void text_record_free(struct text_record *record);
struct text_record_options {
    const struct chat_template *chat; /* NULL: conversations are refused, for the reason `no_chat` */
    const struct error *no_chat;
    const char *label;   /* key of the class of each record, which then has a text; NULL: none */
    char *const *ignore; /* members that are not read; ends with NULL; NULL: none */
    bool hashes;
};
/* Reads a line. The caller names file and line. */
int text_record_read(struct text_record *record, const char *line, size_t bytes,
                     const struct text_record_options *options, struct error *err);

#endif
