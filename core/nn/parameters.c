/* The parameters of a tower: one table of roles with each family's key and shape (models.md 2). */
#include "core/nn/parameters.h"
#include "core/base/file.h"

#include <stdio.h>
#include <string.h>

enum { COLUMN_EVA, COLUMN_OPENCLIP, COLUMN_DINOV2, COLUMN_SWIGLU, COLUMN_COUNT };

/* Shape letters: D width, Q 3D, F hidden, G rows of the first feed-forward matrix, O out, T target,
 * P rows of the position embedding, 3 channels, p patch side, 1. Flags: m matrix of a gemm, s small whatever
 * its shape, d no decay whatever its shape. A shape in braces {..} is OpenCLIP's where it differs. */
static const struct {
    enum role role;
    const char *keys[COLUMN_COUNT];
    const char *shape, *openclip_shape, *flags;
} rows[] = {
    {ROLE_CLS, {"cls_token", "class_embedding", "cls_token", "cls_token"}, "11D", "D", "s"},
    {ROLE_POS, {"pos_embed", "positional_embedding", "pos_embed", "pos_embed"}, "1PD", "PD", "s"},
    {ROLE_MASK, {NULL, NULL, "mask_token", "mask_token"}, "1D", NULL, "s"},
    {ROLE_PATCH_W,
     {"patch_embed.proj.weight", "conv1.weight", "patch_embed.proj.weight", "patch_embed.proj.weight"},
     "D3pp",
     NULL,
     "m"},
    {ROLE_PATCH_B,
     {"patch_embed.proj.bias", NULL, "patch_embed.proj.bias", "patch_embed.proj.bias"},
     "D",
     NULL,
     "s"},
    {ROLE_PRE_W, {NULL, "ln_pre.weight", NULL, NULL}, "D", NULL, "s"},
    {ROLE_PRE_B, {NULL, "ln_pre.bias", NULL, NULL}, "D", NULL, "s"},
    {ROLE_NORM1_W, {"norm1.weight", "ln_1.weight", "norm1.weight", "norm1.weight"}, "D", NULL, "s"},
    {ROLE_NORM1_B, {"norm1.bias", "ln_1.bias", "norm1.bias", "norm1.bias"}, "D", NULL, "s"},
    {ROLE_QKV_W,
     {"attn.qkv.weight", "attn.in_proj_weight", "attn.qkv.weight", "attn.qkv.weight"},
     "QD",
     NULL,
     "m"},
    {ROLE_QKV_B, {NULL, "attn.in_proj_bias", "attn.qkv.bias", "attn.qkv.bias"}, "Q", NULL, "s"},
    {ROLE_Q_B, {"attn.q_bias", NULL, NULL, NULL}, "D", NULL, "s"},
    {ROLE_V_B, {"attn.v_bias", NULL, NULL, NULL}, "D", NULL, "s"},
    {ROLE_PROJ_W,
     {"attn.proj.weight", "attn.out_proj.weight", "attn.proj.weight", "attn.proj.weight"},
     "DD",
     NULL,
     "m"},
    {ROLE_PROJ_B,
     {"attn.proj.bias", "attn.out_proj.bias", "attn.proj.bias", "attn.proj.bias"},
     "D",
     NULL,
     "s"},
    {ROLE_LS1, {NULL, NULL, "ls1.gamma", "ls1.gamma"}, "D", NULL, "s"},
    {ROLE_NORM2_W, {"norm2.weight", "ln_2.weight", "norm2.weight", "norm2.weight"}, "D", NULL, "s"},
    {ROLE_NORM2_B, {"norm2.bias", "ln_2.bias", "norm2.bias", "norm2.bias"}, "D", NULL, "s"},
    {ROLE_FC1_W, {"mlp.fc1.weight", "mlp.c_fc.weight", "mlp.fc1.weight", "mlp.w12.weight"}, "GD", NULL, "m"},
    {ROLE_FC1_B, {"mlp.fc1.bias", "mlp.c_fc.bias", "mlp.fc1.bias", "mlp.w12.bias"}, "G", NULL, "s"},
    {ROLE_FC2_W, {"mlp.fc2.weight", "mlp.c_proj.weight", "mlp.fc2.weight", "mlp.w3.weight"}, "DF", NULL, "m"},
    {ROLE_FC2_B, {"mlp.fc2.bias", "mlp.c_proj.bias", "mlp.fc2.bias", "mlp.w3.bias"}, "D", NULL, "s"},
    {ROLE_LS2, {NULL, NULL, "ls2.gamma", "ls2.gamma"}, "D", NULL, "s"},
    {ROLE_NORM_W, {"norm.weight", "ln_post.weight", "norm.weight", "norm.weight"}, "D", NULL, "s"},
    {ROLE_NORM_B, {"norm.bias", "ln_post.bias", "norm.bias", "norm.bias"}, "D", NULL, "s"},
    {ROLE_OUT_W, {"head.weight", "proj", NULL, NULL}, "OD", "DO", "m"},
    {ROLE_OUT_B, {"head.bias", NULL, NULL, NULL}, "O", NULL, "s"},
    {ROLE_HEAD_W,
     {"distill_head.weight", "distill_head.weight", "distill_head.weight", "distill_head.weight"},
     "TO",
     NULL,
     "mh"},
    {ROLE_HEAD_B,
     {"distill_head.bias", "distill_head.bias", "distill_head.bias", "distill_head.bias"},
     "T",
     NULL,
     "sh"},
};
enum { ROW_COUNT = sizeof rows / sizeof *rows };

