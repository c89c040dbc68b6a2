/* Checks a zip for what libarchive does not check: the two names of each entry are equal and have no NUL,
 * no entry is encrypted, and each method is known. Reads the central directory and all local headers. */
#ifndef MEOPT_FETCH_ZIP_CHECK_H
#define MEOPT_FETCH_ZIP_CHECK_H

#include "fetch/archive_input.h"

#include <stdint.h>

int zip_check(const struct archive_input *input, int64_t bytes, struct error *err);

#endif
