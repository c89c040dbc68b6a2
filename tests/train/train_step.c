/* A step, but for the bits that test_equal compares: micro-batches give the step of the whole batch up to
 * rounding; what clips, how far; what is not finite is found before any weight changes, or said; a lost rank
 * ends the others; what a rank holds; what is refused. */
#include "core/step/partition.h"
#include "tests/mentions.h"
#include "tests/train/equal.h"

/* ||difference of the movements|| / ||movement|| */
static double apart(const float *before, const struct run *a, const struct run *b)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double moved = (double)a->weights[i] - (double)before[i],
               d = (double)b->weights[i] - (double)a->weights[i];
        size += moved * moved;
        difference += d * d;
    }
    assert_true(size > 0);
    return sqrt(difference / size);
}

static struct run *begun(int model, const char *settings)
{
    return as_ranks(1, (struct run){.model = model, .settings = settings, .last_step = -1});
}

#define HALF      "optim.clip_grad_norm=0.5 "
#define FP32      HALF "train.precision=fp32 optim.use_meopt=false "
#define SGD       FP32 "optim.name=apsgd"
#define ADAM      FP32 "optim.name=apadamw optim.eps=1e-4"
#define BALANCED  HALF "optim.name=apsgd optim.preset=balanced "
#define KEPT      BALANCED "optim.gradients=keep"
#define RELEASED  BALANCED "optim.gradients=release optim.clip_mode=exact"
#define LAMB_CLIP "optim.name=lamb optim.max_grad_norm=0.01 optim.clip_grad_norm=0 "
#define LARGE     "train.precision=fp32 optim.gradients=keep model.vocabulary=5000"

/* In fp32 up to rounding, for rules that are smooth in the gradient; released up to the errors of bf16 and
 * compressed accumulators. Parts of the logits as well; clipping by LAMB's own bound is exact where it is
 * asked for. */
