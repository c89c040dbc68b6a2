/* A library of collectives without cards, for tests: a shared library with the entry points of librccl that
 * MEOpt uses (of libnccl: FAKE_CUDA), for ranks of this machine, whose cards and streams are those of
 * tests/gpu/fake_driver.cc. Ranks may be processes or threads; they meet in a file that the id names.
 *
 * It is as strict as the real libraries, and stricter where those are undefined:
 *
 *   - A communicator does not block: a request is in progress (ncclInProgress) until ncclCommGetAsyncError
 *     reports a different state, and any other call before that is ncclInvalidUsage.
 *   - The transfers of a group begin when all earlier work of its stream is done, and later work of the
 *     stream waits for them. A thread of the library adds the group to the stream, after ncclGroupEnd.
 *   - Ranks that do not make the same calls in the same order with the same sizes and types get an
 *     asynchronous error. If a rank does not come, the others wait until they are aborted, also if it died.
 *   - Memory and streams must belong to the communicator's card. That card was current when the communicator
 *     was made, and is current on the calling thread. One thread calls at a time.
 *
 * Environment:
 *
 *   FAKE_NCCL_VERSION  version (22203)
 *   FAKE_NCCL_FAIL     number of the communicator's group that ends with ncclRemoteError
 *   FAKE_NCCL_DELAY    minimum milliseconds of every group (0)
 *   FAKE_NCCL_RATE     nanoseconds per byte that a group sends to another rank (0)
 *   FAKE_NCCL_PCIE     cards without links of their own: without HSA_FORCE_FINE_GRAIN_PCIE=1 there is an
 *                      error, where RCCL hangs
 *   FAKE_NCCL_COUNT    a file; the numbers of groups, and of bytes sent to other ranks, are added to it when
 *                      the library is unloaded
 */
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "tests/gpu/fake_nccl_driver.h"
#include "tests/gpu/fake_nccl_file.h"

#define ENTRY extern "C" __attribute__((visibility("default")))

enum result {
    SUCCESS,
    CARD_ERROR,
    SYSTEM_ERROR,
    INTERNAL_ERROR,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    REMOTE_ERROR,
    IN_PROGRESS
};
enum { MOST = 8, SPLITS = 8, CHUNK = 64 << 10, TYPES = 10 };
static const int type_bytes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

struct id {
    char bytes[128];
};
struct config {
    size_t size;
    unsigned magic, version;
    int blocking;
};

static long long number(const char *name, long long missing)
{
    const char *text = getenv(name);
    return text && *text ? atoll(text) : missing;
}

/* ---- what ranks share ---- */

/* From one rank to another, a chunk at a time. */
struct box {
    std::atomic<int64_t> sent, taken;
    int64_t message, total, bytes; /* which of this pair, its bytes, those of the chunk */
    int kind, type, root;
    char data[CHUNK];
};
struct meeting {
    std::atomic<int> joined, finalized, size, wrong;
    std::atomic<int> here[MOST];
    std::atomic<int> splits[MOST], colors[SPLITS][MOST], keys[SPLITS][MOST]; /* of ncclCommSplit */
    box boxes[MOST][MOST];                                                   /* from, to */
};

enum kind { POINT, BROADCAST, ALL_GATHER, REDUCE_SCATTER };
struct transfer {
    int peer;
    char *p;
    int64_t bytes, at;
    int kind, type, root;
};
struct operation {
    bool send;
    transfer t;
};
/* Added up when its parts have come, from the rank after this one on: not in rank order, as in a ring. */
struct reduction {
    int rank;
    const float *own;
    float *to;
    std::vector<std::vector<float>> parts;
};
struct comm;
struct group {
    comm *of;
    void *stream;
    std::vector<operation> operations;
    std::vector<std::shared_ptr<reduction>> reductions;
    std::atomic<bool> begun{false}, ended{false};
};
struct comm {
    meeting *all = nullptr;
    std::string path;
    int rank, size, card;
    std::atomic<int> state{IN_PROGRESS}, callers{0};
    std::atomic<bool> aborting{false}, in{false};
    int64_t sent[MOST] = {}, received[MOST] = {}; /* messages */
    long long issued = 0;
    int splits = 0;
    bool finalized = false;
    std::mutex lock;
    std::condition_variable changed;
    std::deque<group *> to_issue, to_run;
    std::vector<std::unique_ptr<group>> groups;
    std::thread issuer, runner;
};

