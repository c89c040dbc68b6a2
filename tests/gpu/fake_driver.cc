/* A driver without a card, for tests: a shared library with the entry points of libamdhip64 (or of libcuda:
 * FAKE_CUDA), whose card is the emulation of tests/gpu/emulate.h. The environment describes the machine:
 *   FAKE_CARDS    number of cards (1; at most 8). 0: the driver returns an error, or, with FAKE_EMPTY, 0 and
 *                 success, as HIP does
 *   FAKE_UNITS, FAKE_NAME  compute units (1), name of the card (Emulated card of wave N)
 *   FAKE_BUS      number of the first card's PCI bus (3)
 *   FAKE_VERSION  version of the driver (50731921, HIP 5.7)
 *   FAKE_ARCH     architecture of the card (FAKE_CARD: gfx90a, gfx928, sm_90)
 *   FAKE_MEMORY   bytes of the card (8 GiB)
 *   FAKE_OTHERS   bytes that other processes hold (0)
 *   FAKE_INIT, FAKE_CONTEXT, FAKE_LOAD  error of the first call, of starting a card, of loading code (0)
 *   FAKE_SILENT   kernels start, succeed and do nothing, as with code of a wrong architecture on some cards
 *   FAKE_WAVE     width of its waves, if kernels were compiled for a different one
 *   FAKE_LANE     lane whose sums of matrix instructions are in wrong positions
 *   FAKE_WRONG    prefix of the names of kernels that start, succeed and do nothing
 *   FAKE_LAUNCH   number of the launch that fails with "launch failure", or FAKE_ERROR
 *   FAKE_FAULT    number of the launch whose kernel reads unmapped memory: it starts, and the next call
 *                 returns the error. As with real drivers, both errors stay: every later call returns them.
 *   FAKE_LATE     number of the stream, from 1 in the order of creation, whose work waits as long as waits
 *                 and events allow; all others work immediately (0: none waits; -1: all do). A missing event
 *                 shows with either, a missing wait of the host with -1.
 *   FAKE_TAKES    "NAME=MICROSECONDS,...": kernels with this prefix take that long on their stream, which
 *                 runs in parallel with the host, as all streams then do
 *   FAKE_GRAPH    "none": no recording; "void": empty ones; "small": those above 100 operations fail
 *   FAKE_COUNT    a file; the numbers of allocations, launches, graph starts, copies of all streams but the
 *                 first, and launches by kernel are written to it when the library is unloaded
 *
 * HIP_, ROCR_ and CUDA_VISIBLE_DEVICES number the cards as with the real drivers. Work that a library of
 * collectives adds to a stream (tests/gpu/fake_nccl.cc) is not done immediately: fake_driver_give.
 */
#include "tests/gpu/fake_arguments.h"
#include "tests/gpu/emulate_run.h"
#include "tests/gpu/fake_memory.h"
#include "tests/gpu/fake_visible.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#ifdef FAKE_CUDA
#define ENTRY(hip, cuda) extern "C" __attribute__((visibility("default"))) int cuda
#else
#define ENTRY(hip, cuda) extern "C" __attribute__((visibility("default"))) int hip
#endif

enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    NO_BINARY = 209,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILURE = 719,
    NOT_SUPPORTED = 801,
    NOT_RECORDABLE = 900,
    RECORDING_VOID = 901
};

static const char *arch()
{
    const char *text = getenv("FAKE_ARCH");
    return text ? text : FAKE_CARD;
}

/* One thread at a time is inside: the emulation has one card's state. */
static std::mutex inside_driver;
#define ENTERED std::lock_guard<std::mutex> entered(inside_driver)

/* What a kernel has done wrong: no card of this process does anything any more. */
static int fault;
#define OF_A_CARD                                                                                            \
    ENTERED;                                                                                                 \
    if (fault) return fault

/* Whose turn it is on this thread. As with the real drivers a thread begins with the first card (HIP) or with
 * none (CUDA), and nothing of a card works from a thread to which another is current. */
enum { CARDS = 8 };
#ifdef FAKE_CUDA
static char contexts[CARDS];
static thread_local void *current_context;
static int current_card() { return current_context ? (int)((char *)current_context - contexts) : -1; }
enum { WRONG_CARD = 201 };
#else
static thread_local int current;
static int current_card() { return current; }
enum { WRONG_CARD = 400 };
#endif

struct block {
    size_t bytes;
    int card;
};
static std::map<char *, block> blocks; /* memory of the cards */
static size_t held;
#include "tests/gpu/fake_count.h"
#include "tests/gpu/fake_races.h"
#include "tests/gpu/fake_streams.h"
#include "tests/gpu/fake_traffic.h"

