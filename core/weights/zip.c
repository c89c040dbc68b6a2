/* The zip container: see zip.h. */
#include "core/weights/zip.h"
#include "core/weights/weights_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOCAL_HEADER = 0x04034b50,
    CENTRAL_HEADER = 0x02014b50,
    END_RECORD = 0x06054b50,
    END64_RECORD = 0x06064b50,
    END64_LOCATOR = 0x07064b50,
    LOCAL_HEADER_BYTES = 30,
    CENTRAL_HEADER_BYTES = 46,
    END_RECORD_BYTES = 22,
    END64_RECORD_BYTES = 56,
    END64_LOCATOR_BYTES = 20,
    MAX_COMMENT_BYTES = 65535,
    ZIP64_EXTRA = 0x0001
};

static uint16_t u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static uint32_t u32(const uint8_t *p) { return u16(p) | (uint32_t)u16(p + 2) << 16; }
static uint64_t u64(const uint8_t *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }

static int damaged(struct error *err, const char *what)
{
    return error_set(err, EXIT_INTEGRITY,
                     "get the file again, or compare its size and checksum with the publisher's",
                     "damaged or truncated zip: %s", what);
}

/* Finds the end record: the last signature whose comment extends exactly to the end of the file. */
static const uint8_t *find_end(const struct file_map *map)
{
    if (map->bytes < END_RECORD_BYTES) return NULL;
    size_t last = map->bytes - END_RECORD_BYTES,
           first = last > MAX_COMMENT_BYTES ? last - MAX_COMMENT_BYTES : 0;
    for (size_t at = last + 1; at-- > first;) {
        const uint8_t *p = map->data + at;
        if (p[0] == 'P' && u32(p) == END_RECORD && u16(p + 20) == last - at) return p;
    }
    return NULL;
}

struct directory {
    uint64_t offset, bytes, count;
};

static int find_directory(const struct file_map *map, struct directory *d, struct error *err)
{
    const uint8_t *end = find_end(map);
    if (!end) return damaged(err, "no end record (the file may be cut off)");
    uint64_t directory_end = (uint64_t)(end - map->data); /* required end of the directory */
    if (u16(end + 4) != 0 || u16(end + 6) != 0 || u16(end + 8) != u16(end + 10))
        return damaged(err, "spread over several disks");
    *d = (struct directory){u32(end + 16), u32(end + 12), u16(end + 10)};
    if (directory_end >= END64_LOCATOR_BYTES && u32(end - END64_LOCATOR_BYTES) == END64_LOCATOR) {
        uint64_t at = u64(end - END64_LOCATOR_BYTES + 8);
        if (directory_end - END64_LOCATOR_BYTES < END64_RECORD_BYTES ||
            at > directory_end - END64_LOCATOR_BYTES - END64_RECORD_BYTES)
            return damaged(err, "the zip64 end record is outside the file");
        const uint8_t *end64 = map->data + at;
        if (u32(end64) != END64_RECORD) return damaged(err, "the zip64 end record is missing");
        struct directory d64 = {u64(end64 + 48), u64(end64 + 40), u64(end64 + 32)};
        if ((d->offset != UINT32_MAX && d->offset != d64.offset) ||
            (d->bytes != UINT32_MAX && d->bytes != d64.bytes) ||
            (d->count != UINT16_MAX && d->count != d64.count))
            return damaged(err, "the two end records disagree");
        *d = d64;
        directory_end = at;
    }
    if (d->offset > directory_end || d->bytes != directory_end - d->offset)
        return damaged(err, "the central directory is not at the end record's offset");
    if (d->count > d->bytes / CENTRAL_HEADER_BYTES)
        return damaged(err, "the member count exceeds the size of the central directory");
    if (d->count > ZIP_MAX_MEMBERS)
        return error_set(err, EXIT_INTEGRITY, NULL, "zip with %llu members, at most %d are supported",
                         (unsigned long long)d->count, ZIP_MAX_MEMBERS);
    return 0;
}

/* Reads the fields that exceed 32 bits from an extra field: in this order, only those saturated. */
static int read_zip64(struct zip_member *m, uint64_t *stored, const uint8_t *extra, size_t bytes,
                      struct error *err)
{
    uint64_t *fields[] = {&m->bytes, stored, &m->header};
    bool wanted = m->bytes == UINT32_MAX || *stored == UINT32_MAX || m->header == UINT32_MAX;
    while (bytes >= 4) {
        size_t id = u16(extra), length = u16(extra + 2);
        extra += 4, bytes -= 4;
        if (length > bytes) return damaged(err, "an extra field extends beyond its header");
        if (id == ZIP64_EXTRA && wanted) {
            const uint8_t *p = extra;
            for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
                if (*fields[i] != UINT32_MAX) continue;
                if ((size_t)(extra + length - p) < 8) return damaged(err, "a zip64 field is too short");
                *fields[i] = u64(p);
                p += 8;
            }
            wanted = false;
        }
        extra += length, bytes -= length;
    }
    return wanted ? damaged(err, "a zip64 field is missing") : 0;
}

