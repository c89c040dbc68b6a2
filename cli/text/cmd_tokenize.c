/* meopt tokenize: text files to Megatron's X.bin and X.idx, with the tokenizer of a model. X.part.json
 * records how far the work is, so that the same command resumes it. */
#include "cli/command.h"
#include "cli/fetch/fetch_progress.h"
#include "cli/text/tokenize_output.h"
#include "cli/text/tokenize_show.h"
#include "cli/text/unpack_text.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/processors.h"
#include "core/text/corpus.h"
#include "core/text/tokenizer_settings.h"
#include "fetch/libcrypto.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { MOST_STATE = 1 << 20, MOST_TOKENIZER = 256 << 20, SKIPPED_SHOWN = 10 };

struct tokenize {
    struct corpus_options corpus;
    struct tokenizer *tokenizer;
    struct tokenizer_settings settings;
    struct tokenize_output output;
    struct corpus_position end;  /* of what is written */
    int64_t forms[RECORD_FORMS]; /* records of each */
    char **ignore;               /* names, then NULL */
    char *out, *state;           /* X, X.part.json */
    char sha256[65];
    json_t *experiment; /* what a resumed command must repeat */
    int64_t bytes, done, resumed;
    double begin, shown, saved;
    bool terminal;
    bool committing; /* files have got their names, or may have */
};

static volatile sig_atomic_t stop_signal;
static void on_signal(int number) { stop_signal = number; }