/* Is all of it inside one block? */
static bool inside(const void *p, size_t bytes)
{
    auto after = blocks.upper_bound((char *)p);
    if (after == blocks.begin()) return false;
    --after;
    return after->second.card == current_card() && (char *)p + bytes <= after->first + after->second.bytes;
}

ENTRY(hipInit, cuInit)(unsigned)
{
    ENTERED;
    set_taking(getenv("FAKE_TAKES"));
    if (!taking.empty()) going_on.begin();
    return (int)number("FAKE_INIT", 0);
}
ENTRY(hipDriverGetVersion, cuDriverGetVersion)(int *version)
{
    ENTERED;
    *version = (int)number("FAKE_VERSION", 50731921);
    return 0;
}
ENTRY(hipGetDeviceCount, cuDeviceGetCount)(int *count)
{
    ENTERED;
    *count = (int)visible().size();
    return *count || getenv("FAKE_EMPTY") ? 0 : NO_DEVICE;
}
ENTRY(hipDeviceGet, cuDeviceGet)(int *device, int ordinal)
{
    ENTERED;
    *device = ordinal;
    return ordinal < (int)visible().size() ? 0 : INVALID_DEVICE;
}
ENTRY(hipDeviceGetName, cuDeviceGetName)(char *name, int size, int)
{
    ENTERED;
    snprintf(name, (size_t)size, getenv("FAKE_NAME") ?: "Emulated card of wave %d", WAVE);
    return 0;
}
ENTRY(hipDeviceGetAttribute, cuDeviceGetAttribute)(int *value, int attribute, int)
{
    ENTERED;
    const char *digits = strpbrk(arch(), "0123456789");
    int capability = digits ? atoi(digits) : 0;
#ifdef FAKE_CUDA
    bool units = attribute == 16, known = units || attribute == 75 || attribute == 76;
#else
    bool units = attribute == 63, known = units;
#endif
    if (!known) return INVALID_VALUE; /* as every number that a vendor has not given */
    *value = units ? (int)number("FAKE_UNITS", 1) : attribute == 75 ? capability / 10 : capability % 10;
    return 0;
}
ENTRY(hipDeviceTotalMem, cuDeviceTotalMem_v2)(size_t *bytes, int)
{
    ENTERED;
    *bytes = (size_t)number("FAKE_MEMORY", 8LL << 30);
    return 0;
}
ENTRY(hipDeviceGetPCIBusId, cuDeviceGetPCIBusId)(char *text, int size, int device)
{
    ENTERED;
    snprintf(text, (size_t)size, "0000:%02x:00.0",
             (unsigned)(number("FAKE_BUS", 3) + visible()[(size_t)device]));
    return 0;
}
#ifdef FAKE_CUDA
ENTRY(, cuCtxSetCurrent)(void *context)
{
    current_context = context;
    return (int)number("FAKE_CONTEXT", 0);
}
ENTRY(, cuCtxGetCurrent)(void **context)
{
    *context = current_context;
    return 0;
}
ENTRY(, cuDevicePrimaryCtxRetain)(void **context, int device)
{
    *context = contexts + device;
    return 0;
}
ENTRY(, cuDevicePrimaryCtxRelease_v2)(int) { return 0; }
#else
ENTRY(hipSetDevice, )(int device)
{
    if (device >= (int)visible().size()) return INVALID_DEVICE;
    current = device;
    return (int)number("FAKE_CONTEXT", 0);
}
ENTRY(hipGetDevice, )(int *device)
{
    *device = current;
    return 0;
}
#endif
ENTRY(hipMemGetInfo, cuMemGetInfo_v2)(size_t *available, size_t *total)
{
    OF_A_CARD;
    if (current_card() < 0) return WRONG_CARD;
    *total = (size_t)number("FAKE_MEMORY", 8LL << 30);
    size_t used = held + (size_t)number("FAKE_OTHERS", 0);
    *available = *total > used ? *total - used : 0;
    return 0;
}
ENTRY(hipMalloc, cuMemAlloc_v2)(void **p, size_t bytes)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    if (current_card() < 0) return WRONG_CARD;
    allocations++;
    if (held + bytes + (size_t)number("FAKE_OTHERS", 0) > (size_t)number("FAKE_MEMORY", 8LL << 30))
        return OUT_OF_MEMORY;
    char *block = take_memory(bytes);
    if (!block) return OUT_OF_MEMORY;
    blocks[block] = {bytes, current_card()};
    watch(block, bytes, nullptr);
    held += bytes;
    *p = block;
    return 0;
}
ENTRY(hipFree, cuMemFree_v2)(void *p)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    work_off_all();
    auto at = blocks.find((char *)p);
    if (at == blocks.end() || at->second.card != current_card()) return INVALID_VALUE;
    held -= at->second.bytes;
    traffic_forget(p);
    unwatch(p);
    return_memory(at->first, at->second.bytes);
    blocks.erase(at);
    return 0;
}
ENTRY(hipHostMalloc, cuMemHostAlloc)(void **p, size_t bytes, unsigned)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    if (current_card() < 0) return WRONG_CARD;
    *p = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    return *p ? 0 : OUT_OF_MEMORY;
}
ENTRY(hipHostFree, cuMemFreeHost)(void *p)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    work_off_all();
    free(p);
    return 0;
}
ENTRY(hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)(void *dst, const void *src, size_t bytes, void *on)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    if (!inside(dst, bytes)) return INVALID_VALUE;
    side_copies += stream_of(on)->number > 1;
    side_up_bytes += stream_of(on)->number > 1 ? (long long)bytes : 0;
    uploads++;
    return give(on, [=] { races_range(dst, bytes, true), memcpy(dst, src, bytes); });
}
ENTRY(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)(void *dst, const void *src, size_t bytes, void *on)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    if (!inside(src, bytes)) return INVALID_VALUE;
    downloads++;
    side_down_bytes += stream_of(on)->number > 1 ? (long long)bytes : 0;
    return give(on, [=] { races_range(src, bytes, false), memcpy(dst, src, bytes); });
}
ENTRY(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)(void *dst, const void *src, size_t bytes, void *on)
{
    OF_A_CARD;
    if (!inside(dst, bytes) || !inside(src, bytes)) return INVALID_VALUE;
    copies++;
    return give(on, [=] {
        races_range(src, bytes, false), races_range(dst, bytes, true);
        traffic_move("copy", bytes, bytes), memmove(dst, src, bytes);
    });
}
ENTRY(hipMemsetD8Async, cuMemsetD8Async)(void *p, unsigned char byte, size_t bytes, void *on)
{
    OF_A_CARD;
    if (!inside(p, bytes)) return INVALID_VALUE;
    fills++;
    return give(on,
                [=] { races_range(p, bytes, true), traffic_move("fill", 0, bytes), memset(p, byte, bytes); });
}

