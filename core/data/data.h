/* Input of training: images (find, decode, resize, order, prefetch), or tokens (token_loader.h).
 *
 *     data_open(&d, &options, &err);            // lists the images
 *     data_start(d, step, &err);                // workers begin with the batch of that step (from 0)
 *     data_next(d, &batch, &err);               // the next batch, in order; valid until the next call
 *     data_close(d);
 *
 * The order is a function of (seed, epoch, position) alone, so a run that resumes at step N, or has a
 * different number of workers, sees the same images. Ranks share each batch in micro-batches, assigned
 * round-robin: on any number of ranks, micro-batch n has the same images. With several crops, those of an
 * image are neighbouring samples; a worker decodes it once if they are in one micro-batch. Decoding and
 * resizing are bit-identical to PIL and torchvision (tests/data/preprocess). Without augmentation, a dataset
 * of at most 16 MiB after resizing is decoded once.
 */
#ifndef MEOPT_DATA_H
#define MEOPT_DATA_H

#include "core/base/error.h"
#include "core/data/token_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Preprocessing of a tower's images: resize, centre crop, normalisation. */
enum resample {
    RESAMPLE_BICUBIC,
    RESAMPLE_BILINEAR,
    RESAMPLE_NEAREST,
    RESAMPLE_LANCZOS,
    RESAMPLE_BOX,
    RESAMPLE_HAMMING
};
enum resize {
    RESIZE_SHORTEST, /* the shorter side becomes side / crop_pct, the aspect ratio is kept */
    RESIZE_SQUASH,   /* both sides become side / crop_pct */
    RESIZE_EXACT     /* no resize; a smaller image is bad */
};
/* The library whose arithmetic is used, and the rounding of the crop's offset when the margin is odd. */
enum resize_as {
    RESIZE_AS_PIL,    /* PIL; rounded half to even: torchvision's transforms of PIL images, timm, open_clip */
    RESIZE_AS_HF,     /* torchvision on bytes; rounded down: transformers */
    RESIZE_AS_HF_PIL, /* PIL; rounded down: transformers' PIL backend */
    RESIZE_AS_HF_FLOAT /* torchvision on floats, not rounded to bytes; rounded down: DINOv3's */
};
struct preprocess {
    enum resample resample;
    enum resize resize;
    enum resize_as as;
    double crop_pct; /* 0.1 to 1; side / crop_pct is rounded down, like timm */
    float mean[3], std[3];
};
extern const struct preprocess preprocess_clip, preprocess_dinov2, preprocess_siglip;
bool preprocess_same(const struct preprocess *a, const struct preprocess *b);
/* Returns a checksum of the preprocessing. It is 0 or 1 for the first two if their crop divides, as in
 * caches of earlier versions. */
uint32_t preprocess_hash(const struct preprocess *how, int64_t side);
/* Returns the bytes of a prepared image. preprocess_resized: the size of its shorter side (or both) after
 * the resize. */
size_t preprocess_bytes(const struct preprocess *how, int64_t side);
int preprocess_resized(const struct preprocess *how, int64_t side);

/* Names of classes in the order of their numbers, as a classifier has them (labels.h). */
struct class_names {
    char **names;
    int64_t count;
    char *from;      /* the file that has them, for messages */
    bool classifier; /* it has a classifier of as many classes, which the data must match */
};

/* How documents of token files become samples (token_loader.h). AUTO: whole if a file says which tokens are
 * labels, else apart. */
enum documents_as { DOCUMENTS_AUTO, DOCUMENTS_APART, DOCUMENTS_JOINED, DOCUMENTS_WHOLE };
/* Of DOCUMENTS_WHOLE: what is done with a document that is longer than a sample. */
enum documents_long { DOCUMENTS_LONG_REFUSE, DOCUMENTS_LONG_CUT, DOCUMENTS_LONG_SKIP };

/* What the documents of token files are. */
struct document_facts {
    enum documents_as as;            /* never AUTO */
    bool assumed;                    /* it was AUTO */
    int64_t documents;               /* of the files; 0: unknown, they have no index */
    int64_t too_long;                /* longer than a sample, with labels */
    int64_t unlabelled;              /* without a label: left out if they are whole */
    int64_t kept;                    /* in samples; so are the following */
    int64_t tokens, labels, longest; /* labels: tokens that are predicted; longest: before it is cut */
    int64_t samples, padding;        /* of an epoch, or of a whole pass; padding: tokens */
};

