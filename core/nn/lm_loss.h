/* Cross entropy of a language model's head without its whole logits: logits = x W^T (R, V) are computed in
 * parts of at most `chunk` bytes, and each part becomes its gradient in place.
 *
 *   LM_LOSS_WHOLE   all logits in one part
 *   LM_LOSS_ROWS    parts are rows; dW is added to part by part
 *   LM_LOSS_SLABS   parts are slabs of the vocabulary. A first sweep finds each row's log-sum-exp, a second
 *                   one computes the logits again and their gradients: a fourth GEMM, but dW is complete
 *
 * Rows are cheaper if few parts are enough (LM_LOSS_ROW_PARTS).
 */
#ifndef MEOPT_NN_LM_LOSS_H
#define MEOPT_NN_LM_LOSS_H

#include "core/nn/slices.h"

#define LM_LOSS_CHUNK ((size_t)128 << 20) /* default of loss.chunk */
/* Parts of rows at most: each reads W and updates dW once more, and rounds dW if it is bf16. With 8 parts of
 * 128 rows its error is 1.64 times that of one rounding (2.8e-3 of its norm), without bias; PyTorch's is
 * 3.1e-3 after 8 micro-batches. */
enum { LM_LOSS_ROW_PARTS = 8 };

enum lm_loss_form { LM_LOSS_WHOLE, LM_LOSS_ROWS, LM_LOSS_SLABS };
/* How R rows of V logits are computed; the plan and the allocation call the same function. */
struct lm_loss_layout {
    enum lm_loss_form form;
    int64_t rows, columns; /* of a part */
    int64_t stride;        /* floats between its rows */
    size_t bytes;          /* of scratch: a part of each own slice, and the state of each row */
};
/* With slices of the vocabulary, each is computed like a head of its own, with 1 / slices of the chunk: the
 * form does not depend on how many of them this rank has. */
struct lm_loss_layout lm_loss_layout(int64_t R, int64_t V, size_t chunk, int slices, int own);

/* The head's matrix, bias and gradients; of a slice of the vocabulary its rows. */
struct lm_loss_head {
    const void *weights; /* type (V, D) */
    const float *bias;   /* (V) of the logits, or NULL */
    void *dweights;      /* dweights_type (V, D), written, or with `add` added to. NULL: W is frozen */
    float *dbias;        /* (V), +=; NULL: not computed */
};

/* Adds weight * sum of the rows' losses to sums[0], and the number of rows whose label has the largest logit
 * to sums[1]. Rows with label -1 add nothing, and their dx is 0. */
struct lm_loss {
    enum dtype type; /* of x and W: F32 or BF16 */
    const void *x;   /* type (R, D): normalized rows */
    struct lm_loss_head head;
    const int32_t *labels; /* (R), -1: none */
    float weight;          /* 1 / labelled rows of the global batch */
    float smoothing;
    double *sums; /* (2), += */
    float *dx;    /* F32 (R, D), written. NULL: values only */
    enum dtype dweights_type;
    bool add;
    const void *ones; /* type (layout.rows) of 1; with dbias */
    int64_t R, D, V;
    /* Slices of the vocabulary, of which this rank has `own` from first_slice on; slices 0: none */
    int slices, first_slice, own;
    const struct lm_loss_head *heads; /* (own), in place of `head` */
    struct slice_sums *sums_of_slices;
    void *scratch; /* layout.bytes, 64-byte aligned */
};
/* R of `o` may be smaller than the layout's. All memory is the device's. */
void lm_loss(struct device *device, const struct lm_loss *o, const struct lm_loss_layout *layout);

#endif
