/* The images below a root, JPEG and PNG by name, paths relative to it in the order of their bytes. When a
 * directory train2014 is among them, only its images count. */
#ifndef MEOPT_DATA_LIST_H
#define MEOPT_DATA_LIST_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct image_list {
    char **names; /* behind its NUL each name has the file's size in bytes, 8 bytes little-endian */
    int64_t count;
};
int image_list_read(struct image_list *list, const char *root, struct error *err);
/* Which images these are: CRC-32C over all names with their NULs and sizes, in the list's order. Not over
 * their content, which would cost a pass over the dataset. */
uint32_t image_list_hash(const struct image_list *list);
void image_list_free(struct image_list *list);

#endif
