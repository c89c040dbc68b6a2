/* A directory for the files of a test program: setup and teardown of a test or of a group. */
#ifndef MEOPT_TESTS_WORK_DIRECTORY_H
#define MEOPT_TESTS_WORK_DIRECTORY_H

#include "core/base/file.h"
#include "core/base/path.h"

#include <stdlib.h>
#include <string.h>

static char work[64];

static int setup(void **state)
{
    strcpy(work, "/tmp/meopt-test-XXXXXX");
    return mkdtemp(work) ? 0 : -1;
}

static int teardown(void **state) { return file_remove_tree(work, NULL); }

/* Writes a file below it, in directories that are made. */
static inline void put_file(const char *name, const void *bytes, size_t size)
{
    char *path = path_join(work, name), *directory = path_dirname(path);
    if (file_make_dirs(directory, NULL) || file_write_atomic(path, bytes, size, NULL)) abort();
    free(directory);
    free(path);
}

#endif
