/* Converts YAML scalars to typed values and back. See value.h. The patterns are those of the core schema
 * (YAML 1.2.2, 10.3.2). */
#include "core/config/value.h"
#include "core/base/memory.h"
#include "core/base/path.h"
#include "core/config/hub_name.h"
#include "core/base/nearest.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <strings.h>

enum kind { KIND_TEXT, KIND_NULL, KIND_BOOL, KIND_INT, KIND_REAL };

static bool one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0) return true;
    return false;
}

static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
static const char *const bools[] = {"true", "True", "TRUE", "false", "False", "FALSE", NULL};
static const char *const bools11[] = {"yes", "Yes", "YES", "no",  "No",  "NO", "on",
                                      "On",  "ON",  "off", "Off", "OFF", NULL};
static const char *const infinities[] = {".inf",  ".Inf",  ".INF", "+.inf", "+.Inf", "+.INF", "-.inf",
                                         "-.Inf", "-.INF", ".nan", ".NaN",  ".NAN",  NULL};

static size_t span(const char *p, const char *set) { return strspn(p, set); }
#define DIGITS "0123456789"

/* YAML 1.2: [-+]?[0-9]+ | 0o[0-7]+ | 0x[0-9a-fA-F]+ */
static bool int12(const char *t)
{
    if (t[0] == '0' && t[1] == 'o') return t[2] && !t[2 + span(t + 2, "01234567")];
    if (t[0] == '0' && t[1] == 'x') return t[2] && !t[2 + span(t + 2, DIGITS "abcdefABCDEF")];
    t += *t == '-' || *t == '+';
    return *t && !t[span(t, DIGITS)];
}

/* YAML 1.2: [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)? */
static bool real12(const char *t)
{
    t += *t == '-' || *t == '+';
    size_t whole = span(t, DIGITS), part = 0;
    t += whole;
    if (*t == '.') {
        t++;
        part = span(t, DIGITS);
        t += part;
    }
    if (whole + part == 0) return false;
    if (*t == 'e' || *t == 'E') {
        t++;
        t += *t == '-' || *t == '+';
        size_t n = span(t, DIGITS);
        if (n == 0) return false;
        t += n;
    }
    return *t == 0;
}

static enum kind kind12(const char *t)
{
    if (one_of(t, nulls)) return KIND_NULL;
    if (one_of(t, bools)) return KIND_BOOL;
    if (int12(t)) return KIND_INT;
    return real12(t) || one_of(t, infinities) ? KIND_REAL : KIND_TEXT;
}

/* Whether YAML 1.1 readers parse a number of 1.2 differently: 1e-3 and +.5 as text, 010 as eight. */
static bool number_differs(const char *t)
{
    const char *digits = t + (*t == '-' || *t == '+'), *e = strpbrk(t, "eE");
    if (digits[0] == '0' && digits[1] == 'x') return false;
    if (int12(t)) return digits[0] == '0' && digits[1];
    return (e && (!strchr(t, '.') || (e[1] != '-' && e[1] != '+'))) || (digits > t && digits[0] == '.');
}

bool value_plain_is_not_text(const char *t)
{
    int year, month, day, n = 0;
    const char *p = t + (*t == '-' || *t == '+');
    if (kind12(t) != KIND_TEXT || one_of(t, bools11) || strcmp(t, "=") == 0 || strcmp(t, "<<") == 0)
        return true;
    if (!isdigit((unsigned char)*p) && !(*p == '.' && isdigit((unsigned char)p[1]))) return false;
    if (p[0] == '0' && (p[1] == 'b' || p[1] == 'x')) return true;
    if (sscanf(t, "%4d-%2d-%2d%n", &year, &month, &day, &n) == 3 && strchr(" \tTt", t[n])) return true;
    return !p[span(p, DIGITS "_:.eE+-")]; /* 1_000, 1:30, 2026-01-02; also 1-2, which is text */
}

/* ---- Writing ---- */

