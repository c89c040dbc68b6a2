/* The tensors of a tower's memory: see tower_memory.h. Sizes are those of alloc_weights, alloc_gradients and
 * alloc_activations in tower.c. */
#include "core/nn/tower_memory.h"
#include "core/nn/tower.h"

#include <stdio.h>
#include <string.h>

bool tower_explains(const char *allocation)
{
    static const char *const names[] = {N_("tower weights"),
                                        N_("fp32 master weights"),
                                        N_("gradients of one block"),
                                        N_("gradients of two blocks"),
                                        "gradients",
                                        "activations",
                                        N_("teacher outputs"),
                                        N_("gradients of the tied token table")};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], allocation) == 0) return true;
    return false;
}

/* Weights in shared buffers belong to no single tensor: the buffers themselves are reported. */
static void explain_weights(const struct tower *t, tower_tensor report, void *context)
{
    if (t->options.weight_buffers) return;
    for (int i = 0; i < t->parameter_count; i++) {
        const struct parameter *p = &t->parameters[i];
        size_t count = (size_t)p->count;
        char name[112];
        if (!tower_owns_parameter(t, p)) continue;
        report(context, t->options.weights_class, p->name, count * dtype_bytes(p->weight_type));
        snprintf(name, sizeof name, _("fp32 master of %s"), p->name);
        if (p->master) report(context, t->options.weights_class, name, count * sizeof(float));
    }
}

/* Released gradients: only those of the largest group, or of two groups, exist. */
static void explain_gradients(const struct tower *t, tower_tensor report, void *context)
{
    const struct tower_options *o = &t->options;
    const struct tower_memory *m = t->memory;
    int shown = -1;
    if (o->gradients == GRADIENTS_NONE) return;
    for (int g = m->tied_gradients ? 1 : 0; g < t->group_count && o->gradients == GRADIENTS_RELEASE; g++)
        if (tower_owns(t, g) && (shown < 0 || m->group_bytes[g] > m->group_bytes[shown])) shown = g;
    int64_t buffers = o->gradients == GRADIENTS_RELEASE && o->gradient_buffers == 2 ? 2 : 1;
    for (int i = 0; i < t->parameter_count; i++) {
        const struct parameter *p = &t->parameters[i];
        bool tied = m->tied_gradients && p->group == 0;
        if (!p->trained || !tower_owns_parameter(t, p)) continue;
        if (shown >= 0 && p->group != shown && !tied) continue;
        for (int64_t k = 0; k < (tied ? o->slots : buffers); k++)
            report(context, MEMORY_GRADIENTS, p->name, (size_t)p->count * dtype_bytes(p->grad_type));
    }
}

static void explain_block(const struct tower *t, int64_t block, tower_tensor report, void *context)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    size_t R = (size_t)(o->batch * t->tokens), D = (size_t)g->width, e = dtype_bytes(o->compute),
           own = (size_t)tower_own_slices(t), G = own * (size_t)slice_gated(t),
           A = own * (size_t)slice_attn(t), Q = own * (size_t)slice_qkv(t);
    int parts = model_shape_parts(g);
    size_t norms = (parts & PART_ATTN_NORM ? 1 : 0) + (parts & PART_FFN_NORM ? 1 : 0);
    bool coded = o->saved == SAVED_8BIT;
    const struct {
        const char *name;
        size_t bytes;
    } kept[] = {
        {N_("stream after attention"), tower_sum_norm(t) ? 0 : R * D * e},
        {N_("queries, keys, values"), R * Q * e},
        {"attention", coded ? 0 : R * A * e},
        {N_("feed-forward before its activation"),
         coded ? R * G + tower_groups(R, G) * (sizeof(uint32_t) + sizeof(uint16_t)) : R * G * e},
        {N_("attention sums"), (size_t)(o->batch * tower_share(t, g->heads) * t->tokens) * sizeof(float)},
        {N_("means of inner norms"), 2 * norms * R * sizeof(float)},
        {N_("norms of heads"), tower_head_moments(t)},
        {N_("branches before their norms"), tower_norms_end(t) ? 2 * R * D * e : 0}};
    char name[96];
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        snprintf(name, sizeof name, "blocks.%lld.%s", (long long)block, kept[i].name);
        if (kept[i].bytes && !(t->memory->spared & 1u << i))
            report(context, o->activations_class, name, kept[i].bytes);
    }
}

