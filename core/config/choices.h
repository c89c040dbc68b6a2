/* The choices of the experiment: each list once, as an enum for the code and as spellings for the file.
 *
 * A row is X(NUMBER, "spelling"). Every list gives `enum loss_type` and `loss_type_names[]`, which ends with
 * NULL and is indexed by the number. struct config holds the enums, so a choice that does not exist, or one
 * of another list, does not compile. Numbers are of this build alone: files and other programs see spellings.
 */
#ifndef MEOPT_CONFIG_CHOICES_H
#define MEOPT_CONFIG_CHOICES_H

#include "kernels/optim_rules.h"

// clang-format off
#define CHOICES_MODEL_FAMILY(X) X(MODEL_FAMILY_AUTO, "auto") X(MODEL_FAMILY_EVA, "eva") \
    X(MODEL_FAMILY_OPENCLIP, "openclip") X(MODEL_FAMILY_DINOV2, "dinov2") \
    X(MODEL_FAMILY_DINOV3, "dinov3")
#define CHOICES_TOWER_ARCH(X) X(TOWER_ARCH_CUSTOM, "custom") \
    X(TOWER_ARCH_EVA01_G14, "eva01_g14") \
    X(TOWER_ARCH_EVA01_G14_PLUS, "eva01_g14_plus") \
    X(TOWER_ARCH_EVA02_B16, "eva02_b16") \
    X(TOWER_ARCH_EVA02_L14, "eva02_l14") \
    X(TOWER_ARCH_EVA02_L14_336, "eva02_l14_336") \
    X(TOWER_ARCH_EVA02_E14, "eva02_e14") \
    X(TOWER_ARCH_EVA02_E14_PLUS, "eva02_e14_plus") \
    X(TOWER_ARCH_EVA02_TINY14, "eva02_tiny14") \
    X(TOWER_ARCH_EVA02_TINY14_336, "eva02_tiny14_336") \
    X(TOWER_ARCH_EVA02_SMALL14, "eva02_small14") \
    X(TOWER_ARCH_EVA02_SMALL14_336, "eva02_small14_336") \
    X(TOWER_ARCH_EVA02_BASE14, "eva02_base14") \
    X(TOWER_ARCH_EVA02_BASE14_448, "eva02_base14_448") \
    X(TOWER_ARCH_EVA02_LARGE14, "eva02_large14") \
    X(TOWER_ARCH_EVA02_LARGE14_448, "eva02_large14_448") \
    X(TOWER_ARCH_OPENCLIP_VIT_S16, "openclip_vit_s16") \
    X(TOWER_ARCH_OPENCLIP_VIT_S16_ALT, "openclip_vit_s16_alt") \
    X(TOWER_ARCH_OPENCLIP_VIT_S32, "openclip_vit_s32") \
    X(TOWER_ARCH_OPENCLIP_VIT_S32_ALT, "openclip_vit_s32_alt") \
    X(TOWER_ARCH_OPENCLIP_VIT_M16, "openclip_vit_m16") \
    X(TOWER_ARCH_OPENCLIP_VIT_M16_ALT, "openclip_vit_m16_alt") \
    X(TOWER_ARCH_OPENCLIP_VIT_M32, "openclip_vit_m32") \
    X(TOWER_ARCH_OPENCLIP_VIT_M32_ALT, "openclip_vit_m32_alt") \
    X(TOWER_ARCH_OPENCLIP_VIT_B16, "openclip_vit_b16") \
    X(TOWER_ARCH_OPENCLIP_VIT_B16_QUICKGELU, "openclip_vit_b16_quickgelu") \
    X(TOWER_ARCH_OPENCLIP_VIT_B16_PLUS, "openclip_vit_b16_plus") \
    X(TOWER_ARCH_OPENCLIP_VIT_B16_PLUS_240, "openclip_vit_b16_plus_240") \
    X(TOWER_ARCH_OPENCLIP_VIT_B32, "openclip_vit_b32") \
    X(TOWER_ARCH_OPENCLIP_VIT_B32_QUICKGELU, "openclip_vit_b32_quickgelu") \
    X(TOWER_ARCH_OPENCLIP_VIT_B32_256, "openclip_vit_b32_256") \
    X(TOWER_ARCH_OPENCLIP_COCA_B32, "openclip_coca_b32") \
    X(TOWER_ARCH_OPENCLIP_COCA_L14, "openclip_coca_l14") \
    X(TOWER_ARCH_OPENCLIP_VIT_B32_PLUS_256, "openclip_vit_b32_plus_256") \
    X(TOWER_ARCH_OPENCLIP_VIT_L14, "openclip_vit_l14") \
    X(TOWER_ARCH_OPENCLIP_VIT_L14_QUICKGELU, "openclip_vit_l14_quickgelu") \
    X(TOWER_ARCH_OPENCLIP_VIT_L14_280, "openclip_vit_l14_280") \
    X(TOWER_ARCH_OPENCLIP_VIT_L14_336, "openclip_vit_l14_336") \
    X(TOWER_ARCH_OPENCLIP_VIT_L14_336_QUICKGELU, "openclip_vit_l14_336_quickgelu") \
    X(TOWER_ARCH_OPENCLIP_VIT_L16, "openclip_vit_l16") \
    X(TOWER_ARCH_OPENCLIP_VIT_L16_320, "openclip_vit_l16_320") \
    X(TOWER_ARCH_OPENCLIP_VIT_H14, "openclip_vit_h14") \
    X(TOWER_ARCH_OPENCLIP_VIT_H14_QUICKGELU, "openclip_vit_h14_quickgelu") \
    X(TOWER_ARCH_OPENCLIP_VIT_H14_378, "openclip_vit_h14_378") \
    X(TOWER_ARCH_OPENCLIP_VIT_H14_378_QUICKGELU, "openclip_vit_h14_378_quickgelu") \
    X(TOWER_ARCH_OPENCLIP_VIT_H16, "openclip_vit_h16") \
    X(TOWER_ARCH_OPENCLIP_VIT_G14, "openclip_vit_g14") \
    X(TOWER_ARCH_OPENCLIP_VIT_BIGG14, "openclip_vit_bigg14") \
    X(TOWER_ARCH_OPENCLIP_VIT_BIGG14_QUICKGELU, "openclip_vit_bigg14_quickgelu") \
    X(TOWER_ARCH_OPENCLIP_VIT_BIGG14_378, "openclip_vit_bigg14_378") \
    X(TOWER_ARCH_OPENCLIP_VIT_E14, "openclip_vit_e14") \
    X(TOWER_ARCH_OPENCLIP_VIT_L14_CLIPA, "openclip_vit_l14_clipa") \
    X(TOWER_ARCH_OPENCLIP_VIT_L14_CLIPA_336, "openclip_vit_l14_clipa_336") \
    X(TOWER_ARCH_OPENCLIP_VIT_H14_CLIPA, "openclip_vit_h14_clipa") \
    X(TOWER_ARCH_OPENCLIP_VIT_H14_CLIPA_336, "openclip_vit_h14_clipa_336") \
    X(TOWER_ARCH_OPENCLIP_VIT_BIGG14_CLIPA, "openclip_vit_bigg14_clipa") \
    X(TOWER_ARCH_OPENCLIP_VIT_BIGG14_CLIPA_336, "openclip_vit_bigg14_clipa_336") \
    X(TOWER_ARCH_DINOV2_VITS14, "dinov2_vits14") \
    X(TOWER_ARCH_DINOV2_VITB14, "dinov2_vitb14") \
    X(TOWER_ARCH_DINOV2_VITL14, "dinov2_vitl14") \
    X(TOWER_ARCH_DINOV2_VITG14, "dinov2_vitg14") \
    X(TOWER_ARCH_DINOV2_VITS14_REG, "dinov2_vits14_reg") \
    X(TOWER_ARCH_DINOV2_VITB14_REG, "dinov2_vitb14_reg") \
    X(TOWER_ARCH_DINOV2_VITL14_REG, "dinov2_vitl14_reg") \
    X(TOWER_ARCH_DINOV2_VITG14_REG, "dinov2_vitg14_reg") \
    X(TOWER_ARCH_DINOV3_VITS16, "dinov3_vits16") \
    X(TOWER_ARCH_DINOV3_VITS16PLUS, "dinov3_vits16plus") \
    X(TOWER_ARCH_DINOV3_VITB16, "dinov3_vitb16") \
    X(TOWER_ARCH_DINOV3_VITL16, "dinov3_vitl16") \
    X(TOWER_ARCH_DINOV3_VITH16PLUS, "dinov3_vith16plus") \
    X(TOWER_ARCH_DINOV3_VIT7B16, "dinov3_vit7b16")
