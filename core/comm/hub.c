/* The hub of a run's ranks: see hub.h. Judging stands in failure_diagnosis.c. */
#include "core/comm/hub_internal.h"
#include "core/base/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUTPUT_MAX = 1 << 27, HUB_SLEPT_SECONDS = 3, HUB_REMEMBERED_BEATS = 10 };

struct hub *hub_create(const struct hub_options *options, double now)
{
    struct hub *hub = xcalloc(1, sizeof *hub);
    hub->options = *options;
    if (hub->options.strangers < 1) hub->options.strangers = HUB_STRANGERS + options->size;
    hub->since = now;
    hub->gone = -1;
    hub->ranks = xcalloc((size_t)options->size, sizeof *hub->ranks);
    hub->longest = xcalloc((size_t)options->phase_count + 1, sizeof *hub->longest);
    for (int r = 0; r < options->size; r++) hub->ranks[r].peer = -1;
    return hub;
}

void hub_free(struct hub *hub)
{
    if (!hub) return;
    for (int i = 0; i < hub->peer_count; i++) {
        wire_free(&hub->peers[i].in);
        wire_free(&hub->peers[i].out);
    }
    for (int r = 0; r < hub->options.size; r++) wire_free(&hub->ranks[r].offer);
    free(hub->peers);
    free(hub->ranks);
    free(hub->longest);
    free(hub);
}

bool hub_complete(const struct hub *hub) { return hub->complete; }

bool hub_all_left(const struct hub *hub)
{
    for (int r = 0; r < hub->options.size; r++)
        if (!hub->ranks[r].left || hub->ranks[r].peer >= 0) return false;
    return true;
}

const struct hub_rank *hub_rank(const struct hub *hub, int r) { return &hub->ranks[r]; }
struct wire_bytes *hub_output(struct hub *hub, int peer) { return &hub->peers[peer].out; }

bool hub_done_with(const struct hub *hub, int peer)
{
    return hub->peers[peer].closing && hub->peers[peer].out.bytes == 0;
}

int hub_diagnosis(const struct hub *hub, int *rank, struct error *err)
{
    if (rank) *rank = hub->lost;
    if (hub->why.code && err) *err = hub->why;
    return hub->why.code;
}

/* ---- connections ---- */

int hub_drop_stranger(struct hub *hub)
{
    int oldest = -1;
    for (int i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *p = &hub->peers[i];
        if (p->used && p->rank < 0 && (oldest < 0 || p->since < hub->peers[oldest].since)) oldest = i;
    }
    if (oldest >= 0) hub_ended(hub, oldest, 0);
    return oldest;
}

int hub_peer(struct hub *hub, double now)
{
    int strangers = 0, found = -1;
    for (int i = 0; i < hub->peer_count; i++) {
        const struct hub_peer *p = &hub->peers[i];
        if (!p->used && found < 0) found = i;
        strangers += p->used && p->rank < 0;
    }
    if (strangers >= hub->options.strangers) found = hub_drop_stranger(hub);
    if (found < 0) {
        found = hub->peer_count++;
        hub->peers = xrealloc(hub->peers, (size_t)hub->peer_count * sizeof *hub->peers);
    }
    hub->peers[found] = (struct hub_peer){.used = true, .rank = -1, .since = now};
    return found;
}

void hub_ended(struct hub *hub, int peer, double now)
{
    struct hub_peer *p = &hub->peers[peer];
    int r = p->rank;
    wire_free(&p->in);
    wire_free(&p->out);
    *p = (struct hub_peer){.rank = -1};
    if (r < 0) return;
    hub->ranks[r].peer = -1;
    if (!hub->ranks[r].left) judge_gone(hub, r, now);
}

static void refuse(struct hub *hub, int peer, int code, const char *why)
{
    struct rank_bye bye = {.code = code};
    snprintf(bye.what, sizeof bye.what, "%.*s", (int)sizeof bye.what - 1, why);
    wire_put_bye(&hub->peers[peer].out, WIRE_ABORT, &bye);
    hub->peers[peer].closing = true;
}

/* ---- letting in ---- */

/* Takes as long whatever differs. */
static bool same_key(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;
    for (int i = 0; i < WIRE_KEY_BYTES; i++) differ |= (uint8_t)(a[i] ^ b[i]);
    return differ == 0;
}

