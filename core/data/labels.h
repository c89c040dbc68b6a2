/* The class of each image of a list.
 *
 * Directories: the class is the first directory below the root, or below the directory of the part if it
 * contains all images (train/). Classes are numbered in the order of their names, as torchvision's
 * ImageFolder does with Python's sorted(); only directories with images are classes. Images outside of such a
 * directory are removed from the list and reported.
 *
 * Token files: each document has a class, in X.classes next to X.bin (token_file.h).
 *
 * With options->order, classes that have its names are numbered as there. Different names are refused if a
 * classifier of as many classes has them, unless the labels are numbers.
 */
#ifndef MEOPT_DATA_LABELS_H
#define MEOPT_DATA_LABELS_H

#include "core/data/data.h"
#include "core/data/list.h"

/* Lists the images of a dataset; with options->labels, their classes as well. */
int image_list_open(struct image_list *list, const struct data_options *options, struct error *err);
/* Identifies the classes: CRC-32C over their names and the label of each image; 0: the list has none. */
uint32_t image_list_classes_hash(const struct image_list *list);

#endif
