/* A card: open and close, code objects, memory, transfers. See gpu.h. */
#include "core/device/gpu.h"
#include "core/device/gpu_lt.h"
#include "core/device/card_peak.h"
#include "core/device/cpu.h"
#include "core/base/file.h"
#include "core/base/log.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Save and restore the calling thread's current context. */
static void current_get(const struct gpu *gpu, struct gpu_before *before)
{
    if (gpu->driver.kind == DRIVER_HIP) {
        if (gpu->driver.get_device(&before->ordinal)) before->ordinal = -1;
    } else if (gpu->driver.get_context(&before->context)) before->context = NULL;
}
static void current_set(const struct gpu *gpu, const struct gpu_before *before)
{
    if (gpu->driver.kind == DRIVER_CUDA) gpu->driver.set_context(before->context);
    else if (before->ordinal >= 0) gpu->driver.set_device(before->ordinal);
}

static void gpu_enter(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    pthread_mutex_lock(&dev->lock);
    if (gpu->entered++ == 0) current_get(gpu, &gpu->before);
    gpu_current(dev);
}
static void gpu_leave(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    if (--gpu->entered == 0) current_set(gpu, &gpu->before);
    pthread_mutex_unlock(&dev->lock);
}

/* ---- Code objects ------------------------------------------------------------------------------------- */
/* Code objects are built with MEOpt, one file per arch: meopt-gfx90a.co, meopt-sm_90.co; and
 * meopt-compute_80.co, which is PTX: the driver compiles it for cards newer than the other objects. */

#ifndef MEOPT_LIBDIR
#define MEOPT_LIBDIR "lib"
#endif

struct object {
    char path[600], arch[32];
};

/* Directories that may contain code objects, in order: only the user's if set; else next to the program in a
 * build tree, then next to the library: installed, or in the Python package. */
enum { OBJECT_DIRECTORIES = 5 };
static void object_directories(char list[OBJECT_DIRECTORIES][256])
{
    char exe[200] = "";
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (slash) *slash = 0;
    const char *own = getenv("MEOPT_KERNELS");
    snprintf(list[0], 256, "%s", own ? own : "");
    for (int i = 1; i < OBJECT_DIRECTORIES; i++) list[i][0] = 0;
    if (own) return;
    snprintf(list[1], 256, "%s/kernels", exe);
    snprintf(list[2], 256, "%s/../" MEOPT_LIBDIR "/meopt", exe);
    Dl_info info;
    const void *here = &gpu_operations;
    if (dladdr(here, &info) && info.dli_fname) {
        const char *end = strrchr(info.dli_fname, '/');
        int length = end ? (int)(end - info.dli_fname) : 1;
        const char *directory = end ? info.dli_fname : ".";
        if (length < 240) {
            snprintf(list[3], 256, "%.*s/meopt", length, directory);
            snprintf(list[4], 256, "%.*s/kernels", length, directory);
        }
    }
}

static bool is_ptx(const char *arch) { return strncmp(arch, "compute_", 8) == 0; }

static int object_list(enum driver_kind kind, struct object *objects, int max)
{
    char directories[OBJECT_DIRECTORIES][256];
    object_directories(directories);
    int count = 0;
    for (int i = 0; i < OBJECT_DIRECTORIES && !count; i++) {
        DIR *dir = directories[i][0] ? opendir(directories[i]) : NULL;
        for (struct dirent *e; dir && count < max && (e = readdir(dir));) {
            size_t n = strlen(e->d_name);
            const char *arch = e->d_name + 6;
            if (n < 13 || n > 30 || strncmp(e->d_name, "meopt-", 6) != 0 ||
                strcmp(e->d_name + n - 3, ".co") != 0)
                continue;
            bool nvidia = strncmp(arch, "sm_", 3) == 0 || is_ptx(arch);
            if (kind == DRIVER_HIP ? strncmp(arch, "gfx", 3) != 0 : !nvidia) continue;
            snprintf(objects[count].path, sizeof objects[count].path, "%.255s/%.32s", directories[i],
                     e->d_name);
            snprintf(objects[count].arch, sizeof objects[count].arch, "%.*s", (int)(n - 9), arch);
            count++;
        }
        if (dir) closedir(dir);
    }
    return count;
}

