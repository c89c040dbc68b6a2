/* A rank's connection to the coordinator: see heartbeat.h. */
#include "core/comm/heartbeat.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* DIAGNOSIS_SECONDS: a rank waits longer than the coordinator, which reports the missing ranks. */
enum { BEAT_SECONDS = 1, RETRY_MS = 200, SEND_SECONDS = 5, DIAGNOSIS_SECONDS = 10 };

struct heartbeat {
    struct heartbeat_options options;
    int fd, ending; /* an eventfd */
    struct wire_bytes in;
    char run[sizeof((struct rendezvous *)0)->run];
    bool resume;
    pthread_t thread;
    pthread_mutex_t sending, mutex; /* sending: writes to the socket; mutex: the members below */
    pthread_cond_t changed;
    bool exchanging, answered, over;
    char offer_name[32];
    uint8_t *all; /* result of the current exchange */
    size_t all_bytes;
    struct error why;
    pthread_t tearing; /* calls `lost`; valid if `tears` */
    bool tears;
};

/* ---- the socket ---- */

/* Sends all bytes within SEND_SECONDS: the coordinator reads continuously. */
static int send_all(struct heartbeat *h, struct wire_bytes *out)
{
    double until = clock_seconds() + SEND_SECONDS;
    int code = 0;
    pthread_mutex_lock(&h->sending);
    while (out->bytes && !code) {
        ssize_t n = send(h->fd, out->data, out->bytes, MSG_NOSIGNAL);
        struct pollfd wait = {h->fd, POLLOUT, 0};
        if (n > 0) wire_drop(out, (size_t)n);
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) && clock_seconds() < until)
            poll(&wait, 1, 200);
        else code = EXIT_NETWORK;
    }
    pthread_mutex_unlock(&h->sending);
    wire_free(out);
    return code;
}

/* Receives some bytes. Returns 1, 0 if none are available, -1 at the end of the connection. */
static int receive_some(struct heartbeat *h)
{
    uint8_t bytes[16384];
    ssize_t n = recv(h->fd, bytes, sizeof bytes, 0);
    if (n > 0) wire_append(&h->in, bytes, (size_t)n);
    if (n > 0) return 1;
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) ? 0 : -1;
}

/* ---- joining ---- */

static int read_rendezvous(const struct heartbeat_options *o, struct rendezvous *rendezvous,
                           struct error *err)
{
    return o->variable ? rendezvous_parse(rendezvous, o->variable, err)
                       : rendezvous_read(rendezvous, o->file, err);
}

static int abort_error(const struct wire_message *m, struct error *err)
{
    struct rank_bye bye;
    if (!wire_get_bye(m, &bye)) return error_set(err, EXIT_RANK_LOST, NULL, "the run has ended");
    if (!bye.code) bye.code = EXIT_RANK_LOST;
    return wire_bye_error(&bye, err);
}

/* Waits for WELCOME. Returns 0 or the reason of an ABORT. *ours: the coordinator has answered, so the
 * rendezvous is the right one. */
static int wait_welcome(struct heartbeat *h, double until, bool *ours, struct error *err)
{
    struct wire_message m;
    size_t taken;
    for (;;) {
        int found = wire_next(h->in.data, h->in.bytes, WIRE_TO_RANK_BYTES, &m, &taken);
        if (found < 0)
            return error_set(err, EXIT_NETWORK, NULL, "the coordinator of the ranks does not answer");
        if (found > 0) {
            *ours = true;
            int code = m.type == WIRE_WELCOME ? 0
                       : m.type == WIRE_ABORT
                           ? abort_error(&m, err)
                           : error_set(err, EXIT_NETWORK, NULL, "invalid message from the coordinator");
            wire_drop(&h->in, taken);
            return code;
        }
        double left = until - clock_seconds();
        struct pollfd wait = {h->fd, POLLIN, 0};
        if (left <= 0)
            return error_set(err, EXIT_RANK_LOST, "see the log of rank 0 for the missing ranks",
                             "not all %d ranks joined within %.0f s", h->options.facts.size,
                             h->options.seconds);
        poll(&wait, 1, left > 1 ? 1000 : (int)(1000 * left) + 1);
        if (receive_some(h) < 0)
            return error_set(err, EXIT_NETWORK, NULL, "the coordinator of the ranks closed the connection");
    }
}

