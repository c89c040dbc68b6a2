/* Checks of cards: hardware, permissions, variables, drivers, libraries, and a self-test of every card. See
 * doctor.h. */
#include "core/base/library.h"
#include "core/device/driver.h"
#include "core/doctor/cards.h"
#include "core/doctor/work.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double GIB = 1073741824.0;

static void check_hardware(struct doctor *d)
{
    int count[VENDORS], total = 0;
    doctor_count_cards(d, count);
    for (int i = 0; i < VENDORS; i++) {
        if (!count[i]) continue;
        char name[64];
        doctor_card_name(d, doctor_vendors[i].id, name, sizeof name);
        struct line *l =
            doctor_add(d, FINDING_OK, "%d card%s of %s on the PCI bus%s%s", count[i],
                       count[i] == 1 ? "" : "s", doctor_vendors[i].name, name[0] ? ": " : "", name);
        line_real(l, "cards", count[i]);
        total += count[i];
    }
    if (!total)
        line_advise(doctor_add(d, FINDING_MISSING, "no card on the PCI bus"),
                    "training runs on the CPU, or on another machine's cards", NULL);
}

/* Checks a device file that this user must read and write. Returns 0: fine, -1: no such file, else errno. */
static int device_file(struct doctor *d, const char *name)
{
    char *path = doctor_path(d, name);
    struct stat st;
    int result = stat(path, &st) ? -1 : access(path, R_OK | W_OK) ? errno : 0;
    if (result > 0) {
        struct group *g = getgrgid(st.st_gid);
        char remedy[200], meaning[160];
        snprintf(
            remedy, sizeof remedy,
            _("sudo usermod -aG %s $USER, then log in again; in a container: --device=%s --group-add %u"),
            g ? g->gr_name : "render", name, (unsigned)st.st_gid);
        snprintf(meaning, sizeof meaning, _("the card exists, but this user has no access to it"));
        line_advise(doctor_add(d, FINDING_WARNING, "%s: %s (mode %03o, group %s)", name, strerror(result),
                               (unsigned)st.st_mode & 0777, g ? g->gr_name : "unknown"),
                    meaning, remedy);
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
    doctor_count_cards(d, count);
    int amd = count[0] + count[1], nvidia = count[2];
    int kfd = device_file(d, "/dev/kfd");
    if (kfd == 0 || amd) device_files(d, "/dev/dri", "renderD");
    bool inside = doctor_in_container(d);
    if (kfd < 0 && amd && inside)
        line_advise(doctor_add(d, FINDING_MISSING, "no /dev/kfd in this container"),
                    "it was started without the card's device files",
                    count[1] ? N_("start it with --device=/dev/kfd --device=/dev/dri --group-add video -v "
                                  "/opt/hyhal:/opt/hyhal:ro")
                             : N_("start it with --device=/dev/kfd --device=/dev/dri --group-add video"));
    else if (kfd < 0 && amd)
        line_advise(doctor_add(d, FINDING_MISSING, "no /dev/kfd"),
                    "an AMD or Hygon card without its kernel driver",
                    "sudo modprobe amdgpu (Hygon: hycu or hydcu, of the driver's package); in a container: "
                    "--device=/dev/kfd --device=/dev/dri");
    int control = device_file(d, "/dev/nvidiactl");
    if (control >= 0) device_files(d, "/dev", "nvidia");
    if (control < 0 && nvidia)
        line_advise(doctor_add(d, FINDING_MISSING, "no /dev/nvidiactl"),
                    "an NVIDIA card without its kernel driver",
                    "sudo modprobe nvidia; in a container: --gpus all");
    if (kfd < 0 && control < 0 && !amd && !nvidia)
        doctor_add(d, FINDING_OK, "no device files of cards, and no card that requires them");
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
                        "training runs on the CPU; other programs end with an error of the driver (100)",
                        "unset the variable: an empty one is not the same as none");
    }
    if (!set) doctor_add(d, FINDING_OK, "no *_VISIBLE_DEVICES is set: all cards are visible");
    else if (composed > 1 || (composed && set > composed))
        line_advise(doctor_add(d, FINDING_WARNING, "%s", all),
                    "they compose: each renumbers the cards that the previous one left visible, and HIP also "
                    "reads CUDA_VISIBLE_DEVICES",
                    "keep one: unset all but HIP_VISIBLE_DEVICES (AMD, Hygon) or CUDA_VISIBLE_DEVICES");
    else doctor_add(d, FINDING_OK, "%s", all);
}

