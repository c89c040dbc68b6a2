/* The parameters of a tower: shape, kind and initial value of each role in every family. The family's row
 * (family.c) has the roles that exist and their keys. */
#include "core/model/parameters.h"
#include "core/base/memory.h"
#include "core/model/blocks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Shape letters: D width, E of the token table, A of all query heads, Q queries, keys and values, V
 * vocabulary, C positions of tokens, Y token types, d one head, F hidden, G rows of the first feed-forward
 * matrix, O out, J, K and T input, hidden layer and result of a head, H input of its last matrix, P rows of
 * the position embedding, R registers, U pooling queries, I 3O, N width of the last norm, W of the pooled
 * row, 3 channels, p patch side, L 3pp, 1. Flags: m GEMM operand, s small whatever its shape, h head, f
 * frozen: no gradient, c only with a classifier, l only without one, n new if a checkpoint lacks it, o
 * between activations, which muon orthogonalizes, d weight decay also with one row, x and y: slices have
 * some of its rows, of its columns. */
static const struct {
    const char *shape, *flags;
    enum initial initial;
} roles[ROLE_COUNT] = {
    [ROLE_TOKENS] = {"VE", "mx", INITIAL_NORMAL},
    [ROLE_CLS] = {"11D", "s", INITIAL_TOKEN},
    [ROLE_POS] = {"1PD", "s", INITIAL_NORMAL},
    [ROLE_TYPES] = {"YE", "sd", INITIAL_NORMAL},
    [ROLE_REGISTERS] = {"1RD", "s", INITIAL_TOKEN},
    [ROLE_MASK] = {"1D", "sf", INITIAL_ZERO},
    [ROLE_PATCH_W] = {"D3pp", "m", INITIAL_PATCH},
    [ROLE_PATCH_B] = {"D", "s", INITIAL_PATCH},
    [ROLE_PRE_W] = {"E", "s", INITIAL_ONE},
    [ROLE_PRE_B] = {"E", "s", INITIAL_ZERO},
    [ROLE_EMBED_W] = {"DE", "mo", INITIAL_NORMAL},
    [ROLE_EMBED_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_NORM1_W] = {"D", "s", INITIAL_ONE},
    [ROLE_NORM1_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_QKV_W] = {"QD", "mox", INITIAL_NORMAL},
    [ROLE_QKV_B] = {"Q", "sx", INITIAL_ZERO},
    [ROLE_Q_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_V_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_Q_NORM_W] = {"d", "s", INITIAL_ONE},
    [ROLE_K_NORM_W] = {"d", "s", INITIAL_ONE},
    [ROLE_ATTN_NORM_W] = {"D", "s", INITIAL_ONE},
    [ROLE_ATTN_NORM_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_PROJ_W] = {"DA", "moy", INITIAL_BRANCH},
    [ROLE_PROJ_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_LS1] = {"D", "s", INITIAL_SCALE},
    [ROLE_NORM2_W] = {"D", "s", INITIAL_ONE},
    [ROLE_NORM2_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_FC1_W] = {"GD", "mox", INITIAL_NORMAL},
    [ROLE_FC1_B] = {"G", "sx", INITIAL_ZERO},
    [ROLE_FC2_W] = {"DF", "moy", INITIAL_BRANCH},
    [ROLE_FC2_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_FFN_NORM_W] = {"F", "s", INITIAL_ONE},
    [ROLE_FFN_NORM_B] = {"F", "s", INITIAL_ZERO},
    [ROLE_LS2] = {"D", "s", INITIAL_SCALE},
    [ROLE_POOL_QUERY] = {"UO", "s", INITIAL_QUERY},
    [ROLE_POOL_QKV_W] = {"ID", "mo", INITIAL_NORMAL},
    [ROLE_POOL_Q_W] = {"OO", "mo", INITIAL_NORMAL},
    [ROLE_POOL_K_W] = {"OD", "mo", INITIAL_NORMAL},
    [ROLE_POOL_V_W] = {"OD", "mo", INITIAL_NORMAL},
    [ROLE_POOL_QKV_B] = {"I", "s", INITIAL_ZERO},
    [ROLE_POOL_PROJ_W] = {"OO", "mo", INITIAL_NORMAL},
    [ROLE_POOL_PROJ_B] = {"O", "s", INITIAL_ZERO},
    [ROLE_POOL_Q_NORM_W] = {"O", "s", INITIAL_ONE},
    [ROLE_POOL_Q_NORM_B] = {"O", "s", INITIAL_ZERO},
    [ROLE_POOL_K_NORM_W] = {"D", "s", INITIAL_ONE},
    [ROLE_POOL_K_NORM_B] = {"D", "s", INITIAL_ZERO},
    [ROLE_POOL_NORM_W] = {"O", "s", INITIAL_ONE},
    [ROLE_POOL_NORM_B] = {"O", "s", INITIAL_ZERO},
    [ROLE_POOL_FC1_W] = {"FO", "mo", INITIAL_NORMAL},
    [ROLE_POOL_FC1_B] = {"F", "s", INITIAL_ZERO},
    [ROLE_POOL_FC2_W] = {"OF", "mo", INITIAL_NORMAL},
    [ROLE_POOL_FC2_B] = {"O", "s", INITIAL_ZERO},
    [ROLE_POOLER_W] = {"DD", "mcn", INITIAL_NORMAL},
    [ROLE_POOLER_B] = {"D", "scn", INITIAL_ZERO},
    [ROLE_UNUSED_W] = {"DD", "sfn", INITIAL_NORMAL},
    [ROLE_UNUSED_B] = {"D", "sfn", INITIAL_ZERO},
    [ROLE_MLM_W] = {"ED", "ml", INITIAL_NORMAL},
    [ROLE_MLM_B] = {"E", "sl", INITIAL_ZERO},
    [ROLE_MLM_NORM_W] = {"E", "sl", INITIAL_ONE},
    [ROLE_MLM_NORM_B] = {"E", "sl", INITIAL_ZERO},
    [ROLE_LM_BIAS] = {"V", "slx", INITIAL_ZERO},
    [ROLE_NORM_W] = {"N", "s", INITIAL_ONE},
    [ROLE_NORM_B] = {"N", "s", INITIAL_ZERO},
    [ROLE_OUT_W] = {"OW", "m", INITIAL_NORMAL},
    [ROLE_OUT_B] = {"O", "s", INITIAL_ZERO},
    [ROLE_LM_HEAD] = {"VD", "mx", INITIAL_NORMAL},
    [ROLE_HEAD_FC1_W] = {"KJ", "mh", INITIAL_NORMAL},
    [ROLE_HEAD_FC1_B] = {"K", "sh", INITIAL_ZERO},
    [ROLE_HEAD_NORM_W] = {"K", "sh", INITIAL_ONE},
    [ROLE_HEAD_NORM_B] = {"K", "sh", INITIAL_ZERO},
    [ROLE_HEAD_W] = {"TH", "mh", INITIAL_NORMAL},
    [ROLE_HEAD_B] = {"T", "sh", INITIAL_ZERO},
};

