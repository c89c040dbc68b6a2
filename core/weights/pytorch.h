/* The meaning of PyTorch's pickles: storages, tensors, and the state dict. Shared by the zip and the legacy
 * container, which store a storage's bytes differently. Source: torch/serialization.py, torch/_utils.py. */
#ifndef MEOPT_WEIGHTS_PYTORCH_H
#define MEOPT_WEIGHTS_PYTORCH_H

#include "core/weights/weights_internal.h"
#include "core/weights/pickle.h"

enum { STORAGE_UNKNOWN = -1, STORAGE_UNTYPED = -2 }; /* instead of an enum dtype */

struct storage {
    const char *key; /* not terminated */
    uint32_t key_bytes;
    int dtype;              /* enum dtype, or one of the above */
    unsigned element_bytes; /* 0: unknown */
    const char *kind;       /* of an unsupported storage, if known; else NULL */
    int64_t count;          /* elements; bytes when untyped; undefined when unknown */
    uint64_t bytes;
    uint64_t view_bytes; /* legacy: offset of this storage in the one stored under `key` */
    uint64_t base_bytes; /* legacy: size of that one; else equal to bytes */
    const struct class_name *class;
};

/* The object of VALUE_TENSOR. */
struct stored_tensor {
    const char
        *kind; /* why it is unsupported: "complex64", "sparse", ...; NULL: supported, and the rest is set */
    const struct storage *storage;
    int dtype; /* enum dtype */
    int ndim;
    int64_t shape[WEIGHTS_MAX_DIMS], stride[WEIGHTS_MAX_DIMS], offset; /* in elements */
};

struct pytorch {
    struct pickle pickle;
    struct items storages; /* VALUE_STORAGE, one per reference, in order */
};

/* Registers the functions that build tensors. pickle_free frees everything. */
void pytorch_init(struct pytorch *t);

/* Finds a storage's bytes: payload index (weights_add_payload) and the offset in the file. 0 or an exit
 * code. */
typedef int (*storage_finder)(void *context, const struct storage *storage, int64_t *payload,
                              uint64_t *offset, struct error *err);

/* Returns the location of a supported tensor: a row without a name. */
int pytorch_row(const struct stored_tensor *t, storage_finder find, void *context, struct row *row,
                struct error *err);
/* Adds one tensor to the table, or to the list of unsupported tensors. */
int pytorch_add_tensor(struct weights *w, const char *name, size_t name_bytes, const struct stored_tensor *t,
                       storage_finder find, void *context, struct error *err);

/* Fills w's table from the pickled object: state_dict.c. */
int pytorch_add_state_dict(struct weights *w, const struct value *top, storage_finder find, void *context,
                           struct error *err);
/* Fills w's table from the module of a TorchScript archive: torchscript.c. */
int pytorch_add_module(struct weights *w, const struct value *top, storage_finder find, void *context,
                       struct error *err);

#endif
