/* Names, presets and checks of the options: see core/meopt.h. */
#include "core/optim/muon.h"
#include "core/base/translate.h"
#include "kernels/optim_factor.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    CHUNK_ELEMENTS = OPTIM_CHUNK * OPTIM_GROUP,
    TENSOR_FLAGS = MEOPT_NO_DECAY | MEOPT_KEEP_F32 | MEOPT_PART | MEOPT_SHARED_MEMORY | MEOPT_KEEP_BF16 |
                   MEOPT_COPY_F16 | MEOPT_OWN_RULE | MEOPT_ONE_OWNER
};
/* Asserts that libmeopt and the kernels use the same numbers. */
#define SAME(ours, others)        _Static_assert((int)(ours) == (int)(others), #ours " is not " #others)
#define SAME_RULE(c, number, ...) SAME(RULE_##number, MEOPT_##number);
OPTIM_RULES(SAME_RULE, )
SAME(RULE_COUNT, MEOPT_RULE_COUNT);
SAME(MATRIX_DIRECT, MEOPT_NS_DIRECT);
SAME(MATRIX_GRAM, MEOPT_NS_GRAM);
SAME(WEIGHTS_F32, MEOPT_WEIGHTS_F32);
SAME(WEIGHTS_F32_COPY, MEOPT_WEIGHTS_F32_COPY);
SAME(WEIGHTS_BF16, MEOPT_WEIGHTS_BF16);
SAME(WEIGHTS_BF16_SR, MEOPT_WEIGHTS_BF16_SR);
SAME(WEIGHTS_20, MEOPT_WEIGHTS_20);
SAME(WEIGHTS_24, MEOPT_WEIGHTS_24);
SAME(WEIGHTS_32, MEOPT_WEIGHTS_32);
SAME(WEIGHTS_32 + 1, MEOPT_WEIGHT_FORMAT_COUNT);
SAME(STATE_F32, MEOPT_STATE_F32);
SAME(STATE_BF16, MEOPT_STATE_BF16);
SAME(STATE_BF16_NEAREST, MEOPT_STATE_BF16_NEAREST);
SAME(STATE_8BIT, MEOPT_STATE_8BIT);
SAME(STATE_4BIT, MEOPT_STATE_4BIT);
SAME(STATE_4BIT + 1, MEOPT_STATE_FORMAT_COUNT);
SAME(GRADIENT_F32, MEOPT_F32);
SAME(GRADIENT_BF16, MEOPT_BF16);
SAME(GRADIENT_F16, MEOPT_F16);

static const char *const weight_names[] = {"fp32",   "fp32+copy", "bf16",   "bf16_sr",
                                           "bf16+4", "bf16+8",    "bf16+16"};
static const char *const state_names[] = {"fp32", "bf16", "bf16_nearest", "8bit", "4bit"};

static const struct preset {
    const char *name;
    int weights, state;
} presets[] = {
    {"quality", MEOPT_WEIGHTS_24, MEOPT_STATE_8BIT},
    {"balanced", MEOPT_WEIGHTS_20, MEOPT_STATE_8BIT},
    {"minimal", MEOPT_WEIGHTS_BF16_SR, MEOPT_STATE_8BIT},
    {"fp32", MEOPT_WEIGHTS_F32, MEOPT_STATE_F32},
    {"amp", MEOPT_WEIGHTS_F32_COPY, MEOPT_STATE_F32},
    {"pure_bf16", MEOPT_WEIGHTS_BF16, MEOPT_STATE_BF16_NEAREST},
};

int optim_fail(struct meopt_error *err, int status, const char *format, ...)
{
    if (!err) return status;
    va_list args;
    va_start(args, format);
    err->status = status;
    text_format(err->message, sizeof err->message, format, args);
    va_end(args);
    for (char *c = err->message; *c; c++) /* names come from files */
        if ((unsigned char)*c < 32 || *c == 127) *c = '?';
    return status;
}

const char *meopt_status_name(int status)
{
    static const char *const names[] = {"ok",           "bad argument",  "out of memory",
                                        "not finite",   "bad state",     "bad order",
                                        "write failed", "device failed", "disk full"};
    return status >= 0 && status < (int)(sizeof names / sizeof *names) ? names[status] : "unknown status";
}

