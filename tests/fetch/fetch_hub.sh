#!/bin/sh
# meopt fetch hf:OWNER/REPO from a stand-in of the hub: the cache has huggingface_hub's layout, the token goes to the hub alone, and what
# is wrong is refused and leaves no blob.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
unset HF_HUB_OFFLINE HF_HUB_CACHE HF_TOKEN_PATH
export HF_HOME="$work/hf" HF_TOKEN=hf_secret no_proxy='*' MEOPT_FETCH_PAUSE_SCALE=0.01
python3 "$MEOPT_SOURCE/tests/fetch/hub_server.py" ports log &
server=$!
wait_for 10 test -s ports
export HF_ENDPOINT="http://127.0.0.1:$(cut -d' ' -f1 ports)"
commit=0123456789abcdef0123456789abcdef01234567

# fetch EXIT NAME [option...]
fetch() {
    want=$1 name=$2 got=0
    shift 2
    "$MEOPT" fetch "hf:$name" "$@" >out 2>err || got=$?
    test "$got" = "$want" || { cat out err; fail "$name: exit $got, expected $want"; }
    if grep -q hf_secret out err; then fail "$name: the token is printed"; fi
}

# right DIRECTORY FILES: FILES links, and each blob has the content of its name
right() {
    test "$(find "$1/snapshots" -type l | wc -l)" = "$2" || fail "$1: not $2 files"
    test ! -e "$1/.meopt-fetch" || fail "$1: left .meopt-fetch"
    for blob in "$1"/blobs/????????????????????????????????????????????????????????????????; do
        test ! -e "$blob" || test "$(sha256sum <"$blob" | cut -c1-64)" = "$(basename "$blob")" || fail "content of $blob"
    done
}

fetch 0 me/model --list --json
python3 -c 'import json,sys; a = json.load(open("out")); assert len(a) == 4 and a[2]["bytes"] == 3000000 and len(a[2]["sha256"]) == 64, a'
fetch 0 me/model --include '*.json,sub/' --exclude 'sub/*'
d=hf/hub/models--me--model
test "$(cd $d/snapshots/$commit && find . -type l)" = ./config.json || fail "other files than config.json"
fetch 0 me/model
test "$(cat $d/refs/main)" = $commit || fail "refs/main"
test "$(cat $d/snapshots/$commit/sub/dir/vocab.txt)" = "one
two" || fail "vocab.txt"
test "$(readlink $d/snapshots/$commit/sub/dir/vocab.txt)" = "../../../../blobs/$(cd $d/snapshots/$commit/sub/dir && basename "$(readlink vocab.txt)")" ||
    fail "link of vocab.txt"
blob=$(basename "$(readlink $d/snapshots/$commit/model.safetensors)")
test "$(sha256sum <$d/blobs/$blob | cut -c1-64)" = "$blob" || fail "name of the blob"
test "$(find $d/blobs -type f | wc -l)" = 4 || fail "blobs: $(ls $d/blobs)"
test ! -e $d/.meopt-fetch || fail "left .meopt-fetch"
grep -q '^hub GET .*Bearer_hf_secret' log || fail "no token at the hub"
grep -q '^cdn GET' log || fail "no request to the other host"
if grep '^cdn' log | grep -q Bearer; then fail "the token went to another host"; fi
if grep -rq hf_secret hf; then fail "the token is in the cache"; fi
requests=$(grep -c resolve log)
ref=$(ls -i $d/refs/main)
fetch 0 me/model
test "$requests" = "$(grep -c resolve log)" || fail "a complete snapshot was requested again"
test "$ref" = "$(ls -i $d/refs/main)" || fail "a complete snapshot was written to"
fetch 0 datasets/me/data --exclude '*.safetensors'
test -e hf/hub/datasets--me--data/snapshots/$commit/config.json || fail "dataset"
fetch 0 me/busy@$commit
test ! -e hf/hub/models--me--busy/refs || fail "a commit is not a ref"

