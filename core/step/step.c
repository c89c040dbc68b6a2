/* One optimizer step: see trainer.h. */
#include "core/step/trainer.h"
#include "core/step/step.h"
#include "core/base/file.h"
#include "core/step/weight_stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char step_not_finite[] = "the gradient is not finite";

int step_diverged(struct trainer *t, int64_t step, const char *what, bool moved, struct error *err)
{
    t->diverged = true;
    return error_set(err, EXIT_DIVERGED,
                     "a lower optim.lr, a longer warm-up or optim.clip_grad_norm may help",
                     "step %lld: %s; %s", (long long)step, what,
                     moved ? _("the update was partly applied; weights in memory are discarded")
                           : _("the update was not applied"));
}

/* State of the callbacks of a backward pass that releases gradients. */
struct release {
    struct trainer *t;
    double scale; /* of all groups; by_group: each group has its own, computed on the device */
    bool by_group, accumulate, measure;
    bool moved; /* a group was updated */
    double squares;
    int64_t parameters;
    int64_t step;
    /* not NULL: the head's backward has just computed the loss, which is read before the first update */
    struct step_result *result;
};

/* Doubles per group in t->sums. */
enum { SQUARES = sizeof(struct meopt_grad_stats) / sizeof(double) };

int64_t step_micro_batches(const struct trainer *t) { return (t->batch + t->micro - 1) / t->micro; }

int64_t step_micro_images(const struct trainer *t, int64_t index)
{
    int64_t left = t->batch - index * t->micro;
    return left <= 0 ? 0 : left < t->micro ? left : t->micro;
}

/* Returns the doubles of all micro-batches in t->sums. */
static int64_t loss_sums(const struct trainer *t)
{
    return objective_sums(t->objective) * step_micro_batches(t);
}

size_t step_sums_bytes(const struct trainer *t)
{
    return (size_t)loss_sums(t) * sizeof(double) +
           (size_t)t->student->group_count * sizeof(struct meopt_grad_stats);
}

int step_read_sums(struct trainer *t, int64_t count, struct error *err)
{
    t->device->download(t->device, t->host_sums, t->sums, (size_t)count * sizeof *t->sums);
    return device_check(t->device, err);
}

struct meopt_grad_stats *step_grad_stats(const struct trainer *t, int group)
{
    return (void *)(t->sums + loss_sums(t) + group * SQUARES);
}

/* Computes the statistics of a group's gradients on the device; group -1: of all, stored for group 0. */
static void measure(struct trainer *t, int group)
{
    static const struct meopt_grad_stats none = {0, 1, 0};
    struct meopt_grad_stats *place = step_grad_stats(t, group < 0 ? 0 : group);
    t->device->upload(t->device, place, &none, sizeof none);
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        if (p->trained && (group < 0 || p->group == group))
            t->device->ops->sum_squares(t->device, p->grad, p->grad_type, p->count, &place->squares,
                                        &place->finite);
    }
}

bool step_found_read(const struct trainer *t, int group, double *squares)
{
    struct meopt_grad_stats s;
    memcpy(&s, t->host_sums + loss_sums(t) + group * SQUARES, sizeof s);
    *squares = s.squares;
    return s.finite && isfinite(s.squares);
}
static int64_t sums_to(const struct trainer *t, int group) /* doubles up to and including the group */
{
    return loss_sums(t) + (group + 1) * SQUARES;
}

void step_send_grad_stats(struct trainer *t)
{
    t->device->streams->download(t->device, NULL, t->host_sums, t->sums,
                                 (size_t)sums_to(t, t->student->group_count - 1) * sizeof *t->sums);
}

int64_t step_parameters(const struct trainer *t, int group)
{
    int64_t count = 0;
    for (int i = 0; i < t->student->parameter_count; i++)
        if (t->student->parameters[i].trained && (group < 0 || t->student->parameters[i].group == group))
            count += t->student->parameters[i].count;
    return count;
}

static struct meopt_gradient gradient_of(const struct parameter *p)
{
    return (struct meopt_gradient){p->grad, p->grad_type == DTYPE_BF16 ? MEOPT_BF16 : MEOPT_F32};
}

