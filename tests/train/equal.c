/* Bit equality: a layout (ranks, dist.shard, stages, order of rounds, waves, places of weights and states,
 * recomputed activations, resume) changes no loss, metric, norm or weight of any model and objective. Each
 * run is compared with one rank that computes depth-first, everything in memory, and its memory with its
 * plan. The short form crosses each pair of settings and layouts once, with the models in turn; MEOPT_LONG=1
 * crosses them with all models.
 *
 *     test_equal FILE      one rank of those that mpirun has started: writes its weights and losses */
#include "tests/train/equal.h"
#include "core/base/file.h"
#include "core/base/memory.h"

static bool thorough;

/* Trains the settings in a layout, and compares. */
static void keeps_the_bits(int model, const char *settings, const char *layout, int size)
{
    char *all = xasprintf("%s %s", settings, layout);
    const struct run *one = reference(model, settings);
    struct run *runs = as_ranks(size, (struct run){.model = model, .settings = all});
    bool breadth = strstr(layout, "breadth") || strstr(layout, "wave=") || strstr(layout, "pipeline");
    same(one, runs, size);
    if (one->breadth || (breadth && !runs->breadth)) fail_msg("%s: not the rounds that were asked for", all);
    runs_free(runs, size);
    free(all);
}

#define CLIP     "optim.clip_grad_norm=0.05 "
#define EXACT    "optim.clip_mode=exact " CLIP
#define PREVIOUS "optim.clip_mode=previous " CLIP
#define BLOCK    "optim.clip_mode=block " CLIP
#define NO_CLIP  "optim.clip_grad_norm=0 "
#define KEEP     "optim.gradients=keep " CLIP
/* A step of 8, 4 or 3 micro-batches; the last of three is shorter. */
#define OF_8 "train.global_batch=8 train.batch_size=1 train.micro_batch=1 "
#define OF_4 "train.global_batch=8 train.batch_size=2 train.micro_batch=2 "
#define OF_3 "train.global_batch=8 train.batch_size=3 train.micro_batch=3 "

/* All orders of rounds with all norms, and with all that ranks divide. */
static void ranks_have_the_bits_of_one(void **state)
{
    static const char *const norms[] = {EXACT, PREVIOUS, BLOCK, NO_CLIP, KEEP};
    static const char *const shards[] = {"none", "optimizer", "parameters"};
    enum { NORMS = 5, KEPT = 4, SHARDS = 3 };
    static const struct {
        const char *settings, *layout;
        int size;
    } orders[] = {
        {OF_3, "train.rounds=depth", 3}, /* one round */
        {OF_3, "train.rounds=depth", 2}, /* in the last round a rank has no micro-batch */
        {OF_8, "train.rounds=depth", 2},   {OF_8, "train.rounds=depth", 4},
        {OF_8, "train.rounds=depth", 8},   {OF_8, "train.rounds=breadth", 1},
        {OF_3, "train.rounds=breadth", 2}, {OF_8, "train.rounds=breadth", 3},
        {OF_3, "train.wave=2", 1},         {OF_3, "train.wave=1", 2},
        {OF_8, "train.wave=2", 3}, /* the last wave: two of three */
        {OF_3, "dist.pipeline=2", 2},      {OF_3, "dist.pipeline=2", 4},
        {OF_8, "dist.pipeline=2", 4},      {OF_8, "dist.pipeline=2 train.wave=3", 4},
    };
    int cell = 0;
    for (int o = 0; o < (int)(sizeof orders / sizeof *orders); o++)
        for (int n = 0; n < NORMS; n++)
            for (int shard = 0; shard < SHARDS; shard++) {
                if (n == KEPT && !strstr(orders[o].layout, "depth")) continue;
                if (!thorough && shard != (o + n) % SHARDS) continue;
                char *settings = xasprintf("%s%s", orders[o].settings, norms[n]),
                     *layout = xasprintf("%s dist.shard=%s", orders[o].layout, shards[shard]);
                for (int m = 0; m < MODELS; m++)
                    if (thorough || m == (cell + cell / MODELS) % MODELS)
                        keeps_the_bits(m, settings, layout, orders[o].size);
                cell++;
                free(layout);
                free(settings);
            }
}

