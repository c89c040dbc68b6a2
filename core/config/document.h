/* A YAML document as a tree that knows the byte range of every node,
 * so that it can be edited by splicing bytes.
 *
 * libyaml finds the events; its marks count code points without the BOM, here they
 * are bytes of the text. Bounded while it is read: size, nesting, nodes, anchors, aliases, which are never
 * expanded (a "billion laughs" stays as small as its text). Refused with a position:
 * NUL, invalid UTF-8, several documents, duplicate keys, undefined aliases.
 */
#ifndef MEOPT_CONFIG_DOCUMENT_H
#define MEOPT_CONFIG_DOCUMENT_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    DOCUMENT_MAX_BYTES = 4 << 20,
    DOCUMENT_MAX_DEPTH = 64,
    DOCUMENT_MAX_NODES = 200000,
    DOCUMENT_MAX_ALIASES = 1000
};

enum node_kind { NODE_SCALAR, NODE_MAPPING, NODE_SEQUENCE, NODE_ALIAS };
enum node_style {
    STYLE_PLAIN,
    STYLE_SINGLE,
    STYLE_DOUBLE,
    STYLE_LITERAL,
    STYLE_FOLDED,
    STYLE_BLOCK,
    STYLE_FLOW
};

struct node {
    enum node_kind kind;
    enum node_style style;
    size_t start,
        end; /* bytes; start is behind anchor and tag; end of a block collection is not meaningful */
    size_t outer_start; /* with anchor and tag */
    char *text;         /* scalar: its value; alias: the anchor's name; else NULL */
    size_t text_bytes;  /* a value may hold escaped NULs */
    char *anchor, *tag; /* NULL for none */
    int first, next;    /* children (mapping: key, value, key, value ...) and siblings by index; -1: none */
    int target;         /* alias: index of the anchored node */
    int uses;           /* aliases that refer to this node */
};

struct document {
    const char *text; /* the caller's, kept alive by it */
    size_t bytes;
    bool bom, crlf; /* crlf: the first line ends so */
    struct node *nodes;
    int count;
    int root;   /* -1: nothing but comments */
    size_t end; /* where a root mapping may grow: the end of the text, or the "..." line */
};

/* Looks for a character that only looks like ASCII (full-width '：' '＝', non-breaking blank) in the line
 * around byte `at`, outside comments, and writes the advice to replace it to hint (size bytes). False where
 * there is none, or where the line has letters outside ASCII as well, so that it may be meant. */
bool document_lookalike(char *hint, size_t size, const char *text, size_t bytes, size_t at);

/* err: EXIT_CONFIG with line, column, the line and a caret;
 * file is left to the caller's error_at... `path` names it. */
int document_parse(struct document *document, const char *path, const char *text, size_t bytes,
                   struct error *err);
void document_free(struct document *document);

/* Line and column (characters) from 1 of a byte. */
void document_position(const char *text, size_t bytes, size_t at, int *line, int *column);

/* Fill err with the sentence, and the line that byte `at` is in
 * with a caret under it (`length` bytes wide). */
int document_error(struct error *err, const char *path, const char *text, size_t bytes, size_t at,
                   size_t length, const char *hint, const char *format, ...)
    __attribute__((format(printf, 8, 9)));

/* Value of `key` in a mapping node (the key must be a scalar),
 * -1 when there is none; *key_node may be NULL. */
int document_find(const struct document *document, int mapping, const char *key, int *key_node);
/* The node itself, or what an alias refers to. */
int document_follow(const struct document *document, int node);
/* Last byte of a node that is its own: the end of its last leaf when it is a block collection. */
size_t document_leaf_end(const struct document *document, int node);

#endif