/* How well an object matches: 3 exactly, 2 a NVIDIA card of the same generation, 1 possibly (the card's arch
 * is unknown, or the driver has to compile it), 0 not at all. */
enum { SUITS_EXACTLY = 3 };
static int suits(enum driver_kind kind, const char *built, const char *card)
{
    if (!card[0]) return 1;
    if (strcmp(built, card) == 0) return SUITS_EXACTLY;
    if (kind == DRIVER_HIP) return 0;
    int a = atoi(built + (is_ptx(built) ? 8 : 3)), b = atoi(card + 3);
    if (is_ptx(built)) return a <= b;
    return a / 10 == b / 10 && a <= b ? 2 : 0;
}

/* Overwrites a test pattern. An object for another card may load, launch and do nothing, each with success.
 * wrong: the failure, or NULL. */
static int sentinel(struct device *dev, const char **wrong)
{
    enum { WORDS = 3000 };
    struct gpu *gpu = gpu_of(dev);
    uint32_t words[WORDS], seed = 0x9E3779B9u ^ (uint32_t)getpid();
    int64_t n = WORDS;
    int32_t wave[2] = {0, 0}; /* the card's, the kernels' */
    void *p = NULL;
    *wrong = N_("its kernels do not start");
    int code = gpu->driver.allocate(&p, (WORDS + 2) * sizeof *words);
    if (!code) code = gpu->driver.fill(p, 0xA5, (WORDS + 2) * sizeof *words, gpu->stream);
    void *last = (char *)p + WORDS * sizeof *words;
    if (!code) {
        gpu_launch(dev, "sentinel", 4, 1, (void *[]){&p, &seed, &n});
        gpu_launch(dev, "wave_width", 1, 1, (void *[]){&last});
        if (!dev->pending.code) code = gpu->driver.to_host(words, p, WORDS * sizeof *words, gpu->stream);
        if (!dev->pending.code && !code) code = gpu->driver.to_host(wave, last, sizeof wave, gpu->stream);
        if (!code) code = gpu->driver.stream_sync(gpu->stream);
    }
    gpu->wave = wave[0];
    if (!code && !dev->pending.code) {
        *wrong = NULL;
        for (uint32_t i = 0; i < WORDS && !*wrong; i++)
            if (words[i] != (seed ^ i * 2654435761u)) *wrong = N_("its kernels start but write nothing");
        if (!*wrong && (wave[0] != wave[1] || (wave[0] != 32 && wave[0] != 64)))
            *wrong = N_("its wave size differs from the card's");
    }
    if (p) gpu->driver.deallocate(p);
    return code;
}

/* Notes the driver's memory figures for the out-of-memory message. */
static void note_memory(struct device *dev, int code)
{
    struct gpu *gpu = gpu_of(dev);
    size_t available = 0, total = 0;
    char text[160];
    if (gpu->driver.memory_info(&available, &total)) available = total = 0;
    size_t own = available + gpu->arena.driver_bytes;
    snprintf(
        dev->memory_note, sizeof dev->memory_note,
        _("the driver says: %s; of %.0f MiB %.0f MiB are free, %.0f MiB are neither free nor this process's"),
        driver_text(&gpu->driver, code, text, sizeof text), (double)total / 1048576.0,
        (double)available / 1048576.0, total > own ? (double)(total - own) / 1048576.0 : 0);
}

