/* The token files under a root: see token_loader.h. */
#include "core/base/file.h"
#include "core/data/token_file.h"
#include "core/data/token_loader.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), k = strlen(ending);
    return n > k && strcmp(name + n - k, ending) == 0;
}

/* Adds a file, and its index. */
static void add_file(struct image_list *list, const char *directory, const char *name, int64_t bytes)
{
    struct stat st;
    char *index = token_file_index(name), *path = index ? path_join(directory, index) : NULL;
    image_list_add(list, xstrdup(name), (struct image_place){.bytes = bytes});
    if (index && stat(path, &st) == 0) image_list_add(list, index, (struct image_place){.bytes = st.st_size});
    else free(index);
    free(path);
}

/* Lists the files of a directory that match the patterns; bin: those whose names end in .bin. */
static int list_directory(struct image_list *list, const struct data_options *o, bool bin, struct error *err)
{
    DIR *dir = opendir(o->root);
    struct dirent *entry;
    struct stat st;
    bool all = !o->include || !o->include[0];
    if (!dir) {
        error_errno(err, EXIT_FAILED, "set data.root to token files", "cannot open this directory");
        return error_at(err, o->root, 0, 0);
    }
    while ((errno = 0, entry = readdir(dir)) != NULL) {
        const char *name = entry->d_name;
        bool wanted = name[0] != '.' && !ends_with(name, ".idx") && (!bin || ends_with(name, ".bin")) &&
                      (all || image_list_matches(o->include, name)) && !image_list_matches(o->exclude, name);
        if (wanted && fstatat(dirfd(dir), name, &st, 0) == 0 && S_ISREG(st.st_mode))
            add_file(list, o->root, name, st.st_size);
    }
    int code = errno ? error_errno(err, EXIT_FAILED, NULL, "cannot list this directory") : 0;
    closedir(dir);
    return code ? error_at(err, o->root, 0, 0), code : 0;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int token_list_open(struct image_list *list, const struct data_options *o, struct error *err)
{
    struct stat st;
    int code = 0;
    *list = (struct image_list){0};
    if (stat(o->root, &st) == 0 && S_ISREG(st.st_mode)) {
        char *directory = path_dirname(o->root);
        add_file(list, directory, path_basename(o->root), st.st_size);
        free(directory);
        return 0;
    }
    code = list_directory(list, o, true, err);
    if (!code && !list->count) code = list_directory(list, o, false, err);
    if (!code && !list->count) {
        code = error_set(err, EXIT_FAILED, "set data.root to a file or a directory of tokens, see TOKENS",
                         "has no token files that data.include and data.exclude leave");
        error_at(err, o->root, 0, 0);
    }
    if (code) image_list_free(list);
    else qsort(list->names, (size_t)list->count, sizeof *list->names, by_bytes);
    return code;
}
