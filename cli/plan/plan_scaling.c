/* Steps of many ranks: see plan_scaling.h. */
#include "cli/plan/plan_scaling.h"
#include "core/run/units.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where nothing is given: a card on PCIe 4, a network of 100 Gbit/s. */
static const double LINK_GB_PER_S = 18, NETWORK_GB_PER_S = 12, LATENCY_US = 5;

/* ---- speeds ---- */

int plan_node_ranks(const struct arguments *args, int ranks)
{
    int nodes = (int)argument_int(args, "nodes", 0);
    return nodes > 0 ? (ranks + nodes - 1) / nodes : (int)argument_int(args, "node-ranks", PLAN_NODE_RANKS);
}

/* Ranks on the CPU share --cores processors of a node: when they run more threads, each is slower than the
 * one rank that was measured, and collectives take its time. */
static void share_processors(struct plan_speed *how, const struct arguments *args)
{
    const char *threads = getenv("OMP_NUM_THREADS");
    how->cores = (int)argument_int(args, "cores", 0);
    how->threads = threads && atoi(threads) > 0 ? atoi(threads) : how->cores;
}

struct plan_speed plan_speed_read(const struct arguments *args, const struct memory_planner *p, int ranks,
                                  double gflops)
{
    const struct plan *plan = &p->plan;
    double step_ms = argument_real(args, "step-ms", 0), bandwidth = argument_real(args, "bandwidth", 0),
           network = argument_real(args, "network", 0), latency = argument_real(args, "latency", -1),
           student =
               (double)plan->batch * model_shape_forward_flops(&plan->student) / plan->stages / plan->tensor,
           teacher = plan->first_epoch_step_flops > plan->step_flops
                         ? 0
                         : (double)plan->batch * plan_teacher_flops(plan),
           all = plan_step_operations(plan), backward = all - student - teacher; /* with updates */
    struct plan_speed how = {.ranks = ranks};
    how.gflops_assumed = step_ms <= 0 && gflops <= 0;
    how.gflops = step_ms > 0 ? 0 : gflops > 0 ? gflops : p->speed.gflops;
    how.bandwidth_assumed = bandwidth <= 0;
    how.network_assumed = network <= 0;
    how.latency_assumed = latency < 0;
    how.speed = (struct simulated_speed){.step_s = step_ms > 0 ? step_ms * 1e-3 / plan->stages / plan->tensor
                                                               : all / (how.gflops * 1e9),
                                         .backward = backward > 0 ? backward / all : 0,
                                         .student = all > 0 ? student / all : 0,
                                         .bandwidth = 1e9 * (bandwidth > 0 ? bandwidth : LINK_GB_PER_S),
                                         .network = 1e9 * network,
                                         .node_ranks = plan_node_ranks(args, ranks),
                                         .latency_s = 1e-6 * (latency < 0 ? LATENCY_US : latency)};
    share_processors(&how, args);
    return how;
}

void plan_speed_assume_network(struct plan_speed *how)
{
    struct simulated_speed *s = &how->speed;
    if (how->ranks > s->node_ranks && s->network <= 0) s->network = 1e9 * NETWORK_GB_PER_S;
}

/* Returns the step of n ranks. */
static struct simulated_step simulate(const struct plan_speed *how, const struct simulated_schedule *schedule,
                                      int n)
{
    struct simulated_speed speed = how->speed;
    int here = speed.node_ranks > 0 && n > speed.node_ranks ? speed.node_ranks : n;
    if (how->cores > 0 && here * how->threads >= how->cores)
        speed.slowdown = (double)here * how->threads / how->cores;
    return simulate_step(schedule, &speed, n);
}

static const char *source(bool assumed) { return assumed ? _(" (assumed)") : _(" (given)"); }

