/* How ranks find the coordinator (hub.h): a rendezvous is its address, port and the run's random key.
 *
 * Ranks read it from a file of mode 0600, in a directory that all nodes see, or from the environment
 * variable MEOPT_RANKS. It is never on a command line, which other users can read. The port is bound to one
 * address: 127.0.0.1 if all ranks are on this host, otherwise the host's address on the job's network.
 */
#ifndef MEOPT_COMM_RENDEZVOUS_H
#define MEOPT_COMM_RENDEZVOUS_H

#include "core/base/error.h"
#include "core/comm/wire.h"

struct rendezvous {
    char address[64]; /* numeric */
    int port;
    uint8_t key[WIRE_KEY_BYTES];
    char run[1024]; /* the run directory; only in a file */
    bool resume;    /* the run is resumed; only in a file */
};
enum { RENDEZVOUS_TEXT = 192 };
#define RENDEZVOUS_VARIABLE "MEOPT_RANKS"

/* Fills the key with random bytes of the kernel. */
int rendezvous_new_key(struct rendezvous *r, struct error *err);
/* Fills the address to listen on: MEOPT_RANKS_ADDRESS; 127.0.0.1 for one host; the address of the host
 * name; or the first network interface that is up. */
int rendezvous_own_address(struct rendezvous *r, bool one_host, struct error *err);

/* Writes "ADDRESS PORT KEY". */
void rendezvous_text(const struct rendezvous *r, char text[RENDEZVOUS_TEXT]);
/* Parses it; EXIT_FAILED if it is invalid. */
int rendezvous_parse(struct rendezvous *r, const char *text, struct error *err);

/* Writes the lines "ADDRESS PORT KEY", the run directory, and "resume" or "begin". Replaces the file of an
 * earlier run. */
int rendezvous_write(const struct rendezvous *r, const char *path, struct error *err);
/* EXIT_FAILED if the file does not exist, or if other users can read it. */
int rendezvous_read(struct rendezvous *r, const char *path, struct error *err);

/* Open a close-on-exec socket: one that listens (r->port 0: any port, which it fills in), or one that
 * is connected within `seconds`. */
int rendezvous_listen(struct rendezvous *r, int *fd, struct error *err);
int rendezvous_connect(const struct rendezvous *r, double seconds, int *fd, struct error *err);

#endif
