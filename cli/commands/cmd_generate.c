/* meopt generate: continues a prompt with a language model, token by token. A token's keys and values stay in
 * the tower, so each token is computed once, until the context is full: then positions move, and the last
 * `context` tokens are computed again for each token. */
#include "cli/command.h"
#include "cli/commands/cmd_config.h"
#include "cli/run_weights.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/device/facts.h"
#include "core/train/adapters.h"
#include "core/train/experiment.h"
#include "core/nn/sample_token.h"
#include "core/text/tokenizer_settings.h"
#include "core/train/trainer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    BYTES = 256,            /* vocabulary of a model whose tokens are bytes */
    PROMPT_BYTES = 1 << 20, /* of standard input */
};

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
    float *logits;  /* (vocabulary) */
    struct token_sampling how;
    char *sidecar;               /* tokenizer.json next to the weights that the run began with; NULL: none */
    struct tokenizer *tokenizer; /* NULL: bytes or numbers */
    struct tokenizer_settings settings;
    struct text_record question; /* --chat, as its template writes it */
};

/* ---- the prompt ---- */

static int read_ids(struct generate *g, const char *text, struct error *err)
{
    for (const char *p = text; *p;) {
        char *end;
        errno = 0;
        long long id = strtoll(p, &end, 10);
        if (end == p || errno || (*end && *end != ','))
            return error_set(err, EXIT_USAGE, "for example --tokens 1,2,3",
                             "--tokens requires numbers separated by commas, found '%.80s'", p);
        if (id < 0 || id >= g->shape.vocabulary)
            return error_set(err, EXIT_USAGE, NULL, "--tokens: %lld is not below the vocabulary of %lld", id,
                             (long long)g->shape.vocabulary);
        g->tokens[g->prompt++] = (int32_t)id;
        p = *end ? end + 1 : end;
    }
    return 0;
}

/* Reads the prompt from standard input, without its final newline; *text is malloc'ed. */
static int read_stdin(char **text, size_t *bytes, struct error *err)
{
    *text = malloc(PROMPT_BYTES + 2);
    if (!*text) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the prompt");
    *bytes = fread(*text, 1, PROMPT_BYTES + 2, stdin);
    if (ferror(stdin))
        return error_errno(err, EXIT_FAILED, NULL, "cannot read the prompt from standard input");
    if (*bytes && (*text)[*bytes - 1] == '\n') --*bytes;
    if (*bytes <= PROMPT_BYTES) return 0;
    return error_set(err, EXIT_USAGE, "give the end of the text: the model sees its context alone",
                     "the prompt of standard input exceeds %d bytes", PROMPT_BYTES);
}

/* Opens the tokenizer: the named one, or for a text that one next to the weights. */
static int open_tokenizer(struct generate *g, const struct arguments *args, bool text, struct error *err)
{
    const char *path = argument_text(args, "tokenizer", NULL);
    if (!path && text && g->shape.vocabulary != BYTES) path = g->sidecar;
    if (!path) return 0;
    int code = tokenizer_open(&g->tokenizer, path, err);
    return code ? code
                : tokenizer_settings_read(&g->settings, path, argument_text(args, "template", NULL),
                                          g->tokenizer, err);
}

/* Writes the question of --chat as the model's template does. */
static int read_question(struct generate *g, const struct arguments *args, const char *question,
                         struct error *err)
{
    if (!g->tokenizer)
        return error_set(err, EXIT_USAGE, "give --tokenizer DIR",
                         "--chat requires a tokenizer: the model has no tokenizer.json next to its weights");
    if (!g->settings.chat.name) {
        *err = g->settings.no_chat;
        return err->code = EXIT_USAGE;
    }
    return text_record_ask(&g->question, &g->settings.chat, argument_text(args, "system", NULL), question,
                           err);
}

/* Encodes the prompt. A plain one follows the tokens with which every text begins. */
static int encode_prompt(struct generate *g, const char *text, size_t bytes, struct error *err)
{
    struct encoder *e = encoder_create(g->tokenizer);
    struct token_list list = {0};
    int count, code = 0;
    const int32_t *begin = tokenizer_added(g->tokenizer, false, &count);
    for (int i = 0; i < count && !g->question.count; i++) token_list_append(&list, begin[i]);
    if (utf8_invalid(text, bytes) < bytes)
        code = error_set(err, EXIT_USAGE, NULL, "byte %zu of the prompt is not UTF-8",
                         utf8_invalid(text, bytes));
    if (!code) code = encoder_encode(e, text, bytes, true, &list, err);
    for (int64_t i = 0; i < list.count && !code; i++)
        if (list.ids[i] >= g->shape.vocabulary)
            code = error_set(err, EXIT_CONFIG, "give the tokenizer of the model: --tokenizer DIR",
                             "token %d of the prompt is not below the model's vocabulary of %lld",
                             list.ids[i], (long long)g->shape.vocabulary);
    encoder_free(e);
    if (!code) {
        free(g->tokens);
        g->prompt = list.count;
        g->tokens = malloc((size_t)(list.count + g->count) * sizeof *g->tokens);
        if (!g->tokens) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the tokens");
        else memcpy(g->tokens, list.ids, (size_t)list.count * sizeof *g->tokens);
    }
    token_list_free(&list);
    return code;
}

