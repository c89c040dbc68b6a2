/* Token files from outside: the first byte chooses the format, the next two the length of the index; then the
 * index and the tokens, whose documents become samples. All of it is also read as a file of classes. */
#include "core/data/token_documents.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
static void read_classes(const uint8_t *bytes, size_t size)
{
    struct error err;
    struct document_classes c;
    size_t letters = 0;
    if (document_classes_parse(&c, bytes, size, &err)) return;
    for (int64_t i = 0; i < c.documents; i++)
        if (document_class(&c, i) < 0 || document_class(&c, i) >= c.classes) abort();
    for (int64_t i = 0; i < c.classes; i++) letters += strlen(c.names[i]) + 1;
    if (24 + 4 * (size_t)c.documents + letters != size) abort();
    free(c.names);
}

/* Each document is in one sample, none of which is longer than `context`. */
static void pack_documents(const struct token_file *f, int64_t context, enum documents_long too_long)
{
    const int64_t begins_at[] = {0, f->count};
    const struct token_files all = {f, begins_at, 1};
    const struct data_options o = {
        .root = "x", .context = context, .end = f->index.data ? -1 : 7, .too_long = too_long};
    struct document_facts facts = {.as = DOCUMENTS_WHOLE};
    struct token_pack pack = {0};
    struct error err;
    int64_t documents = 0, tokens = 0;
    if (document_facts_pack(&facts, &all, &o, &pack, &err) == 0) {
        for (int64_t s = 0; s < pack.samples; s++) {
            int64_t sum = 0, first;
            for (int64_t i = 0; i < token_pack_count(&pack, s); i++, documents++) {
                int64_t count = token_pack_document(&pack, s, i, &first);
                if (count < 2 || first < 0 || first + count > f->count) abort();
                sum += count;
            }
            if (sum > context) abort();
            tokens += sum;
        }
        if (documents != facts.kept || tokens != facts.tokens) abort();
    }
    token_pack_free(&pack);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error err;
    struct token_file f = {0};
    bool in_index;
    int32_t to[64];
    read_classes(bytes, size);
    if (size < 3) return 0;
    enum token_form form = TOKENS_AUTO + bytes[0] % (TOKEN_FORMS - TOKENS_AUTO);
    size_t index = (size_t)bytes[1] << 8 | bytes[2];
    bytes += 3, size -= 3;
    if (index > size) index = size;
    if (form == TOKENS_MEGATRON) f.index = (struct file_map){bytes, index};
    f.data = (struct file_map){bytes + f.index.bytes, size - f.index.bytes};
    if (token_file_parse(&f, "x.bin", form, &in_index, &err)) return 0;
    if (f.count < 0 || f.first + f.count * f.width > (int64_t)f.data.bytes) abort();
    for (int64_t at = 0; at < f.count; at += 64) {
        int64_t n = f.count - at < 64 ? f.count - at : 64, bad = token_file_read(&f, at, n, 1000, to);
        if (bad >= 0 && (bad < at || bad >= at + n)) abort();
        if (bad < 0 && (to[0] < 0 || to[n - 1] >= 1000)) abort();
    }
    for (int64_t at = 0, end; f.index.data && at < f.count; at = end) {
        end = token_file_document_end(&f, at);
        if (end <= at || end > f.count) abort();
    }
    pack_documents(&f, 2 + (size ? bytes[0] % 62 : 0), DOCUMENTS_LONG_CUT);
    pack_documents(&f, 64, DOCUMENTS_LONG_SKIP);
    return 0;
}
