/* Files that are not checkpoints: each is reported with its format and the next step. */
#include "core/weights/weights_internal.h"

#include <string.h>

static bool begins_with(const struct file_map *map, const char *text)
{
    size_t n = strlen(text);
    return map->bytes >= n && memcmp(map->data, text, n) == 0;
}

/* Counts the bytes at the start that belong to this set. */
static size_t run_of(const struct file_map *map, const char *bytes, size_t count)
{
    size_t i = 0;
    while (i < map->bytes && memchr(bytes, map->data[i], count)) i++;
    return i;
}

/* Formats without a single magic number. */
static const char *other_format(const struct file_map *map)
{
    static const uint8_t table_end[] = {0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb};
    const uint8_t *p = map->data;
    if (map->bytes < 16) return NULL;
    if (memcmp(p + map->bytes - 8, table_end, 8) == 0) return _("is the index of a TensorFlow checkpoint");
    if (map->bytes > 262 && memcmp(p + 257, "ustar", 5) == 0) return NULL;
    /* field 1, a small version; then a text or a message */
    if (p[0] == 0x08 && p[1] < 0x20 && p[2] % 8 == 2 && p[2] < 0x80)
        return _("is a protobuf message, as ONNX and TensorFlow models are");
    /* a map whose first key is a text */
    const uint8_t *key = (p[0] & 0xf0) == 0x80 ? p + 1 : p[0] == 0xde ? p + 3 : p[0] == 0xdf ? p + 5 : NULL;
    if (key && ((*key & 0xe0) == 0xa0 || *key == 0xd9)) return _("is MessagePack, as Flax saves models");
    if (memcmp(p + 4, "TFL3", 4) == 0) return _("is a TensorFlow Lite model");
    if (memcmp(p + 4, "ET1", 3) == 0) return _("is an ExecuTorch program");
    return memcmp(p, "ftrt", 4) == 0 || memcmp(p, "ptrt", 4) == 0 ? _("is a TensorRT engine") : NULL;
}

/* Returns whether the file is a line of text, as a server's error message. */
static bool is_text(const struct file_map *map)
{
    size_t n = map->bytes < 512 ? map->bytes : 512;
    for (size_t i = 0; i < n; i++)
        if (map->data[i] < 0x20 && !strchr("\t\r\n", map->data[i])) return false;
    while (n > 0 && n == 512 && map->data[n - 1] >= 0x80) n--; /* a truncated character */
    return text_is_utf8((const char *)map->data, n);
}

/* Formats by their first bytes. */
static const struct {
    const char *begin, *is, *hint;
} kinds[] = {
    {"version https://git-lfs", N_("is a git-lfs pointer, not the file itself"),
     N_("run 'git lfs pull' in its repository, or download the file itself")},
    {"/annex/objects/", N_("is a git-annex pointer, not the file itself"),
     N_("run 'git annex get' in its repository, or download the file itself")},
    {"<", N_("is a web page (HTML or XML), not a checkpoint"),
     N_("the server sent an error page: download the file again")},
    {"\x1f\x8b", N_("is a gzip archive, expected a checkpoint"), N_("unpack it first")},
    {"\x28\xb5\x2f\xfd", N_("is a zstd archive, expected a checkpoint"), N_("unpack it first")},
    {"BZh", N_("is a bzip2 archive, expected a checkpoint"), N_("unpack it first")},
    {"\xfd\x37zXZ", N_("is an xz archive, expected a checkpoint"), N_("unpack it first")},
    {"\x04\x22\x4d\x18", N_("is an lz4 archive, expected a checkpoint"), N_("unpack it first")},
    {"7z\xbc\xaf", N_("is a 7-Zip archive, expected a checkpoint"), N_("unpack it first")},
    {"Rar!", N_("is a RAR archive, expected a checkpoint"), N_("unpack it first")},
    {"PK", N_("is a damaged or empty zip, expected a checkpoint"), N_("get the file again")},
    {"\x93NUMPY", N_("is a NumPy array, expected a checkpoint"),
     N_("save it with torch.save or as safetensors")},
    {"{", N_("is JSON without a weight_map, expected a checkpoint"),
     N_("name the weight file itself, the directory, or the index of the shards (*.index.json)")},
    {"\x89HDF", N_("is an HDF5 file, expected a checkpoint"),
     N_("save it with torch.save or as safetensors")},
    {"GGUF", N_("is a GGUF file, expected a checkpoint"),
     N_("name the PyTorch or safetensors file it was made from")},
    {"lmgg", N_("is a GGML file, expected a checkpoint"),
     N_("name the PyTorch or safetensors file it was made from")},
    {"tjgg", N_("is a GGML file, expected a checkpoint"),
     N_("name the PyTorch or safetensors file it was made from")},
    {"fmgg", N_("is a GGML file, expected a checkpoint"),
     N_("name the PyTorch or safetensors file it was made from")},
    {"(dp", N_("is a pickle of protocol 0, which torch.save never writes"),
     N_("save it with torch.save or as safetensors")},
    {"L1195470371460388013",
     N_("is a file of torch.save with pickle protocol 0 or 1, from before PyTorch 1.6"),
     "torch.save(torch.load(FILE), ...)"},
    {"}q", N_("is a pickle of protocol 1, not a file of torch.save"),
     N_("save it with torch.save or as safetensors")},
    {"ccollections\n", N_("is a pickle of protocol 0, which torch.save never writes"),
     N_("save it with torch.save or as safetensors")},
};

int weights_refuse_foreign(const struct file_map *map, struct error *err)
{
    static const char names[] = N_("name a file written by torch.save, or a safetensors file"),
                      again[] = N_("get the file again");
    if (map->bytes == 0)
        return error_set(err, EXIT_INTEGRITY, again, "is empty, expected a PyTorch or safetensors file");
    size_t zeros = run_of(map, "", 1), blank = run_of(map, " \t\r\n\xef\xbb\xbf", 7);
    struct file_map text = {map->data + blank, map->bytes - blank};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (begins_with(kinds[i].begin[0] == '<' ? &text : map, kinds[i].begin))
            return error_set(err, EXIT_INTEGRITY, kinds[i].hint, "%s", kinds[i].is);
    if (map->bytes > 262 && memcmp(map->data + 257, "ustar", 5) == 0)
        return error_set(err, EXIT_INTEGRITY, "unpack it and name the checkpoint inside",
                         "is a tar archive, expected a checkpoint");
    if (zeros == map->bytes || zeros >= 512)
        return error_set(err, EXIT_INTEGRITY, again,
                         "begins with %zu bytes of zeros of %zu: the download may be incomplete", zeros,
                         map->bytes);
    const char *is = other_format(map);
    if (is)
        return error_set(err, EXIT_INTEGRITY,
                         "convert it to PyTorch or safetensors with the library that wrote it",
                         "%s, expected a checkpoint", is);
    if (is_text(map))
        return error_set(err, EXIT_INTEGRITY,
                         "a server may have sent a message instead of the file: download it again",
                         "is text (%s), not a checkpoint", quote((const char *)map->data, map->bytes));
    uint8_t first[4] = {0};
    memcpy(first, map->data, map->bytes < 4 ? map->bytes : 4);
    return error_set(err, EXIT_INTEGRITY, names,
                     "is neither a PyTorch nor a safetensors file: %zu bytes beginning %02x %02x %02x %02x",
                     map->bytes, first[0], first[1], first[2], first[3]);
}
