/* Decompresses text files: see unpack_text.h. */
#include "cli/text/unpack_text.h"
#include "core/base/memory.h"
#include "fetch/inflate.h"

#include <stdlib.h>
#include <unistd.h>

struct unpack {
    struct inflate *inflate;
    int fd;
    int64_t bytes; /* of the file */
};

static int64_t file_bytes(void *context, int64_t bytes)
{
    (void)bytes; /* the file does not grow */
    return ((struct unpack *)context)->bytes;
}

static void unpack_close(void *stream)
{
    struct unpack *u = stream;
    inflate_close(u->inflate);
    close(u->fd);
    free(u);
}

static int unpack_open(void **stream, const char *path, struct error *err)
{
    struct unpack *u = xcalloc(1, sizeof *u);
    struct stat st;
    int code = file_open(path, &u->fd, &st, err);
    if (code) {
        free(u);
        return code;
    }
    u->bytes = st.st_size;
    const struct archive_input input = {.fd = u->fd, .path = path, .wait = file_bytes, .context = u};
    *err = (struct error){0};
    code = inflate_open(&u->inflate, &input, err);
    if (code) error_at(err, path, 0, 0);
    if (code) unpack_close(u);
    else *stream = u;
    return code;
}

static ssize_t unpack_read(void *stream, const void **data, struct error *err)
{
    return inflate_read(((struct unpack *)stream)->inflate, data, err);
}

static int64_t unpack_consumed(void *stream) { return inflate_consumed(((struct unpack *)stream)->inflate); }

const struct text_unpacker unpack_text = {unpack_open, unpack_read, unpack_consumed, unpack_close};