static std::atomic<long long> groups_made, bytes_sent;
namespace
{
struct count {
    ~count()
    {
        const char *path = getenv("FAKE_NCCL_COUNT");
        FILE *f = path ? fopen(path, "a") : nullptr;
        if (!f) return;
        fprintf(f, "{\"groups\":%lld,\"bytes\":%lld}\n", groups_made.load(), bytes_sent.load());
        fclose(f);
    }
} count_at_exit;
} // namespace

static void nap() { usleep(30); }

/* ---- threads of a communicator ---- */

static int wrong_of(comm *c) { return c->all ? c->all->wrong.load() : 0; }

static void fail(comm *c, int result)
{
    int none = 0;
    c->all->wrong.compare_exchange_strong(none, result);
}

/* A chunk, where there is one to send or to take; whether anything has moved. */
static bool push(comm *c, transfer &t)
{
    box &b = c->all->boxes[c->rank][t.peer];
    if (b.sent.load() != b.taken.load()) return false;
    b.message = c->sent[t.peer];
    b.total = t.bytes;
    b.kind = t.kind;
    b.type = t.type;
    b.root = t.root;
    b.bytes = std::min<int64_t>(t.bytes - t.at, CHUNK);
    memcpy(b.data, t.p + t.at, (size_t)b.bytes);
    t.at += b.bytes;
    bytes_sent += b.bytes;
    b.sent++;
    return true;
}
static bool pull(comm *c, transfer &t)
{
    box &b = c->all->boxes[t.peer][c->rank];
    if (b.sent.load() == b.taken.load()) return false;
    if (b.message != c->received[t.peer] || b.total != t.bytes || b.kind != t.kind || b.type != t.type ||
        b.root != t.root) {
        fail(c, INVALID_USAGE);
        return false;
    }
    memcpy(t.p + t.at, b.data, (size_t)b.bytes);
    t.at += b.bytes;
    b.taken++;
    return true;
}

/* Sends and receives of one pair are in order, those of different pairs in any. */
static void run_group(comm *c, group *g)
{
    std::deque<transfer> out[MOST], in[MOST];
    for (operation &o : g->operations) (o.send ? out : in)[o.t.peer].push_back(o.t);
    for (size_t i = 0; i < out[c->rank].size(); i++) /* to itself */
        memmove(in[c->rank][i].p, out[c->rank][i].p, (size_t)out[c->rank][i].bytes);
    out[c->rank].clear();
    in[c->rank].clear();
    for (bool left = true; left && !c->aborting && !wrong_of(c);) {
        bool moved = left = false;
        for (int q = 0; q < c->size; q++) {
            if (!out[q].empty() && push(c, out[q][0])) {
                moved = true;
                if (out[q][0].at == out[q][0].bytes) out[q].pop_front(), c->sent[q]++;
            }
            if (!in[q].empty() && pull(c, in[q][0])) {
                moved = true;
                if (in[q][0].at == in[q][0].bytes) in[q].pop_front(), c->received[q]++;
            }
            left |= !out[q].empty() || !in[q].empty();
        }
        if (left && !moved) nap();
    }
    for (auto &r : g->reductions)
        for (size_t i = 0; i < r->parts[0].size() && !c->aborting && !wrong_of(c); i++) {
            float sum = 0;
            for (int q = 1; q < c->size; q++) sum += r->parts[(size_t)((r->rank + q) % c->size)][i];
            r->to[i] = sum + r->own[i];
        }
}

static group *next_of(comm *c, std::deque<group *> &queue)
{
    std::unique_lock<std::mutex> held(c->lock);
    c->changed.wait(held, [&] { return !queue.empty() || c->aborting; });
    if (c->aborting) return nullptr;
    group *g = queue.front();
    queue.pop_front();
    return g;
}

static std::atomic<double> rate{-1}; /* nanoseconds a byte; below 0: as the environment says */

static double carrying_us(const comm *c, const group *g)
{
    double bytes = 0, ns = rate;
    for (const operation &o : g->operations)
        if (o.send && o.t.peer != c->rank) bytes += (double)o.t.bytes;
    return bytes * (ns < 0 ? (double)number("FAKE_NCCL_RATE", 0) : ns) * 1e-3;
}

