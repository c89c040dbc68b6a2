/* Checks a zip: see zip_check.h. Field offsets: APPNOTE.TXT 4.3.7 (local header), 4.3.12 (central
 * directory), 4.3.14-16 (end records). */
#include "fetch/zip_check.h"
#include "core/base/retry.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CENTRAL_MAX = 256 << 20, TAIL = 65535 + 22 };

static uint32_t le(const uint8_t *p, int bytes)
{
    uint32_t v = 0;
    for (int i = bytes; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static uint64_t le64(const uint8_t *p) { return le(p, 4) | (uint64_t)le(p + 4, 4) << 32; }

struct zip {
    int fd, reason; /* errno of a failed read; 0: none */
};

static bool read_at(struct zip *zip, void *data, size_t bytes, int64_t at)
{
    uint8_t *p = data;
    while (bytes) {
        ssize_t n = retry_read(zip->fd, p, bytes, at);
        if (n < 0) zip->reason = errno;
        if (n <= 0) return false;
        p += n;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static int bad(struct error *err, const char *what, int64_t at)
{
    return error_set(err, EXIT_INTEGRITY, NULL, "the zip is refused: %s, at byte %lld", what, (long long)at);
}

/* Returns the 8-byte value of a saturated field from the zip64 extra record, which has values only for
 * saturated fields, in order. */
static bool zip64_offset(const uint8_t *extra, size_t bytes, int skip, uint64_t *offset)
{
    for (size_t at = 0; at + 4 <= bytes;) {
        size_t n = le(extra + at + 2, 2);
        if (n > bytes - at - 4) return false;
        if (le(extra + at, 2) == 1) {
            if ((size_t)skip * 8 + 8 > n) return false;
            *offset = le64(extra + at + 4 + skip * 8);
            return true;
        }
        at += 4 + n;
    }
    return false;
}

static int check(struct zip *zip, int64_t bytes, struct error *err)
{
    size_t tail = bytes < TAIL ? (size_t)bytes : TAIL;
    uint8_t *buffer = malloc(tail + 1), *central = NULL, *name = NULL;
    int code = 0;
    int64_t end = -1;
    if (!buffer) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    if (!read_at(zip, buffer, tail, bytes - (int64_t)tail)) {
        free(buffer);
        return bad(err, "unreadable", 0);
    }
    for (size_t i = tail >= 22 ? tail - 22 + 1 : 0; i-- > 0 && end < 0;)
        if (memcmp(buffer + i, "PK\5\6", 4) == 0 && i + 22 + le(buffer + i + 20, 2) <= tail) end = (int64_t)i;
    if (end < 0) {
        free(buffer);
        return bad(err, "no end record: the file is truncated", bytes);
    }
    uint64_t count = le(buffer + end + 10, 2), size = le(buffer + end + 12, 4),
             offset = le(buffer + end + 16, 4);
    uint8_t locator[20], record[56];
    int64_t end_at = bytes - (int64_t)tail + end;
    if ((count == 0xffff || size == 0xffffffff || offset == 0xffffffff) && end_at >= 20 &&
        read_at(zip, locator, 20, end_at - 20) && memcmp(locator, "PK\6\7", 4) == 0) {
        uint64_t at = le64(locator + 8);
        if (at > (uint64_t)bytes || !read_at(zip, record, 56, (int64_t)at) ||
            memcmp(record, "PK\6\6", 4) != 0)
            code = bad(err, "bad zip64 end record", (int64_t)at);
        count = le64(record + 32);
        size = le64(record + 40);
        offset = le64(record + 48);
    }
    free(buffer);
    if (!code && (size > CENTRAL_MAX || offset > (uint64_t)bytes || size > (uint64_t)bytes - offset))
        code = bad(err, "the directory is outside the file", end_at);
    if (!code && (!(central = malloc(size ? size : 1)) || !(name = malloc(65536))))
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    if (!code && size && !read_at(zip, central, size, (int64_t)offset))
        code = bad(err, "unreadable directory", (int64_t)offset);
    uint64_t at = 0, seen = 0;
    for (; !code && at + 46 <= size && memcmp(central + at, "PK\1\2", 4) == 0; seen++) {
        const uint8_t *c = central + at;
        size_t name_bytes = le(c + 28, 2), extra_bytes = le(c + 30, 2), comment_bytes = le(c + 32, 2);
        uint64_t local = le(c + 42, 4);
        int64_t where = (int64_t)(offset + at);
        if (46 + name_bytes + extra_bytes + comment_bytes > size - at) {
            code = bad(err, "a directory entry is truncated", where);
            break;
        }
        int skip = (le(c + 24, 4) == 0xffffffff) + (le(c + 20, 4) == 0xffffffff);
        uint32_t method = le(c + 10, 2);
        uint8_t header[30];
        if (local == 0xffffffff && !zip64_offset(c + 46 + name_bytes, extra_bytes, skip, &local))
            code = bad(err, "no zip64 offset", where);
        else if (le(c + 8, 2) & 0x2041) code = bad(err, "an entry is encrypted", where);
        else if (method != 0 && method != 8)
            code = bad(err, "an entry is neither stored nor deflated", where);
        else if (memchr(c + 46, 0, name_bytes)) code = bad(err, "NUL in a name", where);
        else if (local > (uint64_t)bytes - 30 || !read_at(zip, header, 30, (int64_t)local) ||
                 memcmp(header, "PK\3\4", 4) != 0)
            code = bad(err, "invalid offset of an entry", where);
        else if (le(header + 26, 2) != name_bytes || !read_at(zip, name, name_bytes, (int64_t)local + 30) ||
                 memcmp(name, c + 46, name_bytes) != 0)
            code = bad(err, "the two names of an entry differ", (int64_t)local);
        at += 46 + name_bytes + extra_bytes + comment_bytes;
    }
    if (!code && (at != size || seen != count))
        code = bad(err, "the directory differs from the end record", (int64_t)(offset + at));
    free(central);
    free(name);
    return code;
}

int zip_check(const struct archive_input *input, int64_t bytes, struct error *err)
{
    struct zip zip = {input->fd, 0};
    int code = check(&zip, bytes, err);
    if (!zip.reason) return code;
    errno = zip.reason; /* a read error, not a damaged zip */
    return archive_unreadable(input, err);
}
