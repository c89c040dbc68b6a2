/* Conversations, as a chat template writes them. */
#ifndef MEOPT_TEXT_CONVERSATION_H
#define MEOPT_TEXT_CONVERSATION_H

#include "core/base/json.h"
#include "core/text/text_record.h"

struct conversation {
    const json_t *messages; /* an array of objects with role and content */
    const json_t *tools;    /* an array; NULL: none */
    const char *date;       /* of templates that write one; NULL: the template's */
};
/* Adds a text to the spans of the record. */
void text_record_add(struct text_record *record, const char *text, size_t bytes, bool label);
/* Adds a conversation to the record; labels are the answers of the assistant. */
int conversation_read(struct text_record *record, const struct chat_template *chat,
                      const struct conversation *conversation, struct error *err);
/* Sets the record to the messages and what follows them, up to where an answer begins. */
int conversation_ask(struct text_record *record, const struct chat_template *chat, const json_t *messages,
                     struct error *err);

#endif
