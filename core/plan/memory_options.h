/* Which keys lower the memory of an experiment, by how much, and at what price: one table of settings, and a
 * planner that plans the experiment with other keys. Views of the table:
 *
 *     plan --what-if         plans each named setting
 *     plan --explain         names the setting that shrinks a tensor (memory_explain.h)
 *     plan --fit             searches the combinations of one setting per axis for those on the Pareto
 *     train.memory           frontier of peak memory and step time; so does the advice after a failed
 *                            allocation (advice.h)
 *
 *     struct memory_planner p;
 *     struct memory_options l;
 *     if (memory_planner_open(&p, path, overrides, count, ranks, &err)) ...
 *     memory_options_find(&l, &p, limit);
 *     l.options, most memory first; l.chosen: the fastest that fits
 *     memory_options_free(&l);
 *     memory_planner_close(&p);
 *
 * The predicted time of an option is the larger of compute, at speed.gflops, and of the transfers that
 * overlap with it: the teacher's forward pass overlaps with reading its weights, the student's passes with
 * its own weights and with optim.offload. 5 % of the transfer time is assumed not to overlap. Each halving of
 * the micro-batch makes the student's GEMMs 2 % slower. A cached teacher is computed once per train.epochs.
 * Logits in slabs need a fourth GEMM, in parts of rows more memory traffic (lm_loss.h).
 */
#ifndef MEOPT_PLAN_MEMORY_OPTIONS_H
#define MEOPT_PLAN_MEMORY_OPTIONS_H

#include "core/plan/plan.h"

/* Keys are "key=value" words, separated by spaces. @N stands for the batch divided by N. */
struct memory_setting {
    const char *name; /* in --what-if; NULL: not listed there */
    enum memory_axis {
        AXIS_NONE, /* not searched */
        AXIS_TEACHER,
        AXIS_CACHE,
        AXIS_ACTIVATIONS,
        AXIS_STUDENT,
        AXIS_OFFLOAD,
        AXIS_SHARD,
        AXIS_MICRO,
        AXIS_LOGITS,
        AXIS_ROUNDS,
        MEMORY_AXES
    } axis;             /* settings of one axis exclude each other */
    const char *keys;   /* all keys of the axis */
    const char *with;   /* keys that it may require, but that change the experiment: not searched */
    bool combined;      /* it combines two other settings */
    bool several_ranks; /* it requires several ranks */
    bool language;      /* it requires train.objective language */
    bool teacher;       /* it requires a teacher */
    bool adapters;      /* it trains adapters in place of a checkpoint's weights: another experiment, listed
                           where those are trained and never chosen */
    const char *note;   /* how the first key changes the numbers of a run; NULL: bit-identical, or a format */
};
enum { MEMORY_BASELINE }; /* index of the setting that others are compared with: AMP and AdamW */
extern const struct memory_setting memory_settings[];
extern const int memory_setting_count;
/* Returns whether memory options vary this key. */
bool memory_options_has_key(const char *key);

struct memory_options_speed {
    double gflops, carried_gb_per_s; /* compute; transfers of weights and states to a file or host memory */
    bool assumed;                    /* gflops was not measured */
    enum { CARRY_ASSUMED, CARRY_GIVEN, CARRY_MEASURED } carry;
    const char *carried_by; /* description of the measurement */
};

/* An experiment: its configuration with overrides, and its plan. */
struct memory_planner {
    const char *path;
    char *text;
    size_t bytes;
    char **overrides;
    int count;
    struct config config;
    struct model_files *model_files;  /* read once for all plans */
    const struct comm_options *ranks; /* NULL: one rank */
    struct plan plan;
    struct memory_options_speed speed; /* typical of a card, or of a CPU and a disk; the caller may set it */
};
/* Loads the configuration of a file with overrides, and plans it. path and ranks must outlive the planner.
 * After an error there is nothing to close. */
int memory_planner_open(struct memory_planner *planner, const char *path, char *const *overrides, int count,
                        const struct comm_options *ranks, struct error *err);
/* The two parts of it, for a caller that derives ranks from the configuration. */
int memory_planner_load(struct memory_planner *planner, const char *path, char *const *overrides, int count,
                        struct error *err);
int memory_planner_plan(struct memory_planner *planner, const struct comm_options *ranks, struct error *err);
void memory_planner_close(struct memory_planner *planner);

/* The experiment with other keys. */
struct memory_option {
    const char *name; /* of the setting; NULL: a combination */
    char keys[256];   /* those that differ from the experiment as configured; "": none */
    bool possible;
    char why[200]; /* the reason if it is not possible */
    size_t peak_bytes;
    double step_s;
    double compute; /* of a step, relative to the experiment as configured */
    double sent;    /* bytes that a rank sends per step */
    int order;      /* in the search; of equal options the first counts */
};
/* Plans the experiment with other keys. inspect (may be NULL): see plan_make_inspect. */
void memory_option_plan(struct memory_option *option, const struct memory_planner *planner, const char *keys,
                        plan_inspect *inspect, void *context);
/* Plans one setting. Returns false if --what-if does not list it for this experiment. */
bool memory_option_plan_setting(struct memory_option *option, const struct memory_planner *planner,
                                const struct memory_setting *setting, plan_inspect *inspect, void *context);
/* Returns how the option changes the numbers of a run, in parentheses; "": it does not. */
const char *memory_option_note(const struct memory_option *option);
/* Appends the keys of an option to a malloc'ed list of malloc'ed overrides. */
void memory_option_append(const struct memory_option *option, char ***overrides, int *count);
/* Adds the keys of an option to the experiment, and plans it again. */
int memory_planner_apply(struct memory_planner *planner, const struct memory_option *option,
                         struct error *err);

struct memory_options {
    struct memory_option *options;
    int count, chosen;        /* chosen: the fastest that fits; -1: none fits */
    struct memory_option now; /* the experiment as configured */
    size_t limit_bytes;
    struct memory_options_speed speed;
};
/* Finds the memory options. A key set by an override is not varied. limit_bytes 0: everything fits. */
void memory_options_find(struct memory_options *options, const struct memory_planner *planner,
                         size_t limit_bytes);
void memory_options_free(struct memory_options *options);

#endif
