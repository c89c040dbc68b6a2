/* Log lines on stderr: see log.h. */
#include "core/base/log.h"
#include "core/base/error.h"

#include <stdarg.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

enum log_level log_level = LOG_INFO;

bool (*log_hurry)(void);

bool log_capacity(int fd)
{
    struct pollfd wait = {fd, POLLOUT, 0};
    while (poll(&wait, 1, log_hurry ? 100 : -1) <= 0)
        if (log_hurry && log_hurry()) return false;
    return true; /* or an error, which the write reports */
}

static void log_line(const char *prefix, const char *format, va_list args)
{
    char raw[2048], clean[2048];
    if (!log_capacity(STDERR_FILENO)) return;
    text_format(raw, sizeof raw, format, args);
    fprintf(stderr, "%s%s\n", translation(prefix), text_printable(clean, sizeof clean, raw));
}

#define LOG_FUNCTION(name, level, prefix)                                                                    \
    void name(const char *format, ...)                                                                       \
    {                                                                                                        \
        if (log_level < level) return;                                                                       \
        va_list args;                                                                                        \
        va_start(args, format);                                                                              \
        log_line(prefix, format, args);                                                                      \
        va_end(args);                                                                                        \
    }
LOG_FUNCTION(log_debug, LOG_DEBUG, "")
LOG_FUNCTION(log_info, LOG_INFO, "")
LOG_FUNCTION(log_warn, LOG_WARN, N_("warning: "))
