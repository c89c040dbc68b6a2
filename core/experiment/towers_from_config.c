/* Model shapes from a configuration: preset, keys and checkpoint. */
#include "core/experiment/adapters.h"
#include "core/experiment/special_tokens.h"
#include "core/model/blocks.h"
#include "core/model/family.h"
#include "core/model/model_files.h"
#include "core/base/log.h"
#include "core/model/sidecar.h"
#include "core/model/metadata.h"
#include "core/experiment/preprocess.h"
#include "core/experiment/experiment.h"
#include "core/experiment/objective.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Returns the number of a tower: of a teacher, or TOWER_STUDENT. */
static int tower_number(const struct config *c, const struct config_tower *tower)
{
    return tower == &c->model_s ? TOWER_STUDENT : (int)(tower - c->model_t);
}

/* Writes the name of a tower's key. */
static const char *tower_key(const struct config *c, const struct config_tower *tower, const char *leaf,
                             char *name, size_t size)
{
    snprintf(name, size, "%s.%s", config_tower_section(tower_number(c, tower)), leaf);
    return name;
}

/* Sets the properties that keys of the tower give; 0 and auto: not given. */
static void take_keys(const struct config *c, const struct config_tower *tower, struct model_shape *g)
{
    bool tokens = objective_of(c)->tokens;
    for (enum fact f = 0; f < FACT_VALUES; f++) {
        char name[48];
        (void)tower_key(c, tower, fact_rows[f].name, name, sizeof name);
        int key = config_key_index(name);
        if (key < 0 || f == FACT_ACTIVATION || (f == FACT_HEAD_DIM && !tokens)) continue;
        const void *at = (const char *)c + config_keys[key].offset;
        double value = config_keys[key].type == CONFIG_INT    ? (double)*(const int64_t *)at
                       : config_keys[key].type == CONFIG_REAL ? *(const double *)at
                                                              : *(const unsigned *)at;
        if (value > 0) fact_set(g, f, value, SOURCE_KEY);
    }
    if (tower->ffn == TOWER_FFN_MLP && !tokens) g->ffn = family_ffn(g->family);
    if (tower->ffn == TOWER_FFN_SWIGLU) g->ffn = 1 + ACTIVATION_SWIGLU;
    if (tower->activation != TOWER_ACTIVATION_AUTO)
        fact_set(g, FACT_ACTIVATION, activation_named(tower_activation_names[tower->activation]), SOURCE_KEY);
    if (tower->head_dim && !tokens)
        g->facts.from[FACT_HEADS] = SOURCE_KEY; /* model_shape_check divides by it */
}

static int describe(const struct config *c, const struct config_tower *tower, bool from_file,
                    struct model_shape *g, struct error *err)
{
    static const int unshown = FACT_BIT(ACTIVATION) | FACT_BIT(POOL) | FACT_BIT(NORM) | FACT_BIT(NORM_EPS);
    memset(g, 0, sizeof *g);
    if (tower->arch != TOWER_ARCH_CUSTOM) {
        int code = model_shape_preset(tower_arch_names[tower->arch], g, err);
        if (code) return code;
        g->pos_resize = POS_RESIZE_USUAL; /* of the checkpoint's library */
        for (enum fact f = 0; f < FACT_VALUES; f++)
            if (fact_value(g, f) > 0 || (unshown & 1 << f && !objective_of(c)->tokens))
                g->facts.from[f] = SOURCE_PRESET;
    }
    bool from_weights = from_file && (tower == &c->model_s ? !config_given(c, "model.family")
                                                           : tower != c->model_t); /* read from its file */
    if (!g->family) g->family = tower->family;
    if (!g->family && !from_weights) g->family = c->model.family;
    int64_t heads = g->heads;
    take_keys(c, tower, g);
    if (g->kv_heads == heads && g->heads != heads && g->facts.from[FACT_KV_HEADS] == SOURCE_PRESET) {
        g->kv_heads = 0; /* as many as heads, of width / heads */
        if (g->facts.from[FACT_HEAD_DIM] == SOURCE_PRESET) g->head_dim = 0;
    }
    if (tower->tied >= 0) g->tied = tower->tied;
    else if (tower->arch == TOWER_ARCH_CUSTOM) g->tied = family_row(g->family)->tied;
    if (objective_of(c)->classes) g->classes = tower->classes ? tower->classes : CLASSES_UNKNOWN;
    return 0;
}

