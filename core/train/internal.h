/* Shared inside core/train. */
#ifndef MEOPT_TRAIN_INTERNAL_H
#define MEOPT_TRAIN_INTERNAL_H

#include "core/train/trainer.h"

/* The optimizer library's error as ours. */
int trainer_library_error(const struct meopt_error *library, struct error *err);

#endif
