/* The text of a file, from its start to its end: mapped, or decompressed into a window that is as long as its
 * reader requires. */
#ifndef MEOPT_TEXT_TEXT_SOURCE_H
#define MEOPT_TEXT_TEXT_SOURCE_H

#include "core/base/file.h"

#include <sys/types.h>

/* Decompression of a whole file, which the program brings (fetch/inflate.h). */
struct text_unpacker {
    /* path is for messages. */
    int (*open)(void **stream, const char *path, struct error *err);
    /* Returns the number of bytes at *data, valid until the next call; 0 at the end, after all checks; -1
     * with an error. */
    ssize_t (*read)(void *stream, const void **data, struct error *err);
    int64_t (*consumed)(void *stream); /* bytes of the file */
    void (*close)(void *stream);
};

struct text_source {
    struct file_map map;
    const struct text_unpacker *unpacker;
    void *stream; /* NULL: the file is not compressed */
    char *window;
    size_t begin, end, capacity; /* of the window's text */
    int64_t offset;              /* of the text that comes next */
    int64_t lines, counted;      /* lines before `offset`; of a file that is mapped, before `counted` */
    bool ended;                  /* the window has the rest of the text */
};
/* Opens a file. If it is compressed and there is an unpacker (may be NULL), its text is the decompressed
 * one. */
int text_source_open(struct text_source *source, const char *path, const struct text_unpacker *unpacker,
                     struct error *err);
void text_source_close(struct text_source *source);
/* Sets the text that comes next, of at least `want` bytes or the rest; *all: it is the rest. It is valid
 * until the next call with the source; if the file is not compressed, until it is closed. */
int text_source_view(struct text_source *source, size_t want, const char **text, size_t *bytes, bool *all,
                     struct error *err);
/* Passes over bytes of the text that was viewed. */
void text_source_advance(struct text_source *source, size_t bytes);
/* Passes over the text before an offset. */
int text_source_skip(struct text_source *source, int64_t offset, struct error *err);
/* Returns the number of lines before an offset; of a compressed file that of the text that comes next. */
int64_t text_source_lines(struct text_source *source, int64_t offset);
/* Returns the line, from 1, of a place in a text with a number of lines before it. */
int text_line_at(int64_t before, const char *text, size_t at);

#endif