#define M(model)         (1u << (model))
#define STREAMED_TEACHER "model_t.place=streamed "
#define STREAMED         "model_t.place=streamed model_s.place=streamed "
#define CACHED           "train.cache_teacher=true data.augment=false data.flip=false "
#define LARGE_HEAD       "optim.gradients=release model.vocabulary=5000 "
#define LORA             "lora.rank=4 "
#define MUON             "optim.name=muon "
#define ADAFACTOR        "optim.name=adafactor "
#define BLOCKS           "loss.tokens=cls+patch loss.block_t=2 loss.block_s=1 "
#define SLICES           "model_s.slices=4 "
#define HALVES           "model_s.slices=2 "
#define TABLES           MUON "optim.other_rule=adafactor "

struct row {
    unsigned models; /* in the short form */
    int size;
    const char *settings, *layout;
};

static const struct row rows[] = {
    /* one micro-batch */
    {M(EVA) | M(LLAMA), 1, EXACT, STREAMED "train.recompute=block optim.offload=nvme"},
    {M(GPT2) | M(CLASSIFIER), 1, PREVIOUS, STREAMED},
    {M(TEXTS) | M(QWEN), 1, BLOCK, STREAMED},
    {M(DINOV2) | M(BERT), 1, NO_CLIP, "train.recompute=block"},
    {M(GPT2) | M(BERT), 1, EXACT, "optim.offload=nvme"},
    {M(GPT2), 1, KEEP, "train.recompute=block"},
    /* a recomputed block is stored where only the gradients of a larger head are */
    {M(LLAMA), 1, LARGE_HEAD PREVIOUS, "train.recompute=block"},
    {M(LLAMA), 1, LARGE_HEAD EXACT, STREAMED "train.recompute=block"},
    {M(LLAMA), 1, LARGE_HEAD CLIP "train.micro_batch=4", "train.recompute=block"},
    {M(LLAMA), 1, LARGE_HEAD PREVIOUS "model_s.freeze=1", "train.recompute=block"},
    {M(LLAMA), 1, LARGE_HEAD EXACT OF_4, "train.recompute=block"},
    /* several: depth-first, breadth-first, in waves */
    {M(EVA) | M(GPT2), 1, "train.micro_batch=4 " CLIP, STREAMED},
    {M(LLAMA), 1, "train.micro_batch=4 " CLIP LORA, STREAMED},
    {M(EVA) | M(GPT2) | M(BERT) | M(CLASSIFIER), 1, "train.micro_batch=2 " CLIP, "train.rounds=breadth"},
    {M(DINOV2) | M(LLAMA) | M(TEXTS) | M(QWEN), 1, "train.micro_batch=1 " NO_CLIP, "train.rounds=breadth"},
    {M(EVA), 1, "train.micro_batch=2 train.ema=0.99 optim.preset=minimal",
     "train.rounds=breadth " STREAMED_TEACHER},
    {M(EVA), 1, "train.micro_batch=2 model_s.drop_path=0.3 " CLIP, "train.rounds=breadth " STREAMED},
    {M(EVA), 1, "train.micro_batch=2 " NO_CLIP, "train.rounds=breadth optim.offload=nvme " STREAMED},
    {M(EVA), 1, "train.micro_batch=2 optim.name=lamb model_s.freeze=1 " CLIP,
     "train.rounds=breadth optim.offload=nvme"},
    {M(DINOV2), 1, "train.micro_batch=2 " CACHED CLIP, "train.rounds=breadth"},
    {M(DINOV2), 1, "train.micro_batch=2 train.recompute=block " CLIP,
     "train.rounds=breadth " STREAMED_TEACHER},
    {M(GPT2), 1, "train.micro_batch=2 train.precision=fp32 " CLIP, "train.rounds=breadth " STREAMED},
    {M(LLAMA), 1, "train.micro_batch=2 train.ema=0.9 " NO_CLIP,
     "train.rounds=breadth optim.offload=nvme " STREAMED},
    {M(BERT), 1, "train.micro_batch=2 train.precision=fp32 train.recompute=block " CLIP,
     "train.rounds=breadth " STREAMED},
    {M(CLASSIFIER), 1, "train.micro_batch=2 model.drop_path=0.3 train.ema=0.9 " CLIP,
     "train.rounds=breadth " STREAMED},
    {M(CLASSIFIER), 1, "train.micro_batch=2 model.freeze=all_but_head " CLIP, "train.rounds=breadth"},
    {M(EVA) | M(GPT2), 1, "train.micro_batch=2 " CLIP, "train.wave=1 " STREAMED},
    {M(EVA), 1, "train.micro_batch=1 model_s.drop_path=0.3 train.ema=0.9 " CLIP, "train.wave=3 " STREAMED},
    {M(CLASSIFIER) | M(LLAMA), 1, "train.micro_batch=1 optim.name=lamb " NO_CLIP,
     "train.wave=2 optim.offload=nvme " STREAMED},
    {M(DINOV2), 1, "train.micro_batch=1 " CACHED CLIP, "train.wave=3"},
    {M(CLASSIFIER), 1, "train.micro_batch=1 model.freeze=1 " CLIP, "train.wave=2 " STREAMED},
    /* slices, and the ranks that have them */
    {M(LLAMA) | M(BERT), 1, OF_4 HALVES CLIP, "train.rounds=breadth train.recompute=block"},
    {M(LLAMA), 1, HALVES PREVIOUS, STREAMED "optim.offload=nvme"},
    {M(GPT2) | M(TEXTS), 4, OF_4 SLICES EXACT, "dist.tensor=4"},
    {M(LLAMA), 4, OF_8 HALVES PREVIOUS, "dist.tensor=2 dist.shard=parameters"},
    /* the last slice of the vocabulary is shorter than the others */
    {M(BERT), 4, OF_4 SLICES "model.vocabulary=4098 " CLIP, "dist.tensor=4"},
    {M(GPT2), 4, OF_4 SLICES "model.vocabulary=4098 " CLIP, "dist.tensor=2 dist.shard=parameters"},
    {M(BERT), 4, OF_3 SLICES BLOCK, "dist.tensor=2 dist.pipeline=2"},
    {M(GPT2), 8, OF_3 SLICES NO_CLIP, "dist.tensor=2 dist.pipeline=2 dist.shard=optimizer"},
    {M(GPT2), 2, OF_4 SLICES KEEP, "dist.tensor=2 optim.offload=nvme"},
    {M(LLAMA), 2, OF_4 HALVES "optim.name=adafactor " CLIP, "dist.tensor=2 train.rounds=breadth"},
    /* what else a step of several ranks reads or keeps */
    {M(EVA), 3, OF_8 EXACT "model_s.drop_path=0.3 train.ema=0.9", "dist.shard=optimizer"},
    {M(EVA), 2, OF_8 EXACT "model_s.drop_path=0.3 train.ema=0.9",
     "train.rounds=breadth dist.shard=parameters"},
    {M(EVA), 2,
     "train.micro_batch=5 train.global_batch=8 train.batch_size=5 train.save_activations=8bit " CLIP,
     "dist.shard=parameters"},
    {M(DINOV2), 3, OF_8 PREVIOUS, "dist.shard=optimizer " STREAMED_TEACHER},
    {M(DINOV2), 1, OF_4 PREVIOUS, "train.wave=3 " STREAMED_TEACHER},
    {M(DINOV2), 1, "optim.use_meopt=false optim.pure_bf16=true optim.gradients=release " CLIP, STREAMED},
    {M(EVA), 1, EXACT "train.save_activations=8bit", STREAMED},
    {M(EVA), 1, "optim.name=lamb optim.preset=minimal " CLIP, STREAMED},
    {M(CLASSIFIER), 3, OF_3 EXACT "model.freeze=all_but_head", "dist.shard=parameters"},
    {M(GPT2) | M(QWEN), 3, OF_8 KEEP "train.save_activations=8bit", "dist.shard=parameters"},
    {M(GPT2), 2, OF_3 BLOCK, "train.recompute=block dist.shard=parameters"},
    {M(LLAMA), 3, OF_3 EXACT "model_s.freeze=1", "dist.shard=parameters"},
    {M(CLASSIFIER), 3, OF_8 BLOCK "model_s.freeze=1", "train.rounds=breadth dist.shard=optimizer"},
    {M(CLASSIFIER), 2, OF_8 EXACT "optim.name=lamb", "train.wave=3 dist.shard=parameters"},
    {M(CLASSIFIER), 2, OF_8 BLOCK "model_s.freeze=1", "train.wave=2"},
    {M(GPT2) | M(QWEN), 2, OF_3 EXACT LORA, "dist.shard=parameters"},
    {M(LLAMA), 3, OF_3 EXACT LORA, "dist.shard=none"},
    {M(GPT2) | M(LLAMA), 3, OF_8 BLOCK LORA, "dist.shard=parameters"},
    {M(QWEN), 2, OF_8 BLOCK LORA, "dist.shard=optimizer"},
    /* stages: more, fewer micro-batches than stages, a teacher of another depth */
    {M(GPT2) | M(CLASSIFIER), 4, OF_3 EXACT "model.depth=5", "dist.pipeline=4"},
    {M(LLAMA), 4, OF_8 NO_CLIP "model.depth=5", "dist.pipeline=4"},
    {M(EVA), 8, OF_8 EXACT "model_t.depth=6 model_s.depth=4", "dist.pipeline=4 dist.shard=optimizer"},
    {M(DINOV2), 4, OF_4 EXACT "model_t.depth=4 model_s.depth=5", "dist.pipeline=4"},
    {M(EVA), 2, EXACT "train.global_batch=8 train.micro_batch=8", "dist.pipeline=2 " STREAMED_TEACHER},
    {M(DINOV2), 4, OF_8 NO_CLIP, "dist.pipeline=2 dist.shard=parameters " STREAMED_TEACHER},
    {M(DINOV2), 4, OF_4 EXACT CACHED "model_s.depth=3", "dist.pipeline=2"},
    {M(EVA), 2, OF_4 EXACT CACHED "model_s.drop_path=0.3", "dist.pipeline=2"},
    {M(CLASSIFIER), 4, OF_4 EXACT "optim.name=lamb model.drop_path=0.2",
     "dist.pipeline=2 dist.shard=optimizer"},
    {M(CLASSIFIER), 2, OF_4 BLOCK "optim.name=lamb", "dist.pipeline=2"},
    {M(CLASSIFIER), 3, OF_4 EXACT "model.freeze=2 optim.preset=minimal", "dist.pipeline=3"},
    {M(GPT2), 4, OF_4 EXACT "optim.name=lamb train.ema=0.9", "dist.pipeline=2"},
    {M(CLASSIFIER), 4, OF_8 EXACT "optim.name=lamb", "dist.pipeline=2 dist.shard=optimizer train.wave=3"},
    {M(GPT2), 2, OF_4 EXACT "train.precision=fp32", "dist.pipeline=2 optim.offload=nvme"},
    {M(LLAMA), 4, OF_4 NO_CLIP "optim.preset=minimal", "dist.pipeline=2 dist.shard=parameters"},
    /* tensor groups: the same micro-batches, each slice on one rank, all else on all */
    {M(GPT2), 2, OF_4 EXACT SLICES, "dist.tensor=2"},
    {M(TEXTS), 4, OF_3 PREVIOUS SLICES, "dist.tensor=4"},
    {M(LLAMA), 4, OF_4 BLOCK HALVES, "dist.tensor=2 dist.shard=optimizer"},
    {M(GPT2), 4, OF_8 NO_CLIP SLICES, "dist.tensor=2 dist.shard=parameters"},
    {M(BERT), 8, OF_8 EXACT SLICES, "dist.tensor=2 dist.pipeline=2 dist.shard=optimizer"},
    {M(QWEN), 4, OF_8 BLOCK HALVES "model_s.kv_heads=2", "dist.tensor=2 dist.pipeline=2"},
    {M(BERT), 2, OF_8 KEEP SLICES, "dist.tensor=2"},
    {M(GPT2), 4, OF_8 BLOCK SLICES "optim.name=lamb", "dist.tensor=2 dist.shard=optimizer"},
    {M(TEXTS), 4, MUON OF_8 EXACT SLICES, "dist.tensor=2 dist.shard=parameters"},
    {M(BERT), 4, ADAFACTOR OF_8 EXACT SLICES, "dist.tensor=2 train.wave=2"},
    /* weights of two points */
    {M(EVA) | M(GPT2), 1, "optim.name=schedule_free " PREVIOUS, "train.recompute=block optim.offload=nvme"},
    {M(CLASSIFIER), 1, "train.micro_batch=2 optim.name=schedule_free " CLIP, "train.rounds=breadth"},
    {M(CLASSIFIER), 3, OF_8 EXACT "optim.name=schedule_free", "dist.shard=parameters"},
    {M(LLAMA), 2, OF_8 BLOCK "optim.name=schedule_free optim.state_m=bf16", "dist.shard=optimizer"},
    {M(EVA), 2, OF_4 EXACT "optim.name=schedule_free", "dist.pipeline=2"},
    {M(BERT) | M(CLASSIFIER), 1, "train.micro_batch=2 optim.name=schedule_free " CLIP, STREAMED},
    {M(QWEN), 2, OF_3 EXACT LORA "optim.name=schedule_free", "dist.shard=parameters"},
    /* matrices step whole: by one owner, in any order of rounds */
    {M(EVA) | M(LLAMA), 1, MUON "train.micro_batch=2 " CLIP, "train.rounds=breadth " STREAMED},
    {M(CLASSIFIER), 1, MUON EXACT, STREAMED "train.recompute=block optim.offload=nvme"},
    {M(GPT2), 1, MUON "train.micro_batch=2 train.ema=0.9 " CLIP, "optim.offload=nvme"},
    {M(GPT2) | M(CLASSIFIER), 3, MUON OF_8 EXACT, "dist.shard=optimizer"},
    {M(QWEN), 2, MUON OF_8 BLOCK "train.ema=0.9", "dist.shard=parameters"},
    {M(BERT), 4, MUON OF_8 NO_CLIP "optim.ns_form=gram", "dist.shard=optimizer"},
    {M(LLAMA), 2, MUON OF_3 EXACT LORA, "dist.shard=parameters"},
    {M(DINOV2), 2, MUON OF_4 EXACT "train.precision=fp32", "dist.pipeline=2"},
    /* several teachers, outputs and heads */
    {M(TEACHERS), 1, "train.micro_batch=2 " CLIP, "train.rounds=breadth " STREAMED},
    {M(TEACHERS), 1, EXACT, STREAMED "train.recompute=block optim.offload=nvme"},
    {M(TEACHERS), 1, "train.micro_batch=2 " CACHED CLIP, "train.rounds=breadth"},
    {M(TEACHERS), 2, OF_8 EXACT, "dist.shard=parameters " STREAMED_TEACHER},
    {M(TEACHERS), 4, OF_4 EXACT, "dist.pipeline=2 dist.shard=optimizer " STREAMED_TEACHER},
    {M(TEACHERS), 2, OF_4 EXACT CACHED, "dist.pipeline=2"},
    {M(TEACHERS), 1, BLOCKS "train.micro_batch=2 " CLIP, "train.rounds=breadth " STREAMED_TEACHER},
    {M(TEACHERS), 3, BLOCKS OF_8 EXACT, "dist.shard=parameters"},
    {M(TEXTS), 4, MUON OF_8 EXACT, "dist.pipeline=2 dist.shard=parameters"},
    /* means of rows and columns, over a tensor's parts */
    {M(BERT), 3, ADAFACTOR OF_8 EXACT "optim.scale_parameter=true", "dist.shard=parameters"},
    {M(BERT), 4, ADAFACTOR OF_8 EXACT "optim.scale_parameter=true", "dist.pipeline=2 dist.shard=optimizer"},
    {M(GPT2), 2, ADAFACTOR OF_8 EXACT "optim.beta1=0.9", "dist.shard=parameters optim.offload=nvme"},
    {M(CLASSIFIER), 1, ADAFACTOR CLIP "model.freeze=1", STREAMED},
    /* both: of tables next to matrices */
    {M(LLAMA), 1, TABLES "train.micro_batch=2 " CLIP, "train.rounds=breadth optim.offload=nvme " STREAMED},
    {M(QWEN), 3, TABLES OF_8 EXACT, "dist.shard=optimizer"},
    {M(GPT2), 2, TABLES OF_8 BLOCK "train.ema=0.9", "dist.shard=parameters optim.offload=nvme"},
    {M(TEXTS), 4, TABLES OF_8 EXACT, "dist.pipeline=2 dist.shard=parameters"},
};

