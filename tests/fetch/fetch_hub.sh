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
fetch 0 me/model
test "$requests" = "$(grep -c resolve log)" || fail "a complete snapshot was requested again"
fetch 0 datasets/me/data --exclude '*.safetensors'
test -e hf/hub/datasets--me--data/snapshots/$commit/config.json || fail "dataset"
fetch 0 me/busy@$commit
test ! -e hf/hub/models--me--busy/refs || fail "a commit is not a ref"

# a killed download is resumed by the next one, from another signed address
kills=10
test -z "${MEOPT_LONG-}" || kills=300
arrives() { grep -q "^cdn GET /kill.* \(-\|bytes=[1-9].*\)$" log; }
i=0
while [ $i -lt $kills ]; do
    grep -v '^cdn GET /kill' log >>before || true
    : >log
    test $((i % 20)) != 0 || rm -rf hf/hub/models--me--kill
    "$MEOPT" fetch hf:me/kill --quiet >out 2>err &
    pid=$!
    wait_for 20 arrives "$i" || fail "kill $i: no request for the file"
    sleep 0.0$((i % 9 + 1))
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    i=$((i + 1))
done
fetch 0 me/kill
test "$(sha256sum <hf/hub/models--me--kill/snapshots/$commit/model.safetensors | cut -c1-64)" = "$blob" || fail "bytes after kills"
grep -q '^cdn GET /kill.* bytes=[1-9][0-9]*-$' log || fail "nothing was resumed"

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
mkdir -p elsewhere hf/hub/models--me--link/snapshots
ln -s "$work/elsewhere" hf/hub/models--me--link/snapshots/$commit
got=0
"$MEOPT" fetch hf:me/link >out 2>err || got=$?
test $got != 0 || fail "a link in the cache was followed"
test -z "$(ls -A elsewhere)" || fail "a link in the cache was followed"
HF_HUB_OFFLINE=1 fetch 0 me/model
HF_HUB_OFFLINE=1 fetch 4 me/missing
HF_ENDPOINT=http://mirror.invalid fetch 2 me/model