/* Names the source of a property that the tensors leave open. */
static void settled(struct model_shape *g, enum fact fact, enum fact_source from)
{
    if (fact_assumed(g, fact)) g->facts.from[fact] = (unsigned char)from;
}

/* Returns the source of a value of the sidecar config in which those of the metadata are. */
static enum fact_source source_of(const struct sidecar *b, enum fact fact)
{
    return b->says.facts.from[fact] ? SOURCE_METADATA : SOURCE_SIDECAR;
}

/* The file's own metadata take the place of a sidecar config's values. Where a sidecar config has another
 * value, it was edited or belongs to another tower: without a key, nothing says which is right. Pooling and
 * resizing of positions have other words in each library. */
static int prefer_own(const struct model_shape *g, struct sidecar *b, const struct model_shape *own,
                      struct error *err)
{
    static const enum fact facts[] = {FACT_HEADS,      FACT_NORM_EPS, FACT_ACTIVATION, FACT_NORM,
                                      FACT_POOL_HEADS, FACT_POOL,     FACT_POS_RESIZE};
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        enum fact f = facts[i];
        char says[FACT_TEXT], is[FACT_TEXT], hint[160];
        bool own_words = f == FACT_POOL || f == FACT_POS_RESIZE;
        if (!own_words && g->facts.from[f] != SOURCE_KEY && fact_differs(&b->says, own, f)) {
            if (f == FACT_POOL_HEADS) snprintf(hint, sizeof hint, _("correct the file that is wrong"));
            else
                snprintf(hint, sizeof hint, _("correct the file that is wrong, or set %s"),
                         fact_rows[f].name);
            return error_set(err, EXIT_CONFIG, hint, "%s has %s %s, the metadata in the weights %s", b->name,
                             fact_rows[f].name, fact_text(&b->says, f, false, says),
                             fact_text(own, f, false, is));
        }
        fact_take(&b->says, f, own, SOURCE_METADATA);
    }
    if (own->ffn) snprintf(b->activation, sizeof b->activation, "%s", model_shape_activation(own));
    if (own->pool) snprintf(b->pool, sizeof b->pool, "%s", model_shape_pool(own));
    return 0;
}

/* The frequencies of rotary positions, where the tensors do not hold them. */
static int settle_rotation(const struct sidecar *b, const struct model_shape *own, struct model_shape *g,
                           struct error *err)
{
    if (own->heads) settled(g, FACT_POS_RESIZE, SOURCE_METADATA); /* written by meopt */
    if (g->rope_count || !model_shape_rotates(g)) return 0;
    if (own->rope_count) {
        g->rope_count = own->rope_count;
        memcpy(g->rope_periods, own->rope_periods, sizeof g->rope_periods);
        return 0;
    }
    if (b->rotary) settled(g, FACT_POS_RESIZE, SOURCE_SIDECAR);
    double usual = family_rope_theta(g->family), says = b->says.rope.theta;
    if (!(says > 0) || fabs(says - usual) < 1e-6 * usual) return 0;
    int64_t count = g->heads ? g->width / g->heads / 4 : 0;
    if (family_has_variants(g->family) || usual > 100 || count < 1 || count > ROPE_MAX_PERIODS)
        return error_set(err, EXIT_CONFIG, "use a checkpoint of another architecture",
                         "%s says a rotary base of %g, a %s tower has %g", b->name, says,
                         family_name(g->family), usual);
    g->rope_count = (int)count;
    for (int64_t i = 0; i < count; i++) g->rope_periods[i] = powf((float)says, (float)i / (float)count);
    return 0;
}

