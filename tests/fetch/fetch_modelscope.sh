#!/bin/sh
# meopt fetch ms:OWNER/REPO from a stand-in of ModelScope: the cache has modelscope_hub's layout, the token goes to the hub alone, a file that
# moved with its branch is fetched again, and what is wrong is refused and leaves no file.
set -eu
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
. "$MEOPT_SOURCE/tests/lib.sh"
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
export MODELSCOPE_CACHE="$work/ms" MODELSCOPE_API_TOKEN=ms_secret no_proxy='*' MEOPT_FETCH_PAUSE_SCALE=0.01
python3 "$MEOPT_SOURCE/tests/fetch/hub_server.py" ports log &
server=$!
wait_for 10 test -s ports
export MODELSCOPE_ENDPOINT="http://127.0.0.1:$(cut -d' ' -f1 ports)"

# fetch EXIT NAME [option...]
fetch() {
    want=$1 name=$2 got=0
    shift 2
    "$MEOPT" fetch "ms:$name" "$@" >out 2>err || got=$?
    test "$got" = "$want" || { cat out err; fail "$name: exit $got, expected $want"; }
    if grep -q ms_secret out err; then fail "$name: the token is printed"; fi
}
sum() { sha256sum <"$1" | cut -c1-64; }

fetch 0 me/model --list --json
python3 -c 'import json; a = json.load(open("out")); assert len(a) == 4 and all(len(f["sha256"]) == 64 for f in a), a'
big=$(python3 -c 'import json; print([f["sha256"] for f in json.load(open("out")) if f["bytes"] == 3000000][0])')
fetch 0 me/model --include '*.json'
d=ms/models/me--model/snapshots/master
test "$(cd $d && find . -type f)" = ./config.json || fail "other files than config.json"
fetch 0 me/model
test "$(sum $d/model.safetensors)" = "$big" && test -f $d/empty && test ! -L $d/model.safetensors || fail "files"
test "$(cat $d/sub/dir/vocab.txt)" = "one
two" || fail "vocab.txt"
test ! -e ms/models/me--model/.meopt-fetch || fail "left .meopt-fetch"
grep -q '^cdn GET' log || fail "no request to the other host"
if grep '^cdn' log | grep -q secret; then fail "the token went to another host"; fi
if grep -rq ms_secret ms; then fail "the token is in the cache"; fi
requests=$(grep -c FilePath log)
fetch 0 me/model
test "$requests" = "$(grep -c FilePath log)" || fail "a complete snapshot was requested again"
printf '{"a": 9}\n' >$d/config.json
fetch 0 me/model
test "$(cat $d/config.json)" = '{"a": 1}' || fail "a changed file of the same size was accepted"
fetch 0 me/private
fetch 0 me/model@v1/x --include config.json
test -e ms/models/me--model/snapshots/v1/x/config.json || fail "a revision with a slash"
fetch 0 datasets/me/data --list --json
python3 -c 'import json; a = json.load(open("out")); assert len(a) == 449, len(a)'
fetch 0 me/moved --include config.json
touch moved
fetch 0 me/moved --include config.json
test "$(cat ms/models/me--moved/snapshots/master/config.json)" = '{"a": 2}' || fail "a file that moved with its branch"

# a killed download is resumed by the next one; two at once share one download
kills=6
test -z "${MEOPT_LONG-}" || kills=100
arrives() { grep -q "^cdn GET /kill" log; }
i=0
while [ $i -lt $kills ]; do
    grep -v '^cdn GET /kill' log >>before || true
    : >log
    test $((i % 20)) != 0 || rm -rf ms/models/me--kill
    "$MEOPT" fetch ms:me/kill --quiet >out 2>err &
    pid=$!
    wait_for 20 arrives || fail "kill $i: no request for the file"
    sleep 0.0$((i % 9 + 1))
    kill -9 $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    i=$((i + 1))
done
"$MEOPT" fetch ms:me/kill >first 2>&1 &
pid=$!
fetch 0 me/kill
wait $pid || { cat first; fail "the first of two"; }
test "$(sum ms/models/me--kill/snapshots/master/model.safetensors)" = "$big" || fail "bytes after kills"

fetch 4 me/missing
grep -q me/missing err || fail "missing: not named"
fetch 4 me/model@other
MODELSCOPE_API_TOKEN='' fetch 4 me/private
fetch 4 me/many
for bad in wrong pointer changed up absolute nul dots bare; do
    fetch 3 me/$bad
    test $bad = changed || test ! -e ms/models/me--$bad/snapshots/master/model.safetensors || fail "$bad: a file"
done
fetch 2 model
mkdir -p elsewhere ms/models/me--link
ln -s "$work/elsewhere" ms/models/me--link/snapshots
got=0
"$MEOPT" fetch ms:me/link >out 2>err || got=$?
test $got != 0 && test -z "$(ls -A elsewhere)" || fail "a link in the cache was followed"
MODELSCOPE_ENDPOINT=http://mirror.invalid fetch 2 me/model

# in a configuration, and the directory of modelscope up to 1.37
cat >c.yaml <<YAML
model:
  weight_t: ms:me/model/model.safetensors
  weight_s: ms:You/Qwen2.5@master/model.safetensors
data:
  root: .
YAML
code=0
"$MEOPT" config check c.yaml >out 2>&1 || code=$?
test $code = 7 && grep -q 'c.yaml:3' out || { cat out; fail "exit $code, or no position"; }
mkdir -p ms/hub/models/You/Qwen2___5
cp $d/model.safetensors ms/hub/models/You/Qwen2___5
code=0
"$MEOPT" config check c.yaml >out 2>&1 || code=$?
if grep -q 'ms:' out; then cat out; fail "the directory of an older modelscope was not found"; fi
