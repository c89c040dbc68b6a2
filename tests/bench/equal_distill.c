/* Equal loss in distillation: trains a student tower of width 384 in bf16 with released gradients to match
 * the class and patch tokens of a frozen teacher of width 384 on JPEGs. The teacher is random, with gains
 * that make its tokens depend on the image. tests/bench/equal_loss.sh runs it.
 *
 *     equal_distill RULE PRESET SEED STEPS DIR-WITH-JPEGS [FAMILY [8bit]]
 *
 * prints: distill RULE PRESET SEED eval_loss seconds. FAMILY: dinov2 (the default); eva (SwiGLU, rotary
 * positions, norms inside the branches) or openclip, which match only the class token. 8bit: save
 * activations in 8 bits (train.save_activations), see tests/bench/equal_saved.sh. */
#include "core/meopt.h"
#include "core/nn/nn.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <jpeglib.h> /* wants stdio.h */

enum { SIDE = 70, KEEP = 90, BATCH = 32, HELD_OUT = 32, MOST = 1024 };

static uint64_t random_state;
static uint32_t random_next(void)
{
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}

static float (*images)[3][KEEP][KEEP];
static int image_count;

/* KEEP x KEEP by averaging of boxes over the middle square. */
static int image_load(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return 0;
    struct jpeg_decompress_struct in;
    struct jpeg_error_mgr errors;
    in.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&in);
    jpeg_stdio_src(&in, f);
    jpeg_read_header(&in, TRUE);
    in.out_color_space = JCS_RGB;
    jpeg_start_decompress(&in);
    int w = (int)in.output_width, h = (int)in.output_height, side = w < h ? w : h, x0 = (w - side) / 2,
        y0 = (h - side) / 2;
    unsigned char *row = malloc((size_t)w * 3);
    static float sum[3][KEEP][KEEP], n[KEEP][KEEP];
    memset(sum, 0, sizeof sum);
    memset(n, 0, sizeof n);
    for (int y = 0; y < h; y++) {
        jpeg_read_scanlines(&in, &row, 1);
        if (y < y0 || y >= y0 + side) continue;
        for (int x = x0; x < x0 + side; x++) {
            int i = (y - y0) * KEEP / side, j = (x - x0) * KEEP / side;
            for (int c = 0; c < 3; c++) sum[c][i][j] += (float)row[x * 3 + c];
            n[i][j] += 1;
        }
    }
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < KEEP; i++)
            for (int j = 0; j < KEEP; j++)
                images[image_count][c][i][j] = (sum[c][i][j] / fmaxf(n[i][j], 1) / 255 - 0.45f) / 0.225f;
    image_count++;
    jpeg_finish_decompress(&in);
    jpeg_destroy_decompress(&in);
    fclose(f);
    free(row);
    return 1;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void images_load(const char *dir)
{
    images = malloc(sizeof *images * MOST);
    struct dirent **names;
    int n = scandir(dir, &names, NULL, by_name);
    for (int i = 0; i < n && image_count < MOST; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
        if (strstr(names[i]->d_name, ".jpg")) image_load(path);
    }
}

static void batch_make(float *batch, int held_out)
{
    for (int b = 0; b < BATCH; b++) {
        int i = held_out ? b : HELD_OUT + (int)(random_next() % (uint32_t)(image_count - HELD_OUT));
        int y = held_out ? 10 : (int)(random_next() % 20), x = held_out ? 10 : (int)(random_next() % 20),
            flip = !held_out && random_next() % 2;
        for (int c = 0; c < 3; c++)
            for (int r = 0; r < SIDE; r++)
                for (int k = 0; k < SIDE; k++)
                    batch[((b * 3 + c) * SIDE + r) * SIDE + k] =
                        images[i][c][y + r][x + (flip ? SIDE - 1 - k : k)];
    }
}

static int die(const char *message)
{
    fprintf(stderr, "equal_distill: %s\n", message);
    exit(1);
}

struct run {
    struct device *device;
    struct tower *teacher, *student;
    void *scratch; /* of both towers */
    struct meopt *opt;
    double base_lr;
    float *batch, *target,
        *dout; /* (BATCH, 3, SIDE, SIDE); twice (BATCH, rows, width) of the student's output */
};

