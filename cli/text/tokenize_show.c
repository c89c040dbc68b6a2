/* Shows the first document of token files: see tokenize_show.h. It is read from what was written. */
#include "cli/text/tokenize_show.h"
#include "cli/config/cmd_config.h"
#include "core/base/memory.h"
#include "core/base/translate.h"
#include "core/data/token_file.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TOKENS = 4096, MOST_PIECES = 12, PIECE_BEGIN = 240, PIECE_END = 120 };

/* Adds tokens that are all labels or all not, as text. */
static void add_piece(json_t *pieces, const struct tokenizer *t, const int32_t *ids, int64_t count,
                      bool label, bool first)
{
    struct text_buffer text = {0};
    for (int64_t i = 0; i < count; i++) tokenizer_decode(t, ids[i], first && i == 0, true, &text);
    text_append(&text, "", 1);
    char *shown = xmalloc(4 * text.count);
    json_array_append_new(pieces, json_pack("{s:s, s:I, s:b}", "text",
                                            text_printable(shown, 4 * text.count, text.data), "tokens",
                                            (json_int_t)count, "label", label));
    free(shown);
    text_free(&text);
}

json_t *tokenize_first(const char *name, const struct tokenizer *tokenizer)
{
    struct token_file file;
    struct error ignored;
    char *path = xasprintf("%s.bin", name);
    int64_t first = 0, all = 0, count = 0;
    json_t *pieces = NULL;
    if (token_file_open(&file, path, TOKENS_MEGATRON, &ignored) == 0) {
        if (file.labels.data && token_file_documents(&file) > 0) {
            int32_t ids[MOST_TOKENS];
            all = token_file_document(&file, 0, &first);
            count = all < MOST_TOKENS ? all : MOST_TOKENS;
            pieces = json_array();
            token_file_read(&file, first, count, INT32_MAX, ids);
            for (int64_t from = 0, to; from < count; from = to) {
                bool label = token_file_is_label(&file, first + from);
                for (to = from + 1; to < count && token_file_is_label(&file, first + to) == label;) to++;
                add_piece(pieces, tokenizer, ids + from, to - from, label, from == 0);
            }
        }
        token_file_close(&file);
    }
    free(path);
    return pieces ? json_pack("{s:I, s:I, s:o}", "tokens", (json_int_t)all, "shown", (json_int_t)count,
                              "pieces", pieces)
                  : NULL;
}

/* Prints a text without its middle, if it is long. */
static void print_shortened(const char *text)
{
    size_t bytes = strlen(text), begin = PIECE_BEGIN, end = bytes - PIECE_END;
    if (bytes <= PIECE_BEGIN + PIECE_END) begin = end = bytes;
    while (begin < bytes && ((uint8_t)text[begin] & 0xC0) == 0x80) begin++;
    while (end < bytes && ((uint8_t)text[end] & 0xC0) == 0x80) end++;
    fprintf(stderr, "%.*s%s%s", (int)begin, text, end > begin ? " ... " : "", text + end);
}

void tokenize_show(const char *name, const struct tokenizer *tokenizer)
{
    json_t *first = tokenize_first(name, tokenizer), *pieces = json_object_get(first, "pieces"), *piece;
    bool underline = colour_wanted(stderr);
    size_t i;
    long long all = json_integer_value(json_object_get(first, "tokens")),
              shown = json_integer_value(json_object_get(first, "shown")), learnt = 0;
    if (!first) return;
    json_array_foreach(pieces, i, piece) learnt += json_is_true(json_object_get(piece, "label"))
                                                       ? json_integer_value(json_object_get(piece, "tokens"))
                                                       : 0;
    fprintf(stderr,
            underline ? _("first document, of which the underlined is learnt (%lld of %lld tokens):\n")
                      : _("first document, of which [[this]] is learnt (%lld of %lld tokens):\n"),
            learnt, shown);
    json_array_foreach(pieces, i, piece)
    {
        bool label = json_is_true(json_object_get(piece, "label"));
        if (i == MOST_PIECES) break;
        if (label) fputs(underline ? "\033[4m" : "[[", stderr);
        print_shortened(json_string_value(json_object_get(piece, "text")));
        if (label) fputs(underline ? "\033[24m" : "]]", stderr);
    }
    if (i < json_array_size(pieces) || shown < all) fputs(" ...", stderr);
    fputs("\n", stderr);
    json_decref(first);
}