static void check_drivers(struct doctor *d)
{
    int count[VENDORS], loaded = 0;
    doctor_count_cards(d, count);
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
                               driver_names[kind], i, card.name, card.arch[0] ? card.arch : _("unknown arch"),
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
            line_advise(l,
                        hardware ? N_("some cards cannot be used")
                                 : N_("no cards of that kind; training runs on the CPU"),
                        hardware || there ? err.hint : NULL);
        }
    }
    if (loaded > 1)
        line_advise(doctor_add(d, FINDING_OK, "two drivers: device.type auto selects hip"), NULL,
                    "choose with device.type hip or cuda");
}

static void report_library(struct doctor *d, const char *purpose, const char *without, bool wanted,
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
                    wanted ? N_("search paths: meopt-devices(7); add a directory to "
                                "LD_LIBRARY_PATH")
                           : NULL);
}

/* Checks the module for MPI, without which mpirun starts no ranks, though the machine has MPI. */
static void check_mpi(struct doctor *d)
{
    struct library library;
    bool there = library_open_mpi(&library) != NULL;
    struct line *l =
        doctor_add(d, there ? FINDING_OK : FINDING_MISSING, "MPI between CPU ranks: %s", library.path);
    line_text(l, "library", there ? library.path : "");
    if (!there)
        line_advise(l, "required for CPU ranks on several hosts, and for mpirun",
                    "install MPI's development files (Debian: libopenmpi-dev), and build MEOpt again");
}

static void check_card_libraries(struct doctor *d)
{
    static const char slow[] = N_("without it MEOpt uses its own GEMM, which is slower"),
                      through_host[] =
                          N_("without it cards communicate through host memory, which is slower"),
                      silent[] = N_("the dashboard shows no temperature or power");
    static const struct {
        const char *purpose, *without;
        int vendor; /* 0: NVIDIA, 1: AMD and Hygon */
        enum library_id library;
    } rows[] = {{N_("BLAS of AMD and Hygon"), slow, 1, LIBRARY_ROCBLAS},
                {N_("BLAS of NVIDIA"), slow, 0, LIBRARY_CUBLAS},
                {N_("collectives of AMD and Hygon"), through_host, 1, LIBRARY_RCCL},
                {N_("collectives of NVIDIA"), through_host, 0, LIBRARY_NCCL},
                {N_("telemetry of AMD and Hygon"), silent, 1, LIBRARY_ROCM_SMI},
                {N_("telemetry of NVIDIA"), silent, 0, LIBRARY_NVML}};
    int count[VENDORS];
    doctor_count_cards(d, count);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool wanted = rows[i].vendor == 0 ? count[2] > 0 : count[0] + count[1] > 0;
        struct library library;
        library_open(rows[i].library, &library);
        report_library(d, rows[i].purpose, rows[i].without, wanted, &library);
    }
    check_mpi(d);
}

/* Checks every card of the drivers in turn. Without cards checks the CPU, if shapes are given. */
static void check_cards(struct doctor *d)
{
    int tried = 0;
    struct error err = {0};
    for (int kind = 0; kind < DRIVER_KINDS; kind++) {
        struct driver driver;
        int cards = 0;
        if (driver_open(&driver, (enum driver_kind)kind, &err) || driver.count(&cards)) continue;
        for (int i = 0; i < cards; i++) {
            char spec[32];
            snprintf(spec, sizeof spec, "%s:%d", driver_names[kind], i);
            tried++;
            if (doctor_device(d, spec, &err) && err.code != EXIT_FAILED) {
                line_advise(doctor_add(d, FINDING_WARNING, "%s", err.what), "this card cannot be used",
                            err.hint);
                if (kind == DRIVER_CUDA) doctor_xid(d, spec, NULL);
            }
        }
    }
    if (!tried && d->shape_count) doctor_device(d, "cpu", &err);
}

const struct doctor_row doctor_cards[] = {
    {N_("hardware"), check_hardware},
    {N_("permissions"), check_permissions},
    {N_("toolkit"), doctor_dtk},
    {N_("settings"), doctor_settings},
    {N_("variables"), check_variables},
    {N_("drivers"), check_drivers},
    {N_("card libraries"), check_card_libraries},
    {N_("cards"), check_cards},
    {NULL, NULL},
};
