/* One device at work: see doctor.h. Opened, told in words, its bandwidth, copies and graphs; products.c and
 * trials.c have what it computes. */
#include "core/doctor/work.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/kfd.h"
#include "core/device/bench.h"
#include "core/device/facts.h"
#include "core/device/gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double GIB = 1073741824.0;

struct line *work_add(struct work *w, const char *check, enum finding finding, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    struct line *l = doctor_add(w->doctor, finding, "%s: %s", w->spec, text);
    l->check = check;
    line_text(l, "device", w->spec);
    return l;
}

void work_grad_stats(struct work *w, struct line *l, bool right, const char *mend)
{
    w->checks++;
    if (right) return;
    w->wrong++;
    l->finding = FINDING_MISSING;
    line_advise(l, "what is trained by it learns from wrong numbers",
                mend ? mend : "another card (device.cards), or the CPU; send this report to the maintainers");
}

/* splitmix64's last steps (Steele et al. 2014) */
float work_value(uint64_t seed, int64_t i)
{
    uint64_t x = (seed << 48) + (uint64_t)i * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (float)((int)(x >> 60) - 8) / 8.0f;
}

static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

enum { PIECE = 1 << 18 };

void work_fill(struct device *dev, void *p, enum dtype type, int64_t count, uint64_t seed)
{
    size_t size = dtype_bytes(type);
    char *piece = xmalloc(PIECE * size);
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        for (int64_t i = 0; i < n; i++) {
            float x = work_value(seed, at + i);
            uint16_t half = bf16_of(x);
            memcpy(piece + (size_t)i * size, size == 2 ? (void *)&half : (void *)&x, size);
        }
        dev->upload(dev, (char *)p + (size_t)at * size, piece, (size_t)n * size);
    }
    dev->sync(dev);
    free(piece);
}

void work_fetch(struct device *dev, const void *p, enum dtype type, int64_t count, float *values)
{
    if (type == DTYPE_F32) {
        dev->download(dev, values, p, (size_t)count * sizeof *values);
        return;
    }
    uint16_t *halves = xmalloc((size_t)count * sizeof *halves + 1);
    dev->download(dev, halves, p, (size_t)count * sizeof *halves);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(&values[i], &bits, sizeof bits);
    }
    free(halves);
}

char *work_memory(struct work *w, const char *check, size_t bytes)
{
    struct error err;
    char *p = device_alloc(w->device, MEMORY_WORKSPACE, bytes, "measurement", &err);
    if (p) w->device->ops->fill(w->device, p, 0xFF, bytes);
    else
        line_advise(work_add(w, check, FINDING_WARNING, "not tried: no %.1f MiB of memory",
                             (double)bytes / 1048576.0),
                    "an experiment of these shapes does not fit either",
                    "end other programs on the card, or choose a smaller train.micro_batch");
    return p;
}

double work_seconds(struct device *dev, void (*run)(void *context), void *context)
{
    double t = clock_seconds();
    run(context);
    dev->sync(dev);
    return clock_seconds() - t;
}

/* ---- bandwidth: STREAM's copy and triad ---- */

/* y = x + gamma * branch in fp32: 12 bytes an element, as much as a = b + s c */
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

void work_bandwidth(struct work *w)
{
    enum { D = 1024 };
    int64_t rows = w->slow ? 16 : w->card ? 65536 : 8192;
    size_t each = (size_t)rows * D * 4;
    char *block = work_memory(w, "bandwidth", 3 * each + D * 4);
    if (!block) return;
    bool right;
    double copy = device_copy_rate(w->device, block, each) * 1e-9, rate = triad_rate(w, block, rows, &right);
    struct line *l = work_add(w, "bandwidth", FINDING_OK, "copies %.1f GB/s, triad %.1f GB/s%s", copy, rate,
                              right ? "" : ", wrong numbers");
    line_real(l, "copy_gb_per_s", copy);
    line_real(l, "triad_gb_per_s", rate);
    work_grad_stats(w, l, right, NULL);
    device_free(w->device, block);
}

/* ---- copies between this machine and the card, from and to pinned memory ---- */