static void micro_batches_equal_the_batch(void **state)
{
    static const struct {
        int model;
        const char *whole, *part;
        double loss, norm, moved; /* tolerances */
    } rows[] = {
        {EVA, SGD, "train.micro_batch=4", 1e-5, 1e-4, 1e-4},
        {EVA, ADAM, "train.micro_batch=1", 1e-5, 1e-4, 1e-3},
        {EVA, KEPT, "train.micro_batch=4", 1e-3, 1e-3, 0.05},
        {EVA, RELEASED, "train.micro_batch=2", 1e-3, 2e-3, 0.05},
        {EVA, LAMB_CLIP "optim.gradients=keep", "optim.gradients=release optim.clip_mode=exact", 1e-5, 1e-5,
         2},
        {DINOV2, SGD, "train.micro_batch=1", 1e-5, 1e-4, 1e-4},
        {DINOV2, ADAM, "train.micro_batch=2", 1e-5, 1e-4, 1e-3},
        {DINOV2, KEPT, "train.micro_batch=1", 1e-3, 1e-3, 0.05},
        {DINOV2, RELEASED, "train.micro_batch=4", 1e-3, 2e-3, 0.05},
        {CLASSIFIER, SGD, "train.micro_batch=2", 1e-5, 1e-4, 1e-4},
        {CLASSIFIER, LAMB_CLIP "optim.gradients=keep", "optim.gradients=release optim.clip_mode=exact", 1e-5,
         1e-5, 2},
        {TEXTS, SGD, "train.micro_batch=4", 1e-5, 1e-4, 1e-4},
        {BERT, LARGE, "train.micro_batch=2", 1e-6, 1e-5, 2},
        {BERT, SGD, "train.batch_size=1 train.global_batch=8 train.micro_batch=1", 1e-6, 1e-5, 1e-4},
        {GPT2, SGD, "train.micro_batch=1", 1e-6, 1e-5, 1e-4},
        {GPT2, LARGE, "loss.chunk=1M", 1e-6, 1e-5, 2},
        {LLAMA, LARGE, "train.micro_batch=2", 1e-6, 1e-5, 2},
        {LLAMA, LARGE, "loss.chunk=2M", 1e-6, 1e-5, 2},
        {QWEN, LARGE, "train.batch_size=1 train.global_batch=8 train.micro_batch=1", 1e-6, 1e-5, 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *settings = xasprintf("%s %s", rows[i].whole, rows[i].part);
        const struct run *whole = reference(rows[i].model, rows[i].whole);
        struct run *start = begun(rows[i].model, rows[i].whole),
                   *part = as_ranks(1, (struct run){.model = rows[i].model, .settings = settings});
        double loss = 0, norm = 0, moved = apart(start->weights, whole, part);
        for (int s = 0; s < STEPS; s++) {
            const struct step_result *a = &whole->results[s], *b = &part->results[s];
            loss = fmax(loss, fabs(b->loss - a->loss) / a->loss);
            norm = fmax(norm, fabs(b->grad_norm - a->grad_norm) / a->grad_norm);
            assert_true(a->loss > 0 && a->grad_norm > (strstr(settings, "max_grad_norm") ? 0.01 : 0));
            if (models[rows[i].model].tokens)
                assert_true(fabs(a->metrics[0].value - b->metrics[0].value) <= 1e-9);
        }
        if (!(loss <= rows[i].loss && norm <= rows[i].norm && moved <= rows[i].moved))
            fail_msg("%s %s: loss %.1e, norm %.1e, movement %.1e apart", models[rows[i].model].config,
                     settings, loss, norm, moved);
        runs_free(start, 1);
        runs_free(part, 1);
        free(settings);
    }
}

/* To half a unit of the last bit: fp32 has 23 bits of mantissa, as has bf16 with 16 residual bits; the other
 * formats have 15, 11 and 7. */
static void what_is_loaded_is_what_the_format_can_hold(void **state)
{
    static const struct {
        const char *weights;
        int bits;
    } formats[] = {{"optim.weights=bf16+16", 24},
                   {"optim.weights=bf16+8", 15},
                   {"optim.weights=bf16+4", 11},
                   {"optim.weights=bf16", 7}};
    struct run *exact = begun(EVA, "train.precision=fp32");
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        struct run *held = begun(EVA, formats[f].weights);
        for (int64_t i = 0; i < exact->count; i++) {
            float is = held->weights[i], was = exact->weights[i];
            if (!(fabsf(is - was) <= ldexpf(fabsf(was), -1 - formats[f].bits)))
                fail_msg("%s: value %lld is %.9g instead of %.9g", formats[f].weights, (long long)i,
                         (double)is, (double)was);
        }
        runs_free(held, 1);
    }
    runs_free(exact, 1);
}

/* A nearly uniform prediction of V tokens: ln V, with any smoothing. */
static void smoothed_labels_change_the_loss(void **state)
{
    const struct step_result *plain = reference(GPT2, "train.precision=fp32")->results,
                             *smooth =
                                 reference(GPT2, "train.precision=fp32 train.label_smoothing=0.3")->results;
    assert_true(fabs(plain->loss - smooth->loss) < 0.1 && fabs(plain->loss - smooth->loss) > 1e-6);
    assert_true(smooth->grad_norm < plain->grad_norm);
    assert_true(fabs(plain->metrics[0].value - smooth->metrics[0].value) <= 0);
}

/* ---- clipping ---- */

#define ONE_BATCH "optim.gradients=release train.batch_size=2 "
static const char *const ways[] = {
    "optim.gradients=keep train.batch_size=2", ONE_BATCH "optim.clip_mode=exact",
    ONE_BATCH "train.micro_batch=1",           ONE_BATCH "optim.clip_mode=previous",
    ONE_BATCH "optim.clip_mode=block",         ONE_BATCH "optim.clip_grad_norm=0"};
enum { EXACTLY = 3, WAYS = 6 }; /* the first ones know the norm before the first update */

