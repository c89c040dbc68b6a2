/* Profile of a device: the wall time of each operation, by kind of work.
 *
 * On a card the profile waits for every operation, and nothing is launched as a graph: shares are those of
 * isolated operations, and steps take longer.
 */
#ifndef MEOPT_DEVICE_PROFILE_H
#define MEOPT_DEVICE_PROFILE_H

#include "core/device/device.h"

enum work_kind {
    WORK_PRODUCTS,
    WORK_ATTENTION,
    WORK_ELEMENTWISE,
    WORK_OPTIMIZER,
    WORK_ORTHOGONAL,
    WORK_DATA,
    WORK_KINDS
};
extern const char *const work_kind_names[WORK_KINDS]; /* "products", ...; "orthogonal": Newton-Schulz */

/* Sums since profile_clear, over calls that were not nested in another one. */
struct device_profile {
    double seconds[WORK_KINDS];
    int64_t calls[WORK_KINDS];
    struct device inner; /* the device's original entries: ops, optim, upload, download, sync */
    struct device_optim optim;
    double orthogonal_began; /* one thread at a time orthogonalizes */
};

/* Profiles the device until it is closed. `profile` must live at least as long. */
void profile_begin(struct device_profile *profile, struct device *device);
void profile_clear(struct device_profile *profile);

#endif