static int try_join(struct heartbeat *h, double until, bool *ours, struct error *err)
{
    struct rendezvous rendezvous;
    struct wire_bytes hello = {0};
    int code = read_rendezvous(&h->options, &rendezvous, err);
    if (code) return code;
    double left = until - clock_seconds();
    if ((code = rendezvous_connect(&rendezvous, left < 5 ? left + 0.1 : 5, &h->fd, err)) != 0) return code;
    wire_put_hello(&hello, rendezvous.key, &h->options.facts);
    code = send_all(h, &hello)
               ? error_set(err, EXIT_NETWORK, NULL, "the coordinator of the ranks closed the connection")
               : wait_welcome(h, until + DIAGNOSIS_SECONDS, ours, err);
    memcpy(h->run, rendezvous.run, sizeof h->run);
    h->resume = rendezvous.resume;
    if (!code) return 0;
    close(h->fd);
    h->fd = -1;
    h->in.bytes = 0;
    return code;
}

/* Joins, with retries: the file may appear late, or belong to an earlier run until rank 0 replaces it. */
static int join(struct heartbeat *h, struct error *err)
{
    double until = clock_seconds() + h->options.seconds;
    struct error why = {0};
    for (bool ours = false;;) {
        int code = try_join(h, until, &ours, &why);
        if (code == 0) return 0;
        if (ours || clock_seconds() >= until) {
            if (ours) {
                if (err) *err = why;
                return code;
            }
            return error_set(
                err, EXIT_RANK_LOST, "check that rank 0 runs and that all nodes see the run directory",
                "rank %d of %d found no rank 0 within %.0f s: %s%s%.300s", h->options.facts.rank,
                h->options.facts.size, h->options.seconds, why.file, why.file[0] ? ": " : "", why.what);
        }
        nanosleep(&(struct timespec){.tv_nsec = RETRY_MS * 1000000L}, NULL);
    }
}

/* ---- the thread ---- */

static void *tear_down(void *context)
{
    struct heartbeat *h = context;
    h->options.lost(h->options.context, &h->why);
    return NULL;
}

/* Ends this rank: wakes waiting callers, calls `lost` in its own thread, and kills the process after
 * HEARTBEAT_GRACE_SECONDS. */
static void end_run(struct heartbeat *h, const struct error *why)
{
    pthread_mutex_lock(&h->mutex);
    h->why = *why;
    h->over = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->mutex);
    h->tears = thread_start(&h->tearing, tear_down, h) == 0;
    struct pollfd wait = {h->ending, POLLIN, 0};
    double until = clock_seconds() + HEARTBEAT_GRACE_SECONDS;
    while (clock_seconds() < until)
        if (poll(&wait, 1, 200) == 1) return; /* heartbeat_leave was called */
    kill(getpid(), SIGKILL);
}

static void store_gathered(struct heartbeat *h, const struct wire_message *m)
{
    int size = h->options.facts.size;
    struct wire_offer *offers = xcalloc((size_t)size, sizeof *offers);
    char name[32];
    bool good = wire_get_all(m, name, offers, size);
    pthread_mutex_lock(&h->mutex);
    if (good && h->exchanging && strcmp(name, h->offer_name) == 0) {
        for (int r = 0; r < size && good; r++) {
            good = offers[r].bytes == h->all_bytes;
            if (good) memcpy(h->all + (size_t)r * h->all_bytes, offers[r].data, h->all_bytes);
        }
        h->exchanging = false;
        h->answered = good;
        pthread_cond_broadcast(&h->changed);
    }
    pthread_mutex_unlock(&h->mutex);
    free(offers);
}

static void beat(struct heartbeat *h)
{
    struct rank_beat b = {0};
    struct wire_bytes out = {0};
    h->options.beat(h->options.context, &b);
    pthread_mutex_lock(&h->mutex);
    if (h->exchanging) b.wait = RANK_OFFERS;
    pthread_mutex_unlock(&h->mutex);
    wire_put_beat(&out, &b);
    send_all(h, &out); /* handle_messages detects a lost coordinator */
}

/* Handles messages of the coordinator. Returns false if the run has ended. */
static bool handle_messages(struct heartbeat *h)
{
    struct wire_message m;
    struct error why;
    size_t taken;
    int ended = receive_some(h), found;
    bool unanswered = ended < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH);
    while ((found = wire_next(h->in.data, h->in.bytes, WIRE_TO_RANK_BYTES, &m, &taken)) == 1) {
        if (m.type == WIRE_ABORT) {
            abort_error(&m, &why);
            end_run(h, &why);
            return false;
        }
        if (m.type == WIRE_ALL) store_gathered(h, &m);
        if (m.type == WIRE_ASK) beat(h);
        wire_drop(&h->in, taken);
    }
    if (ended >= 0 && found >= 0) return true;
    if (ended < 0 && unanswered)
        error_set(&why, EXIT_RANK_LOST, "see the log of rank 0",
                  "the coordinator of the ranks does not answer: the network is cut or its host is down");
    else error_set(&why, EXIT_RANK_LOST, NULL, "the coordinator of the ranks has exited");
    end_run(h, &why);
    return false;
}

