/* The meaning of PyTorch's pickles: see pytorch.h. */
#include "core/weights/pytorch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Unsupported storages: their element type and width. */
static const struct {
    const char *storage, *kind;
    unsigned bytes;
} unread_types[] = {
    {"ComplexFloatStorage", "complex64", 8},
    {"ComplexDoubleStorage", "complex128", 16},
    {"QInt8Storage", N_("quantized (qint8)"), 1},
    {"QUInt8Storage", N_("quantized (quint8)"), 1},
    {"QInt32Storage", N_("quantized (qint32)"), 4},
    {"QUInt4x2Storage", N_("quantized (quint4x2)"), 1},
    {"QUInt2x4Storage", N_("quantized (quint2x4)"), 1},
};

/* Functions that construct other kinds of tensors. */
static const struct {
    const char *module, *name, *kind;
} unread_makers[] = {
    {"torch._utils", "_rebuild_sparse_tensor", "sparse"},
    {"torch._utils", "_rebuild_sparse_csr_tensor", "sparse"},
    {"torch._utils", "_rebuild_qtensor", "quantized"},
    {"torch._utils", "_rebuild_meta_tensor_no_storage", N_("a meta tensor (without values)")},
    {"torch._utils", "_rebuild_nested_tensor", N_("a nested tensor")},
    {"torch._utils", "_rebuild_device_tensor_from_numpy", N_("of a device without storages")},
    {"torch._utils", "_rebuild_device_tensor_from_cpu_tensor", N_("of a device without storages")},
    {"numpy.core.multiarray", "_reconstruct", N_("a NumPy array")},
    {"numpy._core.multiarray", "_reconstruct", N_("a NumPy array")},
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

static int unread_type(const struct value *class)
{
    for (size_t i = 0; i < sizeof unread_types / sizeof *unread_types; i++)
        if (value_is_class(class, "torch", unread_types[i].storage) ||
            value_is_class(class, "torch.cuda", unread_types[i].storage))
            return (int)i;
    return -1;
}

/* ('storage', class, key, location, count[, (view key, offset, count)]) */
static int read_storage(struct pickle *p, const struct value *id, struct value *result, struct error *err)
{
    struct pytorch *t = p->context;
    if (id->kind != VALUE_TUPLE || !id->u.items->count)
        return damaged(err, "a persistent id that is not a tuple");
    const struct value *v = id->u.items->at;
    uint32_t n = id->u.items->count;
    if (n >= 2 &&
        value_is_text(&v[0], "module")) { /* source text that a legacy pickle stores with a module */
        *result = v[1];
        return 0;
    }
    if (n < 5 || n > 6 || !value_is_text(&v[0], "storage") || v[1].kind != VALUE_CLASS ||
        v[2].kind != VALUE_TEXT || v[4].kind != VALUE_INT)
        return damaged(err, "a persistent id that is not ('storage', class, key, location, count)");
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
    int other = s->dtype == STORAGE_UNKNOWN ? unread_type(&v[1]) : -1;
    size_t each = s->dtype >= 0 ? dtype_bytes((enum dtype)s->dtype)
                  : other >= 0  ? unread_types[other].bytes
                                : 1;
    s->element_bytes = s->dtype == STORAGE_UNKNOWN && other < 0 ? 0 : (unsigned)each;
    s->kind = other >= 0 ? unread_types[other].kind : NULL;
    if (__builtin_mul_overflow((uint64_t)s->count, each, &s->bytes))
        return damaged(err, "a storage with more bytes than 64 bits can represent");
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
        return damaged(err, "a tensor whose size or stride is not a tuple");
    if (v->u.items->count > WEIGHTS_MAX_DIMS)
        return error_set(err, EXIT_INTEGRITY, NULL, "a tensor of %u dimensions, at most %d are supported",
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

/* Checks that every element is inside the storage. */
static int check_extent(const struct stored_tensor *t, struct error *err)
{
    int64_t count = shape_count(t->shape, t->ndim), last = t->offset;
    if (count < 0) return damaged(err, "a tensor with more elements than 64 bits can represent");
    if (count == 0) return 0;
    for (int i = 0; i < t->ndim; i++) {
        int64_t step;
        if (__builtin_mul_overflow(t->shape[i] - 1, t->stride[i], &step) ||
            __builtin_add_overflow(last, step, &last))
            return damaged(err, "a tensor whose strides overflow");
    }
    uint64_t elements = t->storage->bytes / dtype_bytes((enum dtype)t->dtype);
    if ((uint64_t)last >= elements)
        return error_set(
            err, EXIT_INTEGRITY, "the file is damaged or was not written by torch.save: get it again",
            "a tensor uses element %lld of a storage of %llu", (long long)last, (unsigned long long)elements);
    return 0;
}

/* Creates a tensor of an unsupported kind: `kind`, or the class's name if it is NULL. */
static int unread_tensor(struct pickle *p, const char *kind, const struct class_name *class,
                         struct value *result, struct error *err)
{
    struct stored_tensor *t = pickle_alloc(p, sizeof *t, err);
    char *text = pickle_alloc(p, 128, err);
    if (!t || !text) return err->code;
    bool torch = class && class->module_length == 5 && memcmp(class->module, "torch", 5) == 0;
    if (kind) snprintf(text, 128, "%s", kind);
    else if (!class) snprintf(text, 128, _("of an unknown kind"));
    else if (torch) snprintf(text, 128, "%.60s", quote(class->name, class->name_length));
    else
        snprintf(text, 128, "a %.60s (%.50s)", quote(class->name, class->name_length),
                 quote(class->module, class->module_length));
    t->kind = text;
    *result = (struct value){.kind = VALUE_TENSOR, .u.object = t};
    return 0;
}

/* Returns whether PyTorch negates or conjugates the view on reading: {"neg": True}. */
static bool is_lazy_view(const struct value *metadata)
{
    const struct items *dict = metadata->kind == VALUE_DICT ? metadata->u.items : NULL;
    bool lazy = false;
    for (uint32_t i = 0; dict && i + 1 < dict->count; i += 2)
        lazy |= (value_is_text(&dict->at[i], "neg") || value_is_text(&dict->at[i], "conj")) &&
                dict->at[i + 1].kind == VALUE_BOOL && dict->at[i + 1].u.integer;
    return lazy;
}

/* args: (storage, offset, size, stride, requires_grad, hooks, ...): metadata follows; typed
 * (_rebuild_tensor_v3): the dtype, then metadata */
static int rebuild_tensor(struct pickle *p, const struct items *args, bool typed, struct value *result,
                          struct error *err)
{
    const struct class_name *made_by = args->count ? value_class(&args->at[0]) : NULL;
    if (made_by && class_is(made_by, "torch.storage", "_load_from_bytes"))
        return error_set(
            err, EXIT_INTEGRITY, "torch.save(pickle.load(open(FILE, 'rb')), ...)",
            "was written by pickle.dump, not by torch.save: its tensors are pickles in a pickle");
    if (args->count < (typed ? 7u : 4u) || args->at[0].kind != VALUE_STORAGE || args->at[1].kind != VALUE_INT)
        return damaged(err, "a tensor that is not made of (storage, offset, size, stride, ...)");
    struct stored_tensor *t = pickle_alloc(p, sizeof *t, err);
    if (!t) return err->code;
    t->storage = args->at[0].u.object;
    t->dtype = typed || t->storage->dtype == STORAGE_UNTYPED ? STORAGE_UNKNOWN : t->storage->dtype;
    for (size_t i = 0; typed && i < sizeof torch_types / sizeof *torch_types; i++)
        if (value_is_class(&args->at[6], "torch", torch_types[i].scalar)) t->dtype = torch_types[i].dtype;
    uint32_t metadata = typed ? 7 : 6;
    if (args->count > metadata && is_lazy_view(&args->at[metadata]))
        return unread_tensor(p, "a view with a pending negation or conjugation", NULL, result, err);
    if (t->dtype == STORAGE_UNKNOWN)
        return unread_tensor(p, typed ? NULL : t->storage->kind,
                             typed ? value_class(&args->at[6]) : t->storage->class, result, err);
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

/* OrderedDict(), or in Python 2's form: OrderedDict([[key, value], ...]) */
static int make_dict(struct pickle *p, const struct items *args, struct value *result, struct error *err)
{
    struct items *dict = pickle_alloc(p, sizeof *dict, err);
    if (!dict) return err->code;
    *result = (struct value){.kind = VALUE_DICT, .u.items = dict};
    if (args->count == 0) return 0;
    if (args->count != 1 || args->at[0].kind != VALUE_LIST)
        return damaged(err, "an OrderedDict that is not a list of pairs");
    const struct items *pairs = args->at[0].u.items;
    int code = 0;
    for (uint32_t i = 0; i < pairs->count && code == 0; i++) {
        const struct value *pair = &pairs->at[i];
        if ((pair->kind != VALUE_LIST && pair->kind != VALUE_TUPLE) || pair->u.items->count != 2)
            return damaged(err, "an OrderedDict that is not a list of pairs");
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
            return damaged(err, "a tensor subclass that is not made of its parts");
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
            return damaged(err, "a parameter that is not made of a tensor");
        *result = a->at[0];
        return 0;
    }
    if (value_is_class(callable, "torch", "Size") && a->count == 1 && a->at[0].kind == VALUE_TUPLE) {
        *result = a->at[0];
        return 0;
    }
    if (value_is_class(callable, "collections", "OrderedDict")) return make_dict(p, a, result, err);
    if (value_is_class(callable, "torch._utils", "_rebuild_wrapper_subclass") && a->count)
        return unread_tensor(p, NULL, value_class(&a->at[0]), result, err); /* DTensor and similar */
    for (size_t i = 0; i < sizeof unread_makers / sizeof *unread_makers; i++)
        if (value_is_class(callable, unread_makers[i].module, unread_makers[i].name))
            return unread_tensor(p, unread_makers[i].kind, NULL, result, err);
    return pickle_opaque(p, callable->u.class, args, result, err);
}

void pytorch_init(struct pytorch *t)
{
    *t = (struct pytorch){.pickle = {.call = call, .persistent_id = read_storage, .context = t}};
}
