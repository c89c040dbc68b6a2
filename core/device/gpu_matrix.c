/* Verifies that the card's matrix instructions match kernels/gpu/matrix.h. The register layouts come from
 * manuals or, for Hygon, from other programs, and no compiler checks them. So every start multiplies known 16
 * x 16 matrices in each form that the kernels use. If one element is wrong, bf16 uses the kernels without
 * matrix instructions. */
#include "core/device/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 16, CELLS = SIDE * SIDE, GEMMS = 3 };

/* kernels/gpu/matrix.h: MATRIX_NONE, ... */
static const char *const instructions[] = {"none", "mma", "mfma", "mmac"};
enum { INSTRUCTIONS = sizeof instructions / sizeof *instructions };

/* Numbers from -3 to 3 without a pattern; bf16 represents them and sums of 16 of their products exactly. */
static float known(int i)
{
    uint32_t x = (uint32_t)(i + 1) * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    return (float)((x >> 16) % 7) - 3.0f;
}
static uint16_t bf16_exact(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* a b^T, a b, (a b^T) b as (16, 16) each */
static void expected(const float *a, const float *b, float *c)
{
    for (int r = 0; r < SIDE; r++)
        for (int j = 0; j < SIDE; j++) {
            float rows = 0, columns = 0;
            for (int k = 0; k < SIDE; k++) {
                rows += a[r * SIDE + k] * b[j * SIDE + k];
                columns += a[r * SIDE + k] * b[k * SIDE + j];
            }
            c[r * SIDE + j] = rows;
            c[CELLS + r * SIDE + j] = columns;
        }
    for (int r = 0; r < SIDE; r++)
        for (int j = 0; j < SIDE; j++) {
            float chained = 0;
            for (int k = 0; k < SIDE; k++) chained += c[r * SIDE + k] * b[k * SIDE + j];
            c[2 * CELLS + r * SIDE + j] = chained;
        }
}

/* Returns whether the arch has such instructions, so that a code object without them gets a warning. */
static bool has_instructions(const char *arch)
{
    static const char *const some[] = {"gfx90a", "gfx94", "gfx950", "gfx928", "gfx92a", "gfx936", "gfx938"};
    if (strncmp(arch, "sm_", 3) == 0) return atoi(arch + 3) >= 80;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        if (strncmp(arch, some[i], strlen(some[i])) == 0) return true;
    return false;
}

/* Computes the GEMMs of known operands on the card: found[0] the instructions, then the results. */
static int multiplied(struct device *dev, const float *operands, float *found)
{
    struct gpu *gpu = gpu_of(dev);
    uint16_t half[2 * CELLS];
    size_t out_bytes = (1 + GEMMS * CELLS) * sizeof *found;
    void *p = NULL;
    for (int i = 0; i < 2 * CELLS; i++) half[i] = bf16_exact(operands[i]);
    int code = gpu->driver.allocate(&p, sizeof half + out_bytes);
    if (code) return code;
    char *a = p, *b = a + sizeof half / 2, *c = a + sizeof half;
    code = gpu_to_card(dev, a, half, sizeof half, gpu->stream);
    if (!code) code = gpu->driver.fill(c, 0xA5, out_bytes, gpu->stream);
    if (!code) gpu_launch(dev, "matrix_check", 1, 1, (void *[]){&a, &b, &c});
    if (!code && !dev->pending.code) code = gpu->driver.to_host(found, c, out_bytes, gpu->stream);
    if (!code && !dev->pending.code) code = gpu->driver.stream_sync(gpu->stream);
    gpu->driver.deallocate(p);
    return code;
}

void gpu_matrix_choose(struct device *dev)
{
    struct gpu *gpu = gpu_of(dev);
    float operands[2 * CELLS], want[GEMMS * CELLS], found[1 + GEMMS * CELLS] = {0};
    int at = 0;
    for (int i = 0; i < 2 * CELLS; i++) operands[i] = known(i);
    expected(operands, operands + CELLS, want);
    gpu->plain = true;
    int code = multiplied(dev, operands, found);
    if (code || dev->pending.code) return; /* the next request fails as well, and is reported */
    int which = found[0] >= 0 && found[0] < INSTRUCTIONS ? (int)found[0] : 0;
    snprintf(gpu->matrix, sizeof gpu->matrix, "%s", instructions[which]);
    if (!which && has_instructions(gpu->card.arch))
        snprintf(gpu->matrix_why, sizeof gpu->matrix_why,
                 N_("the code object was built without them; see the compiler's output of the build"));
    if (!which) return;
    while (at < GEMMS * CELLS && found[1 + at] == want[at]) at++;
    gpu->plain = at < GEMMS * CELLS;
    if (!gpu->plain) return;
    snprintf(gpu->matrix, sizeof gpu->matrix, N_("none (%s is wrong here)"), instructions[which]);
    snprintf(gpu->matrix_why, sizeof gpu->matrix_why,
             N_("%s gives a wrong GEMM (%d, row %d, column %d: %g, expected %g)"), instructions[which],
             at / CELLS + 1, at % CELLS / SIDE, at % SIDE, (double)found[1 + at], (double)want[at]);
}
