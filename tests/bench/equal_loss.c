/* Does the loss stay the same? Trains a small network from scratch with a preset of libmeopt and prints the
 * loss on held-out data. Two tasks share the network:
 *   lm     next byte of C source text from the 16 before it (byte embeddings, concatenated)
 *   image  class of a 16 x 16 image: one of 20 smooth patterns, moved, scaled, under noise; every sample is
 *          new
 * Network: linear - 2 x (x + W2 relu(W1 layernorm(x))) - layernorm - linear - softmax; 1.3 M parameters.
 * Forward and backward read the weights that the format gives them (the bf16 half), compute in fp32, and give
 * fp32 gradients to per-tensor steps. Learning rate: warm-up, then cosine to 0. tests/bench/equal_loss.sh
 * runs it over presets and seeds.
 *
 *     equal_loss TASK RULE PRESET SEED STEPS [FILE...]   prints: TASK RULE PRESET SEED eval_loss seconds
 *     equal_loss table < RESULTS                         mean, sd, gap to fp32, Welch's p, per task, rule
 *                                                        and preset
 */
#include "core/meopt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BATCH = 256,
    CONTEXT = 16,
    EMBED = 48,
    WIDTH = 256,
    HIDDEN = 1024,
    BLOCKS = 2,
    VOCAB = 256,
    SIDE = 16,
    CLASSES = 20
};
enum {
    EMBEDDING,
    IN_W,
    IN_B,
    BLOCK,
    BLOCK_TENSORS = 6,
    NORM_G = BLOCK + BLOCKS * BLOCK_TENSORS,
    NORM_B,
    OUT_W,
    OUT_B,
    TENSORS
};
enum { LN_G, LN_B, W1, B1, W2, B2 }; /* of a block */

static uint64_t random_state;
static uint32_t random_next(void) /* splitmix64 */
{
    uint64_t z = (random_state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}
static float random_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(random_next() >> 8) / 16777216.0f - 0.5f;
    return sum * 1.7320508f;
}

static int inputs, classes;
static int64_t counts[TENSORS];
static float *weight[TENSORS], *gradient[TENSORS];

/* C (m, n) = op(A) op(B) + beta C, row-major */
static void gemm(char ta, char tb, int m, int n, int k, const float *a, const float *b, float beta, float *c)
{
    static void *scratch;
    if (!scratch) scratch = aligned_alloc(64, gemm_scratch(1));
    struct gemm g = {
        .m = m, .n = n, .k = k, .transpose_a = ta == 'T', .transpose_b = tb == 'T', .a = a, .b = b};
    g.c = c, g.lda = ta == 'N' ? k : m, g.ldb = tb == 'N' ? n : k, g.ldc = n, g.alpha = 1, g.beta = beta;
    g.ab_type = g.c_type = DTYPE_F32;
    cpu_ops_select()->gemm(&g, scratch, 1);
}

/* y (BATCH, n) = x (BATCH, k) W^T + b, W (n, k);
 * and backward: dW, db overwritten, dx (BATCH, k) unless NULL */
static void linear(const float *x, int w, int k, int n, float *y)
{
    for (int i = 0; i < BATCH; i++) memcpy(y + i * n, weight[w + 1], (size_t)n * 4);
    gemm('N', 'T', BATCH, n, k, x, weight[w], 1, y);
}
static void linear_back(const float *x, const float *dy, int w, int k, int n, float *dx)
{
    gemm('T', 'N', n, k, BATCH, dy, x, 0, gradient[w]);
    memset(gradient[w + 1], 0, (size_t)n * 4);
    for (int i = 0; i < BATCH; i++)
        for (int j = 0; j < n; j++) gradient[w + 1][j] += dy[i * n + j];
    if (dx) gemm('N', 'N', BATCH, k, n, dy, weight[w], 0, dx);
}

