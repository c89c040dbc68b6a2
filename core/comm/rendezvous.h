/* How ranks find the coordinator (hub.h): a place is its address, port and the run's random key.
 *
 * Ranks read it from a file of mode 0600, in a directory that all nodes see, or from the environment
 * variable MEOPT_RANKS. It is never on a command line, which other users can read. The port is bound to one
 * address: 127.0.0.1 if all ranks are on this host, otherwise the host's address on the job's network.
 */
#ifndef MEOPT_COMM_RENDEZVOUS_H
#define MEOPT_COMM_RENDEZVOUS_H

#include "core/base/error.h"
#include "core/comm/wire.h"

struct place {
    char address[64]; /* numeric */
    int port;
    uint8_t key[WIRE_KEY_BYTES];
    char run[1024]; /* the run directory; only in a file */
    bool resume;    /* the run is resumed; only in a file */
};
enum { PLACE_TEXT = 192 };
#define PLACE_VARIABLE "MEOPT_RANKS"

/* Fills the key with random bytes of the kernel. */
int place_new_key(struct place *place, struct error *err);
/* Fills the address to listen on: MEOPT_RANKS_ADDRESS; 127.0.0.1 for one host; the address of the host
 * name; or the first network interface that is up. */
int address_own(struct place *place, bool one_host, struct error *err);

/* Writes "ADDRESS PORT KEY". */
void place_text(const struct place *place, char text[PLACE_TEXT]);
/* Parses it; EXIT_FAILED if it is invalid. */
int place_parse(struct place *place, const char *text, struct error *err);

/* Writes the lines "ADDRESS PORT KEY", the run directory, and "resume" or "begin". Replaces the file of an
 * earlier run. */
int place_write(const struct place *place, const char *path, struct error *err);
/* EXIT_FAILED if the file does not exist, or if other users can read it. */
int place_read(struct place *place, const char *path, struct error *err);

/* Open a close-on-exec socket: one that listens (place->port 0: any port, which it fills in), or one that
 * is connected within `seconds`. */
int place_listen(struct place *place, int *fd, struct error *err);
int place_connect(const struct place *place, double seconds, int *fd, struct error *err);

#endif
