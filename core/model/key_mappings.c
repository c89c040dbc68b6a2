/* Key mappings of the libraries that write towers: see key_mapping.h. */
#include "core/model/key_mapping.h"

#define EVA_SPLIT [ROLE_QKV_W] = "attn.q_proj.weight|attn.k_proj.weight|attn.v_proj.weight"

/* transformers: the embeddings of its ViT and DINOv2, and the layers after the last block */
#define HF_VIT_EMBEDDINGS                                                                                    \
    [ROLE_CLS] = "embeddings.cls_token", [ROLE_POS] = "embeddings.position_embeddings",                      \
    [ROLE_PATCH_W] = "embeddings.patch_embeddings.projection.weight",                                        \
    [ROLE_PATCH_B] = "embeddings.patch_embeddings.projection.bias", [ROLE_NORM_W] = "layernorm.weight",      \
    [ROLE_NORM_B] = "layernorm.bias"

/* The attention of transformers 5. */
#define HF_ATTENTION                                                                                         \
    [ROLE_QKV_W] = "attention.q_proj.weight|attention.k_proj.weight|attention.v_proj.weight",                \
    [ROLE_QKV_B] = "attention.q_proj.bias|attention.k_proj.bias|attention.v_proj.bias",                      \
    [ROLE_PROJ_W] = "attention.o_proj.weight", [ROLE_PROJ_B] = "attention.o_proj.bias"

/* Its plain ViT. The embedding is the class token after the last norm; the pooler comes after it. */
#define HF_VIT_NORMS                                                                                         \
    [ROLE_NORM1_W] = "layernorm_before.weight", [ROLE_NORM1_B] = "layernorm_before.bias",                    \
    [ROLE_NORM2_W] = "layernorm_after.weight", [ROLE_NORM2_B] = "layernorm_after.bias"
#define HF_VIT                                                                                               \
    .family = FAMILY_DINOV2, .towers = {"vit.", "deit.", ""}, .ignored = {"pooler."},                        \
    .pos_resize = POS_RESIZE_HF, .norm_eps = 1e-12f,                                                         \
    .settles = FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(POS_RESIZE)

/* Names of the saved file, and of the model in memory under transformers 5. */
#define HF_VIT_SAVED(distillation)                                                                           \
    HF_VIT, .probes = {"embeddings.cls_token", "encoder.layer.0.layernorm_before.weight", distillation},     \
            .block_prefix = "encoder.layer.",                                                                \
            .keys = {HF_VIT_EMBEDDINGS,                                                                      \
                     HF_VIT_NORMS,                                                                           \
                     [ROLE_REGISTERS] = distillation,                                                        \
                     [ROLE_QKV_W] = "attention.attention.query.weight|attention.attention.key.weight|"       \
                                    "attention.attention.value.weight",                                      \
                     [ROLE_QKV_B] = "attention.attention.query.bias|attention.attention.key.bias|"           \
                                    "attention.attention.value.bias",                                        \
                     [ROLE_PROJ_W] = "attention.output.dense.weight",                                        \
                     [ROLE_PROJ_B] = "attention.output.dense.bias",                                          \
                     [ROLE_FC1_W] = "intermediate.dense.weight",                                             \
                     [ROLE_FC1_B] = "intermediate.dense.bias",                                               \
                     [ROLE_FC2_W] = "output.dense.weight",                                                   \
                     [ROLE_FC2_B] = "output.dense.bias"}
#define HF_VIT_MEMORY(distillation)                                                                          \
    HF_VIT, .probes = {"embeddings.cls_token", "layers.0.layernorm_before.weight", distillation},            \
            .block_prefix = "layers.",                                                                       \
            .keys = {HF_VIT_EMBEDDINGS, HF_VIT_NORMS, HF_ATTENTION, [ROLE_REGISTERS] = distillation}

/* Its CLIP and SigLIP. */
#define HF_CLIP_KEYS                                                                                         \
    [ROLE_POS] = "embeddings.position_embedding.weight",                                                     \
    [ROLE_PATCH_W] = "embeddings.patch_embedding.weight", [ROLE_NORM1_W] = "layer_norm1.weight",             \
    [ROLE_NORM1_B] = "layer_norm1.bias",                                                                     \
    [ROLE_QKV_W] = "self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight",                \
    [ROLE_QKV_B] = "self_attn.q_proj.bias|self_attn.k_proj.bias|self_attn.v_proj.bias",                      \
    [ROLE_PROJ_W] = "self_attn.out_proj.weight", [ROLE_PROJ_B] = "self_attn.out_proj.bias",                  \
    [ROLE_NORM2_W] = "layer_norm2.weight", [ROLE_NORM2_B] = "layer_norm2.bias",                              \
    [ROLE_FC1_W] = "mlp.fc1.weight", [ROLE_FC1_B] = "mlp.fc1.bias", [ROLE_FC2_W] = "mlp.fc2.weight",         \
    [ROLE_FC2_B] = "mlp.fc2.bias", [ROLE_NORM_W] = "post_layernorm.weight",                                  \
    [ROLE_NORM_B] = "post_layernorm.bias"