static void norm(const float *x, int g, float *hat, float *rstd, float *y)
{
    for (int i = 0; i < BATCH; i++) {
        float mean = 0, var = 0;
        for (int j = 0; j < WIDTH; j++) mean += x[i * WIDTH + j];
        mean /= WIDTH;
        for (int j = 0; j < WIDTH; j++) var += (x[i * WIDTH + j] - mean) * (x[i * WIDTH + j] - mean);
        rstd[i] = 1 / sqrtf(var / WIDTH + 1e-5f);
        for (int j = 0; j < WIDTH; j++) {
            hat[i * WIDTH + j] = (x[i * WIDTH + j] - mean) * rstd[i];
            y[i * WIDTH + j] = hat[i * WIDTH + j] * weight[g][j] + weight[g + 1][j];
        }
    }
}
/* dx += */
static void norm_back(const float *dy, int g, const float *hat, const float *rstd, float *dx)
{
    memset(gradient[g], 0, WIDTH * 4);
    memset(gradient[g + 1], 0, WIDTH * 4);
    for (int i = 0; i < BATCH; i++) {
        const float *h = hat + i * WIDTH, *d = dy + i * WIDTH;
        float a = 0, b = 0;
        for (int j = 0; j < WIDTH; j++) {
            gradient[g][j] += d[j] * h[j];
            gradient[g + 1][j] += d[j];
            a += d[j] * weight[g][j];
            b += d[j] * weight[g][j] * h[j];
        }
        for (int j = 0; j < WIDTH; j++)
            dx[i * WIDTH + j] += rstd[i] * (d[j] * weight[g][j] - a / WIDTH - h[j] * b / WIDTH);
    }
}

static float x[BLOCKS + 1][BATCH * WIDTH], hat[BLOCKS + 1][BATCH * WIDTH], rstd[BLOCKS + 1][BATCH],
    normed[BLOCKS + 1][BATCH * WIDTH];
static float hidden[BLOCKS][BATCH * HIDDEN], dx[BATCH * WIDTH], dnormed[BATCH * WIDTH],
    dhidden[BATCH * HIDDEN], out[BATCH * VOCAB];
static float input[BATCH * CONTEXT * EMBED], dinput[BATCH * CONTEXT * EMBED];
static int labels[BATCH];
static unsigned char context[BATCH][CONTEXT];

static double forward(void) /* mean loss; out becomes d loss / d out */
{
    linear(input, IN_W, inputs, WIDTH, x[0]);
    for (int l = 0; l < BLOCKS; l++) {
        int t = BLOCK + l * BLOCK_TENSORS;
        norm(x[l], t + LN_G, hat[l], rstd[l], normed[l]);
        linear(normed[l], t + W1, WIDTH, HIDDEN, hidden[l]);
        for (int i = 0; i < BATCH * HIDDEN; i++) hidden[l][i] = hidden[l][i] > 0 ? hidden[l][i] : 0;
        linear(hidden[l], t + W2, HIDDEN, WIDTH, x[l + 1]);
        for (int i = 0; i < BATCH * WIDTH; i++) x[l + 1][i] += x[l][i];
    }
    norm(x[BLOCKS], NORM_G, hat[BLOCKS], rstd[BLOCKS], normed[BLOCKS]);
    linear(normed[BLOCKS], OUT_W, WIDTH, classes, out);
    double loss = 0;
    for (int i = 0; i < BATCH; i++) {
        float *o = out + i * classes, top = o[0], sum = 0;
        for (int j = 1; j < classes; j++) top = o[j] > top ? o[j] : top;
        float right = o[labels[i]] - top;
        for (int j = 0; j < classes; j++) sum += (o[j] = expf(o[j] - top));
        loss += (double)(logf(sum) - right);
        for (int j = 0; j < classes; j++) o[j] = (o[j] / sum - (j == labels[i] ? 1.0f : 0.0f)) / BATCH;
    }
    return loss / BATCH;
}

