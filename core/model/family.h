/* A model family: one row with the parts of its towers and the keys of its checkpoints. Code reads
 * the row and never compares families. A family that differs only in these fields needs one more row; one
 * with a different input also needs its own kind: embed and head (core/nn/models.c). */
#ifndef MEOPT_MODEL_FAMILY_H
#define MEOPT_MODEL_FAMILY_H

#include "core/model/shape.h"

/* The purpose of a parameter, in checkpoint order. Block roles repeat in every block. */
enum role {
    ROLE_TOKENS, /* the token table of a language model */
    ROLE_CLS,
    ROLE_POS,
    ROLE_TYPES,     /* token types of an encoder: the first row is added to every token */
    ROLE_REGISTERS, /* only with model_shape.registers */
    ROLE_MASK,
    ROLE_PATCH_W,
    ROLE_PATCH_B,
    ROLE_PRE_W, /* norm between the embedding and the first block */
    ROLE_PRE_B,
    ROLE_EMBED_W, /* from a narrower or wider embedding to the blocks (model_shape.embedding) */
    ROLE_EMBED_B,
    ROLE_NORM1_W,
    ROLE_NORM1_B,
    ROLE_QKV_W,
    ROLE_QKV_B,
    ROLE_Q_B,      /* replaces ROLE_QKV_B if k has no bias: one array of 3D with zeros in the middle */
    ROLE_V_B,      /* and its last third */
    ROLE_Q_NORM_W, /* PART_QK_NORM */
    ROLE_K_NORM_W,
    ROLE_ATTN_NORM_W, /* PART_ATTN_NORM */
    ROLE_ATTN_NORM_B,
    ROLE_PROJ_W,
    ROLE_PROJ_B,
    ROLE_LS1, /* LayerScale of a branch, with model_shape.layerscale */
    ROLE_NORM2_W,
    ROLE_NORM2_B,
    ROLE_FC1_W,
    ROLE_FC1_B,
    ROLE_FC2_W,
    ROLE_FC2_B,
    ROLE_FFN_NORM_W, /* PART_FFN_NORM */
    ROLE_FFN_NORM_B,
    ROLE_LS2,
    ROLE_POOL_QUERY, /* PART_ATTN_POOL */
    ROLE_POOL_QKV_W, /* replaces the next three: their rows, concatenated */
    ROLE_POOL_Q_W,
    ROLE_POOL_K_W,
    ROLE_POOL_V_W,
    ROLE_POOL_QKV_B,
    ROLE_POOL_PROJ_W,
    ROLE_POOL_PROJ_B,
    ROLE_POOL_Q_NORM_W,
    ROLE_POOL_Q_NORM_B,
    ROLE_POOL_K_NORM_W,
    ROLE_POOL_K_NORM_B,
    ROLE_POOL_NORM_W, /* x + fc2(activation(fc1(norm(x)))) of the pooled row */
    ROLE_POOL_NORM_B,
    ROLE_POOL_FC1_W,
    ROLE_POOL_FC1_B,
    ROLE_POOL_FC2_W,
    ROLE_POOL_FC2_B,
    ROLE_POOLER_W, /* of an encoder's classifier: activation(x W^T + b) of the first token */
    ROLE_POOLER_B,
    ROLE_UNUSED_W, /* a pooler that no head reads, but that the class saves */
    ROLE_UNUSED_B,
    ROLE_MLM_W, /* head of a masked language model: norm(activation(x W^T + b)) before the logits */
    ROLE_MLM_B,
    ROLE_MLM_NORM_W,
    ROLE_MLM_NORM_B,
    ROLE_LM_BIAS, /* of the logits */
    ROLE_NORM_W,
    ROLE_NORM_B,
    ROLE_OUT_W, /* projection of the pooled row; a family without one has out = width */
    ROLE_OUT_B,
    ROLE_LM_HEAD,    /* absent if model_shape.tied */
    ROLE_HEAD_FC1_W, /* of a distillation head with a hidden layer (outputs.h); ROLE_HEAD_W is its second */
    ROLE_HEAD_FC1_B,
    ROLE_HEAD_NORM_W,
    ROLE_HEAD_NORM_B,
    ROLE_HEAD_W, /* distillation head or classifier, in every family */
    ROLE_HEAD_B,
    ROLE_COUNT,
    ROLE_BLOCK_FIRST = ROLE_NORM1_W,
    ROLE_BLOCK_LAST = ROLE_LS2,
    ROLE_POOL_FIRST = ROLE_POOL_QUERY,
    ROLE_POOL_LAST = ROLE_POOL_FC2_B,
    ROLE_FFN_FIRST = ROLE_FC1_W,
    ROLE_FFN_COUNT = 4
};

