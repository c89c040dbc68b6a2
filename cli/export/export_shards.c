/* Weights in files of a limited size: see export_shards.h. */
#include "cli/export/export_shards.h"
#include "core/base/path.h"
#include "core/base/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

static double bytes_of(const struct weights_row *row)
{
    double bytes = (double)dtype_bytes(row->dtype);
    for (int i = 0; i < row->ndim; i++) bytes *= (double)row->shape[i];
    return bytes;
}

/* Returns the number of rows from `first` on that fit into one file, at least 1. */
static int64_t rows_of(const struct weights_row *rows, int64_t first, int64_t count, double most)
{
    double bytes = 0;
    int64_t i = first;
    while (i < count && (i == first || bytes + bytes_of(&rows[i]) <= most)) bytes += bytes_of(&rows[i++]);
    return i - first;
}

static int write_index(const char *directory, json_t *map, double bytes, struct error *err)
{
    char *path = path_join(directory, EXPORT_INDEX);
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    int code = json_write(path, index, JSON_INDENT(2) | JSON_PRESERVE_ORDER, err);
    json_decref(index);
    free(path);
    return code;
}

int export_shards_write(const char *directory, const struct weights_row *rows, int64_t count,
                        const char *const *metadata, double most, struct error *err)
{
    int files = 0, file = 0, code = 0;
    double bytes = 0;
    for (int64_t i = 0; i < count; i += rows_of(rows, i, count, most)) files++;
    json_t *map = json_object();
    for (int64_t first = 0, n; first < count && !code; first += n) {
        char name[64] = "model.safetensors";
        n = rows_of(rows, first, count, most);
        if (files > 1) snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", ++file, files);
        char *path = path_join(directory, name);
        code = weights_write_safetensors(path, rows + first, n, metadata, err);
        free(path);
        for (int64_t i = first; i < first + n; i++) {
            json_object_set_new(map, rows[i].name, json_string(name));
            bytes += bytes_of(&rows[i]);
        }
    }
    if (!code && files > 1) return write_index(directory, map, bytes, err);
    json_decref(map);
    return code;
}
