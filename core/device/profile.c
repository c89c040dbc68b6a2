/* A device's slots with a clock around each: see profile.h. */
#include "core/device/profile.h"
#include "core/base/clock.h"

#include <string.h>

const char *const work_kind_names[WORK_KINDS] = {"products", "attention", "elementwise", "optimizer", "data"};

static _Thread_local int depth; /* of timed calls: what one of them calls is its own time */

static double start(void)
{
    depth++;
    return clock_seconds();
}
static void stop(struct device *dev, enum work_kind kind, double began)
{
    struct device_profile *p = dev->profile;
    if (--depth) return;
    p->inner.sync(dev);
    double seconds = clock_seconds() - began;
    pthread_mutex_lock(&dev->lock);
    p->seconds[kind] += seconds;
    p->calls[kind]++;
    pthread_mutex_unlock(&dev->lock);
}

#define TIMED(kind, call)                                                                                    \
    double began = start();                                                                                  \
    dev->profile->inner.call;                                                                                \
    stop(dev, kind, began)
/* an operation that takes one struct */
#define ONE(name, type, kind)                                                                                \
    static void timed_##name(struct device *dev, const struct type *o) { TIMED(kind, ops->name(dev, o)); }

ONE(gemm, gemm, WORK_PRODUCTS)
ONE(attention_forward, attention, WORK_ATTENTION)
ONE(attention_backward, attention_gradient, WORK_ATTENTION)
ONE(embed_forward, embedding, WORK_ELEMENTWISE)
ONE(embed_backward, embedding_gradient, WORK_ELEMENTWISE)
ONE(layernorm_forward, layernorm, WORK_ELEMENTWISE)
ONE(layernorm_apply, layernorm, WORK_ELEMENTWISE)
ONE(layernorm_backward, layernorm_gradient, WORK_ELEMENTWISE)
ONE(rotate, rotation, WORK_ELEMENTWISE)
ONE(row_mean_forward, row_mean, WORK_ELEMENTWISE)
ONE(row_mean_backward, row_mean_gradient, WORK_ELEMENTWISE)
ONE(activation_forward, activation_value, WORK_ELEMENTWISE)
ONE(activation_backward, activation_gradient, WORK_ELEMENTWISE)
ONE(residual_forward, residual, WORK_ELEMENTWISE)
ONE(branch_gradient, branch_gradient, WORK_ELEMENTWISE)
ONE(encode, coded, WORK_ELEMENTWISE)
ONE(decode, coded, WORK_ELEMENTWISE)
ONE(layerscale_backward, layerscale_gradient, WORK_ELEMENTWISE)
ONE(distill_loss, distillation, WORK_ELEMENTWISE)

static void timed_patchify(struct device *dev, enum dtype t, const float *images, void *patches, int64_t B,
                           int64_t S, int64_t p)
{
    TIMED(WORK_ELEMENTWISE, ops->patchify(dev, t, images, patches, B, S, p));
}
static void timed_resize_rows(struct device *dev, const float *w, const float *in, float *out, int64_t n_out,
                              int64_t n_in, int64_t D, bool transpose)
{
    TIMED(WORK_ELEMENTWISE, ops->resize_rows(dev, w, in, out, n_out, n_in, D, transpose));
}
static void timed_column_sums(struct device *dev, enum dtype t, const void *x, float *sums, int64_t R,
                              int64_t D)
{
    TIMED(WORK_ELEMENTWISE, ops->column_sums(dev, t, x, sums, R, D));
}
static void timed_cast(struct device *dev, const void *src, enum dtype src_type, void *dst,
                       enum dtype dst_type, int64_t n)
{
    TIMED(WORK_ELEMENTWISE, ops->cast(dev, src, src_type, dst, dst_type, n));
}
static void timed_fill(struct device *dev, void *p, int byte, size_t bytes)
{
    TIMED(WORK_ELEMENTWISE, ops->fill(dev, p, byte, bytes));
}
static void timed_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
    TIMED(WORK_ELEMENTWISE, ops->copy(dev, dst, src, bytes));
}
/* only gradients are measured so, for clipping */
static void timed_sum_squares(struct device *dev, const void *x, enum dtype t, int64_t n, double *sum,
                              int *finite)
{
    TIMED(WORK_OPTIMIZER, ops->sum_squares(dev, x, t, n, sum, finite));
}

static void timed_step(struct device *dev, struct optim_work *work, struct optim_sweep *sweep)
{
    TIMED(WORK_OPTIMIZER, optim->step(dev, work, sweep));
}
static void timed_squares(struct device *dev, struct optim_work *work, struct optim_sweep *sweep)
{
    TIMED(WORK_OPTIMIZER, optim->squares(dev, work, sweep));
}
static void timed_results(struct device *dev, struct optim_work *work, struct optim_partial *partials,
                          size_t count)
{
    TIMED(WORK_OPTIMIZER, optim->results(dev, work, partials, count));
}
static void timed_clear(struct device *dev, void *block, size_t bytes, int64_t chunks, int threads)
{
    TIMED(WORK_OPTIMIZER, optim->clear(dev, block, bytes, chunks, threads));
}

static void timed_upload(struct device *dev, void *dst, const void *src, size_t bytes)
{
    TIMED(WORK_DATA, upload(dev, dst, src, bytes));
}
static void timed_download(struct device *dev, void *dst, const void *src, size_t bytes)
{
    TIMED(WORK_DATA, download(dev, dst, src, bytes));
}

static int supports(const struct device *dev, const struct operation_shape *shape, struct error *err)
{
    return dev->profile->inner.ops->supports(dev, shape, err);
}

static const struct device_ops timed_ops = {
    .supports = supports,
    .gemm = timed_gemm,
    .patchify = timed_patchify,
    .embed_forward = timed_embed_forward,
    .embed_backward = timed_embed_backward,
    .resize_rows = timed_resize_rows,
    .layernorm_forward = timed_layernorm_forward,
    .layernorm_apply = timed_layernorm_apply,
    .layernorm_backward = timed_layernorm_backward,
    .attention_forward = timed_attention_forward,
    .attention_backward = timed_attention_backward,
    .rotate = timed_rotate,
    .row_mean_forward = timed_row_mean_forward,
    .row_mean_backward = timed_row_mean_backward,
    .activation_forward = timed_activation_forward,
    .activation_backward = timed_activation_backward,
    .residual_forward = timed_residual_forward,
    .branch_gradient = timed_branch_gradient,
    .column_sums = timed_column_sums,
    .layerscale_backward = timed_layerscale_backward,
    .encode = timed_encode,
    .decode = timed_decode,
    .distill_loss = timed_distill_loss,
    .cast = timed_cast,
    .fill = timed_fill,
    .copy = timed_copy,
    .sum_squares = timed_sum_squares,
};

void profile_begin(struct device_profile *p, struct device *dev)
{
    profile_clear(p);
    p->inner = (struct device){.ops = dev->ops,
                               .optim = dev->optim,
                               .upload = dev->upload,
                               .download = dev->download,
                               .sync = dev->sync};
    p->optim = *dev->optim;
    p->optim.step = timed_step;
    p->optim.squares = timed_squares;
    p->optim.results = timed_results;
    p->optim.clear = timed_clear;
    dev->profile = p;
    dev->ops = &timed_ops;
    dev->optim = &p->optim;
    dev->upload = timed_upload;
    dev->download = timed_download;
    dev->issue = NULL;
}

void profile_clear(struct device_profile *p)
{
    memset(p->seconds, 0, sizeof p->seconds);
    memset(p->calls, 0, sizeof p->calls);
}
