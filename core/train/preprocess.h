/* What the images of a tower pass through: from the keys, else from the files that a library laid beside the
 * checkpoint, else as its family usually has it, which is then said to be assumed. */
#ifndef MEOPT_TRAIN_PREPROCESS_H
#define MEOPT_TRAIN_PREPROCESS_H

#include "core/config/config.h"
#include "core/data/data.h"
#include "core/nn/sidecar.h"

/* What the files beside a checkpoint say: pretrained_cfg in timm's config.json, preprocess_cfg in
 * open_clip_config.json, transformers' preprocessor_config.json or processor_config.json. */
struct preprocess_found {
    char from[32];         /* the file; "": none says anything */
    struct preprocess how; /* of `from` */
    int64_t side;          /* of the input; 0: not said */
    int64_t usual;         /* side that the model's own configuration says; 0: not said */
    char odd[96];          /* what it says that is not known here; "": nothing */
};
/* beside: what is known of the checkpoint's own configuration file. */
int preprocess_read(struct preprocess_found *found, const struct sidecar *beside, const char *checkpoint,
                    const struct weights *weights, struct error *err);

/* The keys of a resolved configuration, for one of the towers. */
struct preprocess train_preprocess(const struct config *config, bool student);
int64_t train_image_size(const struct config *config, bool student);
/* Do teacher and student see an image in two ways? */
bool preprocess_two(const struct config *config);
/* Writes what was found into the keys that were not given; pipeline_given: data.pipeline was, so the files do
 * not count. The configuration is resolved. */
int preprocess_assign(struct config *config, const struct preprocess_found *found, bool pipeline_given,
                      struct error *err);
/* The same for the student's keys, where what it sees is not what the teacher sees: as its own files say,
 * else, of another family (and of a file), as that family usually has them. */
int preprocess_assign_student(struct config *config, const struct preprocess_found *found,
                              bool pipeline_given, const struct model_shape *teacher,
                              const struct model_shape *student, bool file, struct error *err);
/* As few digits as bring the same float back. */
const char *float_text(char *text, size_t size, float value);
/* One line for people: what it is, and where it is from. */
void preprocess_text(const struct config *config, bool student, char *text, size_t size);

#endif