static int64_t dimension(const struct geometry *g, int64_t target, char letter)
{
    switch (letter) {
    case 'D': return g->width;
    case 'Q': return 3 * g->width;
    case 'F': return g->hidden;
    case 'G': return g->ffn == 1 + ACTIVATION_SWIGLU ? 2 * g->hidden : g->hidden;
    case 'O': return g->out;
    case 'T': return target;
    case 'P': return g->pos_grid * g->pos_grid + 1;
    case 'p': return g->patch;
    default: return letter - '0';
    }
}

static void fill(struct parameter *p, int row, const struct geometry *g, int64_t target, const char *prefix,
                 const char *key)
{
    bool openclip = g->family == FAMILY_OPENCLIP;
    const char *shape = openclip && rows[row].openclip_shape ? rows[row].openclip_shape : rows[row].shape;
    snprintf(p->name, sizeof p->name, "%s%s", prefix, key);
    int wide = 0;
    p->count = 1;
    for (p->ndim = 0; shape[p->ndim]; p->ndim++) {
        p->shape[p->ndim] = dimension(g, target, shape[p->ndim]);
        p->count *= p->shape[p->ndim];
        wide += p->shape[p->ndim] != 1;
    }
    p->decay = wide >= 2;
    p->matrix = strchr(rows[row].flags, 'm') != NULL;
    p->small = strchr(rows[row].flags, 's') != NULL;
    p->head = strchr(rows[row].flags, 'h') != NULL;
    p->trained = rows[row].role != ROLE_MASK;
}

int parameters_list(const struct geometry *g, int64_t target, struct parameter **list, enum role **roles)
{
    int column = g->family == FAMILY_EVA           ? COLUMN_EVA
                 : g->family == FAMILY_OPENCLIP    ? COLUMN_OPENCLIP
                 : g->ffn == 1 + ACTIVATION_SWIGLU ? COLUMN_SWIGLU
                                                   : COLUMN_DINOV2;
    int count = 0, room = ROW_COUNT * (int)(g->depth + 1);
    *list = xcalloc((size_t)room, sizeof **list);
    *roles = xcalloc((size_t)room, sizeof **roles);
    for (int64_t group = 0; group <= g->depth + 1; group++) {
        char prefix[64] = "";
        bool block = group > 0 && group <= g->depth;
        if (block)
            snprintf(prefix, sizeof prefix,
                     g->family == FAMILY_OPENCLIP ? "transformer.resblocks.%lld." : "blocks.%lld.",
                     (long long)group - 1);
        for (int row = 0; row < ROW_COUNT; row++) {
            enum role role = rows[row].role;
            int64_t first = role < ROLE_BLOCK_FIRST ? 0 : role > ROLE_BLOCK_LAST ? g->depth + 1 : 1;
            int64_t last = role < ROLE_BLOCK_FIRST ? 0 : role > ROLE_BLOCK_LAST ? g->depth + 1 : g->depth;
            if (group < first || group > last || !rows[row].keys[column]) continue;
            if ((role == ROLE_HEAD_W || role == ROLE_HEAD_B) && target == 0) continue;
            fill(&(*list)[count], row, g, target, prefix, rows[row].keys[column]);
            (*list)[count].group = (int)group;
            (*roles)[count++] = role;
        }
    }
    return count;
}
