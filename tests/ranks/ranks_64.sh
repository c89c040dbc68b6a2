#!/bin/sh
# Many ranks on one machine start, train, save and resume, and `runs`, the dashboard and `compare` show them: 16, with MEOPT_LONG=1 64, more
# than fit in a table of cards. The soft limit of descriptors is lower than they require.
set -eu
. "$MEOPT_SOURCE/tests/cli/tmux.sh"
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
ranks=16
[ "${MEOPT_LONG:-0}" = 1 ] && ranks=64
few_images 64
export OMP_NUM_THREADS=1
train() { # CODE ARGUMENT...
    want=$1
    shift
    exits "$want" "$MEOPT" train "$@" >out 2>log || { tail -n 5 log; fail "train $*: exit $code, expected $want"; }
}
set -- configs/quickstart_dinov2.yaml train.global_batch=64 train.micro_batch=1 train.checkpoint_steps=5 train.steps=10 --run-dir runs
(
    ulimit -S -n 90
    train 10 "$@" --workers $ranks --name many dist.shard=optimizer --stop-after 5
)
train 0 --resume runs/many --workers $ranks
train 0 "$@" --name one
cmp runs/many/ckpt/step-00000010/model.safetensors runs/one/ckpt/step-00000010/model.safetensors || fail "other weights than one rank"
[ "$(find runs/many/ckpt/step-00000010 -name 'optimizer.*-of-*' | wc -l)" = $ranks ] || fail "parts of the states"
"$MEOPT" runs --run-dir runs | grep '^many ' >row
grep -q '10/10 *0\.' row || fail "runs shows no loss: $(cat row)"
"$MEOPT" compare --csv runs/many runs/one >table 2>log || fail "compare: $(cat log)"
grep -q "^facts,ranks,$ranks,1" table || fail "compare has no ranks: $(cat table)"
terminal 132 43 C.UTF-8 "HOME=$work" "'$MEOPT' attach runs/many"
await '10/10'
await 'rank 0\|  *0 '
keys q
await 'status 0'
stop
