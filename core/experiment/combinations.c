/* Combinations of keys that do not go together, as far as they need model shapes or the number of ranks: see
 * core/config/combinations.h. */
#include "core/config/combinations.h"
#include "core/experiment/experiment.h"
#include "core/experiment/objective.h"
#include "core/experiment/phi_s.h"
#include "core/model/family.h"
#include "core/model/lora.h"

#include <stdio.h>

/* What adapters of a student can have. */
static void adapter_rows(const struct combinations *w, const struct config *c,
                         const struct model_shape *student)
{
    struct lora_module modules[LORA_MODULES] = {{.out = 0}};
    unsigned targets = 0;
    int modules_here = 0;
    if (c->lora.rank && lora_targets(student, c->lora.targets, &targets, NULL) == 0)
        modules_here = lora_modules(student, modules);
    for (int i = 0; i < (w->list ? 1 : modules_here); i++) {
        int64_t least = modules[i].in < modules[i].out ? modules[i].in : modules[i].out;
        REFUSE(w, targets & 1u << i && c->lora.rank > least, "lora.rank", "choose a smaller rank",
               "lora.rank is %lld, but %s is [%lldx%lld]", (long long)c->lora.rank, modules[i].name,
               (long long)modules[i].out, (long long)modules[i].in);
    }
}

/* Writes the name of a key of a part of the loss. */
static void loss_key(int loss, const char *leaf, char *name, size_t size)
{
    snprintf(name, size, "%s.%s", config_loss_section(loss), leaf);
}

/* What one tower can give to a target. */
static void output_rows_of(const struct combinations *w, const char *key, const char *tower,
                           const struct model_shape *g, const struct output *o, bool trained)
{
    bool pools = model_shape_parts(g) & PART_ATTN_POOL, mean = g->pool > POOL_CLS,
         patches = o->tokens != OUTPUT_CLS && !o->block,
         none = g->classless && !family_row(g->family)->first_pooled;
    REFUSE(w, patches && trained && pools, key, "loss.tokens: cls",
           "patch tokens are compared, but the embedding of the %s is pooled by attention", tower);
    REFUSE(w, patches && trained && mean, key, "set loss.tokens to cls, or pool to cls",
           "patch tokens are compared, but the embedding of the %s is a mean of them", tower);
    REFUSE(w, patches && !trained && mean && g->pool >= POOL_AVG_FIRST && g->pool <= POOL_AVG_RAW, key,
           "set a block instead of the last",
           "patch tokens are compared, but the %s has no norm of each token after its last block", tower);
    REFUSE(w, o->tokens == OUTPUT_CLS_PATCH && (none || model_shape_projects(g)), key,
           "two parts of the loss: tokens cls, and tokens patch",
           "class and patch tokens of the %s differ in width or meaning", tower);
    REFUSE(w, o->block && (o->block < 0 || o->block >= g->depth), key, "0 is after all blocks",
           "block %lld of the %s, which has %lld", (long long)o->block, tower, (long long)g->depth);
    REFUSE(w, o->block && g->norms == POST_NORM, key, "compare the last tokens",
           "blocks of the %s end with norms: the tokens between them are not normalised", tower);
    REFUSE(w, o->block && o->tokens == OUTPUT_AVG, key, "tokens: patch",
           "the mean of the patch tokens is computed after all blocks alone");
    REFUSE(w, o->block && g->classless && (o->tokens == OUTPUT_CLS || o->tokens == OUTPUT_CLS_PATCH), key,
           "tokens: patch", "the %s has no class token", tower);
}

