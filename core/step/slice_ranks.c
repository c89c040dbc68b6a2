/* The sums and gathers of a tensor group (dist.tensor) inside the passes of its tower: see core/nn/slices.h.
 * Their place in the order of all calls is that of layout.c. */
#include "core/base/memory.h"
#include "core/step/step.h"

#include <stdlib.h>

struct slice_calls {
    struct comm *comm;
    struct comm_tree sum;
    struct comm_job job;
};

static int begin_sum(void *context, float *values, int64_t count, struct error *err)
{
    struct slice_calls *c = context;
    c->sum = (struct comm_tree){values, count};
    c->job = (struct comm_job){.run = comm_tree_job, .context = &c->sum};
    comm_begin(c->comm, &c->job);
    return c->comm->overlaps ? 0 : comm_end(c->comm, &c->job, err);
}

static int end_sum(void *context, struct error *err)
{
    struct slice_calls *c = context;
    return comm_end(c->comm, &c->job, err);
}

static int gather(void *context, void *p, size_t bytes, struct error *err)
{
    struct slice_calls *c = context;
    int64_t offsets[COMM_TREE_RANKS + 1];
    for (int q = 0; q <= c->comm->size; q++) offsets[q] = q * (int64_t)bytes;
    return comm_gather(c->comm, p, offsets, err);
}

int slice_ranks_bind(struct trainer *t, struct error *err)
{
    const struct tower *s = t->student;
    int64_t rows = s->options.batch * s->tokens, state = LOGIT_STATE * (int64_t)sizeof(double),
            sum = comm_tree_part(t->tensor->size, rows * s->model_shape.width),
            states = s->owns_loss ? s->options.batch * s->out_rows * s->options.slices_own * state : 0;
    t->slice_calls = xcalloc(1, sizeof *t->slice_calls);
    t->slice_calls->comm = t->tensor;
    tower_bind_ranks(t->student, &(struct slice_ranks){begin_sum, end_sum, gather, t->slice_calls});
    return comm_reserve(t->tensor, sum > states ? sum : states, err);
}

void slice_ranks_close(struct trainer *t)
{
    free(t->slice_calls);
    t->slice_calls = NULL;
}
