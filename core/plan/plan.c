/* Plans: see plan.h. */
#include "core/plan/plan.h"
#include "core/base/path.h"
#include "core/step/step.h"
#include "core/step/knn.h"
#include "core/step/probe.h"
#include "core/plan/memory_explain.h"
#include "core/experiment/experiment.h"
#include "core/experiment/preprocess.h"
#include "core/step/weight_stream.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool readable(const struct config_tower *tower)
{
    return tower->weight[0] && access(tower->weight, R_OK) == 0;
}

/* Returns the bytes that this stage sends in a pass of `samples`. */
static int64_t streams_sent(const struct tower *s, int64_t samples)
{
    int64_t bytes = 0;
    for (int g = 0; g < s->group_count; g++) {
        bool sent = tower_owns(s, g) && (g + 1 == s->group_count || !tower_owns(s, g + 1));
        bytes += sent ? pipeline_stream_bytes(s, samples) : 0;
    }
    return bytes;
}

/* Counts the bytes per step that ranks exchange (step_ranks.c), as whole arrays: gradients, reduced in every
 * round, and gathered sums or weights. */
static void count_exchanged(struct plan *p, const struct trainer *t)
{
    const struct config *c = t->config;
    int64_t forwards = schedule_waves(&t->schedule), passes = schedule_passes(&t->schedule),
            rounds = t->dp ? t->schedule.rounds : 1, sent = 0, weights = 0, frozen = 0, begun = 0, own = 0;
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *q = &t->student->parameters[i];
        int64_t bytes = q->count * (int64_t)dtype_bytes(q->weight_type);
        if (!tower_owns_parameter(t->student, q)) continue;
        own += q->trained ? q->count : 0;
        if (q->group < t->student->lowest && !q->resident) begun += bytes * (passes - 1);
        if (!q->trained && !q->resident) frozen += bytes; /* read by forward passes only */
        if (!q->trained) continue;
        int64_t gradient = q->count * (int64_t)dtype_bytes(q->grad_type);
        p->gradient_bytes += gradient;
        sent += c->dist.reduce == DIST_REDUCE_LIBRARY ? q->count * (int64_t)sizeof(float) : gradient;
        weights += bytes;
    }
    int64_t shard_bytes = (weights * passes + frozen) * forwards;
    if (tower_has_adapters(t->student)) /* blocks are read by backward passes as well */
        shard_bytes = (frozen * passes - begun) * forwards + weights;
    p->reduced_bytes = sent * rounds * (passes - 1);
    p->gathered_bytes = c->dist.shard == DIST_SHARD_PARAMETERS  ? shard_bytes
                        : c->dist.shard == DIST_SHARD_OPTIMIZER ? weights
                                                                : own * 4;
    if (!t->stages) return;
    p->stream_bytes = passes * streams_sent(t->student, t->batch); /* to the next stage, and back */
    for (int i = 0; i < t->teacher_count && trainer_teaches(t); i++)
        p->stream_bytes += streams_sent(t->teachers[i].tower, t->batch);
}

/* Times in operations of a GEMM: to store a value in 8 bits and read it back (tests/bench/RESULTS.md, "Saved
 * activations in 8 bits"), and, for each value of the head's matrix, to read it and add to its gradient for
 * one more part of rows (512 x 768 x 50257: 2 parts 2 %, 4 parts 5 % of the loss's time). */
enum { CODING_FLOPS = 400, PART_FLOPS = 130 };
static double coding_flops(const struct trainer *t)
{
    const struct model_shape *g = &t->student_shape;
    int64_t values = g->hidden * (g->ffn == 1 + ACTIVATION_SWIGLU ? 2 : 1),
            passes = step_micro_batches(t) * (schedule_passes(&t->schedule) - 1),
            parts = passes * (tower_logit_row_parts(t->student) - 1);
    double flops = PART_FLOPS * (double)parts * (double)(g->width * g->vocabulary);
    if (t->student->options.saved == SAVED_8BIT)
        flops +=
            CODING_FLOPS * (double)t->batch * (double)(g->depth * model_shape_tokens(g)) * (double)values;
    return flops;
}

