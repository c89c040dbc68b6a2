/* JSON as Python writes it: see json_python.h. */
#include "core/text/json_python.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add(struct text_buffer *to, const char *text) { text_append(to, text, strlen(text)); }

static void add_string(struct text_buffer *to, const char *text, size_t bytes)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    add(to, "\"");
    for (size_t i = 0; i < bytes; i++) {
        const char *at = text[i] ? strchr(plain, text[i]) : NULL;
        char escape[8];
        if (at) snprintf(escape, sizeof escape, "\\%c", letters[at - plain]);
        else if ((unsigned char)text[i] < ' ') snprintf(escape, sizeof escape, "\\u%04x", text[i]);
        else snprintf(escape, sizeof escape, "%c", text[i]);
        add(to, escape);
    }
    add(to, "\"");
}

/* The shortest text that is the same number: digits up to an exponent of 15, as repr() writes it. */
static void add_real(struct text_buffer *to, double value)
{
    char text[40], digits[24];
    int precision = 0;
    do snprintf(text, sizeof text, "%.*e", precision, value);
    while (memcmp(&(double){strtod(text, NULL)}, &value, sizeof value) != 0 && ++precision < 17);
    char *mark = strchr(text, 'e');
    int exponent = atoi(mark + 1), count = 0;
    for (const char *p = text; p < mark; p++)
        if (*p >= '0' && *p <= '9') digits[count++] = *p;
    digits[count] = 0;
    if (signbit(value)) add(to, "-");
    if (exponent < -4 || exponent > 15) {
        text_append(to, digits, 1);
        if (count > 1) add(to, "."), add(to, digits + 1);
        snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        add(to, text);
        return;
    }
    if (exponent < 0) add(to, "0.");
    for (int i = exponent; i < -1; i++) add(to, "0");
    for (int i = 0; i < count || i <= exponent + 1; i++) {
        if (i == exponent + 1 && exponent >= 0) add(to, ".");
        if (i < count) text_append(to, digits + i, 1);
        else if (i <= exponent || exponent >= 0) add(to, "0");
    }
}

static void add_line(struct text_buffer *to, int spaces)
{
    add(to, "\n");
    while (spaces-- > 0) add(to, " ");
}

static bool add_value(struct text_buffer *to, const json_t *value, int indent, int spaces)
{
    const char *key, *between = "", *comma = indent ? "," : ", ";
    json_t *item;
    size_t i;
    bool object = json_is_object(value);
    char number[32];
    switch (json_typeof(value)) {
    case JSON_TRUE: add(to, "true"); return true;
    case JSON_FALSE: add(to, "false"); return true;
    case JSON_NULL: add(to, "null"); return true;
    case JSON_STRING: add_string(to, json_string_value(value), json_string_length(value)); return true;
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        add(to, number);
        return true;
    case JSON_REAL: add_real(to, json_real_value(value)); return fabs(json_real_value(value)) < 9e18;
    default: break;
    }
    add(to, object ? "{" : "[");
    json_object_foreach((json_t *)(uintptr_t)value, key, item)
    {
        add(to, between);
        if (indent) add_line(to, spaces + indent);
        add_string(to, key, strlen(key));
        add(to, ": ");
        if (!add_value(to, item, indent, spaces + indent)) return false;
        between = comma;
    }
    json_array_foreach(value, i, item)
    {
        add(to, between);
        if (indent) add_line(to, spaces + indent);
        if (!add_value(to, item, indent, spaces + indent)) return false;
        between = comma;
    }
    if (indent && *between) add_line(to, spaces);
    add(to, object ? "}" : "]");
    return true;
}

bool json_python(struct text_buffer *to, const json_t *value, int indent)
{
    return add_value(to, value, indent, 0);
}
