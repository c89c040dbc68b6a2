/* Talk to the person: stderr only, one line a call. stdout belongs to results. */
#ifndef MEOPT_BASE_LOG_H
#define MEOPT_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_QUIET, LOG_WARN, LOG_INFO, LOG_DEBUG };

extern enum log_level log_level; /* default LOG_INFO */

void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Whether what is written to this descriptor now would not wait for a reader: a pipe may be full. It waits
 * for room until log_hurry, asked ten times a second, says that it is to be left out; NULL: as long as it
 * takes. log_* ask here, and so may who writes to stdout. */
bool log_capacity(int fd);
extern bool (*log_hurry)(void);

#endif