/* Loads the best matching object that works. */
static int load_object(struct device *dev, struct error *err)
{
    enum { MAX = 32 };
    struct gpu *gpu = gpu_of(dev);
    struct object objects[MAX];
    char built[300] = "", tried[400] = "", text[160], hint[240] = "";
    int count = object_list(gpu->driver.kind, objects, MAX);
    for (int i = 0; i < count; i++)
        snprintf(built + strlen(built), sizeof built - strlen(built), "%s%s", i ? ", " : "", objects[i].arch);
    for (int quality = SUITS_EXACTLY; quality > 0; quality--)
        for (int i = 0; i < count; i++) {
            if (suits(gpu->driver.kind, objects[i].arch, gpu->card.arch) != quality) continue;
            size_t bytes;
            const char *wrong = NULL;
            if (file_read(objects[i].path, (size_t)1 << 28, &gpu->image, &bytes, err))
                return err ? err->code : EXIT_FAILED;
            int code = gpu->driver.module_load(&gpu->module, gpu->image);
            if (!code) {
                code = sentinel(dev, &wrong);
                if (!wrong) {
                    snprintf(gpu->object, sizeof gpu->object, "%s", objects[i].path);
                    if (is_ptx(objects[i].arch))
                        log_warn("%s: no code object for %s: the driver compiles %s, which takes a while "
                                 "at the first start; build with -DMEOPT_GPU_ARCHS=%s",
                                 dev->name, gpu->card.arch[0] ? gpu->card.arch : N_("this arch"),
                                 objects[i].path, gpu->card.arch[0] ? gpu->card.arch : N_("its own"));
                    return 0;
                }
                if (code == DRIVER_OUT_OF_MEMORY) {
                    note_memory(dev, code);
                    return error_set(err, EXIT_CARD_MEMORY,
                                     "stop the other process, or use another card: device.cards",
                                     "no memory to start on %s; %s", dev->name, dev->memory_note);
                }
                gpu->driver.module_unload(gpu->module);
                gpu->module = NULL;
                memset(gpu->kernels, 0, sizeof gpu->kernels);
            }
            if (code && !hint[0]) driver_too_old(&gpu->driver, gpu->image, bytes, hint, sizeof hint);
            free(gpu->image);
            gpu->image = NULL;
            snprintf(tried + strlen(tried), sizeof tried - strlen(tried), "%s%s: %s", tried[0] ? "; " : "",
                     objects[i].arch, code ? driver_text(&gpu->driver, code, text, sizeof text) : wrong);
            dev->pending.code = 0;
        }
    if (!hint[0])
        snprintf(hint, sizeof hint, _("build MEOpt with -DMEOPT_GPU_ARCHS=%s; see meopt-devices(7)"),
                 gpu->card.arch[0] ? gpu->card.arch : N_("the card's arch"));
    if (!count)
        return error_set(err, EXIT_NO_CARD, hint, "no GPU code objects were built for %s cards; %s is %s",
                         driver_names[gpu->driver.kind], dev->name,
                         gpu->card.arch[0] ? gpu->card.arch : N_("of unknown arch"));
    return error_set(err, EXIT_NO_CARD, hint, "no code object works on %s (%s): built for %s%s%s", dev->name,
                     gpu->card.arch[0] ? gpu->card.arch : N_("arch unknown"), built,
                     tried[0] ? "; tried " : "", tried);
}

/* ---- Launches ----------------------------------------------------------------------------------------- */

/* ---- Memory -------------------------------------------------------------------------------------------- */

static int gpu_take(void *context, size_t bytes, void **p)
{
    struct device *dev = context;
    gpu_current(dev);
    return gpu_of(dev)->driver.allocate(p, bytes);
}
static void gpu_give(void *context, void *p)
{
    struct device *dev = context;
    gpu_current(dev);
    gpu_of(dev)->driver.deallocate(p);
}

static int gpu_allocate(struct device *dev, enum memory_class class, size_t bytes, void **p)
{
    gpu_of(dev)->stale = true;
    int code = arena_take(&gpu_of(dev)->arena, class, bytes, p);
    if (code) note_memory(dev, code);
    return code ? EXIT_CARD_MEMORY : 0;
}
static void gpu_release(struct device *dev, void *p, size_t bytes)
{
    (void)bytes;
    gpu_of(dev)->stale = true;
    arena_give(&gpu_of(dev)->arena, p);
}

