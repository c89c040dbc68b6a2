/* Device, images and files of an experiment, from its configuration. */
#ifndef MEOPT_EXPERIMENT_EXPERIMENT_H
#define MEOPT_EXPERIMENT_EXPERIMENT_H

#include "core/config/config.h"
#include "core/data/data.h"
#include "core/experiment/targets.h"
#include "core/device/device.h"
#include "core/model/shape.h"

/* Returns the images of a resolved configuration: of all towers, or of the student alone where the teachers'
 * outputs are cached. */
struct data_options experiment_data_options(const struct config *config);
/* Returns the images of all teachers and, unless it is left out, of the student: one version for all towers
 * with the same size and preprocessing. */
struct data_options experiment_images(const struct config *config, bool student);
/* Returns the number of a tower's version among them. */
int experiment_view(const struct config *config, int tower);
/* data_open, with the classes in the order of class_order_read. */
int experiment_open_data(struct data **data, const struct config *config, const char *run,
                         struct data_options *options, struct error *err);
/* Images of an evaluation: one pass in their order. */
struct validation_data {
    struct data *val;   /* of data.val; NULL: there is no evaluation */
    struct data *bank;  /* of data.root, whose features are read (train.eval knn, probe); NULL: none */
    bool (*stop)(void); /* asked between two micro-batches whether to end; NULL: never */
};
/* Lists what identifies data.val: its images, token files, or the file that names images and classes. The
 * caller frees the list. */
int experiment_validation_list(struct image_list *list, const struct config *config, struct error *err);
/* Opens them in batches of `batch`, with the classes of the training images. train: the images of training,
 * which must outlive this call only; NULL: the classes are those of `order`, which may be NULL, too. report:
 * log what they are. To be closed after an error, too. */
int experiment_open_validation(struct validation_data *data, const struct config *config,
                               const struct data *train, const struct class_names *order, int rank, int ranks,
                               bool report, int64_t batch, struct error *err);
void experiment_close_validation(struct validation_data *data);
/* Returns the images of one tower. */
struct data_options experiment_tower_images(const struct config *config, int tower);
/* Sets model_s.classes, if it is 0 and the objective reads labels, to the number of classes in data.root.
 * Does nothing if there is no such directory. */
int experiment_set_classes(struct config *config, struct error *err);
/* Sets data.mask_token and data.special_tokens, where these are not given, to those that the description of
 * data.root's token files names. Refuses a tokenizer without a mask. */
int experiment_settle_mask(struct config *config, bool *found, struct error *err);
struct image_list;
/* The same, and returns the images that it listed for data_options.list; else an empty list. */
int experiment_list_classes(struct config *config, struct image_list *list, struct error *err);
/* Returns EXIT_CONFIG if the images have more classes than the model. */
int experiment_check_classes(const struct config *config, const struct data *data, int64_t classes,
                             struct error *err);
/* Checks classes, labels and samples of data.root and data.val as a start does, and logs what documents are;
 * of images without labels it does nothing. */
int experiment_check_samples(const struct config *config, struct error *err);
/* Returns whether most of the steps are warm-up, and sets the note that says so. images: those, or samples,
 * of an epoch; 0: unknown, unless train.steps is set. */
bool experiment_mostly_warmup(const struct config *config, int64_t images, struct error *note);
/* Logs it as a warning. */
void experiment_warn_warmup(const struct config *config, int64_t images);
/* Opens the device of an experiment: device.type, the first of device.cards, device.memory_limit (ignored
 * unless limited). */
int experiment_open_device(struct device **device, const struct config *config, bool limited,
                           struct error *err);

/* Returns EXIT_CONFIG when a checkpoint or the images do not exist. `missing` (may be NULL) is called for
 * each; err is set for the first, with the command that fetches it. */
int experiment_check_files(const struct config *config, void (*missing)(void *context, const struct error *),
                           void *context, struct error *err);
/* Checks the file or directory that one key names. */
int experiment_check_file(const struct config *config, const char *key, struct error *err);

/* Returns the field of what a run trains further: lora.adapter with adapters, else model_s.weight. */
char **experiment_began_with(struct config *config);
/* Sets *path to the model file of the run's own newest checkpoint if the run began from a checkpoint
 * (experiment_began_with) that no longer exists, else to NULL. Returns EXIT_CONFIG if the run has no
 * checkpoint. The caller frees. */
int experiment_fallback_weights(struct config *config, const char *directory, char **path, struct error *err);

/* Returns the compute type of a tower. */
enum dtype experiment_tower_type(const struct config_tower *tower);

/* Checks names, shapes and settings of one tower's existing checkpoint. tower: a teacher's number, or
 * TOWER_STUDENT (preprocess.h). */
int experiment_check_weights(struct config *config, int tower, struct error *err);
/* The towers of a configuration. */
struct experiment_towers {
    struct model_shape teachers[MOST_TEACHERS], student;
    int teacher_count;
    struct weights *teacher_weights[MOST_TEACHERS], *student_weights; /* NULL: random values */
    struct targets targets;
};
/* Determines the model shapes from configuration and checkpoints, and resolves the configuration. */
int experiment_towers(struct config *config, bool random, struct experiment_towers *towers,
                      struct error *err);
/* Closes the weights. */
void experiment_close_towers(struct experiment_towers *towers);
/* Returns EXIT_CONFIG for the first combination of keys that does not go together with these shapes.
 * experiment_towers calls it. */
int experiment_check(const struct config *config, const struct experiment_towers *towers, struct error *err);
/* The same with a training on this number of ranks. */
int experiment_check_ranks(const struct config *config, const struct experiment_towers *towers, int ranks,
                           struct error *err);
/* The rows of adapters alone, for a student that is read without its teacher or classifier. */
int experiment_check_adapters(const struct config *config, const struct model_shape *student,
                              struct error *err);
struct combinations;
/* Lists the rows of all combinations, also those that config_load checks. */
void experiment_combinations(const struct combinations *list);
/* Determines the shape of one tower and opens its checkpoint. The first teacher's is read for a student only
 * if needed: the student's default image size is the teacher's. */
int experiment_tower_shape(struct config *config, int tower, struct model_shape *model_shape,
                           struct weights **weights, struct error *err);

#endif
