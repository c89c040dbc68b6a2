/* Reads untrusted archives: see archive.h. */
#include "fetch/archive.h"

#include "core/base/retry.h"
#include "core/base/platform.h"
#include "fetch/inflate.h"
#include "fetch/libarchive.h"
#include "fetch/zip_check.h"

#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, NAME_BYTES = 255, LEVELS = 32, PAX_BYTES = 1 << 20, TAR_BLOCK = 512 };

const struct archive_limits archive_limits_default = {INT64_MAX, 2000000, 50, 1ll << 30};

struct walk {
    const struct archive_input *input;
    struct inflate *inflate;
    struct archive_counts counts;
    struct error *err;
    int64_t zip_at, zip_bytes;
    int zip_reason; /* errno of a failed read; 0: none */
    uint8_t *zip_buffer;
    /* the current pax header: libarchive silently truncates a name at NUL */
    uint8_t block[TAR_BLOCK];
    size_t block_used;
    int64_t pax_left;
    char *pax;
    size_t pax_used;
    bool pax_is_name; /* a GNU long name: the body is the name itself */
    bool bad_name, no_memory;
    /* 64-bit hashes of the names so far */
    uint64_t *seen, seed;
    size_t seen_capacity, seen_count;
};

/* ---- names ---- */

/* Length of the UTF-8 character at p (n bytes left); 0 when it is invalid or a control character. */
static size_t character(const uint8_t *p, size_t n)
{
    if (p[0] < 0x80) return p[0] >= 0x20 && p[0] != 0x7f;
    size_t length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    if (p[0] == 0xc2 && p[1] < 0xa0) return 0; /* C1 */
    return length;
}

/* Normalizes a name: removes "." and empty components. Returns the reason if it is refused, or NULL. */
static const char *clean_path(const char *name, char path[PATH_BYTES + 1])
{
    size_t n = strlen(name), used = 0;
    int levels = 0;
    if (n == 0) return _("empty name");
    if (n > PATH_BYTES) return _("path longer than 4096 bytes");
    if (name[0] == '/') return _("absolute path");
    for (size_t i = 0; i < n;) {
        size_t step = character((const uint8_t *)name + i, n - i);
        if (step == 0) return _("control character or invalid UTF-8 in the name");
        i += step;
    }
    for (const char *p = name; *p;) {
        size_t length = strcspn(p, "/");
        if (length > NAME_BYTES) return _("component longer than 255 bytes");
        if (length == 2 && p[0] == '.' && p[1] == '.') return _("'..' in the path");
        if (length >= 7 && strncmp(p, ".meopt-", 7) == 0) return _("name reserved for meopt");
        if (length && !(length == 1 && p[0] == '.')) {
            if (++levels > LEVELS) return _("more than 32 directory levels");
            if (used) path[used++] = '/';
            memcpy(path + used, p, length);
            used += length;
        }
        p += length;
        if (*p == '/') p++;
    }
    path[used] = 0;
    return NULL;
}

static uint64_t hash_name(uint64_t seed, const char *name)
{
    uint64_t h = seed ^ 0xcbf29ce484222325u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    return (h ^ h >> 32) | 1;
}

/* Returns whether the name is new. Sets no_memory if an allocation fails. */
static bool remember_name(struct walk *w, const char *name)
{
    if (w->seen_count * 2 >= w->seen_capacity) {
        size_t capacity = w->seen_capacity ? w->seen_capacity * 2 : 4096;
        uint64_t *larger = calloc(capacity, sizeof *larger);
        if (!larger) {
            w->no_memory = true;
            return true;
        }
        for (size_t i = 0; i < w->seen_capacity; i++) {
            if (!w->seen[i]) continue;
            size_t at = w->seen[i] & (capacity - 1);
            while (larger[at]) at = (at + 1) & (capacity - 1);
            larger[at] = w->seen[i];
        }
        free(w->seen);
        w->seen = larger;
        w->seen_capacity = capacity;
    }
    uint64_t h = hash_name(w->seed, name);
    size_t at = h & (w->seen_capacity - 1);
    for (; w->seen[at]; at = (at + 1) & (w->seen_capacity - 1))
        if (w->seen[at] == h) return false;
    w->seen[at] = h;
    w->seen_count++;
    return true;
}

