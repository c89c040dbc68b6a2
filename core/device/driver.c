/* Drivers by dlopen: see driver.h. */
#include "core/device/driver.h"
#include "core/base/library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const driver_names[DRIVER_KINDS] = {"hip", "cuda"};
static const enum library_id library_ids[DRIVER_KINDS] = {LIBRARY_HIP, LIBRARY_CUDA};

/* One row per entry point: offset in struct driver, its two names (NULL: that vendor lacks it), optional. */
static const struct entry {
    size_t at;
    const char *names[DRIVER_KINDS];
    bool optional;
} entries[] = {
#define ROW(member, hip, cuda, arguments)      {offsetof(struct driver, member), {#hip, #cuda}, false},
#define OPTIONAL(member, hip, cuda, arguments) {offsetof(struct driver, member), {#hip, #cuda}, true},
#define HIP_ROW(member, symbol, arguments)     {offsetof(struct driver, member), {#symbol, NULL}, false},
#define CUDA_ROW(member, symbol, arguments)    {offsetof(struct driver, member), {NULL, #symbol}, false},
    DRIVER_ENTRIES(ROW) DRIVER_GRAPH_ENTRIES(OPTIONAL) DRIVER_HIP_ENTRIES(HIP_ROW)
        DRIVER_CUDA_ENTRIES(CUDA_ROW){offsetof(struct driver, hip_error), {"hipGetErrorString", NULL}, false},
};

static int not_loaded(enum driver_kind kind, const struct library *l, struct error *err)
{
    const char *variable = library_variable(library_ids[kind]), *own = getenv(variable);
    if (own && *own)
        return error_set(err, EXIT_NO_CARD, NULL, "%s=%s does not load: %s", variable, l->path, l->why);
    return error_set(
        err, EXIT_NO_CARD,
        kind == DRIVER_HIP ? N_("install the AMD or DTK driver, or 'module load' it (source "
                                "/opt/dtk/env.sh); see meopt-devices(7)")
                           : N_("install the NVIDIA driver; see meopt-devices(7)"),
        "no %s driver: %s is not installed (%s)", driver_names[kind],
        kind == DRIVER_HIP ? N_("libgalaxyhip.so.5 or libamdhip64.so[.5|.6|.7]") : "libcuda.so.1", l->why);
}

int driver_open(struct driver *d, enum driver_kind kind, struct error *err)
{
    struct library library;
    memset(d, 0, sizeof *d);
    d->kind = kind;
    d->handle = library_open(library_ids[kind], &library);
    snprintf(d->path, sizeof d->path, "%s", library.path);
    if (!d->handle) return not_loaded(kind, &library, err);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        const char *name = entries[i].names[kind];
        void *p = name ? dlsym(d->handle, name) : NULL;
        if (name && !p && !entries[i].optional)
            return error_set(err, EXIT_NO_CARD, "a newer driver is needed; see meopt-devices(7)",
                             "%s has no %s", d->path, name);
        memcpy((char *)d + entries[i].at, &p, sizeof p);
    }
    char text[160];
    int code = d->init(0), count = 0;
    if (!code) code = d->count(&count);
    if (code == DRIVER_NO_DEVICE || code == DRIVER_INVALID_DEVICE || (!code && count == 0))
        return error_set(err, EXIT_NO_CARD, driver_remedy(d, DRIVER_NO_DEVICE, NULL),
                         "the driver %s sees no card", d->path);
    if (code)
        return error_set(
            err, EXIT_NO_CARD,
            driver_remedy(d, code, N_("read the kernel's log (dmesg), which has the driver's own messages")),
            "the driver %s does not initialise: %s", d->path, driver_text(d, code, text, sizeof text));
    return 0;
}

const char *driver_text(const struct driver *d, int error, char *text, size_t size)
{
    const char *words = NULL;
    if (d->hip_error) words = d->hip_error(error);
    else if (d->cuda_error && d->cuda_error(error, &words)) words = NULL;
    snprintf(text, size, "%s (%d)", words && *words ? words : N_("unknown error"), error);
    return text;
}

/* One row per error with a remedy: for HIP, for CUDA (NULL: none known). The numbers are those of CUresult
 * and hipError_t, which are the same where both have them. */