/* The optional part of the tower that a role belongs to; 0: none. */
static const int parts[ROLE_COUNT] = {
    [ROLE_PRE_W] = PART_PRE_NORM,        [ROLE_PRE_B] = PART_PRE_NORM,
    [ROLE_QKV_B] = PART_QKV_BIAS,        [ROLE_Q_B] = PART_QKV_BIAS,
    [ROLE_V_B] = PART_QKV_BIAS,          [ROLE_Q_NORM_W] = PART_QK_NORM,
    [ROLE_K_NORM_W] = PART_QK_NORM,      [ROLE_ATTN_NORM_W] = PART_ATTN_NORM,
    [ROLE_ATTN_NORM_B] = PART_ATTN_NORM, [ROLE_FFN_NORM_W] = PART_FFN_NORM,
    [ROLE_FFN_NORM_B] = PART_FFN_NORM,
};

/* Sizes of a head; a model without one has none. */
struct head_sizes {
    int64_t input, hidden, result; /* hidden 0: there is one matrix */
};

static int64_t dimension(const struct model_shape *g, const struct head_sizes *head, char letter)
{
    switch (letter) {
    case 'D': return g->width;
    case 'A': return model_shape_attn_width(g);
    case 'Q': return model_shape_qkv_width(g);
    case 'V': return g->vocabulary;
    case 'E': return model_shape_embedding(g);
    case 'Y': return g->types;
    case 'C': return g->positions + family_row(g->family)->first_position;
    case 'd': return model_shape_head_dim(g);
    case 'F': return g->hidden;
    case 'G': return g->ffn == 1 + ACTIVATION_SWIGLU ? 2 * g->hidden : g->hidden;
    case 'O': return g->out;
    case 'J': return head->input;
    case 'K': return head->hidden;
    case 'H': return head->hidden ? head->hidden : head->input;
    case 'T': return head->result;
    case 'P': return model_shape_position_rows(g, g->pos_grid);
    case 'R': return g->registers;
    case 'U': return g->pool_queries;
    case 'I': return 3 * g->out;
    case 'N': return model_shape_normed(g);
    case 'W': return model_shape_pooled(g);
    case 'p': return g->patch;
    case 'L': return 3 * g->patch * g->patch;
    default: return letter - '0';
    }
}

