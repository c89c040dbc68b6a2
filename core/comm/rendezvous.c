/* Address, port and key of the coordinator: see rendezvous.h. */
#include "core/comm/rendezvous.h"
#include "core/base/file.h"
#include "core/base/memory.h"
#include "core/base/platform.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int rendezvous_new_key(struct rendezvous *r, struct error *err)
{
    if (random_bytes(r->key, sizeof r->key) == 0) return 0;
    return error_errno(err, EXIT_FAILED, NULL, "cannot create the run's key");
}

/* ---- text and file ---- */

void rendezvous_text(const struct rendezvous *r, char text[RENDEZVOUS_TEXT])
{
    int n = snprintf(text, RENDEZVOUS_TEXT, "%s %d ", r->address, r->port);
    for (int i = 0; i < WIRE_KEY_BYTES; i++)
        n += snprintf(text + n, (size_t)(RENDEZVOUS_TEXT - n), "%02x", r->key[i]);
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

int rendezvous_parse(struct rendezvous *r, const char *text, struct error *err)
{
    char key[2 * WIRE_KEY_BYTES + 1], end;
    *r = (struct rendezvous){0};
    bool good = sscanf(text, "%63s %d %64s %c", r->address, &r->port, key, &end) == 3 &&
                strlen(key) == 2 * WIRE_KEY_BYTES && r->port > 0 && r->port < 65536;
    for (int i = 0; i < WIRE_KEY_BYTES && good; i++) {
        good = hex(key[2 * i]) >= 0 && hex(key[2 * i + 1]) >= 0;
        r->key[i] = (uint8_t)(hex(key[2 * i]) << 4 | hex(key[2 * i + 1]));
    }
    if (good) return 0;
    return error_set(err, EXIT_FAILED, "the process of rank 0 writes it",
                     "invalid rendezvous: expected ADDRESS PORT KEY");
}

int rendezvous_write(const struct rendezvous *r, const char *path, struct error *err)
{
    char text[RENDEZVOUS_TEXT];
    rendezvous_text(r, text);
    char *whole = xasprintf("%s\n%s\n%s\n", text, r->run, r->resume ? "resume" : "begin"),
         *side = xasprintf("%s.%ld.new", path, (long)getpid());
    unlink(side);
    int fd = open(side, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600), code = 0;
    if (fd < 0)
        code = error_errno(err, EXIT_FAILED, "check the permissions of the directory", "cannot write");
    else code = file_write_all(fd, whole, strlen(whole), side, err);
    if (fd >= 0 && close(fd) != 0 && !code) code = error_errno(err, EXIT_FAILED, NULL, "cannot write");
    if (!code && file_rename_at(AT_FDCWD, side, path) != 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot write");
    struct stat status;
    if (!code && stat(path, &status) == 0 && status.st_uid != geteuid()) {
        code = error_set(err, EXIT_FAILED, "train as an ordinary user, not as root on NFS",
                         "the file system maps user %u to user %u: ranks cannot trust the file",
                         (unsigned)geteuid(), (unsigned)status.st_uid);
        unlink(path);
    }
    if (code) {
        error_at(err, path, 0, 0);
        unlink(side);
    }
    free(side);
    free(whole);
    return code;
}

int rendezvous_read(struct rendezvous *r, const char *path, struct error *err)
{
    char text[RENDEZVOUS_TEXT + sizeof r->run + 16] = "", *line = NULL;
    struct stat status;
    int fd = -1, code = file_open(path, &fd, &status, err);
    if (!code && (status.st_uid != geteuid() || (status.st_mode & 077)))
        code = error_set(err, EXIT_FAILED, "remove it; rank 0 writes a new one with mode 0600",
                         "other users can change or read it (owner %u, mode %04o)", (unsigned)status.st_uid,
                         (unsigned)status.st_mode & 07777);
    if (!code && read(fd, text, sizeof text - 1) < 0)
        code = error_errno(err, EXIT_FAILED, NULL, "cannot read");
    if (!code && (line = strchr(text, '\n')) != NULL) *line++ = 0;
    if (!code) code = rendezvous_parse(r, text, err);
    if (!code && line) {
        snprintf(r->run, sizeof r->run, "%.*s", (int)strcspn(line, "\n"), line);
        r->resume = strstr(line, "\nresume\n") != NULL;
    }
    if (fd >= 0) close(fd);
    if (code) error_at(err, path, 0, 0);
    return code;
}

/* ---- addresses ---- */

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof in);
        return ntohl(in.sin_addr.s_addr) >> 24 == 127;
    }
    struct sockaddr_in6 in6;
    memcpy(&in6, a, sizeof in6);
    return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr);
}

static bool set_address(struct rendezvous *r, const struct sockaddr *a)
{
    socklen_t bytes = a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    return getnameinfo(a, bytes, r->address, sizeof r->address, NULL, 0, NI_NUMERICHOST) == 0;
}

