/* Progress of a fetch: on a terminal one bar per archive and one for all of them, else lines at intervals,
 * or JSON events. */
#ifndef MEOPT_CLI_FETCH_PROGRESS_H
#define MEOPT_CLI_FETCH_PROGRESS_H

#include "fetch/fetch.h"

#include <jansson.h>

/* One archive of the command. */
struct fetch_item {
    const struct source *source;
    int64_t bytes, total; /* so far; -1: unknown */
    bool about, done;     /* about: total is the estimate of the source; done: complete */
    int64_t resumed;
};

enum { METER_RATES = 64 };

struct meter {
    struct fetch_item *items;
    int count, at; /* at: index of the current archive */
    bool json, quiet, terminal, unicode;
    int lines; /* lines of bars on the screen; the cursor is after the last one */
    double shown_at, shown_share, begin;
    enum fetch_phase phase;
    int rate_count, rate_at;
    struct {
        double time, bytes;
    } rates[METER_RATES]; /* of the last 5 s */
};

void meter_open(struct meter *m, struct fetch_item *items, int count, bool json, bool quiet);
void meter_begin(struct meter *m, int item);
/* Callbacks for struct fetch_options; context is the meter. */
void meter_progress(void *context, const struct fetch_progress *p);
void meter_notice(void *context, const char *text);
/* Erases the bars, so that other lines can be printed. */
void meter_clear(struct meter *m);
/* Prints a JSON line on standard output about the current archive; takes the reference to `fields`. */
void meter_event(const struct meter *m, json_t *fields);

/* Format a number of bytes ("7.30 GiB") and a duration ("8m10s"; "-": unknown). */
const char *size_text(char text[32], double bytes);
const char *time_text(char text[32], double seconds);

#endif
