/* The hub's sockets: a thread that listens at a place, and ends with hub_server_stop. */
#ifndef MEOPT_DIST_SERVE_H
#define MEOPT_DIST_SERVE_H

#include "core/dist/hub.h"
#include "core/dist/rendezvous.h"

struct hub_server;

/* options->key is made here. file: where ranks of other hosts find the place, removed at the end; NULL: none.
 */
int hub_server_start(struct hub_server **server, const struct hub_options *options, bool one_host,
                     const char *file, struct error *err);
void hub_server_stop(struct hub_server *server);
/* For the environment of the ranks: PLACE_VARIABLE. */
const struct place *hub_server_place(const struct hub_server *server);

/* As hub_complete, hub_verdict. */
bool hub_server_complete(struct hub_server *server);
int hub_server_verdict(struct hub_server *server, int *rank, struct error *err);
/* Facts and last beat of rank r, and how long ago it was heard and has moved; false: it is not here. */
bool hub_server_rank(struct hub_server *server, int r, struct rank_facts *facts, struct rank_beat *beat,
                     double *silent, double *still);

#endif
