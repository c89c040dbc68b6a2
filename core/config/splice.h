/* Plans one change of a YAML text: finds the target and the bytes to replace. It changes and verifies
 * nothing: edit.c does both. Private to core/config. */
#ifndef MEOPT_CONFIG_SPLICE_H
#define MEOPT_CONFIG_SPLICE_H

#include "core/config/document.h"

/* The position of `section.leaf`, as spelled in the file or as the user typed it. */
struct target {
    int key;
    char section[64], leaf[64];
    const char *value;         /* NULL: unset */
    int section_node, mapping; /* value of the section, -1 if missing; its mapping or -1 */
    int key_node, node;        /* -1 when missing */
};

struct splice {
    size_t at, remove;
    char *insert; /* malloc'ed */
    bool nothing; /* the key to be removed is missing: the rest is empty */
};

/* Splits a key's name, which has one '.', into section and leaf. */
void target_name(struct target *t, const char *name);

/* Plans the change of `t` (key and value given, the rest is found) in the document; `typed` is the key as
 * the user typed it. A value that cannot be changed separately (an alias, a merged key, a block of text)
 * is refused with its position. */
int splice_plan(struct splice *s, struct target *t, const char *typed, const char *path,
                const struct document *d, struct error *err);

#endif
