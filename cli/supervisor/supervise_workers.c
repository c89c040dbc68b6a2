/* The worker processes and the run directory of a supervisor, as its other files see them. */
#include "cli/supervisor/supervise_internal.h"
#include "core/base/log.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

bool supervisor_follow(struct supervisor *v)
{
    const char *before = v->home.directory;
    struct error why = {0};
    bool found = run_follow(&v->home, &why) == 0, here = found && run_is_here(&v->home);
    int reason = found && !here ? errno : 0;
    if (v->home.directory != before || here == v->directory_lost)
        hooks_moved(v->hooks, here ? v->home.directory : NULL);
    if (!here && !v->directory_lost)
        log_warn("the directory %s %s: nothing is written there", v->home.directory,
                 reason ? strerror(reason) : _("no longer belongs to this run"));
    v->directory_lost = !here;
    errno = reason;
    return here;
}

bool worker_running(const struct supervisor *v, int i) { return v->workers[i].pid > 0; }

void workers_signal(const struct supervisor *v, int number)
{
    for (int i = 0; i < v->count; i++)
        if (worker_running(v, i)) kill(v->workers[i].pid, number);
}
