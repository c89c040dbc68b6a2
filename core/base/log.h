/* Messages for the user: stderr only, one line per call. stdout is for results. */
#ifndef MEOPT_BASE_LOG_H
#define MEOPT_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_QUIET, LOG_WARN, LOG_INFO, LOG_DEBUG };

extern enum log_level log_level; /* default LOG_INFO */

void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns whether a write to this descriptor now would not block: a pipe may be full. Waits for free space
 * until log_hurry, called ten times per second, returns true (the message is then dropped). log_hurry NULL:
 * waits without a limit. log_* call this function; writers to stdout may call it, too. */
bool log_capacity(int fd);
extern bool (*log_hurry)(void);

#endif
