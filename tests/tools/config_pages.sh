#!/bin/sh
# Between two marks, meopt.yaml(5) has the keys as `meopt config man` prints them, in both languages. --update writes them there.
set -eu
MEOPT_SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
MEOPT=${MEOPT:-$MEOPT_SOURCE/build-ci/meopt}
. "$MEOPT_SOURCE/tests/lib.sh"
for row in C:C.UTF-8:meopt.yaml.5 i:tr_TR.UTF-8:meopt.yaml.5 zh:zh_CN.UTF-8:zh_CN/man5/meopt.yaml.5; do # i: has another capital
    page=$MEOPT_SOURCE/man/${row##*:} locale=${row#*:}
    LC_ALL=${locale%:*} "$MEOPT" config man >"$work/keys"
    [ "$(LC_ALL=zh_CN.UTF-8 "$MEOPT" runs --help | grep -c 列出各次运行)" = 1 ] || [ "${row%%:*}" != zh ] || continue
    sed -e "/^\.\\\\\" Keys/r $work/keys" -e '/^\.\\" Keys/,/^\.\\" End of keys/{/^\.\\"/!d}' "$page" >"$work/page"
    [ "$(grep -c '^\.\\"' "$page")" = 2 ] || fail "$page: two marks expected"
    if [ "${1-}" = --update ]; then cp "$work/page" "$page"; fi
    cmp "$page" "$work/page" || fail "update: sh tests/tools/config_pages.sh --update"
done
