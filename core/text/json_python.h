/* JSON as Python's json.dumps(ensure_ascii=False) writes it, which is Jinja's tojson in transformers. */
#ifndef MEOPT_TEXT_JSON_PYTHON_H
#define MEOPT_TEXT_JSON_PYTHON_H

#include "core/base/json.h"
#include "core/text/tokenizer.h"

/* Appends the text of a value; indent: the spaces before a member, each of which then has a line; 0: one.
 * Returns false for a number that only Python's integers hold. */
bool json_python(struct text_buffer *to, const json_t *value, int indent);

#endif