/* Counts streamed bytes: the forward pass of each wave reads a tower; so do the student's backward passes and
 * its update, which also writes it. */
static void count_streamed(struct plan *p, const struct trainer *t)
{
    int64_t forwards = (step_micro_batches(t) + t->schedule.wave - 1) / t->schedule.wave, /* of this rank */
        passes = schedule_passes(&t->schedule);
    bool frozen = tower_has_adapters(t->student), apart = forwards > 1; /* the update follows the passes */
    for (int i = 0; i < t->teacher_count; i++)
        p->streamed_teacher_bytes += forwards * (int64_t)weight_stream_bytes(t->teachers[i].stream);
    p->streamed_student_bytes =
        (forwards * passes + (frozen ? 0 : 1 + apart)) * (int64_t)weight_stream_bytes(t->student_stream);
}

/* Returns the size of a checkpoint: fp32 weights, and the records of all ranks, extrapolated from this
 * rank's. */
static int64_t checkpoint_bytes(const struct trainer *t, const struct meopt_bytes *held, const struct plan *p)
{
    double records = 0;
    for (int i = 0; i < t->tensors.count; i++) records += (double)meopt_state_bytes(t->opt, (size_t)i);
    if (dp_sharded(t) && held->parameters)
        records *= (double)p->trained_parameters / (double)held->parameters;
    bool adapters = tower_has_adapters(t->student);
    return (int64_t)sizeof(float) * (adapters ? p->trained_parameters : p->student_parameters) +
           (int64_t)records;
}

double plan_step_operations(const struct plan *p) { return p->step_flops + p->update_flops; }

double plan_update_share(const struct plan *p)
{
    double all = plan_step_operations(p);
    return all > 0 ? p->update_flops / all : 0;
}

double plan_teacher_flops(const struct plan *p)
{
    double flops = 0;
    for (int i = 0; i < p->teacher_count; i++) flops += model_shape_forward_flops(&p->teachers[i]);
    return flops / (p->stages > 1 ? p->stages : 1);
}

/* Returns the share of a tower's matrices that this rank of a tensor group multiplies by. */
static double tensor_share(const struct tower *tower)
{
    double own = 0, all = 0;
    for (int i = 0; i < tower->parameter_count; i++) {
        const struct parameter *p = &tower->parameters[i];
        if (!p->matrix) continue;
        all += (double)p->count;
        own += tower_owns_slice(tower, p) ? (double)p->count : 0;
    }
    return all > 0 ? own / all : 1;
}

/* Returns the part of a pass in which a stage waits for the others, in ticks of step_pipeline.c. With fewer
 * micro-batches than stages the groups of one, one after the other, take longer than the work of a stage. */
static double bubble_of(const struct trainer *t, const struct tower *tower)
{
    double stages = t->stages ? t->stages->size : 1, groups = tower->group_count, ticks = 0,
           works = (double)t->schedule.rounds * groups / stages;
    for (int64_t left = t->schedule.rounds; left > 0; left -= t->schedule.wave) {
        double wave = (double)(left < t->schedule.wave ? left : t->schedule.wave);
        ticks += fmax(wave * groups / stages + stages - 1, wave + groups - 1);
    }
    return 1 - works / (stages > 1 ? ticks : works);
}

void plan_without_block(char *dst, size_t size, const char *name)
{
    size_t n = 0;
    for (const char *p = name; *p && n + 2 < size;) {
        bool number = isdigit((unsigned char)*p) && p > name && p[-1] == '.';
        size_t digits = number ? strspn(p, "0123456789") : 0;
        if (digits && p[digits] == '.') {
            dst[n++] = '*';
            p += digits;
        } else {
            dst[n++] = *p++;
        }
    }
    dst[n] = 0;
}