/* Tensors outside the blocks. */
static void explain_ends(const struct tower *t, tower_tensor report, void *context)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    bool frozen = o->gradients == GRADIENTS_NONE;
    size_t B = (size_t)o->batch, D = (size_t)g->width, e = dtype_bytes(o->compute), f = sizeof(float),
           rows = B * (size_t)t->out_rows, pooled_rows = B * (size_t)t->memory->pooled_rows,
           normed = (size_t)tower_normed_rows(t), pooled = (size_t)tower_head_width(t),
           E = (size_t)model_shape_embedding(g),
           wide = t->owns_loss ? pooled : D, /* of the rows after an image's first */
        kept = t->resized ? (size_t)model_shape_position_rows(g, g->image / g->patch) : 0,
           stored = t->resized ? (size_t)model_shape_position_rows(g, g->pos_grid) : 0,
           slots = (size_t)o->slots, ends = frozen ? 1 : slots;
    if (tower_keeps_streams(t))
        report(context, o->activations_class, "streams of the micro-batches",
               slots * tower_stream_values(t) * f);
    if (model_shape_rotates(g))
        report(context, o->activations_class, "rotations",
               (size_t)(t->rotated * model_shape_head_dim(g)) * f);
    report(context, o->activations_class, "lists of blocks", tower_lists_bytes(t));
    if (!tower_has_ends(t)) return;
    report(context, o->activations_class, "means of the last norm", ends * 2 * normed * f);
    report(context, o->activations_class, "input of the last norm", ends * t->memory->norm_hat_bytes);
    report(context, o->activations_class, "output",
           ends * (t->memory->pooled_apart ? (B * pooled + (pooled_rows - B) * wide) * e : 0) +
               ends * (t->memory->projects ? B * (size_t)g->out * e : 0) +
               slots * (t->owns_loss ? 0 : tower_out_bytes(t)));
    report(context, o->activations_class, "hidden layers of the heads", ends * outputs_bytes(t));
    if (outputs_of_blocks(t))
        report(context, o->activations_class, "weights of norms without weights", D * f);
    if (tower_picks_rows(t))
        report(context, o->activations_class, "rows of the head",
               rows * (ends * (D + pooled) * e + 2 * sizeof(int32_t) + e));
    if (t->memory->roles[ROLE_EMBED_W])
        report(context, o->activations_class, "embedding before its projection",
               ends * B * (size_t)t->tokens * E * e);
    if (t->memory->roles[ROLE_TYPES])
        report(context, o->activations_class, "positions and the first token type",
               (size_t)t->tokens * (E * f + sizeof(int32_t)));
    if (tower_averages_first(t) || tower_averages_last(t))
        report(context, o->activations_class, "mean of the tokens", ends * B * D * f);
    if (tower_pools_by_attention(t))
        report(context, o->activations_class, "pooling by attention", ends * attn_pool_lay(t, NULL, NULL, 0));
    if (t->resized)
        report(context, o->activations_class, "resized positions",
               kept * D * f * (frozen || t->lowest > 0 ? 1 : 2));
    if (t->resized) report(context, o->activations_class, "matrix that resizes positions", kept * stored * f);
}

static void explain_activations(const struct tower *t, tower_tensor report, void *context)
{
    const struct model_shape *g = &t->model_shape;
    const struct tower_options *o = &t->options;
    size_t R = (size_t)(o->batch * t->tokens), D = (size_t)g->width, e = dtype_bytes(o->compute);
    if (o->gradients == GRADIENTS_NONE) return;
    int64_t first = t->lowest > 0 ? t->lowest - 1 : 0;
    for (int64_t l = first; l < g->depth; l++) {
        char name[64];
        if (!tower_owns(t, (int)l + 1)) continue;
        snprintf(name, sizeof name, "blocks.%lld.input", (long long)l);
        report(context, o->activations_class, name, (size_t)o->slots * R * D * e);
        snprintf(name, sizeof name, _("blocks.%lld.means of norms"), (long long)l);
        report(context, o->activations_class, name, (size_t)o->slots * 4 * R * sizeof(float));
    }
    bool shared = false; /* one block's tensors serve all */
    for (int64_t l = first; l < g->depth; l++) {
        if (!tower_owns(t, (int)l + 1) || shared) continue;
        explain_block(t, l, report, context);
        shared = o->recompute == RECOMPUTE_BLOCK;
    }
}

void tower_explain(const struct tower *t, tower_tensor report, void *context)
{
    explain_weights(t, report, context);
    explain_gradients(t, report, context);
    explain_activations(t, report, context);
    explain_ends(t, report, context);
}
