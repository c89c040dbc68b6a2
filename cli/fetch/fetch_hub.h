/* meopt fetch hf:OWNER/REPO: lists or fetches the files of repositories of a hub. */
#ifndef MEOPT_CLI_FETCH_HUB_H
#define MEOPT_CLI_FETCH_HUB_H

#include "cli/command.h"

#include <stdatomic.h>

/* All operands are names of repositories (hub_is_name). */
int fetch_hub(const struct arguments *args, const atomic_int *cancel, struct error *err);

#endif
