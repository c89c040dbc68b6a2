/* libFuzzer: headers of a server, or a part's state file, chosen by the first byte. */
#include "fetch/http.h"
#include "fetch/partial.h"
#include "fetch/sources.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    size--;
    if (data[0] == 'h') {
        struct http_headers h = {0};
        while (size) {
            const char *end = memchr(text, '\n', size);
            size_t n = end ? (size_t)(end - text) + 1 : size;
            http_header(&h, text, n);
            text += n;
            size -= n;
        }
        if (h.has_range && !h.bad_range && h.start >= 0 &&
            (h.end < h.start || (h.total >= 0 && h.end >= h.total)))
            abort();
        if (strlen(http_validator(&h)) >= PARTIAL_VALIDATOR_BYTES || h.status < 0 || h.status > 999) abort();
        return 0;
    }
    if (data[0] == 's') {
        struct partial_state state, again;
        if (!partial_state_parse(&state, text, size)) return 0;
        int64_t frontier = partial_contiguous_bytes(&state), bytes = partial_bytes(&state);
        if (frontier < 0 || bytes < 0 ||
            (state.total >= 0 && (frontier > state.total || bytes > state.total)))
            abort();
        char *back = partial_state_text(&state);
        if (!partial_state_parse(&again, back, strlen(back)) || again.total != state.total) abort();
        free(back);
        return 0;
    }
    struct sources sources = {0};
    struct error err = {0};
    if (sources_add(&sources, text, size, "/d/sources.yaml", &err) && !err.what[0]) abort();
    for (int i = 0; i < sources.count; i++)
        if (!sources.all[i].name || (sources.all[i].url_count > 0) == (sources.all[i].include_count > 0))
            abort();
    sources_free(&sources);
    return 0;
}
