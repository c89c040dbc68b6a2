/* The model files of one experiment that is planned many times, with other keys of memory: each is opened,
 * and its model shape determined and compared, once.
 *
 *     config.model_files = model_files_create();
 *     ... plan_make(&plan, &config, err), copies of config, ...
 *     model_files_free(config.model_files);
 *
 * known may be NULL: nothing is known, and nothing kept. One thread at a time.
 */
#ifndef MEOPT_MODEL_MODEL_FILES_H
#define MEOPT_MODEL_MODEL_FILES_H

#include "core/model/shape.h"

struct model_files;
struct model_files *model_files_create(void);
void model_files_free(struct model_files *known); /* weights that it gave out stay open */

/* weights_open and model_shape_dims. Also after an error *weights may be open: weights_close. */
int model_files_open(struct model_files *known, const char *path, struct model_shape *g,
                     struct weights **weights, struct error *err);
/* model_shape_fits of a whole file. */
int model_files_fit(struct model_files *known, const struct model_shape *g, const struct weights *weights,
                    struct error *err);

#endif
