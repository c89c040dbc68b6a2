/* Checks of cards: hardware, permissions, variables,
 * drivers, libraries, and every card at work. See doctor.h. */
#include "core/base/file.h"
#include "core/base/clock.h"
#include "core/device/bench.h"
#include "core/base/library.h"
#include "core/device/gpu.h"
#include "core/doctor/doctor.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const double GIB = 1073741824.0;

static const struct {
    unsigned id;
    const char *name;
    enum driver_kind driver;
} vendors[] = {{0x1002, "AMD", DRIVER_HIP}, {0x1d94, "Hygon", DRIVER_HIP}, {0x10de, "NVIDIA", DRIVER_CUDA}};
enum { VENDORS = sizeof vendors / sizeof *vendors };

/* Displays, 3D controllers and accelerators on the PCI bus, by vendor. */
static void count_cards(const struct doctor *d, int count[VENDORS])
{
    char *path = doctor_path(d, "/sys/bus/pci/devices");
    DIR *dir = opendir(path);
    free(path);
    memset(count, 0, VENDORS * sizeof *count);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char vendor_path[400], class_path[400];
        snprintf(vendor_path, sizeof vendor_path, "/sys/bus/pci/devices/%.200s/vendor", e->d_name);
        snprintf(class_path, sizeof class_path, "/sys/bus/pci/devices/%.200s/class", e->d_name);
        char *vendor = doctor_read(d, vendor_path), *class = doctor_read(d, class_path);
        unsigned long kind = class ? strtoul(class, NULL, 16) >> 8 : 0;
        for (int i = 0; vendor && i < VENDORS; i++)
            if (strtoul(vendor, NULL, 16) == vendors[i].id &&
                (kind >> 8 == 0x03 || kind >> 8 == 0x12 || kind == 0x0b40))
                count[i]++;
        free(vendor);
        free(class);
    }
    if (dir) closedir(dir);
}

static void check_hardware(struct doctor *d)
{
    int count[VENDORS], total = 0;
    count_cards(d, count);
    for (int i = 0; i < VENDORS; i++) {
        if (!count[i]) continue;
        struct line *l = doctor_add(d, FINDING_OK, "%d card%s of %s on the PCI bus", count[i],
                                    count[i] == 1 ? "" : "s", vendors[i].name);
        line_real(l, "cards", count[i]);
        total += count[i];
    }
    if (!total)
        line_advise(doctor_add(d, FINDING_MISSING, "no card on the PCI bus"),
                    "training runs on the CPU, or on another machine's cards", NULL);
}

/* A device file that this user must read and write. 0: fine, -1: not there, else errno */
static int device_file(struct doctor *d, const char *name)
{
    char *path = doctor_path(d, name);
    struct stat st;
    int result = stat(path, &st) ? -1 : access(path, R_OK | W_OK) ? errno : 0;
    if (result > 0) {
        struct group *g = getgrgid(st.st_gid);
        char mend[200], meaning[160];
        snprintf(mend, sizeof mend,
                 "sudo usermod -aG %s $USER, then log in again; in a container: --device=%s --group-add %u",
                 g ? g->gr_name : "render", name, (unsigned)st.st_gid);
        snprintf(meaning, sizeof meaning, "the card is there, this user may not use it");
        line_advise(doctor_add(d, FINDING_WARNING, "%s: %s (mode %03o, group %s)", name, strerror(result),
                               (unsigned)st.st_mode & 0777, g ? g->gr_name : "unknown"),
                    meaning, mend);
    } else if (result == 0) doctor_add(d, FINDING_OK, "%s can be read and written", name);
    free(path);
    return result;
}

static void device_files(struct doctor *d, const char *directory, const char *prefix)
{
    char *path = doctor_path(d, directory);
    DIR *dir = opendir(path);
    free(path);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        char name[400];
        size_t n = strlen(prefix);
        if (strncmp(e->d_name, prefix, n) != 0 ||
            strspn(e->d_name + n, "0123456789") != strlen(e->d_name + n) || !e->d_name[n])
            continue;
        snprintf(name, sizeof name, "%s/%.200s", directory, e->d_name);
        device_file(d, name);
    }
    if (dir) closedir(dir);
}

static void check_permissions(struct doctor *d)
{
    int count[VENDORS];
    count_cards(d, count);
    int amd = count[0] + count[1], nvidia = count[2];
    int kfd = device_file(d, "/dev/kfd");
    if (kfd == 0 || amd) device_files(d, "/dev/dri", "renderD");
    if (kfd < 0 && amd)
        line_advise(doctor_add(d, FINDING_MISSING, "no /dev/kfd"),
                    "a card of AMD or Hygon without the kernel's driver",
                    "sudo modprobe amdgpu (Hygon: the hydcu module of DTK); in a container: "
                    "--device=/dev/kfd --device=/dev/dri");
    int control = device_file(d, "/dev/nvidiactl");
    if (control >= 0) device_files(d, "/dev", "nvidia");
    if (control < 0 && nvidia)
        line_advise(doctor_add(d, FINDING_MISSING, "no /dev/nvidiactl"),
                    "a card of NVIDIA without the kernel's driver",
                    "sudo modprobe nvidia; in a container: --gpus all");
    if (kfd < 0 && control < 0 && !amd && !nvidia)
        doctor_add(d, FINDING_OK, "no device files of cards, and no card that needs them");
}