/* SiglipModel, SiglipVisionModel */
#define HF_SIGLIP                                                                                            \
    .towers = {"vision_model.", ""}, .block_prefix = "encoder.layers.", .convolves = true,                   \
    .pos_resize = POS_RESIZE_HF, .ffn = 1 + ACTIVATION_GELU_TANH, .ignored = {"embeddings.position_ids"},    \
    .settles = FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(POS_RESIZE)

#define DINOV3_TRANSFORMERS(blocks)                                                                          \
    .block_prefix = blocks,                                                                                  \
    .keys = {[ROLE_CLS] = "embeddings.cls_token",                                                            \
             [ROLE_REGISTERS] = "embeddings.register_tokens",                                                \
             [ROLE_MASK] = "embeddings.mask_token",                                                          \
             [ROLE_PATCH_W] = "embeddings.patch_embeddings.weight",                                          \
             [ROLE_PATCH_B] = "embeddings.patch_embeddings.bias",                                            \
             [ROLE_QKV_W] = "attention.q_proj.weight|attention.k_proj.weight|attention.v_proj.weight",       \
             [ROLE_Q_B] = "attention.q_proj.bias",                                                           \
             [ROLE_V_B] = "attention.v_proj.bias",                                                           \
             [ROLE_PROJ_W] = "attention.o_proj.weight",                                                      \
             [ROLE_PROJ_B] = "attention.o_proj.bias",                                                        \
             [ROLE_LS1] = "layer_scale1.lambda1",                                                            \
             [ROLE_FC1_W] = "mlp.up_proj.weight",                                                            \
             [ROLE_FC1_B] = "mlp.up_proj.bias",                                                              \
             [ROLE_FC2_W] = "mlp.down_proj.weight",                                                          \
             [ROLE_FC2_B] = "mlp.down_proj.bias",                                                            \
             [ROLE_LS2] = "layer_scale2.lambda1"},                                                           \
    .swiglu = {"mlp.gate_proj.weight|mlp.up_proj.weight", "mlp.gate_proj.bias|mlp.up_proj.bias",             \
               "mlp.down_proj.weight", "mlp.down_proj.bias"},                                                \
    .batched = true, .gate_varies = true, .settles = FACT_BIT(POOL) | FACT_BIT(NORM)

/* torchvision's VisionTransformer; the names of its feed-forward changed once. It resizes positions with
 * aligned corners, which is not supported here: at a different size timm's resize is used, with a warning. */
#define TORCHVISION(fc1, fc2, ...)                                                                           \
    {                                                                                                        \
        .family = FAMILY_DINOV2, .towers = {""},                                                             \
        .probes = {"conv_proj.weight", "class_token", "encoder.layers.encoder_layer_0." fc1 ".weight"},      \
        .block_prefix = "encoder.layers.encoder_layer_",                                                     \
        .keys = {[ROLE_CLS] = "class_token",                                                                 \
                 [ROLE_POS] = "encoder.pos_embedding",                                                       \
                 [ROLE_PATCH_W] = "conv_proj.weight",                                                        \
                 [ROLE_PATCH_B] = "conv_proj.bias",                                                          \
                 [ROLE_NORM1_W] = "ln_1.weight",                                                             \
                 [ROLE_NORM1_B] = "ln_1.bias",                                                               \
                 [ROLE_QKV_W] = "self_attention.in_proj_weight",                                             \
                 [ROLE_QKV_B] = "self_attention.in_proj_bias",                                               \
                 [ROLE_PROJ_W] = "self_attention.out_proj.weight",                                           \
                 [ROLE_PROJ_B] = "self_attention.out_proj.bias",                                             \
                 [ROLE_NORM2_W] = "ln_2.weight",                                                             \
                 [ROLE_NORM2_B] = "ln_2.bias",                                                               \
                 [ROLE_FC1_W] = fc1 ".weight",                                                               \
                 [ROLE_FC1_B] = fc1 ".bias",                                                                 \
                 [ROLE_FC2_W] = fc2 ".weight",                                                               \
                 [ROLE_FC2_B] = fc2 ".bias",                                                                 \
                 [ROLE_NORM_W] = "encoder.ln.weight",                                                        \
                 [ROLE_NORM_B] = "encoder.ln.bias"},                                                         \
        .ignored = {"heads."}, .pos_resize = POS_RESIZE_TIMM,                                                \
        .settles = FACT_BIT(ACTIVATION) | FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(NORM_EPS), __VA_ARGS__  \
    }

