/* The images below a root: see list.h. */
#include "core/data/list.h"
#include "core/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 32 };

static bool wanted(const char *name)
{
    static const char *const endings[] = {".jpg", ".jpeg", ".png"};
    size_t n = strlen(name);
    for (int i = 0; i < 3; i++) {
        size_t k = strlen(endings[i]);
        if (n > k && strcasecmp(name + n - k, endings[i]) == 0) return true;
    }
    return false;
}

static void add(struct image_list *list, char *name, int64_t bytes)
{
    size_t n = strlen(name) + 1;
    name = xrealloc(name, n + 8);
    for (int i = 0; i < 8; i++) name[n + (size_t)i] = (char)((uint64_t)bytes >> 8 * i);
    if ((list->count & (list->count - 1)) == 0)
        list->names =
            xrealloc(list->names, (size_t)(list->count ? 2 * list->count : 1) * sizeof *list->names);
    list->names[list->count++] = name;
}

/* A name that leads to nothing may be left out when it is no image's. All else would make another dataset of
 * this one. */
static int unknown(const char *path, const char *name, struct error *err)
{
    if ((errno == ENOENT || errno == ELOOP) && !wanted(name)) return 0;
    int code =
        error_errno(err, EXIT_FAILED, "mend or remove it: images that are left out change the training",
                    "cannot tell what it is");
    error_at(err, path, 0, 0);
    return code;
}

/* Symbolic links to directories are followed, so depth is bounded. */
static int walk(struct image_list *list, const char *root, const char *below, int depth, struct error *err)
{
    char *path = below[0] ? path_join(root, below) : xstrdup(root);
    DIR *dir = opendir(path);
    int code = 0;
    if (!dir) {
        code =
            error_errno(err, EXIT_FAILED, "set data.root to the directory of the images, or 'meopt fetch' it",
                        "cannot open the image directory");
        error_at(err, path, 0, 0);
    }
    free(path);
    struct dirent *entry;
    while (dir && !code && (errno = 0, entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.') continue;
        char *name = path_join(below, entry->d_name), *full = path_join(root, name);
        struct stat st = {0};
        if (stat(full, &st) != 0) code = unknown(full, entry->d_name, err);
        if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH) code = walk(list, root, name, depth + 1, err);
        if (S_ISREG(st.st_mode) && wanted(entry->d_name)) add(list, name, (int64_t)st.st_size);
        else free(name);
        free(full);
    }
    if (dir && !code && errno) {
        code = error_errno(err, EXIT_FAILED, "is its file system well?", "cannot list the image directory");
        path = below[0] ? path_join(root, below) : xstrdup(root);
        error_at(err, path, 0, 0);
        free(path);
    }
    if (dir) closedir(dir);
    return code;
}

static int by_bytes(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool in_train2014(const char *name)
{
    return strncmp(name, "train2014/", 10) == 0 || strstr(name, "/train2014/") != NULL;
}

int image_list_read(struct image_list *list, const char *root, struct error *err)
{
    *list = (struct image_list){0};
    int code = walk(list, root, "", 0, err);
    if (!code && list->count == 0) {
        code = error_set(err, EXIT_FAILED,
                         "set data.root to a directory with images, for COCO2014 'meopt fetch coco2014'",
                         "holds no .jpg, .jpeg or .png file");
        error_at(err, root, 0, 0);
    }
    if (code) {
        image_list_free(list);
        return code;
    }
    int64_t train = 0;
    for (int64_t i = 0; i < list->count; i++) train += in_train2014(list->names[i]);
    if (train > 0) {
        int64_t kept = 0;
        for (int64_t i = 0; i < list->count; i++) {
            if (in_train2014(list->names[i])) list->names[kept++] = list->names[i];
            else free(list->names[i]);
        }
        list->count = kept;
    }
    qsort(list->names, (size_t)list->count, sizeof *list->names, by_bytes);
    return 0;
}

uint32_t image_list_hash(const struct image_list *list)
{
    uint32_t crc = 0;
    for (int64_t i = 0; i < list->count; i++) crc = crc32c(crc, list->names[i], strlen(list->names[i]) + 9);
    return crc;
}

void image_list_free(struct image_list *list)
{
    for (int64_t i = 0; i < list->count; i++) free(list->names[i]);
    free(list->names);
    *list = (struct image_list){0};
}
