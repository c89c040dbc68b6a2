/* The archives of CIFAR-10 and CIFAR-100: the binary form (data_batch_1.bin, train.bin) and the python form
 * (data_batch_1, train: pickled dicts with a numpy array). They are unpacked, in the root or in the
 * directory of their archive's name below it, or the archive itself is in the root, as
 * cifar-10-python.tar.gz (unpacked.h) or cifar-10-python.tar.
 * Format: https://www.cs.toronto.edu/~kriz/cifar.html
 *
 * An image is named FILE/NUMBER, in an archive ARCHIVE/FILE/NUMBER; its place is that of its pixels in the
 * file, planes of red, green and blue.
 */
#ifndef MEOPT_DATA_CIFAR_H
#define MEOPT_DATA_CIFAR_H

#include "core/data/list.h"

#include <stddef.h>

enum { CIFAR_SIDE = 32, CIFAR_PIXELS = 3 * CIFAR_SIDE * CIFAR_SIDE };

/* Adds the images of the archive at the root, with labels and classes, and sets list->chosen. Returns 0 and
 * adds none if the root has no such archive. */
int cifar_list(struct image_list *list, const struct image_search *search, struct error *err);

/* Decompresses the archive at the root if there is one (unpacked_inherit). */
void cifar_decompress(const char *root);

/* ---- Parts ---- */

/* The content of one file: the images' labels, and the places of their pixels. */
struct cifar_file {
    int64_t count;
    int64_t offset, stride; /* of image i: offset + i * stride */
    int32_t *labels;        /* (count) */
};
/* Parses a binary file with `labels` bytes before each image, of which `which` is taken; class_count bounds
 * it. */
int cifar_parse_binary(struct cifar_file *file, const uint8_t *bytes, size_t size, int labels, int which,
                       int32_t class_count, struct error *err);
/* Parses a pickled dict with data and the list `key` of labels. */
int cifar_parse_pickle(struct cifar_file *file, const uint8_t *bytes, size_t size, const char *key,
                       int32_t class_count, struct error *err);
/* Parses the names of the classes: lines, or the list `key` of a pickled dict (key NULL: lines). *names and
 * each of them are malloc'ed. */
int cifar_parse_names(char ***names, int32_t *count, const uint8_t *bytes, size_t size, const char *key,
                      struct error *err);

#endif
