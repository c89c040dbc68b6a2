/* Rotary positions, and bicubic interpolation of position embeddings (PyTorch's upsample_bicubic2d, with and
 * without antialias) as a matrix, because towers are trained through it. Computed in float, as in PyTorch.
 * Library by library: enum pos_resize. */
#include "core/model/positions.h"
#include "core/base/memory.h"
#include "core/model/family.h"

#include <math.h>
#include <stdlib.h>

/* Without antialias, A = -0.75: position d reads four inputs around (d + 0.5) * scale - 0.5, indices clamped.
 * The original DINOv2 adds 0.1 to the grid size before it computes the scale, against rounding
 * (interpolate_offset in dinov2/models/vision_transformer.py). */
static void bicubic_taps(int64_t d, double scale_factor, int64_t grid, int64_t index[4], float weight[4])
{
    float scale = (float)(1.0 / scale_factor), A = -0.75f;
    float source = scale * ((float)d + 0.5f) - 0.5f;
    float base = floorf(source), t = source - base;
    float x0 = t + 1, x2 = 1 - t, x3 = x2 + 1;
    weight[0] = ((A * x0 - 5 * A) * x0 + 8 * A) * x0 - 4 * A;
    weight[1] = ((A + 2) * t - (A + 3)) * t * t + 1;
    weight[2] = ((A + 2) * x2 - (A + 3)) * x2 * x2 + 1;
    weight[3] = ((A * x3 - 5 * A) * x3 + 8 * A) * x3 - 4 * A;
    for (int k = 0; k < 4; k++) {
        int64_t i = (int64_t)base - 1 + k;
        index[k] = i < 0 ? 0 : i >= grid ? grid - 1 : i;
    }
}

/* The same with two inputs and linear weights; the others have weight 0. */
static void bilinear_taps(int64_t d, double scale_factor, int64_t grid, int64_t index[4], float weight[4])
{
    float source = (float)(1.0 / scale_factor) * ((float)d + 0.5f) - 0.5f;
    if (source < 0) source = 0;
    int64_t at = (int64_t)source;
    float t = source - (float)at;
    for (int k = 0; k < 4; k++) {
        index[k] = at + k < grid ? at + k : grid - 1;
        weight[k] = k == 0 ? 1 - t : k == 1 ? t : 0;
    }
}

/* cls: rows of a class token, 1 or 0 */
static void taps_matrix(float *w, int64_t side, int64_t grid, int64_t cls, double offset,
                        void (*taps)(int64_t, double, int64_t, int64_t[4], float[4]))
{
    double scale_factor = ((double)side + offset) / (double)grid;
    for (int64_t r = 0; r < side; r++)
        for (int64_t c = 0; c < side; c++) {
            int64_t ri[4], ci[4];
            float rw[4], cw[4];
            taps(r, scale_factor, grid, ri, rw);
            taps(c, scale_factor, grid, ci, cw);
            float *row = w + (r * side + c + cls) * (grid * grid + cls) + cls;
            for (int a = 0; a < 4; a++)
                for (int b = 0; b < 4; b++) row[ri[a] * grid + ci[b]] += rw[a] * cw[b];
        }
}

/* With antialias, A = -0.5: the kernel is widened by a scale above 1, and its weights are divided by their
 * sum. Computes one side's weights (side, grid). */
static void antialias_weights(float *w, int64_t side, int64_t grid)
{
    double scale = (double)grid / (double)side, wide = scale > 1 ? scale : 1, support = 2 * wide, A = -0.5;
    for (int64_t d = 0; d < side; d++) {
        double centre = scale * ((double)d + 0.5), sum = 0;
        int64_t from = (int64_t)(centre - support + 0.5), to = (int64_t)(centre + support + 0.5);
        if (centre - support + 0.5 < 0) from = 0;
        if (to > grid) to = grid;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t i = from; i < to; i++) {
                double x = fabs(((double)i - centre + 0.5) / wide);
                double v = x < 1   ? ((A + 2) * x - (A + 3)) * x * x + 1
                           : x < 2 ? ((A * x - 5 * A) * x + 8 * A) * x - 4 * A
                                   : 0;
                if (pass) w[d * grid + i] = (float)(v / sum);
                else sum += v;
            }
    }
}

static void antialias_matrix(float *w, int64_t side, int64_t grid, int64_t cls)
{
    float *one = xcalloc((size_t)(side * grid), sizeof *one);
    antialias_weights(one, side, grid);
    for (int64_t r = 0; r < side; r++)
        for (int64_t c = 0; c < side; c++) {
            float *row = w + (r * side + c + cls) * (grid * grid + cls) + cls;
            for (int64_t a = 0; a < grid; a++)
                for (int64_t b = 0; b < grid; b++) row[a * grid + b] = one[r * grid + a] * one[c * grid + b];
        }
    free(one);
}

