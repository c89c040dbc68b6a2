/* Chat templates: how a model writes a conversation. A published Jinja template is known by a checksum of its
 * text, and is a row here that writes the same; it is never evaluated, and any other text is unknown. */
#ifndef MEOPT_TEXT_CHAT_TEMPLATE_H
#define MEOPT_TEXT_CHAT_TEMPLATE_H

#include "core/base/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What becomes of <think>...</think> in an answer */
enum chat_thoughts {
    THOUGHTS_STAY,   /* it is text */
    THOUGHTS_LINES,  /* the same; line breaks before it are removed */
    THOUGHTS_LAST,   /* stays after the last question alone; the last answer has an empty one without it */
    THOUGHTS_AFTER,  /* each answer after the last question has one, be it empty; no other has one */
    THOUGHTS_LATER,  /* stays after the last question alone */
    THOUGHTS_ALWAYS, /* each answer has one, be it empty, which is learnt */
    THOUGHTS_GIVEN,  /* stays in its one form where the answer has one */
    THOUGHTS_CUT,    /* what precedes the answer is left out */
};
/* The answers whose thoughts THOUGHTS_CUT leaves out, and what is trimmed then */
enum chat_cut {
    CUT_ALL,
    CUT_BEFORE /* the last question */,
    CUT_BUT_LAST /* message */,
    CUT_BUT_ANSWER /* the last */
};
enum chat_cut_trim { CUT_NOTHING, CUT_LINES /* also of an answer without a thought */, CUT_SPACE };

/* Where a system message may be */
enum chat_system {
    SYSTEM_TURN,   /* anywhere */
    SYSTEM_FIRST,  /* first */
    SYSTEM_JOINED, /* first; it begins the first question */
    SYSTEM_ASKED,  /* first; it begins a question that ends the conversation, and no other has one */
    SYSTEM_NONE,
};

/* What is done with a content that is a list of text parts */
enum chat_parts {
    PARTS_NONE,
    PARTS_JOINED,
    PARTS_TRIMMED, /* each, if the content is trimmed; a system message has one */
    PARTS_SINGLE,  /* the system message has one, others are joined */
    PARTS_ONE,     /* each content is a list of one */
    PARTS_ONLY,    /* each content is a list */
};
/* Which roles follow which */
enum chat_order {
    ORDER_ANY,
    ORDER_ANSWERS,   /* an answer follows a user's message */
    ORDER_ALTERNATES /* user, assistant, user... after the system message */
};

/* A turn is before, lead, content, end, between; of the assistant's turns lead, content, `end`, and `between`
 * if it is a line break (as TRL marks it), are labels, and a generated answer follows `before`. Texts of a
 * template may have {role}, {bos} and {eos} (tokens of the tokenizer) and {date}. */
enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ANSWER, CHAT_OTHER /* tool, developer */, CHAT_ROLES };
struct chat_turn {
    const char *before; /* NULL: there is no such turn */
    const char *end, *between, *lead;
};
#define CHAT_TRIMS (1U << CHAT_SYSTEM | 1U << CHAT_USER | 1U << CHAT_ANSWER | 1U << CHAT_OTHER)

/* Tools: their list is before, each tool (first, then each), end, after the system text and `joint`. A call
 * is call[0], its name, call[1], its arguments, call[2]. */
struct chat_tools {
    const char *joint, *before, *first, *each, *end;
    const char *calls, *gap, *call[3], *calls_end; /* call[0] NULL: no calls. gap: after a content */
    int indent;                                    /* of a tool's members; 0: in one line */
    bool asked;                                    /* the list begins the first question, ... */
    const char *preface;                           /* and this the system message */
    bool single;                                   /* an answer has one call and no content */
    bool quoted;                                   /* a result is written as a JSON text */
    bool joint_always;                             /* joint without a system text, too */
    bool texts;                                    /* arguments may be a text, which is written as it is */
    const char *result[4]; /* before and after a group of results, and each; NULL: none */
    bool apart;            /* each result is a group */
};

