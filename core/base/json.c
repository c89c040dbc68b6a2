/* Writing and reading JSON: see json.h. */
#include "core/base/json.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static json_malloc_t json_malloc;
static json_free_t json_free;
static _Thread_local bool memory_was_out, parsing;

static void *watched_malloc(size_t bytes)
{
    void *p = json_malloc(bytes);
    if (!p) memory_was_out = true;
    return p || !parsing ? p : xmalloc(bytes);
}

static void watch_malloc(void)
{
    json_get_alloc_funcs(&json_malloc, &json_free);
    json_set_alloc_funcs(watched_malloc, json_free);
}

static void watch_memory(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_malloc);
    memory_was_out = false;
}

/* Returns the text with an exponent after each integer that json_int_t cannot hold, malloc'ed: it is then
 * read as a real number. Python writes 1e30 so (model_max_length of a tokenizer without a limit). */
static char *long_integers_as_reals(const char *text, size_t *bytes)
{
    static const char largest[] = "9223372036854775807";
    size_t n = 0, most = sizeof largest - 1;
    char *out = xmalloc(*bytes + *bytes / most * 2 + 1);
    bool string = false;
    for (size_t i = 0; i < *bytes;) {
        const char *p = text + i;
        size_t left = *bytes - i, length = 0, digits = 0, sign = *p == '-';
        for (; !string && length < left && memchr("+-.0123456789Ee", p[length], 15); length++)
            digits += p[length] >= '0' && p[length] <= '9';
        bool whole = digits && sign + digits == length,
             wide = digits > most || (digits == most && memcmp(p + sign, largest, most) > 0);
        if (!length) length = string && *p == '\\' && left > 1 ? 2 : 1;
        if (*p == '"') string = !string;
        memcpy(out + n, p, length);
        n += length;
        i += length;
        if (whole && wide) out[n++] = 'e', out[n++] = '0';
    }
    *bytes = n;
    return out;
}

json_t *json_parse(const char *text, size_t bytes, size_t flags, json_error_t *why)
{
    watch_memory();
    parsing = true;
    json_error_t unused, *error = why ? why : &unused;
    json_t *root = json_loadb(text, bytes, flags, error);
    if (!root && json_error_code(error) == json_error_numeric_overflow) {
        char *longer = long_integers_as_reals(text, &bytes);
        root = json_loadb(longer, bytes, flags, error);
        free(longer);
    }
    parsing = false;
    return root;
}

char *json_text(const json_t *root, size_t flags)
{
    watch_memory();
    char *text = json_dumps(root, flags);
    if (!memory_was_out) return text;
    free(text);
    return NULL;
}

/* Code point of a control character of two or three bytes (found by text_control). */
static unsigned point(const unsigned char *p, size_t bytes)
{
    return bytes == 2 ? (p[0] & 31u) << 6 | (p[1] & 63u)
                      : (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
}

void json_print(FILE *out, const json_t *root, size_t flags)
{
    char *text = json_text(root, flags);
    for (const char *p = text; p && *p;) {
        size_t n = text_control(p);
        if (n == 0 || *p == '\n') fputc(*p++, out);
        else {
            fprintf(out, "\\u%04x", n == 1 ? (unsigned char)*p : point((const unsigned char *)p, n));
            p += n;
        }
    }
    fputc('\n', out);
    free(text);
}

double json_member_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

int64_t json_member_count(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) && json_integer_value(value) >= 0 ? json_integer_value(value) : -1;
}

void json_member_name(char *dst, size_t size, const json_t *object, const char *key)
{
    name_printable(dst, size, json_word(object, key));
}

/* frees text */
static json_t *parse(char *text, size_t bytes, const char *path, struct error *err)
{
    json_error_t why;
    json_t *root = json_parse(text, bytes, 0, &why);
    free(text);
    if (!root) {
        error_set(err, EXIT_INTEGRITY, NULL, "is no JSON: %s", why.text);
        error_at(err, path, why.line, why.column);
        errno = 0;
    }
    return root;
}

json_t *json_read(const char *path, size_t max_bytes, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    return file_read(path, max_bytes, &text, &bytes, err) ? NULL : parse(text, bytes, path, err);
}

int json_read_optional(const char *path, size_t max_bytes, json_t **root, struct error *err)
{
    *root = NULL;
    if (file_absent(path)) return 0;
    return (*root = json_read(path, max_bytes, err)) ? 0 : err->code;
}

json_t *json_read_below(const char *directory, const char *name, size_t max_bytes, struct error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    if (file_read_below(directory, name, max_bytes, &text, &bytes, err)) return NULL;
    char *path = path_join(directory, name);
    json_t *root = parse(text, bytes, path, err);
    free(path);
    return root;
}

/* directory NULL: name is an ordinary path */
static int write_text(const char *directory, const char *name, const json_t *root, size_t flags,
                      struct error *err)
{
    char *text = root ? json_text(root, flags) : NULL;
    int code = !text ? error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for %s", path_basename(name))
               : directory ? file_write_below(directory, name, text, strlen(text), err)
                           : file_write_atomic(name, text, strlen(text), err);
    free(text);
    return code;
}

int json_write(const char *path, const json_t *root, size_t flags, struct error *err)
{
    return write_text(NULL, path, root, flags, err);
}

int json_write_below(const char *directory, const char *name, const json_t *root, size_t flags,
                     struct error *err)
{
    return write_text(directory, name, root, flags, err);
}