/* The targets of a distillation. */
static void target_rows(const struct combinations *w, const struct config *c,
                        const struct experiment_towers *all)
{
    const struct targets *targets = &all->targets;
    bool block = false;
    for (int i = 0; i < (w->list ? 1 : targets->count); i++) {
        const struct target *t = &targets->of[i];
        const struct model_shape *teacher = &all->teachers[t->teacher], *student = &all->student;
        char key[40], tokens[40];
        int64_t width[2] = {w->list ? 0 : output_input(teacher, &t->of_teacher),
                            w->list ? 0 : output_input(student, &t->student)};
        loss_key(t->loss, "head", key, sizeof key);
        loss_key(t->loss, "tokens", tokens, sizeof tokens);
        REFUSE(w, t->student.head == HEAD_NONE && width[0] != width[1], key, "loss.head: auto, linear or mlp",
               "the student's output has %lld values, the teacher's %lld, and loss.head is none",
               (long long)width[1], (long long)width[0]);
        REFUSE(w, t->rows_s && (!t->rows_t || t->rows_s > 65536 || t->rows_t > 65536), tokens,
               "loss.tokens: cls", "the teacher has %lld patches, the student %lld", (long long)t->rows_t,
               (long long)t->rows_s);
        enum loss_standardize form = c->loss[t->loss].standardize;
        loss_key(t->loss, "standardize", key, sizeof key);
        REFUSE(w, form == LOSS_STANDARDIZE_PHI_S && !phi_s_order(width[0]), key, "standardize: channel",
               "phi-s has no Hadamard matrix of %lld, the width of the teacher's output",
               (long long)width[0]);
        REFUSE(w, form != LOSS_STANDARDIZE_NONE && t->student.tokens == OUTPUT_CLS_PATCH, key,
               "two parts of the loss: tokens cls, and tokens patch",
               "class and patch tokens are standardized apart");
        output_rows_of(w, tokens, "teacher", teacher, &t->of_teacher, false);
        output_rows_of(w, tokens, "student", student, &t->student, true);
        block = block || t->student.block || t->of_teacher.block;
    }
    for (int k = 0; k < all->teacher_count; k++)
        REFUSE(w, !w->list && targets_of_teacher(targets, k).count == 0, "loss.teacher",
               "add a part of the loss for it, or leave it out", "no part of the loss is of teacher %d",
               k + 1);
    REFUSE(w, block && config_stages(c) > 1, "dist.pipeline", "dist.pipeline: 1",
           "tokens of blocks are compared, which a pipeline has on other ranks");
    REFUSE(w, block && c->model_s.place == TOWER_PLACE_STREAMED, "model_s.place", "model_s.place: resident",
           "heads of blocks are not streamed");
    REFUSE(w, targets->count > 1 && config_trains_adapters(c), "lora.rank", "leave lora.rank out",
           "lora.rank goes together with one part of the loss");
}

/* Some target has a head after all blocks. */
static bool trains_heads(const struct targets *targets)
{
    bool any = false;
    for (int i = 0; i < targets->count; i++)
        any = any || (targets->of[i].student.head != HEAD_NONE && !targets->of[i].student.block);
    return any;
}

/* What a model can have. */
static void shape_rows(const struct combinations *w, const struct config *c,
                       const struct experiment_towers *all)
{
    const struct objective *o = objective_of(c);
    const struct model_shape *student = &all->student;
    const char *freeze = config_key_here(c, "model_s.freeze");
    target_rows(w, c, all);
    REFUSE(w,
           o->masked &&
               (c->data.mask_token >= student->vocabulary || c->data.special_tokens >= student->vocabulary),
           "data.mask_token", "set data.mask_token to the number of [MASK]",
           "data.mask_token is %lld, data.special_tokens %lld, the vocabulary has %lld",
           (long long)c->data.mask_token, (long long)c->data.special_tokens, (long long)student->vocabulary);
    adapter_rows(w, c, student);
    int groups;
    bool end, frozen = config_frozen(c, student->depth, &groups, &end);
    REFUSE(w, !frozen, "model_s.freeze", "none, embed, a number of blocks, or all_but_head",
           "%s is %s, but the model has %lld blocks", freeze, c->model_s.freeze, (long long)student->depth);
    REFUSE(w, end && !trains_heads(&all->targets) && student->classes <= 0, "model_s.freeze",
           "loss.head: linear", "%s is all_but_head, but the student has no head", freeze);
}