/* A version of the images: of towers with another size or preprocessing. Its crop is the same. */
struct data_view {
    int64_t size;
    struct preprocess preprocess;
};
enum { MOST_MORE_VIEWS = 4 };

struct image_list;
struct data_options {
    const char *root;
    const char *include, *exclude; /* patterns (list.h); NULL: none */
    /* data.val while the images of training are listed, which leave it out; data.root the other way round.
     * NULL or "": none. Not used after the list was read */
    const char *apart;
    int64_t image_size; /* S */
    struct preprocess preprocess;
    struct data_view more[MOST_MORE_VIEWS]; /* further versions of each image: see data_chunk */
    int more_views;
    bool augment, flip; /* random resized crop, horizontal flip */
    double crop_scale_min, crop_scale_max;
    int64_t crops; /* with augment: samples of each image in an epoch, each with a crop of its own; 0: 1 */
    int64_t local_crops; /* of them, the last ones, from this range of areas */
    double local_scale_min, local_scale_max;
    int randaugment;      /* with augment: magnitude of RandAugment, 1 to 30; 0: none (augment.h) */
    double erasing;       /* with augment: probability of random erasing */
    double mixup, cutmix; /* alpha of the Beta distribution of the shares; 0: none. Requires labels */
    bool shuffle;         /* false: file order */
    /* one pass in file order, batches assigned round-robin to ranks, the last ones may be short or empty;
     * bad images are not replaced */
    bool whole;
    uint64_t seed;
    int64_t batch;          /* images of this rank in a batch */
    int rank, ranks;        /* 0, 1 for a single rank */
    int64_t micro, global;  /* images of a micro-batch (0: 1), of the batch of all ranks (0: batch of each) */
    int64_t workers;        /* 0: one per processor */
    int64_t prefetch;       /* batches ready ahead */
    double max_bad;         /* fatal share of undecodable images */
    const char *label_file; /* with labels: a CSV list, or "coarse" (labels.h); NULL or "": none */
    bool labels;            /* read the class of each image, or of each document (labels.h) */
    bool validation;        /* the part for validation of a root with several parts */
    const struct image_list *classes; /* the training images, whose classes these have; NULL: their own */
    /* order of the classes, with `classes` NULL; NULL: as labels.h says. Not used after the list was read */
    const struct class_names *order;
    bool partly;             /* the data may have some classes of the order alone */
    struct image_list *list; /* the images, if they are listed already: taken over; NULL or empty: not */
    /* Token files instead of images (token_loader.h) */
    enum token_form tokens; /* format of the files; TOKENS_NONE: images */
    int64_t context;        /* tokens of a sample */
    int64_t vocabulary;
    enum documents_as documents;
    enum documents_long too_long;
    int64_t end; /* token that ends a document, of files without an index; -1: none */
    /* Masked tokens (mask.h): of a whole sample, in proportion of a shorter one; 0: labels are next tokens */
    int64_t masked, mask_token, special; /* tokens below `special` are not masked; mask_token -1: not known */
};

struct data_batch {
    const float *images;   /* (count, 3, S, S), normalised; with more_views: see data_chunk */
    const int64_t *ids;    /* index of each image in the list; whole: -1, and zeros, for a bad one */
    const int32_t *labels; /* (count) number of its class; -1 for a bad one; NULL: not read */
    /* mixup or cutmix: class of the image that is mixed in, and share of the first, 0 to 1; NULL: off */
    const int32_t *labels2;
    const float *share;
    /* Of token files: labels are (count, context), -1 for none; with data_options.labels (count). begins,
     * ends: (count, context) first token of a token's document in the sample, and the one after its last;
     * NULL: each sample is one document */
    const int32_t *tokens; /* (count, context) */
    const int32_t *begins, *ends;
    int64_t count;
    int64_t epoch;
    double wait_ms; /* time that data_next waited for it; 0 if it was ready */
};

/* Returns whether label_file asks for the superclasses of CIFAR-100: its last component is "coarse". */
bool data_labels_coarse(const struct data_options *options);

/* With more_views a batch consists of chunks of data_chunk() floats, one per micro-batch: (micro, 3, S, S),
 * and from data_view_at(v) on (micro, 3, size, size) of version v, from 1. */
int64_t data_view_at(const struct data_options *options, int view);
int64_t data_chunk(const struct data_options *options);

struct data;
int data_open(struct data **data, const struct data_options *options, struct error *err);
void data_close(struct data *data);
/* Keeps `count` of the images before data_start of a whole pass, evenly spread and drawn by the seed
 * (image_list_subset). */
