/* Combinations of keys that do not go together are refused by name: every pair of settings of memory, ranks,
 * order and objective is planned or refused with EXIT_CONFIG, on one rank and several, and none reaches an
 * assertion; with MEOPT_LONG=1 every three. The list of rows names keys of the table. */
#include "core/base/log.h"
#include "core/config/combinations.h"
#include "core/experiment/experiment.h"
#include "tests/train/equal.h"

static const char *const settings[] = {
    "optim.use_meopt=false",
    "optim.use_meopt=false optim.pure_bf16=true",
    "optim.gradients=keep",
    "optim.gradients=release",
    "optim.clip_grad_norm=1 optim.clip_mode=exact",
    "optim.clip_grad_norm=1 optim.clip_mode=block",
    "optim.weights=fp32",
    "optim.weights=fp32_copy",
    "optim.offload=nvme",
    "optim.offload=host",
    "optim.name=muon",
    "optim.name=muon optim.other_rule=adafactor",
    "optim.name=lamb",
    "optim.name=adafactor",
    "optim.name=schedule_free",
    "optim.warmup_init=true",
    "optim.preset=minimal",
    "train.micro_batch=2",
    "train.global_batch=8",
    "train.global_batch=8 train.micro_batch=2",
    "train.micro_batch=2 train.rounds=breadth",
    "train.rounds=breadth",
    "train.rounds=depth",
    "train.wave=2",
    "train.micro_batch=2 train.wave=3",
    "train.recompute=block",
    "train.save_activations=8bit",
    "train.precision=fp32",
    "train.ema=0.9",
    "train.cache_teacher=true data.augment=false data.flip=false",
    "train.eval=knn+probe",
    "model_s.place=streamed",
    "model_t.place=streamed",
    "model_s.freeze=1",
    "model_s.freeze=-9",
    "model_s.freeze=all_but_head",
    "model_s.drop_path=0.1",
    "loss.head=linear",
    "loss.tokens=cls+patch",
    "model_t.pool=avg",
    "model_s.pool=avg",
    "loss.head=none",
    "lora.rank=4",
    "lora.rank=4096",
    "dist.shard=optimizer",
    "dist.shard=parameters",
    "dist.pipeline=2",
    "dist.pipeline=4",
    "dist.tensor=2 model_s.slices=2",
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static int planned, refused;

static void try_on(int model, const char *a, const char *b, const char *third, int ranks)
{
    struct config config;
    struct plan plan;
    struct error err = {0};
    char *words = xasprintf("%s %s %s", a, b, third);
    struct run run = {.model = model, .settings = words};
    const struct comm_options options = {.size = ranks, .shared = -1};
    int code = load(&config, &run, &err);
    if (!code) {
        code = plan_make_distributed(&plan, &config, ranks ? &options : NULL, &err);
        config_free(&config);
    }
    if (code && (code != EXIT_CONFIG || !err.what[0]))
        fail_msg("%s, %d ranks, %s: %d, %s", models[model].config, ranks, words, code, err.what);
    *(code ? &refused : &planned) += 1;
    free(words);
}

static void every_pair_is_planned_or_refused(void **state)
{
    static const int subjects[] = {EVA, DINOV2, LLAMA, CLASSIFIER, BERT}, sizes[] = {0, 2, 4};
    log_level = LOG_QUIET;
    for (size_t m = 0; m < sizeof subjects / sizeof *subjects; m++)
        for (int a = 0; a < SETTINGS; a++)
            for (int b = a; b < SETTINGS; b++)
                for (int third = b; third < (getenv("MEOPT_LONG") ? SETTINGS : b + 1); third++)
                    for (size_t r = 0; r < sizeof sizes / sizeof *sizes; r++)
                        try_on(subjects[m], settings[a], settings[b], third == b ? "" : settings[third],
                               sizes[r]);
    print_message("%d planned, %d refused\n", planned, refused);
    assert_true(planned > 4000 && refused > 4000);
}

static void a_row_names_a_key(void *context, const char *key, bool fatal, const char *hint,
                              const char *sentence)
{
    size_t n = strlen(key);
    int found = 0;
    (void)fatal;
    for (int i = 0; i < config_key_count; i++)
        found += strchr("._", key[n - 1]) ? strncmp(config_keys[i].name, key, n) == 0
                                          : strcmp(config_keys[i].name, key) == 0;
    if (!found && strncmp(key, "model.", 6) != 0) fail_msg("%s is no key", key);
    assert_true(hint && hint[0] && sentence[0] && !strchr(sentence, '%'));
    ++*(int *)context;
}

static void the_list_names_keys(void **state)
{
    struct config config;
    struct error err = {0};
    int rows = 0;
    assert_int_equal(load(&config, &(struct run){.model = EVA, .settings = ""}, &err), 0);
    experiment_combinations(
        &(struct combinations){.config = &config, .bad = a_row_names_a_key, .context = &rows, .list = true});
    config_free(&config);
    assert_true(rows > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair_is_planned_or_refused),
                                       cmocka_unit_test(the_list_names_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
