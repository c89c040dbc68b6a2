/* What libarchive takes on trust in a zip: that the two names of an entry agree and hold no NUL, that nothing
 * is encrypted and every method is known. Reads the central directory and each local header. */
#ifndef MEOPT_FETCH_ZIP_CHECK_H
#define MEOPT_FETCH_ZIP_CHECK_H

#include "fetch/archive.h"

#include <stdint.h>

int zip_check(const struct archive_input *input, int64_t bytes, struct error *err);

#endif
