/* libFuzzer: a distributed checkpoint. Two bytes are the length of .metadata, which follows; both parts
 * have the remaining bytes. */
#include "tests/fuzz/weights_directory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 2) return 0;
    size_t metadata = (size_t)(data[0] | data[1] << 8);
    if (metadata > bytes - 2) metadata = bytes - 2;
    make_directory();
    put_file(".metadata", data + 2, metadata);
    put_file("__0_0.distcp", data + 2 + metadata, bytes - 2 - metadata);
    put_file("__1_0.distcp", data + 2 + metadata, bytes - 2 - metadata);
    open_path(fuzz_directory, 1);
    return 0;
}
