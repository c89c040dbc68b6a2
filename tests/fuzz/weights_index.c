/* The index of a sharded checkpoint, with two shards in the same directory. */
#include "tests/fuzz/weights_directory.h"
#include "core/base/path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const float values[] = {1, 2, 3, 4};
    if (make_directory()) {
        const struct weights_row rows[] = {{.name = "a", .ndim = 1, .shape = {4}, .data = values},
                                           {.name = "b", .ndim = 1, .shape = {2}, .data = values}};
        for (int i = 0; i < 2; i++) {
            char *path = path_join(fuzz_directory, i ? "2.safetensors" : "1.safetensors");
            if (weights_write_safetensors(path, &rows[i], 1, NULL, NULL)) abort();
            free(path);
        }
    }
    put_file("model.safetensors.index.json", data, bytes);
    open_path(fuzz_directory, 1);
    return 0;
}
