/* Decompresses text files for core/text. */
#ifndef MEOPT_CLI_TEXT_UNPACK_TEXT_H
#define MEOPT_CLI_TEXT_UNPACK_TEXT_H

#include "core/text/text_source.h"

/* gzip, zstd and xz (fetch/inflate.h). */
extern const struct text_unpacker unpack_text;

#endif
