/* Names and shapes of a checkpoint against the row of its family: see fit.h. */
#include "core/nn/fit.h"
#include "core/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a part of a name says about a tower, the first that is found. */
static const struct {
    const char *part, *meaning;
} meanings[] = {
    {"register_tokens", "register tokens (DINOv2 with registers)"},
    {"reg_token", "register tokens (timm's *_reg models)"},
    {"gamma_", "LayerScale"},
    {"ls1.", "LayerScale"},
    {"ls2.", "LayerScale"},
    {"ls_1.", "LayerScale (open_clip's ls_init_value)"},
    {"ls_2.", "LayerScale (open_clip's ls_init_value)"},
    {"relative_position", "relative positions in the attention"},
    {"rel_pos_bias", "relative positions in the attention"},
    {"rope", "rotary positions (EVA02, DINOv3)"},
    {"freqs_", "rotary positions (EVA02, DINOv3)"},
    {"inner_attn_ln", "a norm inside the attention (sub-LN, EVA02)"},
    {"ffn_ln", "a norm inside the feed-forward (sub-LN, EVA02)"},
    {"mlp.norm", "a norm inside the feed-forward (sub-LN, EVA02)"},
    {"ln_attn", "a norm inside the attention (scaled attention)"},
    {"head_scale", "a scale of each head (scaled attention)"},
    {"logit_scale", "a scale of the attention (cosine attention)"},
    {"q_norm", "norms of the queries and keys"},
    {"k_norm", "norms of the queries and keys"},
    {"ln_q", "norms of the queries and keys"},
    {"ln_k", "norms of the queries and keys"},
    {"q_proj", "separate projections of queries, keys and values"},
    {"k_proj", "separate projections of queries, keys and values"},
    {"v_proj", "separate projections of queries, keys and values"},
    {"attn_pool", "pooling by attention (CoCa, SigLIP)"},
    {"local_cls_norm", "a norm of its own for small crops"},
    {"fc_norm", "pooling by the mean of the patches"},
    {"patchnorm", "a norm of the patches"},
    {"norm_pre", "a norm before the blocks (timm's CLIP towers)"},
    {"ln_pre", "a norm before the blocks"},
    {"trunk.", "a tower of timm inside open_clip"},
    {"mlp.w", "a gated feed-forward (SwiGLU)"},
    {"dist_token", "a distillation token (DeiT)"},
    {"cls_token", "a second token"},
    {"norm3", "a third norm in a block"},
};

static const char *meaning_of(const char *key)
{
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (strstr(key, meanings[i].part)) return meanings[i].meaning;
    return NULL;
}

/* "blocks.3.attn.proj.bias" -> "attn.proj.bias" and 3; -1 outside the blocks. A chunked one has two numbers.
 */
static const char *behind_block(const struct family_row *row, const char *key, int64_t *block)
{
    size_t begin = strlen(row->block_prefix);
    *block = -1;
    if (begin == 0 || strncmp(key, row->block_prefix, begin) != 0) return key;
    const char *at = key + begin;
    for (int numbers = 0; numbers < (row->chunked_blocks ? 2 : 1); numbers++) {
        size_t digits = strspn(at, "0123456789");
        if (digits == 0 || at[digits] != '.') break;
        *block = strtoll(at, NULL, 10);
        at += digits + 1;
    }
    return *block >= 0 ? at : key;
}

static bool read_by_a_role(const struct family_row *row, const char *key, bool in_block)
{
    for (enum role role = 0; role < ROLE_COUNT; role++) {
        bool of_block = role >= ROLE_BLOCK_FIRST && role <= ROLE_BLOCK_LAST;
        if (of_block != in_block) continue;
        const char *names[] = {family_key(row, role, 1 + ACTIVATION_GELU),
                               family_key(row, role, 1 + ACTIVATION_SWIGLU)};
        for (int i = 0; i < 2; i++)
            if (names[i] && strcmp(key, names[i]) == 0) return true;
    }
    return false;
}

static bool ignored(const struct family_row *row, const char *key)
{
    for (size_t i = 0; i < FAMILY_IGNORED && row->ignored[i]; i++) {
        size_t n = strlen(row->ignored[i]);
        if (row->ignored[i][n - 1] == '.' ? strncmp(key, row->ignored[i], n) == 0
                                          : strcmp(key, row->ignored[i]) == 0)
            return true;
    }
    return false;
}

