/* Forms of records: which members of a JSON object are the conversation, the completion or the text. */
#ifndef MEOPT_TEXT_RECORD_FORMS_H
#define MEOPT_TEXT_RECORD_FORMS_H

#include "core/base/error.h"

#include <jansson.h>

enum record_form { FORM_MESSAGES, FORM_COMPLETION, FORM_ALPACA, FORM_SHAREGPT, FORM_TEXT, RECORD_FORMS };
extern const char *const record_form_names[RECORD_FORMS];

struct record_content {
    enum record_form form;
    json_t *messages; /* a conversation, which the caller frees; NULL: a text */
    const json_t *prompt,
        *text; /* strings of the record; prompt: that no one learns, before the text; or NULL */
};

/* Removes the members of these names (ends with NULL; may be NULL) from a record and from its messages. */
void record_ignore(json_t *root, char *const *names);

/* Finds the form of a record, which has members of one form alone, and refuses members that no form has by
 * their name (EXIT_FAILED). Records of alpaca and sharegpt become conversations. label: key of a class, which
 * the record then may have; NULL: none. */
int record_form_read(struct record_content *content, json_t *root, const char *label, struct error *err);

/* Returns a number that is the same for records that have the same members, whatever their order, their white
 * space, and the members that say where a record comes from. */
uint64_t record_hash(const json_t *root);

#endif