static const char *shape_of(const struct family_row *row, enum role role)
{
    return row->shapes[role] ? row->shapes[role] : roles[role].shape;
}
int role_ndim(const struct family_row *row, enum role role)
{
    const char *shape = shape_of(row, role);
    return (int)strlen(shape + strspn(shape, "1"));
}

int role_part(enum role role)
{
    return role >= ROLE_POOL_FIRST && role <= ROLE_POOL_LAST ? PART_ATTN_POOL : parts[role];
}

static bool flagged(enum role role, char flag) { return strchr(roles[role].flags, flag) != NULL; }

/* Sets the rows of the matrices of which a fused one of `rows` rows consists, or its bias; of any other, its
 * own. Returns their number. */
static int pieces_of(const struct model_shape *g, enum role role, int64_t rows, int64_t pieces[3])
{
    int64_t queries = model_shape_attn_width(g), keys = (rows - queries) / 2, third = rows / 3;
    bool attention = role == ROLE_QKV_W || role == ROLE_QKV_B, pooling = role == ROLE_POOL_QKV_W,
         gated = (role == ROLE_FC1_W || role == ROLE_FC1_B) && g->ffn == 1 + ACTIVATION_SWIGLU;
    const int64_t all[][3] = {
        {rows, 0, 0}, {queries, keys, keys}, {third, third, third}, {g->hidden, g->hidden, 0}};
    memcpy(pieces, all[attention ? 1 : pooling ? 2 : gated ? 3 : 0], sizeof all[0]);
    return attention || pooling ? 3 : gated ? 2 : 1;
}

/* Makes p one of its slices. */
static void cut_parameter(struct parameter *p, int slice, int slices)
{
    int64_t *sliced = &p->shape[flagged((enum role)p->role, 'y') ? p->ndim - 1 : 0];
    size_t length = strlen(p->name);
    p->count /= *sliced;
    *sliced = slice_of_rows(*sliced, slice, slices).count;
    p->count *= *sliced;
    for (int i = 0; i < 3; i++) p->rows[i] /= slices;
    p->slice = slice;
    p->slices = slices;
    snprintf(p->name + length, sizeof p->name - length, "#%d", slice);
}

static enum initial initial_of(const struct family_row *row, enum role role)
{
    enum initial initial = roles[role].initial;
    bool branch = initial == INITIAL_BRANCH && !family_language(row);
    return branch ? row->branches : initial == INITIAL_TOKEN ? row->tokens : initial;
}

static struct parameter parameter_of(const struct model_shape *g, const struct head_sizes *head,
                                     enum role role, int group, const char *prefix, const char *key)
{
    const char *shape = shape_of(family_row(g->family), role);
    struct parameter p = {.count = 1,
                          .role = (int)role,
                          .group = group,
                          .initial = initial_of(family_row(g->family), role),
                          .slice = -1,
                          .slices = 1};
    snprintf(p.name, sizeof p.name, "%s%s", prefix, key);
    int wide = 0;
    for (; shape[p.ndim]; p.ndim++) {
        p.shape[p.ndim] = dimension(g, head, shape[p.ndim]);
        p.count *= p.shape[p.ndim];
        wide += p.shape[p.ndim] != 1;
    }
    p.decay = wide >= 2 || flagged(role, 'd');
    p.matrix = flagged(role, 'm');
    p.small = flagged(role, 's');
    p.head = flagged(role, 'h');
    p.hidden = flagged(role, 'o');
    int64_t pieces[3];
    if (p.matrix && pieces_of(g, role, p.shape[0], pieces) > 1) memcpy(p.rows, pieces, sizeof p.rows);
    p.may_be_new = p.head || flagged(role, 'n');
    p.resident = flagged(role, 'f');
    p.trained = !p.resident;
    return p;
}

static bool has_layerscale(const struct model_shape *g, const struct family_row *row)
{
    return g->layerscale == LAYERSCALE_USUAL ? row->layerscale : g->layerscale == LAYERSCALE_WITH;
}

/* Adds the parameters of a classifier. */
static int list_classifier(const struct model_shape *g, int group, struct parameter *list)
{
    const struct head_sizes sizes = {g->out, 0, g->classes};
    list[0] = parameter_of(g, &sizes, ROLE_HEAD_W, group, CLASSIFIER_KEY, "weight");
    list[1] = parameter_of(g, &sizes, ROLE_HEAD_B, group, CLASSIFIER_KEY, "bias");
    list[0].initial = INITIAL_ZERO; /* the first loss is ln(classes) */
    return 2;
}

