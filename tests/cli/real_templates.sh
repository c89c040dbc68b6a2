#!/bin/sh
# Long: the chat templates that installed packages have (trl, axolotl; MEOPT_TEMPLATES: directories of more): each conversation is written as
# transformers renders it, with the labels of those that mark them, or refused by the name of the template.
set -eu
[ -n "${MEOPT_LONG:-}" ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
set -- transformers jinja2
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
"$python" "$MEOPT_SOURCE/tests/tools/compare_templates.py" "$MEOPT_BUILD/tests/test_text_record" >out 2>&1 || { cat out; fail "templates differ"; }
cat out
! grep -q '^0 templates' out || { echo "skipped: no package has templates"; exit 77; }
