/* Tests one device: see doctor.h. Opens it, reports its properties, measures bandwidth, copies and graphs.
 * gemm.c and trials.c check its results. */
#include "core/doctor/work.h"
#include "core/base/clock.h"
#include "core/base/kfd.h"
#include "core/base/message.h"
#include "core/device/bench.h"
#include "core/device/facts.h"
#include "core/device/gpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double GIB = 1073741824.0;

/* ---- bandwidth: STREAM's copy and triad ---- */

/* y = x + gamma * branch in fp32: 12 bytes per element, as a = b + s c */
static void triad(void *context)
{
    struct work *w = ((void **)context)[0];
    w->device->ops->residual_forward(w->device, ((void **)context)[1]);
}

static double triad_rate(struct work *w, char *block, int64_t rows, bool *right)
{
    enum { D = 1024 };
    struct device *dev = w->device;
    size_t each = (size_t)rows * D * 4;
    float ends[2], *gamma = (float *)(void *)(block + 3 * each);
    struct residual r = {.type = DTYPE_F32,
                         .x = (float *)(void *)block,
                         .branch = block + each,
                         .gamma = gamma,
                         .y = (float *)(void *)(block + 2 * each),
                         .R = rows,
                         .D = D};
    void *context[] = {w, &r};
    double best = 1e30;
    dev->ops->fill(dev, block, 0x3C, 2 * each + 0);
    dev->ops->fill(dev, gamma, 0x40, D * 4);
    for (int run = 0; run < (w->slow ? 2 : 6); run++) {
        double t = work_seconds(dev, triad, context);
        if (run && t < best) best = t;
    }
    float x, g;
    memcpy(&x, (uint32_t[]){0x3C3C3C3Cu}, sizeof x);
    memcpy(&g, (uint32_t[]){0x40404040u}, sizeof g);
    work_fetch(dev, r.y, DTYPE_F32, 1, &ends[0]);
    work_fetch(dev, r.y + rows * D - 1, DTYPE_F32, 1, &ends[1]);
    *right = true;
    for (int i = 0; i < 2; i++) {
        double error = (double)ends[i] - ((double)x + (double)g * (double)x);
        *right = *right && error < 1e-6 && error > -1e-6;
    }
    return (double)(3 * each) / best * 1e-9;
}

static void work_bandwidth(struct work *w)
{
    enum { D = 1024 };
    int64_t rows = w->slow ? 16 : w->card ? 65536 : 8192;
    size_t each = (size_t)rows * D * 4;
    char *block = work_memory(w, "bandwidth", 3 * each + D * 4);
    if (!block) return;
    bool right;
    double copy = device_copy_rate(w->device, block, each) * 1e-9, rate = triad_rate(w, block, rows, &right);
    struct line *l = work_add(w, "bandwidth", FINDING_OK, "copies %.1f GB/s, triad %.1f GB/s%s", copy, rate,
                              right ? "" : _(", wrong numbers"));
    line_real(l, "copy_gb_per_s", copy);
    line_real(l, "triad_gb_per_s", rate);
    work_result(w, l, right, NULL);
    device_free(w->device, block);
}

/* ---- copies between host and card, from and to pinned memory ---- */

static double copied(struct work *w, bool up, char *there, char *here, size_t bytes)
{
    const struct device_streams *q = w->device->streams;
    double best = 1e30;
    for (int run = 0; run < 3; run++) {
        double t = clock_seconds();
        if (up) q->upload(w->device, NULL, there, here, bytes);
        else q->download(w->device, NULL, here, there, bytes);
        q->finish(w->device, NULL);
        t = clock_seconds() - t;
        if (t < best) best = t;
    }
    return (double)bytes / best * 1e-9;
}

static void work_copies(struct work *w)
{
    const struct device_streams *q = w->device->streams;
    size_t bytes = (size_t)(w->slow ? 1 : 32) << 20;
    char *there = work_memory(w, N_("copies"), bytes),
         *here = there ? q->host_allocate(w->device, bytes) : NULL;
    if (there && !here)
        line_advise(work_add(w, "copies", FINDING_WARNING, "could not pin %zu MiB", bytes >> 20),
                    "copies of images and gradients are slower, or fail",
                    "ulimit -l unlimited (lockable memory)");
    if (here) {
        bool right = true;
        for (size_t i = 0; i < bytes; i++) here[i] = (char)(i * 31 >> 3);
        double up = copied(w, true, there, here, bytes);
        memset(here, 0, bytes);
        double down = copied(w, false, there, here, bytes);
        for (size_t i = 0; i < bytes; i++) right = right && here[i] == (char)(i * 31 >> 3);
        struct line *l = work_add(w, "copies", FINDING_OK, "pinned copies: %.1f GB/s to it, %.1f GB/s back%s",
                                  up, down, right ? "" : _(", wrong bytes returned"));
        line_real(l, "to_gb_per_s", up);
        line_real(l, "from_gb_per_s", down);
        work_result(w, l, right, NULL);
        q->host_free(w->device, here);
    }
    device_free(w->device, there);
}

