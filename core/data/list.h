/* The images below a root, JPEG and PNG by name, paths relative to it in the order of their bytes. When a directory
 * train2014 is among them, only its images count. */
#ifndef MEOPT_DATA_LIST_H
#define MEOPT_DATA_LIST_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct image_list {
    char **names;
    int64_t count;
};
int image_list_read(struct image_list *list, const char *root, struct error *err);
void image_list_free(struct image_list *list);

#endif
