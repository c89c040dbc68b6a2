/* A model family: one row with the parts of its towers and the keys of its checkpoints.
 * Nothing in core/nn asks which family a tower is of; it asks the row. A family that differs in what is here
 * is one row more; one with another kind of input brings its own embed and head, too (struct model). */
#ifndef MEOPT_NN_FAMILY_H
#define MEOPT_NN_FAMILY_H

#include "core/nn/nn.h"

/* What a parameter is for, in checkpoint order. Block roles repeat in every block. */
enum role {
    ROLE_CLS,
    ROLE_POS,
    ROLE_REGISTERS, /* only where geometry.registers says so */
    ROLE_MASK,
    ROLE_PATCH_W,
    ROLE_PATCH_B,
    ROLE_PRE_W, /* norm between the embedding and the first block */
    ROLE_PRE_B,
    ROLE_NORM1_W,
    ROLE_NORM1_B,
    ROLE_QKV_W,
    ROLE_QKV_B,
    ROLE_Q_B, /* in place of ROLE_QKV_B where k has no bias: the one array of 3D, with zeros between */
    ROLE_V_B, /* and its last third */
    ROLE_ATTN_NORM_W, /* PART_ATTN_NORM */
    ROLE_ATTN_NORM_B,
    ROLE_PROJ_W,
    ROLE_PROJ_B,
    ROLE_LS1, /* LayerScale of a branch, where geometry.layerscale says so */
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
    ROLE_POOL_QKV_W, /* in place of the next three: their rows one behind the other */
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
    ROLE_POOL_NORM_W, /* x + fc2(activation(fc1(norm(x)))) of what was found */
    ROLE_POOL_NORM_B,
    ROLE_POOL_FC1_W,
    ROLE_POOL_FC1_B,
    ROLE_POOL_FC2_W,
    ROLE_POOL_FC2_B,
    ROLE_NORM_W,
    ROLE_NORM_B,
    ROLE_OUT_W, /* projection of the pooled row; a family without has out = width */
    ROLE_OUT_B,
    ROLE_HEAD_W, /* distillation head: every family's */
    ROLE_HEAD_B,
    ROLE_COUNT,
    ROLE_BLOCK_FIRST = ROLE_NORM1_W,
    ROLE_BLOCK_LAST = ROLE_LS2,
    ROLE_POOL_FIRST = ROLE_POOL_QUERY,
    ROLE_POOL_LAST = ROLE_POOL_FC2_B,
    ROLE_FFN_FIRST = ROLE_FC1_W,
    ROLE_FFN_COUNT = 4
};

/* The keys that blocks of the timm kind have in every library that took them over. */
#define VIT_KEYS                                                                                             \
    [ROLE_CLS] = "cls_token", [ROLE_PATCH_W] = "patch_embed.proj.weight", [ROLE_NORM1_W] = "norm1.weight",   \
    [ROLE_NORM1_B] = "norm1.bias", [ROLE_QKV_W] = "attn.qkv.weight", [ROLE_PROJ_W] = "attn.proj.weight",     \
    [ROLE_PROJ_B] = "attn.proj.bias", [ROLE_NORM2_W] = "norm2.weight", [ROLE_NORM2_B] = "norm2.bias",        \
    [ROLE_FC1_W] = "mlp.fc1.weight", [ROLE_FC1_B] = "mlp.fc1.bias", [ROLE_FC2_W] = "mlp.fc2.weight",         \
    [ROLE_FC2_B] = "mlp.fc2.bias", [ROLE_NORM_W] = "norm.weight", [ROLE_NORM_B] = "norm.bias"

enum { FAMILY_IGNORED = 8, FAMILY_HEADS = 6 };

/* Rotary positions of the patches, two angles for each frequency: of its row and of its column. */
enum rope {
    ROPE_NONE,
    ROPE_EVA,   /* frequencies 10000^-i, position 16 row / side; pairs are neighbours */
    ROPE_DINOV3 /* frequencies 100^-i, position 2 pi (2 (row + .5) / side - 1); pairs are half a head apart */
};

struct family_row {
    const char *prefix;             /* of the tower's keys in a published checkpoint */
    const char *block_prefix;       /* of a block's, behind it: the block's number and a dot follow */
    bool chunked_blocks;            /* a training checkpoint may write blocks.CHUNK.N. for blocks.N. */
    const char *keys[ROLE_COUNT];   /* behind prefix, in a block behind block_prefix, too; NULL: has none */
    const char *shapes[ROLE_COUNT]; /* letters as in parameters.c; NULL: the role's usual shape */
    const char *swiglu[ROLE_FFN_COUNT];  /* keys of the feed-forward as SwiGLU; NULL: has none */
    const char *ignored[FAMILY_IGNORED]; /* keys inside the tower that change no output; "head.": all such */
    float norm_eps;
    bool out_transposed;    /* the projection is stored (width, out): y = x P, elsewhere y = x W^T */
    bool out_optional;      /* a tower may come without it: the normalised row is the embedding */
    bool out_rare;          /* without one, unless its file has one (open_clip's timm_proj) */
    bool class_varies;      /* a tower may have no class token, or one without a position */
    int64_t postnorm_width; /* of the published ones whose norms stand behind the branches; 0: none do */
    int parts, varies;      /* PART_... that its towers usually have, and which of them may be otherwise */
    enum rope rope;
    bool rope_gated; /* only those with a gated feed-forward (EVA02; EVA01 has neither) */
    struct {
        int64_t width, head;    /* of one head at that width; width 0: at any other */
    } heads[FAMILY_HEADS];      /* where published ones have others than all families' (model_shape.c) */
    int64_t pool_heads;         /* of pooling by attention where nothing says them; 0: the blocks' */
    int ffn;                    /* usual activation of an mlp, 1 + enum activation; 0: GELU */
    bool classless;             /* its towers have no class token */
    bool crops;                 /* pixels beyond the last whole patch are not looked at, elsewhere refused */
    bool variants;              /* published ones differ in activation and pooling, which no tensor shows */
    bool layerscale;            /* usually */
    enum pos_resize pos_resize; /* as its own library does */
    bool pos_matrix;            /* positions always pass through the resize matrix, also at their own size */
    int64_t pos_grid;           /* the usual one where nothing says it; 0: the image's */
    int64_t image_grid;         /* the usual image / patch where nothing says it; 0: pos_grid */
    int64_t patch;              /* the usual one; 0: 14 */
    const struct model *model;  /* tower.h */
};

enum pos_resize model_shape_pos_resize(const struct model_shape *model_shape); /* POS_RESIZE_USUAL settled */
const struct family_row *family_row(enum family family);
static inline bool family_has(const struct family_row *row, enum role role) { return row->keys[role]; }
/* The role's key behind all prefixes, NULL when such a tower has none. ffn: 1 + enum activation. */
const char *family_key(const struct family_row *row, enum role role, int ffn);

#endif