/* In files that meopt writes: a classifier, and heads of a distillation. */
#define CLASSIFIER_KEY "classifier."
#define HEAD_KEY       "distill_head."
enum { HEAD_PARAMETERS = ROLE_HEAD_B - ROLE_HEAD_FC1_W + 1 };

/* Keys of the blocks of timm, as all libraries that adopted them use them; and of what is around them. */
#define VIT_BLOCK_KEYS                                                                                       \
    [ROLE_NORM1_W] = "norm1.weight", [ROLE_NORM1_B] = "norm1.bias", [ROLE_QKV_W] = "attn.qkv.weight",        \
    [ROLE_PROJ_W] = "attn.proj.weight", [ROLE_PROJ_B] = "attn.proj.bias", [ROLE_NORM2_W] = "norm2.weight",   \
    [ROLE_NORM2_B] = "norm2.bias", [ROLE_FC1_W] = "mlp.fc1.weight", [ROLE_FC1_B] = "mlp.fc1.bias",           \
    [ROLE_FC2_W] = "mlp.fc2.weight", [ROLE_FC2_B] = "mlp.fc2.bias"
#define VIT_KEYS                                                                                             \
    VIT_BLOCK_KEYS, [ROLE_CLS] = "cls_token", [ROLE_PATCH_W] = "patch_embed.proj.weight",                    \
                    [ROLE_NORM_W] = "norm.weight", [ROLE_NORM_B] = "norm.bias"

enum { FAMILY_IGNORED = 8, FAMILY_HEADS = 6, FAMILY_OTHER_HEADS = 4, FAMILY_COPIES = 2 };

/* Rotary positions of the patches, two angles per frequency: one for the row, one for the column; of tokens,
 * one angle per frequency. */
enum rope {
    ROPE_NONE,
    ROPE_EVA, /* frequencies 10000^-i, position 16 row / side; pairs are neighbours */
    ROPE_PE,  /* as EVA, the column's pairs first, position (column + 1) pos_grid / side, + 0 without class */
    ROPE_DINOV3, /* frequencies 100^-i, position 2 pi (2 (row + .5) / side - 1); pairs half a head apart */
    ROPE_TOKENS  /* frequencies of model_shape.rope, position of the token; pairs half a head apart */
};

/* Input and output: core/nn/models.c has the functions of a kind. */
enum model_kind {
    MODEL_IMAGE,   /* patches and a class token in, the normalised class row (and patch rows) out */
    MODEL_DECODER, /* tokens and labels in, the loss out; attention is causal */
    MODEL_ENCODER  /* every token sees its whole document; masked tokens are predicted, or a text's class */
};

