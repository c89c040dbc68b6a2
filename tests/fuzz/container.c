/* libFuzzer: the objects of a file of records. */
#include "core/text/container.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"a.jsonl", "a.json.gz", "a.txt"};
    const char *text = (const char *)data;
    enum text_container container;
    struct error err;
    for (int i = 0; i < 3; i++) text_container(&container, names[i], text, bytes, &err);
    bool decided = text_container_decides(text, bytes / 2);
    if (decided && !text_container_decides(text, bytes)) abort();
    for (int array = 0; array < 2; array++) {
        size_t at = 0, begin, end;
        for (bool first = true;; first = false, at = end) {
            int found = text_container_next(text, bytes, at, array, first, &begin, &end, &err);
            if (begin < at || begin > bytes) abort();
            if (found < 1) break;
            if (end <= begin || end > bytes || text[begin] != '{') abort();
        }
    }
    return 0;
}
