/* The maps of loss.standardize: mean and matrix of each target, estimated from images of the training before
 * the first step, and stored in the run's directory. */
#ifndef MEOPT_TRAIN_TARGET_MAPS_H
#define MEOPT_TRAIN_TARGET_MAPS_H

#include "core/step/trainer.h"

/* Called regularly; a nonzero result ends the pass and is returned. */
typedef int (*target_maps_tick)(void *context, int64_t done, int64_t images, struct error *err);

/* Sets the maps of all ranks (collective call): those of the file `path` if it has them for such targets,
 * else from train.target_images images, the first ones of the first epoch's order, which all ranks compute
 * alike; rank 0 writes the file. tick may be NULL. */
int target_maps_fill(struct trainer *trainer, const char *path, target_maps_tick tick, void *context,
                     struct error *err);
/* Sets them from the file, for an evaluation: EXIT_CONFIG if there is none. */
int target_maps_load(struct trainer *trainer, const char *path, struct error *err);

#endif
