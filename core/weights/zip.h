/* The zip container of torch.save: uncompressed members, found through the central directory.
 *
 * Format: APPNOTE.TXT 6.3.3 sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14-16 (end
 * records, zip64), 4.5.3 (zip64 extra field). torch writes local headers without sizes
 * (caffe2/serialize/inline_container.cc), so sizes come from the central directory alone; the local header
 * only gives the offset of the payload. */
#ifndef MEOPT_WEIGHTS_ZIP_H
#define MEOPT_WEIGHTS_ZIP_H

#include "core/base/error.h"
#include "core/base/file.h"

#include <stdint.h>

struct zip_member {
    const char *name; /* in the mapping, not terminated */
    uint32_t name_bytes;
    uint32_t crc;           /* 0: not recorded */
    uint32_t method_flags;  /* compression method << 16 | general purpose flags */
    uint64_t bytes, header; /* payload size; offset of the local header */
};

struct zip {
    const struct file_map *map;
    struct zip_member *members; /* sorted by name, unique */
    int64_t count;
    uint64_t directory; /* offset of the central directory: payloads end before it */
};

/* The mapping must outlive the zip. */
int zip_open(struct zip *zip, const struct file_map *map, struct error *err);
void zip_close(struct zip *zip);
const struct zip_member *zip_find(const struct zip *zip, const char *name, size_t name_bytes);
/* Offset of a member's payload; refused unless it is stored, unencrypted and inside the file. */
int zip_payload(const struct zip *zip, const struct zip_member *member, uint64_t *offset, struct error *err);

#endif