/* Why this rank cannot be one of them; false: it can. */
static bool does_not_fit(const struct hub *hub, const struct rank_facts *f, char *why, size_t size)
{
    const struct rank_facts *e = &hub->options.expected;
    char who[256];
    rank_name(who, sizeof who, f->rank, f);
    if (f->size != hub->options.size)
        snprintf(why, size, "%s was started as one of %d ranks, the run has %d", who, f->size,
                 hub->options.size);
    else if (f->program_crc != e->program_crc || strcmp(f->version, e->version) != 0)
        snprintf(why, size, "%s runs another program: meopt %s, checksum %08x, rank 0 has %s, %08x", who,
                 f->version, (unsigned)f->program_crc, e->version, (unsigned)e->program_crc);
    else if (f->config_hash != e->config_hash)
        snprintf(why, size, "%s has another configuration: hash %016llx, rank 0 has %016llx", who,
                 (unsigned long long)f->config_hash, (unsigned long long)e->config_hash);
    else return false;
    return true;
}

/* Another rank on the same card of the same host; -1: none. */
static int sharing(const struct hub *hub, const struct rank_facts *f)
{
    for (int r = 0; r < hub->options.size && f->card[0]; r++) {
        const struct hub_rank *other = &hub->ranks[r];
        if (other->here && strcmp(other->facts.card, f->card) == 0 && strcmp(other->facts.host, f->host) == 0)
            return r;
    }
    return -1;
}

static void welcome_all(struct hub *hub, double now)
{
    for (int r = 0; r < hub->options.size; r++)
        if (!hub->ranks[r].here) return;
    hub->complete = true;
    for (int r = 0; r < hub->options.size; r++) {
        hub->ranks[r].heard_at = hub->ranks[r].moved_at = now;
        wire_frame(&hub->peers[hub->ranks[r].peer].out, WIRE_WELCOME, NULL, 0);
    }
}

/* One that does not fit cannot end a run that is whole; while they gather, the run can never become whole. */
static void let_in(struct hub *hub, int peer, const struct rank_facts *f, double now)
{
    char why[512], who[256];
    int other;
    rank_name(who, sizeof who, f->rank, f);
    if (hub->why.code) {
        refuse(hub, peer, hub->why.code, hub->why.what);
        return;
    }
    if (does_not_fit(hub, f, why, sizeof why)) {
        refuse(hub, peer, EXIT_CONFIG, why);
        if (!hub->complete)
            judge_end(hub, EXIT_CONFIG, f->size == hub->options.size ? f->rank : -1, why,
                      "start all ranks alike, with one launcher and one program");
        return;
    }
    if (hub->ranks[f->rank].here) {
        char first[256];
        rank_name(first, sizeof first, f->rank, &hub->ranks[f->rank].facts);
        snprintf(why, sizeof why, "%.200s was started twice: %.200s is there already", who, first);
        refuse(hub, peer, EXIT_CONFIG, why);
        return;
    }
    if ((other = sharing(hub, f)) >= 0) {
        snprintf(why, sizeof why, "ranks %d and %d of %s are on the same card, %s", other, f->rank, f->host,
                 f->card);
        refuse(hub, peer, EXIT_CONFIG, why);
        judge_end(hub, EXIT_CONFIG, f->rank, why, "one card for each rank: --cards, or what Slurm binds");
        return;
    }
    struct hub_rank *rank = &hub->ranks[f->rank];
    hub->peers[peer].rank = f->rank;
    rank->here = true;
    rank->facts = *f;
    rank->peer = peer;
    rank->heard_at = rank->moved_at = now;
    welcome_all(hub, now);
}

/* ---- what ranks say ---- */

static void take_beat(struct hub *hub, int r, const struct rank_beat *beat, double now)
{
    struct hub_rank *rank = &hub->ranks[r];
    const struct rank_beat *last = &rank->beat;
    bool moved = beat->marks != last->marks || beat->step != last->step || beat->phase != last->phase ||
                 beat->collective != last->collective || beat->wait != last->wait;
    int phase = last->phase < hub->options.phase_count ? last->phase : hub->options.phase_count;
    double took = now - rank->moved_at;
    if (moved) { /* who waited for others has needed nothing itself */
        if (!last->wait && beat->phase == last->phase && took > hub->longest[phase])
            hub->longest[phase] = took;
        if (last->wait && took > hub->longest_inside) hub->longest_inside = took;
        rank->moved_at = now;
    }
    if (beat->step > last->step) rank->steps++;
    rank->waiting += ((beat->wait == RANK_WAITS) - rank->waiting) / HUB_REMEMBERED_BEATS;
    rank->beat = *beat;
    rank->heard_at = now;
}