/* ---- pax headers and GNU long names ---- */

static void check_pax(struct walk *w)
{
    if (w->pax_is_name) {
        size_t n = strnlen(w->pax, w->pax_used);
        for (; n < w->pax_used; n++)
            if (w->pax[n]) w->bad_name = true;
        return;
    }
    for (size_t at = 0; at < w->pax_used;) {
        size_t length = 0, digits = 0;
        while (at + digits < w->pax_used && w->pax[at + digits] >= '0' && w->pax[at + digits] <= '9' &&
               digits < 8)
            length = length * 10 + (size_t)(w->pax[at + digits++] - '0');
        if (!digits || length <= digits + 1 || length > w->pax_used - at || w->pax[at + digits] != ' ')
            return; /* libarchive refuses it */
        const char *key = w->pax + at + digits + 1, *equals = memchr(key, '=', length - digits - 1);
        if (!equals) return;
        size_t key_bytes = (size_t)(equals - key), value_bytes = (size_t)(w->pax + at + length - 1 - equals);
        bool name = (key_bytes == 4 && memcmp(key, "path", 4) == 0) ||
                    (key_bytes == 8 && memcmp(key, "linkpath", 8) == 0);
        if (name && memchr(equals, 0, value_bytes)) w->bad_name = true;
        at += length;
    }
}

static void tar_block(struct walk *w, const uint8_t *b)
{
    if (w->pax_left > 0) {
        size_t n = w->pax_left < TAR_BLOCK ? (size_t)w->pax_left : TAR_BLOCK;
        memcpy(w->pax + w->pax_used, b, n);
        w->pax_used += n;
        w->pax_left -= (int64_t)n;
        if (w->pax_left == 0) check_pax(w);
        return;
    }
    if (memcmp(b + 257, "ustar", 5) != 0 || !strchr("xgLK", b[156]) || !b[156]) return;
    unsigned sum = 0, stored = 0;
    for (int i = 0; i < TAR_BLOCK; i++) sum += i >= 148 && i < 156 ? ' ' : b[i];
    for (int i = 148; i < 156; i++)
        if (b[i] >= '0' && b[i] <= '7') stored = stored * 8 + (unsigned)(b[i] - '0');
    if (sum != stored) return;
    int64_t size = 0;
    for (int i = 124; i < 136; i++)
        if (b[i] >= '0' && b[i] <= '7') size = size * 8 + (b[i] - '0');
    if (size <= 0 || size > PAX_BYTES) return; /* libarchive refuses it */
    if (!w->pax && !(w->pax = malloc(PAX_BYTES))) {
        w->no_memory = true;
        return;
    }
    w->pax_left = size;
    w->pax_used = 0;
    w->pax_is_name = b[156] == 'L' || b[156] == 'K';
}

static void scan_tar(struct walk *w, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        if (w->block_used == 0 && bytes >= TAR_BLOCK) {
            tar_block(w, data);
            data += TAR_BLOCK;
            bytes -= TAR_BLOCK;
            continue;
        }
        size_t n = TAR_BLOCK - w->block_used < bytes ? TAR_BLOCK - w->block_used : bytes;
        memcpy(w->block + w->block_used, data, n);
        w->block_used += n;
        data += n;
        bytes -= n;
        if (w->block_used == TAR_BLOCK) {
            tar_block(w, w->block);
            w->block_used = 0;
        }
    }
}

/* ---- libarchive's callbacks ---- */

