/* The state of a card: ECC, clocks, power cap, MIG, other processes, and the kernel's log of its faults. See
 * work.h.
 *
 * The readings are those of core/monitor, whose helper process protects from calls that hang. A reading
 * that fails is reported as unknown. NVML has no call for the last Xid; only the kernel's log has it. */
#include "core/doctor/work.h"
#include "core/base/memory.h"
#include "core/base/message.h"
#include "core/device/gpu.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void work_state_open(struct work *w)
{
    struct error err = {0};
    struct card_state *s = &w->state;
    bool cuda = gpu_of(w->device)->driver.kind == DRIVER_CUDA;
    const char *root = w->doctor->root, *named = getenv("MEOPT_MONITOR");
    struct monitor_options options = {.provider = named && *named ? named
                                                  : cuda          ? "nvml"
                                                                  : "sysfs",
                                      .root = root,
                                      .health = true};
    if (!cuda && options.provider[0] == 's') { /* without the kernel's files: the library */
        char *files = xasprintf("%s/sys/class/drm", root);
        if (access(files, F_OK)) options.provider = "rsmi";
        free(files);
    }
    if (monitor_open(&s->monitor, &options, &err)) snprintf(s->why, sizeof s->why, "%.255s", err.what);
    else monitor_watch(s->monitor, (pid_t[]){getpid()}, 1);
    work_state_sample(w);
}

void work_state_sample(struct work *w)
{
    struct card_state *s = &w->state;
    if (!s->monitor) return;
    struct monitor_snapshot *now = xcalloc(1, sizeof *now);
    double before = s->known && s->card.throttle.valid ? s->card.throttle.value : 0;
    monitor_sample(s->monitor);
    monitor_read(s->monitor, now);
    int at = monitor_find(now, w->device->pci);
    snprintf(s->why, sizeof s->why, "%s", now->note);
    s->known = at >= 0;
    if (at >= 0) s->card = now->cards[at];
    if (s->card.throttle.valid) s->card.throttle.value = (double)((int)s->card.throttle.value | (int)before);
    free(now);
}

void work_state_close(struct work *w)
{
    monitor_close(w->state.monitor);
    w->state.monitor = NULL;
}

/* ---- report ---- */

/* Adds ", TEXT". */
static void append(char *dst, size_t size, const char *text)
{
    size_t used = strlen(dst);
    snprintf(dst + used, size - used, "%s%s", used ? ", " : "", text);
}

/* The readings in the order of the report: value as a number with its unit, or the words for 0 and 1. */
static const struct reading {
    enum monitor_field field;
    const char *name, *key, *unit, *words[2];
} readings[] = {
    {MONITOR_ECC, "ECC", "ecc", NULL, {N_("off"), N_("on")}},
    {MONITOR_ECC_ERRORS, N_("uncorrected errors"), "ecc_uncorrected", "", {NULL, NULL}},
    {MONITOR_CLOCK, N_("clock"), "clock_mhz", " MHz", {NULL, NULL}},
    {MONITOR_CLOCK_MOST, N_("highest clock"), "clock_max_mhz", " MHz", {NULL, NULL}},
    {MONITOR_CAP, N_("power cap"), "power_cap_w", " W", {NULL, NULL}},
    {MONITOR_CAP_DEFAULT, N_("default power cap"), "power_cap_default_w", " W", {NULL, NULL}},
    {MONITOR_MIG, "MIG", "mig", NULL, {N_("off"), N_("on")}},
};

/* In the order of the bits. */
static const struct {
    const char *text, *remedy;
    bool slow; /* a fault, and no setting of an administrator */
} throttles[THROTTLES] = {
    {N_("its power cap"), NULL, false},
    {N_("its temperature"), N_("check the fans and the air flow of the machine"), true},
    {N_("the board: its power supply, or its temperature"),
     N_("check the power cables and the power supply of the card; dmesg may have the reason"), true},
    {N_("clocks set by an administrator"), N_("nvidia-smi --reset-applications-clocks"), false},
};

