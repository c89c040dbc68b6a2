/* Finds races of kernels: two accesses to one byte of shared memory or of the card's, one of them a store and
 * not both atomic, with nothing between them that gives an order. FAKE_RACES turns it on in a stand-in whose
 * kernels report their loads and stores (fake_traffic.h). The first race ends the process: kernel, address,
 * and who does what.
 *
 * What gives an order:
 * - Within a block: a barrier. A wave's lanes are not in step, and no wave operation orders stores: of
 *   shuffles and matrix instructions no vendor promises that one lane's stores are visible to another.
 *   A load before a wave operation, though, is before a store of another lane of this wave after it: what a
 *   lane gives to the operation comes from what it has loaded.
 * - Between blocks of a launch: nothing.
 * - Between launches, copies and fills: their stream; an event; the host, where it has waited for the first
 *   before it gave the second. */
#ifndef MEOPT_TESTS_GPU_FAKE_RACES_H
#define MEOPT_TESTS_GPU_FAKE_RACES_H

/* For each stream, how much of its work is done before something. */
struct clocks {
    std::vector<uint32_t> ticks;
    void join(const clocks &other)
    {
        if (ticks.size() < other.ticks.size()) ticks.resize(other.ticks.size());
        for (size_t i = 0; i < other.ticks.size(); i++) ticks[i] = std::max(ticks[i], other.ticks[i]);
    }
};

#ifdef FAKE_TRAFFIC

static const bool races = getenv("FAKE_RACES") != nullptr;
static clocks host_clocks;
static void races_join(clocks &to, const clocks &from)
{
    if (races) to.join(from);
}

/* Times are phases: one for each copy, one for each part of a block of a kernel up to its next barrier. */
enum { ATOMIC = 1 << 15, THREAD_BITS = ATOMIC - 1 };
enum { ONE, LANES, WAVES };
/* Of a byte, or of the four of an aligned word until one of them is accessed alone. What was loaded before a
 * store needs no memory: it was before the store. */
struct cell {
    uint32_t written, read, first_read, unordered; /* first_read: in its launch; unordered: on a stream */
    uint32_t operation;                            /* before which wave operation it was read */
    uint16_t writer, reader, first_reader;
    uint8_t readers; /* in this phase, of lanes before `operation` */
    uint8_t split;   /* of a word's first: each byte has its own */
};
struct watched {
    char *begin, *end;
    cell *cells;
    const char *shared; /* its name */
};
static std::map<char *, watched> *watched_memory = new std::map<char *, watched>;
struct hint {
    uintptr_t place;
    watched *memory;
};
static hint hints[4096];

struct begun {
    uint32_t phase, stream, tick;
    const char *what;
};
static std::vector<begun> *all_begun = new std::vector<begun>;
static clocks *running_clocks; /* of the stream whose work it is */

static void watch(void *p, size_t bytes, const char *shared)
{
    if (!races) return;
    void *cells = mmap(nullptr, (bytes + 3) * sizeof(cell), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED) abort();
    (*watched_memory)[(char *)p] = {(char *)p, (char *)p + bytes, (cell *)cells, shared};
    memset(hints, 0, sizeof hints);
}
static void unwatch(void *p)
{
    auto at = watched_memory->find((char *)p);
    if (at == watched_memory->end()) return;
    munmap(at->second.cells, (size_t)(at->second.end - at->second.begin + 3) * sizeof(cell));
    watched_memory->erase(at);
    memset(hints, 0, sizeof hints);
}
static watched *watched_at(char *p)
{
    uintptr_t place = (uintptr_t)p / 32;
    hint &h = hints[place % 4096];
    if (h.place == place && (!h.memory || (p >= h.memory->begin && p < h.memory->end))) return h.memory;
    auto after = watched_memory->upper_bound(p);
    bool near = after != watched_memory->end() && (uintptr_t)after->first / 32 == place;
    watched *found = nullptr;
    if (after != watched_memory->begin()) {
        --after;
        near = near || (uintptr_t)after->second.end / 32 == place;
        if (p < after->second.end) found = &after->second;
    }
    if (found || !near) h = {place, found}; /* nothing watched in these 32 bytes */
    return found;
}

static const begun &begun_at(uint32_t phase)
{
    return *--std::upper_bound(all_begun->begin(), all_begun->end(), phase,
                               [](uint32_t p, const begun &b) { return p < b.phase; });
}
static bool is_before(uint32_t phase) /* this launch; it was in an earlier one */
{
    static begun last;
    static uint32_t last_end;
    if (phase < last.phase || phase >= last_end) {
        const begun *b = &begun_at(phase);
        last = *b;
        last_end = b + 1 < all_begun->data() + all_begun->size() ? b[1].phase : ~0u;
    }
    const std::vector<uint32_t> &ticks = running_clocks->ticks;
    return last.stream < ticks.size() && last.tick <= ticks[last.stream];
}

