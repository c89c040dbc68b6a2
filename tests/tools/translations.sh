#!/bin/sh
# Every message has a translation in every po/*.po: xgettext over the sources and the tables of the program, compared with the files. A new,
# changed, fuzzy or obsolete message fails, and so does a translation whose conversions are not those of its message. Texts that are
# printed without a mark fail, too.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
for tool in xgettext msgfmt msgmerge msgattrib msgcat; do
    command -v $tool >/dev/null || { echo "no $tool: the package gettext"; exit 77; }
done
sh "$MEOPT_SOURCE/po/extract.sh" "$MEOPT_BUILD/messages" "$work/all.pot" 2>"$work/err" || fail "xgettext"
count=$(grep -c '^msgid' "$work/all.pot")
[ "$count" -gt 3000 ] || fail "only $count messages found: the search is broken"
for po in "$MEOPT_SOURCE"/po/*.po; do
    name=$(basename "$po")
    msgfmt --check-format -o "$work/meopt.mo" "$po" 2>"$work/out" || fail "$name: conversions differ"
    msgmerge --quiet --no-fuzzy-matching --no-location -o "$work/merged.po" "$po" "$work/all.pot"
    for kind in untranslated only-fuzzy only-obsolete; do
        msgattrib --$kind --no-location "$work/merged.po" | grep -E '^(#~ )?(msgid|")' | sed 1d >"$work/left" || :
        grep -q 'msgid' "$work/left" || continue
        cp "$work/left" "$work/out"
        fail "$name: $kind messages; to update the file: cmake --build BUILD --target translations"
    done
done
# A literal of several words that is printed as it is. The files write formats of their own: pages, scripts, JSON.
cd "$MEOPT_SOURCE"
grep -nE '\b(printf|fprintf|fputs|snprintf|xasprintf)\((stdout, |stderr, |out, |[a-z]+, sizeof [a-z]+, )?"[^"<]*[a-z]{3,} [a-z]{3,}' -r cli fetch --include='*.c' |
    grep -vE '^cli/(commands/(cmd_complete|cmd_config_man|cmd_sbatch|cmd_bench_gpu)|supervisor/hooks)\.c|^fetch/partial\.c' >"$work/out" || :
[ ! -s "$work/out" ] || fail "texts without _(): see CONTRIBUTING.md, Messages"
echo "$count messages"