/* Slices are sums in another order: in fp32 losses and norms of a few steps change by rounding. */
static void slices_change_rounding_alone(void **state)
{
    static const struct {
        int model;
        const char *settings, *slices;
    } cases[] = {{GPT2, "", SLICES},
                 {BERT, "", SLICES},
                 {TEXTS, "", SLICES},
                 {LLAMA, "", HALVES},
                 {QWEN, "model_s.kv_heads=2 ", HALVES}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *whole =
                 xasprintf("train.precision=fp32 optim.preset=quality " OF_4 CLIP "%s", cases[i].settings),
             *sliced = xasprintf("%s%s", whole, cases[i].slices);
        const struct run *one = reference(cases[i].model, whole);
        struct run *other = as_ranks(1, (struct run){.model = cases[i].model, .settings = sliced});
        for (int s = 0; s < (on_a_card() ? 2 : STEPS); s++) {
            const struct step_result *a = &one->results[s], *b = &other->results[s];
            if (!(fabs(b->loss / a->loss - 1) < 1e-5 && fabs(b->grad_norm / a->grad_norm - 1) < 1e-5))
                fail_msg("%s %s, step %d: loss %.9g, norm %.9g; not %.9g, %.9g",
                         models[cases[i].model].config, sliced, s, b->loss, b->grad_norm, a->loss,
                         a->grad_norm);
        }
        runs_free(other, 1);
        free(sliced);
        free(whole);
    }
}

