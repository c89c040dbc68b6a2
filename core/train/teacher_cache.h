/* The teacher's outputs, computed once (train.cache_teacher) and kept beside the run. */
#ifndef MEOPT_TRAIN_TEACHER_CACHE_H
#define MEOPT_TRAIN_TEACHER_CACHE_H

#include "core/train/trainer.h"

/* trainer->cache (images, out_rows*out_width): read from the safetensors file `path` when it is one of this
 * size, else computed from the images of the configuration, one forward each, and written there. */
int teacher_cache_fill(struct trainer *trainer, const char *path, struct error *err);

#endif
