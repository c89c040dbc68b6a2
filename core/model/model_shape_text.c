/* One line of text about a tower's shape, with its assumed properties. */
#include "core/base/log.h"
#include "core/model/family.h"
#include "core/model/language_shape.h"

#include <stdio.h>
#include <string.h>

static const char *const activations[ACTIVATION_COUNT] = {[ACTIVATION_GELU] = "gelu",
                                                          [ACTIVATION_SWIGLU] = "swiglu",
                                                          [ACTIVATION_QUICK_GELU] = "quick_gelu",
                                                          [ACTIVATION_GELU_TANH] = "gelu_tanh",
                                                          [ACTIVATION_TANH] = "tanh",
                                                          [ACTIVATION_RELU] = "relu"};

const char *model_shape_activation(const struct model_shape *g)
{
    return activations[g->ffn ? g->ffn - 1 : ACTIVATION_GELU];
}

int activation_named(const char *name)
{
    static const char *const as_tanh[] = {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"};
    for (size_t i = 0; i < sizeof as_tanh / sizeof *as_tanh; i++)
        if (strcmp(name, as_tanh[i]) == 0) return 1 + ACTIVATION_GELU_TANH;
    for (int i = 0; i < ACTIVATION_TANH; i++) /* the others are of poolers */
        if (i != ACTIVATION_SWIGLU && strcmp(name, activations[i]) == 0) return 1 + i;
    return 0;
}

const char *pos_resize_name(enum pos_resize resize) { return resize ? pos_resize_names[resize] : ""; }
const char *model_shape_norms(const struct model_shape *g)
{
    return norms_names[g->norms ? g->norms : NORMS_BEFORE];
}

static const char *assumed(const struct model_shape *g, enum fact fact)
{
    return fact_assumed(g, fact) ? _(" (assumed)") : "";
}

/* Properties that differ from most towers, each after a comma. */
static void text_of_kind(const struct model_shape *g, char *text, size_t size)
{
    const struct family_row *row = family_row(g->family);
    int parts = model_shape_parts(g);
    bool attn = parts & PART_ATTN_NORM, ffn = parts & PART_FFN_NORM, post = g->norms == POST_NORM;
    bool rotates = model_shape_rotates(g), sure = !fact_assumed(g, FACT_POS_RESIZE);
    char eps[32] = "";
    float usual = family_row(g->family)->norm_eps, is = model_shape_norm_eps(g);
    if (fact_assumed(g, FACT_NORM_EPS) || is < usual || is > usual)
        snprintf(eps, sizeof eps, _(", norm eps %g"), (double)is);
    snprintf(text, size, "%s%s%s%s%s%s%s%s",
             post                         ? _(", post-norm")
             : fact_assumed(g, FACT_NORM) ? _(", pre-norm")
                                          : "",
             assumed(g, FACT_NORM), eps, assumed(g, FACT_NORM_EPS),
             attn && ffn ? _(", sub-LN")
             : attn      ? _(", sub-LN in the attention")
             : ffn       ? _(", sub-LN in the feed-forward")
                         : "",
             family_has(row, ROLE_PRE_W) && !(parts & PART_PRE_NORM) ? _(", no norm before the blocks") : "",
             rotates                    ? _(", rotary positions")
             : row->rope_gated && !sure ? _(", no rotary positions")
                                        : "",
             rotates || row->rope_gated ? assumed(g, FACT_POS_RESIZE) : "");
}

void model_shape_text(const struct model_shape *g, char *text, size_t size)
{
    static const char *const pools[] = {N_("cls token"),
                                        N_("cls token"),
                                        N_("mean of the patches"),
                                        N_("norm of the patches' mean"),
                                        N_("norm of the mean of all tokens"),
                                        N_("mean of the patches before the last norm"),
                                        N_("mean of the cls and distillation tokens"),
                                        N_("cls token and mean of the patches")};
    char heads[48] = "", pool[64], registers[48] = "", positions[80] = "", kind[192], classes[48] = "";
    long long grid = g->pos_grid;
    if (model_shape_language(g)) {
        language_shape_text(g, text, size);
        return;
    }
    if (g->registers) snprintf(registers, sizeof registers, _(", %lld registers"), (long long)g->registers);
    if (g->classless && !family_row(g->family)->classless)
        strncat(registers, _(", no cls token"), sizeof registers - strlen(registers) - 1);
    if (model_shape_resizes(g) && g->pos_grid != g->image / g->patch)
        snprintf(positions, sizeof positions, _(", positions of %lldx%lld resized as %s does%s"), grid, grid,
                 pos_resize_name(model_shape_pos_resize(g)), assumed(g, FACT_POS_RESIZE));
    if (fact_assumed(g, FACT_HEADS))
        snprintf(heads, sizeof heads, _(" (assumed: %lld wide)"), (long long)(g->width / g->heads));
    text_of_kind(g, kind, sizeof kind);
    if (g->classes > 0) snprintf(classes, sizeof classes, _(", %lld classes"), (long long)g->classes);
    snprintf(pool, sizeof pool, "%s", _(pools[g->pool]));
    if (model_shape_parts(g) & PART_ATTN_POOL)
        snprintf(pool, sizeof pool, _("attention pooling with %lld heads"), (long long)g->pool_heads);
    snprintf(text, size,
             _("%s, %lld block%s of width %lld, %lld head%s%s, %s%s%s, %s%s%s%s%s%s, image %lld%s"),
             family_name(g->family), (long long)g->depth, g->depth == 1 ? "" : "s", (long long)g->width,
             (long long)g->heads, g->heads == 1 ? "" : "s", heads, model_shape_activation(g),
             assumed(g, FACT_ACTIVATION), kind, pool, assumed(g, FACT_POOL),
             g->classifier && g->classes <= 0                   ? _(", classifier not used")
             : g->unprojected                                   ? _(", no projection")
             : g->projected || fact_assumed(g, FACT_PROJECTION) ? _(", projection")
                                                                : "",
             assumed(g, FACT_PROJECTION), classes, registers, (long long)g->image, positions);
}

void model_shape_log_assumed(const struct model_shape *g)
{
    char text[512];
    if (!facts_assumed(g)) return;
    model_shape_text(g, text, sizeof text);
    log_info("%s: %s", family_noun(g->family), text);
}