static const struct row card_rows[] = {
    {M(GPT2), 1, EXACT, STREAMED "train.recompute=block optim.offload=nvme"},
    {M(GPT2), 1, "train.micro_batch=4 " CLIP, STREAMED},
    {M(GPT2), 1, "optim.name=schedule_free " EXACT, STREAMED},
    {M(GPT2), 4, OF_4 SLICES EXACT, "dist.tensor=4"},
    {M(LLAMA), 4, OF_4 HALVES EXACT, "dist.tensor=2 dist.pipeline=2"},
};

static void check_rows(const struct row *row, size_t count)
{
    for (; count--; row++)
        for (int m = 0; m < MODELS; m++)
            if (row->models & M(m)) keeps_the_bits(m, row->settings, row->layout, row->size);
}

static void places_and_options_keep_the_bits(void **state) { check_rows(rows, sizeof rows / sizeof *rows); }

/* With random weights of deviation 0.02 the first prediction is nearly uniform. */
static void every_mode_has_the_same_first_loss(void **state)
{
    static const char *const modes[] = {EXACT, BLOCK, "train.global_batch=8 " PREVIOUS,
                                        "train.micro_batch=4 " CLIP};
    static const int models_here[] = {GPT2, QWEN, BERT};
    for (int m = 0; m < (on_a_card() ? 1 : 3); m++) {
        const struct step_result *first = reference(models_here[m], KEEP)->results;
        assert_true(fabs(first->loss - log(VOCABULARY)) < 0.1);
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
            const struct step_result *other = reference(models_here[m], modes[k])->results;
            double loss = k < 3 ? 0 : 1e-6 * first->loss; /* of micro-batches: added in another order */
            if (!(fabs(first->loss - other->loss) <= loss &&
                  fabs(first->grad_norm - other->grad_norm) <= 2e-2 * first->grad_norm))
                fail_msg("%s: loss %.17g, norm %.6g; not %.17g, %.6g", modes[k], other->loss,
                         other->grad_norm, first->loss, first->grad_norm);
        }
    }
}

