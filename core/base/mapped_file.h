/* A file that is mapped and then cut off, or whose disk fails, has no error to return: whoever touches the
 * page gets SIGBUS. Here that signal becomes the error it is, with the file's name. */
#ifndef MEOPT_BASE_MAPPED_FILE_H
#define MEOPT_BASE_MAPPED_FILE_H

#include "core/base/error.h"

/* From now on such an access tells its error (EXIT_FAILED) to `tell`, or prints it when that is NULL, and
 * ends the process with the error's code: there is no other way back out of it. Any other SIGBUS ends it as
 * before. */
void lost_map_catch(void (*tell)(const struct error *err));

/* file_map_open and file_map_close do this. */
void lost_map_watch(const void *data, size_t bytes, const char *path);
void lost_map_forget(const void *data);

#endif
