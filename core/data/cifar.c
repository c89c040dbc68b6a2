/* The archives of CIFAR-10 and CIFAR-100: see cifar.h. */
#include "core/data/cifar.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/data/tar.h"
#include "core/data/unpacked.h"
#include "core/weights/pickle.h"

#include <stdlib.h>
#include <string.h>

/* 50000 images of CIFAR-100 are 154 MB. */
static const size_t FILE_BYTES = (size_t)512 << 20;
enum { NAMES_BYTES = 1 << 20 };

/* ---- Pickles ---- */

static const char HINT[] = "unpack the archive of https://www.cs.toronto.edu/~kriz/cifar.html again";

/* Creates an object of whatever Python would call; its class and arguments are examined afterwards. */
static int call(struct pickle *p, const struct value *callable, const struct value *args,
                struct value *result, struct error *err)
{
    return pickle_opaque(p, value_class(callable), args, result, err);
}

static int persistent_id(struct pickle *p, const struct value *id, struct value *result, struct error *err)
{
    (void)p;
    (void)id;
    (void)result;
    return error_set(err, EXIT_INTEGRITY, HINT, "pickle: unexpected persistent id");
}

static bool is_name(const struct value *v, const char *name)
{
    return (v->kind == VALUE_TEXT || v->kind == VALUE_BYTES) && v->length == strlen(name) &&
           memcmp(v->u.text, name, v->length) == 0;
}

/* Parses a pickled dict. */
static int parse_dict(struct pickle *p, const uint8_t *bytes, size_t size, struct value *dict,
                      struct error *err)
{
    size_t used;
    *p = (struct pickle){.call = call, .persistent_id = persistent_id, .max_bytes = FILE_BYTES};
    int code = pickle_parse(p, bytes, size, &used, dict, err);
    if (code == EXIT_INTEGRITY) { /* the parser's own hints are about checkpoints */
        struct error cause = *err;
        error_set(err, code, HINT, "%s", cause.what);
    }
    if (!code && dict->kind != VALUE_DICT)
        code =
            error_set(err, EXIT_INTEGRITY, HINT, "pickle: expected a dict, found %s", value_kind_name(dict));
    return code;
}

/* Finds the value of a key, which is of `kind`. */
static int find_key(const struct value *dict, const char *key, enum value_kind kind, struct value *found,
                    struct error *err)
{
    const struct value *is = NULL;
    const struct items *items = dict->u.items;
    for (uint32_t i = 0; i + 1 < items->count; i += 2)
        if (is_name(&items->at[i], key)) is = &items->at[i + 1];
    if (!is) return error_set(err, EXIT_INTEGRITY, HINT, "pickle: the dict has no key %s", key);
    *found = *is;
    if (is->kind == kind) return 0;
    return error_set(err, EXIT_INTEGRITY, HINT, "pickle: %s is %s, expected %s", key, value_kind_name(is),
                     value_kind_name(&(struct value){.kind = kind}));
}

/* A numpy array is either _reconstruct(...) with a state (version, shape, dtype, fortran order, bytes), or
 * _frombuffer(bytes, dtype, shape, order). */
static bool array_parts(const struct value *v, struct value parts[3])
{
    const struct class_name *class = v->kind == VALUE_OPAQUE ? value_class(v) : NULL;
    if (!class) return false;
    const struct opaque *o = v->u.opaque;
    bool state = class->name_length == 12 && memcmp(class->name, "_reconstruct", 12) == 0,
         buffer = class->name_length == 11 && memcmp(class->name, "_frombuffer", 11) == 0;
    const struct value *tuple = state ? &o->state : &o->args;
    static const struct {
        uint32_t count, order[3];
    } layouts[] = {{4, {0, 1, 2}}, {5, {4, 2, 1}}}; /* positions of bytes, dtype, shape */
    if ((!state && !buffer) || tuple->kind != VALUE_TUPLE || tuple->u.items->count != layouts[state].count)
        return false;
    for (int i = 0; i < 3; i++) parts[i] = tuple->u.items->at[layouts[state].order[i]];
    /* in the order of rows */
    const struct value *order = &tuple->u.items->at[3];
    return state ? order->kind == VALUE_BOOL && !order->u.integer : value_is_text(order, "C");
}

