#!/bin/sh
# A card that fails in the middle of a run ends it with exit status 1, the driver's number and the next thing to do; what was saved stays,
# and the run continues from there to the same bytes as an undisturbed run.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1 MEOPT_GRAPHS=none # a launch that fails in a recording costs the graphs alone
train() { # NAME
    "$MEOPT" train configs/quickstart_dinov2.yaml device.type=hip train.steps=4 train.batch_size=2 train.checkpoint_steps=1 --run-dir . --name "$1" >out 2>log
}
FAKE_COUNT=$work/count train whole || fail "a run"
launches=$(sed 's/.*"launches":\([0-9]*\).*/\1/' count)
lose() { # NAME VARIABLE NUMBER of the driver's error
    code=0
    (export "$2=$((launches * 3 / 4))" && train "$1") || code=$?
    [ "$code" = 1 ] || fail "exit $code, expected 1"
    grep -q "^meopt: .*hip:0.*($3)" log || fail "the driver's error is lost"
    grep -q "meopt doctor" log || fail "no next thing to do"
    grep -q '"state": "failed"' "$1/state.json" && ls "$1"/ckpt/step-* >/dev/null || fail "nothing was saved before"
    "$MEOPT" train --resume "$1" >out 2>log || fail "it does not continue"
    for file in model.safetensors optimizer.bin; do
        cmp "whole/ckpt/step-00000004/$file" "$1/ckpt/step-00000004/$file" || fail "other bytes in $file"
    done
}
lose lost FAKE_LAUNCH 719
# A kernel that reads where nothing is: the driver says so some calls later, and of each call from then on.
lose fault FAKE_FAULT 700
