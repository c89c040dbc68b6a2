/* The names of a classifier's classes: see class_order.h. */
#include "core/experiment/class_order.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/json.h"
#include "core/model/names.h"
#include "core/model/sidecar.h"
#include "core/run/checkpoint.h"
#include "core/experiment/objective.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { META_BYTES = 64 << 20 };

/* Appends a name: text, or the number that a file has instead. */
static bool add_name(struct class_names *order, const json_t *name)
{
    char number[32];
    const char *text = json_string_value(name);
    if (json_is_integer(name)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(name));
    else if (!text) return false;
    order->names = xrealloc(order->names, (size_t)(order->count + 1) * sizeof *order->names);
    order->names[order->count++] = xstrdup(text ? text : number);
    return true;
}

/* Returns whether no name says more than its number: LABEL_0, the default of transformers, or 0. */
static bool says_nothing(const struct class_names *order)
{
    for (int64_t i = 0; i < order->count; i++) {
        char usual[32];
        snprintf(usual, sizeof usual, "LABEL_%lld", (long long)i);
        if (strcmp(order->names[i], usual) != 0 && strcmp(order->names[i], usual + strlen("LABEL_")) != 0)
            return false;
    }
    return true;
}

/* Adds the names of an array (label_names, classes), or of an object whose keys are numbers (id2label). */
static bool add_names(struct class_names *order, const json_t *names)
{
    size_t count = json_is_array(names) ? json_array_size(names) : json_object_size(names);
    bool fine = true;
    for (size_t i = 0; i < count && fine; i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        fine = add_name(order, json_is_array(names) ? json_array_get(names, i) : json_object_get(names, key));
    }
    return fine;
}

static int take_names(struct class_names *order, const json_t *names, const char *member, char *path,
                      struct error *err)
{
    order->from = path;
    if (add_names(order, names)) return 0;
    error_set(err, EXIT_CONFIG, "number the names from 0, or set data.class_order: sorted",
              "%s is no list of the names of classes", member);
    return error_at(err, path, 0, 0);
}

/* Reads the names from meta.json of a run. */
static int read_run(struct class_names *order, const char *run, struct error *err)
{
    bool absent = file_absent_below(run, "meta.json");
    json_t *meta = absent ? NULL : json_read_below(run, "meta.json", META_BYTES, err),
           *names = json_object_get(meta, "classes");
    if (!absent && !meta) return err->code;
    int code = names ? take_names(order, names, "classes", path_join(run, "meta.json"), err) : 0;
    json_decref(meta);
    return code;
}

/* Reads the names from config.json next to a checkpoint. */
static int read_sidecar(struct class_names *order, const char *checkpoint, struct error *err)
{
    static const char *const members[] = {"id2label", "label_names"};
    json_t *root;
    int code = sidecar_object(&root, checkpoint, "config.json", err);
    for (size_t i = 0; i < sizeof members / sizeof *members && !code && !order->count; i++) {
        const json_t *names = json_object_get(root, members[i]);
        if (!names || json_is_null(names)) continue;
        char *directory = path_directory(checkpoint, err);
        code = directory ? take_names(order, names, members[i], path_join(directory, "config.json"), err)
                         : err->code;
        free(directory);
    }
    json_decref(root);
    return code;
}

/* Reads the names from the metadata, and whether the file has a classifier of as many classes. */
static int read_weights(struct class_names *order, const char *checkpoint, struct error *err)
{
    struct weights *weights;
    struct key_map as;
    json_error_t why;
    int code = weights_open(&weights, checkpoint, err);
    if (code) return code;
    const char *text = order->count ? NULL : weights_metadata(weights, CLASSES_METADATA);
    json_t *names = text ? json_parse(text, strlen(text), 0, &why) : NULL;
    if (text) code = take_names(order, names, CLASSES_METADATA, xstrdup(checkpoint), err);
    json_decref(names);
    names_find(&as, weights);
    int64_t at = order->count ? names_classifier(&as, weights, "weight") : -1;
    order->classifier = at >= 0 && weights_tensor(weights, at)->shape[0] == order->count;
    weights_close(weights);
    return code;
}

/* Returns the directory of the run whose checkpoint this is, malloc'ed; NULL: of none. */
static char *run_of(const char *checkpoint)
{
    char name[256], *directory;
    int64_t step;
    if (!checkpoint_named(checkpoint, name, sizeof name, &step)) return NULL;
    directory = xstrdup(checkpoint);
    for (int up = 0; up < 3; up++) { /* ckpt/step-N/model.safetensors */
        char *above = path_dirname(directory);
        free(directory);
        directory = above;
    }
    return directory;
}

int class_order_read(struct class_names *order, const struct config *c, const char *run, struct error *err)
{
    const char *from = c->model_s.weight;
    bool begins = from[0] && c->model_s.init != TOWER_INIT_RANDOM && !file_absent(from);
    int code = 0;
    *order = (struct class_names){0};
    if (!objective_of(c)->classes || (!run && (!begins || c->data.class_order == DATA_CLASS_ORDER_SORTED)))
        return 0;
    char *of = run ? xstrdup(run) : run_of(from);
    if (of) code = read_run(order, of, err);
    else code = read_sidecar(order, from, err);
    if (!code && !run) code = read_weights(order, from, err);
    free(of);
    if (code || says_nothing(order)) class_order_free(order);
    return code;
}

void class_order_free(struct class_names *order)
{
    for (int64_t i = 0; i < order->count; i++) free(order->names[i]);
    free(order->names);
    free(order->from);
    *order = (struct class_names){0};
}
