/* What PyTorch's pickles mean: see pytorch.h. */
#include "core/weights/pytorch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct stored_tensor {
    const struct storage *storage;
    int dtype; /* enum dtype, or STORAGE_UNKNOWN */
    int ndim;
    int64_t shape[WEIGHTS_MAX_DIMS], stride[WEIGHTS_MAX_DIMS], offset; /* in elements */
};

static const struct {
    const char *storage, *scalar;
    enum dtype dtype;
} torch_types[] = {
    {"FloatStorage", "float32", DTYPE_F32},      {"HalfStorage", "float16", DTYPE_F16},
    {"BFloat16Storage", "bfloat16", DTYPE_BF16}, {"DoubleStorage", "float64", DTYPE_F64},
    {"LongStorage", "int64", DTYPE_I64},         {"IntStorage", "int32", DTYPE_I32},
    {"ShortStorage", "int16", DTYPE_I16},        {"CharStorage", "int8", DTYPE_I8},
    {"ByteStorage", "uint8", DTYPE_U8},          {"BoolStorage", "bool", DTYPE_BOOL},
};

static int damaged(struct error *err, const char *what)
{
    return error_set(err, EXIT_INTEGRITY,
                     "the file is damaged or was not written by torch.save: get it again", "%s", what);
}

static int storage_dtype(const struct value *class)
{
    for (size_t i = 0; i < sizeof torch_types / sizeof *torch_types; i++)
        if (value_is_class(class, "torch", torch_types[i].storage) ||
            value_is_class(class, "torch.cuda", torch_types[i].storage))
            return torch_types[i].dtype;
    if (value_is_class(class, "torch.storage", "UntypedStorage") ||
        value_is_class(class, "torch.storage", "_UntypedStorage"))
        return STORAGE_UNTYPED;
    return STORAGE_UNKNOWN;
}

/* ('storage', class, key, location, count[, (view key, offset, count)]) */
static int read_storage(struct pickle *p, const struct value *id, struct value *result, struct error *err)
{
    struct pytorch *t = p->context;
    if (id->kind != VALUE_TUPLE || !id->u.items->count)
        return damaged(err, "a persistent id that is no tuple");
    const struct value *v = id->u.items->at;
    uint32_t n = id->u.items->count;
    if (n >= 2 && value_is_text(&v[0], "module")) { /* source text beside a legacy pickle */
        *result = v[1];
        return 0;
    }
    if (n < 5 || n > 6 || !value_is_text(&v[0], "storage") || v[1].kind != VALUE_CLASS ||
        v[2].kind != VALUE_TEXT || v[4].kind != VALUE_INT)
        return damaged(err, "a persistent id other than ('storage', class, key, location, count)");
    struct storage *s = pickle_alloc(p, sizeof *s, err);
    if (!s) return err->code;
    *s = (struct storage){.key = v[2].u.text,
                          .key_bytes = v[2].length,
                          .dtype = storage_dtype(&v[1]),
                          .count = v[4].u.integer,
                          .class = v[1].u.class};
    if (s->count < 0 || s->key_bytes == 0 || s->key_bytes > 64 || memchr(s->key, '/', s->key_bytes) ||
        memchr(s->key, 0, s->key_bytes))
        return error_set(err, EXIT_INTEGRITY, "do not trust this file",
                         "a storage with the impossible key %s or count %lld", quote(s->key, s->key_bytes),
                         (long long)s->count);
    size_t each = s->dtype >= 0 ? dtype_bytes((enum dtype)s->dtype) : 1;
    if (__builtin_mul_overflow((uint64_t)s->count, each, &s->bytes))
        return damaged(err, "a storage larger than 64 bits can count");
    s->base_bytes = s->bytes;
    if (n == 6 && v[5].kind == VALUE_TUPLE) {
        const struct items *view = v[5].u.items;
        uint64_t end;
        if (view->count != 3 || view->at[1].kind != VALUE_INT || view->at[2].kind != VALUE_INT ||
            view->at[1].u.integer < 0 || view->at[2].u.integer < 0 ||
            __builtin_mul_overflow((uint64_t)view->at[1].u.integer, each, &s->view_bytes) ||
            __builtin_mul_overflow((uint64_t)view->at[2].u.integer, each, &s->bytes) ||
            __builtin_add_overflow(s->view_bytes, s->bytes, &end) || end > s->base_bytes)
            return damaged(err, "a storage view outside its storage");
        s->count = view->at[2].u.integer;
    }
    *result = (struct value){.kind = VALUE_STORAGE, .u.object = s};
    return pickle_append(p, &t->storages, result, err);
}

