/* Why so many GiB: the tensors of each class of memory, and for each the one setting that would shrink it.
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

/* Tensors that are called alike but for their block's number, blocks.*.NAME, are one row. */
struct explain_row {
    enum memory_class class;
    char name[EXPLAIN_NAME];
    int64_t count; /* tensors */
    double bytes;  /* all of them */
    int remedy;    /* the setting that shrinks it at the least cost, by most; -1: none */
    double saved;  /* bytes of this row, by that */
};

/* A setting, tried on this experiment. */
struct remedy {
    const char *name; /* NULL: of several ranks, and there is one */
    char keys[256];   /* what is typed for it */
    bool possible, fits, cheapest;
    char why[200]; /* not possible */
    struct memory_use use;
    double cost; /* of a step, compute relative to now */
    double sent; /* bytes that a rank sends in a step */
    struct explain_row *rows;
    int row_count;
};

struct explanation {
    struct plan plan;
    struct explain_row *rows;
    int row_count;
    struct remedy remedies[REMEDIES];
};

/* The experiment of a file with overrides. limit: bytes that it should fit into, 0 none. */
int explain(struct explanation *e, const char *path, char **overrides, int count,
            const struct comm_options *ranks, size_t limit, struct error *err);
void explanation_free(struct explanation *e);

#endif
