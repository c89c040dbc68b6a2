/* Kinds of files by their first bytes: what is no text. */
#ifndef MEOPT_BASE_FILE_KIND_H
#define MEOPT_BASE_FILE_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct file_kind {
    const char *is;   /* "compressed by gzip"; marked for translation */
    const char *hint; /* how its text or tokens are had; NULL: none */
    bool packed;      /* it is a file compressed by itself, which fetch/inflate.h reads */
};
/* Returns the kind of a file that is no text, NULL: none that is known. certain: by at least four bytes,
 * which numbers hardly have by chance. */
const struct file_kind *file_kind(const void *data, size_t bytes, bool certain);

#endif
