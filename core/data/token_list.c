/* The token files under a root: see token_loader.h. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/token_file.h"
#include "core/data/token_loader.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), k = strlen(ending);
    return n > k && strcmp(name + n - k, ending) == 0;
}

bool token_list_part(const char *name)
{
    return ends_with(name, ".idx") || ends_with(name, ".labels") || ends_with(name, ".classes");
}

/* Adds a file if it exists; takes `name`. One that cannot be examined now is not absent: without its labels
 * all tokens would be some. */
static int add_part(struct image_list *list, const char *directory, char *name, struct error *err)
{
    struct stat st;
    int code = 0;
    if (!name) return 0;
    char *path = path_join(directory, name);
    if (stat(path, &st) == 0) image_list_add(list, name, (struct image_place){.bytes = st.st_size});
    else {
        free(name);
        if (!file_absent(path)) {
            code = error_errno(err, EXIT_FAILED, NULL, "cannot examine this file");
            error_at(err, path, 0, 0);
        }
    }
    free(path);
    return code;
}

/* Adds a file, its index, its labels and its classes. */
static int add_file(struct image_list *list, const char *directory, const char *name, int64_t bytes,
                    struct error *err)
{
    image_list_add(list, xstrdup(name), (struct image_place){.bytes = bytes});
    int code = add_part(list, directory, token_file_index(name), err);
    if (!code) code = add_part(list, directory, token_file_labels(name), err);
    return code ? code : add_part(list, directory, token_file_classes(name), err);
}

int token_root(const char *root, struct stat *status, struct error *err)
{
    if (stat(root, status) == 0) return 0;
    error_errno(err, EXIT_FAILED, "set data.root to token files", "cannot open it");
    return error_at(err, root, 0, 0);
}

/* The entries of a directory that are not read. */
struct left_out {
    int64_t hidden, directories, special, others; /* others: without .bin, next to files with it */
    int64_t parts;                                /* of another part than the one that is read */
    char *part;                                   /* the first of these */
    struct stat apart;                            /* st_ino 0: nothing is left out */
};

/* Adds an entry of a directory if it is a file. A link that leads nowhere is an error. */
static int add_entry(struct image_list *list, struct left_out *left, const char *root, int directory,
                     const char *name, struct error *err)
{
    struct stat st;
    if (fstatat(directory, name, &st, 0)) {
        char *path = path_join(root, name);
        int code = error_errno(err, EXIT_FAILED, "repair or remove it, or name it in data.exclude",
                               "cannot open this file");
        error_at(err, path, 0, 0);
        free(path);
        return code;
    }
    if (left->apart.st_ino && st.st_ino == left->apart.st_ino && st.st_dev == left->apart.st_dev) {
        if (!list->apart) list->apart = xstrdup(name);
        return 0;
    }
    if (S_ISREG(st.st_mode)) return add_file(list, root, name, st.st_size, err);
    if (S_ISDIR(st.st_mode)) left->directories++;
    else left->special++;
    return 0;
}

/* Lists the files of a directory that match the patterns; bin: those whose names end in .bin. */
static int list_directory(struct image_list *list, struct left_out *left, const struct data_options *o,
                          bool bin, struct error *err)
{
    DIR *dir = opendir(o->root);
    struct dirent *entry;
    int code = 0;
    bool all = !o->include || !o->include[0];
    *left = (struct left_out){0};
    if (!dir) {
        error_errno(err, EXIT_FAILED, "set data.root to token files", "cannot open this directory");
        return error_at(err, o->root, 0, 0);
    }
    code = image_list_apart(o->apart, &left->apart, err);
    while (!code && (errno = 0, entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;
        bool dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
        if (dots || token_list_part(name) || (!all && !image_list_matches(o->include, name)) ||
            image_list_matches(o->exclude, name))
            continue;
        if (name[0] == '.') left->hidden++;
        else if (bin && !ends_with(name, ".bin")) left->others++;
        else code = add_entry(list, left, o->root, dirfd(dir), name, err);
    }
    if (!code && errno) {
        code = error_errno(err, EXIT_FAILED, NULL, "cannot list this directory");
        error_at(err, o->root, 0, 0);
    }
    closedir(dir);
    return code;
}

/* Returns whether the list has files X.bin and X-val.bin, as meopt tokenize --val writes them: what is not
 * for validation is then for training. */
static bool has_validation(const struct image_list *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        const char *word = ends_with(list->names[i], "-val.bin") ? strrchr(list->names[i], '-') : NULL;
        size_t n = word ? (size_t)(word - list->names[i]) : 0;
        for (int64_t k = 0; word && k < list->count; k++)
            if (strncmp(list->names[k], list->names[i], n) == 0 && strcmp(list->names[k] + n, ".bin") == 0)
                return true;
    }
    return false;
}

