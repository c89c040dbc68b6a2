/* The report of 'meopt plan', as text and as JSON. */
#ifndef MEOPT_CLI_PLAN_REPORT_H
#define MEOPT_CLI_PLAN_REPORT_H

#include "cli/plan/plan_card.h"
#include "cli/plan/plan_grid.h"
#include "cli/plan/plan_memory.h"
#include "cli/plan/plan_scaling.h"
#include "core/data/data.h"

struct plan_report {
    const struct config *config;
    const struct plan *plan;               /* of the rank with the most memory */
    const struct memory_options *memory;   /* NULL without --fit and train.memory */
    const struct explanation *explanation; /* NULL without --what-if and --explain */
    const struct memory_option *chosen;    /* by train.memory; NULL: none */
    struct card card;                      /* bytes 0: unknown */
    bool predicts;         /* --card: the next two rows are set, if the card's peaks are known */
    struct op_count count; /* operations of a step */
    double update_s;       /* the optimizer's update at the memory's bandwidth */
    int ranks;
    int64_t largest_micro;            /* images of the largest micro-batch that fits; -1: unknown */
    double gflops;                    /* speed of a rank; 0: unknown */
    bool gflops_measured;             /* by --measure */
    bool published;                   /* the next two rows are set */
    double published_mib[2];          /* without and with MEOpt */
    double baseline_peak, meopt_peak; /* planned bytes, without and with MEOpt */
    int64_t disk_bytes;
    size_t evaluation_bytes; /* peak of 'meopt eval'; 0: not without data.val */
    struct scaling_table scaling;
    bool advises; /* --advise */
    struct scaling_advice advice;
    bool grids; /* --grid */
    struct plan_grid grid;
    int explained;                   /* enum memory_class; -1: all */
    int64_t images;                  /* in data.root; -1: not counted */
    struct document_facts documents; /* samples 0: none are known */
    double step_ms;                  /* --step-ms; 0: not given */
    double epoch_hours;              /* 0: unknown */
};

/* Returns the seconds of a step by --step-ms, else by the speed; 0: unknown. */
double plan_report_step_seconds(const struct plan_report *report);
void plan_report_print(const struct plan_report *report);
/* Returns the object of --json; the caller owns it. Keys: man meopt-plan. */
json_t *plan_report_json(const struct plan_report *report);

#endif
