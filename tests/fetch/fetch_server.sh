#!/bin/sh
# Fetching from a server that misbehaves: each mode of tests/fetch/server.py ends with the right tree or the right refusal, and
# nothing else on the disk.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config" no_proxy='*' MEOPT_FETCH_STALL_SECONDS=2 MEOPT_FETCH_PAUSE_SCALE=0.01
mkdir -p tree/COCO2014/train2014 other/COCO2014
i=0
while [ $i -lt 40 ]; do
    head -c $((i * 3000 + 1)) /dev/urandom >"tree/COCO2014/train2014/$i.jpg"
    i=$((i + 1))
done
head -c 900000 /dev/urandom >other/COCO2014/x
tar -C tree -czf good.tar.gz COCO2014
tar -C other -czf other.tar.gz COCO2014
sha=$(sha256sum <good.tar.gz | cut -c1-64)
size=$(stat -c %s good.tar.gz)
serve() { # one that has served nothing yet
    if [ -n "$server" ]; then
        kill "$server"
        wait "$server" 2>/dev/null || true
        rm -f port
    fi
    python3 "$MEOPT_SOURCE/tests/fetch/server.py" good.tar.gz other.tar.gz port log &
    server=$!
    wait_for 10 test -s port || :
    base=http://127.0.0.1:$(cat port)
}
serve
bad=0
fail() {
    echo "FAILED: $*"
    test ! -s err || cat err
    bad=1
}

# fetch MODE EXIT [option...]: exit code, tree, leftovers
fetch() {
    mode=$1 want=$2
    shift 2
    rm -rf dest
    got=0
    "$MEOPT" fetch --from "$base/$mode/good.tar.gz" --sha256 "$sha" --dest dest "$@" >out 2>err || got=$?
    test "$got" = "$want" || fail "$mode: exit $got, expected $want"
    if [ "$want" = 0 ]; then
        diff -r --exclude=.meopt-complete tree/COCO2014 dest/COCO2014 >/dev/null || fail "$mode: another tree"
        test -f dest/COCO2014/.meopt-complete || fail "$mode: no marker"
        test ! -e dest/.meopt-fetch || fail "$mode: left $(ls -A dest/.meopt-fetch)"
        test "$(ls -A dest)" = "COCO2014
good.tar.gz
good.tar.gz.sha256" || fail "$mode: dest holds $(ls -A dest)"
    else
        test ! -e dest/COCO2014 || fail "$mode: published"
        grep -q '^meopt: ' err || fail "$mode: no message"
        if grep -q "$(printf '\033')" err; then fail "$mode: raw escape"; fi
    fi
}
named() { grep -q -e "$1" err || fail "$mode: '$1' is not named"; }
sent() { awk -v m="$1" '$1 == m {n += $4} END {print n + 0}' log; }
asked() { grep -c "^$1 " log || true; }
restarted() { # the first byte was requested twice, not counting requests for that byte alone
    test "$(awk -v m="$mode" '$1 == m && $2 != "bytes=0-0" && $2 ~ /^(-|bytes=0-.*)$/' log | wc -l)" -ge 2 || fail "$mode: not restarted"
}

