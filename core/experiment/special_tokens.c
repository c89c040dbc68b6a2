/* Special tokens of a tokenizer.json: see special_tokens.h. */
#include "core/experiment/special_tokens.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/path.h"
#include "core/model/family.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 256 << 20, BERT_MASK = 103, OTHERS = 4 /* <s>, <pad>, </s>, <unk> */ };

/* Reads the tokenizer.json next to the weights; *root NULL: there is none. */
static int read_tokenizer(json_t **root, const char *weight, struct error *err)
{
    *root = NULL;
    if (!weight[0]) return 0;
    char *directory = path_directory(weight, err),
         *path = directory ? path_join(directory, "tokenizer.json") : NULL;
    int code = directory ? 0 : err->code;
    if (path) code = json_read_optional(path, MOST_BYTES, root, err);
    free(path);
    free(directory);
    return code;
}

/* Finds the mask, and the last special token in the first half of the vocabulary; -1: none. */
static void find(const json_t *tokenizer, int64_t vocabulary, int64_t *mask, int64_t *last)
{
    const json_t *token;
    size_t i;
    *mask = *last = -1;
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, token)
    {
        const char *text = json_word(token, "content");
        int64_t id = json_member_count(token, "id");
        bool special = json_is_true(json_object_get(token, "special"));
        if (strcmp(text, "[MASK]") == 0 || strcmp(text, "<mask>") == 0) *mask = id;
        else if (special && id > *last && id < vocabulary / 2) *last = id;
    }
}

int special_tokens_settle(struct config *c, const struct model_shape *g, struct error *err)
{
    const struct family_row *row = family_row(g->family);
    json_t *tokenizer;
    int64_t mask, last;
    bool given = config_given(c, "data.mask_token");
    if (given && c->data.special_tokens >= 0) return 0;
    int code = read_tokenizer(&tokenizer, c->model_s.weight, err);
    if (code) return code;
    find(tokenizer, g->vocabulary, &mask, &last);
    json_decref(tokenizer);
    bool assumed = mask < 0 && !given;
    if (mask < 0) mask = row->mask_last ? g->vocabulary - 1 : row->mask ? row->mask : BERT_MASK;
    if (!given) c->data.mask_token = mask;
    if (c->data.special_tokens < 0)
        c->data.special_tokens = c->data.mask_token < g->vocabulary / 2 ? c->data.mask_token + 1
                                 : last >= 0                            ? last + 1
                                                                        : OTHERS;
    if (assumed)
        log_info("no tokenizer.json with a mask next to the checkpoint: the mask is token %lld, tokens below "
                 "%lld stay",
                 (long long)c->data.mask_token, (long long)c->data.special_tokens);
    return 0;
}
