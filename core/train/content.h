/* Identity by content. A configuration names files, and a name says nothing about the bytes behind it: a host
 * may have a stale copy, and a file may be replaced while a run is stopped. So the content itself is
 * compared, between the ranks of a run when it starts, and with meta.json when it resumes (resume_check.h).
 *
 * Weights: a checksum of all values that a checkpoint gave to a tower, made while they are loaded, and the
 * part of the model configuration that a sidecar file may decide. Whatever the file's format, dtype, shards
 * and key names: the same values have the same checksum. Images: image_list_hash covers names and sizes of
 * all, a sample covers the bytes of some. */
#ifndef MEOPT_TRAIN_CONTENT_H
#define MEOPT_TRAIN_CONTENT_H

#include "core/data/list.h"
#include "core/comm/comm.h"
#include "core/nn/nn.h"

struct tower_content {
    uint32_t crc32c; /* sum over the tensors of the CRC-32C of name and values; 0: none came from a file */
    char model[256]; /* "family=dinov2 depth=24 heads=16 ..." */
};

/* Adds one tensor, as fp32. */
void content_add(struct tower_content *content, const struct parameter *parameter, const float *values);
void content_set_model(struct tower_content *content, const struct model_shape *model_shape);

/* Compares one tower ("teacher", "student") over all ranks, which make this call together. EXIT_CONFIG with
 * the file's path and the first rank that differs from rank 0, on every rank. */
int content_compare_ranks(struct comm *ranks, const char *tower, const char *path,
                          const struct tower_content *content, struct error *err);
/* The same for the sampled images of a list. */
int content_compare_images(struct comm *ranks, const struct image_list *list, const char *root,
                           struct error *err);

/* The checksums of the sampled images as meta.json has them: "1a2b3c4d -" ("-": could not be read). malloc'ed
 */
char *content_samples(const struct image_list *list, const char *root);
/* Name of the first image whose checksum differs between two such texts of the same list; NULL: none does. */
const char *content_changed_sample(const struct image_list *list, const char *before, const char *now);

#endif