/* Adds up the tensors of each rule, and lists their names once. */
static void count_rules(struct plan *p, const struct trainer *t)
{
    for (int i = 0; i < t->tensors.count; i++) {
        const struct parameter *q = &t->student->parameters[t->tensors.parameter[i]];
        struct plan_rule *r = &p->rules[meopt_tensor_rule(t->opt, (size_t)i)];
        char name[EXPLAIN_NAME + 4];
        r->tensors++;
        r->parameters += q->count;
        plan_without_block(name, EXPLAIN_NAME, q->name);
        const char *at = strstr(r->names, name);
        size_t n = strlen(name), used = strlen(r->names);
        while (at && ((at > r->names && at[-1] != ' ') || (at[n] && at[n] != ','))) at = strstr(at + 1, name);
        if (!at) snprintf(r->names + used, sizeof r->names - used, "%s%s", used ? ", " : "", name);
    }
}

/* Computes the bytes of offloaded states that a step writes and reads. Those of muon are moved twice, and a
 * first pass for norms reads. */
static void count_offloaded(struct plan *p, const struct trainer *t)
{
    struct meopt_offload_info away = {.size = sizeof away};
    (void)meopt_offloaded(t->opt, &away, NULL);
    int64_t all = away.moments + away.corrections, matrices = 0, without_norms = 0;
    for (int i = 0; i < t->tensors.count; i++) {
        struct meopt_tensor_info info;
        int rule = meopt_tensor_rule(t->opt, (size_t)i);
        if (!meopt_tensor_offloaded(t->opt, (size_t)i) || meopt_info(t->opt, (size_t)i, &info)) continue;
        int64_t bytes = (int64_t)(info.bytes.moments + info.bytes.correction);
        if (RULE_HAS(rule, WITH_MATRICES)) matrices += bytes;
        if (!RULE_HAS_NORMS(rule)) without_norms += bytes;
    }
    p->offload_written_bytes = all + matrices;
    p->offload_read_bytes = p->offload_written_bytes + all - without_norms;
}

static void count(struct plan *p, const struct trainer *t)
{
    const struct config *c = t->config;
    p->teacher_count = t->teacher_count;
    for (int i = 0; i < t->teacher_count; i++) {
        p->teachers[i] = t->teachers[i].shape;
        p->teacher_parameters += model_shape_parameters(&p->teachers[i]);
    }
    p->student = t->student_shape;
    p->two = preprocess_two(c);
    p->has_teacher = t->objective->teacher;
    for (int i = 0; i <= TOWER_STUDENT && !t->objective->tokens; i++)
        if (i < t->teacher_count || i == TOWER_STUDENT)
            preprocess_text(c, i, p->images[i], sizeof p->images[i]);
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *q = &t->student->parameters[i];
        p->student_parameters += q->count;
        if (!q->trained) continue;
        p->trained_parameters += q->count;
    }
    count_exchanged(p, t);
    count_streamed(p, t);
    p->batch = t->dp ? dp_most_images(t) : t->batch;
    p->micro = t->micro;
    p->breadth = t->schedule.breadth;
    p->wave = t->schedule.wave;
    p->twice = t->schedule.twice;
    p->exact = trainer_clips_exactly(t);
    p->stages = t->stages ? t->stages->size : 1;
    p->tensor = t->tensor ? t->tensor->size : 1;
    double student = t->student_flops * tensor_share(t->student) / p->stages, teacher = plan_teacher_flops(p);
    p->first_epoch_step_flops = (double)p->batch * (student + teacher);
    p->step_flops = c->train.cache_teacher ? (double)p->batch * student : p->first_epoch_step_flops;
    teacher *= pipeline_divides_teacher(t);
    double whole = student / (1 - bubble_of(t, t->student));
    if (teacher > 0) whole += teacher / (1 - bubble_of(t, t->teachers[0].tower));
    p->bubble = 1 - (student + teacher) / whole;
    p->coding_flops = coding_flops(t);
    struct meopt_bytes held = {0};
    (void)meopt_held(t->opt, &held);
    count_offloaded(p, t);
    p->checkpoint_bytes = checkpoint_bytes(t, &held, p);
    p->update_bytes = 2.0 * (double)(held.weights + held.copy / 2 + held.correction + held.moments) +
                      (double)p->gradient_bytes;
    count_rules(p, t);
    p->update_flops = t->update_flops;
    if (t->knn) p->knn_bytes = (int64_t)knn_bytes(t->knn->capacity, t->knn->width, t->knn->batch);
    if (t->probe) p->probe_bytes = (int64_t)probe_bytes(t->probe->width, t->probe->classes, t->probe->batch);
    if (c->train.cache_teacher) p->cache_bytes_per_image = step_cached_bytes(t);
}