void value_real_text(char *dst, size_t size, double x)
{
    char digits[40];
    bool small = x != 0 && fabs(x) < 0.01; /* 1.0e-3 instead of 0.001 */
    int whole =
        !small && fabs(x) >= 1 && fabs(x) < 1e9 ? (int)log10(fabs(x)) + 1 : 1; /* 1000 instead of 1e+03 */
    for (int precision = whole; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, small ? "%.*e" : "%.*g", small ? precision - 1 : precision, x);
        if (strtod(digits, NULL) == x) break;
    }
    char *e = strchr(digits, 'e');
    if (!e) {
        snprintf(dst, size, "%s", digits);
        return;
    }
    *e = 0; /* 2e-05 -> 2.0e-5 */
    snprintf(dst, size, "%s%se%+d", digits, strchr(digits, '.') ? "" : ".0", atoi(e + 1));
}

bool value_plain_safe(const char *t, bool flow)
{
    if (!*t || strchr(" \t-?:,[]{}#&*!|>'\"%@`=", t[0])) return false;
    size_t n = strlen(t);
    if (strchr(" \t:", t[n - 1])) return false;
    for (const unsigned char *p = (const unsigned char *)t; *p; p++) {
        if (*p < 0x20 || *p == 0x7F) return false;
        if (*p == 0xC2 && p[1] < 0xA0) return false; /* C1 controls and NEL */
        if (*p == 0xE2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9)) return false; /* line separators */
        if (*p == 0xEF && p[1] == 0xBB && p[2] == 0xBF) return false;
        if (*p == ':' && (p[1] == ' ' || p[1] == '\t')) return false;
        if (*p == '#' && p > (const unsigned char *)t && (p[-1] == ' ' || p[-1] == '\t')) return false;
        if (flow && strchr(",[]{}", *p)) return false;
        if (flow && *p == ':' && strchr(",[]{}", p[1])) return false;
    }
    return strncmp(t, "---", 3) != 0 && strncmp(t, "...", 3) != 0;
}

char *value_quoted(const char *text)
{
    char *quoted = xmalloc(4 * strlen(text) + 3), *q = quoted;
    *q++ = '"';
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\') {
            *q++ = '\\';
            *q++ = (char)*p;
        } else if (*p < 0x20 || *p == 0x7F) {
            q += sprintf(q, "\\x%02x", *p);
        } else if (*p == 0xC2 && p[1] < 0xA0 && p[1] >= 0x80) {
            q += sprintf(q, "\\x%02x", *++p);
        } else if (*p == 0xE2 && p[1] == 0x80 && (p[2] == 0xA8 || p[2] == 0xA9)) {
            q += sprintf(q, "\\%c", p[2] == 0xA8 ? 'L' : 'P');
            p += 2;
        } else if (*p == 0xEF && p[1] == 0xBB && p[2] == 0xBF) {
            q += sprintf(q, "\\uFEFF");
            p += 2;
        } else {
            *q++ = (char)*p;
        }
    }
    *q++ = '"';
    *q = 0;
    return quoted;
}

/* ---- Reading ---- */

struct word_list {
    const char *const *words;
    int count;
};
static const char *word_at(const void *table, int i)
{
    const struct word_list *list = table;
    return i < list->count ? list->words[i] : NULL;
}

const char *value_nearest(const char *word, const char *const *names, int count)
{
    return nearest_name(word, word_at, &(struct word_list){names, count});
}

static const char *const bool_words[] = {"true", "false", NULL}, *const switch_words[] = {"auto", "true",
                                                                                          "false", NULL};

const char *config_choice(int key, int i)
{
    const struct config_key *k = &config_keys[key];
    if (k->type == CONFIG_CHOICE) return k->choices[i];
    if (k->type == CONFIG_BOOL) return i < 2 ? bool_words[i] : NULL;
    if (k->type == CONFIG_SWITCH) return i < 3 ? switch_words[i] : NULL;
    return NULL;
}

/* Returns the number of a choice by its name or an alias, -1 if there is none. */
static int choice_find(int key, const char *text)
{
    const char *choice;
    for (int i = 0; (choice = config_choice(key, i)) != NULL; i++)
        if (strcmp(choice, text) == 0) return i;
    size_t n = strlen(text);
    for (const char *p = config_keys[key].aliases; p && n; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncmp(p, text, n) == 0 && p[n] == '=') {
            char name[64];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(p + n + 1, "|"), p + n + 1);
            return choice_find(key, name);
        }
    return -1;
}

