#!/bin/sh
# The first hour of a user: a configuration of 'config new' finds the data that 'fetch' unpacked next to it. A missing file is reported with
# the command that downloads it. Every command and group has help, and mistyped words get a suggestion. A reader that closes the pipe ends
# the program silently.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
dir=$work
mkdir "$dir/a place"
cd "$dir/a place"
expect() { exits "$@" >out 2>err || fail "exit $code, expected $*"; } # CODE COMMAND...
says() { grep -q -e "$1" out err || fail "not printed: '$1'"; }

# what is not there
expect 0 "$MEOPT" config new quickstart my.yaml
expect 7 "$MEOPT" train my.yaml
says '^meopt: .*my.yaml:6:[0-9]*: model_t.weight '
says ' meopt fetch sample --dest sample$'
[ ! -e runs ] || fail "a refused start leaves a directory"
expect 0 "$MEOPT" config new eva_clip
expect 7 "$MEOPT" train eva_clip.yaml
says ' meopt fetch model-weight$'
mkdir deep deep/er
expect 0 "$MEOPT" config new dinov2 deep/er/d.yaml
grep -q '^  weight: \.\./\.\./ModelWeight/' deep/er/d.yaml || fail "paths of a file two directories down"
expect 7 "$MEOPT" train deep/er/d.yaml
says ' meopt fetch model-weight$'
expect 0 "$MEOPT" config new dinov2 ../outside.yaml
grep -q "^  root: ['\"]*$dir/a place/COCO2014" ../outside.yaml || fail "paths of a file elsewhere"
expect 0 "$MEOPT" config new radio_like deep/radio.yaml
[ "$(grep -c "^  \(- \)\{0,1\}weight: \.\./[a-z]" deep/radio.yaml)" = 3 ] || fail "paths of a list: $(grep weight: deep/radio.yaml)"
expect 0 "$MEOPT" config new open_clip -
grep -q '^  root: COCO2014 ' out || fail "paths on standard output"

# and after the command that was reported
expect 0 "$MEOPT" fetch sample --dest sample
expect 0 "$MEOPT" config check my.yaml
expect 0 "$MEOPT" train my.yaml train.steps=1 --name one
expect 7 "$MEOPT" train my.yaml data.root=sample/COCO2015
says '^meopt: .*data.root .*COCO2015'

# event times to the millisecond
grep -q '^{"event":"started","time":[0-9]\{10\}\.[0-9]\{3\},' runs/one/events.jsonl || fail "$(cat runs/one/events.jsonl)"
python3 - runs/one/events.jsonl <<'PY' || fail "the events' times are not now, in order"
import json, sys, time
times = [json.loads(line)["time"] for line in open(sys.argv[1])]
assert times == sorted(times) and time.time() - 600 < times[0] <= times[-1] <= time.time(), times
PY

# help of everything that help lists, and of the groups
expect 0 "$MEOPT" help
sed '/^Topics/,$d' out | sed -n 's/^  \([a-z][a-z ]*[a-z]\)  .*/\1/p' >names
[ "$(wc -l <names)" -ge 20 ] || fail "help lists few commands"
while read -r name; do
    expect 0 "$MEOPT" help $name
    says "^Usage: meopt $name"
done <names
for group in config bench; do
    expect 0 "$MEOPT" help $group
    says "^  $group "
    cp out told
    expect 0 "$MEOPT" $group --help
    cmp -s out told || fail "$group --help and help $group differ"
    expect 2 "$MEOPT" $group
    says "[: ]$group [a-z]*, $group [a-z]"
done
expect 2 "$MEOPT" config sett
says "'meopt config set'?"
expect 2 "$MEOPT" confg
says "'meopt config'?"
expect 2 "$MEOPT" help benhc
says "'meopt help bench'?"
expect 2 "$MEOPT" x
expect 2 "$MEOPT" fetch coco2015
says 'coco2014?'

expect 2 "$MEOPT" runs --state trainin
says 'training?'
expect 2 "$MEOPT" bench optim --rule apadm
says 'apadam?'
expect 7 "$MEOPT" plan m.yaml
says 'my.yaml?'
expect 7 "$MEOPT" train deep/er/dd.yaml
says 'deep/er/d.yaml?'
expect 7 "$MEOPT" plan nothing/like/it.yaml
says '^meopt: nothing/like/it.yaml: '
if grep '?' err; then fail "a file is guessed where none is near"; fi

# runs by name and by the beginning of one
for i in 1 2 3; do cp -R runs/one "runs/two-$i"; done
expect 0 "$MEOPT" stop one --json
says '"asked": null'
says '"state": "done"'
expect 0 "$MEOPT" stop on
expect 2 "$MEOPT" stop two
says 'two-1, two-2, two-3'
expect 0 "$MEOPT" stop two-2
expect 1 "$MEOPT" stop three
says ' meopt runs$'
expect 1 "$MEOPT" stop onee
says 'one?'
expect 0 "$MEOPT" compare one two-1,two-2
expect 0 "$MEOPT" export one
expect 0 "$MEOPT" embed one --out e.safetensors
expect 1 "$MEOPT" checkpoint one
expect 0 "$MEOPT" stop --run-dir "$PWD/runs" one
expect 0 "$MEOPT" stop runs/on
cd runs
expect 0 "$MEOPT" stop one
cd ..
[ "$("$MEOPT" complete -- attach tw | tr '\n' ' ')" = "two-1 two-2 two-3 " ] || fail "completion of runs"
[ "$("$MEOPT" complete -- train --resume on | tr '\n' ' ')" = "one " ] || fail "completion of --resume"
[ "$("$MEOPT" complete -- config new ev)" = eva_clip ] || fail "completion of templates"
[ "$("$MEOPT" complete -- config get my.yaml optim.use_m)" = optim.use_meopt ] || fail "completion of keys"
[ "$("$MEOPT" complete -- help config ge)" = get ] || fail "completion of help"
[ "$(mkdir none && cd none && "$MEOPT" runs 2>&1)" != "" ] || fail "no runs yet"
expect 0 sh -c 'cd none && "$1" runs' sh "$MEOPT"
says 'meopt train CONFIG'

# a reader that has enough
for what in runs 'config list' 'compare one two-1' 'help'; do
    : >err
    rm -f code
    { code=0; "$MEOPT" $what 2>err || code=$?; echo "$code" >code; } | true
    wait_for 10 [ -s code ] || fail "$what does not end"
    case $(cat code) in 0 | 141) ;; *) fail "$what: exit $(cat code) into a closed pipe" ;; esac
    [ ! -s err ] || fail "$what talks into a closed pipe"
done
python3 - "$MEOPT" <<'PY' || fail "a closed pipe"
import os, subprocess, sys
r, w = os.pipe()
os.close(r)
p = subprocess.run([sys.argv[1], "config", "list"], stdout=w, stderr=subprocess.PIPE)
assert p.returncode == -13 and not p.stderr, p
PY