/* named: the list has files X.bin and X-val.bin. */
static enum image_part part_of(const char *name, bool named)
{
    enum image_part part = image_part_word(name, strlen(name), NULL, NULL);
    const char *end = strrchr(name, '-');
    if (named && end && strncmp(end, "-val.", 5) == 0) return PART_VAL; /* also train-val.bin */
    return named && !part ? PART_TRAIN : part;
}

/* Keeps the files of one part, for training or for validation, if names say that there are others: train.bin
 * and val.bin, X_train_000001.bin and X_val_000000.bin, X.bin and X-val.bin. */
static void select_part(struct image_list *list, struct left_out *left, bool validation)
{
    int64_t counts[IMAGE_PARTS] = {0}, kept = 0;
    bool named = has_validation(list);
    for (int64_t i = 0; i < list->count; i++) counts[part_of(list->names[i], named)]++;
    enum image_part wanted = !validation ? PART_TRAIN : counts[PART_VAL] ? PART_VAL : PART_TEST;
    if (!counts[PART_TRAIN] || !(counts[PART_VAL] || counts[PART_TEST])) return;
    for (int64_t i = 0; i < list->count; i++) {
        char *name = list->names[i];
        if (part_of(name, named) == wanted) {
            list->names[kept++] = name;
            continue;
        }
        left->parts += !token_list_part(name);
        if (left->part || token_list_part(name)) free(name);
        else left->part = name;
    }
    list->count = kept;
}

/* Describes the files that are read, by the first names, and the number of entries that are not. */
static void describe(struct image_list *list, const struct left_out *left)
{
    enum { NAMED = 4 };
    const struct {
        int64_t count;
        const char *what;
    } parts[] = {{left->others, "without .bin"},
                 {left->hidden, "hidden"},
                 {left->directories, "directories"},
                 {left->special, N_("neither files nor directories")}};
    char names[4 * 72] = "", unread[160] = "", name[64];
    size_t n = 0, files = 0;
    for (int64_t i = 0; i < list->count; i++) {
        if (token_list_part(list->names[i]) || files++ >= NAMED) continue;
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s%s", n ? ", " : "",
                              name_printable(name, sizeof name, list->names[i]),
                              image_place(list->names[i]).bytes ? "" : " (empty)");
    }
    list->chosen = xasprintf(_("using %zu file%s: %s%s"), files, files == 1 ? "" : "s", names,
                             files > NAMED ? ", ..." : "");
    if (left->parts) {
        char *longer =
            xasprintf(_("%s; skipped as another part: %s%s"), list->chosen,
                      name_printable(name, sizeof name, left->part), left->parts > 1 ? ", ..." : "");
        free(list->chosen);
        list->chosen = longer;
    }
    n = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (parts[i].count)
            n += (size_t)snprintf(unread + n, sizeof unread - n, "%s%lld %s", n ? ", " : "",
                                  (long long)parts[i].count, parts[i].what);
    if (n) list->unread = xstrdup(unread);
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int token_list_open(struct image_list *list, const struct data_options *o, struct error *err)
{
    struct stat st;
    struct left_out left;
    *list = (struct image_list){.tokens = true};
    int code = token_root(o->root, &st, err);
    if (code) return code;
    if (S_ISREG(st.st_mode)) {
        char *directory = path_dirname(o->root);
        code = add_file(list, directory, path_basename(o->root), st.st_size, err);
        free(directory);
        if (code) image_list_free(list);
        return code;
    }
    code = list_directory(list, &left, o, true, err);
    if (!code && !list->count) code = list_directory(list, &left, o, false, err);
    if (!code && !list->count) {
        code = error_set(err, EXIT_FAILED, "set data.root to a file or a directory of tokens, see TOKENS",
                         "has no token files that data.include and data.exclude leave");
        error_at(err, o->root, 0, 0);
    }
    if (code) image_list_free(list);
    else {
        qsort(list->names, (size_t)list->count, sizeof *list->names, by_bytes);
        if (!o->include || !o->include[0]) select_part(list, &left, o->validation);
        describe(list, &left);
        free(left.part);
    }
    return code;
}
