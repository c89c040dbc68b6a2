/* Models of tokens with one batch of a golden file, and what each must pass: the classes of transformers, in
 * fp32 and bf16, and the forms of one model among each other. Each kind is a row `struct golden_model`. On a
 * card: MEOPT_TEST_DEVICE=hip:0; if it is emulated, with fewer steps and forms of some models (MEOPT_LONG:
 * all). */
#ifndef MEOPT_TESTS_GOLDEN_LANGUAGE_SUBJECT_H
#define MEOPT_TESTS_GOLDEN_LANGUAGE_SUBJECT_H

#include "core/nn/tower.h"
#include "tests/golden/golden_training.h"

#include <stdio.h>

enum { STEPS = 6, MOST = 4096, BATCH = 3, CONTEXT = 24 }; /* MOST: rows; the others usual */
enum { TOKENS, LABELS, BEGINS, ENDS, ORDER, PICKED, ARRAYS };

struct subject;
struct golden_model {
    const char *folder;     /* of tests/data: tokens, labels and what is expected */
    const char *weights;    /* the folder of its weights, if it is a different one */
    bool masked;            /* labels of few tokens, padding at the end of samples */
    int64_t classes;        /* of a classifier, else 0 */
    int64_t parts, slabs;   /* rows of logits: of a part, and of a slab */
    const char *on_card[2]; /* directories that an emulated card tries in every form */
    /* NULL: subject_open, run, logits_error, reference_read */
    void (*open)(struct subject *s, const char *dir, const struct tower_options *options);
    double (*run)(struct subject *s, double *correct);
    double (*logits)(struct subject *s, const struct weights *golden);
    void (*read)(struct subject *s, const char *dir, const char *file);
};
static const struct golden_model *model; /* the current one */

struct subject {
    struct device *device;
    struct tower *tower;
    struct adamw adamw;
    int64_t batch, tokens;                                       /* B, N */
    int32_t input[MOST], labels[MOST], begins[MOST], ends[MOST]; /* host */
    bool documents;                                              /* begins and ends are given to the tower */
    bool evaluates;                                              /* batch.evaluates */
    double units;                                                /* of the loss; 0: the labelled rows */
    int32_t *arrays;                                             /* device: ARRAYS of MOST */
    double *sums;               /* loss, correct; a classifier's: three, dout */
    float smoothing;            /* of labels */
    struct reference reference; /* gradients or weights */
};

static inline void read_rows(const struct weights *golden, const char *name, int32_t *to)
{
    struct error err = {0};
    int64_t at = weights_find(golden, name);
    assert_true(at >= 0 && weights_tensor(golden, at)->count <= MOST);
    assert_int_equal(weights_read(golden, at, to, DTYPE_I32, &err), 0);
}

static inline struct tower_options options_of(enum dtype compute)
{
    return (struct tower_options){.batch = BATCH,
                                  .compute = compute,
                                  .weight_type = compute,
                                  .grad_type = DTYPE_F32,
                                  .gradients = GRADIENTS_KEEP,
                                  .weights_class = MEMORY_WEIGHTS,
                                  .activations_class = MEMORY_ACTIVATIONS};
}

