/* Targets of a distillation from the keys of loss: see targets.h. */
#include "core/experiment/targets.h"
#include "core/experiment/objective.h"

_Static_assert((int)OUTPUT_CLS == (int)LOSS_TOKENS_CLS &&
                   (int)OUTPUT_CLS_PATCH == (int)LOSS_TOKENS_CLS_PATCH &&
                   (int)OUTPUT_PATCH == (int)LOSS_TOKENS_PATCH && (int)OUTPUT_AVG == (int)LOSS_TOKENS_AVG,
               "enum loss_tokens is enum output_tokens");

/* Returns the target of the part before for that teacher; -1: there is none. */
static int target_before(const struct targets *all, int loss, int teacher)
{
    for (int i = all->count - 1; i >= 0; i--)
        if (all->of[i].loss == loss - 1 && all->of[i].teacher == teacher) return all->of[i].shares;
    return -1;
}

static struct target target_of(const struct config_loss *loss, const struct model_shape *teacher,
                               const struct model_shape *student)
{
    enum output_tokens tokens = (enum output_tokens)loss->tokens;
    struct target t = {.student = {tokens, loss->block_s, HEAD_NONE, 0, 0},
                       .of_teacher = {tokens, loss->block_t, HEAD_NONE, 0, 0}};
    int64_t width = output_input(teacher, &t.of_teacher), own = output_input(student, &t.student);
    bool patches = tokens == OUTPUT_PATCH || tokens == OUTPUT_CLS_PATCH;
    t.student.head = loss->head == LOSS_HEAD_MLP ? HEAD_MLP
                     : loss->head == LOSS_HEAD_LINEAR || (loss->head == LOSS_HEAD_AUTO && width != own)
                         ? HEAD_LINEAR
                         : HEAD_NONE;
    if (t.student.head != HEAD_NONE) t.student.width = width;
    if (t.student.head == HEAD_MLP) t.student.hidden = loss->head_hidden ? loss->head_hidden : student->width;
    t.rows_t = patches ? model_shape_patches(teacher) : 0;
    t.rows_s = patches ? model_shape_patches(student) : 0;
    return t;
}

int targets_list(struct targets *all, const struct config *c, const struct model_shape *teachers,
                 const struct model_shape *student, struct error *err)
{
    int losses = config_losses(c), count = config_teachers(c), outputs[MOST_TEACHERS] = {0};
    all->count = 0;
    for (int i = 0; i < losses && objective_of(c)->teacher; i++)
        for (int k = 0; k < count; k++) {
            if (c->loss[i].teacher && c->loss[i].teacher != k + 1) continue;
            if (all->count == MOST_OUTPUTS)
                return error_set(err, EXIT_CONFIG, "leave some of them out, or set loss.teacher",
                                 "the parts of the loss have more than %d teachers in all", MOST_OUTPUTS);
            struct target *t = &all->of[all->count];
            int before = c->loss[i].head == LOSS_HEAD_PREVIOUS ? target_before(all, i, k) : all->count;
            if (before < 0)
                return error_set(err, EXIT_CONFIG, "loss.head: auto, linear or mlp",
                                 "loss.head is previous, but no part before it is of teacher %d", k + 1);
            *t = before < all->count ? all->of[before] : target_of(&c->loss[i], &teachers[k], student);
            t->loss = i;
            t->teacher = k;
            t->shares = before;
            if (before == all->count++) t->output = outputs[k]++;
        }
    return 0;
}

struct outputs targets_of_student(const struct targets *all)
{
    struct outputs outputs = {.count = 0};
    for (int i = 0; i < all->count; i++)
        if (target_owns(all, i)) outputs.of[outputs.count++] = all->of[i].student;
    return outputs;
}

struct outputs targets_of_teacher(const struct targets *all, int teacher)
{
    struct outputs outputs = {.count = 0};
    for (int i = 0; i < all->count; i++)
        if (all->of[i].teacher == teacher && target_owns(all, i))
            outputs.of[outputs.count++] = all->of[i].of_teacher;
    return outputs;
}
