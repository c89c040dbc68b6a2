/* Communication between ranks overlaps with computation: if reducing a block takes as long as its backward
 * pass, a step takes as long as the longer of both, not their sum. Each rank has a clock that no load of the
 * machine changes: a block moves that of its computing thread, each byte that of its communication thread,
 * and waiting for a job sets the first to the job's end. On cards (MEOPT_TEST_DEVICE: hip, cuda) the
 * simulated driver and library stretch both in their streams by sleeping. */
#include "core/base/clock.h"
#include "core/comm/comm_internal.h"
#include "core/nn/tower.h"
#include "core/step/trainer.h"
#include "tests/ranks/hand_round.h"
#include "tests/ranks/threads.h"
#include "tests/train/tiny.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

enum {
    DEPTH = 20,
    CARD_DEPTH = 12,
    FORWARD_US = 15000,
    BACKWARD_US = 30000,
    TRIES = 5,
    JOBS = 64,
    PIXELS = 3 * 28 * 28
};

/* Steps of one measurement. On cards a call costs more than its transfer: NEITHER and TRIED set how slow
 * bytes are. */
enum { COUNTED, NEITHER, TRIED, COMPUTES, CARRIES, BOTH, STEPS };

/* A job of the communication thread. */
struct timed {
    struct rank *rank;
    const struct comm_job *job;
    int (*run)(struct comm *comm, void *context, struct error *err);
    void *context;
    double begun_us, ended_us;
};

struct rank {
    struct comm_options options;
    double now_us, link_us; /* the clocks of computing and of communication */
    struct timed jobs[JOBS];
    const char *settings;
    double wanted_us; /* of carrying, in a step */
    struct trainer *trainer;
    double stretch;         /* of all pauses */
    bool computes, carries; /* slowly */
    double bytes, us_per_byte, seconds[STEPS];
    int code;
    struct error err;
};
static struct rank ranks[RANKS];
static const struct comm_ops *plain_ops;
static const struct model *plain_model;
static float image[PIXELS];
static int64_t id;

/* ---- cards ---- */

static const char *card;                                     /* "hip", "cuda", or NULL: the processor */
static int depth(void) { return card ? CARD_DEPTH : DEPTH; } /* at either end a block is not overlapped */
static void (*card_takes)(const char *text, int compute);
static void (*library_rate)(double ns_per_byte);
static long long (*library_bytes)(void);

static void find_stand_ins(void)
{
    bool hip = strcmp(card, "hip") == 0;
    void *driver = dlopen(getenv(hip ? "MEOPT_HIP_LIBRARY" : "MEOPT_CUDA_LIBRARY"), RTLD_NOW),
         *library = dlopen(getenv(hip ? "MEOPT_RCCL_LIBRARY" : "MEOPT_NCCL_LIBRARY"), RTLD_NOW);
    if (!driver || !library) fail_msg("%s", dlerror());
    *(void **)&card_takes = dlsym(driver, "fake_driver_takes");
    *(void **)&library_rate = dlsym(library, "fake_nccl_rate");
    *(void **)&library_bytes = dlsym(library, "fake_nccl_bytes");
    assert_true(card_takes && library_rate && library_bytes);
}

/* Each block has one attention. Kernels cost only their time after the first step, whose numbers stay. */
static void set_cards(const struct rank *r, int step)
{
    char text[96];
    snprintf(text, sizeof text, "attention_forward=%.0f,attention_delta=%.0f", FORWARD_US * r->stretch,
             BACKWARD_US * r->stretch);
    card_takes(r->computes ? text : "", step == COUNTED);
    library_rate(r->carries ? 1e3 * r->us_per_byte : 0);
}

/* ---- the processor ---- */

static _Thread_local struct rank *self;     /* of the thread that computes */
static _Thread_local struct timed *current; /* of the communication thread */

void __real_comm_begin(struct comm *comm, struct comm_job *job);
int __real_comm_end(struct comm *comm, struct comm_job *job, struct error *err);
void __wrap_comm_begin(struct comm *comm, struct comm_job *job);
int __wrap_comm_end(struct comm *comm, struct comm_job *job, struct error *err);

static struct timed *timed_of(struct rank *r, const struct comm_job *job)
{
    struct timed *t = r->jobs;
    while (t->job && t->job != job) t++;
    assert_true(t < r->jobs + JOBS - 1);
    t->rank = r;
    t->job = job;
    return t;
}

