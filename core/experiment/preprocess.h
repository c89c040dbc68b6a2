/* Image preprocessing of a tower: from the keys, else from the library's files next to the checkpoint,
 * else the default of its family, which is then reported as assumed. */
#ifndef MEOPT_EXPERIMENT_PREPROCESS_H
#define MEOPT_EXPERIMENT_PREPROCESS_H

#include "core/config/config.h"
#include "core/data/data.h"
#include "core/model/sidecar.h"

/* Preprocessing in the files next to a checkpoint: pretrained_cfg in timm's config.json, preprocess_cfg in
 * open_clip_config.json, transformers' preprocessor_config.json or processor_config.json. */
struct preprocess_found {
    char from[32];         /* the file; "": none */
    struct preprocess how; /* its preprocessing */
    int64_t side;          /* its input size in pixels; 0: not given */
    int64_t usual;         /* input size in the model's own configuration; 0: not given */
    char odd[96];          /* a setting that is not supported; "": none */
};
/* Key of preprocessor_config.json: data.resize_as of the run that was exported. transformers ignores it. */
#define PREPROCESS_RESIZE_AS "meopt_resize_as"
/* Reads those files. sidecar: the checkpoint's sidecar config. */
int preprocess_read(struct preprocess_found *found, const struct sidecar *sidecar, const char *checkpoint,
                    const struct weights *weights, struct error *err);

/* Return preprocessing and image size of one tower, from a resolved configuration. */
struct preprocess train_preprocess(const struct config *config, int tower);
int64_t train_image_size(const struct config *config, int tower);
/* Returns whether two towers have different preprocessings. */
bool preprocess_differs(const struct config *config, int a, int b);
/* Returns whether some tower differs from the first teacher. */
bool preprocess_two(const struct config *config);
/* Writes `found` into the keys of data that were not given. pipeline_given: data.pipeline was given, so the
 * files are ignored. The configuration is resolved. */
int preprocess_assign(struct config *config, const struct preprocess_found *found, bool pipeline_given,
                      struct error *err);
/* Writes the keys of a further teacher that differ from data's: from its own files, else, if it is of another
 * family than the first, the default of its family. */
int preprocess_assign_teacher(struct config *config, int teacher, const struct preprocess_found *found,
                              bool pipeline_given, const struct model_shape *first,
                              const struct model_shape *own, struct error *err);
/* Writes the student's keys that differ from the teacher's: from its own files, else, for a student from a
 * file and of a different family, the default of that family. */
int preprocess_assign_student(struct config *config, const struct preprocess_found *found,
                              bool pipeline_given, const struct model_shape *teacher,
                              const struct model_shape *student, bool file, struct error *err);
/* Formats a float with the fewest digits that read back as the same value. */
const char *float_text(char *text, size_t size, float value);
/* Formats the preprocessing and its origin as one line. */
void preprocess_text(const struct config *config, int tower, char *text, size_t size);

#endif
