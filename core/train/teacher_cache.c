/* The teacher's outputs in a file: see teacher_cache.h. */
#include "core/train/teacher_cache.h"
#include "core/base/progress.h"
#include "core/train/experiment.h"
#include "core/train/signals.h"

#include <stdlib.h>
#include <unistd.h>

int teacher_cache_fill(struct trainer *t, const char *path, struct error *err)
{
    struct data_options options = train_data_options(t->config);
    struct data *data = NULL;
    struct weights *stored = NULL;
    struct data_batch batch;
    options.whole = true;
    options.shuffle = options.augment = false;
    options.batch = t->micro;
    int code = data_open(&data, &options, err);
    if (code) return code;
    int64_t images = data_images(data), row = t->teacher->out_rows * t->teacher->out_width,
            pixels = 3 * options.image_size * options.image_size;
    t->cache = malloc((size_t)(images * row) * sizeof *t->cache);
    t->cache_images = images;
    if (!t->cache)
        code = error_set(err, EXIT_HOST_MEMORY, "train.cache_teacher: false",
                         "out of memory for the teacher's output of %lld images", (long long)images);
    if (!code && access(path, F_OK) == 0 && weights_open(&stored, path, NULL) == 0 &&
        weights_count(stored) == 1 && weights_tensor(stored, 0)->count == images * row) {
        code = weights_read(stored, 0, t->cache, DTYPE_F32, err);
    } else if (!code) {
        code = data_start(data, 0, err);
        while (!code && (code = data_next(data, &batch, err)) == 0 && batch.count > 0)
            /* one by one: a bad image's stand-in goes to its own place */
            for (int64_t i = 0; i < batch.count && !code; i++) {
                struct batch one = {batch.images + i * pixels, 1};
                code = trainer_embed_teacher(t, &one, t->cache + batch.ids[i] * row, err);
                progress_mark();
                if (!code && signals_act(PHASE_TEACHER) == ACT_LEAVE) code = EXIT_STOPPED;
            }
        struct weights_row table = {
            .name = "teacher", .dtype = DTYPE_F32, .ndim = 2, .shape = {images, row}, .data = t->cache};
        if (!code) code = weights_write_safetensors(path, &table, 1, NULL, err);
    }
    weights_close(stored);
    data_close(data);
    return code;
}
