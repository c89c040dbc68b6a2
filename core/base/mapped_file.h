/* SIGBUS for mapped files. An access to a mapped file that was truncated, or whose disk fails, has no return
 * value: it raises SIGBUS. This module converts the signal to an error with the file's name. */
#ifndef MEOPT_BASE_MAPPED_FILE_H
#define MEOPT_BASE_MAPPED_FILE_H

#include "core/base/error.h"

/* Handles SIGBUS from now on. An access to a watched file passes its error (EXIT_FAILED) to `report`, or
 * prints it if that is NULL, and ends the process with the error's code, because the access cannot return.
 * Any other SIGBUS ends the process as before. */
void mapped_file_catch(void (*report)(const struct error *err));

/* file_map_open and file_map_close call these functions. */
void mapped_file_watch(const void *data, size_t bytes, const char *path);
void mapped_file_forget(const void *data);

#endif
