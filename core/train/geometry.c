/* Which towers a configuration names: preset, keys and checkpoint together. */
#include "core/base/log.h"
#include "core/train/trainer.h"

#include <string.h>
#include <unistd.h>

/* The families of the towers and of the schema are one list. */
_Static_assert((int)MODEL_FAMILY_AUTO == (int)FAMILY_UNKNOWN && (int)MODEL_FAMILY_EVA == (int)FAMILY_EVA &&
                   (int)MODEL_FAMILY_OPENCLIP == (int)FAMILY_OPENCLIP &&
                   (int)MODEL_FAMILY_DINOV2 == (int)FAMILY_DINOV2,
               "enum model_family is enum family");

static int describe(const struct config *c, const struct config_tower *tower, struct geometry *g,
                    struct error *err)
{
    memset(g, 0, sizeof *g);
    if (tower->arch != TOWER_ARCH_CUSTOM) {
        int code = geometry_preset(tower_arch_names[tower->arch], g, err);
        if (code) return code;
    }
    g->family = g->family ? g->family : (enum family)c->model.family;
    const struct {
        int64_t *field, given;
    } fields[] = {{&g->width, tower->width},      {&g->depth, tower->depth}, {&g->heads, tower->heads},
                  {&g->hidden, tower->hidden},    {&g->out, tower->out},     {&g->patch, tower->patch},
                  {&g->pos_grid, tower->pos_grid}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].given) *fields[i].field = fields[i].given;
    if (tower->ffn == TOWER_FFN_MLP) g->ffn = 1 + ACTIVATION_GELU;
    if (tower->ffn == TOWER_FFN_SWIGLU) g->ffn = 1 + ACTIVATION_SWIGLU;
    if (c->data.image_size) {
        if (g->image && g->image != c->data.image_size && !family_resizes_positions(g->family) &&
            !tower->pos_grid)
            g->pos_grid = c->data.image_size / (g->patch ? g->patch : 14);
        g->image = c->data.image_size;
    }
    return 0;
}

static int settle(struct config *c, const struct config_tower *tower, const char *role, bool random,
                  struct geometry *g, struct weights **weights, struct error *err)
{
    int code = describe(c, tower, g, err);
    if (code) return code;
    bool from_file = !random && tower->weight[0] && tower->init != TOWER_INIT_RANDOM;
    if (!from_file && !random && tower->init != TOWER_INIT_RANDOM)
        return error_set(err, EXIT_CONFIG, "set model.weight_t and model.weight_s",
                         "the %s has no checkpoint", role);
    if (!from_file) return geometry_check(g, tower->head_dim, err);
    if ((code = weights_open(weights, tower->weight, err)) != 0) return code;
    code = geometry_infer(g, *weights, tower->head_dim, err);
    if (code && err && !err->file[0]) error_at(err, tower->weight, 0, 0);
    return code;
}

int trainer_geometry(struct config *c, bool random, struct geometry *teacher, struct geometry *student,
                     struct weights **teacher_weights, struct weights **student_weights, struct error *err)
{
    *teacher_weights = *student_weights = NULL;
    int code = settle(c, &c->model_t, "teacher", random, teacher, teacher_weights, err);
    if (!code && !c->data.image_size) c->data.image_size = teacher->image;
    if (!code) code = settle(c, &c->model_s, "student", random, student, student_weights, err);
    if (!code && teacher->image != student->image)
        code = error_set(err, EXIT_CONFIG, "both towers see the same image: set data.image_size",
                         "the teacher takes images of %lld px, the student of %lld px",
                         (long long)teacher->image, (long long)student->image);
    if (!code) code = config_resolve(c, (enum model_family)teacher->family, err);
    if (!code && c->loss.head == LOSS_HEAD_NONE && teacher->out != student->out)
        code = error_set(err, EXIT_CONFIG, "loss.head: auto or linear",
                         "the student's output has %lld values, the teacher's %lld, and loss.head is none",
                         (long long)student->out, (long long)teacher->out);
    if (code) {
        weights_close(*teacher_weights);
        weights_close(*student_weights);
        *teacher_weights = *student_weights = NULL;
    }
    return code;
}

int trainer_tower_geometry(struct config *c, bool student, struct geometry *g, struct weights **weights,
                           struct error *err)
{
    int code = 0;
    *weights = NULL;
    if (student && !c->data.image_size && c->model_t.weight[0] && c->model_t.init != TOWER_INIT_RANDOM) {
        struct weights *teacher = NULL; /* the student sees the images that the teacher takes */
        code = settle(c, &c->model_t, "teacher", false, g, &teacher, err);
        if (!code) c->data.image_size = g->image;
        weights_close(teacher);
    }
    if (!code)
        code = settle(c, student ? &c->model_s : &c->model_t, student ? "student" : "teacher", false, g,
                      weights, err);
    if (!code && !*weights)
        code = error_set(err, EXIT_CONFIG, NULL, "the %s has no checkpoint: its values are random",
                         student ? "student" : "teacher");
    if (!code && !c->data.image_size) c->data.image_size = g->image;
    if (!code) code = config_resolve(c, (enum model_family)g->family, err);
    if (code) {
        weights_close(*weights);
        *weights = NULL;
    }
    return code;
}
