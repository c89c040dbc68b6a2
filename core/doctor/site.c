/* Site configuration for cards: Hygon's toolkit and driver versions, kernel settings, containers. */
#include "core/device/site.h"
#include "core/base/pci_card.h"
#include "core/doctor/cards.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool doctor_exists(const struct doctor *d, const char *name)
{
    char *path = doctor_path(d, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

bool doctor_in_container(const struct doctor *d)
{
    if (doctor_exists(d, "/.dockerenv") || doctor_exists(d, "/run/.containerenv") ||
        doctor_exists(d, "/.singularity.d"))
        return true;
    char *group = doctor_read(d, "/proc/1/cgroup");
    bool found = group && (strstr(group, "docker") || strstr(group, "kubepods") || strstr(group, "lxc"));
    free(group);
    return found;
}

/* ---- driver and DTK ---- */

/* Hygon's own compatibility table (HYGON-AI/hcu-dcgm, pkg/dcgm/compatibility.go, 2026): the releases of DTK
 * that a driver version and later support, and the cards.
 *
 * BW: BW1000 and similar. LATER: other cards whose names begin with BW. BW200 has its own rule in that table:
 * each release from 25 on. */
enum { Z100 = 1, K100 = 2, K100_AI = 4, BW200 = 8, BW = 16, LATER = 32, ANY = 63 };
static const struct tier {
    const char *driver, *releases[4];
    int cards;
} tiers[] = {{"5.6.25", {"21.04", "21.10", "22.04"}, Z100},
             {"5.11.40", {"22.04", "22.10", "23.04"}, Z100},
             {"5.16.18", {"22.10", "23.04"}, Z100},
             {"5.16.29", {"23.04", "23.10"}, Z100 | K100},
             {"6.2.26", {"24.04", "25.04"}, Z100 | K100 | K100_AI},
             {"6.3.0", {"25.04", "26.04"}, BW200},
             {"6.3.8", {"25.04"}, Z100 | K100 | K100_AI | BW},
             {"6.3.30", {"26.04"}, ANY & ~BW200}};
enum { TIERS = sizeof tiers / sizeof *tiers };

/* Compares versions number by number; returns < 0, 0, > 0. A suffix does not count ("6.3.8-V1.2"). */
static int version_compare(const char *a, const char *b)
{
    for (;;) {
        char *end_a, *end_b;
        long x = strtol(a, &end_a, 10), y = strtol(b, &end_b, 10);
        if (x != y) return x < y ? -1 : 1;
        if (*end_a != '.' && *end_b != '.') return 0;
        a = *end_a == '.' ? end_a + 1 : end_a;
        b = *end_b == '.' ? end_b + 1 : end_b;
    }
}

static bool release_is(const char *dtk, const char *release)
{
    size_t n = strlen(release);
    return strncmp(dtk, release, n) == 0 && (dtk[n] < '0' || dtk[n] > '9');
}

/* Returns the installed card of the table, by its name's prefix; ANY if unknown. */
static int hygon_card(const struct doctor *d)
{
    static const struct {
        const char *name;
        int card;
    } names[] = {{"Z100", Z100},   {"K100 AI", K100_AI}, {"K500SM AI", K100_AI}, {"K100", K100},
                 {"BW200", BW200}, {"BW500SM", BW},      {"BW1000", BW},         {"BW", LATER}};
    char name[64] = "";
    doctor_card_name(d, PCI_HYGON, name, sizeof name);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(name, names[i].name, strlen(names[i].name)) == 0) return names[i].card;
    return ANY;
}

static void compare_versions(struct doctor *d, const char *module, const char *driver, const char *dtk)
{
    const struct tier *tier = NULL, *needed = NULL, *first = NULL;
    int card = hygon_card(d);
    char releases[64] = "", remedy[300];
    for (int i = 0; i < TIERS; i++) {
        if (!(tiers[i].cards & card)) continue;
        if (!first) first = &tiers[i];
        if (version_compare(driver, tiers[i].driver) >= 0) tier = &tiers[i];
        for (int k = 0; k < 4 && tiers[i].releases[k]; k++)
            if (!needed && release_is(dtk, tiers[i].releases[k])) needed = &tiers[i];
    }
    bool fits = false;
    for (int k = 0; tier && k < 4 && tier->releases[k]; k++) {
        fits = fits || release_is(dtk, tier->releases[k]);
        snprintf(releases + strlen(releases), sizeof releases - strlen(releases), "%s%s", k ? _(" or ") : "",
                 tier->releases[k]);
    }
    struct line *l =
        doctor_add(d, fits ? FINDING_OK : FINDING_WARNING, "driver %s %s with DTK %s", module, driver, dtk);
    line_text(l, "driver_version", driver);
    line_text(l, "dtk_version", dtk);
    if (fits) return;
    if (needed && tier)
        snprintf(remedy, sizeof remedy,
                 _("install DTK %s, which supports this driver, or driver %s or later"), releases,
                 needed->driver);
    else if (tier) snprintf(remedy, sizeof remedy, _("install DTK %s, which supports this driver"), releases);
    else if (needed) snprintf(remedy, sizeof remedy, _("install driver %s or later"), needed->driver);
    else snprintf(remedy, sizeof remedy, _("install driver %s or later and its DTK"), first->driver);
    line_advise(l, "Hygon does not support the two together: calls fail or return wrong results", remedy);
}

void doctor_dtk(struct doctor *d)
{
    char module[32], driver[64], dtk[64];
    bool loaded = site_module(d->root, true, module, sizeof module, driver, sizeof driver),
         toolkit = site_dtk(d->root, dtk, sizeof dtk), hygon = loaded && strncmp(module, "hy", 2) == 0;
    int cards = doctor_card_count(d, PCI_HYGON);
    if (!cards && !hygon && !toolkit) return;
    if (toolkit && !hygon && cards)
        line_advise(doctor_add(d, FINDING_MISSING, "DTK %s, but no Hygon driver is loaded", dtk),
                    "the driver package is not installed, or did not build for this kernel (it does not on "
                    "6.8 and later: drm_debug_category)",
                    "install Hygon's driver (rock-*.run) for this kernel, 'dmesg | grep hydcu'; in a "
                    "container use the host's:  -v /opt/hyhal:/opt/hyhal:ro");
    else if (hygon && !toolkit)
        line_advise(doctor_add(d, FINDING_WARNING, "driver %s %s, but no DTK in /opt/dtk", module, driver),
                    "the card's libraries (HIP, rocBLAS, RCCL) are part of DTK",
                    "unpack DTK below /opt and 'ln -s /opt/dtk-VERSION /opt/dtk', or 'module load "
                    "compiler/dtk'");
    else if (hygon && toolkit && driver[0]) compare_versions(d, module, driver, dtk);
    else if (toolkit) doctor_add(d, FINDING_OK, "DTK %s", dtk);
    if (hygon && !doctor_exists(d, "/opt/hyhal"))
        line_advise(doctor_add(d, FINDING_WARNING, "no /opt/hyhal"),
                    "the HIP runtime does not start without the driver's libraries there",
                    doctor_in_container(d) ? N_("start the container with -v /opt/hyhal:/opt/hyhal:ro")
                                           : N_("reinstall Hygon's driver"));
}

/* ---- kernel settings ---- */

/* Returns whether the IOMMU translates. type: "" if only the kernel's command line says so. */
static bool translated(const struct doctor *d, char type[32])
{
    if (doctor_iommu_type(d, type)) return strcmp(type, "identity") != 0;
    type[0] = 0;
    char *line = doctor_read(d, "/proc/cmdline"), *path = doctor_path(d, "/sys/class/iommu");
    DIR *dir = opendir(path);
    int count = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) count += e->d_name[0] != '.';
    if (dir) closedir(dir);
    bool through = line && (strstr(line, "iommu=pt") || strstr(line, "iommu.passthrough=1"));
    free(line);
    free(path);
    return count > 0 && !through;
}