/* A model of `context` tokens; 0: as many as the golden file's samples, with its padding, if it has any. */
static inline void subject_open_in(struct subject *s, const char *dir, int64_t context,
                                   const struct tower_options *options)
{
    struct error err = {0};
    struct weights *file =
                       golden_open(model->weights ? model->weights : model->folder, dir, "model.safetensors"),
                   *golden = golden_open(model->folder, dir, "golden.safetensors");
    const char *name = getenv("MEOPT_TEST_DEVICE") ? getenv("MEOPT_TEST_DEVICE") : "cpu";
    const struct weights_tensor *tokens = weights_tensor(golden, weights_find(golden, "tokens"));
    bool whole = context == 0 || context == tokens->shape[1];
    if (whole) context = tokens->shape[1];
    struct model_shape g = {.context = context, .classes = model->classes ? CLASSES_UNKNOWN : 0};
    int32_t lengths[MOST];
    *s = (struct subject){.batch = options->batch, .tokens = context, .documents = model->masked};
    if (device_open(&s->device, name, 0, &err)) fail_msg("%s", err.what);
    if (model_shape_infer(&g, file, 0, &err)) fail_msg("%s: %s", dir, err.what);
    if (tower_create(&s->tower, s->device, &g, options, &err) || tower_load(s->tower, file, NULL, NULL, &err))
        fail_msg("%s: %s", dir, err.what);
    assert_true(g.classes == model->classes && s->tower->owns_loss == !model->classes);
    tower_bind_scratch(s->tower,
                       device_alloc(s->device, MEMORY_WORKSPACE, s->tower->scratch_bytes, "scratch", &err));
    s->arrays = device_alloc(s->device, MEMORY_DATA, ARRAYS * MOST * sizeof *s->arrays, "tokens", &err);
    s->sums = device_alloc(s->device, MEMORY_WORKSPACE, MOST * sizeof(double), "sums", &err);
    s->reference = reference_of(s->tower);
    for (int i = 0;
         i < s->tower->parameter_count && options->gradients != GRADIENTS_NONE && !options->lora.rank; i++)
        assert_int_equal(s->tower->parameters[i].trained, s->tower->parameters[i].group >= options->frozen &&
                                                              s->tower->parameters[i].role != ROLE_UNUSED_W &&
                                                              s->tower->parameters[i].role != ROLE_UNUSED_B);
    read_rows(golden, "tokens", s->input);
    read_rows(golden, "labels", s->labels);
    if (model->masked) read_rows(golden, "ends", lengths);
    for (int64_t i = 0; i < s->batch * context; i++) {
        int32_t length = model->masked && whole ? lengths[i / context] : (int32_t)context;
        bool padding = i % context >= length;
        s->begins[i] = padding ? length : 0;
        s->ends[i] = padding ? (int32_t)context : length;
    }
    weights_close(file);
    weights_close(golden);
}

static inline void subject_open(struct subject *s, const char *dir, const struct tower_options *options)
{
    if (model->open) model->open(s, dir, options);
    else subject_open_in(s, dir, 0, options);
}

static inline void subject_close(struct subject *s)
{
    reference_free(&s->reference);
    adamw_close(&s->adamw);
    tower_close(s->tower);
    device_close(s->device);
}

/* Sorts row numbers by token, stably. */
static inline void order_rows(const int32_t *tokens, int64_t count, int32_t *order)
{
    int64_t done = 0;
    for (int32_t token = 0; done < count; token++)
        for (int64_t i = 0; i < count; i++)
            if (tokens[i] == token) order[done++] = (int32_t)i;
}

/* The labelled rows of each sample, and the last row in their place where there are fewer. */
static inline void pick_rows(const struct subject *s, int64_t first, int64_t count, int32_t *picked,
                             int32_t *labels)
{
    int64_t each = s->tower->out_rows, N = s->tokens;
    for (int64_t i = 0; i < count; i++) {
        int64_t n = 0;
        for (int64_t k = 0; k < N; k++) {
            int32_t label = s->labels[(first + i) * N + k];
            if (label < 0) continue;
            assert_true(n < each);
            picked[i * each + n] = (int32_t)(i * N + k);
            labels[i * each + n++] = label;
        }
        for (; n < each; n++) {
            picked[i * each + n] = (int32_t)(i * N + N - 1);
            labels[i * each + n] = -1;
        }
    }
}

/* Uploads samples [first, first + count). */
static inline struct batch batch_of(struct subject *s, int64_t first, int64_t count, double units)
{
    int32_t order[MOST], picked[MOST], labels[MOST], *at[ARRAYS];
    int64_t from = first * s->tokens, rows = count * s->tokens;
    const int32_t *host[ARRAYS] = {s->input + from, s->labels + from, s->documents ? s->begins + from : NULL,
                                   s->documents ? s->ends + from : NULL, order};
    order_rows(s->input + from, rows, order);
    if (model->masked && !model->classes) {
        pick_rows(s, first, count, picked, labels);
        host[LABELS] = labels;
        host[PICKED] = picked;
    }
    for (int i = 0; i < ARRAYS; i++) {
        int64_t used = host[i] == labels || host[i] == picked ? count * s->tower->out_rows : rows;
        at[i] = host[i] ? s->arrays + i * MOST : NULL;
        if (at[i]) s->device->upload(s->device, at[i], host[i], (size_t)used * sizeof **at);
    }
    return (struct batch){.input = at[TOKENS],
                          .count = count,
                          .labels = at[LABELS],
                          .begins = at[BEGINS],
                          .ends = at[ENDS],
                          .order = at[ORDER],
                          .picked = at[PICKED],
                          .sums = s->sums,
                          .smoothing = s->smoothing,
                          .evaluates = s->evaluates,
                          .weight = (float)(1 / units)};
}

