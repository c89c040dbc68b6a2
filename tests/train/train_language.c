/* A language model's step: in micro-batches, in every mode, on several ranks with every shard, streamed,
 * offloaded, resumed. The loss belongs to the labelled tokens of the global batch, and is read before the
 * first update. A plan equals the memory that training uses. Tiny models with random weights. */
#include "core/base/file.h"
#include "core/train/plan.h"
#include "core/train/trainer.h"
#include "core/train/trainer_checkpoint.h"
#include "tests/mentions.h"
#include "tests/ranks/threads.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum { STEPS = 3, SAMPLES = 8, CONTEXT = 24, VOCABULARY = 97, MOST = 4, TOKENS = SAMPLES * CONTEXT };

/* Of each step: labels are missing unevenly, and every third sample has two documents. */
static int32_t tokens[STEPS][TOKENS], labels[STEPS][TOKENS], begins[STEPS][TOKENS], ends[STEPS][TOKENS];

static const char *spec(void) { return getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu"; }

static void make_tokens(void)
{
    uint32_t random = 1;
    for (int s = 0; s < STEPS; s++)
        for (int i = 0; i < TOKENS; i++) {
            int sample = i / CONTEXT, at = i % CONTEXT, cut = sample % 3 ? 0 : 5 + sample + s;
            random = random * 1664525u + 1013904223u;
            tokens[s][i] = (int32_t)(random >> 16) % VOCABULARY;
            labels[s][i] = at < 3 * sample ? -1 : (int32_t)(random >> 8 & 0xff) % VOCABULARY;
            begins[s][i] = at < cut ? 0 : cut;
            ends[s][i] = at < cut ? cut : CONTEXT;
        }
}

struct run {
    const char *settings, *directory; /* directory: resume from its checkpoint, if there is one, and save */
    int last_step;                    /* 0: STEPS */
    bool spoilt;                      /* weights are so large that the loss is not finite */
    struct comm_options options;
    int code;
    struct error err;
    struct step_result results[STEPS];
    float *weights;
    int64_t count;
};

struct feed {
    const struct run *run;
    const struct trainer *trainer;
    int step;
};

static int give(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    const struct feed *feed = context;
    int ranks = feed->run->options.size;
    int64_t at = (index * ranks + feed->run->options.rank) * feed->trainer->micro * CONTEXT;
    (void)err;
    *ids = NULL;
    batch->input = tokens[feed->step] + at;
    batch->labels = labels[feed->step] + at;
    batch->begins = begins[feed->step] + at;
    batch->ends = ends[feed->step] + at;
    return 0;
}

static int load(struct config *config, const char *settings, struct error *err)
{
    char *words = xasprintf("data.root=/nowhere data.val= train.scratch_dir=/tmp model.vocabulary=97 "
                            "model.context=24 model.width=64 model.depth=2 "
                            "model.heads=4 optim.warmup_steps=0 train.batch_size=8 device.type=cpu %s",
                            settings),
         *overrides[48], *at;
    int count = 0;
    for (char *word = strtok_r(words, " ", &at); word && count < 48; word = strtok_r(NULL, " ", &at))
        overrides[count++] = word;
    int code = config_load(config, MEOPT_SOURCE_DIR "/configs/bytes.yaml", overrides, count, err);
    free(words);
    return code;
}

static void export_weights(struct run *r, struct trainer *t)
{
    for (int i = 0; i < t->student->parameter_count; i++) r->count += t->student->parameters[i].count;
    r->weights = xmalloc((size_t)r->count * sizeof *r->weights);
    int64_t at = 0;
    for (int i = 0; i < t->student->parameter_count; i++) {
        int code = trainer_export(t, i, r->weights + at, &r->err);
        if (code) r->code = code;
        at += t->student->parameters[i].count;
    }
}

static void train(struct run *r, struct trainer *t)
{
    struct feed feed = {.run = r, .trainer = t};
    int64_t from = 0, last = r->last_step ? r->last_step : STEPS;
    if (r->spoilt) {
        int index = t->student_shape.tied ? 0 : t->student->parameter_count - 1; /* the matrix of the head */
        int64_t count = t->student->parameters[index].count;
        float *huge = xmalloc((size_t)count * sizeof *huge);
        for (int64_t i = 0; i < count; i++) huge[i] = 3e38f;
        r->code = trainer_import(t, index, huge, &r->err);
        free(huge);
    }
    if (r->directory) r->code = trainer_resume(t, r->directory, &from, &r->err);
    for (feed.step = from > 0 ? (int)from : 0; feed.step < last && !r->code; feed.step++)
        r->code =
            trainer_step(t, feed.step + 1, 1e-3, &(struct batch_source){.fetch = give, .context = &feed},
                         &r->results[feed.step], &r->err);
    if (r->directory && !r->code) r->code = trainer_save(t, r->directory, last, 1, &r->err);
    if (!r->code || r->code == EXIT_DIVERGED) export_weights(r, t);
}

static void *run_main(void *context)
{
    struct run *r = context;
    struct config config;
    struct device *device = NULL;
    struct trainer *trainer = NULL;
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    r->code = load(&config, r->settings, &r->err);
    if (!r->code) r->code = device_open(&device, spec(), 0, &r->err);
    if (!r->code)
        r->code = trainer_create_distributed(&trainer, &config, device, true,
                                             r->options.size > 1 ? &r->options : NULL, NULL, NULL, &r->err);
    if (!r->code) train(r, trainer);
    trainer_close(trainer);
    if (device) device_close(device);
    config_free(&config);
    return NULL;
}

/* The ranks of one training are threads. */
static struct run *as_ranks(int size, struct run like)
{
    struct run *runs = xcalloc((size_t)size, sizeof *runs);
    for (int r = 0; r < size; r++) runs[r] = like;
    run_ranks(size, runs, sizeof *runs, offsetof(struct run, options), run_main);
    return runs;
}

static struct run *alone(const char *settings)
{
    struct run *r = as_ranks(1, (struct run){.settings = settings});
    if (r->code) fail_msg("%s: %s", settings, r->err.what);
    return r;
}

static void runs_free(struct run *runs, int size)
{
    for (int r = 0; r < size; r++) free(runs[r].weights);
    free(runs);
}

static void same(const char *what, const struct run *one, const struct run *runs, int size)
{
    for (int r = 0; r < size; r++) {
        if (runs[r].code) fail_msg("%s, rank %d of %d: %s", what, r, size, runs[r].err.what);
        for (int s = 0; s < STEPS; s++) {
            const struct step_result *a = &one->results[s], *b = &runs[r].results[s];
            if (a->loss != b->loss || a->metrics[0].value != b->metrics[0].value ||
                a->grad_norm != b->grad_norm)
                fail_msg("%s, rank %d of %d, step %d: loss %.17g, norm %.17g; not %.17g, %.17g", what, r,
                         size, s + 1, b->loss, b->grad_norm, a->loss, a->grad_norm);
        }
        assert_int_equal(one->count, runs[r].count);
        if (memcmp(one->weights, runs[r].weights, (size_t)one->count * sizeof(float)))
            fail_msg("%s: rank %d of %d has other weights", what, r, size);
    }
}

/* One has a tied table and biases, one few key heads, wide heads, gates and a matrix of the head's own, one
 * also norms of heads. */
static const char *const models[] = {
    "", "model.family=llama model.hidden=96 model.kv_heads=2 model.head_dim=32 model.tied=false",
    "model.family=llama model.arch=qwen3_0_6b model.hidden=96 model.kv_heads=1 model.head_dim=32"};
enum { MODELS = 3 };
static int model_count = MODELS;

static struct run *with(int model, const char *settings)
{
    char *all = xasprintf("%s %s", models[model], settings);
    struct run *r = alone(all);
    free(all);
    return r;
}

/* Also parts of the logits; the norms follow from sums in another order. */
static void micro_batches_equal_the_batch(void **state)
{
    (void)state;
    static const char *const pieces[] = {"train.micro_batch=1", "train.micro_batch=2", "loss.chunk=1M",
                                         "loss.chunk=2M optim.gradients=keep",
                                         "train.batch_size=1 train.global_batch=8 train.micro_batch=1"};
    for (int m = 0; m < model_count; m++) {
        struct run *whole = with(m, "train.precision=fp32 optim.gradients=keep model.vocabulary=5000");
        for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
            char *settings =
                xasprintf("train.precision=fp32 optim.gradients=keep model.vocabulary=5000 %s", pieces[p]);
            struct run *cut = with(m, settings);
            for (int s = 0; s < STEPS; s++) {
                double loss = fabs(cut->results[s].loss - whole->results[s].loss) / whole->results[s].loss,
                       norm = fabs(cut->results[s].grad_norm - whole->results[s].grad_norm) /
                              whole->results[s].grad_norm;
                if (!(loss <= 1e-6 && norm <= 1e-5))
                    fail_msg("%s, step %d: loss %.1e, norm %.1e apart", settings, s + 1, loss, norm);
                assert_true(fabs(cut->results[s].metrics[0].value - whole->results[s].metrics[0].value) <=
                            1e-9);
            }
            runs_free(cut, 1);
            free(settings);
        }
        assert_true(whole->results[STEPS - 1].loss > 0 && whole->results[0].metrics[0].value >= 0);
        runs_free(whole, 1);
    }
}