ENTRY(hipStreamCreateWithFlags, cuStreamCreate)(void **p, unsigned)
{
    OF_A_CARD;
    if (current_card() < 0) return WRONG_CARD;
    stream *s = new stream;
    s->card = current_card();
    s->number = (long long)streams.size() + 1;
    streams.push_back(s);
    *p = s;
    return 0;
}
ENTRY(hipStreamDestroy, cuStreamDestroy_v2)(void *p)
{
    OF_A_CARD;
    work_off((stream *)p, nullptr, 0);
    for (stream *&s : streams)
        if (s == p) {
            s = streams.back();
            streams.pop_back();
            break;
        }
    delete (stream *)p;
    return 0;
}
ENTRY(hipStreamSynchronize, cuStreamSynchronize)(void *p)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    if (stream_of(p)->card != current_card()) return WRONG_CARD;
    syncs++;
    work_off(stream_of(p), nullptr, 0);
    races_join(host_clocks, stream_of(p)->clock);
    return 0;
}
ENTRY(hipStreamWaitEvent, cuStreamWaitEvent)(void *p, void *e, unsigned)
{
    OF_A_CARD;
    return give(p, work{[] {}, (event *)e, ((event *)e)->recorded, nullptr});
}
ENTRY(hipEventCreateWithFlags, cuEventCreate)(void **p, unsigned)
{
    OF_A_CARD;
    if (current_card() < 0) return WRONG_CARD;
    *p = new event{current_card()};
    return 0;
}
ENTRY(hipEventDestroy, cuEventDestroy_v2)(void *p)
{
    OF_A_CARD;
    work_off_all();
    delete (event *)p;
    return 0;
}
ENTRY(hipEventRecord, cuEventRecord)(void *p, void *on)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    event *e = (event *)p;
    if (e->card != current_card() || stream_of(on)->card != e->card) return WRONG_CARD;
    if (e->on && e->on != stream_of(on)) /* its records are counted in one order */
        work_off(e->on, e, e->recorded);
    e->on = stream_of(on);
    e->recorded++;
    return give(on, [e] {
        e->done++;
        e->clock = e->on->clock;
        e->at = e->on->until;
    });
}
ENTRY(hipEventSynchronize, cuEventSynchronize)(void *p)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    event *e = (event *)p;
    waits++;
    if (e->on) work_off(e->on, e, e->recorded);
    races_join(host_clocks, e->clock);
    return 0;
}
ENTRY(hipEventQuery, cuEventQuery)(void *p)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    event *e = (event *)p;
    if (e->on && e->done < e->recorded) try_work_off(e->on, e, e->recorded);
    if (e->done < e->recorded) return NOT_READY;
    races_join(host_clocks, e->clock);
    return 0;
}

