/* The state dict of a pickled object: finds its dictionary and adds its tensors to the table.
 *
 * A checkpoint is often a dictionary of dictionaries. The table below lists names in order of preference. A
 * name counts only if its dictionary has tensors, or one of these names again. Sources: PyTorch's tutorials
 * (model_state_dict), torchvision and DINO (model, teacher, student), timm and OpenCLIP (state_dict,
 * state_dict_ema, model_ema), DeepSpeed (module), Lightning (state_dict).
 */
#include "core/weights/pytorch.h"
#include "core/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 4, MAX_LOOKS = 1 << 24 };

/* First the whole model, then distillation's two, then averages of the weights, then parts of a model. */
static const char *const entries[] = {
    "model",      "module",  "state_dict", "model_state_dict", "net",     "network",        "checkpoint",
    "teacher",    "student", "model_ema",  "state_dict_ema",   "ema",     "ema_state_dict", "params",
    "params_ema", "weights", "backbone",   "target_encoder",   "encoder", "visual",
};
enum { ENTRY_COUNT = sizeof entries / sizeof *entries };

static int damaged(struct error *err, const char *what)
{
    return error_set(err, EXIT_INTEGRITY,
                     "the file is damaged or was not written by torch.save: get it again", "%s", what);
}

static int compare_keys(const void *a, const void *b)
{
    const struct value *x = *(const struct value *const *)a, *y = *(const struct value *const *)b;
    int order = memcmp(x->u.text, y->u.text, x->length < y->length ? x->length : y->length);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* Refuses duplicate keys. Python would keep the last one, so readers would disagree about such a file. */
static int check_keys(const struct items *dict, struct error *err)
{
    if (dict->count / 2 > WEIGHTS_MAX_TENSORS)
        return error_set(err, EXIT_INTEGRITY, NULL, "a dictionary of %u entries, at most %d are supported",
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

static int not_a_state_dict(const struct value *top, struct error *err)
{
    static const char hint[] = N_("save the weights alone: torch.save(model.state_dict(), ...)");
    const struct class_name *c = value_class(top);
    if (c)
        return error_set(err, EXIT_INTEGRITY, hint, "contains %s %s.%s, expected a dictionary of tensors",
                         top->kind == VALUE_CLASS ? _("the class") : _("an object of or made by"),
                         quote(c->module, c->module_length), quote(c->name, c->name_length));
    return error_set(err, EXIT_INTEGRITY, hint, "contains %s, expected a dictionary of tensors",
                     value_kind_name(top));
}

static int entry_of(const struct value *key)
{
    for (int i = 0; i < ENTRY_COUNT; i++)
        if (value_is_text(key, entries[i])) return i;
    return -1;
}

/* Progress of a search, which bounds the work on a dictionary that contains itself many times. */
struct search {
    int64_t looks;
    char path[128];   /* the chosen entries */
    char others[256]; /* entries next to them that would have matched */
};

static int64_t count_tensors(const struct items *dict, bool unread, struct search *s)
{
    int64_t count = 0;
    s->looks += dict->count;
    for (uint32_t i = 0; i < dict->count && s->looks < MAX_LOOKS; i += 2)
        if (dict->at[i].kind == VALUE_TEXT && dict->at[i + 1].kind == VALUE_TENSOR)
            count += unread || !((const struct stored_tensor *)dict->at[i + 1].u.object)->kind;
    return count;
}

/* Lists the dictionaries of `dict` under the names of the table. */
static void list_entries(const struct items *dict, const struct items **found, struct search *s)
{
    s->looks += dict->count;
    for (int i = 0; i < ENTRY_COUNT; i++) found[i] = NULL;
    for (uint32_t i = 0; i < dict->count && s->looks < MAX_LOOKS; i += 2) {
        int entry = dict->at[i + 1].kind == VALUE_DICT ? entry_of(&dict->at[i]) : -1;
        if (entry >= 0) found[entry] = dict->at[i + 1].u.items;
    }
}

/* Returns whether a dictionary has tensors, or one of its entries does. Recursion no deeper than
 * MAX_DEPTH. */
static bool has_tensors(const struct items *dict, int depth, struct search *s)
{
    const struct items *found[ENTRY_COUNT];
    if (count_tensors(dict, true, s)) return true;
    if (depth == MAX_DEPTH) return false;
    list_entries(dict, found, s);
    for (int i = 0; i < ENTRY_COUNT && s->looks < MAX_LOOKS; i++)
        if (found[i] && has_tensors(found[i], depth + 1, s)) return true;
    return false;
}

/* Descends to the dictionary of tensors by the table. */
static int find_state_dict(const struct value *top, const struct items **result, struct search *s,
                           struct error *err)
{
    const struct items *found[ENTRY_COUNT];
    if (top->kind != VALUE_DICT) return not_a_state_dict(top, err);
    const struct items *dict = top->u.items;
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        size_t used = strlen(s->path);
        const char *dot = used ? "." : "";
        int code = check_keys(dict, err), taken = -1;
        if (code) return code;
        list_entries(dict, found, s);
        for (int i = 0; i < ENTRY_COUNT; i++) {
            if (!found[i] || !has_tensors(found[i], depth + 1, s)) continue;
            size_t others = strlen(s->others);
            if (taken < 0) taken = i;
            else
                snprintf(s->others + others, sizeof s->others - others, "%s%s%s%s", others ? ", " : "",
                         s->path, dot, entries[i]);
        }
        if (s->looks >= MAX_LOOKS) break;
        *result = dict;
        if (taken < 0) return 0;
        snprintf(s->path + used, sizeof s->path - used, "%s%s", dot, entries[taken]);
        dict = found[taken];
    }
    return damaged(err, "nested dictionaries without tensors");
}

int pytorch_row(const struct stored_tensor *t, storage_finder find, void *context, struct row *row,
                struct error *err)
{
    *row = (struct row){.tensor = {.dtype = (enum dtype)t->dtype, .ndim = t->ndim}};
    memcpy(row->tensor.shape, t->shape, sizeof row->tensor.shape);
    row->tensor.count = shape_count(t->shape, t->ndim);
    bool empty = row->tensor.count == 0;
    if (!empty) memcpy(row->stride, t->stride, sizeof row->stride);
    uint64_t offset;
    int code = find(context, t->storage, &row->payload, &offset, err);
    if (code) return code;
    /* strides and offset are inside the storage (< 2^63 elements), except for an empty tensor, which has
     * none */
    row->offset = offset + (empty ? 0 : (uint64_t)t->offset * dtype_bytes(row->tensor.dtype));
    return 0;
}

int pytorch_add_tensor(struct weights *w, const char *name, size_t name_bytes, const struct stored_tensor *t,
                       storage_finder find, void *context, struct error *err)
{
    static const char prefix[] = "module.";
    size_t prefix_bytes = sizeof prefix - 1;
    if (name_bytes > prefix_bytes && memcmp(name, prefix, prefix_bytes) == 0)
        name += prefix_bytes, name_bytes -= prefix_bytes;
    if (t->kind) return weights_add_unread(w, name, name_bytes, t->kind, err);
    struct row row;
    int code = pytorch_row(t, find, context, &row, err);
    return code ? code : weights_add_row(w, &row, name, name_bytes, err);
}

/* Reports the content of a dictionary without tensors. */
static int no_tensors(const struct items *dict, struct search *s, struct error *err)
{
    static const char model_alone[] = N_("save the weights alone: torch.save(model.state_dict(), ...)");
    char keys[320] = "";
    size_t used = 0;
    const struct value *fits = NULL;
    bool state = false, groups = false;
    for (uint32_t i = 0; i < dict->count; i += 2) {
        const struct value *key = &dict->at[i], *v = &dict->at[i + 1];
        if (key->kind != VALUE_TEXT) continue;
        state |= value_is_text(key, "state");
        groups |= value_is_text(key, "param_groups");
        int64_t tensors = v->kind == VALUE_DICT ? count_tensors(v->u.items, true, s) : 0;
        if (tensors && !fits) fits = key;
        if (used >= sizeof keys - 140) continue;
        used += (size_t)snprintf(keys + used, sizeof keys - used, "%s%.60s", used ? ", " : "",
                                 quote(key->u.text, key->length));
        if (tensors)
            used +=
                (size_t)snprintf(keys + used, sizeof keys - used, _(" of %lld tensors"), (long long)tensors);
        else if (value_class(v))
            used += (size_t)snprintf(keys + used, sizeof keys - used, _(" of class %.60s"),
                                     quote(value_class(v)->name, value_class(v)->name_length));
    }
    if (state && groups)
        return error_set(err, EXIT_INTEGRITY, model_alone,
                         "is an optimizer's state (state, param_groups), expected a model's");
    char hint[160];
    if (fits)
        snprintf(hint, sizeof hint,
                 _("save only the intended entry: torch.save(torch.load(FILE)['%.60s'], ...)"),
                 quote(fits->u.text, fits->length));
    return error_set(err, EXIT_INTEGRITY, fits ? hint : model_alone,
                     "contains a dictionary without tensors (%u entries%s%s)", dict->count / 2,
                     used ? ": " : "", keys);
}

static bool has_tensors_deeper(const struct items *dict, struct search *s)
{
    for (uint32_t i = 0; i < dict->count; i += 2)
        if (dict->at[i + 1].kind == VALUE_DICT && count_tensors(dict->at[i + 1].u.items, false, s))
            return true;
    return false;
}

/* Records the chosen entry and the alternatives; the first shard's count for all. */
static void note_choice(struct weights *w, const struct search *s)
{
    static char logged[256]; /* log once per file, which several functions open */
    char path[256];
    if (w->entry[0]) return;
    memcpy(w->entry, s->path, sizeof w->entry);
    memcpy(w->others, s->others, sizeof w->others);
    if (!s->others[0] || strcmp(name_printable(path, sizeof path, w->path), logged) == 0) return;
    snprintf(logged, sizeof logged, "%s", path);
    log_info("%s: using weights under %s (ignored: %s)", path, w->entry, w->others);
}

/* Keeps the integers of nanoGPT's model_args as metadata: model_args.n_head, ... */
static void keep_arguments(struct weights *w, const struct value *top)
{
    enum { MOST = 64 };
    const struct items *dict = top->u.items, *found = NULL;
    for (uint32_t i = 0; i < dict->count && i < 2 * MOST; i += 2)
        if (value_is_text(&dict->at[i], "model_args") && dict->at[i + 1].kind == VALUE_DICT)
            found = dict->at[i + 1].u.items;
    json_t *o = found && found->count <= 2 * MOST ? json_object() : NULL;
    for (uint32_t i = 0; o && i < found->count; i += 2) {
        const struct value *key = &found->at[i], *v = &found->at[i + 1];
        char name[64], number[24];
        if (key->kind != VALUE_TEXT || key->length > 40 || v->kind != VALUE_INT) continue;
        snprintf(name, sizeof name, "model_args.%.*s", (int)key->length, key->u.text);
        snprintf(number, sizeof number, "%lld", (long long)v->u.integer);
        json_object_set_new(o, name, json_string(number));
    }
    if (json_object_size(o)) weights_take_metadata(w, o);
    json_decref(o);
}

int pytorch_add_state_dict(struct weights *w, const struct value *top, storage_finder find, void *context,
                           struct error *err)
{
    const struct items *dict = NULL;
    struct search s = {0};
    int64_t before = w->count, unread = w->unread_count, numbered = 0;
    int code = find_state_dict(top, &dict, &s, err);
    for (uint32_t i = 0; code == 0 && i < dict->count; i += 2) {
        const struct value *key = &dict->at[i], *v = &dict->at[i + 1];
        if (v->kind != VALUE_TENSOR) continue;
        if (key->kind == VALUE_TEXT)
            code = pytorch_add_tensor(w, key->u.text, key->length, v->u.object, find, context, err);
        else numbered++;
    }
    if (code) return code;
    if (w->count == before && w->unread_count == unread && numbered)
        return error_set(err, EXIT_INTEGRITY, "save a state dict, whose keys are names: model.state_dict()",
                         "contains a dictionary of %lld tensors under numbers, expected names",
                         (long long)numbered);
    if (w->count == before && (w->unread_count == unread || has_tensors_deeper(dict, &s)))
        return no_tensors(dict, &s, err);
    note_choice(w, &s);
    keep_arguments(w, top);
    return 0;
}