static void backward(int text)
{
    memset(dx, 0, sizeof dx);
    linear_back(normed[BLOCKS], out, OUT_W, WIDTH, classes, dnormed);
    norm_back(dnormed, NORM_G, hat[BLOCKS], rstd[BLOCKS], dx);
    for (int l = BLOCKS - 1; l >= 0; l--) {
        int t = BLOCK + l * BLOCK_TENSORS;
        linear_back(hidden[l], dx, t + W2, HIDDEN, WIDTH, dhidden);
        for (int i = 0; i < BATCH * HIDDEN; i++) dhidden[i] = hidden[l][i] > 0 ? dhidden[i] : 0;
        linear_back(normed[l], dhidden, t + W1, WIDTH, HIDDEN, dnormed);
        norm_back(dnormed, t + LN_G, hat[l], rstd[l], dx);
    }
    linear_back(input, dx, IN_W, inputs, WIDTH, text ? dinput : NULL);
    if (!text) return;
    memset(gradient[EMBEDDING], 0, VOCAB * EMBED * 4);
    for (int i = 0; i < BATCH; i++)
        for (int c = 0; c < CONTEXT; c++)
            for (int k = 0; k < EMBED; k++)
                gradient[EMBEDDING][context[i][c] * EMBED + k] += dinput[(i * CONTEXT + c) * EMBED + k];
}

static unsigned char *text;
static int64_t text_bytes;
#define TEXT_BLOCK 2048 /* every tenth block is held out */

static void text_batch(int held_out, int64_t number)
{
    for (int i = 0; i < BATCH; i++) {
        int64_t at;
        do
            at = held_out ? (number * BATCH + i) * 7919 % (text_bytes - CONTEXT - 1)
                          : (int64_t)(((uint64_t)random_next() << 32 | random_next()) %
                                      (uint64_t)(text_bytes - CONTEXT - 1));
        while (!held_out && at / TEXT_BLOCK % 10 == 9);
        if (held_out)
            at = (at / TEXT_BLOCK / 10 * 10 + 9) * TEXT_BLOCK % (text_bytes - TEXT_BLOCK - CONTEXT) +
                 at % TEXT_BLOCK;
        memcpy(context[i], text + at, CONTEXT);
        labels[i] = text[at + CONTEXT];
        for (int c = 0; c < CONTEXT; c++)
            memcpy(input + (i * CONTEXT + c) * EMBED, weight[EMBEDDING] + context[i][c] * EMBED, EMBED * 4);
    }
}

static float pattern[CLASSES][32][32]; /* periodic */
static void patterns_make(void)
{
    for (int c = 0; c < CLASSES; c++) /* three plane waves each, the same for every seed */
        for (int w = 0; w < 3; w++) {
            int fx = (int)(random_next() % 4), fy = (int)(random_next() % 4) + 1;
            float phase = (float)(random_next() % 628) / 100;
            for (int i = 0; i < 32; i++)
                for (int j = 0; j < 32; j++)
                    pattern[c][i][j] += cosf(6.2831853f * (float)(fx * i + fy * j) / 32 + phase);
        }
}
static void image_batch(void)
{
    for (int i = 0; i < BATCH; i++) {
        int c = labels[i] = (int)(random_next() % CLASSES), dy = (int)(random_next() % 8),
            dxs = (int)(random_next() % 8);
        float scale = 0.5f + (float)(random_next() % 1000) / 1000;
        for (int r = 0; r < SIDE; r++)
            for (int k = 0; k < SIDE; k++)
                input[i * inputs + r * SIDE + k] =
                    pattern[c][r + dy][k + dxs] * scale + 4.0f * random_normal();
    }
}

static void weights_read(const struct meopt *opt)
{
    for (size_t t = 0; t < TENSORS; t++) {
        void *p;
        enum meopt_dtype dtype;
        if (!counts[t]) continue;
        meopt_weights(opt, t, &p, &dtype);
        if (dtype == MEOPT_F32) memcpy(weight[t], p, (size_t)counts[t] * 4);
        else
            for (int64_t i = 0; i < counts[t]; i++) {
                uint32_t bits = (uint32_t)((uint16_t *)p)[i] << 16;
                memcpy(&weight[t][i], &bits, 4);
            }
    }
}

static int die(const struct meopt_error *err)
{
    fprintf(stderr, "equal_loss: %s\n", err->message);
    return 1;
}