[[noreturn]] static void race(const watched &m, const cell &c, bool write, const char *what, uint32_t phase,
                              int thread)
{
    auto who = [](char *text, size_t size, uint32_t at, int t) {
        const begun &b = begun_at(at);
        snprintf(text, size, "thread %d of block %lld, part %u of %s on stream %u", t,
                 (long long)emulate::block_of(at), at - b.phase, b.what, b.stream);
    };
    char one[300], other[300];
    who(one, sizeof one, emulate::phase, emulate::thread);
    who(other, sizeof other, phase, thread & THREAD_BITS);
    fprintf(stderr, "race: byte %lld of %s (%lld bytes)\n  %s: %s\n  %s: %s\n", (long long)(&c - m.cells),
            m.shared ? m.shared : "memory of the card", (long long)(m.end - m.begin),
            write ? "store" : "load", one, what, other);
    abort();
}

static void check_store(const watched &m, cell &c)
{
    using namespace emulate;
    bool same_wave = c.reader / WAVE == thread / WAVE;
    if (c.read == phase) {
        if (c.readers == WAVES || !same_wave ||
            (c.operation == operation && (c.readers == LANES || c.reader != thread)))
            race(m, c, true, "load", c.read, c.reader);
    }
    if (m.shared) return;
    if (c.first_read >= launch_phase && c.first_read < block_phase)
        race(m, c, true, "load", c.first_read, c.first_reader);
    for (uint32_t read : {c.read, c.unordered})
        if (read && read < launch_phase && !is_before(read)) race(m, c, true, "load", read, 0);
}
static void note_load(cell &c)
{
    using namespace emulate;
    if (c.read != phase) {
        if (c.read && c.read < launch_phase && !is_before(c.read)) c.unordered = c.read;
        if (c.first_read < launch_phase) c.first_read = phase, c.first_reader = (uint16_t)thread;
        c.read = phase;
    } else if (c.readers == WAVES || c.reader / WAVE != thread / WAVE) {
        c.readers = WAVES;
        return;
    } else if (c.operation == operation) {
        if (c.reader != thread) c.readers = LANES;
        return;
    }
    c.reader = (uint16_t)thread;
    c.operation = operation;
    c.readers = ONE;
}
static inline void touch_cell(const watched &m, cell &c, bool write, int atomic)
{
    using namespace emulate;
    if (c.written == phase) {
        if ((c.writer & THREAD_BITS) != thread && !(atomic && c.writer & ATOMIC))
            race(m, c, write, "store", c.written, c.writer);
    } else if (c.written && c.written < block_phase && !m.shared && !(atomic && c.writer & ATOMIC) &&
               (c.written >= launch_phase || !is_before(c.written)))
        race(m, c, write, "store", c.written, c.writer);
    if (!write) {
        note_load(c);
        return;
    }
    if (c.read) check_store(m, c);
    c = {phase, 0, 0, 0, 0, (uint16_t)(thread | atomic), 0, 0, 0, 0};
}
static void race_touch(void *at, size_t bytes, bool write, int atomic = 0)
{
    bool own = (char *)at >= (char *)__builtin_frame_address(0) && (char *)at < emulate::stack_end;
    watched *m = own ? nullptr : watched_at((char *)at);
    if (!m) return;
    for (size_t i = (size_t)((char *)at - m->begin), end = i + bytes; i < end;) {
        cell *word = m->cells + i / 4 * 4;
        bool whole = i % 4 == 0 && i + 4 <= end;
        if (!word->split && !whole) {
            for (int k = 1; k < 4; k++) word[k] = word[0];
            word->split = 1;
        }
        if (!word->split) touch_cell(*m, *word, write, atomic);
        for (size_t k = i % 4; word->split && k < 4 && i / 4 * 4 + k < end; k++) {
            touch_cell(*m, word[k], write, atomic);
            word->split = !write || !whole || k < 3; /* a whole word that was stored is one again */
        }
        i = i / 4 * 4 + 4;
    }
}

/* The stream's next work begins, on the host's order and that of what it waited for. */
static void races_begin(uint32_t stream, clocks &own, const clocks &host, const clocks *waited)
{
    if (!races) return;
    own.join(host);
    if (waited) own.join(*waited);
    if (own.ticks.size() <= stream) own.ticks.resize(stream + 1);
    running_clocks = &own;
    emulate::launch_phase = emulate::block_phase = ++emulate::phase;
    emulate::thread = 0;
    all_begun->push_back({emulate::phase, stream, ++own.ticks[stream], "a copy"});
}
static void races_name(const char *kernel)
{
    if (!races) return;
    all_begun->back().what = kernel;
    static const bool first = [] {
        for (const emulate::shared_memory &m : emulate::shared_memories()) watch(m.begin, m.bytes, m.name);
        return true;
    }();
    (void)first;
}
static void races_range(const void *p, size_t bytes, bool write)
{
    if (races) race_touch((void *)p, bytes, write);
}

#else

static clocks host_clocks;
static void races_join(clocks &, const clocks &) {}
static void watch(void *, size_t, const char *) {}
static void unwatch(void *) {}
static void races_begin(uint32_t, clocks &, const clocks &, const clocks *) {}
static void races_name(const char *) {}
static void races_range(const void *, size_t, bool) {}

#endif
#endif
