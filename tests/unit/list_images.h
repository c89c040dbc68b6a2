/* image_list_search for the images of training that patterns choose. */
#ifndef MEOPT_TESTS_LIST_IMAGES_H
#define MEOPT_TESTS_LIST_IMAGES_H

#include "core/data/list.h"

static inline int list_images(struct image_list *list, const char *root, const char *include,
                              const char *exclude, struct error *err)
{
    struct image_search search = {.root = root, .include = include, .exclude = exclude};
    return image_list_search(list, &search, err);
}

#endif
