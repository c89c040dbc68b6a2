/* The dialogue of `meopt generate --chat`: questions from a terminal or a pipe, and answers that know the
 * turns before them. The chat template writes all turns for each question, and tokens whose keys and values
 * the tower has are not computed again. A dialogue that exceeds the context loses its oldest turns; the
 * system message stays. */
#include "cli/text/generate.h"
#include "cli/terminal/line_input.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/text/conversation.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int generate_encode(const struct generate *g, const char *text, size_t bytes, bool plain,
                    struct token_list *list, struct error *err)
{
    struct encoder *e = encoder_create(g->tokenizer);
    int count, code = 0;
    const int32_t *begin = tokenizer_added(g->tokenizer, false, &count);
    for (int i = 0; i < count && plain; i++) token_list_append(list, begin[i]);
    if (utf8_invalid(text, bytes) < bytes)
        code = error_set(err, EXIT_USAGE, NULL, "byte %zu of the prompt is not UTF-8",
                         utf8_invalid(text, bytes));
    if (!code) code = encoder_encode(e, text, bytes, true, list, err);
    for (int64_t i = 0; i < list->count && !code; i++)
        if (list->ids[i] >= g->shape.vocabulary)
            code = error_set(err, EXIT_CONFIG, "give the tokenizer of the model: --tokenizer DIR",
                             "token %d of the prompt is not below the model's vocabulary of %lld",
                             list->ids[i], (long long)g->shape.vocabulary);
    encoder_free(e);
    return code;
}

struct dialogue {
    struct generate *g;
    const char *system;
    json_t *messages; /* from the first turn that is seen, after the system's */
    int64_t lost;     /* questions that are no longer seen */
    int64_t most;     /* tokens of an answer */
    bool json;
    bool terminal; /* questions are typed */
    int line;      /* of standard input */
    char *read;    /* getline's */
    size_t capacity;
};

json_t *generate_messages(const char *system)
{
    json_t *messages = json_array();
    if (system) json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    return messages;
}

/* ---- questions ---- */

/* Reads a line of a pipe. *text: it, or NULL at the end of the input. */
static int read_line(struct dialogue *d, char **text, struct error *err)
{
    enum { TERMINAL_LINE = 4095 }; /* of a terminal that edits lines by itself (N_TTY) */
    errno = 0;
    ssize_t n = getline(&d->read, &d->capacity, stdin);
    *text = n < 0 ? NULL : d->read;
    if (n < 0 && ferror(stdin) && !generate_signal)
        return error_errno(err, EXIT_FAILED, NULL, "cannot read the questions from standard input");
    if (n < 0) return 0;
    d->line++;
    if (memchr(d->read, 0, (size_t)n) || n > PROMPT_BYTES)
        return error_set(err, EXIT_USAGE, "a question is a line of text",
                         n > PROMPT_BYTES ? "the question exceeds 1 MiB" : N_("the question has a NUL byte"));
    if (n >= TERMINAL_LINE && isatty(STDIN_FILENO))
        return error_set(err, EXIT_USAGE, "send it from a file: --chat <FILE",
                         "the terminal cuts lines at %d bytes", TERMINAL_LINE);
    while (n > 0 && strchr("\r\n", d->read[n - 1])) d->read[--n] = 0;
    if (d->line == 1 && strncmp(d->read, "\xEF\xBB\xBF", 3) == 0) *text += 3; /* byte order mark */
    return 0;
}

/* Reads a question, malloc'ed. NULL: the dialogue ends, with the exit code that is returned. */
static int read_question(struct dialogue *d, char **question, struct error *err)
{
    char *line = NULL;
    *question = NULL;
    if (d->terminal) {
        enum line_input_end end = line_input_read(">>> ", &generate_signal, question);
        return end == LINE_INTERRUPTED ? EXIT_SIGNAL + (int)generate_signal : 0;
    }
    int code = read_line(d, &line, err);
    if (!code && line) *question = xstrdup(line);
    return code || line || !generate_signal ? code : EXIT_SIGNAL + (int)generate_signal;
}

