/* Host memory as a device without operations, for the optimizers. cpu.c adds operations; the library of the
 * optimizers alone uses only this file. */
#include "core/base/file.h"
#include "core/device/cpu.h"
#include "core/device/threads.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

enum { LARGE_BYTES = 1 << 20, PAGE_BYTES = 4096 };

/* Addresses that no process has, each once: an access to them faults. */
#define DRY_BEGIN ((uintptr_t)1 << 54)
#define DRY_MOST  ((size_t)1 << 50)

int dry_allocate(struct device *dev, enum memory_class class, size_t bytes, void **p)
{
    static _Atomic(uintptr_t) next = DRY_BEGIN;
    (void)dev;
    (void)class;
    if (bytes > DRY_MOST) return EXIT_HOST_MEMORY;
    *p = (void *)atomic_fetch_add(&next, (bytes / PAGE_BYTES + 2) * PAGE_BYTES);
    return 0;
}
void dry_release(struct device *dev, void *p, size_t bytes)
{
    (void)dev;
    (void)p;
    (void)bytes;
}

/* Pages are first touched by the threads that will use them, so that each share is placed on its thread's
 * NUMA node: rows and columns are divided in the same way. */
struct pages {
    volatile char *block;
    size_t bytes;
};
static void pages_touch(void *context, int thread, int threads)
{
    const struct pages *pages = context;
    int64_t count = (int64_t)(pages->bytes / 4096);
    for (int64_t i = threads_share(count, thread, threads); i < threads_share(count, thread + 1, threads);
         i++)
        pages->block[i * 4096] = 0;
}

/* Large blocks are mapped (zero pages, huge pages where available). Small blocks come from the heap, which
 * AddressSanitizer checks. Blocks of a page and more are page-aligned, so that O_DIRECT reads may fill
 * them. */
static int host_allocate(struct device *dev, enum memory_class class, size_t bytes, void **p)
{
    (void)class;
    (void)dev;
    if (bytes >= LARGE_BYTES) {
        void *q = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (q == MAP_FAILED) return EXIT_HOST_MEMORY;
        madvise(q, bytes, MADV_HUGEPAGE);
        struct pages pages = {q, bytes};
        if (threads_settled()) threads_run(threads_count(0), pages_touch, &pages);
        *p = q;
        return 0;
    }
    /* not aligned_alloc, which requires a multiple of the alignment */
    return posix_memalign(p, bytes < PAGE_BYTES ? 64 : PAGE_BYTES, bytes) ? EXIT_HOST_MEMORY : 0;
}
static void host_release(struct device *dev, void *p, size_t bytes)
{
    (void)dev;
    if (bytes >= LARGE_BYTES) munmap(p, bytes);
    else free(p);
}
static void host_transfer(struct device *dev, void *dst, const void *src, size_t bytes)
{
    if (bytes && dev->kind != DEVICE_DRY) memcpy(dst, src, bytes); /* NULL for parameters of other stages */
}
static void host_sync(struct device *dev) { (void)dev; }
static void host_close(struct device *dev) { free(dev->state); }

/* Memory limit of this process: the machine's memory, or its cgroup's limit if that is lower. */
static size_t machine_bytes(void)
{
    struct sysinfo info;
    size_t bytes = sysinfo(&info) == 0 ? (size_t)info.totalram * info.mem_unit : 0;
    char *text = NULL;
    size_t n;
    if (file_read("/sys/fs/cgroup/memory.max", 64, &text, &n, NULL) == 0) {
        char *end;
        unsigned long long limit = strtoull(text, &end, 10);
        if (end != text && limit && limit < bytes) bytes = (size_t)limit;
    }
    free(text);
    return bytes;
}

static void processor_name(char *name, size_t size)
{
    snprintf(name, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "model name", 10) == 0 && strchr(line, ':')) {
            char *text = strchr(line, ':') + 1;
            text[strcspn(text, "\n")] = 0;
            text_printable(name, size, text + (*text == ' '));
            break;
        }
    if (f) fclose(f);
}

struct device *device_host(void)
{
    static struct device host = {
        .optim = &cpu_optim, .kind = DEVICE_CPU, .name = "this machine", .host_memory = true};
    return &host; /* constant after initialisation */
}

int host_device_open(struct device **device, bool dry, size_t limit_bytes, size_t state_bytes,
                     struct error *err)
{
    struct device *dev = device_new(state_bytes, err);
    if (!dev) return EXIT_HOST_MEMORY;
    dev->kind = dry ? DEVICE_DRY : DEVICE_CPU;
    if (dry) snprintf(dev->name, sizeof dev->name, "plan");
    else processor_name(dev->name, sizeof dev->name);
    dev->limit_bytes = limit_bytes ? limit_bytes : dry ? 0 : machine_bytes();
    dev->allocate = dry ? dry_allocate : host_allocate;
    dev->release = dry ? dry_release : host_release;
    dev->streams = &streams_at_once;
    dev->optim = &cpu_optim;
    dev->host_memory = !dry;
    dev->upload = host_transfer;
    dev->download = host_transfer;
    dev->sync = host_sync;
    dev->close = host_close;
    *device = dev;
    return 0;
}

#ifdef MEOPT_OPTIMIZERS_ALONE
int cpu_device_open(struct device **device, bool dry, size_t limit_bytes, struct error *err)
{
    return host_device_open(device, dry, limit_bytes, 1, err);
}
#endif
