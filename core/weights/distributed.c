/* A checkpoint of torch.distributed.checkpoint: a directory with .metadata and parts (*.distcp). .metadata is
 * a pickle with the location of each box of each tensor. A part is a sequence of boxes, each as torch.save
 * would write it. Source: torch/distributed/checkpoint/metadata.py and filesystem.py. */
#include "core/weights/pytorch.h"
#include "core/base/memory.h"
#include "core/base/path.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 1024, MAX_BOXES = 2048 /* of one tensor */, MAX_FIELDS = 128 };

/* Location of a box: an entry of Metadata.storage_data. */
struct place {
    const struct value *name; /* of the tensor */
    const struct items *at;   /* offset of the box; NULL: not a tensor's */
    const struct value *part; /* the file */
    int64_t offset, bytes;
};

struct distributed {
    struct weights *w;
    const char *dir;
    struct pytorch torch;
    struct place *places; /* sorted by name */
    size_t place_count;
    struct items parts;   /* names of the open parts, in the order of the sources */
    int64_t boxes;        /* boxes visited, including empty ones and duplicates */
    uint64_t taken_bytes; /* bytes of the parts used by boxes so far: no byte is in two boxes */
};

static int damaged(struct error *err, const char *what)
{
    return error_set(err, EXIT_INTEGRITY, "get the directory again, all of it", "distributed checkpoint: %s",
                     what);
}

/* Returns a field of an object whose state is a dictionary; NULL if there is none of that kind. */
static const struct value *field(const struct value *v, const char *name, enum value_kind kind)
{
    if (v->kind != VALUE_OPAQUE || !v->u.opaque || v->u.opaque->state.kind != VALUE_DICT) return NULL;
    const struct items *state = v->u.opaque->state.u.items;
    if (state->count > MAX_FIELDS) return NULL;
    for (uint32_t i = 0; i < state->count; i += 2)
        if (value_is_text(&state->at[i], name))
            return state->at[i + 1].kind == kind ? &state->at[i + 1] : NULL;
    return NULL;
}

