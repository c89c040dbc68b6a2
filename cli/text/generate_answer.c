/* The answer of `meopt generate`: see generate.h. A token's keys and values stay in the tower, so each token
 * is computed once, until the context is full: then positions move, and the last `context` tokens are
 * computed again for each token. */
#include "cli/text/generate.h"
#include "cli/terminal/line_input.h"

#include <stdio.h>
#include <stdlib.h>

/* Computes the logits after `count` tokens, of which the last `context` are seen. */
static int compute_logits(struct generate *g, int64_t count, struct error *err)
{
    bool full = count > g->shape.context;
    int64_t begin = full ? count - g->shape.context : g->cached, rows = count - begin;
    g->device->upload(g->device, g->input, g->tokens + begin, (size_t)rows * sizeof *g->tokens);
    tower_forward(g->tower,
                  &(struct batch){.input = g->input, .count = 1, .first = full ? 0 : begin, .rows = rows});
    tower_logits(g->tower, (int64_t[]){rows - 1}, 1, g->out);
    g->device->download(g->device, g->logits, g->out, (size_t)g->shape.vocabulary * sizeof *g->logits);
    g->cached = count;
    return device_check(g->device, err);
}

/* ---- text ---- */

/* Text for a terminal: characters as soon as they are complete, other bytes and control characters
 * escaped. */
struct text_stream {
    FILE *out;
    char pending[5];
    int count, whole; /* bytes; those of the whole character */
};

static void flush_text(struct text_stream *s)
{
    char clean[4 * sizeof s->pending];
    s->pending[s->count] = 0;
    fputs(text_printable(clean, sizeof clean, s->pending), s->out);
    s->count = 0;
}

static void write_byte(struct text_stream *s, int byte)
{
    if ((byte & 0xC0) != 0x80) flush_text(s);
    if (s->count == 0) s->whole = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    if (byte) s->pending[s->count++] = (char)byte;
    else fputs("\\x00", s->out);
    if (s->count >= s->whole) flush_text(s);
}

bool generate_is_text(const struct generate *g) { return g->tokenizer || g->shape.vocabulary == BYTES; }

/* Writes the text of token `at`. */
static void write_text(const struct generate *g, struct text_stream *s, int64_t at)
{
    struct text_buffer text = {0};
    bool first = g->tokenizer && tokenizer_begins(g->tokenizer, g->tokens, at, false);
    if (g->tokenizer) tokenizer_decode(g->tokenizer, g->tokens[at], first, false, &text);
    else write_byte(s, g->tokens[at]);
    for (size_t i = 0; i < text.count; i++) write_byte(s, (uint8_t)text.data[i]);
    text_free(&text);
}

/* Returns the answer as text with control characters escaped, malloc'ed; NULL: no memory. */
static char *generate_text(const struct generate *g)
{
    char *text = NULL;
    size_t bytes;
    struct text_stream s = {.out = open_memstream(&text, &bytes)};
    if (!s.out) return NULL;
    for (int64_t i = 0; i < g->count; i++) write_text(g, &s, g->prompt + i);
    flush_text(&s);
    return fclose(s.out) == 0 ? text : NULL;
}

void generate_print_prompt(const struct generate *g)
{
    struct text_stream s = {.out = stdout};
    for (int64_t i = 0; i < g->prompt; i++) write_text(g, &s, i);
    flush_text(&s);
    fflush(stdout);
}

/* Prints token number i of the answer. */
static void print_token(struct generate *g, struct text_stream *s, int64_t i)
{
    if (generate_is_text(g)) write_text(g, s, g->prompt + i);
    else printf("%s%d", i ? "," : "", g->tokens[g->prompt + i]);
    fflush(s->out);
}

/* ---- signals ---- */

volatile sig_atomic_t generate_signal;

static void on_signal(int number)
{
    if (generate_signal) {
        line_input_restore();
        signal(number, SIG_DFL);
        raise(number); /* delivered when this handler returns */
    }
    generate_signal = number;
}

void generate_catch_signals(bool restart)
{
    const int stops[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = restart ? (int)SA_RESTART : 0},
                         before;
        if (sigaction(stops[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stops[i], &action, NULL); /* ignored signals (nohup) stay ignored */
    }
}

/* ---- the answer ---- */

/* Returns whether a token ends the answer. */
static bool ends_answer(const struct generate *g, int32_t token)
{
    for (int i = 0; i < g->settings.end_count; i++)
        if (g->settings.ends[i] == token) return true;
    return token == g->config.data.end;
}

int generate_answer(struct generate *g, bool print, struct error *err)
{
    struct text_stream s = {.out = stdout};
    int code = 0;
    int64_t done = 0;
    g->end = ANSWER_LENGTH;
    while (done < g->count && g->end == ANSWER_LENGTH && !generate_signal && !ferror(stdout)) {
        int64_t at = g->prompt + done;
        if ((code = compute_logits(g, at, err)) != 0) break;
        g->tokens[at] = token_sample(g->logits, g->shape.vocabulary, &g->how, g->drawn++);
        if (g->tokens[at] < 0) {
            code = error_set(err, EXIT_DIVERGED, "check its weights for NaN and infinities",
                             "the model's logits are not finite");
            break;
        }
        if (ends_answer(g, g->tokens[at])) g->end = ANSWER_STOP;
        if (print) print_token(g, &s, done);
        done++;
    }
    if (generate_signal && g->end != ANSWER_STOP) g->end = ANSWER_CANCELLED;
    g->count = done;
    if (print) {
        flush_text(&s);
        printf("\n");
        fflush(stdout);
    }
    return code;
}

static json_t *ids_json(const int32_t *tokens, int64_t count)
{
    json_t *ids = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(ids, json_integer(tokens[i]));
    return ids;
}

json_t *generate_json(const struct generate *g)
{
    static const char *const ends[] = {"stop", "length", "cancelled"};
    char *text = generate_is_text(g) ? generate_text(g) : NULL;
    json_t *answer = json_pack("{s:o, s:o, s:o, s:s}", "prompt", ids_json(g->tokens, g->prompt), "tokens",
                               ids_json(g->tokens + g->prompt, g->count), "text",
                               text ? json_string(text) : json_null(), "finish_reason", ends[g->end]);
    if (g->how.temperature > 0) json_object_set_new(answer, "seed", json_integer((json_int_t)g->how.seed));
    free(text);
    return answer;
}