static void places_keep_the_bits_on_a_card(void **state)
{
    check_rows(card_rows, sizeof card_rows / sizeof *card_rows);
}

/* LAMB's sums are over a tensor's parts, groups of a format have one scale. */
static void every_rule_and_format_has_the_bits_of_one_rank(void **state)
{
    static const char *const formats[] = {"optim.use_meopt=false optim.gradients=keep",
                                          "train.precision=fp32",
                                          "optim.preset=quality",
                                          "optim.preset=balanced",
                                          "optim.preset=minimal",
                                          "optim.state_m=4bit optim.state_v=4bit"};
    enum { FORMATS = sizeof formats / sizeof *formats };
    for (int rule = 0; meopt_rule_names[rule]; rule++)
        for (int f = 0; f < FORMATS; f++) {
            bool lamb = strcmp(meopt_rule_names[rule], "lamb") == 0;
            if (!thorough && !lamb && f != rule % FORMATS) continue;
            bool fine = f == FORMATS - 1 && meopt_rule_names[rule] == meopt_rule_names[MEOPT_SCHEDULE_FREE];
            char *settings = xasprintf(OF_8 CLIP "optim.name=%s optim.beta2=0.98 %s", meopt_rule_names[rule],
                                       fine ? "optim.state_m=bf16 optim.state_v=4bit" : formats[f]);
            keeps_the_bits(EVA, settings, f % 2 ? "dist.shard=optimizer" : "dist.shard=parameters", 3);
            if (thorough) keeps_the_bits(EVA, settings, "dist.shard=none", 8);
            free(settings);
        }
}

