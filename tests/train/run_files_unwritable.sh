#!/bin/sh
# What a run reports of itself is never worth the run: state.json that cannot be replaced is reported once, and the run ends as it would.
set -u
. "$MEOPT_SOURCE/tests/train/quickstart.sh"
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=400 --run-dir . --name run >out 2>log &
pid=$!
wait_for 10 [ -s run/metrics.jsonl ] || :
rm -f run/state.json
mkdir run/state.json || fail "it has ended before"
wait "$pid"
code=$?
[ "$code" = 0 ] || fail "exit $code"
[ "$(grep -c '^warning: .*state.json' log)" = 1 ] || fail "told $(grep -c 'state.json' log) times"
[ "$(wc -l <run/metrics.jsonl)" = 400 ] || fail "metrics"
[ -d run/ckpt/step-00000400 ] || fail "not saved"

# The table at the start says by which norm gradients are clipped, and why when it is not this step's.
grep -q '^clipping  *previous: .*\<optim.clip_mode=exact\>' log || fail "the mode of clipping is not reported"
"$MEOPT" train configs/quickstart_dinov2.yaml train.steps=1 train.micro_batch=4 --run-dir . --name accumulated >out 2>log || fail "accumulated"
grep -q '^clipping  *exact: ' log || fail "exact clipping is not reported"
grep -q 'optim.clip_mode  *exact' log || fail "clipping is not exact where it costs nothing"
