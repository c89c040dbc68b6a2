/* Decompression: see inflate.h. gzip uses zlib directly, because libarchive's gzip filter checks neither
 * CRC nor length; zstd and xz use libarchive's "raw" format. A thread decompresses a few blocks ahead of
 * the reader, in parallel with writing files. */
#include "fetch/inflate.h"
#include "core/base/retry.h"
#include "fetch/libarchive.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK = 256 << 10, BLOCKS = 8 };

enum method { PLAIN, GZIP, LIBARCHIVE };

struct block {
    uint8_t *data;
    ssize_t bytes;    /* 0: end, -1: error */
    int64_t consumed; /* compressed bytes read when it was filled */
};

struct inflate {
    struct archive_input input;
    struct error *err; /* where inflate_open, then the thread, sets errors */
    struct error problem;
    enum method method;
    int64_t at; /* bytes of the file read */
    z_stream z;
    bool z_ready, member_open, ended;
    struct archive *raw;
    uint8_t *in;
    /* the ring buffer: the thread fills blocks, inflate_read returns them */
    struct block blocks[BLOCKS];
    pthread_t thread;
    bool started, held; /* held: the reader still uses blocks[taken] */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    unsigned filled, taken;
    bool stop;
    int64_t consumed;
};

/* Reads the next bytes of the file to in->in. Returns their number, 0 at the end, -1 on error. */
static ssize_t read_input(struct inflate *in)
{
    int before;
    if (in->started)
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE,
                               &before); /* only here: inflate_close must not wait for a slow server */
    int64_t there = in->input.wait(in->input.context, in->at + 1);
    if (in->started) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (there < 0) {
        error_set(in->err, EXIT_FAILED, NULL, "unpacking was cancelled");
        return -1;
    }
    if (there <= in->at) return 0;
    size_t want = there - in->at < BLOCK ? (size_t)(there - in->at) : BLOCK;
    ssize_t n = retry_read(in->input.fd, in->in, want, in->at);
    if (n < 0) {
        archive_unreadable(&in->input, in->err);
        return -1;
    }
    in->at += n;
    return n;
}

static la_ssize_t raw_read(struct archive *a, void *context, const void **data)
{
    struct inflate *in = context;
    ssize_t n = read_input(in);
    *data = in->in;
    if (n < 0) libarchive.set_error(a, EIO, "read");
    return n;
}

static int raw_error(struct inflate *in)
{
    const char *text = libarchive.error_string(in->raw);
    bool memory = libarchive.error_number(in->raw) == ENOMEM;
    if (!in->err || !in->err->what[0])
        error_set(in->err, memory ? EXIT_HOST_MEMORY : EXIT_INTEGRITY,
                  memory ? N_("close other programs") : NULL,
                  memory ? N_("out of memory: %s") : N_("the compressed data is damaged: %s"),
                  text ? text : _("unknown reason"));
    return -1;
}

/* Begins to read a file of zstd or xz. */
static int raw_open(struct inflate *in, bool zstd, struct error *err)
{
    int code = libarchive_load(err);
    if (code) return code;
    struct archive_entry *entry = NULL;
    in->method = LIBARCHIVE;
    in->raw = libarchive.read_new();
    int (*filter)(struct archive * a) =
        zstd ? libarchive.read_support_filter_zstd : libarchive.read_support_filter_xz;
    int able = in->raw && libarchive.read_support_format_raw(in->raw) == ARCHIVE_OK ? filter(in->raw)
                                                                                    : ARCHIVE_FATAL;
    if (able == ARCHIVE_WARN)
        code = error_set(err, EXIT_FAILED,
                         "unpack it with another program, or install a libarchive with support for it",
                         "this libarchive cannot read %s", zstd ? "zstd" : "xz");
    else if (able != ARCHIVE_OK) code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    else if (libarchive.read_set_read_callback(in->raw, raw_read) != ARCHIVE_OK ||
             libarchive.read_set_callback_data(in->raw, in) != ARCHIVE_OK ||
             (entry = libarchive.entry_new2(in->raw)) == NULL)
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    else if (libarchive.read_open1(in->raw) != ARCHIVE_OK ||
             libarchive.read_next_header2(in->raw, entry) != ARCHIVE_OK) {
        raw_error(in);
        code = err && err->code ? err->code : EXIT_INTEGRITY;
    }
    libarchive.entry_free(entry);
    return code;
}

static ssize_t fill(struct inflate *in, uint8_t *out);

static void *inflate_ahead(void *context)
{
    struct inflate *in = context;
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    for (bool more = true; more;) {
        pthread_mutex_lock(&in->mutex);
        while (!in->stop && in->filled - in->taken == BLOCKS) pthread_cond_wait(&in->changed, &in->mutex);
        bool stop = in->stop;
        pthread_mutex_unlock(&in->mutex);
        if (stop) break;
        struct block *b = &in->blocks[in->filled % BLOCKS];
        b->bytes = fill(in, b->data);
        b->consumed = in->at;
        more = b->bytes > 0;
        pthread_mutex_lock(&in->mutex);
        in->filled++;
        pthread_cond_signal(&in->changed);
        pthread_mutex_unlock(&in->mutex);
    }
    return NULL;
}

