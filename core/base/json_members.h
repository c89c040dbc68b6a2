/* Tables of the members that an object in a JSON file from outside may have. A member that is not in the
 * table could change what the file means, so it is refused by its name. */
#ifndef MEOPT_BASE_JSON_MEMBERS_H
#define MEOPT_BASE_JSON_MEMBERS_H

#include "core/base/json.h"

struct json_member {
    const char *name;    /* an asterisk at the end: every name that begins so */
    const char *accepts; /* JSON texts separated by '|': null|false|"none"; null is always one of them.
                            NULL: any value, which the caller reads or which changes nothing */
};

/* Refuses (EXIT_CONFIG) a member of `object` that is in neither table and not null, and a value that its row
 * does not accept. A table ends with a NULL name; `others` may be NULL. `what` names the object in the
 * message, `hint` says what to do. An `object` that is no JSON object has no members. */
int json_members_check(const json_t *object, const struct json_member *rows, const struct json_member *others,
                       const char *what, const char *hint, struct error *err);

#endif