#define CHOICES_TOWER_POS_RESIZE(X) X(TOWER_POS_RESIZE_AUTO, "auto") X(TOWER_POS_RESIZE_DINOV2, "dinov2") \
    X(TOWER_POS_RESIZE_HF, "hf") X(TOWER_POS_RESIZE_TIMM, "timm")
#define CHOICES_TOWER_FFN(X) X(TOWER_FFN_AUTO, "auto") X(TOWER_FFN_MLP, "mlp") X(TOWER_FFN_SWIGLU, "swiglu")
#define CHOICES_TOWER_ACTIVATION(X) X(TOWER_ACTIVATION_AUTO, "auto") X(TOWER_ACTIVATION_GELU, "gelu") \
    X(TOWER_ACTIVATION_QUICK_GELU, "quick_gelu")
#define CHOICES_TOWER_POOL(X) X(TOWER_POOL_AUTO, "auto") X(TOWER_POOL_CLS, "cls") X(TOWER_POOL_AVG, "avg") \
    X(TOWER_POOL_AVG_FIRST, "avg_first") X(TOWER_POOL_AVG_ALL, "avg_all") \
    X(TOWER_POOL_AVG_RAW, "avg_raw") X(TOWER_POOL_CLS_DIST, "cls_dist")
#define CHOICES_TOWER_NORM(X) X(TOWER_NORM_AUTO, "auto") X(TOWER_NORM_PRE, "pre") X(TOWER_NORM_POST, "post")
#define CHOICES_TOWER_DTYPE(X) X(TOWER_DTYPE_AUTO, "auto") X(TOWER_DTYPE_FP32, "fp32") \
    X(TOWER_DTYPE_BF16, "bf16")
