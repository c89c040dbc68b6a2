/* Checks of the host: processor, memory, disk, locale, libraries. See doctor.h. */
#include "core/base/processors.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/clock.h"
#include "core/base/retry.h"
#include "core/base/transfer.h"
#include "core/device/device.h"
#include "core/doctor/doctor.h"
#include "kernels/cpu/gemm_amx.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/optim.h"
#include "kernels/cpu/select.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <math.h>
#include <png.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <yaml.h>
#include <zlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static const double GIB = 1073741824.0;

static void check_system(struct doctor *d)
{
    struct utsname u;
    char *line = NULL, name[128] = N_("unknown distribution");
    char *path = doctor_path(d, "/etc/os-release");
    FILE *f = fopen(path, "re");
    size_t size = 0;
    while (f && getline(&line, &size, f) > 0)
        if (strncmp(line, "PRETTY_NAME=", 12) == 0)
            snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 13, "\"\n"), line + 13);
    if (f) fclose(f);
    free(line);
    free(path);
    if (uname(&u)) memset(&u, 0, sizeof u);
    struct line *l = doctor_add(d, FINDING_OK, "%s, Linux %s, %s", name, u.release, u.machine);
    line_text(l, "kernel", u.release);
}

static void check_processor(struct doctor *d)
{
    cpu_set_t set;
    int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1, threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    struct device *device = NULL;
    struct error err;
    const char *isa = cpu_ops_select()->isa;
    char name[128] = "processor";
    if (device_open(&device, "cpu", 0, &err) == 0) snprintf(name, sizeof name, "%s", device->name);
    device_close(device);
    double quota = processors_quota(d->root);
    struct cpu_refusal refusal;
    bool refused = cpu_isa_refused(gemm_amx_available(), &refusal);
    bool plain = strcmp(isa, "plain") == 0;
    const char *not_built = cpu_isa_not_built(cpu_here());
    struct line *l =
        doctor_add(d, refused || plain || not_built ? FINDING_WARNING : FINDING_OK,
                   "%s: kernels %s%s, optimizer %s; %d processors, %d threads", name, isa,
                   gemm_amx_available() ? " + AMX" : "", optim_kernels_find(NULL)->name, allowed, threads);
    line_text(l, "isa", isa);
    line_real(l, "processors", allowed);
    line_real(l, "threads", threads);
    if (refused) line_advise(l, refusal.why, refusal.hint);
    else if (plain) line_advise(l, "without AVX2 the CPU is several times slower", cpu_plain_remedy());
    else if (not_built)
        line_advise(
            l, "the compiler of this build does not support the fastest instruction set of this processor",
            "build with GCC 11 or Clang 12 and binutils 2.36, or later");
    if (threads > allowed) {
        l = doctor_add(d, FINDING_WARNING, "OMP_NUM_THREADS asks for %d threads on %d processors", threads,
                       allowed);
        line_advise(l, "threads wait for each other", "unset OMP_NUM_THREADS");
    }
    if (quota > 0 && quota < threads - 0.5) {
        l = doctor_add(d, FINDING_WARNING, "the control group allows %.1f processors, but %d threads run",
                       quota, threads);
        line_advise(l, "the kernel throttles the threads",
                    "export OMP_NUM_THREADS with the number of processors allowed");
    }
}

/* STREAM's triad (McCalpin): a = b + s c, 24 bytes per element with two loads and a store. */
static void check_bandwidth(struct doctor *d)
{
    enum { COUNT = 8 << 20 };
    if (d->quick) return;
    double *a = malloc(3 * sizeof *a * COUNT), best = 1e30;
    if (!a) {
        line_advise(doctor_add(d, FINDING_WARNING, "not measured: could not allocate 192 MiB"),
                    "the machine is short of memory", NULL);
        return;
    }
    double *b = a + COUNT, *c = b + COUNT;
    for (int run = 0; run < 6; run++) {
        double t = clock_seconds();
#pragma omp parallel for schedule(static)
        for (int i = 0; i < COUNT; i++) {
            if (run == 0) a[i] = 0, b[i] = 1, c[i] = 2;
            else a[i] = b[i] + 3.0 * c[i];
        }
        t = clock_seconds() - t;
        if (run && t < best) best = t;
    }
    bool right = a[0] == 7 && a[COUNT - 1] == 7;
    free(a);
    double rate = 24.0 * COUNT / best * 1e-9;
    struct line *l = doctor_add(
        d, right ? FINDING_OK : FINDING_MISSING,
        right ? N_("STREAM triad %.1f GB/s") : N_("STREAM triad gives wrong numbers (%.1f GB/s)"), rate);
    line_real(l, "triad_gb_per_s", rate);
    if (!right) line_advise(l, "the processor or its memory is faulty", "run a memory test");
}

