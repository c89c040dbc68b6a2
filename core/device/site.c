/* The kernel driver and DTK: see site.h. The paths are those of Hygon's own tools (HYGON-AI/hcu-dcgm). */
#include "core/device/site.h"
#include "core/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool first_line(char *text, size_t size, const char *root, const char *directory, const char *name)
{
    char path[600], line[128] = "";
    snprintf(path, sizeof path, "%.240s%.240s/%.64s", root, directory, name);
    FILE *f = fopen(path, "re");
    bool read = f && fgets(line, sizeof line, f);
    if (f) fclose(f);
    line[strcspn(line, "\r\n")] = 0;
    name_printable(text, size, line);
    return read;
}

bool site_module(const char *root, bool hip, char *name, size_t name_size, char *version, size_t size)
{
    static const char *const modules[2][4] = {{"nvidia"}, {"hycu", "hydcu", "amdgpu"}};
    for (const char *const *m = modules[hip]; *m; m++) {
        char directory[64];
        snprintf(directory, sizeof directory, "/sys/module/%s", *m);
        bool there = first_line(version, size, root, directory, "version");
        if (!there && !first_line(version, size, root, directory, "initstate")) continue;
        if (!there) version[0] = 0; /* built into the kernel: has the kernel's version */
        snprintf(name, name_size, "%s", *m);
        return true;
    }
    name[0] = version[0] = 0;
    return false;
}

bool site_dtk(const char *root, char *version, size_t size)
{
    static const char *const names[] = {"rocm_version", "version", "version-dev"};
    const char *own = getenv("ROCM_PATH"), *const places[] = {own ? own : "", "/opt/dtk"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char directory[256];
        if (!strstr(places[i], "dtk")) continue; /* ROCm has such files, too */
        snprintf(directory, sizeof directory, "%.240s/.info", places[i]);
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (first_line(version, size, root, directory, names[k])) return true;
    }
    version[0] = 0;
    return false;
}
