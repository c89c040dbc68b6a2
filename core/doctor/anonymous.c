/* Removes personal data from a report before it is shared: see doctor.h. */
#include "core/base/memory.h"
#include "core/doctor/doctor.h"

#include <ctype.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Replaces "(/home/u/lib/x.so)" by "(x.so)", in place; also paths that begin with a dot or a tilde. */
static void shorten_paths(char *text)
{
    static const char ends[] = " \t\n,;:()[]{}<>|=\"'`";
    char *to = text;
    for (const char *from = text; *from;) {
        size_t n = strcspn(from, ends);
        const char *last = from;
        bool path = n && strchr("/.~", from[0]);
        for (size_t i = 0; path && i + 1 < n; i++)
            if (from[i] == '/') last = from + i + 1;
        size_t kept = n - (size_t)(last - from);
        memmove(to, last, kept);
        to += kept;
        from += n;
        while (*from && strchr(ends, *from)) *to++ = *from++;
    }
    *to = 0;
}

static bool in_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Replaces each whole word `name` in text by `by`; returns malloc'ed text. Common words (root, localhost)
 * stay. */
static char *without(char *text, const char *name, const char *by)
{
    size_t n = name ? strlen(name) : 0;
    if (n < 3 || strcmp(name, "root") == 0 || strcmp(name, "localhost") == 0) return text;
    for (char *at = text; (at = strstr(at, name)) != NULL;) {
        if ((at > text && in_word(at[-1])) || in_word(at[n])) {
            at += n;
            continue;
        }
        size_t before = (size_t)(at - text);
        char *whole = xasprintf("%.*s%s%s", (int)before, text, by, at + n);
        free(text);
        text = whole;
        at = text + before + strlen(by);
    }
    return text;
}

static char *anonymous(const char *from)
{
    char host[256] = "", *text = xasprintf("%s", from);
    struct passwd *user = getpwuid(geteuid());
    shorten_paths(text);
    if (gethostname(host, sizeof host - 1)) host[0] = 0;
    text = without(text, host, "HOST");
    host[strcspn(host, ".")] = 0;
    text = without(text, host, "HOST");
    text = without(text, getenv("USER"), "USER");
    return without(text, user ? user->pw_name : NULL, "USER");
}

void doctor_anonymous(json_t *report)
{
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_string(report)) {
        char *text = anonymous(json_string_value(report));
        json_string_set(report, text);
        free(text);
    }
    json_object_foreach(report, key, value) doctor_anonymous(value);
    json_array_foreach(report, i, value) doctor_anonymous(value);
}