static int settle_activation(const struct sidecar *b, const struct weights *weights, struct model_shape *g,
                             struct error *err)
{
    bool mlp = g->ffn != 1 + ACTIVATION_SWIGLU;
    if (g->facts.from[FACT_ACTIVATION] == SOURCE_KEY) return 0;
    if (b->activation[0] && mlp) {
        if (!b->says.ffn)
            return error_set(err, EXIT_CONFIG, "gelu, gelu_tanh and quick_gelu are known",
                             "the activation in %s is %s, which no tower here has", b->name, b->activation);
        fact_set(g, FACT_ACTIVATION, b->says.ffn, source_of(b, FACT_ACTIVATION));
    } else if (b->activation[0]) settled(g, FACT_ACTIVATION, source_of(b, FACT_ACTIVATION));
    /* OpenAI's CLIP comes as a TorchScript archive, and all of it has quick GELU */
    if (mlp && fact_assumed(g, FACT_ACTIVATION) && family_has_variants(g->family) &&
        strcmp(weights_format(weights), "torchscript") == 0)
        g->ffn = 1 + ACTIVATION_QUICK_GELU;
    return 0;
}

static int settle_pool(const struct sidecar *b, bool known_arch, struct model_shape *g, struct error *err)
{
    bool attn_pool = model_shape_parts(g) & PART_ATTN_POOL, key = g->facts.from[FACT_POOL] == SOURCE_KEY;
    enum fact_source from = source_of(b, FACT_POOL);
    if (attn_pool) fact_take(g, FACT_POOL_HEADS, &b->says, source_of(b, FACT_POOL_HEADS));
    if (b->pool[0] && !key) {
        /* a norm after the pooling, and poolings that only the tensor names identify */
        bool named = !known_arch && g->pool >= POOL_AVG_FIRST, surely = named && g->pool > POOL_AVG_FIRST;
        bool says = b->says.pool_heads || b->map, found = says && attn_pool;
        if (says && !found)
            return error_set(err, EXIT_CONFIG, "use the configuration file of this checkpoint",
                             "the pooling in %s is %s, but the checkpoint has no such part", b->name,
                             b->pool);
        if (!b->says.pool && !found)
            return error_set(err, EXIT_CONFIG, "set pool to one of those in meopt.yaml(5)",
                             "the pooling in %s is %s, which no tower here has", b->name, b->pool);
        if (!found && (!named || (b->says.pool == POOL_CLS && !surely)))
            fact_set(g, FACT_POOL, b->says.pool, from);
    }
    bool known = attn_pool ? b->says.pool_heads > 0 || !family_pool_heads(g->family) : b->pool[0] || key;
    if (attn_pool && !known && !known_arch) g->facts.from[FACT_POOL] = SOURCE_ASSUMED;
    if (known) settled(g, FACT_POOL, from);
    return 0;
}

/* Settles properties that the tensors do not determine: from the keys, else from the file's metadata
 * (written by meopt), else from its sidecar config, else assumed and reported. */