int inflate_open(struct inflate **out, const struct archive_input *input, struct error *err)
{
    struct inflate *in = calloc(1, sizeof *in);
    uint8_t head[6] = {0};
    bool memory = in && (in->in = malloc(BLOCK)) != NULL;
    for (int i = 0; memory && i < BLOCKS; i++) memory = (in->blocks[i].data = malloc(BLOCK)) != NULL;
    if (!memory) {
        inflate_close(in);
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
    }
    pthread_mutex_init(&in->mutex, NULL);
    pthread_cond_init(&in->changed, NULL);
    in->input = *input;
    in->err = err;
    int64_t there = input->wait(input->context, (int64_t)sizeof head);
    ssize_t n = there > 0 ? retry_read(input->fd, head, sizeof head, 0) : 0;
    int code = 0;
    if (there < 0) code = error_set(err, EXIT_FAILED, NULL, "unpacking was cancelled");
    else if (n < 0) code = archive_unreadable(input, err);
    else if (n == 0) code = error_set(err, EXIT_INTEGRITY, NULL, "the archive is empty (0 bytes)");
    if (!code && head[0] == 0x1f && head[1] == 0x8b) {
        in->method = GZIP;
        if (inflateInit2(&in->z, 15 + 16) != Z_OK)
            code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory");
        in->z_ready = !code;
    } else if (!code && (memcmp(head, "\x28\xb5\x2f\xfd", 4) == 0 || memcmp(head,
                                                                            "\xfd"
                                                                            "7zXZ",
                                                                            6) == 0)) {
        code = raw_open(in, head[0] == 0x28, err);
    }
    if (!code) {
        in->err = &in->problem;
        in->started = true; /* before the thread reads it */
        errno = pthread_create(&in->thread, NULL, inflate_ahead, in);
        if (errno) {
            in->started = false;
            code = error_errno(err, EXIT_FAILED, NULL, "cannot start a thread");
        }
    }
    if (code) {
        inflate_close(in);
        return code;
    }
    *out = in;
    return 0;
}

/* Decompresses consecutive gzip members. Zeros after the last one are padding (tape blocks); other data is
 * damage. */
static ssize_t gzip_read(struct inflate *in, uint8_t *out)
{
    in->z.next_out = out;
    in->z.avail_out = BLOCK;
    while (in->z.avail_out == BLOCK) {
        if (in->z.avail_in == 0) {
            ssize_t n = read_input(in);
            if (n < 0) return -1;
            if (n == 0) {
                if (!in->member_open && in->at > 0) return 0;
                error_set(in->err, EXIT_INTEGRITY, NULL, "the gzip data ends too early, at byte %lld",
                          (long long)in->at);
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
            error_set(in->err, EXIT_INTEGRITY, NULL, "the gzip data is damaged near byte %lld: %s",
                      (long long)(in->at - in->z.avail_in), in->z.msg ? in->z.msg : "checksum");
            return -1;
        }
    }
    return (ssize_t)(BLOCK - in->z.avail_out);
}

/* Returns up to BLOCK decompressed bytes, 0 at the end, -1 on error. */
static ssize_t fill(struct inflate *in, uint8_t *out)
{
    if (in->method == GZIP) return gzip_read(in, out);
    if (in->method == PLAIN) {
        ssize_t n = read_input(in);
        if (n > 0) memcpy(out, in->in, (size_t)n);
        return n;
    }
    la_ssize_t n = libarchive.read_data(in->raw, out, BLOCK);
    return n < 0 ? raw_error(in) : (ssize_t)n;
}

ssize_t inflate_read(struct inflate *in, const void **data, struct error *err)
{
    pthread_mutex_lock(&in->mutex);
    if (in->held) {
        in->taken++;
        pthread_cond_signal(&in->changed);
    }
    while (in->filled == in->taken) pthread_cond_wait(&in->changed, &in->mutex);
    pthread_mutex_unlock(&in->mutex);
    const struct block *b = &in->blocks[in->taken % BLOCKS];
    in->held = b->bytes > 0; /* end and error are returned again */
    in->consumed = b->consumed;
    *data = b->data;
    if (b->bytes < 0 && err) *err = in->problem;
    return b->bytes;
}

int64_t inflate_consumed(const struct inflate *in) { return in->consumed; }

void inflate_close(struct inflate *in)
{
    if (!in) return;
    if (in->started) {
        pthread_mutex_lock(&in->mutex);
        in->stop = true;
        pthread_cond_signal(&in->changed);
        pthread_mutex_unlock(&in->mutex);
        pthread_cancel(in->thread);
        pthread_join(in->thread, NULL);
    }
    if (in->z_ready) inflateEnd(&in->z);
    if (in->raw) libarchive.read_free(in->raw);
    for (int i = 0; i < BLOCKS; i++) free(in->blocks[i].data);
    free(in->in);
    free(in);
}
