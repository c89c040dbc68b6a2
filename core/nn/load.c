/* Loads values into a tower: from a checkpoint, or seeded random. */
#include "core/base/memory.h"
#include "core/base/log.h"
#include "core/model/checkpoint_fit.h"
#include "core/nn/tower.h"
#include "kernels/bf16.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int out_of_host_memory(int64_t count, struct error *err)
{
    return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a staging buffer of %lld values",
                     (long long)count);
}

/* Values of the largest tensor, and after them of its largest slice. */
static float *staging(const struct tower *t, int64_t *largest)
{
    *largest = 1;
    for (int i = 0; i < t->parameter_count; i++) {
        struct parameter whole = parameter_whole(&t->model_shape, &t->parameters[i]);
        if (whole.count > *largest) *largest = whole.count;
    }
    return malloc((size_t)(tower_slices(t) > 1 ? 2 * *largest : *largest) * sizeof(float));
}

static uint16_t bf16_nearest(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bf16_of_bits(bits);
}

static void upload_halves(struct tower *t, const struct parameter *p, const float *values)
{
    enum { ONCE = 32768 };
    uint16_t half[ONCE];
    for (int64_t at = 0; at < p->count; at += ONCE) {
        int64_t count = p->count - at < ONCE ? p->count - at : ONCE;
        for (int64_t i = 0; i < count; i++) half[i] = bf16_nearest(values[at + i]);
        t->device->upload(t->device, (uint16_t *)p->weight + at, half, (size_t)count * sizeof *half);
    }
}

/* values (host, F32) -> the parameter's device memory; then to `loaded`, which stores last: a format with
 * residual bits rounds twice, to its own bits and then to bf16, and its two parts belong together. */
static int store_values(struct tower *t, int index, const float *values, parameter_values loaded,
                        void *context, struct error *err)
{
    struct parameter *p = &t->parameters[index];
    bool here = tower_owns_parameter(t, p) && (!t->options.weight_buffers || p->resident);
    if (p->master) t->device->upload(t->device, p->master, values, (size_t)p->count * sizeof(float));
    if (here && p->weight_type == DTYPE_BF16) upload_halves(t, p, values);
    else if (here) t->device->upload(t->device, p->weight, values, (size_t)p->count * sizeof(float));
    return loaded ? loaded(context, index, values, err) : 0;
}

/* Stores a tensor's values, or those of each of its slices, from the index-th parameter on. values: of
 * staging. */
static int store_whole(struct tower *t, int index, float *values, int64_t largest, parameter_values loaded,
                       void *context, struct error *err)
{
    const struct parameter *p = &t->parameters[index];
    int code = 0;
    if (p->slice < 0) return store_values(t, index, values, loaded, context, err);
    for (int s = 0; s < p->slices && !code; s++) {
        parameter_cut(&t->model_shape, p + s, values, values + largest);
        code = store_values(t, index + s, values + largest, loaded, context, err);
    }
    return code;
}

/* Reads one of several equal parts of a tensor's rows. */
static int read_slice(const struct parameter *p, const struct values_place *place, const struct weights *w,
                      float *values, struct error *err)
{
    float *all = malloc((size_t)(p->count * place->slices) * sizeof *all);
    if (!all) return out_of_host_memory(p->count * place->slices, err);
    int code = weights_read(w, place->tensor[0], all, DTYPE_F32, err);
    if (!code) code = weights_check_finite(w, place->tensor[0], all, DTYPE_F32, err);
    if (!code) memcpy(values, all + place->slice * p->count, (size_t)p->count * sizeof *values);
    free(all);
    return code;
}

/* Reads positions without the rows of the register tokens; or register tokens with these rows added. */
static int read_positioned(const struct parameter *p, const struct values_place *place,
                           const struct weights *w, float *values, struct error *err)
{
    bool registers = place->added >= 0;
    int64_t from = registers ? place->added : place->tensor[0], count = weights_tensor(w, from)->count,
            before = place->held_from * p->shape[p->ndim - 1], held = registers ? p->count : count - p->count;
    float *all = malloc((size_t)count * sizeof *all);
    if (!all) return out_of_host_memory(count, err);
    int code = weights_read(w, from, all, DTYPE_F32, err);
    if (!code) code = weights_check_finite(w, from, all, DTYPE_F32, err);
    if (registers && !code) code = weights_read(w, place->tensor[0], values, DTYPE_F32, err);
    if (registers && !code) code = weights_check_finite(w, place->tensor[0], values, DTYPE_F32, err);
    for (int64_t i = 0; i < p->count && !code; i++)
        values[i] = registers ? values[i] + all[before + i] : all[i < before ? i : held + i];
    free(all);
    return code;
}