fetch 0 me/mirror@refs/pr/1
test "$(cat hf/hub/models--me--mirror/refs/refs/pr/1)" = $commit || fail "a revision with slashes"
test "$(find hf/hub/models--me--mirror/snapshots -type l | wc -l)" = 4 || fail "the next page of a mirror that names the hub itself"

# downloads that are killed are resumed by the next command, from other signed addresses
kills=5
test -z "${MEOPT_LONG-}" || kills=300
arrives() { grep -q "^cdn GET /part_kill.* \(-\|bytes=[1-9].*\) [0-9]*$" log; }
i=0
while [ $i -lt $kills ]; do
    grep -v '^cdn GET /part_kill' log >>before || true
    : >log
    test $((i % 10)) != 0 || rm -rf hf/hub/models--me--part_kill
    "$MEOPT" fetch hf:me/part_kill --quiet >out 2>err &
    pid=$!
    wait_for 20 arrives "$i" || fail "kill $i: no request for a file"
    sleep 0.0$((i % 9 + 1))
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    i=$((i + 1))
done
fetch 0 me/part_kill
right hf/hub/models--me--part_kill 7
grep -q '^cdn GET /part_kill.* bytes=[1-9][0-9]*- [0-9]*$' log || fail "nothing was resumed"
if grep '^cdn' log before | grep -q Bearer; then fail "the token went to another host"; fi

# SIGTERM (the shell ignores SIGINT in the background) keeps the bytes of all files
rm -rf hf/hub/models--me--part_kill
: >log
"$MEOPT" fetch hf:me/part_kill --quiet >out 2>err &
pid=$!
three() { test "$(grep -c '^sent 65536 of /part_kill' log)" -ge 3; }
wait_for 20 three || fail "no three downloads at a time"
kill -TERM $pid
got=0
wait $pid || got=$?
test $got = 143 && test "$(grep -c meopt: err)" = 1 || fail "SIGTERM: exit $got"
test "$(find hf/hub/models--me--part_kill/.meopt-fetch -name '*.part' -size +31k | wc -l)" -ge 3 || fail "SIGTERM: bytes of the files"

fetch 0 me/part_kill
right hf/hub/models--me--part_kill 7

# two commands at a time: the same files, each received once; what a kill left of a state is removed
rm -rf hf/hub/models--me--part
mkdir -p hf/hub/models--me--part/.meopt-fetch
touch "hf/hub/models--me--part/.meopt-fetch/.$(basename "$(readlink hf/hub/models--me--part_kill/snapshots/$commit/part-1.safetensors)").state.Ab3dEf"
: >log
"$MEOPT" fetch hf:me/part >first 2>&1 &
pid=$!
fetch 0 me/part
wait $pid || { cat first; fail "the first of two"; }
right hf/hub/models--me--part 7
test "$(grep -c '^cdn GET' log)" = 6 || fail "a file was received twice, or its copy as well"

# the second of two stops while it waits for the first
rm -rf hf/hub/models--me--part_kill
: >log
"$MEOPT" fetch hf:me/part_kill --quiet >first 2>&1 &
pid=$!
wait_for 20 three || fail "the first of two: no downloads"
"$MEOPT" fetch hf:me/part_kill >out 2>err &
second=$!
wait_for 20 grep -q part- err || fail "the second of two does not wait"
kill -TERM $second
got=0
wait $second || got=$?
test $got = 143 || fail "the second of two: exit $got"
wait $pid || { cat first; fail "the first of two, after the second stopped"; }
right hf/hub/models--me--part_kill 7

# at most N requests at a time, and no fewer than half of it at some time; events in whole lines
rm -rf hf/hub/models--me--all_slow
for n in 1 8; do
    rm -rf hf/hub/models--me--all_slow
    : >log
    fetch 0 me/all_slow --connections $n --json
    right hf/hub/models--me--all_slow 48
    busiest=$(awk '$1 == "hub" || $1 == "cdn" { if ($6 > most) most = $6 } END { print most }' log)
    test "$busiest" -le $n && test "$busiest" -ge $((n / 2)) || fail "--connections $n: $busiest requests at a time"
    python3 - <<'PY'