/* Returns how far the weights move in the first step, in units of the gradient's norm: a step is as long as
 * the gradient, as there is no trust ratio, and an eps that makes sqrt(v) negligible. */
static double moved(const char *way, const char *limit, double *norm)
{
    char *settings =
        xasprintf("train.precision=fp32 optim.preset=quality optim.weights=fp32 optim.state_m=fp32 "
                  "optim.state_v=fp32 optim.name=lamb optim.weight_decay=0 optim.eps=1 %s %s "
                  "optim.clip_grad_norm=0",
                  way, limit);
    struct run *before = begun(EVA, settings),
               *after =
                   as_ranks(1, (struct run){.model = EVA, .settings = settings, .last_step = 1, .lr = 1});
    double squares = 0;
    for (int64_t i = 0; i < after->count; i++) {
        double d = (double)after->weights[i] - (double)before->weights[i];
        squares += d * d;
    }
    *norm = after->results[0].grad_norm;
    runs_free(before, 1);
    runs_free(after, 1);
    free(settings);
    return sqrt(squares);
}

/* LAMB's own clipping (max_grad_norm) works from the first step, also alone. */
static void lamb_clips_its_first_step(void **state)
{
    const double limit = 1e-3; /* far below the norm of any of these gradients */
    for (int w = 0; w < WAYS - 1; w++) {
        double norm, free_norm, free_way = moved(ways[w], "", &free_norm),
                                way = moved(ways[w], "optim.max_grad_norm=0.001", &norm);
        assert_true(free_norm > 100 * limit && free_way > 10 * limit); /* else this shows nothing */
        assert_true(fabs(norm - free_norm) <= 1e-3 * free_norm);       /* told as it was, before clipping */
        /* sqrt(v) next to eps only shortens it; rounding of the weights is a thousandth of it */
        if (way > 1.01 * limit || (w < EXACTLY && way < 0.5 * limit))
            fail_msg("%s: moved by %g, the limit is %g", ways[w], way, limit);
    }
}

/* ---- not finite ---- */

/* The device's own slots, but that the `left`-th gradient that is measured or stepped with is not finite. */
static struct device_ops poisoned_ops;
static const struct device_ops *own_ops;
static struct device_optim poisoned_optim;
static const struct device_optim *own_optim;
static int left;

/* One NaN in fp32, two in bf16. */
static void poison(const void *gradient)
{
    if (--left == 0) memset((void *)(uintptr_t)gradient, 0xff, 4);
}

static void poisoned_squares(struct device *dev, const void *p, enum dtype type, int64_t n, double *sum,
                             int *finite)
{
    poison(p);
    own_ops->sum_squares(dev, p, type, n, sum, finite);
}

static void poisoned_step(struct device *dev, struct optim_work *work, struct optim_sweep *sweep)
{
    for (size_t i = 0; i < sweep->count; i++) poison(sweep->tasks[i].gradient);
    own_optim->step(dev, work, sweep);
}

static void poison_gradients(struct run *run, struct trainer *t)
{
    (void)run;
    poisoned_ops = *(own_ops = t->device->ops);
    poisoned_optim = *(own_optim = t->device->optim);
    poisoned_ops.sum_squares = poisoned_squares;
    poisoned_optim.step = poisoned_step;
    t->device->ops = &poisoned_ops;
    t->device->optim = &poisoned_optim;
}

