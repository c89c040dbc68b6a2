/* Decompresses the file of a tar for archive.c and checks its checksums. */
#ifndef MEOPT_FETCH_INFLATE_H
#define MEOPT_FETCH_INFLATE_H

#include "fetch/archive_input.h"

#include <sys/types.h>

struct inflate;

/* Detects the compression from the first bytes: gzip, zstd, xz or none. */
int inflate_open(struct inflate **out, const struct archive_input *input, struct error *err);
/* Returns the number of decompressed bytes at *data, valid until the next call; 0 at the end, after all
 * checks; -1 with err set. */
ssize_t inflate_read(struct inflate *in, const void **data, struct error *err);
int64_t inflate_consumed(const struct inflate *in); /* compressed bytes read so far */
void inflate_close(struct inflate *in);

#endif
