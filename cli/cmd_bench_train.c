/* meopt bench train: steps of an experiment's geometry
 * beside the limit of the machine, measured in the same run. */
#include "cli/command.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/device/bench.h"
#include "core/run/memory.h"
#include "core/train/experiment.h"
#include "core/train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct synthetic {
    float *images;
    int64_t *ids;
};

static int give(void *context, int64_t index, struct batch *batch, const int64_t **ids, struct error *err)
{
    struct synthetic *s = context;
    (void)index;
    (void)err;
    batch->input = s->images;
    *ids = s->ids;
    return 0;
}

static const void *give_next(void *context) { return ((struct synthetic *)context)->images; }

/* The peak of the matrix product, if it is higher than what is known; on a device of its own, so that its
 * scratch is not counted among the experiment's. */
static int peak_of(const struct config *c, double *peak, struct error *err)
{
    struct device *device;
    int code = train_device_open(&device, c, false, err);
    if (code) return code;
    double found = device_gemm_peak_gflops(device, trainer_tower_type(&c->model_s));
    if (found > *peak) *peak = found;
    device_close(device);
    return 0;
}

static int bench_run(const struct arguments *args, struct error *err)
{
    struct config c;
    struct device *device = NULL;
    struct trainer *t = NULL;
    struct synthetic s = {0};
    int64_t steps = argument_int(args, "steps", 3);
    double best = 0, peak = 0;
    int code = config_load(&c, args->operands[0], args->operands + 1, args->operand_count - 1, err);
    if (code) return code;
    c.train.batch_size = argument_int(args, "batch", c.train.batch_size);
    c.train.cache_teacher = false;
    code = peak_of(&c, &peak, err);
    if (!code) code = train_device_open(&device, &c, true, err);
    if (!code) code = trainer_create(&t, &c, device, argument_flag(args, "random-weights"), NULL, NULL, err);
    if (!code) {
        int64_t values = t->micro * 3 * t->student_geometry.image * t->student_geometry.image;
        s.images = xmalloc((size_t)values * sizeof *s.images);
        s.ids = xcalloc((size_t)t->micro, sizeof *s.ids);
        for (int64_t i = 0; i < values; i++) s.images[i] = (float)((i * 2654435761u >> 7) % 2001) * 1e-3f - 1;
    }
    struct step_result result;
    for (int64_t step = 1; step <= steps && !code; step++) {
        double begin = clock_seconds();
        code = trainer_step(t, step, c.optim.lr, &(struct batch_source){give, give_next, &s}, &result, err);
        double seconds = clock_seconds() - begin;
        if (step == 1 || seconds < best) best = seconds;
        if (!code)
            fprintf(stderr, "step %lld: %.1f ms, loss %.6g\n", (long long)step, seconds * 1e3, result.loss);
    }
    double images = 0, gflops = 0;
    struct memory_use held = {0};
    if (!code) {
        images = (double)t->batch / best;
        gflops = (t->student_flops + (t->teacher ? geometry_forward_flops(&t->teacher_geometry) : 0)) *
                 images * 1e-9;
        held = device->use;
    }
    trainer_close(t);
    device_close(device);
    if (!code) code = peak_of(&c, &peak, err); /* again: the machine's speed wanders */
    if (!code) {
        const struct memory_use *use = &held;
        if (argument_flag(args, "json")) {
            json_t *memory = memory_json(use);
            char *classes =
                json_dumps(json_object_get(memory, "classes"), JSON_PRESERVE_ORDER | JSON_COMPACT);
            printf("{\"images_per_s\":%.6g,\"gflops\":%.6g,", images, gflops);
            if (peak > 0) printf("\"gemm_peak_gflops\":%.6g,\"gemm_ratio\":%.4g,", peak, gflops / peak);
            else printf("\"gemm_peak_gflops\":null,\"gemm_ratio\":null,");
            printf("\"step_ms\":%.6g,\"peak_bytes\":%zu,\"classes\":%s}\n", best * 1e3, use->peak_total_bytes,
                   classes);
            free(classes);
            json_decref(memory);
        } else {
            printf("images/s    %.3f\nstep        %.1f ms\nGFLOP/s     %.1f\n", images, best * 1e3, gflops);
            if (peak > 0)
                printf("GEMM peak   %.1f GFLOP/s in this run\nratio       %.3f\n", peak, gflops / peak);
            else printf("GEMM peak   not measured: no memory\n");
            for (int k = 0; k < MEMORY_CLASS_COUNT; k++)
                printf("%-11s %.1f MiB\n", memory_class_names[k], (double)use->peak_bytes[k] / 1048576.0);
            printf("peak        %.1f MiB\n", (double)use->peak_total_bytes / 1048576.0);
        }
    }
    free(s.images);
    free(s.ids);
    config_free(&c);
    return code;
}

static const struct option options[] = {
    {"random-weights", 0, OPTION_FLAG, NULL, NULL, 0, 0,
     "no checkpoints: seeded random values in the configured geometry"},
    {"batch", 0, OPTION_INT, "N", NULL, 1, 65536, "images per step (default train.batch_size)"},
    {"steps", 0, OPTION_INT, "N", NULL, 1, 1e6, "steps to run; the best counts (default 3)"},
    {"json", 0, OPTION_FLAG, NULL, NULL, 0, 0, "one JSON object"},
    {0},
};

const struct command cmd_bench_train = {"bench train",
                                        "CONFIG [key=value ...]",
                                        "time training steps beside the machine's GEMM peak",
                                        NULL,
                                        options,
                                        1,
                                        -1,
                                        false,
                                        bench_run};
