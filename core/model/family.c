/* The rows of the model families: see family.h. */
#include "core/model/family.h"

#include <string.h>

/* The names of BERT in transformers, and what all encoders of tokens have in common. */
#define BERT_KEYS(p)                                                                                         \
    [ROLE_TOKENS] = p "embeddings.word_embeddings.weight",                                                   \
    [ROLE_POS] = p "embeddings.position_embeddings.weight",                                                  \
    [ROLE_TYPES] = p "embeddings.token_type_embeddings.weight",                                              \
    [ROLE_PRE_W] = p "embeddings.LayerNorm.weight", [ROLE_PRE_B] = p "embeddings.LayerNorm.bias"
#define BERT_BLOCK_KEYS                                                                                      \
    [ROLE_QKV_W] = "attention.self.qkv.weight", [ROLE_QKV_B] = "attention.self.qkv.bias",                    \
    [ROLE_PROJ_W] = "attention.output.dense.weight", [ROLE_PROJ_B] = "attention.output.dense.bias",          \
    [ROLE_NORM1_W] = "attention.output.LayerNorm.weight",                                                    \
    [ROLE_NORM1_B] = "attention.output.LayerNorm.bias", [ROLE_FC1_W] = "intermediate.dense.weight",          \
    [ROLE_FC1_B] = "intermediate.dense.bias", [ROLE_FC2_W] = "output.dense.weight",                          \
    [ROLE_FC2_B] = "output.dense.bias", [ROLE_NORM2_W] = "output.LayerNorm.weight",                          \
    [ROLE_NORM2_B] = "output.LayerNorm.bias"
#define BERT_MLM_KEYS                                                                                        \
    [ROLE_MLM_W] = "cls.predictions.transform.dense.weight",                                                 \
    [ROLE_MLM_B] = "cls.predictions.transform.dense.bias",                                                   \
    [ROLE_MLM_NORM_W] = "cls.predictions.transform.LayerNorm.weight",                                        \
    [ROLE_MLM_NORM_B] = "cls.predictions.transform.LayerNorm.bias", [ROLE_LM_BIAS] = "cls.predictions.bias"
/* the next sentence; the head's copies of the table and of its bias */
#define BERT_MLM_COPIES                                                                                      \
    .ignored = {"bert.embeddings.position_ids", "cls.seq_relationship.", "cls.predictions.decoder."},        \
    .copies = {                                                                                              \
        {"cls.predictions.decoder.weight", ROLE_TOKENS},                                                     \
        {"cls.predictions.decoder.bias", ROLE_LM_BIAS},                                                      \
    }
#define CLASSIFICATION_HEAD                                                                                  \
    [ROLE_POOLER_W] = "classifier.dense.weight", [ROLE_POOLER_B] = "classifier.dense.bias"
#define ENCODER(eps)                                                                                         \
    .kind = MODEL_ENCODER, .norms = SUM_NORM, .tied = true, .classless = true,                               \
    .shapes = {[ROLE_POS] = "CE"}, .parts = PART_PRE_NORM | PART_QKV_BIAS, .norm_eps = eps

/* The blocks of open_clip, which PE has adopted, and their input. */
#define CLIP_KEYS                                                                                            \
    [ROLE_CLS] = "class_embedding", [ROLE_POS] = "positional_embedding", [ROLE_PATCH_W] = "conv1.weight",    \
    [ROLE_PRE_W] = "ln_pre.weight", [ROLE_PRE_B] = "ln_pre.bias", [ROLE_NORM1_W] = "ln_1.weight",            \
    [ROLE_NORM1_B] = "ln_1.bias", [ROLE_QKV_W] = "attn.in_proj_weight", [ROLE_QKV_B] = "attn.in_proj_bias",  \
    [ROLE_PROJ_W] = "attn.out_proj.weight", [ROLE_PROJ_B] = "attn.out_proj.bias", [ROLE_LS1] = "ls_1.gamma", \
    [ROLE_LS2] = "ls_2.gamma", [ROLE_NORM2_W] = "ln_2.weight", [ROLE_NORM2_B] = "ln_2.bias",                 \
    [ROLE_FC1_W] = "mlp.c_fc.weight", [ROLE_FC1_B] = "mlp.c_fc.bias", [ROLE_FC2_W] = "mlp.c_proj.weight",    \
    [ROLE_FC2_B] = "mlp.c_proj.bias"

