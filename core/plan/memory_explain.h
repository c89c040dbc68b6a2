/* Explains the memory of an experiment: the tensors of each memory class, and the setting that shrinks each.
 *
 *     struct explanation e;
 *     explain(&e, &planner, limit);
 *     e.rows, by class and size; e.settings
 *     explanation_free(&e);
 */
#ifndef MEOPT_PLAN_MEMORY_EXPLAIN_H
#define MEOPT_PLAN_MEMORY_EXPLAIN_H

#include "core/plan/memory_options.h"

enum { EXPLAIN_NAME = 96 };

/* One row. Tensors whose names differ only in the block's number share the row blocks.*.NAME. */
struct explain_row {
    enum memory_class class;
    char name[EXPLAIN_NAME];
    int64_t count; /* tensors */
    double bytes;  /* of all of them */
    int remedy;    /* index in settings of the cheapest one that shrinks this row; -1: none */
    double saved;  /* bytes of this row that it saves */
};

struct explanation {
    struct memory_use use; /* of the experiment as configured */
    struct explain_row *rows;
    int row_count;
    struct memory_options settings; /* those of --what-if; chosen: the one with the least compute that fits */
};

/* Explains a planned experiment. limit: bytes that it should fit into; 0: none, and no setting is chosen. */
void explain(struct explanation *e, const struct memory_planner *planner, size_t limit);
void explanation_free(struct explanation *e);

#endif
