#!/bin/sh
# meopt train on an emulated card: the CPU's losses, the same bytes from run to run and over a stop, no memory asked for inside a step,
# and clear ends when the card runs out of memory or fails in the middle.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
train() { # NAME DEVICE STEPS KEY=VALUE...
    name=$1 device=$2 steps=$3
    shift 3
    "$MEOPT" train "$work/configs/$config.yaml" "device.type=$device" "train.steps=$steps" train.log_every=1 train.batch_size=4 data.image_size=$size --run-dir "$work" --name "$name" --json "$@" >"$work/$name.out" 2>"$work/log"
}
close() { # RUN RUN TOLERANCE: losses and norms of all steps
    python3 - "$work/$1/metrics.jsonl" "$work/$2/metrics.jsonl" "$3" <<'PY' || fail "$1 and $2 differ"
import json, sys
a, b = ([json.loads(l) for l in open(f)] for f in sys.argv[1:3])
assert len(a) == len(b) and a, (len(a), len(b))
for x, y in zip(a, b):
    for k in ("loss", "grad_norm"):
        assert abs(x[k] - y[k]) <= float(sys.argv[3]) * abs(x[k]), (x["step"], k, x[k], y[k])
PY
}
same() { cmp "$work/$1/ckpt/step-0000000$3/model.safetensors" "$work/$2/ckpt/step-0000000$3/model.safetensors" && cmp "$work/$1/ckpt/step-0000000$3/optimizer.bin" "$work/$2/ckpt/step-0000000$3/optimizer.bin" || fail "$1 and $2 are not the same bytes"; }

config=quickstart_dinov2 size=56
train cpu cpu 2
train hip hip 2
close cpu hip 1e-2
train cuda cuda 2
close cpu cuda 1e-2
MEOPT_CUBLASLT_LIBRARY="$fakes/libfake_cublaslt.so" train lt cuda 2
close cpu lt 1e-2
size=28 # where bytes and counts are compared
FAKE_COUNT=$work/three train whole hip 3
FAKE_COUNT=$work/two train again hip 3 --stop-after 2 && fail "a stopped run ends with 0"
"$MEOPT" train --resume "$work/again" >"$work/log" 2>&1 || fail "resuming"
same whole again 3
grep -q '"side_copies":[1-9]' "$work/three" || fail "no image is copied in parallel with computing"
FAKE_GRAPH=void train void hip 3
grep -q '^warning: graphs: off: .*(901)' "$work/log" || fail "a recording that came to nothing is hushed up"
same whole void 3
micro="train.micro_batch=1 optim.gradients=keep"
# shellcheck disable=SC2086
{
    train micro hip 2 $micro train.batch_size=2
    for late in 1 2 -1; do # what is missing shows as another result: an event where one stream works late and the other at once, a wait where all do
        FAKE_LATE=$late train late$late hip 2 $micro train.batch_size=2
        same micro late$late 2
    done
    FAKE_COUNT=$work/graphs train large hip 3 $micro data.image_size=56
    MEOPT_GRAPHS=none FAKE_COUNT=$work/plain train single hip 3 $micro data.image_size=56
}
same large single 3
count() { sed "s/.*\"$2\":\([0-9]*\).*/\1/" "$work/$1"; }
[ "$(count plain graphs)" = 0 ] && [ "$(count graphs graphs)" -gt 0 ] || fail "no graphs are started"
[ $(($(count graphs launches) * 4)) -lt $(($(count plain launches) * 3)) ] || fail "graphs save no launches: $(cat "$work/graphs" "$work/plain")"
classes() { tr ',{}' '\n\n\n' | sed -nE 's/^ *"(weights|gradients|optimizer|activations|teacher|data)": *([0-9]+).*/\1 \2/p'; }
for name in hip cpu; do
    "$MEOPT" plan "$work/configs/$config.yaml" device.type=$name train.batch_size=4 data.image_size=56 --json 2>"$work/log" | classes >"$work/planned"
    tail -1 "$work/$name/metrics.jsonl" | classes >"$work/measured"
    cmp "$work/planned" "$work/measured" || fail "$name: what is held is not what was planned"
done
grep -q '"held_bytes":0' "$work/three" || fail "memory of the card is not given back"
[ "$(count two allocations)" = "$(count three allocations)" ] || fail "a step asks the driver for memory"
config=quickstart size=56
few_images 32
train cpu32 cpu 2 train.precision=fp32 train.cache_teacher=true
train hip32 hip 2 train.precision=fp32 train.cache_teacher=true
close cpu32 hip32 2e-4
config=quickstart_openclip
train cpu_lamb cpu 2 optim.name=lamb optim.use_meopt=false
train hip_lamb hip 2 optim.name=lamb optim.use_meopt=false
close cpu_lamb hip_lamb 1e-2
"$MEOPT" embed --help >/dev/null

config=quickstart size=28
code=0
FAKE_MEMORY=1200000 train small hip 2 || code=$?
[ "$code" = 11 ] || fail "out of memory: exit code $code"
grep -q '^meopt: .*hip:0.*: .*(2).*\<1 MiB' "$work/log" || fail "out of memory does not say what is held"
code=0
FAKE_LAUNCH=200 train broken hip 2 || code=$?
[ "$code" = 1 ] && grep -q '^meopt: .*hip:0.*(719)' "$work/log" || fail "a failure in the middle: exit code $code"
FAKE_CARDS=2 train second auto 1 --cards 1 || fail "--cards 1"
grep -q '^device  *hip:1 ' "$work/log" || fail "--cards 1 takes another card"
code=0
train many hip 1 --cards 0,1 || code=$?
[ "$code" != 0 ] && grep -q '^meopt: .*\<1 of device.cards 0,1' "$work/log" || fail "a card that is not there: exit code $code"
FAKE_CARDS=2 train first hip 1 || fail "all cards"
grep -q '\<2 cards.*meopt train --cards 0,1' "$work/log" || fail "of two cards one is taken in silence"
