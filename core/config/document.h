/* A YAML document as a tree with the byte range of every node, so that it can be edited by splicing bytes.
 *
 * libyaml provides the events; its marks count code points without the BOM, here they are bytes of the
 * text. Size, nesting, nodes, anchors and aliases are limited; aliases are never expanded (a "billion
 * laughs" stays as small as its text). Refused with a position: NUL, invalid UTF-8, several documents,
 * duplicate keys, undefined aliases.
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
    size_t start, end; /* bytes; start is after anchor and tag; end of a block collection is not meaningful */
    size_t outer_start; /* with anchor and tag */
    char *text;         /* scalar: its value; alias: the anchor's name; else NULL */
    size_t text_bytes;  /* a value may hold escaped NULs */
    char *anchor, *tag; /* NULL for none */
    int first, next;    /* children (mapping: key, value, key, value ...) and siblings by index; -1: none */
    int target;         /* alias: index of the anchored node */
    int uses;           /* aliases that refer to this node */
};

struct document {
    const char *text; /* owned by the caller, must outlive the document */
    size_t bytes;
    bool bom, crlf; /* crlf: the first line ends with it */
    struct node *nodes;
    int count;
    int root;   /* -1: only comments */
    size_t end; /* where keys can be appended to a root mapping: the end of the text, or the "..." line */
};

/* Finds a character that only resembles ASCII (full-width '：' '＝', non-breaking blank) in the line around
 * byte `at`, outside comments. Writes the advice to replace it to hint (size bytes). Returns false if
 * there is none, or if the line has letters outside ASCII as well, so that it may be intended. */
bool document_lookalike(char *hint, size_t size, const char *text, size_t bytes, size_t at);

/* Parses a text. err: EXIT_CONFIG with line, column, the line and a caret; the caller sets the file with
 * error_at. `path` is the name in messages. */
int document_parse(struct document *document, const char *path, const char *text, size_t bytes,
                   struct error *err);
void document_free(struct document *document);

/* Returns line and column (characters) of a byte, from 1. */
void document_position(const char *text, size_t bytes, size_t at, int *line, int *column);

/* Fills err with the sentence, and the line of byte `at` with a caret under it (`length` bytes wide). */
int document_error(struct error *err, const char *path, const char *text, size_t bytes, size_t at,
                   size_t length, const char *hint, const char *format, ...)
    __attribute__((format(printf, 8, 9)));

/* Returns the value of `key` in a mapping node (the key must be a scalar), -1 if there is none; *key_node
 * may be NULL. */
int document_find(const struct document *document, int mapping, const char *key, int *key_node);
/* Returns the node itself, or the target of an alias. */
int document_follow(const struct document *document, int node);
/* Returns the last byte that belongs to a node: the end of its last leaf if it is a block collection. */
size_t document_leaf_end(const struct document *document, int node);

#endif