static const char *name_of(const char *const *names, int count, int i)
{
    return i >= 0 && i < count ? names[i] : NULL;
}
static int index_of(const char *const *names, int count, const char *name)
{
    for (int i = 0; name && i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}
const char *meopt_rule_name(int rule)
{
    return rule >= 0 && rule < RULE_COUNT ? optim_rules[rule].name : NULL;
}
const char *meopt_weight_format_name(int format)
{
    return name_of(weight_names, MEOPT_WEIGHT_FORMAT_COUNT, format);
}
const char *meopt_state_format_name(int format)
{
    return name_of(state_names, MEOPT_STATE_FORMAT_COUNT, format);
}
int meopt_rule_from_name(const char *name)
{
    for (int rule = 0; name && rule < RULE_COUNT; rule++)
        if (strcmp(optim_rules[rule].name, name) == 0) return rule;
    return -1;
}
int meopt_weight_format_from_name(const char *name)
{
    return index_of(weight_names, MEOPT_WEIGHT_FORMAT_COUNT, name);
}
int meopt_state_format_from_name(const char *name)
{
    return index_of(state_names, MEOPT_STATE_FORMAT_COUNT, name);
}

/* The fields of the oldest header whose programs this library runs. */
#define UP_TO(type, last) (offsetof(struct type, last) + sizeof((struct type){0}.last))
enum { OPTIONS_LEAST = UP_TO(meopt_options, torch_form), TENSOR_LEAST = UP_TO(meopt_tensor, rows) };

int meopt_options_init_sized(size_t tensor_size, struct meopt_options *options, size_t size, int rule)
{
    if (!options || size < OPTIONS_LEAST || tensor_size < TENSOR_LEAST || !meopt_rule_name(rule))
        return MEOPT_BAD_ARGUMENT;
    struct meopt_options o = {
        .size = size,
        .tensor_size = tensor_size,
        .rule = rule,
        .beta1 = RULE_HAS(rule, WITH_FACTORS) ? 0 : 0.9,
        .beta2 = optim_rules[rule].beta2,
        .eps = optim_rules[rule].eps,
        .momentum = optim_rules[rule].momentum,
        .small_count = 4096,
        .accumulator = -1,
        .bias_correction = 1,
        .grad_averaging = 1,
        .offload_fraction = 1,
        .nesterov = RULE_HAS(rule, WITH_MATRICES) != 0,
        .ns_steps = 5,
        .ns_coefficients = {3.4445, -4.7750, 2.0315},
        .ns_eps = 1e-7,
        .ns_dtype = MEOPT_BF16,
        .weight_lr_power = 2,
        .eps2 = 1e-3,
        .clip_threshold = 1,
        .decay_rate = -0.8,
    };
    struct_copy_out(options, size, &o, sizeof o);
    return MEOPT_OK;
}

int meopt_options_preset(struct meopt_options *options, const char *preset, struct meopt_error *err)
{
    if (!options || !preset) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no options or no preset given");
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, preset) == 0) {
            options->weights = presets[i].weights;
            options->first_moment = options->second_moment = presets[i].state;
            return MEOPT_OK;
        }
    return optim_fail(err, MEOPT_BAD_ARGUMENT,
                      "no preset '%.32s'; there are quality, balanced, minimal, fp32, amp, pure_bf16",
                      preset);
}

static int out_of_range(struct meopt_error *err, const char *name, double value, const char *range)
{
    return optim_fail(err, MEOPT_BAD_ARGUMENT, "option %s is %g, must be %s", name, value, range);
}