int fit_names(enum family family, const struct weights *weights, struct error *err)
{
    const struct family_row *row = family_row(family);
    size_t begin = strlen(row->prefix);
    const char *first = NULL, *meaning = NULL;
    int64_t others = -1;
    for (int64_t i = 0; i < weights_count(weights); i++) {
        const char *name = weights_tensor(weights, i)->name;
        int64_t block;
        if (strncmp(name, row->prefix, begin) != 0) continue;
        const char *key = behind_block(row, name + begin, &block);
        if (read_by_a_role(row, key, block >= 0) || ignored(row, key)) continue;
        const char *says = meaning_of(key);
        if (!first || (says && !meaning)) { /* the first that can be explained tells most */
            first = name;
            meaning = says;
        }
        others++;
    }
    if (!first) return 0;
    char more[48] = "", printable[160];
    name_printable(printable, sizeof printable, first);
    if (others > 0) snprintf(more, sizeof more, " (and %lld others)", (long long)others);
    return error_set(
        err, EXIT_CONFIG,
        "without it the outputs would be another model's; a tensor that the model does not use may "
        "be taken out of the file",
        "the %s tower has tensor %s%s, which nothing here reads: %s", family_name(family), printable, more,
        meaning ? meaning : "what it is for is not known");
}

int64_t fit_blocks(enum family family, const struct weights *weights)
{
    const struct family_row *row = family_row(family);
    size_t begin = strlen(row->prefix);
    int64_t last = -1, block;
    for (int64_t i = 0; i < weights_count(weights); i++) {
        const char *name = weights_tensor(weights, i)->name;
        if (strncmp(name, row->prefix, begin) != 0) continue;
        (void)behind_block(row, name + begin, &block);
        if (block > last) last = block;
    }
    return last == INT64_MAX ? last : last + 1;
}

int64_t fit_find(enum family family, const struct parameter *p, const struct weights *weights)
{
    return p->head ? weights_find(weights, p->name) : family_find_key(family, weights, p->name);
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

static int check_shape(const struct parameter *p, const struct weights_tensor *found, struct error *err)
{
    bool same = found->ndim == p->ndim;
    for (int d = 0; same && d < p->ndim; d++) same = found->shape[d] == p->shape[d];
    if (same) return 0;
    char expected[96], has[96], name[160];
    name_printable(name, sizeof name, found->name);
    shape_text(expected, sizeof expected, p->ndim, p->shape);
    shape_text(has, sizeof has, found->ndim, found->shape);
    return error_set(err, EXIT_CONFIG, "is this the file for this tower?", "tensor %s is [%s], expected [%s]",
                     name, has, expected);
}

/* Names that a role reads, but none of this tower: a part that only some blocks have, or two feed-forwards.
 */
static int all_used(const struct family_row *row, const bool *used, const struct weights *weights,
                    struct error *err)
{
    size_t begin = strlen(row->prefix);
    for (int64_t i = 0; i < weights_count(weights); i++) {
        const char *name = weights_tensor(weights, i)->name;
        char printable[160];
        int64_t block;
        if (used[i] || strncmp(name, row->prefix, begin) != 0 || strncmp(name, "distill_head.", 13) == 0)
            continue;
        if (ignored(row, behind_block(row, name + begin, &block))) continue;
        return error_set(
            err, EXIT_CONFIG, "is the file whole?",
            "the %s tower has tensor %s, which the first block or the rest of the tower does not "
            "go with",
            row->name, name_printable(printable, sizeof printable, name));
    }
    return 0;
}

int fit_shapes(enum family family, const struct parameter *parameters, int count,
               const struct weights *weights, struct error *err)
{
    bool *used = xcalloc((size_t)weights_count(weights) + 1, sizeof *used);
    int code = 0;
    for (int i = 0; i < count && !code; i++) {
        const struct parameter *p = &parameters[i];
        int64_t found = fit_find(family, p, weights);
        char name[128];
        snprintf(name, sizeof name, "%s%s", p->head ? "" : family_prefix(family), p->name);
        if (found < 0 && weights_unread(weights, name)) /* there, but complex, fp8, sparse, ... */
            code = weights_refuse_missing(weights, name, NULL, err);
        else if (found < 0 && !p->head && p->trained)
            code = error_set(err, EXIT_CONFIG, "is this the right file, and the right model.family?",
                             "tensor %s of the %s tower is missing", name, family_name(family));
        if (found < 0) continue;
        used[found] = true;
        if (!code) code = check_shape(p, weights_tensor(weights, found), err);
    }
    if (!code) code = all_used(family_row(family), used, weights, err);
    free(used);
    return code;
}