/* Returns whether a reading failed, as opposed to one that the card does not have. */
static bool report_readings(struct work *w)
{
    struct card_state *s = &w->state;
    char text[400] = "", part[80];
    bool failed = false;
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++) {
        const struct reading *r = &readings[i];
        const struct monitor_value *v = &s->card.field[r->field];
        if (v->valid && r->unit) snprintf(part, sizeof part, "%s %.4g%s", _(r->name), v->value, r->unit);
        else
            snprintf(part, sizeof part, "%s %s", _(r->name),
                     v->valid    ? _(r->words[v->value > 0])
                     : v->absent ? _("not reported")
                                 : _("unknown"));
        append(text, sizeof text, part);
        failed = failed || (!v->valid && !v->absent);
    }
    const struct monitor_value *slow = &s->card.throttle;
    if (!slow->valid || slow->value == 0)
        append(text, sizeof text,
               slow->valid    ? _("not throttled")
               : slow->absent ? _("throttling not reported")
                              : _("throttling unknown"));
    failed = failed || (!slow->valid && !slow->absent);
    struct line *l = work_add(w, "state", failed ? FINDING_WARNING : FINDING_OK, "%s", text);
    for (size_t i = 0; i < sizeof readings / sizeof *readings; i++) {
        const struct monitor_value *v = &s->card.field[readings[i].field];
        line_real(l, readings[i].key, v->valid ? v->value : NAN);
    }
    line_real(l, "index", s->card.index.valid ? s->card.index.value : NAN);
    if (failed) line_advise(l, s->why[0] ? s->why : N_("some readings of the card failed"), NULL);
    return failed;
}

static void report_throttling(struct work *w)
{
    const struct monitor_card *c = &w->state.card;
    for (int i = 0; c->throttle.valid && i < THROTTLES; i++) {
        if (!((int)c->throttle.value >> i & 1)) continue;
        struct line *l = work_add(w, "state", throttles[i].slow ? FINDING_WARNING : FINDING_OK,
                                  "the clock is held down by %s", _(throttles[i].text));
        line_text(l, "throttle", monitor_throttle_names[i]);
        line_advise(l, throttles[i].slow ? N_("the card computes more slowly than it could") : NULL,
                    throttles[i].remedy);
    }
}

