/* Renames the keys of a tower: see rename_keys.h. */
#include "core/model/rename_keys.h"
#include "core/base/memory.h"
#include "core/model/checkpoint_fit.h"
#include "core/model/parameters.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Source of a row's values: `count` elements of a tensor from `first` on. */
struct source {
    struct rename_keys *rename;
    const struct weights *weights; /* NULL: all values are `filled` */
    float filled;
    int64_t tensor, first, count;
    enum dtype dtype;
    bool transposed; /* the tensor has the row's two dimensions swapped */
    int64_t added;   /* a tensor whose first values are added; -1: none */
    int64_t columns; /* of the row */
    int64_t read;    /* columns of the tensor, if the row has zeros besides; 0: all */
    bool right;      /* they are the row's last ones */
};

struct rename_keys {
    const struct weights *tower;
    enum dtype dtype;
    struct weights_row *rows;
    struct source **sources;
    int64_t count, capacity;
    const struct source *held; /* the source whose values are in `values` */
    void *values;
};

void rename_keys_open(struct rename_keys **rename, const struct weights *tower, enum dtype dtype)
{
    *rename = xcalloc(1, sizeof **rename);
    (*rename)->tower = tower;
    (*rename)->dtype = dtype;
}

void rename_keys_close(struct rename_keys *r)
{
    if (!r) return;
    for (int64_t i = 0; i < r->count; i++) {
        free((char *)r->rows[i].name);
        free(r->sources[i]);
    }
    free(r->rows);
    free(r->sources);
    free(r->values);
    free(r);
}

const struct weights_row *rename_keys_rows(const struct rename_keys *r) { return r->rows; }
int64_t rename_keys_count(const struct rename_keys *r) { return r->count; }

static int read_tensor(void **values, const struct weights *weights, int64_t tensor, enum dtype dtype,
                       struct error *err)
{
    size_t bytes = (size_t)weights_tensor(weights, tensor)->count * dtype_bytes(dtype);
    if (!(*values = malloc(bytes ? bytes : 1)))
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a tensor of %zu bytes", bytes);
    return weights_read(weights, tensor, *values, dtype, err);
}

static void transpose(char *to, const char *from, int64_t rows, int64_t columns, size_t bytes)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + (size_t)(r * columns + c) * bytes, from + (size_t)(c * rows + r) * bytes, bytes);
}

/* Copies rows of `read` values to a part of each row, whose other values remain 0. */
static void widen(const struct source *s, char *to, const char *from, size_t bytes)
{
    size_t row = (size_t)s->columns * bytes, part = (size_t)s->read * bytes;
    for (int64_t r = 0; r < s->count / s->columns; r++)
        memcpy(to + (size_t)r * row + (s->right ? row - part : 0), from + (size_t)r * part, part);
}

/* Adds the two tensors, rounding once. */
static int add(const struct source *s, void *values, struct error *err)
{
    void *a = NULL, *b = NULL;
    int code = read_tensor(&a, s->weights, s->tensor, DTYPE_F32, err);
    if (!code) code = read_tensor(&b, s->weights, s->added, DTYPE_F32, err);
    for (int64_t i = 0; i < s->count && !code; i++) ((float *)a)[i] += ((const float *)b)[i];
    if (!code) weights_convert(values, s->dtype, a, DTYPE_F32, s->count);
    free(a);
    free(b);
    return code;
}

static int make_values(const struct source *s, void **made, struct error *err)
{
    size_t size = dtype_bytes(s->dtype), bytes = (size_t)s->count * size;
    void *whole = NULL;
    *made = NULL;
    if (s->weights && s->added < 0) {
        int code = read_tensor(&whole, s->weights, s->tensor, s->dtype, err);
        if (code || (!s->transposed && s->first == 0 && !s->read)) {
            *made = whole;
            return code;
        }
    }
    int code = 0;
    if (!(*made = calloc(bytes ? bytes : 1, 1)))
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory for a tensor of %zu bytes", bytes);
    else if (!s->weights)
        for (int64_t i = 0; i < s->count; i++)
            weights_convert((char *)*made + (size_t)i * size, s->dtype, &s->filled, DTYPE_F32, 1);
    else if (s->added >= 0) code = add(s, *made, err);
    else if (s->transposed) transpose(*made, whole, s->count / s->columns, s->columns, size);
    else if (s->read) widen(s, *made, whole, size);
    else if (whole) memcpy(*made, (const char *)whole + (size_t)s->first * size, bytes);
    free(whole);
    return code;
}