#define CHOICES_TOWER_INIT(X) X(TOWER_INIT_CHECKPOINT, "checkpoint") X(TOWER_INIT_RANDOM, "random")
#define CHOICES_TOWER_PLACE(X) X(TOWER_PLACE_RESIDENT, "resident") X(TOWER_PLACE_STREAMED, "streamed")

#define CHOICES_LOSS_TYPE(X) X(LOSS_TYPE_MSE, "mse") X(LOSS_TYPE_COSINE, "cosine") \
    X(LOSS_TYPE_SMOOTH_L1, "smooth-l1")
#define CHOICES_LOSS_REDUCTION(X) X(LOSS_REDUCTION_MEAN, "mean") X(LOSS_REDUCTION_SUM_DIM, "sum-dim")
#define CHOICES_LOSS_TOKENS(X) X(LOSS_TOKENS_CLS, "cls") X(LOSS_TOKENS_CLS_PATCH, "cls+patch")
#define CHOICES_LOSS_HEAD(X) X(LOSS_HEAD_AUTO, "auto") X(LOSS_HEAD_NONE, "none") X(LOSS_HEAD_LINEAR, "linear")

#define CHOICES_DATA_PIPELINE(X) X(DATA_PIPELINE_AUTO, "auto") X(DATA_PIPELINE_CLIP, "clip") \
    X(DATA_PIPELINE_DINOV2, "dinov2")

#define CHOICES_DATA_INTERPOLATION(X) X(DATA_INTERPOLATION_AUTO, "auto") \
    X(DATA_INTERPOLATION_BICUBIC, "bicubic") X(DATA_INTERPOLATION_BILINEAR, "bilinear") \
    X(DATA_INTERPOLATION_NEAREST, "nearest") X(DATA_INTERPOLATION_LANCZOS, "lanczos") \
    X(DATA_INTERPOLATION_BOX, "box") X(DATA_INTERPOLATION_HAMMING, "hamming")
#define CHOICES_DATA_RESIZE(X) X(DATA_RESIZE_AUTO, "auto") X(DATA_RESIZE_SHORTEST, "shortest") \
    X(DATA_RESIZE_SQUASH, "squash") X(DATA_RESIZE_EXACT, "exact")
