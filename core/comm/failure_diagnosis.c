/* Which rank is lost, and what the others wait for: see hub.h. */
#include "core/comm/hub_internal.h"

#include <stdio.h>
#include <string.h>

enum { HEARSAY_SECONDS = 3 };
#define NEXT_BEATS_SECONDS 0.6

void rank_name(char *dst, size_t size, int r, const struct rank_facts *f)
{
    snprintf(dst, size, "rank %d (host %s, pid %d%s%s)", r, f->host[0] ? f->host : "unknown", f->pid,
             f->card[0] ? ", card " : "", f->card);
}

void judge_verdict(struct hub *hub, int rank, const struct error *why)
{
    struct rank_bye bye;
    if (hub->why.code) return;
    hub->why = *why;
    hub->lost = rank;
    wire_bye_of(&bye, why);
    for (int r = 0; r < hub->options.size; r++)
        if (hub->ranks[r].peer >= 0) wire_put_bye(&hub->peers[hub->ranks[r].peer].out, WIRE_ABORT, &bye);
}

void judge_end(struct hub *hub, int code, int rank, const char *why, const char *hint)
{
    struct error err;
    error_set(&err, code, hint, "%s", why);
    judge_verdict(hub, rank, &err);
}

/* "rank 3", "ranks 0, 1 and 3", of many the first ones. */
static void list_ranks(char *dst, size_t size, const struct hub *hub,
                       bool (*is)(const struct hub *, int, int64_t), int64_t what)
{
    int count = 0, said = 0;
    size_t n = 0;
    for (int r = 0; r < hub->options.size; r++) count += is(hub, r, what);
    dst[0] = 0;
    for (int r = 0; r < hub->options.size && said < 8 && n + 40 < size; r++) {
        if (!is(hub, r, what)) continue;
        const char *before = said == 0 ? count > 1 ? "ranks " : "rank " : said == count - 1 ? " and " : ", ";
        n += (size_t)snprintf(dst + n, size - n, "%s%d", before, r);
        said++;
    }
    if (said < count) snprintf(dst + n, size - n, " and %d more", count - said);
}

static bool is_absent(const struct hub *hub, int r, int64_t unused)
{
    (void)unused;
    return !hub->ranks[r].here;
}

static bool waits_in(const struct hub *hub, int r, int64_t collective)
{
    const struct rank_beat *b = &hub->ranks[r].beat;
    return b->wait == RANK_WAITS && b->collective == collective;
}

/* What it is at, and who waits for it in which collective. */
static void say_where(char *dst, size_t size, const struct hub *hub, int r)
{
    const struct rank_beat *b = &hub->ranks[r].beat, *at = NULL;
    char waiting[200];
    const char *phase = b->phase < hub->options.phase_count ? hub->options.phases[b->phase].name : "at work";
    for (int i = 0; i < hub->options.size; i++) {
        const struct rank_beat *other = &hub->ranks[i].beat;
        if (i != r && other->wait == RANK_WAITS && (!at || other->collective > at->collective)) at = other;
    }
    int n = b->wait == RANK_WAITS
                ? snprintf(dst, size, "; last seen at step %lld, in collective %lld (%s)", (long long)b->step,
                           (long long)b->collective, b->name)
                : snprintf(dst, size, "; last seen at step %lld, %s", (long long)b->step, phase);
    if (!at || (b->wait == RANK_WAITS && b->collective >= at->collective) || n < 0 || (size_t)n >= size)
        return;
    list_ranks(waiting, sizeof waiting, hub, waits_in, at->collective);
    snprintf(dst + n, size - (size_t)n, "; it misses collective %lld (%s), in which %s wait%s",
             (long long)at->collective, at->name, waiting, strncmp(waiting, "ranks", 5) == 0 ? "" : "s");
}

static void end_lost(struct hub *hub, int r, const char *how, const char *hint)
{
    char who[256], where[360], why[560];
    rank_name(who, sizeof who, r, &hub->ranks[r].facts);
    say_where(where, sizeof where, hub, r);
    if (hub->heard_at > 0 && !strstr(where, "it misses")) {
        size_t n = strlen(where);
        snprintf(where + n, sizeof where - n, "; rank %d says: %.150s", hub->told_by, hub->told.what);
    }
    snprintf(why, sizeof why, "%.200s %s%.300s", who, how, hub->complete ? where : "");
    judge_end(hub, EXIT_RANK_LOST, r, why, hint);
}

static void end_gone(struct hub *hub)
{
    end_lost(hub, hub->gone, "is gone: its connection ended", hub->options.log_hint);
}

void judge_gone(struct hub *hub, int r, double now)
{
    if (hub->gone >= 0) return;
    hub->gone = r;
    hub->gone_at = now;
    if (!hub->complete) end_gone(hub);
}

