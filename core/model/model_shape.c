/* The model shape of a tower: defaults, limits, and the sizes that follow from it. */
#include "core/model/language_shape.h"
#include "core/model/parameters.h"

#define GELU   (1 + ACTIVATION_GELU)
#define SWIGLU (1 + ACTIVATION_SWIGLU)

const char *model_shape_pool(const struct model_shape *g) { return pool_names[g->pool ? g->pool : POOL_CLS]; }

/* Default width of a head for a tower's width: the value of all published vision transformers of that width
 * (the 56 of open_clip, EVA, DINOv2, timm, transformers); 0: unknown. Widths that are no multiple of 64 occur
 * only in our own samples. */
static int64_t usual_head(const struct family_row *row, int64_t width)
{
    static const struct {
        int64_t width, head;
    } published[] = {{1152, 72}, {1280, 80}, {1408, 88}, {1664, 104}, {1792, 112}};
    static const int64_t others[] = {64, 88, 80};
    for (int i = 0; i < FAMILY_HEADS && row->heads[i].head; i++)
        if (row->heads[i].width == width || (!row->heads[i].width && width % row->heads[i].head == 0))
            return row->heads[i].head;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (published[i].width == width) return published[i].head;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (width % others[i] == 0) return others[i];
    return 0;
}

int64_t model_shape_usual_heads(enum family family, int64_t width)
{
    int64_t head = usual_head(family_row(family), width);
    return head ? width / head : 0;
}

bool model_shape_projects(const struct model_shape *g)
{
    const struct family_row *row = family_row(g->family);
    return family_has(row, ROLE_OUT_W) && (row->out_rare ? g->projected : !g->unprojected);
}

/* Sets unset fields to the defaults of the family's towers. */
static int complete(struct model_shape *g, const struct family_row *row, int64_t head_dim, struct error *err)
{
    if (!g->ffn) g->ffn = family_ffn(g->family);
    if (row->classless) g->classless = true;
    if (!g->patch) g->patch = row->patch ? row->patch : 14;
    if (!g->hidden && g->width) g->hidden = 4 * g->width;
    if (!g->pool && g->classless && !row->first_pooled && !(model_shape_parts(g) & PART_ATTN_POOL))
        g->pool = POOL_AVG;
    if (!model_shape_projects(g) && (!g->out || (g->out == g->width && g->pool == POOL_CLS_AVG)))
        g->out = model_shape_parts(g) & PART_ATTN_POOL ? g->width : model_shape_pooled(g);
    if (!g->pos_grid) g->pos_grid = row->pos_grid ? row->pos_grid : g->image / g->patch;
    bool usual = row->image_grid && (!family_has(row, ROLE_POS) || g->pos_grid == row->pos_grid);
    if (!g->image) g->image = (usual ? row->image_grid : g->pos_grid) * g->patch;
    if (!family_has(row, ROLE_POS)) g->pos_grid = g->image / g->patch; /* the family stores none */
    if (g->heads && head_dim && g->heads * head_dim != g->width)
        return error_set(err, EXIT_CONFIG, "remove heads or head_dim",
                         "%lld heads of dimension %lld do not match width %lld", (long long)g->heads,
                         (long long)head_dim, (long long)g->width);
    if (g->heads || !g->width) return 0;
    g->facts.from[FACT_HEADS] = head_dim ? SOURCE_KEY : SOURCE_ASSUMED;
    if (!head_dim && !(head_dim = usual_head(row, g->width)))
        return error_set(err, EXIT_CONFIG, "set heads or head_dim",
                         "no published tower has width %lld, so the number of heads is unknown",
                         (long long)g->width);
    if (g->width % head_dim)
        return error_set(err, EXIT_CONFIG, "correct heads or head_dim",
                         "width %lld is not a multiple of the head dimension %lld", (long long)g->width,
                         (long long)head_dim);
    g->heads = g->width / head_dim;
    return 0;
}

static int check_attn_pool(const struct model_shape *g, struct error *err)
{
    if (g->pool_queries < 1 || g->pool_queries > 65536)
        return error_set(err, EXIT_CONFIG, "is the file whole?",
                         "the %s tower has attention pooling with %lld queries, expected 1 to 65536",
                         family_name(g->family), (long long)g->pool_queries);
    if (g->pool_heads < 1 || g->pool_heads > 1024 || g->out % g->pool_heads)
        return error_set(err, EXIT_CONFIG, "see attn_pooler_heads in the checkpoint's open_clip_config.json",
                         "out %lld is not a multiple of the %lld heads of attention pooling",
                         (long long)g->out, (long long)g->pool_heads);
    if (family_has(family_row(g->family), ROLE_OUT_W) && g->unprojected)
        return error_set(err, EXIT_CONFIG, "is the file whole?",
                         "a %s tower with attention pooling and no projection is not supported",
                         family_name(g->family));
    if (g->pool <= POOL_CLS) return 0;
    return error_set(err, EXIT_CONFIG, "set pool to cls, or remove the key",
                     "pool is %s, but the tower has attention pooling", model_shape_pool(g));
}

