/* The optimizer of a trainer: its options, tensors and offloading. */
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/experiment/experiment.h"
#include "core/step/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int trainer_weight_format(enum optim_weights weights)
{
    static const int formats[] = {[OPTIM_WEIGHTS_AUTO] = -1,
                                  [OPTIM_WEIGHTS_FP32] = MEOPT_WEIGHTS_F32,
                                  [OPTIM_WEIGHTS_FP32_COPY] = MEOPT_WEIGHTS_F32_COPY,
                                  [OPTIM_WEIGHTS_BF16] = MEOPT_WEIGHTS_BF16,
                                  [OPTIM_WEIGHTS_BF16_SR] = MEOPT_WEIGHTS_BF16_SR,
                                  [OPTIM_WEIGHTS_BF16_4] = MEOPT_WEIGHTS_20,
                                  [OPTIM_WEIGHTS_BF16_8] = MEOPT_WEIGHTS_24,
                                  [OPTIM_WEIGHTS_BF16_16] = MEOPT_WEIGHTS_32};
    return formats[weights];
}

int trainer_state_format(enum optim_state state)
{
    static const int formats[] = {[OPTIM_STATE_AUTO] = -1,
                                  [OPTIM_STATE_FP32] = MEOPT_STATE_F32,
                                  [OPTIM_STATE_BF16] = MEOPT_STATE_BF16,
                                  [OPTIM_STATE_BF16_NEAREST] = MEOPT_STATE_BF16_NEAREST,
                                  [OPTIM_STATE_8BIT] = MEOPT_STATE_8BIT,
                                  [OPTIM_STATE_4BIT] = MEOPT_STATE_4BIT};
    return formats[state];
}

/* Returns the directory of scratch files. */
const char *trainer_scratch_directory(const struct trainer *t)
{
    return t->config->train.scratch_dir[0] ? t->config->train.scratch_dir : t->config->directory;
}

int trainer_optimizer(const struct trainer *t, struct meopt_options *o, struct error *err)
{
    const struct config *c = t->config;
    struct meopt_error library = {0};
    meopt_options_init(o, sizeof *o, (int)c->optim.name);
    bool bf16 = experiment_tower_type(&c->model_s) == DTYPE_BF16;
    const char *preset = c->optim.use_meopt   ? optim_preset_names[c->optim.preset]
                         : c->optim.pure_bf16 ? "pure_bf16"
                         : bf16               ? "amp"
                                              : "fp32";
    if (meopt_options_preset(o, preset, &library)) return trainer_library_error(&library, err);
    if (c->optim.weights != OPTIM_WEIGHTS_AUTO) o->weights = trainer_weight_format(c->optim.weights);
    if (c->optim.state_m != OPTIM_STATE_AUTO) o->first_moment = trainer_state_format(c->optim.state_m);
    if (c->optim.state_v != OPTIM_STATE_AUTO) o->second_moment = trainer_state_format(c->optim.state_v);
    if (!bf16) o->weights = MEOPT_WEIGHTS_F32; /* fp32 compute reads fp32 weights */
    if (bf16 && o->weights == MEOPT_WEIGHTS_F32) o->weights = MEOPT_WEIGHTS_F32_COPY;
    o->beta1 = c->optim.beta1;
    o->beta2 = c->optim.beta2;
    o->eps = c->optim.eps;
    o->weight_decay = c->optim.weight_decay;
    o->momentum = c->optim.momentum;
    o->dampening = c->optim.dampening;
    o->nesterov = c->optim.nesterov;
    o->ns_steps = (int)c->optim.ns_steps;
    o->ns_schedule = (int)c->optim.ns_schedule;
    o->ns_form = (int)c->optim.ns_form;
    o->ns_dtype = c->optim.ns_precision == OPTIM_NS_PRECISION_FP32 ? MEOPT_F32 : MEOPT_BF16;
    o->adjust_lr = (int)c->optim.adjust_lr;
    o->trust_clip = c->optim.trust_clip;
    o->always_adapt = c->optim.always_adapt;
    o->decoupled_decay = c->optim.decoupled_decay;
    o->r = c->optim.r;
    o->weight_lr_power = c->optim.weight_lr_power;
    o->eps2 = c->optim.eps2;
    o->clip_threshold = c->optim.clip_threshold;
    o->decay_rate = c->optim.decay_rate;
    o->scale_parameter = c->optim.scale_parameter;
    o->relative_step = c->optim.relative_step;
    o->warmup_init =
        c->optim.warmup_init && c->optim.relative_step; /* else of a rule that does not read it */
    o->torch_form = c->optim.torch_form;
    o->seed = (uint64_t)c->train.seed;
    o->average_decay = c->train.ema;
    o->small_count = 0; /* the tower decides by role which tensors are fp32 */
    if (t->release && t->micro < t->batch && !t->dp) o->accumulator = MEOPT_STATE_BF16;
    return 0;
}

