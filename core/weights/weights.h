/* Weights: tensors in from PyTorch and safetensors files, and out again.
 *
 * Reading. weights_open looks at a file's content (never at its name): PyTorch's zip format (torch >= 1.6),
 * the legacy stream before it, a TorchScript archive (torch.jit.save), safetensors, or the index of a
 * checkpoint in shards; or a directory as Hugging Face or torch.distributed.checkpoint lays them out. It
 * builds a table of the tensors and touches nothing of their payload; weights_read converts one tensor from
 * the file straight into its destination. A checkpoint's pickle is parsed, never executed: what is not a
 * dictionary of tensors becomes an opaque value and is skipped. Tensors of kinds that are not read (complex,
 * fp8, sparse, quantized, ...) are noted by name and kind and left alone.
 *
 *     struct weights *w;
 *     if ((code = weights_open(&w, "model.pt", err))) return code;
 *     int64_t i = weights_find(w, "visual.cls_token");
 *     const struct weights_tensor *t = weights_tensor(w, i);      // name, dtype, shape, count
 *     code = weights_read(w, i, dst, DTYPE_F32, err);             // dst: t->count floats, row-major
 *     weights_close(w);
 *
 * Writing. weights_write_safetensors and weights_write_pt write a whole new file or none: under a side name,
 * synced, renamed. A full disk is EXIT_DISK and leaves nothing behind.
 *
 * A damaged, hostile or foreign file is EXIT_INTEGRITY; the error says what was found, what was expected and
 * what to do. A missing or unreadable file is EXIT_FAILED.
 *
 * Threads: a struct weights never changes after weights_open; any number of threads may read from it.
 */
#ifndef MEOPT_WEIGHTS_H
#define MEOPT_WEIGHTS_H

#include "core/base/error.h"
#include "core/device/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WEIGHTS_MAX_DIMS 8

struct weights;

struct weights_tensor {
    const char *name; /* UTF-8 from the file: text_printable before printing. Owned by the struct weights */
    enum dtype dtype; /* as stored */
    int ndim;         /* 0: a scalar, count 1 */
    int64_t shape[WEIGHTS_MAX_DIMS];
    int64_t count; /* elements: product of shape */
};

/* On success *w is to be closed with weights_close. A PyTorch file may hold its state dict in another
 * dictionary, up to four deep; which is taken, a table orders (state_dict.c): model, module, state_dict,
 * model_state_dict, net, network, then teacher before student, then averages (model_ema, state_dict_ema,
 * ema), then parts (backbone, encoder, visual). Where another one would have fitted, too, that is said
 * (LOG_INFO). A leading `module.` is taken off the names. In a directory: model.safetensors, its index,
 * pytorch_model.bin, its index, open_clip_model.safetensors, open_clip_pytorch_model.bin: the first there. */
int weights_open(struct weights **w, const char *path, struct error *err);
/* One whole file that is open for reading and stays so; path: what it is called. An index of other files is
 * refused. */
int weights_open_descriptor(struct weights **w, int fd, const char *path, struct error *err);
void weights_close(struct weights *w); /* NULL is fine */

const char *weights_path(const struct weights *w);   /* as given to weights_open */
const char *weights_format(const struct weights *w); /* "pytorch zip", "pytorch legacy", "torchscript",
                                                        "safetensors", "distributed checkpoint" */

/* The table, in the file's order: 0 <= index < weights_count. Names are unique. */
int64_t weights_count(const struct weights *w);
const struct weights_tensor *weights_tensor(const struct weights *w, int64_t index);
/* Index of the tensor of that name, -1 when there is none. */
int64_t weights_find(const struct weights *w, const char *name);
/* Names that a wrapper changed. `name` is one that the tower's own repository gives ("visual.conv1.weight");
 * the file may have it behind any run of module. _orig_mod. _fsdp_wrapped_module. _forward_module.
 * base_model. model. net. network. backbone. encoder. clip. clip_model. vision_tower. image_encoder.
 * vision_encoder. visual_encoder. teacher. student. ema_model. ema. (the fewest words win, then this order),
 * or, when it has none of these, without "visual." because the tower was saved alone. Returns its index and
 * what to do with every other name; -1: there is none. Costs a pass over the table: once a tower, with a name
 * that only its family has. */
