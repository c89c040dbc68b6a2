/* Weights: tensors in from PyTorch and safetensors files, and out again.
 *
 * Reading. weights_open recognizes a file by its content, never by its name: PyTorch's zip format (torch >=
 * 1.6), the legacy stream before it, a TorchScript archive (torch.jit.save), safetensors, or the index of a
 * sharded checkpoint; or a directory of Hugging Face or torch.distributed.checkpoint. It builds a table of
 * the tensors without reading their payload; weights_read converts one tensor from the file straight into its
 * destination. A checkpoint's pickle is parsed, never executed: objects that are not dictionaries of tensors
 * become opaque values and are skipped. Unsupported tensors (complex, fp8, sparse, quantized, ...) are
 * recorded by name and kind and otherwise ignored.
 *
 *     struct weights *w;
 *     if ((code = weights_open(&w, "model.pt", err))) return code;
 *     int64_t i = weights_find(w, "visual.cls_token");
 *     const struct weights_tensor *t = weights_tensor(w, i);      // name, dtype, shape, count
 *     code = weights_read(w, i, dst, DTYPE_F32, err);             // dst: t->count floats, row-major
 *     weights_close(w);
 *
 * Writing. weights_write_safetensors and weights_write_pt write a whole new file or none: to a temporary
 * name, synced, renamed. A full disk is EXIT_DISK and leaves no file.
 *
 * A damaged, hostile or foreign file is EXIT_INTEGRITY; the error has the values found and expected, and the
 * next step. A missing or unreadable file is EXIT_FAILED.
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

/* Opens weights; on success close *w with weights_close. A PyTorch file may have its state dict in another
 * dictionary, up to four deep. A table gives the order of preference (state_dict.c): model, module,
 * state_dict, model_state_dict, net, network, then teacher before student, then averages (model_ema,
 * state_dict_ema, ema), then parts (backbone, encoder, visual). If another entry would have matched as well,
 * it is logged (LOG_INFO). A leading `module.` is removed from the names. In a directory the first existing
 * file is opened: model.safetensors, its index, pytorch_model.bin, its index, open_clip_model.safetensors,
 * open_clip_pytorch_model.bin. */
int weights_open(struct weights **w, const char *path, struct error *err);
/* Opens one whole file from a descriptor, which stays open; path is for messages. An index of other files is
 * refused. */
int weights_open_descriptor(struct weights **w, int fd, const char *path, struct error *err);
/* Returns w with one more user: weights_close frees it after its last one. */
struct weights *weights_share(struct weights *w);
void weights_close(struct weights *w); /* NULL is allowed */

const char *weights_path(const struct weights *w);   /* as given to weights_open */
const char *weights_format(const struct weights *w); /* "pytorch zip", "pytorch legacy", "torchscript",
                                                        "safetensors", "distributed checkpoint" */

/* The table, in the file's order: 0 <= index < weights_count. Names are unique. */
int64_t weights_count(const struct weights *w);
const struct weights_tensor *weights_tensor(const struct weights *w, int64_t index);
/* Index of the tensor of that name, -1 if there is none. */
int64_t weights_find(const struct weights *w, const char *name);
/* Finds names that a wrapper changed. `name` is a name in the tower's own repository ("visual.conv1.weight").
 * The file may have it after any sequence of module. _orig_mod. _fsdp_wrapped_module. _forward_module.
 * base_model. model. net. network. backbone. encoder. clip. clip_model. vision_tower. image_encoder.
 * vision_encoder. visual_encoder. teacher. student. ema_model. ema. (fewest words first, then this order),
 * or, without any of them, without "visual." because the tower was saved alone. Returns its index and the
 * change for every other name; -1: not found. Takes a pass over the table: call it once per tower, with a
 * name that only its family has. */
