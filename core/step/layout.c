/* The communicators of a run's layout (core/comm/layout.h): rank (replica * stages + stage) * tensor + index.
 *
 *   data     the ranks with the same parameters: same stage and same tensor index. They fold the gradients
 *            of their micro-batches, and share states as dist.shard says.
 *   stages   the stages of a replica, at one tensor index: each index has a pipeline (dist.pipeline)
 *   tensor   the ranks of a stage of a replica, which divide the slices of its layers (dist.tensor). They
 *            have the same micro-batches, and the same bits of everything that is not sliced.
 *   plane    the ranks at one tensor index: each tensor that is not sliced is there once, so sums over all
 *            groups are over a plane. Ranks of other planes add what is sliced (exchange_tensor).
 *
 * All ranks make the calls of a plane in the order of step_pipeline.c, and those of a tensor group inside the
 * computation of a group, before that group's messages and sums: one order for all planes. */
#include "core/base/memory.h"
#include "core/step/step.h"

#include <stdlib.h>

enum { DATA, STAGES, TENSOR, PLANE, GROUPS };

struct rank_groups {
    struct comm parts[GROUPS];
};

/* Sets the color of each rank in a group of this kind. */
static void color_ranks(int *colors, int ranks, struct comm_layout layout, int kind)
{
    for (int r = 0; r < ranks; r++) {
        struct comm_place at = comm_place_of(layout, r);
        int tensor = comm_layout_tensor(layout);
        colors[r] = kind == DATA     ? at.stage * tensor + at.tensor
                    : kind == STAGES ? at.replica * tensor + at.tensor
                    : kind == TENSOR ? r / tensor
                                     : at.tensor;
    }
}

int layout_open(struct trainer *t, struct error *err)
{
    struct comm_layout layout = {(int)t->config->dist.pipeline, (int)t->config->dist.tensor};
    int ranks = t->ranks.size, code = 0;
    bool stages = layout.stages > 1, tensor = layout.tensor > 1;
    t->data = t->plane = &t->ranks;
    if (t->evaluates || comm_layout_ranks(layout) == 1) return 0;
    t->ranks.layout = layout;
    t->groups = xcalloc(1, sizeof *t->groups);
    int *colors = xcalloc((size_t)ranks, sizeof *colors);
    const struct {
        const char *name;
        struct comm **of;
        bool there;
    } rows[GROUPS] = {[DATA] = {tensor ? "data" : "stage", &t->data, true},
                      [STAGES] = {"pipeline", &t->stages, stages},
                      [TENSOR] = {"tensor", &t->tensor, tensor},
                      [PLANE] = {"plane", &t->plane, tensor}};
    for (int kind = 0; kind < GROUPS && !code; kind++) {
        if (!rows[kind].there) continue;
        color_ranks(colors, ranks, layout, kind);
        code = comm_split(&t->ranks, colors, rows[kind].name, &t->groups->parts[kind], err);
        if (!code) *rows[kind].of = &t->groups->parts[kind];
    }
    free(colors);
    return code;
}

void layout_close(struct trainer *t)
{
    for (int i = 0; i < GROUPS && t->groups; i++)
        if (t->groups->parts[i].whole) comm_close(&t->groups->parts[i]);
    free(t->groups);
    t->groups = NULL;
}

int layout_slice_owner(struct comm_layout layout, const struct parameter *p)
{
    int tensor = comm_layout_tensor(layout);
    return p->slice < 0 || tensor == 1 ? 0 : p->slice / (p->slices / tensor);
}

bool layout_gives(const struct trainer *t, const struct parameter *p)
{
    return !t->tensor || layout_slice_owner(t->ranks.layout, p) == t->tensor->rank;
}