static int read_row(void *context, size_t offset, void *dst, size_t bytes, struct error *err)
{
    struct source *s = context;
    struct rename_keys *r = s->rename;
    if (r->held != s) {
        free(r->values);
        r->held = NULL;
        int code = make_values(s, &r->values, err);
        if (code) return code;
        r->held = s;
    }
    memcpy(dst, (const char *)r->values + offset, bytes);
    return 0;
}

/* Appends a row of that name and shape; the shape gives its count. */
static struct source *add_row(struct rename_keys *r, const char *name, int ndim, const int64_t *shape,
                              struct source source)
{
    if (r->count == r->capacity) {
        r->capacity = r->capacity ? 2 * r->capacity : 256;
        r->rows = xrealloc(r->rows, (size_t)r->capacity * sizeof *r->rows);
        r->sources = xrealloc(r->sources, (size_t)r->capacity * sizeof *r->sources);
    }
    struct source *s = r->sources[r->count] = xcalloc(1, sizeof *s);
    *s = source;
    s->rename = r;
    s->count = 1;
    for (int i = 0; i < ndim; i++) s->count *= shape[i];
    s->columns = ndim ? shape[ndim - 1] : 1;
    struct weights_row *row = &r->rows[r->count++];
    *row = (struct weights_row){
        .name = xstrdup(name), .dtype = s->dtype, .ndim = ndim, .read = read_row, .context = s};
    memcpy(row->shape, shape, (size_t)ndim * sizeof *shape);
    return s;
}

static void copy_row(struct rename_keys *r, const struct weights *weights, int64_t tensor, enum dtype dtype)
{
    const struct weights_tensor *t = weights_tensor(weights, tensor);
    struct source source = {.weights = weights, .tensor = tensor, .dtype = dtype, .added = -1};
    add_row(r, t->name, t->ndim, t->shape, source);
}

void rename_keys_as_is(struct rename_keys *r, bool head)
{
    for (int64_t i = 0; i < weights_count(r->tower); i++) {
        const char *name = weights_tensor(r->tower, i)->name;
        bool own = strncmp(name, HEAD_KEY, strlen(HEAD_KEY)) == 0 ||
                   strncmp(name, CLASSIFIER_KEY, strlen(CLASSIFIER_KEY)) == 0;
        if (head || !own) copy_row(r, r->tower, i, r->dtype);
    }
}

static int64_t block_of(const struct parameter *p) { return p->group - 1; }

static const char *end_of(const struct parameter *p) { return p->role == ROLE_HEAD_B ? "bias" : "weight"; }

/* Returns the first tensor of a parameter's values in the exported file; -1: none. */
static int64_t own_tensor(const struct rename_keys *r, const struct key_map *own, int ffn,
                          const struct parameter *p)
{
    return p->head ? names_classifier(own, r->tower, end_of(p))
                   : names_tensor(own, r->tower, (enum role)p->role, block_of(p), ffn);
}

/* Returns the source of one part of a parameter, whose destination `place` describes. */
static struct source source_of(const struct rename_keys *r, const struct key_map *own, int ffn,
                               const struct parameter *p, const struct values_place *place, int part)
{
    struct source s = {.weights = r->tower,
                       .tensor = own_tensor(r, own, ffn, p),
                       .dtype = r->dtype,
                       .transposed = place->transposed,
                       .added = -1};
    int64_t skipped = place->zero_rows * p->shape[p->ndim - 1];
    s.first = skipped;
    for (int i = 0; i < part; i++) s.first += values_rows(place, i, p->count - skipped);
    return s;
}