static la_ssize_t tar_read(struct archive *a, void *context, const void **data)
{
    struct walk *w = context;
    ssize_t n = inflate_read(w->inflate, data, w->err);
    if (n < 0) {
        libarchive.set_error(a, EIO, "compressed data");
        return -1;
    }
    scan_tar(w, *data, (size_t)n);
    if (w->no_memory) {
        libarchive.set_error(a, ENOMEM, "for a name");
        return -1;
    }
    w->counts.in = inflate_consumed(w->inflate);
    return n;
}

static la_ssize_t zip_read(struct archive *a, void *context, const void **data)
{
    struct walk *w = context;
    *data = w->zip_buffer;
    ssize_t n = retry_read(w->input->fd, w->zip_buffer, 256 << 10, w->zip_at);
    if (n < 0) libarchive.set_error(a, w->zip_reason = errno, "read");
    else w->zip_at += n;
    if (w->zip_at > w->counts.in) w->counts.in = w->zip_at;
    return n;
}

static la_int64_t zip_seek(struct archive *a, void *context, la_int64_t offset, int whence)
{
    (void)a;
    struct walk *w = context;
    int64_t base = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? w->zip_at : w->zip_bytes;
    if (offset > w->zip_bytes || offset < -w->zip_bytes || base + offset < 0 || base + offset > w->zip_bytes)
        return ARCHIVE_FATAL;
    return w->zip_at = base + offset;
}

/* ---- the walk ---- */

static int archive_error(struct walk *w, struct archive *a)
{
    if (w->err && w->err->what[0]) return w->err->code; /* a more specific error is set */
    int problem = errno;
    const char *text = libarchive.error_string(a);
    char shown[200];
    name_printable(shown, sizeof shown, text ? text : problem == ENOMEM ? strerror(problem) : "damaged");
    if (libarchive.error_number(a) == ENOMEM ||
        (!text && problem == ENOMEM)) /* libarchive does not always report it */
        return error_set(w->err, EXIT_HOST_MEMORY, "close other programs", "out of memory: %s", shown);
    return error_set(w->err, EXIT_INTEGRITY, NULL, "the archive is damaged or not a tar or zip: %s", shown);
}

static int refuse_name(struct walk *w, const char *name, const char *why)
{
    char shown[300];
    name_printable(shown, sizeof shown, name ? name : "");
    return error_set(w->err, EXIT_INTEGRITY,
                     "do not unpack it with another program; report it to the publisher",
                     "entry %lld '%s' is refused: %s", (long long)w->counts.entries + 1, shown, why);
}

static int check_limits(struct walk *w, const struct archive_limits *limits)
{
    const struct archive_counts *c = &w->counts;
    if (c->out > limits->bytes)
        return error_set(w->err, EXIT_INTEGRITY,
                         "if the archive is correct, raise --limit or its unpacked_size",
                         "the archive unpacks to more than the %lld bytes allowed", (long long)limits->bytes);
    if (c->entries > limits->entries)
        return error_set(w->err, EXIT_INTEGRITY, NULL, "the archive holds more than the %lld entries allowed",
                         (long long)limits->entries);
    if (c->out > limits->ratio_from && c->in > 0 && (double)c->out > limits->ratio * (double)c->in)
        return error_set(
            w->err, EXIT_INTEGRITY, "if the archive is correct, set its unpacked_size in sources.yaml",
            "the archive unpacks to over %.0f times its size (decompression bomb)", limits->ratio);
    return 0;
}

static int walk_file(struct walk *w, struct archive *a, int64_t size, const struct archive_limits *limits,
                     const struct archive_sink *sink)
{
    const void *data;
    size_t bytes;
    la_int64_t offset;
    int64_t begin = w->counts.out;
    for (;;) {
        int r = libarchive.read_data_block(a, &data, &bytes, &offset);
        if (r == ARCHIVE_EOF) break;
        if (r != ARCHIVE_OK) return archive_error(w, a);
        if (offset < 0 || offset > size || bytes > (uint64_t)(size - offset))
            return error_set(w->err, EXIT_INTEGRITY, NULL,
                             "entry %lld is larger than the %lld bytes it declares",
                             (long long)w->counts.entries, (long long)size);
        if (offset + (int64_t)bytes > w->counts.out - begin) w->counts.out = begin + offset + (int64_t)bytes;
        int code = check_limits(w, limits);
        if (!code && bytes) code = sink->data(sink->context, data, bytes, offset, w->err);
        if (code) return code;
        if (sink->progress) sink->progress(sink->context, &w->counts);
    }
    w->counts.out = begin + size; /* a hole at the end */
    int code = check_limits(w, limits);
    return code ? code : sink->file_end(sink->context, w->err);
}

