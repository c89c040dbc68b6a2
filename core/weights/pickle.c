/* The pickle parser: see pickle.h. */
#include "core/weights/pickle.h"
#include "core/weights/weights_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct pickle_block {
    struct pickle_block *next;
    size_t used, capacity;
    _Alignas(16) uint8_t data[];
};

void *pickle_alloc(struct pickle *p, size_t bytes, struct error *err)
{
    bytes = (bytes + 15) & ~(size_t)15;
    struct pickle_block *b = p->blocks;
    if (!b || b->capacity - b->used < bytes) {
        size_t capacity = bytes > 65536 - sizeof *b ? bytes : 65536 - sizeof *b;
        if (capacity > PICKLE_MAX_MEMORY_BYTES - p->held_bytes) {
            error_set(err, EXIT_INTEGRITY, "save the state dict alone: torch.save(model.state_dict(), ...)",
                      "the pickle requires more than %zu MiB of memory", PICKLE_MAX_MEMORY_BYTES >> 20);
            return NULL;
        }
        b = calloc(1, sizeof *b + capacity);
        if (!b) {
            error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory parsing a pickle");
            return NULL;
        }
        b->capacity = capacity;
        b->next = p->blocks;
        p->blocks = b;
        p->held_bytes += capacity;
    }
    void *memory = b->data + b->used;
    b->used += bytes;
    return memory;
}

void pickle_free(struct pickle *p)
{
    while (p->blocks) {
        struct pickle_block *next = p->blocks->next;
        free(p->blocks);
        p->blocks = next;
    }
    p->held_bytes = 0;
}

/* Grows the items for `more` values after count. The old array stays in the arena (at most the same size
 * again). */
static int reserve(struct pickle *p, struct items *items, uint32_t more, struct error *err)
{
    if (items->capacity - items->count >= more) return 0;
    uint64_t capacity = (uint64_t)items->count + more;
    if (capacity < (uint64_t)items->capacity * 2) capacity = (uint64_t)items->capacity * 2;
    struct value *larger = pickle_alloc(p, capacity * sizeof *larger, err);
    if (!larger) return err->code;
    if (items->count) memcpy(larger, items->at, items->count * sizeof *larger);
    items->at = larger;
    items->capacity = (uint32_t)capacity;
    return 0;
}

int pickle_append(struct pickle *p, struct items *items, const struct value *v, struct error *err)
{
    int code = reserve(p, items, 1, err);
    if (code == 0) items->at[items->count++] = *v;
    return code;
}

bool value_is_text(const struct value *v, const char *text)
{
    return v->kind == VALUE_TEXT && v->length == strlen(text) && memcmp(v->u.text, text, v->length) == 0;
}

bool class_is(const struct class_name *c, const char *module, const char *name)
{
    return c->module_length == strlen(module) && c->name_length == strlen(name) &&
           memcmp(c->module, module, c->module_length) == 0 && memcmp(c->name, name, c->name_length) == 0;
}

bool value_is_class(const struct value *v, const char *module, const char *name)
{
    return v->kind == VALUE_CLASS && class_is(v->u.class, module, name);
}

const struct class_name *value_class(const struct value *v)
{
    if (v->kind == VALUE_CLASS) return v->u.class;
    return v->kind == VALUE_OPAQUE && v->u.opaque ? v->u.opaque->class : NULL;
}

int pickle_opaque(struct pickle *p, const struct class_name *class, const struct value *args,
                  struct value *result, struct error *err)
{
    struct opaque *o = pickle_alloc(p, sizeof *o, err);
    if (!o) return err->code;
    *o = (struct opaque){.class = class, .args = *args};
    *result = (struct value){.kind = VALUE_OPAQUE, .u.opaque = o};
    return 0;
}

const char *value_kind_name(const struct value *v)
{
    static const char *const names[] = {
        "nothing",       "None",          N_("a bool"),  N_("an int"), N_("a large int"), N_("a float"),
        N_("a string"),  "bytes",         N_("a tuple"), N_("a list"), N_("a dict"),      N_("a class name"),
        N_("an object"), N_("a storage"), N_("a tensor")};
    return names[v->kind];
}

/* State of one parse. */
struct machine {
    struct pickle *p;
    const uint8_t *data;
    size_t bytes, at;
    struct items stack, memo, marks; /* marks: VALUE_INT, the stack's height at each open MARK */
    struct error *err;
};

static int damaged(struct machine *m, const char *what)
{
    return error_set(m->err, EXIT_INTEGRITY,
                     "the file is damaged or was not written by torch.save: get it again",
                     "pickle, byte %zu: %s", m->at, what);
}

