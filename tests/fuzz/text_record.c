/* libFuzzer: a line of .jsonl; the first byte chooses the template of conversations. */
#include "core/text/text_record.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct error err;
    struct text_record r = {0};
    size_t end = 0;
    if (!bytes) return 0;
    int rows = 0;
    while (chat_templates[rows].name) rows++;
    const struct chat_template *chat =
        data[0] % (rows + 1) < rows ? &chat_templates[data[0] % (rows + 1)] : NULL;
    if (text_record_read(&r, (const char *)data + 1, bytes - 1, chat, &err) == 0)
        for (int64_t i = 0; i < r.count; i++) {
            if (r.spans[i].begin != end || r.spans[i].end <= end || r.spans[i].end > r.text.count) abort();
            if (i && r.spans[i].label == r.spans[i - 1].label) abort();
            end = r.spans[i].end;
        }
    text_record_free(&r);
    return 0;
}