void plan_speed_print(const struct plan_speed *how)
{
    const struct simulated_speed *s = &how->speed;
    printf(_("a step of one rank takes %.4g s"), s->step_s);
    if (how->gflops > 0) printf(" at %.4g GFLOP/s%s", how->gflops, source(how->gflops_assumed));
    printf(_(", %.0f %% of it the student's backward pass;\n         %.4g GB/s per rank%s"),
           100 * s->backward, s->bandwidth / 1e9, source(how->bandwidth_assumed));
    if (s->network > 0)
        printf(_(", %.4g GB/s%s between nodes of %d"), s->network / 1e9, source(how->network_assumed),
               s->node_ranks);
    printf(_(", %.4g us per message%s\n"), s->latency_s * 1e6, source(how->latency_assumed));
    if (how->cores > 0)
        printf(_("         the ranks of a node share %d processors, %d thread%s each\n"), how->cores,
               how->threads, how->threads > 1 ? "s" : "");
}

/* ---- the table of --bandwidth ---- */

int scaling_table_make(struct scaling_table *t, const struct arguments *args,
                       const struct memory_planner *planner, int ranks, double gflops, struct error *err)
{
    struct simulated_schedule schedule = {0};
    struct memory_option option;
    *t = (struct scaling_table){.sample_tokens = planner->plan.student.context};
    if (argument_real(args, "bandwidth", 0) <= 0) return 0;
    if (argument_real(args, "step-ms", 0) <= 0 && gflops <= 0 && !argument_flag(args, "advise"))
        return error_set(err, EXIT_USAGE, "give --step-ms (from 'meopt bench train'), --gflops or --measure",
                         "--bandwidth requires the time of a step on one rank");
    memory_option_plan(&option, planner, "", simulate_inspect, &schedule);
    t->how = plan_speed_read(args, planner, ranks, gflops);
    int each = planner->plan.stages * planner->plan.tensor;
    for (int n = each; n <= ranks && t->count < SCALING_ROWS && option.possible;
         n = n < ranks && 2 * n > ranks ? ranks : 2 * n) {
        struct simulated_step s = simulate(&t->how, &schedule, n);
        int64_t global = n == ranks ? planner->config.train.global_batch : 0;
        double images = global > 0 ? (double)global : n / each * (double)planner->plan.batch;
        t->rows[t->count++] = (struct scaling_row){.ranks = n,
                                                   .sums_s = s.sums_s,
                                                   .step_s = s.step_s,
                                                   .images_per_s = images / s.step_s,
                                                   .efficiency = t->how.speed.step_s / s.step_s};
    }
    simulate_free(&schedule);
    return 0;
}