/* The decoders of transformers. */
#define HF_DECODER_ATTENTION                                                                                 \
    [ROLE_QKV_W] = "self_attn.q_proj.weight|self_attn.k_proj.weight|self_attn.v_proj.weight",                \
    [ROLE_QKV_B] = "self_attn.q_proj.bias|self_attn.k_proj.bias|self_attn.v_proj.bias"
#define HF_DECODER_FFN                                                                                       \
    {                                                                                                        \
        "mlp.gate_proj.weight|mlp.up_proj.weight", NULL, "mlp.down_proj.weight", NULL                        \
    }

#define HF_BERT_ATTENTION                                                                                    \
    [ROLE_QKV_W] = "attention.self.query.weight|attention.self.key.weight|attention.self.value.weight",      \
    [ROLE_QKV_B] = "attention.self.query.bias|attention.self.key.bias|attention.self.value.bias"
#define HF_DISTILBERT_ATTENTION                                                                              \
    [ROLE_QKV_W] = "attention.q_lin.weight|attention.k_lin.weight|attention.v_lin.weight",                   \
    [ROLE_QKV_B] = "attention.q_lin.bias|attention.k_lin.bias|attention.v_lin.bias"

/* BERT and its kin: files that began with TensorFlow's have other names of norms; meopt writes one matrix of
 * queries, keys and values. mlm_w, mlm_b: the norm of the head there; NULL: the usual name. */
#define HF_ENCODER_PROBES(p)                                                                                 \
    p "embeddings.word_embeddings.weight", p "encoder.layer.0.attention.self.query.weight"
#define HF_ENCODER(number, p, mlm_w, mlm_b, ...)                                                             \
    {.family = FAMILY_##number,                                                                              \
     .probes = {HF_ENCODER_PROBES(p), p "embeddings.LayerNorm.gamma"},                                       \
     .keys =                                                                                                 \
         {HF_BERT_ATTENTION, [ROLE_PRE_W] = p "embeddings.LayerNorm.gamma",                                  \
          [ROLE_PRE_B] = p "embeddings.LayerNorm.beta", [ROLE_NORM1_W] = "attention.output.LayerNorm.gamma", \
          [ROLE_NORM1_B] = "attention.output.LayerNorm.beta", [ROLE_NORM2_W] = "output.LayerNorm.gamma",     \
          [ROLE_NORM2_B] = "output.LayerNorm.beta", [ROLE_MLM_NORM_W] = mlm_w, [ROLE_MLM_NORM_B] = mlm_b}},  \
        {.family = FAMILY_##number,                                                                          \
         .probes = {HF_ENCODER_PROBES(p)},                                                                   \
         .keys = {HF_BERT_ATTENTION},                                                                        \
         .library = 1 + LIBRARY_TRANSFORMERS,                                                                \
         __VA_ARGS__},                                                                                       \
    {                                                                                                        \
        .family = FAMILY_##number, .probes = {                                                               \
            p "embeddings.word_embeddings.weight",                                                           \
            p "encoder.layer.0.attention.self.qkv.weight"                                                    \
        }                                                                                                    \
    }
#define HF_BIG_BIRD(pooler)                                                                                  \
    {.family = FAMILY_BIG_BIRD,                                                                              \
     .probes = {HF_ENCODER_PROBES("bert."), pooler},                                                         \
     .keys = {HF_BERT_ATTENTION},                                                                            \
     .library = 1 + LIBRARY_TRANSFORMERS,                                                                    \
     .classifier_as = "classifier.out_proj."},                                                               \
    {                                                                                                        \
        .family = FAMILY_BIG_BIRD, .probes = {                                                               \
            "bert.embeddings.word_embeddings.weight",                                                        \
            "bert.encoder.layer.0.attention.self.qkv.weight",                                                \
            pooler                                                                                           \
        }                                                                                                    \
    }
#define HF_ENCODER_ALONE(number)                                                                             \
    .family = FAMILY_##number, .block_prefix = "encoder.layer.",                                             \
    .ignored = {"embeddings.position_ids", "pooler."}