int options_read(struct meopt_options *to, const struct meopt_options *from, struct meopt_error *err)
{
    if (!from) return optim_fail(err, MEOPT_BAD_ARGUMENT, "no options given");
    if (from->size < OPTIONS_LEAST || from->size > 65536)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "options of %zu bytes, expected %zu: call meopt_options_init, with the meopt.h of "
                          "this library",
                          from->size, sizeof *to);
    meopt_options_init(to, sizeof *to, 0);
    bool known = struct_copy_in(to, sizeof *to, from, from->size);
    for (size_t i = 0; i < sizeof to->reserved / sizeof *to->reserved; i++) known = known && !to->reserved[i];
    if (!known)
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "the options have a field that this library does not know: it is older than the header");
    to->size = sizeof *to;
    if (to->tensor_size < TENSOR_LEAST || to->tensor_size > 65536)
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "tensor_size is %zu, expected %zu: call meopt_options_init, with the meopt.h of this "
            "library",
            to->tensor_size, sizeof(struct meopt_tensor));
    if (to->combine && !to->reduce)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "options.combine without options.reduce: see core/meopt.h");
    if (to->ranks < 0 || (to->ranks && !to->reduce))
        return out_of_range(err, "ranks", to->ranks, "0, or the number of handles that call options.reduce");
    if (to->rank < 0 || to->rank >= (to->ranks ? to->ranks : 1))
        return out_of_range(err, "rank", to->rank, "0 or more, and below ranks");
    if (!meopt_rule_name(to->rule)) return out_of_range(err, "rule", to->rule, "one of enum meopt_rule");
    if (!meopt_weight_format_name(to->weights))
        return out_of_range(err, "weights", to->weights, "one of enum meopt_weight_format");
    if (!meopt_state_format_name(to->first_moment))
        return out_of_range(err, "first_moment", to->first_moment, "one of enum meopt_state_format");
    if (!meopt_state_format_name(to->second_moment))
        return out_of_range(err, "second_moment", to->second_moment, "one of enum meopt_state_format");
    if (to->accumulator != -1 && !meopt_state_format_name(to->accumulator))
        return out_of_range(err, "accumulator", to->accumulator, "-1 or one of enum meopt_state_format");
    if (to->device && ((struct device *)to->device)->kind == DEVICE_DRY) to->dry = 1;
    if ((to->allocate == NULL) != (to->release == NULL))
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "allocate and release must be given together");
    return options_check(to, err);
}

/* Checks what a rule needs beyond ranges. */
static int rule_options_check(const struct meopt_options *o, struct meopt_error *err)
{
    if (o->average_decay > 0 && RULE_HAS(o->rule, WITH_MOMENTUM) && o->momentum == 0)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "an average of the weights needs a rule with moments, %s "
                          "has momentum 0",
                          meopt_rule_name(o->rule));
    if (RULE_HAS(o->rule, WITH_POINTS)) {
        if (o->beta1 == 0)
            return out_of_range(err, "beta1", o->beta1,
                                "above 0 for schedule_free, to compute x from y and z");
        if (o->average_decay > 0)
            return optim_fail(err, MEOPT_BAD_ARGUMENT,
                              "average_decay is %g, expected 0: the weights of %s are an average already",
                              o->average_decay, meopt_rule_name(o->rule));
        if (o->first_moment == MEOPT_STATE_4BIT ||
            (o->first_moment == MEOPT_STATE_8BIT && o->second_moment == MEOPT_STATE_4BIT))
            return optim_fail(err, MEOPT_BAD_ARGUMENT,
                              "first_moment %s with second_moment %s is too coarse for z - y of %s; use "
                              "bf16, or 8bit for both",
                              meopt_state_format_name(o->first_moment),
                              meopt_state_format_name(o->second_moment), meopt_rule_name(o->rule));
    }
    if (RULE_HAS(o->rule, WITH_FACTORS)) {
        if (o->average_decay > 0 && o->beta1 == 0)
            return optim_fail(err, MEOPT_BAD_ARGUMENT,
                              "an average of the weights needs a first moment, %s has beta1 0: set beta1",
                              meopt_rule_name(o->rule));
        if (o->scale_parameter && o->eps2 == 0)
            return optim_fail(err, MEOPT_BAD_ARGUMENT,
                              "eps2 is 0 with scale_parameter: a weight of zeros would never move");
    }
    return MEOPT_OK;
}