static inline double units_of(const struct subject *s)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->batch * s->tokens; i++) count += s->labels[i] >= 0;
    return s->units > 0 ? s->units : (double)count;
}

static inline void clear_sums(struct subject *s)
{
    s->device->ops->fill(s->device, s->sums, 0, 2 * sizeof(double));
}

static inline void read_sums(struct subject *s, double sums[2])
{
    s->device->sync(s->device);
    s->device->download(s->device, sums, s->sums, 2 * sizeof(double));
}

/* Forward and backward of the whole batch in micro-batches; returns the loss. */
static inline double run_in(struct subject *s, int64_t micro, double *correct)
{
    struct error err = {0};
    double units = units_of(s), sums[2];
    clear_sums(s);
    for (int64_t first = 0; first < s->batch; first += micro) {
        int64_t count = s->batch - first < micro ? s->batch - first : micro;
        struct batch batch = batch_of(s, first, count, units);
        tower_forward(s->tower, &batch);
        if (tower_backward(s->tower, &batch, NULL, first == 0, first + count == s->batch, NULL, NULL, &err))
            fail_msg("%s", err.what);
    }
    read_sums(s, sums);
    if (correct) *correct = sums[1];
    return sums[0];
}

static inline double run(struct subject *s, double *correct)
{
    return model->run ? model->run(s, correct) : run_in(s, s->batch, correct);
}

/* Of the labelled tokens of a masked model, or of the last token of each sample. */
static inline double logits_error(struct subject *s, const struct weights *golden)
{
    struct error err = {0};
    int64_t V = s->tower->out_width, rows[MOST], n, count = 0;
    int32_t picked[MOST], labels[MOST];
    double *expected = golden_tensor(golden,
                                     s->evaluates    ? "evaluation"
                                     : model->masked ? "logits"
                                                     : "last",
                                     &n);
    float *logits = device_alloc(s->device, MEMORY_WORKSPACE, (size_t)n * sizeof *logits, "logits", &err);
    if (model->masked) pick_rows(s, 0, s->batch, picked, labels);
    for (int64_t i = 0; i < s->batch * (model->masked ? s->tower->out_rows : 1); i++)
        if (!model->masked || labels[i] >= 0) rows[count++] = model->masked ? i : (i + 1) * s->tokens - 1;
    struct batch batch = batch_of(s, 0, s->batch, 1);
    assert_int_equal(n, count * V);
    tower_forward(s->tower, &batch);
    tower_logits(s->tower, rows, count, logits);
    double *mine = device_values(s->device, logits, DTYPE_F32, n), error = rel_l2(mine, expected, n);
    free(mine);
    free(expected);
    return error;
}

/* Reads values under the parameters' names into s->reference. */
static inline void read_reference(struct subject *s, const char *dir, const char *file)
{
    if (model->read) model->read(s, dir, file);
    else reference_read(&s->reference, model->folder, dir, file);
}

/* Returns the largest root mean square of a parameter's differences, in *element the largest difference.
 * Where a gradient is as small as its rounding, AdamW's step of an element (up to 1e-3) depends on it. A
 * key's bias has no gradient at all. */
