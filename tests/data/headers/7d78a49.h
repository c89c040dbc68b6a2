/* core/meopt.h of commit 7d78a49, without its comments: what programs of 0.1.0 were built with
 * (tests/old_header.sh). */
#ifndef MEOPT_H
#define MEOPT_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
enum meopt_status {
    MEOPT_OK = 0,
    MEOPT_BAD_ARGUMENT,
    MEOPT_NO_MEMORY,
    MEOPT_NOT_FINITE,
    MEOPT_BAD_STATE,
    MEOPT_BAD_ORDER,
    MEOPT_IO
};
struct meopt_error {
    int status;
    char message[252];
};
const char *meopt_status_name(int status);
enum meopt_rule { MEOPT_APADAM, MEOPT_APADAMW, MEOPT_APSGD, MEOPT_LAMB, MEOPT_LION, MEOPT_RULE_COUNT };
enum meopt_weight_format {
    MEOPT_WEIGHTS_F32,
    MEOPT_WEIGHTS_F32_COPY,
    MEOPT_WEIGHTS_BF16,
    MEOPT_WEIGHTS_BF16_SR,
    MEOPT_WEIGHTS_20,
    MEOPT_WEIGHTS_24,
    MEOPT_WEIGHTS_32,
    MEOPT_WEIGHT_FORMAT_COUNT
};
enum meopt_state_format {
    MEOPT_STATE_F32,
    MEOPT_STATE_BF16,
    MEOPT_STATE_BF16_NEAREST,
    MEOPT_STATE_8BIT,
    MEOPT_STATE_4BIT,
    MEOPT_STATE_FORMAT_COUNT
};
enum meopt_dtype { MEOPT_F32, MEOPT_BF16 };
const char *meopt_rule_name(int rule);
const char *meopt_weight_format_name(int format);
const char *meopt_state_format_name(int format);
int meopt_rule_from_name(const char *name);
int meopt_weight_format_from_name(const char *name);
int meopt_state_format_from_name(const char *name);
enum meopt_memory {
    MEOPT_MEMORY_WEIGHTS,
    MEOPT_MEMORY_COPY,
    MEOPT_MEMORY_CORRECTION,
    MEOPT_MEMORY_MOMENTS,
    MEOPT_MEMORY_ACCUMULATOR,
    MEOPT_MEMORY_KINDS
};
struct meopt_report {
    const char *tensor;
    int64_t step;
    double error;
    double threshold;
    int first_moment, second_moment;
    int new_first_moment, new_second_moment;
};
struct meopt_options {
    size_t size;
    size_t tensor_size;
    int rule;
    int weights;
    int first_moment;
    int second_moment;
    double beta1, beta2, eps;
    double weight_decay;
    double momentum, dampening;
    int nesterov;
    int trust_clip;
    int always_adapt;
    uint64_t seed;
    int threads;
    int64_t small_count;
    int accumulator;
    int adapt_every;
    double adapt_threshold;
    void (*report)(void *context, const struct meopt_report *report);
    void *(*allocate)(void *context, int kind, size_t bytes, const char *tensor);
    void (*release)(void *context, int kind, void *p, size_t bytes);
    void *context;
    int dry;
    void *device;
};
int meopt_options_init(struct meopt_options *options, size_t size, int rule);
int meopt_options_preset(struct meopt_options *options, const char *preset, struct meopt_error *err);
#define MEOPT_PRESET_DEFAULT "balanced"
enum meopt_tensor_flags { MEOPT_NO_DECAY = 1, MEOPT_KEEP_F32 = 2 };
struct meopt_tensor {
    const char *name;
    int ndim;
    int64_t shape[8];
    unsigned flags;
    double lr_scale;
    void *weights;
    void *copy;
    int64_t first;
};
struct meopt_bytes {
    int64_t parameters;
    size_t weights, copy, correction, moments, scales, accumulators;
    size_t total;
    size_t callers;
};
int meopt_query(const struct meopt_options *options, const struct meopt_tensor *tensors, size_t count,
                struct meopt_bytes *bytes, struct meopt_error *err);
struct meopt;
int meopt_create(struct meopt **opt, const struct meopt_options *options, const struct meopt_tensor *tensors,
                 size_t count, struct meopt_error *err);
void meopt_destroy(struct meopt *opt);
int meopt_held(const struct meopt *opt, struct meopt_bytes *bytes);
struct meopt_tensor_info {
    const char *name;
    int64_t count;
    int weights, first_moment, second_moment;
    int64_t updates;
    struct meopt_bytes bytes;
};
int meopt_info(const struct meopt *opt, size_t tensor, struct meopt_tensor_info *info);
int64_t meopt_find(const struct meopt *opt, const char *name);
int meopt_weights(const struct meopt *opt, size_t tensor, void **p, enum meopt_dtype *dtype);
int meopt_import(struct meopt *opt, size_t tensor, int64_t first, int64_t count, const float *values,
                 struct meopt_error *err);
int meopt_export(const struct meopt *opt, size_t tensor, int64_t first, int64_t count, float *values,
                 struct meopt_error *err);
int meopt_step_begin(struct meopt *opt, int64_t step, double lr, int check, struct meopt_error *err);
int meopt_step_tensor(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                      double scale, struct meopt_error *err);
struct meopt_gradient {
    const void *data;
    int dtype;
};
int meopt_step_tensors(struct meopt *opt, const size_t *tensors, const struct meopt_gradient *gradients,
                       size_t count, double scale, struct meopt_error *err);
struct meopt_step_stats {
    double grad_norm;
    int64_t bad_groups;
    int64_t tensors;
};
int meopt_step_end(struct meopt *opt, struct meopt_step_stats *stats, struct meopt_error *err);
int meopt_step(struct meopt *opt, int64_t step, double lr, double scale,
               const struct meopt_gradient *gradients, struct meopt_step_stats *stats,
               struct meopt_error *err);
int meopt_gradient_norm(struct meopt *opt, const struct meopt_gradient *gradients, double *norm, int *finite,
                        struct meopt_error *err);
double meopt_clip_scale(double norm, double max_norm);
int meopt_accumulate(struct meopt *opt, size_t tensor, const void *gradient, enum meopt_dtype dtype,
                     double scale, struct meopt_error *err);
size_t meopt_state_bytes(const struct meopt *opt, size_t tensor);
int meopt_state_save(const struct meopt *opt, size_t tensor, void *record, size_t bytes,
                     struct meopt_error *err);
int meopt_state_load(struct meopt *opt, size_t tensor, const void *record, size_t bytes,
                     struct meopt_error *err);
int meopt_save(const struct meopt *opt, int (*write)(void *context, const void *data, size_t bytes),
               void *context, struct meopt_error *err);
int meopt_load(struct meopt *opt, const void *data, size_t bytes, struct meopt_error *err);
#ifdef __cplusplus
}
#endif
#endif