struct weights_prefix {
    char add[96];   /* what the file has before the name */
    size_t drop;    /* bytes at the name's begin that the file lacks */
    char other[96]; /* another that fits, too (a teacher's beside a student's); "" when there is none */
};
/* any: up to six words of any kind may stand before the name; words of the list win. */
int64_t weights_find_suffix(const struct weights *w, const char *name, bool any,
                            struct weights_prefix *prefix);
/* weights_find for a name of the same tower. */
int64_t weights_find_under(const struct weights *w, const struct weights_prefix *prefix, const char *name);
/* The kind of a tensor that is there and not read ("complex64", "float8_e4m3fn", "sparse", ...); NULL when
 * there is none of that name. weights_refuse_missing says which of the two it is, with `hint` for one that is
 * not there; it returns EXIT_CONFIG. */
const char *weights_unread(const struct weights *w, const char *name);
const char *weights_unread_name(const struct weights *w, int64_t index); /* NULL behind the last */
int weights_refuse_missing(const struct weights *w, const char *name, const char *hint, struct error *err);
/* Where in a PyTorch file the state dict was: "teacher.backbone", "" when the file is nothing else. And the
 * entries beside it that would have fitted, too: "student, ema"; "" when there is no choice. */
const char *weights_entry(const struct weights *w);
const char *weights_other_entries(const struct weights *w);
/* Value of `key` in the __metadata__ of a safetensors file, or in the extra/meopt.json that weights_write_pt
 * puts into PyTorch's zip; NULL when there is none. */
const char *weights_metadata(const struct weights *w, const char *key);

/* Convert a tensor into dst: host memory for `count` elements of dst_type, row-major and contiguous whatever
 * the strides in the file. dst_type is DTYPE_F32, DTYPE_BF16, DTYPE_F16 or the stored dtype (then bit-exact).
 * Conversion rounds once, to nearest even. No second copy of the tensor is held (a quarter of a megabyte per
 * thread), and the bytes come through read(2): a file cut off meanwhile is an error. Only a view's elements
 * are gathered from the mapping. Where the file carries a checksum of the tensor's storage (PyTorch zip), it
 * is checked at the first read: EXIT_INTEGRITY and the contents of dst are undefined when it is wrong. */
int weights_read(const struct weights *w, int64_t index, void *dst, enum dtype dst_type, struct error *err);

/* Where the values of a tensor begin in its file, where they lie there one behind the other; -1: they do not.
 */
int64_t weights_place(const struct weights *w, int64_t index);

/* Refuse values that no training or embedding can use: `values` is what weights_read gave for the tensor. A
 * NaN or an infinity among them is EXIT_INTEGRITY, with the tensor's name, how many there are, and where the
 * first is. */
int weights_check_finite(const struct weights *w, int64_t index, const void *values, enum dtype dtype,
                         struct error *err);

/* Convert `count` contiguous elements in memory; dst_type as for weights_read. src and dst need no alignment
 * and must not overlap. */
void weights_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t count);

/* One tensor to be written: its bytes, row-major, little-endian, come from
 * `data`, or are asked for front to back, a few megabytes at a time, through
 * `read` (so that a tensor on a card needs no whole copy on the host). */
struct weights_row {
    const char *name; /* UTF-8, unique, not empty */
    enum dtype dtype;
    int ndim;
    int64_t shape[WEIGHTS_MAX_DIMS];
    const void *data; /* NULL: use read */
    int (*read)(void *context, size_t offset_bytes, void *dst, size_t bytes,
                struct error *err); /* 0 or an exit code */
    void *context;
};

/* `metadata`: key, value, key, value, ..., NULL; or NULL. The header keeps the order of the rows; their bytes
 * follow widest type first. */
int weights_write_safetensors(const char *path, const struct weights_row *rows, int64_t count,
                              const char *const *metadata, struct error *err);
/* A state dict (an OrderedDict of CPU tensors, in the order given) that torch.load(weights_only=True) opens,
 * torch 1.13 and later: zip, stored, payloads 64-byte aligned, zip64 when needed. `metadata` becomes a member
 * extra/meopt.json, which torch.load leaves alone. */
int weights_write_pt(const char *path, const struct weights_row *rows, int64_t count,
                     const char *const *metadata, struct error *err);

#endif
