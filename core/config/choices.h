/* Lists of choices: each list once, as an enum for the code and as names for the file.
 *
 * A row is X(NUMBER, "spelling"). Every list gives `enum loss_type` and `loss_type_names[]`, which ends
 * with NULL and is indexed by the number; enums of core/model and libmeopt are those of their headers.
 * struct config has the enums as fields, so that an unknown
 * choice, or one of a different list, does not compile. Numbers are internal to this build: files and
 * other programs use the names.
 */
#ifndef MEOPT_CONFIG_CHOICES_H
#define MEOPT_CONFIG_CHOICES_H

#include "core/meopt.h"
#include "core/model/choices.h"
#include "kernels/optim_rules.h"

// clang-format off
#define ARCH_CHOICE(X, name, ...) X(TOWER_ARCH_##name, #name)
#define CHOICES_TOWER_ARCH(X) X(TOWER_ARCH_CUSTOM, "custom") PRESETS(ARCH_CHOICE, X) \
    LANGUAGE_PRESETS(ARCH_CHOICE, X)
#define CHOICES_TOWER_FFN(X) X(TOWER_FFN_AUTO, "auto") X(TOWER_FFN_MLP, "mlp") X(TOWER_FFN_SWIGLU, "swiglu")
#define CHOICES_TOWER_ACTIVATION(X) X(TOWER_ACTIVATION_AUTO, "auto") X(TOWER_ACTIVATION_GELU, "gelu") \
    X(TOWER_ACTIVATION_QUICK_GELU, "quick_gelu") X(TOWER_ACTIVATION_GELU_TANH, "gelu_tanh")
#define CHOICES_TOWER_DTYPE(X) X(TOWER_DTYPE_AUTO, "auto") X(TOWER_DTYPE_FP32, "fp32") \
    X(TOWER_DTYPE_BF16, "bf16")
#define CHOICES_TOWER_INIT(X) X(TOWER_INIT_CHECKPOINT, "checkpoint") X(TOWER_INIT_RANDOM, "random")
#define CHOICES_TOWER_PLACE(X) X(TOWER_PLACE_RESIDENT, "resident") X(TOWER_PLACE_STREAMED, "streamed")

#define CHOICES_LOSS_TYPE(X) X(LOSS_TYPE_MSE, "mse") X(LOSS_TYPE_COSINE, "cosine") \
    X(LOSS_TYPE_SMOOTH_L1, "smooth-l1")
#define CHOICES_LOSS_REDUCTION(X) X(LOSS_REDUCTION_MEAN, "mean") X(LOSS_REDUCTION_SUM_DIM, "sum-dim")
#define CHOICES_LOSS_TOKENS(X) X(LOSS_TOKENS_CLS, "cls") X(LOSS_TOKENS_CLS_PATCH, "cls+patch") \
    X(LOSS_TOKENS_PATCH, "patch") X(LOSS_TOKENS_AVG, "avg")
#define CHOICES_LOSS_HEAD(X) X(LOSS_HEAD_AUTO, "auto") X(LOSS_HEAD_NONE, "none") \
    X(LOSS_HEAD_LINEAR, "linear") X(LOSS_HEAD_MLP, "mlp") X(LOSS_HEAD_PREVIOUS, "previous")
#define CHOICES_TRAIN_CACHE_PLACE(X) X(TRAIN_CACHE_PLACE_MEMORY, "memory") X(TRAIN_CACHE_PLACE_DISK, "disk")
#define CHOICES_TRAIN_CACHE_TYPE(X) X(TRAIN_CACHE_TYPE_FP32, "fp32") X(TRAIN_CACHE_TYPE_BF16, "bf16") \
    X(TRAIN_CACHE_TYPE_INT8, "int8")
#define CHOICES_LOSS_STANDARDIZE(X) X(LOSS_STANDARDIZE_NONE, "none") X(LOSS_STANDARDIZE_CHANNEL, "channel") \
    X(LOSS_STANDARDIZE_PHI_S, "phi-s")

#define CHOICES_DATA_PIPELINE(X) X(DATA_PIPELINE_AUTO, "auto") X(DATA_PIPELINE_CLIP, "clip") \
    X(DATA_PIPELINE_DINOV2, "dinov2") X(DATA_PIPELINE_SIGLIP, "siglip")

