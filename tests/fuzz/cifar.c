/* CIFAR's files from outside: the first byte chooses the parser, the rest is the file. */
#include "core/data/cifar.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error err;
    struct cifar_file file = {0};
    char **names;
    int32_t count;
    if (!size) return 0;
    int form = bytes[0] % 5, code = 0;
    bytes++, size--;
    if (form < 2) {
        code = cifar_parse_names(&names, &count, bytes, size, form ? "label_names" : NULL, &err);
        if (!code && count < 2) abort();
        for (int32_t i = 0; i < count; i++) free(names[i]);
        free(names);
        return 0;
    }
    code = form == 4 ? cifar_parse_pickle(&file, bytes, size, "labels", 10, &err)
                     : cifar_parse_binary(&file, bytes, size, form - 1, form - 2, 10, &err);
    for (int64_t i = 0; i < file.count && !code; i++) {
        if (file.labels[i] < 0 || file.labels[i] >= 10) abort();
        int64_t at = file.offset + i * file.stride; /* its pixels lie within the file */
        if (at < 0 || at + CIFAR_PIXELS > (int64_t)size) abort();
    }
    free(file.labels);
    return 0;
}
