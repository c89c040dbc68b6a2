/* The grid of tensor groups, stages and replicas: see plan_grid.h. */
#include "cli/plan/plan_grid.h"
#include "core/base/path.h"
#include "core/compare/published.h"
#include "core/run/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Models with a published grid (configs/published.yaml), whose columns are named TENSORxSTAGES. */
static const struct {
    enum tower_arch arch;
    const char *name;
} published_grids[] = {{TOWER_ARCH_gpt_1_3b, "gpt_1_3b_grid"}};

/* Sets the published figures of the rows, if they are of as many ranks. */
static void read_published_grid(struct plan_grid *g, const struct config *c)
{
    const char *name = NULL;
    char *path = path_shipped("published.yaml");
    for (size_t i = 0; i < sizeof published_grids / sizeof *published_grids; i++)
        if (c->model_s.arch == published_grids[i].arch) name = published_grids[i].name;
    struct column *columns = NULL;
    struct error ignored;
    int count = 0;
    if (name && path) (void)published_add(&columns, &count, path, name, &ignored);
    for (int k = 0; k < count; k++) {
        const struct record *r = columns[k].runs;
        int tensor = 0, stages = 0;
        if (sscanf(columns[k].name + strlen(name), " %dx%d ", &tensor, &stages) != 2 ||
            r->ranks != g->how.ranks)
            continue;
        for (int i = 0; i < g->count; i++) {
            struct grid_row *row = &g->rows[i];
            if (row->tensor != tensor || row->choice.stages != stages) continue;
            row->published_bytes = r->peak_bytes;
            row->published_rate = r->median_sample_rate;
        }
    }
    if (count) table_free(table_make(columns, count, 0));
    free(path);
}

/* Returns the value that an override gives a key, else 0: it is varied. */
static int given_value(const struct config *c, const char *key, int64_t value)
{
    return c->origins[config_key_index(key)].from == ORIGIN_OVERRIDE ? (int)value : 0;
}

static void add_row(struct plan_grid *g, const struct memory_planner *planner, size_t card_bytes, int tensor,
                    int stages, enum train_rounds rounds)
{
    const struct config *c = &planner->config;
    char keys[ADVICE_KEYS];
    bool varied = rounds && c->train.rounds == TRAIN_ROUNDS_AUTO && !c->train.wave;
    if (g->count == GRID_ROWS) return;
    struct grid_row *row = &g->rows[g->count++];
    *row = (struct grid_row){.tensor = tensor,
                             .replicas = g->how.ranks / tensor / stages,
                             .rounds = rounds,
                             .published_bytes = NAN,
                             .published_rate = NAN};
    snprintf(keys, sizeof keys,
             "dist.tensor=%d dist.pipeline=%d model_s.slices=%lld train.global_batch=%lld%s%s%s%s", tensor,
             stages, (long long)g->slices, (long long)g->images, varied ? " train.rounds=" : "",
             varied ? train_rounds_names[rounds] : "", config_clips(c) ? " optim.clip_mode=" : "",
             config_clips(c) ? optim_clip_mode_names[c->optim.clip_mode]
                             : ""); /* the same steps in all rows */
    plan_choice(&row->choice, &g->how, planner, card_bytes, stages, keys);
}

/* Adds the rows of a division: with several micro-batches per replica one for each order of rounds. */
static void add_division(struct plan_grid *g, const struct memory_planner *planner, size_t card_bytes,
                         int tensor, int stages)
{
    const struct config *c = &planner->config;
    int64_t replicas = g->how.ranks / tensor / stages;
    bool several = g->images > planner->plan.micro * replicas,
         both = c->train.rounds == TRAIN_ROUNDS_AUTO && !c->train.wave && stages == 1 &&
                c->optim.gradients == OPTIM_GRADIENTS_RELEASE &&
                c->train.save_activations != TRAIN_SAVE_ACTIVATIONS_8BIT;
    enum train_rounds first = c->train.rounds               ? c->train.rounds
                              : c->train.wave || stages > 1 ? TRAIN_ROUNDS_BREADTH
                                                            : TRAIN_ROUNDS_DEPTH;
    add_row(g, planner, card_bytes, tensor, stages, several ? first : TRAIN_ROUNDS_AUTO);
    if (several && both) add_row(g, planner, card_bytes, tensor, stages, TRAIN_ROUNDS_BREADTH);
}

static void choose_row(struct plan_grid *g)
{
    g->chosen = -1;
    for (int i = 0; i < g->count; i++) {
        const struct advice_row *r = &g->rows[i].choice,
                                *best = g->chosen < 0 ? NULL : &g->rows[g->chosen].choice;
        if (r->possible && r->fits && (!best || r->step.step_s < best->step.step_s)) g->chosen = i;
    }
}