import json
events = [json.loads(line) for line in open("out")]
assert all(e["name"] == "me/all_slow" for e in events), events
assert len({e["file"] for e in events if e["event"] == "file"}) == 48, events
assert all(e["file"] for e in events if e["event"] != "done"), events
assert events[-1]["event"] == "done" and events[-1]["files"] == 48, events[-1]
assert events[-1]["received_bytes"] >= 6 * 3000000, events[-1]
PY
done

# a large file is split if connections are left
fetch 0 me/huge_file
grep -q '^cdn GET .* bytes=67108864- ' log && grep -q '^cdn GET .* bytes=0-67108863 ' log || fail "the large file was not split"
rm -rf hf/hub/models--me--huge_file

# one of several files fails: it is named once, and the others are kept
fetch 4 me/part_endless # more bytes than the list of files says
test "$(grep -c ^endless log)" -lt 4000 || fail "endless: $(grep -c ^endless log) times 64 KiB"
fetch 4 me/many_denied
test "$(grep -c 'me/many_denied is gated' err)" = 1 || fail "denied: not named once"
fetch 3 me/part_wrong
grep -q part-3.safetensors err || fail "wrong: the file is not named"
test ! -e hf/hub/models--me--part_wrong/refs/main || fail "wrong: recorded"
touch repaired
for name in many_denied part_wrong; do fetch 0 me/$name; done
right hf/hub/models--me--many_denied 41
right hf/hub/models--me--part_wrong 7
rm repaired
fetch 0 me/many_limited
if grep '^early' log; then fail "requests in the pause that the hub asked for"; fi
: >log
fetch 0 me/part_expires
right hf/hub/models--me--part_expires 7
grep -q '^cdn GET .* bytes=[1-9][0-9]*- ' log || fail "expired addresses: nothing was resumed"
: >log
fetch 0 me/many_again
test "$(grep -c connection log)" -le 18 || fail "a connection per request: $(grep -c connection log)"
fetch 0 me/part_noranges
right hf/hub/models--me--part_noranges 7
got=0
(ulimit -f 7000 && exec "$MEOPT" fetch hf:me/part_full >out 2>err) || got=$?
test $got = 0 || fail "files below the limit: exit $got"
got=0
(ulimit -f 2000 && exec "$MEOPT" fetch hf:me/part_filled >out 2>err) || got=$?
test $got = 5 && test "$(grep -c meopt: err)" = 1 || { cat err; fail "a full disk: exit $got"; }

# no symbolic links: the files are in the snapshot, and the next fetch finds them
linkless() { LD_LIBRARY_PATH="$MEOPT_BUILD/tests" LD_PRELOAD=libfault.so FAULT_LINKLESS=1 fetch "$@"; }
linkless 0 me/linkless
test "$(find hf/hub/models--me--linkless/snapshots -type f | wc -l)" = 4 || fail "linkless: files"
requests=$(grep -c resolve log)
linkless 0 me/linkless
test "$requests" = "$(grep -c resolve log)" || fail "linkless: requested again"

# no proxy reads the token of a hub of this machine
requests=$(grep -c '^cdn' log)
http_proxy=http://127.0.0.1:$(cut -d' ' -f2 ports) no_proxy='' NO_PROXY='' fetch 0 me/model --list
test "$requests" = "$(grep -c '^cdn' log)" || fail "the token went through a proxy"
HF_TOKEN='' HUGGING_FACE_HUB_TOKEN=hf_older fetch 0 me/model --list
grep -q Bearer_hf_older log || fail "HUGGING_FACE_HUB_TOKEN"
HUGGINGFACE_HUB_CACHE="$work/older" fetch 0 me/model --include config.json
test -e older/models--me--model/snapshots/$commit/config.json || fail "HUGGINGFACE_HUB_CACHE"
HF_HOME='' XDG_CACHE_HOME="$work/xdg" fetch 0 me/model --include config.json
test -e xdg/huggingface/hub/models--me--model/snapshots/$commit/config.json || fail "XDG_CACHE_HOME"

