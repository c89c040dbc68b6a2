/* The module in a TorchScript archive: the input is its data.pkl. */
#include "tests/fuzz/weights_zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    open_pickle(data, bytes, true);
    return 0;
}