/* Lets the first Ctrl-C stop after the current part; the second one ends the process. */
static void catch_signals(void)
{
    const int stops[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, before;
        if (sigaction(stops[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stops[i], &action, NULL);
    }
}

/* ---- the tokenizer ---- */

/* Reads the checksum of the file that tokenizer_open reads. */
static int read_checksum(struct tokenize *t, const char *path, struct error *err)
{
    char *file = tokenizer_path(path, err), *data = NULL;
    if (!file) return err->code;
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    size_t bytes;
    int code = file_read(file, MOST_TOKENIZER, &data, &bytes, err);
    if (!code) code = libcrypto_load(err);
    if (!code) libcrypto.digest(data, bytes, digest, &n, libcrypto.sha256(), NULL);
    for (unsigned i = 0; i < n && i < 32; i++) snprintf(t->sha256 + 2 * i, 3, "%02x", digest[i]);
    free(data);
    free(file);
    return code;
}

static int choose_end(struct tokenize *t, const struct arguments *args, int32_t named, struct error *err)
{
    static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "[SEP]", "<eos>"};
    const char *given = argument_text(args, "end", NULL);
    t->corpus.end = -1;
    if (given && strcmp(given, "none") == 0) return 0;
    if (given) {
        t->corpus.end = tokenizer_id(t->tokenizer, given);
        return t->corpus.end >= 0
                   ? 0
                   : error_set(err, EXIT_USAGE, NULL, "--end: the tokenizer has no token '%.80s'", given);
    }
    int count;
    const int32_t *added = tokenizer_added(t->tokenizer, true, &count);
    t->corpus.end = count ? added[count - 1] : named;
    for (size_t i = 0; i < sizeof usual / sizeof *usual && t->corpus.end < 0; i++)
        t->corpus.end = tokenizer_id(t->tokenizer, usual[i]);
    return t->corpus.end >= 0 ? 0
                              : error_set(err, EXIT_USAGE, "give --end TOKEN, or --end none",
                                          "the tokenizer does not say which token ends a document");
}

static int open_tokenizer(struct tokenize *t, const struct arguments *args, struct error *err)
{
    const char *path = argument_text(args, "tokenizer", NULL);
    if (!path)
        return error_set(err, EXIT_USAGE, "give the directory of the model: --tokenizer DIR",
                         "meopt tokenize requires --tokenizer DIR or tokenizer.json");
    int code = tokenizer_open(&t->tokenizer, path, err);
    if (!code) code = read_checksum(t, path, err);
    struct tokenizer_settings *s = &t->settings;
    if (!code)
        code = tokenizer_settings_read(s, path, argument_text(args, "template", NULL), t->tokenizer, err);
    if (!code) code = choose_end(t, args, s->end, err);
    t->corpus.record.chat = s->chat.name ? &s->chat : NULL;
    t->corpus.record.no_chat = &s->no_chat;
    t->corpus.tokenizer = t->tokenizer;
    return code;
}

/* ---- resume ---- */

/* Describes the inputs: a resumed command has the same. */
static int describe(struct tokenize *t, struct error *err)
{
    json_t *files = json_array();
    for (int i = 0; i < t->corpus.file_count; i++) {
        const char *path = t->corpus.files[i];
        struct stat st;
        int fd, code = file_open(path, &fd, &st, err);
        if (code) {
            json_decref(files);
            return code;
        }
        close(fd);
        t->bytes += st.st_size;
        json_array_append_new(files, json_pack("{s:s%,s:I,s:I,s:I}", "path", path, strlen(path), "bytes",
                                               (json_int_t)st.st_size, "mtime", (json_int_t)st.st_mtim.tv_sec,
                                               "mtime_ns", (json_int_t)st.st_mtim.tv_nsec));
    }
    json_t *ignore = json_array();
    for (int i = 0; t->ignore[i]; i++) json_array_append_new(ignore, json_string(t->ignore[i]));
    t->experiment = json_pack("{s:i,s:s,s:i,s:i,s:s,s:o,s:o,s:f}", "format", 2, "sha256", t->sha256, "end",
                              t->corpus.end, "documents", (int)t->corpus.documents, "template",
                              t->corpus.record.chat ? t->corpus.record.chat->name : "", "files", files,
                              "ignore", ignore, "val", t->corpus.validation);
    if (t->experiment && t->corpus.record.label)
        json_object_set_new(t->experiment, "label", json_string(t->corpus.record.label));
    return t->experiment ? 0 : error_set(err, EXIT_USAGE, NULL, "a file's name is not UTF-8");
}

/* Returns the number of records of each form that there is. */
static json_t *forms_json(const struct tokenize *t)
{
    json_t *forms = json_object();
    for (int i = 0; i < RECORD_FORMS; i++)
        if (t->forms[i]) json_object_set_new(forms, record_form_names[i], json_integer(t->forms[i]));
    return forms;
}

static int save_state(struct tokenize *t, const struct corpus_position *p, struct error *err)
{
    int code = output_sync(&t->output, err);
    if (code) return code;
    json_t *root = json_pack("{s:O,s:I,s:I,s:b,s:I,s:o}", "experiment", t->experiment, "file",
                             (json_int_t)p->file, "offset", (json_int_t)p->offset, "inside", p->inside,
                             "done", (json_int_t)t->done, "forms", forms_json(t));
    if (root) output_state(&t->output, root);
    if (t->committing) json_object_set_new(root, "committing", json_true());
    code = json_write(t->state, root, JSON_COMPACT, err);
    json_decref(root);
    t->saved = clock_seconds();
    return code;
}

/* Reads where an earlier command stopped. *state: its state if it is continued, else NULL. */
static int read_state(struct tokenize *t, json_t **state, struct error *err)
{
    json_t *root = NULL, *forms;
    *state = NULL;
    errno = 0;
    int code = json_read_optional(t->state, MOST_STATE + (64 << 20), &root, err);
    if (code && errno) return code;
    json_int_t file, offset, done;
    int inside;
    bool same = root && json_equal(json_object_get(root, "experiment"), t->experiment) &&
                json_unpack(root, "{s:I,s:I,s:b,s:I,s:o}", "file", &file, "offset", &offset, "inside",
                            &inside, "done", &done, "forms", &forms) == 0 &&
                output_resumable(&t->output, root);
    if (!same) {
        if (root || code) log_warn("%s is of different files or options: beginning again", t->state);
        json_decref(root);
        return 0;
    }
    t->corpus.from = t->end = (struct corpus_position){(int64_t)file, (int64_t)offset, inside};
    t->done = t->resumed = (int64_t)done;
    t->committing = json_is_true(json_object_get(root, "committing"));
    for (int i = 0; i < RECORD_FORMS; i++)
        t->forms[i] = json_integer_value(json_object_get(forms, record_form_names[i]));
    *state = root;
    return 0;
}

/* ---- work ---- */

static void show_progress(struct tokenize *t, bool last)
{
    char done[32], all[32], rate[32], left[32];
    double now = clock_seconds(), seconds = now - t->begin,
           speed = seconds > 0 ? (double)(t->done - t->resumed) / seconds : 0;
    if (!last && now - t->shown < (t->terminal ? 0.2 : 30)) return;
    t->shown = now;
    if (last && t->terminal) fputs("\r\033[2K", stderr);
    if (last) return;
    size_text(done, (double)t->done);
    size_text(all, (double)t->bytes);
    size_text(rate, speed);
    time_text(left, speed > 0 ? (double)(t->bytes - t->done) / speed : -1);
    if (t->terminal) {
        fputs("\r\033[2K", stderr);
        fprintf(stderr, _("%s/%s, %s/s, %s left"), done, all, rate, left);
    } else log_info("%s/%s, %s/s, %s left", done, all, rate, left);
    fflush(stderr);
}

/* Logs once that records of a form become conversations. */
static void count_forms(struct tokenize *t, const struct corpus_result *r)
{
    static const char *const converted[RECORD_FORMS] = {
        [FORM_ALPACA] = N_("records with instruction and output are conversations (alpaca)"),
        [FORM_SHAREGPT] =
            N_("records with conversations are messages of from and value, or role and content (sharegpt)"),
    };
    for (int i = 0; i < RECORD_FORMS; i++) {
        if (r->forms[i] && !t->forms[i] && converted[i]) log_info("%s", _(converted[i]));
        t->forms[i] += r->forms[i];
    }
}

static int write_result(void *context, const struct corpus_result *r, struct error *err)
{
    enum { SECONDS_BETWEEN_STATES = 5 };
    struct tokenize *t = context;
    int code = output_add(&t->output, r, err);
    count_forms(t, r);
    t->done += r->bytes;
    t->end = r->after;
    if (!code) show_progress(t, false);
    if (!code && (stop_signal || clock_seconds() - t->saved >= SECONDS_BETWEEN_STATES))
        code = save_state(t, &r->after, err);
    if (code || !stop_signal) return code;
    return error_set(err, EXIT_STOPPED, "the same command resumes",
                     "stopped by a signal; %s.bin.part is kept", t->out);
}

static int write_skipped(void *context, const struct error *why, struct error *err)
{
    struct tokenize *t = context;
    if (t->output.skipped < SKIPPED_SHOWN) log_warn("left out: %s:%d: %s", why->file, why->line, why->what);
    return output_skip(&t->output, why, err);
}

/* Begins the output, and refuses to overwrite. */
static int open_output(struct tokenize *t, const struct arguments *args, struct error *err)
{
    const char *out = argument_text(args, "out", NULL);
    if (!out || !*out || out[strlen(out) - 1] == '/')
        return error_set(err, EXIT_USAGE, "-o data writes data.bin and data.idx",
                         "meopt tokenize requires -o NAME");
    t->out = xstrdup(out);
    size_t n = strlen(out);
    if (n > 4 && strcmp(out + n - 4, ".bin") == 0) t->out[n - 4] = 0;
    t->state = xasprintf("%s.part.json", t->out);
    output_begin(&t->output, t->out, t->corpus.validation > 0, t->corpus.record.label);
    return file_absent(t->state) ? output_check_names(&t->output, true, err) : 0; /* read_state knows more */
}

/* Adds the mask, and the tokens that are never masked. "mask": null: the tokenizer has none. */
static void describe_roles(json_t *root, const struct token_roles *roles)
{
    int32_t mask = roles->ids[SPECIAL_MASK], pad = roles->ids[SPECIAL_PAD];
    json_object_set_new(root, "mask", mask < 0 ? json_null() : json_integer(mask));
    if (mask < 0) return;
    if (pad >= 0) json_object_set_new(root, "pad", json_integer(pad));
    json_t *special = json_array();
    for (int64_t i = 0; i < roles->special.count; i++)
        json_array_append_new(special, json_integer(roles->special.ids[i]));
    json_object_set_new(root, "special", special);
}

/* Describes a part of the data for the reader of token files and for people; the caller frees it. */
static char *description(struct tokenize *t, int part, const char *tokenizer)
{
    const struct token_position *at = &t->output.at[part];
    const struct token_writer *w = t->output.writers[part];
    json_t *root = json_pack(
        "{s:i,s:s,s:s,s:I,s:i,s:I,s:I,s:I,s:s,s:I,s:s*}", "format", 1, "tokenizer", tokenizer, "sha256",
        t->sha256, "vocabulary", (json_int_t)tokenizer_vocabulary(t->tokenizer), "end", t->corpus.end,
        "documents", (json_int_t)at->documents, "tokens", (json_int_t)at->tokens, "largest",
        (json_int_t)at->largest, "type", token_writer_type(w), "labels", (json_int_t)at->labels, "template",
        t->corpus.record.chat ? t->corpus.record.chat->name : NULL);
    if (root) describe_roles(root, &t->settings.roles);
    if (root && t->corpus.record.label)
        json_object_set_new(root, "classes", json_integer(token_writer_classes(w)));
    if (root && t->output.skipped) json_object_set_new(root, "skipped", json_integer(t->output.skipped));
    if (root && t->output.parts > 1) json_object_set_new(root, "val", json_real(t->corpus.validation));
    char *text = root ? json_text(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    return text;
}

/* Gives the files their names. The state says so first: a command that resumes after a kill expects them. */
static int give_names(struct tokenize *t, const char *tokenizer, struct error *err)
{
    char *texts[OUTPUT_PARTS] = {NULL};
    int code = 0;
    for (int k = 0; k < t->output.parts && !code; k++)
        if ((texts[k] = description(t, k, tokenizer)) == NULL)
            code = error_set(err, EXIT_USAGE, NULL, "a file's name is not UTF-8");
    t->committing = true;
    if (!code) code = save_state(t, &t->end, err);
    if (!code) code = output_commit(&t->output, texts, err);
    for (int k = 0; k < OUTPUT_PARTS; k++) free(texts[k]);
    return code;
}

static void report_json(struct tokenize *t, double seconds)
{
    const struct tokenize_output *o = &t->output;
    json_t *root =
        json_pack("{s:s,s:I,s:I,s:I,s:I,s:i,s:s,s:f,s:o,s:I}", "out", t->out, "documents",
                  (json_int_t)o->at[0].documents, "tokens", (json_int_t)o->at[0].tokens, "labels",
                  (json_int_t)o->at[0].labels, "bytes", (json_int_t)t->bytes, "end", t->corpus.end, "sha256",
                  t->sha256, "seconds", seconds, "forms", forms_json(t), "skipped", (json_int_t)o->skipped);
    if (t->corpus.record.label)
        json_object_set_new(root, "classes", json_integer(token_writer_classes(o->writers[0])));
    if (o->parts > 1)
        json_object_set_new(root, "val",
                            json_pack("{s:s,s:I,s:I,s:I}", "out", o->names[1], "documents",
                                      (json_int_t)o->at[1].documents, "tokens", (json_int_t)o->at[1].tokens,
                                      "labels", (json_int_t)o->at[1].labels));
    json_t *first = tokenize_first(t->out, t->tokenizer);
    if (first) json_object_set_new(root, "first", first);
    json_print(stdout, root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
}

static void report(struct tokenize *t)
{
    const struct tokenize_output *o = &t->output;
    double seconds = clock_seconds() - t->begin;
    char size[32], classes[48] = "", forms[256] = "";
    size_t n = 0;
    if (t->corpus.record.label)
        snprintf(classes, sizeof classes, _(" in %d classes"), (int)token_writer_classes(o->writers[0]));
    for (int k = 0; k < o->parts; k++) {
        const struct token_position *at = &o->at[k];
        char labels[48] = "";
        if (at->labels < at->tokens)
            snprintf(labels, sizeof labels, _(", %lld labels"), (long long)at->labels);
        printf(_("%s.bin, %s.idx: %lld documents%s, %lld tokens%s of %s in %.1f s\n"), o->names[k],
               o->names[k], (long long)at->documents, classes, (long long)at->tokens, labels,
               size_text(size, (double)t->bytes), seconds);
    }
    for (int i = 0; i < RECORD_FORMS && n < sizeof forms; i++)
        if (t->forms[i])
            n += (size_t)snprintf(forms + n, sizeof forms - n, "%s%s %lld", n ? ", " : "",
                                  record_form_names[i], (long long)t->forms[i]);
    if (n) printf(_("records: %s\n"), forms);
    if (o->skipped) printf(_("%s: %lld records left out\n"), o->skipped_name, (long long)o->skipped);
    fflush(stdout);
    tokenize_show(t->out, t->tokenizer);
}

static int run_work(struct tokenize *t, const struct arguments *args, struct error *err)
{
    json_t *state;
    int code = read_state(t, &state, err);
    if (code) return code;
    if (t->committing) code = output_undo_names(&t->output, state, err);
    if (!code) code = output_check_names(&t->output, !t->committing, err);
    if (!code) code = output_open(&t->output, tokenizer_vocabulary(t->tokenizer), state, err);
    t->corpus.skipped_before = t->output.skipped;
    bool resumed = state;
    json_decref(state);
    if (code) return code;
    char size[32];
    if (resumed) log_info("resuming after %s", size_text(size, (double)t->done));
    t->begin = t->saved = t->shown = clock_seconds();
    catch_signals();
    code = corpus_encode(&t->corpus, err);
    show_progress(t, true);
    if (!code) code = output_sync(&t->output, err);
    if (!code) code = output_check_parts(&t->output, err);
    if (!code) code = give_names(t, argument_text(args, "tokenizer", ""), err);
    if (!code) unlink(t->state);
    if (file_absent(t->state)) output_remove_unfinished(&t->output);
    if (!code && argument_flag(args, "json")) report_json(t, clock_seconds() - t->begin);
    else if (!code) report(t);
    return code;
}

/* ---- the command line ---- */

/* Reads names of members, several in one value separated by commas. */
static char **read_names(const struct arguments *args, const char *option)
{
    char **names = xcalloc(1, sizeof *names);
    int count = 0;
    const char *text;
    for (int i = 0; (text = argument_list(args, option, i)) != NULL; i++)
        for (size_t n; *text; text += n + (text[n] == ',')) {
            n = strcspn(text, ",");
            if (!n) continue;
            names = xrealloc(names, (size_t)(count + 2) * sizeof *names);
            names[count] = xasprintf("%.*s", (int)n, text);
            names[++count] = NULL;
        }
    return names;
}

static int read_share(double *share, const char *text, struct error *err)
{
    char *end;
    *share = text ? strtod(text, &end) : 0;
    if (!text) return 0;
    bool percent = *end == '%';
    if (percent) *share /= 100, end++;
    if (end != text && !*end && *share > 0 && *share < 1) return 0;
    return error_set(err, EXIT_USAGE, "--val 5%",
                     "--val: expected a share above 0 and below 100%%, not '%.40s'", text);
}

static int tokenize_run(const struct arguments *args, struct error *err)
{
    static const char *const names[] = {"file", "line", "paragraph"};
    struct tokenize t = {.terminal = isatty(STDERR_FILENO)};
    const char *documents = argument_text(args, "documents", names[0]);
    t.ignore = read_names(args, "ignore");
    t.corpus = (struct corpus_options){.record.label = argument_text(args, "label", NULL),
                                       .record.ignore = t.ignore,
                                       .unpacker = &unpack_text,
                                       .skip = argument_int(args, "skip-bad", 0),
                                       .skipped = write_skipped,
                                       .files = args->operands,
                                       .file_count = args->operand_count,
                                       .threads = (int)argument_int(args, "threads", processors_cores("")),
                                       .write = write_result,
                                       .context = &t};
    for (int i = 0; i < 3; i++)
        if (strcmp(names[i], documents) == 0) t.corpus.documents = (enum corpus_documents)i;
    int code = read_share(&t.corpus.validation, argument_text(args, "val", NULL), err);
    t.corpus.record.hashes = t.corpus.validation > 0;
    if (!code) code = open_output(&t, args, err);
    if (!code) code = open_tokenizer(&t, args, err);
    if (!code) code = describe(&t, err);
    if (!code) code = run_work(&t, args, err);
    output_close(&t.output);
    for (int i = 0; t.ignore[i]; i++) free(t.ignore[i]);
    free(t.ignore);
    tokenizer_close(t.tokenizer);
    tokenizer_settings_free(&t.settings);
    json_decref(t.experiment);
    free(t.out);
    free(t.state);
    return code;
}

static const struct option options[] = {
    {"tokenizer", .type = OPTION_MODEL, .value = "DIR",
     .help = "directory of a model with tokenizer.json, or that file"},
    {"out", .letter = 'o', .type = OPTION_TEXT, .value = "NAME",
     .help = "write NAME.bin, NAME.idx and NAME.json"},
    {"documents", .type = OPTION_TEXT, .value = "WHAT", .choices = "file|line|paragraph",
     .help = "document of a text file (default: the file); a record is always one"},
    {"template", .type = OPTION_TEXT, .value = "NAME|FILE", .choices = CHAT_TEMPLATE_NAMES,
     .help = "form of conversations (default: that of the tokenizer, if its template is a published one of "
             "these)"},
    {"label", .type = OPTION_TEXT, .value = "KEY",
     .help = "key of the class of each record, to train a classifier: write NAME.classes as well"},
    {"ignore", .type = OPTION_LIST, .value = "MEMBER",
     .help = "leave this member out of records and messages; a,b for several; may be repeated"},
    {"skip-bad", .type = OPTION_INT, .value = "N", .max = 1000000000,
     .help = "leave out up to N records that cannot be read, and list them in NAME.skipped (default 0)"},
    {"val", .type = OPTION_TEXT, .value = "SHARE",
     .help =
         "write this share of the documents, as 5%, to NAME-val.bin instead; equal records stay together"},
    {"end", .type = OPTION_TEXT, .value = "TOKEN",
     .help = "token after each document, or none (default: eos_token of tokenizer_config.json)"},
    {"threads", .type = OPTION_INT, .value = "N", .min = 1, .max = 256,
     .help = "number of threads (default: all cores)"},
    {"json", .help = "machine-readable output"},
    {0},
};

const struct command cmd_tokenize = {
    .name = "tokenize",
    .operands = "FILE... --tokenizer DIR -o NAME",
    .summary = "convert text to tokens for training",
    .details = "meopt tokenize books/*.txt --tokenizer gpt2/ -o books\n"
               "meopt tokenize web.jsonl --tokenizer Qwen3-0.6B/ -o web\n"
               "meopt tokenize chats.jsonl --tokenizer Qwen3-0.6B/ --val 5% -o chats\n"
               "meopt tokenize reviews.jsonl --tokenizer bert/ --label label -o reviews",
    .options = options,
    .min_operands = 1,
    .max_operands = -1,
    .run = tokenize_run,
};
