/* Private parts of core/text. A tokenizer is a list of stages of each kind, made from tokenizer.json. */
#ifndef MEOPT_TEXT_INTERNAL_H
#define MEOPT_TEXT_INTERNAL_H

#include "core/text/tokenizer.h"

#include <jansson.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

enum {
    MOST_STAGES = 64,
    MOST_TOKENS = 1 << 24,
    MOST_ADDED = 16,      /* tokens of a post-processor */
    MOST_WORD = 16 << 20, /* bytes of a word */
    CACHED_WORD = 36,     /* bytes */
    CACHED_TOKENS = 10,
    CACHE = 1 << 15
};

/* ---- characters ---- */

/* Reads one character of valid UTF-8; returns its bytes. */
static inline size_t utf8_read(const char *p, uint32_t *point)
{
    const uint8_t *u = (const uint8_t *)p;
    if (u[0] < 0x80) return *point = u[0], 1;
    if (u[0] < 0xE0) return *point = (u[0] & 31u) << 6 | (u[1] & 63u), 2;
    if (u[0] < 0xF0) return *point = (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u), 3;
    return *point = (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u), 4;
}
static inline size_t utf8_length(const char *p)
{
    uint8_t first = (uint8_t)*p;
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}
void text_append_text(struct text_buffer *buffer, const char *text);
void text_append_point(struct text_buffer *buffer, uint32_t point);
bool point_is_space(uint32_t point);  /* White_Space */
bool point_is_letter(uint32_t point); /* Lu, Ll, Lt, Lm, Lo */
/* Returns the older character that stands for one after version 9 of Unicode, 0: p is not recent. */
uint32_t recent_like(uint32_t p);
/* Returns where the next character after version 9 of Unicode begins, or `bytes`; *like: an older one that
 * stands for it. */
size_t recent_next(const char *text, size_t bytes, size_t from, uint32_t *like);
/* Returns the text with older characters of the same category and length for such: itself or *to. */
const char *recent_as_old(const char *text, size_t bytes, struct text_buffer *to);
/* Returns the text with letters for those and for others that Punctuation does not know: itself or *to. */
const char *recent_as_letters(const char *text, size_t bytes, struct text_buffer *to);
/* Returns the bytes of the grapheme cluster at the start of a text, which is not empty. */
size_t grapheme_length(const char *text, size_t bytes);
/* Returns the i-th character that joins any character after it; 0: there are fewer. */
uint32_t grapheme_prepended(int i);

static inline uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = n * 0x9E3779B97F4A7C15ull, v;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&v, p, 8);
        h = (h ^ v) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 32;
    }
    if (n) {
        v = 0;
        memcpy(&v, p, n);
        h = (h ^ v) * 0x9E3779B97F4A7C15ull;
        h ^= h >> 32;
    }
    return h;
}

/* ---- the tokenizer ---- */

struct token {
    char *text;      /* as in the file; NULL: no token has this number */
    char *bytes;     /* that it stands for: text, or the bytes of byte-level characters */
    char *shown;     /* when decoded: the normalized text of an added token; NULL: text */
    uint32_t length; /* of bytes */
    bool added, special;
};

/* Open addressing from bytes to a number. */
struct token_map {
    int32_t *ids; /* -1: free */
    size_t mask;
    bool of_text; /* the key is the text, not the bytes */
};

/* The pieces of a Unigram model by their bytes: a trie whose children stand next to each other, by byte. */
struct piece_node {
    int32_t id, child; /* id: -1 none; child: the first one */
    uint16_t children;
    uint8_t byte;
};
struct unigram {
    struct piece_node *nodes; /* the first is the root */
    double *scores;           /* by number */
    double unknown;           /* score of a character that is no piece */
};

struct merge {
    uint64_t pair; /* left << 32 | right; all ones: free */
    uint32_t rank;
    int32_t id;
};

/* A trie of added tokens, by bytes. */
struct trie_node {
    uint8_t byte;
    int32_t child, sibling, token; /* token: index of the added token, -1 none */
};
struct trie {
    struct trie_node *nodes;
    int32_t count, capacity;
    bool begins[256];
};