/* With random weights of deviation 0.02 the first prediction is nearly uniform. */
static void every_mode_has_the_same_first_loss(void **state)
{
    (void)state;
    static const char *const modes[] = {"optim.gradients=keep",
                                        "optim.gradients=release optim.clip_mode=previous",
                                        "optim.gradients=release optim.clip_mode=block",
                                        "optim.gradients=release optim.clip_mode=exact",
                                        "optim.gradients=release train.recompute=block",
                                        "optim.gradients=release model.place=streamed",
                                        "optim.gradients=release train.global_batch=8"};
    for (int m = 0; m < model_count; m++) {
        struct run *first = with(m, modes[0]);
        assert_true(fabs(first->results[0].loss - log(VOCABULARY)) < 0.1);
        for (size_t k = 1; k < sizeof modes / sizeof *modes; k++) {
            struct run *other = with(m, modes[k]);
            assert_true(fabs(first->results[0].loss - other->results[0].loss) <= 0);
            assert_true(fabs(first->results[0].grad_norm - other->results[0].grad_norm) <=
                        2e-2 * first->results[0].grad_norm);
            runs_free(other, 1);
        }
        runs_free(first, 1);
    }
}

static void places_do_not_change_bits(void **state)
{
    (void)state;
    static const char *const usual = "optim.gradients=release optim.clip_mode=exact";
    static const char *const others[] = {"model.place=streamed", "train.recompute=block",
                                         "optim.offload=nvme",
                                         "model.place=streamed optim.offload=nvme train.recompute=block"};
    for (int m = 0; m < model_count; m++) {
        struct run *resident = with(m, usual);
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            char directory[] = "/tmp/meopt-language-XXXXXX";
            assert_non_null(mkdtemp(directory));
            const char *key = strstr(others[k], "offload") ? "optim.offload_dir" : "train.scratch_dir";
            char *settings = xasprintf("%s %s %s=%s", usual, others[k], key, directory);
            struct run *other = with(m, settings);
            same(settings, resident, other, 1);
            runs_free(other, 1);
            free(settings);
            file_remove_tree(directory, NULL);
        }
        runs_free(resident, 1);
        resident = with(m, "optim.gradients=release train.micro_batch=4");
        struct run *streamed = with(m, "optim.gradients=release train.micro_batch=4 model.place=streamed");
        same("accumulated, streamed", resident, streamed, 1);
        runs_free(streamed, 1);
        runs_free(resident, 1);
    }
}

