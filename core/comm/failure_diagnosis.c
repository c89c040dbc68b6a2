/* Decides from heartbeats which rank is lost, and ends the run with the reason: see hub.h.
 *
 * hub_tick calls diagnose_ranks until a diagnosis exists. The first rule that applies ends the run:
 *
 *   disconnected    A connection ended without an exit message. While ranks join: at once. Later, after
 *                   NEXT_BEATS_SECONDS: by then the other ranks, which received ASK, have reported the
 *                   collective in which they wait for the lost one.
 *   reported        A rank exited with EXIT_RANK_LOST, and no other rule has found the lost rank within
 *                   REPORT_SECONDS. The reporting rank itself is not the lost one.
 *   absent          A rank has not joined within options.join_seconds. The next rules wait for all to join.
 *   silent          No heartbeat for HUB_SILENT_SECONDS.
 *   stuck           Heartbeats without progress for longer than hub_patience(phase). A rank that waits for
 *                   others, or is in an exempt phase (saving), cannot be stuck.
 *   all waiting     Every connected rank waits in a collective for longer than hub_patience. A rank that
 *                   has exited is the lost one; without one, the network is to blame.
 *
 * An exit message with any other exit code ends the run when it arrives (diagnose_exit_message).
 */
#include "core/comm/comm.h"
#include "core/comm/hub_internal.h"
#include "core/base/message.h"

#include <stdio.h>
#include <string.h>

enum { REPORT_SECONDS = 3 };
#define NEXT_BEATS_SECONDS 0.6

bool hub_complete(const struct hub *hub) { return hub->complete; }

/* ---- ending the run ---- */

void hub_end(struct hub *hub, int rank, const struct error *why)
{
    struct rank_bye bye;
    if (hub->why.code) return;
    hub->why = *why;
    hub->lost = rank;
    wire_bye_of(&bye, why);
    for (int r = 0; r < hub->options.size; r++)
        if (hub->ranks[r].peer >= 0) wire_put_bye(&hub->peers[hub->ranks[r].peer].out, WIRE_ABORT, &bye);
}

void hub_fail(struct hub *hub, int code, int rank, const char *what, const char *hint)
{
    struct error err;
    error_set(&err, code, hint, "%s", what);
    hub_end(hub, rank, &err);
}

/* ---- describing ranks ---- */

void describe_rank(const struct hub *hub, char *dst, size_t size, int r, const struct rank_facts *f)
{
    char place[COMM_PLACE_TEXT];
    comm_place_text(place, r, hub->options.layout);
    snprintf(dst, size, "rank %d (host %s, pid %d%s%s%s)", r, f->host[0] ? f->host : "unknown", f->pid,
             f->card[0] ? ", card " : "", f->card, place);
}

/* Writes "collective 103 (reduce)" or "message 5 (send of pipeline 0)". */
static void describe_call(char *dst, size_t size, const struct rank_beat *b)
{
    snprintf(dst, size, "%s %lld (%s%s%s)", b->message ? "message" : "collective", (long long)b->collective,
             b->name, b->group[0] ? " of " : "", b->group);
}

/* Selects ranks for list_ranks; is_absent ignores the call. */
typedef bool rank_filter(const struct hub *hub, int r, const struct rank_beat *call);

static bool is_absent(const struct hub *hub, int r, const struct rank_beat *unused)
{
    (void)unused;
    return !hub->ranks[r].joined;
}

/* Returns whether the numbers of two calls count the same. */
static bool are_comparable(const struct rank_beat *a, const struct rank_beat *b)
{
    return a->message == b->message && a->peer == b->peer && strcmp(a->group, b->group) == 0;
}

static bool waits_in(const struct hub *hub, int r, const struct rank_beat *call)
{
    const struct rank_beat *b = &hub->ranks[r].beat;
    return b->wait == RANK_WAITS && b->collective == call->collective && are_comparable(b, call);
}

/* Writes "rank 3" or "ranks 0, 1 and 3", at most 8 numbers. Returns the number of matching ranks. */
static int list_ranks(char *dst, size_t size, const struct hub *hub, rank_filter *matches,
                      const struct rank_beat *call)
{
    int count = 0, listed = 0;
    size_t n = 0;
    for (int r = 0; r < hub->options.size; r++) count += matches(hub, r, call);
    dst[0] = 0;
    for (int r = 0; r < hub->options.size && listed < 8 && n + 40 < size; r++) {
        if (!matches(hub, r, call)) continue;
        const char *separator = listed == 0           ? count > 1 ? "ranks " : "rank "
                                : listed == count - 1 ? " and "
                                                      : ", ";
        n += (size_t)snprintf(dst + n, size - n, "%s%d", separator, r);
        listed++;
    }
    if (listed < count) snprintf(dst + n, size - n, _(" and %d more"), count - listed);
    return count;
}

/* How likely it is that a rank in this call waits for rank r: groups and their members are not known here. */
static int concerns(const struct rank_beat *b, int r, const struct rank_beat *lost)
{
    if (b->message) return b->peer == r ? 3 : 0;
    if (are_comparable(b, lost)) return b->collective > lost->collective ? 2 : 1;
    return b->group[0] ? 0 : 1;
}