static void *heartbeat_thread(void *context)
{
    struct heartbeat *h = context;
    double due = clock_seconds();
    for (;;) {
        double left = due - clock_seconds();
        struct pollfd waits[] = {{h->ending, POLLIN, 0}, {h->fd, POLLIN, 0}};
        if (left <= 0) {
            beat(h);
            due = clock_seconds() + BEAT_SECONDS;
            continue;
        }
        poll(waits, 2, (int)(1000 * left) + 1);
        if (waits[0].revents) return NULL;
        if (waits[1].revents && !handle_messages(h)) return NULL;
    }
}

/* ---- calls from other threads ---- */

static void heartbeat_free(struct heartbeat *h)
{
    if (h->fd >= 0) close(h->fd);
    if (h->ending >= 0) close(h->ending);
    wire_free(&h->in);
    pthread_mutex_destroy(&h->sending);
    pthread_mutex_destroy(&h->mutex);
    pthread_cond_destroy(&h->changed);
    free(h);
}

int heartbeat_join(struct heartbeat **heartbeat, const struct heartbeat_options *options, struct error *err)
{
    struct heartbeat *h = xcalloc(1, sizeof *h);
    h->options = *options;
    h->fd = -1;
    h->ending = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&h->sending, NULL);
    pthread_mutex_init(&h->mutex, NULL);
    pthread_cond_init(&h->changed, NULL);
    *heartbeat = NULL;
    int code = h->ending < 0 ? error_errno(err, EXIT_FAILED, NULL, "cannot create an eventfd") : join(h, err);
    if (!code) {
        errno = thread_start(&h->thread, heartbeat_thread, h);
        if (errno) code = error_errno(err, EXIT_FAILED, NULL, "cannot start the heartbeat thread");
    }
    if (code) heartbeat_free(h);
    else *heartbeat = h;
    return code;
}

const char *heartbeat_run(const struct heartbeat *h) { return h->run; }
bool heartbeat_resumes(const struct heartbeat *h) { return h->resume; }

int heartbeat_exchange(struct heartbeat *h, const char *name, const void *own, size_t bytes, void *all,
                       struct error *err)
{
    struct wire_bytes out = {0};
    if (bytes > WIRE_OFFER_BYTES)
        return error_set(err, EXIT_FAILED, NULL, "%s: %zu bytes exceed the limit of an exchange", name,
                         bytes);
    pthread_mutex_lock(&h->mutex);
    snprintf(h->offer_name, sizeof h->offer_name, "%s", name);
    h->all = all;
    h->all_bytes = bytes;
    h->answered = false;
    h->exchanging = true;
    pthread_mutex_unlock(&h->mutex);
    wire_put_offer(&out, name, own, bytes);
    send_all(h, &out);
    pthread_mutex_lock(&h->mutex);
    while (h->exchanging && !h->over) pthread_cond_wait(&h->changed, &h->mutex);
    h->exchanging = false;
    int code = 0;
    if (h->over) {
        if (err) *err = h->why;
        code = h->why.code;
    } else if (!h->answered) {
        code = error_set(err, EXIT_RANK_LOST, NULL, "%s: ranks sent different numbers of bytes", name);
    }
    pthread_mutex_unlock(&h->mutex);
    return code;
}

int heartbeat_agree(struct heartbeat *h, const char *name, uint64_t value, struct error *err)
{
    int size = h->options.facts.size, odd = 0, count = 0;
    uint64_t *all = xcalloc((size_t)size, sizeof *all);
    int code = heartbeat_exchange(h, name, &value, sizeof value, all, err);
    for (int r = size - 1; r > 0 && !code; r--)
        if (all[r] != all[0]) odd = r, count++;
    if (count)
        code = error_set(err, EXIT_CONFIG, "all ranks must see the same files",
                         "rank %d%s has a different %s from rank 0: %016llx, not %016llx", odd,
                         count > 1 ? _(" and more ranks") : "", name, (unsigned long long)all[odd],
                         (unsigned long long)all[0]);
    free(all);
    return code;
}

/* Waits until `lost` has returned, because the caller frees its context; returns false if it hangs. */
static bool join_tear_down(struct heartbeat *h)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HEARTBEAT_GRACE_SECONDS;
    return !h->tears || pthread_timedjoin_np(h->tearing, NULL, &until) == 0;
}

void heartbeat_leave(struct heartbeat *h, int code, const struct error *why)
{
    const uint64_t one = 1;
    struct rank_bye bye = {0};
    struct wire_bytes out = {0};
    if (!h) return;
    while (write(h->ending, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(h->thread, NULL);
    if (why) wire_bye_of(&bye, why);
    bye.code = code;
    wire_put_bye(&out, WIRE_BYE, &bye);
    send_all(h, &out);
    if (join_tear_down(h)) heartbeat_free(h);
    else close(h->fd); /* tear_down may still read the rest; the process ends soon */
}
