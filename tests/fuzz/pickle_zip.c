/* libFuzzer: PyTorch's zip format. Input that begins like a pickle is put into a zip with two storages, so
 * that the fuzzer need not guess offsets and checksums. Other input is a whole file. */
#include "tests/fuzz/weights_zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes && (data[0] == 0x80 || data[0] == '}')) /* a pickle begins so, a zip never */
        open_pickle(data, bytes, false);
    else open_bytes(data, bytes);
    return 0;
}