/* Adds the class token's position to the token if the library's files have no separate position. */
static void join_position(const struct rename_keys *r, const struct key_map *own, const struct key_map *as,
                          const struct weights *weights, int ffn, struct source *s)
{
    if (names_place(as, weights, ROLE_POS, 0, ffn).zero_rows)
        s->added = names_tensor(own, r->tower, ROLE_POS, 0, ffn);
}

static int shape_as(const struct key_map *as, const struct parameter *p, const struct values_place *place,
                    int part, int64_t *shape)
{
    int ndim = 0;
    if (names_flat(as) && p->role == ROLE_POS) {
        memcpy(shape, p->shape + p->ndim - 2, 2 * sizeof *shape);
        return 2;
    }
    if (names_batched(as) && (p->role == ROLE_CLS || p->role == ROLE_POS || p->role == ROLE_MASK))
        while (ndim < 3 - p->ndim) shape[ndim++] = 1;
    memcpy(shape + ndim, p->shape, (size_t)p->ndim * sizeof *shape);
    ndim += p->ndim;
    if (place->transposed) {
        int64_t rows = shape[0];
        shape[0] = shape[1];
        shape[1] = rows;
    }
    shape[0] = values_rows(place, part, shape[0]);
    if (place->zero_rows) shape[ndim - 2] -= place->zero_rows;
    return ndim;
}

static int check_places(const struct key_map *as, enum library library, const struct model_shape *g,
                        const struct parameter *list, int count, struct error *err)
{
    const char *name = library_names[library];
    char key[64];
    bool wide = g->classes > 0 && names_widened(as); /* reads class token and mean */
    bool pool =
             (g->pool == POOL_AVG_FIRST && !as->fc_norm) ||
             (g->pool > POOL_AVG_FIRST && !(wide && g->pool == POOL_CLS_AVG)) ||
             (model_shape_parts(g) & PART_ATTN_POOL && !family_has(family_row(g->family), ROLE_POOL_FC1_W)),
         plain = library == LIBRARY_TRANSFORMERS &&
                 ((g->pool > POOL_CLS && !(wide && g->pool != POOL_AVG_FIRST)) || g->norms == POST_NORM),
         pre = family_has(family_row(g->family), ROLE_PRE_W) && !(model_shape_parts(g) & PART_PRE_NORM);
    if (g->classes > 0 && (!names_classifier_as(as, "", key, sizeof key) || model_shape_projects(g)))
        return error_set(err, EXIT_CONFIG, "--format pt or safetensors, or --no-head",
                         "%s has no classifier after a %s tower%s", name, family_name(g->family),
                         model_shape_projects(g) ? _(" with a projection") : "");
    if (g->projected)
        return error_set(err, EXIT_CONFIG, "--format pt or safetensors",
                         "%s has no class for a %s tower with a projection", name, family_name(g->family));
    if (pool || plain || pre)
        return error_set(err, EXIT_CONFIG, "--format pt or safetensors", "%s has no class for a %s tower %s",
                         name, family_name(g->family),
                         pre                     ? _("without a norm before the blocks")
                         : g->norms == POST_NORM ? _("with post-norm")
                                                 : _("that pools so"));
    for (int i = 0; i < count; i++)
        if (list[i].role != ROLE_MASK && names_leaves_out(as, (enum role)list[i].role))
            return error_set(err, EXIT_CONFIG, "--format pt, safetensors or timm",
                             "that library's %s tower has no LayerScale, the student has it",
                             family_name(g->family));
    return 0;
}

