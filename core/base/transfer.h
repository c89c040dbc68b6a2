/* Asynchronous reads and writes of one scratch file, for data that do not fit into memory.
 *
 * The file has no name: it exists while a process holds it open, and a killed process leaves nothing. It is
 * accessed with O_DIRECT if the file system supports that, so that it occupies no page cache. The caller
 * numbers the slots. Each slot has one transfer at a time: a write, then a read into the memory that was
 * written, so that a buffer passes from one part of the file to the next without further calls.
 * transfers_wait of a slot returns the error of its transfer.
 *
 *     transfers_open(&t, "/local/nvme", bytes, 4, &err);      // allocates the space; fails on a full disk
 *     transfers_start(t, 0, NULL, &(struct transfer){buffer, bytes, 0});
 *     transfers_wait(t, 0, &err);
 *     transfers_close(t);
 *
 * One thread at a time calls these functions. */
#ifndef MEOPT_BASE_TRANSFER_H
#define MEOPT_BASE_TRANSFER_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct transfer {
    void *buffer;
    size_t bytes; /* buffer, bytes and offset: multiples of TRANSFER_ALIGNMENT */
    int64_t offset;
};

struct transfers;
int transfers_open(struct transfers **t, const char *directory, int64_t bytes, int slots, struct error *err);
/* write or read may be NULL. The slot's previous transfer must have been waited for. */
void transfers_start(struct transfers *t, int slot, const struct transfer *write,
                     const struct transfer *read);
/* Waits until the slot is idle, and adds the waiting time to *seconds (or NULL). After an error the content
 * of the slot's buffer and of its part of the file is undefined. */
int transfers_wait(struct transfers *t, int slot, double *seconds, struct error *err);
/* Returns whether transfers_wait would return at once. */
bool transfers_idle(struct transfers *t, int slot);
/* Waits for all transfers; NULL is allowed. */
void transfers_close(struct transfers *t);

enum { TRANSFER_ALIGNMENT = 4096 }; /* a file system that requires more uses the page cache */
/* Whether O_DIRECT is used, whether the directory is on tmpfs. */
bool transfers_direct(const struct transfers *t);
bool transfers_in_memory(const struct transfers *t);

#endif
