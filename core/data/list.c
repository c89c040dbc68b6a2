/* The images under a root: see list.h. */
#include "core/data/list.h"
#include "core/base/crc32c.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/log.h"
#include "core/data/cifar.h"
#include "core/data/data.h"
#include "core/data/tar.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Patterns ---- */

static bool ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), k = strlen(ending);
    return n > k && strcasecmp(name + n - k, ending) == 0;
}

bool image_name(const char *name)
{
    return ends_with(name, ".jpg") || ends_with(name, ".jpeg") || ends_with(name, ".png") ||
           ends_with(name, ".webp");
}

/* Matches one pattern, [p, end). fnmatch would depend on the locale. */
static bool matches_one(const char *p, const char *end, const char *name)
{
    const char *star = NULL, *mark = NULL;
    for (;;) {
        if (p == end && (*name == 0 || *name == '/')) return true;
        if (p < end && *p == '*') {
            star = ++p;
            mark = name;
        } else if (p < end && *name && (*p == '?' || *p == *name)) {
            p++;
            name++;
        } else {
            if (!star || !*mark) return false;
            p = star;
            name = ++mark;
        }
    }
}

bool image_list_matches(const char *patterns, const char *name)
{
    while (patterns && *patterns) {
        const char *p = patterns, *comma = strchrnul(p, ','), *end = comma;
        while (p < end && *p == ' ') p++;
        while (end > p && (end[-1] == ' ' || end[-1] == '/')) end--;
        if (p < end && matches_one(p, end, name)) return true;
        patterns = *comma ? comma + 1 : comma;
    }
    return false;
}

/* ---- Directories ---- */

enum { ENDINGS = 12, ENDING_BYTES = 8, IMAGE_BYTES = 256 << 20 };

struct walk {
    struct image_list *list;
    const char *root, *include, *exclude;
    int64_t all; /* all images, also those that the patterns exclude */
    struct {
        char name[ENDING_BYTES + 1];
        int64_t count;
    } unread[ENDINGS]; /* the last entry counts all further endings */
    int endings;
    int64_t loops, foreign;
    struct stat apart; /* a directory that is left out; st_ino 0: none */
    char **archives;
    int64_t archive_count;
    const char *archive;                                 /* the archive being read */
    void (*report)(void *context, const struct error *); /* NULL: the first problem is the error */
    void *context;
    int64_t unlisted;
    bool labels;
};

/* A directory and its ancestors. */
struct above {
    dev_t device;
    ino_t inode;
    const struct above *up;
};

void image_list_report_classes(const struct image_list *list, const char *root)
{
    enum { NAMED = 5, NAME_BYTES = 48 };
    char names[NAMED * (NAME_BYTES + 2)] = "", name[NAME_BYTES];
    size_t n = 0;
    if (!list->classes_from) return;
    for (int32_t i = 0; i < list->class_count && i < NAMED; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "",
                              name_printable(name, sizeof name, list->classes[i]));
    log_info("%s: %s, %s: %s%s", root, list->classes_from,
             list->ordered_by ? list->ordered_by
             : list->numbered ? _("in order")
                              : _("sorted by name"),
             names, list->class_count > NAMED ? ", ..." : "");
}

void image_list_report(const struct image_list *list, const char *root)
{
    if (list->chosen) log_info("%s (change with data.include and data.exclude)", list->chosen);
    if (list->apart) log_info("%s: left out, because data.val names it: %s", root, list->apart);
    if (list->unread) log_info("not read in %s: %s", root, list->unread);
    image_list_report_classes(list, root);
    if (list->outside) log_warn("%s: %s", root, list->outside);
}

bool image_list_foreign(const char *name, size_t bytes)
{
    /* of file servers (Synology, QNAP), macOS, Windows and Python */
    static const char *const names[] = {"@eaDir",      "#recycle",           "#snapshot",
                                        "@Recycle",    "@Recently-Snapshot", "__MACOSX",
                                        "__pycache__", "$RECYCLE.BIN",       "System Volume Information",
                                        "lost+found"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == bytes && memcmp(names[i], name, bytes) == 0) return true;
    return name[0] == '.';
}

int image_list_apart(const char *apart, struct stat *status, struct error *err)
{
    *status = (struct stat){0};
    if (!apart || !apart[0] || stat(apart, status) == 0) return 0;
    *status = (struct stat){0};
    if (file_absent(apart)) return 0;
    error_errno(err, EXIT_FAILED, NULL, "cannot examine it, to leave it out of the training data");
    return error_at(err, apart, 0, 0);
}

/* Returns whether a path leads through such a directory. */
static bool foreign_path(const char *path)
{
    for (const char *slash; (slash = strchr(path, '/')) != NULL; path = slash + 1)
        if (image_list_foreign(path, (size_t)(slash - path))) return true;
    return false;
}

