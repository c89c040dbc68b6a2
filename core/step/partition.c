/* Partition of a student's tensors: see partition.h. */
#include "core/step/partition.h"
#include "core/base/memory.h"

#include <stdlib.h>

/* A position in a group's sequence of tensors: element `element` of a parameter; parameter -1: the end. `at`
 * is its distance from the start, in elements. */
struct position {
    int parameter;
    int64_t element, at;
};

/* Returns whether a parameter has parts: of the slices here, of a partition of weights each that is not
 * resident; else each trained one, and in a group without gradients each. */
static bool counted(const struct tower *t, const struct partition *c, const struct parameter *p)
{
    const struct tower_slices *s = c->elsewhere;
    bool mine = s ? tower_slices_have(*s, p) : tower_owns_slice(t, p);
    return mine && (c->weights_only ? !p->resident : p->trained || (!p->resident && p->group < t->lowest));
}

/* Returns the parameter of the group after `i` in memory order; -1: none. */
static int next_in_order(const struct tower *t, const struct partition *c, int group, int i)
{
    bool matrices = i >= 0 && t->parameters[i].matrix;
    for (int pass = matrices; pass < 2; pass++) {
        for (int k = pass == (int)matrices ? i + 1 : 0; k < t->parameter_count; k++) {
            const struct parameter *p = &t->parameters[k];
            if (p->group == group && p->matrix == (pass == 1) && counted(t, c, p)) return k;
        }
    }
    return -1;
}

/* Returns the allowed cut nearest to `target` elements from the start of the group. */
static struct position nearest_cut(const struct tower *t, const struct partition *c, int group,
                                   int64_t target)
{
    int64_t start = 0;
    for (int i = next_in_order(t, c, group, -1); i >= 0; i = next_in_order(t, c, group, i)) {
        int64_t count = t->parameters[i].count, inside = target - start;
        if (inside < count) {
            int64_t element = t->parameters[i].owned
                                  ? (inside < count / 2 ? 0 : count)
                                  : (inside + CUT_ELEMENTS / 2) / CUT_ELEMENTS * CUT_ELEMENTS;
            return element < count ? (struct position){i, element, start + element}
                                   : (struct position){next_in_order(t, c, group, i), 0, start + count};
        }
        start += count;
    }
    return (struct position){-1, 0, start};
}

static bool has_gradients(const struct tower *t, const struct partition *c, int group)
{
    return group >= t->lowest && !c->weights_only;
}

/* Return the span whose elements a group's offsets count, and the type of its matrices: the gradients, or the
 * weights of a frozen group. */
static struct gradient_span span_of(const struct tower *t, const struct partition *c, int group)
{
    if (has_gradients(t, c, group)) return tower_group_gradients(t, group);
    struct weight_span weights = tower_group_weights(t, group);
    struct gradient_span span = {.p = weights.p, .bytes = weights.bytes, .f32_bytes = weights.bytes};
    for (int i = 0; i < t->parameter_count; i++) {
        const struct parameter *p = &t->parameters[i];
        if (p->group == group && p->matrix && !p->resident && p->weight_at < span.f32_bytes)
            span.f32_bytes = p->weight_at;
    }
    return span;
}
static enum dtype matrix_type(const struct tower *t, const struct partition *c, int group)
{
    return has_gradients(t, c, group) ? t->options.grad_type : t->options.weight_type;
}

/* Return where a parameter's weights, and those of the group's last one with parts, begin and end in the
 * group's span of weights. */
static int64_t weight_offset(const struct tower *t, const struct partition *c, const struct parameter *p)
{
    int first = next_in_order(t, c, p->group, -1);
    return (int64_t)(p->weight_at - t->parameters[first].weight_at);
}
static int64_t weights_end(const struct tower *t, const struct partition *c, int group)
{
    int64_t end = 0;
    for (int i = next_in_order(t, c, group, -1); i >= 0; i = next_in_order(t, c, group, i)) {
        const struct parameter *p = &t->parameters[i];
        end = weight_offset(t, c, p) + p->count * (int64_t)dtype_bytes(p->weight_type);
    }
    return end;
}

/* Sets the offset of each parameter of a group, and the ends of its vectors and matrices: in memory, or
 * elsewhere as if they followed one another. Returns the elements. */
static int64_t place_elements(const struct tower *t, struct partition *c, int group, int64_t ends[2])
{
    struct gradient_span span = span_of(t, c, group);
    size_t size = dtype_bytes(matrix_type(t, c, group));
    int64_t total = 0;
    ends[0] = c->elsewhere ? 0 : (int64_t)(span.f32_bytes / sizeof(float));
    ends[1] = c->elsewhere ? 0 : (int64_t)((span.bytes - span.f32_bytes) / size);
    for (int i = next_in_order(t, c, group, -1); i >= 0; i = next_in_order(t, c, group, i)) {
        const struct parameter *p = &t->parameters[i];
        size_t at = p->trained && !c->weights_only ? p->grad_at : p->weight_at;
        c->element[i] =
            c->elsewhere
                ? ends[p->matrix]
                : (int64_t)((at - (p->matrix ? span.f32_bytes : 0)) / (p->matrix ? size : sizeof(float)));
        if (c->elsewhere) ends[p->matrix] += p->count;
        total += p->count;
    }
    return total;
}

