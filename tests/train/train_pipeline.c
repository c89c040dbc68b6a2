/* Pipelines (dist.pipeline) have the bits of one rank: losses, metrics, norms and weights, for any number of
 * stages and replicas, and with every dist.shard. A plan equals the memory of each stage. A checkpoint is
 * loaded by any stages and ranks. What a pipeline does not support is refused. */
#include "tests/mentions.h"
#include "tests/train/rounds.h"

#include <math.h>

/* Stages of a pipeline, one replica and two. */
static void stages_keep_the_bits(void **state)
{
    (void)state;
    static const char *const shards[] = {"none", "optimizer", "parameters"};
    static const int ours[] = {GPT2, CLASSIFIER, LLAMA, BERT};
    static const struct {
        int stages, size, shards;
    } rows[] = {{2, 2, 1}, {2, 4, 3}, {4, 4, 1}};
    for (size_t m = 0; m < sizeof ours / sizeof *ours; m++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            for (int shard = 0; shard < rows[k].shards; shard++)
                for (int clip = 0; clip < 2; clip++) {
                    char *settings =
                             xasprintf("train.global_batch=8 train.batch_size=%d train.micro_batch=%d "
                                       "optim.clip_mode=exact model.depth=5 %s",
                                       clip ? 3 : 1, clip ? 3 : 1, clips[clip]),
                         *more = xasprintf("dist.pipeline=%d dist.shard=%s", rows[k].stages, shards[shard]);
                    compare(ours[m], settings, more, rows[k].size);
                    free(more);
                    free(settings);
                }
}

/* Also clipped by the norm of the step before, or by each block's own. */
static void other_norms_keep_the_bits(void **state)
{
    (void)state;
    static const int ours[] = {GPT2, CLASSIFIER};
    static const char *const modes[] = {"previous", "block"}, *const shards[] = {"none", "optimizer",
                                                                                 "parameters"};
    for (int i = 0; i < 12; i++) {
        char *settings =
                 xasprintf("train.global_batch=8 train.batch_size=1 train.micro_batch=1 model.depth=5 "
                           "optim.clip_grad_norm=0.05 optim.clip_mode=%s",
                           modes[i % 2]),
             *more = xasprintf("dist.pipeline=2 dist.shard=%s", shards[i / 4]);
        compare(ours[i / 2 % 2], settings, more, 4);
        free(more);
        free(settings);
    }
    compare(CLASSIFIER,
            "train.global_batch=8 train.batch_size=2 train.micro_batch=2 model.depth=3 optim.name=lamb "
            "optim.clip_mode=block",
            "dist.pipeline=2", 2);
}

/* A teacher of another depth passes the stages as well, resident or streamed. */
static void teachers_keep_the_bits(void **state)
{
    (void)state;
    static const char *const shards[] = {"none", "optimizer", "parameters", NULL};
    static const int ours[] = {EVA, DINOV2};
    static const struct {
        int stages, size, shards, micro;
        const char *settings;
    } rows[] = {{2, 2, 1, 3, ""},
                {2, 4, 3, 1, ""},
                {4, 4, 1, 2, ""},
                {4, 8, 3, 1, ""},
                {2, 2, 1, 8, "model_t.place=streamed"},
                {4, 8, 1, 1, "model_t.place=streamed"}};
    for (size_t m = 0; m < sizeof ours / sizeof *ours; m++)
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            for (int shard = 0; shard < rows[k].shards && shards[shard]; shard++) {
                bool deep = (k + (size_t)shard) % 2;
                char *settings = xasprintf("train.global_batch=8 train.batch_size=%d train.micro_batch=%d "
                                           "optim.clip_mode=exact model_t.depth=%d model_s.depth=%d %s %s",
                                           rows[k].micro, rows[k].micro, deep ? 6 : 4, deep ? 4 : 5,
                                           clips[shard % 2], rows[k].settings),
                     *more = xasprintf("dist.pipeline=%d dist.shard=%s", rows[k].stages, shards[shard]);
                compare(ours[m], settings, more, rows[k].size);
                free(more);
                free(settings);
            }
}

/* Also with what else a step reads or keeps. */
static void every_option_keeps_the_bits(void **state)
{
    (void)state;
    static const struct {
        int model, size;
        const char *settings, *more;
    } options[] = {
        {DINOV2, 4, "train.cache_teacher=true data.augment=false data.flip=false model_s.depth=3",
         "dist.pipeline=2"},
        {EVA, 2, "train.cache_teacher=true data.augment=false data.flip=false model_s.drop_path=0.3",
         "dist.pipeline=2"},
        {CLASSIFIER, 4, "optim.name=lamb model.drop_path=0.2", "dist.pipeline=2 dist.shard=optimizer"},
        {CLASSIFIER, 3, "model.freeze=2 optim.preset=minimal", "dist.pipeline=3"},
        {GPT2, 4, "optim.name=lamb train.ema=0.9", "dist.pipeline=2"},
        {GPT2, 2, "", "dist.pipeline=2 train.wave=3"},
        {LLAMA, 2, "optim.clip_grad_norm=0", "dist.pipeline=2 train.wave=2"},
        {CLASSIFIER, 4, "train.micro_batch=1 train.batch_size=1 optim.name=lamb",
         "dist.pipeline=2 dist.shard=optimizer train.wave=3"},
        {GPT2, 4, "train.micro_batch=1 train.batch_size=1",
         "dist.pipeline=2 dist.shard=parameters train.wave=3"},
        {GPT2, 2, "train.precision=fp32 optim.offload=nvme", "dist.pipeline=2"},
        {LLAMA, 4, "optim.preset=minimal optim.clip_grad_norm=0", "dist.pipeline=2 dist.shard=parameters"},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        char *settings = xasprintf("train.global_batch=8 train.batch_size=2 train.micro_batch=2 "
                                   "optim.clip_mode=exact %s",
                                   options[i].settings);
        compare(options[i].model, settings, options[i].more, options[i].size);
        free(settings);
    }
}

/* Each step by other stages, ranks and parts than the step before. */
static void resume_each_step(int model, const char *common)
{
    static const struct {
        int size;
        const char *settings;
    } rows[] = {{4, "dist.pipeline=2 dist.shard=parameters"},
                {4, "dist.pipeline=4"},
                {2, "dist.pipeline=2"},
                {4, "dist.pipeline=2"},
                {1, ""},
                {3, "dist.shard=optimizer"},
                {4, "dist.pipeline=2 dist.shard=optimizer"},
                {2, ""}};
    enum { ROWS = sizeof rows / sizeof *rows };
    struct run *whole = as_ranks(1, (struct run){.model = model, .settings = common});
    for (int i = 0; i < ROWS; i++) {
        char directory[] = "/tmp/meopt-rounds-XXXXXX";
        assert_non_null(mkdtemp(directory));
        struct run *begun = NULL;
        for (int part = 0; part < STEPS; part++) {
            int row = (i + part) % ROWS;
            char *settings = xasprintf("%s %s", common, rows[row].settings);
            struct run like = {
                .model = model, .settings = settings, .directory = directory, .last_step = part + 1};
            struct run *now = as_ranks(rows[row].size, like);
            for (int s = 0; s < part * rows[row].size; s++)
                now[s / part].results[s % part] = begun->results[s % part];
            if (part == STEPS - 1) same(settings, whole, now, rows[row].size);
            if (begun) runs_free(begun, rows[(i + part - 1) % ROWS].size);
            begun = now;
            free(settings);
        }
        runs_free(begun, rows[(i + STEPS - 1) % ROWS].size);
        file_remove_tree(directory, NULL);
    }
    runs_free(whole, 1);
}

static void any_ranks_resume_a_pipeline(void **state)
{
    (void)state;
    resume_each_step(GPT2, "train.global_batch=8 train.batch_size=1 train.micro_batch=1 "
                           "optim.clip_mode=exact model.depth=5 train.ema=0.9");
    resume_each_step(EVA, "train.global_batch=8 train.batch_size=1 train.micro_batch=1 optim.clip_mode=exact "
                          "model_t.depth=4 model_s.depth=5 train.ema=0.9");
}

static void what_a_pipeline_lacks_is_refused(void **state)
{
    (void)state;
    static const struct {
        int model, size;
        const char *settings, *name;
    } rows[] = {
        {GPT2, 3, "dist.pipeline=2", "dist.pipeline"},
        {GPT2, 3, "dist.pipeline=3", "blocks"}, /* the model has 2 */
        {GPT2, 2, "dist.pipeline=2 train.rounds=depth", "train.rounds"},
        {GPT2, 2, "dist.pipeline=2 optim.gradients=keep", "optim.gradients"},
        {GPT2, 2, "dist.pipeline=2 train.save_activations=8bit", "train.save_activations"},
        {EVA, 3, "dist.pipeline=3 train.rounds=breadth", "teacher"}, /* it has 2 blocks */
        {DINOV2, 3, "dist.pipeline=3", "student"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct run *runs =
            as_ranks(rows[i].size, (struct run){.model = rows[i].model, .settings = rows[i].settings});
        for (int r = 0; r < rows[i].size; r++) {
            assert_int_equal(runs[r].code, EXIT_CONFIG);
            if (!mentions(runs[r].err.what, rows[i].name))
                fail_msg("%s: %s", rows[i].settings, runs[r].err.what);
        }
        runs_free(runs, rows[i].size);
    }
}

static const struct device_ops *own_ops;
static struct device_ops poisoned;

static void poisoned_norm(struct device *dev, const struct layernorm_gradient *o)
{
    own_ops->layernorm_backward(dev, o);
    if (o->dweight) o->dweight[0] = NAN;
}

/* The gradients of rank 1 are not finite, but the streams are. */
static void poison(const struct comm_options *options, struct device *device)
{
    if (options->rank != 1) return;
    own_ops = device->ops;
    poisoned = *own_ops;
    poisoned.layernorm_backward = poisoned_norm;
    device->ops = &poisoned;
}

static void a_stage_that_diverges_ends_all(void **state)
{
    (void)state;
    static const char *const modes[] = {"exact", "previous", "block", "exact optim.clip_grad_norm=0"},
                             *const shards[] = {"none", "parameters"};
    for (int i = 0; i < 8; i++) {
        char *settings =
            xasprintf("train.global_batch=8 train.batch_size=2 train.micro_batch=2 model.depth=5 "
                      "dist.pipeline=2 dist.shard=%s optim.clip_mode=%s",
                      shards[i / 4], modes[i % 4]);
        struct run *runs = as_ranks(4, (struct run){.model = GPT2, .settings = settings, .prepare = poison});
        for (int r = 0; r < 4; r++)
            if (runs[r].code != EXIT_DIVERGED)
                fail_msg("%s: %d %s", settings, runs[r].code, runs[r].err.what);
        runs_free(runs, 4);
        free(settings);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_keep_the_bits),
        cmocka_unit_test(other_norms_keep_the_bits),
        cmocka_unit_test(teachers_keep_the_bits),
        cmocka_unit_test(every_option_keeps_the_bits),
        cmocka_unit_test(any_ranks_resume_a_pipeline),
        cmocka_unit_test(a_stage_that_diverges_ends_all),
        cmocka_unit_test(what_a_pipeline_lacks_is_refused),
    };
    make_data();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
