/* The targets of a distillation: outputs of the teachers, and their distance to the student's (step.h). */
#include "core/base/crc32c.h"
#include "core/base/memory.h"
#include "core/model/positions.h"
#include "core/step/step.h"

#include <stdlib.h>

int64_t targets_rows(const struct trainer *t, int i)
{
    return output_rows(&t->student_shape, &t->targets.of[i].student);
}

int64_t targets_width(const struct trainer *t, int i)
{
    return output_width(&t->student_shape, &t->targets.of[i].student);
}

/* Values per image of the targets before the i-th. */
static int64_t values_before(const struct trainer *t, int i)
{
    int64_t values = 0;
    while (i-- > 0)
        if (target_owns(&t->targets, i)) values += targets_rows(t, i) * targets_width(t, i);
    return values;
}
int64_t targets_values(const struct trainer *t) { return values_before(t, t->targets.count); }
int64_t targets_at(const struct trainer *t, int i)
{
    return t->micro * values_before(t, t->targets.of[i].shares);
}

double targets_head_flops(const struct trainer *t)
{
    double flops = 0;
    for (int i = 0; i < t->targets.count; i++) {
        const struct output *o = &t->targets.of[i].student;
        double in = (double)output_input(&t->student_shape, o),
               rows = (double)(target_owns(&t->targets, i) * targets_rows(t, i));
        if (o->head == HEAD_LINEAR) flops += 2 * rows * in * (double)o->width;
        if (o->head == HEAD_MLP) flops += 2 * rows * (double)o->hidden * (in + (double)o->width);
    }
    return flops;
}

/* ---- Maps of standardized targets, and grids of patches ---- */

bool targets_are_mapped(const struct trainer *t, int i)
{
    return i < t->targets.count && target_owns(&t->targets, i) &&
           t->config->loss[t->targets.of[i].loss].standardize != LOSS_STANDARDIZE_NONE;
}

void targets_set_map(struct trainer *t, int i, const float *matrix, const float *shift)
{
    size_t width = (size_t)targets_width(t, i);
    if (t->device->kind == DEVICE_DRY) return;
    t->device->upload(t->device, t->maps[i].matrix, matrix, width * width * sizeof *matrix);
    t->device->upload(t->device, t->maps[i].shift, shift, width * sizeof *shift);
}

uint32_t targets_map_hash(const struct trainer *t, int i, uint32_t before)
{
    size_t width = (size_t)targets_width(t, i);
    if (!t->maps[i].matrix) return before;
    float *values = xmalloc((width + 1) * width * sizeof *values);
    t->device->download(t->device, values, t->maps[i].matrix, width * width * sizeof *values);
    t->device->download(t->device, values + width * width, t->maps[i].shift, width * sizeof *values);
    before = crc32c(before, values, (width + 1) * width * sizeof *values);
    free(values);
    return before;
}

/* Allocates the maps, which change nothing at first. */
static int create_maps(struct trainer *t, struct error *err)
{
    int64_t most = 0;
    for (int i = 0; i < t->targets.count; i++) {
        const struct target *target = &t->targets.of[i];
        int64_t width = targets_width(t, i), rows = t->micro * target->rows_t;
        size_t bytes = (size_t)width * sizeof(float);
        if (!targets_are_mapped(t, i)) continue;
        t->maps[i].matrix = device_alloc(t->device, MEMORY_TEACHER, (size_t)width * bytes,
                                         "matrix of standardized targets", err);
        if (!t->maps[i].matrix) return err->code;
        t->maps[i].shift =
            device_alloc(t->device, MEMORY_TEACHER, bytes, "shift of standardized targets", err);
        if (!t->maps[i].shift) return err->code;
        if (target->rows_s != target->rows_t && rows * width > most) most = rows * width;
        float *identity = xcalloc((size_t)(width * width), sizeof *identity), *zeros = xcalloc(1, bytes);
        for (int64_t k = 0; k < width; k++) identity[k * width + k] = 1;
        targets_set_map(t, i, identity, zeros);
        free(identity);
        free(zeros);
    }
    if (most && !(t->unmapped = device_alloc(t->device, MEMORY_TEACHER, (size_t)most * sizeof(float),
                                             "targets before their grids are resized", err)))
        return err->code;
    return 0;
}