/* A gradient that is not finite is reported with whether weights have changed. */
static void an_update_that_was_not_applied_is_reported(void **state)
{
    static const int tensors[] = {1, 4, 12, 20};
    for (int w = 0; w < WAYS; w++) {
        bool any = false;
        struct run *before = begun(EVA, ways[w]);
        for (int i = 0; i < 4; i++) {
            left = tensors[i];
            struct run *r = as_ranks(1, (struct run){.model = EVA,
                                                     .settings = ways[w],
                                                     .prepare = poison_gradients,
                                                     .expected = EXIT_DIVERGED});
            bool changed = memcmp(before->weights, r->weights, (size_t)r->count * sizeof *r->weights) != 0;
            if (changed != mentions(r->err.what, "partly")) /* meopt-train(1): the message says so */
                fail_msg("%s: the weights %s, told: %s", ways[w], changed ? "have changed" : "are as before",
                         r->err.what);
            any |= changed;
            runs_free(r, 1);
        }
        assert_int_equal(any, w >= EXACTLY);
        runs_free(before, 1);
    }
}

/* The weights of the head are so large that the loss is not finite. */
static void spoil(struct run *r, struct trainer *t)
{
    int index = t->student_shape.tied ? 0 : t->student->parameter_count - 1;
    int64_t count = t->student->parameters[index].count;
    float *huge = xmalloc((size_t)count * sizeof *huge);
    for (int64_t i = 0; i < count; i++) huge[i] = 3e38f;
    r->code = trainer_import(t, index, huge, &r->err);
    free(huge);
}

/* A loss that is not finite is found before any group has moved. */
static void what_is_not_finite_changes_nothing(void **state)
{
    static const char *const modes[] = {"optim.clip_mode=previous", "optim.clip_mode=block",
                                        "optim.clip_mode=exact", "train.micro_batch=2",
                                        "train.global_batch=8 train.micro_batch=2"};
    for (int m = GPT2; m <= LLAMA; m++)
        for (size_t w = 0; w < sizeof modes / sizeof *modes; w++) {
            char *settings = xasprintf("optim.gradients=release %s", modes[w]);
            struct run like = {.model = m, .settings = settings, .prepare = spoil, .expected = EXIT_DIVERGED};
            int size = strstr(modes[w], "global") ? 2 : 1;
            struct run *stopped = as_ranks(size, like);
            like.last_step = -1;
            like.expected = 0;
            struct run *before = as_ranks(1, like);
            for (int r = 0; r < size; r++) {
                if (!mentions(stopped[r].err.what, "not applied"))
                    fail_msg("%s: %s", settings, stopped[r].err.what);
                assert_memory_equal(stopped[r].weights, before->weights,
                                    (size_t)before->count * sizeof(float));
            }
            runs_free(stopped, size);
            runs_free(before, 1);
            free(settings);
        }
}

static void poisoned_norm(struct device *dev, const struct layernorm_gradient *o)
{
    own_ops->layernorm_backward(dev, o);
    if (o->dweight) o->dweight[0] = NAN;
}

/* The gradients of rank 1 are not finite, but its streams are. */
static void poison_rank_1(struct run *r, struct trainer *t)
{
    if (r->options.rank != 1) return;
    poisoned_ops = *(own_ops = t->device->ops);
    poisoned_ops.layernorm_backward = poisoned_norm;
    t->device->ops = &poisoned_ops;
}

#define OF_4 "train.global_batch=8 train.batch_size=2 train.micro_batch=2 "
static void what_is_not_finite_ends_all_ranks(void **state)
{
    static const char *const modes[] = {"exact", "previous", "block", "exact optim.clip_grad_norm=0"},
                             *const layouts[] = {"dist.pipeline=2 dist.shard=none",
                                                 "dist.pipeline=2 dist.shard=parameters",
                                                 "dist.shard=none",
                                                 "dist.shard=optimizer",
                                                 "model.slices=2 dist.tensor=2",
                                                 "model.slices=2 dist.tensor=2 dist.pipeline=2"};
    for (int i = 0; i < 24; i++) {
        char *settings = xasprintf(OF_4 "%s optim.clip_mode=%s", layouts[i / 4], modes[i % 4]);
        runs_free(as_ranks(4, (struct run){.model = GPT2,
                                           .settings = settings,
                                           .prepare = poison_rank_1,
                                           .expected = EXIT_DIVERGED}),
                  4);
        free(settings);
    }
    float kept = images[1][3 * PIXELS];
    images[1][3 * PIXELS] = NAN; /* of one rank's micro-batch */
    runs_free(as_ranks(3, (struct run){.model = EVA,
                                       .settings = "train.global_batch=8 train.micro_batch=1",
                                       .expected = EXIT_DIVERGED}),
              3);
    images[1][3 * PIXELS] = kept;
}

