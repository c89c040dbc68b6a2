/* Reads PyTorch's zip format (torch >= 1.6): ROOT/data.pkl is the pickle, ROOT/data/KEY has the bytes of each
 * storage. ROOT is the file's name at the time of saving. Source: torch/serialization.py (_save),
 * caffe2/serialize/inline_container.cc. */
#include "core/weights/pytorch.h"
#include "core/base/memory.h"
#include "core/weights/zip.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct container {
    struct weights *w;
    struct file_map map; /* the zip, */
    uint64_t base;       /* and its offset in the file */
    struct zip zip;
    const char *root; /* with its '/', not terminated; in the mapping */
    size_t root_bytes;
    int64_t *payload_of; /* for each member of the zip: index of its payload, -1 before the first use */
    struct pytorch torch;
    bool script; /* a TorchScript archive */
};

/* Finds ROOT + name, NULL if there is no such member. */
static const struct zip_member *find_member(const struct container *c, const char *name, size_t name_bytes)
{
    char path[512];
    if (c->root_bytes + name_bytes > sizeof path) return NULL;
    memcpy(path, c->root, c->root_bytes);
    memcpy(path + c->root_bytes, name, name_bytes);
    return zip_find(&c->zip, path, c->root_bytes + name_bytes);
}

static bool has_suffix(const struct zip_member *m, const char *suffix)
{
    size_t n = strlen(suffix);
    return m->name_bytes > n && memcmp(m->name + m->name_bytes - n, suffix, n) == 0;
}

/* Refuses zips that are not checkpoints, by the suffix of a member's name. */
static int refuse_zip(const struct container *c, struct error *err)
{
    static const struct {
        const char *suffix, *is, *hint;
    } kinds[] = {
        {"/archive_format", N_("is a torch.export program (.pt2), expected a checkpoint"),
         N_("save its weights: torch.save(torch.export.load(FILE).state_dict, ...)")},
        {"serialized_exported_program.json", N_("is a torch.export program (.pt2), expected a checkpoint"),
         N_("save its weights: torch.save(torch.export.load(FILE).state_dict, ...)")},
        {".npy", N_("is an archive of NumPy arrays (.npz), expected a checkpoint"),
         N_("save it with torch.save or as safetensors")},
        {".distcp", N_("is a zip around a checkpoint"), N_("unpack it and name the file inside")},
        {".safetensors", N_("is a zip around a checkpoint"), N_("unpack it and name the file inside")},
        {".pth", N_("is a zip around a checkpoint"), N_("unpack it and name the file inside")},
        {".pt", N_("is a zip around a checkpoint"), N_("unpack it and name the file inside")},
        {".bin", N_("is a zip around a checkpoint"), N_("unpack it and name the file inside")},
    };
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int64_t i = 0; i < c->zip.count; i++)
            if (has_suffix(&c->zip.members[i], kinds[k].suffix))
                return error_set(err, EXIT_INTEGRITY, kinds[k].hint, "%s (it holds %s)", kinds[k].is,
                                 quote(c->zip.members[i].name, c->zip.members[i].name_bytes));
    return error_set(err, EXIT_INTEGRITY, "name a file written by torch.save, or a safetensors file",
                     "a zip of %lld members without a data.pkl: not a PyTorch checkpoint",
                     (long long)c->zip.count);
}

static int find_root(struct container *c, struct error *err)
{
    static const char pickle_name[] = "/data.pkl";
    const struct zip_member *found = NULL;
    for (int64_t i = 0; i < c->zip.count; i++) {
        const struct zip_member *m = &c->zip.members[i];
        if (!has_suffix(m, pickle_name)) continue;
        if (found)
            return error_set(err, EXIT_INTEGRITY, "do not trust this file",
                             "a zip with two pickles, %s and %s", quote(found->name, found->name_bytes),
                             quote(m->name, m->name_bytes));
        found = m;
    }
    if (!found) return refuse_zip(c, err);
    c->root = found->name;
    c->root_bytes = found->name_bytes - (sizeof pickle_name - 2);
    if (c->root_bytes > 256)
        return error_set(err, EXIT_INTEGRITY, NULL, "a zip root name of %zu bytes", c->root_bytes);
    c->script = find_member(c, "constants.pkl", 13) != NULL;
    return 0;
}

/* Reads a small member's bytes and verifies the checksum. */
static int member_bytes(const struct container *c, const struct zip_member *m, const uint8_t **data,
                        struct error *err)
{
    uint64_t offset;
    int code = zip_payload(&c->zip, m, &offset, err);
    if (code) return code;
    *data = c->map.data + offset;
    if (m->crc && m->bytes <= PICKLE_MAX_BYTES && crc32_zip(0, *data, m->bytes) != m->crc)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "zip member %s is damaged: its checksum is wrong", quote(m->name, m->name_bytes));
    return 0;
}