void scaling_table_print(const struct scaling_table *t)
{
    printf(_("\nscaling: "));
    plan_speed_print(&t->how);
    printf(_("   ranks     sums s     step s %12s   efficiency\n"), _(unit_of(t->sample_tokens > 0)->rate));
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

/* ---- the advice of --advise ---- */

void plan_choice(struct advice_row *r, const struct plan_speed *given, const struct memory_planner *planner,
                 size_t card_bytes, int stages, const char *keys)
{
    struct simulated_schedule schedule = {0};
    struct memory_option option;
    *r = (struct advice_row){.stages = stages};
    snprintf(r->keys, sizeof r->keys, "%s", keys);
    memory_option_plan(&option, planner, keys, simulate_inspect, &schedule);
    r->possible = option.possible;
    r->peak_bytes = option.peak_bytes;
    snprintf(r->why, sizeof r->why, "%s", option.why);
    if (!r->possible) return;
    r->fits = !card_bytes || r->peak_bytes <= card_bytes;
    double best = 0;
    int nodes = (given->ranks + given->speed.node_ranks - 1) / given->speed.node_ranks;
    for (int apart = 0; apart < (stages > 1 && nodes > 1 ? 2 : 1); apart++) {
        struct plan_speed how = *given;
        how.speed.step_s *= option.compute; /* of recomputation, and of the part of a rank */
        how.speed.stages_apart = apart;
        struct simulated_step step = simulate(&how, &schedule, how.ranks);
        if (apart && step.step_s >= best) continue;
        r->step = step;
        r->apart = apart;
        best = step.step_s;
    }
    r->efficiency = given->speed.step_s / r->step.step_s;
    simulate_free(&schedule);
}

/* Adds a row for the keys. */
static struct advice_row *add_choice(struct scaling_advice *a, const struct memory_planner *planner,
                                     int stages, const char *keys)
{
    if (a->count == ADVICE_ROWS) return NULL;
    struct advice_row *r = &a->rows[a->count++];
    plan_choice(r, &a->how, planner, a->card_bytes, stages, keys);
    return r;
}

static void choose(struct scaling_advice *a)
{
    for (int i = 0; i < a->count; i++) {
        struct advice_row *r = &a->rows[i], *best = a->chosen < 0 ? NULL : &a->rows[a->chosen];
        if (!r->possible || !r->fits) continue;
        bool faster = best && r->step.step_s < best->step.step_s * 0.995,
             smaller =
                 best && r->step.step_s <= best->step.step_s * 1.005 && r->peak_bytes < best->peak_bytes;
        if (!best || faster || smaller) a->chosen = i;
    }
}

/* What a pipeline needs for the steps of the other choices: the same images of all ranks, and clipping. */
#define SAME_STEPS " train.global_batch="

/* Adds the choices with `stages`. A refusal is one of all. */
static void add_stages(struct scaling_advice *a, const struct memory_planner *planner, int stages)
{
    static const char *const shards[] = {"none", "optimizer", "parameters"};
    int ranks = a->how.ranks;
    const struct config *c = &planner->config;
    int64_t images =
        c->train.global_batch > 0 ? c->train.global_batch : planner->plan.batch * config_replicas(c, ranks);
    bool inexact = config_clips(c) && c->optim.clip_mode != OPTIM_CLIP_MODE_EXACT;
    for (int i = 0; i < (stages < ranks ? 3 : 1); i++) {
        char keys[ADVICE_KEYS];
        snprintf(keys, sizeof keys, "dist.pipeline=%d dist.shard=%s" SAME_STEPS "%lld%s%s", stages, shards[i],
                 (long long)images, inexact ? " optim.clip_mode=" : "",
                 inexact ? optim_clip_mode_names[c->optim.clip_mode] : "");
        struct advice_row *r = add_choice(a, planner, stages, keys);
        if (r && !r->possible) return;
    }
}

void scaling_advise(struct scaling_advice *a, const struct arguments *args,
                    const struct memory_planner *planner, size_t card_bytes, int ranks, double gflops)
{
    static const char *const shards[] = {"none", "optimizer", "parameters"}, *const orders[] = {
                                                                                 " train.rounds=depth",
                                                                                 " train.rounds=breadth"};
    int each = planner->plan.micro < planner->plan.batch ? 2 : 1; /* of one round all orders are the same */
    int64_t depth = planner->plan.student.depth;
    *a = (struct scaling_advice){
        .how = plan_speed_read(args, planner, ranks, gflops), .card_bytes = card_bytes, .chosen = -1};
    struct simulated_speed *speed = &a->how.speed;
    plan_speed_assume_network(&a->how);
    const struct config *c = &planner->config;
    bool given = c->origins[config_key_index("dist.pipeline")].from == ORIGIN_OVERRIDE;
    int only = given ? planner->plan.stages : 0; /* an override is not varied */
    for (int i = 0; i < 3 * each && only < 2; i++) {
        char keys[ADVICE_KEYS];
        snprintf(keys, sizeof keys, "dist.shard=%s%s%s", shards[i / each], each > 1 ? orders[i % 2] : "",
                 planner->plan.stages > 1 ? " dist.pipeline=1" : "");
        (void)add_choice(a, planner, 1, keys);
    }
    for (int stages = 2; stages <= ranks && stages <= depth; stages++)
        if ((!only || only == stages) && ranks % stages == 0 &&
            (speed->node_ranks % stages == 0 || stages % speed->node_ranks == 0))
            add_stages(a, planner, stages);
    choose(a);
}

void scaling_advice_print(const struct scaling_advice *a)
{
    printf(_("\nadvice   for %d ranks: "), a->how.ranks);
    plan_speed_print(&a->how);
    printf(_("    %-42s %12s %10s %10s %10s   efficiency\n"), "", _("peak MiB"), _("sent MB"), _("sums s"),
           _("step s"));
    const char *more = NULL;
    for (int i = 0; i < a->count; i++) {
        const struct advice_row *r = &a->rows[i];
        char keys[ADVICE_KEYS];
        const char *steps = strstr(r->keys, SAME_STEPS);
        snprintf(keys, sizeof keys, "%.*s", (int)(steps ? (size_t)(steps - r->keys) : strlen(r->keys)),
                 r->keys);
        if (steps) more = steps + 1;
        if (!r->possible) printf(_("    %-42s not possible: %s\n"), keys, r->why);
        else
            printf("  %c %-42s %12.1f %10.1f %10.4f %10.4f     %6.1f %%%s%s\n", i == a->chosen ? '>' : ' ',
                   keys, (double)r->peak_bytes / 1048576, r->step.sent_bytes / 1e6, r->step.sums_s,
                   r->step.step_s, 100 * r->efficiency, r->apart ? _("  stages on different nodes") : "",
                   r->fits ? "" : _("  does not fit"));
    }
    if (more) printf(_("    (pipelines also with %s: the steps of the other choices)\n"), more);
    if (a->chosen < 0 && a->card_bytes)
        printf(_("    none fits %.1f MiB: see --fit\n"), (double)a->card_bytes / 1048576);
    if (a->chosen >= 0 && !a->card_bytes)
        printf(_("    (the memory of the card is unknown: --card-memory)\n"));
}

json_t *plan_choice_json(const struct advice_row *r)
{
    json_t *row = json_pack("{s:s, s:i, s:b}", "keys", r->keys, "stages", r->stages, "possible", r->possible);
    if (!r->possible) json_object_set_new(row, "why", json_string(r->why));
    json_t *figures =
        !r->possible
            ? NULL
            : json_pack("{s:b, s:b, s:I, s:f, s:f, s:f, s:f}", "stages_apart", r->apart, "fits", r->fits,
                        "peak_bytes", (json_int_t)r->peak_bytes, "sent_bytes_per_step", r->step.sent_bytes,
                        "sums_s", r->step.sums_s, "step_s", r->step.step_s, "efficiency", r->efficiency);
    json_object_update(row, figures);
    json_decref(figures);
    return row;
}

json_t *plan_speed_json(const struct plan_speed *h, json_t *rows)
{
    const struct simulated_speed *s = &h->speed;
    json_t *assumed = json_array();
    const char *const names[] = {"gflops", "bandwidth", "network", "latency"};
    const bool was[] = {h->gflops_assumed, h->bandwidth_assumed, h->network_assumed && s->network > 0,
                        h->latency_assumed};
    for (int i = 0; i < 4; i++)
        if (was[i]) json_array_append_new(assumed, json_string(names[i]));
    return json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:o, s:o}", "ranks", h->ranks, "node_ranks",
                     s->node_ranks, "one_rank_step_s", s->step_s, "bandwidth_gb_per_s", s->bandwidth / 1e9,
                     "network_gb_per_s", s->network / 1e9, "latency_us", s->latency_s * 1e6, "assumed",
                     assumed, "options", rows);
}

json_t *scaling_advice_json(const struct scaling_advice *a)
{
    json_t *rows = json_array();
    for (int i = 0; i < a->count; i++) {
        json_t *row = plan_choice_json(&a->rows[i]);
        json_object_set_new(row, "chosen", json_boolean(i == a->chosen));
        json_array_append_new(rows, row);
    }
    return plan_speed_json(&a->how, rows);
}
