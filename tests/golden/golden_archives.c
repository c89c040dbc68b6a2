/* Hostile and unusual archives: each case of archives/index.json has its expected result, through
 * fetch_archive. */
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "fetch/fetch.h"
#include "tests/golden/golden.h"

#include <ftw.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

static int found_files, found_wrong;
static json_t *expected_files, *may_exist;
static const char *root;
static int64_t found_bytes;

static void sha256_hex(const char *path, char out[65])
{
    char *data = NULL;
    size_t bytes = 0;
    unsigned char digest[32];
    unsigned n = 0;
    assert_int_equal(file_read(path, 1u << 30, &data, &bytes, NULL), 0);
    EVP_Digest(data, bytes, digest, &n, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++) sprintf(out + 2 * i, "%02x", digest[i]);
    free(data);
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    const char *name = path + strlen(root);
    while (*name == '/') name++;
    if (type == FTW_D || !*name) return 0;
    if (strcmp(path_basename(name), ".meopt-complete") == 0) return 0;
    found_files++;
    found_bytes += st->st_size;
    char hex[65];
    json_t *file = json_object_get(expected_files, name);
    bool allowed = false;
    for (size_t i = 0; i < json_array_size(may_exist); i++)
        allowed |= strcmp(json_string_value(json_array_get(may_exist, i)), name) == 0;
    if (!file && allowed) {
        found_files--;
        return 0;
    }
    if (!S_ISREG(st->st_mode) || (st->st_mode & 07000) || !file) {
        print_error("  not expected: %s\n", name);
        found_wrong++;
        return 0;
    }
    sha256_hex(path, hex);
    if (json_integer_value(json_object_get(file, "size")) != st->st_size ||
        strcmp(hex, json_string_value(json_object_get(file, "sha256"))) != 0) {
        print_error("  other bytes: %s\n", name);
        found_wrong++;
    }
    return 0;
}

static int entries(const char *directory)
{
    int n = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static bool raw_controls(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) return true;
    return false;
}

static int run_case(const char *directory, const json_t *c, const char *scratch)
{
    const char *name = json_string_value(json_object_get(c, "file")),
               *expect = json_string_value(json_object_get(c, "expect"));
    char *outer = path_join(scratch, "case"), *inner = path_join(outer, "a"), *dest = path_join(inner, "b");
    assert_int_equal(file_make_dirs(dest, NULL), 0);
    char *path = path_join(directory, name), *whole = realpath(path, NULL),
         *url = xasprintf("file://%s", whole);
    char file_name[] = "archive.bin";
    struct source source = {.name = file_name,
                            .file = file_name,
                            .urls = &url,
                            .url_count = 1,
                            .size = -1,
                            .unpacked_size = -1,
                            .entries = -1};
    struct fetch_options o = {
        .dest = dest, .connections = 1, .limit = json_integer_value(json_object_get(c, "limit_bytes"))};
    struct fetch_result r;
    struct error err = {0};
    int code = fetch_archive(&source, &o, &r, &err), wrong = 0;
    found_files = found_wrong = 0;
    found_bytes = 0;
    root = dest;
    expected_files = json_object_get(c, "files");
    may_exist = json_object_get(c, "may_exist");
    json_t *count = json_object_get(c, "count");
    if (code == 0 && !count) {
        nftw(dest, visit, 16, FTW_PHYS);
        wrong += found_wrong;
        if (found_files != (int)json_object_size(expected_files)) wrong++;
    }
    if (count && (code != 0 || r.files != json_integer_value(count))) wrong++;
    if (strcmp(expect, "extract") == 0 && code != 0) wrong++;
    if (strncmp(expect, "refuse", 6) == 0 && code == 0) wrong++;
    if (code != 0) { /* a refusal leaves nothing: neither inside the destination nor next to it */
        if (code != EXIT_INTEGRITY || !err.what[0] || raw_controls(err.what) || raw_controls(err.hint))
            wrong++;
        if (entries(dest) != 0) wrong++;
    }
    if (entries(inner) != 1 || entries(outer) != 1) wrong++;
    for (size_t i = 0; i < json_array_size(json_object_get(c, "must_not_exist")); i++) {
        char *bad =
            path_join(dest, json_string_value(json_array_get(json_object_get(c, "must_not_exist"), i)));
        struct stat st;
        if (lstat(bad, &st) == 0) wrong++;
        free(bad);
    }
    if (wrong) print_error("%s (%s): exit %d %s\n", name, expect, code, err.what);
    fetch_result_free(&r);
    assert_int_equal(file_remove_tree(outer, NULL), 0);
    free(whole);
    free(url);
    free(path);
    free(outer);
    free(inner);
    free(dest);
    return wrong != 0;
}

static void archives(void **state)
{
    char *directory = golden_path("archives", NULL, NULL), *index = path_join(directory, "index.json");
    char scratch[] = "/tmp/meopt-archives-XXXXXX";
    assert_non_null(mkdtemp(scratch));
    json_t *all = json_load_file(index, 0, NULL);
    assert_non_null(all);
    json_t *cases = json_object_get(all, "cases");
    int wrong = 0;
    for (size_t i = 0; i < json_array_size(cases); i++)
        wrong += run_case(directory, json_array_get(cases, i), scratch);
    print_message("%zu archives, %d not as expected\n", json_array_size(cases), wrong);
    assert_true(json_array_size(cases) > 0);
    assert_int_equal(wrong, 0);
    json_decref(all);
    rmdir(scratch);
    free(index);
    free(directory);
}

int main(void)
{
    log_level = LOG_QUIET;
    const struct CMUnitTest tests[] = {cmocka_unit_test(archives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