int model_shape_check(struct model_shape *g, int64_t head_dim, struct error *err)
{
    const struct family_row *row = family_row(g->family);
    if (!g->family)
        return error_set(err, EXIT_CONFIG, "set model.family, or an arch", "the model's family is not known");
    if (family_language(row)) return language_shape_check(g, head_dim, err);
    int code = complete(g, row, head_dim, err);
    if (code) return code;
    static const enum fact sizes[] = {FACT_IMAGE, FACT_PATCH,  FACT_POS_GRID, FACT_WIDTH, FACT_DEPTH,
                                      FACT_HEADS, FACT_HIDDEN, FACT_OUT,      FACT_COUNT};
    code = facts_check(g, sizes, err);
    if (code) return code;
    if (g->width % g->heads)
        return error_set(err, EXIT_CONFIG, "heads must divide the width",
                         "width %lld is not a multiple of heads %lld", (long long)g->width,
                         (long long)g->heads);
    if (model_shape_parts(g) & PART_ATTN_POOL && !g->pool_heads)
        g->pool_heads = row->pool_heads ? row->pool_heads : g->heads;
    if (model_shape_parts(g) & PART_ATTN_POOL && !g->pool_queries) g->pool_queries = 1;
    if (model_shape_parts(g) & PART_ATTN_POOL && (code = check_attn_pool(g, err)) != 0) return code;
    if (g->image % g->patch && !row->crops)
        return error_set(err, EXIT_CONFIG, "set image_size to a multiple of it",
                         "image %lld is not a multiple of patch %lld", (long long)g->image,
                         (long long)g->patch);
    if (g->registers < 0 || g->registers > 256 || (g->registers && !family_has(row, ROLE_REGISTERS)))
        return error_set(err, EXIT_CONFIG, NULL, "%lld registers in a tower of family %s, expected 0%s",
                         (long long)g->registers, family_name(g->family),
                         family_has(row, ROLE_REGISTERS) ? " to 256" : "");
    int64_t unprojected = g->pool == POOL_CLS_AVG ? 2 * g->width : g->width;
    if (!model_shape_projects(g) && g->out != unprojected)
        return error_set(err, EXIT_CONFIG, "remove out",
                         "the output of a %s tower without projection has width %lld, not %lld",
                         family_name(g->family), (long long)unprojected, (long long)g->out);
    if (model_shape_rotates(g) && g->width / g->heads % 4)
        return error_set(err, EXIT_CONFIG, "correct heads or head_dim",
                         "head dimension %lld is not a multiple of 4, as rotary positions require",
                         (long long)(g->width / g->heads));
    if (g->rope_count && g->rope_count * 4 * g->heads != g->width)
        return error_set(err, EXIT_CONFIG, "correct heads or head_dim",
                         "the rotary positions have %d periods, expected %lld for head dimension %lld",
                         g->rope_count, (long long)(g->width / g->heads / 4),
                         (long long)(g->width / g->heads));
    bool attn_pool = model_shape_parts(g) & PART_ATTN_POOL;
    bool first = row->first_pooled && g->registers;
    if ((g->classless && !attn_pool && ((g->pool <= POOL_CLS && !first) || g->pool >= POOL_CLS_DIST)) ||
        (g->pool == POOL_CLS_DIST && !g->registers))
        return error_set(err, EXIT_CONFIG, "set pool to avg or avg_first, or remove the key",
                         "pool is %s, but the tower has no %s token", model_shape_pool(g),
                         g->classless ? "class" : "distillation");
    if (!family_has(row, ROLE_NORM_W) && (g->pool == POOL_AVG_FIRST || g->pool == POOL_AVG_ALL))
        return error_set(err, EXIT_CONFIG, "set pool to cls or avg, or remove the key",
                         "pool is %s, but %s towers have no norm after the last block", model_shape_pool(g),
                         family_name(g->family));
    if (g->norms == SUM_NORM || (g->norms == POST_NORM && !row->postnorm_width))
        return error_set(err, EXIT_CONFIG, "leave norm out, or use a checkpoint of another architecture",
                         "post-norm is not supported for %s towers", family_name(g->family));
    if (g->norms == POST_NORM && (g->layerscale == LAYERSCALE_WITH || (!g->layerscale && row->layerscale)))
        return error_set(err, EXIT_CONFIG, "set norm to pre if the tower is pre-norm",
                         "post-norm together with LayerScale is not supported");
    if (g->layerscale == LAYERSCALE_WITH && !family_has(row, ROLE_LS1))
        return error_set(err, EXIT_CONFIG, "leave layerscale out",
                         "LayerScale is not supported for %s towers", family_name(g->family));
    if (!family_key(row, ROLE_FC1_W, g->ffn))
        return error_set(err, EXIT_CONFIG, NULL, "SwiGLU is not supported for %s towers",
                         family_name(g->family));
    return 0;
}