static int settle_from_files(const struct config_tower *tower, const struct weights *weights,
                             struct model_shape *g, struct preprocess_found *images, struct error *err)
{
    struct sidecar b;
    struct model_shape own;
    bool known_arch = tower->arch != TOWER_ARCH_CUSTOM;
    int code = sidecar_read(&b, tower->weight, g, err);
    if (!code) code = preprocess_read(images, &b, tower->weight, weights, err);
    if (!code) code = metadata_read(&own, weights, err);
    if (code) return code;
    if (b.odd[0])
        return error_set(err, EXIT_CONFIG, "use a checkpoint of another architecture",
                         "%s says %s, which no tower here has", b.name, b.odd);
    images->usual = b.says.image;
    code = prefer_own(g, &b, &own, err);
    if (code) return code;
    fact_take(g, FACT_NORM, &b.says, source_of(&b, FACT_NORM));
    fact_take(g, FACT_NORM_EPS, &b.says, source_of(&b, FACT_NORM_EPS));
    if (g->facts.from[FACT_HEADS] != SOURCE_TENSORS) /* those of rotary positions */
        fact_take(g, FACT_HEADS, &b.says, source_of(&b, FACT_HEADS));
    unsigned char positions = g->facts.from[FACT_POS_RESIZE];
    if (own.pos_resize || !g->pos_resize) /* the names may determine it */
        fact_take(g, FACT_POS_RESIZE, &b.says, source_of(&b, FACT_POS_RESIZE));
    if (model_shape_rotates(g)) g->facts.from[FACT_POS_RESIZE] = positions; /* settle_rotation */
    else if (b.says.pos_resize || known_arch)
        settled(g, FACT_POS_RESIZE, b.says.pos_resize ? SOURCE_SIDECAR : SOURCE_PRESET);
    code = settle_activation(&b, weights, g, err);
    if (!code) code = settle_pool(&b, known_arch, g, err);
    return code ? code : settle_rotation(&b, &own, g, err);
}

/* Returns the input size from the keys; 0: not given. */
static int64_t size_given(const struct config *c, const struct config_tower *tower,
                          const struct model_shape *teacher)
{
    if (tower == &c->model_s && c->data_s.image_size) return c->data_s.image_size;
    if (tower != &c->model_s && tower->image_size) return tower->image_size;
    if (tower != &c->model_s && tower != c->model_t && !config_given(c, "data.image_size")) return 0;
    return teacher && !config_given(c, "data.image_size") ? 0 : c->data.image_size;
}

/* Sets the input size of a tower without a file: the teacher's for the same family. A random tower has
 * positions for its own size, unless its family stores them for a fixed one. */
static void size_random(const struct config_tower *tower, int64_t size, const struct model_shape *teacher,
                        struct model_shape *g)
{
    if (!size && teacher && (!g->family || g->family == teacher->family || !g->image)) size = teacher->image;
    if (!g->family && teacher) g->family = teacher->family;
    if (!size) return;
    if (g->image && g->image != size && !family_stores_positions(g->family) && !tower->pos_grid)
        g->pos_grid = size / (g->patch ? g->patch : 14);
    fact_set(g, FACT_IMAGE, (double)size, SOURCE_KEY);
}

/* Sets the input size of a tower with a file: from the keys, else its sidecar files, else the teacher's
 * for the same family, else from its positions. */
static int size_of_file(const struct config *c, int64_t size, const struct preprocess_found *images,
                        const struct model_shape *teacher, struct model_shape *g, struct error *err)
{
    bool read = !config_given(c, "data.pipeline");
    if (read && images->odd[0])
        return error_set(err, EXIT_CONFIG, "set data.pipeline, and the keys of data that differ from it",
                         "the preprocessing in %s is not known here: %s", images->from, images->odd);
    bool of_teacher = teacher && teacher->family == g->family && g->patch && teacher->image % g->patch == 0;
    if (size) fact_set(g, FACT_IMAGE, (double)size, SOURCE_KEY);
    else if (read && images->side && !g->image) fact_set(g, FACT_IMAGE, (double)images->side, SOURCE_SIDECAR);
    else if (of_teacher) fact_set(g, FACT_IMAGE, (double)teacher->image, SOURCE_KEY);
    else if (images->usual && !g->image && g->patch && images->usual % g->patch == 0)
        fact_set(g, FACT_IMAGE, (double)images->usual, SOURCE_SIDECAR);
    return 0;
}

