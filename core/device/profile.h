/* Where a device's time goes: each of its operations timed by the clock, by kind of work.
 *
 * On a card every operation is waited for while the profile is on and nothing is issued as one graph: shares
 * are those of the operations one by one, and steps take longer than without. */
#ifndef MEOPT_DEVICE_PROFILE_H
#define MEOPT_DEVICE_PROFILE_H

#include "core/device/device.h"

enum work_kind { WORK_PRODUCTS, WORK_ATTENTION, WORK_ELEMENTWISE, WORK_OPTIMIZER, WORK_DATA, WORK_KINDS };
extern const char *const work_kind_names[WORK_KINDS]; /* "products", ... */

/* Since profile_clear, of calls that one thread made inside no other of them. */
struct device_profile {
    double seconds[WORK_KINDS];
    int64_t calls[WORK_KINDS];
    struct device inner; /* the slots of the device before: ops, optim, upload, download, sync */
    struct device_optim optim;
};

/* From here on until the device is closed. `profile` lives at least as long. */
void profile_begin(struct device_profile *profile, struct device *device);
void profile_clear(struct device_profile *profile);

#endif
