/* Does the loss stay the same? DINOv2-style distillation by the engine itself: a student tower of width 384
 * learns the class and patch tokens of a frozen teacher of width 384 on JPEGs, computing in bf16, with
 * gradients released block by block. Teacher: random, fixed, with gains that make its tokens depend on the
 * image. tests/bench/equal_loss.sh runs it.
 *
 *     equal_distill RULE PRESET SEED STEPS DIR-WITH-JPEGS     prints: distill RULE PRESET SEED eval_loss
 * seconds
 */
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
    struct meopt *opt;
    struct tower *student;
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

int main(int argc, char **argv)
{
    if (argc < 6) return fprintf(stderr, "usage: equal_distill RULE PRESET SEED STEPS DIR\n"), 2;
    int rule = meopt_rule_from_name(argv[1]), steps = atoi(argv[4]);
    uint64_t seed = strtoull(argv[3], NULL, 10);
    images = malloc(sizeof *images * MOST);
    struct dirent **names;
    int n = scandir(argv[5], &names, NULL, by_name);
    for (int i = 0; i < n && image_count < MOST; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", argv[5], names[i]->d_name);
        if (strstr(names[i]->d_name, ".jpg")) image_load(path);
    }
    if (image_count < 2 * HELD_OUT) die("needs 64 JPEGs");

    struct error err = {0};
    struct device *device;
    if (device_open(&device, "cpu", 0, &err)) die(err.what);
    struct geometry geometry = {FAMILY_DINOV2, SIDE, 14, 5, 384, 2, 6, 1536, 384, 1 + ACTIVATION_GELU};
    struct tower_options frozen = {.batch = BATCH,
                                   .compute = DTYPE_BF16,
                                   .weight_type = DTYPE_F32,
                                   .grad_type = DTYPE_F32,
                                   .gradients = GRADIENTS_NONE,
                                   .patch_tokens = true,
                                   .weights_class = MEMORY_TEACHER,
                                   .activations_class = MEMORY_TEACHER};
    struct meopt_options o;
    struct meopt_error e;
    meopt_options_init(&o, sizeof o, rule);
    if (meopt_options_preset(&o, argv[2], &e)) die(e.message);
    bool wide = o.weights == MEOPT_WEIGHTS_F32;
    struct tower_options trained = frozen;
    trained.gradients = GRADIENTS_RELEASE;
    trained.weight_type = wide ? DTYPE_F32 : DTYPE_BF16;
    trained.grad_type = wide ? DTYPE_F32 : DTYPE_BF16;
    trained.weights_class = MEMORY_WEIGHTS;
    trained.activations_class = MEMORY_ACTIVATIONS;
    struct tower *teacher, *student;
    if (geometry_check(&geometry, 64, &err) || tower_create(&teacher, device, &geometry, &frozen, &err) ||
        tower_create(&student, device, &geometry, &trained, &err))
        die(err.what);
    size_t scratch =
        teacher->scratch_bytes > student->scratch_bytes ? teacher->scratch_bytes : student->scratch_bytes;
    void *shared = device_alloc(device, MEMORY_WORKSPACE, scratch, "scratch", &err);
    tower_bind_scratch(teacher, shared);
    tower_bind_scratch(student, shared);

    struct run run = {NULL, student};
    struct meopt_tensor *table = calloc((size_t)student->parameter_count, sizeof *table);
    for (int i = 0; i < student->parameter_count; i++) {
        struct parameter *p = &student->parameters[i];
        table[i] = (struct meopt_tensor){.name = p->name, .ndim = p->ndim, .weights = p->weight};
        memcpy(table[i].shape, p->shape, sizeof p->shape);
        table[i].flags = (p->decay ? 0u : MEOPT_NO_DECAY) | (p->matrix ? 0u : MEOPT_KEEP_F32);
    }
    o.small_count = 0;
    o.seed = seed;
    o.threads = 1;
    o.weight_decay = 0.05;
    if (meopt_create(&run.opt, &o, table, (size_t)student->parameter_count, &e)) die(e.message);
    if (tower_init_random(teacher, 4711, false, NULL, NULL, &err)) die(err.what);
    for (int i = 0; i < teacher->parameter_count; i++) {
        struct parameter *p = &teacher->parameters[i];
        for (int64_t k = 0; p->matrix && k < p->count; k++) ((float *)p->weight)[k] *= 3;
    }
    if (tower_init_random(student, seed, false, values_take, &run, &err)) die(err.what);

    int64_t rows = student->out_rows, width = student->out_width, outs = BATCH * rows * width;
    float *batch = malloc(sizeof(float) * BATCH * 3 * SIDE * SIDE), *target = malloc((size_t)outs * 4),
          *dout = malloc((size_t)outs * 4);
    struct distill_options distill = {LOSS_MSE, false, false};
    double loss = 0, cosine = 0, base = rule == MEOPT_LION ? 1e-4 : 1e-3;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    random_state = seed * 1000003;
    for (int step = 1; step <= steps; step++) {
        loss = cosine = 0;
        batch_make(batch, 0);
        tower_forward(teacher, batch, BATCH);
        memcpy(target, teacher->out, (size_t)outs * 4);
        tower_forward(student, batch, BATCH);
        memset(dout, 0, (size_t)outs * 4);
        distill_loss(device, &distill, student->out, target, dout, &loss, &cosine, 1, BATCH, rows, width);
        double lr = base * (step <= 20 ? step / 20.0
                                       : 0.5 * (1 + cos(3.14159265358979 * (step - 20) / (steps - 19))));
        if (meopt_step_begin(run.opt, step, lr, 0, &e)) die(e.message);
        if (tower_backward(student, batch, dout, BATCH, true, true, group_step, &run, &err)) die(err.what);
        if (meopt_step_end(run.opt, NULL, &e)) die(e.message);
        if (step % 25 == 0) fprintf(stderr, "step %d loss %.4f cosine %.3f\n", step, loss, cosine / BATCH);
    }
    loss = cosine = 0;
    batch_make(batch, 1);
    tower_forward(teacher, batch, BATCH);
    memcpy(target, teacher->out, (size_t)outs * 4);
    tower_forward(student, batch, BATCH);
    distill_loss(device, &distill, student->out, target, NULL, &loss, &cosine, 1, BATCH, rows, width);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("distill %s %s %s %.6f %.1f\n", argv[1], argv[2], argv[3], loss,
           (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9);
    meopt_destroy(run.opt);
    tower_close(student);
    tower_close(teacher);
    device_free(device, shared);
    device_close(device);
    return 0;
}