struct meopt_clip step_clip(const struct trainer *t, double share)
{
    const struct config *c = t->config;
    return (struct meopt_clip){.divide_norm =
                                   RULE_HAS(c->optim.name, WITH_TRUST) ? c->optim.max_grad_norm * share : 0,
                               .max_norm = c->optim.clip_grad_norm * share};
}

double step_clip_scale(const struct trainer *t, double norm, double share)
{
    struct meopt_clip clip = step_clip(t, share);
    return meopt_clip_by(&clip, norm);
}

static double group_share(const struct release *r, int group)
{
    return sqrt((double)step_parameters(r->t, group) / (double)r->parameters);
}

/* Adds up loss and metrics of the step from t->host_sums. */
static int add_losses(struct trainer *t, int64_t step, struct step_result *result, struct error *err)
{
    int code = 0;
    for (int64_t i = 0; i < step_micro_batches(t) && !code; i++)
        code = step_add_sums(t, step, t->host_sums + objective_sums(t->objective) * i, result, err);
    return code;
}

/* The losses of all ranks, which rank 0 adds in the order of the micro-batches. */
struct loss_sum {
    struct trainer *t;
    int64_t step, rounds;
    struct step_result result; /* so far */
};
struct loss_total {
    double loss, metrics[OBJECTIVE_METRICS], diverged; /* diverged: 0 or 1 */
};

static void sum_losses(void *context, const void *gathered, void *out)
{
    struct loss_sum *s = context;
    const double *all = gathered;
    struct loss_total *total = out;
    struct error err;
    int64_t ranks = s->t->data->size, stages = s->t->ranks.size / ranks,
            count = objective_sums(s->t->objective);
    int code = 0;
    for (int64_t p = 0; p < s->rounds * ranks && !code; p++) /* the last round may have no micro-batch */
        code = step_add_sums(s->t, s->step, all + count * (p % ranks * stages * s->rounds + p / ranks),
                             &s->result, &err);
    *total = (struct loss_total){.loss = s->result.loss, .diverged = code != 0};
    for (int i = 0; i < OBJECTIVE_METRICS; i++) total->metrics[i] = s->result.metrics[i].value;
}

int step_sum_losses(struct trainer *t, int64_t step, struct step_result *result, struct error *err)
{
    int64_t own = step_micro_batches(t), rounds = t->dp ? dp_round_count(t) : own,
            count = objective_sums(t->objective);
    struct loss_sum sum = {t, step, rounds, *result};
    struct loss_total total = {0};
    int code = step_read_sums(t, count * own, err);
    if (code) return code;
    double *values = xcalloc((size_t)(count * rounds), sizeof *values);
    memcpy(values, t->host_sums, (size_t)(count * own) * sizeof *values);
    struct comm_fold fold = {.own = values,
                             .bytes = (size_t)(count * rounds) * sizeof *values,
                             .fold = sum_losses,
                             .context = &sum,
                             .result = &total,
                             .result_bytes = sizeof total};
    code = comm_fold(&t->ranks, &fold, err);
    free(values);
    if (code) return code;
    if (total.diverged != 0) return step_diverged(t, step, "the loss is not finite", false, err);
    result->loss = total.loss;
    for (int i = 0; i < OBJECTIVE_METRICS; i++) result->metrics[i].value = total.metrics[i];
    return 0;
}

/* Reads a loss that the head's backward has computed, once and before the first update. */
static int read_loss(struct release *r, struct error *err)
{
    struct step_result *result = r->result;
    r->result = NULL;
    return result ? step_sum_losses(r->t, r->step, result, err) : 0;
}

size_t step_group_gradients(struct trainer *t, int group, bool accumulated)
{
    size_t count = 0;
    for (int i = 0; i < t->student->parameter_count; i++) {
        const struct parameter *p = &t->student->parameters[i];
        if (!p->trained || p->group != group) continue;
        t->tensors[count] = (size_t)t->tensor_of[i];
        t->gradients[count++] = accumulated ? (struct meopt_gradient){NULL, MEOPT_BF16} : gradient_of(p);
    }
    return count;
}

