/* Messages between ranks and the coordinator (hub.h) over TCP: framed, little-endian, each parsed within
 * its bounds. No message is acted on before its sender has sent the run's key.
 *
 *     frame    magic        "MEOR"
 *              version      1 byte
 *              type         1 byte (enum wire_type)
 *              zero         2 bytes
 *              length       4 bytes, of the payload
 *              checksum     4 bytes, CRC-32C of the payload
 *
 *     rank -> hub   HELLO    the key, then struct rank_facts
 *                   BEAT     once a second: struct rank_beat
 *                   OFFER    a few named bytes for all ranks
 *                   BYE      exit code, message, file and hint: the end of the connection is not a failure
 *     hub -> rank   WELCOME  all ranks have joined and agree
 *                   ALL      the offers of all ranks with that name, in rank order
 *                   ABORT    end now: exit code and reason; also sent to a rank that is refused
 *                   ASK      send a beat at once: a rank was lost
 */
#ifndef MEOPT_COMM_WIRE_H
#define MEOPT_COMM_WIRE_H

#include "core/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    WIRE_HEADER_BYTES = 16,
    WIRE_KEY_BYTES = 32,
    WIRE_OFFER_BYTES = 4096,  /* largest offer of one rank */
    WIRE_TO_HUB_BYTES = 8192, /* largest payload */
    WIRE_TO_RANK_BYTES = 1 << 26
};

enum wire_type {
    WIRE_HELLO = 1,
    WIRE_BEAT,
    WIRE_OFFER,
    WIRE_BYE,
    WIRE_WELCOME,
    WIRE_ALL,
    WIRE_ABORT,
    WIRE_ASK,
    WIRE_TYPES
};

struct rank_facts {
    int rank, size, pid;
    uint32_t program_crc; /* of the program's file */
    uint64_t config_hash;
    char version[32], host[64];
    char device[96]; /* "": not known yet */
    char card[64];   /* PCI id; "": the CPU, which ranks of a host may share */
};

enum rank_wait { RANK_MOVES, RANK_WAITS, RANK_OFFERS };

struct rank_beat {
    int64_t step, marks; /* marks: counter that grows with any progress */
    int64_t collective;  /* number of the last collective, from 1 */
    int phase;           /* defined by the caller (enum train_phase) */
    enum rank_wait wait; /* in that collective, or for the offers of other ranks */
    char name[24];       /* of the collective: "reduce_scatter" */
    char group[24];      /* of its communicator, "data 1"; "": that of all ranks */
    bool message;        /* it is one between two ranks; then its number is of their calls */
    int peer;            /* of a message: the other rank; -1: several, or a collective */
    double step_ms, data_wait_ms;
    double stage_wait_ms; /* of that step, for other stages; without a pipeline 0 */
    int64_t mem_bytes, peak_bytes;
};

struct rank_bye { /* exit message; fields of struct error */
    int code, line, column;
    char what[512], file[256], hint[320];
};

struct wire_offer {
    char name[32];
    const uint8_t *data;
    size_t bytes;
};

struct wire_message {
    enum wire_type type;
    const uint8_t *payload;
    size_t bytes;
};

/* Parses the frame at the start of `data`. Returns 1 and its length in *taken; 0 if it is incomplete; -1 if
 * the magic, version, type, length or checksum is wrong: the caller closes the connection. */
int wire_next(const uint8_t *data, size_t bytes, size_t max_payload, struct wire_message *m, size_t *taken);

/* A growing buffer; out of memory ends the process (file.h). */
struct wire_bytes {
    uint8_t *data;
    size_t bytes, capacity;
};
void wire_frame(struct wire_bytes *to, enum wire_type type, const void *payload, size_t bytes);
void wire_append(struct wire_bytes *to, const void *data, size_t bytes);
/* Removes the first `bytes`. */
void wire_drop(struct wire_bytes *to, size_t bytes);
void wire_free(struct wire_bytes *to);

/* Payloads. Long texts are truncated, and received texts are printable (error.h, name_printable).
 * wire_get_* return false if the payload is incomplete or a value is out of range. */
void wire_put_hello(struct wire_bytes *to, const uint8_t *key, const struct rank_facts *facts);
bool wire_get_hello(const struct wire_message *m, const uint8_t **key, struct rank_facts *facts);
void wire_put_beat(struct wire_bytes *to, const struct rank_beat *beat);
bool wire_get_beat(const struct wire_message *m, struct rank_beat *beat);
void wire_put_bye(struct wire_bytes *to, enum wire_type type, const struct rank_bye *bye); /* BYE or ABORT */
bool wire_get_bye(const struct wire_message *m, struct rank_bye *bye);
void wire_bye_of(struct rank_bye *bye, const struct error *err);
int wire_bye_error(const struct rank_bye *bye, struct error *err);
void wire_put_offer(struct wire_bytes *to, const char *name, const void *data, size_t bytes);
bool wire_get_offer(const struct wire_message *m, struct wire_offer *offer);

/* ALL: the name, the number of ranks, then the bytes of each. */
void wire_put_all(struct wire_bytes *to, const char *name, const struct wire_offer *offers, int count);
/* offers (count): each points into the payload. */
bool wire_get_all(const struct wire_message *m, char name[32], struct wire_offer *offers, int count);

#endif