static void check_variables(struct doctor *d)
{
    static const char *const names[] = {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
                                        "GPU_DEVICE_ORDINAL"};
    int set = 0, composed = 0;
    char all[400] = "";
    for (int i = 0; i < 4; i++) {
        const char *value = getenv(names[i]);
        if (!value) continue;
        set++;
        composed += i != 2;
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s=%.60s", used ? ", " : "", names[i], value);
        if (!*value || strcmp(value, "-1") == 0)
            line_advise(doctor_add(d, FINDING_WARNING, "%s=%s hides every card", names[i], value),
                        "training runs on the CPU", "unset the variable");
    }
    if (!set) doctor_add(d, FINDING_OK, "no *_VISIBLE_DEVICES is set: all cards are seen");
    else if (composed > 1 || (composed && set > composed))
        line_advise(
            doctor_add(d, FINDING_WARNING, "%s", all),
            "they compose: each renumbers what the one before left, and HIP obeys CUDA_VISIBLE_DEVICES, too",
            "keep one: unset all but HIP_VISIBLE_DEVICES (AMD, Hygon) or CUDA_VISIBLE_DEVICES");
    else doctor_add(d, FINDING_OK, "%s", all);
}

static void check_drivers(struct doctor *d)
{
    int count[VENDORS], loaded = 0;
    count_cards(d, count);
    for (int kind = 0; kind < DRIVER_KINDS; kind++) {
        int hardware = kind == DRIVER_HIP ? count[0] + count[1] : count[2];
        struct driver driver;
        struct error err = {0};
        int version = 0, cards = 0;
        if (driver_open(&driver, kind, &err) == 0 && driver.version(&version) == 0 &&
            driver.count(&cards) == 0) {
            loaded++;
            struct line *l = doctor_add(d, FINDING_OK, "%s: %s, version %d, %d card%s", driver_names[kind],
                                        driver.path, version, cards, cards == 1 ? "" : "s");
            line_text(l, "driver", driver_names[kind]);
            line_text(l, "library", driver.path);
            line_real(l, "version", version);
            for (int i = 0; i < cards; i++) {
                struct card_info card;
                if (driver_card(&driver, i, &card, &err)) {
                    line_advise(doctor_add(d, FINDING_WARNING, "%s", err.what), "the card cannot be used",
                                err.hint);
                    continue;
                }
                l = doctor_add(d, FINDING_OK, "%s:%d %s, %s, %.1f GiB, %d compute units, PCI %s",
                               driver_names[kind], i, card.name, card.arch[0] ? card.arch : "unknown arch",
                               (double)card.total_bytes / GIB, card.units, card.bus_id);
                line_text(l, "arch", card.arch);
                line_text(l, "bus_id", card.bus_id);
                line_real(l, "total_bytes", (double)card.total_bytes);
            }
        } else {
            bool there = driver.handle != NULL;
            struct line *l = doctor_add(d, hardware || there ? FINDING_WARNING : FINDING_MISSING, "%s: %s",
                                        driver_names[kind], err.what);
            line_text(l, "driver", driver_names[kind]);
            line_advise(
                l, hardware ? "there are cards that cannot be used" : "no cards of that kind; the CPU serves",
                hardware || there ? err.hint : NULL);
        }
    }
    if (loaded > 1)
        line_advise(doctor_add(d, FINDING_OK, "two drivers: device.type auto takes hip"), NULL,
                    "choose with device.type hip or cuda");
}

static void tell_library(struct doctor *d, const char *purpose, const char *without, bool wanted,
                         const struct library *library)
{
    bool there = library->handle != NULL;
    struct line *l = doctor_add(d,
                                there    ? FINDING_OK
                                : wanted ? FINDING_WARNING
                                         : FINDING_MISSING,
                                "%s: %s", purpose, library->path);
    line_text(l, "library", there ? library->path : "");
    if (!there)
        line_advise(l, without,
                    wanted ? "where libraries are looked for: meopt-devices(7); put another place into "
                             "LD_LIBRARY_PATH"
                           : NULL);
}

