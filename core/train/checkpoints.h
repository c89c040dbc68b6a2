/* The checkpoints of one experiment that is planned many times, with other keys of memory: each is opened,
 * and its model shape determined and compared, once.
 *
 *     config.checkpoints = checkpoints_create();
 *     ... plan_make(&plan, &config, err), copies of config, ...
 *     checkpoints_free(config.checkpoints);
 *
 * known may be NULL: nothing is known, and nothing kept. One thread at a time.
 */
#ifndef MEOPT_TRAIN_CHECKPOINTS_H
#define MEOPT_TRAIN_CHECKPOINTS_H

#include "core/nn/nn.h"

struct checkpoints;
struct checkpoints *checkpoints_create(void);
void checkpoints_free(struct checkpoints *known); /* weights that it gave out stay open */

/* weights_open and model_shape_dims. Also after an error *weights may be open: weights_close. */
int checkpoints_open(struct checkpoints *known, const char *path, struct model_shape *g,
                     struct weights **weights, struct error *err);
/* model_shape_fits of a whole file. */
int checkpoints_fit(struct checkpoints *known, const struct model_shape *g, const struct weights *weights,
                    struct error *err);

#endif