/* Rank 1 has different gradients from the other ranks of its tensor group. */
static void changed_norm(struct device *dev, const struct layernorm_gradient *o)
{
    own_ops->layernorm_backward(dev, o);
    if (o->dweight) o->dweight[0] += 1;
}
static void change_rank_1(struct run *r, struct trainer *t)
{
    if (r->options.rank != 1) return;
    poisoned_ops = *(own_ops = t->device->ops);
    poisoned_ops.layernorm_backward = changed_norm;
    t->device->ops = &poisoned_ops;
}
static void ranks_of_a_tensor_group_that_differ_are_reported(void **state)
{
    static const char *const modes[] = {"exact", "previous", "block", "exact optim.clip_grad_norm=0"};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char *settings = xasprintf(OF_4 "model.slices=2 dist.tensor=2 optim.clip_mode=%s", modes[i]);
        struct run *runs = as_ranks(
            2, (struct run){
                   .model = GPT2, .settings = settings, .prepare = change_rank_1, .expected = EXIT_FAILED});
        assert_true(mentions(runs[0].err.what, "0|1|group"));
        runs_free(runs, 2);
        free(settings);
    }
}

static void a_rank_that_gives_up_ends_the_others(void **state)
{
    struct run *ranks =
        as_ranks(3, (struct run){.model = EVA, .settings = OF_4, .lost_step = 2, .expected = -1});
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].code, r == 1 ? EXIT_DISK : EXIT_RANK_LOST);
        if (r != 1) assert_true(mentions(ranks[r].err.what, "rank"));
    }
    runs_free(ranks, 3);
}

/* ---- memory ---- */

/* Of what one rank holds of a class: an N-th, give or take the cuts at 32768 elements. */
static void holds_a_part(const char *settings, const struct run *one, const struct run *r, int size,
                         enum memory_class class)
{
    double part = (double)r->peaks[class] * size / (double)one->peaks[class];
    if (part < 0.6 || part > 1.5)
        fail_msg("%s, rank %d of %d: %s holds %.2f of its part", settings, r->options.rank, size,
                 memory_class_names[class], part);
}

static void a_rank_holds_its_part(void **state)
{
    static const char *const shards[] = {"none", "optimizer", "gradients", "parameters"};
    static const int sizes[] = {1, 2, 4, 4, 4, 4}, shard_of[] = {0, 3, 0, 1, 2, 3};
    for (int keep = 0; keep < 2; keep++) {
        struct run *one = NULL;
        for (int i = 0; i < 6; i++) {
            int size = sizes[i];
            char *all = xasprintf(OF_4 "model_t.width=88 model_t.hidden=176 model_s.width=192 "
                                       "model_s.hidden=384 model_s.depth=8 optim.gradients=%s dist.shard=%s",
                                  keep ? "keep" : "release", shards[shard_of[i]]);
            struct run *ranks = as_ranks(size, (struct run){.model = EVA, .settings = all, .last_step = 1});
            for (int r = 0; r < size && i; r++) {
                const struct run *it = &ranks[r];
                /* not 16 MiB, whatever the student: what its largest group sends and receives */
                assert_in_range(it->peaks[MEMORY_COMM], 1, 4 << 20);
                if (!shard_of[i]) continue;
                holds_a_part(all, one, it, size, MEMORY_OPTIMIZER);
                if (keep && size > 2) holds_a_part(all, one, it, size, MEMORY_GRADIENTS);
                if (shard_of[i] == 3 && size > 2)
                    assert_true(it->peaks[MEMORY_WEIGHTS] < one->peaks[MEMORY_WEIGHTS] * 6 / 10);
            }
            if (!one) one = ranks;
            else runs_free(ranks, size);
            free(all);
        }
        runs_free(one, 1);
    }
}

