/* What must be the same when a run goes on: the keys that change its numbers (meta.json: config, config_hash)
 * and its images (meta.json: images, data_crc32c, data_samples_crc32c; data.list: their names and sizes) and
 * weights (content.h). Else the bits would not
 * be those of a run that never stopped, and nobody would know.
 *
 *     json_t *identity = identity_config(config);            // as the run's file says it, before it is
 * resolved if (resume) code = identity_check(run, config, ranks, force, true, &changed, err);
 *     ... data_open ...
 *     code = identity_write_images(run, data_list(data), err);
 *     code = meta_write(run, trainer, data, total, start, identity, err);
 */
#ifndef MEOPT_TRAIN_IDENTITY_H
#define MEOPT_TRAIN_IDENTITY_H

#include "core/data/list.h"
#include "core/run/run.h"
#include "core/train/content.h"

/* {key: value as in YAML} of every key but those of where the run is stored (run.*); NULL when memory is out.
 * Keys that do not change the numbers are compared for the record of what changed. */
json_t *identity_config(const struct config *config);

/* Compare with what the run was when it last began. What may change is told, what may not is EXIT_CONFIG with
 * the key, its values, or the names of images; `force`: keys between commas that may change all the same,
 * NULL for none; data.root stands for the images. *changed: {key: [before, now]}, NULL when nothing is; the
 * caller frees. On `ranks` ranks a step
 * must be of as many images as before; one of them tells. A run without meta.json has not begun yet. */
int identity_check(const struct run *run, const struct config *config, int ranks, const char *force,
                   bool tell, json_t **changed, struct error *err);

/* What computes it, beside what did when it last began (meta.json): another program, instruction set or
 * library may round otherwise, so that the numbers are not those of a run that never stopped. Told, and added
 * to *changed. start: of start.h; before meta_write. */
void identity_compare_start(const struct run *run, const json_t *start, json_t **changed);

/* Compares the weights that were loaded into a tower ("teacher", "student") with those that the run has begun
 * with (meta.json: teacher_crc32c, teacher_model, ...). A difference is EXIT_CONFIG with the file's name,
 * unless `force` has the key of the file, or it is the student's, whose path was changed: its weights are the
 * checkpoint's. A run of a version that recorded none has nothing to compare. */
int identity_check_weights(const struct run *run, const char *tower, const char *path,
                           const struct tower_content *content, const char *force, bool tell,
                           json_t **changed, struct error *err);

/* May that key be another when the run goes on? */
bool identity_may_change(const char *key, const char *force);

/* data.list, when it does not say the same already. */
int identity_write_images(const struct run *run, const struct image_list *list, struct error *err);

#endif