static const struct family_row rows[FAMILY_COUNT] = {
    [FAMILY_UNKNOWN] = {.prefix = "", .block_prefix = ""},
    [FAMILY_EVA] =
        {.prefix = "visual.",
         .block_prefix = "blocks.",
         .keys = {VIT_KEYS, [ROLE_POS] = "pos_embed", [ROLE_PATCH_B] = "patch_embed.proj.bias",
                  [ROLE_Q_B] = "attn.q_bias", [ROLE_V_B] = "attn.v_bias",
                  [ROLE_ATTN_NORM_W] = "attn.inner_attn_ln.weight",
                  [ROLE_ATTN_NORM_B] = "attn.inner_attn_ln.bias", [ROLE_LS1] = "gamma_1",
                  [ROLE_FFN_NORM_W] = "mlp.ffn_ln.weight", [ROLE_FFN_NORM_B] = "mlp.ffn_ln.bias",
                  [ROLE_LS2] = "gamma_2", [ROLE_OUT_W] = "head.weight", [ROLE_OUT_B] = "head.bias"},
         .swiglu = {"mlp.w12.weight", "mlp.w12.bias", "mlp.w3.weight", "mlp.w3.bias"},
         /* a bias of the keys shifts all scores of a query by the same amount, which the softmax ignores */
         .ignored = {"mask_token", "attn.k_bias", "lm_head."},
         .pos_resize = POS_RESIZE_HF,
         .postnorm_width = 1792, /* EVA02-CLIP-E */
         .out_optional = true,
         .parts = PART_QKV_BIAS,
         .varies = PART_ATTN_NORM | PART_FFN_NORM,
         .rope = ROPE_EVA,
         .rope_gated = true,
         .branches = INITIAL_BLOCK,
         .norm_eps = 1e-6f},
    [FAMILY_OPENCLIP] = {.prefix = "visual.",
                         .block_prefix = "transformer.resblocks.",
                         .keys =
                             {CLIP_KEYS, [ROLE_POOL_QUERY] = "attn_pool.query",
                              [ROLE_POOL_Q_W] = "attn_pool.attn.q_proj_weight",
                              [ROLE_POOL_K_W] = "attn_pool.attn.k_proj_weight",
                              [ROLE_POOL_V_W] = "attn_pool.attn.v_proj_weight",
                              [ROLE_POOL_QKV_B] = "attn_pool.attn.in_proj_bias",
                              [ROLE_POOL_PROJ_W] = "attn_pool.attn.out_proj.weight",
                              [ROLE_POOL_PROJ_B] = "attn_pool.attn.out_proj.bias",
                              [ROLE_POOL_Q_NORM_W] = "attn_pool.ln_q.weight",
                              [ROLE_POOL_Q_NORM_B] = "attn_pool.ln_q.bias",
                              [ROLE_POOL_K_NORM_W] = "attn_pool.ln_k.weight",
                              [ROLE_POOL_K_NORM_B] = "attn_pool.ln_k.bias", [ROLE_NORM_W] = "ln_post.weight",
                              [ROLE_NORM_B] = "ln_post.bias", [ROLE_OUT_W] = "proj"},
                         .shapes = {[ROLE_CLS] = "D", [ROLE_POS] = "PD", [ROLE_OUT_W] = "WO"},
                         .parts = PART_PRE_NORM | PART_QKV_BIAS,
                         .varies = PART_PRE_NORM | PART_ATTN_POOL,
                         .pool_heads = 8, /* from CLIPVisionCfg */
                         .norm_eps = 1e-5f,
                         .out_transposed = true,
                         .out_optional = true,
                         .variants = true,
                         .tokens = INITIAL_TINY,
                         .pos_resize = POS_RESIZE_TIMM},
    [FAMILY_DINOV2] =
        {.prefix = "",
         .block_prefix = "blocks.",
         .chunked_blocks =
             true,
         .keys = {VIT_KEYS, [ROLE_POS] = "pos_embed", [ROLE_REGISTERS] = "register_tokens",
                  [ROLE_MASK] = "mask_token", [ROLE_PATCH_B] = "patch_embed.proj.bias",
                  [ROLE_QKV_B] = "attn.qkv.bias", [ROLE_LS1] = "ls1.gamma", [ROLE_LS2] = "ls2.gamma",
                  [ROLE_OUT_W] = "head_projection.weight", [ROLE_OUT_B] = "head_projection.bias"},
         .swiglu = {"mlp.w12.weight", "mlp.w12.bias", "mlp.w3.weight", "mlp.w3.bias"},
         .ignored = {"head.", "linear_head.", "dino_head.", "ibot_head."}, /* layers after the output */
         .out_optional = true,
         .out_rare = true,
         .class_varies = true,
         .parts = PART_QKV_BIAS,
         .varies = PART_QKV_BIAS,
         .norm_eps = 1e-6f,
         .layerscale = true,
         .tokens = INITIAL_TINY,
         .pos_resize = POS_RESIZE_DINOV2,
         .pos_matrix = true,
         .pos_grid = 37,
         .image_grid = 16},
    [FAMILY_DINOV3] =
        {
            .prefix = "",
            .block_prefix = "blocks.",
            .keys = {VIT_KEYS, [ROLE_REGISTERS] = "storage_tokens", [ROLE_MASK] = "mask_token",
                     [ROLE_PATCH_B] = "patch_embed.proj.bias", [ROLE_Q_B] = "attn.q_bias",
                     [ROLE_V_B] = "attn.v_bias", [ROLE_LS1] = "ls1.gamma", [ROLE_LS2] = "ls2.gamma"},
            .swiglu = {"mlp.w12.weight", "mlp.w12.bias", "mlp.w3.weight", "mlp.w3.bias"},
            .ignored = {"head.", "local_cls_norm.", /* after the output; for small crops in training */
                        "projectors."},             /* EUPE: to its teachers in training */
            .parts = PART_QKV_BIAS,
            .varies = PART_QKV_BIAS,
            .norm_eps = 1e-5f,
            .layerscale = true,
            .rope = ROPE_DINOV3,
            .pos_resize = POS_RESIZE_TIMM, /* no resize: the family stores no positions */
            .heads = {{4096, 128}, {0, 64}},
            .image_grid = 14,
            .patch = 16},
    /* Keys of timm's towers, except that queries, keys and values of the pooling are one matrix. */
    [FAMILY_SIGLIP] =
        {.prefix = "",
         .block_prefix = "blocks.",
         .keys =
             {VIT_KEYS, [ROLE_POS] = "pos_embed", [ROLE_PATCH_B] = "patch_embed.proj.bias",
              [ROLE_QKV_B] = "attn.qkv.bias", [ROLE_POOL_QUERY] = "attn_pool.latent",
              [ROLE_POOL_QKV_W] = "attn_pool.qkv.weight", [ROLE_POOL_QKV_B] = "attn_pool.qkv.bias",
              [ROLE_POOL_PROJ_W] = "attn_pool.proj.weight", [ROLE_POOL_PROJ_B] = "attn_pool.proj.bias",
              [ROLE_POOL_NORM_W] = "attn_pool.norm.weight", [ROLE_POOL_NORM_B] = "attn_pool.norm.bias",
              [ROLE_POOL_FC1_W] = "attn_pool.mlp.fc1.weight", [ROLE_POOL_FC1_B] = "attn_pool.mlp.fc1.bias",
              [ROLE_POOL_FC2_W] = "attn_pool.mlp.fc2.weight", [ROLE_POOL_FC2_B] = "attn_pool.mlp.fc2.bias"},
         .shapes = {[ROLE_POOL_QUERY] = "11O"},
         .ignored = {"head."}, /* after the output */
         .classless = true,
         .parts = PART_QKV_BIAS | PART_ATTN_POOL,
         .norm_eps = 1e-6f,
         .ffn = 1 + ACTIVATION_GELU_TANH,
         .pos_resize = POS_RESIZE_TIMM,
         .heads = {{1152, 72}, {1536, 96}},
         .patch = 16,
         .crops = true},
    /* PE-Spatial and PE-Lang: OpenCLIP's names, and no norm after the last block. PE-Core has one, and then
     * attention pooling and a projection. */
    [FAMILY_PE] = {.prefix = "visual.",
                   .block_prefix = "transformer.resblocks.",
                   .keys = {CLIP_KEYS},
                   .shapes = {[ROLE_CLS] = "D", [ROLE_POS] = "PD"},
                   .class_varies = true,
                   .parts = PART_PRE_NORM | PART_QKV_BIAS,
                   .norm_eps = 1e-5f,
                   .rope = ROPE_PE,
                   .heads = {{1536, 96}},
                   .pos_resize = POS_RESIZE_BILINEAR},
    /* C-RADIO: several class tokens and registers in one tensor, none with a position; positions for 2048
     * pixels; no norm after the last block. */
    [FAMILY_RADIO] = {.prefix = "radio_model.model.",
                      .block_prefix = "blocks.",
                      .keys =
                          {VIT_BLOCK_KEYS, [ROLE_POS] = "patch_generator.pos_embed",
                           [ROLE_REGISTERS] = "patch_generator.cls_token.token",
                           [ROLE_PATCH_W] = "patch_generator.embedder.weight", [ROLE_QKV_B] = "attn.qkv.bias",
                           [ROLE_LS1] = "ls1.grandma", [ROLE_LS2] = "ls2.grandma"},
                      .shapes = {[ROLE_REGISTERS] = "RD", [ROLE_PATCH_W] = "DL"},
                      .classless = true,
                      .first_pooled = true,
                      .parts = PART_QKV_BIAS,
                      .norm_eps = 1e-6f,
                      .pos_resize = POS_RESIZE_BILINEAR,
                      .pos_grid = 128,
                      .image_grid = 32,
                      .patch = 16},
    /* Keys of GPT2LMHeadModel. Matrices are (out, in), as in nanoGPT; transformers' files have them
     * transposed. */
    [FAMILY_GPT2] = {.prefix = "",
                     .block_prefix = "transformer.h.",
                     .keys = {[ROLE_TOKENS] = "transformer.wte.weight",
                              [ROLE_POS] = "transformer.wpe.weight",
                              [ROLE_NORM1_W] = "ln_1.weight",
                              [ROLE_NORM1_B] = "ln_1.bias",
                              [ROLE_QKV_W] = "attn.c_attn.weight",
                              [ROLE_QKV_B] = "attn.c_attn.bias",
                              [ROLE_PROJ_W] = "attn.c_proj.weight",
                              [ROLE_PROJ_B] = "attn.c_proj.bias",
                              [ROLE_NORM2_W] = "ln_2.weight",
                              [ROLE_NORM2_B] = "ln_2.bias",
                              [ROLE_FC1_W] = "mlp.c_fc.weight",
                              [ROLE_FC1_B] = "mlp.c_fc.bias",
                              [ROLE_FC2_W] = "mlp.c_proj.weight",
                              [ROLE_FC2_B] = "mlp.c_proj.bias",
                              [ROLE_NORM_W] = "transformer.ln_f.weight",
                              [ROLE_NORM_B] = "transformer.ln_f.bias",
                              [ROLE_LM_HEAD] = "lm_head.weight"},
                     .shapes = {[ROLE_POS] = "CD"},
                     .ignored = {"attn.bias", "attn.masked_bias"}, /* the causal mask */
                     .classless = true,
                     .parts = PART_QKV_BIAS,
                     .norm_eps = 1e-5f,
                     .ffn = 1 + ACTIVATION_GELU_TANH,
                     .tied = true,
                     .members = MEMBERS_GPT2,
                     .kind = MODEL_DECODER},
    /* Keys of LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and MistralForCausalLM, except that
     * queries, keys and values are one matrix, as are gate and up. */
    [FAMILY_LLAMA] = {.prefix = "",
                      .block_prefix = "model.layers.",
                      .keys = {[ROLE_TOKENS] = "model.embed_tokens.weight",
                               [ROLE_NORM1_W] = "input_layernorm.weight",
                               [ROLE_QKV_W] = "self_attn.qkv_proj.weight",
                               [ROLE_QKV_B] = "self_attn.qkv_proj.bias",
                               [ROLE_Q_NORM_W] = "self_attn.q_norm.weight",
                               [ROLE_K_NORM_W] = "self_attn.k_norm.weight",
                               [ROLE_PROJ_W] = "self_attn.o_proj.weight",
                               [ROLE_NORM2_W] = "post_attention_layernorm.weight",
                               [ROLE_NORM_W] = "model.norm.weight",
                               [ROLE_LM_HEAD] = "lm_head.weight"},
                      .swiglu = {"mlp.gate_up_proj.weight", NULL, "mlp.down_proj.weight", NULL},
                      .lora_qkv = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                      .lora_gated = {"mlp.gate_proj", "mlp.up_proj"},
                      .ignored = {"self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq",
                                  "model.rotary_emb.inv_freq"},
                      .rms = true,
                      .classless = true,
                      .varies = PART_QKV_BIAS | PART_QK_NORM,
                      .norm_eps = 1e-5f,
                      .ffn = 1 + ACTIVATION_SWIGLU,
                      .rope = ROPE_TOKENS,
                      .rope_gated = true,
                      .kind = MODEL_DECODER},
    /* Keys of ...ForMaskedLM and ...ForSequenceClassification of each class, except that queries, keys and
     * values are one matrix. The prediction of the next sentence and ELECTRA's of replaced tokens are other
     * heads. */
    [FAMILY_BERT] = {.prefix = "",
                     .block_prefix = "bert.encoder.layer.",
                     .keys = {BERT_KEYS("bert."), BERT_BLOCK_KEYS,
                              BERT_MLM_KEYS, [ROLE_POOLER_W] = "bert.pooler.dense.weight",
                              [ROLE_POOLER_B] = "bert.pooler.dense.bias"},
                     BERT_MLM_COPIES,
                     .heads_of = {"cls.", "bert.pooler.", "pooler."},
                     .types = 2,
                     .pooler = 1 + ACTIVATION_TANH,
                     ENCODER(1e-12f)},
    [FAMILY_DISTILBERT] = {.prefix = "",
                           .block_prefix = "distilbert.transformer.layer.",
                           .keys = {[ROLE_TOKENS] = "distilbert.embeddings.word_embeddings.weight",
                                    [ROLE_POS] = "distilbert.embeddings.position_embeddings.weight",
                                    [ROLE_PRE_W] = "distilbert.embeddings.LayerNorm.weight",
                                    [ROLE_PRE_B] = "distilbert.embeddings.LayerNorm.bias",
                                    [ROLE_QKV_W] = "attention.qkv.weight",
                                    [ROLE_QKV_B] = "attention.qkv.bias",
                                    [ROLE_PROJ_W] = "attention.out_lin.weight",
                                    [ROLE_PROJ_B] = "attention.out_lin.bias",
                                    [ROLE_NORM1_W] = "sa_layer_norm.weight",
                                    [ROLE_NORM1_B] = "sa_layer_norm.bias",
                                    [ROLE_FC1_W] = "ffn.lin1.weight",
                                    [ROLE_FC1_B] = "ffn.lin1.bias",
                                    [ROLE_FC2_W] = "ffn.lin2.weight",
                                    [ROLE_FC2_B] = "ffn.lin2.bias",
                                    [ROLE_NORM2_W] = "output_layer_norm.weight",
                                    [ROLE_NORM2_B] = "output_layer_norm.bias",
                                    [ROLE_POOLER_W] = "pre_classifier.weight",
                                    [ROLE_POOLER_B] = "pre_classifier.bias",
                                    [ROLE_MLM_W] = "vocab_transform.weight",
                                    [ROLE_MLM_B] = "vocab_transform.bias",
                                    [ROLE_MLM_NORM_W] = "vocab_layer_norm.weight",
                                    [ROLE_MLM_NORM_B] = "vocab_layer_norm.bias",
                                    [ROLE_LM_BIAS] = "vocab_projector.bias"},
                           .ignored = {"distilbert.embeddings.position_ids", "vocab_projector.weight"},
                           .copies = {{"vocab_projector.weight", ROLE_TOKENS}},
                           .heads_of = {"vocab_", "pre_classifier."},
                           .members = MEMBERS_DISTILBERT,
                           .pooler = 1 + ACTIVATION_RELU,
                           ENCODER(1e-12f)},
    [FAMILY_ROBERTA] =
        {.prefix = "",
         .block_prefix = "roberta.encoder.layer.",
         .keys = {BERT_KEYS("roberta."), BERT_BLOCK_KEYS,
                  CLASSIFICATION_HEAD, [ROLE_MLM_W] = "lm_head.dense.weight",
                  [ROLE_MLM_B] = "lm_head.dense.bias", [ROLE_MLM_NORM_W] = "lm_head.layer_norm.weight",
                  [ROLE_MLM_NORM_B] = "lm_head.layer_norm.bias", [ROLE_LM_BIAS] = "lm_head.bias"},
         .ignored = {"roberta.embeddings.position_ids", "roberta.pooler.", "lm_head.decoder."},
         .copies = {{"lm_head.decoder.weight", ROLE_TOKENS}, {"lm_head.decoder.bias", ROLE_LM_BIAS}},
         .heads_of = {"lm_head.", "classifier."},
         .types = 1,
         .first_position = 2, /* after that of the padding, <pad> 1 */
         .mask_last = true,
         .pooler = 1 + ACTIVATION_TANH,
         .mlm = 1 + ACTIVATION_GELU,
         ENCODER(1e-5f)},
    [FAMILY_ELECTRA] = {.prefix = "",
                        .block_prefix = "electra.encoder.layer.",
                        .keys = {BERT_KEYS("electra."), BERT_BLOCK_KEYS,
                                 CLASSIFICATION_HEAD, [ROLE_EMBED_W] = "electra.embeddings_project.weight",
                                 [ROLE_EMBED_B] = "electra.embeddings_project.bias",
                                 [ROLE_MLM_W] = "generator_predictions.dense.weight",
                                 [ROLE_MLM_B] = "generator_predictions.dense.bias",
                                 [ROLE_MLM_NORM_W] = "generator_predictions.LayerNorm.weight",
                                 [ROLE_MLM_NORM_B] = "generator_predictions.LayerNorm.bias",
                                 [ROLE_LM_BIAS] = "generator_lm_head.bias"},
                        .ignored = {"electra.embeddings.position_ids", "discriminator_predictions.",
                                    "generator_lm_head.weight"},
                        .copies = {{"generator_lm_head.weight", ROLE_TOKENS}},
                        .heads_of = {"generator_", "classifier."},
                        .headless =
                            N_("use the generator's file: a discriminator has no head of masked tokens"),
                        .types = 2,
                        .pooler = 1 + ACTIVATION_GELU,
                        .mlm = 1 + ACTIVATION_GELU,
                        ENCODER(1e-12f)},
    [FAMILY_BIG_BIRD] = {.prefix = "",
                         .block_prefix = "bert.encoder.layer.",
                         .keys = {BERT_KEYS("bert."), BERT_BLOCK_KEYS, BERT_MLM_KEYS,
                                  CLASSIFICATION_HEAD, [ROLE_UNUSED_W] = "bert.pooler.weight",
                                  [ROLE_UNUSED_B] = "bert.pooler.bias"},
                         BERT_MLM_COPIES,
                         .heads_of = {"cls.", "classifier."},
                         .types = 2,
                         .ffn = 1 + ACTIVATION_GELU_TANH,
                         .block = 64,
                         .random = 3,
                         .mask = 67,
                         ENCODER(1e-12f)},
};