static int read_integers(const struct value *v, int64_t *to, int *n, struct error *err)
{
    if (v->kind != VALUE_TUPLE && v->kind != VALUE_LIST)
        return damaged(err, "a tensor whose size or stride is no tuple");
    if (v->u.items->count > WEIGHTS_MAX_DIMS)
        return error_set(err, EXIT_INTEGRITY, NULL, "a tensor of %u dimensions, at most %d are read",
                         v->u.items->count, WEIGHTS_MAX_DIMS);
    *n = (int)v->u.items->count;
    for (int i = 0; i < *n; i++) {
        const struct value *item = &v->u.items->at[i];
        if (item->kind != VALUE_INT || item->u.integer < 0)
            return damaged(err, "a tensor with a negative or missing size or stride");
        to[i] = item->u.integer;
    }
    return 0;
}

/* Every element must lie in the storage. */
static int check_extent(const struct stored_tensor *t, struct error *err)
{
    int64_t count = shape_count(t->shape, t->ndim), last = t->offset;
    if (count < 0) return damaged(err, "a tensor larger than 64 bits can count");
    if (count == 0 || t->dtype == STORAGE_UNKNOWN) return 0;
    for (int i = 0; i < t->ndim; i++) {
        int64_t step;
        if (__builtin_mul_overflow(t->shape[i] - 1, t->stride[i], &step) ||
            __builtin_add_overflow(last, step, &last))
            return damaged(err, "a tensor whose strides overflow");
    }
    uint64_t room = t->storage->bytes / dtype_bytes((enum dtype)t->dtype);
    if ((uint64_t)last >= room)
        return error_set(err, EXIT_INTEGRITY,
                         "the file is damaged or was not written by torch.save: get it again",
                         "a tensor reaches to element %lld of a storage of %llu", (long long)last,
                         (unsigned long long)room);
    return 0;
}

/* args: (storage, offset, size, stride, ...); typed: the dtype stands at args[6] (_rebuild_tensor_v3) */
static int rebuild_tensor(struct pickle *p, const struct items *args, bool typed, struct value *result,
                          struct error *err)
{
    if (args->count < (typed ? 7u : 4u) || args->at[0].kind != VALUE_STORAGE || args->at[1].kind != VALUE_INT)
        return damaged(err, "a tensor made of other than (storage, offset, size, stride, ...)");
    struct stored_tensor *t = pickle_alloc(p, sizeof *t, err);
    if (!t) return err->code;
    t->storage = args->at[0].u.object;
    t->dtype = typed || t->storage->dtype == STORAGE_UNTYPED ? STORAGE_UNKNOWN : t->storage->dtype;
    for (size_t i = 0; typed && i < sizeof torch_types / sizeof *torch_types; i++)
        if (value_is_class(&args->at[6], "torch", torch_types[i].scalar)) t->dtype = torch_types[i].dtype;
    t->offset = args->at[1].u.integer;
    if (t->offset < 0) return damaged(err, "a tensor with a negative offset");
    int strides = 0, code = read_integers(&args->at[2], t->shape, &t->ndim, err);
    if (code == 0) code = read_integers(&args->at[3], t->stride, &strides, err);
    if (code == 0 && strides != t->ndim)
        code = damaged(err, "a tensor with more sizes than strides or fewer");
    if (code == 0) code = check_extent(t, err);
    *result = (struct value){.kind = VALUE_TENSOR, .u.object = t};
    return code;
}

/* OrderedDict(), or as Python 2 pickled it: OrderedDict([[key, value], ...]) */
static int make_dict(struct pickle *p, const struct items *args, struct value *result, struct error *err)
{
    struct items *dict = pickle_alloc(p, sizeof *dict, err);
    if (!dict) return err->code;
    *result = (struct value){.kind = VALUE_DICT, .u.items = dict};
    if (args->count == 0) return 0;
    if (args->count != 1 || args->at[0].kind != VALUE_LIST)
        return damaged(err, "an OrderedDict of other than a list of pairs");
    const struct items *pairs = args->at[0].u.items;
    int code = 0;
    for (uint32_t i = 0; i < pairs->count && code == 0; i++) {
        const struct value *pair = &pairs->at[i];
        if ((pair->kind != VALUE_LIST && pair->kind != VALUE_TUPLE) || pair->u.items->count != 2)
            return damaged(err, "an OrderedDict of other than a list of pairs");
        code = pickle_append(p, dict, &pair->u.items->at[0], err);
        if (code == 0) code = pickle_append(p, dict, &pair->u.items->at[1], err);
    }
    return code;
}