/* Measures GEMM with known results: all elements of A and B are x. */
static double gemm_rate(struct device *dev, enum dtype type, int64_t side, bool *right)
{
    struct error err;
    double rate = 0, took = 0;
    *right = true;
    for (; side <= 8192 && took < 0.02 && *right; side *= 2) {
        size_t bytes = (size_t)(side * side) * 4;
        char *block = device_alloc(dev, MEMORY_WORKSPACE, 3 * bytes, "measurement", &err);
        if (!block) break;
        struct gemm g = {.m = side,
                         .n = side,
                         .k = side,
                         .a = block,
                         .b = block + bytes,
                         .c = block + 2 * bytes,
                         .lda = side,
                         .ldb = side,
                         .ldc = side,
                         .ab_type = type,
                         .c_type = DTYPE_F32,
                         .alpha = 1};
        dev->ops->fill(dev, block, 0x3C, 2 * bytes);
        took = 1e30;
        for (int run = 0; run < 3; run++) {
            double t = clock_seconds();
            dev->ops->gemm(dev, &g);
            dev->sync(dev);
            t = clock_seconds() - t;
            if (t < took) took = t;
        }
        float x, c[2];
        uint32_t bits = type == DTYPE_BF16 ? 0x3C3Cu << 16 : 0x3C3C3C3Cu;
        memcpy(&x, &bits, sizeof x);
        dev->download(dev, &c[0], g.c, sizeof c[0]);
        dev->download(dev, &c[1], (float *)g.c + side * side - 1, sizeof c[1]);
        double expected = (double)x * (double)x * (double)side;
        for (int i = 0; i < 2; i++)
            *right = *right && (double)c[i] > expected * 0.999 && (double)c[i] < expected * 1.001;
        rate = fmax(rate, 2.0 * (double)(side * side * side) / took);
        device_free(dev, block);
    }
    return rate;
}

static void check_gemm(struct doctor *d)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    struct device *device = NULL;
    struct error err = {0};
    if (d->quick) return;
    if (device_open(&device, "cpu", 0, &err)) {
        line_advise(doctor_add(d, FINDING_WARNING, "GEMM not measured: %s", err.what), NULL, NULL);
        return;
    }
    for (int i = 0; i < 2; i++) {
        bool right;
        double rate = gemm_rate(device, types[i], 1024, &right) * 1e-9;
        struct line *l = doctor_add(d, right ? FINDING_OK : FINDING_MISSING, "GEMM %s %.1f GFLOP/s%s",
                                    dtype_name(types[i]), rate, right ? "" : _(", wrong numbers"));
        line_text(l, "dtype", dtype_name(types[i]));
        line_real(l, "gflop_per_s", rate);
        if (!right)
            line_advise(l, "this build does not work on this processor",
                        "send this report to the maintainers");
    }
    device_close(device);
}

/* "MemAvailable:   123 kB" */
static double meminfo(const struct doctor *d, const char *key)
{
    char *path = doctor_path(d, "/proc/meminfo"), line[160];
    FILE *f = fopen(path, "re");
    double kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':')
            kib = strtod(line + strlen(key) + 1, NULL);
    if (f) fclose(f);
    free(path);
    return kib * 1024;
}

static double number_file(const struct doctor *d, const char *path)
{
    char *text = doctor_read(d, path), *end = NULL;
    double value = text ? strtod(text, &end) : 0;
    if (!text || end == text || value > 1e15) value = 0; /* "max", or version 1's huge number */
    free(text);
    return value;
}

