/* Explains the memory of an experiment: the tensors of each memory class, and the setting that shrinks each.
 *
 *     struct explanation e;
 *     if (explain(&e, path, overrides, count, ranks, limit, &err) == 0) ...
 *     e.rows, by class and size; e.remedies; explanation_remedy(&e, i)
 *     explanation_free(&e);
 */
#ifndef MEOPT_TRAIN_MEMORY_EXPLAIN_H
#define MEOPT_TRAIN_MEMORY_EXPLAIN_H

#include "core/train/plan.h"

enum { EXPLAIN_NAME = 96, REMEDIES = 19, REMEDY_KEYS = 6 };

/* One row. Tensors whose names differ only in the block's number share the row blocks.*.NAME. */
struct explain_row {
    enum memory_class class;
    char name[EXPLAIN_NAME];
    int64_t count; /* tensors */
    double bytes;  /* of all of them */
    int remedy;    /* index of the cheapest setting that shrinks this row; -1: none */
    double saved;  /* bytes of this row that it saves */
};

/* A setting, planned for this experiment. */
struct remedy {
    const char *name; /* NULL: it requires several ranks */
    char keys[256];   /* key=value words that select it */
    bool possible, fits, cheapest;
    char why[200]; /* the reason if it is not possible */
    struct memory_use use;
    double cost; /* compute of a step, relative to the experiment as configured */
    double sent; /* bytes that a rank sends per step */
    struct explain_row *rows;
    int row_count;
};

struct explanation {
    struct plan plan;
    struct explain_row *rows;
    int row_count;
    struct remedy remedies[REMEDIES];
};

/* Explains the experiment of a file with overrides. limit: bytes that it should fit into; 0: none. */
int explain(struct explanation *e, const char *path, char **overrides, int count,
            const struct comm_options *ranks, size_t limit, struct error *err);
void explanation_free(struct explanation *e);

#endif
