/* A monitor over a directory that the test fills, at `root`. */
#ifndef MEOPT_TESTS_UNIT_MONITOR_ROOT_H
#define MEOPT_TESTS_UNIT_MONITOR_ROOT_H

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/monitor/monitor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static char root[64];

static inline int setup(void **state)
{
    snprintf(root, sizeof root, "/tmp/meopt_monitor_XXXXXX");
    return mkdtemp(root) == NULL;
}

static inline int teardown(void **state)
{
    struct error err;
    return file_remove_tree(root, &err);
}

static inline void put(const char *path, const char *text)
{
    struct error err;
    char *full = xasprintf("%s/%s", root, path), *dir = path_dirname(full);
    assert_int_equal(file_make_dirs(dir, &err), 0);
    unlink(full); /* (a file that is cut and written again is flushed by ext4) */
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    free(dir);
    free(full);
}

static inline struct monitor *opened(const char *provider, const char *where)
{
    struct error err = {0};
    struct monitor *m;
    if (monitor_open(&m, &(struct monitor_options){.provider = provider, .root = where, .health = true},
                     &err))
        fail_msg("%s", err.what);
    return m;
}

static inline void assert_value(struct monitor_value v, double expected)
{
    if (!v.valid || !(v.value > expected - 1e-3 && v.value < expected + 1e-3))
        fail_msg("%s%.12g, not %.12g", v.valid ? "" : "N/A, had ", v.value, expected);
}

#endif