static void table_make(struct meopt_tensor *table, char names[TENSORS][16], int text_task)
{
    for (int t = 0; t < TENSORS; t++) {
        int b = (t - BLOCK) % BLOCK_TENSORS, block = t >= BLOCK && t < NORM_G;
        int rows = 1, columns = t == OUT_B ? classes : block && b == B1 ? HIDDEN : WIDTH;
        if (t == EMBEDDING) rows = VOCAB, columns = EMBED;
        if (t == IN_W) rows = WIDTH, columns = inputs;
        if (t == OUT_W) rows = classes, columns = WIDTH;
        if (block && b == W1) rows = HIDDEN, columns = WIDTH;
        if (block && b == W2) rows = WIDTH, columns = HIDDEN;
        if (t == EMBEDDING && !text_task) rows = columns = 1;
        snprintf(names[t], 16, "t%d", t);
        table[t] = (struct meopt_tensor){
            .name = names[t], .ndim = 2, .shape = {rows, columns}, .flags = rows == 1 ? MEOPT_NO_DECAY : 0};
        counts[t] = (int64_t)rows * columns;
        weight[t] = calloc((size_t)counts[t], 4);
        gradient[t] = calloc((size_t)counts[t], 4);
        int gain = t == NORM_G || (block && b == LN_G);
        for (int64_t i = 0; i < counts[t]; i++)
            weight[t][i] = gain ? 1
                           : rows == 1
                               ? 0
                               : random_normal() * (t == EMBEDDING ? 0.5f : 1 / sqrtf((float)columns));
    }
}

/* ---- The table ---- */

struct series {
    char task[32], rule[32], preset[32];
    int count;
    double mean, squares; /* of deviations */
};

/* Regularised incomplete beta function by its continued fraction (Lentz):
 * Student's t has p = I(df/2, 1/2; df/(df+t^2)). */
static double beta_fraction(double a, double b, double z)
{
    double c = 1, d = 1 - (a + b) * z / (a + 1), h;
    h = d = 1 / d;
    for (int m = 1; m < 300; m++) {
        double e = m * (b - m) * z / ((a + 2 * m - 1) * (a + 2 * m));
        d = 1 / (1 + e * d);
        c = 1 + e / c;
        h *= d * c;
        e = -(a + m) * (a + b + m) * z / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 / (1 + e * d);
        c = 1 + e / c;
        h *= d * c;
    }
    return h;
}
static double beta_incomplete(double a, double b, double z)
{
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(z) + b * log(1 - z));
    return z < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, z) / a
                                     : 1 - front * beta_fraction(b, a, 1 - z) / b;
}
static double welch_p(const struct series *x, const struct series *y)
{
    double vx = x->squares / (x->count - 1) / x->count, vy = y->squares / (y->count - 1) / y->count;
    double t = (x->mean - y->mean) / sqrt(vx + vy);
    double df = (vx + vy) * (vx + vy) / (vx * vx / (x->count - 1) + vy * vy / (y->count - 1));
    return beta_incomplete(df / 2, 0.5, df / (df + t * t));
}