/* The heartbeat, of the ranks except r, that waits in the newest call that concerns r. NULL: none waits. */
static const struct rank_beat *newest_waiting(const struct hub *hub, int r)
{
    const struct rank_beat *newest = NULL, *lost = &hub->ranks[r].beat;
    for (int i = 0; i < hub->options.size; i++) {
        const struct rank_beat *b = &hub->ranks[i].beat;
        if (i == r || b->wait != RANK_WAITS) continue;
        int more = newest ? concerns(b, r, lost) - concerns(newest, r, lost) : 1;
        if (more > 0 || (more == 0 && b->collective > newest->collective)) newest = b;
    }
    return newest;
}

/* Writes the last step and phase of rank r, and the call in which other ranks wait for it. Returns whether
 * there is such a call. */
static bool describe_position(char *dst, size_t size, const struct hub *hub, int r)
{
    const struct rank_beat *b = &hub->ranks[r].beat, *newest = newest_waiting(hub, r);
    char waiting[200], call[100];
    const char *phase =
        b->phase < hub->options.phase_count ? _(hub->options.phases[b->phase].name) : _("at work");
    describe_call(call, sizeof call, b);
    int n = b->wait == RANK_WAITS
                ? snprintf(dst, size, _("; last seen at step %lld, in %s"), (long long)b->step, call)
                : snprintf(dst, size, _("; last seen at step %lld, %s"), (long long)b->step, phase);
    if (!newest ||
        (b->wait == RANK_WAITS && are_comparable(b, newest) && b->collective >= newest->collective) ||
        n < 0 || (size_t)n >= size)
        return false;
    int count = list_ranks(waiting, sizeof waiting, hub, waits_in, newest);
    describe_call(call, sizeof call, newest);
    snprintf(dst + n, size - (size_t)n, _("; it misses %s, in which %s wait%s"), call, waiting,
             count > 1 ? "" : "s");
    return true;
}

/* Ends the run because of rank r: "rank R (...) PROBLEM; last seen at ...". */
static void end_lost(struct hub *hub, int r, const char *problem, const char *hint)
{
    char who[256], position[360], what[560];
    describe_rank(hub, who, sizeof who, r, &hub->ranks[r].facts);
    bool missed = describe_position(position, sizeof position, hub, r);
    if (hub->loss_reported_at > 0 && !missed) {
        size_t n = strlen(position);
        snprintf(position + n, sizeof position - n, _("; rank %d reports: %.150s"), hub->reporter,
                 hub->report.what);
    }
    snprintf(what, sizeof what, "%.200s %s%.300s", who, problem, hub_complete(hub) ? position : "");
    hub_fail(hub, EXIT_RANK_LOST, r, what, hint);
}

/* ---- disconnected ---- */

static void end_disconnected(struct hub *hub)
{
    end_lost(hub, hub->disconnected, _("is gone: its connection ended"), hub->options.log_hint);
}

void diagnose_disconnect(struct hub *hub, int r, double now)
{
    if (hub->disconnected >= 0) return;
    hub->disconnected = r;
    hub->disconnected_at = now;
    if (!hub_complete(hub)) end_disconnected(hub);
}

static bool diagnose_disconnected(struct hub *hub, double now)
{
    if (hub->disconnected < 0 || now - hub->disconnected_at <= NEXT_BEATS_SECONDS) return false;
    end_disconnected(hub);
    return true;
}

/* ---- exit messages, and losses that they report ---- */

/* Ends the run with the exit message of rank r. A message that starts with "rank N (host" is one that all
 * ranks have agreed on (comm_agree): rank N failed, not r. */
static void end_by_exit_message(struct hub *hub, int r, const struct rank_bye *bye)
{
    char who[256], english[sizeof bye->what];
    struct error err;
    int named = -1, end = 0;
    bool names =
        sscanf(message_english(english, sizeof english, bye->what), "rank %d (host %n", &named, &end) == 1 &&
        end > 0;
    if (names && named >= 0 && named < hub->options.size) {
        wire_bye_error(bye, &err);
        hub_end(hub, named, &err);
        return;
    }
    describe_rank(hub, who, sizeof who, r, &hub->ranks[r].facts);
    error_set(&err, bye->code, bye->hint, "%.200s ended with exit code %d: %.300s", who, bye->code,
              bye->what);
    if (bye->file[0]) error_at(&err, bye->file, bye->line, bye->column);
    hub_end(hub, r, &err);
}

void diagnose_exit_message(struct hub *hub, int r, const struct rank_bye *bye, double now)
{
    if (bye->code != EXIT_RANK_LOST) {
        end_by_exit_message(hub, r, bye);
    } else if (hub->loss_reported_at <= 0) {
        hub->loss_reported_at = now;
        hub->reporter = r;
        hub->report = *bye;
    }
}

static bool diagnose_reported(struct hub *hub, double now)
{
    if (hub->loss_reported_at <= 0 || now - hub->loss_reported_at <= REPORT_SECONDS) return false;
    end_by_exit_message(hub, hub->reporter, &hub->report);
    return true;
}

