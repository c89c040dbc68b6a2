/* The images below a root: JPEG, PNG and WebP by their names' endings, paths relative to it in the order of
 * their bytes. Names that begin with a dot are passed over, and directories that lead back to one above.
 *
 * Where there is no image but tar archives (names that end in .tar), images are their members, SHARD/MEMBER.
 *
 * Which of them: those that one of the patterns `include` and none of `exclude` matches. Where there is no
 * `include`, images to train with are not mixed with others: when a directory train2014 is among the paths,
 * only its images count; else when some lie below a directory train2017, train or training and others below
 * one for validation or test (parts in list.c; of a path the outermost counts), only the first do.
 *
 * Patterns are separated by commas. '*' stands for any bytes, '/' too, and '?' for one; a pattern that
 * matches a directory takes what is below it. */
#ifndef MEOPT_DATA_LIST_H
#define MEOPT_DATA_LIST_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct image_list {
    char **names; /* behind its NUL each name has the image's size in bytes, 8 bytes little-endian, then
                     where it lies (image_place) */
    int64_t count;
    char *chosen; /* in words, which of several parts these are; NULL: there is one */
    char *
        unread; /* in words, files whose endings are not read, and links not followed; NULL: there are none */
};
/* include and exclude may be NULL or "". */
int image_list_read(struct image_list *list, const char *root, const char *include, const char *exclude,
                    struct error *err);
/* The same, but reports each directory and link that cannot be followed, counts it, and lists the rest. */
int image_list_survey(struct image_list *list, const char *root, const char *include, const char *exclude,
                      void (*report)(void *context, const struct error *), void *context, int64_t *unlisted,
                      struct error *err);
/* Bytes of the image `name` of a list, malloc'ed: a file, or its part of an archive. errno is 0 where the
 * error is the image's own. */
int image_read(const char *root, const char *name, char **bytes, size_t *size, struct error *err);
/* Which images these are: CRC-32C over all names with their NULs and sizes, in the list's order. Not over
 * their content, which would cost a pass over the dataset. */
uint32_t image_list_hash(const struct image_list *list);
/* The bytes of some images, which image_list_hash does not look at: CRC-32C of at most SAMPLE_BYTES from the
 * begin of each of IMAGE_SAMPLES images that are evenly spread over the list (all, of fewer). Returns their
 * number. */
enum { IMAGE_SAMPLES = 64, SAMPLE_BYTES = 1 << 18 };
struct image_sample {
    int64_t image;   /* in the list */
    uint32_t crc32c; /* 0: could not be read */
};
int image_list_sample(const struct image_list *list, const char *root,
                      struct image_sample samples[IMAGE_SAMPLES]);
int64_t image_sample_at(const struct image_list *list, int index); /* the image of a sample */
/* Of a name of a list: where in an archive its bytes lie, and how long in the name the archive's path is; 0
 * for a file of its own. */
struct image_place {
    int64_t offset, bytes, archive_length;
};
struct image_place image_place(const char *name);
void image_list_free(struct image_list *list);

#endif