/* Returns the lowest limit from this process's group to the root, version 2; else version 1's limit. */
static double cgroup_limit(const struct doctor *d)
{
    double limit = 0;
    char *text = doctor_read(d, "/proc/self/cgroup");
    char *group = text ? strrchr(text, ':') : NULL;
    char at[512];
    snprintf(at, sizeof at, "%.400s", group ? group + 1 : "/");
    for (;;) {
        char path[600];
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", strcmp(at, "/") == 0 ? "" : at);
        double here = number_file(d, path);
        if (here > 0 && (limit == 0 || here < limit)) limit = here;
        char *slash = strrchr(at, '/');
        if (!slash) break;
        *slash = 0;
    }
    free(text);
    return limit > 0 ? limit : number_file(d, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
}

static void check_memory(struct doctor *d)
{
    double total = meminfo(d, "MemTotal"), available = meminfo(d, "MemAvailable"), limit = cgroup_limit(d);
    struct line *l = doctor_add(d, available < 2 * GIB ? FINDING_WARNING : FINDING_OK,
                                "%.1f GiB, %.1f GiB available%s", total / GIB, available / GIB,
                                limit > 0 && limit < total ? "" : _(", no limit of a control group"));
    line_real(l, "total_bytes", total);
    line_real(l, "available_bytes", available);
    if (l->finding)
        line_advise(l, "less than 2 GiB is free: even the small models may not fit",
                    "end other programs; 'meopt plan CONFIG' shows the memory of an experiment");
    if (limit > 0 && limit < total) {
        l = doctor_add(d, FINDING_OK, "the control group allows %.1f GiB", limit / GIB);
        line_real(l, "limit_bytes", limit);
        line_advise(l, "beyond that the kernel kills the process (exit -9)", NULL);
    }
    struct rlimit r;
    if (getrlimit(RLIMIT_AS, &r) == 0 && r.rlim_cur != RLIM_INFINITY) {
        l = doctor_add(d, FINDING_WARNING, "ulimit -v is %.1f GiB", (double)r.rlim_cur / GIB);
        line_advise(l, "card drivers reserve far more address space than they use", "ulimit -v unlimited");
    }
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < 1024)
        line_advise(doctor_add(d, FINDING_WARNING, "ulimit -n is %llu", (unsigned long long)r.rlim_cur),
                    "many ranks and data workers need more open files", "ulimit -n 4096");
}

static void check_shm(struct doctor *d)
{
    struct statvfs fs;
    char *path = doctor_path(d, "/dev/shm");
    int there = statvfs(path, &fs) == 0, writable = access(path, W_OK) == 0;
    free(path);
    if (!there || !writable) {
        line_advise(doctor_add(d, FINDING_MISSING, there ? N_("/dev/shm cannot be written") : "no /dev/shm"),
                    "ranks on one host communicate through it",
                    "mount -t tmpfs tmpfs /dev/shm, or start the container with --shm-size");
        return;
    }
    double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    struct line *l = doctor_add(d, free_bytes < GIB ? FINDING_WARNING : FINDING_OK,
                                "/dev/shm has %.2f GiB free", free_bytes / GIB);
    line_real(l, "free_bytes", free_bytes);
    if (l->finding)
        line_advise(l, "NCCL, RCCL and ranks on one host need about 1 GiB (a container's default is 64 MiB)",
                    "start the container with --shm-size=8g");
}

static const char *filesystem(const char *path)
{
    static const struct {
        unsigned long magic;
        const char *name;
    } known[] = {{0xEF53, "ext"},      {0x58465342, "xfs"},    {0x9123683E, "btrfs"},   {0x01021994, "tmpfs"},
                 {0x6969, "nfs"},      {0x0BD00BD0, "lustre"}, {0x794c7630, "overlay"}, {0x47504653, "gpfs"},
                 {0x65735546, "fuse"}, {0x19830326, "fhgfs"},  {0x2FC12FC1, "zfs"}};
    struct statfs fs;
    if (statfs(path, &fs) == 0)
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (known[i].magic == ((unsigned long)fs.f_type & 0xffffffffu)) return known[i].name;
    return _("unknown file system");
}