/* Refuses keys that the model of the checkpoint cannot have. */
static int check_tokens(const struct config_tower *tower, const struct model_shape *g, struct error *err)
{
    bool gated = g->ffn == 1 + ACTIVATION_SWIGLU, activation = tower->activation != TOWER_ACTIVATION_AUTO;
    if (tower->rope_theta > 0 && !model_shape_rotates(g))
        return error_set(err, EXIT_CONFIG, "leave model.rope_theta out",
                         "model.rope_theta is %g, but a %s model has no rotary positions", tower->rope_theta,
                         family_name(g->family));
    if (gated && (activation || tower->ffn == TOWER_FFN_MLP))
        return error_set(err, EXIT_CONFIG, "leave it out",
                         "%s is %s, but the feed-forward of the model is swiglu",
                         activation ? "model.activation" : "model.ffn",
                         activation ? tower_activation_names[tower->activation] : "mlp");
    return 0;
}

/* Refuses another head than the checkpoint's. */
static int check_tied(const struct config_tower *tower, const struct model_shape *g, struct error *err)
{
    if (tower->tied < 0 || (tower->tied > 0) == g->tied) return 0;
    return error_set(err, EXIT_CONFIG, "leave model.tied out",
                     "model.tied is %s, but the head of the checkpoint is %s", g->tied ? "false" : "true",
                     g->tied ? _("its token table") : _("a matrix of its own"));
}

/* Refuses a language model without its objective, and the objective without one. */
static int check_kind(const struct config *c, const struct model_shape *g, struct error *err)
{
    const struct objective *o = objective_of(c);
    bool encoder = family_encoder(family_row(g->family));
    if (model_shape_language(g) == o->tokens && encoder == o->encoder) return 0;
    return error_set(err, EXIT_CONFIG,
                     encoder && o->classes ? N_("set model.family to that of the weights")
                     : encoder             ? N_("set train.objective: masked, or classify")
                     : !model_shape_language(g)
                         ? N_("gpt2 and llama read tokens, bert and its kin masked ones")
                         : N_("set train.objective: language"),
                     "train.objective is %s, but the family of the model is %s", objective_of(c)->name,
                     family_name(g->family));
}

/* Settles one tower's shape and opens its weights. teacher: the teacher of a student, or NULL. */
static int settle(struct config *c, const struct config_tower *tower, const struct model_shape *teacher,
                  bool random, struct model_shape *g, struct weights **weights,
                  struct preprocess_found *images, struct error *err)
{
    bool from_file = !random && tower->weight[0] && tower->init != TOWER_INIT_RANDOM,
         alone = !objective_of(c)->teacher;
    int64_t size = size_given(c, tower, teacher);
    *images = (struct preprocess_found){.from = ""};
    int code = describe(c, tower, from_file, g, err);
    if (code) return code;
    if (!from_file && !random && tower->init != TOWER_INIT_RANDOM)
        return error_set(err, EXIT_CONFIG,
                         alone ? N_("set model.weight, or model.init: random")
                               : N_("set model.weight_t and model.weight_s"),
                         "the %s has no checkpoint", objective_tower(objective_of(c), tower == &c->model_s));
    if (!from_file) {
        size_random(tower, size, teacher, g);
        code = model_shape_check(g, tower->head_dim, err);
        if (!code) code = check_kind(c, g, err);
        return code || !objective_of(c)->tokens ? code : check_tokens(tower, g, err);
    }
    if ((size || teacher) && !tower->pos_grid) g->pos_grid = 0; /* taken from the file */
    code = model_files_open(c->model_files, tower->weight, g, weights, err);
    if (!code) code = check_kind(c, g, err);
    bool tokens = objective_of(c)->tokens; /* the rest is of images */
    if (!code && tokens) code = check_tokens(tower, g, err);
    if (!code && tokens) code = check_tied(tower, g, err);
    if (!code && !tokens) code = settle_from_files(tower, *weights, g, images, err);
    if (!code && !tokens) code = size_of_file(c, size, images, teacher, g, err);
    if (!code) code = model_shape_check(g, tower->head_dim, err);
    if (!code) code = model_files_fit(c->model_files, g, *weights, err);
    if (code && err && !err->file[0]) error_at(err, tower->weight, 0, 0);
    return code;
}