/* Runs the operations of a micro-batch, so that their scratch memory is counted. */
static int dry_step(struct trainer *t, int backwards, struct error *err)
{
    struct device *dev = t->device;
    int finite = 1, code = step_dry(t, backwards, err);
    if (!t->dp &&
        (!t->release || t->micro == t->batch)) /* the optimizer computes the norm of its accumulators */
        dev->ops->sum_squares(dev, t->sums, DTYPE_F32, 1, t->sums + 2, &finite);
    if (!code && t->knn && t->student->out) code = knn_dry(t->knn, t->student, t->micro, err);
    return code ? code : device_check(dev, err);
}

int plan_count_operations(const struct trainer *t, struct op_count *count, struct error *err)
{
    double micro_batches = (double)step_micro_batches(t);
    op_count_begin(count, t->device);
    /* of a dry device: changes nothing */
    int code = dry_step((struct trainer *)(uintptr_t)t, schedule_passes(&t->schedule) - 1, err);
    op_count_end(count, t->device);
    count->flops *= micro_batches, count->bytes *= micro_batches;
    count->compute_s *= micro_batches, count->memory_s *= micro_batches;
    return code;
}

/* Returns whether the keys alone determine the model shapes. */
static bool model_shape_known(struct config *config)
{
    struct experiment_towers towers;
    struct error ignored;
    return experiment_towers(config, true, &towers, &ignored) == 0;
}

int plan_make(struct plan *plan, const struct config *config, struct error *err)
{
    return plan_make_distributed(plan, config, NULL, err);
}

int plan_make_distributed(struct plan *plan, const struct config *config, const struct comm_options *ranks,
                          struct error *err)
{
    return plan_make_inspect(plan, config, ranks, NULL, NULL, err);
}

struct inspection {
    plan_inspect *inspect; /* may be NULL */
    void *context;
};
/* Runs the operations of the teacher's pass (fill_cache). */
static int dry_teacher(void *context, struct trainer *t, struct error *err)
{
    const struct inspection *i = context;
    int code = targets_compute(t, t->micro, NULL, err);
    for (int k = 0; k < t->targets.count && t->filling == FILL_MAPS && !code; k++) {
        double none[1];
        int64_t rows = 0;
        if (targets_are_mapped(t, k)) code = targets_add_moments(t, k, t->micro, none, none, &rows, err);
    }
    if (!code && i->inspect) i->inspect(i->context, t);
    return code;
}

/* Returns a tower that is read from a file; NULL: it is random, or there is none of that number. */
static const struct config_tower *from_file(const struct config *c, int tower)
{
    const struct config_tower *t = tower == TOWER_STUDENT ? &c->model_s : &c->model_t[tower];
    bool there = tower == TOWER_STUDENT || (objective_of(c)->teacher && tower < config_teachers(c));
    return there && t->init != TOWER_INIT_RANDOM ? t : NULL;
}

/* Whether there are such towers, and all their files can be read. */
static bool has_checkpoints(const struct config *c)
{
    bool any = false, all = true;
    for (int i = 0; i <= TOWER_STUDENT; i++) {
        const struct config_tower *tower = from_file(c, i);
        any = any || tower;
        all = all && (!tower || readable(tower));
    }
    return any && all;
}

/* Checks the files that are there, although others are missing. */
static int check_existing(struct config *c, struct error *err)
{
    int code = 0;
    for (int i = 0; i <= TOWER_STUDENT && !code; i++) {
        const struct config_tower *tower = from_file(c, i);
        if (tower && readable(tower)) code = experiment_check_weights(c, i, err);
    }
    return code;
}