/* Adds the parameters of the distillation heads of a group: distill_head.weight and .bias of the first
 * output, distill_head.N... of the N-th; with a hidden layer fc1, norm and fc2 in them. */
static int list_heads(const struct model_shape *g, const struct outputs *outputs, int group,
                      struct parameter *list)
{
    static const char *const hidden[] = {"fc1.weight", "fc1.bias",   "norm.weight",
                                         "norm.bias",  "fc2.weight", "fc2.bias"},
                             *const one[] = {"weight", "bias"};
    int count = 0;
    for (int i = 0; i < outputs->count; i++) {
        const struct output *o = &outputs->of[i];
        const struct head_sizes sizes = {output_input(g, o), o->head == HEAD_MLP ? o->hidden : 0, o->width};
        int of = o->block ? (int)o->block + 1 : (int)g->depth + 1;
        char prefix[32] = HEAD_KEY;
        if (of != group || o->head == HEAD_NONE) continue;
        if (i) snprintf(prefix, sizeof prefix, HEAD_KEY "%d.", i + 1);
        for (enum role r = o->head == HEAD_MLP ? ROLE_HEAD_FC1_W : ROLE_HEAD_W; r <= ROLE_HEAD_B; r++) {
            const char *key = o->head == HEAD_MLP ? hidden[r - ROLE_HEAD_FC1_W] : one[r - ROLE_HEAD_W];
            list[count] = parameter_of(g, &sizes, r, group, prefix, key);
            list[count++].output = i;
        }
    }
    return count;
}

int parameters_list(const struct model_shape *g, const struct outputs *outputs, struct parameter **list)
{
    const struct family_row *row = family_row(g->family);
    int slices = g->slices > 1 ? g->slices : 1, count = 0,
        capacity = ROLE_COUNT * (int)(g->depth + 1) * slices + MOST_OUTPUTS * HEAD_PARAMETERS;
    *list = xcalloc((size_t)capacity, sizeof **list);
    for (int64_t group = 0; group <= g->depth + 1; group++) {
        char prefix[64] = "";
        bool block = group > 0 && group <= g->depth;
        enum role first = group == 0 ? 0 : block ? ROLE_BLOCK_FIRST : ROLE_BLOCK_LAST + 1;
        enum role end = group == 0 ? ROLE_BLOCK_FIRST : block ? ROLE_BLOCK_LAST + 1 : ROLE_HEAD_FC1_W;
        if (block) snprintf(prefix, sizeof prefix, "%s%lld.", row->block_prefix, (long long)group - 1);
        for (enum role role = first; role < end; role++) {
            const char *key = family_key(row, role, g->ffn);
            if (!key) continue;
            if (flagged(role, g->classes > 0 ? 'l' : 'c')) continue;
            if (role == ROLE_REGISTERS && g->registers == 0) continue;
            if (role == ROLE_CLS && g->classless) continue;
            if ((role == ROLE_LS1 || role == ROLE_LS2) && !has_layerscale(g, row)) continue;
            if ((role == ROLE_OUT_W || role == ROLE_OUT_B) && !model_shape_projects(g)) continue;
            if (role == ROLE_OUT_B && g->out_biasless) continue;
            if (role == ROLE_LM_HEAD && g->tied) continue;
            if ((role == ROLE_EMBED_W || role == ROLE_EMBED_B) && model_shape_embedding(g) == g->width)
                continue;
            if (role_part(role) & ~model_shape_parts(g)) continue;
            struct parameter *p = &(*list)[count++];
            *p = parameter_of(g, NULL, role, (int)group, prefix, key);
            if (slices == 1 || !(flagged(role, 'x') || flagged(role, 'y'))) continue;
            struct parameter whole = *p;
            for (int i = 0; i < slices; i++) {
                p[i] = whole;
                cut_parameter(&p[i], i, slices);
            }
            count += slices - 1;
        }
        if (g->classes > 0 && group == g->depth + 1) count += list_classifier(g, (int)group, *list + count);
        else if (outputs && g->classes <= 0) count += list_heads(g, outputs, (int)group, *list + count);
    }
    return count;
}

int64_t model_shape_parameters(const struct model_shape *g)
{
    struct parameter *list;
    int64_t sum = 0;
    for (int i = parameters_list(g, NULL, &list); i-- > 0;) sum += list[i].count;
    free(list);
    return sum;
}