char *value_expected(int key)
{
    const struct config_key *k = &config_keys[key];
    char low[40], high[40];
    value_real_text(low, sizeof low, k->min);
    value_real_text(high, sizeof high, k->max);
    if (k->type == CONFIG_INT || k->type == CONFIG_BYTES) snprintf(high, sizeof high, "%.0f", k->max);
    switch (k->type) {
    case CONFIG_BOOL: return xstrdup(_("true or false"));
    case CONFIG_SWITCH: return xstrdup(_("auto, true or false"));
    case CONFIG_INT: return xasprintf(_("a whole number from %s to %s"), low, high);
    case CONFIG_REAL: return xasprintf(_("a number from %s to %s"), low, high);
    case CONFIG_BYTES:
        return k->min > 0 ? xasprintf(_("at least %.0fM, as in 512M or 64G"), k->min / 1048576)
                          : xstrdup(_("a number of bytes, as in 512M or 64G"));
    case CONFIG_CHOICE: {
        char *text = xasprintf(_("one of %s"), k->choices[0]);
        for (int i = 1; k->choices[i]; i++) {
            char *longer = xasprintf("%s, %s", text, k->choices[i]);
            free(text);
            text = longer;
        }
        return text;
    }
    case CONFIG_PATH: return xstrdup(_("a path"));
    default: return xstrdup(_("text"));
    }
}

static const char *kind_words(const char *text, bool quoted)
{
    if (quoted) return _("text in quotes");
    switch (kind12(text)) {
    case KIND_NULL: return _("nothing");
    case KIND_BOOL: return _("a truth value");
    case KIND_INT: return _("a whole number");
    case KIND_REAL: return _("a number");
    default: return _("text");
    }
}

static enum value_status bad_type(int key, const char *text, bool quoted, char *message, char *hint,
                                  size_t size)
{
    char *expected = value_expected(key);
    if (!quoted && kind12(text) == KIND_NULL)
        snprintf(message, size, _("%s has no value, expected %s"), config_keys[key].name, expected);
    else
        snprintf(message, size, _("%s is %s, expected %s"), config_keys[key].name, kind_words(text, quoted),
                 expected);
    free(expected);
    struct value again;
    char m[8], h[8];
    if (quoted && text[0] && value_read(key, text, strlen(text), false, &again, m, h, sizeof m) != VALUE_BAD)
        snprintf(hint, size, _("write %.100s without quotes"), text);
    else snprintf(hint, size, _("default: %s"), config_keys[key].standard);
    return VALUE_BAD;
}

static enum value_status out_of_range(int key, const char *text, char *message, char *hint, size_t size)
{
    char *expected = value_expected(key);
    snprintf(message, size, _("%s is %.60s, expected %s"), config_keys[key].name, text, expected);
    snprintf(hint, size, _("%s; default: %s"), translation(config_keys[key].help), config_keys[key].standard);
    free(expected);
    return VALUE_BAD;
}

static enum value_status note_ambiguous(char *message, char *hint, size_t size, const char *text,
                                        const char *better)
{
    snprintf(message, size, _("other YAML readers may parse %.60s differently"), text);
    snprintf(hint, size, _("write %s"), better);
    return VALUE_NOTE;
}

static enum value_status read_int(int key, const char *text, bool quoted, struct value *value, char *message,
                                  char *hint, size_t size)
{
    if (quoted || !int12(text)) {
        enum value_status status = bad_type(key, text, quoted, message, hint, size);
        char plain[64];
        size_t n = 0;
        for (const char *p = text; *p && n + 1 < sizeof plain; p++)
            if (*p != '_' && *p != ',') plain[n++] = *p;
        plain[n] = 0;
        if (!quoted && n && n < strlen(text) && int12(plain)) snprintf(hint, size, _("write %s"), plain);
        else if (!quoted && real12(text) && strtod(text, NULL) == rint(strtod(text, NULL)) &&
                 fabs(strtod(text, NULL)) < 1e15)
            snprintf(hint, size, _("write %.0f"), strtod(text, NULL));
        return status;
    }
    errno = 0;
    int base = text[0] == '0' && (text[1] == 'o' || text[1] == 'x') ? (text[1] == 'o' ? 8 : 16) : 10;
    long long x = strtoll(base == 10 ? text : text + 2, NULL, base);
    if (errno || (double)x < config_keys[key].min || (double)x > config_keys[key].max)
        return out_of_range(key, text, message, hint, size);
    value->integer = x;
    char better[32];
    snprintf(better, sizeof better, "%lld", x);
    return number_differs(text) ? note_ambiguous(message, hint, size, text, better) : VALUE_GOOD;
}

