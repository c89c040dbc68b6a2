/* Compares names and shapes of a checkpoint with its family's row: see checkpoint_fit.h. */
#include "core/model/checkpoint_fit.h"
#include "core/base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char merge[] = "merge it into the model and save the result: merge_and_unload() of peft",
                  dequantize[] =
                      "use the checkpoint from before it was quantized, or dequantize it and save again",
                  encoder[] = "use the encoder's own file, or extract its tensors from this one",
                  unwrap[] = "save the model before this change, or remove the change first";

/* The meaning of a part of a name, first match; and the hint, if it is not the usual one. */
static const struct {
    const char *part, *meaning, *hint;
} meanings[] = {
    {"base_layer.", N_("an adapter of PEFT that is not merged into the weights"), merge},
    {"lora_", N_("a LoRA adapter that is not merged into the weights"), merge},
    {"hada_w", N_("a LoHa adapter that is not merged into the weights"), merge},
    {"qweight", N_("4-bit weights (GPTQ, AWQ)"), dequantize},
    {"qzeros", N_("4-bit weights (GPTQ, AWQ)"), dequantize},
    {"g_idx", N_("4-bit weights (GPTQ, AWQ)"), dequantize},
    {"_packed_params", N_("quantized weights (torch.ao)"), dequantize},
    {".scales", N_("4-bit weights (GPTQ, AWQ)"), dequantize},
    {".SCB", N_("8-bit weights of bitsandbytes"), dequantize},
    {"weight_format", N_("8-bit weights of bitsandbytes"), dequantize},
    {"absmax", N_("4-bit weights of bitsandbytes"), dequantize},
    {"quant_map", N_("4-bit weights of bitsandbytes"), dequantize},
    {"quant_state", N_("4-bit weights of bitsandbytes"), dequantize},
    {"weight_packed", N_("quantized weights (compressed-tensors)"), dequantize},
    {"weight_scale", N_("quantized weights (compressed-tensors, fp8)"), dequantize},
    {"zero_point", N_("quantized weights"), dequantize},
    {"proj.scale", N_("quantized weights"), dequantize},
    {"_checkpoint_wrapped_module", N_("a module inside a wrapper of activation checkpointing"), unwrap},
    {"parametrizations", N_("a parametrization (weight norm, orthogonal, ...)"), unwrap},
    {"weight_orig", N_("a pruned or spectrally normed weight"), unwrap},
    {"weight_mask", N_("a pruned weight"), unwrap},
    {"weight_g", N_("a weight-normed matrix"), unwrap},
    {"weight_v", N_("a weight-normed matrix"), unwrap},
    {"register_tokens", N_("register tokens (DINOv2 with registers)"), NULL},
    {"reg_token", N_("register tokens (timm's *_reg models)"), NULL},
    {"gamma_", "LayerScale", NULL},
    {"ls1.", "LayerScale", NULL},
    {"ls2.", "LayerScale", NULL},
    {"ls_1.", N_("LayerScale (open_clip's ls_init_value)"), NULL},
    {"ls_2.", N_("LayerScale (open_clip's ls_init_value)"), NULL},
    {"relative_position", N_("relative positions in the attention"), NULL},
    {"rel_pos", N_("relative positions in the attention"), NULL},
    {"rope", N_("rotary positions (EVA02, DINOv3)"), NULL},
    {"freqs_", N_("rotary positions (EVA02, DINOv3)"), NULL},
    {"inner_attn_ln", N_("a norm inside the attention (sub-LN, EVA02)"), NULL},
    {"ffn_ln", N_("a norm inside the feed-forward (sub-LN, EVA02)"), NULL},
    {"mlp.norm", N_("a norm inside the feed-forward (sub-LN, EVA02)"), NULL},
    {"attn.norm", N_("a norm inside the attention (sub-LN, EVA02)"), NULL},
    {"ln_attn", N_("a norm inside the attention (scaled attention)"), NULL},
    {"head_scale", N_("a scale of each head (scaled attention)"), NULL},
    {"logit_scale", N_("a scale of the attention (cosine attention)"), NULL},
    {"q_norm", N_("norms of the queries and keys"), NULL},
    {"k_norm", N_("norms of the queries and keys"), NULL},
    {"ln_q", N_("norms of the queries and keys"), NULL},
    {"ln_k", N_("norms of the queries and keys"), NULL},
    {"q_proj", N_("separate projections of queries, keys and values"), NULL},
    {"k_proj", N_("separate projections of queries, keys and values"), NULL},
    {"v_proj", N_("separate projections of queries, keys and values"), NULL},
    {"attn_pool", N_("pooling by attention (CoCa, SigLIP)"), NULL},
    {"local_cls_norm", N_("a norm of its own for small crops"), NULL},
    {"fc_norm", N_("a norm after the pooling of all tokens (EVA-CLIP), or of two norms (timm's use_fc_norm)"),
     NULL},
    {"head.proj", N_("a projection after a tower of timm (open_clip's timm_proj)"), NULL},
    {"head.mlp", N_("a projection after a tower of timm (open_clip's timm_proj)"), NULL},
    {"visual_projection.bias", N_("a bias of the projection"), NULL},
    {"patchnorm", N_("a norm of the patches"), NULL},
    {"norm_pre", N_("a norm before the blocks (timm's CLIP towers)"), NULL},
    {"ln_pre", N_("a norm before the blocks"), NULL},
    {"trunk.", N_("a tower of timm inside open_clip"), NULL},
    {"mlp.w", N_("a gated feed-forward (SwiGLU)"), NULL},
    {"dist_token", N_("a distillation token (DeiT)"), NULL},
    {"head_dist", N_("the second classifier of a tower with a distillation token (DeiT)"), NULL},
    {"pre_logits", N_("a layer between the tower and its classifier"), NULL},
    {"score.weight", N_("a classifier of sequences (ForSequenceClassification)"), NULL},
    {"decoder", N_("the decoder of a masked autoencoder (MAE)"), encoder},
    {"patch_normalizer", N_("a norm of the patches"), NULL},
    {"video_embedder", N_("patches of videos"), NULL},
    {"patch_embed.backbone", N_("a convolutional network before the blocks (hybrid ViT)"), NULL},
    {"attns.", N_("several attentions in parallel (parallel ViT)"), NULL},
    {"in_proj", N_("attention and feed-forward in parallel"), NULL},
    {"lambda_", N_("differential attention"), NULL},
    {"fc1_g", N_("a gated feed-forward (SwiGLU)"), NULL},
    {"cls_token", N_("a second token"), NULL},
    {"norm3", N_("a third norm in a block"), NULL},
    {"norm.", N_("a norm that no such tower has here"), NULL},
};