static int plan_rank(struct plan *plan, const struct config *config, const struct comm_options *ranks,
                     plan_inspect *inspect, void *context, struct error *err)
{
    struct config copy;
    struct device *device = NULL;
    struct trainer *trainer = NULL;
    *plan = (struct plan){.rank = ranks ? ranks->rank : 0};
    config_copy(&copy, config);
    bool needed = objective_of(&copy)->teacher;
    plan->from_checkpoints = has_checkpoints(&copy);
    int code = plan->from_checkpoints ? 0 : check_existing(&copy, err);
    if (code) {
        config_free(&copy);
        return code;
    }
    char spec[32];
    snprintf(spec, sizeof spec, "dry:%s", device_type_names[copy.device.type]);
    code = device_open(&device, spec, 0, err);
    if (code == 0)
        code = trainer_create_distributed(&trainer, &copy, device, !plan->from_checkpoints, ranks,
                                          dry_teacher, &(struct inspection){inspect, context}, err);
    int64_t added = code == 0 && trainer->tensor ? trainer->tensor->tree_bytes : 0;
    if (code == 0) code = dry_step(trainer, 1, err);
    if (code == 0 && trainer->tensor)
        plan->tensor_bytes = (trainer->tensor->tree_bytes - added) * trainer->schedule.rounds;
    if (code == 0) code = trainer_reserve_points(trainer, err);
    if (code && err && !plan->from_checkpoints && (copy.model_t[0].weight[0] || copy.model_s.weight[0]) &&
        copy.model_t[0].arch == TOWER_ARCH_CUSTOM && !model_shape_known(&copy)) {
        bool teacher = needed && !readable(&copy.model_t[0]);
        const char *weight = teacher ? copy.model_t[0].weight : copy.model_s.weight;
        char to[256];
        if (path_is_dead_link(weight, to, sizeof to))
            code = error_set(err, EXIT_CONFIG, "get the file that it names, as with 'git annex get'",
                             "is a symbolic link to %s, which is not there", to);
        else
            code =
                error_set(err, EXIT_CONFIG,
                          needed ? N_("set model_t.arch and model_s.arch, or get the file with 'meopt fetch'")
                                 : N_("set model.arch, or get the file with 'meopt fetch'"),
                          "the %s's checkpoint does not exist, and no key gives its model shape",
                          objective_tower(objective_of(&copy), !teacher));
        error_at(err, weight, 0, 0);
    }
    if (code == 0) {
        plan->use = device->use;
        plan->libraries_assumed = device_assumed(device);
        count(plan, trainer);
        if (inspect) inspect(context, trainer);
    }
    trainer_close(trainer);
    if (device) device_close(device);
    config_free(&copy);
    return code;
}

static void find_largest(void *context, const struct trainer *t)
{
    if (t->student) *(int *)context = dp_largest_rank(t);
}

/* Plans the rank with the most memory: of each stage and tensor index the first one, whose vectors have the
 * largest states per element, or the rank with the most elements. */
static int largest_rank(const struct config *config, const struct comm_options *ranks, struct plan *plan,
                        struct error *err)
{
    struct comm_options one = *ranks;
    struct plan first;
    int each = config_replica_ranks(config), code = 0;
    for (int place = 0; place < each && !code; place++) {
        one.rank = place;
        code = plan_rank(&first, config, &one, find_largest, &one.rank, err);
        if (!place || first.use.peak_total_bytes > plan->use.peak_total_bytes) *plan = first;
        if (code || one.rank == place) continue;
        code = plan_rank(&first, config, &one, NULL, NULL, err);
        if (first.use.peak_total_bytes > plan->use.peak_total_bytes) *plan = first;
    }
    return code;
}

int plan_make_inspect(struct plan *plan, const struct config *config, const struct comm_options *ranks,
                      plan_inspect *inspect, void *context, struct error *err)
{
    if (!ranks || ranks->rank != PLAN_LARGEST) return plan_rank(plan, config, ranks, inspect, context, err);
    int code = largest_rank(config, ranks, plan, err);
    if (code || !inspect) return code;
    struct comm_options one = *ranks;
    one.rank = plan->rank;
    return plan_rank(plan, config, &one, inspect, context, err);
}