static int read_prompt(struct generate *g, const struct arguments *args, struct error *err)
{
    const char *text = argument_text(args, "prompt", NULL), *ids = argument_text(args, "tokens", NULL),
               *chat = argument_text(args, "chat", NULL);
    int code = open_tokenizer(g, args, !ids, err);
    if (!code && chat && (text || ids))
        code = error_set(err, EXIT_USAGE, NULL, "--chat cannot be used with --prompt or --tokens");
    if (!code && chat) code = read_question(g, args, chat, err);
    if (code) return code;
    bool reads_text = g->tokenizer || g->shape.vocabulary == BYTES;
    if (!text && !ids && !chat && reads_text && !isatty(STDIN_FILENO)) text = "-";
    size_t bytes = 0;
    if (chat) text = g->question.text.data, bytes = g->question.text.count;
    if (!text == !ids)
        return error_set(err, EXIT_USAGE, "see 'meopt generate --help'",
                         "meopt generate requires --chat TEXT, --prompt TEXT or --tokens 1,2,3");
    if (text && !reads_text)
        return error_set(err, EXIT_USAGE,
                         "give --tokenizer DIR, or the numbers of the tokens: --tokens 1,2,3",
                         "--prompt requires a tokenizer: the model has a vocabulary of %lld, and no "
                         "tokenizer.json next to its weights",
                         (long long)g->shape.vocabulary);
    char *input = NULL;
    if (!chat) bytes = strlen(text ? text : ids);
    if (!chat && text && strcmp(text, "-") == 0) code = read_stdin(&input, &bytes, err);
    if (!code) g->tokens = malloc((bytes + (size_t)g->count) * sizeof *g->tokens);
    if (!code && !g->tokens) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the tokens");
    if (input) text = input;
    if (text && g->tokenizer && !code) code = encode_prompt(g, text, bytes, err);
    for (size_t i = 0; i < bytes && text && !g->tokenizer && !code; i++)
        g->tokens[g->prompt++] = (uint8_t)text[i];
    free(input);
    if (code) return code;
    if (ids) code = read_ids(g, ids, err);
    if (!code && !g->prompt) code = error_set(err, EXIT_USAGE, NULL, "the prompt is empty");
    return code;
}

/* ---- the model ---- */

/* Sets the path of the tokenizer.json in the directory of the weights that a configuration names,
 * malloc'ed; NULL: none. */
static int find_tokenizer(char **path, const struct config *c, struct error *err)
{
    const char *weight = c->model_s.weight;
    *path = NULL;
    if (!weight || !*weight) return 0;
    char *in = path_directory(weight, err);
    if (!in) return err->code;
    *path = path_join(in, "tokenizer.json");
    free(in);
    if (file_absent(*path)) {
        free(*path);
        *path = NULL;
    }
    return 0;
}

static int read_config(struct generate *g, const struct arguments *args, struct error *err)
{
    struct config *c = &g->config;
    char *run;
    int64_t step;
    const char *which = argument_text(args, "checkpoint", NULL);
    int code = run_weights_config(c, &run, args->operands, args->operand_count, err);
    if (!code && c->train.objective != TRAIN_OBJECTIVE_LANGUAGE)
        code = error_set(err, EXIT_CONFIG, "set train.objective: language",
                         "meopt generate requires a language model, but train.objective is %s",
                         objective_of(c)->name);
    if (!code) code = find_tokenizer(&g->sidecar, c, err);
    if (!code && run) code = run_weights_use(c, run, run_checkpoint_asked(which), &step, err);
    if (!code) code = train_check_file(c, "model_s.weight", err);
    if (!code) code = trainer_tower_shape(c, true, &g->shape, &g->weights, err);
    if (!code) model_shape_log_assumed(&g->shape);
    free(run);
    g->count = argument_int(args, "count", argument_int(args, "max-new-tokens", 64));
    g->how = (struct token_sampling){.temperature = argument_real(args, "temperature", 0),
                                     .top_p = argument_real(args, "top-p", 1),
                                     .seed = (uint64_t)argument_int(args, "seed", 0)};
    return code;
}

