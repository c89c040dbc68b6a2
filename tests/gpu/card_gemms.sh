#!/bin/sh
# Algorithms of a card's GEMM library: tried in the first step of a run, stored with it, used by all of its ranks from the second step on,
# and repeated by a resume to the bit, however fast they are then. The library is a stand-in whose algorithms sum in different orders.
set -eu
. "$MEOPT_SOURCE/tests/gpu/fake_cards.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
export OMP_NUM_THREADS=1 MEOPT_CUBLASLT_LIBRARY="$fakes/libfake_cublaslt.so" MEOPT_HIPBLASLT_LIBRARY="$fakes/libfake_hipblaslt.so" \
    FAKE_LT_ALGORITHMS=3 FAKE_LT_FAST=1 FAKE_LT_SLOW=1000
train() { # NAME DEVICE STEPS OPTION...
    name=$1 device=$2 steps=$3
    shift 3
    "$MEOPT" train configs/quickstart_dinov2.yaml "device.type=$device" "train.steps=$steps" train.batch_size=2 data.image_size=28 train.checkpoint_steps=2 train.checkpoint_keep=3 \
        --run-dir "$work" --name "$name" "$@" >out 2>log
}
resume() { # NAME OPTION...
    name=$1
    shift
    LC_ALL=C "$MEOPT" train --resume "$work/$name" "$@" >out 2>log || fail "resuming $name: exit $?"
}
model() { echo "$work/$1/ckpt/step-0000000$2/model.safetensors"; }
same() { cmp "$(model "$1" "$3")" "$(model "$2" "$3")" || fail "$1 and $2 are not the same bytes"; }
differ() { ! cmp -s "$(model "$1" "$3")" "$(model "$2" "$3")" || fail "$1 and $2 are the same bytes"; }
# numbers RUN NUMBER SHARE: at least this share of the shapes has the algorithm of this number
numbers() {
    python3 - "$work/$1/gemm.json" "$2" "$3" <<'PY' || fail "gemm.json of $1: $(head -c 1000 "$work/$1/gemm.json")"
import json, struct, sys
f = json.load(open(sys.argv[1]))
found = [struct.unpack("<II", bytes.fromhex(g["algorithm"])[:8])[1] for g in f["gemms"]]
assert len(found) > 10 and f["library"] and f["card"], f
assert found.count(int(sys.argv[2])) >= float(sys.argv[3]) * len(found), found
PY
}
branch() { sed -n 's/^run .*\///p' out log; } # the name of the last resume's run
# again RUN: a branch at step 2, where other algorithms are the fastest, ends with the bytes of the run
again() {
    run=$1
    FAKE_LT_FAST=2 resume "$run" --at 2
    branch=$(branch)
    cmp "$run/gemm.json" "$branch/gemm.json" || fail "a resume of $run has chosen again"
    same "$run" "$branch" 4
}
train whole cuda 4
numbers whole 1 0.8
again whole
MEOPT_GEMM_TRIALS=none again whole
(
    export FAKE_VERSION=60032830
    train hip hip 4
    numbers hip 1 0.8
    again hip
)

# the first step is computed by the first algorithms, with or without trials; later ones are not
MEOPT_GEMM_TRIALS=none train none cuda 1
[ ! -e none/gemm.json ] || fail "algorithms were tried"
train one cuda 1
same none one 1
MEOPT_GEMM_TRIALS=none train nones cuda 2
differ nones whole 2

# an algorithm whose results differ from those of the first one, or from call to call, is not taken, however fast
FAKE_LT_BAD=1 train bad cuda 2
numbers bad 0 0.8
FAKE_LT_RANDOM=1 train random cuda 2
numbers random 0 0.4 # of bf16, rounding may hide it

# another version of the library, and an algorithm that it no longer offers: reported, and chosen again
FAKE_LT_VERSION=2 FAKE_LT_FAST=2 resume whole --at 2
grep -q '^warning: .*gemm.json' log || fail "another library is hushed up"
numbers "$(branch)" 2 0.8
FAKE_LT_ALGORITHMS=1 resume whole --at 2
grep -q '^warning: .* GEMM ' log || fail "a missing algorithm is hushed up"

# a file that cannot be read now is not replaced: the resume ends, and the next one repeats the choices
mv whole/gemm.json kept
mkdir whole/gemm.json
! "$MEOPT" train --resume whole --at 2 >out 2>log && grep -q '^meopt: .*gemm.json' log || fail "a file that cannot be read: $(tail -n 3 log)"
rmdir whole/gemm.json || fail "a file that could not be read was replaced"
mv kept whole/gemm.json

# ranks use the choice of rank 0
export FAKE_CARDS=2
train ranks cuda 4 --cards 0,1
numbers ranks 1 0.8
again ranks
