/* A TorchScript archive (torch.jit.save, for example OpenAI's CLIP files): data.pkl has the module as an
 * object whose state is a dictionary of its attributes, which include tensors and submodules. Only this file
 * is read; the program (code/) is ignored. Source: torch/csrc/jit/serialization/pickler.cpp. */
#include "core/weights/pytorch.h"

#include <string.h>

enum { MAX_MODULE_DEPTH = 32, MAX_MODULES = 1 << 16, MAX_ATTRIBUTES = 1 << 22 };

/* Returns the attributes of a module; NULL if the value is not a module. */
static const struct items *attributes_of(const struct value *v)
{
    if (v->kind != VALUE_OPAQUE || !v->u.opaque || v->u.opaque->state.kind != VALUE_DICT) return NULL;
    return v->u.opaque->state.u.items;
}

/* A module that is being read: its attributes from `next` on, and the length of its name. */
struct level {
    const struct items *attributes;
    uint32_t next;
    size_t name_bytes;
};

int pytorch_add_module(struct weights *w, const struct value *top, storage_finder find, void *context,
                       struct error *err)
{
    static const char hint[] = N_("do not trust this file");
    struct level levels[MAX_MODULE_DEPTH] = {{.attributes = attributes_of(top)}};
    char name[WEIGHTS_MAX_NAME_BYTES + 1];
    int64_t attributes = 0;
    int depth = 0, modules = 0, code = 0;
    if (!levels[0].attributes)
        return error_set(
            err, EXIT_INTEGRITY, "save the weights alone: torch.save(torch.jit.load(FILE).state_dict(), ...)",
            "is a TorchScript archive whose object is %s, expected a module", value_kind_name(top));
    while (depth >= 0 && code == 0) {
        struct level *l = &levels[depth];
        if (l->next >= l->attributes->count) {
            depth--;
            continue;
        }
        const struct value *key = &l->attributes->at[l->next], *v = key + 1;
        const struct items *inner = attributes_of(v);
        l->next += 2;
        if (v->kind != VALUE_TENSOR && !inner) continue;
        if (key->kind != VALUE_TEXT || key->length + l->name_bytes + 1 >= sizeof name)
            return error_set(err, EXIT_INTEGRITY, hint,
                             "a module with a name of more than a kilobyte, or none");
        memcpy(name + l->name_bytes, key->u.text, key->length);
        size_t bytes = l->name_bytes + key->length;
        if (v->kind == VALUE_TENSOR) {
            code = pytorch_add_tensor(w, name, bytes, v->u.object, find, context, err);
            continue;
        }
        attributes += inner->count; /* many modules may share a submodule */
        if (depth + 1 == MAX_MODULE_DEPTH || ++modules == MAX_MODULES || attributes > MAX_ATTRIBUTES)
            return error_set(err, EXIT_INTEGRITY, hint,
                             "modules nested deeper than %d, or more than %d of them, or too many attributes",
                             MAX_MODULE_DEPTH, MAX_MODULES);
        name[bytes++] = '.';
        levels[++depth] = (struct level){.attributes = inner, .name_bytes = bytes};
    }
    if (code == 0 && w->count + w->unread_count == 0)
        code = error_set(err, EXIT_INTEGRITY,
                         "a frozen module stores them in its program: save it before torch.jit.freeze",
                         "is a TorchScript archive without tensors in its module");
    return code;
}
