/* libFuzzer: safetensors, and files that are detected as a different format by their first bytes. */
#include "tests/fuzz/weights_any.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    open_bytes(data, bytes);
    return 0;
}