/* Fills the address of an interface that is up: the one with address `wanted`; NULL: the first one that is
 * not loopback. */
static bool from_interfaces(struct rendezvous *r, const struct sockaddr *wanted)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    char address[64] = "";
    if (wanted && set_address(r, wanted)) snprintf(address, sizeof address, "%s", r->address);
    if (getifaddrs(&all) != 0) return false;
    for (int family = 0; family < 2 && !found; family++)
        for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
            if (!i->ifa_addr || i->ifa_addr->sa_family != (family ? AF_INET6 : AF_INET)) continue;
            if (!(i->ifa_flags & IFF_UP) || is_loopback(i->ifa_addr)) continue;
            found = set_address(r, i->ifa_addr) && (!wanted || strcmp(r->address, address) == 0);
        }
    freeifaddrs(all);
    return found;
}

int rendezvous_own_address(struct rendezvous *r, bool one_host, struct error *err)
{
    const char *given = getenv("MEOPT_RANKS_ADDRESS");
    char host[256] = "";
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    snprintf(r->address, sizeof r->address, "%s", given && *given ? given : "127.0.0.1");
    if (one_host || (given && *given)) return 0;
    gethostname(host, sizeof host - 1);
    bool found = false;
    if (getaddrinfo(host, NULL, &hints, &list) == 0) {
        for (const struct addrinfo *a = list; a && !found; a = a->ai_next)
            found = !is_loopback(a->ai_addr) && from_interfaces(r, a->ai_addr);
        freeaddrinfo(list);
    }
    if (found || from_interfaces(r, NULL)) return 0;
    return error_set(err, EXIT_NETWORK,
                     "set MEOPT_RANKS_ADDRESS to the address of this host on the job's network",
                     "host %.100s has no network interface that other hosts can reach", host);
}

/* ---- sockets ---- */

static int resolve(const struct rendezvous *r, struct addrinfo **list, struct error *err)
{
    char port[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%d", r->port);
    int failed = getaddrinfo(r->address, port, &hints, list);
    if (!failed) return 0;
    return error_set(err, EXIT_NETWORK, "use a numeric address, for example 10.0.0.7",
                     "invalid address %.63s: %s", r->address, gai_strerror(failed));
}

int rendezvous_listen(struct rendezvous *r, int *fd, struct error *err)
{
    struct addrinfo *list;
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof bound;
    char port[16];
    int code = resolve(r, &list, err);
    *fd = -1;
    if (code) return code;
    *fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || bind(*fd, list->ai_addr, list->ai_addrlen) != 0 || listen(*fd, SOMAXCONN) != 0 ||
        getsockname(*fd, (struct sockaddr *)&bound, &bytes) != 0 ||
        getnameinfo((struct sockaddr *)&bound, bytes, NULL, 0, port, sizeof port, NI_NUMERICSERV) != 0) {
        code = error_errno(err, EXIT_NETWORK, "set MEOPT_RANKS_ADDRESS to another address of this host",
                           "cannot listen on %s", r->address);
        if (*fd >= 0) close(*fd);
        *fd = -1;
    } else {
        r->port = atoi(port);
    }
    freeaddrinfo(list);
    return code;
}

/* TCP_USER_TIMEOUT: unacknowledged data ends the connection after this time; the kernel's default is a
 * quarter of an hour. It is longer than HUB_SILENT_SECONDS, so that a reachable rank receives ABORT first.
 * */
enum { UNANSWERED_MS = 15000 };

static bool connected(int fd, double seconds)
{
    struct pollfd wait = {fd, POLLOUT, 0};
    int failed = 0;
    socklen_t bytes = sizeof failed;
    int ready = poll(&wait, 1, (int)(1000 * seconds));
    if (ready == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) == 0) errno = failed;
    else if (ready == 0) errno = failed = ETIMEDOUT;
    else failed = errno;
    return failed == 0;
}

int rendezvous_connect(const struct rendezvous *r, double seconds, int *fd, struct error *err)
{
    struct addrinfo *list;
    int code = resolve(r, &list, err), on = 1;
    unsigned patience = UNANSWERED_MS;
    *fd = -1;
    if (code) return code;
    *fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = *fd >= 0 && (connect(*fd, list->ai_addr, list->ai_addrlen) == 0 ||
                           (errno == EINPROGRESS && connected(*fd, seconds)));
    if (ok) {
        setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(*fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof patience);
    } else {
        code = error_errno(err, EXIT_NETWORK, "check for a firewall between the nodes",
                           "%s port %d does not answer", r->address, r->port);
        if (*fd >= 0) close(*fd);
        *fd = -1;
    }
    freeaddrinfo(list);
    return code;
}