fetch ok 0
test "$(sent ok)" -le $((size + 1)) || fail "ok: $(sent ok) bytes for a file of $size"
fetch ignore-range 0
fetch ignore-range-short 0
fetch short 0
test "$(sent short)" -le $((size + size / 50)) || fail "short: $(sent short) bytes for a file of $size"
fetch weak 0
fetch changed 0
restarted
fetch changed-same-tag 0
restarted
fetch wrong-range 4
named '/wrong-range/good.tar.gz: '
test "$(asked wrong-range)" -le 4 || fail "wrong-range: $(asked wrong-range) requests"
fetch wrong-total 4
named '/wrong-total/good.tar.gz: '
test "$(asked wrong-total)" -le 20 || fail "wrong-total: $(asked wrong-total) requests"
fetch stall-early 0 # curl sees it the later the more it had received
fetch busy 0
fetch too-many 0
fetch shrunk 0
fetch redirect 0
fetch redirect-loop 4
fetch redirect-file 4
fetch chunked 0
fetch encoding 0
if grep -q 'accept-encoding' log; then fail "encoding: Accept-Encoding was sent"; fi
# a server that never gets on is given up, with bytes or without
fetch never-whole 4
test "$(asked never-whole)" -le 18 || fail "never-whole: $(asked never-whole) requests"
fetch dribble 4
test "$(asked dribble)" -le 10 || fail "dribble: $(asked dribble) requests"
fetch always-new 4
named '/always-new/good.tar.gz: '
test "$(asked always-new)" -le 20 || fail "always-new: $(asked always-new) requests"
fetch dead 4
fetch endless 4
test "$(asked endless)" -le 18 || fail "endless: $(asked endless) requests"
fetch huge 5
test "$(asked huge)" -le 2 || fail "huge: $(asked huge) requests"
fetch gone 4
named 410
fetch missing 4
named 404
fetch forbidden 4
named 403
fetch page 3
test ! -s dest/.meopt-fetch/good.tar.gz.part || fail "page: kept as a part"

# no checksum, no trust: nothing is fetched over http, and from no source without --sha256
rm -rf dest
got=0
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --dest dest >out 2>err || got=$?
test $got = 2 || fail "http without a checksum: exit $got"
got=0
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --trust --dest dest >out 2>err || got=$?
test $got = 2 || fail "http with --trust alone: exit $got"

