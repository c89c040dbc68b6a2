/* Breadth-first rounds (train.rounds) have the bits of depth-first ones: losses, metrics, norms and weights,
 * for every objective, with weights and states in every place, on one rank and on several. A plan equals the
 * memory that training uses, and weights travel once per pass. Tiny models with random weights. */
#include "tests/train/rounds.h"

static void breadth_has_the_bits_of_depth(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int micro = 1; micro <= 4; micro *= 2)
            for (int clip = 0; clip < 2; clip++) {
                char *settings = xasprintf("train.micro_batch=%d %s", micro, clips[clip]);
                compare(m, settings, "", 1);
                free(settings);
            }
}

/* Also of the teacher, and with what else a step reads or keeps. */
static void every_place_and_option_keeps_the_bits(void **state)
{
    (void)state;
    static const struct {
        int model;
        const char *settings, *more;
    } rows[] = {
        {EVA, "train.ema=0.99 optim.preset=minimal", "model_t.place=streamed"},
        {EVA, "model_s.drop_path=0.3", "model_s.place=streamed model_t.place=streamed"},
        {EVA, "optim.offload=nvme optim.clip_grad_norm=0", "model_s.place=streamed"},
        {EVA, "optim.name=lamb model_s.freeze=1", "optim.offload=nvme"},
        {EVA, "model_s.drop_path=0.2 train.precision=fp32", "model_t.place=streamed"},
        {DINOV2, "train.cache_teacher=true data.augment=false data.flip=false", ""},
        {DINOV2, "train.recompute=block", "model_t.place=streamed"},
        {GPT2, "optim.offload=nvme", "model.place=streamed"},
        {GPT2, "train.recompute=block train.precision=fp32", "model.place=streamed"},
        {LLAMA, "optim.clip_grad_norm=0 train.ema=0.9", "model.place=streamed optim.offload=nvme"},
        {BERT, "train.ema=0.9", "model.place=streamed optim.offload=nvme"},
        {BERT, "train.recompute=block train.precision=fp32", "model.place=streamed"},
        {CLASSIFIER, "model.drop_path=0.3 train.ema=0.9", "model.place=streamed"},
        {CLASSIFIER, "model.freeze=all_but_head", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *settings = xasprintf("train.micro_batch=2 %s", rows[i].settings);
        compare(rows[i].model, settings, rows[i].more, 1);
        free(settings);
    }
}

/* One rank that computes as several would. */
static void global_batches_keep_the_bits(void **state)
{
    (void)state;
    static const char *const modes[] = {"optim.clip_mode=exact", "optim.clip_mode=previous",
                                        "optim.clip_mode=block", "optim.clip_grad_norm=0"};
    for (int m = 0; m < MODELS; m++)
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
            char *settings = xasprintf("train.global_batch=8 train.batch_size=%d train.micro_batch=%d %s",
                                       k % 2 ? 3 : 2, k % 2 ? 3 : 2, modes[k]);
            compare(m, settings, "", 1);
            free(settings);
        }
}