static void end_by(struct hub *hub, int r, const struct rank_bye *bye)
{
    char who[256];
    struct error err;
    int named = -1, end = 0;
    bool names = sscanf(bye->what, "rank %d (host %n", &named, &end) == 1 && end > 0;
    if (names && named >= 0 && named < hub->options.size) {
        wire_bye_error(bye, &err);
        judge_verdict(hub, named, &err); /* all ranks agree on this one */
        return;
    }
    rank_name(who, sizeof who, r, &hub->ranks[r].facts);
    error_set(&err, bye->code, bye->hint, "%.200s ended with exit code %d: %.300s", who, bye->code,
              bye->what);
    if (bye->file[0]) error_at(&err, bye->file, bye->line, bye->column);
    judge_verdict(hub, r, &err);
}

void hub_end(struct hub *hub, int rank, const struct error *why) { judge_verdict(hub, rank, why); }

/* One that ends because it misses another one is not the one that is lost: that will show. */
void diagnose_exit_message(struct hub *hub, int r, const struct rank_bye *bye, double now)
{
    if (bye->code != EXIT_RANK_LOST) {
        end_by(hub, r, bye);
    } else if (hub->heard_at <= 0) {
        hub->heard_at = now;
        hub->told_by = r;
        hub->told = *bye;
    }
}

double hub_patience(const struct hub_phase *phase, double longest, bool measured)
{
    double least = phase->steps && measured ? HUB_STUCK_SECONDS : phase->seconds;
    return 5 * longest > least ? 5 * longest : least;
}

static void judge_absent(struct hub *hub, double now)
{
    char who[200], why[300];
    if (now - hub->since <= hub->options.join_seconds) return;
    list_ranks(who, sizeof who, hub, is_absent, 0);
    snprintf(why, sizeof why, "%s of %d did not come within %.0f s", who, hub->options.size,
             hub->options.join_seconds);
    int one = -1, count = 0;
    for (int r = 0; r < hub->options.size; r++)
        if (!hub->ranks[r].here) one = r, count++;
    judge_end(hub, EXIT_RANK_LOST, count == 1 ? one : -1, why,
              "do all nodes see the run directory, and reach the host of rank 0?");
}

static bool stands(const struct hub *hub, int r, double now)
{
    const struct hub_rank *rank = &hub->ranks[r];
    const struct hub_phase *phases = hub->options.phases;
    int phase = rank->beat.phase;
    if (rank->beat.wait || rank->left || phase >= hub->options.phase_count || phases[phase].exempt)
        return false;
    return now - rank->moved_at > hub_patience(&phases[phase], hub->longest[phase], rank->steps >= 2);
}

/* All that are still there wait, and nobody comes: one that has left, or the network between them. */
static void judge_waiting(struct hub *hub, double now)
{
    static const struct hub_phase collective = {"in a collective", 120, true, false};
    double limit = hub_patience(&collective, hub->longest_inside, hub->ranks[0].steps >= 2);
    int left = -1, waiting = -1;
    for (int r = 0; r < hub->options.size; r++) {
        const struct hub_rank *rank = &hub->ranks[r];
        if (rank->left) left = r;
        else if (!rank->beat.wait || now - rank->moved_at <= limit) return;
        else if (waiting < 0 || rank->beat.collective < hub->ranks[waiting].beat.collective) waiting = r;
    }
    if (waiting < 0) return;
    if (left >= 0) {
        end_lost(hub, left, "has ended, though the run goes on", NULL);
        return;
    }
    const struct rank_beat *b = &hub->ranks[waiting].beat;
    char why[300];
    snprintf(why, sizeof why, "all ranks wait in collective %lld (%s) for more than %.0f s",
             (long long)b->collective, b->name, limit);
    judge_end(hub, EXIT_RANK_LOST, -1, why, "the network between the ranks: a link, a firewall, a driver");
}

void judge(struct hub *hub, double now)
{
    char how[96];
    if (hub->gone >= 0 && now - hub->gone_at > NEXT_BEATS_SECONDS) {
        end_gone(hub);
        return;
    }
    if (hub->heard_at > 0 && now - hub->heard_at > HEARSAY_SECONDS) {
        end_by(hub, hub->told_by, &hub->told);
        return;
    }
    if (!hub->complete) {
        judge_absent(hub, now);
        return;
    }
    for (int r = 0; r < hub->options.size; r++) {
        const struct hub_rank *rank = &hub->ranks[r];
        if (rank->left || now - rank->heard_at <= HUB_SILENT_SECONDS) continue;
        snprintf(how, sizeof how, "does not answer: no sign for %.0f s", now - rank->heard_at);
        end_lost(hub, r, how, "was it stopped, its machine down, or the network cut?");
        return;
    }
    for (int r = 0; r < hub->options.size; r++) {
        if (!stands(hub, r, now)) continue;
        snprintf(how, sizeof how, "is stuck: no progress for %.0f s", now - hub->ranks[r].moved_at);
        end_lost(hub, r, how, NULL);
        return;
    }
    judge_waiting(hub, now);
}
