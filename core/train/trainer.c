/* Building a trainer: towers, optimizer and buffers of one configuration. The step itself is step.c. */
#include "core/train/train_internal.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/train/preprocess.h"
#include "core/train/weight_stream.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int trainer_library_error(const struct meopt_error *library, struct error *err)
{
    static const int codes[] = {[MEOPT_OK] = EXIT_FAILED,
                                [MEOPT_BAD_ARGUMENT] = EXIT_CONFIG,
                                [MEOPT_NO_MEMORY] = EXIT_HOST_MEMORY,
                                [MEOPT_NOT_FINITE] = EXIT_DIVERGED,
                                [MEOPT_BAD_STATE] = EXIT_INTEGRITY,
                                [MEOPT_BAD_ORDER] = EXIT_FAILED,
                                [MEOPT_IO] = EXIT_FAILED,
                                [MEOPT_DEVICE_FAILED] = EXIT_FAILED,
                                [MEOPT_DISK_FULL] = EXIT_DISK};
    return error_set(
        err, codes[library->status],
        library->status == MEOPT_DEVICE_FAILED
            ? "'meopt doctor' tries the card, dmesg has the kernel's words; what was saved stays: "
              "meopt train --resume"
            : NULL,
        "optimizer: %s", library->message);
}

enum dtype trainer_tower_type(const struct config_tower *tower)
{
    return tower->dtype == TOWER_DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

/* Returns the outputs of the distillation head; 0: there is none. */
static int64_t head_width(const struct trainer *t)
{
    const struct config *c = t->config;
    if (!t->objective->teacher) return 0;
    bool linear = c->loss.head == LOSS_HEAD_LINEAR || t->teacher_shape.out != t->student_shape.out;
    return linear ? t->teacher_shape.out : 0;
}

/* Returns the student's memory options, from optim.*. */
static struct tower_options student_options(const struct trainer *t)
{
    const struct config *c = t->config;
    enum dtype type = trainer_tower_type(&c->model_s);
    bool bf16 = type == DTYPE_BF16, baseline = !c->optim.use_meopt && !c->optim.pure_bf16;
    bool accumulates = t->micro < t->batch && !t->dp, end;
    int frozen;
    config_frozen(c, t->student_shape.depth, &frozen, &end);
    return (struct tower_options){
        .batch = t->micro,
        .compute = type,
        .weight_type = type,
        .master = bf16 && !dp_sharded(t) &&
                  (baseline || c->optim.weights == OPTIM_WEIGHTS_FP32 ||
                   c->optim.weights == OPTIM_WEIGHTS_FP32_COPY),
        .grad_type = bf16 && !baseline && !(accumulates && !t->release) ? DTYPE_BF16 : DTYPE_F32,
        .gradients = t->release || t->dp ? GRADIENTS_RELEASE : GRADIENTS_KEEP,
        .weight_buffers = c->model_s.place == TOWER_PLACE_STREAMED ? 2 : dp_weight_buffers(t),
        .gradient_buffers = dp_gradient_buffers(t),
        .recompute = c->train.recompute == TRAIN_RECOMPUTE_BLOCK ? RECOMPUTE_BLOCK : RECOMPUTE_NONE,
        .saved = c->train.save_activations == TRAIN_SAVE_ACTIVATIONS_8BIT ? SAVED_8BIT : SAVED_MINIMAL,
        .backward_twice = t->twice,
        .patch_tokens = c->loss.tokens == LOSS_TOKENS_CLS_PATCH,
        .target = head_width(t),
        .frozen = frozen,
        .frozen_end = end,
        .weights_class = MEMORY_WEIGHTS,
        .activations_class = MEMORY_ACTIVATIONS,
    };
}

/* Returns the teacher's memory options. The baseline's teacher is fp32 and cast at each use, as with
 * autocast. */
static struct tower_options teacher_options(const struct trainer *t)
{
    const struct config *c = t->config;
    bool baseline = !c->optim.use_meopt && !c->optim.pure_bf16;
    enum dtype type = trainer_tower_type(&c->model_t);
    return (struct tower_options){
        .batch = t->micro,
        .compute = type,
        .weight_type = baseline ? DTYPE_F32 : type,
        .gradients = GRADIENTS_NONE,
        .weight_buffers = c->model_t.place == TOWER_PLACE_STREAMED ? 2 : 0,
        .patch_tokens = c->loss.tokens == LOSS_TOKENS_CLS_PATCH,
        .weights_class = MEMORY_TEACHER,
        .activations_class = MEMORY_TEACHER,
    };
}

#define SAME_RULE(c, number, ...)                                                                            \
    _Static_assert((int)OPTIM_NAME_##number == (int)MEOPT_##number, "optim.name has libmeopt's numbers");
OPTIM_RULES(SAME_RULE, )

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
static const char *scratch_directory(const struct trainer *t)
{
    return t->config->train.scratch_dir[0] ? t->config->train.scratch_dir : t->config->directory;
}

int trainer_optimizer(const struct trainer *t, struct meopt_options *o, struct error *err)
{
    const struct config *c = t->config;
    struct meopt_error library = {0};
    meopt_options_init(o, sizeof *o, (int)c->optim.name);
    bool bf16 = trainer_tower_type(&c->model_s) == DTYPE_BF16;
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
    o->trust_clip = c->optim.trust_clip;
    o->always_adapt = c->optim.always_adapt;
    o->decoupled_decay = c->optim.decoupled_decay;
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

/* Returns the optimizer's description of a parameter: all of it, or this rank's part. */
static struct meopt_tensor tensor_row(const struct trainer *t, int index, int weights)
{
    const struct parameter *p = &t->student->parameters[index];
    struct meopt_tensor row = {.name = p->name,
                               .ndim = p->ndim,
                               .lr_scale = learning_rate_scale(t, p),
                               .flags = (p->decay ? 0u : MEOPT_NO_DECAY) |
                                        (p->small || p->weight_type == DTYPE_F32 ? MEOPT_KEEP_F32 : 0u) |
                                        (t->student->options.weight_buffers ? MEOPT_SHARED_MEMORY : 0u),
                               .weights = p->master ? (void *)p->master : p->weight};
    if (p->master) row.copy = p->weight;
    for (int d = 0; d < p->ndim; d++) row.shape[d] = p->shape[d];
    if (!dp_sharded(t)) return row;
    row.flags |= MEOPT_PART;
    dp_part(t, index, &row.first, &row.count);
    void *part = dp_weights(t, index);
    bool copied = weights == MEOPT_WEIGHTS_F32_COPY && p->weight_type == DTYPE_BF16;
    row.weights = copied ? NULL : part; /* fp32 weights: the optimizer's, of the part only */
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
        for (int i = 0; i < t->tensor_count; i++) {
            struct meopt_tensor_info info;
            if (t->student->parameters[t->parameter_of[i]].group == group &&
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
             info.direct ? "" : ", through the page cache: its file system has no O_DIRECT");
    if (info.in_memory)
        log_warn("optim.offload_dir %s is on tmpfs: offloading there saves no memory; use a disk",
                 options->offload_dir);
}

static int create_optimizer(struct trainer *t, struct error *err)
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
        t->config->optim.offload_dir[0] ? t->config->optim.offload_dir : scratch_directory(t);
    options.device = (struct meopt_device *)t->device;
    options.context = t;
    set_reduce_callbacks(t, &options);
    struct meopt_tensor *table = xcalloc((size_t)t->student->parameter_count, sizeof *table);
    t->tensor_of = xcalloc((size_t)t->student->parameter_count, sizeof *t->tensor_of);
    t->parameter_of = xcalloc((size_t)t->student->parameter_count, sizeof *t->parameter_of);
    t->tensors = xcalloc((size_t)t->student->parameter_count, sizeof *t->tensors);
    t->gradients = xcalloc((size_t)t->student->parameter_count, sizeof *t->gradients);
    for (int i = 0; i < t->student->parameter_count; i++) {
        struct parameter *p = &t->student->parameters[i];
        t->tensor_of[i] = -1;
        if (!p->trained) continue;
        table[t->tensor_count] = tensor_row(t, i, options.weights);
        int wide = 0; /* dimensions above 1; with fewer than 2 the optimizer requires fp32 weights */
        for (int d = 0; d < p->ndim; d++) wide += p->shape[d] != 1;
        if (!code && wide < 2 && p->weight_type != DTYPE_F32 && !p->master && !p->small)
            code = error_set(err, EXIT_CONFIG, "choose widths above 1",
                             "%s of the student has a single row or column", p->name);
        t->parameter_of[t->tensor_count] = i;
        t->tensor_of[i] = t->tensor_count++;
    }
    if (options.offload) options.offload_ring_bytes = largest_group(t, &options, table);
    int status = code ? MEOPT_OK : meopt_create(&t->opt, &options, table, (size_t)t->tensor_count, &library);
    if (status) code = trainer_library_error(&library, err);
    else if (!code && options.offload && t->ranks.rank == 0) report_offload(t, &options);
    if (status == MEOPT_NO_MEMORY && t->device->memory_error.code) { /* it lists the allocations */
        code = t->device->memory_error.code;
        if (err) *err = t->device->memory_error;
    }
    free(table);
    return code;
}

static void *allocate(struct trainer *t, enum memory_class class, size_t bytes, const char *name,
                      struct error *err)
{
    return device_alloc(t->device, class, bytes, name, err);
}

static int load_teacher_values(void *context, int index, const float *values, struct error *err)
{
    struct trainer *t = context;
    content_add(&t->teacher_content, &t->teacher->parameters[index], values);
    return t->teacher_stream ? weight_stream_write(t->teacher_stream, index, values, err) : 0;
}

static int load_student_values(void *context, int index, const float *values, struct error *err)
{
    struct trainer *t = context;
    content_add(&t->student_content, &t->student->parameters[index], values);
    return trainer_set_values(t, index, values, err);
}

static int create_teacher(struct trainer *t, const struct weights *weights, struct error *err)
{
    bool dry = t->device->kind == DEVICE_DRY;
    struct tower_options options = teacher_options(t);
    int code = tower_create(&t->teacher, t->device, &t->teacher_shape, &options, err);
    if (!code && options.weight_buffers)
        code = weight_stream_open(&t->teacher_stream, t->teacher, scratch_directory(t), err);
    if (code || dry) return code;
    if (weights) {
        const char *path = t->config->model_t.weight;
        content_set_model(&t->teacher_content, &t->teacher_shape);
        code = tower_load(t->teacher, weights, load_teacher_values, t, err);
        if (code && err && !err->file[0]) error_at(err, path, 0, 0);
        return code ? code : content_compare_ranks(&t->ranks, "teacher", path, &t->teacher_content, err);
    }
    return tower_init_random(t->teacher, (uint64_t)t->config->train.seed ^ 0x7465616368657200u, false,
                             options.weight_buffers ? weight_stream_write : NULL, t->teacher_stream, err);
}

static int create_student(struct trainer *t, const struct weights *weights, struct error *err)
{
    bool dry = t->device->kind == DEVICE_DRY;
    struct tower_options options = student_options(t);
    int code = tower_create(&t->student, t->device, &t->student_shape, &options, err);
    if (!code && t->config->model_s.place == TOWER_PLACE_STREAMED)
        code = weight_stream_open(&t->student_stream, t->student, scratch_directory(t), err);
    if (!code && t->dp) code = dp_partition(t, err);
    if (!code) code = create_optimizer(t, err);
    if (!code && weights) {
        code = model_shape_fits(&t->student_shape, options.target, weights, err);
        if (code && err && !err->file[0]) error_at(err, t->config->model_s.weight, 0, 0);
    }
    if (code || dry) return code;
    code = tower_init_random(t->student, (uint64_t)t->config->train.seed, weights != NULL, trainer_set_values,
                             t, err);
    if (!code && weights) {
        const char *path = t->config->model_s.weight;
        content_set_model(&t->student_content, &t->student_shape);
        code = tower_load(t->student, weights, load_student_values, t, err);
        if (code && err && !err->file[0]) error_at(err, path, 0, 0);
        if (!code) code = content_compare_ranks(&t->ranks, "student", path, &t->student_content, err);
    }
    return code ? code : dp_gather_weights(t, err);
}

static int check_combination(const struct trainer *t, struct error *err)
{
    const struct config *c = t->config;
    if (c->train.save_activations == TRAIN_SAVE_ACTIVATIONS_8BIT &&
        c->train.recompute == TRAIN_RECOMPUTE_BLOCK)
        return error_set(err, EXIT_CONFIG, "one of the two: train.recompute: block needs less memory",
                         "train.save_activations 8bit has no use with train.recompute block, which keeps the "
                         "activations of one block alone");
    int groups;
    bool end;
    if (!config_frozen(c, t->student_shape.depth, &groups, &end))
        return error_set(err, EXIT_CONFIG, NULL, "model_s.freeze is %s, but the model has %lld blocks",
                         c->model_s.freeze, (long long)t->student_shape.depth);
    if (end && !head_width(t) && t->student_shape.classes <= 0)
        return error_set(err, EXIT_CONFIG, "loss.head: linear",
                         "model_s.freeze is all_but_head, but the student has no head");
    if (t->dp && c->model_s.place == TOWER_PLACE_STREAMED)
        return error_set(err, EXIT_CONFIG, "dist.shard: parameters, and model_s.place: resident",
                         "model_s.place streamed is for one rank without train.global_batch");
    if (!t->dp && t->release && t->micro < t->batch && c->optim.clip_grad_norm > 0 &&
        c->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK)
        return error_set(err, EXIT_CONFIG, "optim.clip_mode: exact",
                         "optim.clip_mode block has no use when released gradients are accumulated "
                         "(train.micro_batch %lld of %lld): exact costs nothing",
                         (long long)t->micro, (long long)t->batch);
    return 0;
}

size_t trainer_input_bytes(const struct trainer *t, int64_t count)
{
    return t->student_at ? t->chunk_bytes : model_shape_input_bytes(&t->student_shape, count);
}

const void *trainer_student_input(const struct trainer *t) { return (const char *)t->input + t->student_at; }

static int create_buffers(struct trainer *t, struct error *err)
{
    size_t outs = (size_t)(t->micro * t->student->out_rows * t->student->out_width) * sizeof(float);
    size_t scratch = t->student->scratch_bytes, input;
    const struct device_streams *streams = t->device->streams;
    if (t->teacher && t->teacher->scratch_bytes > scratch) scratch = t->teacher->scratch_bytes;
    struct data_options images = {
        .micro = t->micro, .image_size = t->teacher_shape.image, .student_size = t->student_shape.image};
    if (t->teacher && preprocess_two(t->config)) {
        t->student_at = (size_t)data_student_at(&images) * sizeof(float);
        t->chunk_bytes = (size_t)data_chunk(&images) * sizeof(float);
    }
    input = trainer_input_bytes(t, t->micro);
    device_free(t->device, t->scratch); /* of the cached teacher */
    device_free(t->device, t->input);
    t->scratch = t->input = NULL;
    if (!(t->scratch = allocate(t, MEMORY_WORKSPACE, scratch, "scratch of the towers", err))) goto fail;
    if (!(t->input = allocate(t, MEMORY_DATA, input, "images", err))) goto fail;
    if (streams->overlap) {
        if (!(t->next_input = allocate(t, MEMORY_DATA, input, "images of the next step", err)) ||
            streams->create(t->device, &t->copies, err) || streams->event_create(t->device, &t->taken, err) ||
            streams->event_create(t->device, &t->arrived, err))
            goto fail;
    }
    if (!(t->dout = allocate(t, MEMORY_WORKSPACE, outs, "gradient of the output", err))) goto fail;
    if (t->objective->labels &&
        !(t->labels = allocate(t, MEMORY_DATA, 3 * (size_t)t->micro * sizeof *t->labels, "labels", err)))
        goto fail;
    if (t->config->model_s.drop_path > 0) {
        size_t factors = 2 * (size_t)(t->student_shape.depth * t->micro);
        if (!(t->keep = allocate(t, MEMORY_DATA, factors * sizeof *t->keep, "factors of drop path", err)))
            goto fail;
        t->host_keep = xcalloc(factors, sizeof *t->host_keep);
    }
    if (t->objective->teacher && !t->teacher &&
        !(t->target = allocate(t, MEMORY_WORKSPACE, outs, "targets", err)))
        goto fail;
    if (!(t->sums = allocate(t, MEMORY_WORKSPACE, step_sums_bytes(t), "loss", err))) goto fail;
    if (!(t->host_sums = streams->host_allocate(t->device, step_sums_bytes(t)))) {
        error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %zu bytes of losses", step_sums_bytes(t));
        goto fail;
    }
    memset(t->host_sums, 0, step_sums_bytes(t));
    t->host_target = xcalloc((size_t)(t->micro * t->student->out_width), sizeof *t->host_target);
    if (t->dp && dp_buffers(t, err)) goto fail;
    tower_bind_scratch(t->student, t->scratch);
    if (t->teacher) tower_bind_scratch(t->teacher, t->scratch);
    return 0;
fail: /* trainer_close frees the buffers */
    return err->code;
}

enum { CACHE_WINDOW = 1 << 18 }; /* least bytes of the teacher's outputs that a rank sends at once */

static void close_teacher(struct trainer *t)
{
    weight_stream_close(t->teacher_stream);
    tower_close(t->teacher);
    t->teacher_stream = NULL;
    t->teacher = NULL;
}

/* Computes the teacher's outputs and frees the teacher. */
static int cache_outputs(struct trainer *t, fill_cache cache, void *context, struct error *err)
{
    t->scratch = allocate(t, MEMORY_WORKSPACE, t->teacher->scratch_bytes, "scratch of the towers", err);
    if (t->scratch)
        t->input =
            allocate(t, MEMORY_DATA, model_shape_input_bytes(&t->teacher_shape, t->micro), "images", err);
    if (!t->input) return err->code;
    tower_bind_scratch(t->teacher, t->scratch);
    int64_t rows = t->micro * t->teacher->out_rows * t->teacher->out_width * (int64_t)sizeof(float);
    int code = comm_reserve(&t->ranks, rows < CACHE_WINDOW ? CACHE_WINDOW : rows, err);
    if (code) return code;
    if (cache) code = cache(context, t, err);
    else
        code = tower_forward_bound(t->teacher, &(struct batch){.input = t->input, .count = t->micro},
                                   err); /* a plan */
    if (!code) code = device_check(t->device, err);
    close_teacher(t);
    return code;
}

static struct distill_options loss_options(const struct config *c)
{
    static const enum loss_kind kinds[] = {
        [LOSS_TYPE_MSE] = LOSS_MSE, [LOSS_TYPE_COSINE] = LOSS_COSINE, [LOSS_TYPE_SMOOTH_L1] = LOSS_SMOOTH_L1};
    return (struct distill_options){kinds[c->loss.type], c->loss.normalize == 1,
                                    c->loss.reduction == LOSS_REDUCTION_SUM_DIM};
}

int trainer_create(struct trainer **trainer, struct config *config, struct device *device, bool random,
                   fill_cache cache, void *context, struct error *err)
{
    return trainer_create_distributed(trainer, config, device, random, NULL, cache, context, err);
}

/* Connects the ranks before anything that takes long, so that a missing rank is reported at once. */
static int connect_ranks(struct trainer *t, const struct comm_options *ranks, struct error *err)
{
    static const struct comm_options alone = {.size = 1, .shared = -1};
    if (!ranks) ranks = &alone;
    if (ranks->size == 1 && (t->device->host_memory || !dp_enabled(t->config, 1))) {
        comm_self(&t->ranks, t->device);
        return 0;
    }
    if (t->device->kind == DEVICE_DRY) return comm_dry(&t->ranks, ranks->rank, ranks->size, t->device, err);
    static const enum comm_kind kinds[] = {[DIST_BACKEND_AUTO] = COMM_AUTO,
                                           [DIST_BACKEND_LOCAL] = COMM_LOCAL,
                                           [DIST_BACKEND_MPI] = COMM_MPI,
                                           [DIST_BACKEND_NCCL] = COMM_NCCL};
    struct comm_options o = *ranks;
    if (o.kind == COMM_AUTO) o.kind = kinds[t->config->dist.backend];
    return comm_open(&t->ranks, &o, t->device, err);
}

/* Sets the images per step of this rank and of all ranks, the micro-batch and the number of passes. */
static int plan_step(struct trainer *t, struct error *err)
{
    const struct config *c = t->config;
    if (dp_enabled(c, t->ranks.size)) return dp_plan(t, err);
    t->batch = t->images = c->train.batch_size;
    t->micro = config_accumulates(c) ? c->train.micro_batch : t->batch;
    t->twice =
        t->release && t->micro == t->batch && config_clips(c) && c->optim.clip_mode == OPTIM_CLIP_MODE_EXACT;
    return 0;
}

/* Returns the operations of a step per image: forward, and backward of the blocks that are trained. */
static double step_flops(const struct trainer *t)
{
    const struct tower *s = t->student;
    const struct model_shape *g = &t->student_shape;
    double head = 2.0 * (double)(g->out * s->options.target * s->out_rows),
           share = s->lowest > 0 ? (double)(g->depth + 1 - s->lowest) / (double)g->depth : 1,
           forward = model_shape_forward_flops(g) + head, flops = (1 + share * (t->twice ? 4 : 2)) * forward;
    if (s->options.recompute == RECOMPUTE_BLOCK) flops += share * model_shape_recompute_flops(g, t->twice);
    if (s->options.saved == SAVED_8BIT) flops += share * (t->twice ? 2 : 1) * model_shape_attention_flops(g);
    return flops;
}

int trainer_create_distributed(struct trainer **trainer, struct config *config, struct device *device,
                               bool random, const struct comm_options *ranks, fill_cache cache, void *context,
                               struct error *err)
{
    struct error local;
    if (!err) err = &local;
    struct weights *teacher_weights = NULL, *student_weights = NULL;
    struct trainer *t = xcalloc(1, sizeof *t);
    *trainer = NULL;
    t->config = config;
    t->objective = objective_of(config);
    t->device = device;
    int code = connect_ranks(t, ranks, err);
    if (!code)
        code = trainer_shapes(config, random, &t->teacher_shape, &t->student_shape, &teacher_weights,
                              &student_weights, err);
    if (code) goto fail;
    t->release = config->optim.gradients == OPTIM_GRADIENTS_RELEASE;
    if ((code = plan_step(t, err)) != 0) goto fail;
    t->loss = loss_options(config);
    if ((code = check_combination(t, err)) != 0) goto fail;
    if (t->objective->teacher && (code = create_teacher(t, teacher_weights, err)) != 0) goto fail;
    if (config->train.cache_teacher && (code = cache_outputs(t, cache, context, err)) != 0) goto fail;
    if ((code = create_student(t, student_weights, err)) != 0) goto fail;
    t->student_flops = step_flops(t);
    if ((code = create_buffers(t, err)) != 0) goto fail;
    weights_close(teacher_weights);
    weights_close(student_weights);
    *trainer = t;
    return 0;
fail:
    weights_close(teacher_weights);
    weights_close(student_weights);
    if (code != EXIT_STOPPED) comm_fail(&t->ranks, code, err);
    trainer_close(t);
    return code;
}

void trainer_close(struct trainer *t)
{
    if (!t) return;
    t->device->streams->destroy(t->device, t->copies); /* waits for prefetches that were not used */
    t->device->streams->event_destroy(t->device, t->taken);
    t->device->streams->event_destroy(t->device, t->arrived);
    dp_close(t);
    meopt_destroy(t->opt);
    weight_stream_close(t->student_stream);
    tower_close(t->student);
    close_teacher(t);
    device_free(t->device, t->scratch);
    device_free(t->device, t->input);
    device_free(t->device, t->next_input);
    device_free(t->device, t->target);
    device_free(t->device, t->labels);
    device_free(t->device, t->keep);
    free(t->host_keep);
    device_free(t->device, t->dout);
    device_free(t->device, t->sums);
    t->device->streams->host_free(t->device, t->host_sums);
    free(t->host_target);
    comm_close(&t->ranks);
    free(t->cache);
    free(t->cached);
    free(t->tensor_of);
    free(t->parameter_of);
    free(t->fallback_weights);
    free(t->tensors);
    free(t->gradients);
    free(t);
}