/* Also the last wave with fewer micro-batches than the others. */
static void waves_keep_the_bits(void **state)
{
    (void)state;
    static const struct {
        int model;
        const char *settings, *more;
    } rows[] = {
        {EVA, "optim.preset=minimal", "model_t.place=streamed"},
        {EVA, "model_s.drop_path=0.3 train.ema=0.9", "model_s.place=streamed model_t.place=streamed"},
        {EVA, "optim.clip_grad_norm=0 optim.name=lamb", "model_s.place=streamed optim.offload=nvme"},
        {DINOV2, "train.cache_teacher=true data.augment=false data.flip=false", ""},
        {GPT2, "train.precision=fp32", "model.place=streamed"},
        {LLAMA, "optim.clip_grad_norm=0", ""},
        {CLASSIFIER, "model.freeze=1", "model.place=streamed"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int wave = 1; wave <= 3; wave++) {
            char *settings = xasprintf("train.micro_batch=%d %s", wave == 1 ? 2 : 1, rows[i].settings),
                 *more = xasprintf("%s train.wave=%d", rows[i].more, wave);
            compare(rows[i].model, settings, more, 1);
            free(more);
            free(settings);
        }
}

static void waves_of_ranks_keep_the_bits(void **state)
{
    (void)state;
    static const struct {
        int model, size, micro, wave;
        const char *settings, *more;
    } rows[] = {
        {EVA, 1, 1, 3, "optim.clip_mode=exact", ""},
        {DINOV2, 1, 2, 3, "optim.clip_mode=previous", "model_t.place=streamed"},
        {EVA, 2, 1, 3, "optim.clip_mode=exact", ""},
        {EVA, 2, 1, 3, "optim.clip_mode=previous", "dist.shard=optimizer"},
        {EVA, 2, 1, 2, "optim.clip_mode=exact", "dist.shard=parameters"},
        {GPT2, 3, 1, 2, "optim.clip_mode=exact", "dist.shard=optimizer"}, /* the last wave: two of three */
        {GPT2, 2, 1, 3, "optim.clip_mode=block", "dist.shard=parameters"},
        {LLAMA, 3, 1, 1, "optim.clip_grad_norm=0", "dist.shard=parameters"},
        {CLASSIFIER, 2, 1, 3, "optim.clip_mode=exact optim.name=lamb", "dist.shard=parameters"},
        {CLASSIFIER, 2, 1, 2, "optim.clip_mode=block model_s.freeze=1", "dist.shard=none"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *settings = xasprintf("train.global_batch=8 train.batch_size=%d train.micro_batch=%d %s",
                                   rows[i].micro, rows[i].micro, rows[i].settings),
             *more = xasprintf("%s train.wave=%d", rows[i].more, rows[i].wave);
        compare(rows[i].model, settings, more, rows[i].size);
        free(more);
        free(settings);
    }
}

static void ranks_keep_the_bits(void **state)
{
    (void)state;
    static const char *const modes[] = {"optim.clip_mode=exact", "optim.clip_mode=previous",
                                        "optim.clip_mode=block model_s.freeze=1"};
    static const char *const shards[] = {"dist.shard=none", "dist.shard=optimizer", "dist.shard=parameters"};
    static const int ours[] = {EVA, DINOV2, GPT2, BERT, CLASSIFIER};
    for (size_t m = 0; m < sizeof ours / sizeof *ours; m++)
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++)
            for (int shard = 0; shard < 3; shard++)
                for (int size = 2; size <= 3; size++) {
                    char *settings =
                        xasprintf("train.global_batch=8 train.batch_size=%d train.micro_batch=%d %s",
                                  k % 2 ? 1 : 2, k % 2 ? 1 : 2, modes[k]);
                    compare(ours[m], settings, shards[shard], size);
                    free(settings);
                }
}

/* By how much less: the teacher's weights are read once per step, not once per micro-batch; the student's
 * twice, and written once. */
static void streamed_weights_travel_once_per_pass(void **state)
{
    (void)state;
    const char *settings = "train.micro_batch=2 model_t.place=streamed model_s.place=streamed "
                           "optim.clip_grad_norm=0 model_t.depth=8 model_s.depth=8 train.recompute=block";
    char *deep = xasprintf("%s train.rounds=depth", settings);
    struct run *depth = as_ranks(1, (struct run){.model = EVA, .settings = deep}),
               *breadth = as_ranks(1, (struct run){.model = EVA, .settings = settings}); /* auto */
    same("auto", depth, breadth, 1);
    assert_true(breadth->breadth);
    assert_int_equal(depth->teacher_bytes, 4 * breadth->teacher_bytes);
    assert_true(breadth->student_bytes * 5 / 2 < depth->student_bytes);
    runs_free(depth, 1);
    runs_free(breadth, 1);
    free(deep);
}

/* Two waves read them twice; the update follows the passes and reads the student once more. */
static void streamed_weights_travel_once_per_wave(void **state)
{
    (void)state;
    const char *settings = "train.micro_batch=2 model_t.place=streamed model_s.place=streamed "
                           "model_t.depth=8 model_s.depth=8 train.recompute=block";
    char *deep = xasprintf("%s train.rounds=depth", settings),
         *wide = xasprintf("%s train.wave=2", settings); /* auto is breadth with waves */
    struct run *depth = as_ranks(1, (struct run){.model = EVA, .settings = deep}),
               *waves = as_ranks(1, (struct run){.model = EVA, .settings = wide});
    same("waves", depth, waves, 1);
    assert_true(waves->breadth);
    assert_int_equal(depth->teacher_bytes, 2 * waves->teacher_bytes);
    assert_true(waves->student_bytes * 3 / 2 < depth->student_bytes);
    runs_free(depth, 1);
    runs_free(waves, 1);
    free(wide);
    free(deep);
}

/* With four rounds a rank gathers a quarter: groups that stay in the buffers between passes are not
 * gathered again, in either order. */
static void sharded_weights_are_gathered_once_per_pass(void **state)
{
    (void)state;
    const char *settings =
        "train.global_batch=8 train.batch_size=1 train.micro_batch=1 dist.shard=parameters "
        "optim.clip_mode=previous model_s.depth=8 train.recompute=block";
    char *deep = xasprintf("%s train.rounds=depth", settings);
    struct run *depth = as_ranks(2, (struct run){.model = EVA, .settings = deep}),
               *breadth = as_ranks(2, (struct run){.model = EVA, .settings = settings}); /* auto */
    assert_true(breadth->breadth && !depth->breadth);
    same("auto, 2 ranks", depth, breadth, 2);
    double ratio = (double)depth->gathered_bytes / (double)breadth->gathered_bytes;
    if (ratio < 3.4 || ratio > 4.1) fail_msg("gathered bytes fall by %.2f, four rounds", ratio);
    runs_free(depth, 2);
    runs_free(breadth, 2);
    free(deep);
}

static void a_run_resumes_with_the_other_rounds(void **state)
{
    (void)state;
    for (int m = 0; m < MODELS; m++)
        for (int first = 0; first < 2; first++) {
            char directory[] = "/tmp/meopt-rounds-XXXXXX";
            const char *rounds[] = {"train.micro_batch=2 train.rounds=depth",
                                    "train.micro_batch=2 train.rounds=breadth"};
            assert_non_null(mkdtemp(directory));
            struct run like = {.model = m, .settings = rounds[0]}, *whole = as_ranks(1, like);
            like = (struct run){
                .model = m, .settings = rounds[first], .directory = directory, .last_step = STEPS - 1};
            struct run *begun = as_ranks(1, like);
            like.settings = rounds[1 - first];
            like.last_step = 0;
            struct run *resumed = as_ranks(1, like);
            for (int s = 0; s < STEPS - 1; s++) resumed->results[s] = begun->results[s];
            same("resumed", whole, resumed, 1);
            runs_free(whole, 1);
            runs_free(begun, 1);
            runs_free(resumed, 1);
            file_remove_tree(directory, NULL);
        }
    char directory[] = "/tmp/meopt-rounds-XXXXXX";
    assert_non_null(mkdtemp(directory));
#define SHARED "train.global_batch=8 train.batch_size=2 train.micro_batch=1 optim.clip_mode=exact "
    struct run *whole = as_ranks(1, (struct run){.settings = SHARED "train.rounds=depth"}),
               *begun =
                   as_ranks(2, (struct run){.settings = SHARED "train.rounds=breadth dist.shard=parameters",
                                            .directory = directory,
                                            .last_step = STEPS - 1}),
               *resumed =
                   as_ranks(3, (struct run){.settings = SHARED "train.rounds=depth dist.shard=optimizer",
                                            .directory = directory});
    for (int r = 0; r < 3; r++)
        for (int s = 0; s < STEPS - 1; s++) resumed[r].results[s] = begun->results[s];
    same("resumed on 3 of 2 ranks", whole, resumed, 3);
    runs_free(whole, 1);
    runs_free(begun, 2);
    runs_free(resumed, 3);
    file_remove_tree(directory, NULL);
}

static void what_has_no_rounds_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *settings, *named;
    } rows[] = {{"train.micro_batch=8", "train.micro_batch"},
                {"train.micro_batch=2 optim.gradients=keep", "optim.gradients"},
                {"train.micro_batch=2 train.save_activations=8bit", "train.save_activations"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *settings = xasprintf("%s train.rounds=breadth", rows[i].settings);
        struct run *r = as_ranks(1, (struct run){.model = GPT2, .settings = settings});
        assert_int_equal(r->code, EXIT_CONFIG);
        if (!strstr(r->err.what, rows[i].named)) fail_msg("%s: %s", settings, r->err.what);
        runs_free(r, 1);
        r = as_ranks(1, (struct run){.model = GPT2, .settings = rows[i].settings}); /* auto */
        assert_true(!r->code && !r->breadth);
        runs_free(r, 1);
        free(settings);
    }
    struct run *r = as_ranks(
        1, (struct run){.model = GPT2, .settings = "train.micro_batch=2 train.rounds=depth train.wave=2"});
    assert_int_equal(r->code, EXIT_CONFIG);
    assert_non_null(strstr(r->err.what, "train.wave"));
    runs_free(r, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(breadth_has_the_bits_of_depth),
                                       cmocka_unit_test(every_place_and_option_keeps_the_bits),
                                       cmocka_unit_test(global_batches_keep_the_bits),
                                       cmocka_unit_test(waves_keep_the_bits),
                                       cmocka_unit_test(waves_of_ranks_keep_the_bits),
                                       cmocka_unit_test(streamed_weights_travel_once_per_wave),
                                       cmocka_unit_test(ranks_keep_the_bits),
                                       cmocka_unit_test(streamed_weights_travel_once_per_pass),
                                       cmocka_unit_test(sharded_weights_are_gathered_once_per_pass),
                                       cmocka_unit_test(a_run_resumes_with_the_other_rounds),
                                       cmocka_unit_test(what_has_no_rounds_is_refused)};
    make_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
