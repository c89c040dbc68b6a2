/* Tar archives: see tar.h. Layout of a header: POSIX.1-2017, pax, "ustar Interchange Format"; long names
 * and large sizes like GNU tar. libarchive does not report the offset of a member's bytes, which is the
 * purpose here. */
#include "core/data/tar.h"
#include "core/base/memory.h"
#include "core/base/retry.h"
#include "core/data/unpacked.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 512, EXTENDED_BYTES = 1 << 20 };

struct header {
    uint8_t name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100], magic[6],
        version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");

/* Parses octal digits, or eight bytes after a first one of 0x80; -1: neither. */
static int64_t number(const uint8_t *field, size_t bytes)
{
    int64_t value = 0;
    size_t i = 0;
    if (field[0] == 0x80) {
        for (i = 1; i < bytes; i++) {
            if (value >> 55) return -1;
            value = value << 8 | field[i];
        }
        return value;
    }
    while (i < bytes && field[i] == ' ') i++;
    for (; i < bytes && field[i] >= '0' && field[i] <= '7'; i++) value = value << 3 | (field[i] - '0');
    return i < bytes && field[i] && field[i] != ' ' ? -1 : value;
}

static bool checksum_fits(const struct header *h)
{
    const uint8_t *p = (const uint8_t *)h;
    size_t at = offsetof(struct header, checksum);
    int64_t sum = 0;
    for (size_t i = 0; i < BLOCK; i++) sum += i >= at && i < at + sizeof h->checksum ? ' ' : p[i];
    return sum == number(h->checksum, sizeof h->checksum);
}

static bool is_zero(const struct header *h)
{
    const uint8_t *p = (const uint8_t *)h;
    size_t i = 0;
    while (i < BLOCK && p[i] == 0) i++;
    return i == BLOCK;
}

/* Fields from extension headers that precede a member's header. */
struct extension {
    char *name;   /* NULL: none */
    int64_t size; /* -1: none */
};

/* Parses records "LENGTH KEY=VALUE\n". */
static bool read_pax(struct extension *x, char *text, int64_t bytes)
{
    for (int64_t at = 0; at < bytes;) {
        char *end, *record = text + at;
        long length = strtol(record, &end, 10);
        if (length < 5 || length > bytes - at || *end != ' ' || record[length - 1] != '\n') return false;
        record[length - 1] = 0;
        if (strncmp(end + 1, "path=", 5) == 0) {
            free(x->name);
            x->name = xstrdup(end + 6);
        }
        if (strncmp(end + 1, "size=", 5) == 0) x->size = strtoll(end + 6, NULL, 10);
        at += length;
    }
    return true;
}

static int extend(struct extension *x, const char *path, char type, int64_t at, int64_t size,
                  struct error *err)
{
    char *text;
    if (size > EXTENDED_BYTES) return EXIT_INTEGRITY;
    int code = tar_read(path, at, size, &text, err);
    if (code) return code;
    if (type == 'x' && !read_pax(x, text, size)) code = EXIT_INTEGRITY;
    if (type == 'L') {
        free(x->name);
        x->name = xstrdup(text);
    }
    free(text);
    return code;
}

static char *own_name(const struct header *h)
{
    int prefix = memcmp(h->magic, "ustar", 6) == 0 ? (int)strnlen((const char *)h->prefix, 155) : 0;
    return xasprintf("%.*s%s%.100s", prefix, (const char *)h->prefix, prefix ? "/" : "",
                     (const char *)h->name);
}

int tar_list(const char *path, void (*take)(void *context, const char *name, int64_t offset, int64_t bytes),
             void *context, struct error *err)
{
    struct stat st = {0};
    struct header h;
    struct extension x = {NULL, -1};
    int fd, code = unpacked_open(path, &fd, err);
    if (code) return code;
    if (fstat(fd, &st) != 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot read the archive");
    int64_t at = 0, left = st.st_size;
    bool ended = false; /* by a block of zeros */
    for (; !code && left >= BLOCK; left = st.st_size - at) {
        ssize_t n = retry_read(fd, &h, BLOCK, at);
        if (n < 0) code = error_errno(err, EXIT_FAILED, NULL, "cannot read the archive");
        ended = n == BLOCK && is_zero(&h);
        if (n < 0 || ended) break;
        int64_t size = n == BLOCK && checksum_fits(&h) ? number(h.size, sizeof h.size) : -1;
        bool regular = h.type == '0' || h.type == 0 || h.type == '7';
        if (regular && x.size >= 0 && size >= 0) size = x.size;
        if (size < 0 || size > left - BLOCK || h.type == 'S') {
            code = EXIT_INTEGRITY;
            break;
        }
        if (h.type == 'x' || h.type == 'L') code = extend(&x, path, (char)h.type, at + BLOCK, size, err);
        else {
            char *name = x.name ? x.name : own_name(&h);
            if (regular) take(context, name, at + BLOCK, size);
            free(name);
            x = (struct extension){NULL, -1};
        }
        at += BLOCK + (size + BLOCK - 1) / BLOCK * BLOCK;
    }
    if (!code && !ended) code = EXIT_INTEGRITY; /* without the end marker, members may be missing */
    if (code == EXIT_INTEGRITY)
        error_set(err, code, "it may be compressed or truncated; data.exclude skips it",
                  "not a readable tar archive: invalid header at byte %lld", (long long)at);
    free(x.name);
    close(fd);
    return code ? error_at(err, path, 0, 0), code : 0;
}

int tar_read(const char *path, int64_t offset, int64_t bytes, char **data, struct error *err)
{
    int fd, code = unpacked_open(path, &fd, err), reason = 0;
    if (code) return code;
    char *buffer = malloc((size_t)bytes + 1);
    if (!buffer) {
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading %lld bytes", (long long)bytes);
        reason = ENOMEM;
    }
    for (int64_t used = 0; !code && used < bytes;) {
        ssize_t n = retry_read(fd, buffer + used, (size_t)(bytes - used), offset + used);
        if (n > 0) used += n;
        else if (n == 0) code = error_set(err, EXIT_FAILED, NULL, "the archive ends inside it");
        else {
            reason = errno;
            code = error_errno(err, EXIT_FAILED, NULL, "cannot read");
        }
    }
    close(fd);
    if (code) free(buffer);
    else {
        buffer[bytes] = 0;
        *data = buffer;
    }
    errno = reason;
    return code;
}