#define CHOICES_DATA_RESIZE_AS(X) X(DATA_RESIZE_AS_AUTO, "auto") X(DATA_RESIZE_AS_PIL, "pil") \
    X(DATA_RESIZE_AS_HF, "hf") X(DATA_RESIZE_AS_HF_PIL, "hf_pil") X(DATA_RESIZE_AS_HF_FLOAT, "hf_float")

#define CHOICES_TRAIN_PRECISION(X) X(TRAIN_PRECISION_BF16, "bf16") X(TRAIN_PRECISION_FP32, "fp32")
#define CHOICES_TRAIN_RECOMPUTE(X) X(TRAIN_RECOMPUTE_NONE, "none") X(TRAIN_RECOMPUTE_BLOCK, "block")
#define CHOICES_TRAIN_SAVE_ACTIVATIONS(X) \
    X(TRAIN_SAVE_ACTIVATIONS_MINIMAL, "minimal") X(TRAIN_SAVE_ACTIVATIONS_8BIT, "8bit")

#define CHOICES_OPTIM_PRESET(X) X(OPTIM_PRESET_QUALITY, "quality") X(OPTIM_PRESET_BALANCED, "balanced") \
    X(OPTIM_PRESET_MINIMAL, "minimal")
#define RULE_CHOICE(X, number, name, ...) X(OPTIM_NAME_##number, name)
#define CHOICES_OPTIM_NAME(X) OPTIM_RULES(RULE_CHOICE, X)
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
#define CHOICES_DIST_SHARD(X) X(DIST_SHARD_NONE, "none") X(DIST_SHARD_OPTIMIZER, "optimizer") \
    X(DIST_SHARD_PARAMETERS, "parameters")

/* L(tag of the enum, its list) */
#define CHOICE_LISTS(L) \
    L(model_family, CHOICES_MODEL_FAMILY) \
    L(tower_arch, CHOICES_TOWER_ARCH) L(tower_ffn, CHOICES_TOWER_FFN) \
    L(tower_activation, CHOICES_TOWER_ACTIVATION) L(tower_pool, CHOICES_TOWER_POOL) \
    L(tower_norm, CHOICES_TOWER_NORM) \
    L(tower_pos_resize, CHOICES_TOWER_POS_RESIZE) \
    L(tower_dtype, CHOICES_TOWER_DTYPE) L(tower_init, CHOICES_TOWER_INIT) \
    L(tower_place, CHOICES_TOWER_PLACE) \
    L(loss_type, CHOICES_LOSS_TYPE) L(loss_reduction, CHOICES_LOSS_REDUCTION) \
    L(loss_tokens, CHOICES_LOSS_TOKENS) L(loss_head, CHOICES_LOSS_HEAD) \
    L(data_pipeline, CHOICES_DATA_PIPELINE) L(data_interpolation, CHOICES_DATA_INTERPOLATION) \
    L(data_resize, CHOICES_DATA_RESIZE) L(data_resize_as, CHOICES_DATA_RESIZE_AS) \
    L(train_precision, CHOICES_TRAIN_PRECISION) L(train_recompute, CHOICES_TRAIN_RECOMPUTE) \
    L(train_save_activations, CHOICES_TRAIN_SAVE_ACTIVATIONS) \
    L(optim_preset, CHOICES_OPTIM_PRESET) L(optim_name, CHOICES_OPTIM_NAME) \
    L(optim_schedule, CHOICES_OPTIM_SCHEDULE) L(optim_clip_mode, CHOICES_OPTIM_CLIP_MODE) \
    L(optim_weights, CHOICES_OPTIM_WEIGHTS) L(optim_state, CHOICES_OPTIM_STATE) \
    L(optim_gradients, CHOICES_OPTIM_GRADIENTS) L(optim_offload, CHOICES_OPTIM_OFFLOAD) \
    L(device_type, CHOICES_DEVICE_TYPE) \
    L(dist_backend, CHOICES_DIST_BACKEND) L(dist_shard, CHOICES_DIST_SHARD)

#define CHOICE_NUMBER(number, spelling) number,
#define CHOICE_ENUM(tag, LIST) enum tag { LIST(CHOICE_NUMBER) }; extern const char *const tag##_names[];
// clang-format on
CHOICE_LISTS(CHOICE_ENUM)

#endif