int options_check(const struct meopt_options *o, struct meopt_error *err)
{
    const struct range {
        const char *name;
        double value, min, max;
        const char *text;
    } ranges[] = {
        {"beta1", o->beta1, 0, 0.9999999, "at least 0 and below 1"},
        {"beta2", o->beta2, 0, 0.9999999, "at least 0 and below 1"},
        {"eps", o->eps, 0, 1, "between 0 and 1"},
        {"weight_decay", o->weight_decay, 0, 1e6, "between 0 and 1e6"},
        {"momentum", o->momentum, 0, 0.9999999, "at least 0 and below 1"},
        {"dampening", o->dampening, 0, 1, "between 0 and 1"},
        {"threads", o->threads, 0, 4096, "between 0 and 4096"},
        {"small_count", (double)o->small_count, 0, 1e18, "not negative"},
        {"bias_correction", o->bias_correction, 0, 1, "0 or 1"},
        {"grad_averaging", o->grad_averaging, 0, 1, "0 or 1"},
        {"decoupled_decay", o->decoupled_decay, 0, 1, "0 or 1"},
        {"maximize", o->maximize, 0, 1, "0 or 1"},
        {"max_grad_norm", o->max_grad_norm, 0, 1e30, "not negative"},
        {"all_or_nothing", o->all_or_nothing, 0, 1, "0 or 1"},
        {"offload", o->offload, 0, MEOPT_OFFLOAD_HOST, "one of enum meopt_offload"},
        {"offload_fraction", o->offload_fraction, 0, 1, "between 0 and 1"},
        {"average_decay", o->average_decay, 0, 0.9999999, "at least 0 and below 1"},
        {"ns_steps", o->ns_steps, 1, 20, "between 1 and 20"},
        {"ns_schedule", o->ns_schedule, 0, MEOPT_NS_POLAR_EXPRESS, "one of enum meopt_ns_schedule"},
        {"ns_coefficients[0]", o->ns_coefficients[0], -100, 100, "between -100 and 100"},
        {"ns_coefficients[1]", o->ns_coefficients[1], -100, 100, "between -100 and 100"},
        {"ns_coefficients[2]", o->ns_coefficients[2], -100, 100, "between -100 and 100"},
        {"ns_eps", o->ns_eps, 1e-30, 1, "between 1e-30 and 1"},
        {"ns_dtype", o->ns_dtype, MEOPT_F32, MEOPT_BF16, "MEOPT_F32 or MEOPT_BF16"},
        {"ns_form", o->ns_form, 0, MEOPT_NS_GRAM, "one of enum meopt_ns_form"},
        {"adjust_lr", o->adjust_lr, 0, MEOPT_ADJUST_SPECTRAL, "one of enum meopt_adjust_lr"},
        {"warmup_steps", (double)o->warmup_steps, 0, 1e15, "not negative"},
        {"r", o->r, 0, 10, "between 0 and 10"},
        {"weight_lr_power", o->weight_lr_power, 0, 10, "between 0 and 10"},
        {"eps2", o->eps2, 0, 1, "between 0 and 1"},
        {"clip_threshold", o->clip_threshold, 1e-3, 1e30, "at least 0.001"},
        {"decay_rate", o->decay_rate, -1e3, 0, "between -1000 and 0"},
        {"scale_parameter", o->scale_parameter, 0, 1, "0 or 1"},
        {"relative_step", o->relative_step, 0, 1, "0 or 1"},
        {"warmup_init", o->warmup_init, 0, o->relative_step ? 1 : 0, "0, or 1 with relative_step 1"},
        {"torch_form", o->torch_form, 0, 1, "0 or 1"},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (!(ranges[i].value >= ranges[i].min && ranges[i].value <= ranges[i].max))
            return out_of_range(err, ranges[i].name, ranges[i].value, ranges[i].text);
    const struct device *dev = (const struct device *)o->device;
    if (o->offload == MEOPT_OFFLOAD_HOST && !(dev && dev->streams && dev->streams->overlap))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "offload to host memory requires a card: states are in host memory already");
    if (o->offload == MEOPT_OFFLOAD_FILE && !o->dry && !o->offload_dir)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "offloading to a file requires offload_dir");
    int status = rule_options_check(o, err);
    if (status) return status;
    if ((RULE_HAS(o->rule, WITH_V) || RULE_HAS(o->rule, WITH_MATRICES)) && !RULE_HAS(o->rule, WITH_POINTS) &&
        OPTIM_LOW_BIT(o->second_moment) && o->beta1 * o->beta1 >= o->beta2)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "a second moment of 8 or 4 bits needs beta1^2 < beta2, got %g and %g", o->beta1,
                          o->beta2);
    return MEOPT_OK;
}

/* Rows and columns of a tensor are those of the whole, and their sums are exact up to FACTOR_MOST elements.
 */
static int factors_check(const struct meopt_tensor *t, const struct meopt_options *o, struct meopt_error *err)
{
    if (o->reduce && !(t->flags & MEOPT_PART))
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "tensor %.100s: adafactor with options.reduce needs the whole tensor's shape and MEOPT_PART",
            t->name);
    for (int d = t->ndim - 2; d >= 0 && d < t->ndim; d++)
        if (t->shape[d] > FACTOR_MOST)
            return optim_fail(
                err, MEOPT_BAD_ARGUMENT,
                "tensor %.100s: dimension %d is %lld, adafactor has at most %d rows and columns", t->name, d,
                (long long)t->shape[d], FACTOR_MOST);
    return MEOPT_OK;
}

/* A trust ratio is of all tensors of the handle, and so are two points, which move them. */
static bool goes_alone(int rule) { return RULE_HAS(rule, WITH_TRUST) || RULE_HAS(rule, WITH_POINTS); }