static double copied(struct work *w, bool up, char *there, char *here, size_t bytes)
{
    const struct device_queues *q = w->device->queues;
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

void work_copies(struct work *w)
{
    const struct device_queues *q = w->device->queues;
    size_t bytes = (size_t)(w->slow ? 1 : 32) << 20;
    char *there = work_memory(w, "copies", bytes), *here = there ? q->host_allocate(w->device, bytes) : NULL;
    if (there && !here)
        line_advise(work_add(w, "copies", FINDING_WARNING, "no %zu MiB of pinned memory", bytes >> 20),
                    "images and gradients are copied by a slower way, or not at all",
                    "ulimit -l unlimited (memory that may be locked)");
    if (here) {
        bool right = true;
        for (size_t i = 0; i < bytes; i++) here[i] = (char)(i * 31 >> 3);
        double up = copied(w, true, there, here, bytes);
        memset(here, 0, bytes);
        double down = copied(w, false, there, here, bytes);
        for (size_t i = 0; i < bytes; i++) right = right && here[i] == (char)(i * 31 >> 3);
        struct line *l = work_add(w, "copies", FINDING_OK, "pinned copies: %.1f GB/s to it, %.1f GB/s back%s",
                                  up, down, right ? "" : ", and other bytes come back");
        line_real(l, "to_gb_per_s", up);
        line_real(l, "from_gb_per_s", down);
        work_grad_stats(w, l, right, NULL);
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

void work_graph(struct work *w)
{
    enum { RUNS = 3 }; /* as they are, recorded, started again */
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
                       s.count, seconds[RUNS - 1] * 1e3, seconds[0] * 1e3, right ? "" : ", wrong numbers");
    line_real(l, "graph_ms", seconds[RUNS - 1] * 1e3);
    line_real(l, "single_ms", seconds[0] * 1e3);
    if (off)
        line_advise(l, "the host starts each of hundreds of operations of a step",
                    "a newer driver, if one is there");
    work_grad_stats(w, l, right, "train with MEOPT_GRAPHS=none; send this report to the maintainers");
    device_free(dev, s.x);
}

/* ---- all of it ---- */

static void report_facts(struct work *w)
{
    struct device_fact facts[DEVICE_FACTS];
    device_facts(w->device, facts);
    for (int i = 0; i < DEVICE_FACTS; i++) {
        if (w->card && i == FACT_KERNELS) continue; /* told */
        struct line *l = work_add(w, "card", facts[i].cost[0] ? FINDING_WARNING : FINDING_OK, "%s: %s",
                                  facts[i].name, facts[i].is);
        line_text(l, "fact", facts[i].name);
        if (facts[i].cost[0]) line_advise(l, facts[i].cost, facts[i].mend[0] ? facts[i].mend : NULL);
    }
}

/* Who else holds the card's memory. The kernel knows, of AMD's and Hygon's cards; what the driver says is
 * free is its own count, and says no more than that. */
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
    if (held > total / 16) {
        struct line *l = work_add(w, "card", FINDING_WARNING, "%.1f of %.1f GiB are held by process %d",
                                  held / GIB, total / GIB, most);
        line_advise(l, "another process holds the card's memory, and may compute on it, too",
                    "another card: device.cards");
    } else if (available <= total / 2) {
        struct line *l =
            work_add(w, "card", FINDING_WARNING, "the driver says that %.1f of %.1f GiB are free",
                     available / GIB, total / GIB);
        line_advise(l,
                    card
                        ? "the kernel knows no process that holds the rest, so the driver may count otherwise"
                        : "another process may hold the rest; nothing here tells",
                    "who: hy-smi --showpids, rocm-smi --showpids or nvidia-smi; another card: device.cards");
    }
}

static void report_card(struct work *w)
{
    struct gpu *gpu = gpu_of(w->device);
    const char *name = strchr(w->device->name, ' ');
    struct line *l =
        work_add(w, "card", FINDING_OK, "%s: sentinel right, wave %d, kernels %s, products by %s",
                 name ? name + 1 : w->device->name, gpu->wave, gpu->object, gpu_gemms(gpu));
    line_text(l, "object", gpu->object);
    line_real(l, "wave", gpu->wave);
    size_t available = 0, total = 0;
    if (gpu->driver.memory_info(&available, &total)) return;
    line_real(l, "memory_bytes", (double)total);
    line_real(l, "free_bytes", (double)available);
    report_memory(w, (double)available, (double)total);
}

/* A tower of the size of ViT-B/16 where no experiment is named, or one that an emulated card can do. */
static const struct doctor_shape usual = {"ViT-B/16", DTYPE_BF16, 8, 197, 768, 12, 3072, false, true},
                                 little = {"a small tower", DTYPE_BF16, 2, 17, 64, 2, 128, false, true};

/* Of a pass over 16 MiB: real cards take less than a tenth of a millisecond. */
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
    if (!w->card) return; /* that it does what it does itself is known */
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
    char name[32]; /* what "auto" has become */
    snprintf(name, sizeof name, "%.*s", (int)strcspn(w.device->name, " "), w.device->name);
    w.spec = w.card ? name : "cpu";
    if (w.card) report_card(&w);
    report_facts(&w);
    if (!d->quick) all(&w);
    code = device_check(w.device, err);
    if (!code && w.wrong)
        code = error_set(err, EXIT_FAILED, "see the lines of this report that say 'missing'",
                         "%s computes wrongly: %d of %d results", spec, w.wrong, w.checks);
    device_close(w.device);
    return code;
}
