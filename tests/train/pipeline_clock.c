/* The bubble of a pipeline (dist.pipeline), by a clock that no load of the machine changes. The ranks are
 * threads, which run the trainer's own order of computing and messages. A block takes 1 for a micro-batch, as
 * the head does, the embedding nothing, and a message MESSAGE. Waiting for one sets the clock to its end. */
#include "core/comm/comm_internal.h"
#include "tests/train/equal.h"

enum { MOST_STAGES = 4, MOST_MICRO = 16, MOST_MEETINGS = 1024 };

/* The n-th message from one stage to another: when each end is ready for it. */
struct meeting {
    double ready[2];
    bool come[2];
};
static struct meeting meetings[MOST_STAGES][MOST_STAGES][MOST_MEETINGS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

struct stage {
    struct comm_options options;
    const char *settings;
    int code;
    struct error err;
    bool one_by_one; /* a stage waits for each of its messages */
    double message;
    double now, work, took; /* the clock; computed; until the end of both passes */
    int micro_batches, last_group;
    /* of the communication thread: */
    double link; /* end of the last message */
    int met[2][MOST_STAGES];
    double begun[2][MOST_MICRO], ended[2][MOST_MICRO]; /* by direction and micro-batch */
};
static struct stage *all;
static _Thread_local struct stage *self; /* of the thread that computes */
static const struct comm_ops *real_ops;

void __real_comm_begin(struct comm *comm, struct comm_job *job);
int __real_comm_end(struct comm *comm, struct comm_job *job, struct error *err);
void __wrap_comm_begin(struct comm *comm, struct comm_job *job);
int __wrap_comm_end(struct comm *comm, struct comm_job *job, struct error *err);

void __wrap_comm_begin(struct comm *comm, struct comm_job *job)
{
    const struct comm_message *m = job->context;
    if (self) self->begun[m->receive][m->tag] = self->now;
    __real_comm_begin(comm, job);
}

int __wrap_comm_end(struct comm *comm, struct comm_job *job, struct error *err)
{
    const struct comm_message *m = job->context;
    bool waits = self && job->begun;
    int code = __real_comm_end(comm, job, err);
    if (waits) self->now = fmax(self->now, self->ended[m->receive][m->tag]);
    return code;
}

/* Both ends of a message are occupied by it from when both have come. */
static int timed_transfer(struct comm *comm, struct comm_exchange *e, struct error *err)
{
    const struct comm_message *m = e->messages;
    struct stage *s = &all[comm->rank];
    int way = m->receive, from = way ? m->peer : comm->rank, to = way ? comm->rank : m->peer;
    struct meeting *here = &meetings[from][to][s->met[way][m->peer]++];
    pthread_mutex_lock(&lock);
    here->ready[way] = fmax(s->link, s->begun[way][m->tag]);
    here->come[way] = true;
    pthread_cond_broadcast(&changed);
    while (!here->come[!way]) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    s->link = s->ended[way][m->tag] = fmax(here->ready[0], here->ready[1]) + s->message;
    return real_ops->transfer(comm, e, err);
}

static int compute(void *context, int64_t slot, int group, struct error *err)
{
    struct stage *s = context;
    (void)slot, (void)err;
    s->now += group ? 1 : 0;
    s->work += group ? 1 : 0;
    return 0;
}

static int run_passes(struct stage *s, struct trainer *t)
{
    struct comm_ops timed = *t->ranks.ops;
    int last = t->student->group_count - 1, code = 0;
    timed.transfer = timed_transfer;
    pthread_mutex_lock(&lock);
    real_ops = t->ranks.ops;
    pthread_mutex_unlock(&lock);
    t->ranks.ops = &timed;
    if (s->one_by_one) t->stages->overlaps = false;
    s->micro_batches = (int)t->schedule.rounds;
    for (int back = 0; back < 2 && !code; back++) {
        struct group_pass pass = {.tower = t->student,
                                  .from = back ? last : 0,
                                  .to = back ? 0 : last,
                                  .by = back ? -1 : 1,
                                  .count = t->schedule.rounds,
                                  .context = s,
                                  .compute = compute};
        self = s;
        code = pipeline_run(t, &pass, &s->err);
        self = NULL;
        if (!code) code = comm_all_reduce(&t->ranks, COMM_MAX, &s->now, 1, &s->err); /* of the loss */
        s->link = s->now;
    }
    s->took = s->now;
    t->ranks.ops = real_ops;
    return code;
}

static void *stage_main(void *context)
{
    struct stage *s = context;
    struct run like = {.model = GPT2, .settings = s->settings};
    struct config config;
    struct device *device = NULL;
    struct trainer *trainer = NULL;
    s->code = load(&config, &like, &s->err);
    if (!s->code) s->code = device_open(&device, "cpu", 0, &s->err);
    if (!s->code)
        s->code =
            trainer_create_distributed(&trainer, &config, device, true, &s->options, fill, NULL, &s->err);
    if (!s->code) s->code = run_passes(s, trainer);
    trainer_close(trainer);
    if (device) device_close(device);
    config_free(&config);
    return NULL;
}

struct pass_times {
    double bubble;  /* of all stages */
    double longest; /* share in which the stage with the most work waits */
    double most;    /* work of that stage for one micro-batch and pass */
};

static struct pass_times measure(int stages, int micro, int depth, double message, bool one_by_one)
{
    char *settings = xasprintf("train.global_batch=%d train.batch_size=%d train.micro_batch=1 "
                               "optim.clip_mode=exact model.depth=%d dist.pipeline=%d",
                               micro, micro, depth, stages);
    struct pass_times found = {0};
    double work = 0, most = 0;
    memset(meetings, 0, sizeof meetings);
    all = xcalloc((size_t)stages, sizeof *all);
    for (int p = 0; p < stages; p++)
        all[p] = (struct stage){.settings = settings, .message = message, .one_by_one = one_by_one};
    run_ranks(stages, all, sizeof *all, offsetof(struct stage, options), stage_main);
    for (int p = 0; p < stages; p++) {
        if (all[p].code) fail_msg("%s: %s", settings, all[p].err.what);
        assert_int_equal(all[p].micro_batches, micro);
        assert_true(all[p].took == all->took);
        work += all[p].work;
        most = fmax(most, all[p].work);
    }
    assert_true(work == 2.0 * micro * (depth + 1));
    found.bubble = 1 - work / (stages * all->took);
    found.longest = 1 - most / all->took;
    found.most = most / (2 * micro);
    free(all);
    free(settings);
    return found;
}

/* The formula of man meopt-train; of fewer micro-batches than stages, what the groups in order take. */
static double formula(int stages, double micro, double groups)
{
    double works = micro * groups / stages;
    return 1 - works / fmax(works + stages - 1, micro + groups - 1);
}

static const struct {
    int stages, depth;
} shapes[] = {{2, 3}, {2, 4}, {2, 9}, {4, 7}, {4, 8}, {4, 15}};
static const int micros[] = {1, 2, 3, 4, 5, 8, 12, 16};
#define MESSAGE (1.0 / 64)

static void stages_wait_as_planned(void **state)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof micros / sizeof *micros; k++) {
            int stages = shapes[i].stages, depth = shapes[i].depth, micro = micros[k];
            struct pass_times found = measure(stages, micro, depth, MESSAGE, false);
            bool even = (depth + 1) % stages == 0; /* the same work in each stage */
            double wait = even ? found.bubble : found.longest,
                   groups = even             ? depth + 1
                            : micro < stages ? depth + 2
                                             : found.most * stages,
                   planned = formula(stages, micro, groups), most = planned + 0.05;
            if (wait > most)
                fail_msg("%d stages, %d micro-batches, %d blocks: %.4f, planned %.4f", stages, micro, depth,
                         wait, planned);
        }
}

/* The clock is that of the messages: a stage that waits for each of them is found. */
static void the_clock_sees_messages(void **state)
{
    for (int stages = 2; stages <= 4; stages += 2) {
        double together = measure(stages, 12, 7, 0.25, false).bubble,
               one_by_one = measure(stages, 12, 7, 0.25, true).bubble;
        if (one_by_one < together + 0.1) fail_msg("%d stages: %.4f, %.4f", stages, together, one_by_one);
        assert_true(measure(stages, 12, 7, 0.25, false).bubble == together);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_wait_as_planned),
        cmocka_unit_test(the_clock_sees_messages),
    };
    make_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