static void run_all(comm *c)
{
    long long delay = number("FAKE_NCCL_DELAY", 0);
    while (group *g = next_of(c, c->to_run)) {
        while (!g->begun && !c->aborting && !wrong_of(c)) nap();
        double us = 1000 * (double)delay + carrying_us(c, g);
        if (us >= 1) usleep((useconds_t)us);
        run_group(c, g);
        g->ended = true;
    }
}

static void begin(void *context) { ((group *)context)->begun = true; }
static int ended(void *context)
{
    group *g = (group *)context;
    return g->ended || g->of->aborting || wrong_of(g->of);
}

static void join_all(comm *c)
{
    int none = 0;
    if (!c->all->size.compare_exchange_strong(none, c->size) && none != c->size) fail(c, INVALID_ARGUMENT);
    if (c->all->here[c->rank]++) fail(c, INVALID_USAGE); /* the rank is there twice */
    c->all->joined++;
    while (c->all->joined < c->size && !c->aborting && !wrong_of(c)) nap();
    if (c->rank == 0) unlink(c->path.c_str());
    c->in = true;
    c->state = SUCCESS;
}

static void issue_all(comm *c)
{
    join_all(c);
    while (group *g = next_of(c, c->to_issue)) {
        usleep(100); /* a rank that does not wait is ahead of this one */
        int code = give(g->stream, begin, ended, g);
        if (code) fail(c, CARD_ERROR);
        {
            std::lock_guard<std::mutex> held(c->lock);
            c->to_run.push_back(g);
        }
        c->changed.notify_all();
        groups_made++;
        if (++c->issued == number("FAKE_NCCL_FAIL", -1)) fail(c, REMOTE_ERROR);
        c->state = SUCCESS;
    }
}

/* ---- entry points ---- */

/* For tests/train/train_overlap.c: as FAKE_NCCL_RATE, from now on; and what has been sent to others. */
ENTRY void fake_nccl_rate(double ns) { rate = ns; }
ENTRY long long fake_nccl_bytes() { return bytes_sent; }

ENTRY int ncclGetVersion(int *version)
{
    *version = (int)number("FAKE_NCCL_VERSION", 22203);
    return SUCCESS;
}

ENTRY int ncclGetUniqueId(id *p)
{
    memset(p, 0, sizeof *p);
    return make_meeting_file(p->bytes, sizeof p->bytes, sizeof(meeting)) ? SUCCESS : SYSTEM_ERROR;
}

static bool accepts(const config *how)
{
    return how && how->size >= 20 && how->magic == 0xcafebeef && how->blocking == 0;
}

