/* The settings, images and weights that must not change when a run resumes: otherwise its numbers would
 * differ from those of a run that was never stopped, without any notice.
 *
 *     settings   meta.json: config, config_hash
 *     images     meta.json: images, data_crc32c, data_samples_crc32c; data.list: their names and sizes
 *     weights    content.h
 *
 *     json_t *identity = resume_check_config(config);                // before the configuration is resolved
 *     if (resume) code = resume_check_run(run, config, ranks, force, true, &changed, err);
 *     ... data_open ...
 *     code = resume_check_write_images(run, data_list(data), err);
 *     code = meta_write(run, trainer, data, total, start, identity, err);
 */
#ifndef MEOPT_TRAIN_RESUME_CHECK_H
#define MEOPT_TRAIN_RESUME_CHECK_H

#include "core/data/list.h"
#include "core/run/run.h"
#include "core/step/content.h"

/* {key: value as in YAML} of every key but those of where the run is stored (run.*); NULL when memory is out.
 * Keys that do not change the numbers are compared for the record of what changed. */
json_t *resume_check_config(const struct config *config);

/* Compares the configuration and images with those of the run's last start.
 *
 *   - A key that may change is logged. Any other difference is EXIT_CONFIG with the key and its values, or
 *     the names of images.
 *   - force: comma-separated keys that may change nevertheless, NULL for none; data.root stands for the
 *     images.
 *   - *changed: {key: [before, now]}, NULL without a difference; the caller frees.
 *   - The number of images per step on `ranks` ranks must be the same. Only a rank with `report` logs.
 *   - A run without meta.json has not begun yet and is not compared. */
int resume_check_run(const struct run *run, const struct config *config, int ranks, const char *force,
                     bool report, json_t **changed, struct error *err);

/* Compares the program, instruction set and libraries with those of the run's last start (meta.json).
 * Different ones may round differently, so that the numbers differ from those of a run that was never
 * stopped. Logs each difference and adds it to *changed. start: from start_table.h; to be called before
 * meta_write. */
void resume_check_start(const struct run *run, const json_t *start, json_t **changed);

/* Logs the learning rates of step `from` and of the next one, if the run's number of steps or its rates have
 * changed; to be called before meta_write. */
void resume_check_schedule(const struct run *run, const struct config *config, const json_t *changed,
                           int64_t from, int64_t total);

/* Compares the weights that were loaded into a tower (TOWER_STUDENT, or a teacher) with those that the run
 * began with (meta.json: teacher_crc32c, teacher_model, ...). A difference is EXIT_CONFIG with the file's
 * name, unless `force` contains the key of the file. A student whose path changed is not compared: its
 * weights come from the checkpoint. Neither is a run of a version that recorded no checksums. */
int resume_check_weights(const struct run *run, const struct config *config, int tower,
                         const struct tower_content *content, const char *force, bool report,
                         json_t **changed, struct error *err);

/* Sets the checksum of the student's weights to that of the weights that the run began with, for a run whose
 * student was read from another file. */
int resume_check_restore_student_crc(const struct run *run, struct tower_content *content, struct error *err);

/* Returns whether the key may change on resume. */
bool resume_check_may_change(const char *key, const char *force);

/* Writes data.list unless it already has this content. */
int resume_check_write_images(const struct run *run, const struct image_list *list, struct error *err);

#endif
