/* Checkpoints on disk: a checkpoint is either complete or absent.
 *
 * ckpt/step-N/ contains model.safetensors (named tensors, readable by PyTorch) and optimizer.bin
 * (records, each after its size in 8 bytes). MANIFEST.json is written last, with the size and CRC-32C of
 * both files and the other data for a resume. It is written as step-N.partial, synced, renamed, and the
 * directory is synced; ckpt/LATEST names the newest checkpoint. The caller defines the content of tensors
 * and records: this module depends on neither model nor optimizer.
 *
 * If several processes hold parts of the records, each writes its own file optimizer.R-of-N.bin, with the
 * same number of records in the same order. One process writes the rest and publishes the checkpoint. The
 * files are separate because two hosts that write into one page of a file over NFS can overwrite each
 * other's bytes.
 *
 * An older checkpoint is removed only after the newer one is complete. A checkpoint that disagrees with
 * its manifest is damaged: the trainer renames it to step-N.damaged, and readers ignore it. One that is
 * temporarily unreadable (EIO, ESTALE, EMFILE, no memory) is neither damaged nor absent: meopt retries,
 * then fails with the file and the cause. It does not fall back to an older checkpoint.
 *
 *     checkpoint_save(run->directory, step, keep, &content, err);
 *
 * Several processes that resume from one checkpoint share its verification (checkpoint_newest_among). Then
 * each process reads only the parts that it requires: the manifest has checksums of the blocks of the
 * tensors' file, and each record has its own. Each process opens only the files of records that it reads.
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

typedef int checkpoint_put(void *file, const void *data, size_t bytes, struct error *err);
/* A record of `bytes`. When it is written, `write` passes them to `put` in order, in parts, until `put`
 * returns an error. */
struct checkpoint_record {
    size_t bytes;
    int (*write)(void *context, int64_t index, checkpoint_put *put, void *file, struct error *err);
    void *context;
};

/* Size and checksum of a file, from reading it back. */
struct checkpoint_written {
    int64_t bytes;
    uint32_t crc;
};

struct checkpoint_content {
    const struct weights_row *tensors;
    int64_t tensor_count;
    const struct checkpoint_record *records;
    int64_t record_count;
    json_t *more;                /* an object with further members of the manifest; NULL: none */
    const char *const *metadata; /* of the tensors' file: key, value, ..., NULL; NULL: none */
    /* More than 1: the number of ranks that write records (checkpoint_save_part); `records` is ignored.
     * `gather` is called after the directory was created. It returns when all ranks have written, with the
     * result of each. */
    int writers;
    int (*gather)(void *context, struct checkpoint_written *all, struct error *err);
    void *context;
};

/* Writes the checkpoint of a step, then removes all but the `keep` newest complete ones (at least one
 * remains) and the best one. On an error this checkpoint is removed and the others are unchanged. A complete
 * checkpoint of this step is not written again. First removes the remains of interrupted saves. */
int checkpoint_save(const char *directory, int64_t step, int keep, const struct checkpoint_content *content,
                    struct error *err);

/* Writes the records of one of several ranks while another rank runs checkpoint_save for this step. */
int checkpoint_save_part(const char *directory, int64_t step, int writer, int writers,
                         const struct checkpoint_record *records, int64_t count,
                         struct checkpoint_written *written, struct error *err);

/* Completes an interrupted save before a resume from the complete checkpoint `step`: updates LATEST,
 * removes all but the `keep` newest checkpoints, removes temporary files. Failures are logged. */
void checkpoint_tidy(const char *directory, int64_t step, int keep);

/* Returns the steps of all checkpoints, complete or not, newest first; the caller frees them. A missing
 * directory of checkpoints is an empty list; one that cannot be listed is an error. */
int checkpoint_steps(const char *directory, int64_t **steps, int *count, struct error *err);

/* Finds the newest checkpoint at or before `before` whose files have the sizes in its manifest; *step -1:
 * none. One that cannot be read now is an error, no reason to take an older one. */
int checkpoint_before(const char *directory, int64_t before, int64_t *step, struct error *err);
/* Whether `path` is the tensors' file of a checkpoint, RUN/ckpt/step-N/model.safetensors. Writes the name
 * of RUN to `run`. */
bool checkpoint_named(const char *path, char *run, size_t size, int64_t *step);

