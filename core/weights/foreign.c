/* What people take for a checkpoint and is none: said as what it is, with the next step. */
#include "core/weights/internal.h"

#include <string.h>

static bool begins_with(const struct file_map *map, const char *text)
{
    size_t n = strlen(text);
    return map->bytes >= n && memcmp(map->data, text, n) == 0;
}

int weights_refuse_foreign(const struct file_map *map, struct error *err)
{
    static const struct {
        const char *begin, *is, *hint;
    } kinds[] = {
        {"version https://git-lfs", "is a git-lfs pointer, not the file itself",
         "run 'git lfs pull' where it came from, or download the file itself"},
        {"<", "is a web page (HTML or XML), not a checkpoint",
         "the server sent an error page: download the file again"},
        {"\x1f\x8b", "is a gzip archive, expected a checkpoint", "unpack it first"},
        {"\x28\xb5\x2f\xfd", "is a zstd archive, expected a checkpoint", "unpack it first"},
        {"PK", "is a damaged or empty zip, expected a checkpoint", "get the file again"},
        {"\x93NUMPY", "is a NumPy array, expected a checkpoint", "save it with torch.save or as safetensors"},
        {"{", "is JSON without a weight_map, expected a checkpoint",
         "name the weight file itself, the directory, or the index of the shards (*.index.json)"},
        {"\x89HDF", "is an HDF5 file, expected a checkpoint", "save it with torch.save or as safetensors"},
        {"GGUF", "is a GGUF file, expected a checkpoint",
         "name the PyTorch or safetensors file it was made from"},
    };
    static const char names[] = "name a file written by torch.save, or a safetensors file";
    if (map->bytes == 0)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "is empty, expected a PyTorch or safetensors file");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (begins_with(map, kinds[i].begin))
            return error_set(err, EXIT_INTEGRITY, kinds[i].hint, "%s", kinds[i].is);
    if (map->bytes > 262 && memcmp(map->data + 257, "ustar", 5) == 0)
        return error_set(err, EXIT_INTEGRITY, "unpack it and name the checkpoint that is in it",
                         "is a tar archive, expected a checkpoint");
    uint8_t first[4] = {0};
    memcpy(first, map->data, map->bytes < 4 ? map->bytes : 4);
    return error_set(err, EXIT_INTEGRITY, names,
                     "is neither a PyTorch nor a safetensors file: %zu bytes beginning %02x %02x %02x %02x",
                     map->bytes, first[0], first[1], first[2], first[3]);
}