static bool is_bytes_dtype(const struct value *v)
{
    const struct class_name *class = v->kind == VALUE_OPAQUE ? value_class(v) : NULL;
    if (!class || !class_is(class, "numpy", "dtype")) return false;
    const struct value *args = &v->u.opaque->args;
    return args->kind == VALUE_TUPLE && args->u.items->count >= 1 &&
           (is_name(args->u.items->at, "u1") || is_name(args->u.items->at, "|u1") ||
            is_name(args->u.items->at, "uint8"));
}

/* Finds the pixels of the array: (count, 3072) bytes. */
static int find_pixels(const struct value *array, const uint8_t *file, int64_t *count, int64_t *offset,
                       struct error *err)
{
    struct value parts[3] = {{0}};
    if (!array_parts(array, parts) || !is_bytes_dtype(&parts[1]))
        return error_set(err, EXIT_INTEGRITY, HINT, "pickle: data is no numpy array of uint8 in C order");
    const struct value *shape = &parts[2], *bytes = &parts[0];
    const struct items *sides = shape->kind == VALUE_TUPLE ? shape->u.items : NULL;
    if (!sides || sides->count != 2 || sides->at[0].kind != VALUE_INT || sides->at[1].kind != VALUE_INT ||
        sides->at[1].u.integer != CIFAR_PIXELS || sides->at[0].u.integer < 0)
        return error_set(err, EXIT_INTEGRITY, HINT, "pickle: data has another shape than (images, %d)",
                         CIFAR_PIXELS);
    if (bytes->kind != VALUE_TEXT && bytes->kind != VALUE_BYTES)
        return error_set(err, EXIT_INTEGRITY, "write it with pickle protocol 4",
                         "pickle: the bytes of data are %s, as Python 3 writes with protocol 2",
                         value_kind_name(bytes));
    *count = sides->at[0].u.integer;
    if (*count > INT32_MAX || *count * CIFAR_PIXELS != (int64_t)bytes->length)
        return error_set(err, EXIT_INTEGRITY, HINT, "pickle: data has %u bytes, expected %lld x %d",
                         bytes->length, (long long)*count, CIFAR_PIXELS);
    *offset = (const uint8_t *)bytes->u.text - file;
    return 0;
}

static int out_of_range(int64_t label, int64_t image, int32_t class_count, struct error *err)
{
    return error_set(err, EXIT_INTEGRITY, HINT, "image %lld has label %lld, expected 0 to %d",
                     (long long)image, (long long)label, class_count - 1);
}

int cifar_parse_pickle(struct cifar_file *file, const uint8_t *bytes, size_t size, const char *key,
                       int32_t class_count, struct error *err)
{
    struct pickle p;
    struct value dict, array, labels;
    *file = (struct cifar_file){.stride = CIFAR_PIXELS};
    int code = parse_dict(&p, bytes, size, &dict, err);
    if (!code) code = find_key(&dict, "data", VALUE_OPAQUE, &array, err);
    if (!code) code = find_pixels(&array, bytes, &file->count, &file->offset, err);
    if (!code) code = find_key(&dict, key, VALUE_LIST, &labels, err);
    if (!code && labels.u.items->count != file->count)
        code = error_set(err, EXIT_INTEGRITY, HINT, "pickle: %u %s for %lld images", labels.u.items->count,
                         key, (long long)file->count);
    if (!code) file->labels = xcalloc((size_t)file->count, sizeof *file->labels);
    for (int64_t i = 0; i < file->count && !code; i++) {
        const struct value *label = &labels.u.items->at[i];
        if (label->kind != VALUE_INT)
            code = error_set(err, EXIT_INTEGRITY, HINT, "pickle: label %lld is %s, expected an int",
                             (long long)i, value_kind_name(label));
        else if (label->u.integer < 0 || label->u.integer >= class_count)
            code = out_of_range(label->u.integer, i, class_count, err);
        else file->labels[i] = (int32_t)label->u.integer;
    }
    pickle_free(&p);
    return code;
}

/* ---- Binary files ---- */