for bad in gated missing; do
    fetch 4 me/$bad
    grep -q "me/$bad" err || fail "$bad: not named"
done
fetch 4 me/model@other
grep -q other err || fail "the revision is not named"
for bad in wrong pointer changed lies up absolute nul dots; do
    fetch 3 me/$bad
    test -z "$(find hf/hub/models--me--$bad -name model.safetensors 2>/dev/null)" || test $bad = changed || fail "$bad: linked"
    test ! -e hf/hub/models--me--$bad/refs/main || fail "$bad: recorded"
done
fetch 5 me/huge
for bad in me/x/y ../x me/..x 'me/x@../y' -x me/; do fetch 2 "$bad"; done
fetch 2 me/model --sha256 "$blob"
fetch 2 me/model --include 'no.such'
grep -q me/model err || fail "--include without a match: not named"
for page in me/model https://huggingface.co/me/model; do
    got=0
    "$MEOPT" fetch "$page" >out 2>err || got=$?
    test $got = 2 && grep -q 'hf:me/model' err || { cat err; fail "$page: exit $got, or no hint"; }
done
mkdir -p elsewhere hf/hub/models--me--link/snapshots
ln -s "$work/elsewhere" hf/hub/models--me--link/snapshots/$commit
got=0
"$MEOPT" fetch hf:me/link >out 2>err || got=$?
test $got != 0 || fail "a link in the cache was followed"
test -z "$(ls -A elsewhere)" || fail "a link in the cache was followed"

# a link in place of the repository; bytes that another user could have put there; a partial file that is a hard link; what a kill after
# the last byte left
mkdir -p target
ln -s "$work/target" hf/hub/models--me--linked
fetch 1 me/linked
test -z "$(ls -A target)" || fail "a link in place of the repository was followed"
fetch 0 me/shared
blob=hf/hub/models--me--shared/blobs/$(basename "$(readlink hf/hub/models--me--shared/snapshots/$commit/model.safetensors)")
sum=$(basename "$blob")
printf 'other bytes' | dd of="$blob" conv=notrunc 2>dd.log
fetch 0 me/shared # this user's own file is known by its name
grep -q 'other bytes' "$blob" || fail "an own blob was read"
chmod o+w "$blob"
fetch 0 me/shared
right hf/hub/models--me--shared 4
mkdir -p hf/hub/models--me--hard/.meopt-fetch
echo precious >thesis
ln thesis "hf/hub/models--me--hard/.meopt-fetch/$sum.part"
fetch 0 me/hard
right hf/hub/models--me--hard 4
test "$(cat thesis)" = precious || fail "a hard link was written through"
mkdir hf/hub/models--me--hard/.meopt-fetch
for part in state part; do : >"hf/hub/models--me--hard/.meopt-fetch/$sum.$part"; done
fetch 0 me/hard
test ! -e hf/hub/models--me--hard/.meopt-fetch || fail "left .meopt-fetch after a success"

# lists without end, and a list whose values take 50 times its bytes
for bad in nopage ${MEOPT_LONG:+onepage}; do
    : >log
    fetch 3 me/$bad --list
    test "$(grep -c ^page log)" -le 5000 || fail "$bad: $(grep -c ^page log) pages"
done
HF_HUB_OFFLINE=1 fetch 0 me/model
HF_HUB_OFFLINE=1 fetch 4 me/missing
HF_ENDPOINT=http://mirror.invalid fetch 2 me/model
grep -q 'MEOPT_SANITIZE:BOOL=ON' "$MEOPT_BUILD/CMakeCache.txt" || ulimit -v 2000000
fetch 3 me/nodes --list