static int table(void)
{
    static struct series all[256];
    int n = 0;
    char line[512], task[32], rule[32], preset[32];
    double loss;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %31s %31s %*s %lf", task, rule, preset, &loss) != 4) continue;
        int i = 0;
        while (i < n &&
               (strcmp(all[i].task, task) || strcmp(all[i].rule, rule) || strcmp(all[i].preset, preset)))
            i++;
        if (i == 256) return 1;
        if (i == n) {
            strcpy(all[n].task, task);
            strcpy(all[n].rule, rule);
            strcpy(all[n++].preset, preset);
        }
        struct series *s = &all[i];
        double delta = loss - s->mean;
        s->mean += delta / ++s->count;
        s->squares += delta * (loss - s->mean);
    }
    printf("%-8s %-8s %-10s %5s %9s %8s %8s %6s\n", "task", "rule", "preset", "seeds", "loss", "sd", "gap %",
           "p");
    for (int i = 0; i < n; i++) {
        const struct series *s = &all[i], *base = NULL;
        for (int j = 0; j < n; j++)
            if (!strcmp(all[j].task, s->task) && !strcmp(all[j].rule, s->rule) &&
                !strcmp(all[j].preset, "fp32"))
                base = &all[j];
        printf("%-8s %-8s %-10s %5d %9.5f %8.5f ", s->task, s->rule, s->preset, s->count, s->mean,
               s->count > 1 ? sqrt(s->squares / (s->count - 1)) : 0);
        if (!base || base == s || s->count < 2 || base->count < 2) printf("%8s %6s\n", "-", "-");
        else printf("%+8.3f %6.3f\n", (s->mean / base->mean - 1) * 100, welch_p(s, base));
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "table") == 0) return table();
    if (argc < 6) return fprintf(stderr, "usage: equal_loss lm|image RULE PRESET SEED STEPS [FILE...]\n"), 2;
    int text_task = strcmp(argv[1], "lm") == 0, steps = atoi(argv[5]);
    for (int i = 6; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        if (!f) continue;
        text = realloc(text, (size_t)text_bytes + (1 << 20));
        text_bytes += (int64_t)fread(text + text_bytes, 1, 1 << 20, f);
        fclose(f);
    }
    if (text_task && text_bytes < 100000) return fprintf(stderr, "equal_loss: lm needs 100 kB of text\n"), 2;
    random_state = 1;
    patterns_make();
    inputs = text_task ? CONTEXT * EMBED : SIDE * SIDE;
    classes = text_task ? VOCAB : CLASSES;
    uint64_t seed = strtoull(argv[4], NULL, 10);
    random_state = seed * 1000003;

    struct meopt_tensor table[TENSORS];
    char names[TENSORS][16];
    table_make(table, names, text_task);
    struct meopt_options o;
    struct meopt_error err;
    struct meopt *opt;
    int rule = meopt_rule_from_name(argv[2]);
    if (meopt_options_init(&o, sizeof o, rule))
        return fprintf(stderr, "equal_loss: no rule '%s'\n", argv[2]), 2;
    if (meopt_options_preset(&o, argv[3], &err)) return die(&err);
    o.seed = seed;
    o.threads = 1;
    o.weight_decay = rule == MEOPT_APSGD || rule == MEOPT_APADAM ? 1e-4 : rule == MEOPT_LION ? 1 : 0.1;
    if (meopt_create(&opt, &o, table, TENSORS, &err)) return die(&err);
    for (size_t t = 0; t < TENSORS; t++)
        if (meopt_import(opt, t, 0, counts[t], weight[t], &err)) return die(&err);

    double base = rule == MEOPT_APSGD ? 0.1 : rule == MEOPT_LAMB ? 5e-3 : rule == MEOPT_LION ? 2e-4 : 2e-3;
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int step = 1; step <= steps; step++) {
        weights_read(opt);
        if (text_task) text_batch(0, 0);
        else image_batch();
        double loss = forward();
        backward(text_task);
        double lr = base * (step <= 100 ? step / 100.0
                                        : 0.5 * (1 + cos(3.14159265358979 * (step - 100) / (steps - 99))));
        if (meopt_step_begin(opt, step, lr, 0, &err)) return die(&err);
        for (size_t t = 0; t < TENSORS; t++)
            if (meopt_step_tensor(opt, t, gradient[t], MEOPT_F32, 1, &err)) return die(&err);
        if (meopt_step_end(opt, NULL, &err)) return die(&err);
        if (step % 250 == 0) fprintf(stderr, "step %d loss %.4f\n", step, loss);
    }
    weights_read(opt);
    double loss = 0;
    random_state = 77; /* the same images for every run */
    for (int i = 0; i < 64; i++) {
        if (text_task) text_batch(1, i);
        else image_batch();
        loss += forward() / 64;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%s %s %s %s %.6f %.1f\n", argv[1], argv[2], argv[3], argv[4], loss,
           (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9);
    meopt_destroy(opt);
    return 0;
}