static inline double end_error(struct subject *s, const char **name, double *element)
{
    double worst = 0;
    int64_t q = model_shape_attn_width(&s->tower->model_shape),
            k_end = (q + model_shape_qkv_width(&s->tower->model_shape)) / 2;
    *element = 0;
    for (int i = 0; i < s->tower->parameter_count; i++) {
        const struct parameter *p = &s->tower->parameters[i];
        if (!p->trained) continue;
        double *mine = device_values(s->device, p->weight, DTYPE_F32, p->count), squares = 0;
        bool bias =
            strstr(p->name, "attn.bias") || strstr(p->name, "qkv_proj.bias") || strstr(p->name, "qkv.bias");
        for (int64_t k = 0; k < p->count; k++) {
            double error = fabs(mine[k] - (double)s->reference.values[i][k]);
            if (bias && s->tower->family->rope == ROPE_NONE && k >= q && k < k_end) continue;
            squares += error * error;
            *element = fmax(*element, error);
        }
        free(mine);
        if (sqrt(squares / (double)p->count) <= worst) continue;
        worst = sqrt(squares / (double)p->count);
        *name = p->name;
    }
    return worst;
}

/* Returns whether all steps and forms are tried with this directory. */
static inline bool tried_fully(const char *dir)
{
    if (!card_is_emulated() || getenv("MEOPT_LONG")) return true;
    for (int i = 0; i < 2; i++)
        if (model->on_card[i] && strcmp(model->on_card[i], dir) == 0) return true;
    return false;
}

/* On an emulated card one step, of the others all. */
static inline void equals_original(const char *dir)
{
    struct subject s;
    struct tower_options options = options_of(DTYPE_F32);
    struct weights *golden = golden_open(model->folder, dir, "golden.safetensors");
    double *loss = golden_tensor(golden, "loss", NULL), *correct = golden_tensor(golden, "correct", NULL);
    double worst = 0, gradients = 0, end = 0, element = 0, found_correct;
    const char *name = "", *moved = "";
    int64_t steps = tried_fully(dir) ? STEPS : 1;
    subject_open(&s, dir, &options);
    adamw_open(&s.adamw, s.tower);
    double logits = (model->logits ? model->logits : logits_error)(&s, golden);
    for (int64_t i = 0; i < steps; i++) {
        double found = run(&s, &found_correct);
        worst = fmax(worst, fabs(found - loss[i]) / loss[i]);
        if (i == 0) {
            if (correct) assert_true(fabs(found_correct - correct[0]) < 0.5);
            read_reference(&s, dir, "gradient.safetensors");
            gradients = gradient_error(&s.reference, NULL, &name);
        }
        adamw_step(&s.adamw, i + 1);
    }
    if (steps == STEPS) {
        read_reference(&s, dir, "final.safetensors");
        end = end_error(&s, &moved, &element);
    }
    printf("%-12s logits %.1e loss %.1e gradients %.1e (%s) final %.1e (%s), of an element %.1e\n", dir,
           logits, worst, gradients, name, end, moved, element);
    if (!(logits <= 1e-5 && worst <= 1e-6 && gradients <= 5e-6 && end <= 1e-6 && element <= 1e-4))
        fail_msg("%s: outside the fp32 tolerance", dir);
    subject_close(&s);
    weights_close(golden);
    free(loss);
    free(correct);
}

/* No worse than 1.5 times what PyTorch's own bf16 shows on the same data. A loss is one draw of an error that
 * may be small by chance, in PyTorch as here: those of all cases are compared together (losses_in_bf16), and
 * one alone is bounded by three times PyTorch's. */
static double bf16_squares[2]; /* of the errors of all losses so far: here, PyTorch's */
static inline void equals_in_bf16(const char *dir)
{
    struct subject s;
    struct tower_options options = options_of(DTYPE_BF16);
    struct weights *golden = golden_open(model->folder, dir, "golden.safetensors");
    double *loss = golden_tensor(golden, "loss", NULL), *torch = golden_tensor(golden, "bf16", NULL), median;
    const char *name = "";
    options.grad_type = DTYPE_BF16;
    subject_open(&s, dir, &options);
    double error = fabs(run(&s, NULL) - loss[0]) / loss[0];
    read_reference(&s, dir, "gradient.safetensors");
    double worst = gradient_error(&s.reference, &median, &name);
    printf("%-12s bf16 / PyTorch's bf16: loss %.2f gradients %.2f (%s) median %.2f\n", dir, error / torch[0],
           worst / torch[1], name, median / torch[2]);
    bf16_squares[0] += error * error;
    bf16_squares[1] += torch[0] * torch[0];
    if (!(error <= fmax(3 * torch[0], 2e-3) && worst <= 1.5 * torch[1] && median <= 1.5 * torch[2]))
        fail_msg("%s: worse than 1.5 x PyTorch's bf16", dir);
    subject_close(&s);
    weights_close(golden);
    free(loss);
    free(torch);
}
static inline void losses_in_bf16(void)
{
    double ours = sqrt(bf16_squares[0]), torch = sqrt(bf16_squares[1]);
    printf("losses in bf16 / PyTorch's: %.2f\n", ours / torch);
    assert_true(bf16_squares[1] > 0);
    if (!(ours <= 1.5 * torch)) fail_msg("losses in bf16: %.2g, PyTorch's %.2g", ours, torch);
}

