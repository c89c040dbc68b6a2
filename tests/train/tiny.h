/* An experiment small enough for a unit test: random towers of two blocks, images of 28 x 28 below a
 * directory of its own. */
#ifndef MEOPT_TESTS_TRAIN_TINY_H
#define MEOPT_TESTS_TRAIN_TINY_H

#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/step/trainer.h"
#include "tests/card.h"

#include <stdlib.h>
#include <string.h>

struct tiny {
    char directory[64];
    struct config config;
    struct device *device;
    struct trainer *trainer;
};

/* One more image below the directory. */
static inline int tiny_image(const struct tiny *tiny, const char *name, const char *from)
{
    char *bytes = NULL, *source = path_join(source_file("tests/data/preprocess/images"), from),
         *path = path_join(tiny->directory, name);
    size_t size;
    int code = file_read(source, 1 << 24, &bytes, &size, NULL);
    if (!code) code = file_write_atomic(path, bytes, size, NULL);
    free(path);
    free(source);
    free(bytes);
    return code;
}

/* The directory with five images. */
static inline int tiny_begin(struct tiny *tiny)
{
    static const char *const names[] = {"01_base444.jpg", "02_base422.jpg", "05_gray.jpg", "14_rgb.png",
                                        "16_palette.png"};
    int code = 0;
    memset(tiny, 0, sizeof *tiny);
    strcpy(tiny->directory, "/tmp/meopt-tiny-XXXXXX");
    if (!mkdtemp(tiny->directory)) return EXIT_FAILED;
    for (size_t i = 0; i < sizeof names / sizeof *names && !code; i++)
        code = tiny_image(tiny, names[i], names[i]);
    return code;
}

static inline int tiny_end(const struct tiny *tiny) { return file_remove_tree(tiny->directory, NULL); }

/* The trainer on a device, alone or as one of several ranks, with more settings: key=value words between
 * spaces (or NULL). */
static inline int tiny_join(struct tiny *tiny, const char *device, const struct comm_options *ranks,
                            const char *more, fill_cache cache, void *context, struct error *err)
{
    char *root = xasprintf("data.root=%s", tiny->directory), *words = xasprintf("%s", more ? more : ""), *at;
    char *overrides[48] = {root,
                           (char[]){"device.type=cpu"},
                           (char[]){"model_t.arch=custom"},
                           (char[]){"model_t.width=176"},
                           (char[]){"model_t.depth=2"},
                           (char[]){"model_t.hidden=352"},
                           (char[]){"model_t.out=64"},
                           (char[]){"model_t.patch=14"},
                           (char[]){"model_s.arch=custom"},
                           (char[]){"model_s.width=88"},
                           (char[]){"model_s.depth=2"},
                           (char[]){"model_s.hidden=176"},
                           (char[]){"model_s.out=64"},
                           (char[]){"model_s.patch=14"},
                           (char[]){"data.image_size=28"},
                           (char[]){"train.batch_size=2"}};
    int count = 0;
    while (overrides[count]) count++;
    for (char *word = strtok_r(words, " ", &at); word && count < 48; word = strtok_r(NULL, " ", &at))
        overrides[count++] = word;
    int code = config_load(&tiny->config, source_file("configs/eva_clip.yaml"), overrides, count, err);
    if (!code) code = device_open(&tiny->device, device, 0, err);
    if (!code)
        code = trainer_create_distributed(&tiny->trainer, &tiny->config, tiny->device, true, ranks, cache,
                                          context, err);
    free(root);
    free(words);
    return code;
}

/* Alone, on the CPU. */
static inline int tiny_open(struct tiny *tiny, const char *more, fill_cache cache, void *context,
                            struct error *err)
{
    return tiny_join(tiny, "cpu", NULL, more, cache, context, err);
}

static inline void tiny_close(struct tiny *tiny)
{
    trainer_close(tiny->trainer);
    device_close(tiny->device);
    config_free(&tiny->config);
}

#endif
