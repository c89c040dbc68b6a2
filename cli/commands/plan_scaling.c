/* The table of steps on many ranks: see plan_scaling.h. */
#include "cli/commands/plan_scaling.h"

#include "core/run/units.h"

#include <stdio.h>

/* Returns the share of the backward pass in the operations of a step: all but the two forward passes. */
static double backward_share(const struct plan *p)
{
    double student = (double)p->batch * model_shape_forward_flops(&p->student),
           teacher =
               p->first_epoch_step_flops - p->step_flops > 0 ? 0 : (double)p->batch * plan_teacher_flops(p),
           backward = p->step_flops - student - teacher;
    return p->step_flops > 0 && backward > 0 ? backward / p->step_flops : 0;
}

int scaling_table_make(struct scaling_table *t, const struct arguments *args, const struct config *config,
                       const struct plan *plan, int ranks, double gflops, struct error *err)
{
    double bandwidth = argument_real(args, "bandwidth", 0), step_ms = argument_real(args, "step-ms", 0);
    *t = (struct scaling_table){.sample_tokens = plan->student.context};
    if (bandwidth <= 0) return 0;
    if (step_ms <= 0 && gflops <= 0)
        return error_set(err, EXIT_USAGE, "give --step-ms (from 'meopt bench train'), --gflops or --measure",
                         "--bandwidth requires the time of a step on one rank");
    t->how = (struct scaling){.step_s = step_ms > 0 ? step_ms * 1e-3 : plan->step_flops / (gflops * 1e9),
                              .backward = backward_share(plan),
                              .messages = (int)plan->student.depth + 2, /* embedding and end */
                              .overlap = config->optim.gradients == OPTIM_GRADIENTS_RELEASE,
                              .bandwidth = bandwidth * 1e9,
                              .network = argument_real(args, "network", 0) * 1e9,
                              .node_ranks = (int)argument_int(args, "node-ranks", PLAN_NODE_RANKS),
                              .latency_s = argument_real(args, "latency", 5) * 1e-6};
    for (int n = 1; n <= ranks && t->count < SCALING_ROWS; n = n < ranks && 2 * n > ranks ? ranks : 2 * n) {
        double sent = plan_sent_bytes(plan, n), step = scaling_step_s(&t->how, n, sent);
        t->rows[t->count++] = (struct scaling_row){.ranks = n,
                                                   .sums_s = scaling_sums_s(&t->how, n, sent),
                                                   .step_s = step,
                                                   .images_per_s = n * (double)plan->batch / step,
                                                   .efficiency = t->how.step_s / step};
    }
    return 0;
}

void scaling_table_print(const struct scaling_table *t)
{
    const struct scaling *s = &t->how;
    printf("\nscaling: a step of one rank takes %.4g s, %.0f %% of it the student's backward pass; "
           "reductions %s it;\n"
           "         %d messages per step, %.4g GB/s per rank",
           s->step_s, 100 * s->backward, s->overlap ? "overlap with" : "follow", s->messages,
           s->bandwidth / 1e9);
    if (s->network > 0) printf(", %.4g GB/s between nodes of %d", s->network / 1e9, s->node_ranks);
    printf(", %.4g us per message\n   ranks     sums s     step s %12s   efficiency\n", s->latency_s * 1e6,
           unit_of(t->sample_tokens > 0)->rate);
    for (int i = 0; i < t->count; i++)
        printf("  %6d %10.4f %10.4f %12.1f     %6.1f %%\n", t->rows[i].ranks, t->rows[i].sums_s,
               t->rows[i].step_s, t->rows[i].images_per_s * (double)(t->sample_tokens ? t->sample_tokens : 1),
               100 * t->rows[i].efficiency);
}

json_t *scaling_table_json(const struct scaling_table *t)
{
    json_t *rows = json_array();
    for (int i = 0; i < t->count; i++) {
        const struct scaling_row *r = &t->rows[i];
        json_t *row = json_pack("{s:i, s:f, s:f, s:f, s:f}", "ranks", r->ranks, "sums_s", r->sums_s, "step_s",
                                r->step_s, "images_per_s", r->images_per_s, "efficiency", r->efficiency);
        if (t->sample_tokens)
            json_object_set_new(row, "tokens_per_s", json_real(r->images_per_s * (double)t->sample_tokens));
        json_array_append_new(rows, row);
    }
    return rows;
}