/* Returns the matching row of the table, -1 for none. */
static int meaning_of(const char *key)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (strstr(key, meanings[i].part)) return (int)i;
    return -1;
}

const char *fit_meaning(const char *key, const char **hint)
{
    int i = meaning_of(key);
    *hint = i >= 0 ? meanings[i].hint : NULL;
    return i >= 0 ? meanings[i].meaning : NULL;
}

int fit_family(struct key_map *key_map, const struct model_shape *g, const struct weights *weights,
               struct error *err)
{
    names_find(key_map, weights);
    bool language = model_shape_language(g), other = key_map->family != g->family;
    if (other && language) other = !names_find_as(key_map, g->family, weights);
    names_set_heads(key_map, g);
    if (!other) return 0;
    return error_set(err, EXIT_CONFIG, "correct the weight path, or model.family",
                     "holds a %s of family %s, expected %s", family_noun(key_map->family),
                     family_name(key_map->family), family_name(g->family));
}

int fit_names(const struct key_map *key_map, const struct weights *weights, struct error *err)
{
    const char *first = NULL, *unread = NULL, *name;
    int meaning = -1;
    int64_t others = -1, count = weights_count(weights);
    for (int64_t i = 0; i < count || weights_unread_name(weights, i - count); i++) {
        int64_t block;
        name = i < count ? weights_tensor(weights, i)->name : weights_unread_name(weights, i - count);
        if (!names_inside(key_map, name)) continue;
        const char *key = names_key(key_map, name, &block);
        enum names_use use = names_use(key_map, key, block >= 0);
        if (i >= count && use != NAMES_UNREAD && use != NAMES_IGNORED && !unread) unread = name;
        if (use != NAMES_UNREAD) continue;
        int says = meaning_of(key);
        if (!first || (says >= 0 && meaning < 0)) { /* prefer the first tensor with an explanation */
            first = name;
            meaning = says;
        }
        others++;
    }
    if (!first && unread) return weights_refuse_missing(weights, unread, NULL, err);
    if (!first) return 0;
    char more[48] = "", printable[160];
    name_printable(printable, sizeof printable, first);
    if (others > 0) snprintf(more, sizeof more, _(" (and %lld others)"), (long long)others);
    const char *hint = meaning >= 0 && meanings[meaning].hint
                           ? meanings[meaning].hint
                           : _("without it the outputs would differ from the model's; if the model does not "
                               "use the tensor, remove it from the file");
    /* a different kind of model is reported by its name, unless the tensor shows a modification of a known
     * one */
    bool named = (meaning >= 0 && meanings[meaning].hint) || family_language(family_row(key_map->family));
    const char *model = named ? NULL : names_unsupported(weights);
    if (model)
        return error_set(err, EXIT_CONFIG,
                         "supported: EVA-CLIP, OpenCLIP, DINOv2, DINOv3, SigLIP, PE and C-RADIO",
                         "holds %s, which is not supported (tensor %s%s)", model, printable, more);
    return error_set(err, EXIT_CONFIG, hint, "the %s %s has tensor %s%s, which meopt does not read: %s",
                     family_name(key_map->family), family_noun(key_map->family), printable, more,
                     meaning >= 0 ? meanings[meaning].meaning : _("its purpose is not known"));
}

