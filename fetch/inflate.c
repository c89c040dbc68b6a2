/* Decompression: see inflate.h. gzip through zlib itself, because libarchive's gzip filter checks neither CRC nor length;
 * zstd and xz through libarchive's "raw" format. */
#include "fetch/inflate.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK = 256 << 10 };

enum method { PLAIN, GZIP, LIBARCHIVE };

struct inflate {
    struct archive_input input;
    struct error *err;   /* of the call in progress, for libarchive's callback */
    enum method method;
    int64_t at;          /* bytes of the file taken */
    z_stream z;
    bool z_ready, member_open, ended;
    struct archive *raw;
    uint8_t *in, *out;
};

/* The next bytes of the file into in->in: count, 0 at the end, -1 on error. */
static ssize_t take(struct inflate *in)
{
    int64_t there = in->input.wait(in->input.context, in->at + 1);
    if (there < 0) {
        error_set(in->err, EXIT_FAILED, NULL, "unpacking was given up");
        return -1;
    }
    if (there <= in->at) return 0;
    size_t want = there - in->at < BLOCK ? (size_t)(there - in->at) : BLOCK;
    ssize_t n;
    do n = pread(in->input.fd, in->in, want, in->at);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        error_errno(in->err, EXIT_FAILED, NULL, "cannot read the archive");
        return -1;
    }
    in->at += n;
    return n;
}

static la_ssize_t raw_read(struct archive *a, void *context, const void **data)
{
    struct inflate *in = context;
    ssize_t n = take(in);
    *data = in->in;
    if (n < 0) archive_set_error(a, EIO, "read");
    return n;
}

static int raw_error(struct inflate *in)
{
    const char *text = archive_error_string(in->raw);
    if (!in->err || !in->err->what[0]) error_set(in->err, EXIT_INTEGRITY, NULL, "the compressed data is damaged: %s", text ? text : "unknown reason");
    return -1;
}

int inflate_open(struct inflate **out, const struct archive_input *input, struct error *err)
{
    struct inflate *in = calloc(1, sizeof *in);
    uint8_t head[6] = {0};
    if (!in || !(in->in = malloc(BLOCK)) || !(in->out = malloc(BLOCK))) {
        inflate_close(in);
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    }
    in->input = *input;
    in->err = err;
    int64_t there = input->wait(input->context, (int64_t)sizeof head);
    ssize_t n = there > 0 ? pread(input->fd, head, sizeof head, 0) : 0;
    int code = 0;
    if (there < 0) code = error_set(err, EXIT_FAILED, NULL, "unpacking was given up");
    else if (n <= 0) code = error_set(err, EXIT_INTEGRITY, NULL, "the archive is empty (0 bytes)");
    if (!code && head[0] == 0x1f && head[1] == 0x8b) {
        in->method = GZIP;
        if (inflateInit2(&in->z, 15 + 16) != Z_OK) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
        in->z_ready = !code;
    } else if (!code && (memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0 || memcmp(head, "\xfd" "7zXZ", 6) == 0)) {
        struct archive_entry *entry;
        in->method = LIBARCHIVE;
        in->raw = archive_read_new();
        if (!in->raw || archive_read_support_format_raw(in->raw) != ARCHIVE_OK ||
            (head[0] == 0x28 ? archive_read_support_filter_zstd(in->raw) : archive_read_support_filter_xz(in->raw)) != ARCHIVE_OK)
            code = error_set(err, EXIT_FAILED, NULL, "this libarchive cannot read %s", head[0] == 0x28 ? "zstd" : "xz");
        else if (archive_read_open(in->raw, in, NULL, raw_read, NULL) != ARCHIVE_OK || archive_read_next_header(in->raw, &entry) != ARCHIVE_OK) {
            raw_error(in);
            code = err && err->code ? err->code : EXIT_INTEGRITY;
        }
    }
    if (code) {
        inflate_close(in);
        return code;
    }
    *out = in;
    return 0;
}

/* gzip: members one behind the other; zeros behind the last are padding (tape blocking), anything else is damage. */
static ssize_t gzip_read(struct inflate *in)
{
    in->z.next_out = in->out;
    in->z.avail_out = BLOCK;
    while (in->z.avail_out == BLOCK) {
        if (in->z.avail_in == 0) {
            ssize_t n = take(in);
            if (n < 0) return -1;
            if (n == 0) {
                if (!in->member_open && in->at > 0) return 0;
                error_set(in->err, EXIT_INTEGRITY, NULL, "the gzip data ends too early, at byte %lld", (long long)in->at);
                return -1;
            }
            in->z.next_in = in->in;
            in->z.avail_in = (uInt)n;
        }
        if (in->ended) {
            while (in->z.avail_in && *in->z.next_in == 0) in->z.next_in++, in->z.avail_in--;
            if (in->z.avail_in == 0) continue;
            inflateReset(&in->z);
            in->ended = false;
        }
        in->member_open = true;
        int z = inflate(&in->z, Z_NO_FLUSH);
        if (z == Z_STREAM_END) {
            in->ended = true;
            in->member_open = false;
        } else if (z != Z_OK && z != Z_BUF_ERROR) {
            error_set(in->err, EXIT_INTEGRITY, NULL, "the gzip data is damaged near byte %lld: %s", (long long)(in->at - in->z.avail_in), in->z.msg ? in->z.msg : "checksum");
            return -1;
        }
    }
    return (ssize_t)(BLOCK - in->z.avail_out);
}

ssize_t inflate_read(struct inflate *in, const void **data, struct error *err)
{
    in->err = err;
    if (in->method == PLAIN) {
        *data = in->in;
        return take(in);
    }
    *data = in->out;
    if (in->method == GZIP) return gzip_read(in);
    la_ssize_t n = archive_read_data(in->raw, in->out, BLOCK);
    return n < 0 ? raw_error(in) : (ssize_t)n;
}

int64_t inflate_consumed(const struct inflate *in) { return in->at; }

void inflate_close(struct inflate *in)
{
    if (!in) return;
    if (in->z_ready) inflateEnd(&in->z);
    if (in->raw) archive_read_free(in->raw);
    free(in->in);
    free(in->out);
    free(in);
}
