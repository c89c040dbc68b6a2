/* The images under a root: JPEG, PNG and WebP by the endings of their names, with paths relative to the
 * root, in byte order. Names that begin with a dot are skipped, directories of other programs (@eaDir,
 * __MACOSX), and links to a directory above. An archive's member KEY.seg.png is no image next to KEY.jpg.
 *
 * If there are no images but tar archives (names that end in .tar), the images are their members,
 * SHARD/MEMBER.
 *
 * Selection: images that match a pattern of `include` and none of `exclude`. Without `include`, training
 * images are not mixed with others. If the paths contain a directory train2014, only its images are
 * listed. Else, if some are under a directory train2017, train or training and others under one for
 * validation or test (parts in list_part.c), only the former are listed. The outermost directory of a path
 * counts. Directories whose names differ by such a word alone (seg_train, seg_test) are parts, too. Where
 * labels are read, train is not mixed with unlabeled.
 *
 * Patterns are separated by commas. '*' matches any bytes, including '/', and '?' matches one. A pattern
 * that matches a directory includes all files under it.
 */
#ifndef MEOPT_DATA_LIST_H
#define MEOPT_DATA_LIST_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* A member KEY.cls of a tar archive, which contains the label of KEY.jpg. */
struct image_sidecar {
    char *key; /* SHARD/KEY */
    size_t archive_length;
    int64_t offset, bytes;
    int32_t label;
};

struct image_list {
    /* after its NUL each name has the image's size in bytes, 8 bytes little-endian, then its location and
     * label (image_place) */
    char **names;
    int64_t count;
    bool tokens;  /* files that are identified as a whole: token files and their parts (token_loader.h) */
    char *chosen; /* description of the part that was chosen; NULL: there is only one */
    char *apart;  /* what is left out, because data.val names it; NULL: nothing */
    char *unread; /* description of files with unknown endings and of skipped links; NULL: none */
    /* classes (labels.h); NULL: not read */
    int32_t *labels;   /* (count), or (documents) */
    int64_t documents; /* of token files with classes; 0: images */
    char **classes;    /* (class_count) names, in the order of their numbers */
    int32_t class_count;
    struct image_sidecar *sidecars; /* (sidecar_count) .cls members of archives, with search.labels */
    int64_t sidecar_count;
    bool numbered;      /* labels are numbers of classes, whose names are these numbers */
    char *classes_from; /* description of where the classes come from */
    char *ordered_by;   /* of their order; NULL: the one of the data */
    char *outside;      /* description of images and classes left out; NULL: none */
};
/* Returns the number of labels, if there are any. */
static inline int64_t image_list_labels(const struct image_list *list)
{
    return list->documents ? list->documents : list->count;
}
struct image_search {
    const char *root, *include, *exclude; /* patterns may be NULL or "" */
    bool validation;                      /* images for validation, else for test; false: for training */
    const char *apart;                    /* a directory that is left out; NULL or "": none */
    bool labels, coarse;                  /* collect labels; coarse: the 20 superclasses of CIFAR-100 */
    /* Called for each directory and link that cannot be followed; the rest is listed. NULL: the first one is
     * the error. */
    void (*report)(void *context, const struct error *);
    void *context;
    int64_t *unlisted; /* their number; may be NULL */
};
int image_list_search(struct image_list *list, const struct image_search *search, struct error *err);
struct stat;
/* Examines what data_options.apart names; status->st_ino 0: nothing. A name that cannot be examined now is an
 * error: its images would be trained on. */
int image_list_apart(const char *apart, struct stat *status, struct error *err);
/* Keeps the images of one part of the sorted list, as described above. */
void image_list_select_part(struct image_list *list, const struct image_search *search);
/* Returns the part that a word of a name gives, words being separated by "-_." and blanks: PART_NONE without
 * such a word, or with words of two parts. Sets *word and *length (may be NULL) to the word. */
enum image_part { PART_NONE, PART_TRAIN, PART_VAL, PART_TEST, PART_UNLABELLED, IMAGE_PARTS };
enum image_part image_part_word(const char *name, size_t bytes, const char **word, size_t *length);
/* Returns whether a directory has this name from another program, which keeps previews or copies there. */
bool image_list_foreign(const char *name, size_t bytes);
/* Returns the length of the directories that contain all images if the innermost is named like a part
 * (train, val, ...), with its slash; else 0. */
size_t image_list_part_length(const struct image_list *list);
/* Reads the bytes of the image `name` of a list, malloc'ed: a file, or its part of an archive. errno is 0
 * if the image itself is bad. */
int image_read(const char *root, const char *name, char **bytes, size_t *size, struct error *err);
struct image;
/* Reads and decodes it; errno is 0 if the image itself is bad. */
int image_load(struct image *image, const char *root, const char *name, struct error *err);
/* Identifies the images: CRC-32C over all names with their NULs and sizes, in the list's order. The
 * content is not included, because reading it would take a pass over the dataset. */
uint32_t image_list_hash(const struct image_list *list);
/* Identifies the content of some images: CRC-32C of at most SAMPLE_BYTES from the beginning of each of
 * IMAGE_SAMPLES images, evenly spread over the list (of all, if there are fewer). Of token files, which may
 * be one file of many gigabytes, each file: IMAGE_SAMPLES windows spread over the bytes of all, and the
 * index, labels and classes whole up to PART_WINDOWS windows, else as many of them. Returns an array of
 * *samples; the caller frees it. */
enum { IMAGE_SAMPLES = 64, SAMPLE_BYTES = 1 << 18, PART_WINDOWS = 1024 };
struct image_sample {
    int64_t image;   /* index in the list */
    uint32_t crc32c; /* 0: could not be read */
};
struct image_sample *image_list_sample(const struct image_list *list, const char *root, int64_t *samples);
/* Returns the index of a sample's image. */
int64_t image_sample_at(const struct image_list *list, int64_t index);
/* Location of a name's image: its offset in an archive, and the length of the archive's path in the name;
 * 0 for a file of its own. planar: side of an image that is stored as planes of red, green and blue; 0: a
 * file format. label: if the archive states it. */
struct image_place {
    int64_t offset, bytes, archive_length;
    int32_t label, planar;
};
/* Returns whether a name matches one of the patterns; NULL: none. */
bool image_list_matches(const char *patterns, const char *name);
/* Adds an image; takes over the malloc'ed name. */
void image_list_add(struct image_list *list, char *name, struct image_place place);
/* Returns whether a name has the ending of an image that is listed. */
bool image_name(const char *name);
struct image_place image_place(const char *name);
/* Keeps `count` of the images, one of each of as many equal ranges of the list, drawn by the seed; all, if
 * there are no more. The classes stay. */
void image_list_subset(struct image_list *list, int64_t count, uint64_t seed);
void image_list_free(struct image_list *list);
/* Logs which files are read, and which are not. */
void image_list_report(const struct image_list *list, const char *root);
void image_list_report_classes(const struct image_list *list, const char *root);

#endif
