/* Fibers that run a block's threads: see emulate.h.
 * One block at a time, one OS thread, so the same bits every run. */
#include "tests/gpu/emulate.h"
#include "tests/gpu/emulate_run.h"

#include <cstdio>
#include <cstdlib>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define SWITCH_START(save, bottom, size)  __sanitizer_start_switch_fiber(save, bottom, size)
#define SWITCH_FINISH(save, bottom, size) __sanitizer_finish_switch_fiber(save, bottom, size)
#else
#define SWITCH_START(save, bottom, size)  ((void)0)
#define SWITCH_FINISH(save, bottom, size) ((void)0)
#endif

namespace emulate
{
int thread, threads, cards_wave = WAVE, wrong_lane = -1;
int64_t block[3], blocks[3];
kernel *kernel::first;

enum waiting { RUNNING, AT_BARRIER, AT_WAVE, FINISHED };
enum { STACK_BYTES = 256 * 1024 };

#if defined(__x86_64__)
/* swapcontext asks the kernel about signals each time; this is twenty times as fast. */
using context = void *; /* the stack pointer, callee-saved registers on the stack */
extern "C" void emulate_switch(context *from, context *to);
asm(".text\n.type emulate_switch,@function\nemulate_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\nmov %rsp,(%rdi)\n"
    "mov (%rsi),%rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size emulate_switch,.-emulate_switch\n");
static void context_make(context *c, char *stack, size_t bytes, void (*begin)())
{
    void **top = (void **)(void *)(stack + bytes -
                                   64); /* a multiple of 16: as after a call when `ret` enters `begin` */
    top[-1] = nullptr;
    top[-2] = (void *)begin;
    for (int i = 3; i <= 8; i++) top[-i] = nullptr;
    *c = top - 8;
}
#else
using context = ucontext_t;
static void emulate_switch(context *from, context *to) { swapcontext(from, to); }
static void context_make(context *c, char *stack, size_t bytes, void (*begin)())
{
    getcontext(c);
    c->uc_stack.ss_sp = stack;
    c->uc_stack.ss_size = bytes;
    c->uc_link = nullptr;
    makecontext(c, begin, 0);
}
#endif

struct fiber {
    emulate::context context;
    char *memory, *stack;
    waiting state;
    const char *file;
    int line, from;
    uint64_t value;
    void (*product)(int first); /* the matrix instruction that the wave waits for, or nullptr */
    float *c;
    const uint32_t *a, *b;
    void *sanitizer;
};

static struct fiber_list : std::vector<fiber> {
    ~fiber_list()
    {
        for (fiber &f : *this) free(f.memory);
    }
} fibers;
static context scheduler;
[[maybe_unused]] static void *scheduler_sanitizer;
[[maybe_unused]] static const void *scheduler_stack;
[[maybe_unused]] static size_t scheduler_bytes;
static const kernel *running;
static void **running_arguments;

static void die(const char *what, const fiber &a, const fiber &b)
{
    fprintf(stderr, "emulate: kernel %s, block %lld,%lld: %s: %s:%d against %s:%d\n", running->name,
            (long long)block[0], (long long)block[1], what, a.file ? a.file : "end", a.line,
            b.file ? b.file : "end", b.line);
    abort();
}

static void enter(int i)
{
    thread = i;
    fiber &f = fibers[(size_t)i];
    SWITCH_START(&scheduler_sanitizer, f.stack, STACK_BYTES);
    emulate_switch(&scheduler, &f.context);
    SWITCH_FINISH(scheduler_sanitizer, nullptr, nullptr);
}

/* Switches to the next lane of the wave, and after the last one to run_wave. */
static void leave(waiting state, const char *file, int line)
{
    int next = thread + 1;
    fiber &f = fibers[(size_t)thread];
    f.state = state;
    f.file = file;
    f.line = line;
    if (next % WAVE && fibers[(size_t)next].state == RUNNING) {
        fiber &to = fibers[(size_t)next];
        thread = next;
        SWITCH_START(state == FINISHED ? nullptr : &f.sanitizer, to.stack, STACK_BYTES);
        emulate_switch(&f.context, &to.context);
    } else {
        SWITCH_START(state == FINISHED ? nullptr : &f.sanitizer, scheduler_stack, scheduler_bytes);
        emulate_switch(&f.context, &scheduler);
    }
    SWITCH_FINISH(f.sanitizer, nullptr, nullptr);
}

static void body()
{
    if (thread % WAVE == 0) SWITCH_FINISH(nullptr, &scheduler_stack, &scheduler_bytes);
    else SWITCH_FINISH(nullptr, nullptr, nullptr);
    running->call(running->function, running_arguments);
    leave(FINISHED, nullptr, 0);
}

void wait_block(const char *file, int line) { leave(AT_BARRIER, file, line); }

uint64_t exchange(uint64_t value, int from, const char *file, int line)
{
    int self = thread;
    fibers[(size_t)self].value = value;
    fibers[(size_t)self].from = from;
    fibers[(size_t)self].product = nullptr;
    leave(AT_WAVE, file, line);
    return fibers[(size_t)self].value;
}

static float bf16_half(const uint32_t *pairs, int i)
{
    uint32_t bits = pairs[i / 2] >> 16 * (i % 2) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
/* 16 x N += 16 x 16 times 16 x N; who holds what is the caller's */
template <int N>
static void matrix_product(float (&c)[16][N], const float (&a)[16][16], const float (&b)[16][N])
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int j = 0; j < N; j++) c[i][j] += a[i][k] * b[k][j];
}