static int walk_entries(struct walk *w, struct archive *a, const struct archive_limits *limits,
                        const struct archive_sink *sink)
{
    char *path = malloc(PATH_BYTES + 1);
    struct archive_entry *entry = libarchive.entry_new2(a); /* libarchive does not check its own allocation */
    int code = path && entry ? 0 : error_set(w->err, EXIT_HOST_MEMORY, NULL, "out of memory");
    while (!code) {
        int r = libarchive.read_next_header2(a, entry);
        if (r == ARCHIVE_EOF) break;
        if (r != ARCHIVE_OK) {
            code = archive_error(w, a);
            break;
        }
        const char *name = libarchive.entry_pathname(entry), *why = w->bad_name ? _("NUL in its name")
                                                                    : name      ? clean_path(name, path)
                                                                                : _("unreadable name");
        mode_t type = libarchive.entry_filetype(entry);
        int64_t size = libarchive.entry_size_is_set(entry) ? libarchive.entry_size(entry) : 0;
        if (!why && libarchive.entry_hardlink(entry)) why = _("a hard link");
        if (!why && libarchive.entry_symlink(entry)) why = _("a symbolic link");
        if (!why && type != AE_IFREG && type != AE_IFDIR)
            why = type == AE_IFLNK                       ? _("a symbolic link")
                  : type == AE_IFIFO                     ? "a FIFO"
                  : type == AE_IFCHR || type == AE_IFBLK ? _("a device")
                                                         : _("neither file nor directory");
        if (!why && libarchive.entry_is_encrypted(entry)) why = "encrypted";
        if (!why && size < 0) why = _("negative size");
        if (!why && type == AE_IFREG && path[0] == 0) why = _("empty name");
        if (!why && type == AE_IFREG && !remember_name(w, path)) why = _("duplicate name");
        if (w->no_memory) {
            code = error_set(w->err, EXIT_HOST_MEMORY, "close other programs", "out of memory for the names");
            break;
        }
        if (why) {
            code = refuse_name(w, name, why);
            break;
        }
        w->counts.entries++;
        if (size > limits->bytes - w->counts.out && type == AE_IFREG) { /* before the first byte is written */
            w->counts.out += size > INT64_MAX - w->counts.out ? INT64_MAX - w->counts.out : size;
            code = check_limits(w, limits);
            break;
        }
        if (type == AE_IFDIR) {
            if (path[0]) code = sink->directory(sink->context, path, w->err);
        } else {
            w->counts.files++;
            code =
                sink->file(sink->context, path, size,
                           libarchive.entry_mtime_is_set(entry) ? libarchive.entry_mtime(entry) : 0, w->err);
            if (!code) code = walk_file(w, a, size, limits, sink);
        }
        if (!code) code = check_limits(w, limits);
        if (!code && sink->progress) sink->progress(sink->context, &w->counts);
    }
    libarchive.entry_free(entry);
    free(path);
    return code;
}

/* Reads the rest of the stream after the end of the tar, to check its checksums. */
static int drain(struct walk *w)
{
    const void *data;
    ssize_t n;
    while ((n = inflate_read(w->inflate, &data, w->err)) > 0)
        ;
    w->counts.in = inflate_consumed(w->inflate);
    return n < 0 ? w->err && w->err->code ? w->err->code : EXIT_INTEGRITY : 0;
}