static int values_take(void *context, int index, const float *values, struct error *err)
{
    struct run *run = context;
    struct meopt_error e;
    (void)err;
    if (run->opt &&
        meopt_import(run->opt, (size_t)index, 0, run->student->parameters[index].count, values, &e))
        die(e.message);
    return 0;
}

static int group_step(void *context, int group, struct error *err)
{
    struct run *run = context;
    struct meopt_error e;
    (void)err;
    for (int i = 0; i < run->student->parameter_count; i++) {
        const struct parameter *p = &run->student->parameters[i];
        if (p->group != group || !p->trained) continue;
        if (meopt_step_tensor(run->opt, (size_t)i, p->grad,
                              p->grad_type == DTYPE_F32 ? MEOPT_F32 : MEOPT_BF16, 1, &e))
            die(e.message);
    }
    return 0;
}

static struct model_shape model_shape_of(const char *family)
{
    struct model_shape g = {FAMILY_DINOV2, SIDE, 14, 5, 384, 2, 6, 1536, 384, 1 + ACTIVATION_GELU};
    if (strcmp(family, "openclip") == 0) {
        g.family = FAMILY_OPENCLIP;
        g.out = 256;
    } else if (strcmp(family, "eva") == 0) {
        g.family = FAMILY_EVA;
        g.hidden = 1024;
        g.out = 256;
        g.ffn = 1 + ACTIVATION_SWIGLU;
        g.parts = PARTS_KNOWN | PART_QKV_BIAS | PART_ATTN_NORM | PART_FFN_NORM;
    } else if (strcmp(family, "dinov2") != 0) die("families: dinov2, eva, openclip");
    return g;
}

static void towers_create(struct run *run, bool wide, struct model_shape model_shape, bool saved_8bit)
{
    struct error err = {0};
    if (device_open(&run->device, "cpu", 0, &err)) die(err.what);
    struct tower_options frozen = {.batch = BATCH,
                                   .compute = DTYPE_BF16,
                                   .weight_type = DTYPE_F32,
                                   .grad_type = DTYPE_F32,
                                   .gradients = GRADIENTS_NONE,
                                   .patch_tokens = model_shape.family == FAMILY_DINOV2,
                                   .weights_class = MEMORY_TEACHER,
                                   .activations_class = MEMORY_TEACHER};
    struct tower_options trained = frozen;
    trained.gradients = GRADIENTS_RELEASE;
    trained.saved = saved_8bit ? SAVED_8BIT : SAVED_MINIMAL;
    trained.weight_type = wide ? DTYPE_F32 : DTYPE_BF16;
    trained.grad_type = wide ? DTYPE_F32 : DTYPE_BF16;
    trained.weights_class = MEMORY_WEIGHTS;
    trained.activations_class = MEMORY_ACTIVATIONS;
    if (model_shape_check(&model_shape, 64, &err) ||
        tower_create(&run->teacher, run->device, &model_shape, &frozen, &err) ||
        tower_create(&run->student, run->device, &model_shape, &trained, &err))
        die(err.what);
    size_t teacher = run->teacher->scratch_bytes, student = run->student->scratch_bytes;
    run->scratch =
        device_alloc(run->device, MEMORY_WORKSPACE, teacher > student ? teacher : student, "scratch", &err);
    tower_bind_scratch(run->teacher, run->scratch);
    tower_bind_scratch(run->student, run->scratch);
    size_t outs = (size_t)(BATCH * run->student->out_rows * run->student->out_width);
    run->batch = malloc(sizeof(float) * BATCH * 3 * SIDE * SIDE);
    run->target = malloc(outs * 4);
    run->dout = malloc(outs * 4);
}

static void optimizer_create(struct run *run, struct meopt_options *o, uint64_t seed)
{
    struct meopt_error e;
    struct tower *student = run->student;
    struct meopt_tensor *table = calloc((size_t)student->parameter_count, sizeof *table);
    for (int i = 0; i < student->parameter_count; i++) {
        struct parameter *p = &student->parameters[i];
        table[i] = (struct meopt_tensor){.name = p->name, .ndim = p->ndim, .weights = p->weight};
        memcpy(table[i].shape, p->shape, sizeof p->shape);
        table[i].flags = (p->decay ? 0u : MEOPT_NO_DECAY) | (p->matrix ? 0u : MEOPT_KEEP_F32);
    }
    o->small_count = 0;
    o->seed = seed;
    o->threads = 1;
    o->weight_decay = 0.05;
    if (meopt_create(&run->opt, o, table, (size_t)student->parameter_count, &e)) die(e.message);
    free(table);
}

