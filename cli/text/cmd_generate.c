/* meopt generate: continues a prompt with a language model, token by token, or answers questions. The answer
 * is in generate_answer.c, the dialogue in generate_chat.c. */
#include "cli/config/cmd_config.h"
#include "cli/text/generate.h"
#include "cli/run_weights.h"
#include "core/base/file.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/device/facts.h"
#include "core/experiment/adapters.h"
#include "core/text/conversation.h"
#include "core/experiment/experiment.h"
#include "core/step/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the prompt ---- */

/* Refuses options that contradict each other, and key=value as a question. */
static int check_options(const struct arguments *args, struct error *err)
{
    const char *chat = argument_text(args, "chat", NULL), *equals = chat ? strchr(chat, '=') : NULL;
    if (chat && (argument_text(args, "prompt", NULL) || argument_text(args, "tokens", NULL)))
        return error_set(err, EXIT_USAGE, NULL, "--chat cannot be used with --prompt or --tokens");
    for (int key = 0; equals && key < config_key_count; key++) {
        const char *name;
        for (int i = 0; (name = config_key_spelling(key, i)) != NULL; i++)
            if (strlen(name) == (size_t)(equals - chat) && strncmp(name, chat, strlen(name)) == 0)
                return error_set(err, EXIT_USAGE, "write --chat at the end of the command",
                                 "--chat '%.80s' is a key and its value, no question", chat);
    }
    if (!chat && argument_text(args, "system", NULL))
        return error_set(err, EXIT_USAGE, NULL, "--system requires --chat");
    int64_t count = argument_int(args, "count", 0), most = argument_int(args, "max-new-tokens", count);
    if (count && count != most)
        return error_set(err, EXIT_USAGE, "give one of them: they are the same",
                         "--count is %lld, but --max-new-tokens is %lld", (long long)count, (long long)most);
    return 0;
}

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

/* Checks that there is what --chat requires. */
static int check_chat(struct generate *g, struct error *err)
{
    if (!g->tokenizer)
        return error_set(err, EXIT_USAGE, "give --tokenizer DIR",
                         "--chat requires a tokenizer: the model has no tokenizer.json next to its weights");
    if (g->settings.chat.name) return 0;
    *err = g->settings.no_chat;
    return err->code = EXIT_USAGE;
}

/* Writes the question of --chat as the model's template does. */
static int read_question(struct generate *g, const struct arguments *args, const char *question,
                         struct error *err)
{
    int code = check_chat(g, err);
    if (code) return code;
    if (utf8_invalid(question, strlen(question)) < strlen(question))
        return error_set(err, EXIT_USAGE, NULL, "byte %zu of the prompt is not UTF-8",
                         utf8_invalid(question, strlen(question)));
    json_t *messages = generate_messages(argument_text(args, "system", NULL));
    json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", question));
    code = conversation_ask(&g->question, &g->settings.chat, messages, err);
    json_decref(messages);
    return code;
}

/* Prepares a dialogue: its questions are read later. */
static int open_dialogue(struct generate *g, const struct arguments *args, struct error *err)
{
    int code = open_tokenizer(g, args, true, err);
    if (!code) code = check_chat(g, err);
    if (code) return code;
    g->tokens = malloc((size_t)g->shape.context * sizeof *g->tokens);
    return g->tokens ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for the tokens");
}

/* Encodes the prompt. A plain one follows the tokens with which every text begins. */
static int encode_prompt(struct generate *g, const char *text, size_t bytes, struct error *err)
{
    struct token_list list = {0};
    int code = generate_encode(g, text, bytes, !g->question.count, &list, err);
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
    if (!code && chat) code = read_question(g, args, chat, err);
    if (code) return code;
    bool reads_text = g->tokenizer || g->shape.vocabulary == BYTES;
    if (!text && !ids && !chat && reads_text && !isatty(STDIN_FILENO)) text = "-";
    size_t bytes = 0;
    if (chat) text = g->question.text.data, bytes = g->question.text.count;
    if (!text == !ids)
        return error_set(err, EXIT_USAGE, "see 'meopt generate --help'",
                         "meopt generate requires --chat, --prompt TEXT or --tokens 1,2,3");
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
    if (!code) code = experiment_check_file(c, "model_s.weight", err);
    if (!code) code = experiment_tower_shape(c, TOWER_STUDENT, &g->shape, &g->weights, err);
    if (!code) model_shape_log_assumed(&g->shape);
    free(run);
    enum { USUAL = 64, USUAL_IN_DIALOGUE = 1024 };
    const char *chat = argument_text(args, "chat", NULL);
    g->count = argument_int(args, "max-new-tokens",
                            argument_int(args, "count", chat && !*chat ? USUAL_IN_DIALOGUE : USUAL));
    g->how = (struct token_sampling){.temperature = argument_real(args, "temperature", 0),
                                     .top_p = argument_real(args, "top-p", 1),
                                     .top_k = argument_int(args, "top-k", 0),
                                     .seed = (uint64_t)argument_int(args, "seed", 0)};
    return code;
}

