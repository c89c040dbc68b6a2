/* The coordinator of a run's ranks: see hub.h. failure_diagnosis.c detects lost ranks. */
#include "core/comm/hub_internal.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUTPUT_MAX = 1 << 27, HUB_SUSPENDED_SECONDS = 3, HUB_REMEMBERED_BEATS = 10 };

struct hub *hub_create(const struct hub_options *options, double now)
{
    struct hub *hub = xcalloc(1, sizeof *hub);
    hub->options = *options;
    if (hub->options.strangers < 1) hub->options.strangers = HUB_STRANGERS + options->size;
    hub->since = now;
    hub->disconnected = -1;
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
    wire_free(&hub->gathered);
    free(hub->peers);
    free(hub->ranks);
    free(hub->longest);
    free(hub);
}

bool hub_all_left(const struct hub *hub)
{
    for (int r = 0; r < hub->options.size; r++)
        if (!hub->ranks[r].left || hub->ranks[r].peer >= 0) return false;
    return true;
}

const struct hub_rank *hub_rank(const struct hub *hub, int r) { return &hub->ranks[r]; }

struct wire_bytes *hub_output(struct hub *hub, int peer)
{
    struct hub_peer *p = &hub->peers[peer];
    if (p->gathered) wire_append(&p->out, hub->gathered.data, hub->gathered.bytes);
    p->gathered = false;
    return &p->out;
}

bool hub_pending(const struct hub *hub, int peer)
{
    return hub->peers[peer].out.bytes > 0 || hub->peers[peer].gathered;
}

bool hub_closing(const struct hub *hub, int peer)
{
    return hub->peers[peer].closing && !hub_pending(hub, peer);
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
    if (!hub->ranks[r].left) diagnose_disconnect(hub, r, now);
}

static void refuse(struct hub *hub, int peer, int code, const char *why)
{
    struct rank_bye bye = {.code = code};
    snprintf(bye.what, sizeof bye.what, "%.*s", (int)sizeof bye.what - 1, why);
    wire_put_bye(&hub->peers[peer].out, WIRE_ABORT, &bye);
    hub->peers[peer].closing = true;
}

/* ---- admission ---- */

/* Compares in constant time. */
static bool same_key(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;
    for (int i = 0; i < WIRE_KEY_BYTES; i++) differ |= (uint8_t)(a[i] ^ b[i]);
    return differ == 0;
}

/* Returns whether the rank differs from rank 0 in program, configuration or number of ranks; fills `why`.
 * */
static bool is_incompatible(const struct hub *hub, const struct rank_facts *f, char *why, size_t size)
{
    const struct rank_facts *e = &hub->options.expected;
    char who[256];
    describe_rank(hub, who, sizeof who, f->rank, f);
    if (f->size != hub->options.size)
        snprintf(why, size, _("%s was started as one of %d ranks, the run has %d"), who, f->size,
                 hub->options.size);
    else if (f->program_crc != e->program_crc || strcmp(f->version, e->version) != 0)
        snprintf(why, size, _("%s runs another program: meopt %s, checksum %08x, rank 0 has %s, %08x"), who,
                 f->version, (unsigned)f->program_crc, e->version, (unsigned)e->program_crc);
    else if (f->config_hash != e->config_hash)
        snprintf(why, size, _("%s has another configuration: hash %016llx, rank 0 has %016llx"), who,
                 (unsigned long long)f->config_hash, (unsigned long long)e->config_hash);
    else return false;
    return true;
}

/* Returns the rank that is already on this card of this host; -1: none. */
static int rank_on_same_card(const struct hub *hub, const struct rank_facts *f)
{
    for (int r = 0; r < hub->options.size && f->card[0]; r++) {
        const struct hub_rank *other = &hub->ranks[r];
        if (other->joined && strcmp(other->facts.card, f->card) == 0 &&
            strcmp(other->facts.host, f->host) == 0)
            return r;
    }
    return -1;
}