/* Sets the rule of a row whose shape was read: its own, or that of the options. */
static int rule_read(struct meopt_tensor *to, const struct meopt_options *o, int64_t count,
                     struct meopt_error *err)
{
    bool own = to->flags & MEOPT_OWN_RULE;
    int wide = 0;
    for (int d = 0; d < to->ndim; d++) wide += to->shape[d] > 1;
    if (own && !meopt_rule_name(to->rule))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: rule is %d, expected one of enum meopt_rule", to->name, to->rule);
    if (!own) to->rule = RULE_HAS(o->rule, WITH_MATRICES) && wide < 2 ? RULE_APADAMW : o->rule;
    if (to->rule == o->rule && !RULE_HAS(to->rule, WITH_MATRICES)) return MEOPT_OK;
    if (to->rule != o->rule && (goes_alone(to->rule) || goes_alone(o->rule)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s has rule %s in an optimizer of %s: %s goes with no other rule",
                          to->name, meopt_rule_name(to->rule), meopt_rule_name(o->rule),
                          meopt_rule_name(goes_alone(to->rule) ? to->rule : o->rule));
    struct meopt_options mixed = *o;
    mixed.rule = to->rule;
    int status = options_check(&mixed, err);
    return status || !RULE_HAS(to->rule, WITH_MATRICES) ? status : muon_read(to, o, wide, count, err);
}

int tensor_read(struct meopt_tensor *to, const struct meopt_options *options,
                const struct meopt_tensor *table, size_t i, struct meopt_error *err)
{
    const char *row = (const char *)table + i * options->tensor_size;
    memset(to, 0, sizeof *to);
    if (!struct_copy_in(to, sizeof *to, row, options->tensor_size))
        return optim_fail(
            err, MEOPT_BAD_ARGUMENT,
            "tensor %zu has a field that this library does not know: it is older than the header", i);
    if (!to->name || !to->name[0] || strlen(to->name) > 1024)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %zu has no name, or one of more than 1024 bytes",
                          i);
    if (to->ndim < 0 || to->ndim > 8)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s has %d dimensions, at most 8 are possible",
                          to->name, to->ndim);
    if (to->flags & ~(unsigned)TENSOR_FLAGS)
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: flags are %#x, enum meopt_tensor_flags has %#x", to->name,
                          to->flags, (unsigned)TENSOR_FLAGS);
    if ((to->flags & MEOPT_KEEP_BF16) && (to->flags & MEOPT_COPY_F16))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: weights in bf16 (MEOPT_KEEP_BF16) have no copy in fp16", to->name);
    int64_t count = 1;
    for (int d = 0; d < to->ndim; d++)
        if (to->shape[d] < 0 || __builtin_mul_overflow(count, to->shape[d], &count) ||
            count > (int64_t)1 << 48)
            return optim_fail(err, MEOPT_BAD_ARGUMENT,
                              "tensor %.100s: dimension %d is %lld (negative or too large)", to->name, d,
                              (long long)to->shape[d]);
    if (to->first < 0 || to->first > (int64_t)1 << 50)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: first is %lld (negative or too large)",
                          to->name, (long long)to->first);
    if (to->flags & MEOPT_PART) {
        if (to->count < 0 || to->count > count || to->first > count || to->first + to->count > count)
            return optim_fail(err, MEOPT_BAD_ARGUMENT,
                              "tensor %.100s has %lld elements; %lld from %lld are no part of it", to->name,
                              (long long)count, (long long)to->count, (long long)to->first);
    }
    if (options->combine && (!(to->flags & MEOPT_PART) || to->first % CHUNK_ELEMENTS ||
                             (to->count % CHUNK_ELEMENTS && to->first + to->count != count)))
        return optim_fail(err, MEOPT_BAD_ARGUMENT,
                          "tensor %.100s: %lld elements from %lld are no part of it in chunks of %d, which "
                          "options.combine asks for",
                          to->name, (long long)to->count, (long long)to->first, CHUNK_ELEMENTS);
    int status = rule_read(to, options, count, err);
    if (!status && RULE_HAS(to->rule, WITH_FACTORS)) status = factors_check(to, options, err);
    if (status) return status;
    if (to->lr_scale == 0) to->lr_scale = 1;
    if (!isfinite(to->lr_scale) || to->lr_scale < 0)
        return optim_fail(err, MEOPT_BAD_ARGUMENT, "tensor %.100s: lr_scale is %g", to->name, to->lr_scale);
    return MEOPT_OK;
}