static const uint8_t *take(struct machine *m, size_t bytes)
{
    if (m->bytes - m->at < bytes) {
        damaged(m, "an operand extends beyond the end");
        return NULL;
    }
    const uint8_t *p = m->data + m->at;
    m->at += bytes;
    return p;
}

static uint64_t little(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* Reads an unsigned little-endian operand. */
static int operand(struct machine *m, int bytes, uint64_t *v)
{
    const uint8_t *p = take(m, (size_t)bytes);
    if (!p) return EXIT_INTEGRITY;
    *v = little(p, bytes);
    return 0;
}

static int push(struct machine *m, enum value_kind kind, int64_t integer)
{
    struct value v = {.kind = kind, .u.integer = integer};
    return pickle_append(m->p, &m->stack, &v, m->err);
}

static int push_opaque(struct machine *m)
{
    struct value v = {.kind = VALUE_OPAQUE};
    return pickle_append(m->p, &m->stack, &v, m->err);
}

/* Returns the height of the innermost open MARK, below which no value may be popped. */
static uint32_t stack_floor(const struct machine *m)
{
    return m->marks.count ? (uint32_t)m->marks.at[m->marks.count - 1].u.integer : 0;
}

/* Pops the top n values, which stay valid until the stack is written again; NULL if there are fewer. */
static struct value *pop(struct machine *m, uint32_t n)
{
    if (m->stack.count - stack_floor(m) < n) {
        damaged(m, "pops more values than the stack has");
        return NULL;
    }
    m->stack.count -= n;
    return m->stack.at + m->stack.count;
}

static struct value *top(struct machine *m)
{
    struct value *v = pop(m, 1);
    if (v) m->stack.count++;
    return v;
}

/* Pops all values above the last MARK, and the mark. */
static struct value *pop_mark(struct machine *m, uint32_t *n)
{
    if (!m->marks.count) {
        damaged(m, "closes a mark that was never opened");
        return NULL;
    }
    uint32_t height = stack_floor(m);
    m->marks.count--;
    *n = m->stack.count - height;
    m->stack.count = height;
    return m->stack.at + height;
}

/* Pushes a text with a length operand of length_bytes. */
static int push_text(struct machine *m, enum value_kind kind, int length_bytes)
{
    uint64_t length;
    int code = operand(m, length_bytes, &length);
    if (code) return code;
    if (length > m->bytes - m->at) return damaged(m, "a string extends beyond the end");
    struct value v = {.kind = kind, .length = (uint32_t)length, .u.text = (const char *)m->data + m->at};
    m->at += length;
    return pickle_append(m->p, &m->stack, &v, m->err);
}

/* Pushes an integer: two's complement, little-endian. */
static int push_long(struct machine *m, int length_bytes)
{
    uint64_t n;
    int code = operand(m, length_bytes, &n);
    if (code) return code;
    if (n > m->bytes - m->at) return damaged(m, "an integer extends beyond the end");
    const uint8_t *p = m->data + m->at;
    m->at += n;
    if (n > 8) {
        struct value v = {.kind = VALUE_BIG, .length = (uint32_t)n, .u.text = (const char *)p};
        return pickle_append(m->p, &m->stack, &v, m->err);
    }
    uint64_t bits = n && p[n - 1] & 0x80 ? ~(uint64_t)0 : 0;
    for (uint64_t i = n; i-- > 0;) bits = bits << 8 | p[i];
    return push(m, VALUE_INT, (int64_t)bits);
}

static int push_items(struct machine *m, enum value_kind kind, const struct value *from, uint32_t n)
{
    struct items *items = pickle_alloc(m->p, sizeof *items, m->err);
    if (!items) return m->err->code;
    int code = n ? reserve(m->p, items, n, m->err) : 0;
    if (code) return code;
    if (n) memcpy(items->at, from, n * sizeof *from);
    items->count = n;
    struct value v = {.kind = kind, .u.items = items};
    return pickle_append(m->p, &m->stack, &v, m->err);
}

static int push_class(struct machine *m, const char *module, size_t module_length, const char *name,
                      size_t name_length)
{
    struct class_name *c = pickle_alloc(m->p, sizeof *c, m->err);
    if (!c) return m->err->code;
    *c = (struct class_name){module, name, (uint32_t)module_length, (uint32_t)name_length};
    struct value v = {.kind = VALUE_CLASS, .u.class = c};
    return pickle_append(m->p, &m->stack, &v, m->err);
}

static const char *line(struct machine *m, size_t *length)
{
    const char *p = (const char *)m->data + m->at;
    const char *end = m->at < m->bytes ? memchr(p, '\n', m->bytes - m->at) : NULL;
    if (!end) {
        damaged(m, "a name without end");
        return NULL;
    }
    *length = (size_t)(end - p);
    m->at += *length + 1;
    return p;
}

/* Appends n values from `from` (on the released part of the stack) to the container that is now on top. */
static int put_items(struct machine *m, enum value_kind kind, const struct value *from, uint32_t n)
{
    struct value *target = from ? top(m) : NULL;
    if (!target) return EXIT_INTEGRITY;
    if (kind == VALUE_DICT && n % 2) return damaged(m, "a key without a value");
    if (target->kind == VALUE_OPAQUE) return 0;
    if (target->kind != kind)
        return damaged(m, kind == VALUE_DICT ? "items for a value that is not a dict"
                                             : N_("items for a value that is not a list"));
    struct items *items = target->u.items;
    int code = reserve(m->p, items, n, m->err);
    if (code) return code;
    if (n) memcpy(items->at + items->count, from, n * sizeof *from);
    items->count += n;
    return 0;
}

static int memo_put(struct machine *m, uint64_t slot)
{
    const struct value *v = top(m);
    if (!v) return EXIT_INTEGRITY;
    /* Python numbers slots from 0, and each needs two bytes of pickle: a higher slot only wastes memory. */
    if (slot >= m->bytes) return damaged(m, "a memo slot that is out of range");
    if (slot >= m->memo.count) {
        int code = reserve(m->p, &m->memo, (uint32_t)(slot + 1) - m->memo.count, m->err);
        if (code) return code;
        memset(m->memo.at + m->memo.count, 0, (slot + 1 - m->memo.count) * sizeof *v);
        m->memo.count = (uint32_t)slot + 1;
    }
    m->memo.at[slot] = *v;
    return 0;
}

static int memo_get(struct machine *m, uint64_t slot)
{
    if (slot >= m->memo.count || m->memo.at[slot].kind == VALUE_UNSET)
        return damaged(m, "a memo slot that was never written");
    struct value v = m->memo.at[slot];
    return pickle_append(m->p, &m->stack, &v, m->err);
}

/* REDUCE, NEWOBJ, NEWOBJ_EX: callable, args[, keywords] -> result. */
static int call(struct machine *m, uint32_t operands)
{
    const struct value *v = pop(m, operands);
    if (!v) return EXIT_INTEGRITY;
    struct value callable = v[0], args = v[1], result = {.kind = VALUE_OPAQUE};
    if (callable.kind != VALUE_CLASS && callable.kind != VALUE_OPAQUE)
        return damaged(m, "calls a value that is not callable");
    if (args.kind == VALUE_OPAQUE || callable.kind == VALUE_OPAQUE) {
        struct value none = {.kind = VALUE_UNSET};
        int code = pickle_opaque(m->p, value_class(&callable), &none, &result, m->err);
        if (code) return code;
    } else if (args.kind != VALUE_TUPLE) return damaged(m, "calls with arguments that are not a tuple");
    else {
        int code = m->p->call(m->p, &callable, &args, &result, m->err);
        if (code) return code;
    }
    return pickle_append(m->p, &m->stack, &result, m->err);
}

static int persistent_id(struct machine *m)
{
    const struct value *v = pop(m, 1);
    if (!v) return EXIT_INTEGRITY;
    struct value id = *v, result = {.kind = VALUE_OPAQUE};
    int code = m->p->persistent_id(m->p, &id, &result, m->err);
    return code ? code : pickle_append(m->p, &m->stack, &result, m->err);
}

/* BUILD: sets the state of an object. A state dict's state is its _metadata, which is irrelevant for the
 * tensors. */
static int build(struct machine *m)
{
    const struct value *v = pop(m, 1), *target = v ? top(m) : NULL;
    if (!target) return EXIT_INTEGRITY;
    if (target->kind == VALUE_OPAQUE && target->u.opaque) target->u.opaque->state = *v;
    return 0;
}

static int stack_global(struct machine *m)
{
    const struct value *v = pop(m, 2);
    if (!v) return EXIT_INTEGRITY;
    if (v[0].kind != VALUE_TEXT || v[1].kind != VALUE_TEXT)
        return damaged(m, "a class name that is not a string");
    return push_class(m, v[0].u.text, v[0].length, v[1].u.text, v[1].length);
}

/* INT and LONG of protocol 1: decimal text; as INT, 00 and 01 are the truth values. */
static int push_decimal(struct machine *m, bool truth)
{
    size_t bytes;
    const char *text = line(m, &bytes);
    char digits[24], *end;
    if (!text) return EXIT_INTEGRITY;
    if (bytes == 0 || bytes >= sizeof digits)
        return damaged(m, "a number without digits or with more than 23");
    memcpy(digits, text, bytes);
    digits[bytes] = 0;
    errno = 0;
    long long value = strtoll(digits, &end, 10);
    if (end == digits || (*end && strcmp(end, "L") != 0) || errno) return damaged(m, "a number that is none");
    bool is_truth = truth && bytes == 2 && digits[0] == '0';
    return push(m, is_truth ? VALUE_BOOL : VALUE_INT, (int64_t)value);
}

static int refuse_opcode(struct machine *m, uint8_t opcode)
{
    if (strchr("PSVFpgd", opcode) && opcode)
        return error_set(m->err, EXIT_INTEGRITY,
                         "torch.save(torch.load(FILE), ...) with the usual pickle_protocol",
                         "is a pickle of protocol 0, expected 1 to 5");
    return error_set(m->err, EXIT_INTEGRITY,
                     "the file is damaged or was not written by torch.save: get it again",
                     "pickle, byte %zu: unsupported opcode 0x%02x", m->at - 1, opcode);
}

/* Executes one opcode. Names in comments as in pickletools. */
static int step(struct machine *m, uint8_t opcode)
{
    const uint8_t *p;
    const struct value *v;
    uint64_t u = 0;
    uint32_t n = 0;
    size_t module_length, name_length;
    int code;
    switch (opcode) {
    case 0x80: /* PROTO */
        if ((code = operand(m, 1, &u))) return code;
        return u >= 2 && u <= 5 ? 0 : damaged(m, "an unsupported pickle protocol, expected 2 to 5");
    case 0x95: /* FRAME */
        if ((code = operand(m, 8, &u))) return code;
        return u <= m->bytes - m->at ? 0 : damaged(m, "a frame extends beyond the end");
    case '(': { /* MARK */
        struct value mark = {.kind = VALUE_INT, .u.integer = m->stack.count};
        return pickle_append(m->p, &m->marks, &mark, m->err);
    }
    case '0': /* POP: pops a mark if one is on top */
        if (m->marks.count && stack_floor(m) == m->stack.count) {
            m->marks.count--;
            return 0;
        }
        return pop(m, 1) ? 0 : EXIT_INTEGRITY;
    case '1': return pop_mark(m, &n) ? 0 : EXIT_INTEGRITY; /* POP_MARK */
    case '2': {                                            /* DUP */
        if (!(v = top(m))) return EXIT_INTEGRITY;
        struct value copy = *v;
        return pickle_append(m->p, &m->stack, &copy, m->err);
    }

    case 'N': return push(m, VALUE_NONE, 0);
    case 0x88: return push(m, VALUE_BOOL, 1); /* NEWTRUE */
    case 0x89: return push(m, VALUE_BOOL, 0); /* NEWFALSE */
    case 'J':                                 /* BININT */
        if ((code = operand(m, 4, &u))) return code;
        return push(m, VALUE_INT, (int32_t)(uint32_t)u);
    case 'K': return (code = operand(m, 1, &u)) ? code : push(m, VALUE_INT, (int64_t)u); /* BININT1 */
    case 'M': return (code = operand(m, 2, &u)) ? code : push(m, VALUE_INT, (int64_t)u); /* BININT2 */
    case 'I':
    case 'L': return push_decimal(m, opcode == 'I');                        /* INT, LONG */
    case 0x8a: return push_long(m, 1);                                      /* LONG1 */
    case 0x8b: return push_long(m, 4);                                      /* LONG4 */
    case 'G': return take(m, 8) ? push(m, VALUE_FLOAT, 0) : EXIT_INTEGRITY; /* BINFLOAT */
    case 'X': return push_text(m, VALUE_TEXT, 4);                           /* BINUNICODE */
    case 0x8c: return push_text(m, VALUE_TEXT, 1);                          /* SHORT_BINUNICODE */
    case 0x8d: return push_text(m, VALUE_TEXT, 8);                          /* BINUNICODE8 */
    case 'U': return push_text(m, VALUE_TEXT, 1);   /* SHORT_BINSTRING: Python 2's str */
    case 'T': return push_text(m, VALUE_TEXT, 4);   /* BINSTRING */
    case 'C': return push_text(m, VALUE_BYTES, 1);  /* SHORT_BINBYTES */
    case 'B': return push_text(m, VALUE_BYTES, 4);  /* BINBYTES */
    case 0x8e:                                      /* BINBYTES8 */
    case 0x96: return push_text(m, VALUE_BYTES, 8); /* BYTEARRAY8 */

    case ')': return push_items(m, VALUE_TUPLE, NULL, 0); /* EMPTY_TUPLE */
    case 0x85:                                            /* TUPLE1 */
    case 0x86:                                            /* TUPLE2 */
    case 0x87:                                            /* TUPLE3 */
        n = opcode - 0x84u;
        return (v = pop(m, n)) ? push_items(m, VALUE_TUPLE, v, n) : EXIT_INTEGRITY;
    case 't': return (v = pop_mark(m, &n)) ? push_items(m, VALUE_TUPLE, v, n) : EXIT_INTEGRITY; /* TUPLE */
    case ']': return push_items(m, VALUE_LIST, NULL, 0);                                      /* EMPTY_LIST */
    case '}': return push_items(m, VALUE_DICT, NULL, 0);                                      /* EMPTY_DICT */
    case 'a': return put_items(m, VALUE_LIST, pop(m, 1), 1);                                  /* APPEND */
    case 'e': return (v = pop_mark(m, &n)) ? put_items(m, VALUE_LIST, v, n) : EXIT_INTEGRITY; /* APPENDS */
    case 's': return put_items(m, VALUE_DICT, pop(m, 2), 2);                                  /* SETITEM */
    case 'u': return (v = pop_mark(m, &n)) ? put_items(m, VALUE_DICT, v, n) : EXIT_INTEGRITY; /* SETITEMS */
    case 0x8f: return push_opaque(m);                                                         /* EMPTY_SET */
    case 0x90: return pop_mark(m, &n) && top(m) ? 0 : EXIT_INTEGRITY;                         /* ADDITEMS */
    case 0x91: return pop_mark(m, &n) ? push_opaque(m) : EXIT_INTEGRITY;                      /* FROZENSET */

    case 'c': /* GLOBAL */
        if (!(p = (const uint8_t *)line(m, &module_length))) return EXIT_INTEGRITY;
        const char *name = line(m, &name_length);
        return name ? push_class(m, (const char *)p, module_length, name, name_length) : EXIT_INTEGRITY;
    case 0x93: return stack_global(m); /* STACK_GLOBAL */
    case 'R':                          /* REDUCE */
    case 0x81: return call(m, 2);      /* NEWOBJ */
    case 0x92: return call(m, 3);      /* NEWOBJ_EX */
    case 'Q': return persistent_id(m); /* BINPERSID */
    case 'b': return build(m);         /* BUILD */

    case 'q': return (code = operand(m, 1, &u)) ? code : memo_put(m, u); /* BINPUT */
    case 'r': return (code = operand(m, 4, &u)) ? code : memo_put(m, u); /* LONG_BINPUT */
    case 0x94: return memo_put(m, m->memo.count);                        /* MEMOIZE */
    case 'h': return (code = operand(m, 1, &u)) ? code : memo_get(m, u); /* BINGET */
    case 'j': return (code = operand(m, 4, &u)) ? code : memo_get(m, u); /* LONG_BINGET */
    default: return refuse_opcode(m, opcode);
    }
}

int pickle_parse(struct pickle *p, const uint8_t *data, size_t bytes, size_t *used, struct value *result,
                 struct error *err)
{
    size_t most = p->max_bytes ? p->max_bytes : PICKLE_MAX_BYTES;
    struct machine m = {.p = p, .data = data, .bytes = bytes < most ? bytes : most, .err = err};
    int code = reserve(p, &m.stack, 64, err); /* allocate first: an empty mark must not look like a failure */
    if (code) return code;
    while (m.at < m.bytes) {
        uint8_t opcode = data[m.at++];
        if (opcode == '.') {
            if (m.stack.count != 1 || m.marks.count)
                return damaged(&m, "does not end with exactly one value");
            *result = m.stack.at[0];
            *used = m.at;
            return 0;
        }
        code = step(&m, opcode);
        if (code) return code;
    }
    if (bytes > most)
        return error_set(err, EXIT_INTEGRITY,
                         "save the state dict alone: torch.save(model.state_dict(), ...)",
                         "the pickle is longer than %zu MiB", most >> 20);
    return damaged(&m, bytes ? "ends without STOP" : "is empty");
}
