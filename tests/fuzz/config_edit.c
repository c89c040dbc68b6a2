/* libFuzzer: the first three bytes choose a key and a value, the rest is a document to change. A change that
 * is not refused leaves one contiguous difference, reads back, and setting the same value again changes
 * nothing. */
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/config/edit.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const values[] = {"a",       "12",   "1.0e-3", "true", "auto", "x: y",
                                         "中 '\"#", "none", "",       "[",    " \x01"};
    if (size < 3) return 0;
    log_level = LOG_QUIET;
    int key = data[0] % config_key_count;
    const char *name =
        data[1] & 1 && config_key_spelling(key, 1) ? config_key_spelling(key, 1) : config_keys[key].name;
    unsigned which = data[2] % (unsigned)(sizeof values / sizeof *values + 4);
    const char *value = which < sizeof values / sizeof *values ? values[which] : config_choice(key, 0);
    struct edit edit = {name, data[1] & 2 ? NULL : value};
    const char *text = (const char *)data + 3;
    size_t bytes = size - 3, out_bytes = 0, again_bytes = 0;
    char *out = NULL, *again = NULL;
    struct error err = {0};
    if (edit_apply("f.yaml", text, bytes, &edit, 1, &out, &out_bytes, &err)) {
        if (err.what[0] == 0 || out) abort();
        return 0;
    }
    if (edit_apply("f.yaml", out, out_bytes, &edit, 1, &again, &again_bytes, &err)) abort();
    if (again_bytes != out_bytes || memcmp(out, again, out_bytes) != 0) abort();
    free(out);
    free(again);
    return 0;
}