/* Appends tensors that the library's classes require, the tower lacks, and that change no output. */
static void add_neutral(struct rename_keys *r, const struct model_shape *g, const struct key_map *as)
{
    static const enum role scales[] = {ROLE_LS1, ROLE_LS2};
    const int64_t registers[] = {1, 0, g->width};
    char name[384];
    for (int64_t l = 0; names_always_scales(as) && g->layerscale == LAYERSCALE_WITHOUT && l < g->depth; l++)
        for (int i = 0; i < 2; i++) {
            names_part(as, scales[i], l, g->ffn, 0, name, sizeof name);
            add_row(r, name, 1, &g->width, (struct source){.dtype = r->dtype, .filled = 1, .added = -1});
        }
    if (!names_always_registers(as) || g->registers) return;
    names_part(as, ROLE_REGISTERS, 0, g->ffn, 0, name, sizeof name);
    add_row(r, name, 3, registers, (struct source){.dtype = r->dtype, .added = -1});
}

/* Appends a classifier's matrix or bias. Where the library's class reads the class token and the mean of the
 * patches, but the student one of the two, the other's weights are zero. */
static void add_classifier(struct rename_keys *r, const struct model_shape *g, const struct key_map *own,
                           const struct key_map *as, const struct parameter *p)
{
    char name[64];
    int64_t shape[] = {p->shape[0], p->shape[1]};
    struct source s = {
        .weights = r->tower, .tensor = own_tensor(r, own, g->ffn, p), .dtype = r->dtype, .added = -1};
    if (s.tensor < 0 || !names_classifier_as(as, end_of(p), name, sizeof name)) return;
    if (names_widened(as) && p->role == ROLE_HEAD_W && g->pool != POOL_CLS_AVG) {
        s.read = shape[1];
        s.right = g->pool == POOL_AVG;
        shape[1] *= 2;
    }
    add_row(r, name, p->ndim, shape, s);
}

int rename_keys_library(struct rename_keys *r, const struct model_shape *g, enum library library,
                        struct error *err)
{
    struct key_map as, own;
    if (!names_library(&as, library, g))
        return error_set(err, EXIT_CONFIG, "--format pt or safetensors",
                         "%s has no class for a tower of the family %s", library_names[library],
                         family_name(g->family));
    int code = fit_family(&own, g, r->tower, err);
    if (code) return code;
    struct parameter *list;
    int count = parameters_list(g, NULL, &list);
    code = check_places(&as, library, g, list, count, err);
    for (int i = 0; i < count && !code; i++) {
        const struct parameter *p = &list[i];
        enum role role = (enum role)p->role;
        struct values_place place = names_place(&as, NULL, role, block_of(p), g->ffn);
        if (p->head) add_classifier(r, g, &own, &as, p);
        if (p->head || names_leaves_out(&as, role) || own_tensor(r, &own, g->ffn, p) < 0) continue;
        for (int part = 0; part < place.parts; part++) {
            char name[384];
            int64_t shape[WEIGHTS_MAX_DIMS];
            struct source s = source_of(r, &own, g->ffn, p, &place, part);
            if (role == ROLE_CLS) join_position(r, &own, &as, NULL, g->ffn, &s);
            names_part(&as, role, block_of(p), g->ffn, part, name, sizeof name);
            add_row(r, name, shape_as(&as, p, &place, part, shape), shape, s);
        }
        if (role == ROLE_OUT_W && (names_zero(&as) || g->out_biasless))
            add_row(r, names_zero(&as) ? names_zero(&as) : "head.bias", 1, &g->out,
                    (struct source){.dtype = r->dtype, .added = -1});
    }
    if (!code) add_neutral(r, g, &as);
    free(list);
    return code;
}

/* Values that are only a part of a tensor cannot be merged into it. */
static int check_slices(const struct model_shape *g, const struct key_map *as, const struct weights *original,
                        const struct parameter *list, int count, struct error *err)
{
    for (int i = 0; i < count; i++) {
        struct values_place place = fit_place(as, g->ffn, &list[i], original);
        if (place.slices || place.held_rows)
            return error_set(err, EXIT_CONFIG, "--format hf or timm, without --merge",
                             "its tensor %s contains more than the student's values", place.first);
    }
    return 0;
}

