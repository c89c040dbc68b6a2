/* libarchive, loaded on first use, as libcurl is (libcurl.h). */
#ifndef MEOPT_FETCH_LIBARCHIVE_H
#define MEOPT_FETCH_LIBARCHIVE_H

#include "core/base/error.h"

#include <archive.h>
#include <archive_entry.h>

/* X(field, function) */
#define LIBARCHIVE_FUNCTIONS(X)                                                                              \
    X(version_string, archive_version_string)                                                                \
    X(error_number, archive_errno)                                                                           \
    X(error_string, archive_error_string)                                                                    \
    X(set_error, archive_set_error)                                                                          \
    X(read_new, archive_read_new)                                                                            \
    X(read_support_format_raw, archive_read_support_format_raw)                                              \
    X(read_support_format_tar, archive_read_support_format_tar)                                              \
    X(read_support_format_zip_seekable, archive_read_support_format_zip_seekable)                            \
    X(read_support_filter_xz, archive_read_support_filter_xz)                                                \
    X(read_support_filter_zstd, archive_read_support_filter_zstd)                                            \
    X(read_set_read_callback, archive_read_set_read_callback)                                                \
    X(read_set_seek_callback, archive_read_set_seek_callback)                                                \
    X(read_set_callback_data, archive_read_set_callback_data)                                                \
    X(read_open1, archive_read_open1)                                                                        \
    X(read_next_header2, archive_read_next_header2)                                                          \
    X(read_data, archive_read_data)                                                                          \
    X(read_data_block, archive_read_data_block)                                                              \
    X(read_free, archive_read_free)                                                                          \
    X(entry_new2, archive_entry_new2)                                                                        \
    X(entry_pathname, archive_entry_pathname)                                                                \
    X(entry_filetype, archive_entry_filetype)                                                                \
    X(entry_size, archive_entry_size)                                                                        \
    X(entry_size_is_set, archive_entry_size_is_set)                                                          \
    X(entry_mtime, archive_entry_mtime)                                                                      \
    X(entry_mtime_is_set, archive_entry_mtime_is_set)                                                        \
    X(entry_hardlink, archive_entry_hardlink)                                                                \
    X(entry_symlink, archive_entry_symlink)                                                                  \
    X(entry_is_encrypted, archive_entry_is_encrypted)                                                        \
    X(entry_free, archive_entry_free)

struct libarchive {
#define LIBARCHIVE_FIELD(field, function) __typeof__(function) *field;
    LIBARCHIVE_FUNCTIONS(LIBARCHIVE_FIELD)
#undef LIBARCHIVE_FIELD
};

/* Fills `libarchive`, whose functions cannot be called before. Returns 0 or EXIT_FAILED. */
int libarchive_load(struct error *err);
extern struct libarchive libarchive;

/* NULL in programs that libarchive is not linked into. */
extern const struct libarchive libarchive_linked __attribute__((weak));

#endif
