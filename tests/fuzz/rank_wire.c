/* libFuzzer: any bytes on a connection to the hub of ranks. The first byte selects an unknown peer or a
 * rank (1), raw bytes or payloads of complete frames (2), and the sizes of the pieces. An unknown peer
 * changes nothing. A rank may end the run, but not the program. A message that was read can be written
 * again. */
#include "core/comm/hub.h"

#include <stdlib.h>
#include <string.h>

static const struct hub_phase phases[] = {{"working", 600, true, false}};

static void read_again(const uint8_t *data, size_t size)
{
    struct wire_message m;
    struct rank_facts facts;
    struct rank_beat beat;
    struct rank_bye bye;
    struct wire_offer offers[3];
    char name[32];
    const uint8_t *key;
    size_t taken;
    if (!size || wire_next(data, size, WIRE_TO_RANK_BYTES, &m, &taken) != 1) return;
    if (taken > size || m.bytes > size) abort();
    struct wire_bytes again = {0};
    if (m.type == WIRE_HELLO && wire_get_hello(&m, &key, &facts)) wire_put_hello(&again, key, &facts);
    if (m.type == WIRE_BEAT && wire_get_beat(&m, &beat)) wire_put_beat(&again, &beat);
    if (m.type == WIRE_BYE && wire_get_bye(&m, &bye)) wire_put_bye(&again, WIRE_BYE, &bye);
    if (m.type == WIRE_OFFER && wire_get_offer(&m, offers))
        wire_put_offer(&again, offers[0].name, offers[0].data, offers[0].bytes);
    if (m.type == WIRE_ALL && wire_get_all(&m, name, offers, 3)) wire_put_all(&again, name, offers, 3);
    if (again.bytes && wire_next(again.data, again.bytes, WIRE_TO_RANK_BYTES, &m, &taken) != 1) abort();
    wire_free(&again);
}

static int join(struct hub *hub, const struct hub_options *o, int rank)
{
    struct rank_facts f = o->expected;
    struct wire_bytes out = {0};
    int peer = hub_peer(hub, 1);
    f.rank = rank;
    f.size = o->size;
    wire_put_hello(&out, o->key, &f);
    hub_receive(hub, peer, out.data, out.bytes, 1);
    wire_free(&out);
    return peer;
}

/* Payloads with the checksums that a fuzzer does not find: type, bytes, payload, and so on. */
static void frame(struct wire_bytes *to, const uint8_t *data, size_t size)
{
    while (size >= 2) {
        size_t bytes = data[1] < size - 2 ? data[1] : size - 2;
        wire_frame(to, (enum wire_type)(1 + data[0] % (WIRE_TYPES - 1)), data + 2, bytes);
        data += 2 + bytes;
        size -= 2 + bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hub_options o = {
        .size = 2, .key = {1, 2, 3}, .join_seconds = 60, .phases = phases, .phase_count = 1};
    struct wire_bytes in = {0};
    if (size == 0) return 0;
    bool stranger = data[0] & 1;
    size_t most = data[0] >> 2 ? data[0] >> 2 : size;
    if (data[0] & 2) frame(&in, data + 1, size - 1);
    else wire_append(&in, data + 1, size - 1);
    read_again(in.data, in.bytes);
    struct hub *hub = hub_create(&o, 1);
    int first = join(hub, &o, 0), second = join(hub, &o, 1), peer = stranger ? hub_peer(hub, 1) : second;
    if (!hub_complete(hub)) abort();
    for (size_t at = 0, piece; at < in.bytes; at += piece) { /* in pieces, as TCP has them */
        piece = in.bytes - at < most ? in.bytes - at : most;
        hub_receive(hub, peer, in.data + at, piece, 2);
    }
    wire_free(&in);
    hub_tick(hub, 3);
    if (stranger && hub_diagnosis(hub, NULL, NULL)) abort();
    hub_ended(hub, peer, 4);
    if (stranger && hub_diagnosis(hub, NULL, NULL)) abort();
    hub_ended(hub, first, 4);
    hub_free(hub);
    return 0;
}