/* Returns the learning rate of a parameter / optim.lr: the last group has 1, each group before it layer_decay
 * of the next (BEiT, MAE), and the head head_lr_scale. */
static double learning_rate_scale(const struct trainer *t, const struct parameter *p)
{
    if (p->head) return t->config->optim.head_lr_scale;
    return pow(t->config->optim.layer_decay, t->student->group_count - 1 - p->group);
}

/* Returns the rule of a parameter next to muon. */
static int rule_next_to_muon(const struct trainer *t, const struct parameter *p)
{
    int wide = 0;
    for (int d = 0; d < p->ndim; d++) wide += p->shape[d] > 1;
    if (p->hidden) return MEOPT_MUON;
    bool factored = t->config->optim.other_rule == OPTIM_OTHER_RULE_ADAFACTOR && wide >= 2 && !p->small;
    return factored ? MEOPT_ADAFACTOR : MEOPT_APADAMW;
}

/* Returns the optimizer's description of a parameter: all of it, or this rank's part. fp32 weights that no
 * memory is there for, of a part or of a trainer that only evaluates, are the optimizer's. */
static struct meopt_tensor tensor_row(const struct trainer *t, int index, int weights)
{
    const struct parameter *p = &t->student->parameters[index];
    struct meopt_tensor row = {.name = p->name,
                               .ndim = p->ndim,
                               .lr_scale = learning_rate_scale(t, p),
                               .flags = (p->decay ? 0u : MEOPT_NO_DECAY) |
                                        (p->small || p->weight_type == DTYPE_F32 ? MEOPT_KEEP_F32 : 0u) |
                                        (t->student_stream && !p->resident ? MEOPT_SHARED_MEMORY : 0u),
                               .weights = p->master ? (void *)p->master : p->weight};
    if (p->master) row.copy = p->weight;
    for (int d = 0; d < p->ndim; d++) row.shape[d] = p->shape[d];
    if (RULE_HAS(t->config->optim.name, WITH_MATRICES)) {
        row.rule = rule_next_to_muon(t, p);
        row.flags |= MEOPT_OWN_RULE | (p->hidden ? MEOPT_ONE_OWNER : 0u);
        memcpy(row.rows, p->rows, sizeof p->rows);
    }
    if (!dp_sharded(t) && !t->evaluates) return row;
    if (dp_sharded(t)) {
        row.flags |= MEOPT_PART;
        dp_part(t, index, &row.first, &row.count);
    }
    void *part = dp_weights(t, index);
    bool copied = weights == MEOPT_WEIGHTS_F32_COPY && p->weight_type == DTYPE_BF16;
    row.weights = copied ? NULL : part;
    row.copy = copied ? part : NULL;
    return row;
}