/* A recomputed block's tensors are stored where only the gradients of the head and the table are stored, if
 * these are larger than a block's: less memory, the same bits, and one more block to compute. */
static void a_large_head_shares_memory_with_a_block(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "optim.clip_mode=previous", "optim.clip_mode=exact",
        "train.micro_batch=4",      "model.freeze=1",
        "model.place=streamed",     "train.global_batch=8 train.micro_batch=2 optim.clip_mode=exact"};
    static const char *const forms[] = {"keep", "release"};
    size_t activations[2], gradients[2];
    double flops[2];
    for (int f = 0; f < 2; f++) {
        struct config config;
        struct plan plan;
        struct error err = {0};
        char *settings = xasprintf("%s model.vocabulary=5000 train.recompute=block optim.gradients=%s "
                                   "optim.clip_mode=previous",
                                   models[1], forms[f]);
        int code = load(&config, settings, &err);
        if (!code) code = plan_make(&plan, &config, &err);
        if (code) fail_msg("%s: %s", settings, err.what);
        activations[f] = plan.use.peak_bytes[MEMORY_ACTIVATIONS];
        gradients[f] = plan.use.peak_bytes[MEMORY_GRADIENTS];
        flops[f] = plan.step_flops;
        config_free(&config);
        free(settings);
    }
    size_t block = 2 * TOKENS * (64 + (4 + 4) * 32 + 4 * 32 + 2 * 96); /* stream, q k v, attention, gates */
    assert_true(activations[0] >= activations[1] + block);
    assert_true(gradients[1] <= 5000 * 64 * 2 + 4096 && flops[1] > flops[0]);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        char *plain = xasprintf("optim.gradients=release model.vocabulary=5000 %s", ways[w]),
             *recomputed = xasprintf("%s train.recompute=block", plain);
        struct run *one = with(1, plain), *other = with(1, recomputed);
        same(recomputed, one, other, 1);
        runs_free(one, 1);
        runs_free(other, 1);
        free(plain);
        free(recomputed);
    }
}