static void begin_dialogue(struct dialogue *d)
{
    json_decref(d->messages);
    d->messages = generate_messages(d->system);
    d->lost = 0;
}

/* Returns whether a line is a command, which begins with a slash and has one word of letters. Sets *ends. */
static int run_command(struct dialogue *d, const char *line, bool *is, bool *ends, struct error *err)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    *ends = strcmp(line, "/exit") == 0;
    *is = *line == '/' && line[1] && !line[1 + strspn(line + 1, letters)];
    if (!*is || *ends) return 0;
    if (strcmp(line, "/clear") == 0) return begin_dialogue(d), 0;
    return error_set(err, EXIT_USAGE, "commands are /clear and /exit; a space before it makes it a question",
                     "no command '%.40s' of a dialogue", line);
}

/* ---- answers ---- */

/* Removes the oldest turn: a question and its answer. Returns false if the last question alone is there. */
static bool lose_turn(struct dialogue *d)
{
    size_t first = d->system != NULL;
    if (json_array_size(d->messages) <= first + 1) return false;
    json_array_remove(d->messages, first);
    json_array_remove(d->messages, first);
    d->lost++;
    return true;
}

/* Writes the messages as tokens, without the oldest turns until a quarter of the context, or as much as an
 * answer may have, is left for it. */
static int fit_context(struct dialogue *d, struct token_list *list, struct error *err)
{
    struct generate *g = d->g;
    int64_t context = g->shape.context, quarter = context / 4,
            reserve = d->most < quarter ? d->most : quarter, lost = d->lost;
    int code;
    for (;;) {
        list->count = 0;
        code = conversation_ask(&g->question, &g->settings.chat, d->messages, err);
        if (!code) code = generate_encode(g, g->question.text.data, g->question.text.count, false, list, err);
        if (code || list->count + (reserve > 0 ? reserve : 1) <= context) break;
        if (!lose_turn(d)) break;
    }
    if (!code && list->count >= context)
        code = error_set(err, EXIT_USAGE, "shorten it, or raise model.context",
                         "the question has %lld tokens, and the context is %lld", (long long)list->count,
                         (long long)context);
    if (!code && d->lost > lost)
        log_warn(
            "the dialogue exceeds the context of %lld tokens: its first %lld questions are not seen any more",
            (long long)context, (long long)d->lost);
    return code;
}

/* Returns text with U+FFFD for what is not UTF-8. */
static json_t *valid_text(const struct text_buffer *text)
{
    struct text_buffer valid = {0};
    for (size_t at = 0; at < text->count;) {
        size_t n = utf8_invalid(text->data + at, text->count - at);
        text_append(&valid, text->data + at, n);
        at += n;
        if (at++ < text->count) text_append(&valid, "\xEF\xBF\xBD", 3);
    }
    json_t *string = json_stringn(valid.data ? valid.data : "", valid.count);
    text_free(&valid);
    return string;
}

/* Adds the answer to the dialogue. */
static void add_answer(struct dialogue *d)
{
    struct generate *g = d->g;
    struct text_buffer text = {0};
    for (int64_t i = 0; i < g->count; i++)
        tokenizer_decode(g->tokenizer, g->tokens[g->prompt + i], false, false, &text);
    json_array_append_new(d->messages,
                          json_pack("{s:s, s:o}", "role", "assistant", "content", valid_text(&text)));
    text_free(&text);
}

