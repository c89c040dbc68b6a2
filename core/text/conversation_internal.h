/* Conversations: what conversation.c (messages) and conversation_turns.c (their texts) share. */
#ifndef MEOPT_TEXT_CONVERSATION_INTERNAL_H
#define MEOPT_TEXT_CONVERSATION_INTERNAL_H

#include "core/text/conversation.h"

/* A conversation that is being written. */
struct writer {
    struct text_record *r;
    const struct chat_template *c;
    const struct conversation *of;
    size_t count, question; /* messages; the number of the last question */
    size_t first;           /* the number of the first message but the system's */
    size_t user, answer; /* the numbers of the last message of the user and the assistant; SIZE_MAX: none */
    struct text_buffer parts; /* content of a list of parts, of the current message */
    json_t *system;           /* a message that is to begin a question; NULL: none */
    bool results;             /* the last message is a result of a tool, in a group that is open */
    bool ask;                 /* an answer follows */
    bool learnt;              /* the current message is an answer that is a label */
};

struct turn {
    enum chat_role kind;
    const char *role, *content, *thought; /* thought: reasoning_content; NULL: none */
    size_t bytes, thought_bytes;
    const json_t *calls;
    bool learnt;        /* an answer that is a label */
    bool answers, last; /* it follows the last question; it is the last message */
    const char *cut;    /* no_thought of the template, if it is to be written */
    size_t number;
};

/* Adds a text of the template. */
void writer_text(struct writer *writer, const char *text, const char *role, bool label);
/* Writes the system message at the beginning, which has the tools. content NULL: there is none. */
int writer_system(struct writer *writer, const char *content, size_t bytes, struct error *err);
/* Writes a turn. joined: the system message that begins it; NULL: none. */
int writer_turn(struct writer *writer, struct turn turn, const char *joined, size_t joined_bytes,
                struct error *err);
/* Writes a result of a tool, and what begins or ends its group. */
void writer_result(struct writer *writer, const struct turn *turn);
/* Refuses a message because of `what` it has. */
int writer_refuse(const struct writer *writer, size_t number, const char *what, struct error *err);
/* As Python's strip(). Text that is not UTF-8, which is refused later, stays. */
void text_strip(const char **text, size_t *bytes);

#endif