/* Reads the parameter's values from the file, its parts concatenated. */
static int read_values(const struct parameter *p, const struct values_place *place, const struct weights *w,
                       float *values, struct error *err)
{
    int64_t zeros = place->zero_rows * p->shape[p->ndim - 1], at = 0;
    float *as_stored = values + zeros;
    if (place->slices) return read_slice(p, place, w, values, err);
    if (place->held_rows || place->added >= 0) return read_positioned(p, place, w, values, err);
    for (int64_t i = 0; i < zeros; i++) values[i] = 0;
    if (place->transposed && !(as_stored = malloc((size_t)p->count * sizeof *values)))
        return out_of_host_memory(p->count, err);
    int code = 0;
    for (int i = 0; i < place->parts && !code; i++) {
        code = weights_read(w, place->tensor[i], as_stored + at, DTYPE_F32, err);
        if (!code) code = weights_check_finite(w, place->tensor[i], as_stored + at, DTYPE_F32, err);
        at += weights_tensor(w, place->tensor[i])->count;
    }
    if (!place->transposed) return code;
    int64_t rows = p->shape[0], columns = p->shape[1];
    for (int64_t r = 0; r < rows && !code; r++)
        for (int64_t c = 0; c < columns; c++) values[r * columns + c] = as_stored[c * rows + r];
    free(as_stored);
    return code;
}

/* Logs whether the checkpoint's classifier is used; refuses a new head if options.head_loaded. */
static int check_head(const struct tower *t, const struct key_map *key_map, const struct weights *w,
                      struct error *err)
{
    const struct parameter *p = t->memory->roles[ROLE_HEAD_W];
    if (!p) return 0;
    struct values_place place = fit_place(key_map, t->model_shape.ffn, p, w);
    bool absent = fit_absent(&place), classifier = t->model_shape.classes > 0;
    const char *kind = classifier ? "classifier" : _("distillation head");
    const struct parameter *pooler = t->memory->roles[ROLE_POOLER_W];
    struct values_place pooler_place;
    if (pooler) pooler_place = fit_place(key_map, t->model_shape.ffn, pooler, w);
    bool new_pooler = pooler && fit_absent(&pooler_place);
    int64_t at = classifier ? names_classifier(key_map, w, "weight") : -1;
    const struct weights_tensor *found = at >= 0 ? weights_tensor(w, at) : NULL;
    char name[160], has[256];
    static const char *const seconds[] = {"head_dist.weight", "distillation_classifier.weight"};
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds && classifier; i++)
        if ((!absent || t->options.head_loaded) && weights_find_under(w, &key_map->prefix, seconds[i]) >= 0)
            return error_set(
                err, EXIT_CONFIG, "train another number of classes, or a classifier on one token",
                "the classifier is the mean of two, and the second, %s, is not supported", seconds[i]);
    snprintf(has, sizeof has, "no %s", kind);
    if (found)
        snprintf(has, sizeof has, _("classifier %s of %lld classes and %lld inputs"),
                 name_printable(name, sizeof name, found->name), (long long)found->shape[0],
                 (long long)(found->ndim == 2 ? found->shape[1] : 0));
    if (absent && t->options.head_loaded)
        return error_set(err, EXIT_USAGE, "train first, or name the run: meopt eval RUN",
                         "expected a %s of %lld %s and %lld inputs, found %s", kind, (long long)p->shape[0],
                         classifier ? "classes" : "outputs", (long long)p->shape[1], has);
    if (new_pooler && t->options.head_loaded)
        return weights_refuse_missing(w, pooler_place.first, "train first, or name the run: meopt eval RUN",
                                      err);
    if (classifier && absent)
        log_info("%s: %s; a new one of %lld classes starts at zero", weights_path(w), has,
                 (long long)p->shape[0]);
    else if (classifier) log_info("%s: %s is loaded", weights_path(w), has);
    if (new_pooler) log_info("%s: no pooler; a new one starts with random values", weights_path(w));
    return 0;
}

