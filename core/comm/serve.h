/* The hub's sockets: a thread that listens at a place, and ends with hub_server_stop. */
#ifndef MEOPT_COMM_SERVE_H
#define MEOPT_COMM_SERVE_H

#include "core/comm/hub.h"
#include "core/comm/rendezvous.h"

struct hub_server;

/* options->key is made here. file: where ranks that others started find the place and the run's directory,
 * there until the hub stops; NULL: none. */
int hub_server_start(struct hub_server **server, const struct hub_options *options, bool one_host,
                     const char *file, const char *run, bool resume, struct error *err);
void hub_server_stop(struct hub_server *server);
/* For the environment of the ranks: PLACE_VARIABLE. */
const struct place *hub_server_place(const struct hub_server *server);

/* As hub_complete, hub_all_left, hub_diagnosis. */
bool hub_server_complete(struct hub_server *server);
bool hub_server_all_left(struct hub_server *server);
int hub_server_diagnosis(struct hub_server *server, int *rank, struct error *err);
void hub_server_end(struct hub_server *server, int rank, const struct error *why); /* hub_end */
/* What is known of rank r; offer and peer are not. `silent`, `still`: seconds since it was heard and has
 * moved. false: it never came. */
bool hub_server_rank(struct hub_server *server, int r, struct hub_rank *rank, double *silent, double *still);

#endif