/* Called when a group's gradients are complete: measures, accumulates, or applies them. */
static int on_group(void *context, int group, struct error *err)
{
    struct release *r = context;
    struct trainer *t = r->t;
    struct meopt_error library = {0};
    int code = read_loss(r, err);
    if (code) return code;
    if (r->measure || r->by_group) measure(t, group);
    if (r->measure) return 0;
    size_t count = step_group_gradients(t, group, false);
    int status;
    if (r->accumulate)
        status = meopt_accumulate_tensors(t->opt, t->tensors, t->gradients, count, 1, &library);
    else if (r->by_group) {
        struct meopt_clip clip = step_clip(t, group_share(r, group));
        clip.found = step_grad_stats(t, group);
        status = meopt_step_clipped(t->opt, t->tensors, t->gradients, count, &clip, &library);
    } else status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, r->scale, &library);
    if (status == MEOPT_NOT_FINITE) return step_diverged(t, r->step, library.message, r->moved, err);
    if (!r->accumulate) r->moved = true;
    if (!r->accumulate && t->student_stream) weight_stream_mark_dirty(t->student_stream, group);
    return status ? trainer_library_error(&library, err) : 0;
}

bool trainer_clips_exactly(const struct trainer *t)
{
    return !t->release || t->twice || t->config->optim.clip_mode == OPTIM_CLIP_MODE_EXACT ||
           (!t->dp && t->micro < t->batch);
}

void trainer_clipping(const struct config *config, bool exact, bool twice, char *text, size_t size)
{
    bool release = config->optim.gradients == OPTIM_GRADIENTS_RELEASE;
    const char *mode = _("exact: by this step's norm, which costs nothing where gradients are kept");
    if (!config_clips(config)) mode = "none";
    else if (twice) mode = _("exact: by this step's norm, which a backward pass of its own measures");
    else if (release && exact)
        mode = _("exact: by this step's norm, which costs nothing where gradients are accumulated");
    else if (release && config->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK)
        mode = _(
            "block: each block by its share, as the configuration says; PyTorch's clip_grad_norm_ is exact");
    else if (release)
        mode =
            _("previous: by the norm of the step before; exact with optim.clip_mode=exact (a second backward "
              "pass), optim.gradients=keep or train.micro_batch");
    snprintf(text, size, "%s", mode);
}

void step_loss(struct trainer *t, int64_t index, const struct batch *batch, const float *target)
{
    const struct device_ops *ops = t->device->ops;
    int count = objective_sums(t->objective);
    double *sums = t->sums + count * index;
    size_t outs = (size_t)(batch->count * t->student->out_rows * t->student->out_width);
    ops->fill(t->device, sums, 0, (size_t)count * sizeof *sums);
    if (t->dout) ops->fill(t->device, t->dout, 0, outs * sizeof(float));
    if (t->objective->loss) t->objective->loss(t, batch, target, t->units, sums);
}

int step_forward(struct trainer *t, int64_t index, int64_t done, int64_t count,
                 const struct batch_source *source, struct error *err)
{
    const float *target;
    int code = step_prepare(t, index, count, source, &target, err);
    if (code) return code;
    struct batch batch = step_batch(t, index, count);
    if ((code = tower_forward_bound(t->student, &batch, err)) != 0) return code;
    step_loss(t, index, &batch, target);
    step_prefetch(t, index, done + count, source);
    return device_check(t->device, err);
}

int step_add_sums(struct trainer *t, int64_t step, const double *sums, struct step_result *result,
                  struct error *err)
{
    if (!isfinite(sums[0])) return step_diverged(t, step, "the loss is not finite", false, err);
    result->loss += sums[0];
    for (int i = 0; i < objective_sums(t->objective) - 1; i++)
        result->metrics[i].value += t->units > 0 ? sums[1 + i] / t->units : 0;
    return 0;
}