int tower_load(struct tower *t, const struct weights *w, parameter_values loaded, void *context,
               struct error *err)
{
    /* Check all shapes first, so that a failure loads nothing. */
    struct key_map key_map;
    int code = fit_family(&key_map, &t->model_shape, w, err);
    struct parameter *tensors = xcalloc((size_t)t->parameter_count, sizeof *tensors);
    for (int i = 0; i < t->parameter_count; i++)
        tensors[i] = parameter_whole(&t->model_shape, &t->parameters[i]);
    if (!code) code = fit_shapes(&key_map, t->model_shape.ffn, tensors, t->parameter_count, w, err);
    free(tensors);
    if (!code) code = check_head(t, &key_map, w, err);
    if (code) return code;
    int64_t largest;
    float *values = staging(t, &largest);
    if (!values) return out_of_host_memory(largest, err);
    for (int i = 0; i < t->parameter_count && !code; i++) {
        if (t->parameters[i].adapter || t->parameters[i].slice > 0) continue;
        struct parameter p = parameter_whole(&t->model_shape, &t->parameters[i]);
        struct values_place place =
            fit_place(&key_map, t->model_shape.ffn, p.head ? &t->parameters[i] : &p, w);
        if (fit_absent(&place)) continue; /* an absent mask_token, or a fresh head */
        code = read_values(&p, &place, w, values, err);
        if (!code) code = store_whole(t, i, values, largest, loaded, context, err);
    }
    free(values);
    return code;
}

int tower_read(const struct tower *t, const struct weights *w, int index, float *values, struct error *err)
{
    struct key_map key_map;
    int code = fit_family(&key_map, &t->model_shape, w, err);
    if (code) return code;
    struct values_place place = fit_place(&key_map, t->model_shape.ffn, &t->parameters[index], w);
    return read_values(&t->parameters[index], &place, w, values, err);
}

/* Returns the tensor of an adapter, or of the head, which PEFT keeps under the name of timm's; -1: none. A
 * state dict of the whole PeftModel has the adapter's name, "default", before the last word. */
static int64_t find_adapter(const struct tower *t, const struct parameter *p, const struct weights *w)
{
    static const char *const begins[] = {"base_model.model.", "base_model.model._orig_mod.", ""};
    const char *end = strrchr(p->name, '.'), *prefix = p->head ? "" : family_prefix(t->model_shape.family);
    int stem = (int)(end - p->name);
    int64_t at = -1;
    for (size_t i = 0; i < sizeof begins / sizeof *begins && at < 0; i++) {
        char *names[] = {xasprintf("%s%s%s", begins[i], prefix, p->name),
                         p->head ? xasprintf("%shead%s", begins[i], end)
                                 : xasprintf("%s%s%.*s.default%s", begins[i], prefix, stem, p->name, end)};
        for (int k = 0; k < 2; k++) {
            if (at < 0) at = weights_find(w, names[k]);
            free(names[k]);
        }
    }
    return at;
}

/* Sets used[] of the tensor. */
static int load_adapter(struct tower *t, int index, const struct weights *w, float *values, bool *used,
                        parameter_values loaded, void *context, struct error *err)
{
    const struct parameter *p = &t->parameters[index];
    int64_t at = find_adapter(t, p, w);
    const struct weights_tensor *found = at >= 0 ? weights_tensor(w, at) : NULL;
    if (!found && p->head) return 0;
    if (!found)
        return error_set(err, EXIT_CONFIG, "lora.rank and lora.targets are those of the file",
                         "has no tensor %s", p->name);
    bool same = found->ndim == p->ndim;
    for (int d = 0; d < p->ndim && same; d++) same = found->shape[d] == p->shape[d];
    if (!same)
        return error_set(err, EXIT_CONFIG, "is it an adapter of this model?", "tensor %s is not [%lldx%lld]",
                         p->name, (long long)p->shape[0], (long long)p->shape[1]);
    used[at] = true;
    int code = weights_read(w, at, values, DTYPE_F32, err);
    if (!code) code = weights_check_finite(w, at, values, DTYPE_F32, err);
    return code ? code : store_values(t, index, values, loaded, context, err);
}

/* Refuses what was not read: without it the model is another one. A tower may be read without its head. */
static int check_used(const struct weights *w, const bool *used, struct error *err)
{
    static const char prefix[] = "base_model.model.";
    for (int64_t i = 0; i < weights_count(w); i++) {
        const char *name = weights_tensor(w, i)->name, *own = name;
        char text[160];
        if (strncmp(name, prefix, sizeof prefix - 1) == 0) own += sizeof prefix - 1;
        bool head = strncmp(own, "head.", 5) == 0 || strncmp(own, "classifier.", 11) == 0 ||
                    strncmp(own, HEAD_KEY, strlen(HEAD_KEY)) == 0;
        if (!used[i] && !head)
            return error_set(err, EXIT_CONFIG,
                             "lora.targets are those of the file; or merge it in PEFT: merge_and_unload()",
                             "has tensor %s, which is no adapter of the model",
                             name_printable(text, sizeof text, name));
    }
    return 0;
}

