/* Talk to the person: stderr only, one line a call. stdout belongs to results. */
#ifndef MEOPT_BASE_LOG_H
#define MEOPT_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_QUIET, LOG_WARN, LOG_INFO, LOG_DEBUG };

extern enum log_level log_level; /* default LOG_INFO */

void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether what is written to this descriptor now would not wait for a reader: a pipe may be full. Waits for
 * room itself, for as long as log_hurry, asked ten times a second, says no; from then on what finds no room is
 * left out. NULL: as long as it takes. log_* ask here, who writes to stdout may. */
bool log_room(int fd);
extern bool (*log_hurry)(void);

#endif