static void welcome_all(struct hub *hub, double now)
{
    for (int r = 0; r < hub->options.size; r++)
        if (!hub->ranks[r].joined) return;
    hub->complete = true;
    for (int r = 0; r < hub->options.size; r++) {
        hub->ranks[r].beat_at = hub->ranks[r].progress_at = now;
        wire_frame(&hub->peers[hub->ranks[r].peer].out, WIRE_WELCOME, NULL, 0);
    }
}

/* Admits a rank or refuses it. An incompatible rank ends the run only while ranks still join: the run
 * cannot start without the right one. */
static void admit_rank(struct hub *hub, int peer, const struct rank_facts *f, double now)
{
    char why[512], who[256];
    int other;
    describe_rank(hub, who, sizeof who, f->rank, f);
    if (hub->why.code) {
        refuse(hub, peer, hub->why.code, hub->why.what);
        return;
    }
    if (is_incompatible(hub, f, why, sizeof why)) {
        refuse(hub, peer, EXIT_CONFIG, why);
        if (!hub->complete)
            hub_fail(hub, EXIT_CONFIG, f->size == hub->options.size ? f->rank : -1, why,
                     _("start all ranks with the same launcher and program"));
        return;
    }
    if (hub->ranks[f->rank].joined) {
        char first[256];
        describe_rank(hub, first, sizeof first, f->rank, &hub->ranks[f->rank].facts);
        snprintf(why, sizeof why, _("%.200s was started twice: %.200s has already joined"), who, first);
        refuse(hub, peer, EXIT_CONFIG, why);
        return;
    }
    if ((other = rank_on_same_card(hub, f)) >= 0) {
        snprintf(why, sizeof why, _("ranks %d and %d of %s are on the same card, %s"), other, f->rank,
                 f->host, f->card);
        refuse(hub, peer, EXIT_CONFIG, why);
        hub_fail(hub, EXIT_CONFIG, f->rank, why,
                 _("give each rank its own card: --cards, or Slurm's GPU binding"));
        return;
    }
    struct hub_rank *rank = &hub->ranks[f->rank];
    hub->peers[peer].rank = f->rank;
    rank->joined = true;
    rank->facts = *f;
    rank->peer = peer;
    rank->beat_at = rank->progress_at = now;
    welcome_all(hub, now);
}

/* ---- messages of ranks ---- */

static void record_beat(struct hub *hub, int r, const struct rank_beat *beat, double now)
{
    struct hub_rank *rank = &hub->ranks[r];
    const struct rank_beat *last = &rank->beat;
    bool moved = beat->marks != last->marks || beat->step != last->step || beat->phase != last->phase ||
                 beat->collective != last->collective || beat->wait != last->wait ||
                 beat->peer != last->peer || strcmp(beat->group, last->group) != 0;
    int phase = last->phase < hub->options.phase_count ? last->phase : hub->options.phase_count;
    double took = now - rank->progress_at;
    if (moved) { /* time spent waiting for others does not count as the rank's own */
        if (!last->wait && beat->phase == last->phase && took > hub->longest[phase])
            hub->longest[phase] = took;
        if (last->wait && took > hub->longest_inside) hub->longest_inside = took;
        rank->progress_at = now;
    }
    if (beat->step > last->step) rank->steps++;
    rank->waiting += ((beat->wait == RANK_WAITS) - rank->waiting) / HUB_REMEMBERED_BEATS;
    rank->beat = *beat;
    rank->beat_at = now;
}

static void store_offer(struct hub *hub, int r, const struct wire_offer *offer)
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
            snprintf(why, sizeof why, _("rank %d offers its %s while rank 0 offers its %s"), i,
                     hub->ranks[i].offer_name, hub->ranks[0].offer_name);
            hub_fail(hub, EXIT_RANK_LOST, i, why, NULL);
            return;
        }
    struct wire_offer *all = xcalloc((size_t)size, sizeof *all);
    for (int i = 0; i < size; i++)
        all[i] = (struct wire_offer){.data = hub->ranks[i].offer.data, .bytes = hub->ranks[i].offer.bytes};
    hub->gathered.bytes = 0; /* all ranks have received the one before: they have sent their next offers */
    wire_put_all(&hub->gathered, hub->ranks[0].offer_name, all, size);
    for (int i = 0; i < size; i++)
        if (hub->ranks[i].peer >= 0) hub->peers[hub->ranks[i].peer].gathered = true;
    free(all);
    for (int i = 0; i < size; i++) hub->ranks[i].offer_name[0] = 0;
}

