/* KFD's files below /sys: see kfd.h. */
#include "core/base/kfd.h"
#include "core/base/memory.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NODES = 128 };

/* Reads a small file; false if it cannot be read. */
static bool read_small(char *text, size_t size, const char *root, const char *format, ...)
{
    char name[128], path[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    snprintf(path, sizeof path, "%s/sys/class/kfd/kfd/%s", root, name);
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, size - 1, f) : 0;
    text[n] = 0;
    if (f) fclose(f);
    return n > 0;
}

static unsigned long property(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoul(at + strlen(name), NULL, 10) : 0;
}

long kfd_card(const char *root, const char *pci)
{
    unsigned domain, bus, device, function;
    if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return 0;
    for (int node = 0; node < MOST_NODES; node++) {
        char text[4096];
        if (!read_small(text, sizeof text, root, "topology/nodes/%d/gpu_id", node)) return 0;
        long id = strtol(text, NULL, 10);
        if (id <= 0 || !read_small(text, sizeof text, root, "topology/nodes/%d/properties", node)) continue;
        if (property(text, "location_id ") == (bus << 8 | device << 3 | function) &&
            property(text, "domain ") == domain)
            return id;
    }
    return 0;
}

int kfd_processes(const char *root, int *pids, int most)
{
    char *path = xasprintf("%s/sys/class/kfd/kfd/proc", root);
    DIR *dir = opendir(path);
    int n = 0;
    for (struct dirent *e; dir && n < most && (e = readdir(dir)) != NULL;)
        if (atoi(e->d_name) > 0) pids[n++] = atoi(e->d_name);
    free(path);
    if (!dir) return -1;
    closedir(dir);
    return n;
}

bool kfd_bytes(const char *root, int pid, long card, double *bytes)
{
    char text[64], *end;
    if (!read_small(text, sizeof text, root, "proc/%d/vram_%ld", pid, card)) return false;
    *bytes = strtod(text, &end);
    return end != text && (*end == 0 || *end == '\n') && isfinite(*bytes);
}