static void ranks_have_the_bits_of_one(void **state)
{
    (void)state;
    static const char *const ways[] = {"optim.gradients=release optim.clip_mode=previous train.micro_batch=2",
                                       "optim.gradients=release optim.clip_mode=exact train.micro_batch=1",
                                       "optim.gradients=release optim.clip_mode=block train.batch_size=3 "
                                       "train.micro_batch=3 train.recompute=block",
                                       "optim.gradients=keep train.micro_batch=1 train.save_activations=8bit",
                                       "optim.gradients=release optim.clip_mode=exact train.batch_size=3 "
                                       "train.micro_batch=3 model.freeze=1",
                                       "optim.gradients=release optim.clip_mode=exact train.batch_size=3 "
                                       "train.micro_batch=3 lora.rank=4",
                                       "optim.gradients=release optim.clip_mode=block train.micro_batch=1 "
                                       "lora.rank=4"};
    static const char *const shards[] = {"none", "optimizer", "parameters"};
    for (int m = 0; m < model_count; m++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            char *settings = xasprintf("%s train.global_batch=8 %s", models[m], ways[w]);
            struct run *one = alone(settings);
            for (int size = 2; size <= 3; size++)
                for (int shard = 0; shard < 3; shard++) {
                    char *all = xasprintf("%s dist.shard=%s", settings, shards[shard]);
                    struct run *runs = as_ranks(size, (struct run){.settings = all});
                    same(all, one, runs, size);
                    runs_free(runs, size);
                    free(all);
                }
            runs_free(one, 1);
            free(settings);
        }
}

static void a_resumed_run_has_the_bits_of_a_whole_one(void **state)
{
    (void)state;
    for (int size = 1; size <= 2; size++) {
        char directory[] = "/tmp/meopt-language-XXXXXX";
        const char *settings = "train.global_batch=8 train.micro_batch=2 optim.clip_mode=exact";
        assert_non_null(mkdtemp(directory));
        struct run *whole = alone(settings);
        struct run *begun = as_ranks(
            size, (struct run){.settings = settings, .directory = directory, .last_step = STEPS - 1});
        if (begun->code) fail_msg("%s", begun->err.what);
        struct run *resumed = as_ranks(3 - size, (struct run){.settings = settings, .directory = directory});
        if (resumed->code) fail_msg("%s", resumed->err.what);
        for (int s = 0; s < STEPS - 1; s++) resumed->results[s] = begun->results[s];
        same("resumed", whole, resumed, 1);
        runs_free(begun, size);
        runs_free(resumed, 3 - size);
        runs_free(whole, 1);
        file_remove_tree(directory, NULL);
    }
}

/* A loss that is not finite is found before any group has moved. */
static void what_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    static const char *const ways[] = {"optim.clip_mode=previous", "optim.clip_mode=block",
                                       "optim.clip_mode=exact", "train.micro_batch=2",
                                       "train.global_batch=8 train.micro_batch=2"};
    for (int m = 0; m < model_count; m++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            char *settings = xasprintf("%s optim.gradients=release model.width=64 %s", models[m], ways[w]);
            int sizes = strstr(ways[w], "global") ? 2 : 1;
            struct run *stopped = as_ranks(sizes, (struct run){.settings = settings, .spoilt = true}),
                       *before =
                           as_ranks(1, (struct run){.settings = settings, .spoilt = true, .last_step = -1});
            for (int r = 0; r < sizes; r++) {
                assert_int_equal(stopped[r].code, EXIT_DIVERGED);
                if (!mentions(stopped[r].err.what, "not applied"))
                    fail_msg("%s: %s", settings, stopped[r].err.what);
                assert_memory_equal(stopped[r].weights, before->weights,
                                    (size_t)before->count * sizeof(float));
            }
            runs_free(stopped, sizes);
            runs_free(before, 1);
            free(settings);
        }
}