/* Handles one message. Returns false for an invalid one. */
static bool handle_message(struct hub *hub, int peer, const struct wire_message *m, double now)
{
    int r = hub->peers[peer].rank;
    struct rank_facts facts;
    struct rank_beat beat;
    struct rank_bye bye;
    struct wire_offer offer;
    const uint8_t *key;
    if (r < 0) { /* no answer without the key */
        if (m->type != WIRE_HELLO || !wire_get_hello(m, &key, &facts) || !same_key(key, hub->options.key))
            return false;
        admit_rank(hub, peer, &facts, now);
        return true;
    }
    switch (m->type) {
    case WIRE_BEAT:
        if (!wire_get_beat(m, &beat)) return false;
        record_beat(hub, r, &beat, now);
        return true;
    case WIRE_OFFER:
        if (!wire_get_offer(m, &offer)) return false;
        store_offer(hub, r, &offer);
        return true;
    case WIRE_BYE:
        if (!wire_get_bye(m, &bye)) return false;
        hub->ranks[r].left = true;
        hub->ranks[r].progress_at = now;
        if (bye.code && bye.code != EXIT_STOPPED) diagnose_exit_message(hub, r, &bye, now);
        return true;
    default: return false;
    }
}

void hub_receive(struct hub *hub, int peer, const void *data, size_t bytes, double now)
{
    struct hub_peer *p = &hub->peers[peer];
    struct wire_message m;
    size_t taken, at = 0;
    int found = 0;
    if (p->closing) return;
    wire_append(&p->in, data, bytes);
    if (p->rank < 0 && p->in.bytes >= WIRE_HEADER_BYTES + WIRE_KEY_BYTES && /* HELLO begins with the key */
        !same_key(p->in.data + WIRE_HEADER_BYTES, hub->options.key))
        p->closing = true;
    while (!p->closing &&
           (found = wire_next(p->in.data + at, p->in.bytes - at, WIRE_TO_HUB_BYTES, &m, &taken)) == 1) {
        if (!handle_message(hub, peer, &m, now)) {
            found = -1;
            break;
        }
        p = &hub->peers[peer];
        at += taken;
    }
    if (found < 0) p->closing = true; /* an invalid message ends the connection */
    wire_drop(&p->in, at);
    if (p->out.bytes > OUTPUT_MAX) p->closing = true;
}

/* Excludes time in which this host was suspended or this process stopped from the ranks' timeouts. */
static void shift_timeouts(struct hub *hub, double suspended)
{
    for (int r = 0; r < hub->options.size; r++) {
        hub->ranks[r].beat_at += suspended;
        hub->ranks[r].progress_at += suspended;
    }
}

void hub_tick(struct hub *hub, double now)
{
    if (hub->ticked > 0 && now - hub->ticked > HUB_SUSPENDED_SECONDS) shift_timeouts(hub, now - hub->ticked);
    hub->ticked = now;
    for (int i = 0; i < hub->peer_count; i++) {
        struct hub_peer *p = &hub->peers[i];
        if (p->used && p->rank < 0 && now - p->since > HUB_HELLO_SECONDS) p->closing = true;
    }
    for (int r = 0; r < hub->options.size && hub->disconnected >= 0 && !hub->why.code; r++)
        if (hub->ranks[r].peer >= 0) wire_frame(&hub->peers[hub->ranks[r].peer].out, WIRE_ASK, NULL, 0);
    if (!hub->why.code) diagnose_ranks(hub, now);
}