/* Writes and syncs 64 MiB, so that the disk is measured and not the page cache. */
static int write_speed(const char *directory, double *rate)
{
    enum { BLOCK = 4 << 20, BLOCKS = 16 };
    char *path = xasprintf("%s/.meopt-doctor-%d", directory, (int)getpid()), *block = calloc(1, BLOCK);
    int fd = block ? open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600) : -1,
        failed = fd < 0 ? errno : 0;
    double t = clock_seconds();
    for (int i = 0; !failed && i < BLOCKS; i++) {
        memset(block, i + 1, BLOCK);
        for (size_t done = 0; !failed && done < BLOCK;) {
            ssize_t n = retry_write(fd, block + done, BLOCK - done, -1);
            if (n < 0) failed = errno;
            else done += (size_t)n;
        }
    }
    if (!failed && retry_sync(fsync, fd)) failed = errno;
    *rate = (double)BLOCK * BLOCKS / (clock_seconds() - t) * 1e-9;
    if (fd >= 0) {
        close(fd);
        unlink(path);
    }
    free(block);
    free(path);
    return failed;
}

static void check_disk(struct doctor *d)
{
    struct statvfs fs;
    char *directory = xstrdup(d->run_directory);
    struct stat st;
    while (stat(directory, &st) != 0 && strcmp(directory, ".") != 0 &&
           strcmp(directory, "/") != 0) { /* the run directory may not exist yet */
        char *up = path_dirname(directory);
        free(directory);
        directory = up;
    }
    if (statvfs(directory, &fs)) {
        line_advise(doctor_add(d, FINDING_MISSING, "%s: %s", directory, strerror(errno)),
                    "runs cannot be written", "give another directory: meopt train --run-dir DIR");
        free(directory);
        return;
    }
    double space = (double)fs.f_bavail * (double)fs.f_frsize, rate = 0;
    struct line *l = doctor_add(d, space < 20 * GIB ? FINDING_WARNING : FINDING_OK, "%s (%s): %.1f GiB free",
                                d->run_directory, filesystem(directory), space / GIB);
    line_real(l, "free_bytes", space);
    if (l->finding)
        line_advise(l,
                    "a checkpoint of the published workloads takes 3 to 12 GiB, and two are kept while a new "
                    "one is written",
                    "give another directory: meopt train --run-dir DIR");
    int failed = d->quick ? access(directory, W_OK) ? errno : 0 : write_speed(directory, &rate);
    if (failed) {
        line_advise(doctor_add(d, FINDING_MISSING, "%s: %s", d->run_directory, strerror(failed)),
                    "runs cannot be written", "give another directory: meopt train --run-dir DIR");
    } else if (!d->quick) {
        l = doctor_add(d, rate < 0.1 ? FINDING_WARNING : FINDING_OK, "%s: writes %.2f GB/s with fsync",
                       d->run_directory, rate);
        line_real(l, "write_gb_per_s", rate);
        if (l->finding)
            line_advise(l, "checkpoints interrupt training for a long time",
                        "give a faster disk: meopt train --run-dir DIR");
    }
    free(directory);
}

static void check_locale(struct doctor *d)
{
    const char *codeset = nl_langinfo(CODESET), *lang = getenv("LC_ALL");
    if (!lang || !*lang) lang = getenv("LC_CTYPE");
    if (!lang || !*lang) lang = getenv("LANG");
    bool utf8 = strcmp(codeset, "UTF-8") == 0;
    struct line *l = doctor_add(d, utf8 ? FINDING_OK : FINDING_WARNING, "%s (LANG %s)", codeset,
                                lang && *lang ? lang : _("not set"));
    if (!utf8)
        line_advise(l, "the dashboard draws with plain ASCII, and names in other scripts are escaped",
                    "export LC_ALL=C.UTF-8");
}

static void check_libraries(struct doctor *d)
{
    int major, minor, patch;
    yaml_get_version(&major, &minor, &patch);
    doctor_add(d, FINDING_OK, "libyaml %d.%d.%d, jansson %s, zlib %s, libpng %s", major, minor, patch,
               JANSSON_VERSION, zlibVersion(), png_get_libpng_ver(NULL));
}

const struct doctor_row doctor_host[] = {
    {N_("system"), check_system},       {N_("processor"), check_processor},
    {N_("bandwidth"), check_bandwidth}, {N_("gemm"), check_gemm},
    {N_("memory"), check_memory},       {N_("shm"), check_shm},
    {N_("disk"), check_disk},           {N_("locale"), check_locale},
    {N_("libraries"), check_libraries}, {NULL, NULL},
};
