/* Messages between ranks and the coordinator: see wire.h. */
#include "core/comm/wire.h"
#include "core/base/crc32c.h"
#include "core/base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[4] = {'M', 'E', 'O', 'R'};
enum { VERSION = 1, RANKS_MAX = 65536 };

/* ---- bytes ---- */

void wire_append(struct wire_bytes *to, const void *data, size_t bytes)
{
    if (bytes > to->capacity - to->bytes) {
        to->capacity = 2 * (to->bytes + bytes);
        to->data = xrealloc(to->data, to->capacity);
    }
    if (bytes) memcpy(to->data + to->bytes, data, bytes);
    to->bytes += bytes;
}

void wire_drop(struct wire_bytes *to, size_t bytes)
{
    to->bytes -= bytes;
    if (to->bytes && bytes) memmove(to->data, to->data + bytes, to->bytes);
}

void wire_free(struct wire_bytes *to)
{
    free(to->data);
    *to = (struct wire_bytes){0};
}

static void put_number(struct wire_bytes *to, uint64_t value, int bytes)
{
    uint8_t little[8];
    for (int i = 0; i < bytes; i++) little[i] = (uint8_t)(value >> (8 * i));
    wire_append(to, little, (size_t)bytes);
}

static void put_real(struct wire_bytes *to, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_number(to, bits, 8);
}

static void put_text(struct wire_bytes *to, const char *text, size_t size)
{
    size_t n = strnlen(text, size - 1);
    put_number(to, n, 2);
    wire_append(to, text, n);
}