/* Puts the gradients of `from` into the reference of s, or adds them. */
static inline void take_gradients(struct subject *s, const struct subject *from, bool add)
{
    for (int i = 0; i < from->tower->parameter_count; i++) {
        const struct parameter *p = &from->tower->parameters[i];
        if (!p->trained) continue;
        double *grad = device_values(from->device, p->grad, p->grad_type, p->count);
        float **to = &s->reference.values[i];
        bool fresh = !*to || !add;
        *to = xrealloc(*to, (size_t)p->count * sizeof **to);
        for (int64_t k = 0; k < p->count; k++) (*to)[k] = (float)grad[k] + (fresh ? 0 : (*to)[k]);
        free(grad);
    }
}

/* Compares the loss and every gradient of the model with other options, or in micro-batches, with the plain
 * model's. */
static inline void forms_agree(const char *dir)
{
    const struct {
        struct tower_options options;
        int64_t micro;
        double tolerance;
        bool masked; /* only of a masked model */
    } forms[] = {{{.recompute = RECOMPUTE_BLOCK}, BATCH, 0, false},
                 {{.backward_twice = true}, BATCH, 0, true},
                 {{.loss_chunk = (size_t)model->parts * 128 * sizeof(float)}, BATCH, 1e-6, false},
                 {{.loss_chunk = (size_t)model->slabs * 128 * sizeof(float)}, BATCH, 1e-6, false},
                 {{0}, 1, 1e-6, false},
                 {{0}, 2, 1e-6, false},
                 {{.compute = DTYPE_BF16, .recompute = RECOMPUTE_BLOCK}, BATCH, 0, true},
                 {{.compute = DTYPE_BF16, .saved = SAVED_8BIT}, BATCH, 3e-2, false}};
    struct subject plain, other;
    if (!tried_fully(dir)) return;
    for (enum dtype compute = DTYPE_F32; compute <= DTYPE_BF16; compute++) {
        struct tower_options usual = options_of(compute);
        subject_open(&plain, dir, &usual);
        double loss = run(&plain, NULL);
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
            struct tower_options options = usual;
            const char *name = "";
            if (forms[i].options.compute != compute || (forms[i].masked && !model->masked)) continue;
            options.recompute = forms[i].options.recompute;
            options.backward_twice = forms[i].options.backward_twice;
            options.loss_chunk = forms[i].options.loss_chunk;
            options.saved = forms[i].options.saved;
            subject_open(&other, dir, &options);
            double found = run_in(&other, forms[i].micro, NULL), tolerance = forms[i].tolerance;
            take_gradients(&other, &plain, false);
            double worst = gradient_error(&other.reference, NULL, &name);
            if (!(fabs(found - loss) <= fmin(tolerance, 1e-6) * loss && worst <= tolerance))
                fail_msg("%s: form %d: loss %.9g, not %.9g; gradient of %s %.1e", dir, (int)i, found, loss,
                         name, worst);
            subject_close(&other);
        }
        subject_close(&plain);
    }
}

/* Documents of 7, 11 and 6 tokens in one sample: each as if it were a sample of its own, with nothing else in
 * it. Positions begin again with each document, so the table's rows beyond the longest have no gradient. */