/* A nearly uniform prediction of V tokens: ln V, with any smoothing. */
static void smoothed_labels_change_the_loss(void **state)
{
    (void)state;
    struct run *plain = with(1, "train.precision=fp32"),
               *smooth = with(1, "train.precision=fp32 train.label_smoothing=0.3");
    assert_true(fabs(plain->results[0].loss - smooth->results[0].loss) < 0.1);
    assert_true(fabs(plain->results[0].loss - smooth->results[0].loss) > 1e-6);
    assert_true(smooth->results[0].grad_norm < plain->results[0].grad_norm);
    assert_true(fabs(plain->results[0].metrics[0].value - smooth->results[0].metrics[0].value) <= 0);
    runs_free(plain, 1);
    runs_free(smooth, 1);
}

static void tokens_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    int32_t kept = tokens[0][2 * CONTEXT + 5];
    tokens[0][2 * CONTEXT + 5] = VOCABULARY;
    struct run *r = as_ranks(1, (struct run){.settings = ""});
    tokens[0][2 * CONTEXT + 5] = kept;
    assert_int_equal(r->code, EXIT_CONFIG);
    assert_true(mentions(r->err.what, "97|5|sample 2|97"));
    runs_free(r, 1);
}

static void a_plan_is_what_training_uses(void **state)
{
    (void)state;
    static const char *const ways[] = {"",
                                       "optim.gradients=keep",
                                       "train.micro_batch=2",
                                       "train.precision=fp32",
                                       "train.recompute=block",
                                       "train.save_activations=8bit",
                                       "model.place=streamed",
                                       "optim.use_meopt=false",
                                       "optim.clip_mode=exact",
                                       "train.global_batch=8 train.micro_batch=2",
                                       "model.freeze=1"};
    for (int m = 0; m < model_count; m++)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            char *settings = xasprintf("%s model.vocabulary=5000 %s", models[m], ways[w]);
            struct run r = {.options = {.size = 1}};
            struct config config;
            struct plan plan;
            struct device *device = NULL;
            struct trainer *t = NULL;
            struct step_result result;
            struct error err = {0};
            struct feed feed = {.run = &r};
            int code = load(&config, settings, &err);
            if (!code) code = plan_make(&plan, &config, &err);
            if (!code) code = device_open(&device, spec(), 0, &err);
            if (!code) code = trainer_create(&t, &config, device, true, NULL, NULL, &err);
            feed.trainer = t;
            for (int step = 1; step <= 2 && !code; step++)
                code = trainer_step(t, step, 1e-5, &(struct batch_source){.fetch = give, .context = &feed},
                                    &result, &err);
            if (code) fail_msg("%s: %s", settings, err.what);
            for (int c = 0; c < MEMORY_CLASS_COUNT; c++) {
                double planned = (double)plan.use.peak_bytes[c], used = (double)device->use.peak_bytes[c];
                if (!(fabs(planned - used) <= 0.01 * used))
                    fail_msg("%s: %s planned %.0f, used %.0f", settings, memory_class_names[c], planned,
                             used);
            }
            trainer_close(t);
            device_close(device);
            config_free(&config);
            free(settings);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(micro_batches_equal_the_batch),
                                       cmocka_unit_test(every_mode_has_the_same_first_loss),
                                       cmocka_unit_test(places_do_not_change_bits),
                                       cmocka_unit_test(a_large_head_shares_memory_with_a_block),
                                       cmocka_unit_test(ranks_have_the_bits_of_one),
                                       cmocka_unit_test(a_resumed_run_has_the_bits_of_a_whole_one),
                                       cmocka_unit_test(what_is_not_finite_changes_nothing),
                                       cmocka_unit_test(smoothed_labels_change_the_loss),
                                       cmocka_unit_test(tokens_outside_the_vocabulary_are_refused),
                                       cmocka_unit_test(a_plan_is_what_training_uses)};
    const struct CMUnitTest on_a_card[] = {tests[1], tests[2]};
    make_tokens();
    if (!getenv("MEOPT_TEST_DEVICE")) return cmocka_run_group_tests(tests, NULL, NULL);
    model_count = 1; /* emulated cards are slow */
    return cmocka_run_group_tests(on_a_card, NULL, NULL);
}