/* v_mfma_f32_16x16x16_bf16_1k. A: row lane % 16, k 4 (lane / 16) + i; B: column lane % 16, the same k; C:
 * column lane % 16, row 4 (lane / 16) + i. */
[[maybe_unused]] static void mfma_product(int first)
{
    float a[16][16], b[16][16], c[16][16];
    for (int lane = 0; lane < WAVE; lane++)
        for (int i = 0; i < 4; i++) {
            const fiber &f = fibers[(size_t)(first + lane)];
            a[lane % 16][4 * (lane / 16) + i] = bf16_half(f.a, i);
            b[4 * (lane / 16) + i][lane % 16] = bf16_half(f.b, i);
            c[4 * (lane / 16) + i][lane % 16] = f.c[i];
        }
    matrix_product(c, a, b);
    for (int lane = 0; lane < WAVE; lane++)
        for (int i = 0; i < 4; i++) fibers[(size_t)(first + lane)].c[i] = c[4 * (lane / 16) + i][lane % 16];
}

/* v_mmac_f32_16x16x16_bf16. A: row lane % 16, k 4 (lane / 16) + i; B: column lane % 16, the same k; C: row
 * lane % 16, column 4 i + lane / 16. */
[[maybe_unused]] static void mmac_product(int first)
{
    float a[16][16], b[16][16], c[16][16];
    for (int lane = 0; lane < WAVE; lane++)
        for (int i = 0; i < 4; i++) {
            const fiber &f = fibers[(size_t)(first + lane)];
            a[lane % 16][4 * (lane / 16) + i] = bf16_half(f.a, i);
            b[4 * (lane / 16) + i][lane % 16] = bf16_half(f.b, i);
            c[lane % 16][4 * i + lane / 16] = f.c[i];
        }
    matrix_product(c, a, b);
    for (int lane = 0; lane < WAVE; lane++)
        for (int i = 0; i < 4; i++) fibers[(size_t)(first + lane)].c[i] = c[lane % 16][4 * i + lane / 16];
}

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, with the manual's
 * groupID = lane / 4 and threadID_in_group = lane % 4:
 *   A   row group (+ 8 for a2 a3 a6 a7), k 2 thread + (i & 1) (+ 8 from a4 on)
 *   B   k 2 thread + (i & 1) (+ 8 from b2 on), column group
 *   C   row group (+ 8 from c2 on), column 2 thread + (i & 1) */
[[maybe_unused]] static void mma_product(int first)
{
    float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < WAVE; lane++) {
        const fiber &f = fibers[(size_t)(first + lane)];
        int group = lane / 4, thread_in_group = lane % 4;
        for (int i = 0; i < 8; i++)
            a[group + (i & 2 ? 8 : 0)][2 * thread_in_group + (i & 1) + (i >= 4 ? 8 : 0)] = bf16_half(f.a, i);
        for (int i = 0; i < 4; i++)
            b[2 * thread_in_group + (i & 1) + (i >= 2 ? 8 : 0)][group] = bf16_half(f.b, i);
        for (int i = 0; i < 4; i++) c[group + (i >= 2 ? 8 : 0)][2 * thread_in_group + (i & 1)] = f.c[i];
    }
    matrix_product(c, a, b);
    for (int lane = 0; lane < WAVE; lane++)
        for (int i = 0; i < 4; i++)
            fibers[(size_t)(first + lane)].c[i] = c[lane / 4 + (i >= 2 ? 8 : 0)][2 * (lane % 4) + (i & 1)];
}

