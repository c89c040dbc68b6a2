/* Log lines on stderr: see log.h. */
#include "core/base/log.h"
#include "core/base/error.h"

#include <stdarg.h>
#include <stdio.h>

enum log_level log_level = LOG_INFO;

static void log_line(const char *prefix, const char *format, va_list args)
{
    char raw[2048], clean[2048];
    vsnprintf(raw, sizeof raw, format, args);
    fprintf(stderr, "%s%s\n", prefix, text_printable(clean, sizeof clean, raw));
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
LOG_FUNCTION(log_warn, LOG_WARN, "warning: ")
