/* The user's language: see language.h. */
#include "cli/language.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/base/translate.h"

#include <errno.h>
#include <iconv.h>
#include <langinfo.h>
#include <locale.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* A stream that converts UTF-8 to the terminal's encoding. */
struct converter {
    int fd;
    iconv_t to;
    char left[8]; /* the first bytes of a character whose rest follows in the next write */
    size_t left_bytes;
};
static struct converter converters[2];

static FILE *plain_stdout; /* NULL: stdout does not convert */

FILE *language_plain_stdout(void) { return plain_stdout ? plain_stdout : stdout; }

static bool write_all(int fd, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = write(fd, data, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* Bytes that are not UTF-8, as in names of files, are written unchanged; characters that the encoding does
 * not have as '?'. */
static ssize_t convert(void *cookie, const char *data, size_t bytes)
{
    struct converter *c = cookie;
    size_t in_bytes = c->left_bytes + bytes, space = in_bytes * 2 + 16;
    char *in = xmalloc(in_bytes + 1), *out = xmalloc(space), *from = in, *to = out;
    memcpy(in, c->left, c->left_bytes);
    memcpy(in + c->left_bytes, data, bytes);
    c->left_bytes = 0;
    while (in_bytes > 0 && iconv(c->to, &from, &in_bytes, &to, &space) == (size_t)-1) {
        if (errno == EINVAL && in_bytes < sizeof c->left) {
            memcpy(c->left, from, c->left_bytes = in_bytes);
            break;
        }
        bool character = (*from & 0xC0) == 0xC0 && in_bytes > 1 && (from[1] & 0xC0) == 0x80;
        *to++ = character ? '?' : *from;
        space--;
        do from++, in_bytes--;
        while (character && in_bytes > 0 && (*from & 0xC0) == 0x80);
    }
    bool written = write_all(c->fd, out, (size_t)(to - out));
    free(in);
    free(out);
    return written ? (ssize_t)bytes : -1;
}

static void convert_stream(FILE **stream, int fd, const char *encoding, int buffering)
{
    struct converter *c = &converters[fd - 1];
    if ((!isatty(fd) && !getenv(LANGUAGE_OF_TERMINAL)) ||
        (c->to = iconv_open(encoding, "UTF-8")) == (iconv_t)-1)
        return;
    c->fd = fd;
    FILE *converting = fopencookie(c, "w", (cookie_io_functions_t){.write = convert});
    if (!converting) return;
    setvbuf(converting, NULL, buffering, BUFSIZ);
    if (fd == STDOUT_FILENO) plain_stdout = stdout;
    *stream = converting;
}

/* Returns the value of a category in the environment, "" for none. */
static const char *locale_of(const char *category)
{
    const char *names[] = {"LC_ALL", category, "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && value[0]) return value;
    }
    return "";
}

/* Nodes of clusters often lack the locales of their users. Chinese in UTF-8 then has the characters of
 * another locale in UTF-8: glibc has C.UTF-8 since 2.35, Debian had it before. Returns whether there is
 * one. */
static bool use_other_characters(void)
{
    const char *locale = locale_of("LC_CTYPE"), *dot = strchr(locale, '.');
    return locale[0] == 'z' && locale[1] == 'h' && dot &&
           (strcasecmp(dot, ".UTF-8") == 0 || strcasecmp(dot, ".utf8") == 0) &&
           (setlocale(LC_CTYPE, "C.UTF-8") || setlocale(LC_CTYPE, "en_US.UTF-8"));
}

/* Opens the first catalogue of the languages in LANGUAGE, else of the locale's, as gettext does: "zh_CN:en",
 * "zh_CN.UTF-8". English needs none. */
static void open_catalogue(const char *directory)
{
    const char *locale = locale_of("LC_MESSAGES"), *names = getenv("LANGUAGE");
    if (!locale[0] || strcmp(locale, "C") == 0 || strcmp(locale, "POSIX") == 0) return;
    for (const char *p = names && names[0] ? names : locale; *p; p += strcspn(p, ":"), p += *p == ':') {
        int n = (int)strcspn(p, ":.@");
        if ((n == 1 && *p == 'C') || (n >= 2 && strncmp(p, "en", 2) == 0)) return;
        if (n == 0 || memchr(p, '/', (size_t)n)) continue;
        char *path = xasprintf("%s/%.*s/LC_MESSAGES/meopt.mo", directory, n, p);
        bool opened = translate_open(path);
        free(path);
        if (opened) return;
    }
}

void language_open(int argc, char **argv)
{
    bool known = setlocale(LC_CTYPE, "") || use_other_characters();
    setlocale(LC_MESSAGES, "");
    const char *encoding = nl_langinfo(CODESET);
    if (strcmp(encoding, "UTF-8") != 0 && strcmp(encoding, "ANSI_X3.4-1968") != 0) {
        convert_stream(&stdout, STDOUT_FILENO, encoding, _IOLBF);
        convert_stream(&stderr, STDERR_FILENO, encoding, _IONBF);
    }
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--json") == 0 || strcmp(argv[i], "-j") == 0) return;
    char *directory =
        known ? path_shipped_in("locale", "") : NULL; /* else the terminal's encoding is unknown */
    if (directory) open_catalogue(directory);
    free(directory);
}

/* Returns the columns of the terminal that stdout is; 0: it is none. */
static int language_columns(void)
{
    struct winsize size;
    bool terminal = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    return terminal && size.ws_col > 20 ? size.ws_col : 0;
}

void print_wrapped(int at, int indent, const char *text)
{
    int columns = language_columns();
    while (columns > at + 10 && text_columns(text, SIZE_MAX) > columns - at) {
        size_t bytes = text_line(text, columns - at);
        printf("%.*s\n%*s", (int)bytes, text, indent, "");
        text += bytes;
        text += strspn(text, " ");
        at = indent;
    }
    printf("%s\n", text);
}

void print_line(int indent, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    text_format(text, sizeof text, format, args);
    va_end(args);
    print_wrapped(0, indent, text);
}
