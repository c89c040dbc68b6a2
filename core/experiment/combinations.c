/* Combinations of keys that do not go together, as far as they need model shapes or the number of ranks: see
 * core/config/combinations.h. */
#include "core/config/combinations.h"
#include "core/experiment/experiment.h"
#include "core/experiment/objective.h"
#include "core/model/lora.h"

int64_t experiment_head_width(const struct config *c, const struct model_shape *teacher,
                              const struct model_shape *student)
{
    if (!objective_of(c)->teacher) return 0;
    return c->loss.head == LOSS_HEAD_LINEAR || teacher->out != student->out ? teacher->out : 0;
}

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

/* What a model can have. */
static void shape_rows(const struct combinations *w, const struct config *c,
                       const struct model_shape *teacher, const struct model_shape *student)
{
    const struct objective *o = objective_of(c);
    const char *freeze = config_key_here(c, "model_s.freeze");
    REFUSE(w, o->teacher && c->loss.head == LOSS_HEAD_NONE && teacher->out != student->out, "loss.head",
           "loss.head: auto or linear",
           "the student's output has %lld values, the teacher's %lld, and loss.head is none",
           (long long)student->out, (long long)teacher->out);
    bool patches = o->teacher && c->loss.tokens == LOSS_TOKENS_CLS_PATCH;
    int64_t count[2] = {patches ? model_shape_patches(teacher) : 0,
                        patches ? model_shape_patches(student) : 0};
    REFUSE(w, count[0] != count[1], "loss.tokens",
           "loss.tokens: cls, or a data_s.image_size with as many patches",
           "the teacher has %lld patches, the student %lld, and loss.tokens is cls+patch",
           (long long)count[0], (long long)count[1]);
    const struct model_shape *towers[] = {student, patches ? teacher : student};
    for (int i = 0; i < (w->list ? 1 : 2); i++) {
        REFUSE(w, patches && model_shape_parts(towers[i]) & PART_ATTN_POOL, "loss.tokens", "loss.tokens: cls",
               "loss.tokens includes the patch tokens, but the embedding is pooled by attention");
        REFUSE(w, patches && towers[i]->pool > POOL_CLS, "loss.tokens",
               "set loss.tokens to cls, or pool to cls",
               "loss.tokens includes the class and patch tokens, but the embedding is a mean of them");
    }
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
    REFUSE(w, end && !experiment_head_width(c, teacher, student) && student->classes <= 0, "model_s.freeze",
           "loss.head: linear", "%s is all_but_head, but the student has no head", freeze);
}

/* What a training on several ranks can have. */
static void rank_rows(const struct combinations *w, const struct config *c, const struct model_shape *teacher,
                      const struct model_shape *student, int ranks)
{
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
    const struct model_shape *divided[] = {student,
                                           o->teacher && !c->train.cache_teacher ? teacher : student};
    for (int i = 0; i < (w->list ? 1 : 2); i++)
        REFUSE(w, stages > 1 && stages > divided[i]->depth && (!i || divided[1] != student), "dist.pipeline",
               "use at most one stage for each block", "dist.pipeline is %d, but the %s has %lld blocks",
               stages, objective_tower(o, !i), (long long)divided[i]->depth);
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
    static const struct model_shape none = {.patch = 1};
    config_combinations(list);
    shape_rows(list, list->config, &none, &none);
    rank_rows(list, list->config, &none, &none, 1);
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

int experiment_check(const struct config *c, const struct model_shape *teacher,
                     const struct model_shape *student, struct error *err)
{
    struct error first = {0};
    shape_rows(&(struct combinations){.config = c, .bad = refuse, .context = &first}, c, teacher, student);
    return result(&first, err);
}

int experiment_check_ranks(const struct config *c, const struct model_shape *teacher,
                           const struct model_shape *student, int ranks, struct error *err)
{
    struct error first = {0};
    rank_rows(&(struct combinations){.config = c, .bad = refuse, .context = &first}, c, teacher, student,
              ranks);
    return result(&first, err);
}

int experiment_check_adapters(const struct config *c, const struct model_shape *student, struct error *err)
{
    struct error first = {0};
    adapter_rows(&(struct combinations){.config = c, .bad = refuse, .context = &first}, c, student);
    return result(&first, err);
}