#define HF_ENCODER_ALONE_KEYS                                                                                \
    HF_BERT_ATTENTION, [ROLE_TOKENS] = "embeddings.word_embeddings.weight",                                  \
                       [ROLE_POS] = "embeddings.position_embeddings.weight",                                 \
                       [ROLE_TYPES] = "embeddings.token_type_embeddings.weight",                             \
                       [ROLE_PRE_W] = "embeddings.LayerNorm.weight",                                         \
                       [ROLE_PRE_B] = "embeddings.LayerNorm.bias"

/* In the order in which they are tried. */
const struct key_mapping key_mappings[] = {
    TORCHVISION("mlp.0", "mlp.3", .library = 1 + LIBRARY_TORCHVISION, .classifier_as = "heads.head.",
                .plain = true, .maskless = true),
    TORCHVISION("mlp.linear_1", "mlp.linear_2", .library = 0),
    /* transformers: SigLIP and SigLIP2 */
    {.family = FAMILY_SIGLIP,
     HF_SIGLIP,
     .probes = {"head.probe", "embeddings.patch_embedding.weight"},
     .keys = {HF_CLIP_KEYS, [ROLE_PATCH_B] = "embeddings.patch_embedding.bias",
              [ROLE_POOL_QUERY] = "head.probe", [ROLE_POOL_QKV_W] = "head.attention.in_proj_weight",
              [ROLE_POOL_QKV_B] = "head.attention.in_proj_bias",
              [ROLE_POOL_PROJ_W] = "head.attention.out_proj.weight",
              [ROLE_POOL_PROJ_B] = "head.attention.out_proj.bias",
              [ROLE_POOL_NORM_W] = "head.layernorm.weight", [ROLE_POOL_NORM_B] = "head.layernorm.bias",
              [ROLE_POOL_FC1_W] = "head.mlp.fc1.weight", [ROLE_POOL_FC1_B] = "head.mlp.fc1.bias",
              [ROLE_POOL_FC2_W] = "head.mlp.fc2.weight", [ROLE_POOL_FC2_B] = "head.mlp.fc2.bias"},
     .library = 1 + LIBRARY_TRANSFORMERS,
     .written = "vision_model.",
     .flat = true,
     .classifier_apart = true /* SiglipForImageClassification */},
    /* without its head, as in language models with images */
    {.family = FAMILY_DINOV2,
     HF_SIGLIP,
     .probes = {"embeddings.patch_embedding.bias", "encoder.layers.0.layer_norm1.weight",
                "post_layernorm.weight"},
     .absent = "embeddings.class_embedding",
     .keys = {HF_CLIP_KEYS, [ROLE_PATCH_B] = "embeddings.patch_embedding.bias"}},
    /* timm: vit_*_siglip_*, inside open_clip, too; meopt writes one matrix for the pooling */
    {.family = FAMILY_SIGLIP,
     .towers = {"visual.trunk.", ""},
     .probes = {"patch_embed.proj.weight", "attn_pool.latent", "attn_pool.kv.weight"},
     .absent = "cls_token",
     .keys = {[ROLE_POOL_QKV_W] = "attn_pool.q.weight|attn_pool.kv.weight*2",
              [ROLE_POOL_QKV_B] = "attn_pool.q.bias|attn_pool.kv.bias*2"},
     .ffn = 1 + ACTIVATION_GELU,
     .settles = FACT_BIT(POOL) | FACT_BIT(POS_RESIZE),
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head."},
    {.family = FAMILY_SIGLIP,
     .probes = {"patch_embed.proj.weight", "attn_pool.latent", "attn_pool.qkv.weight"},
     .settles = FACT_BIT(POOL)},
    /* transformers: DINOv3ViTModel */
    {.family = FAMILY_DINOV3,
     .towers = {""},
     .probes = {"embeddings.cls_token", "layer.0.attention.o_proj.weight"},
     DINOV3_TRANSFORMERS("layer."),
     .registered = true,
     .library = 1 + LIBRARY_TRANSFORMERS},
    {.family = FAMILY_DINOV3,
     .towers = {""},
     .probes = {"embeddings.cls_token", "model.layer.0.attention.o_proj.weight"},
     DINOV3_TRANSFORMERS("model.layer.")},
    /* timm: vit_*_dinov3, whose class is Eva */
    {.family = FAMILY_DINOV3,
     .towers = {""},
     .probes = {"patch_embed.proj.weight", "blocks.0.gamma_1"},
     .absent = "pos_embed",
     .keys = {[ROLE_REGISTERS] = "reg_token", [ROLE_LS1] = "gamma_1", [ROLE_LS2] = "gamma_2"},
     .swiglu = {"mlp.fc1_g.weight|mlp.fc1_x.weight", "mlp.fc1_g.bias|mlp.fc1_x.bias", "mlp.fc2.weight",
                "mlp.fc2.bias"},
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head.",
     .fc_norm = true,
     .maskless = true},
    /* its own repository, which masks the bias of the keys */
    {.family = FAMILY_DINOV3,
     .probes = {"storage_tokens", "blocks.0.attn.qkv.bias", "blocks.0.attn.qkv.bias_mask"},
     .keys = {[ROLE_Q_B] = "attn.qkv.bias@0/3", [ROLE_V_B] = "attn.qkv.bias@2/3"},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .settles = FACT_BIT(POOL) | FACT_BIT(NORM)},
    {.family = FAMILY_DINOV3, /* without these biases: ViT-7B */
     .probes = {"storage_tokens", "blocks.0.mlp.w1.weight"},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .settles = FACT_BIT(POOL) | FACT_BIT(NORM)},
    {.family = FAMILY_DINOV3,
     .probes = {"blocks.0.ls1.gamma", "cls_token"},
     .absent = "pos_embed",
     .settles = FACT_BIT(POOL) | FACT_BIT(NORM)},
    /* timm: eva02_*, inside open_clip, too */
    {.family = FAMILY_EVA,
     .towers = {"visual.", "visual.trunk."},
     .probes = {"blocks.0.attn.q_proj.weight", "blocks.0.attn.q_proj.bias"},
     .keys = {EVA_SPLIT, [ROLE_Q_B] = "attn.q_proj.bias", [ROLE_V_B] = "attn.v_proj.bias",
              [ROLE_ATTN_NORM_W] = "attn.norm.weight", [ROLE_ATTN_NORM_B] = "attn.norm.bias",
              [ROLE_FFN_NORM_W] = "mlp.norm.weight", [ROLE_FFN_NORM_B] = "mlp.norm.bias"},
     .swiglu = {"mlp.fc1_g.weight|mlp.fc1_x.weight", "mlp.fc1_g.bias|mlp.fc1_x.bias", "mlp.fc2.weight",
                "mlp.fc2.bias"},
     .pos_resize = POS_RESIZE_TIMM,
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head.",
     .parts = PART_ATTN_NORM | PART_FFN_NORM,
     .head = true,
     .fc_norm = true},
    /* EVA-CLIP's own repository: EVA02-CLIP, with and without sub-LN */
    {.family = FAMILY_EVA,
     .fc_norm = true,
     .all_tokens = true,
     .probes = {"blocks.0.attn.q_proj.weight", "blocks.0.attn.q_bias"},
     .keys = {EVA_SPLIT},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .settles = FACT_BIT(POOL),
     .rope = true},
    {.family = FAMILY_EVA,
     .fc_norm = true,
     .all_tokens = true,
     .probes = {"blocks.0.attn.q_bias", "blocks.0.mlp.w1.weight"},
     .swiglu = {"mlp.w1.weight|mlp.w2.weight", "mlp.w1.bias|mlp.w2.bias", "mlp.w3.weight", "mlp.w3.bias"},
     .settles = FACT_BIT(POOL),
     .rope = true},
    {.family = FAMILY_EVA,
     .fc_norm = true,
     .all_tokens = true,
     .probes = {"blocks.0.attn.q_bias", "blocks.0.mlp.w12.weight"},
     .settles = FACT_BIT(POOL)},
    {.family =
         FAMILY_EVA, /* timm's inside open_clip, too: EVA01-g-14. A gated one has the plain one's names */
     .towers = {"visual.", "visual.trunk."},
     .probes = {"blocks.0.attn.q_bias"},
     .swiglu = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"},
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head.",
     .head = true,
     .fc_norm = true,
     .rope = true},
    /* C-RADIO: for transformers (trust_remote_code), in a checkpoint for torch.hub, its class's state dict */
    {.family = FAMILY_RADIO,
     .towers = {"radio_model.model.", "base_model.", "model."},
     .probes = {"patch_generator.embedder.weight", "patch_generator.cls_token.token",
                "blocks.0.attn.qkv.weight"},
     .around = "feature_normalizer.",
     .settles =
         FACT_BIT(ACTIVATION) | FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(NORM_EPS) | FACT_BIT(POS_RESIZE)},
    /* Perception Encoder: PE-Spatial and PE-Lang, in its own repository and in timm (vit_pe_*) */
    {.family = FAMILY_PE,
     .towers = {"visual.", ""},
     .probes = {"conv1.weight", "ln_pre.weight", "transformer.resblocks.0.attn.in_proj_weight"},
     .absent = "ln_post.weight",
     .settles =
         FACT_BIT(ACTIVATION) | FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(NORM_EPS) | FACT_BIT(POS_RESIZE)},
    {.family = FAMILY_PE,
     .towers = {""},
     .probes = {"norm_pre.weight", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"},
     .absent = "norm.weight",
     .block_prefix = "blocks.",
     .keys = {VIT_KEYS, [ROLE_POS] = "pos_embed", [ROLE_PRE_W] = "norm_pre.weight",
              [ROLE_PRE_B] = "norm_pre.bias", [ROLE_QKV_B] = "attn.qkv.bias", [ROLE_LS1] = "gamma_1",
              [ROLE_LS2] = "gamma_2"},
     .pos_resize = POS_RESIZE_TIMM,
     .settles = FACT_BIT(ACTIVATION) | FACT_BIT(NORM) | FACT_BIT(POS_RESIZE),
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head.",
     .head = true,
     .batched = true},
    {.family = FAMILY_OPENCLIP,
     .probes = {"class_embedding", "conv1.weight"},
     .settles = FACT_BIT(NORM) | FACT_BIT(POS_RESIZE)},
    /* transformers: CLIPModel, CLIPVisionModel, CLIPVisionModelWithProjection */
    {.family = FAMILY_OPENCLIP,
     .towers = {"vision_model.", ""},
     .probes = {"embeddings.class_embedding", "pre_layrnorm.weight"},
     .block_prefix = "encoder.layers.",
     .keys = {HF_CLIP_KEYS, [ROLE_CLS] = "embeddings.class_embedding", [ROLE_PRE_W] = "pre_layrnorm.weight",
              [ROLE_PRE_B] = "pre_layrnorm.bias"},
     .out = "visual_projection.weight",
     .library = 1 + LIBRARY_TRANSFORMERS,
     .written = "vision_model.",
     .scaleless = true,
     .pos_resize = POS_RESIZE_HF,
     .settles = FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(POS_RESIZE),
     .classifier = "classifier.weight", /* CLIPForImageClassification */
     .classifier_pool = POOL_AVG_RAW,
     .ignored = {"embeddings.position_ids"}},
    /* transformers: Dinov2Model in memory under transformers 5: torch.save(model.state_dict()) */
    {.family = FAMILY_DINOV2,
     .pos_resize = POS_RESIZE_HF,
     .settles = FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(POS_RESIZE),
     .towers = {"dinov2.", "dinov2_with_registers.", ""},
     .probes = {"embeddings.cls_token", "encoder.layer.0.layer_scale1.lambda1",
                "encoder.layer.0.attention.q_proj.weight"},
     .block_prefix = "encoder.layer.",
     .keys = {HF_VIT_EMBEDDINGS, HF_ATTENTION, [ROLE_REGISTERS] = "embeddings.register_tokens",
              [ROLE_MASK] = "embeddings.mask_token", [ROLE_LS1] = "layer_scale1.lambda1",
              [ROLE_LS2] = "layer_scale2.lambda1"},
     .swiglu = {"mlp.gate_proj.weight|mlp.up_proj.weight", "mlp.gate_proj.bias|mlp.up_proj.bias",
                "mlp.down_proj.weight", "mlp.down_proj.bias"}},
    /* transformers: Dinov2Model, and with a head after it */
    {.family = FAMILY_DINOV2,
     .pos_resize = POS_RESIZE_HF,
     .settles = FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(POS_RESIZE),
     .scaled = true,
     .library = 1 + LIBRARY_TRANSFORMERS,
     .classifier_as = "classifier.",
     .classified = "dinov2.",
     .registered_as = "dinov2_with_registers.",
     .widened = true,
     .towers = {"dinov2.", "dinov2_with_registers.", ""},
     .probes = {"embeddings.cls_token", "encoder.layer.0.layer_scale1.lambda1"},
     .block_prefix = "encoder.layer.",
     .keys =
         {HF_VIT_EMBEDDINGS, [ROLE_REGISTERS] = "embeddings.register_tokens",
          [ROLE_MASK] = "embeddings.mask_token",
          [ROLE_QKV_W] = "attention.attention.query.weight|attention.attention.key.weight|"
                         "attention.attention.value.weight",
          [ROLE_QKV_B] =
              "attention.attention.query.bias|attention.attention.key.bias|attention.attention.value.bias",
          [ROLE_PROJ_W] = "attention.output.dense.weight", [ROLE_PROJ_B] = "attention.output.dense.bias",
          [ROLE_LS1] = "layer_scale1.lambda1", [ROLE_LS2] = "layer_scale2.lambda1"},
     .swiglu = {"mlp.weights_in.weight", "mlp.weights_in.bias", "mlp.weights_out.weight",
                "mlp.weights_out.bias"}},
    /* transformers: DeiTModel, with a distillation token */
    {HF_VIT_SAVED("embeddings.distillation_token")},
    {HF_VIT_MEMORY("embeddings.distillation_token")},
    /* transformers: ViTModel, ViTMAEModel, ViTMSNModel; in a saved file, and in memory */
    {HF_VIT_SAVED(NULL), .library = 1 + LIBRARY_TRANSFORMERS, .classifier_as = "classifier.",
     .classified = "vit.", .plain = true, .maskless = true},
    {HF_VIT_MEMORY(NULL)},
    /* timm: vit_*_clip_* */
    {.family = FAMILY_OPENCLIP,
     .towers = {""},
     .probes = {"norm_pre.weight", "patch_embed.proj.weight"},
     .block_prefix = "blocks.",
     .keys = {VIT_KEYS, [ROLE_POS] = "pos_embed", [ROLE_PRE_W] = "norm_pre.weight",
              [ROLE_PRE_B] = "norm_pre.bias", [ROLE_QKV_B] = "attn.qkv.bias", [ROLE_LS1] = "ls1.gamma",
              [ROLE_LS2] = "ls2.gamma"},
     .out = "head.weight",
     .zero = "head.bias",
     .head = true,
     .settles = FACT_BIT(POS_RESIZE),
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head.",
     .batched = true},
    /* timm: deit_*_distilled_*. The two classifiers read the two tokens; the result is their mean. */
    {.family = FAMILY_DINOV2,
     .probes = {"patch_embed.proj.weight", "dist_token"},
     .keys = {[ROLE_REGISTERS] = "dist_token"},
     .ignored = {"head_dist."},
     .pool = POOL_CLS_DIST,
     .settles = FACT_BIT(POOL) | FACT_BIT(POS_RESIZE),
     .pos_resize = POS_RESIZE_TIMM},
    /* timm: vit_*_patch14_reg4_dinov2, vit_*_patch14_dinov2. A gated feed-forward has the plain one's names.
     */
    {.family = FAMILY_DINOV2,
     .probes = {"patch_embed.proj.weight", "reg_token"},
     .keys = {[ROLE_REGISTERS] = "reg_token"},
     .swiglu = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"},
     .pos_resize = POS_RESIZE_TIMM,
     .settles = FACT_BIT(POS_RESIZE),
     .gate_varies = true,
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head.",
     .maskless = true,
     .fc_norm = true,
     .pos_patches = true},
    {.family = FAMILY_DINOV2,
     .probes = {"patch_embed.proj.weight", "blocks.0.ls1.gamma", "blocks.0.mlp.fc1.weight"},
     .absent = "mask_token", /* which the hub's files have */
     .swiglu = {"mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"},
     .settles = FACT_BIT(POS_RESIZE),
     .gate_varies = true,
     .library = 1 + LIBRARY_TIMM,
     .classifier_as = "head.",
     .maskless = true,
     .fc_norm = true,
     .pos_resize = POS_RESIZE_TIMM},
    /* the hub's DINOv2 */
    {.family = FAMILY_DINOV2,
     .probes = {"patch_embed.proj.weight", "mask_token", "norm.weight"},
     .settles = FACT_BIT(POOL) | FACT_BIT(NORM)},
    /* timm's plain ViT */
    {.family = FAMILY_DINOV2,
     .probes = {"patch_embed.proj.weight"},
     .settles = FACT_BIT(POS_RESIZE),
     .pos_resize = POS_RESIZE_TIMM,
     .fc_norm = true},
    /* transformers: GPT2LMHeadModel, and GPT2Model, as the hub's own files have it */
    {.family = FAMILY_GPT2,
     .probes = {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"},
     .conv1d = true,
     .library = 1 + LIBRARY_TRANSFORMERS},
    {.family = FAMILY_GPT2,
     .probes = {"wte.weight", "h.0.attn.c_attn.weight"},
     .block_prefix = "h.",
     .keys = {[ROLE_TOKENS] = "wte.weight",
              [ROLE_POS] = "wpe.weight",
              [ROLE_NORM_W] = "ln_f.weight",
              [ROLE_NORM_B] = "ln_f.bias"},
     .conv1d = true},
    /* nanoGPT, and files that meopt writes */
    {.family = FAMILY_GPT2, .probes = {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"}},
    /* transformers: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM; their models
     * alone */
    {.family = FAMILY_LLAMA,
     .probes = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"},
     .keys = {HF_DECODER_ATTENTION},
     .swiglu = HF_DECODER_FFN,
     .library = 1 + LIBRARY_TRANSFORMERS},
    {.family = FAMILY_LLAMA,
     .probes = {"embed_tokens.weight", "layers.0.self_attn.q_proj.weight"},
     .block_prefix = "layers.",
     .keys = {HF_DECODER_ATTENTION, [ROLE_TOKENS] = "embed_tokens.weight", [ROLE_NORM_W] = "norm.weight"},
     .swiglu = HF_DECODER_FFN},
    {.family = FAMILY_LLAMA,
     .probes = {"model.embed_tokens.weight", "model.layers.0.self_attn.qkv_proj.weight"}},
    /* transformers: ...ForMaskedLM, ...ForPreTraining, ...ForSequenceClassification; BigBird's pooler has
     * another name than BERT's, and without it config.json or model.family says that it is one */
    HF_BIG_BIRD("bert.pooler.weight"),
    HF_ENCODER(BERT, "bert.", "cls.predictions.transform.LayerNorm.gamma",
               "cls.predictions.transform.LayerNorm.beta", .classifier_as = "classifier."),
    HF_BIG_BIRD(NULL),
    HF_ENCODER(ROBERTA, "roberta.", NULL, NULL, .classifier_as = "classifier.out_proj."),
    HF_ENCODER(ELECTRA, "electra.", "generator_predictions.LayerNorm.gamma",
               "generator_predictions.LayerNorm.beta", .classifier_as = "classifier.out_proj."),
    {.family = FAMILY_DISTILBERT,
     .probes = {"distilbert.embeddings.word_embeddings.weight",
                "distilbert.transformer.layer.0.attention.q_lin.weight"},
     .keys = {HF_DISTILBERT_ATTENTION},
     .library = 1 + LIBRARY_TRANSFORMERS,
     .classifier_as = "classifier."},
    {.family = FAMILY_DISTILBERT,
     .probes = {"distilbert.embeddings.word_embeddings.weight",
                "distilbert.transformer.layer.0.attention.qkv.weight"}},
    /* models without a head: those of BERT's kin have the same names */
    {.family = FAMILY_DISTILBERT,
     .probes = {"embeddings.word_embeddings.weight", "transformer.layer.0.attention.q_lin.weight"},
     .block_prefix = "transformer.layer.",
     .keys = {HF_DISTILBERT_ATTENTION, [ROLE_TOKENS] = "embeddings.word_embeddings.weight",
              [ROLE_POS] = "embeddings.position_embeddings.weight",
              [ROLE_PRE_W] = "embeddings.LayerNorm.weight", [ROLE_PRE_B] = "embeddings.LayerNorm.bias"},
     .ignored = {"embeddings.position_ids"}},
    {HF_ENCODER_ALONE(ELECTRA), .probes = {HF_ENCODER_PROBES(""), "embeddings_project.weight"},
     .keys = {HF_ENCODER_ALONE_KEYS, [ROLE_EMBED_W] = "embeddings_project.weight",
              [ROLE_EMBED_B] = "embeddings_project.bias"}},
    {HF_ENCODER_ALONE(BERT), .probes = {HF_ENCODER_PROBES("")},
     .keys = {HF_ENCODER_ALONE_KEYS, [ROLE_POOLER_W] = "pooler.dense.weight",
              [ROLE_POOLER_B] = "pooler.dense.bias"}},
    {HF_ENCODER_ALONE(BIG_BIRD), .probes = {HF_ENCODER_PROBES("")},
     .keys = {HF_ENCODER_ALONE_KEYS, [ROLE_UNUSED_W] = "pooler.weight", [ROLE_UNUSED_B] = "pooler.bias"}},
    {HF_ENCODER_ALONE(ROBERTA), .probes = {HF_ENCODER_PROBES("")}, .keys = {HF_ENCODER_ALONE_KEYS}},
    {HF_ENCODER_ALONE(ELECTRA), .probes = {HF_ENCODER_PROBES("")}, .keys = {HF_ENCODER_ALONE_KEYS}},
    /* Fallback: some tensors of a family, without those that only it has. The reader reports what is
     * missing. */
    {.family = FAMILY_EVA, .probes = {"patch_embed.proj.weight"}, .whole = true},
    {.family = FAMILY_OPENCLIP, .probes = {"conv1.weight"}, .whole = true},
};
const int naming_count = sizeof key_mappings / sizeof *key_mappings;