#define CHOICES_DATA_INTERPOLATION(X) X(DATA_INTERPOLATION_AUTO, "auto") \
    X(DATA_INTERPOLATION_BICUBIC, "bicubic") X(DATA_INTERPOLATION_BILINEAR, "bilinear") \
    X(DATA_INTERPOLATION_NEAREST, "nearest") X(DATA_INTERPOLATION_LANCZOS, "lanczos") \
    X(DATA_INTERPOLATION_BOX, "box") X(DATA_INTERPOLATION_HAMMING, "hamming")
#define CHOICES_DATA_RESIZE(X) X(DATA_RESIZE_AUTO, "auto") X(DATA_RESIZE_SHORTEST, "shortest") \
    X(DATA_RESIZE_SQUASH, "squash") X(DATA_RESIZE_EXACT, "exact")
#define CHOICES_DATA_RESIZE_AS(X) X(DATA_RESIZE_AS_AUTO, "auto") X(DATA_RESIZE_AS_PIL, "pil") \
    X(DATA_RESIZE_AS_HF, "hf") X(DATA_RESIZE_AS_HF_PIL, "hf_pil") X(DATA_RESIZE_AS_HF_FLOAT, "hf_float")

/* In this order: the last is both of those before it (config_eval_has). */
#define CHOICES_TRAIN_EVAL(X) X(TRAIN_EVAL_LOSS, "loss") X(TRAIN_EVAL_KNN, "knn") \
    X(TRAIN_EVAL_PROBE, "probe") X(TRAIN_EVAL_KNN_PROBE, "knn+probe")
#define CHOICES_DATA_TOKENS(X) X(DATA_TOKENS_AUTO, "auto") X(DATA_TOKENS_MEGATRON, "megatron") \
    X(DATA_TOKENS_LLMC, "llmc") X(DATA_TOKENS_UINT16, "uint16") X(DATA_TOKENS_UINT32, "uint32") \
    X(DATA_TOKENS_BYTES, "bytes")
#define CHOICES_DATA_CLASS_ORDER(X) X(DATA_CLASS_ORDER_AUTO, "auto") X(DATA_CLASS_ORDER_SORTED, "sorted")
#define CHOICES_DATA_DOCUMENTS(X) X(DATA_DOCUMENTS_AUTO, "auto") X(DATA_DOCUMENTS_APART, "apart") \
    X(DATA_DOCUMENTS_JOINED, "joined") X(DATA_DOCUMENTS_WHOLE, "whole")
#define CHOICES_DATA_TOO_LONG(X) X(DATA_TOO_LONG_REFUSE, "refuse") X(DATA_TOO_LONG_CUT, "cut") \
    X(DATA_TOO_LONG_SKIP, "skip")

#define CHOICES_TRAIN_OBJECTIVE(X) X(TRAIN_OBJECTIVE_DISTILL, "distill") \
    X(TRAIN_OBJECTIVE_CLASSIFY, "classify") X(TRAIN_OBJECTIVE_LANGUAGE, "language") \
    X(TRAIN_OBJECTIVE_MASKED, "masked")
#define OBJECTIVES_OF_TOKENS (1 << TRAIN_OBJECTIVE_LANGUAGE | 1 << TRAIN_OBJECTIVE_MASKED)
#define CHOICES_TRAIN_PRECISION(X) X(TRAIN_PRECISION_BF16, "bf16") X(TRAIN_PRECISION_FP32, "fp32")
#define CHOICES_TRAIN_RECOMPUTE(X) X(TRAIN_RECOMPUTE_NONE, "none") X(TRAIN_RECOMPUTE_BLOCK, "block")
#define CHOICES_TRAIN_ROUNDS(X) X(TRAIN_ROUNDS_AUTO, "auto") X(TRAIN_ROUNDS_DEPTH, "depth") \
    X(TRAIN_ROUNDS_BREADTH, "breadth")
#define CHOICES_TRAIN_SAVE_ACTIVATIONS(X) \
    X(TRAIN_SAVE_ACTIVATIONS_MINIMAL, "minimal") X(TRAIN_SAVE_ACTIVATIONS_8BIT, "8bit")