static int step_kept(struct trainer *t, int64_t step, double lr, struct step_result *result,
                     struct error *err)
{
    struct meopt_error library = {0};
    double squares;
    measure(t, -1);
    int code = step_read_sums(t, sums_to(t, 0), err);
    if (!code) code = add_losses(t, step, result, err);
    if (code) return code;
    if (!step_found_read(t, 0, &squares)) return step_diverged(t, step, step_not_finite, false, err);
    double norm = sqrt(squares);
    for (int i = 0; i < t->tensor_count; i++)
        t->gradients[i] = gradient_of(&t->student->parameters[t->parameter_of[i]]);
    if (meopt_step(t->opt, step, lr, step_clip_scale(t, norm, 1), t->gradients, NULL, &library))
        code = trainer_library_error(&library, err);
    result->grad_norm = norm;
    return code;
}

/* Adds up the squared norms of all groups, in the order of their updates. If clipping is by group, the first
 * group that is not finite prevented the updates of the later ones. */
static int add_squares(struct release *r, struct error *err)
{
    struct trainer *t = r->t;
    int last = t->student->group_count - 1;
    for (int group = last; group >= t->student->lowest; group--) {
        double squares;
        if (!step_found_read(t, group, &squares))
            return step_diverged(t, r->step, step_not_finite, r->by_group && group < last, err);
        r->squares += squares;
    }
    return 0;
}

static int step_released(struct trainer *t, int64_t step, double lr, int64_t count,
                         struct step_result *result, struct error *err)
{
    struct meopt_error library = {0};
    struct meopt_step_stats stats = {0};
    struct release r = {.t = t, .scale = 1, .step = step, .parameters = step_parameters(t, -1)};
    r.result = t->student->owns_loss ? result : NULL;
    bool clip = config_clips(t->config);
    struct batch batch = step_batch(t, 0, count);
    int code = 0;
    if (t->twice) {
        r.measure = true;
        if ((code = tower_backward(t->student, &batch, t->dout, true, true, on_group, &r, err)) != 0)
            return code;
        r.measure = false;
        if ((code = step_read_sums(t, sums_to(t, t->student->group_count - 1), err)) != 0 ||
            (code = add_squares(&r, err)) != 0)
            return code;
        r.scale = step_clip_scale(t, sqrt(r.squares), 1);
    } else if (clip && (t->config->optim.clip_mode == OPTIM_CLIP_MODE_BLOCK || t->previous_norm <= 0)) {
        r.by_group = true; /* also the first step of `previous`, which has no norm yet */
    } else if (clip) {
        r.scale = step_clip_scale(t, t->previous_norm, 1);
    }
    /* both backward passes are bit-identical, and the first was finite */
    if (meopt_step_begin(t->opt, step, lr, t->twice ? 0 : 2, &library))
        return trainer_library_error(&library, err);
    code = tower_backward(t->student, &batch, t->dout, true, true, on_group, &r, err);
    if (r.by_group) step_send_grad_stats(t); /* copied with the results, for which meopt_step_end waits */
    int ended = meopt_step_end(t->opt, &stats, &library);
    if (!code && r.by_group && (!ended || ended == MEOPT_NOT_FINITE)) code = add_squares(&r, err);
    if (!code && ended == MEOPT_NOT_FINITE) code = step_diverged(t, step, step_not_finite, r.moved, err);
    if (!code && ended) code = trainer_library_error(&library, err);
    result->grad_norm = t->twice || r.by_group ? sqrt(r.squares) : stats.grad_norm;
    return code;
}

/* Applies accumulated gradients (modes accumulated and waves): the norm of the accumulators is known before
 * the first update, so clipping is exact. */