/* For a library with work of its own on streams: `begin` is called after all earlier work, then `ended` again
 * and again until it returns 1; later work of the stream waits for that. */
extern "C" __attribute__((visibility("default"))) int fake_driver_give(void *p, void (*begin)(void *),
                                                                       int (*ended)(void *), void *context)
{
    ENTERED;
    if (recording == p) return NOT_RECORDABLE;
    bool begun = false;
    return put((stream *)p, work{[] {}, nullptr, 0,
                                 [=]() mutable {
                                     if (!begun) begin(context);
                                     begun = true;
                                     return ended(context) != 0;
                                 }});
}
/* Calls so far, of all cards: tests/gpu/driver_calls.c. */
extern "C" __attribute__((visibility("default"))) void fake_driver_calls(long long calls[8])
{
    ENTERED;
    const long long all[8] = {launches, graphs, syncs, waits, uploads, downloads, copies, fills};
    memcpy(calls, all, sizeof all);
}
extern "C" __attribute__((visibility("default"))) int fake_driver_card() { return current_card(); }
extern "C" __attribute__((visibility("default"))) int fake_driver_stream_card(void *p)
{
    return ((stream *)p)->card;
}
/* Is it memory of this thread's card? */
extern "C" __attribute__((visibility("default"))) int fake_driver_inside(const void *p, size_t bytes)
{
    ENTERED;
    return inside(p, bytes);
}
ENTRY(hipStreamBeginCapture, cuStreamBeginCapture_v2)(void *p, int mode)
{
    OF_A_CARD;
    const char *how = getenv("FAKE_GRAPH");
    if (how && strcmp(how, "none") == 0) return NOT_SUPPORTED;
    if (recording || mode != 1) return INVALID_VALUE;
    recording = (stream *)p;
    recorder = std::this_thread::get_id();
    recording_void = how && strcmp(how, "void") == 0;
    recorded.clear();
    return 0;
}
ENTRY(hipStreamEndCapture, cuStreamEndCapture)(void *p, void **graph)
{
    OF_A_CARD;
    if (recording != p) return INVALID_VALUE;
    recording = nullptr;
    *graph = recording_void ? nullptr : new std::vector<work>(recorded);
    recorded.clear();
    return recording_void ? RECORDING_VOID : 0;
}
ENTRY(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags)
(void **executable, void *graph, unsigned long long)
{
    OF_A_CARD;
    const char *how = getenv("FAKE_GRAPH");
    size_t operations = ((std::vector<work> *)graph)->size();
    if (how && strcmp(how, "small") == 0 && operations > 100) return INVALID_VALUE;
    *executable = new std::vector<work>(*(std::vector<work> *)graph);
    return 0;
}
ENTRY(hipGraphLaunch, cuGraphLaunch)(void *executable, void *on)
{
    OF_A_CARD;
    if (not_recordable()) return NOT_RECORDABLE;
    graphs++;
    for (const work &w : *(std::vector<work> *)executable) give(on, w);
    return 0;
}
static int graph_end(void *graph)
{
    delete (std::vector<work> *)graph;
    return 0;
}
ENTRY(hipGraphDestroy, cuGraphDestroy)(void *graph) { return graph_end(graph); }
ENTRY(hipGraphExecDestroy, cuGraphExecDestroy)(void *executable) { return graph_end(executable); }

/* A code object: "emulated ARCH" and a newline. It is read again at each use, as HIP's runtime may do. */
struct code {
    const void *image;
};
static bool is_code(const void *image) { return memcmp(image, "emulated ", 9) == 0; }
static std::vector<const code *> modules;