/* Creates the tower for the prompt and the answer, or for the context. */
static int open_tower(struct generate *g, struct error *err)
{
    enum dtype type = experiment_tower_type(&g->config.model_s);
    struct tower_options options = {.batch = 1,
                                    .compute = type,
                                    .weight_type = type,
                                    .cache = true,
                                    .loss_chunk = 1, /* no loss is computed */
                                    .weights_class = MEMORY_WEIGHTS,
                                    .activations_class = MEMORY_ACTIVATIONS};
    if (g->prompt && g->prompt + g->count < g->shape.context) g->shape.context = g->prompt + g->count;
    int code = experiment_open_device(&g->device, &g->config, true, err);
    if (code) return code;
    device_facts_warn(g->device);
    if ((code = adapters_options(&g->config, &g->shape, &options.lora, err)) != 0) return code;
    if ((code = tower_create(&g->tower, g->device, &g->shape, &options, err)) != 0) return code;
    if ((code = tower_load(g->tower, g->weights, NULL, NULL, err)) != 0) {
        if (!err->file[0]) error_at(err, g->config.model_s.weight, 0, 0);
        return code;
    }
    if ((code = run_load_adapters(&g->config, g->tower, err)) != 0) return code;
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

/* Reports how tokens are chosen, where the options leave it open or contradict each other. */
static void report_sampling(const struct generate *g, const struct arguments *args)
{
    static const char *const draws[] = {"top-k", "top-p", "seed"};
    const struct tokenizer_settings *s = &g->settings;
    bool chosen = argument_text(args, "temperature", NULL) != NULL;
    for (size_t i = 0; i < sizeof draws / sizeof *draws && g->how.temperature <= 0; i++)
        if (argument_text(args, draws[i], NULL))
            log_warn("--%s has no effect without --temperature: each token is the likeliest one", draws[i]);
    if (s->sampling[0] && !chosen)
        log_info("each token is the likeliest one; generation_config.json would draw: %s", s->sampling);
    if (s->not_applied[0]) log_info("not applied from generation_config.json: %s", s->not_applied);
}

/* Answers one prompt. A question is not repeated. */
static int answer_prompt(struct generate *g, const struct arguments *args, struct error *err)
{
    bool json = argument_flag(args, "json"), question = argument_text(args, "chat", NULL) != NULL;
    int64_t most = g->count;
    report_context(g);
    generate_catch_signals(false);
    if (!json && generate_is_text(g) && !question) generate_print_prompt(g);
    int code = generate_answer(g, !json, err);
    if (!code && generate_signal) code = EXIT_SIGNAL + (int)generate_signal;
    if (json && (!code || code > EXIT_SIGNAL)) print_json(generate_json(g));
    if (!code && !json && question && g->end == ANSWER_LENGTH)
        log_warn("the answer was cut after %lld tokens; --max-new-tokens permits more", (long long)most);
    return code;
}

static int generate_run(const struct arguments *args, struct error *err)
{
    struct generate g = {0};
    const char *chat = argument_text(args, "chat", NULL);
    bool dialogue = chat && !*chat;
    int code = check_options(args, err);
    if (!code) code = read_config(&g, args, err);
    if (!code && dialogue) code = open_dialogue(&g, args, err);
    if (!code && !dialogue) code = read_prompt(&g, args, err);
    if (!code) report_sampling(&g, args);
    if (!code) code = open_tower(&g, err);
    if (!code) code = dialogue ? generate_chat(&g, args, err) : answer_prompt(&g, args, err);
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
    {"prompt", .type = OPTION_TEXT, .value = "TEXT",
     .help = "text to continue; - or none: standard input, up to 1 MiB"},
    {"chat", .type = OPTION_TEXT, .value = "[TEXT]",
     .help = "question to answer, in the model's chat template; without TEXT: a dialogue, with the lines of "
             "standard input"},
    {"system", .type = OPTION_TEXT, .value = "TEXT",
     .help = "instructions before the questions (default: the template's)"},
    {"template", .type = OPTION_TEXT, .value = "NAME|FILE", .choices = CHAT_TEMPLATE_NAMES,
     .help = "template of --chat (default: that of the tokenizer, if it is a published one of these)"},
    {"tokens", .type = OPTION_TEXT, .value = "1,2,3", .help = "numbers of the tokens to continue"},
    {"tokenizer", .type = OPTION_MODEL, .value = "DIR",
     .help = "directory with tokenizer.json, or that file (default: next to the weights)"},
    {"max-new-tokens", .type = OPTION_INT, .value = "N", .min = 1, .max = 1e6,
     .help = "most tokens of an answer (default 64, in a dialogue 1024)"},
    {"count", .type = OPTION_INT, .value = "N", .min = 1, .max = 1e6, .help = "the same as --max-new-tokens"},
    {"temperature", .type = OPTION_REAL, .value = "T", .max = 100,
     .help = "divisor of the logits (default 0: the likeliest token)"},
    {"top-k", .type = OPTION_INT, .value = "K", .max = 1e9,
     .help = "draw from the K likeliest tokens (default 0: all)"},
    {"top-p", .type = OPTION_REAL, .value = "P", .max = 1,
     .help = "draw from the likeliest tokens with this share (default 1)"},
    {"seed", .type = OPTION_INT, .value = "N", .max = 9007199254740992.0,
     .help = "seed of the draws (default 0)"},
    {"checkpoint", .type = OPTION_TEXT, .value = "WHICH", .choices = "best|last",
     .help = "checkpoint of the run (default: the best one, else the last)"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_generate = {
    .name = "generate",
    .operands = "CONFIG|RUN|MODEL [key=value ...]",
    .summary = "continue a text with a language model",
    .options = options,
    .min_operands = 1,
    .max_operands = -1,
    .run = generate_run,
};