int parameters_check_slices(const struct model_shape *g, int slices, struct error *err)
{
    static const enum role undivided[] = {ROLE_Q_B, ROLE_ATTN_NORM_W, ROLE_LS1, ROLE_FFN_NORM_W};
    const struct {
        const char *name;
        int64_t count;
    } divided[] = {{"heads", g->heads}, {"key heads", model_shape_kv_heads(g)}, {"hidden units", g->hidden}};
    static const char hint[] = N_("model.slices: 1, or another number");
    struct parameter *list;
    int code = 0;
    if (slices <= 1) return 0;
    for (size_t i = 0; i < sizeof divided / sizeof *divided; i++)
        if (divided[i].count % slices)
            return error_set(err, EXIT_CONFIG, hint, "model.slices is %d, and the model has %lld %s", slices,
                             (long long)divided[i].count, _(divided[i].name));
    struct slice_rows last = slice_of_rows(g->vocabulary, slices - 1, slices);
    if (g->vocabulary && last.count <= 0)
        return error_set(err, EXIT_CONFIG, hint, "model.slices is %d, and the vocabulary has %lld tokens",
                         slices, (long long)g->vocabulary);
    if (blocks_used(g))
        return error_set(err, EXIT_CONFIG, hint,
                         "model.slices is %d, and the attention of the model is block-sparse", slices);
    if (g->norms == POST_NORM)
        return error_set(err, EXIT_CONFIG, hint,
                         "model.slices is %d, and norms end the branches of the model", slices);
    for (int i = parameters_list(g, NULL, &list); i-- > 0 && !code;)
        for (size_t k = 0; k < sizeof undivided / sizeof *undivided; k++)
            if (list[i].role == (int)undivided[k])
                code =
                    error_set(err, EXIT_CONFIG, hint,
                              "model.slices is %d, and models with %s are not divided", slices, list[i].name);
    free(list);
    return code;
}

struct parameter parameter_whole(const struct model_shape *g, const struct parameter *p)
{
    if (p->slice < 0) return *p;
    struct parameter whole = *p, fresh = parameter_of(g, NULL, (enum role)p->role, p->group, "", "");
    whole.name[strcspn(whole.name, "#")] = 0;
    whole.count = fresh.count;
    whole.slice = -1;
    whole.slices = 1;
    memcpy(whole.shape, fresh.shape, sizeof whole.shape);
    memcpy(whole.rows, fresh.rows, sizeof whole.rows);
    return whole;
}

/* Visits the spans of which a slice consists: `count` values at *from of the whole tensor. */
struct slice_spans {
    int64_t pieces[3], row, columns; /* values of a row of the whole, and of the slice */
    int64_t piece, before, at;
    bool by_columns;
};

static struct slice_spans spans_of(const struct model_shape *g, const struct parameter *p)
{
    struct slice_spans s = {.by_columns = flagged((enum role)p->role, 'y')};
    struct parameter whole = parameter_whole(g, p);
    pieces_of(g, (enum role)p->role, whole.shape[0], s.pieces);
    s.row = whole.count / whole.shape[0];
    s.columns = p->count / p->shape[0];
    return s;
}

static bool next_span(struct slice_spans *s, const struct parameter *p, int64_t *from, int64_t *count)
{
    if (s->by_columns) {
        *from = s->at * s->row + p->slice * s->columns;
        *count = s->columns;
        return s->at++ < p->shape[0];
    }
    if (s->piece == 3 || !s->pieces[s->piece]) return false;
    struct slice_rows rows = slice_of_rows(s->pieces[s->piece], p->slice, p->slices);
    *from = (s->before + rows.first) * s->row;
    *count = rows.count * s->row;
    s->before += s->pieces[s->piece++];
    return true;
}

void parameter_cut(const struct model_shape *g, const struct parameter *p, const float *whole, float *values)
{
    int64_t from, count;
    if (p->slice < 0) memcpy(values, whole, (size_t)p->count * sizeof *values);
    struct slice_spans s = spans_of(g, p);
    for (; p->slice >= 0 && next_span(&s, p, &from, &count); values += count)
        memcpy(values, whole + from, (size_t)count * sizeof *values);
}

void parameter_merge(const struct model_shape *g, const struct parameter *p, const float *values,
                     float *whole)
{
    int64_t from, count;
    if (p->slice < 0) memcpy(whole, values, (size_t)p->count * sizeof *values);
    struct slice_spans s = spans_of(g, p);
    for (; p->slice >= 0 && next_span(&s, p, &from, &count); values += count)
        memcpy(whole + from, values, (size_t)count * sizeof *values);
}