/* Creates the tower for the prompt and the answer, or for the model's longest context. */
static int open_tower(struct generate *g, struct error *err)
{
    enum dtype type = trainer_tower_type(&g->config.model_s);
    struct tower_options options = {.batch = 1,
                                    .compute = type,
                                    .weight_type = type,
                                    .cache = true,
                                    .loss_chunk = 1, /* no loss is computed */
                                    .weights_class = MEMORY_WEIGHTS,
                                    .activations_class = MEMORY_ACTIVATIONS};
    if (g->prompt + g->count < g->shape.context) g->shape.context = g->prompt + g->count;
    int code = train_device_open(&g->device, &g->config, true, err);
    if (code) return code;
    device_facts_warn(g->device);
    if ((code = adapters_options(&g->config, &g->shape, &options.lora, err)) != 0) return code;
    if ((code = tower_create(&g->tower, g->device, &g->shape, &options, err)) != 0) return code;
    if ((code = tower_load(g->tower, g->weights, NULL, NULL, err)) != 0) {
        if (!err->file[0]) error_at(err, g->config.model_s.weight, 0, 0);
        return code;
    }
    if ((code = adapters_load(&g->config, g->tower, err)) != 0) return code;
    g->scratch = device_alloc(g->device, MEMORY_WORKSPACE, g->tower->scratch_bytes, "scratch", err);
    if (!g->scratch) return err->code;
    g->input = device_alloc(g->device, MEMORY_DATA, model_shape_input_bytes(&g->shape, 1), "tokens", err);
    if (!g->input) return err->code;
    size_t bytes = (size_t)g->shape.vocabulary * sizeof *g->logits;
    g->out = device_alloc(g->device, MEMORY_WORKSPACE, bytes, "logits", err);
    if (!g->out) return err->code;
    tower_bind_scratch(g->tower, g->scratch);
    g->logits = malloc(bytes);
    return g->logits ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the logits");
}

/* ---- the answer ---- */

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

/* Reports what of the text the model sees, if that is not all of it. */
static void report_context(const struct generate *g)
{
    long long N = g->shape.context;
    if (g->prompt > N)
        log_warn("prompt exceeds the context: of its %lld tokens the model sees the last %lld",
                 (long long)g->prompt, N);
    if (g->prompt + g->count > N)
        log_info(
            "prompt and answer exceed the context: after %lld tokens, each one computes the last %lld again",
            N, N);
}

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

/* Returns whether tokens are shown as text. */
static bool is_text(const struct generate *g) { return g->tokenizer || g->shape.vocabulary == BYTES; }

/* Writes the text of token `at`. */
static void write_text(const struct generate *g, struct text_stream *s, int64_t at)
{
    struct text_buffer text = {0};
    if (g->tokenizer) tokenizer_decode(g->tokenizer, g->tokens[at], at == 0, false, &text);
    else write_byte(s, g->tokens[at]);
    for (size_t i = 0; i < text.count; i++) write_byte(s, (uint8_t)text.data[i]);
    text_free(&text);
}

/* Returns the answer as text, malloc'ed; NULL: no memory. */
static char *text_of(const struct generate *g)
{
    char *text = NULL;
    size_t bytes;
    struct text_stream s = {.out = open_memstream(&text, &bytes)};
    if (!s.out) return NULL;
    for (int64_t i = 0; i < g->count; i++) write_text(g, &s, g->prompt + i);
    flush_text(&s);
    return fclose(s.out) == 0 ? text : NULL;
}

/* Prints token number i of the answer; as text, the prompt precedes it. */
static void print_token(struct generate *g, struct text_stream *s, int64_t i)
{
    if (is_text(g)) write_text(g, s, g->prompt + i);
    else printf("%s%d", i ? "," : "", g->tokens[g->prompt + i]);
    fflush(s->out);
}

static volatile sig_atomic_t stop_signal;
static void on_signal(int number) { stop_signal = number; }

