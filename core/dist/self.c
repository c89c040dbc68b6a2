/* The back end of one rank: its own neighbour. */
#include "core/dist/dist.h"

#include <string.h>

static int self_exchange(struct dist *dist, const void *send, void *receive, size_t bytes, struct error *err)
{
    (void)dist;
    (void)err;
    memcpy(receive, send, bytes);
    return 0;
}

void dist_self(struct dist *dist, struct device *device)
{
    static const struct dist_ops self = {.name = "self", .exchange = self_exchange, .gather = self_exchange};
    *dist = (struct dist){.ops = &self, .rank = 0, .size = 1, .device = device};
}
