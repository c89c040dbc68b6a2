/* safetensors, and whatever is taken for another format by its first bytes. */
#include "tests/fuzz/weights_any.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    open_bytes(data, bytes);
    return 0;
}