bool archive_is_zip(const void *head, size_t bytes)
{
    return bytes >= 4 && (memcmp(head, "PK\3\4", 4) == 0 || memcmp(head, "PK\5\6", 4) == 0);
}

int archive_walk(const struct archive_input *input, const struct archive_limits *limits,
                 const struct archive_sink *sink, struct archive_counts *counts, struct error *err)
{
    struct error local = {0};
    struct walk w = {.input = input, .err = err ? err : &local};
    int code = libarchive_load(w.err);
    if (code) return code;
    if (random_bytes(&w.seed, sizeof w.seed) != 0) w.seed = (uint64_t)(uintptr_t)&w;
    /* names are UTF-8, independent of the user's locale */
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
    if (!utf8) utf8 = newlocale(LC_CTYPE_MASK, "en_US.UTF-8", (locale_t)0);
    locale_t before = utf8 ? uselocale(utf8) : (locale_t)0;

    uint8_t head[4] = {0};
    struct archive *a = libarchive.read_new();
    if (!a) code = error_set(w.err, EXIT_HOST_MEMORY, NULL, "out of memory");
    ssize_t n = !code && input->wait(input->context, 4) >= 4 ? retry_read(input->fd, head, 4, 0) : 0;
    if (n < 0) code = archive_unreadable(input, w.err);
    bool zip = archive_is_zip(head, n > 0 ? (size_t)n : 0);
    if (!code && zip) {
        w.zip_bytes = input->wait(input->context, INT64_MAX);
        if (w.zip_bytes < 0) code = error_set(w.err, EXIT_FAILED, NULL, "unpacking was cancelled");
        if (!code) code = zip_check(input, w.zip_bytes, w.err);
        if (!code && !(w.zip_buffer = malloc(256 << 10)))
            code = error_set(w.err, EXIT_HOST_MEMORY, NULL, "out of memory");
        if (!code) {
            bool ready = libarchive.read_support_format_zip_seekable(a) == ARCHIVE_OK &&
                         libarchive.read_set_read_callback(a, zip_read) == ARCHIVE_OK &&
                         libarchive.read_set_seek_callback(a, zip_seek) == ARCHIVE_OK &&
                         libarchive.read_set_callback_data(a, &w) == ARCHIVE_OK;
            if (!ready) code = error_set(w.err, EXIT_HOST_MEMORY, NULL, "out of memory");
            else if (libarchive.read_open1(a) != ARCHIVE_OK) code = archive_error(&w, a);
        }
    } else if (!code) {
        code = inflate_open(&w.inflate, input, w.err);
        if (!code) {
            bool ready = libarchive.read_support_format_tar(a) == ARCHIVE_OK &&
                         libarchive.read_set_read_callback(a, tar_read) == ARCHIVE_OK &&
                         libarchive.read_set_callback_data(a, &w) == ARCHIVE_OK;
            if (!ready) code = error_set(w.err, EXIT_HOST_MEMORY, NULL, "out of memory");
            else if (libarchive.read_open1(a) != ARCHIVE_OK) code = archive_error(&w, a);
        }
    }
    if (!code) code = walk_entries(&w, a, limits, sink);
    if (w.zip_reason) { /* a read error, not a damaged zip */
        errno = w.zip_reason;
        code = archive_unreadable(input, w.err);
    }
    if (!code && w.inflate) code = drain(&w);
    if (!code && w.bad_name) code = refuse_name(&w, NULL, "NUL in a name");
    if (!code && w.counts.entries == 0)
        code = error_set(w.err, EXIT_INTEGRITY, NULL, "the archive holds no files");
    if (!code && sink->progress) sink->progress(sink->context, &w.counts);
    if (a) libarchive.read_free(a);
    inflate_close(w.inflate);
    free(w.zip_buffer);
    free(w.pax);
    free(w.seen);
    if (before) uselocale(before);
    if (utf8) freelocale(utf8);
    if (counts) *counts = w.counts;
    return code;
}