/* What a training on several ranks can have. */
static void rank_rows(const struct combinations *w, const struct config *c,
                      const struct experiment_towers *all, int ranks)
{
    const struct model_shape *student = &all->student;
    const struct objective *o = objective_of(c);
    bool shared = config_shares_steps(c, ranks);
    int stages = config_stages(c), replicas = config_replicas(c, ranks);
    REFUSE(w, stages > 1 && ranks % stages, "dist.pipeline",
           "start a multiple of it: --cards, srun, --workers", "dist.pipeline is %d, but there %s %d rank%s",
           stages, ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s");
    int tensor = config_tensor(c);
    REFUSE(w, tensor > 1 && stages <= 1 && ranks % tensor, "dist.tensor",
           "start a multiple of it: --cards, srun, --workers", "dist.tensor is %d, but there %s %d rank%s",
           tensor, ranks == 1 ? "is" : "are", ranks, ranks == 1 ? "" : "s");
    REFUSE(w, tensor > 1 && stages > 1 && ranks % stages == 0 && ranks % (stages * tensor), "dist.tensor",
           "start a multiple of their product: --cards, srun, --workers",
           "dist.tensor is %d and dist.pipeline %d, but there are %d ranks", tensor, stages, ranks);
    bool divided = o->teacher && !c->train.cache_teacher;
    for (int i = -1; i < (w->list || !divided ? 0 : all->teacher_count); i++) {
        const struct model_shape *tower = i < 0 ? student : &all->teachers[i];
        REFUSE(w, stages > 1 && stages > tower->depth, "dist.pipeline",
               "use at most one stage for each block", "dist.pipeline is %d, but the %s has %lld blocks",
               stages, objective_tower(o, i < 0), (long long)tower->depth);
    }
    const struct step_division d = config_divide_step(c, ranks);
    REFUSE(w, shared && d.count < replicas, "train.micro_batch",
           "lower train.micro_batch, or start fewer ranks",
           "%d ranks for %lld micro-batches of %lld images: %lld in a step", replicas, (long long)d.count,
           (long long)d.micro, (long long)d.samples);
    REFUSE(w, c->train.rounds == TRAIN_ROUNDS_BREADTH && d.count <= replicas && stages <= 1, "train.rounds",
           "train.rounds: auto",
           "train.rounds is breadth, but a step has one micro-batch: set train.micro_batch");
    REFUSE(w, shared && c->model_s.place == TOWER_PLACE_STREAMED, "model_s.place",
           "dist.shard: parameters, and model_s.place: resident",
           "model_s.place streamed is for one rank without train.global_batch");
    REFUSE(w,
           !shared && c->optim.gradients == OPTIM_GRADIENTS_RELEASE && d.count > 1 &&
               c->optim.clip_grad_norm > 0 && c->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK,
           "optim.clip_mode", "optim.clip_mode: exact",
           "optim.clip_mode block has no use when released gradients are accumulated (train.micro_batch %lld "
           "of %lld): exact costs nothing",
           (long long)d.micro, (long long)c->train.batch_size);
}

void experiment_combinations(const struct combinations *list)
{
    static const struct experiment_towers none = {.student = {.patch = 1}};
    config_combinations(list);
    shape_rows(list, list->config, &none);
    rank_rows(list, list->config, &none, 1);
}

/* Sets the error of the first row. */
static void refuse(void *context, const char *key, bool fatal, const char *hint, const char *sentence)
{
    struct error *first = context;
    (void)key;
    if (fatal && !first->code) error_set(first, EXIT_CONFIG, hint, "%s", sentence);
}

static int result(const struct error *first, struct error *err)
{
    if (first->code && err) *err = *first;
    return first->code;
}

int experiment_check(const struct config *c, const struct experiment_towers *all, struct error *err)
{
    struct error first = {0};
    shape_rows(&(struct combinations){.config = c, .bad = refuse, .context = &first}, c, all);
    return result(&first, err);
}

int experiment_check_ranks(const struct config *c, const struct experiment_towers *all, int ranks,
                           struct error *err)
{
    struct error first = {0};
    rank_rows(&(struct combinations){.config = c, .bad = refuse, .context = &first}, c, all, ranks);
    return result(&first, err);
}

int experiment_check_adapters(const struct config *c, const struct model_shape *student, struct error *err)
{
    struct error first = {0};
    adapter_rows(&(struct combinations){.config = c, .bad = refuse, .context = &first}, c, student);
    return result(&first, err);
}