static int call(struct pickle *p, const struct value *callable, const struct value *args,
                struct value *result, struct error *err)
{
    struct value unwrapped;
    const struct items *a = args->u.items;
    if (value_is_class(callable, "torch._tensor",
                       "_rebuild_from_type_v2")) { /* (function, type, args, attributes) */
        if (a->count != 4 || a->at[0].kind != VALUE_CLASS || a->at[2].kind != VALUE_TUPLE)
            return damaged(err, "a tensor subclass made of other than its parts");
        unwrapped = a->at[0];
        callable = &unwrapped;
        a = a->at[2].u.items;
    }
    if (value_is_class(callable, "torch._utils", "_rebuild_tensor_v2") ||
        value_is_class(callable, "torch._utils", "_rebuild_tensor"))
        return rebuild_tensor(p, a, false, result, err);
    if (value_is_class(callable, "torch._utils", "_rebuild_tensor_v3"))
        return rebuild_tensor(p, a, true, result, err);
    if (value_is_class(callable, "torch._utils", "_rebuild_parameter") ||
        value_is_class(callable, "torch._utils", "_rebuild_parameter_with_state")) {
        if (a->count < 1 || (a->at[0].kind != VALUE_TENSOR && a->at[0].kind != VALUE_OPAQUE))
            return damaged(err, "a parameter made of other than a tensor");
        *result = a->at[0];
        return 0;
    }
    if (value_is_class(callable, "torch", "Size") && a->count == 1 && a->at[0].kind == VALUE_TUPLE) {
        *result = a->at[0];
        return 0;
    }
    if (value_is_class(callable, "collections", "OrderedDict")) return make_dict(p, a, result, err);
    *result = (struct value){.kind = VALUE_OPAQUE, .u.class = callable->u.class};
    return 0;
}

void pytorch_init(struct pytorch *t)
{
    *t = (struct pytorch){.pickle = {.call = call, .persistent_id = read_storage, .context = t}};
}

static int compare_keys(const void *a, const void *b)
{
    const struct value *x = *(const struct value *const *)a, *y = *(const struct value *const *)b;
    int order = memcmp(x->u.text, y->u.text, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* Python would keep the last of two equal keys; a file that has them is lying to somebody. */
static int check_keys(const struct items *dict, struct error *err)
{
    if (dict->count / 2 > WEIGHTS_MAX_TENSORS)
        return error_set(err, EXIT_INTEGRITY, NULL, "a dictionary of %u entries, at most %d are read",
                         dict->count / 2, WEIGHTS_MAX_TENSORS);
    const struct value **keys = calloc(dict->count / 2 + 1u, sizeof *keys);
    if (!keys) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading a dictionary");
    size_t n = 0;
    int code = 0;
    for (uint32_t i = 0; i < dict->count && code == 0; i += 2) {
        if (dict->at[i].kind != VALUE_TEXT) continue;
        keys[n++] = &dict->at[i];
        if (dict->at[i].length > WEIGHTS_MAX_NAME_BYTES)
            code = damaged(err, "a dictionary key of more than a kilobyte");
    }
    if (code == 0) qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 1; i < n && code == 0; i++)
        if (compare_keys(&keys[i - 1], &keys[i]) == 0)
            code = error_set(err, EXIT_INTEGRITY, "do not trust this file", "the key %s occurs twice",
                             quote(keys[i]->u.text, keys[i]->length));
    free(keys);
    return code;
}

static const struct value *dict_get(const struct items *dict, const char *key)
{
    for (uint32_t i = 0; i < dict->count; i += 2)
        if (value_is_text(&dict->at[i], key)) return &dict->at[i + 1];
    return NULL;
}

static int not_a_state_dict(const struct value *top, struct error *err)
{
    static const char hint[] = "save the weights alone: torch.save(model.state_dict(), ...)";
    const struct class_name *c = top->u.class;
    if ((top->kind == VALUE_OPAQUE || top->kind == VALUE_CLASS) && c)
        return error_set(err, EXIT_INTEGRITY, hint, "holds %s %s.%s, expected a dictionary of tensors",
                         top->kind == VALUE_CLASS ? "the class" : "an object of or made by",
                         quote(c->module, c->module_length), quote(c->name, c->name_length));
    return error_set(err, EXIT_INTEGRITY, hint, "holds %s, expected a dictionary of tensors",
                     value_kind_name(top));
}

/* Through {'model': {...}} and the like, down to the dictionary of tensors. */
static int find_state_dict(const struct value *top, const struct items **found, struct error *err)
{
    static const char *const wrappers[] = {"model", "module", "state_dict", "model_ema"};
    for (int depth = 0; depth < 4; depth++) {
        if (top->kind != VALUE_DICT) return not_a_state_dict(top, err);
        const struct items *dict = top->u.items;
        int code = check_keys(dict, err);
        if (code) return code;
        const struct value *inner = NULL;
        for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers && !inner; i++) {
            inner = dict_get(dict, wrappers[i]);
            if (inner && inner->kind != VALUE_DICT) inner = NULL;
        }
        if (!inner) {
            *found = dict;
            return 0;
        }
        top = inner;
    }
    return damaged(err, "dictionaries nested in one another without tensors");
}