struct added_token {
    char *text;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
};

enum split_behaviour { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum stage_kind {
    STAGE_SPLIT,        /* pattern, behaviour, invert */
    STAGE_PREFIX_SPACE, /* a space before, if there is none */
    STAGE_METASPACE,    /* content for each space, and before */
    STAGE_NFC,
    STAGE_NFD,
    STAGE_NFKC,
    STAGE_NFKD,
    STAGE_LOWERCASE,
    STAGE_STRIP_ACCENTS,    /* all marks */
    STAGE_STRIP_NONSPACING, /* those of BertNormalizer */
    STAGE_PREPEND,          /* content */
    STAGE_REPLACE,          /* pattern, content */
    STAGE_STRIP,            /* left, right */
    STAGE_CLEAN,            /* controls, and spaces to " " */
    STAGE_NMT,              /* controls, and other characters to " " */
    STAGE_CHARSMAP,         /* charsmap */
    STAGE_CHINESE,          /* spaces around Chinese characters */
    STAGE_BYTES,            /* byte-level characters to bytes */
    STAGE_FALLBACK,
    STAGE_FUSE,
    STAGE_WORDPIECE
};
enum { AT_EACH, AT_FIRST, AT_NEVER }; /* the prefix of STAGE_METASPACE */
struct charsmap;
struct stage {
    enum stage_kind kind;
    pcre2_code *pattern;
    enum split_behaviour behaviour;
    bool invert, left, right;
    bool letters; /* STAGE_SPLIT: recent characters count as letters */
    int at;
    int64_t start;        /* of a decoder's strip */
    char *content, *from; /* from: the text of the pattern, of a decoder if it is literal */
    struct charsmap *charsmap;
};
struct stages {
    struct stage *rows;
    int count;
};

struct tokenizer {
    bool wordpiece, byte_level, byte_fallback, fuse_unknown, ignore_merges;
    struct token *tokens; /* by number */
    int64_t count, capacity;
    struct token_map by_text, by_bytes;
    struct merge *merges;
    size_t merge_mask;
    struct unigram *unigram; /* NULL: another model */
    int32_t byte_ids[256];   /* of one byte, or of <0xNN> */
    int32_t unknown;         /* -1: none */
    int64_t longest;         /* characters of a word of WordPiece */
    char *prefix;            /* of a continuation in WordPiece */
    struct added_token *added;
    int32_t added_count;
    struct trie raw, normalized;
    struct stages normalizers, splitters, decoders;
    int32_t before[MOST_ADDED], after[MOST_ADDED];
    int before_count, after_count;
    bool templated; /* by TemplateProcessing */
};

/* ---- reading: each function refuses what it does not know ---- */

/* Returns the row of `names` (ends with NULL) that the object's "type" names; -1 with an error. */
int part_type(json_t *object, const char *part, const char *const *names, struct error *err);
/* Refuses members that are not among the words of `known`, and values that are not those after '='
 * (json_members_check). */
int part_keys(json_t *object, const char *part, const char *known, struct error *err);
/* Reads a boolean that may be absent. */
int part_flag(json_t *object, const char *part, const char *key, bool missing, bool *value,
              struct error *err);
struct stage *stage_add(struct stages *stages, enum stage_kind kind, struct error *err);
/* Compiles a pattern in Oniguruma's syntax; literal: of plain text. */
int pattern_compile(pcre2_code **code, const char *pattern, bool literal, struct error *err);
/* Compiles {"Regex": ...} or {"String": ...}; *text, malloc'ed, is that of a String. */
int pattern_read(pcre2_code **code, json_t *object, const char *part, char **text, struct error *err);
int normalizer_read(struct tokenizer *t, json_t *object, struct error *err);
int splitter_read(struct tokenizer *t, json_t *object, struct error *err);
int decoder_read(struct tokenizer *t, json_t *object, struct error *err);
int model_read(struct tokenizer *t, json_t *object, struct error *err);
int unigram_read(struct tokenizer *t, json_t *object, struct error *err);
void unigram_free(struct unigram *unigram);
int charsmap_read(struct charsmap **map, json_t *object, struct error *err);
void charsmap_free(struct charsmap *map);
/* Returns whether a key begins with this character. */
bool charsmap_has(const struct charsmap *map, uint32_t point);
int added_read(struct tokenizer *t, json_t *array, struct error *err);
/* Reads the prefix of Metaspace and whether it splits. */
int metaspace_read(json_t *object, const char *part, struct stage *stage, bool *split, struct error *err);
int processor_read(struct tokenizer *t, json_t *object, struct error *err);

int32_t token_find(const struct tokenizer *t, const struct token_map *map, const char *key, size_t length);
/* Lets token_find find the tokens that there are by text and by bytes; of equal ones the last. */
void token_maps(struct tokenizer *t);
/* Fills the tokens of single bytes: of byte-level characters, or <0x00> to <0xFF>. */
void token_bytes(struct tokenizer *t);
/* Lets tokenizer_id find every token. */
void token_map_all(struct tokenizer *t);
/* Returns the bytes of a text in byte-level characters, malloc'ed; NULL: it has others. */
char *byte_level_bytes(const char *text, uint32_t *length);
/* Adds a token; err: its number is too large or taken. */
int token_add(struct tokenizer *t, const char *text, size_t length, int64_t id, struct error *err);
/* Returns the byte of a byte-level character, -1: none. */
int byte_level_byte(uint32_t point);

/* ---- encoding ---- */

struct cached_word {
    uint32_t hash;
    uint8_t length, count; /* count 0: free */
    char word[CACHED_WORD];
    int32_t ids[CACHED_TOKENS];
};
struct symbol {
    int32_t id, prev, next;
    uint32_t length; /* 0: merged into the one before */
};
struct candidate {
    uint64_t key; /* rank << 32 | position */
    int32_t id;
};

struct path {
    double score; /* of the best pieces that end here */
    int32_t id, from, to;
};

struct encoder {
    const struct tokenizer *t;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    pcre2_jit_stack *stack;
    struct cached_word *cache;
    struct symbol *symbols;
    struct candidate *heap;
    struct path *paths;
    size_t symbol_capacity, heap_capacity, heap_count, path_capacity;
    struct text_buffer normal, other, piece, *stage_text; /* stage_text: one per splitter */
    size_t head;      /* bytes of the text at hand that stand for the first character of the document */
    bool continues;   /* no word of this call was encoded, and it continues a text */
    const char *end;  /* of the last text, if an added token is the last of it; NULL: none is */
    bool after_token; /* the last of this text is an added token */
    bool strips;      /* that token takes the spaces after it */
    struct token_list *to;
    struct text_buffer
        *words; /* takes the words, each with a NUL, in place of their tokens; NULL: none does */
    struct error *err;
};

/* Returns the text in which to look for the pattern, with the same positions: itself or *to. */
const char *pattern_text(const pcre2_code *code, const char *text, size_t bytes, struct text_buffer *to);
struct pattern_match {
    size_t begin, end;
    bool found; /* begin and end are those of a match; before the first one all are 0 */
};
/* Finds the next match after m, as Oniguruma's iterator does: 1, 0 none, -1 error. */
int pattern_find(struct encoder *e, const pcre2_code *code, const char *text, size_t bytes,
                 struct pattern_match *m);
/* Normalizes to *out, which the encoder or the caller owns. */
int normalize(struct encoder *e, const char *text, size_t bytes, const char **out, size_t *out_bytes);
/* Appends a text as a Precompiled normalizer writes it, and sets e->head to that of the new text. */
int charsmap_apply(struct encoder *e, const struct charsmap *map, const char *text, size_t bytes,
                   struct text_buffer *to);
/* Splits a text by the stages from `stage` on, and encodes its words. */
int split_text(struct encoder *e, int stage, const char *text, size_t bytes);
/* Appends the tokens of a word by a Unigram model. */
int encode_unigram(struct encoder *e, const char *word, size_t bytes);
/* Refuses a word that is too long. */
int word_check(struct encoder *e, size_t bytes);
/* Appends the tokens of a word. */
int encode_word(struct encoder *e, const char *word, size_t bytes);

#endif