int targets_create(struct trainer *t, struct error *err)
{
    int code = create_maps(t, err);
    if (code) return code;
    for (int i = 0; i < t->targets.count; i++) {
        const struct target *target = &t->targets.of[i];
        size_t count = (size_t)(target->rows_s * target->rows_t);
        if (target->rows_s == target->rows_t || !target_owns(&t->targets, i)) continue;
        t->grids[i] = device_alloc(t->device, MEMORY_TEACHER, count * sizeof(float),
                                   "matrix that resizes patches", err);
        if (!t->grids[i]) return err->code;
        if (t->device->kind == DEVICE_DRY) continue;
        float *w = xcalloc(count, sizeof *w);
        const struct model_shape *from = &t->teachers[target->teacher].shape, *to = &t->student_shape;
        positions_grid(from->image / from->patch, to->image / to->patch, w);
        t->device->upload(t->device, t->grids[i], w, count * sizeof *w);
        free(w);
    }
    return 0;
}

void targets_close(struct trainer *t)
{
    for (int i = 0; i < MOST_OUTPUTS; i++) {
        device_free(t->device, t->grids[i]);
        device_free(t->device, t->maps[i].matrix);
        device_free(t->device, t->maps[i].shift);
    }
    device_free(t->device, t->unmapped);
}

bool targets_are_copied(const struct trainer *t)
{
    bool changed = false;
    for (int i = 0; i < t->targets.count; i++) changed = changed || t->grids[i] || t->maps[i].matrix;
    return !trainer_teaches(t) || t->teacher_count > 1 || changed ||
           (t->schedule.slots > 1 && !step_teacher_by_groups(t));
}

/* Copies one target. */
static void take(struct trainer *t, int i, const float *from, int64_t count)
{
    const struct target *target = &t->targets.of[i];
    const struct device_ops *ops = t->device->ops;
    int64_t width = targets_width(t, i), classes = count * (targets_rows(t, i) - target->rows_s);
    float *to = t->in.target + targets_at(t, i);
    if (t->maps[i].matrix) {
        float *mapped = t->grids[i] ? t->unmapped : to;
        ops->gemm(t->device, &(struct gemm){.m = count * (target->rows_t ? target->rows_t : 1),
                                            .n = width,
                                            .k = width,
                                            .transpose_b = true,
                                            .a = from,
                                            .b = t->maps[i].matrix,
                                            .c = mapped,
                                            .lda = width,
                                            .ldb = width,
                                            .ldc = width,
                                            .ab_type = DTYPE_F32,
                                            .c_type = DTYPE_F32,
                                            .alpha = 1,
                                            .bias = t->maps[i].shift});
        from = mapped;
        if (!t->grids[i]) return;
    }
    if (!t->grids[i]) {
        ops->copy(t->device, to, from, (size_t)(count * targets_rows(t, i) * width) * sizeof *to);
        return;
    }
    if (classes) ops->copy(t->device, to, from, (size_t)(classes * width) * sizeof *to);
    from += classes * width;
    to += classes * width;
    for (int64_t b = 0; b < count; b++, from += target->rows_t * width, to += target->rows_s * width)
        ops->gemm(t->device, &(struct gemm){.m = target->rows_s,
                                            .n = width,
                                            .k = target->rows_t,
                                            .a = t->grids[i],
                                            .b = from,
                                            .c = to,
                                            .lda = target->rows_t,
                                            .ldb = width,
                                            .ldc = width,
                                            .ab_type = DTYPE_F32,
                                            .c_type = DTYPE_F32,
                                            .alpha = 1});
}

void targets_take(struct trainer *t, int teacher, int64_t count)
{
    const struct tower *tower = t->teachers[teacher].tower;
    for (int i = 0; i < t->targets.count && tower->out; i++)
        if (t->targets.of[i].teacher == teacher && target_owns(&t->targets, i))
            take(t, i, tower->out + tower_output_at(tower, t->targets.of[i].output), count);
}

