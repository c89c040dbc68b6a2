/* The shape of a decoder language model: defaults, limits, and the work of a sample. */
#include "core/model/language_shape.h"
#include "core/model/blocks.h"
#include "core/model/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { USUAL_CONTEXT = 2048 };

bool model_shape_language(const struct model_shape *g) { return family_language(family_row(g->family)); }
int64_t model_shape_kv_heads(const struct model_shape *g) { return g->kv_heads ? g->kv_heads : g->heads; }

int64_t model_shape_head_dim(const struct model_shape *g)
{
    return g->head_dim ? g->head_dim : g->width / (g->heads ? g->heads : 1);
}

int64_t model_shape_attn_width(const struct model_shape *g)
{
    return g->head_dim ? g->heads * g->head_dim : g->width;
}

int64_t model_shape_qkv_width(const struct model_shape *g)
{
    return model_shape_attn_width(g) +
           2 * (g->kv_heads ? g->kv_heads * model_shape_head_dim(g) : model_shape_attn_width(g));
}

int64_t model_shape_embedding(const struct model_shape *g) { return g->embedding ? g->embedding : g->width; }

int64_t masked_rows(int64_t context)
{
    enum { PERCENT = 15 };
    int64_t rows = (PERCENT * context + 50) / 100;
    return rows ? rows : 1;
}
int64_t model_shape_head_rows(const struct model_shape *g)
{
    return family_encoder(family_row(g->family)) ? masked_rows(g->context) : g->context;
}

static int refuse(struct error *err, const char *what, int64_t found, const char *expected)
{
    return error_set(err, EXIT_CONFIG, "set an arch, a checkpoint, or the key",
                     "the model's %s is %lld, expected %s", what, (long long)found, expected);
}

static int check_rope(const struct model_shape *g, struct error *err)
{
    const struct rope_of_tokens *r = &g->rope;
    int64_t dim = model_shape_head_dim(g);
    bool original = r->scaling == ROPE_LLAMA3 || r->scaling == ROPE_YARN;
    if (!model_shape_rotates(g)) return 0;
    if (dim % 2) return refuse(err, "head dimension", dim, "an even number, for rotary positions");
    bool fine = r->theta >= 0 && r->theta < 1e15;
    if (r->scaling) fine &= r->factor >= 1 && r->factor <= 1e6;
    if (original) fine &= r->original >= 1 && r->original <= 1e9 && r->low > 0 && r->high > r->low;
    if (r->scaling == ROPE_YARN) fine &= r->attention > 0 && r->attention < 100;
    if (fine) return 0;
    return error_set(err, EXIT_CONFIG, "see rope_theta and rope_scaling in the checkpoint's config.json",
                     "the rotary positions have base %g and factor %g, original context %g, limits %g to %g",
                     r->theta, r->factor, r->original, r->low, r->high);
}

/* Sets unset fields to the defaults of the family. */
static void complete(struct model_shape *g, int64_t head_dim)
{
    const struct family_row *row = family_row(g->family);
    if (!g->ffn) g->ffn = family_ffn(g->family);
    if (!g->hidden && g->width && g->ffn != 1 + ACTIVATION_SWIGLU) g->hidden = 4 * g->width;
    if (!g->head_dim) g->head_dim = head_dim;
    if (!g->heads && g->head_dim) g->heads = g->width / g->head_dim;
    if (!g->head_dim && g->heads && g->width % g->heads == 0) g->head_dim = g->width / g->heads;
    if (!g->kv_heads) g->kv_heads = g->heads;
    if (!g->context) g->context = g->positions && g->positions < USUAL_CONTEXT ? g->positions : USUAL_CONTEXT;
    if (!g->positions) g->positions = g->context;
    if (!(g->rope.theta > 0)) g->rope.theta = family_rope_theta(g->family);
    if (!g->norms) g->norms = row->norms ? row->norms : NORMS_BEFORE;
    if (!g->types) g->types = row->types;
    if (!g->block && row->block) {
        g->block = row->block;
        g->random = row->random;
    }
    if (!g->embedding && family_has(row, ROLE_EMBED_W)) g->embedding = g->width;
    g->classless = row->classless;
    g->out = g->width;
}