int plan_evaluation(const struct config *config, bool random, size_t *peak_bytes, struct error *err)
{
    struct config copy;
    struct device *device = NULL;
    struct trainer *t = NULL;
    char spec[32];
    config_copy(&copy, config);
    snprintf(spec, sizeof spec, "dry:%s", device_type_names[copy.device.type]);
    int code = device_open(&device, spec, 0, err);
    if (!code) code = trainer_create_evaluation(&t, &copy, device, random, err);
    struct batch batch = {.count = t ? t->micro : 0, .input = t ? t->input : NULL};
    const float *target = NULL;
    if (!code && trainer_teaches(t)) code = targets_compute(t, t->micro, &target, err);
    if (!code) {
        batch.input = trainer_student_input(t);
        code = tower_forward_bound(t->student, &batch, err);
    }
    if (!code) t->objective->evaluate(t, &batch, target, 0, t->micro, t->sums);
    *peak_bytes = code ? 0 : device->use.peak_total_bytes;
    trainer_close(t);
    if (device) device_close(device);
    config_free(&copy);
    return code;
}

double plan_sent_bytes(const struct plan *plan, int ranks)
{
    double all = (double)plan->reduced_bytes + (double)plan->gathered_bytes,
           tensor = plan->tensor > 1 ? plan->tensor : 1, stages = plan->stages > 1 ? plan->stages : 1,
           replicas = (double)ranks / stages / tensor;
    return (double)plan->stream_bytes + 2 * (tensor - 1) / tensor * (double)plan->tensor_bytes +
           (replicas > 1 ? (replicas - 1) / replicas * all : 0);
}

/* Plans the peak of `batch` images per forward, in as many rounds as train.global_batch requires. */
static int peak_of(const struct config *config, const struct comm_options *ranks, int64_t batch, size_t *peak,
                   struct error *err)
{
    struct config copy;
    struct plan plan;
    int64_t all = batch * config_replicas(config, ranks ? ranks->size : 1);
    config_copy(&copy, config);
    copy.train.batch_size = batch;
    copy.train.micro_batch = 0;
    copy.train.rounds = TRAIN_ROUNDS_AUTO;
    copy.train.wave = 0;
    if (copy.train.global_batch > 0 && copy.train.global_batch < all) copy.train.global_batch = all;
    int code = plan_make_distributed(&plan, &copy, ranks, err);
    *peak = plan.use.peak_total_bytes;
    config_free(&copy);
    return code;
}

int64_t plan_largest_batch(const struct config *config, const struct comm_options *ranks, size_t limit_bytes,
                           struct error *err)
{
    int64_t fits = 0, high = 1;
    size_t peak;
    for (; high <= 65536; high *= 2) {
        if (peak_of(config, ranks, high, &peak, err)) return -1;
        if (peak > limit_bytes) break;
        fits = high;
    }
    if (high > 65536) return fits;
    while (high - fits > 1) {
        int64_t middle = fits + (high - fits) / 2;
        if (peak_of(config, ranks, middle, &peak, err)) return -1;
        if (peak <= limit_bytes) fits = middle;
        else high = middle;
    }
    return fits;
}

int plan_dry_run(struct config *c, struct error *err)
{
    char spec[32];
    struct device *dry = NULL;
    struct trainer *t = NULL;
    struct data *data = NULL;
    struct validation_data val = {0};
    struct image_list list = {0};
    int code = experiment_check_files(c, NULL, NULL, err);
    /* the driver is loaded only if the plan depends on the card */
    bool card = c->optim.offload == OPTIM_OFFLOAD_HOST;
    snprintf(spec, sizeof spec, card ? "dry:%s" : "dry", device_type_names[c->device.type]);
    if (!code) code = device_open(&dry, spec, 0, err);
    if (!code) code = experiment_list_classes(c, &list, err);
    if (!code) code = trainer_create(&t, c, dry, false, NULL, NULL, err);
    trainer_close(t);
    if (dry) device_close(dry);
    if (!code) {
        struct data_options options = experiment_data_options(c);
        options.list = &list;
        code = experiment_open_data(&data, c, NULL, &options, err);
    }
    if (!code) code = experiment_open_validation(&val, c, data, NULL, 0, 1, false, c->train.batch_size, err);
    image_list_free(&list);
    experiment_close_validation(&val);
    data_close(data);
    return code;
}