/* Sets the offsets of rank r in a group from the position where its part begins. */
static void set_offsets(const struct tower *t, struct partition *c, int group, int r, struct position at,
                        const int64_t ends[2])
{
    struct partition_group *g = &c->groups[group];
    g->vectors[r] = ends[0];
    g->matrices[r] = at.parameter < 0 ? ends[1] : 0;
    g->weights[r] = c->elsewhere ? 0 : weights_end(t, c, group);
    if (at.parameter < 0) return;
    const struct parameter *p = &t->parameters[at.parameter];
    if (!c->elsewhere)
        g->weights[r] = weight_offset(t, c, p) + at.element * (int64_t)dtype_bytes(p->weight_type);
    *(p->matrix ? &g->matrices[r] : &g->vectors[r]) = c->element[at.parameter] + at.element;
}

/* Sets this rank's elements of each tensor of a group: those between two positions. */
static void set_part(const struct tower *t, struct partition *c, int group, struct position from,
                     struct position to)
{
    bool inside = false;
    for (int i = next_in_order(t, c, group, -1); i >= 0; i = next_in_order(t, c, group, i)) {
        if (i == from.parameter) inside = true;
        int64_t begin = i == from.parameter ? from.element : 0,
                end = i == to.parameter ? to.element : t->parameters[i].count;
        if (inside && end > begin) {
            c->first[i] = begin;
            c->count[i] = end - begin;
        }
        if (i == to.parameter) break;
    }
}

/* owed (ranks; NULL: cuts are equal in each group): elements by which the cuts of earlier groups of the stage
 * were short of the equal ones. */
static void partition_one(const struct tower *t, struct partition *c, int group, int64_t *owed)
{
    struct partition_group *g = &c->groups[group];
    int first = next_in_order(t, c, group, -1);
    int64_t ends[2], total = place_elements(t, c, group, ends);
    int64_t *offsets = xcalloc(3 * ((size_t)c->ranks + 1), sizeof *offsets);
    g->vectors = offsets;
    g->matrices = offsets + c->ranks + 1;
    g->weights = offsets + 2 * (c->ranks + 1);
    g->span = first < 0 || c->elsewhere ? NULL : t->parameters[first].weight;
    struct position from = {first, 0, 0};
    for (int r = 0; r < c->ranks; r++) {
        int64_t equal = total * (r + 1) / c->ranks + (owed ? owed[r] : 0);
        struct position to = r + 1 < c->ranks ? nearest_cut(t, c, group, equal > from.at ? equal : from.at)
                                              : (struct position){-1, 0, total};
        if (owed) owed[r] = equal - to.at;
        set_offsets(t, c, group, r + 1, to, ends);
        if (r == c->rank && !c->elsewhere && tower_owns(t, group)) set_part(t, c, group, from, to);
        from = to;
    }
}

static struct partition *make(const struct tower *t, struct partition how, int stages)
{
    struct partition *c = xcalloc(1, sizeof *c);
    int ranks = how.ranks;
    *c = how;
    c->group_count = t->group_count;
    c->groups = xcalloc((size_t)t->group_count, sizeof *c->groups);
    c->first = xcalloc((size_t)t->parameter_count, sizeof *c->first);
    c->count = xcalloc((size_t)t->parameter_count, sizeof *c->count);
    c->element = xcalloc((size_t)t->parameter_count, sizeof *c->element);
    bool owned = false;
    for (int i = 0; i < t->parameter_count; i++) owned = owned || t->parameters[i].owned;
    int64_t *owed = owned ? xcalloc((size_t)(stages * ranks), sizeof *owed) : NULL;
    for (int group = 0; group < t->group_count; group++)
        partition_one(t, c, group,
                      owed ? owed + ranks * stage_of_group(stages, t->group_count, group) : NULL);
    free(owed);
    c->elsewhere = NULL; /* the caller's */
    return c;
}

struct partition *partition_make(const struct tower *t, int ranks, int rank, bool weights_only)
{
    return make(t, (struct partition){.ranks = ranks, .rank = rank, .weights_only = weights_only},
                t->options.stages > 1 ? t->options.stages : 1);
}

struct partition *partition_elsewhere(const struct tower *t, int ranks, int stages,
                                      const struct tower_slices *slices)
{
    return make(t, (struct partition){.ranks = ranks, .elsewhere = slices}, stages);
}

void partition_free(struct partition *c)
{
    if (!c) return;
    for (int group = 0; group < c->group_count; group++) free(c->groups[group].vectors);
    free(c->groups);
    free(c->first);
    free(c->count);
    free(c->element);
    free(c);
}

void partition_offsets(const struct partition *c, const struct tower *t, int parameter, int64_t unit,
                       int64_t *offsets)
{
    const struct parameter *p = &t->parameters[parameter];
    const struct partition_group *g = &c->groups[p->group];
    const int64_t *of = p->matrix ? g->matrices : g->vectors;
    for (int q = 0; q <= c->ranks; q++) {
        int64_t at = of[q] - c->element[parameter];
        offsets[q] = unit * (at < 0 ? 0 : at < p->count ? at : p->count);
    }
}

void partition_spread(int64_t *offsets, int ranks, int each, int place)
{
    for (int r = ranks * each; r >= 0; r--) {
        int parts = r / each + (r % each > place);
        offsets[r] = offsets[parts];
    }
}

int64_t partition_elements(const struct partition *c, int group)
{
    const struct partition_group *g = &c->groups[group];
    return g->vectors[c->ranks] + g->matrices[c->ranks];
}

int64_t partition_of(const struct partition *c, int group, int rank)
{
    const struct partition_group *g = &c->groups[group];
    return g->vectors[rank + 1] - g->vectors[rank] + g->matrices[rank + 1] - g->matrices[rank];
}

int64_t partition_own(const struct partition *c, int group) { return partition_of(c, group, c->rank); }