/* The same teacher for every seed of the student. */
static void weights_init(struct run *run, uint64_t seed)
{
    struct error err = {0};
    if (tower_init_random(run->teacher, 4711, false, NULL, NULL, &err)) die(err.what);
    for (int i = 0; i < run->teacher->parameter_count; i++) {
        struct parameter *p = &run->teacher->parameters[i];
        for (int64_t k = 0; p->matrix && k < p->count; k++) ((float *)p->weight)[k] *= 3;
    }
    if (tower_init_random(run->student, seed, false, values_take, run, &err)) die(err.what);
}

/* A batch through both towers: the loss, and its gradient in `dout` unless that is NULL. */
static double batch_loss(struct run *run, int held_out, float *dout, double *cosine)
{
    struct distill_options distill = {LOSS_MSE, false, false};
    const struct batch in = {.input = run->batch, .count = BATCH};
    int64_t rows = run->student->out_rows, width = run->student->out_width;
    size_t out_bytes = (size_t)(BATCH * rows * width) * 4;
    double loss = 0;
    *cosine = 0;
    batch_make(run->batch, held_out);
    tower_forward(run->teacher, &in);
    memcpy(run->target, run->teacher->out, out_bytes);
    tower_forward(run->student, &in);
    if (dout) memset(dout, 0, out_bytes);
    distill_loss(run->device, &distill, run->student->out, run->target, dout, &loss, cosine, 1, BATCH, rows,
                 width);
    return loss;
}

static void train(struct run *run, int steps)
{
    struct error err = {0};
    struct meopt_error e;
    const struct batch in = {.input = run->batch, .count = BATCH};
    for (int step = 1; step <= steps; step++) {
        double cosine, loss = batch_loss(run, 0, run->dout, &cosine);
        double part =
            step <= 20 ? step / 20.0 : 0.5 * (1 + cos(3.14159265358979 * (step - 20) / (steps - 19)));
        if (meopt_step_begin(run->opt, step, run->base_lr * part, 0, &e)) die(e.message);
        if (tower_backward(run->student, &in, run->dout, true, true, group_step, run, &err)) die(err.what);
        if (meopt_step_end(run->opt, NULL, &e)) die(e.message);
        if (step % 25 == 0) fprintf(stderr, "step %d loss %.4f cosine %.3f\n", step, loss, cosine / BATCH);
    }
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return fprintf(stderr, "usage: equal_distill RULE PRESET SEED STEPS DIR [FAMILY [8bit]]\n"), 2;
    int rule = meopt_rule_from_name(argv[1]);
    uint64_t seed = strtoull(argv[3], NULL, 10);
    images_load(argv[5]);
    if (image_count < 2 * HELD_OUT) die("needs 64 JPEGs");
    struct meopt_options o;
    struct meopt_error e;
    meopt_options_init(&o, sizeof o, rule);
    if (meopt_options_preset(&o, argv[2], &e)) die(e.message);
    struct run run = {.base_lr = rule == MEOPT_LION ? 1e-4 : 1e-3};
    towers_create(&run, o.weights == MEOPT_WEIGHTS_F32, model_shape_of(argc > 6 ? argv[6] : "dinov2"),
                  argc > 7 && strcmp(argv[7], "8bit") == 0);
    optimizer_create(&run, &o, seed);
    weights_init(&run, seed);

    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    random_state = seed * 1000003;
    train(&run, atoi(argv[4]));
    double cosine, loss = batch_loss(&run, 1, NULL, &cosine);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("distill %s %s %s %.6f %.1f\n", argv[1], argv[2], argv[3], loss,
           (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9);
    meopt_destroy(run.opt);
    tower_close(run.student);
    tower_close(run.teacher);
    device_free(run.device, run.scratch);
    device_close(run.device);
    return 0;
}
