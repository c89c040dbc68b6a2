/* Kinds of files by their first bytes: see file_kind.h. */
#include "core/base/file_kind.h"
#include "core/base/translate.h"

#include <string.h>

#define UNPACK_TEXT N_("write its texts to a .jsonl file: {\"text\": \"...\"} in each line")
#define CONVERT_PARQUET                                                                                      \
    N_("convert it: python3 -c \"import pandas, pyarrow; pandas.read_parquet('FILE')"                        \
       ".to_json('FILE.jsonl', orient='records', lines=True)\"")
#define CONVERT_FEATHER                                                                                      \
    N_("convert it: python3 -c \"import pandas, pyarrow; pandas.read_feather('FILE')"                        \
       ".to_json('FILE.jsonl', orient='records', lines=True)\"")
#define CONVERT_ARROW                                                                                        \
    N_("convert it: python3 -c \"import pandas, pyarrow; pyarrow.ipc.open_stream('FILE').read_pandas()"      \
       ".to_json('FILE.jsonl', orient='records', lines=True)\"")

static const struct {
    size_t at, length;
    const char *magic;
    struct file_kind kind;
} rows[] = {
    {0, 2, "\x1f\x8b", {N_("compressed by gzip"), N_("unpack it first: gunzip, or tar -xf"), true}},
    {0, 4, "\x28\xb5\x2f\xfd", {N_("compressed by zstd"), N_("unpack it first: unzstd"), true}},
    {0, 5, "\xfd\x37zXZ", {N_("compressed by xz"), N_("unpack it first: unxz, or tar -xf"), true}},
    {0, 3, "BZh", {N_("compressed by bzip2"), N_("unpack it first: bunzip2, or tar -xf"), false}},
    {0, 4, "PK\x03\x04", {N_("a zip archive"), N_("unpack it first: unzip"), false}},
    {257, 5, "ustar", {N_("a tar archive"), N_("unpack it first: tar -xf"), false}},
    {0, 4, "PAR1", {N_("a Parquet file"), CONVERT_PARQUET, false}},
    {0, 6, "ARROW1", {N_("an Arrow file"), CONVERT_FEATHER, false}},
    {0, 4, "\xff\xff\xff\xff", {N_("an Arrow file"), CONVERT_ARROW, false}},
    {0, 4, "Obj\x01", {N_("an Avro file"), UNPACK_TEXT, false}},
    {0, 15, "SQLite format 3", {N_("an SQLite database"), UNPACK_TEXT, false}},
    {0, 5, "%PDF-", {N_("a PDF document"), N_("convert it to text first: pdftotext"), false}},
    {0, 6, "\x93NUMPY", {N_("a NumPy file"), N_("write its tokens as uint16: numpy's tofile"), false}},
    {0, 8, "\x89HDF\r\n\x1a\n", {N_("an HDF5 file"), NULL, false}},
    {8, 2, "{\"", {N_("a safetensors file: weights"), N_("give it as model.weight"), false}},
    {0, 4, "GGUF", {N_("a GGUF file: weights"), NULL, false}},
    {0,
     8,
     "\x89PNG\r\n\x1a\n",
     {N_("an image"), N_("images need train.objective: distill or classify"), false}},
    {0, 3, "\xff\xd8\xff", {N_("an image"), N_("images need train.objective: distill or classify"), false}},
    {0, 9, "MMIDIDX\0\0", {N_("an index of token files"), N_("name the .bin file next to it"), false}},
    {0,
     4,
     "\x7f"
     "ELF",
     {N_("a program"), NULL, false}},
};

/* A safetensors file begins with the length of its JSON head. */
static bool is_head(const uint8_t *data, size_t bytes)
{
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    return length >= 2 && length <= bytes - 8;
}

const struct file_kind *file_kind(const void *data, size_t bytes, bool certain)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t end = rows[i].at + rows[i].length;
        if (bytes < end || memcmp((const char *)data + rows[i].at, rows[i].magic, rows[i].length) != 0)
            continue;
        if (certain && rows[i].length < 4 && rows[i].at == 0) continue;
        if (rows[i].at != 8 || is_head(data, bytes)) return &rows[i].kind;
    }
    return NULL;
}
