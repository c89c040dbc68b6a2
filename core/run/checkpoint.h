/* Checkpoints on disk: a checkpoint is either complete or absent.
 *
 * ckpt/step-N/ holds model.safetensors (named tensors: PyTorch opens it as it is), optimizer.bin (records,
 * each behind its size in 8 bytes) and, written last, MANIFEST.json with the size and CRC-32C of both and
 * what else a resume needs. It is written as step-N.partial, synced, renamed, and the directory synced;
 * ckpt/LATEST names the newest. What the tensors and records mean is the caller's: this half knows neither
 * model nor optimizer.
 *
 * Where several processes hold parts of the records, each writes those that it holds to a file of its own,
 * optimizer.R-of-N.bin, as many records in the same order, and one writes the rest and publishes. Files of
 * their own, since two hosts that write into one page of one file over NFS can undo each other's bytes.
 *
 * Nothing good is removed before the better one stands. A checkpoint that disagrees with its manifest is
 * damaged: the process that trains renames it to step-N.damaged, and it counts for nothing. One that cannot
 * be read now (EIO, ESTALE, EMFILE, no memory) is neither damaged nor absent: reading is tried again for a
 * moment and then fails with the file and the cause, never with an older checkpoint in its place.
 *
 *     checkpoint_save(run->directory, step, keep, &content, err);
 *
 * Several processes that go on with one checkpoint share the reading that tells whether it is whole
 * (checkpoint_newest_among), and then read what they need: blocks of the tensors' file have checksums of
 * their own in the manifest, and a record has its own. Each opens the files of records that it reads, not
 * all.
 *
 *     checkpoint_newest(&c, directory, false, err); // c.step -1: there is none
 *     checkpoint_tensors(&c, rows, count, NULL, take, context, err);
 *     checkpoint_records(&c, count, NULL, take, context, err);
 *     checkpoint_close(&c);
 */
#ifndef MEOPT_RUN_CHECKPOINT_H
#define MEOPT_RUN_CHECKPOINT_H

#include "core/weights/weights.h"

#include <jansson.h>
#include <stdbool.h>

/* `bytes` of a record, asked for when its turn comes. */
struct checkpoint_record {
    size_t bytes;
    int (*fill)(void *context, int64_t index, void *dst, size_t bytes, struct error *err);
    void *context;
};

/* A file as its writer reads it back. */
struct checkpoint_written {
    int64_t bytes;
    uint32_t crc;
};

struct checkpoint_content {
    const struct weights_row *tensors;
    int64_t tensor_count;
    const struct checkpoint_record *records;
    int64_t record_count;
    json_t *more;                /* an object: members of the manifest, as they are; NULL: none */
    const char *const *metadata; /* of the tensors' file: key, value, ..., NULL; or NULL */
    /* More than 1: so many write records (checkpoint_save_part), and `records` is not looked at. Called once
     * the place is there: returns when all have written, with what each said. */
    int writers;
    int (*gather)(void *context, struct checkpoint_written *all, struct error *err);
    void *context;
};

/* Write the checkpoint of a step, then remove all but the `keep` newest that are whole (at least one). On an
 * error nothing of it is left and the others are as they were. A step that is there and whole is no work.
 * What killed saves have left is removed first. */
int checkpoint_save(const char *directory, int64_t step, int keep, const struct checkpoint_content *content,
                    struct error *err);

/* The records of one of several writers, while another is in checkpoint_save with this step. */
int checkpoint_save_part(const char *directory, int64_t step, int writer, int writers,
                         const struct checkpoint_record *records, int64_t count,
                         struct checkpoint_written *written, struct error *err);

/* For whoever goes on with `step`, which is whole: what a save that was killed or failed has left to do:
 * LATEST, all but the `keep` newest, side files. What cannot be done is told. */
void checkpoint_tidy(const char *directory, int64_t step, int keep);

/* Steps of the checkpoints that are there, whole or not, newest first; the caller frees. No directory of
 * checkpoints is none; one that cannot be listed is an error. */
int checkpoint_steps(const char *directory, int64_t **steps, int *count, struct error *err);

/* The newest at or before `before` whose files are as long as its manifest says; *step -1: none. */
int checkpoint_before(const char *directory, int64_t before, int64_t *step, struct error *err);
/* Is this path the tensors of a run's checkpoint, RUN/ckpt/step-N/model.safetensors? Then run is RUN's name.
 */
bool checkpoint_named(const char *path, char *run, size_t size, int64_t *step);

struct checkpoint {
    int64_t step; /* -1: none */
    char *directory;
    json_t *manifest;
    int at;                /* descriptor of the directory: its files are opened there, whatever is renamed */
    struct weights *model; /* open, like the records: readable also when a training removes the checkpoint */
    int *records;          /* (writers) descriptors; -1: to be opened when they are read (a share) */
    int writers;
    int model_file; /* descriptor of the tensors' file */
};

/* The newest whole one: a damaged one is told and passed over, and renamed when the caller owns the run;
 * EXIT_INTEGRITY when all are. After success, to be closed. */
int checkpoint_newest(struct checkpoint *c, const char *directory, bool owner, struct error *err);
void checkpoint_close(struct checkpoint *c);

/* So many read it together, each its share, and every byte of every file is in one. The process that looks
 * for the newest calls begin, for all to begin with that step, and when it has read its own share end, with
 * what it found: it returns what all have found. Of the others both are NULL. */
struct checkpoint_share {
    int index, count;
    int (*begin)(void *context, int64_t step, struct error *err);
    int (*end)(void *context, const struct checkpoint *c, int code, struct error *err);
    void *context;
};
int checkpoint_newest_among(struct checkpoint *c, const char *directory, bool owner,
                            const struct checkpoint_share *share, struct error *err);
/* One of the others: that of this step, and its own share. EXIT_INTEGRITY: damaged. To be closed in any case.
 */
int checkpoint_scan(struct checkpoint *c, const char *directory, int64_t step,
                    const struct checkpoint_share *share, struct error *err);
/* Any share of an open one. */
int checkpoint_compare_share(const struct checkpoint *c, int index, int count, struct error *err);

/* Each of these tensors (name and shape; the rest of a row is not looked at) as F32, one at a time.
 * EXIT_INTEGRITY when one is missing or has another number of values. part: which of its values are wanted
 * (all, until it says otherwise); the others are not read where the manifest has checksums of blocks, and
 * undefined. */
typedef void checkpoint_wanted(void *context, int64_t index, int64_t *first, int64_t *count);
int checkpoint_tensors(const struct checkpoint *c, const struct weights_row *rows, int64_t count,
                       checkpoint_wanted *part,
                       int (*take)(void *context, int64_t index, const float *values, struct error *err),
                       void *context, struct error *err);
/* The first `count` records in their order; of each what every writer had (c->writers). want: which writers'
 * (writers) are given first, the others NULL: they are read only where `take` answers CHECKPOINT_MORE. NULL:
 * all. */
enum { CHECKPOINT_MORE = -1 };
typedef void checkpoint_writers(void *context, int64_t index, bool *writers);
int checkpoint_records(const struct checkpoint *c, int64_t count, checkpoint_writers *want,
                       int (*take)(void *context, int64_t index, const void *const *parts,
                                   const size_t *bytes, struct error *err),
                       void *context, struct error *err);

/* Names of the files of a checkpoint that can be read, its manifest last and NULL behind it; the caller frees
 * each and the array. NULL: none. */
char **checkpoint_files(const char *directory, int64_t step, struct error *err);

#endif
