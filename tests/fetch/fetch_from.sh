#!/bin/sh
# Machines without a network: --from DIR reads the archives that a fetch elsewhere left in its --dest, through the same checks, also those
# whose checksum only that fetch knows (FILE.sha256); what was cut or changed leaves nothing. And without a network the reason is reported
# at once, with both cures, and the end comes soon.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir 'a place'
cd 'a place'
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config"
expect() { exits "$@" >out 2>err || fail "exit $code, expected $*"; } # CODE COMMAND...
config() { # NAME: a source without a published checksum
    mkdir -p "$work/config/meopt"
    printf 'sources:\n  far:\n    file: far.tar.gz\n    url: %s\n    top: FAR\n    size_about: 13000000000\n    trust_first_use: true\n' "$1" >"$work/config/meopt/sources.yaml"
}
mkdir -p web/FAR
echo 'far away' >web/FAR/file
tar -C web -czf web/far.tar.gz FAR
config "https://far.invalid/far.tar.gz"
expect 0 "$MEOPT" fetch sample --dest login
[ "$(ls -A login | tr '\n' ' ')" = "COCO2014 ModelWeight " ] || fail "$(ls -A login)"
mkdir usb
cp "$MEOPT_SOURCE"/configs/sample/*.tar.gz usb/

export https_proxy=http://127.0.0.1:9 http_proxy=http://127.0.0.1:9
expect 0 "$MEOPT" fetch sample --from usb --dest here
diff -r --exclude=.meopt-complete login here || fail "another tree"
[ "$(ls -A here | tr '\n' ' ')" = "COCO2014 ModelWeight " ] || fail "left $(ls -A here)"
expect 0 "$MEOPT" fetch sample --from usb --dest here --json
[ "$(grep -c '"event":"done","already":true' out)" = 2 ] || fail "the second time"
expect 0 "$MEOPT" fetch sample --from usb --verify --dest here
expect 0 "$MEOPT" fetch sample-model-weight --from usb --dest usb # in place
[ -e usb/ModelWeight/.meopt-complete ] && [ -e usb/ModelWeight.tar.gz ] || fail "in place"
expect 0 "$MEOPT" fetch sample --from login --dest shipped # meopt has these archives
expect 2 "$MEOPT" fetch --from usb --dest two
expect 2 "$MEOPT" fetch sample-model-wait --from usb --dest two
expect 2 "$MEOPT" fetch sample --from usb/COCO2014.tar.gz --dest two
expect 1 "$MEOPT" fetch far --from usb --dest two
grep -q 'usb/far.tar.gz' err || fail "the archive that is not there: $(cat err)"

# what is not right is refused, and nothing of it stays
refused() { # WHY SOURCE
    expect 3 "$MEOPT" fetch "$2" --from usb --dest bad
    [ -z "$(ls -A bad 2>/dev/null)" ] || fail "$1: left $(ls -A bad)"
}
head -c 400000 "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz" >usb/COCO2014.tar.gz
refused "cut off" sample
cp "$MEOPT_SOURCE/configs/sample/COCO2014.tar.gz" usb/
printf x | dd of=usb/COCO2014.tar.gz bs=1 seek=300000 conv=notrunc 2>/dev/null
refused "a changed archive" sample
# no checksum of the source: that of the first fetch comes with the archive
cp web/far.tar.gz usb/
(cd usb && sha256sum far.tar.gz >far.tar.gz.sha256)
expect 0 "$MEOPT" fetch far --from usb --dest good
cmp web/FAR/file good/FAR/file || fail "far"
expect 0 "$MEOPT" fetch --from usb/far.tar.gz --dest unnamed
sed -i 's/^./z/' usb/far.tar.gz.sha256
refused "no checksum" far
sed -i 's/^./0/; s/^\(.\)./\11/' usb/far.tar.gz.sha256
refused "another checksum" far
expect 3 "$MEOPT" fetch --from usb/far.tar.gz --dest bad
# a path that cannot be followed is not one that is absent
ln -s loop loop
expect 1 "$MEOPT" fetch far --from loop --dest bad
grep -q "$(python3 -c 'import errno, os; print(os.strerror(errno.ELOOP))')" err || fail "a loop of links: $(cat err)"

# nor that: said, and what an earlier download recorded is required
rm usb/far.tar.gz.sha256
expect 0 "$MEOPT" fetch far --from usb --dest unverified --json
grep -q '"event":"notice"' out || fail "not a word about the checksum"
mkdir -p "$work/state/meopt"
printf '{"https://far.invalid/far.tar.gz": {"sha256": "%064d", "size_bytes": 5}}\n' 1 >"$work/state/meopt/known_archives.json"
refused "another one than recorded" far
grep -q 'usb/far.tar.gz' err && [ -e usb/far.tar.gz ] || fail "which archive: $(cat err)"
rm "$work/state/meopt/known_archives.json"

# offline
export MEOPT_FETCH_PAUSE_SCALE=0.2
for proxy in '' http://127.0.0.1:9; do
    expect 4 env https_proxy="$proxy" "$MEOPT" fetch far
    head -1 err | grep -q 'far: .*\(resolve\|connect\).*https_proxy=http.*--from FILE|DIR' || fail "the reason and its cures are not the first line"
    tail -1 err | grep -q 'https_proxy=http.*--from FILE|DIR' || fail "the end names no cure"
done
# each pause is reported, also one that ends before the next regular report
expect 4 env MEOPT_FETCH_PAUSE_SCALE=0.01 "$MEOPT" fetch far --json
grep -q '"error":"[^"]*connect' out && grep -q '"retry_in_s":[0-9]' out || fail "--json without the reason"
"$MEOPT" fetch --list | grep -q '^far  *missing  *-  *~12.1 GiB' || fail "the size before the first byte"