/* ---- graphs ---- */

struct steps {
    struct work *work;
    float *x;
    int count;
};
static void add_steps(void *context)
{
    const struct steps *s = context;
    struct residual r = {DTYPE_F32, .x = s->x, .branch = s->x + 64, .y = s->x, .R = 1, .D = 64};
    for (int i = 0; i < s->count; i++) s->work->device->ops->residual_forward(s->work->device, &r);
}

static void work_graph(struct work *w)
{
    enum { RUNS = 3 }; /* single operations, recorded, replayed */
    struct device *dev = w->device;
    struct gpu *gpu = gpu_of(dev);
    float values[128];
    double seconds[RUNS];
    struct steps s = {w, (float *)(void *)work_memory(w, "graphs", sizeof values), w->slow ? 40 : 500};
    if (!s.x) return;
    for (int i = 0; i < 128; i++) values[i] = i < 64 ? (float)i : 1;
    dev->upload(dev, s.x, values, sizeof values);
    struct device_work work = {.owner = &s, .count = s.count};
    for (int i = 0; i < RUNS; i++) {
        double t = clock_seconds();
        device_issue(dev, &work, add_steps, &s);
        dev->sync(dev);
        seconds[i] = clock_seconds() - t;
    }
    bool right = true;
    work_fetch(dev, s.x, DTYPE_F32, 64, values);
    for (int i = 0; i < 64; i++) right = right && values[i] == (float)(i + RUNS * s.count);
    const char *off = graphs_off(gpu);
    struct line *l =
        off ? work_add(w, "graphs", FINDING_WARNING, "off: %s", off)
            : work_add(w, "graphs", FINDING_OK, "%d operations in %.3f ms as a graph, %.3f ms one by one%s",
                       s.count, seconds[RUNS - 1] * 1e3, seconds[0] * 1e3, right ? "" : _(", wrong numbers"));
    line_real(l, "graph_ms", seconds[RUNS - 1] * 1e3);
    line_real(l, "single_ms", seconds[0] * 1e3);
    if (off)
        line_advise(l, "the host launches each of hundreds of operations per step", "install a newer driver");
    work_result(w, l, right, "train with MEOPT_GRAPHS=none; send this report to the maintainers");
    device_free(dev, s.x);
}

/* ---- all of them ---- */

static void report_facts(struct work *w)
{
    struct device_fact facts[DEVICE_FACTS];
    device_facts(w->device, facts);
    for (int i = 0; i < DEVICE_FACTS; i++) {
        if (w->card && i == FACT_KERNELS) continue; /* reported by report_card */
        char is[sizeof facts->is], cost[sizeof facts->cost], remedy[sizeof facts->remedy];
        struct line *l = work_add(w, "card", facts[i].cost[0] ? FINDING_WARNING : FINDING_OK, "%s: %s",
                                  _(facts[i].name), message_translated(is, sizeof is, facts[i].is));
        line_text(l, "fact", facts[i].name);
        message_translated(remedy, sizeof remedy, facts[i].remedy);
        if (facts[i].cost[0])
            line_advise(l, message_translated(cost, sizeof cost, facts[i].cost), remedy[0] ? remedy : NULL);
    }
}

/* Reports other users of the card's memory. For AMD and Hygon the kernel lists them, for NVIDIA its
 * telemetry. The driver's count of free memory shows no owner. */
