#!/bin/sh
# Lines of at most 110 columns, files of at most 900 lines, functions of at most 90 lines, and the layout of .clang-format. The layout is
# compared if clang-format 14 is installed, because other versions differ. Tests wait for conditions (wait_for of tests/lib.sh): no script
# sleeps .2 s or more, and what must hang is `tail -f /dev/null`. Benches measure over a time.
set -eu
SOURCE=${MEOPT_SOURCE:-$(cd "$(dirname "$0")/../.." && pwd)}
cd "$SOURCE"
export LC_ALL=C.UTF-8
sources() { find core cli fetch kernels tests \( -name '*.c' -o -name '*.h' -o -name '*.hip' -o -name '*.cc' \) -type f | LC_ALL=C sort; }

# "FILE:LINE: what" for everything too long in the files named on standard input. `expand` is not needed: no tabs.
too_long() {
    tr '\n' '\0' | xargs -0 awk '
        function whole() { if (lines > 900) printf "%s: %d lines\n", file, lines }
        FNR == 1 { whole(); file = FILENAME; begin = 0 }
        { lines = FNR }
        length($0) > 110 { printf "%s:%d: %d columns\n", file, FNR, length($0) }
        /\t/ { printf "%s:%d: a tab\n", file, FNR }
        /^\{$/ { begin = FNR }
        /^\}$/ { if (begin && FNR - begin > 89) printf "%s:%d: a function of %d lines\n", file, begin, FNR - begin + 1; begin = 0 }
        END { whole() }'
}

[ "$(sources | wc -l)" -gt 200 ] || { echo "fewer than 200 sources below $SOURCE: the search is broken"; exit 1; }
found=$(sources | too_long)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{ echo 'int planted(void)'; echo '{'; i=0; while [ $i -lt 900 ]; do echo '    ;'; i=$((i + 1)); done; echo '}'
  printf '/* %0120d */\n' 0; } >"$work/planted.c"
planted=$(echo "$work/planted.c" | too_long | wc -l)
[ "$planted" -eq 3 ] || { echo "a planted line, function and file that are too long gave $planted findings, not 3"; exit 1; }
if [ -n "$found" ]; then
    echo "$found"
    exit 1
fi
sleeps() { grep -rnE --include='*.sh' '(^|[^$[:alnum:]_-])sleep +("?[1-9]|0?\.[2-9])' "$@"; } # DIRECTORY...
printf '  s%s 0.2\n  x; s%s 1 # s%s 0.1\n  s%s 0.15\n' leep leep leep leep >"$work/planted.sh"
[ "$(sleeps "$work" | wc -l)" = 2 ] || { echo "of two planted sleeps, $(sleeps "$work" | wc -l) are found"; exit 1; }
found=$(sleeps $(find tests -mindepth 1 -maxdepth 1 ! -name bench)) || [ $? = 1 ] || { echo "scripts cannot be searched for sleeps"; exit 1; }
[ -z "$found" ] || { echo "$found"; echo "these sleep for a fixed time: use wait_for of tests/lib.sh"; exit 1; }
version=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true)
if [ "$version" != 14 ]; then
    echo "layout not compared: clang-format 14 is wanted, '${version:-none}' is here; lengths are well"
    exit 0
fi
sources | tr '\n' '\0' | xargs -0 clang-format --dry-run --Werror
echo "$(sources | wc -l) files"