static void count_unread(struct walk *w, const char *name)
{
    const char *dot = strrchr(name, '.'), *ending = "none";
    char lower[ENDING_BYTES + 1] = "";
    if (dot && strlen(dot) <= ENDING_BYTES) {
        for (size_t i = 0; dot[i]; i++)
            lower[i] =
                (char)(isalnum((unsigned char)dot[i]) || i == 0 ? tolower((unsigned char)dot[i]) : '?');
        ending = lower;
    }
    int i = 0;
    while (i < w->endings && strcmp(w->unread[i].name, ending) != 0) i++;
    if (i == w->endings && w->endings < ENDINGS)
        strcpy(w->unread[w->endings++].name, i == ENDINGS - 1 ? "others" : ending);
    w->unread[i < ENDINGS ? i : ENDINGS - 1].count++;
}

/* Handles an entry below the root that cannot be listed (errno): returns the error, or reports it and returns
 * 0. */
static int unlisted(struct walk *w, const char *path, const char *what, const char *hint, struct error *err)
{
    struct error problem = {0};
    int code = error_errno(&problem, EXIT_FAILED, hint, "%s", what);
    error_at(&problem, path, 0, 0);
    if (w->report) {
        w->unlisted++;
        w->report(w->context, &problem);
        return 0;
    }
    if (err) *err = problem;
    return code;
}

/* Skips a broken link if its name is no image's: silently omitted images would make a different dataset. */
static int unknown(struct walk *w, const char *path, const char *name, struct error *err)
{
    if ((errno == ENOENT || errno == ELOOP) && !image_name(name)) return 0;
    return unlisted(w, path,
                    errno == ENOENT ? "is a link to a file that does not exist" : N_("cannot be examined"),
                    "repair or remove it, or name it in data.exclude", err);
}

static int walk(struct walk *w, const char *below, const struct above *up, struct error *err);

static int walk_entry(struct walk *w, const char *below, const char *entry, const struct above *up,
                      struct error *err)
{
    char *name = path_join(below, entry), *full = path_join(w->root, name);
    struct stat st = {0};
    int code = 0;
    if (image_list_matches(w->exclude, name)) w->all += image_name(entry);
    else {
        if (stat(full, &st) != 0) code = unknown(w, full, entry, err);
        if (S_ISDIR(st.st_mode) && image_list_foreign(entry, strlen(entry))) w->foreign++;
        else if (S_ISDIR(st.st_mode)) code = walk(w, name, up, err);
        if (S_ISREG(st.st_mode) && !image_name(entry) && !ends_with(entry, ".tar")) count_unread(w, entry);
    }
    if (S_ISREG(st.st_mode) && image_name(entry)) w->all++;
    if (S_ISREG(st.st_mode) && image_name(entry) && (!w->include[0] || image_list_matches(w->include, name)))
        image_list_add(w->list, name, (struct image_place){.bytes = st.st_size});
    else if (S_ISREG(st.st_mode) && ends_with(entry, ".tar")) {
        w->archives = xrealloc(w->archives, (size_t)(w->archive_count + 1) * sizeof *w->archives);
        w->archives[w->archive_count++] = name;
    } else free(name);
    free(full);
    return code;
}

/* Lists a directory and its subdirectories. Symbolic links to directories are followed, except to an
 * ancestor. */
