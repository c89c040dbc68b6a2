/* libFuzzer: a tokenizer.json from outside, and after a NUL the text that it encodes. */
#include "core/text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct error err;
    struct tokenizer *t;
    const uint8_t *end = bytes ? memchr(data, 0, bytes) : NULL;
    size_t n = end ? (size_t)(end - data) : bytes;
    if (tokenizer_parse(&t, (const char *)data, n, &err)) return 0;
    bool usable[TEXT_BREAK_COUNT];
    tokenizer_breaks(t, usable);
    struct encoder *e = encoder_create(t);
    struct token_list list = {0};
    struct text_buffer text = {0};
    const char *rest = end ? (const char *)end + 1 : "Hello 12  w\xC3\xB6rld\n";
    n = utf8_invalid(rest, end ? bytes - n - 1 : strlen(rest));
    encoder_encode(e, rest, n, true, &list, &err);
    for (int64_t i = 0; i < list.count; i++) {
        if (list.ids[i] < 0 || list.ids[i] >= tokenizer_vocabulary(t)) abort();
        tokenizer_decode(t, list.ids[i], i == 0, true, &text);
    }
    text_free(&text);
    token_list_free(&list);
    encoder_free(e);
    tokenizer_close(t);
    return 0;
}
