/* The coordinator's sockets: a thread that listens at a rendezvous until hub_server_stop. */
#ifndef MEOPT_COMM_SERVE_H
#define MEOPT_COMM_SERVE_H

#include "core/comm/hub.h"
#include "core/comm/rendezvous.h"

struct hub_server;

/* Creates options->key and starts the thread. file: the rendezvous and run directory, for ranks that a
 * launcher started; it exists until hub_server_stop. NULL: no file. */
int hub_server_start(struct hub_server **server, const struct hub_options *options, bool one_host,
                     const char *file, const char *run, bool resume, struct error *err);
void hub_server_stop(struct hub_server *server);
/* The rendezvous, for RENDEZVOUS_VARIABLE in the environment of the ranks. */
const struct rendezvous *hub_server_rendezvous(const struct hub_server *server);

/* As hub_all_left, hub_diagnosis. */
bool hub_server_all_left(struct hub_server *server);
int hub_server_diagnosis(struct hub_server *server, int *rank, struct error *err);
void hub_server_end(struct hub_server *server, int rank, const struct error *why); /* hub_end */
/* Copies the state of rank r except offer and peer. silent, still: seconds since its last heartbeat and
 * since its last progress. Returns false if it never joined. */
bool hub_server_rank(struct hub_server *server, int r, struct hub_rank *rank, double *silent, double *still);

#endif