static void check_card_libraries(struct doctor *d)
{
    static const char slow[] = "without it MEOpt's own matrix product serves, slower",
                      through_host[] = "without it several cards exchange through the host's memory, slower",
                      silent[] = "the dashboard shows no temperature and power";
    static const struct {
        const char *purpose, *without;
        int vendor; /* 0 NVIDIA, 1 AMD and Hygon */
        enum library_id library;
    } rows[] = {{"BLAS of AMD and Hygon", slow, 1, LIBRARY_ROCBLAS},
                {"BLAS of NVIDIA", slow, 0, LIBRARY_CUBLAS},
                {"collectives of AMD and Hygon", through_host, 1, LIBRARY_RCCL},
                {"collectives of NVIDIA", through_host, 0, LIBRARY_NCCL},
                {"telemetry of AMD and Hygon", silent, 1, LIBRARY_ROCM_SMI},
                {"telemetry of NVIDIA", silent, 0, LIBRARY_NVML}};
    static const char *const mpi[] = {"libmpi.so.40", "libmpi.so.12", "libmpi.so", NULL};
    int count[VENDORS];
    count_cards(d, count);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool wanted = rows[i].vendor == 0 ? count[2] > 0 : count[0] + count[1] > 0;
        struct library library;
        library_open(rows[i].library, &library);
        tell_library(d, rows[i].purpose, rows[i].without, wanted, &library);
    }
    struct library library;
    library_open_first(mpi, &library);
    tell_library(d, "MPI between CPU ranks", "ranks of several hosts need it where they have no cards", false,
                 &library);
}

/* GB/s; 0: no memory for it. */
static double copy_bandwidth(struct device *dev, size_t bytes)
{
    struct error err;
    char *block = device_alloc(dev, MEMORY_WORKSPACE, 2 * bytes, "measurement", &err);
    double rate = block ? device_copy_rate(dev, block, bytes) * 1e-9 : 0;
    device_free(dev, block);
    return rate;
}

/* The numbers are known: all elements of A and B are x. */
double doctor_product_rate(struct device *dev, enum dtype type, int64_t side, bool *right)
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

int doctor_device(struct doctor *d, const char *spec, struct error *err)
{
    struct device *dev;
    int code = device_open(&dev, spec, 0, err);
    if (code) return code;
    bool card = dev->kind != DEVICE_CPU;
    struct gpu *gpu = card ? gpu_of(dev) : NULL;
    struct line *l;
    if (card) {
        l = doctor_add(d, FINDING_OK, "%s: sentinel right, wave %d, kernels %s, products by %s", dev->name,
                       gpu->wave, gpu->object, gpu_products(gpu));
        line_text(l, "device", spec);
        line_text(l, "object", gpu->object);
        line_real(l, "wave", gpu->wave);
        size_t available = 0, total = 0;
        if (gpu->driver.memory_info(&available, &total) == 0) {
            line_real(l, "memory_bytes", (double)total);
            line_real(l, "free_bytes", (double)available);
        }
        if (!gpu->lt && !gpu->blas)
            line_advise(l, "products are several times slower than the vendor's",
                        "put rocBLAS or cuBLAS into LD_LIBRARY_PATH");
    } else l = doctor_add(d, FINDING_OK, "%s", dev->name);
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int i = 0; i < 2 && !d->quick; i++) {
        bool right;
        double rate = doctor_product_rate(dev, types[i], 64, &right) * 1e-12;
        l = doctor_add(d, right ? FINDING_OK : FINDING_MISSING, "%s: matrix product %s %.2f TFLOP/s%s",
                       dev->name, dtype_name(types[i]), rate, right ? "" : ", wrong numbers");
        line_text(l, "device", spec);
        line_text(l, "dtype", dtype_name(types[i]));
        line_real(l, "tflop_per_s", rate);
        if (!right)
            line_advise(l, "the card or its library computes wrongly", "send this report to the maintainers");
    }
    if (!d->quick) {
        double rate = copy_bandwidth(dev, card ? (size_t)256 << 20 : (size_t)64 << 20);
        l = doctor_add(d, FINDING_OK, "%s: copies %.1f GB/s", dev->name, rate);
        line_text(l, "device", spec);
        line_real(l, "copy_gb_per_s", rate);
    }
    code = device_check(dev, err);
    device_close(dev);
    return code;
}

/* Every card that the drivers show, one after another. */
static void check_cards(struct doctor *d)
{
    for (int kind = 0; kind < DRIVER_KINDS; kind++) {
        struct driver driver;
        struct error err = {0};
        int cards = 0;
        if (driver_open(&driver, (enum driver_kind)kind, &err) || driver.count(&cards)) continue;
        for (int i = 0; i < cards; i++) {
            char spec[32];
            snprintf(spec, sizeof spec, "%s:%d", driver_names[kind], i);
            if (doctor_device(d, spec, &err))
                line_advise(doctor_add(d, FINDING_WARNING, "%s", err.what), "this card cannot be used",
                            err.hint);
        }
    }
}

const struct doctor_row doctor_cards[] = {
    {"hardware", check_hardware},
    {"permissions", check_permissions},
    {"variables", check_variables},
    {"drivers", check_drivers},
    {"card libraries", check_card_libraries},
    {"cards", check_cards},
    {NULL, NULL},
};
