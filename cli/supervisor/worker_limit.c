/* Under a limit of the address space (ulimit -v), libraries crash because they use the null pointer of a
 * failed allocation. This file reports such a crash as out of memory. */
#include "cli/supervisor/worker.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NULL_PAGES_BYTES = 1 << 16 }; /* a null pointer plus an offset */

static struct worker_report *worker_limited;

static long long taken_pages(void)
{
    char text[128] = "";
    long long pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0) sscanf(text, "%lld", &pages);
    if (fd >= 0) close(fd);
    return pages;
}

static void on_null_pointer(int number, siginfo_t *info, void *context)
{
    (void)context;
    struct rlimit limit = {0};
    if (info->si_code <= 0 || (uintptr_t)info->si_addr >= NULL_PAGES_BYTES || getrlimit(RLIMIT_AS, &limit)) {
        signal(number, SIG_DFL); /* the access repeats after the handler and kills the process */
        if (info->si_code <= 0) raise(number);
        return;
    }
    worker_limited->code = error_set(
        &worker_limited->err, EXIT_HOST_MEMORY, "raise the limit: ulimit -v unlimited",
        "a library failed to allocate memory: the address space is limited to %llu MiB (ulimit -v), "
        "%lld are in use",
        (unsigned long long)limit.rlim_cur >> 20, taken_pages() * (long long)sysconf(_SC_PAGESIZE) >> 20);
    atomic_store(&worker_limited->ended, 1);
    _exit(EXIT_HOST_MEMORY);
}

/* A library has called exit(), as libgomp does if it cannot start a thread; its message is on stderr. */
static void on_early_exit(int status, void *context)
{
    struct rlimit limit;
    (void)context;
    if (status != 1 || atomic_load(&worker_limited->ended)) return;
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    worker_limited->code = error_set(&worker_limited->err, limited ? EXIT_HOST_MEMORY : EXIT_FAILED,
                                     limited ? N_("raise the limit: ulimit -v unlimited")
                                             : N_("raise the limits on threads and memory (ulimit -u, -v)"),
                                     "a library ended the worker%s: see its message above",
                                     limited ? _(", whose address space is limited (ulimit -v)") : "");
    atomic_store(&worker_limited->ended, 1);
    _exit(worker_limited->code);
}

void worker_watch_limit(struct worker_report *report)
{
    struct rlimit limit;
    worker_limited = report;
    on_exit(on_early_exit, NULL);
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
    mallopt(M_ARENA_MAX, 1); /* else each thread takes 64 MiB of the address space where they are free */
    sigaction(SIGSEGV, &(struct sigaction){.sa_sigaction = on_null_pointer, .sa_flags = SA_SIGINFO}, NULL);
}
