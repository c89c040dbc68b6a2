/* What a site has installed for its cards beside libraries: the kernel's driver and Hygon's toolkit. */
#ifndef MEOPT_DEVICE_SITE_H
#define MEOPT_DEVICE_SITE_H

#include <stdbool.h>
#include <stddef.h>

/* The kernel's module for cards of that vendor and its version, "hycu 6.3.8" (root: in front of /sys), or ""
 * when none is loaded or it does not say. name: the module's alone. */
bool site_module(const char *root, bool hip, char *name, size_t name_size, char *version, size_t size);
/* The DTK below $ROCM_PATH or /opt/dtk (root in front), "25.04.1"; false: there is none. */
bool site_dtk(const char *root, char *version, size_t size);

#endif
