/* What an experiment trains on, from its configuration:
 * the device, the images; and whether all of it is there. */
#ifndef MEOPT_TRAIN_EXPERIMENT_H
#define MEOPT_TRAIN_EXPERIMENT_H

#include "core/config/config.h"
#include "core/data/data.h"
#include "core/device/device.h"

/* What a resolved configuration trains on: the images of teacher and student, of the student alone where the
 * teacher's outputs are cached. */
struct data_options train_data_options(const struct config *config);
/* The images of one of the towers. */
struct data_options train_tower_images(const struct config *config, bool student);
/* The device of an experiment: device.type, the first of
 * device.cards, device.memory_limit (limited false: without). */
int train_device_open(struct device **device, const struct config *config, bool limited, struct error *err);

/* EXIT_CONFIG when a checkpoint or the images are not where the configuration says: `missing` (may be NULL)
 * hears of each, err of the first, with the command that fetches it. */
int train_check_files(const struct config *config, void (*missing)(void *context, const struct error *),
                      void *context, struct error *err);
/* The same of the file or directory that one key names. */
int train_check_file(const struct config *config, const char *key, struct error *err);

/* Returns in *path the model file of the run's own newest checkpoint where the run began with a checkpoint of
 * another run (--from) that is gone; else NULL. EXIT_CONFIG where the run has no checkpoint. The caller
 * frees. */
int train_fallback_weights(const struct config *config, const char *directory, char **path,
                           struct error *err);

/* Everything that can be wrong with an experiment, without its memory: files, geometry, images. The
 * configuration is resolved by it. */
int train_dry_run(struct config *config, struct error *err);

#endif