/* Returns the bytes of moments and residual bits of the largest group, whose tensors are updated together. */
static size_t largest_group(const struct trainer *t, const struct meopt_options *options,
                            const struct meopt_tensor *table)
{
    size_t most = 0;
    for (int group = 0; group < t->student->group_count; group++) {
        size_t bytes = 0;
        for (int i = 0; i < t->tensors.count; i++) {
            struct meopt_tensor_info info;
            if (t->student->parameters[t->tensors.parameter[i]].group == group &&
                meopt_plan_tensor(options, &table[i], &info, NULL) == MEOPT_OK)
                bytes += info.bytes.moments + info.bytes.correction;
        }
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Logs how offloaded states are transferred, and its limitations. */
static void report_offload(const struct trainer *t, const struct meopt_options *options)
{
    struct meopt_offload_info info = {.size = sizeof info};
    if (meopt_offloaded(t->opt, &info, NULL) || !info.how) return;
    log_info("optimizer states: %.1f MiB in a file in %s, moved by %s%s",
             (double)(info.moments + info.corrections) / 1048576.0, options->offload_dir, info.how,
             info.direct ? "" : _(", through the page cache: its file system has no O_DIRECT"));
    if (info.in_memory)
        log_warn("optim.offload_dir %s is on tmpfs: offloading there saves no memory; use a disk",
                 options->offload_dir);
}

int create_optimizer(struct trainer *t, struct error *err)
{
    static const int places[] = {[OPTIM_OFFLOAD_NONE] = MEOPT_OFFLOAD_NONE,
                                 [OPTIM_OFFLOAD_HOST] = MEOPT_OFFLOAD_HOST,
                                 [OPTIM_OFFLOAD_NVME] = MEOPT_OFFLOAD_FILE};
    struct meopt_options options;
    struct meopt_error library = {0};
    int code = trainer_optimizer(t, &options, err);
    if (code) return code;
    options.offload = places[t->config->optim.offload];
    options.offload_fraction = t->config->optim.offload_fraction;
    options.offload_dir =
        t->config->optim.offload_dir[0] ? t->config->optim.offload_dir : trainer_scratch_directory(t);
    options.device = (struct meopt_device *)t->device;
    options.context = t;
    set_reduce_callbacks(t, &options);
    struct meopt_tensor *table = xcalloc((size_t)t->student->parameter_count, sizeof *table);
    int *groups = xcalloc((size_t)t->student->parameter_count, sizeof *groups);
    if (t->schedule.breadth && schedule_waves(&t->schedule) == 1 && !t->dp) options.accumulator_sets = groups;
    t->tensors.of = xcalloc((size_t)t->student->parameter_count, sizeof *t->tensors.of);
    t->tensors.parameter = xcalloc((size_t)t->student->parameter_count, sizeof *t->tensors.parameter);
    t->tensors.given = xcalloc((size_t)t->student->parameter_count, sizeof *t->tensors.given);
    t->tensors.gradients = xcalloc((size_t)t->student->parameter_count, sizeof *t->tensors.gradients);
    for (int i = 0; i < t->student->parameter_count; i++) {
        struct parameter *p = &t->student->parameters[i];
        t->tensors.of[i] = -1;
        if (!p->trained) continue;
        table[t->tensors.count] = tensor_row(t, i, options.weights);
        int wide = 0; /* dimensions above 1; with fewer than 2 the optimizer requires fp32 weights */
        for (int d = 0; d < p->ndim; d++) wide += p->shape[d] != 1;
        if (!code && wide < 2 && p->weight_type != DTYPE_F32 && !p->master && !p->small)
            code = error_set(err, EXIT_CONFIG, "choose widths above 1",
                             "%s of the student has a single row or column", p->name);
        groups[t->tensors.count] = p->group;
        t->tensors.parameter[t->tensors.count] = i;
        t->tensors.of[i] = t->tensors.count++;
    }
    if (options.offload) options.offload_ring_bytes = largest_group(t, &options, table);
    int status = code ? MEOPT_OK : meopt_create(&t->opt, &options, table, (size_t)t->tensors.count, &library);
    if (status) code = trainer_library_error(&library, err);
    else if (!code && options.offload && t->ranks.rank == 0) report_offload(t, &options);
    if (status == MEOPT_NO_MEMORY && t->device->memory_error.code) { /* it lists the allocations */
        code = t->device->memory_error.code;
        if (err) *err = t->device->memory_error;
    }
    free(groups);
    free(table);
    return code;
}

int optimizer_round_values(struct trainer *t, int index, const float *values, struct error *err)
{
    struct meopt_options options;
    struct meopt_error library = {0};
    struct meopt *one = NULL;
    int code = trainer_optimizer(t, &options, err);
    if (code) return code;
    options.device = (struct meopt_device *)t->device;
    options.average_decay = 0;
    struct meopt_tensor row = tensor_row(t, index, options.weights);
    if (row.flags & MEOPT_OWN_RULE) row.rule = MEOPT_APADAMW; /* a matrix of muon would have a workspace */
    int status = meopt_create(&one, &options, &row, 1, &library);
    if (!status) status = meopt_import(one, 0, 0, t->student->parameters[index].count, values, &library);
    meopt_destroy(one);
    return status ? trainer_library_error(&library, err) : 0;
}