static inline void packed_equals_separate(const char *dir)
{
    static const int64_t document[] = {0, 7, 18, CONTEXT};
    struct subject packed, one;
    struct tower_options options = options_of(DTYPE_F32);
    double alone[2] = {0}, correct, found;
    const char *name = "";
    if (!tried_fully(dir)) return;
    subject_open(&packed, dir, &options);
    packed.documents = true;
    for (int i = 0; i < BATCH * CONTEXT; i++) {
        int at = i % CONTEXT, d = (at >= document[1]) + (at >= document[2]);
        packed.begins[i] = (int32_t)document[d];
        packed.ends[i] = (int32_t)document[d + 1];
        if (model->masked) packed.labels[i] = at == 3 || at == 11 || at == 20 ? (i * 7) % 97 : -1;
    }
    double loss = run(&packed, &correct), units = units_of(&packed);
    for (int d = 0; d < 3; d++) {
        subject_open_in(&one, dir, document[d + 1] - document[d], &options);
        one.units = units;
        for (int64_t i = 0; i < BATCH * one.tokens; i++) {
            int64_t from = i / one.tokens * CONTEXT + document[d] + i % one.tokens;
            one.input[i] = packed.input[from];
            one.labels[i] = packed.labels[from];
        }
        alone[0] += run(&one, &found);
        alone[1] += found;
        take_gradients(&packed, &one, d > 0);
        subject_close(&one);
    }
    double worst = gradient_error(&packed.reference, NULL, &name);
    if (!(fabs(loss - alone[0]) <= 1e-6 * loss && fabs(correct - alone[1]) < 0.5 && worst <= 1e-5))
        fail_msg("%s: packed loss %.9g, separate %.9g; gradient of %s %.1e", dir, loss, alone[0], name,
                 worst);
    subject_close(&packed);
}

/* The gradient along a direction against the difference of two losses. */
static inline void check_slope(const char *dir, double step_size)
{
    struct subject s;
    struct tower_options options = options_of(DTYPE_F32);
    double slope = 0, loss[2];
    subject_open(&s, dir, &options);
    run(&s, NULL);
    take_gradients(&s, &s, false);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < s.tower->parameter_count; i++) {
            const struct parameter *p = &s.tower->parameters[i];
            if (!p->trained) continue;
            double *w = device_values(s.device, p->weight, DTYPE_F32, p->count);
            float *moved = xmalloc((size_t)p->count * sizeof *moved);
            for (int64_t k = 0; k < p->count; k++) {
                double direction = cos(0.7 * (double)k + i);
                if (side == 0) slope += direction * (double)s.reference.values[i][k];
                moved[k] = (float)(w[k] + (side ? -2 : 1) * step_size * direction);
            }
            s.device->upload(s.device, p->weight, moved, (size_t)p->count * sizeof *moved);
            free(moved);
            free(w);
        }
        loss[side] = run(&s, NULL);
    }
    double found = (loss[0] - loss[1]) / (2 * step_size);
    if (!(fabs(found - slope) <= 2e-3 * fabs(slope)))
        fail_msg("slope %.6g, of the losses %.6g", slope, found);
    subject_close(&s);
}

static inline void check_evaluation(const char *dir)
{
    struct subject s;
    struct tower_options options = options_of(DTYPE_F32);
    double correct, sums[2];
    subject_open(&s, dir, &options);
    double loss = run(&s, &correct);
    subject_close(&s);
    options.gradients = GRADIENTS_NONE; /* only the current block's activations */
    options.loss_chunk = (size_t)model->slabs * 128 * sizeof(float);
    subject_open(&s, dir, &options);
    clear_sums(&s);
    struct batch batch = batch_of(&s, 0, BATCH, units_of(&s));
    tower_forward(s.tower, &batch);
    tower_evaluate(s.tower, &batch);
    read_sums(&s, sums);
    assert_true(fabs(sums[0] - loss) <= 1e-6 * loss && fabs(sums[1] - correct) < 0.5);
    subject_close(&s);
}

/* The head of a test of one line. */
#define GOLDEN_TEST(name) static void name(__attribute__((unused)) void **state)

static inline void each_of(const struct golden_model *m, void (*check)(const char *dir))
{
    model = m;
    golden_each(m->folder, check);
}

#endif