/* Each step in another layout than the step before; each pair of layouts once, in the long form twice. */
static void any_layout_resumes_any_other(void **state)
{
    static const struct part {
        int size;
        const char *layout;
    } parts[] = {{4, "dist.pipeline=2 dist.shard=parameters"},
                 {1, "train.rounds=depth"},
                 {3, "dist.shard=optimizer train.rounds=depth"},
                 {4, "dist.pipeline=4"},
                 {2, "dist.shard=parameters train.rounds=breadth"},
                 {2, "dist.pipeline=2 train.wave=3"},
                 {1, "train.rounds=breadth"},
                 {4, "dist.pipeline=2 dist.shard=optimizer"}},
      tensors[] = {{2, "dist.tensor=2"},
                   {8, "dist.tensor=2 dist.pipeline=2 dist.shard=parameters"},
                   {1, "train.rounds=depth"},
                   {4, "dist.tensor=4"},
                   {4, "dist.pipeline=2 dist.shard=optimizer"},
                   {4, "dist.tensor=2 dist.shard=optimizer"},
                   {4, "dist.tensor=2 dist.pipeline=2"}},
      alone[] = {{1, "train.rounds=depth"}, {1, "train.rounds=breadth " STREAMED}, {1, "train.wave=2"}};
    enum {
        PARTS = sizeof parts / sizeof *parts,
        TENSORS = sizeof tensors / sizeof *tensors,
        ALONE = sizeof alone / sizeof *alone
    };
    static const struct {
        int model, count;
        const struct part *parts;
        const char *settings;
    } chains[] = {{GPT2, PARTS, parts, OF_8 EXACT "model_s.depth=5 train.ema=0.9"},
                  {CLASSIFIER, PARTS, parts, OF_8 EXACT "model_s.depth=4 optim.name=schedule_free"},
                  {EVA, PARTS, parts, OF_8 PREVIOUS "model_t.depth=4 model_s.depth=4 model_s.drop_path=0.3"},
                  {BERT, ALONE, alone, ADAFACTOR "train.micro_batch=2 " CLIP},
                  {CLASSIFIER, ALONE, alone, "train.micro_batch=2 model_s.drop_path=0.3 " CLIP},
                  {DINOV2, ALONE, alone, "train.micro_batch=2 optim.preset=minimal " CLIP},
                  {LLAMA, PARTS, parts, MUON OF_8 EXACT "model_s.depth=5"},
                  {LLAMA, ALONE, alone, "train.micro_batch=2 " LORA CLIP},
                  {GPT2, TENSORS, tensors, OF_8 EXACT SLICES "model_s.depth=5"},
                  {BERT, TENSORS, tensors, MUON OF_8 PREVIOUS SLICES "model_s.depth=4"}};
    for (size_t c = 0; c < sizeof chains / sizeof *chains; c++)
        for (int i = 0; i < chains[c].count; i += thorough ? 1 : 2) {
            const struct run *whole = reference(chains[c].model, chains[c].settings);
            char directory[] = "/tmp/meopt-equal-XXXXXX";
            struct step_result before[STEPS];
            assert_non_null(mkdtemp(directory));
            for (int step = 0; step < STEPS; step++) {
                const struct part *part = &chains[c].parts[(i + step) % chains[c].count];
                int size = part->size;
                char *settings = xasprintf("%s %s", chains[c].settings, part->layout);
                struct run *now = as_ranks(size, (struct run){.model = chains[c].model,
                                                              .settings = settings,
                                                              .directory = directory,
                                                              .last_step = step + 1});
                for (int r = 0; r < size; r++) memcpy(now[r].results, before, (size_t)step * sizeof *before);
                before[step] = now->results[step];
                if (step == STEPS - 1) same(whole, now, size);
                runs_free(now, size);
                free(settings);
            }
            file_remove_tree(directory, NULL);
        }
}

