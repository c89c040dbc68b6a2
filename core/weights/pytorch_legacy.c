/* PyTorch's legacy stream (before 1.6): five consecutive pickles - magic number, protocol version, system
 * information, the object, the list of storage keys - and then, for each key, its element count (int64) and
 * its elements. No checksums. Source: torch/serialization.py, _legacy_save. */
#include "core/weights/pytorch.h"

#include <stdlib.h>
#include <string.h>

struct stream {
    struct weights *w;
    size_t at;
    struct pytorch torch;
    struct stored *stored; /* sorted by key */
    size_t stored_count;
};

/* A storage of the object pickle, and the location of its bytes. */
struct stored {
    const struct storage *storage;
    uint64_t offset;
    int64_t payload; /* -1: not found */
};

static int damaged(struct error *err, const char *what)
{
    return error_set(err, EXIT_INTEGRITY, "get the file again",
                     "damaged or truncated legacy PyTorch file: %s", what);
}

static int next_pickle(struct stream *s, struct value *v, struct error *err)
{
    size_t used = 0;
    int code = pickle_parse(&s->torch.pickle, weights_map(s->w)->data + s->at,
                            weights_map(s->w)->bytes - s->at, &used, v, err);
    s->at += used;
    return code;
}

/* Refuses a pickle of a different program; the module of its first object names the program. */
static int refuse_pickle(const struct file_map *map, struct error *err)
{
    static const char numpy[] = "numpy";
    if (memmem(map->data, map->bytes < 4096 ? map->bytes : 4096, numpy, sizeof numpy - 1))
        return error_set(err, EXIT_INTEGRITY,
                         "save them with torch.save(), each array made a tensor with torch.from_numpy()",
                         "is a pickle of NumPy arrays, as PaddlePaddle saves models, not one of PyTorch's");
    return error_set(err, EXIT_INTEGRITY, "name a file written by torch.save, or a safetensors file",
                     "is a pickle, but not one of PyTorch's");
}

static int read_header(struct stream *s, struct error *err)
{
    static const char magic[] = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"; /* 0x1950a86a20f9469cfc6c */
    struct value v;
    int code = next_pickle(s, &v, err);
    if (code) return code;
    if (v.kind != VALUE_BIG || v.length != sizeof magic - 1 || memcmp(v.u.text, magic, sizeof magic - 1) != 0)
        return refuse_pickle(weights_map(s->w), err);
    if ((code = next_pickle(s, &v, err)) != 0) return code;
    if (v.kind != VALUE_INT || v.u.integer != 1001) return damaged(err, "the protocol version is not 1001");
    if ((code = next_pickle(s, &v, err)) != 0) return code;
    if (v.kind != VALUE_DICT) return damaged(err, "no system information");
    for (uint32_t i = 0; i < v.u.items->count; i += 2)
        if (value_is_text(&v.u.items->at[i], "little_endian") &&
            (v.u.items->at[i + 1].kind != VALUE_BOOL || !v.u.items->at[i + 1].u.integer))
            return error_set(err, EXIT_INTEGRITY, "save it on a little-endian machine",
                             "byte order is big, expected little");
    return 0;
}

static int compare_text(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int compare_stored(const void *a, const void *b)
{
    const struct storage *x = ((const struct stored *)a)->storage, *y = ((const struct stored *)b)->storage;
    return compare_text(x->key, x->key_bytes, y->key, y->key_bytes);
}

static struct stored *find_key(const struct stream *s, const char *key, size_t key_bytes)
{
    struct storage wanted = {.key = key, .key_bytes = (uint32_t)key_bytes};
    struct stored probe = {.storage = &wanted};
    return bsearch(&probe, s->stored, s->stored_count, sizeof probe, compare_stored);
}

/* Adds one entry for each key in the object. */
static int collect_storages(struct stream *s, struct error *err)
{
    const struct items *all = &s->torch.storages;
    s->stored = calloc(all->count + 1u, sizeof *s->stored);
    if (!s->stored)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading a legacy PyTorch file");
    for (uint32_t i = 0; i < all->count; i++)
        s->stored[i] = (struct stored){.storage = all->at[i].u.object, .payload = -1};
    qsort(s->stored, all->count, sizeof *s->stored, compare_stored);
    for (uint32_t i = 0; i < all->count; i++) {
        struct stored *last = s->stored_count ? &s->stored[s->stored_count - 1] : NULL;
        if (!last || compare_stored(last, &s->stored[i]) != 0) s->stored[s->stored_count++] = s->stored[i];
        else if (last->storage->dtype != s->stored[i].storage->dtype ||
                 last->storage->base_bytes != s->stored[i].storage->base_bytes)
            return damaged(err, "a storage has two different sizes");
    }
    return 0;
}

static int locate_storage(struct stream *s, const struct value *key, struct error *err)
{
    struct stored *e = key->kind == VALUE_TEXT ? find_key(s, key->u.text, key->length) : NULL;
    if (!e || e->payload >= 0) return damaged(err, "a storage that no tensor uses, or a duplicate");
    if (e->storage->element_bytes == 0)
        return error_set(err, EXIT_INTEGRITY,
                         "convert it to one of the usual types in PyTorch and save again",
                         "a storage of the unsupported type %s.%s",
                         quote(e->storage->class->module, e->storage->class->module_length),
                         quote(e->storage->class->name, e->storage->class->name_length));
    const struct file_map *map = weights_map(s->w);
    uint64_t count = 0, bytes = e->storage->base_bytes;
    size_t each = e->storage->element_bytes;
    if (map->bytes - s->at < 8) return damaged(err, "a storage without its size");
    memcpy(&count, map->data + s->at, 8);
    s->at += 8;
    if (count != bytes / each) return damaged(err, "a storage whose size differs from the pickle's");
    if (bytes > map->bytes - s->at) return damaged(err, "a storage extends beyond the end");
    e->offset = s->at;
    e->payload = weights_add_payload(s->w, s->at, bytes, 0);
    s->at += bytes;
    return 0;
}

static int find_storage(void *context, const struct storage *storage, int64_t *payload, uint64_t *offset,
                        struct error *err)
{
    const struct stored *e = find_key(context, storage->key, storage->key_bytes);
    if (!e || e->payload < 0) return damaged(err, "a storage is missing");
    *payload = e->payload;
    *offset = e->offset + storage->view_bytes;
    return 0;
}

int pytorch_legacy_open(struct weights *w, struct error *err)
{
    struct stream s = {.w = w};
    struct value object, keys;
    pytorch_init(&s.torch);
    int code = read_header(&s, err);
    if (code == 0) code = next_pickle(&s, &object, err);
    if (code == 0) code = next_pickle(&s, &keys, err);
    if (code == 0 && keys.kind != VALUE_LIST) code = damaged(err, "no list of storages");
    if (code == 0) code = collect_storages(&s, err);
    for (uint32_t i = 0; code == 0 && i < keys.u.items->count; i++)
        code = locate_storage(&s, &keys.u.items->at[i], err);
    if (code == 0 && s.at != weights_map(w)->bytes) code = damaged(err, "extra bytes after the last storage");
    if (code == 0) code = pytorch_add_state_dict(w, &object, find_storage, &s, err);
    free(s.stored);
    pickle_free(&s.torch.pickle);
    return code;
}
