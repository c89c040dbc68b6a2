/* Labels from archives in webdataset's layout, KEY.jpg and KEY.cls: see labels.h. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/retry.h"
#include "core/data/labels_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct image_sidecar *)a)->key, ((const struct image_sidecar *)b)->key);
}

/* Returns the key of an image as webdataset has it, malloc'ed: its name up to the first dot of its last
 * component. */
static char *image_key(const char *name)
{
    const char *last = path_basename(name);
    return xasprintf("%.*s", (int)((size_t)(last - name) + strcspn(last, ".")), name);
}

/* Reads the number in a .cls member of the open archive. */
static int read_sidecar(struct image_sidecar *s, int fd, struct error *err)
{
    char text[32] = "";
    ssize_t n = retry_read(fd, text, sizeof text - 1, s->offset);
    if (n < 0) return error_errno(err, EXIT_FAILED, NULL, "cannot read %s.cls", s->key);
    text[n < s->bytes ? n : s->bytes < (int64_t)sizeof text ? s->bytes : 0] = 0;
    size_t blank = strspn(text, " \t\r\n");
    text[blank + strcspn(text + blank, " \t\r\n")] = 0;
    s->label = label_number(text + blank);
    if (s->label >= 0) return 0;
    return error_set(err, EXIT_FAILED, "write the number of the class as text",
                     "%s.cls at byte %lld: label '%s', expected 0 to %d", s->key, (long long)s->offset,
                     text + blank, CLASSES_MAX - 1);
}

/* Reads the numbers of all .cls members, archive by archive. */
static int read_sidecars(struct image_list *list, const char *root, struct error *err)
{
    char *path = NULL;
    int fd = -1, code = 0;
    size_t length = 0;
    for (int64_t i = 0; i < list->sidecar_count && !code; i++) {
        struct image_sidecar *s = &list->sidecars[i];
        if (!path || length != s->archive_length || strncmp(path + strlen(root) + 1, s->key, length) != 0) {
            if (fd >= 0) close(fd);
            free(path);
            length = s->archive_length;
            path = xasprintf("%s/%.*s", root, (int)length, s->key);
            fd = -1;
            code = file_open(path, &fd, NULL, err);
        }
        if (!code) code = read_sidecar(s, fd, err);
        if (!code && i && strcmp(s[-1].key, s->key) == 0)
            code = error_set(err, EXIT_FAILED, "write the archive again", "%s.cls is there twice", s->key);
        if (code) error_at(err, path, 0, 0);
    }
    if (fd >= 0) close(fd);
    free(path);
    return code;
}

/* Labels the images of archives by their .cls members: each has one, and each belongs to one, unless patterns
 * left some out. */
int label_sidecars(struct image_list *list, const struct data_options *o, struct error *err)
{
    qsort(list->sidecars, (size_t)list->sidecar_count, sizeof *list->sidecars, by_key);
    uint8_t *used = xcalloc((size_t)list->sidecar_count, 1);
    int code = read_sidecars(list, o->root, err);
    for (int64_t i = 0; i < list->count && !code; i++) {
        struct image_sidecar key = {.key = image_key(list->names[i])}, *found;
        found = bsearch(&key, list->sidecars, (size_t)list->sidecar_count, sizeof key, by_key);
        if (found) {
            used[found - list->sidecars] = 1;
            list->labels[i] = found->label;
        } else
            code = error_set(err, EXIT_FAILED, "add it, or leave the image out with data.exclude",
                             "%s has no label: expected %s.cls", list->names[i], key.key);
        free(key.key);
    }
    bool all = !(o->include && o->include[0]) && !(o->exclude && o->exclude[0]) && !list->chosen;
    for (int64_t i = 0; i < list->sidecar_count && !code && all; i++) {
        const char *key = list->sidecars[i].key;
        if (!used[i])
            code = error_set(err, EXIT_FAILED, "add it as .jpg, .jpeg, .png or .webp, or remove the label",
                             "%s.cls belongs to no image", key);
    }
    free(used);
    if (code) return code;
    label_add_numbers(list);
    list->classes_from = xasprintf(_("%d classes, the numbers in .cls members"), list->class_count);
    return 0;
}
