/* A model file of random or numbered values, as MEOpt's own checkpoints are. */
#ifndef MEOPT_TESTS_UNIT_LANGUAGE_PUT_H
#define MEOPT_TESTS_UNIT_LANGUAGE_PUT_H

#include "core/model/metadata.h"
#include "core/base/memory.h"
#include "core/model/parameters.h"
#include "core/weights/weights.h"

static inline void put_model(const struct model_shape *shape, const char *path,
                             float (*value)(const struct parameter *p, int parameter, int64_t i))
{
    struct error err = {0};
    struct parameter *list;
    int count = parameters_list(shape, NULL, &list);
    struct weights_row *rows = xcalloc((size_t)count, sizeof *rows);
    for (int i = 0; i < count; i++) {
        float *values = xcalloc((size_t)list[i].count, sizeof *values);
        for (int64_t k = 0; k < list[i].count; k++) values[k] = value(&list[i], i, k);
        rows[i] = (struct weights_row){
            .name = list[i].name, .dtype = DTYPE_F32, .ndim = list[i].ndim, .data = values};
        memcpy(rows[i].shape, list[i].shape, sizeof list[i].shape);
    }
    struct metadata metadata;
    metadata_make(&metadata, shape, false);
    if (weights_write_safetensors(path, rows, count, metadata.metadata, &err)) fail_msg("%s", err.what);
    for (int i = 0; i < count; i++) free((void *)(uintptr_t)rows[i].data);
    free(rows);
    free(list);
}

#endif
