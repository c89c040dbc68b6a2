/* Building a trainer: towers, optimizer and buffers of one configuration. The step itself is schedule.c. */
#include "core/step/step.h"
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/experiment/adapters.h"
#include "core/model/parameters.h"
#include "core/experiment/experiment.h"
#include "core/experiment/preprocess.h"
#include "core/step/knn.h"
#include "core/step/probe.h"
#include "core/step/weight_stream.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
            ? N_("'meopt doctor' tries the card, dmesg has the kernel's words; what was saved stays: "
                 "meopt train --resume")
        : library->status == MEOPT_BAD_ARGUMENT ? N_("correct the keys of optim: see meopt-optimizers(7)")
                                                : NULL,
        "optimizer: %s", library->message);
}

enum dtype experiment_tower_type(const struct config_tower *tower)
{
    return tower->dtype == TOWER_DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

/* Returns the student's memory options, from optim.*. */
static struct tower_options student_options(const struct trainer *t)
{
    const struct config *c = t->config;
    enum dtype type = experiment_tower_type(&c->model_s);
    bool bf16 = type == DTYPE_BF16, baseline = !c->optim.use_meopt && !c->optim.pure_bf16;
    bool accumulates = t->micro < t->batch && !t->dp, end;
    int frozen;
    config_frozen(c, t->student_shape.depth, &frozen, &end);
    return (struct tower_options){
        .batch = t->micro,
        .compute = type,
        .weight_type = type,
        .master = bf16 && !dp_sharded(t) && !t->evaluates &&
                  (baseline || c->optim.weights == OPTIM_WEIGHTS_FP32 ||
                   c->optim.weights == OPTIM_WEIGHTS_FP32_COPY),
        .grad_type = bf16 && !baseline && !(accumulates && !t->release) ? DTYPE_BF16 : DTYPE_F32,
        .gradients = t->evaluates          ? GRADIENTS_NONE
                     : t->release || t->dp ? GRADIENTS_RELEASE
                                           : GRADIENTS_KEEP,
        .weight_buffers = c->model_s.place == TOWER_PLACE_STREAMED ? 2 : dp_weight_buffers(t),
        .gradient_buffers = dp_gradient_buffers(t),
        .recompute = c->train.recompute == TRAIN_RECOMPUTE_BLOCK || t->schedule.breadth ? RECOMPUTE_BLOCK
                                                                                        : RECOMPUTE_NONE,
        .saved = c->train.save_activations == TRAIN_SAVE_ACTIVATIONS_8BIT && !t->evaluates ? SAVED_8BIT
                                                                                           : SAVED_MINIMAL,
        .backward_twice = t->schedule.twice,
        .slots = t->schedule.slots,
        .stages = t->stages ? t->stages->size : 0,
        .stage = t->stages ? t->stages->rank : 0,
        .slices_own = t->tensor ? (int)c->model_s.slices / t->tensor->size : 0,
        .slices_first = t->tensor ? (int)c->model_s.slices / t->tensor->size * t->tensor->rank : 0,
        .outputs = targets_of_student(&t->targets),
        .head_loaded = t->evaluates,
        .frozen = frozen,
        .frozen_end = end,
        .loss_chunk = (size_t)c->loss_chunk,
        .weights_class = MEMORY_WEIGHTS,
        .activations_class = MEMORY_ACTIVATIONS,
    };
}

/* Returns a teacher's memory options. The baseline's teacher is fp32 and cast at each use, as with
 * autocast. */
static struct tower_options teacher_options(const struct trainer *t, int number)
{
    const struct config *c = t->config;
    bool baseline = !c->optim.use_meopt && !c->optim.pure_bf16,
         divided = t->stages && pipeline_divides_teacher(t),
         streamed = c->model_t[0].place == TOWER_PLACE_STREAMED;
    enum dtype type = experiment_tower_type(&c->model_t[number]);
    return (struct tower_options){
        .batch = t->micro,
        .compute = type,
        .weight_type = baseline ? DTYPE_F32 : type,
        .gradients = GRADIENTS_NONE,
        .weight_buffers = streamed ? 2 : 0,
        .slots = divided || (streamed && !c->train.cache_teacher) ? t->schedule.slots : 1,
        .stages = divided ? t->stages->size : 0,
        .stage = divided ? t->stages->rank : 0,
        .outputs = targets_of_teacher(&t->targets, number),
        .weights_class = MEMORY_TEACHER,
        .activations_class = MEMORY_TEACHER,
    };
}

static void *allocate(struct trainer *t, enum memory_class class, size_t bytes, const char *name,
                      struct error *err)
{
    return device_alloc(t->device, class, bytes, name, err);
}

static int load_teacher_values(void *context, int index, const float *values, struct error *err)
{
    struct teacher *teacher = context;
    content_add(&teacher->content, &teacher->tower->parameters[index], values);
    return teacher->stream ? weight_stream_write(teacher->stream, index, values, err) : 0;
}

static int load_student_values(void *context, int index, const float *values, struct error *err)
{
    struct trainer *t = context;
    content_add(&t->student_content, &t->student->parameters[index], values);
    return trainer_set_values(t, index, values, err);
}

static int create_teacher(struct trainer *t, int number, const struct weights *weights, struct error *err)
{
    bool dry = t->device->kind == DEVICE_DRY;
    struct tower_options options = teacher_options(t, number);
    struct teacher *teacher = &t->teachers[number];
    int code = tower_create(&teacher->tower, t->device, &teacher->shape, &options, err);
    if (!code && options.weight_buffers)
        code = weight_stream_open(&teacher->stream, teacher->tower, trainer_scratch_directory(t), false, err);
    if (code || dry) return code;
    if (weights) {
        const char *path = t->config->model_t[number].weight;
        content_set_model(&teacher->content, &teacher->shape);
        code = tower_load(teacher->tower, weights, load_teacher_values, teacher, err);
        if (code && err && !err->file[0]) error_at(err, path, 0, 0);
        return code ? code : content_compare_ranks(&t->ranks, "teacher", path, &teacher->content, err);
    }
    uint64_t seed = (uint64_t)t->config->train.seed ^ 0x7465616368657200u;
    return tower_init_random(teacher->tower, seed + (uint64_t)number, false,
                             options.weight_buffers ? weight_stream_write : NULL, teacher->stream, err);
}

static int create_teachers(struct trainer *t, struct weights *const *weights, struct error *err)
{
    int code = 0;
    for (int i = 0; i < t->teacher_count && !code; i++) code = create_teacher(t, i, weights[i], err);
    return code ? code : targets_create(t, err);
}

/* Lists the parameters of checkpoints: with adapters these alone, and of slices the first, for all of
 * them. */
static void list_saved(struct trainer *t)
{
    const struct tower *s = t->student;
    t->saved = xcalloc((size_t)s->parameter_count, sizeof *t->saved);
    for (int i = 0; i < s->parameter_count; i++)
        if (s->parameters[i].slice <= 0 && (!tower_has_adapters(s) || s->parameters[i].trained))
            t->saved[t->saved_count++] = i;
}

static int load_adapters(struct trainer *t, struct error *err)
{
    struct weights *weights = NULL;
    int code = adapters_open(t->config, &weights, err);
    if (!code) code = tower_load_adapters(t->student, weights, trainer_set_values, t, err);
    weights_close(weights);
    return code;
}

static int create_student(struct trainer *t, const struct weights *weights, struct error *err)
{
    bool dry = t->device->kind == DEVICE_DRY;
    struct tower_options options = student_options(t);
    int code = adapters_options(t->config, &t->student_shape, &options.lora, err);
    options.lora.resident = options.weight_buffers > 0;
    if (!code) code = tower_create(&t->student, t->device, &t->student_shape, &options, err);
    if (!code && t->config->model_s.place == TOWER_PLACE_STREAMED)
        code = weight_stream_open(&t->student_stream, t->student, trainer_scratch_directory(t),
                                  trainer_moves_points(t) && !options.lora.rank, err);
    if (code) return code;
    t->schedule.last = t->student->group_count - 1;
    t->schedule.lowest = t->student->lowest;
    list_saved(t);
    for (int i = 0; !code && i < t->student->parameter_count; i++) {
        struct parameter *p = &t->student->parameters[i];
        p->owned = p->hidden && p->trained && RULE_HAS(t->config->optim.name, WITH_MATRICES);
    }
    if (!code && t->dp) code = dp_partition(t, err);
    if (!code && !t->evaluates) code = create_optimizer(t, err);
    if (!code && weights) {
        code = model_shape_fits(&t->student_shape, &options.outputs, weights, err);
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
    if (!code && t->config->lora.adapter[0]) code = load_adapters(t, err);
    return code ? code : dp_gather_weights(t, err);
}

size_t trainer_input_bytes(const struct trainer *t, int64_t count)
{
    const struct model_shape *first = trainer_teaches(t) ? &t->teachers[0].shape : &t->student_shape;
    return t->in.chunk_bytes ? t->in.chunk_bytes : model_shape_input_bytes(first, count);
}

const void *trainer_student_input(const struct trainer *t)
{
    return (const char *)t->input + t->in.student_at;
}

/* Allocates the labels: of images three arrays, of tokens four; their order is for backward alone. An encoder
 * has one more. */
static int create_labels(struct trainer *t, struct error *err)
{
    bool order = t->objective->tokens && !t->evaluates;
    t->in.values_each = t->objective->tokens ? t->student->tokens : 1;
    t->labels_each = t->objective->classes ? 1 : t->in.values_each;
    t->in.label_arrays = 3 + order + t->student->picks;
    size_t count = (size_t)(t->micro * t->in.values_each),
           arrays = (size_t)(t->schedule.slots * t->in.label_arrays);
    if (t->student->picks) t->in.host_picked = xcalloc(2 * count, sizeof *t->in.host_picked);
    if (order) t->in.host_order = xcalloc(2 * count, sizeof *t->in.host_order);
    t->in.labels = allocate(t, MEMORY_DATA, arrays * count * sizeof *t->in.labels, "labels", err);
    return t->in.labels ? 0 : err->code;
}

/* Sets where each tower's images are in a micro-batch: one input serves all towers that have the same. */
static void place_images(struct trainer *t, bool student)
{
    t->in.student_at = t->in.chunk_bytes = 0;
    if (!trainer_teaches(t)) return;
    struct data_options images = experiment_images(t->config, student);
    images.micro = t->micro;
    for (int i = 0; i < t->teacher_count; i++)
        t->teachers[i].input_at =
            (size_t)data_view_at(&images, experiment_view(t->config, i)) * sizeof(float);
    if (student)
        t->in.student_at =
            (size_t)data_view_at(&images, experiment_view(t->config, TOWER_STUDENT)) * sizeof(float);
    if (images.more_views) t->in.chunk_bytes = (size_t)data_chunk(&images) * sizeof(float);
}

/* Memory for the scores of train.eval; the stages of a pipeline without the last block have no features. */
static int create_scores(struct trainer *t, struct error *err)
{
    const struct config *c = t->config;
    bool here = tower_owns(t->student, t->student->group_count - 1);
    int64_t width = model_shape_pooled(&t->student_shape),
            bank = here && config_eval_has(c, TRAIN_EVAL_KNN) ? c->train.knn_bank : 0;
    if (c->train.eval == TRAIN_EVAL_LOSS) return 0;
    int code = knn_create(&t->knn, t->device, bank, width, t->micro, err);
    if (code || !config_eval_has(c, TRAIN_EVAL_PROBE)) return code;
    return probe_create(&t->probe, t->device, here ? width : 0, c->train.probe_classes, t->micro,
                        c->train.probe_l2, err);
}

static int create_buffers(struct trainer *t, struct error *err)
{
    size_t slots = (size_t)t->schedule.slots,
           outs = slots * (size_t)(t->micro * t->student->out_values) * sizeof(float);
    size_t scratch = t->student->scratch_bytes, input;
    const struct device_streams *streams = t->device->streams;
    for (int i = 0; i < t->teacher_count && trainer_teaches(t); i++)
        if (t->teachers[i].tower->scratch_bytes > scratch) scratch = t->teachers[i].tower->scratch_bytes;
    place_images(t, true);
    input = slots * trainer_input_bytes(t, t->micro);
    t->in.more_labels = xcalloc(slots, sizeof *t->in.more_labels);
    device_free(t->device, t->scratch); /* of the cached teacher */
    device_free(t->device, t->input);
    t->scratch = t->input = NULL;
    if (!(t->scratch = allocate(t, MEMORY_WORKSPACE, scratch, "scratch of the towers", err))) goto fail;
    if (!(t->input = allocate(t, MEMORY_DATA, input, "images", err))) goto fail;
    if (streams->overlap && !t->evaluates && t->schedule.slots == 1) {
        if (!(t->in.next_input = allocate(t, MEMORY_DATA, input, "images of the next step", err)) ||
            streams->create(t->device, &t->in.copies, err) ||
            streams->event_create(t->device, &t->in.taken, err) ||
            streams->event_create(t->device, &t->in.arrived, err))
            goto fail;
    }
    bool gradient = !t->evaluates && t->student->out;
    if (gradient && !(t->dout = allocate(t, MEMORY_WORKSPACE, outs, "gradient of the output", err)))
        goto fail;
    if (t->objective->labels && create_labels(t, err)) goto fail;
    if (t->config->model_s.drop_path > 0 && !t->evaluates) {
        size_t factors = 2 * (size_t)(t->student_shape.depth * t->micro);
        if (!(t->in.keep = allocate(t, MEMORY_DATA, slots * factors * sizeof *t->in.keep,
                                    "factors of drop path", err)))
            goto fail;
        t->in.host_keep = xcalloc(factors, sizeof *t->in.host_keep);
    }
    if (t->objective->teacher && targets_are_copied(t) &&
        !(t->in.target = allocate(t, MEMORY_WORKSPACE, outs, "targets", err)))
        goto fail;
    if (!(t->sums = allocate(t, MEMORY_WORKSPACE, step_sums_bytes(t), "loss", err))) goto fail;
    if (!(t->host_sums = streams->host_allocate(t->device, step_sums_bytes(t)))) {
        error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for %zu bytes of losses", step_sums_bytes(t));
        goto fail;
    }
    memset(t->host_sums, 0, step_sums_bytes(t));
    if (create_scores(t, err)) goto fail;
    if (t->objective->teacher)
        t->in.host_target = xcalloc((size_t)(t->micro * targets_values(t)), sizeof *t->in.host_target);
    if (t->dp && dp_buffers(t, err)) goto fail;
    if (t->stages) pipeline_create(t);
    if (t->tensor && slice_ranks_bind(t, err)) goto fail;
    tower_bind_scratch(t->student, t->scratch);
    for (int i = 0; i < t->teacher_count && trainer_teaches(t); i++)
        tower_bind_scratch(t->teachers[i].tower, t->scratch);
    return 0;
fail: /* trainer_close frees the buffers */
    return err->code;
}

enum { CACHE_WINDOW = 1 << 18 }; /* least bytes of the teacher's outputs that a rank sends at once */

static void close_teachers(struct trainer *t)
{
    for (int i = 0; i < t->teacher_count; i++) {
        weight_stream_close(t->teachers[i].stream);
        tower_close(t->teachers[i].tower);
        t->teachers[i].stream = NULL;
        t->teachers[i].tower = NULL;
    }
}

static int fill_maps(struct trainer *t, fill_cache fill, void *context, struct error *err)
{
    bool mapped = false;
    for (int i = 0; i < t->targets.count; i++) mapped = mapped || targets_are_mapped(t, i);
    t->filling = FILL_MAPS;
    return mapped && fill ? fill(context, t, err) : 0;
}

/* Computes the teachers' outputs and frees the teachers. */
static int cache_outputs(struct trainer *t, fill_cache cache, void *context, struct error *err)
{
    size_t scratch = 0, values = (size_t)(t->micro * targets_values(t)) * sizeof(float);
    for (int i = 0; i < t->teacher_count; i++)
        if (t->teachers[i].tower->scratch_bytes > scratch) scratch = t->teachers[i].tower->scratch_bytes;
    place_images(t, false);
    t->scratch = allocate(t, MEMORY_WORKSPACE, scratch, "scratch of the towers", err);
    if (t->scratch) t->input = allocate(t, MEMORY_DATA, trainer_input_bytes(t, t->micro), "images", err);
    if (t->input && targets_are_copied(t) &&
        !(t->in.target = allocate(t, MEMORY_WORKSPACE, values, "targets", err)))
        return err->code;
    if (!t->input) return err->code;
    for (int i = 0; i < t->teacher_count; i++) tower_bind_scratch(t->teachers[i].tower, t->scratch);
    int code = comm_reserve(&t->ranks, values < CACHE_WINDOW ? CACHE_WINDOW : (int64_t)values, err);
    if (code) return code;
    code = fill_maps(t, cache, context, err);
    t->filling = FILL_CACHE;
    if (code) return code;
    if (cache) code = cache(context, t, err);
    else code = targets_compute(t, t->micro, NULL, err); /* a plan */
    if (!code) code = device_check(t->device, err);
    close_teachers(t);
    device_free(t->device, t->in.target);
    t->in.target = NULL;
    return code;
}

/* Connects the ranks before anything that takes long, so that a missing rank is reported at once. */
static int connect_ranks(struct trainer *t, const struct comm_options *ranks, struct error *err)
{
    static const struct comm_options alone = {.size = 1, .shared = -1};
    struct comm_options replica = {.size = config_replica_ranks(t->config), .shared = -1};
    bool planned = t->device->kind == DEVICE_DRY && !t->evaluates && replica.size > 1;
    if (!ranks) ranks = planned ? &replica : &alone;
    if (ranks->size == 1 && (t->evaluates || t->device->host_memory || !config_shares_steps(t->config, 1))) {
        comm_self(&t->ranks, t->device);
        return 0;
    }
    if (t->device->kind == DEVICE_DRY) return comm_dry(&t->ranks, ranks->rank, ranks->size, t->device, err);
    static const enum comm_kind kinds[] = {[DIST_BACKEND_AUTO] = COMM_AUTO,
                                           [DIST_BACKEND_LOCAL] = COMM_LOCAL,
                                           [DIST_BACKEND_MPI] = COMM_MPI,
                                           [DIST_BACKEND_NCCL] = COMM_NCCL};
    struct comm_options o = *ranks;
    o.library = t->config->dist.reduce == DIST_REDUCE_LIBRARY;
    if (o.kind == COMM_AUTO) o.kind = kinds[t->config->dist.backend];
    return comm_open(&t->ranks, &o, t->device, err);
}

/* Sets the images per step of this rank and of all ranks, the micro-batch and the rounds. */
static void plan_step(struct trainer *t)
{
    const struct config *c = t->config;
    if (t->evaluates) {
        t->batch = t->images = t->micro =
            c->train.micro_batch > 0 ? c->train.micro_batch : c->train.batch_size;
        t->schedule.rounds = 1;
        return;
    }
    const struct step_division d = config_divide_step(c, t->ranks.size);
    t->images = d.samples;
    t->micro = d.micro;
    if (config_shares_steps(c, t->ranks.size)) {
        dp_plan(t, d.count);
        return;
    }
    t->batch = t->images;
    t->schedule.rounds = d.count;
}

/* Returns the operations of Newton-Schulz (core/optim/muon.c) of this rank, as its share of all. */
static double orthogonal_flops(const struct trainer *t)
{
    const struct config *c = t->config;
    double flops = 0;
    bool card = t->device->optim->asynchronous;
    if (!t->opt) return 0;
    for (int i = 0; i < t->tensors.count; i++) {
        const struct parameter *p = &t->student->parameters[t->tensors.parameter[i]];
        if (!RULE_HAS(meopt_tensor_rule(t->opt, (size_t)i), WITH_MATRICES)) continue;
        int64_t all = p->rows[0] ? p->rows[0] + p->rows[1] + p->rows[2] : p->shape[0];
        for (int k = 0; k < 3 && (k == 0 || p->rows[k]); k++) {
            int64_t rows = p->rows[0] ? p->rows[k] : p->shape[0], columns = p->count / all,
                    longer = rows > columns ? rows : columns, shorter = rows + columns - longer;
            bool gram = matrix_uses_gram((int)c->optim.ns_form, longer, shorter, card);
            flops += matrix_flops(gram, (double)c->optim.ns_steps, (double)longer, (double)shorter);
        }
    }
    return flops / (dp_divides_states(t) || t->stages ? t->data->size : 1);
}

double trainer_teacher_flops(const struct trainer *t)
{
    double flops = 0;
    for (int i = 0; i < t->teacher_count && trainer_teaches(t); i++)
        flops += model_shape_forward_flops(&t->teachers[i].shape);
    return flops;
}

/* Counts the operations of a step per image: forward, and backward of the blocks that are trained. */
static void count_flops(struct trainer *t)
{
    const struct tower *s = t->student;
    const struct model_shape *g = &t->student_shape;
    double passes = tower_has_adapters(s) ? 1 : 2; /* of a backward pass, in those of a forward pass */
    double head = targets_head_flops(t),
           share = t->evaluates    ? 0
                   : s->lowest > 0 ? (double)(g->depth + 1 - s->lowest) / (double)g->depth
                                   : 1,
           forward = model_shape_forward_flops(g) + head,
           flops = (1 + share * (t->schedule.twice ? 2 : 1) * passes) * forward;
    flops += share * model_shape_recompute_flops(g, tower_recomputed_blocks(s));
    if (!t->evaluates)
        flops += tower_repeated_logits(s) * 2.0 * (double)(s->out_rows * g->width * g->vocabulary);
    if (s->options.saved == SAVED_8BIT)
        flops += share * (t->schedule.twice ? 2 : 1) * model_shape_attention_flops(g);
    t->student_flops = flops;
    t->update_flops = orthogonal_flops(t);
    t->model_flops = (1 + passes * share) * forward + trainer_teacher_flops(t);
}

static int create(struct trainer **trainer, struct config *config, struct device *device, bool random,
                  bool evaluates, const struct comm_options *ranks, fill_cache cache, void *context,
                  struct error *err)
{
    struct error local;
    if (!err) err = &local;
    struct experiment_towers towers = {.teacher_count = 0};
    struct trainer *t = xcalloc(1, sizeof *t);
    *trainer = NULL;
    t->config = config;
    t->objective = objective_of(config);
    t->device = device;
    t->evaluates = evaluates;
    int code = connect_ranks(t, ranks, err);
    if (!code) code = experiment_towers(config, random, &towers, err);
    if (!code && !evaluates) code = experiment_check_ranks(config, &towers, t->ranks.size, err);
    if (code) goto fail;
    t->teacher_count = towers.teacher_count;
    for (int i = 0; i < t->teacher_count; i++) t->teachers[i].shape = towers.teachers[i];
    t->student_shape = towers.student;
    t->targets = towers.targets;
    if (!evaluates) t->student_shape.slices = (int)config->model_s.slices;
    if ((code = parameters_check_slices(&t->student_shape, t->student_shape.slices, err)) != 0) goto fail;
    t->release = !evaluates && config->optim.gradients == OPTIM_GRADIENTS_RELEASE;
    if ((code = layout_open(t, err)) != 0) goto fail;
    plan_step(t);
    schedule_plan(t);
    if (t->objective->teacher && (code = create_teachers(t, towers.teacher_weights, err)) != 0) goto fail;
    if (config->train.cache_teacher && !evaluates && (code = cache_outputs(t, cache, context, err)) != 0)
        goto fail;
    if ((code = create_student(t, towers.student_weights, err)) != 0) goto fail;
    count_flops(t);
    if ((code = create_buffers(t, err)) != 0 || (code = trainer_reserve_points(t, err)) != 0) goto fail;
    if (trainer_teaches(t) && !evaluates && (code = fill_maps(t, cache, context, err)) != 0) goto fail;
    experiment_close_towers(&towers);
    *trainer = t;
    return 0;
fail:
    experiment_close_towers(&towers);
    if (code != EXIT_STOPPED) comm_fail(&t->ranks, code, err);
    trainer_close(t);
    return code;
}

int trainer_create_distributed(struct trainer **trainer, struct config *config, struct device *device,
                               bool random, const struct comm_options *ranks, fill_cache cache, void *context,
                               struct error *err)
{
    return create(trainer, config, device, random, false, ranks, cache, context, err);
}

int trainer_create(struct trainer **trainer, struct config *config, struct device *device, bool random,
                   fill_cache cache, void *context, struct error *err)
{
    return create(trainer, config, device, random, false, NULL, cache, context, err);
}

int trainer_create_evaluation(struct trainer **trainer, struct config *config, struct device *device,
                              bool random, struct error *err)
{
    return create(trainer, config, device, random, true, NULL, NULL, NULL, err);
}

void trainer_close(struct trainer *t)
{
    if (!t) return;
    t->device->streams->destroy(t->device, t->in.copies); /* waits for prefetches that were not used */
    t->device->streams->event_destroy(t->device, t->in.taken);
    t->device->streams->event_destroy(t->device, t->in.arrived);
    dp_close(t);
    meopt_destroy(t->opt);
    weight_stream_close(t->student_stream);
    tower_close(t->student);
    close_teachers(t);
    targets_close(t);
    if (t->in.slot) step_select(t, 0);
    device_free(t->device, t->scratch);
    device_free(t->device, t->input);
    device_free(t->device, t->in.next_input);
    device_free(t->device, t->in.target);
    device_free(t->device, t->in.labels);
    device_free(t->device, t->in.keep);
    knn_close(t->knn);
    probe_close(t->probe);
    free(t->in.host_keep);
    free(t->in.more_labels);
    free(t->in.host_picked);
    free(t->in.host_order);
    device_free(t->device, t->dout);
    device_free(t->device, t->sums);
    t->device->streams->host_free(t->device, t->host_sums);
    free(t->in.host_target);
    pipeline_close(t);
    slice_ranks_close(t);
    layout_close(t);
    comm_close(&t->ranks);
    if (t->cache.row) close(t->cache.file);
    free(t->cache.rows);
    free(t->cache.row);
    free(t->cache.known);
    free(t->tensors.of);
    free(t->tensors.parameter);
    free(t->saved);
    free(t->fallback_weights);
    free(t->tensors.given);
    free(t->tensors.gradients);
    free(t);
}
