/* The coordinator's thread: see serve.h. */
#include "core/comm/serve.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/platform.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SERVE_TICK_MS = 250,
    SERVE_READ_BYTES = 16384,
    SERVE_ACCEPTS = 64, /* new connections per round, before existing ones are read */
    SERVE_PAUSE_SECONDS = 1,
    SERVE_SPARE = 64 /* file descriptors for the rest of the process */
};

struct hub_server {
    struct hub *hub;
    struct rendezvous rendezvous;
    char *file; /* with the rendezvous, and its identity: */
    dev_t device;
    ino_t inode;
    int listening, ending; /* an eventfd */
    int *fds, count;       /* of the hub's peers; -1: none */
    double paused_until;   /* accepts no connection before, because descriptors ran out */
    struct pollfd *waits;
    pthread_t thread;
    pthread_mutex_t mutex;
};

/* ---- in the thread, with the mutex locked ---- */

static void disconnect(struct hub_server *s, int peer, double now)
{
    close(s->fds[peer]);
    s->fds[peer] = -1;
    hub_ended(s->hub, peer, now);
}

static void read_from(struct hub_server *s, int peer, double now)
{
    uint8_t bytes[SERVE_READ_BYTES];
    for (int i = 0; i < 16; i++) {
        ssize_t n = read(s->fds[peer], bytes, sizeof bytes);
        if (n > 0) hub_receive(s->hub, peer, bytes, (size_t)n, now);
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        else {
            disconnect(s, peer, now);
            return;
        }
    }
}

/* Out of file descriptors: closes the oldest connection without a key, or pauses accepting. */
static bool drop_or_pause(struct hub_server *s, double now)
{
    int peer = hub_drop_stranger(s->hub);
    if (peer >= 0) {
        close(s->fds[peer]);
        s->fds[peer] = -1;
    } else s->paused_until = now + SERVE_PAUSE_SECONDS;
    return peer >= 0;
}

/* Accepts a few connections and reads each at once: a rank sends the key with its first bytes. */
static void accept_connections(struct hub_server *s, double now)
{
    int fd, on = 1;
    for (int i = 0; i < SERVE_ACCEPTS && now >= s->paused_until; i++) {
        fd = accept4(s->listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE) && drop_or_pause(s, now)) continue;
        if (fd < 0 && errno == ECONNABORTED) continue;
        if (fd < 0) return;
        int peer = hub_peer(s->hub, now);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        for (; s->count <= peer; s->count++) {
            s->fds = xrealloc(s->fds, (size_t)(s->count + 1) * sizeof *s->fds);
            s->fds[s->count] = -1;
        }
        if (s->fds[peer] >= 0) close(s->fds[peer]); /* of the oldest connection without a key */
        s->fds[peer] = fd;
        read_from(s, peer, now);
    }
}

static void write_to(struct hub_server *s, int peer, double now)
{
    struct wire_bytes *out = hub_output(s->hub, peer);
    while (out->bytes) {
        ssize_t n = send(s->fds[peer], out->data, out->bytes, MSG_NOSIGNAL);
        if (n > 0) wire_drop(out, (size_t)n);
        else if (n < 0 && errno == EINTR) continue;
        else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        else {
            disconnect(s, peer, now);
            return;
        }
    }
    wire_free(out);
    if (hub_closing(s->hub, peer)) disconnect(s, peer, now);
}

/* Fills the poll set: two own descriptors, then the peers. Returns the number of peers. */
static int gather_waits(struct hub_server *s)
{
    s->waits = xrealloc(s->waits, (size_t)(s->count + 2) * sizeof *s->waits);
    s->waits[0] = (struct pollfd){s->ending, POLLIN, 0};
    s->waits[1] = (struct pollfd){clock_seconds() < s->paused_until ? -1 : s->listening, POLLIN, 0};
    for (int i = 0; i < s->count; i++) {
        bool more = s->fds[i] >= 0 && hub_pending(s->hub, i);
        s->waits[2 + i] = (struct pollfd){s->fds[i], (short)(POLLIN | (more ? POLLOUT : 0)), 0};
    }
    return s->count;
}