/* Two runs of the same bits, the second with the rounds that train.rounds auto chooses. */
struct moved {
    struct run *depth, *breadth;
};

static struct moved moved_by(int size, const char *settings, const char *more)
{
    char *deep = xasprintf("%s train.rounds=depth", settings), *wide = xasprintf("%s %s", settings, more);
    struct moved m = {as_ranks(size, (struct run){.model = EVA, .settings = deep}),
                      as_ranks(size, (struct run){.model = EVA, .settings = wide})};
    same(m.depth, m.breadth, size);
    assert_true(m.breadth->breadth && !m.depth->breadth);
    free(deep);
    free(wide);
    return m;
}

static void moved_free(struct moved m, int size)
{
    runs_free(m.depth, size);
    runs_free(m.breadth, size);
}

/* By how much less: the teacher's weights are read once per step, not once per micro-batch; the student's
 * twice, and written once. Two waves read them twice; the update follows the passes and reads the student
 * once more. */
static void streamed_weights_travel_once_per_pass(void **state)
{
    const char *settings =
        "train.micro_batch=2 model_t.depth=8 model_s.depth=8 train.recompute=block " STREAMED;
    char *unclipped = xasprintf("%s" NO_CLIP, settings);
    struct moved once = moved_by(1, unclipped, ""), twice = moved_by(1, settings, "train.wave=2");
    assert_int_equal(once.depth->teacher_bytes, 4 * once.breadth->teacher_bytes);
    assert_true(once.breadth->student_bytes * 5 / 2 < once.depth->student_bytes);
    assert_int_equal(twice.depth->teacher_bytes, 2 * twice.breadth->teacher_bytes);
    assert_true(twice.breadth->student_bytes * 3 / 2 < twice.depth->student_bytes);
    moved_free(once, 1);
    moved_free(twice, 1);
    free(unclipped);
}