static const struct remedy {
    int error;
    const char *hints[DRIVER_KINDS];
} remedies[] = {
    {46, /* devices unavailable */
     {NULL, N_("stop the process that holds the card; if it is in exclusive mode: nvidia-smi -c 0")}},
    {DRIVER_NO_DEVICE,
     {N_("see 'meopt doctor': no card, no permission on /dev/kfd, or hidden by *_VISIBLE_DEVICES"),
      N_("see 'meopt doctor': no card, no permission on /dev/nvidia*, or hidden by CUDA_VISIBLE_DEVICES")}},
    {201, /* invalid context */
     {N_("start the program again: a library in it has reset the card"),
      N_("start the program again: a library in it has reset the card")}},
    {214, /* uncorrectable ECC error */
     {N_("reset the card ('rocm-smi --gpureset -d N'); replace it if 'rocm-smi --showrasinfo' counts more"),
      N_("reset the card ('nvidia-smi --gpu-reset -i N'); replace it if 'nvidia-smi -q -d ECC' counts "
         "more")}},
    {700, /* illegal address */
     {N_("resume the run; if it fails again, read dmesg and send the file of 'meopt doctor --share FILE'"),
      N_("resume the run; if it fails again, read dmesg (Xid) and send the file of 'meopt doctor --share "
         "FILE'")}},
    {802,
     {NULL, N_("start the fabric manager of the driver's version: systemctl start nvidia-fabricmanager")}},
    {803,
     {NULL, N_("reboot: the driver's kernel module and libcuda.so.1 have different versions; in a container, "
               "remove its own libcuda.so.1")}},
    {804, {NULL, N_("remove cuda-compat from LD_LIBRARY_PATH: this card does not support it")}},
    {999, /* unknown */
     {N_("reset the card ('rocm-smi --gpureset -d N') or reboot; dmesg has the reason"),
      N_("load the module again ('modprobe -r nvidia_uvm && modprobe nvidia_uvm') or reboot; dmesg has the "
         "reason")}},
};

const char *driver_remedy(const struct driver *d, int error, const char *otherwise)
{
    if (error == 716 || error == 719) error = 700; /* misaligned address, launch failure */
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
        if (remedies[i].error == error && remedies[i].hints[d->kind]) return remedies[i].hints[d->kind];
    return otherwise;
}

/* Reads the version of the toolkit that made an object: after its mark; of CUDA 12 and earlier, whose ELF
 * header has the ABI 7, the header's version field (129: 12.9). */
static bool toolkit_of(const char *text, const void *image, size_t bytes, int *major, int *minor)
{
    enum { OSABI = 7, ABI = 8, VERSION = 20, HEADER = 64, CUDA_OSABI = 0x33, CUDA_ABI = 7 };
    const unsigned char *header = image;
    if (text) return sscanf(text, "%d.%d", major, minor) == 2;
    if (bytes < HEADER || memcmp(header, "\177ELF", 4) != 0 || header[OSABI] != CUDA_OSABI ||
        header[ABI] != CUDA_ABI)
        return false;
    *major = header[VERSION] / 10, *minor = header[VERSION] % 10;
    return true;
}

bool driver_too_old(const struct driver *d, const void *image, size_t bytes, char *text, size_t size)
{
    static const char mark[] = "Cuda compilation tools, release ";    /* in every object of CUDA 13 */
    static const int needed[][2] = {{13, 580}, {12, 525}, {11, 450}}; /* CUDA's release notes, table 3 */
    int version = 0, major, minor, driver = 0;
    const char *found = memmem(image, bytes, mark, sizeof mark - 1);
    if (d->kind != DRIVER_CUDA || d->version(&version) ||
        !toolkit_of(found ? found + sizeof mark - 1 : NULL, image, bytes, &major, &minor) ||
        version / 1000 >= major)
        return false;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (needed[i][0] == major) driver = needed[i][1];
    if (!driver)
        snprintf(text, size,
                 _("update the driver: the code objects are of CUDA %d.%d, this driver supports %d.%d"),
                 major, minor, version / 1000, version % 1000 / 10);
    else
        snprintf(
            text, size,
            _("update the driver to %d or later: the code objects are of CUDA %d.%d, this driver supports "
              "%d.%d; or build MEOpt with that version's nvcc or ptxas"),
            driver, major, minor, version / 1000, version % 1000 / 10);
    return true;
}

