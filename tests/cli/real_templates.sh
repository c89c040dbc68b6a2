#!/bin/sh
# Long: the chat templates that installed packages have (trl, axolotl; MEOPT_TEMPLATES: directories of more): meopt tokenize writes each
# conversation as transformers renders it, or refuses it by the name of the template.
set -eu
[ -n "${MEOPT_LONG:-}" ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
set -- tokenizers transformers jinja2
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
"$python" "$MEOPT_SOURCE/tests/tools/compare_templates.py" "$MEOPT" >out 2>&1 || { cat out; fail "templates differ"; }
cat out
! grep -q '^0 templates' out || { echo "skipped: no package has templates"; exit 77; }
