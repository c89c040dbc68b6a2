/* Outputs of a tower of images that a distillation compares: which of its tokens, after which block, and
 * through which head. A tower without a list has one: its embedding, or its classifier's logits. */
#ifndef MEOPT_MODEL_OUTPUTS_H
#define MEOPT_MODEL_OUTPUTS_H

#include "core/model/shape.h"

enum { MOST_OUTPUTS = 16 };

/* The tokens of an output; D is the tower's width, O that of its embedding.
 *   CLS        its embedding: (B, O), pooled and projected as the family does
 *   PATCH      the patch tokens (B, P, D)
 *   CLS_PATCH  both, first the class tokens of all images: one head, two means in the loss
 *   AVG        the mean of the patch tokens (B, D) */
enum output_tokens { OUTPUT_CLS, OUTPUT_CLS_PATCH, OUTPUT_PATCH, OUTPUT_AVG };
/* What a student's tokens pass on their way to the teacher's width.
 *   LINEAR  x W^T + b
 *   MLP     gelu(norm(x W1^T + b1)) W2^T + b2: the adaptor head of AM-RADIO (Ranzinger et al., arXiv
 *           2312.06709), whose hidden layer is normalised */
enum head_kind { HEAD_NONE, HEAD_LINEAR, HEAD_MLP };

struct output {
    enum output_tokens tokens;
    /* 0: after all blocks and the last norm. k: after the first k blocks, each token normalised without
     * weights, as the targets of data2vec (Baevski et al., arXiv 2202.03555) are */
    int64_t block;
    enum head_kind head;
    int64_t width, hidden; /* of a head's result, and of its hidden layer */
};
struct outputs {
    int count; /* 0: the embedding alone */
    struct output of[MOST_OUTPUTS];
};

/* Rows per image, their values before the head and after it. */
int64_t output_rows(const struct model_shape *shape, const struct output *output);
int64_t output_input(const struct model_shape *shape, const struct output *output);
int64_t output_width(const struct model_shape *shape, const struct output *output);
/* Whether an output after the last norm reads the patch tokens. */
bool outputs_read_patches(const struct outputs *outputs);

#endif