float model_shape_norm_eps(const struct model_shape *g)
{
    return g->norm_eps > 0 ? g->norm_eps : family_row(g->family)->norm_eps;
}

int64_t model_shape_patches(const struct model_shape *g)
{
    int64_t side = model_shape_language(g) ? 0 : g->image / g->patch;
    return side * side;
}
int64_t model_shape_tokens(const struct model_shape *g)
{
    if (model_shape_language(g)) return g->context;
    return !g->classless + g->registers + model_shape_patches(g);
}

int64_t model_shape_position_rows(const struct model_shape *g, int64_t side)
{
    return !g->classless + side * side;
}

void model_shape_averaged(const struct model_shape *g, int64_t *first, int64_t *count)
{
    int64_t N = model_shape_tokens(g), P = model_shape_patches(g);
    *count = g->pool == POOL_AVG_ALL ? N : g->pool == POOL_CLS_DIST ? 2 : P;
    *first = g->pool == POOL_AVG_ALL || g->pool == POOL_CLS_DIST ? 0 : N - P;
}

bool model_shape_resizes(const struct model_shape *g)
{
    const struct family_row *row = family_row(g->family);
    return family_has(row, ROLE_POS) && !family_language(row) &&
           (row->pos_matrix || g->pos_grid != g->image / g->patch);
}

bool model_shape_rotates(const struct model_shape *g)
{
    const struct family_row *row = family_row(g->family);
    return row->rope != ROPE_NONE && (!row->rope_gated || g->ffn == SWIGLU);
}

int model_shape_parts(const struct model_shape *g)
{
    return g->parts ? g->parts : PARTS_KNOWN | family_row(g->family)->parts;
}

int64_t model_shape_pooled(const struct model_shape *g)
{
    return g->pool == POOL_CLS_AVG ? 2 * g->width : model_shape_normed(g);
}

int64_t model_shape_normed(const struct model_shape *g)
{
    return model_shape_parts(g) & PART_ATTN_POOL ? g->out : g->width;
}

enum pos_resize model_shape_pos_resize(const struct model_shape *g)
{
    if (g->pos_resize) return g->pos_resize;
    enum pos_resize own = family_row(g->family)->pos_resize;
    return g->registers && own == POS_RESIZE_DINOV2 ? POS_RESIZE_TIMM : own;
}

size_t model_shape_input_bytes(const struct model_shape *g, int64_t count)
{
    if (model_shape_language(g)) return (size_t)(count * g->context) * sizeof(int32_t);
    return (size_t)(count * 3 * g->image * g->image) * sizeof(float);
}

double model_shape_forward_flops(const struct model_shape *g)
{
    if (model_shape_language(g)) return language_forward_flops(g);
    double N = (double)model_shape_tokens(g), d = (double)g->width, h = (double)g->hidden,
           p = (double)(3 * g->patch * g->patch);
    double c = g->ffn == SWIGLU ? 6 : 4;
    double o = (double)g->out,
           projection = !model_shape_projects(g) ? 0 : 2 * (double)model_shape_pooled(g) * o;
    if (g->classes > 0) projection += 2 * o * (double)g->classes;
    if (model_shape_parts(g) & PART_ATTN_POOL) projection += 4 * N * d * o + 4 * N * o + 4 * o * o;
    if (family_has(family_row(g->family), ROLE_POOL_FC1_W)) projection += 4 * o * h;
    return 2 * (double)model_shape_patches(g) * p * d +
           (double)g->depth * (8 * N * d * d + 4 * N * N * d + c * N * d * h) + projection;
}

double model_shape_attention_flops(const struct model_shape *g)
{
    if (model_shape_language(g)) return language_attention_flops(g);
    double N = (double)model_shape_tokens(g);
    return (double)g->depth * 4 * N * N * (double)g->width;
}

double model_shape_recompute_flops(const struct model_shape *g, int64_t blocks)
{
    if (model_shape_language(g)) return language_recompute_flops(g, blocks);
    double N = (double)model_shape_tokens(g), d = (double)g->width,
           first = (g->ffn == SWIGLU ? 4 : 2) * N * d * (double)g->hidden;
    if (g->norms == POST_NORM)
        first += 2 * N * d * (double)g->hidden; /* up to the input of the second norm */
    return (double)blocks * (8 * N * d * d + 4 * N * N * d + first);
}