int cifar_parse_binary(struct cifar_file *file, const uint8_t *bytes, size_t size, int labels, int which,
                       int32_t class_count, struct error *err)
{
    size_t stride = (size_t)labels + CIFAR_PIXELS;
    *file =
        (struct cifar_file){.count = (int64_t)(size / stride), .offset = labels, .stride = (int64_t)stride};
    if (size % stride || !size)
        return error_set(err, EXIT_INTEGRITY, HINT,
                         "is truncated: %zu bytes, expected a multiple of %zu (%d of labels, %d of pixels)",
                         size, stride, labels, CIFAR_PIXELS);
    file->labels = xcalloc((size_t)file->count, sizeof *file->labels);
    for (int64_t i = 0; i < file->count; i++) {
        file->labels[i] = bytes[(size_t)i * stride + (size_t)which];
        if (file->labels[i] >= class_count) return out_of_range(file->labels[i], i, class_count, err);
    }
    return 0;
}

/* ---- Names of the classes ---- */

static void add_name(char ***names, int32_t *count, const char *name, size_t length)
{
    *names = xrealloc(*names, (size_t)(*count + 1) * sizeof **names);
    (*names)[(*count)++] = xasprintf("%.*s", (int)length, name);
}

static int names_of_pickle(char ***names, int32_t *count, const uint8_t *bytes, size_t size, const char *key,
                           struct error *err)
{
    struct pickle p;
    struct value dict, list;
    int code = parse_dict(&p, bytes, size, &dict, err);
    if (!code) code = find_key(&dict, key, VALUE_LIST, &list, err);
    for (uint32_t i = 0; !code && i < list.u.items->count; i++) {
        const struct value *name = &list.u.items->at[i];
        if (name->kind == VALUE_TEXT || name->kind == VALUE_BYTES)
            add_name(names, count, name->u.text, name->length);
        else
            code = error_set(err, EXIT_INTEGRITY, HINT, "pickle: name %u is %s, expected a string", i,
                             value_kind_name(name));
    }
    pickle_free(&p);
    return code;
}

int cifar_parse_names(char ***names, int32_t *count, const uint8_t *bytes, size_t size, const char *key,
                      struct error *err)
{
    *names = NULL;
    *count = 0;
    int code = key ? names_of_pickle(names, count, bytes, size, key, err) : 0;
    const char *at = (const char *)bytes, *end = at + size;
    while (!key && at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at)), *next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        while (stop > at && (stop[-1] == '\r' || stop[-1] == ' ')) stop--;
        if (stop > at) add_name(names, count, at, (size_t)(stop - at));
        at = next;
    }
    if (!code && *count < 2)
        code = error_set(err, EXIT_INTEGRITY, HINT, "has %d names of classes, expected at least 2", *count);
    return code;
}

/* ---- Files ---- */

