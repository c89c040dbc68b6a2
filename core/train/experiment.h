/* Device, images and files of an experiment, from its configuration. */
#ifndef MEOPT_TRAIN_EXPERIMENT_H
#define MEOPT_TRAIN_EXPERIMENT_H

#include "core/config/config.h"
#include "core/data/data.h"
#include "core/device/device.h"

/* Returns the images of a resolved configuration: for teacher and student, or for the student alone where
 * the teacher's outputs are cached. */
struct data_options train_data_options(const struct config *config);
/* data_open, with the classes in the order of class_order_read. */
int train_open_data(struct data **data, const struct config *config, const char *run,
                    struct data_options *options, struct error *err);
/* Images of an evaluation: one pass in their order. */
struct validation_data {
    struct data *val;  /* of data.val; NULL: there is no evaluation */
    struct data *bank; /* of data.root, whose features are compared (train.eval knn); NULL: none */
};
/* Lists what identifies data.val: its images, token files, or the file that names images and classes. The
 * caller frees the list. */
int train_validation_list(struct image_list *list, const struct config *config, struct error *err);
/* Opens them in batches of `batch`, with the classes of the training images. train: the images of training,
 * which must outlive this call only; NULL: the classes are those of `order`, which may be NULL, too. report:
 * log what they are. To be closed after an error, too. */
int train_open_validation(struct validation_data *data, const struct config *config, const struct data *train,
                          const struct class_names *order, int rank, int ranks, bool report, int64_t batch,
                          struct error *err);
void train_close_validation(struct validation_data *data);
/* Returns the images of one tower. */
struct data_options train_tower_images(const struct config *config, bool student);
/* Sets model_s.classes, if it is 0 and the objective reads labels, to the number of classes in data.root.
 * Does nothing if there is no such directory. */
int train_set_classes(struct config *config, struct error *err);
struct image_list;
/* The same, and returns the images that it listed for data_options.list; else an empty list. */
int train_list_classes(struct config *config, struct image_list *list, struct error *err);
/* Returns EXIT_CONFIG if the images have more classes than the model. */
int train_check_classes(const struct config *config, const struct data *data, int64_t classes,
                        struct error *err);
/* Checks classes, labels and samples of data.root and data.val as a start does, and logs what documents are;
 * of images without labels it does nothing. */
int train_check_samples(const struct config *config, struct error *err);
/* Returns whether most of the steps are warm-up, and sets the note that says so. images: those, or samples,
 * of an epoch; 0: unknown, unless train.steps is set. */
bool train_mostly_warmup(const struct config *config, int64_t images, struct error *note);
/* Logs it as a warning. */
void train_warn_warmup(const struct config *config, int64_t images);
/* Opens the device of an experiment: device.type, the first of device.cards, device.memory_limit (ignored
 * unless limited). */
int train_device_open(struct device **device, const struct config *config, bool limited, struct error *err);

/* Returns EXIT_CONFIG when a checkpoint or the images do not exist. `missing` (may be NULL) is called for
 * each; err is set for the first, with the command that fetches it. */
int train_check_files(const struct config *config, void (*missing)(void *context, const struct error *),
                      void *context, struct error *err);
/* Checks the file or directory that one key names. */
int train_check_file(const struct config *config, const char *key, struct error *err);

/* Returns the field of what a run trains further: lora.adapter with adapters, else model_s.weight. */
char **train_began_with(struct config *config);
/* Sets *path to the model file of the run's own newest checkpoint if the run began from a checkpoint
 * (train_began_with) that no longer exists, else to NULL. Returns EXIT_CONFIG if the run has no checkpoint.
 * The caller frees. */
int train_fallback_weights(struct config *config, const char *directory, char **path, struct error *err);

/* Checks files, model shapes and images of an experiment on the dry device, without allocating its memory.
 * Resolves the configuration. */
int train_dry_run(struct config *config, struct error *err);

#endif