static int run_timed(struct comm *comm, void *context, struct error *err)
{
    struct timed *t = current = context;
    struct rank *r = t->rank;
    r->link_us = fmax(r->link_us, t->begun_us);
    int code = t->run(comm, t->context, err);
    t->ended_us = r->link_us;
    current = NULL;
    return code;
}

void __wrap_comm_begin(struct comm *comm, struct comm_job *job)
{
    struct timed *t = self ? timed_of(self, job) : NULL;
    if (t && job->run != run_timed) {
        t->run = job->run;
        t->context = job->context;
        job->run = run_timed;
        job->context = t;
    }
    if (t) t->begun_us = self->now_us;
    __real_comm_begin(comm, job);
}

int __wrap_comm_end(struct comm *comm, struct comm_job *job, struct error *err)
{
    bool waits = self && job->begun;
    int code = __real_comm_end(comm, job, err);
    if (waits) self->now_us = fmax(self->now_us, timed_of(self, job)->ended_us);
    return code;
}

/* The computing thread waits for a call that is no job. */
static void carry(struct comm *comm, size_t bytes)
{
    struct rank *r = &ranks[comm->rank];
    r->bytes += (double)bytes;
    if (!current) r->link_us = fmax(r->link_us, r->now_us);
    if (r->carries) r->link_us += (double)bytes * r->us_per_byte;
    if (!current) r->now_us = r->link_us;
}
static int slow_exchange(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    carry(comm, bytes);
    return plain_ops->exchange(comm, send, receive, bytes, err);
}
static int slow_gather(struct comm *comm, const void *send, void *receive, size_t bytes, struct error *err)
{
    carry(comm, bytes);
    return plain_ops->gather(comm, send, receive, bytes, err);
}

static void compute(const struct tower *tower, double us)
{
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].trainer->student == tower && ranks[r].computes) ranks[r].now_us += us;
}
static void slow_block(struct tower *tower, const struct batch *batch, int64_t l)
{
    compute(tower, FORWARD_US);
    plain_model->block(tower, batch, l);
}
static void slow_block_backward(const struct pass *pass, int64_t l)
{
    compute(pass->tower, BACKWARD_US);
    plain_model->block_backward(pass, l);
}

static int give(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    (void)context;
    (void)index;
    (void)err;
    batch->input = image;
    *ids = &id;
    return 0;
}

/* What is slow in a step, and the step. */
static int timed_step(struct rank *r, struct trainer *t, int s)
{
    struct step_result result;
    r->computes = s == COMPUTES || s == BOTH;
    r->carries = s == TRIED || s == CARRIES || s == BOTH;
    r->bytes = 0;
    int code = comm_barrier(&t->ranks, &r->err);
    long long before = card ? library_bytes() : 0;
    if (card && r->options.rank == 0) set_cards(r, s);
    if (code || (code = comm_barrier(&t->ranks, &r->err)) != 0) return code;
    double begin = clock_seconds();
    r->now_us = r->link_us = 0;
    self = card ? NULL : r;
    code = trainer_step(t, s + 1, 1e-4, &(struct batch_source){.fetch = give}, &result, &r->err);
    if (!code && card) t->device->sync(t->device);
    self = NULL;
    r->seconds[s] = card ? clock_seconds() - begin : r->now_us / 1e6;
    if (card) r->bytes = (double)(library_bytes() - before) / RANKS;
    if (s == COUNTED) r->us_per_byte = r->wanted_us / r->bytes;
    if (s == TRIED) {
        double cost = 1e6 * r->seconds[NEITHER], tried = 1e6 * r->seconds[TRIED];
        if (cost < r->wanted_us && cost < tried) r->us_per_byte *= (r->wanted_us - cost) / (tried - cost);
    }
    return code;
}

static int slow_steps(struct rank *r, struct trainer *t)
{
    struct comm_ops ops = *t->ranks.ops;
    struct model model = *t->student->model;
    int code = 0;
    if (r->options.rank == 0) {
        plain_ops = t->ranks.ops;
        plain_model = t->student->model;
    }
    ops.exchange = slow_exchange;
    ops.gather = slow_gather;
    model.block = slow_block;
    model.block_backward = slow_block_backward;
    if ((code = comm_barrier(&t->ranks, &r->err)) != 0) return code;
    if (card) {
        for (int s = 0; s < STEPS && !code; s++) code = timed_step(r, t, s);
        return code;
    }
    const struct comm_ops *ops_before = t->ranks.ops;
    const struct model *model_before = t->student->model;
    t->ranks.ops = &ops;
    t->student->model = &model;
    for (int s = 0; s < STEPS && !code; s++)
        if (s != NEITHER && s != TRIED) code = timed_step(r, t, s);
    t->ranks.ops = ops_before;
    t->student->model = model_before;
    return code;
}