static int walk(struct walk *w, const char *below, const struct above *up, struct error *err)
{
    char *path = below[0] ? path_join(w->root, below) : xstrdup(w->root);
    DIR *dir = opendir(path);
    struct stat st;
    int code = 0;
    bool opened = dir && fstat(dirfd(dir), &st) == 0, loop = false;
    bool apart =
        opened && below[0] && st.st_ino && st.st_ino == w->apart.st_ino && st.st_dev == w->apart.st_dev;
    if (!opened && below[0])
        code = unlisted(w, path, "cannot open this directory of images",
                        "make it readable, or name it in data.exclude to train without it", err);
    else if (!opened) {
        bool file = errno == ENOTDIR;
        code = error_errno(err, EXIT_FAILED,
                           file ? N_("set data.root to the directory of the images, or of archives")
                                : N_("set data.root to the directory of the images, or 'meopt fetch' it"),
                           "cannot open the image directory");
        error_at(err, path, 0, 0);
    }
    struct above here = {.up = up};
    if (opened) {
        here.device = st.st_dev;
        here.inode = st.st_ino;
        for (; up && !loop; up = up->up) loop = up->device == here.device && up->inode == here.inode;
        w->loops += loop;
    }
    struct dirent *entry;
    if (apart && !w->list->apart) w->list->apart = xstrdup(below);
    opened &= !apart;
    while (!code && opened && !loop && (errno = 0, entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.') code = walk_entry(w, below, entry->d_name, &here, err);
    if (!code && opened && !loop && errno)
        code = unlisted(w, path, "cannot list this directory of images",
                        "check the kernel log for I/O errors of its file system", err);
    if (dir) closedir(dir);
    free(path);
    return code;
}

/* Adds a member KEY.cls. webdataset's key ends at the first dot of the last component. */
static void add_sidecar(struct walk *w, const char *member, int64_t offset, int64_t bytes)
{
    struct image_list *list = w->list;
    const char *dot = strchr(path_basename(member), '.');
    if (!w->labels || !dot || strcmp(dot, ".cls") != 0) return;
    if ((list->sidecar_count & (list->sidecar_count - 1)) == 0)
        list->sidecars =
            xrealloc(list->sidecars,
                     (size_t)(list->sidecar_count ? 2 * list->sidecar_count : 1) * sizeof *list->sidecars);
    list->sidecars[list->sidecar_count++] =
        (struct image_sidecar){.key = xasprintf("%s/%.*s", w->archive, (int)(dot - member), member),
                               .archive_length = strlen(w->archive),
                               .offset = offset,
                               .bytes = bytes};
}

static void add_member(void *context, const char *member, int64_t offset, int64_t bytes)
{
    struct walk *w = context;
    while (strncmp(member, "./", 2) == 0) member += 2;
    const char *last = path_basename(member);
    if (last[0] == '.' || !last[0] || foreign_path(member)) return;
    char *name = xasprintf("%s/%s", w->archive, member);
    struct image_place place = {
        .offset = offset, .bytes = bytes, .archive_length = (int64_t)strlen(w->archive)};
    add_sidecar(w, member, offset, bytes);
    if (!image_name(last)) count_unread(w, last);
    else w->all++;
    if (image_name(last) && !image_list_matches(w->exclude, name) &&
        (!w->include[0] || image_list_matches(w->include, name)))
        image_list_add(w->list, name, place);
    else free(name);
}

/* Lists tar archives if there are no image files; next to image files they may contain the same images. */
static int read_archives(struct walk *w, int code, struct error *err)
{
    bool has_images = w->all > 0;
    for (int64_t i = 0; i < w->archive_count; i++) {
        w->archive = w->archives[i];
        char *path = path_join(w->root, w->archive);
        if (has_images) count_unread(w, w->archive);
        else if (!code) code = tar_list(path, add_member, w, err);
        free(path);
        free(w->archives[i]);
    }
    free(w->archives);
    return code;
}

static bool compressed(const struct walk *w)
{
    static const char *const endings[] = {".gz", ".tgz", ".bz2", ".xz", ".zst"};
    for (int i = 0; i < w->endings; i++)
        for (size_t k = 0; k < sizeof endings / sizeof *endings; k++)
            if (strcmp(w->unread[i].name, endings[k]) == 0) return true;
    return false;
}

/* Returns "1200 .tif, 3 .json", the most frequent first. */
static char *unread_text(struct walk *w)
{
    char *text = NULL;
    for (int k = 0; k < w->endings; k++) {
        int most = 0;
        for (int i = 1; i < w->endings; i++)
            if (w->unread[i].count > w->unread[most].count) most = i;
        const char *name = w->unread[most].name;
        char *longer =
            xasprintf("%s%s%lld %s", text ? text : "", text ? ", " : "", (long long)w->unread[most].count,
                      strcmp(name, "none") == 0 ? _("without an ending") : name);
        free(text);
        text = longer;
        w->unread[most].count = -1;
    }
    const struct {
        int64_t count;
        const char *what;
    } more[] = {{w->loops, N_("links to a directory above")},
                {w->foreign, N_("directories of other programs")}};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        if (!more[i].count) continue;
        char *longer = xasprintf("%s%s%lld %s", text ? text : "", text ? ", " : "", (long long)more[i].count,
                                 _(more[i].what));
        free(text);
        text = longer;
    }
    return text;
}

static int by_bytes(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    int order = strcmp(x, y); /* an archive may contain a name twice */
    return order ? order : image_place(x).offset < image_place(y).offset ? -1 : 1;
}

/* Returns whether an archive has KEY.jpg for its member KEY.PART.png, which is then a part of that sample:
 * webdataset's key ends at the first dot of the last component. */
static bool part_of_sample(const struct image_list *list, const char *name)
{
    static const char *const endings[] = {".jpg", ".jpeg", ".png", ".webp"};
    const char *last = path_basename(name), *dot = strchr(last, '.');
    bool found = false;
    if (!image_place(name).archive_length || !dot || !strchr(dot + 1, '.')) return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && !found; i++) {
        char *plain = xasprintf("%.*s%s", (int)(dot - name), name, endings[i]);
        int64_t low = 0, high = list->count;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (strcmp(list->names[middle], plain) < 0) low = middle + 1;
            else high = middle;
        }
        found = low < list->count && strcmp(list->names[low], plain) == 0;
        free(plain);
    }
    return found;
}

