/* Reads the files of a checkpoint, and verifies their blocks: see checkpoint_internal.h. */
#include "core/base/crc32c.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/progress.h"
#include "core/base/retry.h"
#include "core/run/checkpoint_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { READ_BYTES = 1 << 22 }; /* a multiple of CHECKPOINT_BLOCK */

int checkpoint_read_at(int fd, void *dst, size_t bytes, int64_t offset, size_t *got, const char *path,
                       struct error *err)
{
    *got = 0;
    while (*got < bytes) {
        ssize_t n = retry_read(fd, (char *)dst + *got, bytes - *got, offset + (int64_t)*got);
        if (n < 0) {
            int code = error_errno(err, EXIT_FAILED, NULL, "cannot read %s", path);
            error_at(err, path, 0, 0);
            return code;
        }
        if (n == 0) break;
        *got += (size_t)n;
    }
    return 0;
}

int checkpoint_open_part(int at, const char *path, int *fd, struct error *err)
{
    struct stat st;
    int code = 0;
    const char *name = at == AT_FDCWD ? path : path_basename(path);
    *fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0 && errno == ELOOP) code = error_set(err, EXIT_INTEGRITY, NULL, "is a symbolic link");
    else if (*fd < 0 || fstat(*fd, &st) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot open %s", path);
    else if (!S_ISREG(st.st_mode)) code = error_set(err, EXIT_INTEGRITY, NULL, "is not a regular file");
    if (code) error_at(err, path, 0, 0);
    return code;
}

static void add_blocks(struct checkpoint_blocks *blocks, const char *p, size_t bytes)
{
    blocks->crcs =
        xrealloc(blocks->crcs, (blocks->count + bytes / CHECKPOINT_BLOCK + 1) * sizeof *blocks->crcs);
    for (size_t at = 0; at < bytes; at += CHECKPOINT_BLOCK)
        blocks->crcs[blocks->count++] =
            crc32c(0, p + at, bytes - at < CHECKPOINT_BLOCK ? bytes - at : CHECKPOINT_BLOCK);
}

/* Reads instead of mapping the file: a disk failure is then an error, not a signal. */
int checkpoint_checksum(int fd, const char *path, struct checkpoint_written *found,
                        struct checkpoint_blocks *blocks, struct error *err)
{
    size_t got = READ_BYTES;
    char *buffer = malloc(READ_BYTES);
    int code = buffer ? 0 : error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %s", path);
    *found = (struct checkpoint_written){0};
    while (!code && got == READ_BYTES) {
        code = checkpoint_read_at(fd, buffer, READ_BYTES, found->bytes, &got, path, err);
        if (!code) found->crc = crc32c(found->crc, buffer, got);
        if (!code && blocks) add_blocks(blocks, buffer, got);
        found->bytes += (int64_t)got;
        progress_mark();
    }
    free(buffer);
    return code;
}

bool checkpoint_reader_open(struct checkpoint_reader *r, const struct checkpoint *c, const char *name, int fd)
{
    const json_t *entry = json_object_get(json_object_get(c->manifest, "files"), name),
                 *crcs = json_object_get(entry, "blocks_crc32c");
    int64_t bytes = json_integer_value(json_object_get(entry, "bytes")),
            count = (bytes + CHECKPOINT_BLOCK - 1) / CHECKPOINT_BLOCK;
    if (json_integer_value(json_object_get(entry, "block_bytes")) != CHECKPOINT_BLOCK ||
        json_string_length(crcs) != 8 * (size_t)count)
        return false;
    *r = (struct checkpoint_reader){.name = name,
                                    .crcs = json_string_value(crcs),
                                    .path = path_join(c->directory, name),
                                    .block = xmalloc(CHECKPOINT_BLOCK),
                                    .fd = fd,
                                    .bytes = bytes,
                                    .count = count,
                                    .at = -1};
    return true;
}

void checkpoint_reader_close(struct checkpoint_reader *r)
{
    free(r->path);
    free(r->block);
}

int checkpoint_reader_block(struct checkpoint_reader *r, int64_t index, struct error *err)
{
    char digits[9] = "", *end;
    size_t got = 0, wanted = CHECKPOINT_BLOCK;
    int64_t offset = index * CHECKPOINT_BLOCK;
    if (index == r->at) return 0;
    if (r->bytes - offset < CHECKPOINT_BLOCK) wanted = (size_t)(r->bytes - offset);
    r->at = -1;
    int code = checkpoint_read_at(r->fd, r->block, wanted, offset, &got, r->path, err);
    if (code) return code;
    memcpy(digits, r->crcs + 8 * index, 8);
    if (got < wanted || strtoul(digits, &end, 16) != crc32c(0, r->block, got) || *end) {
        code = error_set(err, EXIT_INTEGRITY, NULL,
                         "%s does not agree with the manifest's checksum of its bytes from %lld on", r->name,
                         (long long)offset);
        return error_at(err, r->path, 0, 0), code;
    }
    r->at = index;
    progress_mark();
    return 0;
}

int checkpoint_reader_span(struct checkpoint_reader *r, int64_t offset, void *dst, size_t bytes,
                           struct error *err)
{
    char *to = dst;
    int code = 0;
    if (offset < 0 || offset > r->bytes || bytes > (uint64_t)(r->bytes - offset)) {
        code = error_set(err, EXIT_INTEGRITY, NULL, "%s is truncated", r->name);
        error_at(err, r->path, 0, 0);
    }
    while (bytes && !code) {
        int64_t within = offset % CHECKPOINT_BLOCK;
        size_t n = (size_t)(CHECKPOINT_BLOCK - within) < bytes ? (size_t)(CHECKPOINT_BLOCK - within) : bytes;
        code = checkpoint_reader_block(r, offset / CHECKPOINT_BLOCK, err);
        if (!code) memcpy(to, r->block + within, n);
        to += n;
        offset += (int64_t)n;
        bytes -= n;
    }
    return code;
}
