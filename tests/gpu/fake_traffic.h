/* Counts the bytes that kernels move. The kernels of this stand-in are compiled with -fsanitize=thread, which
 * reports every load and store, and this file takes the place of that sanitizer's library. Of each launch
 * every byte of the card's memory counts once as read and once as written, however often the kernel touches
 * it: the traffic of a card whose cache holds everything that blocks share, the lower bound of this kernel.
 * fake_driver_traffic returns the sums per kernel; a GEMM library adds its own bytes (fake_driver_moved). */
#ifndef MEOPT_TESTS_GPU_FAKE_TRAFFIC_H
#define MEOPT_TESTS_GPU_FAKE_TRAFFIC_H

struct traffic {
    long long launches, read, written;
};
static std::map<std::string, traffic> *traffic_by_kernel = new std::map<std::string, traffic>;

#ifdef FAKE_TRAFFIC

/* When each byte of a block was touched last: the number of the launch. */
struct touched {
    char *begin, *end;
    std::vector<uint32_t> read, written;
};
static std::map<char *, touched> *touched_blocks = new std::map<char *, touched>;
static traffic *moving; /* the running kernel's */
static touched *last_touched;
static uint32_t launch_number;

static void traffic_begin(const std::string &kernel)
{
    moving = &(*traffic_by_kernel)[kernel];
    moving->launches++;
    launch_number++;
    last_touched = nullptr;
}
static void traffic_end() { moving = nullptr; }
static void traffic_forget(void *block) { touched_blocks->erase((char *)block); }

static touched *touched_block(char *p)
{
    if (last_touched && p >= last_touched->begin && p < last_touched->end) return last_touched;
    auto after = blocks.upper_bound(p);
    if (after == blocks.begin()) return nullptr;
    --after;
    char *begin = after->first, *end = begin + after->second.bytes;
    if (p >= end) return nullptr;
    touched &t = (*touched_blocks)[begin];
    if (t.begin != begin || t.end != end)
        t = {begin, end, std::vector<uint32_t>((size_t)(end - begin)),
             std::vector<uint32_t>((size_t)(end - begin))};
    return last_touched = &t;
}
static void touch(void *at, size_t bytes, bool write, int atomic = 0)
{
    if (races) {
        race_touch(at, bytes, write, atomic);
        return;
    }
    char *p = (char *)at;
    touched *t = moving ? touched_block(p) : nullptr;
    if (!t) return; /* shared memory, the stack */
    uint32_t *when = (write ? t->written : t->read).data() + (p - t->begin);
    long long &sum = write ? moving->written : moving->read;
    for (size_t i = 0; i < bytes && p + i < t->end; i++)
        if (when[i] != launch_number) {
            when[i] = launch_number;
            sum++;
        }
}
#define TOUCHED(n)                                                                                           \
    extern "C" void __tsan_read##n(void *p) { touch(p, n, false); }                                          \
    extern "C" void __tsan_write##n(void *p) { touch(p, n, true); }                                          \
    extern "C" void __tsan_unaligned_read##n(void *p) { touch(p, n, false); }                                \
    extern "C" void __tsan_unaligned_write##n(void *p) { touch(p, n, true); }
TOUCHED(1)
TOUCHED(2)
TOUCHED(4)
TOUCHED(8)
TOUCHED(16)
extern "C" void __tsan_read_range(void *p, size_t bytes) { touch(p, bytes, false); }
extern "C" void __tsan_write_range(void *p, size_t bytes) { touch(p, bytes, true); }
extern "C" void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    touch((void *)from, bytes, false);
    touch(to, bytes, true);
    return memcpy(to, from, bytes);
}
extern "C" void *__tsan_memset(void *to, int byte, size_t bytes)
{
    touch(to, bytes, true);
    return memset(to, byte, bytes);
}
extern "C" void __tsan_atomic32_store(volatile int *p, int x, int)
{
    touch((void *)p, sizeof x, true, ATOMIC);
    *p = x;
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void **, void *) {}
extern "C" void __tsan_vptr_read(void **) {}
extern "C" char __tsan_atomic8_load(const volatile char *p, int) { return *p; }

#else

static void traffic_begin(const std::string &) {}
static void traffic_end() {}
static void traffic_forget(void *) {}

#endif

static void traffic_move(const char *what, long long read, long long written)
{
    traffic &t = (*traffic_by_kernel)[what];
    t.launches++;
    t.read += read;
    t.written += written;
}

/* The sums so far by kernel, then all are 0 again. */
extern "C" __attribute__((visibility("default"))) void fake_driver_traffic(
    void (*give)(void *context, const char *kernel, long long launches, long long read, long long written),
    void *context)
{
    ENTERED;
    for (const auto &t : *traffic_by_kernel)
        give(context, t.first.c_str(), t.second.launches, t.second.read, t.second.written);
    traffic_by_kernel->clear();
}
extern "C" __attribute__((visibility("default"))) void fake_driver_moved(const char *what, long long read,
                                                                         long long written)
{
    ENTERED;
    traffic_move(what, read, written);
}

#endif