/* A recomputed block's tensors are stored where only the gradients of the head and the table are stored, if
 * these are larger than a block's: less memory, and one more block to compute. */
static void a_large_head_shares_memory_with_a_block(void **state)
{
    size_t activations[2], gradients[2];
    double flops[2];
    for (int release = 0; release < 2; release++) {
        struct config config;
        struct plan plan;
        struct error err = {0};
        char *settings = xasprintf("model.vocabulary=5000 train.recompute=block optim.gradients=%s "
                                   "optim.clip_mode=previous",
                                   release ? "release" : "keep");
        int code = load(&config, &(struct run){.model = LLAMA, .settings = settings}, &err);
        if (!code) code = plan_make(&plan, &config, &err);
        if (code) fail_msg("%s: %s", settings, err.what);
        activations[release] = plan.use.peak_bytes[MEMORY_ACTIVATIONS];
        gradients[release] = plan.use.peak_bytes[MEMORY_GRADIENTS];
        flops[release] = plan.step_flops;
        config_free(&config);
        free(settings);
    }
    /* stream, q k v, attention, gates */
    size_t block = 2 * SAMPLES * CONTEXT * (64 + (4 + 4) * 32 + 4 * 32 + 2 * 96);
    assert_true(activations[0] >= activations[1] + block);
    assert_true(gradients[1] <= 5000 * 64 * 2 + 4096 && flops[1] > flops[0]);
}

static void check_partition(void *context, const struct trainer *t)
{
    const struct tower *s = t->student;
    (void)context;
    for (int ranks = 1; ranks <= 8; ranks++) {
        int64_t most = 0, all = 0, owned = 0, *next = xcalloc((size_t)s->parameter_count, sizeof *next);
        for (int r = 0; r < ranks; r++) {
            struct partition *cut = partition_make(s, ranks, r, false);
            int64_t own = 0;
            for (int i = 0; i < s->parameter_count; i++) {
                if (!cut->count[i]) continue;
                assert_int_equal(cut->first[i], next[i]);
                assert_int_equal(cut->first[i] % CUT_ELEMENTS, 0);
                if (s->parameters[i].owned) {
                    assert_int_equal(cut->count[i], s->parameters[i].count);
                    if (owned < cut->count[i]) owned = cut->count[i];
                }
                next[i] += cut->count[i];
                own += cut->count[i];
            }
            if (own > most) most = own;
            all += own;
            partition_free(cut);
        }
        for (int i = 0; i < s->parameter_count; i++)
            if (s->parameters[i].trained) assert_int_equal(next[i], s->parameters[i].count);
        int cuts = owned ? 1 : s->group_count; /* matrices that are not cut: of all groups, however many */
        assert_true(most <= all / ranks + owned + cuts * CUT_ELEMENTS);
        free(next);
    }
}

static void parts_are_consecutive_and_complete(void **state)
{
    struct config config;
    struct plan plan;
    struct error err = {0};
    for (int muon = 0; muon < 2; muon++) { /* whose matrices are whole */
        struct run wide = {.model = EVA,
                           .settings = muon ? "model_s.width=256 model_s.hidden=1024 optim.name=muon"
                                            : "model_s.width=256 model_s.hidden=1024"};
        assert_int_equal(load(&config, &wide, &err), 0);
        assert_int_equal(plan_make_inspect(&plan, &config, NULL, check_partition, NULL, &err), 0);
        config_free(&config);
    }
}

/* ---- refusals ---- */