void doctor_settings(struct doctor *d)
{
    int amd = doctor_card_count(d, PCI_AMD) + doctor_card_count(d, PCI_HYGON),
        all = amd + doctor_card_count(d, PCI_NVIDIA);
    char *balancing = doctor_read(d, "/proc/sys/kernel/numa_balancing");
    const char *fine = getenv("HSA_FORCE_FINE_GRAIN_PCIE");
    char type[32];
    bool moves = balancing && atoi(balancing) > 0, quiet = true;
    free(balancing);
    if (!all) return;
    if (moves) {
        quiet = false;
        line_advise(doctor_add(d, FINDING_WARNING, "kernel.numa_balancing is on"),
                    "pages move while cards copy them: ranks wait for each other",
                    "sudo sysctl kernel.numa_balancing=0");
    }
    if (translated(d, type)) {
        quiet = false;
        line_advise(doctor_add(d, FINDING_WARNING, "the IOMMU translates what cards read and write%s%s%s",
                               type[0] ? " (" : "", type, type[0] ? ")" : ""),
                    "copies are slower, and between cards they may fail",
                    "boot the kernel with iommu=pt (GRUB_CMDLINE_LINUX)");
    }
    if (amd > 1 && !(fine && strcmp(fine, "1") == 0)) {
        quiet = false;
        line_advise(doctor_add(d, FINDING_WARNING, "HSA_FORCE_FINE_GRAIN_PCIE is not 1, with %d cards", amd),
                    "between cards without links of their own RCCL may hang with a processor at 99 %",
                    "export HSA_FORCE_FINE_GRAIN_PCIE=1");
    }
    if (quiet) doctor_add(d, FINDING_OK, "numa_balancing, IOMMU and variables are set as cards require");
}