int step_accumulated(struct trainer *t, int64_t step, double lr, struct step_result *result,
                     struct error *err)
{
    struct meopt_error library = {0};
    struct meopt_step_stats stats = {0};
    double norm;
    int finite, code;
    t->device->streams->download(t->device, NULL, t->host_sums, t->sums,
                                 (size_t)loss_sums(t) * sizeof *t->sums);
    if (meopt_gradient_norm(t->opt, NULL, &norm, &finite, &library)) /* also waits for the copy */
        return trainer_library_error(&library, err);
    if ((code = add_losses(t, step, result, err)) != 0) return code;
    if (!finite) return step_diverged(t, step, step_not_finite, false, err);
    double scale = step_clip_scale(t, norm, 1);
    if (meopt_step_begin(t->opt, step, lr, 1, &library)) return trainer_library_error(&library, err);
    bool streamed = t->student_stream && !t->student->options.lora.rank; /* else in memory: all at once */
    int last = t->student->group_count - 1, lowest = streamed ? t->student->lowest : last, status = MEOPT_OK;
    for (int group = last; group >= lowest && !status && !code; group--) {
        size_t count = 0;
        if (streamed)
            code = weight_stream_fetch(t->student_stream, group, group > lowest ? group - 1 : -1, err);
        for (int i = 0; i < t->tensor_count && !code; i++) {
            if (streamed && t->student->parameters[t->parameter_of[i]].group != group) continue;
            t->tensors[count] = (size_t)i;
            t->gradients[count++] = (struct meopt_gradient){NULL, MEOPT_BF16};
        }
        if (!code) status = meopt_step_tensors(t->opt, t->tensors, t->gradients, count, scale, &library);
        if (!code && streamed) weight_stream_mark_dirty(t->student_stream, group);
    }
    int ended = meopt_step_end(t->opt, &stats, status ? NULL : &library);
    result->grad_norm = norm;
    if (code) return code;
    if (status == MEOPT_NOT_FINITE || ended == MEOPT_NOT_FINITE)
        return step_diverged(t, step, step_not_finite, false, err);
    return status || ended ? trainer_library_error(&library, err) : 0;
}

static int step_alone(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
                      struct step_result *result, struct error *err)
{
    bool accumulates = t->micro < t->batch, inside = t->release && !accumulates;
    int code = 0;
    for (int64_t done = 0, index = 0; done < t->batch && !code; index++) {
        int64_t count = t->batch - done < t->micro ? t->batch - done : t->micro;
        code = step_forward(t, index, done, count, source, err);
        if (!code && inside && !t->student->owns_loss) /* before the first update */
            code = step_sum_losses(t, step, result, err);
        if (code) break;
        done += count;
        struct batch batch = step_batch(t, index, count);
        if (!t->release)
            code = tower_backward(t->student, &batch, t->dout, index == 0, done == t->batch, NULL, NULL, err);
        else if (accumulates) {
            struct release r = {.t = t, .accumulate = true, .step = step};
            code = tower_backward(t->student, &batch, t->dout, true, true, on_group, &r, err);
        } else code = step_released(t, step, lr, count, result, err);
    }
    if (!code && !t->release) code = step_kept(t, step, lr, result, err);
    if (!code && t->release && accumulates) code = step_accumulated(t, step, lr, result, err);
    return code;
}

/* Returns the seconds of offload waits since the last call; negative: nothing is offloaded. */
static double offload_waited(struct trainer *t)
{
    struct meopt_offload_info info = {.size = sizeof info};
    double before = t->offload_waited;
    if (!t->config->optim.offload || meopt_offloaded(t->opt, &info, NULL)) return -1e-3;
    t->offload_waited = info.wait_seconds;
    return info.wait_seconds - before;
}

/* Returns the seconds of stream waits so far; negative: no weights are streamed. */
static double stream_waited(const struct trainer *t)
{
    if (!t->teacher_stream && !t->student_stream) return -1;
    return weight_stream_waited_seconds(t->teacher_stream) + weight_stream_waited_seconds(t->student_stream);
}

/* Returns the seconds so far in which this rank waited for other stages: for their messages, and where all
 * ranks meet, for the loss and the norms. */
static double stages_waited(const struct trainer *t)
{
    return t->stages ? t->stages->waited + t->ranks.waited : 0;
}

/* Sets the figures of a step whose samples have no label: it has no loss, and changes nothing. */
static void set_unknown(struct step_result *result)
{
    result->loss = NAN;
    for (int i = 0; i < OBJECTIVE_METRICS; i++) result->metrics[i].value = NAN;
}