struct family_row {
    const char *prefix;       /* prefix of the tower's keys in a published checkpoint */
    const char *block_prefix; /* prefix of a block's keys, after it; the block's number and a dot follow */
    bool chunked_blocks;      /* a training checkpoint may have blocks.CHUNK.N. for blocks.N. */
    const char *keys[ROLE_COUNT];       /* after prefix, and in a block after block_prefix; NULL: none */
    const char *shapes[ROLE_COUNT];     /* letters as in parameters.c; NULL: the role's usual shape */
    const char *swiglu[ROLE_FFN_COUNT]; /* keys of the feed-forward as SwiGLU; NULL: none */
    /* modules that a library has in place of one matrix, in the order of its rows, for adapters (lora.h):
     * queries, keys and values; both halves of a gated ROLE_FC1_W. NULL: the matrix is one module */
    const char *lora_qkv[3], *lora_gated[2];
    const char *
        ignored[FAMILY_IGNORED]; /* keys inside the tower that change no output; "head.": all that start so */
    const char *heads_of[FAMILY_OTHER_HEADS]; /* beginnings of names of heads, of which a tower has one */
    struct {
        const char *key;
        enum role of;
    } copies[FAMILY_COPIES]; /* keys that a file may have next to a role's, with the same values */
    const char *headless;    /* hint where a masked model has no head; NULL: the usual one */
    float norm_eps;
    enum model_kind kind;
    enum fact_members members; /* of its config.json */
    bool rms;                  /* its norms are RMS norms without bias */
    bool out_transposed;       /* the projection is stored (width, out): y = x P, elsewhere y = x W^T */
    bool out_optional;         /* a tower may lack it: the normalised row is then the embedding */
    bool out_rare;             /* absent, except if the file has one (open_clip's timm_proj) */
    bool class_varies;         /* a tower may have no class token, or one without a position */
    enum norms norms;          /* of a language model's blocks; NORMS_USUAL: pre-norm */
    bool tied;                 /* of a language model: the head's matrix is the token table by default */
    int64_t types;             /* rows of an encoder's table of token types, by default */
    int64_t first_position;    /* row of the position table for the first token */
    bool mask_last;            /* the token of masked ones is the vocabulary's last, not 103 */
    int pooler, mlm;           /* activations of an encoder's heads, 1 + enum activation; 0: the blocks' */
    int64_t block, random;     /* of its block-sparse attention (blocks.h), by default; 0: it has none */
    int64_t mask;              /* the token that stands for a masked one; 0: BERT's */
    int64_t postnorm_width;    /* width of the published post-norm towers; 0: none */
    int parts, varies;         /* PART_... that its towers usually have, and those that may differ */
    enum rope rope;
    bool rope_gated; /* only those with a gated feed-forward (EVA02; EVA01 has neither) */
    struct {
        int64_t width, head; /* of one head at that width; width 0: at any other */
    } heads[FAMILY_HEADS];   /* where published towers differ from all families' rule (model_shape.c) */
    int64_t pool_heads;      /* default for attention pooling; 0: the blocks' */
    int ffn;                 /* default activation of an mlp, 1 + enum activation; 0: GELU */
    bool classless;          /* its towers have no class token */
    bool first_pooled;       /* the first of their registers is the embedding */
    bool crops;              /* pixels beyond the last whole patch are ignored; in other families refused */
    bool variants;           /* published towers differ in activation and pooling, which no tensor shows */
    bool layerscale;         /* by default */
    enum initial tokens;     /* initial values of the class token and registers: INITIAL_NORMAL or _TINY */
    enum initial branches;   /* of the outputs of residual branches, of images: INITIAL_NORMAL or _BLOCK */
    enum pos_resize pos_resize; /* as in its own library */
    bool pos_matrix;            /* positions always pass through the resize matrix, also at their own size */
    int64_t pos_grid;           /* default; 0: the image's grid */
    int64_t image_grid;         /* default image / patch; 0: pos_grid */
    int64_t patch;              /* default; 0: 14 */
};
static inline bool family_language(const struct family_row *row) { return row->kind != MODEL_IMAGE; }
static inline bool family_encoder(const struct family_row *row) { return row->kind == MODEL_ENCODER; }

enum pos_resize model_shape_pos_resize(const struct model_shape *model_shape); /* resolves POS_RESIZE_USUAL */
const struct family_row *family_row(enum family family);
static inline bool family_has(const struct family_row *row, enum role role) { return row->keys[role]; }
/* Returns the role's key after all prefixes, NULL if such a tower has none. ffn: 1 + enum activation. */
const char *family_key(const struct family_row *row, enum role role, int ffn);

#endif
