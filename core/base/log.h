/* Talk to the person: stderr only, one line a call. stdout belongs to results. */
#ifndef MEOPT_BASE_LOG_H
#define MEOPT_BASE_LOG_H

enum log_level { LOG_QUIET, LOG_WARN, LOG_INFO, LOG_DEBUG };

extern enum log_level log_level; /* default LOG_INFO */

void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