/* Reads the architecture of a card from its KFD node, which has 10000 major + 100 minor + stepping: 90010 is
 * gfx90a. */
static void kfd_arch(const char *bus_id, char *arch, size_t size)
{
    static const char nodes[] = "/sys/class/kfd/kfd/topology/nodes";
    unsigned domain = 0, bus = 0, device = 0, function = 0;
    DIR *dir = opendir(nodes);
    if (!dir) return;
    int known = sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4;
    for (struct dirent *e; known && (e = readdir(dir));) {
        char path[400], key[64];
        unsigned long long value, location = 0, target = 0, node_domain = 0;
        snprintf(path, sizeof path, "%s/%.64s/properties", nodes, e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f) continue;
        while (fscanf(f, "%63s %llu", key, &value) == 2) {
            if (strcmp(key, "location_id") == 0) location = value;
            if (strcmp(key, "domain") == 0) node_domain = value;
            if (strcmp(key, "gfx_target_version") == 0) target = value;
        }
        fclose(f);
        if (target && node_domain == domain && location == (bus << 8 | device << 3 | function))
            snprintf(arch, size, "gfx%llu%llx%llx", target / 10000, target / 100 % 100, target % 100);
    }
    closedir(dir);
}

int driver_card(const struct driver *d, int ordinal, struct card_info *info, struct error *err)
{
    char text[160], seen[64];
    int device = 0, count = 0, code = d->count(&count), major = 0, minor = 0;
    const char *kind = driver_names[d->kind];
    memset(info, 0, sizeof *info);
    if (!code && (ordinal < 0 || ordinal >= count)) {
        snprintf(seen, sizeof seen, count > 1 ? _("%s:0 to %s:%d") : "%s:0", kind, kind, count - 1);
        return error_set(err, EXIT_NO_CARD, "see 'meopt doctor'; *_VISIBLE_DEVICES hide cards",
                         "no card %s:%d: the driver sees %s", kind, ordinal, seen);
    }
    if (!code) code = d->get(&device, ordinal);
    if (!code) code = d->name(info->name, (int)sizeof info->name, device);
    if (!code) code = d->total(&info->total_bytes, device);
    if (code)
        return error_set(err, EXIT_NO_CARD, driver_remedy(d, code, N_("see 'meopt doctor'")),
                         "card %s:%d does not answer: %s", driver_names[d->kind], ordinal,
                         driver_text(d, code, text, sizeof text));
    char name[sizeof info->name];
    memcpy(name, info->name, sizeof name);
    name[sizeof name - 1] = 0;
    name_printable(info->name, sizeof info->name, name);
    if (d->bus_id(info->bus_id, (int)sizeof info->bus_id, device)) info->bus_id[0] = 0;
    if (d->attribute(&info->units, d->kind == DRIVER_CUDA ? DRIVER_CUDA_UNITS : DRIVER_HIP_UNITS, device) ||
        info->units < 1)
        info->units = 64;
    if (d->kind == DRIVER_CUDA && !d->attribute(&major, DRIVER_CUDA_MAJOR, device) &&
        !d->attribute(&minor, DRIVER_CUDA_MINOR, device))
        snprintf(info->arch, sizeof info->arch, "sm_%d%d", major, minor);
    if (d->kind == DRIVER_HIP) kfd_arch(info->bus_id, info->arch, sizeof info->arch);
    const char *own = getenv("MEOPT_GPU_ARCH");
    if (own && *own) snprintf(info->arch, sizeof info->arch, "%s", own);
    return 0;
}

int driver_card_free(const struct driver *d, int ordinal, size_t *bytes)
{
    size_t total;
    int device, before = -1, code = d->get(&device, ordinal);
    void *context, *was = NULL;
    if (code) return code;
    if (d->kind == DRIVER_HIP) {
        if (d->get_device(&before)) before = -1;
        code = d->set_device(ordinal);
        if (!code) code = d->memory_info(bytes, &total);
        if (before >= 0) d->set_device(before);
        return code;
    }
    if ((code = d->retain(&context, device)) != 0) return code;
    if (d->get_context(&was)) was = NULL;
    code = d->set_context(context);
    if (!code) code = d->memory_info(bytes, &total);
    d->set_context(was);
    d->release(device);
    return code;
}