/* fine and coarse: file of the names (binary), or key of names and of labels (python). */
struct label_form {
    const char *names, *labels;
    int which; /* of the label bytes */
};
static const struct form {
    const char *name, *archive, *directory, *marks[2]; /* files by which it is recognised */
    const char *train[6], *test[2];
    bool pickled;
    const char *names_file; /* of the python form */
    int labels;             /* bytes of labels before an image */
    struct label_form fine, coarse;
} forms[] = {
    {"CIFAR-10 (binary)",
     "cifar-10-binary",
     "cifar-10-batches-bin",
     {"data_batch_1.bin", "batches.meta.txt"},
     {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
     {"test_batch.bin"},
     .labels = 1,
     .fine = {"batches.meta.txt", NULL, 0}},
    {"CIFAR-10 (python)",
     "cifar-10-python",
     "cifar-10-batches-py",
     {"data_batch_1", "batches.meta"},
     {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"},
     {"test_batch"},
     .pickled = true,
     .names_file = "batches.meta",
     .fine = {"label_names", "labels", 0}},
    {"CIFAR-100 (binary)",
     "cifar-100-binary",
     "cifar-100-binary",
     {"train.bin", "fine_label_names.txt"},
     {"train.bin"},
     {"test.bin"},
     .labels = 2,
     .fine = {"fine_label_names.txt", NULL, 1},
     .coarse = {"coarse_label_names.txt", NULL, 0}},
    {"CIFAR-100 (python)",
     "cifar-100-python",
     "cifar-100-python",
     {"train", "meta"},
     {"train"},
     {"test"},
     .pickled = true,
     .names_file = "meta",
     .fine = {"fine_label_names", "fine_labels", 0},
     .coarse = {"coarse_label_names", "coarse_labels", 0}},
};

/* The files of a form: of a directory, or members of an archive. */
enum { MEMBERS = 16 };
struct source {
    const char *root;
    char *directory;       /* below the root, or "": cifar-10-batches-py, ARCHIVE/cifar-10-batches-py */
    char *archive;         /* path of the archive; NULL: a directory */
    size_t archive_length; /* of its name in `directory` */
    const struct form *form;
    struct member {
        char *name;
        int64_t offset, bytes;
    } members[MEMBERS];
    int member_count;
};

static void close_source(struct source *s)
{
    for (int i = 0; i < s->member_count; i++) free(s->members[i].name);
    free(s->directory);
    free(s->archive);
    *s = (struct source){0};
}

static void add_member(void *context, const char *name, int64_t offset, int64_t bytes)
{
    struct source *s = context;
    size_t length = strlen(s->form->directory);
    while (strncmp(name, "./", 2) == 0) name += 2;
    if (strncmp(name, s->form->directory, length) != 0 || name[length] != '/' || s->member_count == MEMBERS)
        return;
    s->members[s->member_count++] = (struct member){xstrdup(name + length + 1), offset, bytes};
}

static const struct member *find_member(const struct source *s, const char *file)
{
    for (int i = 0; i < s->member_count; i++)
        if (strcmp(s->members[i].name, file) == 0) return &s->members[i];
    return NULL;
}

/* Returns the bytes of an archive up to the end of its last file. */
static size_t source_bytes(const struct source *s)
{
    int64_t end = 0;
    for (int i = 0; i < s->member_count; i++)
        if (s->members[i].offset + s->members[i].bytes > end)
            end = s->members[i].offset + s->members[i].bytes;
    return (size_t)end;
}

static bool has_file(const char *directory, const char *name)
{
    struct stat st;
    char *path = path_join(directory, name);
    bool there = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    free(path);
    return there;
}

static char *directory_path(const struct source *s)
{
    return s->directory[0] ? path_join(s->root, s->directory) : xstrdup(s->root);
}

/* Finds the form at the root, in its directory below it, or in an archive; source->form NULL: none. */
static int find_source(struct source *s, const char *root, struct error *err)
{
    static const char *const endings[] = {".tar.gz", ".tar"};
    enum { FORMS = sizeof forms / sizeof *forms, ENDINGS = sizeof endings / sizeof *endings };
    for (size_t k = 0; k < FORMS * 2; k++) {
        const struct form *form = &forms[k / 2];
        *s = (struct source){.root = root, .directory = xstrdup(k % 2 ? form->directory : ""), .form = form};
        char *path = directory_path(s);
        bool there = has_file(path, form->marks[0]) && has_file(path, form->marks[1]);
        free(path);
        if (there) return 0;
        close_source(s);
    }
    for (size_t k = 0; k < FORMS * ENDINGS; k++) {
        const struct form *form = &forms[k / ENDINGS];
        char *name = xasprintf("%s%s", form->archive, endings[k % ENDINGS]);
        if (has_file(root, name)) {
            *s = (struct source){.root = root,
                                 .directory = path_join(name, form->directory),
                                 .archive = path_join(root, name),
                                 .archive_length = strlen(name),
                                 .form = form};
            free(name);
            return tar_list(s->archive, add_member, s, err);
        }
        free(name);
    }
    return 0;
}

/* Reads a file, malloc'ed; *offset: its place in the archive. */
static int read_file(const struct source *s, const char *file, size_t most, char **bytes, size_t *size,
                     int64_t *offset, struct error *err)
{
    char *directory = directory_path(s), *path = path_join(directory, file);
    const struct member *m = find_member(s, file);
    int code;
    *offset = 0;
    if (!s->archive) code = file_read(path, most, bytes, size, err);
    else if (!m || (size_t)m->bytes > most) {
        code = error_set(err, EXIT_INTEGRITY, "download it again",
                         m ? N_("%s/%s is larger than the %zu bytes expected at most")
                           : N_("the archive has no file %s/%s"),
                         s->form->directory, file, most);
        error_at(err, s->archive, 0, 0);
    } else {
        *offset = m->offset;
        *size = (size_t)m->bytes;
        code = tar_read(s->archive, m->offset, m->bytes, bytes, err);
        if (code) error_at(err, path, 0, 0);
    }
    free(path);
    free(directory);
    return code;
}

/* Names a file of the source as the object of an error of its content. */
static int at_file(const struct source *s, const char *file, int code, struct error *err)
{
    char *directory = directory_path(s), *path = path_join(directory, file);
    if (code) error_at(err, path, 0, 0);
    free(path);
    free(directory);
    return code;
}

static int read_names(struct image_list *list, const struct source *s, const struct label_form *labels,
                      struct error *err)
{
    const char *file = s->form->pickled ? s->form->names_file : labels->names;
    char *bytes = NULL;
    size_t size;
    int64_t offset;
    int code = read_file(s, file, NAMES_BYTES, &bytes, &size, &offset, err);
    if (!code)
        code = at_file(s, file,
                       cifar_parse_names(&list->classes, &list->class_count, (const uint8_t *)bytes, size,
                                         s->form->pickled ? labels->names : NULL, err),
                       err);
    free(bytes);
    return code;
}

/* Adds the images of one file. */
static int add_file(struct image_list *list, const struct source *s, const struct label_form *labels,
                    const char *file, struct error *err)
{
    char *name = path_join(s->directory, file), *bytes = NULL;
    struct cifar_file found = {0};
    size_t size;
    int64_t offset;
    int code = read_file(s, file, FILE_BYTES, &bytes, &size, &offset, err);
    if (!code)
        code = at_file(s, file,
                       s->form->pickled
                           ? cifar_parse_pickle(&found, (const uint8_t *)bytes, size, labels->labels,
                                                list->class_count, err)
                           : cifar_parse_binary(&found, (const uint8_t *)bytes, size, s->form->labels,
                                                labels->which, list->class_count, err),
                       err);
    size_t length = s->archive ? s->archive_length : strlen(name);
    for (int64_t i = 0; i < found.count && !code; i++)
        image_list_add(list, xasprintf("%s/%06lld", name, (long long)i),
                       (struct image_place){.offset = offset + found.offset + i * found.stride,
                                            .bytes = CIFAR_PIXELS,
                                            .archive_length = (int64_t)length,
                                            .label = found.labels[i],
                                            .planar = CIFAR_SIDE});
    free(found.labels);
    free(bytes);
    free(name);
    return code;
}

static int list_source(struct image_list *list, const struct image_search *search, const struct source *s,
                       struct error *err)
{
    const struct label_form *labels = search->coarse ? &s->form->coarse : &s->form->fine;
    if (!labels->names) {
        error_set(err, EXIT_CONFIG, "leave data.labels out",
                  "data.labels coarse requires CIFAR-100, found %s", s->form->name);
        return error_at(err, search->root, 0, 0);
    }
    int code = read_names(list, s, labels, err);
    const char *const *files = search->validation ? s->form->test : s->form->train;
    for (; *files && !code; files++) code = add_file(list, s, labels, *files, err);
    char *memory =
        s->archive && unpacked_name(s->archive)
            ? xasprintf(_(", decompressed to %zu MB of memory per host"), source_bytes(s) / 1000000)
            : xstrdup("");
    if (!code)
        list->chosen = xasprintf(_("%s: using %lld images %s%s"), s->form->name, (long long)list->count,
                                 search->validation ? _("for test") : _("for training"), memory);
    free(memory);
    return code;
}

int cifar_list(struct image_list *list, const struct image_search *search, struct error *err)
{
    struct source source = {0};
    int code = find_source(&source, search->root, err);
    if (!code && source.form) code = list_source(list, search, &source, err);
    close_source(&source);
    return code;
}

void cifar_decompress(const char *root)
{
    struct source source = {0};
    struct error ignored; /* training reports it */
    (void)find_source(&source, root, &ignored);
    close_source(&source);
}