static void report_memory(struct work *w, double available, double total)
{
    enum { MOST = 256 };
    int pids[MOST], n = kfd_processes(w->doctor->root, pids, MOST), most = 0;
    long card = n < 0 ? 0 : kfd_card(w->doctor->root, w->device->pci);
    double bytes, held = 0;
    for (int i = 0; card && i < n; i++)
        if (pids[i] != (int)getpid() && kfd_bytes(w->doctor->root, pids[i], card, &bytes) && bytes > held) {
            held = bytes;
            most = pids[i];
        }
    const struct monitor_card *seen = &w->state.card;
    if (w->state.known && seen->holder_count > 0 && seen->holders[0].bytes > held) {
        held = seen->holders[0].bytes;
        most = seen->holders[0].pid;
    }
    if (held > total / 16) {
        struct line *l = work_add(w, "card", FINDING_WARNING, "process %d uses %.1f of %.1f GiB", most,
                                  held / GIB, total / GIB);
        line_advise(l, "another process uses the card's memory, and may compute on it",
                    "select another card: device.cards");
    } else if (available <= total / 2) {
        struct line *l =
            work_add(w, "card", FINDING_WARNING, "%.1f of %.1f GiB are free, according to the driver",
                     available / GIB, total / GIB);
        line_advise(
            l,
            card ? N_("the kernel lists no process that uses the rest: the driver may count differently")
                 : N_("another process may use the rest"),
            "list processes with hy-smi --showpids, rocm-smi --showpids or nvidia-smi");
    }
}

static void report_card(struct work *w)
{
    struct gpu *gpu = gpu_of(w->device);
    const char *name = strchr(w->device->name, ' ');
    struct line *l = work_add(w, "card", FINDING_OK, "%s: sentinel correct, wave %d, kernels %s, GEMM by %s",
                              name ? name + 1 : w->device->name, gpu->wave, gpu->object, gpu_gemms(gpu));
    line_text(l, "object", gpu->object);
    line_real(l, "wave", gpu->wave);
    size_t available = 0, total = 0;
    if (gpu->driver.memory_info(&available, &total)) return;
    line_real(l, "memory_bytes", (double)total);
    line_real(l, "free_bytes", (double)available);
    report_memory(w, (double)available, (double)total);
}

/* Default shape: a tower like ViT-B/16, or a small one for an emulated card. */
static const struct doctor_shape usual = {"ViT-B/16", DTYPE_BF16, 8, 197, 768, 12, 3072, false, true},
                                 little = {N_("a small tower"), DTYPE_BF16, 2, 17, 64, 2, 128, false, true};

/* Returns the seconds of a pass over 16 MiB: real cards take less than 0.1 ms. */
static double pass_seconds(struct work *w)
{
    enum { COUNT = 4 << 20 };
    char *p = work_memory(w, "card", COUNT * 6);
    double t = 0;
    for (int run = 0; p && run < 2; run++) {
        t = clock_seconds();
        w->device->ops->cast(w->device, p, DTYPE_F32, p + COUNT * 4, DTYPE_BF16, COUNT);
        w->device->sync(w->device);
        t = clock_seconds() - t;
    }
    device_free(w->device, p);
    return t;
}

static void all(struct work *w)
{
    struct doctor *d = w->doctor;
    w->slow = w->card && pass_seconds(w) > 4e-3;
    int count = d->shape_count ? d->shape_count : 1;
    const struct doctor_shape *shapes = d->shape_count ? d->shapes : w->slow ? &little : &usual;
    work_bandwidth(w);
    for (int i = 0; i < count; i++) {
        work_gemms(w, &shapes[i]);
        work_attention(w, &shapes[i]);
    }
    if (!w->card) return; /* the CPU is the reference: nothing to compare with */
    work_optimizer(w, &shapes[count - 1]);
    work_graph(w);
    work_copies(w);
}

int doctor_device(struct doctor *d, const char *spec, struct error *err)
{
    struct work w = {.doctor = d, .spec = spec};
    int code = device_open(&w.device, spec, 0, err);
    if (code) return code;
    w.card = w.device->kind != DEVICE_CPU;
    char name[32]; /* the device selected by "auto" */
    snprintf(name, sizeof name, "%.*s", (int)strcspn(w.device->name, " "), w.device->name);
    w.spec = w.card ? name : "cpu";
    if (w.card) {
        work_state_open(&w);
        report_card(&w);
    }
    report_facts(&w);
    if (!d->quick) all(&w);
    if (w.card) {
        work_state_sample(&w);
        work_state_report(&w);
        if (gpu_of(w.device)->driver.kind == DRIVER_CUDA) doctor_xid(d, w.spec, w.device->pci);
        work_state_close(&w);
    }
    code = device_check(w.device, err);
    if (!code && w.wrong)
        code = error_set(err, EXIT_FAILED, "see the lines of this report that say 'missing'",
                         "%s computes wrongly: %d of %d results", spec, w.wrong, w.checks);
    device_close(w.device);
    return code;
}
