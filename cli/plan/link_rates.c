/* Rates of disks and links: see link_rates.h. */
#include "cli/plan/link_rates.h"
#include "core/base/clock.h"
#include "core/base/transfer.h"
#include "core/experiment/experiment.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { PIECE = 1 << 20, PIECES = 64, SLOTS = 4 };

/* Writes and reads a scratch file with O_DIRECT, and returns the rate. */
static int measure_disk(double *gb_per_s, const char *directory, struct error *err)
{
    struct transfers *t;
    char *buffers = NULL;
    int code = transfers_open(&t, directory, (int64_t)PIECE * PIECES, SLOTS, err);
    if (code) return code;
    if (posix_memalign((void **)&buffers, TRANSFER_ALIGNMENT, (size_t)PIECE * SLOTS)) buffers = NULL;
    if (!buffers)
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "out of memory while measuring %s", directory);
    else memset(buffers, 0x5a, (size_t)PIECE * SLOTS);
    double begin = clock_seconds();
    for (int i = 0; i < 2 * PIECES && !code; i++) {
        struct transfer piece = {buffers + (size_t)(i % SLOTS) * PIECE, PIECE, (int64_t)(i % PIECES) * PIECE};
        code = transfers_wait(t, i % SLOTS, NULL, err);
        if (!code) transfers_start(t, i % SLOTS, i < PIECES ? &piece : NULL, i < PIECES ? NULL : &piece);
    }
    for (int slot = 0; slot < SLOTS && !code; slot++) code = transfers_wait(t, slot, NULL, err);
    *gb_per_s = 2e-9 * PIECE * PIECES / (clock_seconds() - begin);
    transfers_close(t);
    free(buffers);
    return code;
}

/* Sends memory to the card and back twice; returns the seconds of the second time. The first time faults in
 * the pages. */
static double time_round_trip(struct device *dev, struct device_stream *queue, char *there, char *here)
{
    double begin = 0;
    for (int i = 0; i < 2 * 2 * PIECES; i++) {
        size_t at = (size_t)(i % PIECES) * PIECE;
        if (i % PIECES == 0) dev->streams->finish(dev, queue);
        if (i == 2 * PIECES) begin = clock_seconds();
        if (i / PIECES % 2) dev->streams->download(dev, queue, here + at, there + at, PIECE);
        else dev->streams->send(dev, queue, there + at, here + at, PIECE);
    }
    dev->streams->finish(dev, queue);
    return clock_seconds() - begin;
}

static int measure_link(double *gb_per_s, const struct config *config, struct error *err)
{
    struct device *dev;
    struct device_stream *queue = NULL;
    int code = experiment_open_device(&dev, config, false, err);
    if (code) return code;
    size_t bytes = (size_t)PIECE * PIECES;
    char *there = device_alloc(dev, MEMORY_WORKSPACE, bytes, "measurement of the link", err),
         *here = there ? dev->streams->host_allocate(dev, bytes) : NULL;
    if (!there) code = err->code;
    else if (!here)
        code = error_set(err, EXIT_HOST_MEMORY, NULL, "cannot pin %zu bytes to measure the link to the card",
                         bytes);
    if (!code) code = dev->streams->create(dev, &queue, err);
    if (!code) memset(here, 0x5a, bytes);
    if (!code) *gb_per_s = 2e-9 * (double)bytes / time_round_trip(dev, queue, there, here);
    if (!code) code = device_check(dev, err);
    dev->streams->destroy(dev, queue);
    dev->streams->host_free(dev, here);
    device_close(dev);
    return code;
}

static bool on_different_disks(const char *a, const char *b)
{
    struct stat one, two;
    return stat(a, &one) != 0 || stat(b, &two) != 0 || one.st_dev != two.st_dev;
}

int carry_measure(struct memory_options_speed *speed, const struct config *c, struct error *err)
{
    const char *scratch = c->train.scratch_dir[0] ? c->train.scratch_dir : c->directory,
               *states = c->optim.offload_dir[0] ? c->optim.offload_dir : scratch;
    double other = 0;
    speed->carry = CARRY_MEASURED;
    if (device_is_card(device_type_names[c->device.type])) {
        speed->carried_by = _("the link to the card");
        return measure_link(&speed->carried_gb_per_s, c, err);
    }
    speed->carried_by = _("the scratch directory");
    int code = measure_disk(&speed->carried_gb_per_s, scratch, err);
    if (code || states == scratch || !on_different_disks(scratch, states)) return code;
    if ((code = measure_disk(&other, states, err)) != 0) return code;
    speed->carried_by = _("the scratch directory, the slower of two");
    if (other >= speed->carried_gb_per_s) return 0;
    speed->carried_gb_per_s = other;
    speed->carried_by = _("optim.offload_dir, the slower of two");
    return 0;
}