static int compare_members(const void *a, const void *b)
{
    const struct zip_member *x = a, *y = b;
    uint32_t shorter = x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes;
    int order = memcmp(x->name, y->name, shorter);
    return order ? order : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

static int read_directory(struct zip *zip, const struct directory *d, struct error *err)
{
    const uint8_t *p = zip->map->data + d->offset, *end = p + d->bytes;
    for (int64_t i = 0; i < zip->count; i++) {
        if (end - p < CENTRAL_HEADER_BYTES || u32(p) != CENTRAL_HEADER)
            return damaged(err, "the central directory is cut off");
        struct zip_member *m = &zip->members[i];
        size_t extra_bytes = u16(p + 30), comment_bytes = u16(p + 32);
        uint64_t stored = u32(p + 20);
        *m = (struct zip_member){(const char *)p + CENTRAL_HEADER_BYTES,   u16(p + 28), u32(p + 16),
                                 (uint32_t)u16(p + 10) << 16 | u16(p + 8), u32(p + 24), u32(p + 42)};
        if ((size_t)(end - p) - CENTRAL_HEADER_BYTES < m->name_bytes + extra_bytes + comment_bytes)
            return damaged(err, "a member's header extends beyond the central directory");
        int code = read_zip64(m, &stored, p + CENTRAL_HEADER_BYTES + m->name_bytes, extra_bytes, err);
        if (code) return code;
        if (m->method_flags >> 16 == 0 && stored != m->bytes)
            return damaged(err, "a stored member has two sizes");
        p += CENTRAL_HEADER_BYTES + m->name_bytes + extra_bytes + comment_bytes;
    }
    if (p != end) return damaged(err, "the central directory has more members than its count");
    qsort(zip->members, (size_t)zip->count, sizeof *zip->members, compare_members);
    for (int64_t i = 1; i < zip->count; i++)
        if (compare_members(&zip->members[i - 1], &zip->members[i]) == 0)
            return error_set(err, EXIT_INTEGRITY, NULL, "zip member %s occurs twice",
                             quote(zip->members[i].name, zip->members[i].name_bytes));
    return 0;
}

int zip_open(struct zip *zip, const struct file_map *map, struct error *err)
{
    struct directory d = {0};
    *zip = (struct zip){.map = map};
    int code = find_directory(map, &d, err);
    if (code) return code;
    zip->count = (int64_t)d.count;
    zip->directory = d.offset;
    zip->members = calloc(d.count ? d.count : 1, sizeof *zip->members);
    if (!zip->members) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading a zip directory");
    if ((code = read_directory(zip, &d, err)) != 0) zip_close(zip);
    return code;
}

void zip_close(struct zip *zip)
{
    free(zip->members);
    zip->members = NULL;
    zip->count = 0;
}

const struct zip_member *zip_find(const struct zip *zip, const char *name, size_t name_bytes)
{
    struct zip_member key = {.name = name, .name_bytes = (uint32_t)name_bytes};
    return bsearch(&key, zip->members, (size_t)zip->count, sizeof key, compare_members);
}

int zip_payload(const struct zip *zip, const struct zip_member *m, uint64_t *offset, struct error *err)
{
    const char *name = quote(m->name, m->name_bytes);
    if (m->method_flags >> 16 != 0 || m->method_flags & 1)
        return error_set(err, EXIT_INTEGRITY,
                         "unpack and pack it again without compression (zip -0), or save it again",
                         "zip member %s is %s, expected a stored one, as torch.save writes", name,
                         m->method_flags & 1 ? "encrypted" : "compressed");
    if (zip->directory < LOCAL_HEADER_BYTES || m->header > zip->directory - LOCAL_HEADER_BYTES)
        return error_set(err, EXIT_INTEGRITY, "get the file again", "zip member %s begins outside the file",
                         name);
    const uint8_t *p = zip->map->data + m->header;
    uint64_t at = m->header + LOCAL_HEADER_BYTES + u16(p + 26) + u16(p + 28);
    if (u32(p) != LOCAL_HEADER || u16(p + 26) != m->name_bytes ||
        m->header + LOCAL_HEADER_BYTES + m->name_bytes > zip->directory ||
        memcmp(p + LOCAL_HEADER_BYTES, m->name, m->name_bytes) != 0)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "zip member %s: no such header at byte %llu", name, (unsigned long long)m->header);
    if (at > zip->directory || m->bytes > zip->directory - at)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "zip member %s of %llu bytes extends beyond the end of the file", name,
                         (unsigned long long)m->bytes);
    *offset = at;
    return 0;
}