static void report_answer(struct dialogue *d, const char *question, int64_t most)
{
    struct generate *g = d->g;
    if (d->json) {
        json_t *answer = generate_json(g);
        json_object_set_new(answer, "question", json_string(question));
        json_object_set_new(answer, "dropped_turns", json_integer((json_int_t)d->lost));
        json_print(stdout, answer, JSON_COMPACT | JSON_PRESERVE_ORDER);
        fflush(stdout);
        json_decref(answer);
    } else if (g->end == ANSWER_LENGTH && most < d->most)
        log_warn("the answer was cut after %lld tokens: the context of %lld is full", (long long)most,
                 (long long)g->shape.context);
    else if (g->end == ANSWER_LENGTH)
        log_warn("the answer was cut after %lld tokens; --max-new-tokens permits more", (long long)most);
}

/* Answers a question. After an error the dialogue is as before. */
static int answer(struct dialogue *d, const char *question, struct error *err)
{
    struct generate *g = d->g;
    struct token_list list = {0};
    json_t *asked = json_pack("{s:s, s:s}", "role", "user", "content", question);
    if (!asked) return error_set(err, EXIT_USAGE, NULL, "the question is not UTF-8");
    json_t *before = json_copy(d->messages);
    int64_t lost = d->lost, same = 0;
    json_array_append_new(d->messages, asked);
    int code = fit_context(d, &list, err);
    if (!code) {
        while (same < g->cached && same < list.count - 1 && list.ids[same] == g->tokens[same]) same++;
        memcpy(g->tokens, list.ids, (size_t)list.count * sizeof *list.ids);
        g->cached = same;
        g->prompt = list.count;
        g->count = g->shape.context - list.count < d->most ? g->shape.context - list.count : d->most;
        int64_t most = g->count;
        code = generate_answer(g, !d->json, err);
        if (!code) add_answer(d);
        if (!code) report_answer(d, question, most);
    }
    if (code) {
        json_decref(d->messages);
        d->messages = json_incref(before);
        d->lost = lost;
    }
    json_decref(before);
    token_list_free(&list);
    return code;
}

/* ---- the dialogue ---- */

/* Handles one line. Returns an exit code; *ends: it ends the dialogue. A mistake at the terminal is shown, in
 * a pipe it ends the dialogue. */
static int take_line(struct dialogue *d, const char *line, bool *ends, struct error *err)
{
    bool command;
    int code = run_command(d, line, &command, ends, err);
    if (!code && !command && line[strspn(line, " \t\n")]) code = answer(d, line, err);
    if (code == EXIT_USAGE && d->terminal) {
        error_print(err);
        *err = (struct error){0};
        return 0;
    }
    bool stopped = !code && generate_signal && !(d->terminal && generate_signal == SIGINT);
    if (!code && generate_signal && !stopped) generate_signal = 0; /* of the answer alone */
    *ends = *ends || code || stopped || ferror(stdout);
    return stopped ? EXIT_SIGNAL + (int)generate_signal : code;
}

int generate_chat(struct generate *g, const struct arguments *args, struct error *err)
{
    struct dialogue d = {.g = g,
                         .system = argument_text(args, "system", NULL),
                         .most = g->count,
                         .json = argument_flag(args, "json")};
    FILE *screen = !d.json && isatty(STDOUT_FILENO) ? stdout : isatty(STDERR_FILENO) ? stderr : NULL;
    bool ends = false;
    int code = 0;
    if (isatty(STDIN_FILENO) && screen)
        log_info(
            "a dialogue in the template %s, with a context of %lld tokens: /clear begins it anew, /exit or "
            "Ctrl-D ends it, Ctrl-C ends an answer",
            g->settings.chat.name, (long long)g->shape.context);
    d.terminal = screen && line_input_open(screen);
    generate_catch_signals(d.terminal);
    begin_dialogue(&d);
    while (!ends) {
        char *question;
        if ((code = read_question(&d, &question, err)) != 0 || !question) break;
        code = take_line(&d, question, &ends, err);
        free(question);
    }
    if (code && d.line && !err->file[0]) error_at(err, "-", d.line, 0);
    line_input_close();
    json_decref(d.messages);
    free(d.read);
    return code;
}