static void *rank_main(void *context)
{
    struct rank *r = context;
    struct tiny tiny = {.directory = "/nowhere"};
    char spec[32];
    const char *size = card ? "model_t.depth=1 model_s.width=88 model_s.hidden=88 data.image_size=14 "
                              "model_s.patch=7 model_t.patch=7"
                            : "model_s.width=176 model_s.hidden=352 train.precision=fp32";
    char *all = xasprintf("model_s.depth=%d %s train.global_batch=%d train.micro_batch=1 "
                          "train.batch_size=1 %s",
                          depth(), size, RANKS, r->settings);
    snprintf(spec, sizeof spec, card ? "%s:%d" : "cpu", card, r->options.rank);
    r->code = tiny_join(&tiny, spec, &r->options, all, NULL, NULL, &r->err);
    r->trainer = tiny.trainer;
    if (!r->code) r->code = slow_steps(r, tiny.trainer);
    tiny_close(&tiny);
    free(all);
    return NULL;
}

/* Of the slower rank: how much longer a step of both takes than the longer of the two alone. */
static double too_long(const char *settings, double wanted_us, double stretch)
{
    double worst = 0;
    for (int r = 0; r < RANKS; r++)
        ranks[r] = (struct rank){.settings = settings, .wanted_us = wanted_us * stretch, .stretch = stretch};
    pthread_barrier_init(&all_here, NULL, RANKS);
    if (card) card_takes("", true);
    for (int r = 0; r < RANKS && card; r++)
        ranks[r].options.exchange = hand_round, ranks[r].options.context = &ranks[r].options;
    run_ranks(RANKS, ranks, sizeof *ranks, offsetof(struct rank, options), rank_main);
    pthread_barrier_destroy(&all_here);
    for (int r = 0; r < RANKS; r++) {
        const double *s = ranks[r].seconds;
        if (ranks[r].code) fail_msg("%s: %s", settings, ranks[r].err.what);
        double longer = s[COMPUTES] > s[CARRIES] ? s[COMPUTES] : s[CARRIES];
        if (s[BOTH] / longer - 1 > worst) worst = s[BOTH] / longer - 1;
        printf("%s, rank %d: computing %.0f ms, carrying %.0f ms, both %.0f ms\n", settings, r,
               1e3 * s[COMPUTES], 1e3 * s[CARRIES], 1e3 * s[BOTH]);
    }
    return worst;
}

static void a_step_takes_as_long_as_the_longer_of_computing_and_carrying(void **state)
{
    static const struct {
        const char *settings;
        double carried_us; /* of a block */
    } rows[] = {{"dist.shard=none", BACKWARD_US},
                {"dist.shard=optimizer", BACKWARD_US},
                {"dist.shard=parameters", FORWARD_US + BACKWARD_US}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (card && i == 1) continue; /* less than the third */
        double least = 1, load = 0;   /* a card that waits for what is carried: 0.5 */
        for (int try = 0; try < (card ? TRIES : 1) && least > 0.1;
             try++) { /* under load longer pauses show more */
            double more = too_long(rows[i].settings, depth() * rows[i].carried_us, try < 2 ? 1 : try);
            if (more < least) least = more;
        }
        if (card && least > 0.1 && least < 0.3 && getloadavg(&load, 1) == 1 &&
            load > 3.0 * (double)sysconf(_SC_NPROCESSORS_ONLN)) {
            printf("%s: a step is %.0f %% longer, which says nothing under a load of %.0f\n",
                   rows[i].settings, 100 * least, load);
            skip();
        }
        if (least > 0.1) fail_msg("%s: a step is %.0f %% longer", rows[i].settings, 100 * least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_takes_as_long_as_the_longer_of_computing_and_carrying)};
    if ((card = getenv("MEOPT_TEST_DEVICE")) != NULL) find_stand_ins();
    for (int i = 0; i < PIXELS; i++) image[i] = (float)(i * 7919 % 2048) / 1024.0f - 1.0f;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