const char *gpu_gemms(const struct gpu *gpu)
{
    return gpu->lt ? lt_path(gpu->lt) : gpu->blas ? blas_path(gpu->blas) : N_("MEOpt's own kernel");
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static void gpu_close(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    struct driver *d = &gpu->driver;
    gpu_enter(dev);
    if (gpu->ring) d->stream_sync(gpu->stream); /* it was started */
    graphs_close(gpu);
    blas_close(gpu->blas);
    lt_close(gpu->lt);
    arena_close(&gpu->arena);
    for (int i = 0; i < 2; i++) {
        if (gpu->staged[i]) d->event_destroy(gpu->staged[i]);
        if (gpu->staging[i]) d->host_deallocate(gpu->staging[i]);
        if (gpu->ring_left[i]) d->event_destroy(gpu->ring_left[i]);
    }
    if (gpu->ring) d->host_deallocate(gpu->ring);
    if (gpu->module) d->module_unload(gpu->module);
    free(gpu->image);
    if (gpu->own_stream) d->stream_destroy(gpu->own_stream);
    if (gpu->restreamed) d->event_destroy(gpu->restreamed);
    if (gpu->context && !gpu->callers.context) d->release(gpu->handle);
    gpu_leave(dev);
    free(gpu);
}

static void gpu_dry_close(struct device *dev) { free(gpu_of(dev)); }
static void gpu_dry_sync(struct device *dev) { (void)dev; }
static void gpu_dry_upload(struct device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev, (void)dst, (void)src, (void)bytes;
}
static void gpu_dry_download(struct device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev, (void)src;
    memset(dst, 0, bytes);
}

static struct device *card_new(size_t limit_bytes, struct error *err)
{
    struct device *dev = device_new(sizeof(struct gpu), err);
    if (!dev) return NULL;
    dev->ops = &gpu_operations;
    dev->limit_bytes = limit_bytes; /* without a limit, the driver reports when memory is exhausted */
    dev->allocate = gpu_allocate;
    dev->release = gpu_release;
    dev->upload = gpu_upload;
    dev->download = gpu_download;
    dev->streams = &gpu_streams;
    dev->optim = &gpu_optim;
    dev->issue = gpu_issue;
    dev->sync = gpu_sync;
    dev->enter = gpu_enter;
    dev->leave = gpu_leave;
    dev->close = gpu_close;
    return dev;
}

int gpu_device_dry(struct device **device, const char *type, size_t limit_bytes, struct error *err)
{
    struct driver driver;
    struct error absent;
    bool found = false;
    struct device *dev = *device = card_new(limit_bytes, err);
    if (!dev) return EXIT_HOST_MEMORY;
    gpu_of(dev)->dry = true;
    dev->kind = DEVICE_DRY;
    dev->allocate = dry_allocate;
    dev->release = dry_release;
    dev->streams = &streams_of_dry_card;
    dev->upload = gpu_dry_upload;
    dev->download = gpu_dry_download;
    dev->sync = gpu_dry_sync;
    dev->enter = dev->leave = NULL;
    dev->close = gpu_dry_close;
    snprintf(dev->name, sizeof dev->name, "plan");
    for (int kind = 0; kind < DRIVER_KINDS && !found; kind++) {
        bool meant = strcmp(type, "auto") == 0 || strcmp(type, driver_names[kind]) == 0;
        found = meant && driver_open(&driver, (enum driver_kind)kind, &absent) == 0;
    }
    for (int kind = 0; kind < DRIVER_KINDS && !found;
         kind++) /* for example on a login node, planning for the job's machine */
        if (strcmp(type, driver_names[kind]) == 0) {
            driver.kind = (enum driver_kind)kind;
            gpu_of(dev)->assumed = true;
        }
    if (!found && !gpu_of(dev)->assumed) return 0;
    gpu_of(dev)->meant = true;
    gpu_of(dev)->driver.kind = driver.kind;
    lt_count(dev, found ? &driver : NULL);
    dev->biases_apart = gpu_of(dev)->lt_planned;
    return 0;
}

bool device_assumed(const struct device *dev) { return gpu_is(dev) && ((struct gpu *)dev->state)->assumed; }

int gpu_count(const struct device *dev)
{
    const struct gpu *gpu = dev->state;
    int count = 0;
    return !gpu->dry && gpu->driver.count(&count) == 0 && count > 0 ? count : 1;
}

/* Normalises the address as in /sys: a driver may use other letters and widths. */
static void pci_address(struct device *dev, const char *bus_id)
{
    unsigned domain, bus, slot, function;
    if (sscanf(bus_id, "%4x:%2x:%2x.%1x", &domain, &bus, &slot, &function) == 4)
        snprintf(dev->pci, sizeof dev->pci, "%04x:%02x:%02x.%x", domain & 0xffff, bus & 0xff, slot & 0xff,
                 function & 0xf);
}

/* The driver's handle of a stream that the caller names: see device_restream. */
static int stream_named(struct gpu *gpu, void *name, void **stream)
{
    int code = 0;
    if (!name && !gpu->own_stream)
        code = gpu->driver.stream_create(&gpu->own_stream, DRIVER_STREAM_NON_BLOCKING);
    *stream = name == DEVICE_STREAM_DEFAULT ? NULL : name ? name : gpu->own_stream;
    return code;
}

int gpu_restream(struct device *dev, void *name, struct error *err)
{
    struct gpu *gpu = gpu_of(dev);
    struct driver *d = &gpu->driver;
    void *stream;
    char text[160];
    if (gpu->dry) return 0;
    int code = gpu_current(dev);
    if (!code) code = stream_named(gpu, name, &stream);
    if (!code && stream == gpu->stream) return 0;
    if (!code && !gpu->restreamed) code = d->event_create(&gpu->restreamed, DRIVER_EVENT_NO_TIMING);
    if (!code) code = d->event_record(gpu->restreamed, gpu->stream);
    if (!code) code = d->stream_wait(stream, gpu->restreamed, 0);
    if (code)
        return error_set(err, EXIT_FAILED, NULL, "cannot use another stream of %s: %s", dev->name,
                         driver_text(d, code, text, sizeof text));
    gpu->stream = stream;
    return 0;
}

/* Creates the driver's objects: context, stream, pinned memory, events. */
static int card_start(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    struct driver *d = &gpu->driver;
    void *pinned;
    int code = d->get(&gpu->handle, gpu->ordinal);
    gpu->context = gpu->callers.context;
    if (!code && d->kind == DRIVER_CUDA && !gpu->context) code = d->retain(&gpu->context, gpu->handle);
    if (!code) code = gpu_current(dev);
    if (!code) code = stream_named(gpu, gpu->callers.stream, &gpu->stream);
    for (int i = 0; i < 2 && !code; i++) {
        code = d->host_allocate(&pinned, GPU_STAGING, 0);
        if (!code) gpu->staging[i] = pinned;
        if (!code) code = d->event_create(&gpu->staged[i], DRIVER_EVENT_NO_TIMING);
        if (!code) code = d->event_record(gpu->staged[i], gpu->stream);
        if (!code) code = d->event_create(&gpu->ring_left[i], DRIVER_EVENT_NO_TIMING);
        if (!code) code = d->event_record(gpu->ring_left[i], gpu->stream);
    }
    if (!code && !(code = d->host_allocate(&pinned, GPU_RING, 0))) gpu->ring = pinned;
    return code;
}

int gpu_device_open(struct device **device, enum driver_kind kind, int ordinal, size_t limit_bytes,
                    const struct gpu_callers *callers, struct error *err)
{
    struct error local;
    struct driver driver;
    struct card_info card;
    char text[160];
    if (!err) err = &local;
    *device = NULL;
    int code = driver_open(&driver, kind, err);
    if (!code) code = driver_card(&driver, ordinal, &card, err);
    if (code) return code;
    struct device *dev = card_new(limit_bytes, err);
    if (!dev) return EXIT_HOST_MEMORY;
    struct gpu *gpu = gpu_of(dev);
    gpu->driver = driver;
    gpu->card = card;
    gpu->ordinal = ordinal;
    if (callers) gpu->callers = *callers;
    gpu->arena = (struct arena){.take = gpu_take, .give = gpu_give, .context = dev};
    dev->kind = kind == DRIVER_HIP ? DEVICE_HIP : DEVICE_CUDA;
    snprintf(dev->name, sizeof dev->name, "%s:%d %.100s", driver_names[kind], ordinal, card.name);
    dev->peak_flops = card_peak_flops(card.name, card.units);
    pci_address(dev, card.bus_id);
    struct gpu_before before;
    current_get(gpu, &before);
    if ((code = card_start(dev)) != 0)
        code = error_set(err, EXIT_NO_CARD,
                         driver_remedy(&gpu->driver, code,
                                       N_("see 'meopt doctor': permissions, another process that holds the "
                                          "card, a driver older than the library")),
                         "card %s cannot be started: %s", dev->name,
                         driver_text(&gpu->driver, code, text, sizeof text));
    else code = load_object(dev, err);
    if (!code && !callers) {
        gpu_matrix_choose(dev);
        code = device_check(dev, err); /* before trials of libraries, which clear failures */
    }
    if (code) {
        device_close(dev);
        return code;
    }
    if (!callers) {
        gpu->blas = blas_open(dev);
        gpu->lt = lt_open(dev);
        dev->biases_apart = gpu->blas || gpu->lt;
        gpu->graphs = graphs_open(dev);
    }
    if (callers) current_set(gpu, &before);
    log_debug("%s: %s, wave %d, %s, matrix instructions %s, GEMMs by %s", dev->name, gpu->card.arch,
              gpu->wave, gpu->object, gpu->matrix, gpu_gemms(gpu));
    *device = dev;
    return 0;
}

/* ---- algorithms of the GEMM library ---- */

static struct lt *lt_of(struct device *dev) { return gpu_is(dev) ? gpu_of(dev)->lt : NULL; }

bool device_gemm_choices(struct device *dev, struct gemm_choices *choices)
{
    const struct lt *lt = lt_of(dev);
    memset(choices, 0, sizeof *choices);
    if (!lt) return false;
    snprintf(choices->card, sizeof choices->card, "%s", gpu_of(dev)->card.name);
    snprintf(choices->library, sizeof choices->library, "%s", lt->version);
    choices->algorithm_bytes = lt->is->algorithm_bytes;
    return true;
}

void device_gemm_try(struct device *dev, bool on)
{
    struct lt *lt = lt_of(dev);
    if (!lt) return;
    if (on && !lt->found) lt->found = calloc(1, sizeof *lt->found);
    lt->trying = on && lt->found;
}

void device_gemm_found(struct device *dev, struct gemm_choices *choices)
{
    const struct lt *lt = lt_of(dev);
    for (int i = 0; lt && lt->found && i < lt->found->count && choices->count < GEMM_CHOICES; i++)
        choices->list[choices->count++] = lt->found->list[i];
}

void device_gemm_use(struct device *dev, const struct gemm_choices *choices)
{
    struct lt *lt = lt_of(dev);
    if (!lt) return;
    if (!lt->used) lt->used = malloc(sizeof *lt->used);
    if (!lt->used) return;
    *lt->used = *choices;
    for (int i = 0; i < lt->count; i++) lt->plans[i].looked_up = false;
    gpu_of(dev)->stale = true; /* graphs have the former algorithms */
}
