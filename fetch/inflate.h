/* The bytes of a tar out of its compression, checked to the very end. Between archive.c and the file. */
#ifndef MEOPT_FETCH_INFLATE_H
#define MEOPT_FETCH_INFLATE_H

#include "fetch/archive.h"

#include <sys/types.h>

struct inflate;

/* Decides by the first bytes: gzip, zstd, xz or none. */
int inflate_open(struct inflate **out, const struct archive_input *input, struct error *err);
/* Next bytes (valid until the next call): count, 0 at the whole and checked end, -1 with err filled. */
ssize_t inflate_read(struct inflate *in, const void **data, struct error *err);
int64_t inflate_consumed(const struct inflate *in); /* bytes of the file */
void inflate_close(struct inflate *in);

#endif