static void report_problems(struct work *w)
{
    const struct monitor_card *c = &w->state.card;
    bool cuda = gpu_of(w->device)->driver.kind == DRIVER_CUDA;
    char remedy[160];
    int at = c->index.valid ? (int)c->index.value : gpu_of(w->device)->ordinal;
    if (c->ecc_errors.valid && c->ecc_errors.value > 0) {
        struct line *l =
            work_add(w, "state", FINDING_WARNING, "%.0f uncorrected errors of memory", c->ecc_errors.value);
        line_real(l, "ecc_uncorrected", c->ecc_errors.value);
        line_advise(l, "results of this card since its driver was loaded may be wrong",
                    driver_remedy(&gpu_of(w->device)->driver, 214, NULL));
    }
    if (c->cap_w.valid && c->cap_default_w.valid && c->cap_w.value < c->cap_default_w.value - 0.5) {
        struct line *l = work_add(w, "state", FINDING_WARNING, "power cap %.0f W, default %.0f W",
                                  c->cap_w.value, c->cap_default_w.value);
        line_real(l, "power_cap_w", c->cap_w.value);
        if (cuda)
            snprintf(remedy, sizeof remedy, "sudo nvidia-smi -i %d -pl %.0f", at, c->cap_default_w.value);
        else
            snprintf(remedy, sizeof remedy, "sudo rocm-smi -d %d --setpoweroverdrive %.0f", at,
                     c->cap_default_w.value);
        line_advise(l, "an administrator has limited the card, which computes more slowly than published",
                    remedy);
    }
    if (c->mig.valid && c->mig.value > 0) {
        struct line *l =
            c->mem_total_bytes.valid
                ? work_add(w, "state", FINDING_OK, "MIG: an instance of %.1f GiB",
                           c->mem_total_bytes.value / 1073741824.0)
                : work_add(w, "state", FINDING_WARNING, "MIG: it is not known which instance is used");
        line_real(l, "instance_bytes", c->mem_total_bytes.valid ? c->mem_total_bytes.value : NAN);
        if (!c->mem_total_bytes.valid)
            line_advise(l, "the dashboard cannot show its memory",
                        "CUDA_VISIBLE_DEVICES=MIG-... ('nvidia-smi -L')");
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (c->index.valid && at != gpu_of(w->device)->ordinal) {
        bool chosen = visible && *visible;
        struct line *l =
            work_add(w, "state", chosen ? FINDING_OK : FINDING_WARNING, "nvidia-smi numbers it %d", at);
        line_real(l, "index", at);
        if (!chosen)
            line_advise(l, "CUDA orders cards by speed, nvidia-smi by PCI address",
                        "export CUDA_DEVICE_ORDER=PCI_BUS_ID");
    }
}

void work_state_report(struct work *w)
{
    struct card_state *s = &w->state;
    if (!s->known) {
        line_advise(work_add(w, "state", FINDING_WARNING, "unknown: ECC, clocks, throttling, power cap"),
                    s->why[0] ? s->why : N_("the telemetry lists no card of this PCI address"),
                    "name the library of telemetry by MEOPT_NVML_LIB or MEOPT_RSMI_LIB, see meopt(1)");
        return;
    }
    report_readings(w);
    report_throttling(w);
    report_problems(w);
}

/* ---- the kernel's log ---- */

/* NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors): those with a remedy of their own. */
static const struct {
    int xid;
    const char *meaning, *remedy;
} xids[] = {
    {31, N_("a program read or wrote memory that it does not own"), NULL},
    {48, N_("an uncorrectable error of memory"), N_("reset the card; replace it if this comes again")},
    {63, N_("a row of memory was replaced"), N_("reset the card, which applies it")},
    {64, N_("a row of memory could not be replaced"), N_("replace the card")},
    {74, N_("an error of NVLink"), N_("reset the card; check its bridge or board")},
    {79, N_("the card has fallen off the bus"),
     N_("reboot; check its seat, its power cables and its temperature")},
    {94, N_("an uncorrectable error of memory ended a program"), N_("start the program again")},
    {95, N_("an uncorrectable error of memory hit several programs"), N_("reset the card")},
    {119, N_("the card's own processor (GSP) does not answer"), N_("reboot; update the driver")},
};

/* Returns the last Xid of the card in the kernel's log, 0: none, -1: the log cannot be read. Each read of the
 * device file returns one record. pci NULL: of any card. */
static int last_xid(const struct doctor *d, const char *pci)
{
    static const char mark[] = "NVRM: Xid (PCI:";
    char *path = doctor_path(d, "/dev/kmsg"), text[8192], address[40], card[16], found[16];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC), xid = 0, number;
    free(path);
    if (fd < 0) return -1;
    monitor_pci(card, pci);
    /* EPIPE: records were overwritten before they were read; the next read continues after them */
    for (ssize_t n;
         (n = read(fd, text, sizeof text - 1)) > 0 || (n < 0 && (errno == EPIPE || errno == EINTR));) {
        text[n > 0 ? n : 0] = 0;
        for (const char *p = text; (p = strstr(p, mark)); p += sizeof mark - 1) {
            if (sscanf(p + sizeof mark - 1, "%30[0-9a-fA-F:]): %d", address, &number) != 2) continue;
            monitor_pci(found, strcat(address, ".0"));
            if (!pci || (found[0] && strcmp(found, card) == 0)) xid = number;
        }
    }
    close(fd);
    return xid;
}

void doctor_xid(struct doctor *d, const char *spec, const char *pci)
{
    int xid = last_xid(d, pci);
    if (xid <= 0) return;
    size_t row = 0, rows = sizeof xids / sizeof *xids;
    while (row < rows && xids[row].xid != xid) row++;
    struct line *l = doctor_add(d, row < rows && xids[row].remedy ? FINDING_WARNING : FINDING_OK,
                                "%s: Xid %d in the kernel's log", spec, xid);
    l->check = "state";
    line_text(l, "device", spec);
    line_real(l, "xid", xid);
    line_advise(l, row < rows ? xids[row].meaning : N_("a fault of the card, or of a program on it"),
                row < rows && xids[row].remedy ? xids[row].remedy : N_("read the log: dmesg | grep Xid"));
}