int language_shape_check(struct model_shape *g, int64_t head_dim, struct error *err)
{
    const struct family_row *row = family_row(g->family);
    complete(g, head_dim);
    static const enum fact sizes[] = {FACT_VOCABULARY, FACT_CONTEXT, FACT_POSITIONS, FACT_WIDTH,
                                      FACT_DEPTH,      FACT_HEADS,   FACT_HEAD_DIM,  FACT_KV_HEADS,
                                      FACT_HIDDEN,     FACT_COUNT};
    if (g->heads > 0 && g->width > 0 && !g->head_dim)
        return error_set(err, EXIT_CONFIG, "heads must divide the width",
                         "width %lld is not a multiple of heads %lld", (long long)g->width,
                         (long long)g->heads);
    int code = facts_check(g, sizes, err);
    if (code) return code;
    if (g->heads % g->kv_heads)
        return error_set(err, EXIT_CONFIG, "kv_heads must divide heads",
                         "heads %lld is not a multiple of kv_heads %lld", (long long)g->heads,
                         (long long)g->kv_heads);
    if (g->norms != (row->norms ? row->norms : NORMS_BEFORE))
        return error_set(err, EXIT_CONFIG, "leave model.norm out",
                         "a %s model has no blocks with model.norm %s", family_name(g->family),
                         model_shape_norms(g));
    if (family_encoder(row) &&
        (g->window || g->kv_heads != g->heads || model_shape_attn_width(g) != g->width))
        return error_set(err, EXIT_CONFIG, "leave window, kv_heads and head_dim out",
                         "a %s model has no window, and as many keys and values as queries",
                         family_name(g->family));
    if (g->window < 0) return refuse(err, "window", g->window, "0 or more");
    if (family_has(row, ROLE_POS) && g->context > g->positions)
        return error_set(err, EXIT_CONFIG, "set model.context to at most that",
                         "a context of %lld tokens, but the model has %lld positions", (long long)g->context,
                         (long long)g->positions);
    if (family_encoder(row) && masked_rows(g->context) * model_shape_embedding(g) > g->context * g->width)
        return error_set(err, EXIT_CONFIG, "set a longer model.context",
                         "an embedding of %lld values in blocks of width %lld, and a context of %lld",
                         (long long)g->embedding, (long long)g->width, (long long)g->context);
    if (!family_key(row, ROLE_FC1_W, g->ffn) || !family_key(row, ROLE_FC2_W, g->ffn))
        return error_set(err, EXIT_CONFIG, NULL, "a %s model has no feed-forward of kind %s",
                         family_name(g->family), model_shape_activation(g));
    code = check_rope(g, err);
    return code ? code : blocks_check(g, err);
}

/* Pairs of a query and a key that it sees, in one sample. */
static double pairs(const struct model_shape *g)
{
    double N = (double)g->context, w = g->window && g->window < g->context ? (double)g->window : N;
    if (blocks_used(g))
        return (double)blocks_listed(g) / (double)g->heads * (double)g->block * (double)g->block;
    if (family_encoder(family_row(g->family))) return N * N;
    return w * (w + 1) / 2 + (N - w) * w;
}

double language_attention_flops(const struct model_shape *g)
{
    return (double)g->depth * 4 * pairs(g) * (double)model_shape_attn_width(g);
}

/* Of one block: the projections of the attention and its two GEMMs. */
static double attention(const struct model_shape *g)
{
    double N = (double)g->context, a = (double)model_shape_attn_width(g), d = (double)g->width;
    return 2 * N * d * ((double)model_shape_qkv_width(g) + a) + 4 * pairs(g) * a;
}

static double matrix_of_ffn(const struct model_shape *g)
{
    return 2 * (double)g->context * (double)g->width * (double)g->hidden;
}

