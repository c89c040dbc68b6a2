/* libFuzzer: a line of .jsonl; the first byte chooses the template of conversations, and its highest bit a
 * class. One member is ignored. */
#include "core/text/text_record.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct error err;
    struct text_record r = {0};
    size_t end = 0;
    if (!bytes) return 0;
    int rows = 0;
    while (chat_templates[rows].name) rows++;
    int row = data[0] % (rows + 1);
    struct chat_template chat = chat_templates[row];
    chat.bos = "<s>";
    chat.eos = "</s>";
    const char *label = data[0] & 0x80 ? "label" : NULL;
    char ignored[] = "x", *const ignore[] = {ignored, NULL};
    const struct text_record_options o = {
        .chat = row < rows ? &chat : NULL, .label = label, .ignore = ignore, .hashes = true};
    if (text_record_read(&r, (const char *)data + 1, bytes - 1, &o, &err) == 0) {
        if (label && (!r.class.count || memchr(r.class.data, 0, r.class.count))) abort();
        for (int64_t i = 0; i < r.count; i++) {
            if (r.spans[i].begin != end || r.spans[i].end <= end || r.spans[i].end > r.text.count) abort();
            if (i && r.spans[i].label == r.spans[i - 1].label) abort();
            end = r.spans[i].end;
        }
    }
    text_record_free(&r);
    return 0;
}
