/* How far a fetch is, for people and programs: on a terminal a bar for each archive and one for all of them,
 * elsewhere lines now and then, or JSON events. */
#ifndef MEOPT_CLI_COMMANDS_FETCH_PROGRESS_H
#define MEOPT_CLI_COMMANDS_FETCH_PROGRESS_H

#include "fetch/fetch.h"

#include <jansson.h>

/* One archive of the command. */
struct fetch_item {
    const struct source *source;
    int64_t bytes, total; /* so far; -1 unknown */
    bool about, done;     /* total is what the source says about it; nothing is left to do */
    int64_t resumed;
};

enum { METER_RATES = 64 };

struct meter {
    struct fetch_item *items;
    int count, at; /* `at`: the one that is worked on */
    bool json, quiet, terminal, unicode;
    int lines; /* of bars on the screen, the cursor behind the last */
    double shown_at, shown_share, begin;
    enum fetch_phase phase;
    int told_try;
    int rate_count, rate_at;
    struct {
        double time, bytes;
    } rates[METER_RATES]; /* of the last 5 s */
};

void meter_open(struct meter *m, struct fetch_item *items, int count, bool json, bool quiet);
void meter_begin(struct meter *m, int item);
/* As fetch_options has them; context is the meter. */
void meter_progress(void *context, const struct fetch_progress *p);
void meter_notice(void *context, const char *text);
/* The bars go, so that something else can be said. */
void meter_clear(struct meter *m);
/* A line on standard output about the archive that is worked on; takes `fields` over. */
void meter_event(const struct meter *m, json_t *fields);

/* "7.30 GiB"; "8m10s", "-" for what is not known. */
const char *size_text(char text[32], double bytes);
const char *time_text(char text[32], double seconds);

#endif
