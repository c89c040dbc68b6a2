/* Connections and pauses of downloads: see connections.h. */
#include "fetch/connections.h"

bool connections_take(struct connections *c)
{
    int spare = atomic_load(&c->spare);
    while (spare > 0)
        if (atomic_compare_exchange_weak(&c->spare, &spare, spare - 1)) return true;
    return false;
}

void connections_return(struct connections *c, int count) { atomic_fetch_add(&c->spare, count); }

void connections_pause(struct connections *c, double until)
{
    int64_t now = atomic_load(&c->resume_ms), ms = (int64_t)(until * 1000);
    while (now < ms && !atomic_compare_exchange_weak(&c->resume_ms, &now, ms))
        ;
}

double connections_resume(const struct connections *c) { return (double)atomic_load(&c->resume_ms) / 1000; }