static int compare_text(const struct value *a, const struct value *b)
{
    int order = memcmp(a->u.text, b->u.text, a->length < b->length ? a->length : b->length);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

/* Orders by name, then by offset; an entry without an offset is a scalar or no tensor. */
static int compare_places(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    uint32_t n = x->at ? x->at->count : 0, m = y->at ? y->at->count : 0;
    int order = compare_text(x->name, y->name);
    if (order || n != m) return order ? order : (n > m) - (n < m);
    for (uint32_t i = 0; i < n; i++) {
        int64_t p = x->at->at[i].u.integer, q = y->at->at[i].u.integer;
        if (p != q) return p < q ? -1 : 1;
    }
    return 0;
}

/* storage_data: {MetadataIndex(fqn, offset, index): _StorageInfo(relative_path, offset, length)} */
static int read_places(struct distributed *d, const struct items *data, struct error *err)
{
    d->places = calloc(data->count / 2 + 1u, sizeof *d->places);
    if (!d->places) return error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory reading a checkpoint");
    for (uint32_t i = 0; i < data->count; i += 2) {
        const struct value *name = field(&data->at[i], "fqn", VALUE_TEXT),
                           *at = field(&data->at[i], "offset", VALUE_TUPLE);
        const struct value *part = field(&data->at[i + 1], "relative_path", VALUE_TEXT),
                           *offset = field(&data->at[i + 1], "offset", VALUE_INT),
                           *bytes = field(&data->at[i + 1], "length", VALUE_INT);
        if (field(&data->at[i + 1], "transform_descriptors", VALUE_LIST) ||
            field(&data->at[i + 1], "transform_descriptors", VALUE_TUPLE))
            return error_set(
                err, EXIT_INTEGRITY,
                "python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIRECTORY FILE.pt",
                "distributed checkpoint: its parts are compressed or otherwise transformed");
        if (!name || !part || !offset || !bytes)
            return damaged(err, "an entry without name, file or position");
        for (uint32_t k = 0; at && k < at->u.items->count; k++)
            if (at->u.items->at[k].kind != VALUE_INT)
                return damaged(err, "a position that is not an integer");
        d->places[d->place_count++] =
            (struct place){name, at ? at->u.items : NULL, part, offset->u.integer, bytes->u.integer};
    }
    qsort(d->places, d->place_count, sizeof *d->places, compare_places);
    return 0;
}

static int read_sizes(const struct items *items, int64_t *to, int ndim, struct error *err)
{
    if ((int64_t)items->count != ndim)
        return damaged(err, "the numbers of dimensions of a box and its tensor differ");
    for (int i = 0; i < ndim; i++) {
        if (items->at[i].kind != VALUE_INT || items->at[i].u.integer < 0)
            return damaged(err, "a size that is not an integer");
        to[i] = items->at[i].u.integer;
    }
    return 0;
}

static const struct place *find_place(const struct distributed *d, const struct value *name,
                                      const int64_t *at, int ndim)
{
    struct value places[WEIGHTS_MAX_DIMS];
    struct items items = {.at = places, .count = (uint32_t)ndim};
    for (int i = 0; i < ndim; i++) places[i] = (struct value){.kind = VALUE_INT, .u.integer = at[i]};
    struct place wanted = {.name = name, .at = &items};
    return bsearch(&wanted, d->places, d->place_count, sizeof wanted, compare_places);
}

/* Returns the source of a part, opened at its first use. */
static int find_part(struct distributed *d, const struct value *part, int *source, struct error *err)
{
    char name[256];
    for (uint32_t i = 0; i < d->parts.count; i++)
        if (compare_text(&d->parts.at[i], part) == 0) {
            *source = (int)i;
            return 0;
        }
    if (part->length >= sizeof name || part->length == 0 || memchr(part->u.text, '/', part->length) ||
        memchr(part->u.text, 0, part->length) || part->length < 8 ||
        memcmp(part->u.text + part->length - 7, ".distcp", 7) != 0)
        return error_set(err, EXIT_INTEGRITY, "do not trust this file",
                         "a tensor is listed in %s, expected a .distcp file in the directory",
                         quote(part->u.text, part->length));
    if (d->parts.count == MAX_PARTS) return damaged(err, "too many parts");
    memcpy(name, part->u.text, part->length);
    name[part->length] = 0;
    char *path = path_join(d->dir, name);
    *source = d->w->source_count;
    int code = weights_add_source(d->w, path, err);
    free(path);
    return code ? code : pickle_append(&d->torch.pickle, &d->parts, part, err);
}

/* Reads the head of a box and appends it to the pieces. *kind: set for an unsupported kind of tensor. */
static int add_box(struct distributed *d, const struct value *name, struct piece *p, char **kind,
                   struct error *err)
{
    struct weights_tensor box = p->row.tensor;
    const struct place *place = find_place(d, name, p->at, box.ndim);
    int source = 0;
    if (!place) return damaged(err, "a box of a tensor is in none of its files");
    int code = find_part(d, place->part, &source, err);
    if (code) return code;
    const struct file_map *map = &d->w->sources[source].map;
    if (place->offset < 0 || place->bytes < 0 || (uint64_t)place->offset > map->bytes ||
        (uint64_t)place->bytes > map->bytes - (uint64_t)place->offset)
        code = damaged(err, "a box extends beyond the end of its file");
    else if ((d->taken_bytes += (uint64_t)place->bytes) > d->w->bytes)
        code = damaged(err, "boxes share bytes of their files");
    else
        code = pytorch_zip_tensor(d->w, source, (uint64_t)place->offset, (uint64_t)place->bytes, &p->row,
                                  kind, err);
    if (code) return error_at(err, d->w->sources[source].path, 0, 0);
    p->row.source = source;
    if (!*kind &&
        (p->row.tensor.ndim != box.ndim || memcmp(p->row.tensor.shape, box.shape, sizeof box.shape) != 0))
        return damaged(err, "a box whose shape differs from .metadata");
    return 0;
}

static int append_piece(struct weights *w, const struct piece *p, struct error *err)
{
    if (w->piece_count == WEIGHTS_MAX_TENSORS) return damaged(err, "too many boxes");
    if (w->piece_count == w->pieces_capacity) {
        w->pieces_capacity = w->pieces_capacity ? w->pieces_capacity * 2 : 64;
        w->pieces = xrealloc(w->pieces, (size_t)w->pieces_capacity * sizeof *w->pieces);
    }
    w->pieces[w->piece_count++] = *p;
    return 0;
}

static bool same_box(const struct piece *a, const struct piece *b)
{
    return memcmp(a->at, b->at, sizeof a->at) == 0 &&
           memcmp(a->row.tensor.shape, b->row.tensor.shape, sizeof a->row.tensor.shape) == 0;
}

static bool overlap(const struct piece *a, const struct piece *b, int ndim)
{
    for (int i = 0; i < ndim; i++)
        if (a->at[i] + a->row.tensor.shape[i] <= b->at[i] || b->at[i] + b->row.tensor.shape[i] <= a->at[i])
            return false;
    return true;
}

/* Adds the boxes of one tensor, which together must cover it. */
static int add_boxes(struct distributed *d, const struct value *name, const struct items *chunks,
                     struct row *row, char **kind, struct error *err)
{
    int64_t covered = 0;
    row->first_piece = d->w->piece_count;
    if (chunks->count > MAX_BOXES || (d->boxes += chunks->count) > WEIGHTS_MAX_TENSORS)
        return damaged(err, "too many boxes");
    for (uint32_t i = 0; i < chunks->count && !*kind; i++) {
        struct piece p = {.row.tensor = {.ndim = row->tensor.ndim}};
        const struct value *at = field(&chunks->at[i], "offsets", VALUE_TUPLE),
                           *sizes = field(&chunks->at[i], "sizes", VALUE_TUPLE);
        if (!at || !sizes) return damaged(err, "a box without position or size");
        int code = read_sizes(at->u.items, p.at, row->tensor.ndim, err);
        if (code == 0) code = read_sizes(sizes->u.items, p.row.tensor.shape, row->tensor.ndim, err);
        if (code) return code;
        for (int k = 0; k < row->tensor.ndim; k++)
            if (p.at[k] > row->tensor.shape[k] || p.row.tensor.shape[k] > row->tensor.shape[k] - p.at[k])
                return damaged(err, "a box outside its tensor");
        int64_t count = shape_count(p.row.tensor.shape, row->tensor.ndim);
        bool again = count == 0; /* a rank without a share, or a duplicate of another rank's share */
        for (int64_t k = row->first_piece; k < d->w->piece_count && !again; k++) {
            again = same_box(&d->w->pieces[k], &p);
            if (!again && overlap(&d->w->pieces[k], &p, row->tensor.ndim))
                return damaged(err, "boxes of a tensor overlap");
        }
        if (again) continue;
        code = add_box(d, name, &p, kind, err);
        if (code == 0 && !*kind) code = append_piece(d->w, &p, err);
        if (code) return code;
        if (!*kind && covered && p.row.tensor.dtype != row->tensor.dtype)
            return damaged(err, "a tensor of two types");
        row->tensor.dtype = p.row.tensor.dtype;
        covered += count;
    }
    row->piece_count = d->w->piece_count - row->first_piece;
    int64_t count = shape_count(row->tensor.shape, row->tensor.ndim);
    return *kind || covered == count ? 0 : damaged(err, "a part of a tensor is in none of its boxes");
}

/* name: TensorStorageMetadata(properties, size, chunks); any other value is not a tensor. */
static int add_tensor(struct distributed *d, const struct value *name, const struct value *v,
                      struct error *err)
{
    const struct value *size = field(v, "size", VALUE_TUPLE), *chunks = field(v, "chunks", VALUE_LIST);
    struct row row = {.payload = -1};
    char *kind = NULL;
    if (!size || !chunks || name->kind != VALUE_TEXT) return 0;
    if (size->u.items->count > WEIGHTS_MAX_DIMS) return damaged(err, "a tensor of too many dimensions");
    row.tensor.ndim = (int)size->u.items->count;
    int code = read_sizes(size->u.items, row.tensor.shape, row.tensor.ndim, err);
    if (code == 0 && shape_count(row.tensor.shape, row.tensor.ndim) < 0)
        code = damaged(err, "a tensor with more elements than 64 bits can represent");
    if (code == 0) code = add_boxes(d, name, chunks->u.items, &row, &kind, err);
    if (code == 0 && kind) code = weights_add_unread(d->w, name->u.text, name->length, kind, err);
    else if (code == 0) code = weights_add_row(d->w, &row, name->u.text, name->length, err);
    free(kind);
    return code;
}

static int read_metadata(struct distributed *d, const struct file_map *map, struct error *err)
{
    struct value top = {.kind = VALUE_NONE};
    size_t used;
    int code = pickle_parse(&d->torch.pickle, map->data, map->bytes, &used, &top, err);
    if (code) return code;
    const struct value *tensors = field(&top, "state_dict_metadata", VALUE_DICT),
                       *data = field(&top, "storage_data", VALUE_DICT);
    if (!tensors || !data)
        return damaged(err, ".metadata is not of torch.distributed.checkpoint's file system format");
    code = read_places(d, data->u.items, err);
    for (uint32_t i = 0; code == 0 && i < tensors->u.items->count; i += 2)
        code = add_tensor(d, &tensors->u.items->at[i], &tensors->u.items->at[i + 1], err);
    if (code == 0 && d->w->count + d->w->unread_count == 0) code = damaged(err, "it holds no tensors");
    return code;
}

int weights_add_distributed(struct weights *w, const char *path, struct error *err)
{
    struct distributed d = {.w = w, .dir = path};
    struct file_map map;
    char *metadata = path_join(path, ".metadata");
    int code = file_map_open(&map, metadata, err);
    if (code == 0) {
        pytorch_init(&d.torch);
        w->format = _("distributed checkpoint");
        code = read_metadata(&d, &map, err);
        if (code && !err->file[0]) error_at(err, metadata, 0, 0);
        pickle_free(&d.torch.pickle);
        file_map_close(&map);
    }
    free(d.places);
    free(metadata);
    return code;
}