/* Refuses an original whose classifier has no place for the student's. */
static int check_classifier(const struct model_shape *g, const struct key_map *as,
                            const struct weights *original, const struct parameter *list, int count,
                            struct error *err)
{
    for (int i = 0; i < count; i++) {
        struct values_place place = fit_place(as, g->ffn, &list[i], original);
        if (list[i].role == ROLE_HEAD_W && fit_absent(&place))
            return error_set(err, EXIT_CONFIG,
                             "--no-head, or --format hf, timm or torchvision without --merge",
                             "it has no classifier of %lld classes and %lld inputs, as the student has",
                             (long long)list[i].shape[0], (long long)list[i].shape[1]);
    }
    return 0;
}

/* Returns, for each tensor of the original, the source of its values; weights NULL: the original. */
static struct source *replacements(const struct rename_keys *r, const struct model_shape *g,
                                   const struct key_map *own, const struct key_map *as,
                                   const struct weights *original, const struct parameter *list, int count)
{
    struct source *by = xcalloc((size_t)weights_count(original), sizeof *by);
    for (int i = 0; i < count; i++) {
        const struct parameter *p = &list[i];
        struct values_place place = fit_place(as, g->ffn, p, original);
        if (place.slices || place.held_rows || fit_absent(&place) || own_tensor(r, own, g->ffn, p) < 0)
            continue;
        for (int part = 0; part < place.parts; part++) {
            struct source s = source_of(r, own, g->ffn, p, &place, part);
            if (p->role == ROLE_CLS) join_position(r, own, as, original, g->ffn, &s);
            by[place.tensor[part]] = s;
        }
    }
    return by;
}

/* Returns whether a tensor is an attribute of a scripted module that no class has in its state: OpenAI's
 * numbers, and the causal mask, which is computed. */
static bool is_attribute(const struct weights *original, const char *name)
{
    static const char *const names[] = {"input_resolution", "context_length", "vocab_size", "attn_mask"};
    const char *dot = strrchr(name, '.'), *last = dot ? dot + 1 : name;
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) found |= strcmp(last, names[i]) == 0;
    return found && strcmp(weights_format(original), "torchscript") == 0;
}

int rename_keys_merge(struct rename_keys *r, const struct model_shape *g, const struct weights *original,
                      struct error *err)
{
    struct key_map as, own;
    struct model_shape found = {0};
    const char *unread = weights_unread_name(original, 0);
    if (unread)
        return error_set(err, EXIT_CONFIG, "remove such tensors from the original first",
                         "its tensor %.80s is %s, which cannot be copied", unread,
                         weights_unread(original, unread));
    int code = model_shape_dims(&found, original, err);
    if (!code) code = fit_family(&own, g, r->tower, err);
    if (!code) code = fit_family(&as, g, original, err);
    if (code) return code;
    struct parameter *list;
    int count = parameters_list(g, NULL, &list);
    if (found.depth != g->depth || model_shape_projects(&found) != model_shape_projects(g))
        code = error_set(err, EXIT_CONFIG, "use the file that the student was initialized from",
                         "its tower has %lld blocks and %s projection, the student's %lld and %s",
                         (long long)found.depth, model_shape_projects(&found) ? "a" : "no",
                         (long long)g->depth, model_shape_projects(g) ? "one" : "none");
    if (!code) code = fit_shapes(&as, g->ffn, list, count, original, err);
    if (!code) code = check_slices(g, &as, original, list, count, err);
    if (!code) code = check_classifier(g, &as, original, list, count, err);
    struct source *by = code ? NULL : replacements(r, g, &own, &as, original, list, count);
    for (int64_t i = 0; i < weights_count(original) && !code; i++) {
        const struct weights_tensor *t = weights_tensor(original, i);
        if (by[i].weights) add_row(r, t->name, t->ndim, t->shape, by[i]);
        else if (!is_attribute(original, t->name)) copy_row(r, original, i, t->dtype);
    }
    free(by);
    free(list);
    return code;
}