static enum value_status read_real(int key, const char *text, bool quoted, struct value *value, char *message,
                                   char *hint, size_t size)
{
    if (quoted || kind12(text) == KIND_BOOL || !(int12(text) || real12(text)))
        return one_of(text, infinities) && !quoted ? out_of_range(key, text, message, hint, size)
                                                   : bad_type(key, text, quoted, message, hint, size);
    bool based = text[0] == '0' && (text[1] == 'o' || text[1] == 'x');
    double x = based ? (double)strtoull(text + 2, NULL, text[1] == 'o' ? 8 : 16) : strtod(text, NULL);
    if (!isfinite(x) || x < config_keys[key].min || x > config_keys[key].max)
        return out_of_range(key, text, message, hint, size);
    value->real = x;
    char better[40];
    value_real_text(better, sizeof better, x);
    return number_differs(text) ? note_ambiguous(message, hint, size, text, better) : VALUE_GOOD;
}

static enum value_status read_bool(int key, const char *text, bool quoted, struct value *value, char *message,
                                   char *hint, size_t size)
{
    bool automatic = config_keys[key].type == CONFIG_SWITCH && strcmp(text, "auto") == 0;
    if (!automatic && (quoted || !(one_of(text, bools) || one_of(text, bools11))))
        return bad_type(key, text, quoted, message, hint, size);
    bool yes = strchr("tTyY", text[0]) || strcasecmp(text, "on") == 0;
    value->integer = automatic ? -1 : yes;
    return one_of(text, bools11) ? note_ambiguous(message, hint, size, text, yes ? "true" : "false")
                                 : VALUE_GOOD;
}

static enum value_status read_bytes(int key, const char *text, bool quoted, struct value *value,
                                    char *message, char *hint, size_t size)
{
    size_t whole = span(text, DIGITS), n = whole;
    if (text[n] == '.') n += 1 + span(text + n + 1, DIGITS);
    static const char units[] = "KMGT";
    const char *unit = text[n] ? strchr(units, toupper((unsigned char)text[n])) : NULL;
    const char *rest = unit ? text + n + 1 : text + n;
    if (whole == 0 || n > 30 || (*rest && strcmp(rest, "B") != 0 && strcmp(rest, "iB") != 0) ||
        (!unit && n > whole))
        return bad_type(key, text, quoted, message, hint, size);
    double x = strtod(text, NULL) * (unit ? (double)(1LL << (10 * (unit - units + 1))) : 1.0);
    if (x < config_keys[key].min || x > config_keys[key].max)
        return out_of_range(key, text, message, hint, size);
    value->integer = (int64_t)x;
    return VALUE_GOOD;
}

static enum value_status read_choice(int key, const char *text, struct value *value, char *message,
                                     char *hint, size_t size)
{
    value->integer = choice_find(key, text);
    if (value->integer >= 0) return VALUE_GOOD;
    const char *names[16], *name;
    int count = 0;
    while (count < 16 && (name = config_choice(key, count)) != NULL) names[count++] = name;
    const char *near = value_nearest(text, names, count);
    char *expected = value_expected(key);
    snprintf(message, size, _("%s is '%.60s', expected %s"), config_keys[key].name, text, expected);
    if (near) snprintf(hint, size, _("did you mean %s?"), near);
    else
        snprintf(hint, size, _("%s; default: %s"), translation(config_keys[key].help),
                 config_keys[key].standard);
    free(expected);
    return VALUE_BAD;
}

bool value_takes_list(int key)
{
    static const size_t lists[] = {
        offsetof(struct config, device.cards), offsetof(struct config, data.images.mean),
        offsetof(struct config, data.images.std), offsetof(struct config, data_s.images.mean),
        offsetof(struct config, data_s.images.std)};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (config_keys[key].offset == lists[i]) return true;
    return false;
}