struct weights_prefix {
    char add[96];   /* prefix that the file has before the name */
    size_t drop;    /* bytes at the name's start that the file lacks */
    char other[96]; /* another matching prefix (a teacher's next to a student's); "" if there is none */
};
/* any: up to six words of any kind may come before the name; words of the list are preferred. */
int64_t weights_find_suffix(const struct weights *w, const char *name, bool any,
                            struct weights_prefix *prefix);
/* weights_find for a name of the same tower. */
int64_t weights_find_under(const struct weights *w, const struct weights_prefix *prefix, const char *name);
/* Kind of an unsupported tensor ("complex64", "float8_e4m3fn", "sparse", ...); NULL if there is none of that
 * name. weights_refuse_missing reports which of the two applies, with `hint` for an absent tensor; it returns
 * EXIT_CONFIG. */
const char *weights_unread(const struct weights *w, const char *name);
const char *weights_unread_name(const struct weights *w, int64_t index); /* NULL after the last */
int weights_refuse_missing(const struct weights *w, const char *name, const char *hint, struct error *err);
/* Value of `key` in the __metadata__ of a safetensors file, or in the extra/meopt.json that weights_write_pt
 * writes into PyTorch's zip, or, as model_args.NAME, an integer of nanoGPT's model_args; NULL if there is
 * none. */
const char *weights_metadata(const struct weights *w, const char *key);

/* Converts a tensor into dst: host memory for `count` elements of dst_type, row-major and contiguous whatever
 * the strides in the file. dst_type is DTYPE_F32, DTYPE_BF16, DTYPE_F16 or the stored dtype (then bit-exact).
 * Conversion rounds once, to nearest even. There is no second copy of the tensor (a quarter of a megabyte per
 * thread), and the bytes come through read(2): truncation meanwhile is an error. Only a view's elements are
 * gathered from the mapping. If the file has a checksum of the tensor's storage (PyTorch zip), it is verified
 * at the first read: on a mismatch EXIT_INTEGRITY, and the contents of dst are undefined. */
int weights_read(const struct weights *w, int64_t index, void *dst, enum dtype dst_type, struct error *err);

/* Offset of a tensor's values in its file if they are contiguous there, else -1. */
int64_t weights_place(const struct weights *w, int64_t index);

/* Refuses values that no training or embedding can use: `values` is the result of weights_read for the
 * tensor. A NaN or an infinity is EXIT_INTEGRITY, with the tensor's name, their number, and the position of
 * the first. */
int weights_check_finite(const struct weights *w, int64_t index, const void *values, enum dtype dtype,
                         struct error *err);

/* Converts `count` contiguous elements in memory; dst_type as for weights_read. src and dst need no alignment
 * and must not overlap. */
void weights_convert(void *dst, enum dtype dst_type, const void *src, enum dtype src_type, int64_t count);

/* One tensor to write. Its bytes, row-major, little-endian, come from `data`, or from `read` in order, a few
 * megabytes at a time (so that a tensor on a card needs no whole copy on the host). */
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

/* Opens rows as weights: `read` makes a tensor's values each time that they are read, whole, by one thread
 * at a time. `path` is for messages. The rows are copied; `close`, which may be NULL, frees their context,
 * also when this fails. */
int weights_open_rows(struct weights **w, const char *path, const struct weights_row *rows, int64_t count,
                      void (*close)(void *context), void *context, struct error *err);

/* `metadata`: key, value, key, value, ..., NULL; or NULL. The header keeps the order of the rows; the payload
 * is sorted by width, widest type first. */
int weights_write_safetensors(const char *path, const struct weights_row *rows, int64_t count,
                              const char *const *metadata, struct error *err);
/* Writes a state dict (an OrderedDict of CPU tensors, in the given order) that torch.load(weights_only=True)
 * opens, torch 1.13 and later: zip, stored, payloads 64-byte aligned, zip64 when needed. `metadata` becomes a
 * member extra/meopt.json, which torch.load ignores. */
int weights_write_pt(const char *path, const struct weights_row *rows, int64_t count,
                     const char *const *metadata, struct error *err);

#endif