int experiment_check_weights(struct config *c, int tower, struct error *err)
{
    struct model_shape g;
    struct weights *weights = NULL;
    struct preprocess_found images;
    const struct config_tower *of = tower == TOWER_STUDENT ? &c->model_s : &c->model_t[tower];
    int code = settle(c, of, NULL, false, &g, &weights, &images, err);
    weights_close(weights);
    return code;
}

/* Sets model.classes, which the data has given, or the checkpoint. */
static int settle_class_count(struct config *c, const struct model_shape *g, struct error *err)
{
    char text[24];
    if (g->classes < 1)
        return error_set(err, EXIT_CONFIG, "set model.classes, or data.root",
                         "the number of classes is unknown: neither data.root nor the checkpoint give it");
    snprintf(text, sizeof text, "%lld", (long long)g->classes);
    return c->model_s.classes ? 0 : config_assign(c, "model_s.classes", text, err);
}

/* Checks a student without a teacher. */
static int check_student(const struct config *c, const struct model_shape *student, struct error *err)
{
    struct experiment_towers towers = {.student = *student};
    return experiment_check(c, &towers, err);
}

/* Determines the shape of a language model. */
static int settle_language(struct config *c, bool random, struct model_shape *g, struct weights **weights,
                           struct error *err)
{
    struct preprocess_found images;
    int code = settle(c, &c->model_s, NULL, random, g, weights, &images, err);
    if (code) return code;
    if (!c->model_s.context) c->model_s.context = g->context;
    if (!c->model_s.vocabulary) c->model_s.vocabulary = g->vocabulary;
    code = adapters_settle(c, g, err);
    if (!code && objective_of(c)->classes) code = settle_class_count(c, g, err);
    bool masked = objective_of(c)->masked, settled = false;
    if (!code && masked) code = experiment_settle_mask(c, &settled, err);
    if (!code && masked && !settled) code = special_tokens_settle(c, g, err);
    if (!code && g->block > 0 && !blocks_used(g))
        log_info("model.context %lld is at most %lld: each token sees all, without blocks",
                 (long long)g->context, (long long)blocks_dense_context(g));
    if (!code) code = check_student(c, g, err);
    return code ? code : config_resolve(c, g->family, err);
}

/* Determines the shape of one tower of images, without its teacher, and how its images are prepared. */
static int settle_alone(struct config *c, int tower, bool random, struct model_shape *g,
                        struct weights **weights, struct error *err)
{
    struct preprocess_found images;
    bool pipeline_given = config_given(c, "data.pipeline"), own = !objective_of(c)->teacher;
    const struct config_tower *of = tower == TOWER_STUDENT ? &c->model_s : &c->model_t[tower];
    int code = settle(c, of, NULL, random, g, weights, &images, err);
    bool further = tower > 0 && tower < TOWER_STUDENT;
    enum family family = own || further || !c->model.family ? g->family : c->model.family;
    if (further) c->model.family = family; /* it alone is read */
    if (!code && (!c->data.image_size || further)) c->data.image_size = g->image;
    if (!code) code = config_resolve(c, family, err);
    if (!code) code = preprocess_assign(c, &images, pipeline_given, err);
    if (!code && tower) memcpy(c->images_from[tower], c->images_from[0], sizeof c->images_from[0]);
    return code;
}

void experiment_close_towers(struct experiment_towers *t)
{
    for (int i = 0; i < MOST_TEACHERS; i++) weights_close(t->teacher_weights[i]);
    weights_close(t->student_weights);
    memset(t->teacher_weights, 0, sizeof t->teacher_weights);
    t->student_weights = NULL;
}