static void await_product(void (*product)(int), float *c, const uint32_t *a, const uint32_t *b, int line)
{
    fiber &f = fibers[(size_t)thread];
    f.product = product;
    f.c = c;
    f.a = a;
    f.b = b;
    leave(AT_WAVE, __FILE__, line);
}
#if MEOPT_EMULATE_WAVE == 64
void mfma_f32_16x16x16_bf16(float c[4], const uint32_t a[2], const uint32_t b[2])
{
    await_product(mfma_product, c, a, b, __LINE__);
}
void mmac_f32_16x16x16_bf16(float c[4], const uint32_t a[2], const uint32_t b[2])
{
    await_product(mmac_product, c, a, b, __LINE__);
}
#else
void mma_m16n8k16_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    await_product(mma_product, c, a, b, __LINE__);
}
#endif

/* Run one wave until every lane waits for the block or is done. */
static void run_wave(int first)
{
    uint64_t given[WAVE];
    for (;;) {
        if (fibers[(size_t)first].state == RUNNING) enter(first);
        fiber &lead = fibers[(size_t)first];
        for (int i = first; i < first + WAVE; i++) {
            fiber &f = fibers[(size_t)i];
            if (f.state != lead.state) die("lanes of a wave went different ways", lead, f);
            if (f.state == AT_WAVE &&
                (f.line != lead.line || (f.file != lead.file && strcmp(f.file, lead.file) != 0)))
                die("lanes wait at different places", lead, f);
            given[i - first] = f.value;
        }
        if (lead.state != AT_WAVE) return;
        if (lead.product) {
            lead.product(first);
            if (wrong_lane >= 0) {
                float *c = fibers[(size_t)(first + wrong_lane)].c, last = c[3];
                for (int i = 3; i > 0; i--) c[i] = c[i - 1];
                c[0] = last;
            }
            for (int i = first; i < first + WAVE; i++) fibers[(size_t)i].state = RUNNING;
            continue;
        }
        for (int i = first; i < first + WAVE; i++) {
            fiber &f = fibers[(size_t)i];
            if (f.from < 0 || f.from >= WAVE) die("a lane outside the wave", f, f);
            f.value = given[f.from];
            f.state = RUNNING;
        }
    }
}

static void run_block()
{
    for (fiber &f : fibers) {
        context_make(&f.context, f.stack, STACK_BYTES, body);
        f.state = RUNNING;
        f.file = nullptr;
        f.line = 0;
    }
    for (;;) {
        for (int first = 0; first < threads; first += WAVE) run_wave(first);
        fiber &lead = fibers[0];
        for (fiber &f : fibers)
            if (f.state != lead.state || (f.state == AT_BARRIER && f.line != lead.line))
                die("a barrier that not all threads reach", lead, f);
        if (lead.state == FINISHED) return;
        for (fiber &f : fibers) f.state = RUNNING;
    }
}

const kernel *find(const char *name)
{
    for (const kernel *k = kernel::first; k; k = k->next)
        if (strcmp(k->name, name) == 0) return k;
    return nullptr;
}

void run(const kernel *k, const int64_t grid[3], int block_threads, void **arguments)
{
    if (block_threads % WAVE || block_threads < WAVE || block_threads > 1024) {
        fprintf(stderr,
                "emulate: kernel %s: %d threads in a block, expected a multiple of the wave width %d\n",
                k->name, block_threads, WAVE);
        abort();
    }
    running = k;
    running_arguments = arguments;
    threads = block_threads;
    while ((int)fibers.size() > threads) {
        free(fibers.back().memory);
        fibers.pop_back();
    }
    while ((int)fibers.size() < threads) { /* stacks of one distance would share a few lines of the cache */
        size_t shift = fibers.size() % 64 * 576;
        fibers.emplace_back();
        fibers.back().memory = (char *)aligned_alloc(64, STACK_BYTES + shift);
        fibers.back().stack = fibers.back().memory + shift;
    }
    for (int i = 0; i < 3; i++) blocks[i] = grid[i];
    for (block[2] = 0; block[2] < grid[2]; block[2]++)
        for (block[1] = 0; block[1] < grid[1]; block[1]++)
            for (block[0] = 0; block[0] < grid[0]; block[0]++) run_block();
}
} // namespace emulate
