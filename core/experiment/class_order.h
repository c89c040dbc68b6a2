/* The names of a classifier's classes, in the order of their numbers. */
#ifndef MEOPT_EXPERIMENT_CLASS_ORDER_H
#define MEOPT_EXPERIMENT_CLASS_ORDER_H

#include "core/config/config.h"
#include "core/data/data.h"

/* Metadata of a file that meopt exports: a JSON array of names. */
#define CLASSES_METADATA "meopt.classes"

/* Reads the order that the data of an experiment adopts. run: a run that continues or is evaluated, whose
 * meta.json has the names; NULL: they come from what the student begins with: the meta.json of the run of a
 * checkpoint, config.json of transformers (id2label) or timm (label_names), or the file's metadata. No names
 * (count 0) without a classifier's names, with data.class_order sorted, and for names that say nothing
 * (LABEL_0, 0). */
int class_order_read(struct class_names *order, const struct config *config, const char *run,
                     struct error *err);
void class_order_free(struct class_names *order);

#endif
