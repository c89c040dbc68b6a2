/* Logs every change of a file below FAULT_UNDER, in order, with its bytes, and every sync, to reconstruct
 * the state after a power cut. Also logs where each call is made. See shim.h; tests/fault/power.py and
 * faults.py read the log. */
#include "shim.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void append(uint64_t at, const void *data, size_t bytes)
{
    if (bytes) memcpy(shared->log + at, data, bytes);
}

void log_begin(void)
{
    uint32_t none = 0;
    while (!atomic_compare_exchange_weak(&shared->lock, &none, 1)) {
        none = 0;
        sched_yield();
    }
}

void log_nothing(void) { atomic_store(&shared->lock, 0); }

void log_end(const struct record *r, const char *path, const char *other, const void *data)
{
    int before = errno;
    struct record full = *r;
    full.path_bytes = (uint32_t)(path ? strlen(path) : 0);
    full.other_bytes = (uint32_t)(other ? strlen(other) : 0);
    uint64_t at = atomic_load(&shared->log_bytes),
             bytes = sizeof full + full.path_bytes + full.other_bytes + full.data_bytes;
    if (at + bytes > shared->log_limit) {
        atomic_fetch_add(&shared->log_lost, 1);
    } else {
        append(at, &full, sizeof full);
        append(at += sizeof full, path, full.path_bytes);
        append(at += full.path_bytes, other, full.other_bytes);
        append(at += full.other_bytes, data, full.data_bytes);
        atomic_fetch_add(&shared->log_bytes, bytes);
    }
    log_nothing();
    errno = before;
}

uint64_t log_inode(int fd)
{
    struct statx s; // the one of the family that calls.c does not take over
    int before = errno;
    uint64_t inode = statx(fd, "", AT_EMPTY_PATH, STATX_INO, &s) == 0 ? s.stx_ino : 0;
    errno = before;
    return inode;
}

enum { DEEPEST = 40 };

static __thread bool inside; // backtrace and the loader may allocate

__attribute__((constructor)) static void begin(void)
{
    void *first[1];
    inside = true;
    backtrace(first, 1); // loads what it needs
    inside = false;
}

/* Addresses within the program, which lies anywhere; of libraries only that they were passed. */
uint64_t call_site(void)
{
    void *frames[DEEPEST];
    int before = errno;
    uint64_t hash = 1469598103934665603u; // FNV-1a
    int count = backtrace(frames, DEEPEST);
    for (int i = 0; i < count; i++) {
        uintptr_t within = program_offset((uintptr_t)frames[i]);
        if (within) hash = (hash ^ within) * 1099511628211u;
    }
    errno = before;
    return hash;
}

void log_site(enum kind kind, uint64_t number)
{
    if (inside) return;
    inside = true;
    struct site site = {.kind = kind, .number = (uint32_t)number, .stack = call_site()};
    uint64_t at = atomic_fetch_add(&shared->log_bytes, sizeof site);
    if (at + sizeof site > shared->log_limit) atomic_fetch_add(&shared->log_lost, 1);
    else append(at, &site, sizeof site);
    inside = false;
}
