/* The list of images is complete or an error: an entry that cannot be examined is never omitted. This
 * program defines stat and readdir in front of the C library's. */
#include "core/base/file.h"
#include "core/base/path.h"
#include "tests/unit/list_images.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static int stats_left = -1, names_left = -1; /* that pass before one fails; -1: none fails */
static char directory[64];

int stat(const char *restrict path, struct stat *restrict st)
{
    if (directory[0] && strncmp(path, directory, strlen(directory)) == 0 && stats_left-- == 0) {
        errno = EIO;
        return -1;
    }
    return fstatat(AT_FDCWD, path, st, 0);
}
int __xstat(int version, const char *path, struct stat *st);
int __xstat(int version, const char *path, struct stat *st) /* stat() before glibc 2.33 */
{
    return (void)version, stat(path, st);
}

struct dirent *readdir(DIR *dir)
{
    static struct dirent *(*real)(DIR *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    if (names_left-- == 0) {
        errno = ESTALE;
        return NULL;
    }
    return real(dir);
}

static void touch(const char *name)
{
    char *path = path_join(directory, name);
    assert_int_equal(file_write_atomic(path, name, strlen(name), NULL), 0);
    free(path);
}

static int setup(void **state)
{
    stats_left = names_left = -1;
    strcpy(directory, "/tmp/meopt-list-XXXXXX");
    if (!mkdtemp(directory)) return -1;
    char *below = path_join(directory, "below");
    assert_int_equal(mkdir(below, 0777), 0);
    free(below);
    touch("a.jpg");
    touch("below/b.jpg");
    touch("c.png");
    touch("notes.txt");
    return 0;
}

static int teardown(void **state)
{
    stats_left = names_left = -1;
    return file_remove_tree(directory, NULL);
}

static void a_name_that_cannot_be_looked_at_is_an_error(void **state)
{
    struct image_list list;
    struct error err = {0};
    for (int k = 0; k < 5; k++) { /* three images, a directory, a text */
        stats_left = k;
        assert_int_equal(list_images(&list, directory, NULL, NULL, &err), EXIT_FAILED);
        assert_non_null(strstr(err.what, strerror(EIO)));
        assert_memory_equal(err.file, directory, strlen(directory));
    }
    stats_left = -1;
    assert_int_equal(list_images(&list, directory, NULL, NULL, &err), 0);
    assert_int_equal(list.count, 3);
    image_list_free(&list);
}

static void a_directory_that_cannot_be_read_to_its_end_is_an_error(void **state)
{
    struct image_list list;
    struct error err = {0};
    for (int k = 0; k < 9; k++) {
        names_left = k;
        assert_int_equal(list_images(&list, directory, NULL, NULL, &err), EXIT_FAILED);
        assert_non_null(strstr(err.what, strerror(ESTALE)));
    }
}

static void a_link_to_nothing_counts_where_it_is_an_image(void **state)
{
    struct image_list list;
    struct error err = {0};
    char *text = path_join(directory, "away.txt"), *image = path_join(directory, "away.jpg");
    assert_int_equal(symlink("nowhere", text), 0);
    assert_int_equal(list_images(&list, directory, NULL, NULL, &err), 0);
    image_list_free(&list);
    assert_int_equal(symlink("nowhere", image), 0);
    assert_int_equal(list_images(&list, directory, NULL, NULL, &err), EXIT_FAILED);
    assert_string_equal(err.file, image);
    free(image);
    free(text);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {TEST(a_name_that_cannot_be_looked_at_is_an_error),
                                       TEST(a_directory_that_cannot_be_read_to_its_end_is_an_error),
                                       TEST(a_link_to_nothing_counts_where_it_is_an_image)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
