/* Planning one change of a YAML text: what stands there, and which bytes give way to which. Nothing is
 * changed here and nothing proved: edit.c does both. Inside core/config only. */
#ifndef MEOPT_CONFIG_SPLICE_H
#define MEOPT_CONFIG_SPLICE_H

#include "core/config/document.h"

/* What stands where: `section.leaf` in the spelling that the file has, or that the user typed. */
struct target {
    int key;
    char section[64], leaf[64];
    const char *value;         /* NULL: unset */
    int section_node, mapping; /* value of the section as it stands, -1 when missing; its mapping or -1 */
    int key_node, node;        /* -1 when missing */
};

struct splice {
    size_t at, remove;
    char *insert; /* malloc'ed */
    bool nothing; /* the key to be removed is not there: the rest is empty */
};

/* Section and leaf of a key's name, which has one '.'. */
void target_name(struct target *t, const char *name);

/* The change of `t` (key and value given, the rest is found) in the document;
 * `typed` is the key as the user spelled it. What cannot be changed alone (an
 * alias, a merged key, a block of text) is refused with its place. */
int splice_plan(struct splice *s, struct target *t, const char *typed, const char *path,
                const struct document *d, struct error *err);

#endif
