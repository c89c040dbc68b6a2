/* How ranks find the hub: a place, which is an address, a port and the run's random key.
 *
 * It goes to them through a file that its owner alone may read (mode 0600), in a directory that all nodes
 * see, or through the environment variable MEOPT_RANKS, never through a command line, which everybody reads.
 * The port is bound to one address: 127.0.0.1 when all ranks are on this host, else the host's own on the
 * job's network.
 */
#ifndef MEOPT_COMM_RENDEZVOUS_H
#define MEOPT_COMM_RENDEZVOUS_H

#include "core/base/error.h"
#include "core/comm/wire.h"

struct place {
    char address[64]; /* numeric */
    int port;
    uint8_t key[WIRE_KEY_BYTES];
    char run[1024]; /* its directory, in a file only */
    bool resume;    /* it goes on, the same */
};
enum { PLACE_TEXT = 192 };
#define PLACE_VARIABLE "MEOPT_RANKS"

/* A new key, from the kernel. */
int place_new_key(struct place *place, struct error *err);
/* Where to listen: 127.0.0.1, or MEOPT_RANKS_ADDRESS, or what the host's name stands for, or the first
 * network that is up. */
int address_own(struct place *place, bool one_host, struct error *err);

/* "ADDRESS PORT KEY" */
void place_text(const struct place *place, char text[PLACE_TEXT]);
/* EXIT_FAILED when it is none. */
int place_parse(struct place *place, const char *text, struct error *err);

/* "ADDRESS PORT KEY", on a second line the run, on a third "resume" or "begin". Replaces the file of an
 * earlier run. */
int place_write(const struct place *place, const char *path, struct error *err);
/* EXIT_FAILED while it is not there; one that is not ours alone is refused. */
int place_read(struct place *place, const char *path, struct error *err);

/* A socket that listens there (place->port 0: any; it is filled in), or one that is connected: within so many
 * seconds. Close-on-exec. */
int place_listen(struct place *place, int *fd, struct error *err);
int place_connect(const struct place *place, double seconds, int *fd, struct error *err);

#endif