static void what_a_step_cannot_do_is_refused(void **state)
{
    static const struct {
        int model, size;
        const char *settings, *named;
    } rows[] = {
        {GPT2, 1, "train.micro_batch=8 train.rounds=breadth", "train.micro_batch"},
        {GPT2, 1, "train.micro_batch=2 optim.gradients=keep train.rounds=breadth", "optim.gradients"},
        {GPT2, 1, "train.micro_batch=2 train.save_activations=8bit train.rounds=breadth",
         "train.save_activations"},
        {GPT2, 1, "train.micro_batch=2 train.rounds=depth train.wave=2", "train.wave"},
        {GPT2, 3, "dist.pipeline=2", "dist.pipeline"},
        {GPT2, 3, "dist.pipeline=3", "blocks"}, /* the model has 2 */
        {GPT2, 2, "dist.pipeline=2 train.rounds=depth", "train.rounds"},
        {GPT2, 2, "dist.pipeline=2 optim.gradients=keep", "optim.gradients"},
        {GPT2, 2, "dist.pipeline=2 train.save_activations=8bit", "train.save_activations"},
        {GPT2, 3, "model.slices=2 dist.tensor=2", "dist.tensor"},
        {GPT2, 6, "model.slices=4 dist.tensor=2 dist.pipeline=2", "dist.tensor"},
        {GPT2, 2, "dist.tensor=2", "dist.tensor|model.slices"},
        {EVA, 4, "model_s.slices=2 dist.tensor=4", "dist.tensor|model_s.slices"},
        {GPT2, 3, "model.slices=4 dist.tensor=3", "dist.tensor|3"},
        {GPT2, 2, "model.slices=6 dist.tensor=2", "model.slices|6"},
        {EVA, 3, "dist.pipeline=3 train.rounds=breadth", "teacher"}, /* it has 2 blocks */
        {DINOV2, 3, "dist.pipeline=3", "student"},
        {EVA, 4, "train.global_batch=8 train.micro_batch=4 train.batch_size=4", "4 ranks| 2 "},
        {QWEN, 1, "", "97|5|sample 2|97"}, /* a token outside the vocabulary */
    };
    int32_t *token = &tokens[0][2 * CONTEXT + 5], kept = *token;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        *token = rows[i].model == QWEN ? VOCABULARY : kept;
        struct run *runs = as_ranks(
            rows[i].size,
            (struct run){.model = rows[i].model, .settings = rows[i].settings, .expected = EXIT_CONFIG});
        *token = kept;
        for (int r = 0; r < rows[i].size; r++)
            if (!mentions(runs[r].err.what, rows[i].named))
                fail_msg("%s: %s", rows[i].settings, runs[r].err.what);
        runs_free(runs, rows[i].size);
    }
    /* what breadth-first rounds lack: auto is depth-first */
    for (int i = 0; i < 3; i++) {
        int length = (int)(strstr(rows[i].settings, " train.rounds") - rows[i].settings);
        char *settings = xasprintf("%.*s", length, rows[i].settings);
        assert_true(!reference(GPT2, settings)->breadth);
        free(settings);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(micro_batches_equal_the_batch),
                                       cmocka_unit_test(what_is_loaded_is_what_the_format_can_hold),
                                       cmocka_unit_test(smoothed_labels_change_the_loss),
                                       cmocka_unit_test(lamb_clips_its_first_step),
                                       cmocka_unit_test(an_update_that_was_not_applied_is_reported),
                                       cmocka_unit_test(what_is_not_finite_changes_nothing),
                                       cmocka_unit_test(what_is_not_finite_ends_all_ranks),
                                       cmocka_unit_test(ranks_of_a_tensor_group_that_differ_are_reported),
                                       cmocka_unit_test(a_rank_that_gives_up_ends_the_others),
                                       cmocka_unit_test(a_rank_holds_its_part),
                                       cmocka_unit_test(a_large_head_shares_memory_with_a_block),
                                       cmocka_unit_test(parts_are_consecutive_and_complete),
                                       cmocka_unit_test(what_a_step_cannot_do_is_refused)};
    make_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
