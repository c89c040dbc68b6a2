/* What a file has: see container.h. */
#include "core/text/container.h"
#include "core/base/file_kind.h"
#include "core/base/json.h"
#include "core/base/translate.h"

#include <string.h>
#include <strings.h>

enum { MOST_FIRST = 64 << 20 }; /* bytes of the first object, which shows what a file has */

/* Compares the end of a name, without that of a compressed file. */
static bool ends_with(const char *path, const char *end)
{
    static const char *const packed[] = {".gz", ".zst", ".xz"};
    size_t n = strlen(path), m = strlen(end), k = 0;
    for (int i = 0; i < 3 && !k; i++) {
        k = strlen(packed[i]);
        if (n <= k || strcasecmp(path + n - k, packed[i]) != 0) k = 0;
    }
    return n - k > m && strncasecmp(path + n - k - m, end, m) == 0;
}

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

static size_t skip_space(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && is_space(text[at])) at++;
    return at;
}

/* Returns the end of the JSON object at `at`; 0: it does not end. */
static size_t object_end(const char *text, size_t bytes, size_t at)
{
    int64_t depth = 0;
    bool string = false;
    for (size_t i = at; i < bytes; i++) {
        char c = text[i];
        if (string && c == '\\') i++;
        else if (c == '"') string = !string;
        else if (!string && (c == '{' || c == '[')) depth++;
        else if (!string && (c == '}' || c == ']') && --depth == 0) return i + 1;
    }
    return 0;
}

int text_container_next(const char *text, size_t bytes, size_t at, bool array, bool first, size_t *begin,
                        size_t *end, struct error *err)
{
    static const char hint[] = N_("a file of records has an object per line, or one array of objects");
    size_t i = *begin = skip_space(text, bytes, at);
    if (array && (i == bytes || text[i] != (first ? '[' : ','))) {
        bool closed = i < bytes && text[i] == ']' && !first;
        if (closed && (i = *begin = skip_space(text, bytes, i + 1)) == bytes) return 0;
        error_set(err, EXIT_FAILED, _(hint),
                  closed ? N_("the array has ended, and something follows it")
                         : N_("the array of records does not end"));
        return -1;
    }
    if (array) i = *begin = skip_space(text, bytes, i + 1);
    bool empty = array && first && i < bytes && text[i] == ']' && skip_space(text, bytes, i + 1) == bytes;
    if (empty || (!array && i == bytes)) return 0;
    if (i == bytes || text[i] != '{') {
        error_set(err, EXIT_FAILED, _(hint), "a record is no JSON object");
        return -1;
    }
    if ((*end = object_end(text, bytes, i)) != 0) return 1;
    error_set(err, EXIT_FAILED, _(hint), "a record does not end");
    return -1;
}

bool text_container_decides(const char *text, size_t bytes)
{
    size_t at = skip_space(text, bytes, 0);
    if (at < bytes && text[at] == '[') at = skip_space(text, bytes, at + 1);
    return (at < bytes && text[at] != '{') || bytes >= MOST_FIRST || object_end(text, bytes, at);
}

/* Returns whether a text begins with a record. *several: of several lines. */
static bool begins_record(const char *text, size_t bytes, bool *several)
{
    static const char *const keys[] = {"text",          "messages",    "prompt", "completion",
                                       "conversations", "instruction", "chosen", "output"};
    size_t at = skip_space(text, bytes, 0);
    if (at < bytes && text[at] == '[') at = skip_space(text, bytes, at + 1);
    if (at == bytes || text[at] != '{') return false;
    size_t end = object_end(text, bytes < MOST_FIRST ? bytes : MOST_FIRST, at);
    json_t *object = end ? json_parse(text + at, end - at, JSON_ALLOW_NUL, NULL) : NULL;
    bool found = false;
    *several = end && memchr(text + at, '\n', end - at);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) found |= json_object_get(object, keys[i]) != NULL;
    json_decref(object);
    return found;
}

int text_container(enum text_container *container, const char *path, const char *text, size_t bytes,
                   struct error *err)
{
    const struct file_kind *kind = file_kind(text, bytes, false);
    bool lines = ends_with(path, ".jsonl") || ends_with(path, ".ndjson") || ends_with(path, ".jsonlines"),
         json = ends_with(path, ".json");
    size_t at = skip_space(text, bytes, 0);
    bool array = at < bytes && text[at] == '[', object = at < bytes && text[at] == '{', several;
    *container = CONTAINER_TEXT;
    if (kind) return error_set(err, EXIT_FAILED, kind->hint, "is %s, expected a text", kind->is);
    if (ends_with(path, ".csv") || ends_with(path, ".tsv"))
        return error_set(err, EXIT_FAILED,
                         N_("write its texts to a .jsonl file: {\"text\": \"...\"} in each line"),
                         "is a table, expected a text or records");
    if (json && !array && !object)
        return error_set(err, EXIT_FAILED, "to learn it as a text, rename it: .txt", "has no records");
    if (lines && !array) *container = CONTAINER_LINES;
    else if (lines || json) *container = CONTAINER_VALUES;
    else if (begins_record(text, bytes, &several))
        *container = array || several ? CONTAINER_VALUES : CONTAINER_LINES;
    return 0;
}