static comm *make(const std::string &path, int flags, int rank, int size, int card)
{
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
    void *all = fd < 0 || ftruncate(fd, sizeof(meeting))
                    ? MAP_FAILED
                    : mmap(nullptr, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (all == MAP_FAILED) return nullptr;
    comm *c = new comm;
    c->all = (meeting *)all;
    c->path = path;
    c->rank = rank;
    c->size = size;
    c->card = card;
    c->issuer = std::thread(issue_all, c);
    c->runner = std::thread(run_all, c);
    return c;
}

ENTRY int ncclCommInitRankConfig(comm **p, int size, id where, int rank, config *how)
{
    if (!p || rank < 0 || rank >= size || size > MOST || !accepts(how)) return INVALID_ARGUMENT;
    if (current_card() < 0) return CARD_ERROR;
#ifndef FAKE_CUDA
    const char *fine = getenv("HSA_FORCE_FINE_GRAIN_PCIE");
    if (getenv("FAKE_NCCL_PCIE") && !(fine && strcmp(fine, "1") == 0)) return SYSTEM_ERROR;
#endif
    *p = make(where.bytes, 0, rank, size, current_card());
    return *p ? IN_PROGRESS : SYSTEM_ERROR;
}

ENTRY int ncclCommGetAsyncError(comm *c, int *result)
{
    if (!c || !result) return INVALID_ARGUMENT;
    bool joining = !c->in && c->all->joined >= c->size; /* what is wrong since is not of the joining */
    *result = wrong_of(c) && !joining ? wrong_of(c) : c->state.load();
    return SUCCESS;
}

static void end(comm *c)
{
    {
        std::lock_guard<std::mutex> held(c->lock);
        c->aborting = true;
    }
    c->changed.notify_all();
    c->issuer.join();
    c->runner.join();
    if (c->rank == 0) unlink(c->path.c_str());
    /* neither it nor what it maps is freed: the stream may still ask about its groups */
}

ENTRY int ncclCommAbort(comm *c)
{
    if (!c) return INVALID_ARGUMENT;
    end(c);
    return SUCCESS;
}

/* What is done before a call is; the thread's group. */
static thread_local int depth, group_error;
static thread_local std::vector<operation> collected;
static thread_local std::vector<std::shared_ptr<reduction>> reductions;
static thread_local comm *group_comm;
static thread_local void *group_stream;

static int usable(comm *c)
{
    if (!c) return INVALID_ARGUMENT;
    if (wrong_of(c)) return wrong_of(c);
    if (c->state == IN_PROGRESS || c->finalized || c->aborting) return INVALID_USAGE;
    return SUCCESS;
}

/* All ranks call it, and get their communicator when the state of this one is a success. */
static void split(comm *c, int number, comm **made)
{
    meeting *all = c->all;
    for (int q = 0; q < c->size; q++)
        while (all->splits[q] <= number && !c->aborting && !wrong_of(c)) nap();
    if (c->aborting || wrong_of(c)) return;
    int color = all->colors[number][c->rank], rank = 0, size = 0;
    for (int q = 0; q < c->size; q++) {
        if (all->colors[number][q] != color) continue;
        int key = all->keys[number][q], own = all->keys[number][c->rank];
        rank += key < own || (key == own && q < c->rank);
        size++;
    }
    std::string path = c->path + "-" + std::to_string(number) + "-" + std::to_string(color);
    if (color >= 0 && !(*made = make(path, O_CREAT, rank, size, c->card))) fail(c, SYSTEM_ERROR);
    c->state = SUCCESS;
}

ENTRY int ncclCommSplit(comm *c, int color, int key, comm **made, config *how)
{
    int code = usable(c);
    if (code) return code;
    if (!made || !accepts(how) || color < -1 || depth || c->splits == SPLITS) return INVALID_ARGUMENT;
    int number = c->splits++;
    *made = nullptr;
    c->all->colors[number][c->rank] = color;
    c->all->keys[number][c->rank] = key;
    c->all->splits[c->rank]++;
    c->state = IN_PROGRESS;
    std::thread(split, c, number, made).detach();
    return IN_PROGRESS;
}

ENTRY int ncclCommFinalize(comm *c)
{
    int code = usable(c);
    if (code) return code;
    c->finalized = true;
    c->all->finalized++;
    c->state = IN_PROGRESS;
    std::thread([c] {
        while (c->all->finalized < c->size && !c->aborting && !wrong_of(c)) nap();
        c->state = SUCCESS;
    }).detach();
    return IN_PROGRESS;
}

ENTRY int ncclCommDestroy(comm *c)
{
    if (!c || !c->finalized || c->state == IN_PROGRESS) return INVALID_USAGE;
    end(c);
    return SUCCESS;
}

ENTRY int ncclGroupStart()
{
    if (depth++ == 0) {
        collected.clear();
        reductions.clear();
        group_comm = nullptr;
        group_error = SUCCESS;
    }
    return SUCCESS;
}

/* Those to itself come in pairs of the same size. */
static bool self_matches(const comm *c)
{
    std::vector<int64_t> out, in;
    for (const operation &o : collected)
        if (o.t.peer == c->rank) (o.send ? out : in).push_back(o.t.bytes);
    return out == in;
}

ENTRY int ncclGroupEnd()
{
    if (depth == 0) return INVALID_USAGE;
    if (--depth) return SUCCESS;
    comm *c = group_comm;
    if (group_error || !c) return group_error;
    if (c->callers++) group_error = INVALID_USAGE; /* two threads */
    if (!self_matches(c)) group_error = INVALID_USAGE;
    if (!group_error) {
        auto made = std::make_unique<group>();
        made->of = c;
        made->stream = group_stream;
        made->operations = collected;
        made->reductions = reductions;
        c->state = IN_PROGRESS;
        std::lock_guard<std::mutex> held(c->lock);
        c->to_issue.push_back(made.get());
        c->groups.push_back(std::move(made));
        c->changed.notify_all();
    }
    c->callers--;
    return group_error ? group_error : (int)IN_PROGRESS;
}

/* Into the thread's group, which is one of its own where none was begun. */
static int add(comm *c, void *stream, int type, bool good, std::vector<operation> operations)
{
    int code = usable(c);
    if (!code && (!good || type < 0 || type >= TYPES)) code = INVALID_ARGUMENT;
    if (!code && (current_card() != c->card || stream_card(stream) != c->card)) code = CARD_ERROR;
    for (operation &o : operations)
        if (!code && (o.t.peer < 0 || o.t.peer >= c->size ||
                      (!inside(o.t.p, (size_t)o.t.bytes) && (o.send || o.t.kind != REDUCE_SCATTER))))
            code = INVALID_ARGUMENT;
    if (!code && depth && group_comm && (group_comm != c || group_stream != stream)) code = INVALID_USAGE;
    bool alone = depth == 0;
    if (alone) ncclGroupStart();
    if (code) group_error = code;
    group_comm = c;
    group_stream = stream;
    collected.insert(collected.end(), operations.begin(), operations.end());
    return alone ? ncclGroupEnd() : code;
}

static int64_t bytes_of(size_t count, int type)
{
    return type < 0 || type >= TYPES ? 0 : (int64_t)count * type_bytes[type];
}

ENTRY int ncclSend(const void *p, size_t count, int type, int peer, comm *c, void *stream)
{
    return add(c, stream, type, p, {{true, {peer, (char *)p, bytes_of(count, type), 0, POINT, type, -1}}});
}
ENTRY int ncclRecv(void *p, size_t count, int type, int peer, comm *c, void *stream)
{
    return add(c, stream, type, p, {{false, {peer, (char *)p, bytes_of(count, type), 0, POINT, type, -1}}});
}

ENTRY int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, comm *c, void *stream)
{
    std::vector<operation> all;
    int64_t bytes = bytes_of(count, type);
    bool good = c && root >= 0 && root < c->size;
    if (good && root != c->rank) all.push_back({false, {root, (char *)to, bytes, 0, BROADCAST, type, root}});
    for (int q = 0; good && q < c->size && root == c->rank; q++) {
        all.push_back({true, {q, (char *)from, bytes, 0, BROADCAST, type, root}});
        if (q == root) all.push_back({false, {q, (char *)to, bytes, 0, BROADCAST, type, root}});
    }
    return add(c, stream, type, good, all);
}