/* Removes the parts of samples from the sorted list. */
static void drop_parts(struct walk *w)
{
    struct image_list *list = w->list;
    uint8_t *part = xcalloc((size_t)list->count + 1, 1);
    int64_t kept = 0;
    for (int64_t i = 0; i < list->count; i++) part[i] = part_of_sample(list, list->names[i]);
    for (int64_t i = 0; i < list->count; i++) {
        if (!part[i]) {
            list->names[kept++] = list->names[i];
            continue;
        }
        count_unread(w, list->names[i]);
        free(list->names[i]);
    }
    list->count = kept;
    free(part);
}

/* Removes the listed images that the patterns leave out. */
static void match_patterns(struct walk *w)
{
    struct image_list *list = w->list;
    w->all = list->count;
    list->count = 0;
    for (int64_t i = 0; i < w->all; i++) {
        char *name = list->names[i];
        bool kept =
            !image_list_matches(w->exclude, name) && (!w->include[0] || image_list_matches(w->include, name));
        if (kept) list->names[list->count++] = name;
        else free(name);
    }
}

int image_list_search(struct image_list *list, const struct image_search *search, struct error *err)
{
    *list = (struct image_list){0};
    struct walk w = {.list = list,
                     .root = search->root,
                     .include = search->include ? search->include : "",
                     .exclude = search->exclude,
                     .report = search->report,
                     .context = search->context,
                     .labels = search->labels};
    int code = image_list_apart(search->apart, &w.apart, err);
    if (!code) code = read_archives(&w, walk(&w, "", NULL, err), err);
    bool cifar = !code && !w.all && (code = cifar_list(list, search, err), list->count > 0);
    if (cifar && !code) match_patterns(&w);
    if (search->unlisted) *search->unlisted = w.unlisted;
    if (list->count) qsort(list->names, (size_t)list->count, sizeof *list->names, by_bytes);
    if (!cifar) drop_parts(&w);
    if (!cifar) list->unread = unread_text(&w);
    if (!code && list->count == 0) {
        if (w.all)
            error_set(err, EXIT_FAILED, "patterns match paths relative to data.root",
                      "data.include and data.exclude leave none of its %lld images", (long long)w.all);
        else
            error_set(
                err, EXIT_FAILED,
                compressed(&w)
                    ? N_("unpack the archives with tar -xf")
                    : N_("set data.root to a directory with images, for COCO2014 'meopt fetch coco2014'"),
                "has no .jpg, .jpeg, .png or .webp file, nor one in a .tar%s%s",
                list->unread ? _(", but ") : "", list->unread ? list->unread : "");
        code = EXIT_FAILED;
        error_at(err, search->root, 0, 0);
    }
    if (code) {
        image_list_free(list);
        return code;
    }
    if (!w.include[0] && !cifar) image_list_select_part(list, search);
    return 0;
}

void image_list_subset(struct image_list *list, int64_t count, uint64_t seed)
{
    int64_t images = list->count, begin = 0;
    if (images <= count) return;
    for (int64_t i = 0; i < count; i++) {
        int64_t end = images * (i + 1) / count,
                kept = begin + data_shuffle(seed, (uint64_t)i, 0, end - begin);
        for (int64_t n = begin; n < end; n++)
            if (n != kept) free(list->names[n]);
        list->names[i] = list->names[kept];
        if (list->labels) list->labels[i] = list->labels[kept];
        begin = end;
    }
    list->count = count;
}

int image_read(const char *root, const char *name, char **bytes, size_t *size, struct error *err)
{
    struct image_place place = image_place(name);
    if (!place.archive_length) {
        char *path = path_join(root, name);
        int code = file_read(path, IMAGE_BYTES, bytes, size, err), reason = errno;
        free(path);
        errno = reason;
        return code;
    }
    errno = 0;
    if (place.bytes > IMAGE_BYTES)
        return error_set(err, EXIT_FAILED, NULL, "is larger than the %d bytes expected at most", IMAGE_BYTES);
    char *archive = xasprintf("%s/%.*s", root, (int)place.archive_length, name);
    int code = tar_read(archive, place.offset, place.bytes, bytes, err), reason = errno;
    *size = (size_t)place.bytes;
    free(archive);
    errno = reason;
    return code;
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
    for (int32_t i = 0; i < list->class_count; i++) free(list->classes[i]);
    free(list->classes);
    free(list->labels);
    for (int64_t i = 0; i < list->sidecar_count; i++) free(list->sidecars[i].key);
    free(list->sidecars);
    free(list->classes_from);
    free(list->ordered_by);
    free(list->outside);
    free(list->apart);
    free(list->chosen);
    free(list->unread);
    *list = (struct image_list){0};
}