ENTRY(hipModuleLoadData, cuModuleLoadData)(void **module, const void *image)
{
    OF_A_CARD;
    char built[32] = "";
    if (sscanf((const char *)image, "emulated %31s", built) != 1) return 200;
    if (number("FAKE_LOAD", 0)) return (int)number("FAKE_LOAD", 0);
    bool compiled = strncmp(built, "compute_", 8) == 0 && atoi(built + 8) <= atoi(arch() + 3); /* PTX */
    if (strcmp(built, arch()) != 0 && !compiled && !getenv("FAKE_SILENT")) return NO_BINARY;
    emulate::cards_wave = (int)number("FAKE_WAVE", WAVE);
    emulate::wrong_lane = (int)number("FAKE_LANE", -1);
    if (current_card() < 0) return WRONG_CARD;
    code *loaded = new code{image};
    modules.push_back(loaded);
    *module = loaded;
    return 0;
}
ENTRY(hipModuleUnload, cuModuleUnload)(void *module)
{
    OF_A_CARD;
    for (const code *&m : modules)
        if (m == module) {
            m = modules.back();
            modules.pop_back();
            break;
        }
    delete (code *)module;
    return 0;
}
ENTRY(hipModuleGetFunction, cuModuleGetFunction)(void **function, void *module, const char *name)
{
    OF_A_CARD;
    if (!is_code(((code *)module)->image)) return ILLEGAL_ADDRESS;
    const emulate::kernel *k = emulate::find(name);
    *function = (void *)k;
    return k ? 0 : NOT_FOUND;
}
/* Of the kernels' __launch_bounds__ (kernels/gpu/vendor.h): more threads are an error of CUDA's, and garbage
 * on a DCU. */
enum { BOUND = 256 };

/* As FAKE_TAKES from now on, and whether kernels compute at all: a test of times has been given numbers by a
 * step before, and would measure the emulation. */
static bool computes = true;
extern "C" __attribute__((visibility("default"))) void fake_driver_takes(const char *text, int compute)
{
    ENTERED;
    computes = compute != 0;
    set_taking(text);
    if (!taking.empty()) going_on.begin();
}
ENTRY(hipModuleLaunchKernel, cuLaunchKernel)
(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned,
 void *on, void **arguments, void **)
{
    OF_A_CARD;
    if (stream_of(on)->card != current_card()) return WRONG_CARD;
    for (const code *m : modules)
        if (!is_code(m->image)) return ILLEGAL_ADDRESS;
    launches++;
    ++(*kernels)[((const emulate::kernel *)function)->name];
    if (launches == number("FAKE_LAUNCH", -1)) return fault = (int)number("FAKE_ERROR", LAUNCH_FAILURE);
    if (launches == number("FAKE_FAULT", -1)) {
        fault = ILLEGAL_ADDRESS;
        return 0;
    }
    if (getenv("FAKE_SILENT")) return 0;
    if (by != 1 || bz != 1 || bx > BOUND) return INVALID_VALUE;
    const emulate::kernel *k = (const emulate::kernel *)function;
    std::vector<std::vector<char>> kept; /* as they are now: who launches may change them at once */
    const std::vector<size_t> &sizes = fake::argument_sizes()[k->name];
    for (size_t i = 0; i < sizes.size(); i++)
        kept.emplace_back((char *)arguments[i], (char *)arguments[i] + sizes[i]);
    const char *wrong = getenv("FAKE_WRONG");
    if (wrong && strncmp(k->name, wrong, strlen(wrong)) == 0) return 0;
    return give(
        on,
        [=]() mutable {
            int64_t grid[3] = {gx, gy, gz};
            std::vector<void *> pointers;
            for (std::vector<char> &value : kept) pointers.push_back(value.data());
            traffic_begin(k->name);
            races_name(k->name);
            if (computes) emulate::run(k, grid, (int)bx, pointers.data());
            traffic_end();
        },
        takes(k->name));
}

static const char *words(int error)
{
    return error == OUT_OF_MEMORY     ? "out of memory"
           : error == NO_DEVICE       ? "no device"
           : error == INVALID_DEVICE  ? "invalid device ordinal"
           : error == NO_BINARY       ? "no kernel image is available for execution on the device"
           : error == LAUNCH_FAILURE  ? "launch failure"
           : error == NOT_FOUND       ? "named symbol not found"
           : error == ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
           : error == WRONG_CARD      ? "this thread's card is another"
                                      : "another error";
}
#ifdef FAKE_CUDA
ENTRY(, cuGetErrorString)(int error, const char **text)
{
    ENTERED;
    *text = words(error);
    return 0;
}
#else
extern "C" __attribute__((visibility("default"))) const char *hipGetErrorString(int error)
{
    return words(error);
}
#endif
