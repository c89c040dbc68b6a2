/* Checksums of the weights and images that a run uses. A file of the same name may have other content: a host
 * may have a stale copy, or the file may be replaced while a run is stopped. Therefore content is compared
 * between the ranks when a run starts, and with meta.json when it resumes (resume_check.h).
 *
 * Weights: a checksum of all values that were loaded into a tower, and the part of the model configuration
 * that a sidecar config may set. Equal values have equal checksums in any format, dtype or sharding and with
 * any key names. Images and token files: image_list_hash covers names and sizes of all,
 * a sample the bytes of some. */
#ifndef MEOPT_STEP_CONTENT_H
#define MEOPT_STEP_CONTENT_H

#include "core/data/list.h"
#include "core/comm/comm.h"
#include "core/nn/nn.h"

struct tower_content {
    uint32_t crc32c; /* sum over tensors of the CRC-32C of name and values; 0: none came from a file */
    char model[448]; /* "family=dinov2 depth=24 heads=16 ..." */
};

/* Adds one tensor (fp32 values) to the checksum. */
void content_add(struct tower_content *content, const struct parameter *parameter, const float *values);
void content_set_model(struct tower_content *content, const struct model_shape *model_shape);

/* Compares one tower ("teacher", "student") between all ranks (collective call). A difference is EXIT_CONFIG
 * on every rank, with the file's path and the first rank that differs from rank 0. */
int content_compare_ranks(struct comm *ranks, const char *tower, const char *path,
                          const struct tower_content *content, struct error *err);
/* Compares the sampled images of a list in the same way. */
int content_compare_images(struct comm *ranks, const struct image_list *list, const char *root,
                           struct error *err);

/* Returns the checksums of the sampled images as in meta.json: "1a2b3c4d -" ("-": could not be read). The
 * caller frees. */
char *content_samples(const struct image_list *list, const char *root);
/* Their member of meta.json: PREFIX_samples_crc32c, of token files PREFIX_windows_crc32c. */
enum { CONTENT_MEMBER = 40 };
const char *content_samples_member(char member[CONTENT_MEMBER], const char *prefix,
                                   const struct image_list *list);
/* Returns the name of the first image whose checksum differs between two such texts of one list, or NULL. */
const char *content_changed_sample(const struct image_list *list, const char *before, const char *now);

#endif
