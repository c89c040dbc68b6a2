/* meopt tokenize: text files to Megatron's X.bin and X.idx, with the tokenizer of a model. X.part.json
 * records how far the work is, so that the same command resumes it. */
#include "cli/command.h"
#include "cli/commands/fetch_progress.h"
#include "cli/commands/tokenize_show.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/processors.h"
#include "core/data/token_write.h"
#include "core/text/corpus.h"
#include "core/text/tokenizer_settings.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { MOST_STATE = 1 << 20, MOST_TOKENIZER = 256 << 20 };

struct tokenize {
    struct corpus_options corpus;
    struct tokenizer *tokenizer;
    struct tokenizer_settings settings;
    struct token_writer *writer;
    struct token_position at;
    struct corpus_position end; /* of what is written */
    char *out, *state;          /* X, X.part.json */
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
    if (!code) EVP_Digest(data, bytes, digest, &n, EVP_sha256(), NULL);
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
    t->corpus.end = named;
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
    t->experiment = json_pack("{s:i,s:s,s:i,s:i,s:s,s:o}", "format", 1, "sha256", t->sha256, "end",
                              t->corpus.end, "documents", (int)t->corpus.documents, "template",
                              t->corpus.record.chat ? t->corpus.record.chat->name : "", "files", files);
    if (t->experiment && t->corpus.record.label)
        json_object_set_new(t->experiment, "label", json_string(t->corpus.record.label));
    return t->experiment ? 0 : error_set(err, EXIT_USAGE, NULL, "a file's name is not UTF-8");
}

static int save_state(struct tokenize *t, const struct corpus_position *p, struct error *err)
{
    int code = token_writer_sync(t->writer, &t->at, err);
    if (code) return code;
    json_t *root =
        json_pack("{s:O,s:I,s:I,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:i}", "experiment", t->experiment, "file",
                  (json_int_t)p->file, "offset", (json_int_t)p->offset, "inside", p->inside, "tokens",
                  (json_int_t)t->at.tokens, "written", (json_int_t)t->at.documents, "open",
                  (json_int_t)t->at.open, "largest", (json_int_t)t->at.largest, "done", (json_int_t)t->done,
                  "labels", (json_int_t)t->at.labels, "bits", t->at.bits);
    if (t->committing) json_object_set_new(root, "committing", json_true());
    json_t *classes = t->corpus.record.label ? json_array() : NULL;
    for (int32_t i = 0; classes && i < token_writer_classes(t->writer); i++)
        json_array_append_new(classes, json_string(token_writer_class_name(t->writer, i)));
    if (classes) json_object_set_new(root, "classes", classes);
    code = json_write(t->state, root, JSON_COMPACT, err);
    json_decref(root);
    t->saved = clock_seconds();
    return code;
}

/* Reads where an earlier command stopped, and *classes, the names that it found. Returns whether it is
 * continued. */
static bool read_state(struct tokenize *t, json_t **classes)
{
    *classes = NULL;
    json_t *root = file_absent(t->state) ? NULL : json_read(t->state, MOST_STATE + (64 << 20), NULL);
    bool same = root && json_equal(json_object_get(root, "experiment"), t->experiment);
    json_int_t file, offset, tokens, written, open, largest, done, labels;
    int inside, bits;
    same =
        same && json_unpack(root, "{s:I,s:I,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:i}", "file", &file, "offset",
                            &offset, "inside", &inside, "tokens", &tokens, "written", &written, "open", &open,
                            "largest", &largest, "done", &done, "labels", &labels, "bits", &bits) == 0;
    if (same) {
        t->corpus.from = (struct corpus_position){(int64_t)file, (int64_t)offset, inside};
        t->at = (struct token_position){(int64_t)tokens,  (int64_t)written, (int64_t)open,
                                        (int64_t)largest, (int64_t)labels,  bits};
        t->done = t->resumed = (int64_t)done;
        t->end = t->corpus.from;
        t->committing = json_is_true(json_object_get(root, "committing"));
        *classes = json_incref(json_object_get(root, "classes")); /* strings: this program wrote them */
    } else if (!file_absent(t->state))
        log_warn("%s is of different files or options: beginning again", t->state);
    json_decref(root);
    return same;
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

static int write_result(void *context, const struct corpus_result *r, struct error *err)
{
    enum { SECONDS_BETWEEN_STATES = 5 };
    struct tokenize *t = context;
    const int32_t *ids = r->tokens->ids;
    int code = 0;
    for (int64_t i = 0; i < r->piece_count && !code; i++) {
        const struct corpus_piece *p = &r->pieces[i];
        int32_t class = p->class ? token_writer_class(t->writer, p->class, err) : 0;
        code =
            class < 0 ? err->code : token_writer_add(t->writer, ids, p->count, p->label, p->ends, class, err);
        ids += p->count;
    }
    t->done += r->bytes;
    t->end = r->after;
    if (!code) show_progress(t, false);
    if (!code && (stop_signal || clock_seconds() - t->saved >= SECONDS_BETWEEN_STATES))
        code = save_state(t, &r->after, err);
    if (code || !stop_signal) return code;
    return error_set(err, EXIT_STOPPED, "the same command resumes",
                     "stopped by a signal; %s.bin.part is kept", t->out);
}

/* Refuses to overwrite files of the output; all: also those that a killed command may have written. */
static int check_names(const struct tokenize *t, bool all, struct error *err)
{
    static const char *const ends[] = {".bin", ".idx", ".json", ".labels", ".classes"};
    int code = 0;
    for (size_t i = 0; i < (all ? sizeof ends / sizeof *ends : 1) && !code; i++) {
        char *path = xasprintf("%s%s", t->out, ends[i]);
        if (!file_absent(path)) {
            code = error_set(err, EXIT_FAILED, "remove it, or give another name: -o NAME", "exists already");
            error_at(err, path, 0, 0);
        }
        free(path);
    }
    return code;
}

/* Refuses to overwrite, and makes the name of the state. */
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
    return check_names(t, file_absent(t->state), err); /* read_state knows more */
}