/* With four rounds a rank gathers a quarter: groups that stay in the buffers between passes are not
 * gathered again, in either order. */
static void sharded_weights_are_gathered_once_per_pass(void **state)
{
    struct moved m =
        moved_by(2, OF_8 PREVIOUS "dist.shard=parameters model_s.depth=8 train.recompute=block", "");
    double ratio = (double)m.depth->gathered_bytes / (double)m.breadth->gathered_bytes;
    if (ratio < 3.4 || ratio > 4.1) fail_msg("gathered bytes fall by %.2f, four rounds", ratio);
    moved_free(m, 2);
}

/* For tests/ranks/ranks_mpi.sh. */
static int mpi_rank(const char *out)
{
    char *settings = xasprintf(OF_8 "%s", getenv("MEOPT_TEST_SETTINGS"));
    struct run r = {.model = EVA,
                    .settings = settings,
                    .options = {.kind = COMM_MPI,
                                .rank = atoi(getenv("OMPI_COMM_WORLD_RANK")),
                                .size = atoi(getenv("OMPI_COMM_WORLD_SIZE")),
                                .shared = -1}};
    run_main(&r);
    free(settings);
    if (r.code) fprintf(stderr, "rank %d: %s\n", r.options.rank, r.err.what);
    if (r.code || r.options.rank != r.options.size - 1) return r.code;
    FILE *f = fopen(out, "wb");
    bool good = f && fwrite(r.weights, sizeof *r.weights, (size_t)r.count, f) == (size_t)r.count;
    for (int s = 0; s < STEPS && good; s++) {
        const struct step_result *is = &r.results[s];
        good = fprintf(f, "%a %a %a\n", is->loss, is->metrics[0].value, is->grad_norm) > 0;
    }
    free(r.weights);
    return f && fclose(f) == 0 && good ? 0 : EXIT_FAILED;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_have_the_bits_of_one),
                                       cmocka_unit_test(slices_change_rounding_alone),
                                       cmocka_unit_test(places_and_options_keep_the_bits),
                                       cmocka_unit_test(every_rule_and_format_has_the_bits_of_one_rank),
                                       cmocka_unit_test(every_mode_has_the_same_first_loss),
                                       cmocka_unit_test(any_layout_resumes_any_other),
                                       cmocka_unit_test(streamed_weights_travel_once_per_pass),
                                       cmocka_unit_test(sharded_weights_are_gathered_once_per_pass)},
                            cards[] = {cmocka_unit_test(places_keep_the_bits_on_a_card),
                                       cmocka_unit_test(slices_change_rounding_alone),
                                       cmocka_unit_test(every_mode_has_the_same_first_loss)};
    make_data();
    thorough = getenv("MEOPT_LONG") != NULL;
    if (argc > 1) return mpi_rank(argv[1]);
    if (on_a_card()) return cmocka_run_group_tests(cards, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
