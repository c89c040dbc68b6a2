/* Chat templates: how a model writes a conversation. A published Jinja template is known by a checksum of its
 * text, and is a row here that writes the same; it is never evaluated, and any other text is unknown. */
#ifndef MEOPT_TEXT_CHAT_TEMPLATE_H
#define MEOPT_TEXT_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What becomes of <think>...</think> in an answer */
enum chat_thoughts {
    THOUGHTS_STAY,  /* it is text */
    THOUGHTS_LAST,  /* stays after the last question alone; the last answer has an empty one without it */
    THOUGHTS_AFTER, /* each answer after the last question has one, be it empty; no other has one */
};

/* A turn is before, role, after, content, end, between; content and `end` of the assistant's turns are
 * labels. */
struct chat_template {
    const char *name;
    const char *begin; /* token before the first turn; NULL: the tokenizer's bos_token */
    const char *before, *after, *end, *between; /* between: after `end`, never a label */
    const char *system;                         /* of conversations without one; NULL: none */
    const char *opens;                          /* text with which a generated answer begins */
    enum chat_thoughts thoughts;
    bool trims;        /* white space around a content is removed */
    bool drops_system; /* without content */
    bool strict;       /* a system message comes first, and a user's message is there */
};
extern const struct chat_template chat_templates[]; /* ends with name NULL */
#define CHAT_TEMPLATE_NAMES                                                                                  \
    "chatml|qwen2|qwen2.5|qwen3|llama3|chatml-bos|qwen3-thinking|qwen3.5|smollm2|lfm2" /* for options */
/* Returns the row with this name, NULL if there is none. */
const struct chat_template *chat_template_named(const char *name);
/* Returns the row of a published Jinja template, NULL: unknown. */
const struct chat_template *chat_template_like(const char *jinja);
/* Returns length and CRC-32C (the higher half) of a template without what Jinja does not see: carriage
 * returns, white space next to {%- and -%}, the last line break. */
uint64_t chat_template_checksum(const char *jinja);

#endif
