/* A list of images and labels from outside (CSV), for five images. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/data/labels_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const char *const names[] = {"a.jpg", "b/c.png", "b/d.jpg", "e.webp", "f, g.jpg"};
    enum { IMAGES = sizeof names / sizeof *names };
    char path[64];
    struct error err;
    struct image_list list = {0};
    int fd = memfd_create("list", MFD_CLOEXEC);
    if (fd < 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    struct data_options o = {.root = "images", .label_file = path, .labels = true};
    for (int i = 0; i < IMAGES; i++) image_list_add(&list, xstrdup(names[i]), (struct image_place){0});
    list.labels = xcalloc(IMAGES, sizeof *list.labels);
    if (file_write_all(fd, bytes, size, path, &err) == 0 && label_from_file(&list, &o, &err) == 0)
        for (int64_t i = 0; i < list.count; i++)
            if (list.labels[i] < 0 || list.labels[i] >= list.class_count) abort();
    image_list_free(&list);
    close(fd);
    return 0;
}