/* Lets the first Ctrl-C end the answer after the current token; the second one ends the process. */
static void catch_signals(void)
{
    const int stops[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, before;
        if (sigaction(stops[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stops[i], &action, NULL); /* ignored signals (nohup) stay ignored */
    }
}

/* Returns whether a token ends the answer. */
static bool ends_answer(const struct generate *g, int32_t token)
{
    for (int i = 0; i < g->settings.end_count; i++)
        if (g->settings.ends[i] == token) return true;
    return token == g->config.data.end;
}

/* Prints tokens as they come, unless with --json. A question of --chat is not repeated. */
static int generate_tokens(struct generate *g, bool json, struct error *err)
{
    struct text_stream s = {.out = stdout};
    int code = 0;
    int64_t done = 0;
    bool ended = false;
    report_context(g);
    catch_signals();
    for (int64_t i = 0; i < g->prompt && !json && is_text(g) && !g->question.count; i++) write_text(g, &s, i);
    fflush(stdout);
    while (done < g->count && !ended && !stop_signal && !ferror(stdout)) {
        int64_t at = g->prompt + done;
        if ((code = compute_logits(g, at, err)) != 0) break;
        g->tokens[at] = token_sample(g->logits, g->shape.vocabulary, &g->how, done);
        if (g->tokens[at] < 0) {
            code = error_set(err, EXIT_DIVERGED, "check its weights for NaN and infinities",
                             "the model's logits are not finite");
            break;
        }
        ended = ends_answer(g, g->tokens[at]);
        if (!json) print_token(g, &s, done);
        done++;
    }
    g->count = done;
    if (!json) {
        flush_text(&s);
        printf("\n");
    }
    return code ? code : stop_signal ? EXIT_SIGNAL + (int)stop_signal : 0;
}

static json_t *ids_json(const int32_t *tokens, int64_t count)
{
    json_t *ids = json_array();
    for (int64_t i = 0; i < count; i++) json_array_append_new(ids, json_integer(tokens[i]));
    return ids;
}

static void print_answer(const struct generate *g)
{
    char *text = is_text(g) ? text_of(g) : NULL;
    print_json(json_pack("{s:o, s:o, s:o}", "prompt", ids_json(g->tokens, g->prompt), "tokens",
                         ids_json(g->tokens + g->prompt, g->count), "text",
                         text ? json_string(text) : json_null()));
    free(text);
}

static int generate_run(const struct arguments *args, struct error *err)
{
    struct generate g = {0};
    bool json = argument_flag(args, "json");
    int code = read_config(&g, args, err);
    if (!code) code = read_prompt(&g, args, err);
    if (!code) code = open_tower(&g, err);
    if (!code) code = generate_tokens(&g, json, err);
    if (json && (!code || code > EXIT_SIGNAL)) print_answer(&g);
    tokenizer_close(g.tokenizer);
    tokenizer_settings_free(&g.settings);
    text_record_free(&g.question);
    free(g.sidecar);
    free(g.tokens);
    free(g.logits);
    tower_close(g.tower);
    device_close(g.device);
    weights_close(g.weights);
    config_free(&g.config);
    return code;
}

static const struct option options[] = {
    {"prompt", 0, OPTION_TEXT, "TEXT", NULL, 0, 0,
     "text to continue; - or none: standard input, up to 1 MiB"},
    {"chat", 0, OPTION_TEXT, "TEXT", NULL, 0, 0, "question to answer, in the chat template of the model"},
    {"system", 0, OPTION_TEXT, "TEXT", NULL, 0, 0,
     "instructions before the question (default: the template's)"},
    {"template", 0, OPTION_TEXT, "NAME|FILE", CHAT_TEMPLATE_NAMES, 0, 0,
     "template of --chat (default: that of the tokenizer, if it is a published one of these)"},
    {"tokens", 0, OPTION_TEXT, "1,2,3", NULL, 0, 0, "numbers of the tokens to continue"},
    {"tokenizer", 0, OPTION_MODEL, "DIR", NULL, 0, 0,
     "directory with tokenizer.json, or that file (default: next to the weights)"},
    {"count", 0, OPTION_INT, "N", NULL, 1, 1e6, "number of tokens to add (default 64)"},
    {"max-new-tokens", 0, OPTION_INT, "N", NULL, 1, 1e6, "the same as --count"},
    {"temperature", 0, OPTION_REAL, "T", NULL, 0, 100,
     "divisor of the logits (default 0: the likeliest token)"},
    {"top-p", 0, OPTION_REAL, "P", NULL, 0, 1, "draw from the likeliest tokens with this share (default 1)"},
    {"seed", 0, OPTION_INT, "N", NULL, 0, 9007199254740992.0, "seed of the draws (default 0)"},
    {"checkpoint", 0, OPTION_TEXT, "WHICH", "best|last", 0, 0,
     "checkpoint of the run (default: the best one, else the last)"},
    {"json", 0, OPTION_FLAG, NULL, NULL, 0, 0, "machine-readable output"},
    {0},
};

const struct command cmd_generate = {"generate",
                                     "CONFIG|RUN|MODEL [key=value ...]",
                                     "continue a text with a language model",
                                     NULL,
                                     options,
                                     1,
                                     -1,
                                     false,
                                     generate_run};
