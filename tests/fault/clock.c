/* A library for LD_PRELOAD: time passes FAST_CLOCK times as fast for the process and for those that it
 * starts, so that pauses, intervals and time limits are short. Their clocks agree, and start at the true
 * time. */
#include "next.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static double times = 1;
static int64_t since; /* nanoseconds of CLOCK_MONOTONIC */

REAL(int, clock_gettime, (clockid_t id, struct timespec *t), (id, t))
REAL(int, poll, (struct pollfd * all, nfds_t count, int ms), (all, count, ms))
REAL(int, nanosleep, (const struct timespec *t, struct timespec *left), (t, left))
REAL(int, pthread_cond_timedwait, (pthread_cond_t * c, pthread_mutex_t *m, const struct timespec *t),
     (c, m, t))

static int64_t to_ns(const struct timespec *t) { return t->tv_sec * INT64_C(1000000000) + t->tv_nsec; }
static struct timespec of_ns(int64_t ns) { return (struct timespec){ns / 1000000000, ns % 1000000000}; }
static int64_t true_ns(clockid_t id)
{
    struct timespec t;
    real_clock_gettime(id, &t);
    return to_ns(&t);
}
static int64_t fast_ns(clockid_t id)
{
    return true_ns(id) + (int64_t)((times - 1) * (double)(true_ns(CLOCK_MONOTONIC) - since));
}

__attribute__((constructor)) static void start(void)
{
    const char *given = getenv("FAST_CLOCK"), *begun = getenv("FAST_CLOCK_SINCE");
    char text[32];
    if (given) times = atof(given);
    since = begun ? atoll(begun) : true_ns(CLOCK_MONOTONIC);
    snprintf(text, sizeof text, "%lld", (long long)since);
    setenv("FAST_CLOCK_SINCE", text, 1);
}

int clock_gettime(clockid_t id, struct timespec *t)
{
    if (id != CLOCK_MONOTONIC && id != CLOCK_REALTIME) return real_clock_gettime(id, t);
    *t = of_ns(fast_ns(id));
    return 0;
}

time_t time(time_t *to)
{
    time_t t = (time_t)(fast_ns(CLOCK_REALTIME) / 1000000000);
    if (to) *to = t;
    return t;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    (void)zone;
    int64_t ns = fast_ns(CLOCK_REALTIME);
    *t = (struct timeval){ns / 1000000000, ns / 1000 % 1000000};
    return 0;
}

int poll(struct pollfd *all, nfds_t count, int ms)
{
    return real_poll(all, count, ms <= 0 ? ms : (int)(ms / times) + 1);
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    struct timespec shorter = of_ns((int64_t)((double)to_ns(t) / times));
    return real_nanosleep(&shorter, left);
}

/* Of the clock that the time is nearer to. */
int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m,
                           const struct timespec *restrict t)
{
    clockid_t id = CLOCK_MONOTONIC;
    if (llabs(to_ns(t) - fast_ns(CLOCK_REALTIME)) < llabs(to_ns(t) - fast_ns(id))) id = CLOCK_REALTIME;
    struct timespec then = of_ns(true_ns(id) + (int64_t)((double)(to_ns(t) - fast_ns(id)) / times));
    return real_pthread_cond_timedwait(c, m, &then);
}