/* Describes the data for the reader of token files and for people; the caller frees it. */
static char *description(struct tokenize *t, const char *tokenizer)
{
    json_t *root = json_pack(
        "{s:i,s:s,s:s,s:I,s:i,s:I,s:I,s:I,s:s,s:I,s:s*}", "format", 1, "tokenizer", tokenizer, "sha256",
        t->sha256, "vocabulary", (json_int_t)tokenizer_vocabulary(t->tokenizer), "end", t->corpus.end,
        "documents", (json_int_t)t->at.documents, "tokens", (json_int_t)t->at.tokens, "largest",
        (json_int_t)t->at.largest, "type", token_writer_type(t->writer), "labels", (json_int_t)t->at.labels,
        "template", t->corpus.record.chat ? t->corpus.record.chat->name : NULL);
    if (root && t->corpus.record.label)
        json_object_set_new(root, "classes", json_integer(token_writer_classes(t->writer)));
    char *text = root ? json_text(root, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    json_decref(root);
    return text;
}

/* Gives the files their names. The state says so first: a command that resumes after a kill expects them. */
static int give_names(struct tokenize *t, const char *tokenizer, struct error *err)
{
    char *text = description(t, tokenizer);
    int code = text ? 0 : error_set(err, EXIT_USAGE, NULL, "a file's name is not UTF-8");
    t->committing = true;
    if (!code) code = save_state(t, &t->end, err);
    if (!code) code = token_writer_commit(t->writer, &t->at, text, err);
    free(text);
    return code;
}

static void report(struct tokenize *t, bool json)
{
    double seconds = clock_seconds() - t->begin;
    char size[32];
    if (json) {
        json_t *root = json_pack("{s:s,s:I,s:I,s:I,s:I,s:i,s:s,s:f}", "out", t->out, "documents",
                                 (json_int_t)t->at.documents, "tokens", (json_int_t)t->at.tokens, "labels",
                                 (json_int_t)t->at.labels, "bytes", (json_int_t)t->bytes, "end",
                                 t->corpus.end, "sha256", t->sha256, "seconds", seconds);
        if (t->corpus.record.label)
            json_object_set_new(root, "classes", json_integer(token_writer_classes(t->writer)));
        json_t *first = tokenize_first(t->out, t->tokenizer);
        if (first) json_object_set_new(root, "first", first);
        json_print(stdout, root, JSON_COMPACT | JSON_PRESERVE_ORDER);
        json_decref(root);
        return;
    }
    char labels[48] = "", classes[48] = "";
    if (t->corpus.record.label)
        snprintf(classes, sizeof classes, _(" in %d classes"), (int)token_writer_classes(t->writer));
    if (t->at.labels < t->at.tokens)
        snprintf(labels, sizeof labels, _(", %lld labels"), (long long)t->at.labels);
    printf(_("%s.bin, %s.idx: %lld documents%s, %lld tokens%s of %s in %.1f s\n"), t->out, t->out,
           (long long)t->at.documents, classes, (long long)t->at.tokens, labels,
           size_text(size, (double)t->bytes), seconds);
    fflush(stdout);
    tokenize_show(t->out, t->tokenizer);
}

static int run_work(struct tokenize *t, const struct arguments *args, struct error *err)
{
    json_t *names;
    bool resumed = read_state(t, &names);
    int code = check_names(t, !t->committing, err);
    if (!code)
        code = token_writer_open(&t->writer, t->out, tokenizer_vocabulary(t->tokenizer),
                                 t->corpus.record.label, resumed ? &t->at : NULL, err);
    for (size_t i = 0; i < json_array_size(names) && !code; i++)
        (void)token_writer_class(t->writer, json_string_value(json_array_get(names, i)), err);
    json_decref(names);
    if (code) return code;
    char size[32];
    if (resumed) log_info("resuming after %s", size_text(size, (double)t->done));
    t->begin = t->saved = t->shown = clock_seconds();
    catch_signals();
    code = corpus_encode(&t->corpus, err);
    show_progress(t, true);
    if (!code) code = token_writer_sync(t->writer, &t->at, err);
    if (!code && !t->at.documents)
        code = error_set(err, EXIT_FAILED, "give files with text", "the files have no text");
    if (!code) code = give_names(t, argument_text(args, "tokenizer", ""), err);
    if (!code) unlink(t->state);
    else if (file_absent(t->state)) token_writer_remove(t->writer);
    if (!code) report(t, argument_flag(args, "json"));
    return code;
}

static int tokenize_run(const struct arguments *args, struct error *err)
{
    static const char *const names[] = {"file", "line", "paragraph"};
    struct tokenize t = {.terminal = isatty(STDERR_FILENO)};
    const char *documents = argument_text(args, "documents", names[0]);
    t.corpus = (struct corpus_options){.record.label = argument_text(args, "label", NULL),
                                       .files = args->operands,
                                       .file_count = args->operand_count,
                                       .threads = (int)argument_int(args, "threads", processors_cores("")),
                                       .write = write_result,
                                       .context = &t};
    for (int i = 0; i < 3; i++)
        if (strcmp(names[i], documents) == 0) t.corpus.documents = (enum corpus_documents)i;
    int code = open_output(&t, args, err);
    if (!code) code = open_tokenizer(&t, args, err);
    if (!code) code = describe(&t, err);
    if (!code) code = run_work(&t, args, err);
    token_writer_close(t.writer);
    tokenizer_close(t.tokenizer);
    tokenizer_settings_free(&t.settings);
    json_decref(t.experiment);
    free(t.out);
    free(t.state);
    return code;
}

static const struct option options[] = {
    {"tokenizer", 0, OPTION_MODEL, "DIR", NULL, 0, 0,
     "directory of a model with tokenizer.json, or that file"},
    {"out", 'o', OPTION_TEXT, "NAME", NULL, 0, 0, "write NAME.bin, NAME.idx and NAME.json"},
    {"documents", 0, OPTION_TEXT, "WHAT", "file|line|paragraph", 0, 0,
     "document of a text file (default: the file); a record is always one"},
    {"template", 0, OPTION_TEXT, "NAME|FILE", CHAT_TEMPLATE_NAMES, 0, 0,
     "form of conversations (default: that of the tokenizer, if its template is a published one of these)"},
    {"label", 0, OPTION_TEXT, "KEY", NULL, 0, 0,
     "key of the class of each record, to train a classifier: write NAME.classes as well"},
    {"end", 0, OPTION_TEXT, "TOKEN", NULL, 0, 0,
     "token after each document, or none (default: eos_token of tokenizer_config.json)"},
    {"threads", 0, OPTION_INT, "N", NULL, 1, 256, "number of threads (default: all cores)"},
    {"json", 0, OPTION_FLAG, NULL, NULL, 0, 0, "machine-readable output"},
    {0},
};

const struct command cmd_tokenize = {
    "tokenize",
    "FILE... --tokenizer DIR -o NAME",
    "convert text to tokens for training",
    "meopt tokenize books/*.txt --tokenizer gpt2/ -o books\n"
    "meopt tokenize web.jsonl --tokenizer Qwen3-0.6B/ -o web\n"
    "meopt tokenize chats.jsonl --tokenizer Qwen3-0.6B/ -o chats\n"
    "meopt tokenize reviews.jsonl --tokenizer bert/ --label label -o reviews",
    options,
    1,
    -1,
    false,
    tokenize_run};
