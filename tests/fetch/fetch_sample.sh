#!/bin/sh
# meopt fetch sample, offline: from the build tree and from an installed prefix with a space in its path; the second time it
# does nothing and says so; a damaged file is found.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config" https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9
cmake --install "$MEOPT_BUILD" --prefix "$work/a prefix" >/dev/null
for meopt in "$MEOPT" "$work/a prefix/bin/meopt"; do
    rm -rf "$work/sample"
    "$meopt" fetch sample --dest "$work/sample" 2>"$work/err" || fail "$meopt fetch sample: exit $?"
    test "$(find "$work/sample/COCO2014" -name '*.jpg' | wc -l)" -ge 190 || fail "photographs"
    test "$(find "$work/sample/ModelWeight" -type f ! -name '.*' | wc -l)" = 6 || fail "checkpoints"
    find "$work/sample" -exec stat -c '%n %Y %Z' {} + >"$work/before"
    "$meopt" fetch sample --dest "$work/sample" --json >"$work/out" 2>"$work/err" || fail "the second time: exit $?"
    [ "$(grep -c '"event":"done","already":true' "$work/out")" = 2 ] || fail "the second time: $(cat "$work/out")"
    find "$work/sample" -exec stat -c '%n %Y %Z' {} + | cmp - "$work/before" || fail "the second time did something"
    "$meopt" fetch --list --json --dest "$work/sample" | grep -q '"state": *"there"' || fail "list"
done
cd "$work"
"$MEOPT" fetch sample --dest sample --verify 2>err || fail "verify: exit $?"
file=$(find sample/COCO2014 -name '*.jpg' | head -1)
printf x | dd of="$file" bs=1 seek=100 conv=notrunc 2>/dev/null
got=0
"$MEOPT" fetch sample --dest sample --verify 2>err || got=$?
test $got = 3 || fail "verify of a damaged file: exit $got"
grep -q "$(basename "$file")" err || fail "verify names no file"

# A file that is missing is restored, a damaged one by --repair; no other file of the tree is touched.
"$MEOPT" fetch sample --dest sample --repair 2>err || fail "repair: exit $?"
"$MEOPT" fetch sample --dest sample --verify 2>err || fail "verify behind a repair: exit $?"
find sample/COCO2014 -type f -exec stat -c '%n %i' {} + | sort >before
rm "$file"
rm -r sample/COCO2014/val2014
"$MEOPT" fetch sample --dest sample --json >out 2>err || fail "fetch into a tree that lacks files: exit $?"
grep -q '"restored": *3[0-9]' out || fail "33 missing files were not restored: $(grep restored out)"
"$MEOPT" fetch sample --dest sample --verify 2>err || fail "verify of the restored tree: exit $?"
find sample/COCO2014 -type f -exec stat -c '%n %i' {} + | sort >after
test "$(comm -12 before after | wc -l)" -ge 150 || fail "files that were there have been replaced"
# A list that names files outside the tree is refused.
sed -i '2s|^\([0-9a-f]* [0-9]*\) .*|\1 ../outside|' sample/COCO2014/.meopt-complete
got=0
"$MEOPT" fetch sample --dest sample --repair 2>err || got=$?
test $got = 3 || fail "a list with ../: exit $got"