int64_t fit_blocks(const struct key_map *key_map, const struct weights *weights)
{
    size_t begin = strlen(key_map->begin);
    int64_t last = -1, block;
    for (int64_t i = 0; i < weights_count(weights); i++) {
        const char *name = weights_tensor(weights, i)->name;
        if (strncmp(name, key_map->begin, begin) != 0) continue;
        (void)names_key(key_map, name, &block);
        if (block > last) last = block;
    }
    return last == INT64_MAX ? last : last + 1;
}

/* Returns the tensor of a classifier with as many inputs and classes, -1 for none. */
static int64_t find_classifier(const struct key_map *key_map, const struct parameter *p,
                               const struct weights *weights)
{
    const struct parameter *matrix = p->role == ROLE_HEAD_B ? p - 1 : p; /* the bias follows it */
    int64_t at = names_classifier(key_map, weights, "weight");
    const struct weights_tensor *t = at >= 0 ? weights_tensor(weights, at) : NULL;
    if (!t || t->ndim != 2 || t->shape[0] != matrix->shape[0] || t->shape[1] != matrix->shape[1]) return -1;
    return matrix == p ? at : names_classifier(key_map, weights, "bias");
}

struct values_place fit_place(const struct key_map *key_map, int ffn, const struct parameter *p,
                              const struct weights *weights)
{
    if (!p->head) return names_place(key_map, weights, (enum role)p->role, p->group - 1, ffn);
    bool classifier = strncmp(p->name, CLASSIFIER_KEY, strlen(CLASSIFIER_KEY)) == 0;
    int64_t at = classifier ? find_classifier(key_map, p, weights) : weights_find(weights, p->name);
    struct values_place place = {.tensor = {at}, .parts = 1, .share = {1}, .shares = 1, .added = -1};
    snprintf(place.first, sizeof place.first, "%s", p->name);
    return place;
}

bool fit_absent(const struct values_place *place)
{
    for (int i = 0; i < place->parts; i++)
        if (place->tensor[i] < 0) return true;
    return place->parts == 0;
}

int fit_dimensions(int ndim, const int64_t *shape, const int64_t **first)
{
    while (ndim > 0 && *shape == 1) {
        ndim--;
        shape++;
    }
    *first = shape;
    return ndim;
}

static void shape_text(char *text, size_t size, int ndim, const int64_t *shape)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < ndim && at < size; i++) {
        int n = snprintf(text + at, size - at, "%s%lld", i ? "x" : "", (long long)shape[i]);
        if (n > 0) at += (size_t)n;
    }
}

/* Quantized weights are stored as integers. */
static int check_kind(const struct weights_tensor *t, struct error *err)
{
    char name[160];
    if (t->dtype == DTYPE_F32 || t->dtype == DTYPE_F16 || t->dtype == DTYPE_BF16 || t->dtype == DTYPE_F64)
        return 0;
    return error_set(err, EXIT_CONFIG, dequantize, "tensor %s has integer type %s, expected floating point",
                     name_printable(name, sizeof name, t->name), dtype_name(t->dtype));
}

