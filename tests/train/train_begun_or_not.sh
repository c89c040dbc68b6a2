#!/bin/sh
# One command for a job that is requeued: `train --resume-if-exists --name N` begins the run, resumes it, and reports that it is complete.
# It does not resume a different experiment.
set -eu
. "$MEOPT_SOURCE/tests/lib.sh"
cd "$work"
mkdir sample configs
for archive in COCO2014 ModelWeight; do tar -xzf "$MEOPT_SOURCE/configs/sample/$archive.tar.gz" -C sample; done
cp "$MEOPT_SOURCE/configs/quickstart_dinov2.yaml" configs/
line() { # exit code, more
    want=$1
    shift
    code=0
    "$MEOPT" train --resume-if-exists configs/quickstart_dinov2.yaml train.steps=6 --run-dir runs "$@" >out 2>err || code=$?
    [ "$code" = "$want" ] || fail "exit $code, expected $want: $*"
}
line 2
grep -q '^meopt: .*--name' err || fail "a run that comes back has a name"
line 10 --name one --stop-after 4
line 7 --name one optim.lr=1e-3
grep -q '^meopt: runs/one: optim.lr .*2.0e-3.*1.0*e-3' err || fail "the key is named"
line 7 --name one train.steps=7
line 0 --name one
[ "$(wc -l <runs/one/metrics.jsonl)" = 6 ] || fail "steps"
grep -q '"resumed"' runs/one/events.jsonl || fail "not resumed"
cp runs/one/metrics.jsonl before
line 0 --name one
cmp before runs/one/metrics.jsonl || fail "a run that is done is left alone"
grep -q '^steps  *[a-z].*\<6\>' err && grep -q 'meopt train --resume runs/one train.steps=N$' err || fail "it says so"
! grep -q '^loss [0-9]\|^steps  *[0-9]' err || fail "figures of no step"
line 0 --name two
strip() { sed -E 's/,"(images_per_s|step_ms|data_wait_ms)":[^,}]*//g; s/,"cards":.*//; s/}$//' "runs/$1/metrics.jsonl"; }
[ "$(strip one)" = "$(strip two)" ] || fail "the same numbers in one go"
mkdir runs/empty
line 7 --name empty
echo ok
