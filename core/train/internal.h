/* Shared inside core/train. */
#ifndef MEOPT_TRAIN_INTERNAL_H
#define MEOPT_TRAIN_INTERNAL_H

#include "core/train/trainer.h"

/* The optimizer library's error as ours. */
int trainer_library_error(const struct meopt_error *library, struct error *err);

/* A choice of the experiment as libmeopt's number; -1 for auto. */
int trainer_rule(enum optim_name name);
int trainer_weight_format(enum optim_weights weights);
int trainer_state_format(enum optim_state state);

#endif