void plan_grid_make(struct plan_grid *g, const struct arguments *args, const struct memory_planner *planner,
                    size_t card_bytes, int ranks, double gflops, double step_s)
{
    const struct config *c = &planner->config;
    int tensor_given = given_value(c, "dist.tensor", c->dist.tensor),
        stages_given = given_value(c, "dist.pipeline", c->dist.pipeline);
    int64_t depth = planner->plan.student.depth;
    *g = (struct plan_grid){.how = plan_speed_read(args, planner, ranks, gflops),
                            .tokens = planner->plan.student.context > 0};
    if (step_s > 0) {
        g->how.speed.step_s = step_s;
        g->how.gflops = 0;
        g->how.gflops_assumed = false;
    }
    plan_speed_assume_network(&g->how);
    g->images =
        c->train.global_batch > 0 ? c->train.global_batch : planner->plan.batch * config_replicas(c, ranks);
    g->slices = c->model_s.slices;
    bool sliced = config_given(c, "model_s.slices"); /* else as many as the largest group needs */
    for (int tensor = 2; tensor <= COMM_TREE_RANKS && ranks % tensor == 0 && !sliced; tensor *= 2)
        if (tensor <= g->how.speed.node_ranks) g->slices = tensor;
    for (int tensor = 1; tensor <= COMM_TREE_RANKS; tensor *= 2)
        for (int stages = 1; stages <= ranks / tensor && stages <= depth; stages++)
            if (ranks % (tensor * stages) == 0 && tensor <= g->how.speed.node_ranks &&
                (!tensor_given || tensor == tensor_given) && (!stages_given || stages == stages_given))
                add_division(g, planner, card_bytes, tensor, stages);
    choose_row(g);
    read_published_grid(g, c);
}

void plan_grid_print(const struct plan_grid *g)
{
    bool published = false;
    printf(_("\ngrid     %d ranks, %lld %s per step, model.slices=%lld: "), g->how.ranks,
           (long long)g->images, g->tokens ? _("samples") : _("images"), (long long)g->slices);
    plan_speed_print(&g->how);
    for (int i = 0; i < g->count; i++) published = published || isfinite(g->rows[i].published_bytes);
    printf(_("    tensor  stages  replicas  rounds     peak MiB     sums s     step s per second%s\n"),
           published ? _("   published MiB   per second") : "");
    for (int i = 0; i < g->count; i++) {
        const struct grid_row *row = &g->rows[i];
        const struct advice_row *r = &row->choice;
        printf("  %c %6d %7d %9d %7s ", i == g->chosen ? '>' : ' ', row->tensor, r->stages, row->replicas,
               row->rounds ? train_rounds_names[row->rounds] : "1");
        if (!r->possible) {
            printf(_("not possible: %s\n"), r->why);
            continue;
        }
        printf("%12.1f %10.4f %10.4f %10.2f", (double)r->peak_bytes / 1048576, r->step.sums_s, r->step.step_s,
               (double)g->images / r->step.step_s);
        if (isfinite(row->published_bytes))
            printf("   %13.0f %12.2f", row->published_bytes / 1048576, row->published_rate);
        printf("%s\n", r->fits ? "" : _("  does not fit"));
    }
}

static json_t *real_or_null(double value) { return isfinite(value) ? json_real(value) : json_null(); }

json_t *plan_grid_json(const struct plan_grid *g)
{
    json_t *rows = json_array();
    for (int i = 0; i < g->count; i++) {
        const struct grid_row *row = &g->rows[i];
        json_t *one = plan_choice_json(&row->choice);
        json_object_set_new(one, "tensor", json_integer(row->tensor));
        json_object_set_new(one, "replicas", json_integer(row->replicas));
        json_object_set_new(one, "rounds",
                            row->rounds ? json_string(train_rounds_names[row->rounds]) : json_null());
        json_object_set_new(one, "images_per_s",
                            row->choice.possible ? json_real((double)g->images / row->choice.step.step_s)
                                                 : json_null());
        json_object_set_new(one, "published_peak_mib", real_or_null(row->published_bytes / 1048576));
        json_object_set_new(one, "published_images_per_s", real_or_null(row->published_rate));
        json_object_set_new(one, "chosen", json_boolean(i == g->chosen));
        json_array_append_new(rows, one);
    }
    json_t *grid = plan_speed_json(&g->how, rows);
    json_object_set_new(grid, "images", json_integer((json_int_t)g->images));
    json_object_set_new(grid, "slices", json_integer((json_int_t)g->slices));
    return grid;
}