static int check_byteorder(const struct container *c, struct error *err)
{
    const struct zip_member *m = find_member(c, "byteorder", 9);
    const uint8_t *text;
    if (!m) return 0;
    int code = member_bytes(c, m, &text, err);
    if (code) return code;
    if (m->bytes != 6 || memcmp(text, "little", 6) != 0)
        return error_set(err, EXIT_INTEGRITY, "save it on a little-endian machine",
                         "byte order is %s, expected little",
                         quote((const char *)text, m->bytes < 16 ? m->bytes : 16));
    return 0;
}

static int find_storage(void *context, const struct storage *s, int64_t *payload, uint64_t *offset,
                        struct error *err)
{
    struct container *c = context;
    char name[80];
    int n = snprintf(name, sizeof name, "data/%.*s", (int)s->key_bytes, s->key);
    const struct zip_member *m = find_member(c, name, (size_t)n);
    if (!m)
        return error_set(err, EXIT_INTEGRITY, "get the file again", "no zip member for the storage %s",
                         quote(s->key, s->key_bytes));
    if (m->bytes != s->bytes || s->view_bytes || s->base_bytes != s->bytes)
        return error_set(err, EXIT_INTEGRITY, "get the file again",
                         "storage %s has %llu bytes, the pickle has %llu", quote(s->key, s->key_bytes),
                         (unsigned long long)m->bytes, (unsigned long long)s->bytes);
    int64_t *known = &c->payload_of[m - c->zip.members];
    if (*known < 0) {
        int code = zip_payload(&c->zip, m, offset, err);
        if (code) return code;
        *known = weights_add_payload(c->w, c->base + *offset, m->bytes, m->crc);
    }
    *payload = *known;
    *offset = c->w->payloads[*known].offset;
    return 0;
}

static int read_pickle(struct container *c, struct value *top, struct error *err)
{
    const struct zip_member *m = find_member(c, "data.pkl", 8);
    const uint8_t *data;
    size_t used;
    int code = member_bytes(c, m, &data, err);
    if (code == 0) code = pickle_parse(&c->torch.pickle, data, m->bytes, &used, top, err);
    if (code == 0 && used != m->bytes)
        code =
            error_set(err, EXIT_INTEGRITY, "get the file again",
                      "%llu extra bytes after the end of the pickle", (unsigned long long)(m->bytes - used));
    if (code) return code;
    c->payload_of = malloc((size_t)c->zip.count * sizeof *c->payload_of);
    if (!c->payload_of)
        return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading a zip directory");
    for (int64_t i = 0; i < c->zip.count; i++) c->payload_of[i] = -1;
    return 0;
}

static int container_open(struct container *c, struct value *top, struct error *err)
{
    pytorch_init(&c->torch);
    int code = zip_open(&c->zip, &c->map, err);
    if (code == 0) code = find_root(c, err);
    if (code == 0) code = check_byteorder(c, err);
    return code ? code : read_pickle(c, top, err);
}

static void container_close(struct container *c)
{
    free(c->payload_of);
    pickle_free(&c->torch.pickle);
    zip_close(&c->zip);
}

/* Reads the metadata that weights_write_pt stored. */
static int read_metadata(const struct container *c, struct error *err)
{
    enum { MOST_BYTES = 1 << 16 };
    const struct zip_member *m = find_member(c, "extra/meopt.json", 16);
    const uint8_t *text;
    if (!m) return 0;
    int code = member_bytes(c, m, &text, err);
    if (code) return code;
    json_t *object = m->bytes <= MOST_BYTES
                         ? json_loadb((const char *)text, m->bytes, JSON_REJECT_DUPLICATES, NULL)
                         : NULL;
    bool fine = object && weights_take_metadata(c->w, object);
    json_decref(object);
    if (fine) return 0;
    return error_set(err, EXIT_INTEGRITY, "get the file again, or export it again",
                     "zip member extra/meopt.json is not an object of strings");
}

int pytorch_zip_open(struct weights *w, struct error *err)
{
    struct container c = {.w = w, .map = *weights_map(w)};
    struct value top;
    int code = container_open(&c, &top, err);
    if (code == 0) code = read_metadata(&c, err);
    if (code == 0 && c.script) w->format = "torchscript";
    if (code == 0)
        code = (c.script ? pytorch_add_module : pytorch_add_state_dict)(w, &top, find_storage, &c, err);
    container_close(&c);
    return code;
}

int pytorch_zip_tensor(struct weights *w, int source, uint64_t offset, uint64_t bytes, struct row *row,
                       char **kind, struct error *err)
{
    const struct file_map *map = &w->sources[source].map;
    struct container c = {.w = w, .map = {map->data + offset, bytes}, .base = offset};
    struct value top;
    *kind = NULL;
    int code = container_open(&c, &top, err);
    if (code == 0 && top.kind != VALUE_TENSOR)
        code = error_set(err, EXIT_INTEGRITY, "get the file again", "contains %s, expected a tensor",
                         value_kind_name(&top));
    const struct stored_tensor *t = code ? NULL : top.u.object;
    if (t && t->kind) *kind = xstrdup(t->kind);
    else if (t) code = pytorch_row(t, find_storage, &c, row, err);
    container_close(&c);
    return code;
}
