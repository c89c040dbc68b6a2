/* Mask and special tokens of token files: see mask_tokens.h. */
#include "core/data/mask_tokens.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/token_file.h"
#include "core/data/token_loader.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

static int by_number(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int mask_tokens_read(struct mask_tokens *m, const json_t *description, struct error *err)
{
    const json_t *token = json_object_get(description, "mask"),
                 *special = json_object_get(description, "special"), *id;
    size_t i;
    if (!token) return 0; /* an older version wrote the files */
    int64_t number = json_is_integer(token) ? json_integer_value(token) : -1;
    if (m->described && m->token != number)
        return error_set(err, EXIT_CONFIG, "train on files of one tokenizer",
                         "its mask is token %lld, that of the files before is %lld", (long long)number,
                         (long long)m->token);
    if (m->described) return 0;
    *m = (struct mask_tokens){.described = true, .token = number};
    m->apart = xcalloc(json_array_size(special) + 1, sizeof *m->apart);
    json_array_foreach(special, i, id)
    {
        json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
        if (value >= 0 && value <= INT32_MAX) m->apart[m->count++] = (int32_t)value;
    }
    qsort(m->apart, (size_t)m->count, sizeof *m->apart, by_number);
    return 0;
}

int mask_tokens_find(struct mask_tokens *m, const struct data_options *o, struct error *err)
{
    struct image_list list;
    struct stat st;
    *m = (struct mask_tokens){0};
    if (!o->root[0] || file_absent(o->root)) return 0;
    int code = token_list_open(&list, o, err);
    if (!code) code = token_root(o->root, &st, err);
    int64_t first = 0;
    while (!code && first < list.count && token_list_part(list.names[first])) first++;
    char *path = code || first == list.count ? NULL
                 : S_ISREG(st.st_mode)       ? xstrdup(o->root)
                                             : path_join(o->root, list.names[first]);
    json_t *root = NULL;
    if (path) code = token_file_description(path, &root, err);
    if (root) code = mask_tokens_read(m, root, err);
    json_decref(root);
    free(path);
    image_list_free(&list);
    return code;
}

int mask_tokens_check(struct mask_tokens *m, const struct data_options *o, struct error *err)
{
    char hint[80];
    while (m->count && m->apart[m->count - 1] >= o->vocabulary) m->count--;
    if (m->described && m->token >= 0 && o->mask_token >= 0 && m->token != o->mask_token) {
        snprintf(hint, sizeof hint, _("set data.mask_token to %lld, or leave it out"), (long long)m->token);
        return error_set(err, EXIT_CONFIG, hint,
                         "data.mask_token is %lld, but the mask of the token files' tokenizer is %lld",
                         (long long)o->mask_token, (long long)m->token);
    }
    if (o->mask_token < o->vocabulary) return 0;
    return error_set(err, EXIT_CONFIG, "set model.vocabulary to that of the tokenizer",
                     "the mask is token %lld, but the model has a vocabulary of %lld",
                     (long long)o->mask_token, (long long)o->vocabulary);
}

void mask_tokens_free(struct mask_tokens *m)
{
    free(m->apart);
    *m = (struct mask_tokens){0};
}
