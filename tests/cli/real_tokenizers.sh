#!/bin/sh
# Long: meopt tokenize writes the tokens of Hugging Face's tokenizers for 10 MB each of English, Chinese and random UTF-8, and for each
# character of Unicode. MEOPT_TOKENIZERS: a directory of directories with tokenizer.json, which are compared as well.
set -eu
[ -n "${MEOPT_LONG:-}" ] || { echo "skipped: long form, MEOPT_LONG=1"; exit 77; }
set -- tokenizers numpy
. "$MEOPT_SOURCE/tests/tools/python.sh"
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
"$python" "$MEOPT_SOURCE/tests/tools/compare_tokenizers.py" "$MEOPT" >out 2>&1 || fail "tokens differ"
cat out
[ "$(grep -c equal out)" -ge 24 ] || fail "fewer pairs than made"