struct checkpoint {
    int64_t step; /* -1: none */
    char *directory;
    json_t *manifest;
    /* descriptor of the directory: its files are opened through it, even after a rename */
    int at;
    struct weights *model; /* open, like the records: readable even after a trainer removed the checkpoint */
    int *records;          /* (writers) descriptors; -1: opened when they are read (a share) */
    int writers;
    int model_file; /* descriptor of the tensors' file */
};

/* Opens the newest complete checkpoint. Damaged ones are logged and skipped, and renamed if the caller
 * owns the run; EXIT_INTEGRITY if all are damaged. After success the caller closes it. */
int checkpoint_newest(struct checkpoint *c, const char *directory, bool owner, struct error *err);
void checkpoint_close(struct checkpoint *c);

/* `count` processes verify a checkpoint together; each byte of each file is in one share. The process that
 * looks for the newest checkpoint calls `begin`, which starts all others with that step, and after its own
 * share `end`, which returns the combined result of all. In the other processes both are NULL. */
struct checkpoint_share {
    int index, count;
    int (*begin)(void *context, int64_t step, struct error *err);
    int (*end)(void *context, const struct checkpoint *c, int code, struct error *err);
    void *context;
};
int checkpoint_newest_among(struct checkpoint *c, const char *directory, bool owner,
                            const struct checkpoint_share *share, struct error *err);
/* Opens the checkpoint of `step` and verifies one share, in the other processes. EXIT_INTEGRITY: damaged.
 * To be closed in any case. */
int checkpoint_scan(struct checkpoint *c, const char *directory, int64_t step,
                    const struct checkpoint_share *share, struct error *err);
/* Verifies one share of an open checkpoint. */
int checkpoint_compare_share(const struct checkpoint *c, int index, int count, struct error *err);

/* Reads each of these tensors (name and shape; the other fields of a row are ignored) as F32, one at a
 * time. EXIT_INTEGRITY if one is missing or has a different number of values. part: the range of values to
 * read (default: all). Values outside it are undefined, and are not read if the manifest has checksums of
 * blocks. */
typedef void checkpoint_wanted(void *context, int64_t index, int64_t *first, int64_t *count);
int checkpoint_tensors(const struct checkpoint *c, const struct weights_row *rows, int64_t count,
                       checkpoint_wanted *part,
                       int (*take)(void *context, int64_t index, const float *values, struct error *err),
                       void *context, struct error *err);
/* Reads the first `count` records in order, each with the part of every writer (c->writers). want: the
 * writers whose parts are passed first, the others as NULL; those are read only if `take` returns
 * CHECKPOINT_MORE. NULL: all. */
enum { CHECKPOINT_MORE = -1 };
typedef void checkpoint_writers(void *context, int64_t index, bool *writers);
int checkpoint_records(const struct checkpoint *c, int64_t count, checkpoint_writers *want,
                       int (*take)(void *context, int64_t index, const void *const *parts,
                                   const size_t *bytes, struct error *err),
                       void *context, struct error *err);

/* The checkpoint with the best evaluation, ckpt/best.json. It is not removed with the old ones. It is named
 * before it is saved, together with the one before it, so that no crash loses both: the reader returns the
 * first of the two that is complete. */
struct checkpoint_best {
    int64_t step; /* -1: none, or it is missing or incomplete */
    char metric[24];
    double value; /* of the metric */
};
/* before: the best complete one; NULL or step -1: none. */
int checkpoint_best_write(const char *directory, const struct checkpoint_best *best,
                          const struct checkpoint_best *before, struct error *err);
/* An error: it cannot be read now, so that it is unknown which one it is. `find` tries for a while, as
 * checkpoint_newest does. */
int checkpoint_best_read(const char *directory, struct checkpoint_best *best, struct error *err);
int checkpoint_best_find(const char *directory, struct checkpoint_best *best, struct error *err);
/* Names `best` alone, or none (step -1): before a run continues, which may save the step of a crash with
 * another result. Failures are logged. */
void checkpoint_best_settle(const char *directory, const struct checkpoint_best *best);

/* Returns the file names of a readable checkpoint, its manifest last, then NULL; the caller frees each
 * name and the array. NULL: none. */
char **checkpoint_files(const char *directory, int64_t step, struct error *err);

#endif