static void take_offer(struct hub *hub, int r, const struct wire_offer *offer)
{
    struct hub_rank *rank = &hub->ranks[r];
    int size = hub->options.size;
    snprintf(rank->offer_name, sizeof rank->offer_name, "%s", offer->name);
    rank->offer.bytes = 0;
    wire_append(&rank->offer, offer->data, offer->bytes);
    for (int i = 0; i < size; i++)
        if (!hub->ranks[i].offer_name[0]) return;
    for (int i = 1; i < size; i++)
        if (strcmp(hub->ranks[i].offer_name, hub->ranks[0].offer_name) != 0) {
            char why[256];
            snprintf(why, sizeof why, "rank %d offers its %s while rank 0 offers its %s", i,
                     hub->ranks[i].offer_name, hub->ranks[0].offer_name);
            judge_end(hub, EXIT_RANK_LOST, i, why, NULL);
            return;
        }
    struct wire_offer *all = xcalloc((size_t)size, sizeof *all);
    for (int i = 0; i < size; i++)
        all[i] = (struct wire_offer){.data = hub->ranks[i].offer.data, .bytes = hub->ranks[i].offer.bytes};
    for (int i = 0; i < size; i++)
        if (hub->ranks[i].peer >= 0)
            wire_put_all(&hub->peers[hub->ranks[i].peer].out, hub->ranks[0].offer_name, all, size);
    free(all);
    for (int i = 0; i < size; i++) hub->ranks[i].offer_name[0] = 0;
}

/* False: nothing that a rank of ours says. */
static bool hear(struct hub *hub, int peer, const struct wire_message *m, double now)
{
    int r = hub->peers[peer].rank;
    struct rank_facts facts;
    struct rank_beat beat;
    struct rank_bye bye;
    struct wire_offer offer;
    const uint8_t *key;
    if (r < 0) { /* nothing is answered to who has no key */
        if (m->type != WIRE_HELLO || !wire_get_hello(m, &key, &facts) || !same_key(key, hub->options.key))
            return false;
        let_in(hub, peer, &facts, now);
        return true;
    }
    switch (m->type) {
    case WIRE_BEAT:
        if (!wire_get_beat(m, &beat)) return false;
        take_beat(hub, r, &beat, now);
        return true;
    case WIRE_OFFER:
        if (!wire_get_offer(m, &offer)) return false;
        take_offer(hub, r, &offer);
        return true;
    case WIRE_BYE:
        if (!wire_get_bye(m, &bye)) return false;
        hub->ranks[r].left = true;
        hub->ranks[r].moved_at = now;
        if (bye.code && bye.code != EXIT_STOPPED) diagnose_exit_message(hub, r, &bye, now);
        return true;
    default: return false;
    }
}

void hub_take(struct hub *hub, int peer, const void *data, size_t bytes, double now)
{
    struct hub_peer *p = &hub->peers[peer];
    struct wire_message m;
    size_t taken, at = 0;
    int found = 0;
    if (p->closing) return;
    wire_append(&p->in, data, bytes);
    if (p->rank < 0 && p->in.bytes >= WIRE_HEADER_BYTES + WIRE_KEY_BYTES && /* HELLO begins with it */
        !same_key(p->in.data + WIRE_HEADER_BYTES, hub->options.key))
        p->closing = true;
    while (!p->closing &&
           (found = wire_next(p->in.data + at, p->in.bytes - at, WIRE_TO_HUB_BYTES, &m, &taken)) == 1) {
        if (!hear(hub, peer, &m, now)) {
            found = -1;
            break;
        }
        p = &hub->peers[peer];
        at += taken;
    }
    if (found < 0) p->closing = true; /* a stranger is dropped; a rank that talks nonsense is gone */
    wire_drop(&p->in, at);
    if (p->out.bytes > OUTPUT_MAX) p->closing = true;
}

/* Time in which nobody listened, because this machine slept or was stopped, is nobody's silence. */
static void forgive(struct hub *hub, double slept)
{
    for (int r = 0; r < hub->options.size; r++) {
        hub->ranks[r].heard_at += slept;
        hub->ranks[r].moved_at += slept;
    }
}

void hub_tick(struct hub *hub, double now)
{
    if (hub->ticked > 0 && now - hub->ticked > HUB_SLEPT_SECONDS) forgive(hub, now - hub->ticked);
    hub->ticked = now;
    for (int i = 0; i < hub->peer_count; i++) {
        struct hub_peer *p = &hub->peers[i];
        if (p->used && p->rank < 0 && now - p->since > HUB_HELLO_SECONDS) p->closing = true;
    }
    for (int r = 0; r < hub->options.size && hub->gone >= 0 && !hub->why.code; r++)
        if (hub->ranks[r].peer >= 0) wire_frame(&hub->peers[hub->ranks[r].peer].out, WIRE_ASK, NULL, 0);
    if (!hub->why.code) judge(hub, now);
}