static int add_tensor(struct weights *w, const struct value *key, const struct stored_tensor *t,
                      storage_finder find, void *context, struct error *err)
{
    static const char prefix[] = "module.";
    const char *name = key->u.text;
    size_t name_bytes = key->length, prefix_bytes = sizeof prefix - 1;
    if (t->dtype == STORAGE_UNKNOWN)
        return error_set(err, EXIT_INTEGRITY,
                         "convert it to one of the usual types in PyTorch and save again",
                         "tensor %s is of the unsupported type %s.%s", quote(name, name_bytes),
                         quote(t->storage->class->module, t->storage->class->module_length),
                         quote(t->storage->class->name, t->storage->class->name_length));
    if (name_bytes > prefix_bytes && memcmp(name, prefix, prefix_bytes) == 0)
        name += prefix_bytes, name_bytes -= prefix_bytes;
    struct row row = {.tensor = {.dtype = (enum dtype)t->dtype, .ndim = t->ndim}};
    memcpy(row.tensor.shape, t->shape, sizeof row.tensor.shape);
    bool empty = shape_count(t->shape, t->ndim) == 0;
    if (!empty) memcpy(row.stride, t->stride, sizeof row.stride);
    uint64_t offset;
    int code = find(context, t->storage, &row.payload, &offset, err);
    if (code) return code;
    /* strides and offset < 2^63 elements lie in the storage
     * unless the tensor is empty, when they do not matter */
    row.offset = offset + (empty ? 0 : (uint64_t)t->offset * dtype_bytes(row.tensor.dtype));
    return weights_add_row(w, &row, name, name_bytes, err);
}

static int no_tensors(const struct items *dict, struct error *err)
{
    char keys[256] = "";
    size_t used = 0;
    for (uint32_t i = 0; i < dict->count && used < sizeof keys - 80; i += 2)
        if (dict->at[i].kind == VALUE_TEXT)
            used += (size_t)snprintf(keys + used, sizeof keys - used, "%s%.60s", used ? ", " : "",
                                     quote(dict->at[i].u.text, dict->at[i].length));
    return error_set(err, EXIT_INTEGRITY, "save the weights alone: torch.save(model.state_dict(), ...)",
                     "holds a dictionary without tensors (%u entries%s%s)", dict->count / 2, used ? ": " : "",
                     keys);
}

int pytorch_add_state_dict(struct weights *w, const struct value *top, storage_finder find, void *context,
                           struct error *err)
{
    const struct items *dict = NULL;
    int code = find_state_dict(top, &dict, err);
    for (uint32_t i = 0; code == 0 && i < dict->count; i += 2) {
        const struct value *key = &dict->at[i], *v = &dict->at[i + 1];
        if (v->kind != VALUE_TENSOR) continue;
        code = key->kind == VALUE_TEXT ? add_tensor(w, key, v->u.object, find, context, err)
                                       : damaged(err, "a tensor under a key that is no string");
    }
    if (code == 0 && w->count == 0) code = no_tensors(dict, err);
    return code;
}