void data_subset(struct data *data, int64_t count);
int64_t data_images(const struct data *data); /* of token files: the samples of an epoch */
int64_t data_tokens(const struct data *data); /* of all token files; 0: images */
/* NULL: images, or documents with classes */
const struct document_facts *data_documents(const struct data *data);
/* Formats facts for people; returns false if the documents are not known. */
bool document_facts_text(const struct document_facts *facts, char *text, size_t size);
const char *data_name(const struct data *data, int64_t image); /* path relative to the root */
const struct image_list *data_list(const struct data *data);   /* the listed images, see list.h */
/* Logs the chosen part of the images and the unread files, once per command. */
void data_report(const struct data *data);
uint32_t data_hash(const struct data *data); /* image_list_hash of its images */
/* Classes, with options.labels; else 0. */
int32_t data_classes(const struct data *data);
const char *data_class_name(const struct data *data, int32_t class);
uint32_t data_classes_hash(const struct data *data); /* image_list_classes_hash: names and labels */
int64_t data_epoch_batches(const struct data *data); /* full batches of all ranks; samples are crops */
/* Stops the workers and restarts them at batch `step`, counted over all epochs. */
int data_start(struct data *data, int64_t step, struct error *err);
/* Returns the next batch; whole: count 0 after the last one. An image that cannot be decoded is replaced
 * (whole: left out), logged and counted. One that still cannot be read after a second or two (EIO, EMFILE,
 * no memory) is the error, with its file. */
int data_next(struct data *data, struct data_batch *batch, struct error *err);
/* Loads one image by its index, as the first one of a micro-batch, independently of the batches; *decoded is
 * false for one that cannot be decoded. */
int data_image(struct data *data, int64_t image, float *out, bool *decoded, struct error *err);
/* Returns the images of the batch that data_next will return; NULL while it is incomplete. */
const float *data_peek(struct data *data);

/* ---- Check without training ---- */

/* Receives one problem at a time: an image, or an entry that could not be listed, with its file. */
typedef void data_problem(void *context, const struct error *problem);
struct data_findings {
    int64_t images;   /* listed; of token files the tokens */
    int64_t bad;      /* that cannot be read or decoded */
    int64_t unlisted; /* directories and links that cannot be followed: training refuses them */
};
/* Reads all tokens of options->root, or lists and decodes all its images with options->workers threads, and
 * reports each problem in the list's order. Returns an error only if there is no list (root, include,
 * exclude), or for a token file. */
int data_check(const struct data_options *options, data_problem *report, void *context,
               struct data_findings *findings, struct error *err);
/* Returns the number of undecodable images that training accepts, out of `images`, at a share of max_bad. */
int64_t data_bad_allowed(double max_bad, int64_t images);

/* ---- Parts ---- */

struct image {
    uint8_t *rgb; /* (height, width, 3), malloc'ed */
    int width, height;
};
/* Decodes JPEG, PNG or WebP from memory like PIL's convert("RGB"). Reasons are one sentence; the caller
 * names the file. */
int image_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *err);
void image_free(struct image *image);

/* The box (x, y, w, h) of an image, resized to (out_w, out_h). Only the window (left, top, side, side) is
 * computed: out (side, side, 3), bytes or, RESIZE_AS_HF_FLOAT, floats from 0 to 1. */
struct resize_task {
    int x, y, w, h;
    int out_w, out_h;
    int left, top, side;
};
int image_resize(const struct image *image, const struct preprocess *how, const struct resize_task *task,
                 void *out, struct error *err);
/* Resizes and crops the centre: out has preprocess_bytes(). */
int image_prepare(const struct image *image, const struct preprocess *how, int side, void *out,
                  struct error *err);
struct image_draw; /* augment.h */
/* The same for one box from torchvision's RandomResizedCrop rule with counter-based random numbers; it
 * depends on neither `how` nor side. */
int image_prepare_random(const struct image *image, const struct preprocess *how, int side, double scale_min,
                         double scale_max, bool flip, const struct image_draw *draw, void *out,
                         struct error *err);
/* Converts prepared pixels to (3, side, side) floats, (x/255 - mean) / std. */
void image_normalize(const void *pixels, const struct preprocess *how, int side, float *out);

/* Maps a position to an image index: a permutation of 0..count-1 for each (seed, epoch). */
int64_t data_shuffle(uint64_t seed, uint64_t epoch, int64_t position, int64_t count);

#endif