#define CHOICES_OPTIM_PRESET(X) X(OPTIM_PRESET_QUALITY, "quality") X(OPTIM_PRESET_BALANCED, "balanced") \
    X(OPTIM_PRESET_MINIMAL, "minimal")
#define RULE_CHOICE(X, number, name, ...) X(MEOPT_##number, name)
#define CHOICES_MEOPT_RULE(X) OPTIM_RULES(RULE_CHOICE, X)
#define CHOICES_MEOPT_NS_SCHEDULE(X) X(MEOPT_NS_QUINTIC, "quintic") \
    X(MEOPT_NS_POLAR_EXPRESS, "polar_express")
#define CHOICES_MEOPT_NS_FORM(X) X(MEOPT_NS_AUTO, "auto") X(MEOPT_NS_DIRECT, "direct") \
    X(MEOPT_NS_GRAM, "gram")
#define CHOICES_OPTIM_NS_PRECISION(X) X(OPTIM_NS_PRECISION_BF16, "bf16") X(OPTIM_NS_PRECISION_FP32, "fp32")
#define CHOICES_OPTIM_OTHER_RULE(X) X(OPTIM_OTHER_RULE_APADAMW, "apadamw") \
    X(OPTIM_OTHER_RULE_ADAFACTOR, "adafactor")
#define CHOICES_MEOPT_ADJUST_LR(X) X(MEOPT_ADJUST_RMS_MATCH, "rms_match") \
    X(MEOPT_ADJUST_ORIGINAL, "original") X(MEOPT_ADJUST_SPECTRAL, "spectral")
#define CHOICES_OPTIM_SCHEDULE(X) X(OPTIM_SCHEDULE_COSINE, "cosine") X(OPTIM_SCHEDULE_LINEAR, "linear") \
    X(OPTIM_SCHEDULE_CONSTANT, "constant")
#define CHOICES_OPTIM_CLIP_MODE(X) X(OPTIM_CLIP_MODE_AUTO, "auto") X(OPTIM_CLIP_MODE_EXACT, "exact") \
    X(OPTIM_CLIP_MODE_PREVIOUS, "previous") X(OPTIM_CLIP_MODE_BLOCK, "block")
#define CHOICES_OPTIM_WEIGHTS(X) X(OPTIM_WEIGHTS_AUTO, "auto") X(OPTIM_WEIGHTS_FP32, "fp32") \
    X(OPTIM_WEIGHTS_FP32_COPY, "fp32+copy") X(OPTIM_WEIGHTS_BF16, "bf16") \
    X(OPTIM_WEIGHTS_BF16_SR, "bf16_sr") \
    X(OPTIM_WEIGHTS_BF16_4, "bf16+4") X(OPTIM_WEIGHTS_BF16_8, "bf16+8") X(OPTIM_WEIGHTS_BF16_16, "bf16+16")
#define CHOICES_OPTIM_STATE(X) X(OPTIM_STATE_AUTO, "auto") X(OPTIM_STATE_FP32, "fp32") \
    X(OPTIM_STATE_BF16, "bf16") \
    X(OPTIM_STATE_BF16_NEAREST, "bf16_nearest") X(OPTIM_STATE_8BIT, "8bit") X(OPTIM_STATE_4BIT, "4bit")
#define CHOICES_OPTIM_GRADIENTS(X) X(OPTIM_GRADIENTS_AUTO, "auto") X(OPTIM_GRADIENTS_KEEP, "keep") \
    X(OPTIM_GRADIENTS_RELEASE, "release")
#define CHOICES_OPTIM_OFFLOAD(X) X(OPTIM_OFFLOAD_NONE, "none") X(OPTIM_OFFLOAD_HOST, "host") \
    X(OPTIM_OFFLOAD_NVME, "nvme")

#define CHOICES_DEVICE_TYPE(X) X(DEVICE_TYPE_AUTO, "auto") X(DEVICE_TYPE_CPU, "cpu") \
    X(DEVICE_TYPE_HIP, "hip") \
    X(DEVICE_TYPE_CUDA, "cuda")

#define CHOICES_DIST_BACKEND(X) X(DIST_BACKEND_AUTO, "auto") X(DIST_BACKEND_LOCAL, "local") \
    X(DIST_BACKEND_MPI, "mpi") X(DIST_BACKEND_NCCL, "nccl")