# mirrors: the first is gone, the second has another file, the third is right
mkdir -p config/meopt
# a list that nests without end is refused while it is read
head -c 900000 /dev/zero | tr '\0' '[' >config/meopt/sources.yaml
got=0
timeout 10 "$MEOPT" fetch --list >out 2>err || got=$?
test $got = 7 || fail "endless brackets in sources.yaml: exit $got"
grep -q 'meopt/sources.yaml: ' err || fail "endless brackets: the file is not named"
cat >config/meopt/sources.yaml <<EOF
sources:
  mirrored:
    file: m.tar.gz
    url: [file:///nonexistent/x.tar.gz]
    top: COCO2014
EOF
got=0
"$MEOPT" fetch mirrored --dest dest >out 2>err || got=$?
test $got = 1 || fail "a missing local archive: exit $got"

# the archive that was kept is unpacked again without the network
fetch ok 0
rm -rf dest/COCO2014
before=$(wc -l <log)
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --sha256 "$sha" --dest dest >out 2>err || fail "unpacking a kept archive"
test "$(wc -l <log)" = "$before" || fail "the network was used for an archive that is here"
diff -r --exclude=.meopt-complete tree/COCO2014 dest/COCO2014 || fail "kept archive: another tree"
# --stream keeps none; ranges side by side (the file is too small for more than one, which must work as well)
rm -rf dest
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --sha256 "$sha" --dest dest --stream --connections 4 --json >out 2>err || fail "--stream --connections"
test "$(ls -A dest)" = COCO2014 || fail "--stream left $(ls -A dest)"
python3 -c 'import json,sys; e=[json.loads(l) for l in open("out")]; assert e[-1]["event"]=="done" and e[-1]["files"]==40, e[-1]' || fail "--json"
# a second time: nothing to do, nothing asked
before=$(wc -l <log)
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --sha256 "$sha" --dest dest >out 2>err || fail "a second time"
# a wrong checksum: refused, kept once to look at, not published
rm -rf dest
got=0
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --sha256 "$(echo x | sha256sum | cut -c1-64)" --dest dest >out 2>err || got=$?
test $got = 3 || fail "wrong checksum: exit $got"
test ! -e dest/COCO2014 || fail "wrong checksum: published"
test -f dest/.meopt-fetch/good.tar.gz.corrupt || fail "wrong checksum: nothing to look at"
# a FIFO is no archive, and nothing waits for it
rm -rf dest
mkfifo pipe
got=0
timeout 10 "$MEOPT" fetch --from pipe --sha256 "$sha" --dest dest >out 2>err || got=$?
test $got = 1 || fail "a FIFO: exit $got"
grep -q '^meopt: .*pipe: ' err || fail "a FIFO: not named"
# a link in place of the private directory is not followed, and another user's is not taken over
rm -rf dest
mkdir -p dest victim/good.tar.gz.staging
ln -s "$work/victim" dest/.meopt-fetch
got=0
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --sha256 "$sha" --dest dest >out 2>err || got=$?
test $got = 1 || fail "a link: exit $got"
grep -q '^meopt: .*dest/.meopt-fetch: ' err || fail "a link: not named"
test -d victim/good.tar.gz.staging || fail "a link: was followed"
if [ "$(id -u)" = 0 ]; then
    rm -rf dest
    mkdir -p dest/.meopt-fetch
    chown 12345 dest/.meopt-fetch
    got=0
    "$MEOPT" fetch --from "$base/ok/good.tar.gz" --sha256 "$sha" --dest dest >out 2>err || got=$?
    test $got = 1 || fail "another user's directory: exit $got"
    grep -q 'dest/.meopt-fetch: .*12345' err || fail "another user's directory: not named"
fi
# what a fetch that was killed at its very end has left is removed by the next
rm -rf dest
fetch ok 0
mkdir -p dest/.meopt-fetch/good.tar.gz.staging/COCO2014
: >dest/.meopt-fetch/good.tar.gz.part
"$MEOPT" fetch --from "$base/ok/good.tar.gz" --sha256 "$sha" --dest dest >out 2>err || fail "leftovers: refused"
test ! -e dest/.meopt-fetch || fail "leftovers: still there"
# stopped by Ctrl-C while it stalls: keeps what arrived, continues
rm -rf dest
export MEOPT_FETCH_STALL_SECONDS=30
serve
"$MEOPT" fetch --from "$base/stall/good.tar.gz" --sha256 "$sha" --dest dest >out 2>err &
pid=$!
wait_for 10 eval '[ "$(cat dest/.meopt-fetch/good.tar.gz.part* 2>/dev/null | wc -c)" -gt 100000 ]' || fail "Ctrl-C: nothing arrives"
kill -TERM $pid # a shell's background jobs ignore INT
got=0
wait $pid || got=$?
test $got = 143 || fail "Ctrl-C: exit $got"
test -f dest/.meopt-fetch/good.tar.gz.part || fail "Ctrl-C: nothing kept"
"$MEOPT" fetch --from "$base/stall/good.tar.gz" --sha256 "$sha" --dest dest >out 2>err || fail "continuing after Ctrl-C"
diff -r --exclude=.meopt-complete tree/COCO2014 dest/COCO2014 >/dev/null || fail "after Ctrl-C: another tree"
# what has arrived of one source is not another's whose archive is called alike, who leaves it alone
rm -rf dest
serve
mkdir -p config/meopt
cat >config/meopt/sources.yaml <<EOF
sources:
  far: {file: good.tar.gz, url: "https://far.invalid/good.tar.gz", top: COCO2014, sha256: $sha}
  near: {file: good.tar.gz, url: "file://$work/good.tar.gz", top: COCO2014, sha256: $sha}
EOF
"$MEOPT" fetch far --from "$base/stall/good.tar.gz" --dest dest >out 2>err &
pid=$!
wait_for 10 eval 'test "$(cat dest/.meopt-fetch/far.part* 2>/dev/null | wc -c)" -gt 100000' || :
kill -TERM $pid
wait $pid || true
"$MEOPT" fetch --list --dest dest >out
grep -q '^far  *partial' out && grep -q '^near  *missing' out || fail "--list: $(cat out)"
"$MEOPT" fetch near --dest dest 2>err || fail "near: exit $?"
test "$(cat dest/.meopt-fetch/far.part | wc -c)" -gt 100000 || fail "what had arrived of another source is gone"
test $bad = 0 && echo "every mode as expected"
exit $bad