enum value_status value_read(int key, const char *text, size_t bytes, bool quoted, struct value *value,
                             char *message, char *hint, size_t size)
{
    *value = (struct value){0};
    enum config_type type = config_keys[key].type;
    if (strlen(text) != bytes || bytes > PATH_MAX) {
        snprintf(message, size, _("%s has %zu bytes%s"), config_keys[key].name, bytes,
                 bytes > PATH_MAX ? _(", at most 4096 are possible") : _(" with a NUL among them"));
        snprintf(hint, size, _("see 'meopt config list'"));
        return VALUE_BAD;
    }
    if (type == CONFIG_INT) return read_int(key, text, quoted, value, message, hint, size);
    if (type == CONFIG_REAL) return read_real(key, text, quoted, value, message, hint, size);
    if (type == CONFIG_BOOL || type == CONFIG_SWITCH)
        return read_bool(key, text, quoted, value, message, hint, size);
    if (type == CONFIG_BYTES) return read_bytes(key, text, quoted, value, message, hint, size);
    if (type == CONFIG_CHOICE) {
        if (!quoted && kind12(text) == KIND_NULL) return bad_type(key, text, quoted, message, hint, size);
        return read_choice(key, text, value, message, hint, size);
    }
    if (type == CONFIG_PATH && hub_is_name(text)) {
        struct error wrong = {0};
        char *path = hub_resolve(text, &wrong);
        if (!path) {
            snprintf(message, size, "%s: %s", config_keys[key].name, wrong.what);
            snprintf(hint, size, "%s", wrong.hint);
        }
        bool found = path;
        free(path);
        return found ? VALUE_GOOD : VALUE_BAD;
    }
    value->null = (!quoted && kind12(text) == KIND_NULL) || !*text;
    if (quoted || value->null || !value_plain_is_not_text(text)) return VALUE_GOOD;
    char better[128];
    snprintf(better, sizeof better, "\"%.100s\"", text);
    return note_ambiguous(message, hint, size, text, better);
}

char *value_from_here(int key, const char *text)
{
    bool relative = text[0] && text[0] != '/' && !(text[0] == '~' && text[1] == '/') && !hub_is_name(text);
    char *here = key >= 0 && config_keys[key].type == CONFIG_PATH && relative ? getcwd(NULL, 0) : NULL;
    char *path = here ? path_join(here, text) : xstrdup(text);
    free(here);
    return path;
}

char *value_typed(int key, const char *text)
{
    struct value value;
    char message[320], hint[320], number[40];
    if (key < 0 || config_keys[key].type != CONFIG_REAL ||
        value_read(key, text, strlen(text), false, &value, message, hint, sizeof hint) != VALUE_NOTE)
        return xstrdup(text);
    value_real_text(number, sizeof number, value.real);
    return xstrdup(number);
}

/* ---- Storing ---- */

static char *absolute_path(const struct config *config, const char *text)
{
    const char *home = getenv("HOME");
    struct error ignored = {0}; /* value_read refused it */
    char *cached = hub_is_name(text) ? hub_resolve(text, &ignored) : NULL;
    if (cached) return cached;
    char *joined = text[0] == '~' && text[1] == '/' && home ? path_join(home, text + 2)
                                                            : path_join(config->directory, text);
    /* "a/./b" and "a//b" without accessing the file system; ".." stays: its meaning differs after a
     * symbolic link */
    char *out = joined;
    for (char *p = joined; *p;) {
        if (p[0] == '/' && p[1] == '/') p++;
        else if (p[0] == '/' && p[1] == '.' && (p[2] == '/' || p[2] == 0)) p += 2;
        else *out++ = *p++;
    }
    if (out == joined) *out++ = '/';
    if (out > joined + 1 && out[-1] == '/') out--;
    *out = 0;
    return joined;
}

void value_store(struct config *config, int key, const struct value *value, const char *text)
{
    void *field = (char *)config + config_keys[key].offset;
    switch (config_keys[key].type) {
    case CONFIG_TEXT:
    case CONFIG_PATH:
        free(*(char **)field);
        *(char **)field = value->null                            ? xstrdup("")
                          : config_keys[key].type == CONFIG_PATH ? absolute_path(config, text)
                                                                 : xstrdup(text);
        break;
    case CONFIG_CHOICE: *(unsigned *)field = (unsigned)value->integer; break; /* enums are unsigned */
    case CONFIG_BOOL: *(bool *)field = value->integer != 0; break;
    case CONFIG_SWITCH: *(int *)field = (int)value->integer; break;
    case CONFIG_REAL: *(double *)field = value->real; break;
    default: *(int64_t *)field = value->integer; break;
    }
}
