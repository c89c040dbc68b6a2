#!/bin/sh
# A run whose weights come block by block: killed between checkpoints, gone on with weights that are held, and the other way round, it ends
# with the bytes of a run that was never stopped; nothing is left of its working files; a disk that fills up while they are written is told.
set -u
. "$MEOPT_SOURCE/tests/quickstart.sh"
fail() {
    echo "$*"
    tail -5 log
    exit 1
}
both="model_t.place=streamed model_s.place=streamed"
train() { # NAME CODE ARGUMENT...
    name=$1 want=$2
    shift 2
    "$MEOPT" train configs/quickstart_dinov2.yaml train.steps=6 train.checkpoint_steps=2 --run-dir . --name "$name" "$@" >out 2>log
    got=$?
    [ "$got" = "$want" ] || fail "$name: exit $got, expected $want"
}
resume() { # NAME ARGUMENT...
    name=$1
    shift
    "$MEOPT" train --resume "$name" "$@" >out 2>log || fail "$name: exit $?"
}
same() { # NAME
    for file in model.safetensors optimizer.bin; do
        cmp "held/ckpt/step-00000006/$file" "$1/ckpt/step-00000006/$file" || fail "$1: other bytes in $file"
    done
}
train held 0

# shellcheck disable=SC2086
train streamed 10 $both --stop-after 3
resume streamed model_s.place=resident model_t.place=resident
same streamed

train other 10 --stop-after 3
# shellcheck disable=SC2086
resume other $both
same other

# Killed in the middle, wherever it is then.
# shellcheck disable=SC2086
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=6 train.checkpoint_steps=2 --run-dir . --name killed $both --no-dashboard \
    >out 2>log &
pid=$!
while [ ! -e killed/ckpt/step-00000002/MANIFEST.json ] && kill -0 $pid 2>/dev/null; do sleep 0.05; done
worker=$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' killed/state.json)
kill -9 "$worker" $pid 2>/dev/null
wait $pid 2>/dev/null
[ -z "$(find killed -name '.meopt-weights*')" ] || fail "killed: working files are left"
resume killed
same killed

# What stands in files, and the time that steps waited for it, is told beside the memory.
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=2 --run-dir . --name told model_t.place=streamed >out 2>log || fail "told: exit $?"
grep -q '"file_classes": *{"teacher": *[1-9]' told/metrics.jsonl || fail "metrics: no bytes in files"
[ "$(grep -c '"stream_wait_ms":' told/metrics.jsonl)" = 2 ] || fail "metrics: no time of waiting"
! grep -q stream_wait_ms held/metrics.jsonl || fail "metrics: a time of waiting for nothing"
"$MEOPT" compare held told >out 2>log || [ $? = 8 ] || fail "compare"
grep -q 'beside it, in working files' out && grep -q 'waiting for streamed weights' out || fail "compare: nothing of files"
"$MEOPT" compare held held >out 2>log
! grep -q 'working files' out || fail "compare: files that are not there"

! "$MEOPT" train configs/quickstart_dinov2.yaml model_s.place=streamed optim.gradients=keep --run-dir . --name kept >out 2>log ||
    fail "gradients: keep is taken"
grep -q 'optim.gradients: release' log || fail "gradients: keep is not told"
