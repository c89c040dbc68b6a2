/* SIGBUS under a mapped file: see mapped_file.h. */
#include "core/base/mapped_file.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WATCHED_MAX = 256, CLAIMED = 1 }; /* further files are reported without their name */

static struct watched {
    _Atomic uintptr_t at; /* 0: free */
    size_t bytes;
    char path[512];
} watched[WATCHED_MAX];
static void (*mapped_file_report)(const struct error *err);

void mapped_file_watch(const void *data, size_t bytes, const char *path)
{
    for (int i = 0; i < WATCHED_MAX; i++) {
        uintptr_t nothing = 0;
        if (!atomic_compare_exchange_strong(&watched[i].at, &nothing, CLAIMED)) continue;
        watched[i].bytes = bytes;
        snprintf(watched[i].path, sizeof watched[i].path, "%s", path);
        atomic_store(&watched[i].at, (uintptr_t)data);
        return;
    }
}

void mapped_file_forget(const void *data)
{
    for (int i = 0; i < WATCHED_MAX; i++)
        if (atomic_load(&watched[i].at) == (uintptr_t)data) {
            atomic_store(&watched[i].at, 0);
            return;
        }
}

static const struct watched *watched_at(uintptr_t address)
{
    for (int i = 0; i < WATCHED_MAX; i++) {
        uintptr_t at = atomic_load(&watched[i].at);
        if (at > CLAIMED && address >= at && address - at < watched[i].bytes) return &watched[i];
    }
    return NULL;
}

/* The handler runs in the access itself, in code of ours that reads a map. No lock of the C library is held,
 * so its functions may be called. */
static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)context;
    const struct watched *w = info->si_code > 0 ? watched_at((uintptr_t)info->si_addr) : NULL;
    if (!w) { /* the access repeats, and ends the process, when the handler returns */
        signal(number, SIG_DFL);
        if (info->si_code <= 0) raise(number);
        return;
    }
    struct error err;
    struct stat now;
    if (stat(w->path, &now) == 0 && (size_t)now.st_size < w->bytes)
        error_set(&err, EXIT_FAILED, "do not write to the file while meopt reads it",
                  "was truncated while it was read: %lld bytes of %zu are left", (long long)now.st_size,
                  w->bytes);
    else
        error_set(&err, EXIT_FAILED, "check the kernel log for I/O errors: dmesg",
                  "cannot be read: Input/output error");
    error_at(&err, w->path, 0, 0);
    if (mapped_file_report) mapped_file_report(&err);
    else error_print(&err);
    _exit(err.code);
}

void mapped_file_catch(void (*report)(const struct error *err))
{
    struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};
    mapped_file_report = report;
    sigaction(SIGBUS, &action, NULL);
}