static void *server_run(void *context)
{
    struct hub_server *s = context;
    pthread_mutex_lock(&s->mutex);
    for (bool ending = false; !ending;) {
        int count = gather_waits(s);
        pthread_mutex_unlock(&s->mutex);
        poll(s->waits, (nfds_t)(count + 2), SERVE_TICK_MS);
        pthread_mutex_lock(&s->mutex);
        double now = clock_seconds();
        ending = (s->waits[0].revents & POLLIN) != 0;
        for (int i = 0; i < count; i++)
            if (s->fds[i] >= 0 && (s->waits[2 + i].revents & (POLLIN | POLLHUP | POLLERR)))
                read_from(s, i, now);
        accept_connections(s, now);
        hub_tick(s->hub, now);
        for (int i = 0; i < s->count; i++)
            if (s->fds[i] >= 0) write_to(s, i, now);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- calls from other threads ---- */

/* Writes the file. It exists for the whole run, so that a rank that is started twice is refused at once. */
static int publish_place(struct hub_server *s, const char *file, struct error *err)
{
    struct stat st;
    int code = rendezvous_write(&s->rendezvous, file, err);
    if (code) return code;
    s->file = xstrdup(file);
    if (stat(file, &st) == 0) {
        s->device = st.st_dev;
        s->inode = st.st_ino;
    }
    return 0;
}

/* Removes the file, unless another run has replaced it. */
static void remove_place(struct hub_server *s)
{
    struct stat st;
    if (stat(s->file, &st) == 0 && st.st_dev == s->device && st.st_ino == s->inode) unlink(s->file);
    free(s->file);
    s->file = NULL;
}

static void server_free(struct hub_server *s)
{
    for (int i = 0; i < s->count; i++)
        if (s->fds[i] >= 0) close(s->fds[i]);
    if (s->listening >= 0) close(s->listening);
    if (s->ending >= 0) close(s->ending);
    hub_free(s->hub);
    free(s->fds);
    free(s->waits);
    free(s->file);
    free(s);
}

/* Raises the limit of file descriptors to one per rank plus some connections without a key. */
static int count_descriptors(struct hub_options *o, struct error *err)
{
    int strangers = HUB_STRANGERS + o->size, least = o->size + 1 + SERVE_SPARE,
        allowed = descriptors_allow(least + strangers);
    if (allowed < least)
        return error_set(err, EXIT_FAILED, "raise it before starting the ranks: 'ulimit -n', or LimitNOFILE",
                         "%d ranks need %d file descriptors, the hard limit is %d", o->size, least, allowed);
    o->strangers = allowed - least + 1 < strangers ? allowed - least + 1 : strangers;
    return 0;
}

int hub_server_start(struct hub_server **server, const struct hub_options *options, bool one_host,
                     const char *file, const char *run, bool resume, struct error *err)
{
    struct hub_server *s = xcalloc(1, sizeof *s);
    struct hub_options own = *options;
    s->listening = -1;
    s->ending = eventfd(0, EFD_CLOEXEC);
    *server = NULL;
    int code = s->ending < 0 ? error_errno(err, EXIT_FAILED, NULL, "cannot create an eventfd")
                             : count_descriptors(&own, err);
    if (!code && run && strlen(run) >= sizeof s->rendezvous.run)
        code = error_set(err, EXIT_FAILED, NULL, "the path of the run directory is longer than %zu bytes",
                         sizeof s->rendezvous.run - 1);
    if (!code && run) strcpy(s->rendezvous.run, run);
    s->rendezvous.resume = resume;
    if (!code) code = rendezvous_new_key(&s->rendezvous, err);
    if (!code) code = rendezvous_own_address(&s->rendezvous, one_host, err);
    if (!code) code = rendezvous_listen(&s->rendezvous, &s->listening, err);
    if (!code && file) code = publish_place(s, file, err);
    if (code) {
        server_free(s);
        return code;
    }
    memcpy(own.key, s->rendezvous.key, sizeof own.key);
    s->hub = hub_create(&own, clock_seconds());
    pthread_mutex_init(&s->mutex, NULL);
    int failed = thread_start(&s->thread, server_run, s);
    if (failed) {
        if (s->file) remove_place(s);
        server_free(s);
        errno = failed;
        return error_errno(err, EXIT_FAILED, NULL, "cannot start the coordinator's thread");
    }
    *server = s;
    return 0;
}

void hub_server_stop(struct hub_server *s)
{
    const uint64_t one = 1;
    if (!s) return;
    while (write(s->ending, &one, sizeof one) < 0 && errno == EINTR)
        ;
    pthread_join(s->thread, NULL);
    if (s->file) remove_place(s);
    pthread_mutex_destroy(&s->mutex);
    server_free(s);
}

const struct rendezvous *hub_server_rendezvous(const struct hub_server *s) { return &s->rendezvous; }

int hub_server_diagnosis(struct hub_server *s, int *rank, struct error *err)
{
    pthread_mutex_lock(&s->mutex);
    int code = hub_diagnosis(s->hub, rank, err);
    pthread_mutex_unlock(&s->mutex);
    return code;
}

void hub_server_end(struct hub_server *s, int rank, const struct error *why)
{
    pthread_mutex_lock(&s->mutex);
    hub_end(s->hub, rank, why);
    pthread_mutex_unlock(&s->mutex); /* the thread sends it within SERVE_TICK_MS */
}

bool hub_server_all_left(struct hub_server *s)
{
    pthread_mutex_lock(&s->mutex);
    bool left = hub_all_left(s->hub);
    pthread_mutex_unlock(&s->mutex);
    return left;
}

bool hub_server_rank(struct hub_server *s, int r, struct hub_rank *rank, double *silent, double *still)
{
    pthread_mutex_lock(&s->mutex);
    double now = clock_seconds();
    *rank = *hub_rank(s->hub, r);
    pthread_mutex_unlock(&s->mutex);
    rank->offer = (struct wire_bytes){0};
    *silent = now - rank->beat_at;
    *still = now - rank->progress_at;
    return rank->joined;
}
