/* Reading tokenizer.json: the file as a whole. */
#include "core/base/file.h"
#include "core/base/json_members.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/text/text_internal.h"

#include <stdlib.h>
#include <sys/stat.h>

enum { MOST_BYTES = 256 << 20 };

static void stages_free(struct stages *s)
{
    for (int i = 0; i < s->count; i++) {
        pcre2_code_free(s->rows[i].pattern);
        free(s->rows[i].content);
        free(s->rows[i].from);
        charsmap_free(s->rows[i].charsmap);
    }
    free(s->rows);
}

/* ---- the file ---- */

/* The parts in the order in which they are read: the vocabulary depends on how texts are split. */
static const struct {
    const char *key;
    int (*read)(struct tokenizer *t, json_t *part, struct error *err);
} parts[] = {{"normalizer", normalizer_read}, {"pre_tokenizer", splitter_read},   {"model", model_read},
             {"added_tokens", added_read},    {"post_processor", processor_read}, {"decoder", decoder_read}};

static int read_parts(struct tokenizer *t, json_t *root, struct error *err)
{
    int code = 0;
    if (!json_is_object(root) || !json_is_object(json_object_get(root, "model")))
        return error_set(err, EXIT_INTEGRITY, "give the tokenizer.json of the model",
                         "is no tokenizer: no model");
    /* truncation and padding are those of batches, and version says nothing */
    code =
        part_keys(root, "the tokenizer",
                  "version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder "
                  "model",
                  err);
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !code; i++) {
        json_t *part = json_object_get(root, parts[i].key);
        if (!part || json_is_null(part)) continue;
        if (!json_is_object(part) && parts[i].read != added_read)
            return error_set(err, EXIT_INTEGRITY, NULL, "%s is no object", parts[i].key);
        code = parts[i].read(t, part, err);
    }
    return code;
}

int tokenizer_parse(struct tokenizer **tokenizer, const char *json, size_t bytes, struct error *err)
{
    json_error_t why;
    *tokenizer = NULL;
    json_t *root = json_parse(json, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!root) {
        if (json_error_code(&why) == json_error_null_byte_in_key)
            error_set(err, EXIT_INTEGRITY, "use a tokenizer without it",
                      "a token has the character U+0000, which is not supported");
        else error_set(err, EXIT_INTEGRITY, "copy it again", "is not JSON: %.200s", why.text);
        return error_at(err, "", why.line, why.column);
    }
    struct tokenizer *t = xcalloc(1, sizeof *t);
    t->unknown = -1;
    int code = read_parts(t, root, err);
    json_decref(root);
    if (code) tokenizer_close(t);
    else *tokenizer = t;
    return code;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

char *tokenizer_path(const char *path, struct error *err)
{
    char *directory = path_directory(path, err);
    bool inside = directory && strcmp(directory, path) == 0;
    char *file = !directory ? NULL : inside ? path_join(path, "tokenizer.json") : xstrdup(path);
    free(directory);
    return file;
}

/* Refuses a directory without a tokenizer.json, and files in another form of a vocabulary. */
static int check_name(const char *path, const char *directory, struct error *err)
{
    static const char hint[] =
        "python -c \"from transformers import AutoTokenizer; "
        "AutoTokenizer.from_pretrained('DIR').save_pretrained('DIR')\" writes tokenizer.json";
    if (ends_with(path, ".model") || ends_with(path, ".tiktoken")) {
        error_set(err, EXIT_FAILED, hint, "is a %s file, expected tokenizer.json",
                  ends_with(path, ".model") ? "SentencePiece" : "tiktoken");
        return error_at(err, path, 0, 0);
    }
    static const char *const models[] = {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
                                         "spm.model", "sentencepiece.model"};
    const char *found = NULL;
    if (!directory || !file_absent(path)) return 0;
    for (size_t i = 0; i < sizeof models / sizeof *models && !found; i++) {
        char *model = path_join(directory, models[i]);
        if (!file_absent(model)) found = models[i];
        free(model);
    }
    if (found) error_set(err, EXIT_FAILED, hint, "has no tokenizer.json, but SentencePiece's %s", found);
    else error_set(err, EXIT_FAILED, "give --tokenizer DIR or tokenizer.json", "has no tokenizer.json");
    return error_at(err, directory, 0, 0);
}

int tokenizer_open(struct tokenizer **tokenizer, const char *path, struct error *err)
{
    char *file = tokenizer_path(path, err), *json = NULL;
    size_t bytes;
    *tokenizer = NULL;
    if (!file) return err->code;
    int code = check_name(file, strcmp(file, path) != 0 ? path : NULL, err);
    if (!code) code = file_read(file, MOST_BYTES, &json, &bytes, err);
    if (!code && (code = tokenizer_parse(tokenizer, json, bytes, err)) != 0)
        error_at(err, file, err->line, err->column);
    free(json);
    free(file);
    return code;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t) return;
    for (int64_t i = 0; i < t->count; i++) {
        if (t->tokens[i].bytes != t->tokens[i].text) free(t->tokens[i].bytes);
        free(t->tokens[i].text);
        free(t->tokens[i].shown);
    }
    for (int32_t i = 0; i < t->added_count; i++) free(t->added[i].text);
    free(t->added);
    free(t->tokens);
    free(t->by_text.ids);
    free(t->by_bytes.ids);
    free(t->merges);
    unigram_free(t->unigram);
    free(t->prefix);
    free(t->raw.nodes);
    free(t->normalized.nodes);
    stages_free(&t->normalizers);
    stages_free(&t->splitters);
    stages_free(&t->decoders);
    free(t);
}

int64_t tokenizer_vocabulary(const struct tokenizer *t) { return t->count; }
int32_t tokenizer_id(const struct tokenizer *t, const char *text)
{
    return token_find(t, &t->by_text, text, strlen(text));
}
const char *tokenizer_text(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->count ? t->tokens[id].text : NULL;
}
bool tokenizer_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->count && t->tokens[id].text && t->tokens[id].special;
}
bool tokenizer_has(const struct tokenizer *t, enum tokenizer_property property)
{
    bool lower = property == TOKENIZER_LOWERCASE;
    const struct stages *stages = lower ? &t->normalizers : &t->splitters;
    if (property == TOKENIZER_BYTES) return t->byte_level;
    if (property == TOKENIZER_WORDPIECE) return t->wordpiece;
    if (property == TOKENIZER_UNIGRAM) return t->unigram != NULL;
    for (int i = 0; i < stages->count; i++)
        if (stages->rows[i].kind == (lower ? STAGE_LOWERCASE : STAGE_PREFIX_SPACE)) return true;
    return false;
}
const int32_t *tokenizer_added(const struct tokenizer *t, bool end, int *count)
{
    *count = end ? t->after_count : t->before_count;
    return end ? t->after : t->before;
}
