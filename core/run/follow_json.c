/* Reads the JSON files of a run and their fields: see follow_internal.h. */
#include "core/base/file.h"
#include "core/run/follow_internal.h"

#include <math.h>
#include <stdlib.h>

double follow_number(const json_t *object, const char *key)
{
    const json_t *x = json_object_get(object, key);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

int64_t follow_whole(const json_t *object, const char *key)
{
    const json_t *x = json_object_get(object, key);
    return json_is_integer(x) ? json_integer_value(x) : -1;
}

void follow_text(char *dst, size_t size, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    name_printable(dst, size, text ? text : "");
}

json_t *follow_load(const struct follow *f, const char *name)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *object = file_read_below(f->directory, name, 4 << 20, &text, &bytes, NULL) == 0
                         ? json_loadb(text, bytes, 0, NULL)
                         : NULL;
    free(text);
    return object;
}
