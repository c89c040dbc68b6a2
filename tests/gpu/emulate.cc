/* Fibers that run a block's threads: see emulate.h.
 * One block at a time, one OS thread, so the same bits every run. */
#include "tests/gpu/emulate.h"
#include "tests/gpu/emulate_run.h"
#include "tests/gpu/emulate_shared.h"

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
bool shares;
uint32_t phase, block_phase, launch_phase, operation;
char *stack_end;
static std::vector<std::pair<uint32_t, int64_t>> begun_blocks; /* of this launch, with their first phase */
kernel *kernel::first;
std::vector<copy> copies[1024];

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
static order waves;
static int lanes[WAVE], place; /* the lane that runs is lanes[place] of its wave */
static int without_line;       /* of the barrier that the block's threads pass without waiting */
static const char *without_file;

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
    place = 0;
    fiber &f = fibers[(size_t)i];
    stack_end = f.stack + STACK_BYTES;
    SWITCH_START(&scheduler_sanitizer, f.stack, STACK_BYTES);
    emulate_switch(&scheduler, &f.context);
    SWITCH_FINISH(scheduler_sanitizer, nullptr, nullptr);
}

/* Switches to the next lane of the wave, and after the last one to run_wave. */
static void leave(waiting state, const char *file, int line)
{
    int next = ++place < WAVE ? thread - thread % WAVE + lanes[place] : -1;
    fiber &f = fibers[(size_t)thread];
    f.state = state;
    f.file = file;
    f.line = line;
    if (next >= 0 && fibers[(size_t)next].state == RUNNING) {
        fiber &to = fibers[(size_t)next];
        thread = next;
        stack_end = to.stack + STACK_BYTES;
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
    if (place == 0) SWITCH_FINISH(nullptr, &scheduler_stack, &scheduler_bytes);
    else SWITCH_FINISH(nullptr, nullptr, nullptr);
    running->call(running->function, running_arguments);
    leave(FINISHED, nullptr, 0);
}

void wait_block(const char *file, int line)
{
    if (line == without_line && strstr(file, without_file)) return;
    leave(AT_BARRIER, file, line);
}

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

/* ldmatrix.m8n8.x4: lane t gets of each matrix elements 2 (t % 4) and the next of row t / 4, or of the column
 * (turned). */
template <bool TURNED> [[maybe_unused]] static void matrix_rows(int first)
{
    for (int lane = 0; lane < WAVE; lane++)
        for (int m = 0; m < 4; m++) {
            uint32_t halves[2];
            for (int i = 0; i < 2; i++) {
                int row = lane / 4, column = 2 * (lane % 4) + i;
                const fiber &from = fibers[(size_t)(first + 8 * m + (TURNED ? column : row))];
                int at = TURNED ? row : column;
                halves[i] = from.a[at / 2] >> 16 * (at % 2) & 0xffff;
            }
            uint32_t pair = halves[0] | halves[1] << 16;
            memcpy(&fibers[(size_t)(first + lane)].c[m], &pair, sizeof pair);
        }
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
void ldmatrix_x4(uint32_t pair[4], const uint32_t row[4], bool turned)
{
    float got[4];
    await_product(turned ? matrix_rows<true> : matrix_rows<false>, got, row, nullptr, __LINE__);
    memcpy(pair, got, sizeof got);
}
#endif

/* Run one wave until every lane waits for the block or is done. */
static void run_wave(int first)
{
    uint64_t given[WAVE];
    for (;; operation++) {
        if (fibers[(size_t)first].state == RUNNING) enter(first + lanes[0]);
        fiber &lead = fibers[(size_t)first];
        for (int i = first; i < first + WAVE; i++) {
            fiber &f = fibers[(size_t)i];
            if (f.state != lead.state) die("lanes of a wave went different ways", lead, f);
            if (f.state == AT_WAVE &&
                (f.line != lead.line || (f.file != lead.file && strcmp(f.file, lead.file) != 0)))
                die("lanes wait at different places", lead, f);
            given[i - first] = f.value;
        }
        if (lead.state != AT_WAVE) break;
        if (lead.product) {
            lead.product(first);
            if (wrong_lane >= 0 && lead.b) {
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
    operation++;
}

/* Draws the order of the next block. */
static void draw_order(const char *text)
{
    order of_lanes = order_of(text, WAVE);
    for (int i = 0; i < WAVE; i++) lanes[i] = (int)of_lanes.at(i);
    waves = order_of(text, threads / WAVE);
}

static void run_block()
{
    for (fiber &f : fibers) {
        context_make(&f.context, f.stack, STACK_BYTES, body);
        f.state = RUNNING;
        f.file = nullptr;
        f.line = 0;
    }
    block_phase = phase + 1;
    for (;;) {
        phase++;
        for (int i = 0; i < threads / WAVE; i++) run_wave((int)waves.at(i) * WAVE);
        fiber &lead = fibers[0];
        for (fiber &f : fibers)
            if (f.state != lead.state || (f.state == AT_BARRIER && f.line != lead.line))
                die("a barrier that not all threads reach", lead, f);
        if (lead.state == FINISHED) return;
        for (fiber &f : fibers) f.state = RUNNING;
    }
}

int64_t block_of(uint32_t at)
{
    int64_t found = 0;
    for (const auto &b : begun_blocks)
        if (b.first <= at) found = b.second;
    return found;
}

const kernel *find(const char *name)
{
    for (const kernel *k = kernel::first; k; k = k->next)
        if (strcmp(k->name, name) == 0) return k;
    return nullptr;
}

/* EMULATE_WITHOUT=FILE:LINE: the kernels have no barrier there. */
static void choose_removed_barrier()
{
    static char file[64];
    const char *text = getenv("EMULATE_WITHOUT");
    without_line = 0;
    without_file = file;
    if (text) sscanf(text, "%63[^:]:%d", file, &without_line);
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
    choose_removed_barrier();
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
    const char *text = order_text();
    order grid_order = order_of(text, grid[0] * grid[1] * grid[2]);
    const std::vector<shared_memory> &arrays = shared_memories();
    std::vector<const shared_memory *> used; /* by the first block; NaN for the next */
    draw_order(text);
    shares = false;
    launch_phase = phase + 1;
    begun_blocks.clear();
    for (int64_t i = 0; i < grid_order.count; i++) {
        int64_t at = grid_order.at(i);
        block[0] = at % grid[0];
        block[1] = at / grid[0] % grid[1];
        block[2] = at / grid[0] / grid[1];
        if (seeded && i) draw_order(text);
        begun_blocks.push_back({phase + 1, at});
        run_block();
        for (const shared_memory &a : arrays)
            if (i == 0 && shares && !shared_is_filled(a)) used.push_back(&a);
        for (const shared_memory *a : used) shared_fill(*a);
    }
}
} // namespace emulate