int targets_compute(struct trainer *t, int64_t count, const float **target, struct error *err)
{
    bool copied = targets_are_copied(t);
    int code = 0;
    for (int i = 0; i < t->teacher_count && !code; i++) {
        struct batch images = {.input = (char *)t->input + t->teachers[i].input_at, .count = count};
        struct tower *tower = t->teachers[i].tower; /* whole, while its outputs are cached */
        code = tower->options.stages > 1 ? step_tower_forward(t, tower, &images, err)
                                         : tower_forward_bound(tower, &images, err);
        if (!code && copied) targets_take(t, i, count);
    }
    if (target) *target = copied ? t->in.target : t->teachers[0].tower->out;
    return code;
}

int targets_add_moments(struct trainer *t, int i, int64_t count, double *sums, double *products,
                        int64_t *rows, struct error *err)
{
    struct device *dev = t->device;
    int64_t D = targets_width(t, i), R = count * targets_rows(t, i);
    size_t values = (size_t)(D * ((products ? D : 0) + 1));
    const float *x = t->in.target + targets_at(t, i);
    if (!t->teachers[t->targets.of[i].teacher].tower->out) return 0;
    float *found = device_alloc(dev, MEMORY_WORKSPACE, values * sizeof *found, "moments of the targets", err);
    if (!found) return err->code;
    dev->ops->fill(dev, found, 0, values * sizeof *found);
    dev->ops->column_sums(dev, DTYPE_F32, x, found, R, D);
    if (products)
        dev->ops->gemm(dev, &(struct gemm){.m = D,
                                           .n = D,
                                           .k = R,
                                           .transpose_a = true,
                                           .a = x,
                                           .b = x,
                                           .c = found + D,
                                           .lda = D,
                                           .ldb = D,
                                           .ldc = D,
                                           .ab_type = DTYPE_F32,
                                           .c_type = DTYPE_F32,
                                           .alpha = 1});
    float *host = xcalloc(values, sizeof *host);
    dev->download(dev, host, found, values * sizeof *host);
    for (int64_t k = 0; k < D && dev->kind != DEVICE_DRY; k++) sums[k] += (double)host[k];
    for (int64_t k = 0; products && k < D * D && dev->kind != DEVICE_DRY; k++)
        products[k] += (double)host[D + k];
    *rows += R;
    free(host);
    device_free(dev, found);
    return device_check(dev, err);
}

/* ---- The loss ---- */

static struct distill_options options_of(const struct config_loss *loss)
{
    static const enum loss_kind kinds[] = {
        [LOSS_TYPE_MSE] = LOSS_MSE, [LOSS_TYPE_COSINE] = LOSS_COSINE, [LOSS_TYPE_SMOOTH_L1] = LOSS_SMOOTH_L1};
    return (struct distill_options){kinds[loss->type], loss->normalize == 1,
                                    loss->reduction == LOSS_REDUCTION_SUM_DIM};
}

void targets_loss(struct trainer *t, const float *target, int64_t batch, int64_t first, int64_t count,
                  float scale, float *dout, double *sums)
{
    const struct tower *s = t->student;
    for (int i = 0; i < t->targets.count; i++, sums += 2) {
        const struct config_loss *loss = &t->config->loss[t->targets.of[i].loss];
        const struct distill_options o = options_of(loss);
        int64_t width = targets_width(t, i), patches = t->targets.of[i].rows_s,
                classes = targets_rows(t, i) - patches, at = targets_at(t, i);
        float weight = (float)((double)scale * loss->weight);
        for (int k = classes ? 0 : 1; k < (patches ? 2 : 1); k++) { /* class rows, then patches */
            int64_t rows = k ? patches : classes,
                    from = at + ((k ? batch * classes : 0) + first * rows) * width;
            distill_loss(t->device, &o, s->out + from, target + from, dout ? dout + from : NULL, sums,
                         k && classes ? NULL : sums + 1, weight, count * rows, 1, width);
        }
    }
}