double language_forward_flops(const struct model_shape *g)
{
    double gates = g->ffn == 1 + ACTIVATION_SWIGLU ? 3 : 2;
    bool classifies = g->classes > 0;
    double rows = classifies ? 1 : (double)model_shape_head_rows(g), width = (double)g->width,
           outputs = (double)(classifies ? g->classes : g->vocabulary),
           embedding = (double)model_shape_embedding(g), last = classifies ? width : embedding,
           transform = family_encoder(family_row(g->family)) ? 2 * rows * width * last : 0;
    if (g->embedding && g->embedding != g->width) transform += 2 * (double)g->context * embedding * width;
    return (double)g->depth * (attention(g) + gates * matrix_of_ffn(g)) + transform +
           2 * rows * last * outputs;
}

double language_recompute_flops(const struct model_shape *g, int64_t blocks)
{
    double gates = g->ffn == 1 + ACTIVATION_SWIGLU ? 2 : 1;
    return (double)blocks * (attention(g) + gates * matrix_of_ffn(g));
}

/* Writes the properties of the attention, each after a comma. */
static void text_of_attention(const struct model_shape *g, char *text, size_t size)
{
    static const char *const scalings[] = {"", N_(" scaled linearly by "), N_(" scaled as Llama 3's by "),
                                           N_(" scaled by YaRN by ")};
    const struct rope_of_tokens *r = &g->rope;
    char groups[48] = "", window[48] = "", rope[96] = "", factor[24] = "", embedding[48] = "",
         blocks[96] = "";
    int parts = model_shape_parts(g);
    if (g->kv_heads != g->heads)
        snprintf(groups, sizeof groups, _(", %lld of keys and values"), (long long)g->kv_heads);
    if (model_shape_embedding(g) != g->width)
        snprintf(embedding, sizeof embedding, _(", embedding %lld wide"), (long long)g->embedding);
    if (g->window) snprintf(window, sizeof window, _(", window %lld"), (long long)g->window);
    if (r->scaling) snprintf(factor, sizeof factor, "%g", r->factor);
    if (model_shape_rotates(g))
        snprintf(rope, sizeof rope, _(", rotary base %g%s%s%s"), r->theta, _(scalings[r->scaling]), factor,
                 fact_assumed(g, FACT_ROPE_THETA) ? _(" (assumed)") : "");
    if (g->block > 0)
        snprintf(blocks, sizeof blocks, _(", blocks of %lld tokens%s, %lld random, above a context of %lld"),
                 (long long)g->block, fact_assumed(g, FACT_BLOCK) ? _(" (assumed)") : "",
                 (long long)g->random, (long long)blocks_dense_context(g));
    snprintf(
        text, size, "%s%s%s%s%s%s%s", groups, parts & PART_QK_NORM ? _(", norms of queries and keys") : "",
        family_row(g->family)->rms && parts & PART_QKV_BIAS ? _(", biases of queries, keys and values") : "",
        window, rope, embedding, blocks);
}

void language_shape_text(const struct model_shape *g, char *text, size_t size)
{
    char attention[384], said[192], head[48];
    text_of_attention(g, attention, sizeof attention);
    snprintf(said, sizeof said, "%s%s", g->facts.replaced[0] ? "; its files have " : "", g->facts.replaced);
    if (g->context > g->positions)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%sa context of %lld",
                 said[0] ? ", " : "; its files have ", (long long)g->positions);
    snprintf(head, sizeof head, "%s", g->tied ? "tied" : "untied");
    if (g->classes > 0) snprintf(head, sizeof head, "%lld-class", (long long)g->classes);
    snprintf(text, size,
             _("%s, %lld block%s of width %lld, %lld head%s of %lld%s%s, %s%s %lld wide, norm eps %g%s, "
               "vocabulary %lld, %s head, context %lld of %lld%s"),
             family_name(g->family), (long long)g->depth, g->depth == 1 ? "" : "s", (long long)g->width,
             (long long)g->heads, g->heads == 1 ? "" : "s", (long long)model_shape_head_dim(g),
             fact_assumed(g, FACT_HEADS) ? _(" (assumed)") : "", attention, model_shape_activation(g),
             fact_assumed(g, FACT_ACTIVATION) ? _(" (assumed)") : "", (long long)g->hidden,
             (double)model_shape_norm_eps(g), fact_assumed(g, FACT_NORM_EPS) ? _(" (assumed)") : "",
             (long long)g->vocabulary, head, (long long)g->context, (long long)g->positions, said);
}
