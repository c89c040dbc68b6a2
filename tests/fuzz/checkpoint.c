/* MANIFEST.json of a checkpoint: the first byte says which of its files are damaged (bits 0 and 1:
 * model.safetensors, optimizer.bin), the rest is the manifest. For one reader alone and for three that share
 * it: at least one notices a damaged file, and only written values are returned. */
#include "core/base/log.h"
#include "core/run/checkpoint.h"
#include "tests/fuzz/weights_directory.h"

#include <string.h>

enum { BIG = 300000, RANKS = 3, RECORD = 1000 };
static float values[BIG];
static const struct weights_row rows[] = {
    {.name = "weight", .dtype = DTYPE_F32, .ndim = 2, .shape = {1000, BIG / 1000}, .data = values},
    {.name = "bias", .dtype = DTYPE_F32, .ndim = 1, .shape = {7}, .data = values}};

static int fill(void *context, int64_t index, checkpoint_put *put, void *file, struct error *err)
{
    char part[RECORD / 2];
    (void)context;
    memset(part, (int)index + 1, sizeof part);
    for (int64_t i = index; i < 2; i++)
        if (put(file, part, sizeof part, err)) return err->code;
    return 0;
}

static void damage(const char *name)
{
    char path[128];
    unsigned char byte;
    snprintf(path, sizeof path, "%s/%s", fuzz_directory, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || pread(fd, &byte, 1, 500) != 1) abort();
    byte ^= 1;
    if (pwrite(fd, &byte, 1, 500) != 1) abort();
    close(fd);
}

static void make(void)
{
    struct checkpoint_record records[] = {{RECORD, fill, NULL}, {RECORD / 2, fill, NULL}};
    struct checkpoint_content content = {
        .tensors = rows, .tensor_count = 2, .records = records, .record_count = 2, .writers = 1};
    for (int i = 0; i < BIG; i++) values[i] = (float)i;
    log_level = LOG_QUIET;
    if (checkpoint_save(fuzz_directory, 1, 9, &content, NULL)) abort();
}

static void part(void *context, int64_t index, int64_t *first, int64_t *count)
{
    int64_t r = *(int *)context, all = index ? 7 : BIG;
    *first = all * r / RANKS;
    *count = all * (r + 1) / RANKS - *first;
}

static int take_values(void *context, int64_t index, const float *found, struct error *err)
{
    int64_t first = 0, count = index ? 7 : BIG;
    (void)err;
    if (*(int *)context < RANKS) part(context, index, &first, &count);
    if (memcmp(found + first, values + first, (size_t)count * sizeof *values) != 0) abort();
    return 0;
}

static int take_record(void *context, int64_t index, const void *const *parts, const size_t *bytes,
                       struct error *err)
{
    const unsigned char *p = parts[0];
    (void)context, (void)err;
    if (bytes[0] != (size_t)RECORD / (size_t)(index + 1)) abort();
    for (size_t i = 0; i < bytes[0]; i++)
        if (p[i] != index + 1) abort();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (make_directory()) make();
    if (!size) return 0;
    bool bad_model = data[0] & 1, bad_records = data[0] & 2;
    if (bad_model) damage("ckpt/step-00000001/model.safetensors");
    if (bad_records) damage("ckpt/step-00000001/optimizer.bin");
    put_file("ckpt/step-00000001/MANIFEST.json", data + 1, size - 1);
    int refused = 0;
    for (int r = 0; r <= RANKS; r++) { /* the last alone */
        struct checkpoint c;
        struct error err;
        struct checkpoint_share share = {.index = r, .count = RANKS};
        int code = r < RANKS ? checkpoint_scan(&c, fuzz_directory, 1, &share, &err)
                             : checkpoint_newest(&c, fuzz_directory, false, &err);
        if (r < RANKS && code) refused++;
        bool whole = r == RANKS && !code; /* of a share that is well the rest may not be */
        if (!code && checkpoint_tensors(&c, rows, 2, r < RANKS ? part : NULL, take_values, &r, &err) && whole)
            abort();
        bool read = !code && !bad_records;
        if (read && checkpoint_records(&c, 2, NULL, take_record, NULL, &err) && whole) abort();
        checkpoint_close(&c);
        if (r == RANKS - 1 && !refused && (bad_model || bad_records)) abort();
        if (r == RANKS && !code && (bad_model || bad_records)) abort();
    }
    if (bad_model) damage("ckpt/step-00000001/model.safetensors");
    if (bad_records) damage("ckpt/step-00000001/optimizer.bin");
    return 0;
}
