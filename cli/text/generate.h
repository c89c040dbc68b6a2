/* Shared by the files of `meopt generate`: the model, its tokens, and an answer. */
#ifndef MEOPT_CLI_TEXT_GENERATE_H
#define MEOPT_CLI_TEXT_GENERATE_H

#include "cli/command.h"
#include "core/config/config.h"
#include "core/nn/nn.h"
#include "core/nn/sample_token.h"
#include "core/nn/tower.h"
#include "core/text/tokenizer_settings.h"

#include <jansson.h>
#include <signal.h>

enum {
    BYTES = 256,            /* vocabulary of a model whose tokens are bytes */
    PROMPT_BYTES = 1 << 20, /* of standard input, and of a question */
};

/* How an answer ended; names as in OpenAI's finish_reason. */
enum answer_end { ANSWER_STOP, ANSWER_LENGTH, ANSWER_CANCELLED };

struct generate {
    struct config config;
    struct model_shape shape;
    struct weights *weights;
    struct device *device;
    struct tower *tower;
    void *scratch;
    int32_t *input;  /* device (context) */
    float *out;      /* device (vocabulary) */
    int32_t *tokens; /* prompt and answer */
    int64_t prompt, count;
    int64_t cached; /* tokens whose keys and values the tower has */
    int64_t drawn;  /* tokens so far, of all answers */
    enum answer_end end;
    float *logits; /* (vocabulary) */
    struct token_sampling how;
    char *sidecar;               /* tokenizer.json next to the weights that the run began with; NULL: none */
    struct tokenizer *tokenizer; /* NULL: bytes or numbers */
    struct tokenizer_settings settings;
    struct text_record question; /* --chat, as its template writes it */
};

/* The signal that ended an answer, or 0. A second one ends the process, whose terminal is restored. restart:
 * it interrupts no write or read. */
extern volatile sig_atomic_t generate_signal;
void generate_catch_signals(bool restart);

/* Returns whether tokens are shown as text. */
bool generate_is_text(const struct generate *g);
/* Encodes a prompt to `list`, with the tokens with which a text begins where it is a plain one. */
int generate_encode(const struct generate *g, const char *text, size_t bytes, bool plain,
                    struct token_list *list, struct error *err);
/* Continues the prompt by up to g->count tokens, and sets g->count to their number. print: on standard
 * output, as they come. Ctrl-C ends the answer. */
int generate_answer(struct generate *g, bool print, struct error *err);
/* Prints the prompt as text. */
void generate_print_prompt(const struct generate *g);
/* Returns prompt, tokens, text, finish_reason and, of an answer that was drawn, seed. */
json_t *generate_json(const struct generate *g);

/* Returns the messages of a dialogue that begins: the system's, if there is one. */
json_t *generate_messages(const char *system);
/* Holds a dialogue with the questions of standard input. The tokens have room for the context. */
int generate_chat(struct generate *g, const struct arguments *args, struct error *err);

#endif