int trainer_step(struct trainer *t, int64_t step, double lr, const struct batch_source *source,
                 struct step_result *result, struct error *err)
{
    *result = (struct step_result){0};
    for (int i = 0; i < OBJECTIVE_METRICS; i++) result->metrics[i].name = t->objective->metrics[i];
    double waited = stream_waited(t);
    int code = step_count_units(t, source, err);
    double stages = stages_waited(t);
    bool empty = !code && t->objective->units && !(t->units > 0); /* on all ranks */
    t->step = step;
    if (empty) set_unknown(result);
    else if (!code)
        code = (t->dp ? dp_step : t->breadth ? breadth_step : step_alone)(t, step, lr, source, result, err);
    step_select(t, 0);
    if (t->lost.code) { /* the optimizer only knows that a reduction failed */
        code = t->lost.code;
        if (err) *err = t->lost;
    }
    t->step = 0;
    if (!code) code = device_check(t->device, err);
    if (!empty) t->previous_norm = result->grad_norm;
    result->wide_groups = meopt_wide_groups(t->opt);
    result->offload_wait_ms = offload_waited(t) * 1e3;
    result->stage_wait_ms = t->stages ? (stages_waited(t) - stages) * 1e3 : -1;
    result->stream_wait_ms = waited < 0 ? -1 : (stream_waited(t) - waited) * 1e3;
    if ((code || empty) && t->sent.input) { /* prefetched, and not used */
        t->device->streams->wait(t->device, NULL, t->arrived);
        t->sent.input = NULL;
    }
    return code;
}

int trainer_loss_variants(struct trainer *t, const struct batch_source *source,
                          struct loss_variant variants[LOSS_VARIANTS], struct error *err)
{
    static const struct {
        const char *name;
        struct distill_options options;
    } rows[LOSS_VARIANTS] = {{"mse", {LOSS_MSE, false, false}},
                             {"mse normalized", {LOSS_MSE, true, false}},
                             {"mse sum-dim", {LOSS_MSE, false, true}},
                             {"mse normalized sum-dim", {LOSS_MSE, true, true}},
                             {"smooth-l1", {LOSS_SMOOTH_L1, false, false}},
                             {"smooth-l1 normalized", {LOSS_SMOOTH_L1, true, false}},
                             {"cosine", {LOSS_COSINE, false, false}}};
    const float *target;
    struct device *dev = t->device;
    int code = step_prepare(t, 0, t->micro, source, &target, err);
    if (code) return code;
    struct batch batch = step_batch(t, 0, t->micro);
    if (step_teacher_by_groups(t)) {
        struct batch images = {.input = t->input, .count = t->micro};
        if ((code = step_tower_forward(t, t->teacher, &images, err)) != 0) return code;
        target = t->teacher->out;
    }
    if ((code = step_tower_forward(t, t->student, &batch, err)) != 0) return code;
    for (int i = 0; i < LOSS_VARIANTS; i++) {
        variants[i] = (struct loss_variant){.name = rows[i].name};
        if (!t->student->out) continue; /* of another stage */
        dev->ops->fill(dev, t->sums, 0, 2 * sizeof(double));
        distill_loss(dev, &rows[i].options, t->student->out, target, NULL, t->sums, t->sums + 1, 1, t->micro,
                     t->student->out_rows, t->student->out_width);
        dev->download(dev, &variants[i].value, t->sums, sizeof(double));
    }
    return device_check(dev, err);
}

int trainer_embed_teacher(struct trainer *t, const struct batch *host, float *out, struct error *err)
{
    struct tower *teacher = t->teacher;
    struct device *dev = t->device;
    int64_t count = host->count, width = teacher->out_width, rows = teacher->out_rows;
    size_t cls = (size_t)width * sizeof *out, rest = (size_t)((rows - 1) * width) * sizeof *out;
    float *all = rows > 1 && count > 1 ? malloc((size_t)count * (cls + rest)) : out;
    if (!all) return error_set(err, EXIT_HOST_MEMORY, NULL, "no memory for the teacher's outputs");
    dev->upload(dev, t->input, host->input, model_shape_input_bytes(&t->teacher_shape, count));
    int code = tower_forward_bound(teacher, &(struct batch){.input = t->input, .count = count}, err);
    if (!code) dev->download(dev, all, teacher->out, (size_t)count * (cls + rest));
    for (int64_t i = 0; i < count && all != out && !code; i++) {
        memcpy(out + i * rows * width, all + i * width, cls);
        memcpy(out + (i * rows + 1) * width, all + (count + i * (rows - 1)) * width, rest);
    }
    if (all != out) free(all);
    return code ? code : device_check(dev, err);
}
