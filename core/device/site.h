/* A site's installation for its cards, except libraries: the kernel driver and Hygon's toolkit. */
#ifndef MEOPT_DEVICE_SITE_H
#define MEOPT_DEVICE_SITE_H

#include <stdbool.h>
#include <stddef.h>

/* Name and version of the kernel module for that vendor's cards, "hycu 6.3.8"; "" if none is loaded or it
 * reports none. root: prefix of /sys. name: the module's name alone. */
bool site_module(const char *root, bool hip, char *name, size_t name_size, char *version, size_t size);
/* Version of the DTK in $ROCM_PATH or /opt/dtk (below root), "25.04.1"; false: not installed. */
bool site_dtk(const char *root, char *version, size_t size);

#endif