static int settle_student_alone(struct config *c, bool random, struct experiment_towers *t, struct error *err)
{
    if (objective_of(c)->tokens) return settle_language(c, random, &t->student, &t->student_weights, err);
    int code = settle_alone(c, TOWER_STUDENT, random, &t->student, &t->student_weights, err);
    if (!code) code = settle_class_count(c, &t->student, err);
    if (!code) code = adapters_settle(c, &t->student, err);
    return code ? code : check_student(c, &t->student, err);
}

static int settle_distillation(struct config *c, bool random, struct experiment_towers *t, struct error *err)
{
    struct preprocess_found images[MOST_TEACHERS + 1];
    struct model_shape *first = &t->teachers[0], *student = &t->student;
    bool pipeline_given = config_given(c, "data.pipeline");
    int code = settle(c, &c->model_t[0], NULL, random, first, &t->teacher_weights[0], &images[0], err);
    t->teacher_count = config_teachers(c);
    if (!code && !c->data.image_size) c->data.image_size = first->image;
    for (int i = 1; i < t->teacher_count && !code; i++)
        code =
            settle(c, &c->model_t[i], NULL, random, &t->teachers[i], &t->teacher_weights[i], &images[i], err);
    if (!code)
        code =
            settle(c, &c->model_s, first, random, student, &t->student_weights, &images[TOWER_STUDENT], err);
    if (!code && student->family != first->family && !c->model_s.family)
        code = config_assign(c, "model_s.family", family_name(student->family), err);
    if (!code) code = config_resolve(c, first->family, err);
    if (!code) code = preprocess_assign(c, &images[0], pipeline_given, err);
    for (int i = 1; i < t->teacher_count && !code; i++)
        code = preprocess_assign_teacher(c, i, &images[i], pipeline_given, first, &t->teachers[i], err);
    if (!code)
        code = preprocess_assign_student(c, &images[TOWER_STUDENT], pipeline_given, first, student,
                                         t->student_weights != NULL, err);
    if (!code) code = adapters_settle(c, student, err);
    if (!code) code = targets_list(&t->targets, c, t->teachers, student, err);
    return code ? code : experiment_check(c, t, err);
}

int experiment_towers(struct config *c, bool random, struct experiment_towers *t, struct error *err)
{
    memset(t, 0, sizeof *t);
    int code = objective_of(c)->teacher ? settle_distillation(c, random, t, err)
                                        : settle_student_alone(c, random, t, err);
    if (code) experiment_close_towers(t);
    return code;
}

/* Returns whether the teacher must be read for the student's images: not if the keys of a run give them. */
static bool needs_teacher(const struct config *c)
{
    if (!c->model_t[0].weight[0] || c->model_t[0].init == TOWER_INIT_RANDOM) return false;
    bool size = config_given(c, "data.image_size");
    return !size || (!config_given(c, "data.pipeline") && access(c->model_t[0].weight, R_OK) == 0);
}

int experiment_tower_shape(struct config *c, int tower, struct model_shape *g, struct weights **weights,
                           struct error *err)
{
    *weights = NULL;
    int code;
    bool student = tower == TOWER_STUDENT;
    if (objective_of(c)->tokens) code = settle_language(c, false, g, weights, err);
    else if (student && needs_teacher(c)) {
        struct experiment_towers all;
        code = experiment_towers(c, false, &all, err);
        *g = all.student;
        *weights = all.student_weights;
        all.student_weights = NULL;
        experiment_close_towers(&all);
    } else {
        code = settle_alone(c, tower, false, g, weights, err);
        g->classes = 0; /* the embedding, not a classifier's output */
        if (!code && student) code = adapters_settle(c, g, err);
        if (!code && student) code = experiment_check_adapters(c, g, err);
    }
    if (!code && !*weights)
        code = error_set(err, EXIT_CONFIG, NULL, "the %s has no checkpoint: its values are random",
                         student ? "student" : "teacher");
    if (code) {
        weights_close(*weights);
        *weights = NULL;
    }
    return code;
}