/* ---- absent ---- */

/* Returns true until all ranks have joined: the rules after this one apply to running ranks only. */
static bool diagnose_absent(struct hub *hub, double now)
{
    char who[200], what[300];
    int absent = -1;
    if (hub_complete(hub)) return false;
    if (now - hub->since <= hub->options.join_seconds) return true;
    int count = list_ranks(who, sizeof who, hub, is_absent, NULL);
    snprintf(what, sizeof what, _("%s of %d did not join within %.0f s"), who, hub->options.size,
             hub->options.join_seconds);
    for (int r = 0; r < hub->options.size && count == 1; r++)
        if (!hub->ranks[r].joined) absent = r;
    hub_fail(hub, EXIT_RANK_LOST, absent, what,
             _("check that all nodes see the run directory and reach the host of rank 0"));
    return true;
}

/* ---- silent, stuck ---- */

static bool diagnose_silent(struct hub *hub, double now)
{
    char problem[96];
    for (int r = 0; r < hub->options.size; r++) {
        const struct hub_rank *rank = &hub->ranks[r];
        if (rank->left || now - rank->beat_at <= HUB_SILENT_SECONDS) continue;
        snprintf(problem, sizeof problem, _("does not answer: no heartbeat for %.0f s"), now - rank->beat_at);
        end_lost(hub, r, problem,
                 _("check whether its process is stopped, its host is down or the network is cut"));
        return true;
    }
    return false;
}

/* Returns the seconds that a rank may spend in this phase without progress. longest: the longest time of any
 * rank so far. measured: two steps are made. */
static double hub_patience(const struct hub_phase *phase, double longest, bool measured)
{
    double least = phase->steps && measured ? HUB_STUCK_SECONDS : phase->seconds;
    return 5 * longest > least ? 5 * longest : least;
}

static bool is_stuck(const struct hub *hub, int r, double now)
{
    const struct hub_rank *rank = &hub->ranks[r];
    const struct hub_phase *phases = hub->options.phases;
    int phase = rank->beat.phase;
    if (rank->beat.wait || rank->left || phase >= hub->options.phase_count || phases[phase].exempt)
        return false;
    return now - rank->progress_at > hub_patience(&phases[phase], hub->longest[phase], rank->steps >= 2);
}

static bool diagnose_stuck(struct hub *hub, double now)
{
    char problem[96];
    for (int r = 0; r < hub->options.size; r++) {
        if (!is_stuck(hub, r, now)) continue;
        snprintf(problem, sizeof problem, _("is stuck: no progress for %.0f s"),
                 now - hub->ranks[r].progress_at);
        end_lost(hub, r, problem, NULL);
        return true;
    }
    return false;
}

/* ---- all waiting ---- */

/* Writes " in CALL" if all ranks wait in the call of `first`; else the calls of the first ranks. */
static void describe_waiting(char *dst, size_t size, const struct hub *hub, const struct rank_beat *first)
{
    char call[100];
    bool same = true;
    size_t n = 0;
    for (int r = 0; r < hub->options.size; r++) same = same && are_comparable(&hub->ranks[r].beat, first);
    describe_call(call, sizeof call, first);
    if (same) snprintf(dst, size, _(" in %s"), call);
    for (int r = 0; r < hub->options.size && r < 4 && !same && n < size; r++) {
        describe_call(call, sizeof call, &hub->ranks[r].beat);
        n += (size_t)snprintf(dst + n, size - n, "%srank %d in %s", r ? ", " : ": ", r, call);
    }
}

static bool diagnose_all_waiting(struct hub *hub, double now)
{
    static const struct hub_phase collective = {"in a collective", 120, true, false};
    double limit = hub_patience(&collective, hub->longest_inside, hub->ranks[0].steps >= 2);
    int left = -1, oldest = -1; /* a rank that has exited; the rank that waits in the oldest collective */
    for (int r = 0; r < hub->options.size; r++) {
        const struct hub_rank *rank = &hub->ranks[r];
        if (rank->left) left = r;
        else if (!rank->beat.wait || now - rank->progress_at <= limit) return false;
        else if (oldest < 0 || rank->beat.collective < hub->ranks[oldest].beat.collective) oldest = r;
    }
    if (oldest < 0) return false;
    if (left >= 0) {
        end_lost(hub, left, _("has exited before the end of the run"), NULL);
        return true;
    }
    char calls[320], what[420];
    describe_waiting(calls, sizeof calls, hub, &hub->ranks[oldest].beat);
    snprintf(what, sizeof what, _("all ranks wait for more than %.0f s%s"), limit, calls);
    hub_fail(hub, EXIT_RANK_LOST, -1, what,
             _("check the network between the ranks: links, firewalls, drivers"));
    return true;
}

void diagnose_ranks(struct hub *hub, double now)
{
    /* In the order of the comment at the top; a rule returns true where the later ones do not apply. */
    static bool (*const rules[])(struct hub *, double) = {
        diagnose_disconnected, diagnose_reported, diagnose_absent,
        diagnose_silent,       diagnose_stuck,    diagnose_all_waiting,
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i](hub, now)) return;
}