struct chat_template {
    const char *name;
    const char *begin; /* before the first turn */
    struct chat_turn turns[CHAT_ROLES];
    const char *tokens;  /* of the tokenizer, with spaces between them */
    const char *bos;     /* {bos} of a tokenizer without one; NULL: it is refused */
    const char *system;  /* of conversations without one; NULL: none */
    const char *preface; /* of the first system message */
    const char *opens;   /* after `before` of an answer that is asked */
    const char *finish;  /* after a conversation; learnt with the last answer */
    const char *date;    /* of {date} */
    const struct chat_tools *tools;
    enum chat_thoughts thoughts;
    enum chat_cut cut;
    enum chat_cut_trim cut_trim;
    const char *no_thought; /* with THOUGHTS_CUT: of an answer that has none */
    const char *refuses;    /* texts with spaces between them, which no content may have */
    unsigned refuses_in;    /* bits of enum chat_role; 0: all */
    enum chat_system place;
    enum chat_parts parts;
    enum chat_order order;
    unsigned trims;       /* bits of enum chat_role: white space around a content is removed */
    unsigned trims_right; /* the same at its end alone */
    bool joins_whole;     /* a content that the system message begins is not trimmed */
    bool drops_system;    /* the first one, without content: as if it were not there */
    bool drops_later;     /* others without content */
    bool asks;            /* a user's message must be there */
    bool dated;           /* a conversation without a system message would have the date of the day */
    const char *eos;      /* {eos}; set with the tokenizer, as bos is */
};
extern const struct chat_template chat_templates[]; /* ends with name NULL */
extern const struct chat_published {
    uint64_t checksum;
    const char *row, *opens; /* opens: of this template; NULL: the row's */
} chat_published[];          /* ends with row NULL */
/* Returns the row with this name, NULL if there is none. */
const struct chat_template *chat_template_named(const char *name);
/* Sets the template of a published Jinja template; returns false: it is unknown. */
bool chat_template_like(struct chat_template *chat, const char *jinja);
/* Returns length and CRC-32C (the higher half) of a template without what Jinja does not see: carriage
 * returns, white space next to {%- and -%}, the last line break. */
uint64_t chat_template_checksum(const char *jinja);
/* For options: the names of all rows in their order, and what chat_template_read reads */
#define CHAT_TEMPLATE_NAMES                                                                                  \
    "chatml|qwen2|qwen2.5|qwen3|llama3|chatml-bos|qwen3-thinking|qwen3.5|smollm2|lfm2|"                      \
    "qwen3-2507|qwen3-2507-unsloth|chatml-strict|chatml-bos-strict|qwen1.5|qwen2-vl|qwen3-vl|"               \
    "qwq|qwen3-trl|mimo|bielik|llama3.1|llama4|llama2|mistral-v1|mistral-v3|"                                \
    "mistral-v3-tekken|mistral-v7|mistral-v7-tekken|mistral-small|mixtral|mistral-v0.1|"                     \
    "mistral-unsloth|gemma|gemma3|gemma2-unsloth|gemma4|gemma4-2026|phi3|phi3.5|"                            \
    "phi3-unsloth|phi3.5-axolotl|phi3-small|phi4|phi4-microsoft|phi3-microsoft|phi3-mini|"                   \
    "phi3-medium|yi-1.5|zephyr|danube|deepseek|deepseek-v2|deepseek-v3|deepseek-r1-trl|vicuna|"              \
    "vicuna-v0|alpaca-unsloth|unsloth|openchat|solar|cohere|granite3|granite3.3|exaone|"                     \
    "kimi-k2|chatglm3|metharme|bos-eos|rwkv|smolvlm|idefics3|llava-next|nemotron3|lfm2.5|"                   \
    "lfm2.5-instruct|qwen3.5-trl|granite4|granite4.1|deepseek-v3.1|deepseek-r1|smollm3|"                     \
    "phi4-reasoning|FILE.json"
/* Reads a template of one's own: a JSON file with the members of struct chat_template. Its texts are those of
 * *root, which the caller frees. Its name has the checksum of the file. */
int chat_template_read(struct chat_template *chat, json_t **root, const char *path, struct error *err);
/* Returns whether a text of the template has this: "{eos}". */
bool chat_template_has(const struct chat_template *chat, const char *mark);

#endif