const struct family_row *family_row(enum family family) { return &rows[family]; }
const char *family_name(enum family family) { return family ? family_names[family] : "unknown"; }
const char *family_noun(enum family family) { return family_language(&rows[family]) ? "model" : "tower"; }
const char *family_prefix(enum family family) { return rows[family].prefix; }
bool family_stores_positions(enum family family) { return rows[family].pos_matrix; }
bool family_has_variants(enum family family) { return rows[family].variants; }
int family_ffn(enum family family) { return rows[family].ffn ? rows[family].ffn : 1 + ACTIVATION_GELU; }
int64_t family_pool_heads(enum family family) { return rows[family].pool_heads; }

double family_rope_theta(enum family family)
{
    static const double bases[] = {
        [ROPE_NONE] = 0, [ROPE_EVA] = 10000, [ROPE_PE] = 10000, [ROPE_DINOV3] = 100, [ROPE_TOKENS] = 10000};
    return bases[rows[family].rope];
}

const char *family_key(const struct family_row *row, enum role role, int ffn)
{
    if (ffn == 1 + ACTIVATION_SWIGLU && role >= ROLE_FFN_FIRST && role < ROLE_FFN_FIRST + ROLE_FFN_COUNT)
        return row->swiglu[role - ROLE_FFN_FIRST];
    return row->keys[role];
}