int tower_load_adapters(struct tower *t, const struct weights *w, parameter_values loaded, void *context,
                        struct error *err)
{
    int64_t largest;
    float *values = staging(t, &largest);
    if (!values) return out_of_host_memory(largest, err);
    bool *used = xcalloc((size_t)weights_count(w) + 1, sizeof *used);
    int code = 0;
    for (int i = 0; i < t->parameter_count && !code; i++)
        if (t->parameters[i].adapter || t->parameters[i].head)
            code = load_adapter(t, i, w, values, used, loaded, context, err);
    free(values);
    if (!code) code = check_used(w, used, err);
    free(used);
    if (code && err && !err->file[0]) error_at(err, weights_path(w), 0, 0);
    return code;
}

/* A counter-based generator (splitmix64's finaliser),
 * so that a value depends on seed, parameter and index alone. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Standard normal to within 1 % out to 3 sd: the sum of 12 16-bit uniforms (Irwin-Hall), which needs no libm
 * and is the same on every machine. */
static float normal(uint64_t seed, uint64_t tensor, uint64_t index)
{
    uint64_t key = mix(seed ^ mix(tensor));
    int64_t sum = 0;
    for (uint64_t part = 0; part < 3; part++) {
        uint64_t bits = mix(key ^ mix(index * 3 + part));
        for (int k = 0; k < 4; k++, bits >>= 16) sum += (int64_t)(bits & 0xFFFF);
    }
    return (float)((double)(2 * sum - 12 * 65535) / (2.0 * 65536.0));
}

/* The same within 2 standard deviations: others are drawn again. */
static float truncated_normal(uint64_t seed, uint64_t tensor, uint64_t index)
{
    float x = normal(seed, tensor, index);
    for (uint64_t again = 1; fabsf(x) > 2; again++) x = normal(seed, tensor, index + (again << 32));
    return x;
}

/* Uniform in (-1, 1). */
static float uniform(uint64_t seed, uint64_t tensor, uint64_t index)
{
    int64_t bits = (int64_t)(mix(mix(seed ^ mix(tensor)) ^ mix(index)) >> 40);
    return (float)(2 * bits + 1 - (1 << 24)) / (float)(1 << 24);
}

/* Returns the standard deviation or bound of random values, or the value of constant ones. */
static float spread_of(const struct model_shape *g, const struct parameter *p)
{
    switch (p->initial) {
    case INITIAL_BRANCH: return 0.02f / (float)sqrt(2.0 * (double)g->depth);
    case INITIAL_BLOCK: return 0.02f / (float)sqrt(2.0 * p->group);
    case INITIAL_TINY: return 1e-6f;
    case INITIAL_QUERY: return 1 / sqrtf((float)p->shape[p->ndim - 1]);
    case INITIAL_ZERO: return 0;
    case INITIAL_ONE: return 1;
    case INITIAL_SCALE: return 1e-5f;
    case INITIAL_UNIFORM: return 1 / sqrtf((float)p->shape[1]);
    case INITIAL_PATCH: return 1 / sqrtf((float)(3 * g->patch * g->patch));
    default: return 0.02f;
    }
}

enum { ADAPTERS = 1 << 24 }; /* above the number of any tensor */

int tower_init_random(struct tower *t, uint64_t seed, bool head_only, parameter_values loaded, void *context,
                      struct error *err)
{
    int64_t largest;
    float *values = staging(t, &largest);
    if (!values) return out_of_host_memory(largest, err);
    int code = 0, others = 0; /* adapters and further slices so far: without them, values are the same */
    for (int i = 0; i < t->parameter_count && !code; i++) {
        struct parameter whole = parameter_whole(&t->model_shape, &t->parameters[i]), *p = &whole;
        uint64_t tensor = (uint64_t)(p->adapter ? ADAPTERS + i : i - others);
        others += p->adapter || t->parameters[i].slice > 0;
        if (t->parameters[i].slice > 0) continue;
        if (head_only && !p->may_be_new && !p->adapter) continue;
        bool constant = p->initial >= INITIAL_ZERO && p->initial <= INITIAL_SCALE;
        float spread = spread_of(&t->model_shape, p);
        float (*draw)(uint64_t, uint64_t, uint64_t) = p->initial >= INITIAL_UNIFORM ? uniform
                                                      : p->initial == INITIAL_QUERY ? truncated_normal
                                                                                    : normal;
#pragma omp parallel for schedule(static)
        for (int64_t k = 0; k < p->count; k++)
            values[k] = constant ? spread : spread * draw(seed, tensor, (uint64_t)k);
        code = store_whole(t, i, values, largest, loaded, context, err);
    }
    free(values);
    return code;
}