ENTRY int ncclAllGather(const void *from, void *to, size_t count, int type, comm *c, void *stream)
{
    std::vector<operation> all;
    int64_t bytes = bytes_of(count, type);
    for (int q = 0; c && q < c->size; q++) {
        all.push_back({true, {q, (char *)from, bytes, 0, ALL_GATHER, type, -1}});
        all.push_back({false, {q, (char *)to + q * bytes, bytes, 0, ALL_GATHER, type, -1}});
    }
    return add(c, stream, type, c, all);
}

ENTRY int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation, comm *c,
                            void *stream)
{
    std::vector<struct operation> all;
    int64_t bytes = bytes_of(count, type);
    bool good = c && depth && type == 7 && operation == 0 && inside(to, (size_t)bytes);
    if (!good) return add(c, stream, type, false, all);
    auto r = std::make_shared<reduction>();
    r->rank = c->rank;
    r->own = (const float *)from + (size_t)c->rank * count;
    r->to = (float *)to;
    r->parts.assign((size_t)c->size, std::vector<float>(count));
    for (int q = 0; q < c->size; q++) {
        char *part = (char *)r->parts[(size_t)q].data();
        all.push_back({true, {q, (char *)from + q * bytes, bytes, 0, REDUCE_SCATTER, type, -1}});
        all.push_back({false, {q, part, bytes, 0, REDUCE_SCATTER, type, -1}});
    }
    reductions.push_back(r);
    return add(c, stream, type, true, all);
}

ENTRY const char *ncclGetErrorString(int result)
{
    static const char *const words[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result <= IN_PROGRESS ? words[result] : "unknown result code";
}
ENTRY const char *ncclGetLastError(comm *c)
{
    return c && wrong_of(c) == INVALID_USAGE ? "ranks made different calls" : "";
}