void positions_grid(int64_t from, int64_t to, float *w) { antialias_matrix(w, to, from, 0); }

void positions_matrix(const struct model_shape *g, float *w)
{
    int64_t side = g->image / g->patch, grid = g->pos_grid, cls = !g->classless,
            columns = model_shape_position_rows(g, grid);
    if (cls) w[0] = 1;  /* the cls row passes unchanged */
    if (side == grid) { /* the original code does not interpolate then */
        for (int64_t i = cls; i < columns; i++) w[i * columns + i] = 1;
        return;
    }
    switch (model_shape_pos_resize(g)) {
    case POS_RESIZE_TIMM: antialias_matrix(w, side, grid, cls); break;
    case POS_RESIZE_HF: taps_matrix(w, side, grid, cls, 0, bicubic_taps); break;
    case POS_RESIZE_BILINEAR: taps_matrix(w, side, grid, cls, 0, bilinear_taps); break;
    default: taps_matrix(w, side, grid, cls, 0.1, bicubic_taps); break;
    }
}

/* Angle of frequency i of dh/4, at a row or column of the patches (enum rope); in float, as in the
 * libraries. */
static float angle(const struct model_shape *g, enum rope kind, int64_t i, int64_t count, int64_t at,
                   int64_t side)
{
    float power = (float)i / (float)count;
    if (kind == ROPE_DINOV3) {
        float position = 2 * (float)M_PI * (2 * (((float)at + 0.5f) / (float)side) - 1);
        return position * (1 / (g->rope_count ? g->rope_periods[i] : powf(100, power)));
    }
    float reference = 16, position = (float)at;
    if (kind == ROPE_PE) {
        position += g->classless ? 0 : 1;
        reference = (float)(model_shape_pos_resize(g) == POS_RESIZE_BILINEAR ? side : g->pos_grid);
    }
    return position / (float)side * reference * (1 / powf(10000, power));
}

/* Returns the frequency of pair k of a head, in float as transformers' modeling_rope_utils.py computes it. */
static float frequency(const struct model_shape *g, int64_t k, int64_t pairs)
{
    const struct rope_of_tokens *r = &g->rope;
    double theta = r->theta > 0 ? r->theta : family_rope_theta(g->family);
    float plain = 1 / powf((float)theta, (float)k / (float)pairs), factor = (float)r->factor;
    if (r->scaling == ROPE_LINEAR) return plain / factor;
    if (r->scaling == ROPE_LLAMA3) { /* long waves are slowed, those between the limits in part */
        float wave = 2 * (float)M_PI / plain, original = (float)r->original;
        float smooth = (original / wave - (float)r->low) / (float)(r->high - r->low);
        if (wave < original / (float)r->high) return plain;
        if (wave > original / (float)r->low) return plain / factor;
        return (1 - smooth) * plain / factor + smooth * plain;
    }
    if (r->scaling == ROPE_YARN) { /* a ramp between the pairs that turn `high` and `low` times */
        double of_turns = 2 * (double)pairs / (2 * log(theta));
        double first = floor(of_turns * log(r->original / (r->high * 2 * M_PI))),
               last = ceil(of_turns * log(r->original / (r->low * 2 * M_PI)));
        if (first < 0) first = 0;
        if (last > (double)(2 * pairs - 1)) last = (double)(2 * pairs - 1);
        if (last <= first) last = first + 0.001;
        float ramp = (float)(((double)k - first) / (last - first));
        float keep = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        return plain / factor * (1 - keep) + plain * keep;
    }
    return plain;
}

static void token_rotation(const struct model_shape *g, float *table)
{
    int64_t pairs = model_shape_head_dim(g) / 2;
    float scale = g->rope.scaling == ROPE_YARN ? (float)g->rope.attention : 1;
    for (int64_t k = 0; k < pairs; k++) {
        float turns = frequency(g, k, pairs);
        for (int64_t n = 0; n < g->context; n++) {
            float a = (float)n * turns;
            table[n * 2 * pairs + k] = cosf(a) * scale;
            table[n * 2 * pairs + pairs + k] = sinf(a) * scale;
        }
    }
}

void positions_rotation(const struct model_shape *g, float *table)
{
    enum rope kind = family_row(g->family)->rope;
    if (kind == ROPE_TOKENS) {
        token_rotation(g, table);
        return;
    }
    int64_t side = g->image / g->patch, pairs = g->width / g->heads / 2, count = pairs / 2;
    for (int64_t n = 0; n < side * side; n++)
        for (int64_t k = 0; k < pairs; k++) { /* those of the row, then those of the column; PE: reversed */
            bool row = (k < count) != (kind == ROPE_PE);
            float a = angle(g, kind, k % count, count, row ? n / side : n % side, side);
            table[n * 2 * pairs + k] = cosf(a);
            table[n * 2 * pairs + pairs + k] = sinf(a);
        }
}