/* Checks that each part has its share of the rows, or that the whole tensor is transposed. */
static int check_shape(const struct parameter *p, const struct values_place *place,
                       const struct weights *weights, struct error *err)
{
    int64_t wanted[4];
    memcpy(wanted, p->shape, sizeof wanted);
    if (p->ndim >= 2) wanted[p->ndim - 2] += place->held_rows - place->zero_rows;
    if (place->slices) wanted[0] *= place->slices;
    if (place->transposed) {
        wanted[0] = p->shape[1];
        wanted[1] = p->shape[0];
    }
    int64_t rows = wanted[0];
    for (int i = 0; i < place->parts; i++) {
        const struct weights_tensor *found = weights_tensor(weights, place->tensor[i]);
        const int64_t *a, *b;
        wanted[0] = values_rows(place, i, rows);
        int ndim = fit_dimensions(found->ndim, found->shape, &a);
        bool same = ndim == fit_dimensions(p->ndim, wanted, &b);
        for (int d = 0; same && d < ndim; d++) same = a[d] == b[d];
        int code = same ? check_kind(found, err) : 0;
        if (code) return code;
        if (same) continue;
        char expected[96], has[96], name[160];
        name_printable(name, sizeof name, found->name);
        shape_text(expected, sizeof expected, p->ndim, wanted);
        shape_text(has, sizeof has, found->ndim, found->shape);
        return error_set(err, EXIT_CONFIG, "check the weight path and the model shape",
                         "tensor %s is [%s], expected [%s]", name, has, expected);
    }
    return 0;
}

/* Returns whether the tensor belongs to a head that a tower of this family may have, and this one has not. */
static bool of_other_head(const struct key_map *key_map, const char *key)
{
    const char *const *heads = family_row(key_map->family)->heads_of;
    for (int i = 0; i < FAMILY_OTHER_HEADS && heads[i]; i++)
        if (strncmp(key, heads[i], strlen(heads[i])) == 0) return true;
    return false;
}

/* Checks for names that some role reads, but not in this tower: a part that only some blocks have, or two
 * feed-forwards. tied: the file may have the head's matrix, which is not read. */
static int all_used(const struct key_map *key_map, const bool *used, bool tied, const struct weights *weights,
                    struct error *err)
{
    const char *head = family_row(key_map->family)->keys[ROLE_LM_HEAD];
    size_t begin = strlen(key_map->begin);
    for (int64_t i = 0; i < weights_count(weights); i++) {
        const char *name = weights_tensor(weights, i)->name;
        char printable[160];
        int64_t block;
        if (used[i] || weights_tensor(weights, i)->count == 0 || strncmp(name, key_map->begin, begin) != 0 ||
            strncmp(name, HEAD_KEY, strlen(HEAD_KEY)) == 0)
            continue;
        const char *key = names_key(key_map, name, &block);
        if (names_use(key_map, key, block >= 0) != NAMES_READ) continue;
        if (of_other_head(key_map, key)) continue;
        if (tied && block < 0 && head && strcmp(key, head) == 0) continue;
        return error_set(err, EXIT_CONFIG, "is the file whole?",
                         "the %s %s has tensor %s, which does not go with the first block or the rest of it",
                         family_name(key_map->family), family_noun(key_map->family),
                         name_printable(printable, sizeof printable, name));
    }
    return 0;
}

int fit_shapes(const struct key_map *key_map, int ffn, const struct parameter *parameters, int count,
               const struct weights *weights, struct error *err)
{
    bool *used = xcalloc((size_t)weights_count(weights) + 1, sizeof *used);
    int code = 0;
    bool tied = true;
    const struct family_row *row = family_row(key_map->family);
    static const char usual[] = N_("check the weight path and model.family"),
                      biasless[] = N_("train it with bias=True: blocks without biases are not supported");
    for (int i = 0; i < count && !code; i++) {
        const struct parameter *p = &parameters[i];
        if (p->adapter) continue;
        tied &= p->role != ROLE_LM_HEAD;
        struct values_place place = fit_place(key_map, ffn, p, weights);
        bool absent = fit_absent(&place);
        /* only some parameters may be absent, and none with an unsupported type (complex, fp8, sparse,
         * ...) */
        if (absent && ((!p->may_be_new && !p->resident) || weights_unread(weights, place.first)))
            code = weights_refuse_missing(weights, place.first,
                                          key_map->family == FAMILY_GPT2 && p->ndim == 1 ? biasless
                                          : row->headless && p->role >= ROLE_MLM_W && p->role <= ROLE_LM_BIAS
                                              ? row->headless
                                              : usual,
                                          err);
        if (absent) continue;
        for (int k = 0; k < place.parts; k++) used[place.tensor[k]] = true;
        code = check_shape(p, &place, weights, err);
    }
    if (!code) code = all_used(key_map, used, tied, weights, err);
    free(used);
    return code;
}
