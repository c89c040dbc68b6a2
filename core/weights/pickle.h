/* A read-only pickle parser: opcodes build values; no code is imported or called.
 *
 * Method: pickletools' description of the opcodes, protocols 1 to 5 (protocol 0, in which torch cannot name a
 * storage, is refused). Where Python would call a function, the parser calls one of two functions of its
 * user. The user handles the few names of which tensors consist, and returns VALUE_OPAQUE for every other. An
 * opaque value ignores items that are added to it and keeps the state that BUILD sets.
 *
 * All values are allocated in one arena of bounded size and freed together, so neither nesting nor cycles
 * matter; no function here or above recurses over values. Text points into the parsed bytes, which must
 * outlive it.
 */
#ifndef MEOPT_WEIGHTS_PICKLE_H
#define MEOPT_WEIGHTS_PICKLE_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum value_kind {
    VALUE_UNSET, /* a memo slot never written */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_BIG, /* an integer beyond 64 bits: text holds its little-endian bytes */
    VALUE_FLOAT,
    VALUE_TEXT,
    VALUE_BYTES,
    VALUE_TUPLE,
    VALUE_LIST,
    VALUE_DICT,
    VALUE_CLASS,  /* a name that Python would import */
    VALUE_OPAQUE, /* an instance, or the result of a call, of an unknown name */
    VALUE_STORAGE,
    VALUE_TENSOR
};

struct value {
    enum value_kind kind;
    uint32_t length; /* of text */
    union {
        int64_t integer;
        const char *text; /* not terminated */
        struct items *items;
        const struct class_name *class;
        struct opaque *opaque; /* VALUE_OPAQUE: NULL if nothing is known about it */
        void *object;          /* VALUE_STORAGE, VALUE_TENSOR: the user's, from pickle_alloc */
    } u;
};

/* Items of a tuple or a list; of a dict: key, value, key, value, ... in insertion order, duplicates kept. */
struct items {
    struct value *at;
    uint32_t count, capacity;
};

struct class_name {
    const char *module, *name;
    uint32_t module_length, name_length;
};

/* An object that Python would create: its class or the called function, the arguments, and the state set by
 * BUILD. */
struct opaque {
    const struct class_name *class;
    struct value args, state; /* VALUE_UNSET: none */
};

struct pickle {
    /* Set by the user before pickle_parse.
     * Both return 0 with *result set, or an exit code with err filled. */
    int (*call)(struct pickle *, const struct value *callable, const struct value *args, struct value *result,
                struct error *err);
    int (*persistent_id)(struct pickle *, const struct value *id, struct value *result, struct error *err);
    void *context;
    size_t max_bytes; /* of a pickle; 0: PICKLE_MAX_BYTES */
    /* The parser's own; zero at the start. */
    struct pickle_block *blocks;
    size_t held_bytes;
};

/* Parses one pickle from data; *used is its length (after STOP). May be called again on the same struct. */
int pickle_parse(struct pickle *p, const uint8_t *data, size_t bytes, size_t *used, struct value *top,
                 struct error *err);
void pickle_free(struct pickle *p);

/* Allocates zeroed memory that lives as long as the values; NULL and err if the limit is exceeded. */
void *pickle_alloc(struct pickle *p, size_t bytes, struct error *err);
int pickle_append(struct pickle *p, struct items *items, const struct value *v, struct error *err);

/* Creates a value of class `class`, constructed with `args`. */
int pickle_opaque(struct pickle *p, const struct class_name *class, const struct value *args,
                  struct value *result, struct error *err);
const struct class_name *value_class(const struct value *v); /* of a class or an object; NULL: unknown */

bool value_is_text(const struct value *v, const char *text);
bool value_is_class(const struct value *v, const char *module, const char *name);
bool class_is(const struct class_name *c, const char *module, const char *name);
const char *value_kind_name(const struct value *v); /* for messages: "a tuple", ... */

#endif
