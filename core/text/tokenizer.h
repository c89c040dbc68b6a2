/* Tokenizers of Hugging Face's `tokenizers` library, read from tokenizer.json: text to tokens and back.
 *
 *     tokenizer_open(&t, "gpt2/", &err);              // or gpt2/tokenizer.json
 *     struct encoder *e = encoder_create(t);          // one per thread
 *     encoder_encode(e, text, bytes, true, &list, &err);
 *     tokenizer_decode(t, id, true, &buffer);
 *     encoder_free(e);
 *     tokenizer_close(t);
 *
 * The tokens are those of `tokenizers` (tests/text). A part of the file that is not implemented is refused
 * with its name. Time is n log n in the longest word and linear in the number of words, each of which is
 * merged once while it stays in the encoder's cache. Patterns run in PCRE2 with its limits on backtracking.
 */
#ifndef MEOPT_TEXT_TOKENIZER_H
#define MEOPT_TEXT_TOKENIZER_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Bytes that grow; not terminated. */
struct text_buffer {
    char *data;
    size_t count, capacity;
};
void text_append(struct text_buffer *buffer, const char *bytes, size_t count);
void text_free(struct text_buffer *buffer);

struct token_list {
    int32_t *ids;
    int64_t count, capacity;
};
void token_list_append(struct token_list *list, int32_t id);
void token_list_free(struct token_list *list);

/* Returns the tokenizer.json of a path that names it or its directory, malloc'ed; it may not exist. NULL:
 * the path cannot be examined now. */
char *tokenizer_path(const char *path, struct error *err);
/* Opens a tokenizer.json, or the one in a directory. SentencePiece's .model files are refused. */
int tokenizer_open(struct tokenizer **tokenizer, const char *path, struct error *err);
/* Parses the content of a tokenizer.json; the caller names the file of an error. */
int tokenizer_parse(struct tokenizer **tokenizer, const char *json, size_t bytes, struct error *err);
void tokenizer_close(struct tokenizer *tokenizer);

/* Returns the largest number of a token plus one. */
int64_t tokenizer_vocabulary(const struct tokenizer *tokenizer);
/* Returns the number of the token with this text as in the file; -1: none. */
int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *text);
/* Returns the text of a token as in the file; NULL: no such token. */
const char *tokenizer_text(const struct tokenizer *tokenizer, int32_t id);
/* Returns whether it is a special one among added_tokens. */
bool tokenizer_special(const struct tokenizer *tokenizer, int32_t id);
/* Returns the tokens that the post-processor adds before (end false) or after a text. */
const int32_t *tokenizer_added(const struct tokenizer *tokenizer, bool end, int *count);

/* Returns whether a tokenizer has a property. */
enum tokenizer_property {
    TOKENIZER_BYTES,
    TOKENIZER_PREFIX_SPACE,
    TOKENIZER_WORDPIECE,
    TOKENIZER_UNIGRAM,
    TOKENIZER_LOWERCASE
};
bool tokenizer_has(const struct tokenizer *tokenizer, enum tokenizer_property property);

/* Places where a text can be encoded in parts: after a letter and before one of these. */
#define TEXT_BREAKS                                                                                          \
    {                                                                                                        \
        "\n", " ", "\xE3\x80\x82", "\xEF\xBC\x8C"                                                            \
    }
enum { TEXT_BREAK_COUNT = 4 };
/* Sets which breaks are such places. */
void tokenizer_breaks(const struct tokenizer *tokenizer, bool usable[TEXT_BREAK_COUNT]);

/* Appends the bytes that a token stands for. first: it is the first of a text. Numbers that are no token, and
 * special tokens unless `special`, add nothing. */
void tokenizer_decode(const struct tokenizer *tokenizer, int32_t id, bool first, bool special,
                      struct text_buffer *to);

/* Returns whether tokenizer_decode adds nothing for the tokens before `at`, the first of the text. */
bool tokenizer_begins(const struct tokenizer *tokenizer, const int32_t *ids, int64_t at, bool special);

/* Working memory of one thread. */
struct encoder;
struct encoder *encoder_create(const struct tokenizer *tokenizer);
void encoder_free(struct encoder *encoder);
/* Appends the tokens of a text in valid UTF-8, without those that the post-processor adds. begins: the text
 * is not the continuation of another one. */
int encoder_encode(struct encoder *encoder, const char *text, size_t bytes, bool begins,
                   struct token_list *tokens, struct error *err);

/* Returns the offset of the first byte that is not UTF-8 (RFC 3629); `bytes` if there is none. */
size_t utf8_invalid(const char *text, size_t bytes);

#endif