static uint64_t number_at(const uint8_t *p, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

/* Reads a payload. A read past the end sets `bad`; later reads return zeros. */
struct cursor {
    const uint8_t *p;
    size_t left;
    bool bad;
};

static const uint8_t *get_bytes(struct cursor *c, size_t bytes)
{
    static const uint8_t zeros[WIRE_KEY_BYTES];
    if (c->bad || bytes > c->left) {
        c->bad = true;
        return zeros;
    }
    const uint8_t *p = c->p;
    c->p += bytes;
    c->left -= bytes;
    return p;
}

static uint64_t get_number(struct cursor *c, int bytes)
{
    return number_at(get_bytes(c, (size_t)bytes), bytes);
}

static int get_int(struct cursor *c, int min, int max)
{
    int32_t value = (int32_t)(uint32_t)get_number(c, 4);
    if (value < min || value > max) c->bad = true;
    return c->bad ? 0 : (int)value;
}

static int64_t get_count(struct cursor *c)
{
    uint64_t value = get_number(c, 8);
    if (value > INT64_MAX) c->bad = true;
    return c->bad ? 0 : (int64_t)value;
}

static double get_real(struct cursor *c)
{
    uint64_t bits = get_number(c, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return isfinite(value) ? value : 0;
}

static void get_text(struct cursor *c, char *dst, size_t size)
{
    size_t n = (size_t)get_number(c, 2);
    char raw[1024];
    dst[0] = 0;
    if (n >= size || n >= sizeof raw) c->bad = true;
    const uint8_t *p = get_bytes(c, c->bad ? 0 : n);
    if (c->bad) return;
    memcpy(raw, p, n);
    raw[n] = 0;
    name_printable(dst, size, raw);
}

static struct cursor cursor_of(const struct wire_message *m)
{
    return (struct cursor){m->payload, m->bytes, false};
}
static bool whole(const struct cursor *c) { return !c->bad && c->left == 0; }

/* ---- frames ---- */

int wire_next(const uint8_t *data, size_t bytes, size_t max_payload, struct wire_message *m, size_t *taken)
{
    if (bytes > 0 && memcmp(data, magic, bytes < 4 ? bytes : 4) != 0) return -1;
    if (bytes > 4 && data[4] != VERSION) return -1;
    if (bytes < WIRE_HEADER_BYTES) return 0;
    size_t payload = (size_t)number_at(data + 8, 4);
    if (data[5] < WIRE_HELLO || data[5] >= WIRE_TYPES || data[6] || data[7] || payload > max_payload)
        return -1;
    if (bytes - WIRE_HEADER_BYTES < payload) return 0;
    *m = (struct wire_message){(enum wire_type)data[5], data + WIRE_HEADER_BYTES, payload};
    if (crc32c(0, m->payload, payload) != (uint32_t)number_at(data + 12, 4)) return -1;
    *taken = WIRE_HEADER_BYTES + payload;
    return 1;
}

void wire_frame(struct wire_bytes *to, enum wire_type type, const void *payload, size_t bytes)
{
    wire_append(to, magic, sizeof magic);
    put_number(to, VERSION, 1);
    put_number(to, type, 1);
    put_number(to, 0, 2);
    put_number(to, bytes, 4);
    put_number(to, crc32c(0, payload, bytes), 4);
    wire_append(to, payload, bytes);
}

static void frame_and_free(struct wire_bytes *to, enum wire_type type, struct wire_bytes *payload)
{
    wire_frame(to, type, payload->data, payload->bytes);
    wire_free(payload);
}

/* ---- payloads ---- */

void wire_put_hello(struct wire_bytes *to, const uint8_t *key, const struct rank_facts *f)
{
    struct wire_bytes p = {0};
    wire_append(&p, key, WIRE_KEY_BYTES);
    put_number(&p, (uint32_t)f->rank, 4);
    put_number(&p, (uint32_t)f->size, 4);
    put_number(&p, (uint32_t)f->pid, 4);
    put_number(&p, f->program_crc, 4);
    put_number(&p, f->config_hash, 8);
    put_text(&p, f->version, sizeof f->version);
    put_text(&p, f->host, sizeof f->host);
    put_text(&p, f->device, sizeof f->device);
    put_text(&p, f->card, sizeof f->card);
    frame_and_free(to, WIRE_HELLO, &p);
}

bool wire_get_hello(const struct wire_message *m, const uint8_t **key, struct rank_facts *f)
{
    struct cursor c = cursor_of(m);
    *key = get_bytes(&c, WIRE_KEY_BYTES);
    f->rank = get_int(&c, 0, RANKS_MAX - 1);
    f->size = get_int(&c, 1, RANKS_MAX);
    f->pid = get_int(&c, 0, INT32_MAX);
    f->program_crc = (uint32_t)get_number(&c, 4);
    f->config_hash = get_number(&c, 8);
    get_text(&c, f->version, sizeof f->version);
    get_text(&c, f->host, sizeof f->host);
    get_text(&c, f->device, sizeof f->device);
    get_text(&c, f->card, sizeof f->card);
    return whole(&c) && f->rank < f->size;
}

void wire_put_beat(struct wire_bytes *to, const struct rank_beat *b)
{
    struct wire_bytes p = {0};
    put_number(&p, (uint64_t)b->step, 8);
    put_number(&p, (uint64_t)b->marks, 8);
    put_number(&p, (uint64_t)b->collective, 8);
    put_number(&p, (uint32_t)b->phase, 4);
    put_number(&p, b->wait, 4);
    put_text(&p, b->name, sizeof b->name);
    put_text(&p, b->group, sizeof b->group);
    put_number(&p, b->message, 1);
    put_number(&p, (uint32_t)b->peer, 4);
    put_real(&p, b->step_ms);
    put_real(&p, b->data_wait_ms);
    put_real(&p, b->stage_wait_ms);
    put_number(&p, (uint64_t)b->mem_bytes, 8);
    put_number(&p, (uint64_t)b->peak_bytes, 8);
    frame_and_free(to, WIRE_BEAT, &p);
}

bool wire_get_beat(const struct wire_message *m, struct rank_beat *b)
{
    struct cursor c = cursor_of(m);
    b->step = get_count(&c);
    b->marks = get_count(&c);
    b->collective = get_count(&c);
    b->phase = get_int(&c, 0, 255);
    b->wait = (enum rank_wait)get_int(&c, RANK_MOVES, RANK_OFFERS);
    get_text(&c, b->name, sizeof b->name);
    get_text(&c, b->group, sizeof b->group);
    b->message = get_number(&c, 1) != 0;
    b->peer = get_int(&c, -1, RANKS_MAX - 1);
    b->step_ms = get_real(&c);
    b->data_wait_ms = get_real(&c);
    b->stage_wait_ms = get_real(&c);
    b->mem_bytes = get_count(&c);
    b->peak_bytes = get_count(&c);
    return whole(&c);
}

void wire_put_bye(struct wire_bytes *to, enum wire_type type, const struct rank_bye *bye)
{
    struct wire_bytes p = {0};
    put_number(&p, (uint32_t)bye->code, 4);
    put_text(&p, bye->what, sizeof bye->what);
    put_text(&p, bye->file, sizeof bye->file);
    put_number(&p, (uint32_t)bye->line, 4);
    put_number(&p, (uint32_t)bye->column, 4);
    put_text(&p, bye->hint, sizeof bye->hint);
    frame_and_free(to, type, &p);
}

bool wire_get_bye(const struct wire_message *m, struct rank_bye *bye)
{
    struct cursor c = cursor_of(m);
    bye->code = get_int(&c, 0, 255);
    *bye = (struct rank_bye){.code = bye->code};
    get_text(&c, bye->what, sizeof bye->what);
    get_text(&c, bye->file, sizeof bye->file);
    bye->line = get_int(&c, 0, INT32_MAX);
    bye->column = get_int(&c, 0, INT32_MAX);
    get_text(&c, bye->hint, sizeof bye->hint);
    return whole(&c);
}

void wire_bye_of(struct rank_bye *bye, const struct error *err)
{
    *bye = (struct rank_bye){.code = err->code, .line = err->line, .column = err->column};
    snprintf(bye->what, sizeof bye->what, "%.*s", (int)sizeof bye->what - 1, err->what);
    snprintf(bye->file, sizeof bye->file, "%s", err->file);
    snprintf(bye->hint, sizeof bye->hint, "%s", err->hint);
}

int wire_bye_error(const struct rank_bye *bye, struct error *err)
{
    int code = error_set(err, bye->code, bye->hint, "%s", bye->what);
    if (err && bye->file[0]) error_at(err, bye->file, bye->line, bye->column);
    return code;
}

void wire_put_offer(struct wire_bytes *to, const char *name, const void *data, size_t bytes)
{
    struct wire_bytes p = {0};
    put_text(&p, name, sizeof((struct wire_offer *)0)->name);
    wire_append(&p, data, bytes);
    frame_and_free(to, WIRE_OFFER, &p);
}

bool wire_get_offer(const struct wire_message *m, struct wire_offer *offer)
{
    struct cursor c = cursor_of(m);
    get_text(&c, offer->name, sizeof offer->name);
    offer->bytes = c.left;
    offer->data = get_bytes(&c, c.left);
    return !c.bad && offer->name[0] && offer->bytes <= WIRE_OFFER_BYTES;
}

void wire_put_all(struct wire_bytes *to, const char *name, const struct wire_offer *offers, int count)
{
    struct wire_bytes p = {0};
    put_text(&p, name, sizeof offers->name);
    put_number(&p, (uint32_t)count, 4);
    for (int i = 0; i < count; i++) {
        put_number(&p, offers[i].bytes, 2);
        wire_append(&p, offers[i].data, offers[i].bytes);
    }
    frame_and_free(to, WIRE_ALL, &p);
}

bool wire_get_all(const struct wire_message *m, char name[32], struct wire_offer *offers, int count)
{
    struct cursor c = cursor_of(m);
    get_text(&c, name, sizeof offers->name);
    if (get_int(&c, 1, RANKS_MAX) != count) c.bad = true;
    for (int i = 0; i < count && !c.bad; i++) {
        offers[i].bytes = (size_t)get_number(&c, 2);
        if (offers[i].bytes > WIRE_OFFER_BYTES) c.bad = true;
        offers[i].data = get_bytes(&c, c.bad ? 0 : offers[i].bytes);
        memcpy(offers[i].name, name, sizeof offers[i].name);
    }
    return whole(&c);
}