#define CHOICES_DIST_REDUCE(X) X(DIST_REDUCE_ORDERED, "ordered") X(DIST_REDUCE_LIBRARY, "library")
#define CHOICES_DIST_SHARD(X) X(DIST_SHARD_NONE, "none") X(DIST_SHARD_OPTIMIZER, "optimizer") \
    X(DIST_SHARD_PARAMETERS, "parameters")

/* L(tag of the enum, its list) */
#define CHOICE_LISTS(L) \
    L(tower_arch, CHOICES_TOWER_ARCH) L(tower_ffn, CHOICES_TOWER_FFN) \
    L(tower_activation, CHOICES_TOWER_ACTIVATION) \
    L(tower_dtype, CHOICES_TOWER_DTYPE) L(tower_init, CHOICES_TOWER_INIT) \
    L(tower_place, CHOICES_TOWER_PLACE) \
    L(loss_type, CHOICES_LOSS_TYPE) L(loss_reduction, CHOICES_LOSS_REDUCTION) \
    L(loss_tokens, CHOICES_LOSS_TOKENS) L(loss_head, CHOICES_LOSS_HEAD) \
    L(loss_standardize, CHOICES_LOSS_STANDARDIZE) \
    L(train_cache_place, CHOICES_TRAIN_CACHE_PLACE) L(train_cache_type, CHOICES_TRAIN_CACHE_TYPE) \
    L(data_pipeline, CHOICES_DATA_PIPELINE) L(data_interpolation, CHOICES_DATA_INTERPOLATION) \
    L(data_resize, CHOICES_DATA_RESIZE) L(data_resize_as, CHOICES_DATA_RESIZE_AS) \
    L(data_tokens, CHOICES_DATA_TOKENS) L(data_documents, CHOICES_DATA_DOCUMENTS) \
    L(data_too_long, CHOICES_DATA_TOO_LONG) L(data_class_order, CHOICES_DATA_CLASS_ORDER) \
    L(train_objective, CHOICES_TRAIN_OBJECTIVE) L(train_eval, CHOICES_TRAIN_EVAL) \
    L(train_precision, CHOICES_TRAIN_PRECISION) L(train_recompute, CHOICES_TRAIN_RECOMPUTE) \
    L(train_rounds, CHOICES_TRAIN_ROUNDS) \
    L(train_save_activations, CHOICES_TRAIN_SAVE_ACTIVATIONS) \
    L(optim_preset, CHOICES_OPTIM_PRESET) L(optim_ns_precision, CHOICES_OPTIM_NS_PRECISION) \
    L(optim_other_rule, CHOICES_OPTIM_OTHER_RULE) \
    L(optim_schedule, CHOICES_OPTIM_SCHEDULE) L(optim_clip_mode, CHOICES_OPTIM_CLIP_MODE) \
    L(optim_weights, CHOICES_OPTIM_WEIGHTS) L(optim_state, CHOICES_OPTIM_STATE) \
    L(optim_gradients, CHOICES_OPTIM_GRADIENTS) L(optim_offload, CHOICES_OPTIM_OFFLOAD) \
    L(device_type, CHOICES_DEVICE_TYPE) \
    L(dist_backend, CHOICES_DIST_BACKEND) L(dist_shard, CHOICES_DIST_SHARD) \
    L(dist_reduce, CHOICES_DIST_REDUCE)

/* Lists whose enums are libmeopt's */
#define MEOPT_CHOICE_LISTS(L) \
    L(meopt_rule, CHOICES_MEOPT_RULE) L(meopt_ns_schedule, CHOICES_MEOPT_NS_SCHEDULE) \
    L(meopt_ns_form, CHOICES_MEOPT_NS_FORM) L(meopt_adjust_lr, CHOICES_MEOPT_ADJUST_LR)

#define CHOICE_EXTERN(tag, LIST) extern const char *const tag##_names[];
MEOPT_CHOICE_LISTS(CHOICE_EXTERN)
// clang-format on
CHOICE_LISTS(CHOICE_ENUM)
#define CHOICE_ONE(number, name) +1
enum { TRAIN_OBJECTIVE_COUNT = 0 CHOICES_TRAIN_OBJECTIVE(CHOICE_ONE) };

#endif
